"""Which operators can raise for some data: what can raise is not dead, even if nobody reads its result.

Shapes and dtypes are checked when a graph is recorded. What is left depends on data: an index out of range, a target
that is no class, a division of integers by zero, a matrix without a Cholesky factor. The table names the operators that
compute something for all data; an operator that is not in it counts as one that can raise, those of `torch.library`
included.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.standard import operator

_POINTWISE = """
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu
    clamp clamp_max clamp_min clip clone complex conj conj_physical copysign cos cosh deg2rad digamma elu eq erf erfc
    erfinv exp exp2 expm1 fix floor fmax fmin frac frexp gcd ge gelu glu greater greater_equal gt hardshrink
    hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac imag isfinite isin isinf isnan isneginf isposinf
    lcm ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish mul multiply nan_to_num ne
    neg negative nextafter not_equal polar polygamma positive pow prelu rad2deg real reciprocal relu relu6 round rsqrt
    rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink special_entr special_erf special_erfcx
    special_expit special_expm1 special_i0e special_i1 special_i1e special_log_ndtr special_logit special_ndtr
    special_ndtri special_xlog1py special_zeta sqrt square sub subtract tan tanh threshold trunc where xlogy
    __and__ __or__ __xor__ __lshift__ __rshift__ _conj _conj_physical _neg_view _prelu_kernel _to_copy to type_as
    _add_relu resolve_conj resolve_neg copy
    gelu_backward sigmoid_backward silu_backward tanh_backward threshold_backward elu_backward glu_backward
    hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
    log_sigmoid_backward logit_backward mish_backward native_dropout_backward softplus_backward softshrink_backward
    _prelu_kernel_backward
"""
_VIEWS = """
    adjoint alias as_strided broadcast_to broadcast_tensors chunk contiguous detach diagonal expand expand_as flatten
    lift lift_fresh lift_fresh_copy mH mT matrix_H moveaxis movedim narrow numpy_T permute reshape reshape_as
    _reshape_alias select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split transpose unbind
    unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view view_as view_as_complex
    view_as_real _unsafe_view
    alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy
    split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy
    view_copy view_as_real_copy view_as_complex_copy
"""
_CREATIONS = """
    arange empty empty_like empty_permuted empty_strided eye full full_like hann_window linspace logspace new_empty
    new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zero zeros
    zeros_like
"""
_MOVES = """
    as_strided_scatter block_diag cat channel_shuffle native_channel_shuffle col2im concat concatenate constant_pad_nd
    diag diag_embed diagonal_scatter flip im2col meshgrid pad pixel_shuffle pixel_unshuffle reflection_pad1d
    reflection_pad2d reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d roll rot90
    select_backward select_scatter slice_backward slice_scatter stack tril triu diagonal_backward
"""
_REDUCTIONS = """
    all amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum dist kthvalue
    linalg_vector_norm logcumsumexp logsumexp max mean median min mode msort nanmedian nansum norm prod sort std
    std_mean sum topk trace var var_mean log_softmax softmax _log_softmax _softmax _safe_softmax special_log_softmax
    special_softmax renorm cov corrcoef _log_softmax_backward_data _softmax_backward_data
"""
_PRODUCTS = """
    _addmm_activation addbmm addmm addmv addr baddbmm bmm dot ger inner linalg_matmul linear matmul mm mv outer vdot
    linalg_cross _euclidean_dist _cdist_forward _pdist_forward pairwise_distance
"""
_NETWORKS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator avg_pool1d avg_pool2d avg_pool3d
    batch_norm bucketize conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d _convolution
    convolution _batch_norm_no_update _fused_rms_norm grid_sampler_2d grid_sampler_3d group_norm gru layer_norm lstm
    max_pool1d max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices native_batch_norm
    native_group_norm native_layer_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training rms_norm rnn_relu rnn_tanh scaled_dot_product_attention
    _scaled_dot_product_flash_attention_for_cpu _weight_norm_interface
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward avg_pool2d_backward avg_pool3d_backward
    batch_norm_backward native_batch_norm_backward native_group_norm_backward native_layer_norm_backward
    binary_cross_entropy_backward huber_loss_backward mse_loss_backward smooth_l1_loss_backward
    binary_cross_entropy_with_logits hinge_embedding_loss huber_loss l1_loss margin_ranking_loss mse_loss
    smooth_l1_loss soft_margin_loss
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d_backward upsample_bilinear2d_backward
    upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward
"""
_FOURIER = "_fft_c2c _fft_c2r _fft_r2c fft_fftshift fft_ifftshift"

TOTAL = frozenset(
    " ".join((_POINTWISE, _VIEWS, _CREATIONS, _MOVES, _REDUCTIONS, _PRODUCTS, _NETWORKS, _FOURIER)).split()
)
"""Names of ATen operators that raise for no data."""

_DIVISIONS = frozenset(
    {"div", "divide", "true_divide", "floor_divide", "remainder", "fmod", "__floordiv__", "__mod__"}
)
"""Those raise for integers only, by a divisor of zero."""


# Recurrent layers over packed sequences, whose batch sizes are data.
_PACKED = frozenset(getattr(torch.ops.aten, name).data for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


@cache
def raises_for_no_data(op: Any) -> bool:
    """Whether an OpOverload computes something for all data, its shapes and dtypes being right."""
    if not isinstance(op, torch._ops.OpOverload):
        return op is operator.getitem
    name = op._opname  # pyright: ignore[reportAttributeAccessIssue]
    return op.namespace in ("mkldnn", "lampwork") or (
        op.namespace == "aten" and name in TOTAL and op not in _PACKED
    )


def may_raise(node: fx.Node) -> bool:
    """Whether a node of a graph may raise when it runs."""
    if node.op != "call_function" or raises_for_no_data(node.target):
        return False
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return True
    name, args = target._opname, node.args  # pyright: ignore[reportAttributeAccessIssue]
    if name == "masked_fill":
        # A number is checked when it is recorded; whether the one in a tensor fits the dtype is data.
        return isinstance(args[2] if len(args) > 2 else node.kwargs.get("value"), fx.Node)
    if name in _DIVISIONS:
        val = node.meta.get("val")
        divisor = args[1] if len(args) > 1 else node.kwargs.get("other")
        known = isinstance(divisor, int | float) and type(divisor) in (int, float) and divisor != 0
        inexact = isinstance(val, TensorSpec) and (val.dtype.is_floating_point or val.dtype.is_complex)
        return not (known or inexact)
    return True
