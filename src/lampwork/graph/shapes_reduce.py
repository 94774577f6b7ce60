"""Shapes of reductions, scans, softmaxes and sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lampwork import pristine
from lampwork.graph.shapes_common import (
    ShapeError,
    dense,
    is_floating,
    like,
    preserved_strides,
    wrap_dim,
    wrap_dims,
)
from lampwork.graph.shapes_pointwise import compare, where
from lampwork.graph.spec import TensorSpec
from lampwork.standard import math

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def reduced_shape(spec: TensorSpec, dims: Dims, keepdim: bool) -> tuple[int, ...]:
    gone = wrap_dims(dims, len(spec.shape))
    if keepdim:
        return tuple(1 if i in gone else size for i, size in enumerate(spec.shape))
    return tuple(size for i, size in enumerate(spec.shape) if i not in gone)


def _sum_dtype(spec: TensorSpec, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (spec.dtype if is_floating(spec.dtype) else torch.int64)


def _float_dtype(spec: TensorSpec, dtype: torch.dtype | None) -> torch.dtype:
    found = dtype or spec.dtype
    if not is_floating(found):
        raise ShapeError(f"a floating dtype is needed, got {found}")
    return found


def sum_all(spec: TensorSpec, *, dtype: torch.dtype | None = None) -> TensorSpec:
    return like(spec, (), _sum_dtype(spec, dtype))


def sum_dims(
    spec: TensorSpec, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorSpec:
    return like(spec, reduced_shape(spec, dim, keepdim), _sum_dtype(spec, dtype))


def mean_all(spec: TensorSpec, *, dtype: torch.dtype | None = None) -> TensorSpec:
    return like(spec, (), _float_dtype(spec, dtype))


def mean_dims(
    spec: TensorSpec, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorSpec:
    return like(spec, reduced_shape(spec, dim, keepdim), _float_dtype(spec, dtype))


def prod_dim(
    spec: TensorSpec, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorSpec:
    return like(spec, reduced_shape(spec, dim, keepdim), _sum_dtype(spec, dtype))


def extreme_all(spec: TensorSpec) -> TensorSpec:
    _require_elements(spec, tuple(range(len(spec.shape))))
    return like(spec, ())


def extreme_dims(spec: TensorSpec, dim: Dims = None, keepdim: bool = False) -> TensorSpec:
    """amax, amin."""
    _require_elements(spec, wrap_dims(dim, len(spec.shape)))
    return like(spec, reduced_shape(spec, dim, keepdim))


def extreme_dim(spec: TensorSpec, dim: int, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    """max.dim, min.dim: values and positions."""
    _require_elements(spec, (wrap_dim(dim, len(spec.shape)),))
    shape = reduced_shape(spec, dim, keepdim)
    return like(spec, shape), like(spec, shape, torch.int64)


def position(spec: TensorSpec, dim: int | None = None, keepdim: bool = False) -> TensorSpec:
    """argmax, argmin."""
    if dim is None:
        _require_elements(spec, tuple(range(len(spec.shape))))
        return like(spec, (1,) * len(spec.shape) if keepdim else (), torch.int64)
    _require_elements(spec, (wrap_dim(dim, len(spec.shape)),))
    return like(spec, reduced_shape(spec, dim, keepdim), torch.int64)


def _require_elements(spec: TensorSpec, dims: Sequence[int]) -> None:
    if any(spec.shape[dim] == 0 for dim in dims if spec.shape):
        raise ShapeError(f"{spec} has no element to choose")


def logical_all(spec: TensorSpec) -> TensorSpec:
    return like(spec, (), _logical(spec))


def logical_dims(spec: TensorSpec, dim: Dims = None, keepdim: bool = False) -> TensorSpec:
    """any.dim, any.dims and all: an empty list of dimensions means none of them here, None means all."""
    if dim is not None and not isinstance(dim, int) and not dim:
        return like(spec, spec.shape, _logical(spec))
    return like(spec, reduced_shape(spec, dim, keepdim), _logical(spec))


def _logical(spec: TensorSpec) -> torch.dtype:
    return torch.uint8 if spec.dtype is torch.uint8 else torch.bool


def moment(
    spec: TensorSpec, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> TensorSpec:
    """var.correction, std.correction."""
    del correction
    return like(spec, reduced_shape(spec, dim, keepdim), _float_dtype(spec, None).to_real())


def moments(
    spec: TensorSpec, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    one = moment(spec, dim, correction=correction, keepdim=keepdim)
    return one, one


def logsumexp(spec: TensorSpec, dim: Dims, keepdim: bool = False) -> TensorSpec:
    dtype = spec.dtype if is_floating(spec.dtype) else pristine.get_default_dtype()
    return like(spec, reduced_shape(spec, dim, keepdim), dtype)


def vector_norm(
    spec: TensorSpec,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorSpec:
    return like(spec, reduced_shape(spec, dim, keepdim), _float_dtype(spec, dtype).to_real())


def cumulative(spec: TensorSpec, dim: int, *, dtype: torch.dtype | None = None) -> TensorSpec:
    wrap_dim(dim, len(spec.shape))
    return like(spec, spec.shape, _sum_dtype(spec, dtype))


def softmax(spec: TensorSpec, dim: int, dtype: torch.dtype | None = None) -> TensorSpec:
    """softmax.int, log_softmax.int: with a dtype the argument is converted first."""
    wrap_dim(dim, len(spec.shape))
    return like(spec, spec.shape, dtype or spec.dtype)


def safe_softmax(spec: TensorSpec, dim: int, dtype: torch.dtype | None = None) -> TensorSpec:
    """A softmax whose rows are zeros where all scores are -inf: laid out as torch's `where` of the two lays it out."""
    made = softmax(spec, dim, dtype)
    number = TensorSpec((), (), made.dtype, made.device)
    return where(logical_dims(compare(spec, number), dim, keepdim=True), number, made)


def softmax_kernel(spec: TensorSpec, dim: int, half_to_float: bool) -> TensorSpec:
    return like(spec, spec.shape, torch.float32 if half_to_float else spec.dtype)


def topk(
    spec: TensorSpec, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[TensorSpec, TensorSpec]:
    dim = wrap_dim(dim, len(spec.shape))
    if not 0 <= k <= (spec.shape[dim] if spec.shape else 1):
        raise ShapeError(f"topk of {k} of {spec}")
    shape = (*spec.shape[:dim], k, *spec.shape[dim + 1 :]) if spec.shape else ()
    return like(spec, shape), like(spec, shape, torch.int64)


def sort(spec: TensorSpec, dim: int = -1, descending: bool = False) -> tuple[TensorSpec, TensorSpec]:
    wrap_dim(dim, len(spec.shape))
    strides = preserved_strides(spec)
    values = TensorSpec(spec.shape, strides, spec.dtype, spec.device)
    return values, TensorSpec(spec.shape, strides, torch.int64, spec.device)


def sort_stable(
    spec: TensorSpec, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    return sort(spec, dim, descending)


def cov(
    spec: TensorSpec,
    *,
    correction: int = 1,
    fweights: TensorSpec | None = None,
    aweights: TensorSpec | None = None,
) -> TensorSpec:
    """One row is one variable. Products and quotients by sums of weights promote as torch's own do."""
    if len(spec.shape) > 2:
        raise ShapeError(f"cov of {spec}")
    variables = (spec.shape[0],) * 2 if len(spec.shape) == 2 and spec.shape[0] != 1 else ()
    small = pristine.ones(2, 2, dtype=spec.dtype)
    frequencies, weights = (
        None if given is None else pristine.ones(2, dtype=given.dtype) for given in (fweights, aweights)
    )
    dtype = pristine.cov(small, correction=0, fweights=frequencies, aweights=weights).dtype
    return like(spec, variables, dtype)


def searched(ordered: TensorSpec, values: TensorSpec, *, out_int32: bool = False, **_: Any) -> TensorSpec:
    """searchsorted: the place of each value."""
    return dense(values.shape, torch.int32 if out_int32 else torch.int64, values.device)


def running_extreme(spec: TensorSpec, dim: int) -> tuple[TensorSpec, TensorSpec]:
    """cummax, cummin: the values and their places, in rows whatever the layout."""
    wrap_dim(dim, len(spec.shape))
    if spec.dtype.is_complex:
        raise ShapeError(f"a running extreme of {spec}")
    return like(spec, spec.shape), like(spec, spec.shape, torch.int64)


def order_statistic(
    spec: TensorSpec, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    """kthvalue: the value and its place."""
    wrapped = wrap_dim(dim, len(spec.shape))
    size = spec.shape[wrapped] if spec.shape else 1
    if not 1 <= k <= size or spec.dtype in (torch.bool,) or spec.dtype.is_complex:
        raise ShapeError(f"value {k} of {spec}")
    shape = reduced_shape(spec, dim, keepdim) if spec.shape else ()
    return like(spec, shape), like(spec, shape, torch.int64)


def histogram(spec: TensorSpec, bins: int = 100, min: float = 0, max: float = 0) -> TensorSpec:
    """histc: a number for each bin, however many elements are counted."""
    if bins <= 0:
        raise ShapeError(f"histc of {bins} bins")
    if not (math.isfinite(min) and math.isfinite(max) and min <= max):
        raise ShapeError(f"histc from {min} to {max}")
    if not is_floating(spec.dtype) and spec.device.type == "cpu":
        raise ShapeError(f"histc of {spec}")
    return dense((bins,), spec.dtype, spec.device)


RULES: Mapping[Any, Any] = {
    aten.histc.default: histogram,
    aten.cummax.default: running_extreme,
    aten.cummin.default: running_extreme,
    aten.kthvalue.default: order_statistic,
    aten.cov.default: cov,
    aten.searchsorted.Tensor: searched,
    aten.sum.default: sum_all,
    aten.sum.dim_IntList: sum_dims,
    aten.mean.default: mean_all,
    aten.mean.dim: mean_dims,
    aten.prod.default: sum_all,
    aten.prod.dim_int: prod_dim,
    aten.max.default: extreme_all,
    aten.min.default: extreme_all,
    aten.max.dim: extreme_dim,
    aten.min.dim: extreme_dim,
    aten.amax.default: extreme_dims,
    aten.amin.default: extreme_dims,
    aten.argmax.default: position,
    aten.argmin.default: position,
    aten.any.default: logical_all,
    aten.all.default: logical_all,
    aten.any.dim: logical_dims,
    aten.all.dim: logical_dims,
    aten.any.dims: logical_dims,
    aten.all.dims: logical_dims,
    aten.var.correction: moment,
    aten.std.correction: moment,
    aten.var_mean.correction: moments,
    aten.std_mean.correction: moments,
    aten.logsumexp.default: logsumexp,
    aten.linalg_vector_norm.default: vector_norm,
    aten.cumsum.default: cumulative,
    aten.cumprod.default: cumulative,
    aten.softmax.int: softmax,
    aten.log_softmax.int: softmax,
    aten._safe_softmax.default: safe_softmax,
    aten._softmax.default: softmax_kernel,
    aten._log_softmax.default: softmax_kernel,
    aten.topk.default: topk,
    aten.sort.default: sort,
    aten.sort.stable: sort_stable,
}
