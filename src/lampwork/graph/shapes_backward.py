"""Shapes of the operators by which autograd differentiates: of activations, norms, losses, pools, and views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.graph.shapes_common import (
    ShapeError,
    channels_last_strides,
    is_channels_last_strided,
    like,
    preserved_strides,
    suggested_strides,
)
from lampwork.graph.shapes_cuda import is_cuda
from lampwork.graph.shapes_nn import check_channels, normed_strides
from lampwork.graph.shapes_pointwise import binary
from lampwork.graph.shapes_views import diagonal, select, slice_
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten
Results = tuple[TensorSpec | None, ...]

# --- activations -----------------------------------------------------------------------------------------------------


def _reversed_binary(grad: TensorSpec, x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    """What iterates over (x, grad)."""
    return binary(x, grad)


def elu(
    grad: TensorSpec, alpha: float, scale: float, input_scale: float, is_result: bool, x: TensorSpec
) -> TensorSpec:
    return binary(grad, x)


def log_sigmoid(grad: TensorSpec, x: TensorSpec, buffer: TensorSpec) -> TensorSpec:
    """`empty_like(grad)`; the buffer is read instead of some of x, and need not be there."""
    if grad.shape != x.shape:
        raise ShapeError(f"the gradient of log_sigmoid of {x} from {grad}")
    return TensorSpec(grad.shape, preserved_strides(grad), grad.dtype, grad.device)


def glu(grad: TensorSpec, x: TensorSpec, dim: int) -> TensorSpec:
    return like(x, x.shape)


def prelu(grad: TensorSpec, x: TensorSpec, weight: TensorSpec) -> Results:
    """Of the weight a gradient for each element, which autograd sums."""
    both = TensorSpec(x.shape, preserved_strides(x), x.dtype, x.device)
    return both, both


# --- softmax, losses -------------------------------------------------------------------------------------------------


def softmax(grad: TensorSpec, result: TensorSpec, dim: int, input_dtype: torch.dtype) -> TensorSpec:
    if grad.shape != result.shape:
        raise ShapeError(f"the gradient of a softmax {result} from {grad}")
    if is_cuda(grad) and not _softmax_of_cuda(grad.dtype, result.dtype, input_dtype):
        raise ShapeError(f"the gradient of a softmax of {input_dtype} {result} from {grad}")
    return like(grad, grad.shape, input_dtype)


def _softmax_of_cuda(grad: torch.dtype, result: torch.dtype, given: torch.dtype) -> bool:
    """Whether CUDA's kernels take these dtypes: of a softmax in float32 of float16, or all alike."""
    return grad is result and (grad is given or (grad, given) == (torch.float32, torch.float16))


def nll_loss(grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any) -> TensorSpec:
    return like(x, x.shape)


def nll_loss2d(grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any) -> TensorSpec:
    """Zeros like x, which have to lie in rows."""
    if len(x.shape) != 4 or not TensorSpec(x.shape, preserved_strides(x), x.dtype, x.device).is_contiguous:
        raise ShapeError(f"the gradient of a loss of {x}, which does not lie in rows")
    return like(x, x.shape)


def _distance(grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any) -> TensorSpec:
    """mse_loss, smooth_l1_loss, huber_loss."""
    if x.shape != target.shape or grad.shape not in (x.shape, ()):
        raise ShapeError(f"the gradient of the distance of {x} and {target} from {grad}")
    return like(x, x.shape)


def binary_cross_entropy(
    grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any, **kwargs: Any
) -> TensorSpec:
    if x.shape != target.shape:
        raise ShapeError(f"the gradient of a loss of {x} and {target}")
    return TensorSpec(x.shape, preserved_strides(x), x.dtype, x.device)


# --- norms -----------------------------------------------------------------------------------------------------------


def _asked(mask: Sequence[bool], *results: TensorSpec | None) -> Results:
    """The results that `mask` asks for."""
    return tuple(spec if wanted else None for wanted, spec in zip(mask, results, strict=True))


def layer_norm(
    grad: TensorSpec,
    x: TensorSpec,
    normalized_shape: Sequence[int],
    mean: TensorSpec,
    rstd: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    output_mask: Sequence[bool],
) -> Results:
    if grad.shape != x.shape:
        raise ShapeError(f"the gradient of a norm of {x} from {grad}")
    parameters = [None if spec is None else like(spec, spec.shape) for spec in (weight, bias)]
    return _asked(output_mask, like(x, x.shape), *parameters)


def group_norm(
    grad: TensorSpec,
    x: TensorSpec,
    mean: TensorSpec,
    rstd: TensorSpec,
    weight: TensorSpec | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    output_mask: Sequence[bool],
) -> Results:
    if grad.shape != x.shape:
        raise ShapeError(f"the gradient of a norm of {x} from {grad}")
    scale = None if weight is None else like(weight, weight.shape)
    result = TensorSpec(x.shape, normed_strides(x), x.dtype, x.device)
    return _asked(output_mask, result, scale, scale)


def batch_norm(
    grad: TensorSpec,
    x: TensorSpec,
    weight: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    save_mean: TensorSpec | None,
    save_invstd: TensorSpec | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    *reserve: TensorSpec,
) -> Results:
    """The gradients of weight and bias are of the weight's dtype, without one of x's."""
    if grad.shape != x.shape or len(x.shape) < 2:
        raise ShapeError(f"the gradient of a norm of {x} from {grad}")
    check_channels(x, weight, running_mean, running_var, *((save_mean, save_invstd) if train else ()))
    channels = like(x, (x.shape[1],), x.dtype if weight is None else weight.dtype)
    result = TensorSpec(x.shape, normed_strides(x), x.dtype, x.device)
    return _asked(output_mask, result, channels, channels)


# --- pools, resizing -------------------------------------------------------------------------------------------------


def _pool(grad: TensorSpec, x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    """Channels last where the input is."""
    return TensorSpec(x.shape, suggested_strides(x), x.dtype, x.device)


def _pool_in_rows(grad: TensorSpec, x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return like(x, x.shape)


def _resized(grad: TensorSpec, output_size: Sequence[int], input_size: Sequence[int], *_: Any) -> TensorSpec:
    if len(grad.shape) != len(input_size) or len(output_size) != len(input_size) - 2:
        raise ShapeError(f"the gradient of a resized {list(input_size)} from {grad}")
    if grad.shape != (*input_size[:2], *output_size):
        raise ShapeError(f"the gradient of a resized {list(input_size)} from {grad}")
    return like(grad, tuple(input_size))


def _resized_image(
    grad: TensorSpec, output_size: Sequence[int], input_size: Sequence[int], *_: Any
) -> TensorSpec:
    """Channels last where the gradient is."""
    found = _resized(grad, output_size, input_size)
    if not is_channels_last_strided(grad):
        return found
    return TensorSpec(found.shape, channels_last_strides(found.shape), grad.dtype, grad.device)


# --- views and indices -----------------------------------------------------------------------------------------------


def _of_view(view: Callable[..., TensorSpec]) -> Callable[..., TensorSpec]:
    """Zeros of the input's size, into a view of which the gradient is written."""

    def rule(grad: TensorSpec, input_sizes: Sequence[int], *args: Any) -> TensorSpec:
        zeros = like(grad, tuple(input_sizes))
        if view(zeros, *args).shape != grad.shape:
            raise ShapeError(f"the gradient of a view of {list(input_sizes)} from {grad}")
        return zeros

    return rule


def embedding(
    grad: TensorSpec, indices: TensorSpec, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> TensorSpec:
    if grad.shape[:-1] != indices.shape or not grad.shape:
        raise ShapeError(f"the gradient of an embedding by {indices} from {grad}")
    return like(grad, (num_weights, grad.shape[-1]))


# --- dropout ---------------------------------------------------------------------------------------------------------


def native_dropout(x: TensorSpec, p: float, train: bool | None) -> Results:
    strides = preserved_strides(x)
    return (
        TensorSpec(x.shape, strides, x.dtype, x.device),
        TensorSpec(x.shape, strides, torch.bool, x.device),
    )


def native_dropout_backward(grad: TensorSpec, mask: TensorSpec, scale: float) -> TensorSpec:
    return binary(grad, mask)


RULES: Mapping[Any, Callable[..., Any]] = {
    aten.gelu_backward.default: binary,
    aten.silu_backward.default: binary,
    aten.mish_backward.default: binary,
    aten.hardtanh_backward.default: binary,
    aten.hardswish_backward.default: binary,
    aten.hardsigmoid_backward.default: binary,
    aten.softplus_backward.default: binary,
    aten.sigmoid_backward.default: binary,
    aten.tanh_backward.default: binary,
    aten.logit_backward.default: binary,
    aten.hardshrink_backward.default: binary,
    aten.softshrink_backward.default: binary,
    aten.threshold_backward.default: _reversed_binary,
    aten.leaky_relu_backward.default: _reversed_binary,
    aten.elu_backward.default: elu,
    aten.log_sigmoid_backward.default: log_sigmoid,
    aten.glu_backward.default: glu,
    aten._prelu_kernel_backward.default: prelu,
    aten._softmax_backward_data.default: softmax,
    aten._log_softmax_backward_data.default: softmax,
    aten.nll_loss_backward.default: nll_loss,
    aten.nll_loss2d_backward.default: nll_loss2d,
    aten.mse_loss_backward.default: _distance,
    aten.smooth_l1_loss_backward.default: _distance,
    aten.huber_loss_backward.default: _distance,
    aten.binary_cross_entropy_backward.default: binary_cross_entropy,
    aten.native_layer_norm_backward.default: layer_norm,
    aten.native_group_norm_backward.default: group_norm,
    aten.native_batch_norm_backward.default: batch_norm,
    aten.batch_norm_backward.default: batch_norm,
    aten.max_pool2d_with_indices_backward.default: _pool,
    aten.max_pool3d_with_indices_backward.default: _pool,
    aten.adaptive_max_pool2d_backward.default: _pool,
    aten.avg_pool2d_backward.default: _pool,
    aten.avg_pool3d_backward.default: _pool_in_rows,
    aten._adaptive_avg_pool2d_backward.default: _pool,
    aten._adaptive_avg_pool3d_backward.default: _pool_in_rows,
    aten.upsample_nearest1d_backward.default: _resized,
    aten.upsample_nearest2d_backward.default: _resized_image,
    aten.upsample_linear1d_backward.default: _resized,
    aten.upsample_bilinear2d_backward.default: _resized_image,
    aten.upsample_bicubic2d_backward.default: _resized,
    aten.slice_backward.default: _of_view(slice_),
    aten.select_backward.default: _of_view(select),
    aten.diagonal_backward.default: _of_view(diagonal),
    aten.embedding_dense_backward.default: embedding,
    aten.native_dropout.default: native_dropout,
    aten.native_dropout_backward.default: native_dropout_backward,
}
