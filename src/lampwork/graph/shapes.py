"""The shape, strides and dtype of what an operator gives: own rules first, then torch itself.

The own rules cover the operators that common networks are made of. What they do not cover is run once on zeros, which
tells CPU's own strides exactly. torch's meta kernels come last: those written in Python import torch._dynamo, sympy
and torch._inductor on first use, which takes seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import torch

from lampwork import pristine
from lampwork.errors import CaptureError, UnsupportedOpError
from lampwork.graph import (
    random_words,
    recurrence,
    shapes_backward,
    shapes_cuda,
    shapes_data,
    shapes_images,
    shapes_losses,
    shapes_nn,
    shapes_pointwise,
    shapes_reduce,
    shapes_views,
    sparse_gradients,
)
from lampwork.graph.devices import CPU, as_on_cpu, located_at
from lampwork.graph.fake_kernels import OwnShapes, fake_kernel
from lampwork.graph.nested import leaves, replaced
from lampwork.graph.opinfo import is_seeded
from lampwork.graph.shapes_collectives import collective_rules
from lampwork.graph.shapes_common import Result, ShapeError
from lampwork.graph.shapes_onednn import onednn_rules
from lampwork.graph.spec import TensorSpec, with_sizes
from lampwork.graph.symbols import Symbolic, hint_of, map_symbols
from lampwork.graph.symnode import from_torch, symints, to_torch

__all__ = ["Result", "ShapeError", "eager_takes", "infer", "own_rule", "taken_on_meta"]


@lru_cache(maxsize=1)
def _rules() -> Mapping[Any, Callable[..., Result]]:
    return {
        **shapes_pointwise.RULES,
        **shapes_images.RULES,
        **shapes_losses.RULES,
        **shapes_reduce.RULES,
        **shapes_data.RULES,
        **shapes_nn.RULES,
        **shapes_views.RULES,
        **shapes_backward.RULES,
        **shapes_cuda.RULES,
        **onednn_rules(),
        **random_words.RULES,
        **recurrence.RULES,
        **sparse_gradients.RULES,
        **collective_rules(),
    }


# Elements of a result, which the strides of its layout run over.
_LARGEST = 1 << 60


def own_rule(op: Any) -> Callable[..., Result] | None:
    """The rule for `op` (an OpOverload), called as the operator is, with TensorSpecs for tensors."""
    return _rules().get(op)


def infer(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Result:
    """What `op(*args, **kwargs)` gives, with TensorSpecs in place of tensors.

    Returns a TensorSpec, or a tuple of them for several results or a list of tensors; None in it is a result that the
    call does not give (a gradient that its `output_mask` leaves out).

    Raises:
        ShapeError: eager would refuse the arguments.
        UnsupportedOpError: neither a rule nor a meta kernel of torch exists, or the rule refuses what eager takes.
    """
    rule = _rules().get(op)
    if rule is None:
        result = infer_by_torch(op, args, kwargs or {})
    else:
        try:
            result = rule(*args, **(kwargs or {}))
        except ShapeError as error:
            given = kwargs or {}
            if eager_takes(op, args, given) or taken_on_meta(op, args, given) is not None:
                raise UnsupportedOpError(f"the shape of {op} is not known: {error.cause}") from error
            raise
    for spec in (result,) if isinstance(result, TensorSpec) else result:
        if spec is None:
            continue
        elements = 1
        for size in spec.shape:
            elements *= max(hint_of(size), 1)
        if elements > _LARGEST:
            raise UnsupportedOpError(f"{op} gives the sizes {list(spec.shape)}, beyond what memory may hold")
    return result


# Operators that refuse zeros (a singular matrix, no probability at all) where shapes are fine: after a refusal their
# meta kernels are asked, which look at shapes only. They run as calls of ATen, which check all there is to check.
MINDS_VALUES = frozenset(
    name
    for line in (
        "_assert_async cholesky cholesky_inverse cholesky_solve inverse linalg_cholesky linalg_inv linalg_inv_ex",
        "linalg_ldl_factor linalg_ldl_solve linalg_lu_factor linalg_lu_solve linalg_matrix_power linalg_solve",
        "linalg_solve_triangular linalg_tensorinv linalg_tensorsolve lu_solve lu_unpack multinomial ormqr",
        "segment_reduce triangular_solve cov corrcoef remainder",
    )
    for name in line.split()
)

# Operators that refuse what reaches beyond the storage, which may be larger than a tensor of zeros needs.
_MINDS_STORAGE = frozenset({"as_strided_copy", "as_strided_scatter"})

# Arguments with more elements than this in all are not run for their shapes.
LARGEST_PROBE = 1 << 24


def infer_by_torch(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Result:
    """`infer` without own rules. Symbolic sizes are fixed, torch is asked for this call's sizes only; but the fake
    kernel of an operator from outside ATen is asked with the symbols first."""
    if op.namespace != "aten" and _has_symbols((args, tuple(kwargs.values()))):
        found = _infer_by_fake_kernel(op, args, kwargs)
        if found is not None:
            return found
    args, kwargs = map_symbols(args, _fix), map_symbols(dict(kwargs), _fix)
    args, kwargs = _fixed_specs(args), _fixed_specs(kwargs)
    tensors = [*leaves((args, tuple(kwargs.values())), TensorSpec)]
    small = sum(spec.numel for spec in tensors) <= LARGEST_PROBE
    # An operator from outside ATen may do more than compute; it is only asked through its meta kernel.
    if small and op.namespace == "aten" and all(spec.device.type == "cpu" for spec in tensors):
        if (device := _named(kwargs)) is not None and device.type != "cpu":
            return _as_on_cpu(op, args, kwargs, device)
        try:
            return infer_on_zeros(op, args, kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError) as error:
            if op._opname in _MINDS_STORAGE:
                raise UnsupportedOpError(f"the shape of {op} is not known: {error}") from error
            if op._opname not in MINDS_VALUES:
                raise ShapeError(f"{op}: {error}") from error
    elif small and op.namespace == "aten" and all(spec.device.type in _LIKE_CPU for spec in tensors):
        return _as_on_cpu(op, args, kwargs, _named(kwargs) or _common(tensors))
    return infer_on_meta(op, args, kwargs)


_LIKE_CPU = frozenset({"cpu", "cuda"})


def _named(kwargs: Mapping[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device)


def _common(tensors: Sequence[TensorSpec]) -> torch.device:
    """Where operators compute that are given tensors on several devices: not on the CPU."""
    return next((spec.device for spec in tensors if spec.device.type != "cpu"), tensors[0].device)


# Linear algebra and Fourier transforms: their libraries lay results out as they like, CUDA's otherwise than the CPU's.
# torch's meta kernels know of CUDA's, but for one.
_LAID_OUT_BY_LIBRARIES = ("linalg_", "_linalg_", "_fft_", "fft_", "_lu_", "lu_", "cholesky", "_cholesky")
_LAID_OUT_BY_LIBRARIES_TOO = frozenset(
    {"inverse", "triangular_solve", "geqrf", "orgqr", "ormqr", "svd", "qr"}
)


def _is_of_libraries(op: Any) -> bool:
    name = op._opname
    if name == "linalg_eig":
        raise UnsupportedOpError(f"how {op} lays its result out on CUDA devices is not known")
    return name.startswith(_LAID_OUT_BY_LIBRARIES) or name in _LAID_OUT_BY_LIBRARIES_TOO


def _as_on_cpu(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Result:
    """`infer` for an accelerator by running the operator on the CPU. Strides may be others: programs see to that."""
    if device.type in _LIKE_CPU and not (device.type == "cuda" and _is_of_libraries(op)):
        try:
            found = infer_on_zeros(op, as_on_cpu(args), as_on_cpu(dict(kwargs)))
            return located_at(found, device)
        except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError):
            pass  # what there is no kernel of the CPU for, torch's meta kernel may know
    try:
        return infer_on_meta(op, args, kwargs)
    except ShapeError as error:
        # Neither has tried what the device's own kernel takes.
        raise UnsupportedOpError(f"the shape of {op} is not known: {error.cause}") from error


def _infer_by_fake_kernel(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Result | None:
    """`infer` for all sizes, by the operator's own fake kernel; None if it has none, or it takes numbers only."""
    kernel = fake_kernel(op)
    if kernel is None:
        return None
    tensors = [*leaves((args, tuple(kwargs.values())), TensorSpec)]
    device = _common(tensors) if tensors else torch.device("cpu")
    try:
        with OwnShapes(infer):
            result = kernel(
                *to_torch(replaced(args, TensorSpec, _meta)),
                **to_torch(replaced(dict(kwargs), TensorSpec, _meta)),
            )
        return _from_tensors(result, device)
    except (CaptureError, RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None  # with numbers it may work; if not, that says why


def taken_on_meta(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Result | None:
    """What torch's meta kernel makes of a call that the CPU refuses, if other devices may take it; None if it refuses
    too, or the call is one of the CPU's. Makes no condition."""
    args, kwargs = _hinted(args), _hinted(dict(kwargs))
    specs = leaves((args, tuple(kwargs.values())), TensorSpec)
    if all(spec.device.type == "cpu" for spec in specs) and (_named(kwargs) or CPU).type == "cpu":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return infer_on_meta(op, args, kwargs)
        except CaptureError:
            return None


def _hinted(value: Any) -> Any:
    """`value` with the numbers of the call at hand for open ones. Makes no condition."""
    value = map_symbols(value, lambda number: number.hint)
    return replaced(value, TensorSpec, lambda spec: with_sizes(spec, hint_of))


def eager_takes(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether eager takes a call that we do not, as far as zeros tell. Makes no condition."""
    args, kwargs = as_on_cpu(_hinted(args)), as_on_cpu(_hinted(dict(kwargs)))
    tensors = [*leaves((args, tuple(kwargs.values())), TensorSpec)]
    if any(spec.device.type != "cpu" or _extent(spec) > LARGEST_PROBE for spec in tensors):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            infer_on_zeros(op, args, kwargs)
        except (UnsupportedOpError, RuntimeError, ValueError, TypeError, IndexError, ArithmeticError):
            return False
    return True


def infer_on_zeros(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Result:
    """`infer` by running the operator on zeros. Draws nothing from the random generator."""
    random = is_seeded(op)
    state = pristine.get_rng_state() if random else None
    try:
        result = op(*replaced(args, TensorSpec, _zeros), **replaced(dict(kwargs), TensorSpec, _zeros))
    finally:
        if state is not None:
            pristine.set_rng_state(state)
    return _from_tensors(result, None)


def infer_on_meta(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Result:
    """`infer` by torch's kernels on meta tensors."""
    tensors = [*leaves((args, tuple(kwargs.values())), TensorSpec)]
    device = _named(kwargs) or (_common(tensors) if tensors else torch.device("cpu"))
    meta_kwargs = replaced(dict(kwargs), TensorSpec, _meta)
    if "device" in meta_kwargs:
        meta_kwargs["device"] = torch.device("meta")
    try:
        result = op(*replaced(args, TensorSpec, _meta), **meta_kwargs)
    except NotImplementedError as error:
        raise UnsupportedOpError(f"the shape of {op} is not known: {error}") from error
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if op.namespace != "aten":
            # The fault may be that of the operator's fake kernel; eager does not run that.
            raise UnsupportedOpError(f"the shape of {op} is not known: {error}") from error
        raise ShapeError(f"{op}: {error}") from error
    return _from_tensors(result, device)


def _fix(number: Symbolic) -> int | float:
    return number.fix()


def _fixed_specs(value: Any) -> Any:
    """`value` with numbers for the symbolic sizes of its specs."""
    return replaced(value, TensorSpec, lambda spec: with_sizes(spec, _fix))


def _extent(spec: TensorSpec) -> int:
    """How many elements the memory of a tensor has."""
    return max(1 + sum((n - 1) * step for n, step in zip(spec.shape, spec.strides, strict=True)), 1)


def _zeros(spec: TensorSpec) -> torch.Tensor:
    memory = pristine.zeros(_extent(spec), dtype=spec.dtype, device=spec.device)
    return memory.as_strided(spec.shape, spec.strides)


def _meta(spec: TensorSpec) -> torch.Tensor:
    return pristine.empty_strided(symints(spec.shape), symints(spec.strides), dtype=spec.dtype, device="meta")


def _has_symbols(value: Any) -> bool:
    found: list[Symbolic] = []

    def note(number: Symbolic) -> Symbolic:
        found.append(number)
        return number

    replaced(map_symbols(value, note), TensorSpec, lambda spec: with_sizes(spec, note))
    return bool(found)


def _from_tensors(result: Any, device: torch.device | None) -> Result:
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided or result.is_quantized or result.is_nested:
            kind = "quantized" if result.is_quantized else "nested" if result.is_nested else result.layout
            raise UnsupportedOpError(f"an operator gave a {kind} tensor")
        shape, strides = from_torch(tuple(result.shape)), from_torch(tuple(result.stride()))
        return TensorSpec(shape, strides, result.dtype, device or result.device)
    if isinstance(result, (tuple, list)):
        specs = tuple(
            None if item is None else _from_tensors(item, device) for item in cast("list[Any]", result)
        )
        if all(spec is None or isinstance(spec, TensorSpec) for spec in specs):
            return cast("tuple[TensorSpec | None, ...]", specs)
    raise UnsupportedOpError(f"an operator gave {type(result).__name__} where tensors were expected")
