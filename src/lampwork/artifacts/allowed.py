"""The operators that a file calls without being trusted.

Nothing is allowed for having no bad name: an operator is on one of two lists. Those that the native compiler lowers
are, since what they read is inferred and an index taken from data is checked, but for `_NOT_CHECKED`: where a lowering
declines a call, PyTorch's kernel runs, and these believe the indices that they are given. Those that PyTorch runs
always are on `_CALLED`: functions of numbers, views and products, and operators whose kernels refuse an index that is
not there.
"""

from __future__ import annotations

from typing import Any

from lampwork.lower.table import RULES
from lampwork.standard import functools

_NOT_CHECKED = frozenset(
    {
        # Places in data, which kernels believe.
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "nll_loss_backward",
        "nll_loss2d_backward",
        # Sizes of statistics, which kernels believe.
        "_fused_rms_norm_backward",
        "batch_norm_backward",
        "native_batch_norm_backward",
        "native_group_norm_backward",
        "native_layer_norm_backward",
        "convolution_backward",
        "avg_pool2d_backward",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
        "upsample_nearest1d_backward",
        "upsample_nearest2d_backward",
    }
)

_NUMBERS = """
    absolute angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh digamma divide erfinv fix float_power frexp gcd
    greater greater_equal i0 igamma igammac isclose isin isreal lcm ldexp less less_equal lgamma logaddexp2 multiply
    mvlgamma negative nextafter not_equal polar polygamma quantile nanquantile special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_digamma special_entr special_erfc special_erfcx
    special_erfinv special_exp2 special_gammainc special_gammaincc special_gammaln special_i0 special_i0e special_i1
    special_i1e special_log1p special_log_ndtr special_logsumexp special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri
    special_polygamma special_psi special_round special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta subtract complex conj conj_physical
    _conj_physical imag real view_as_complex view_as_complex_copy view_as_real view_as_real_copy rrelu where
    fake_quantize_per_tensor_affine fake_quantize_per_channel_affine
"""
_REDUCTIONS = """
    argsort count_nonzero cross cummaxmin_backward cumulative_trapezoid corrcoef cov dist frobenius_norm histc kthvalue
    logcumsumexp median mode msort nanmean nanmedian nansum norm_except_dim nuclear_norm renorm std std_mean trace
    trapezoid trapz var var_mean
"""
_SHAPES = """
    atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors cartesian_prod column_stack combinations diag
    diag_embed diagflat diff dsplit dstack fliplr flipud gradient hsplit hstack matrix_H meshgrid mH mT narrow numpy_T
    pad_sequence ravel reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d rot90 row_stack split sum_to_size tensor_split tile tril_indices triu_indices unsafe_chunk
    unsafe_split unsafe_split_with_sizes vander view_copy vsplit vstack col2im lift_fresh_copy
"""
_CHECKED_PLACES = """
    bucketize gather_backward index index_copy index_fill index_put index_reduce index_select_backward masked_scatter
    max_unpool2d max_unpool3d put repeat_interleave scatter searchsorted take_along_dim
    value_selecting_reduction_backward masked_select nonzero nonzero_static argwhere bincount multi_margin_loss
    multilabel_margin_loss multilabel_margin_loss_forward
"""
_PRODUCTS = """
    addr baddbmm bilinear cdist chain_matmul cholesky cholesky_inverse cholesky_solve cosine_similarity det einsum
    inverse kron linalg__powsum linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal
    linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lstsq linalg_lu
    linalg_lu_factor linalg_lu_factor_ex linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank
    linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot
    linalg_householder_product linalg_lu_solve linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve logdet lu_unpack
    matrix_exp matrix_power pairwise_distance pdist pinverse qr slogdet svd tensordot triangular_solve
"""
_TRANSFORMS = """
    fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq
    fft_rfftn istft stft bartlett_window blackman_window hamming_window hann_window kaiser_window
"""
_LAYERS = """
    alpha_dropout cosine_embedding_loss cross_entropy_loss feature_alpha_dropout grid_sampler grid_sampler_2d
    grid_sampler_3d gru_cell hinge_embedding_loss instance_norm kl_div lstm_cell margin_ranking_loss native_dropout
    nll_loss nll_loss2d nll_loss_nd poisson_nll_loss rnn_relu_cell rnn_tanh_cell soft_margin_loss triplet_margin_loss
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d _weight_norm_interface
"""
_CREATION = """
    bernoulli cauchy geometric linspace log_normal logspace normal rand rand_like randint randint_like randn randn_like
    randperm range
"""
_CALLED = frozenset(
    " ".join(
        (
            _NUMBERS,
            _REDUCTIONS,
            _SHAPES,
            _CHECKED_PLACES,
            _PRODUCTS,
            _TRANSFORMS,
            _LAYERS,
            _CREATION,
        )
    ).split()
)


@functools.cache
def _lowered() -> frozenset[str]:
    """The names of the operators with a rule, in all of their overloads."""
    return frozenset(name.partition(".")[0] for name in RULES)


def is_allowed(op: Any) -> bool:
    """Whether an operator is on a list."""
    name: str = op._schema.name
    if name in _lowered():
        return op._opname not in _NOT_CHECKED
    return op.namespace == "aten" and op._opname in _CALLED


MEMORY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""What gives memory as it is."""

_SCALES = (1e-6, 1e6)
"""Of an image that is resized: places are computed with them in floats, and have to fit int64."""


def wrong_arguments(op: Any, args: Any, kwargs: Any) -> str:
    """What a kernel would believe of the arguments, with specs in place of tensors, and is not so; "" for none."""
    given = dict(zip((each.name for each in op._schema.arguments), args, strict=False)) | dict(kwargs)
    name: str = op._opname
    if name.startswith(("upsample_", "_upsample_")):
        for key, value in given.items():
            low, high = _SCALES
            each = value if isinstance(value, (list, tuple)) else (value,)
            if key.startswith("scale") and any(one is not None and not low <= one <= high for one in each):
                return f"it has {key} {value}, expected {low} to {high}"
    if name == "_weight_norm_interface":
        v, g, dim = given["v"], given["g"], given.get("dim", 0)
        expected = tuple(size if at == dim % len(v.shape) else 1 for at, size in enumerate(v.shape))
        if tuple(g.shape) != expected:
            return f"its g has the shape {tuple(g.shape)}, expected {expected}"
    return ""
