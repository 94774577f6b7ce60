"""torch.vmap in the region, where it makes no difference: arithmetic on tensors of one shape is the same for a batch as
for each of its rows."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_WRAPPED = "vmap.<locals>.wrapped"
# Nothing here can look at a tensor's shape or at anything outside of the function.
_ARITHMETIC = frozenset(
    {
        "RESUME",
        "NOP",
        "CACHE",
        "COPY",
        "SWAP",
        "POP_TOP",
        "LOAD_CONST",
        "LOAD_SMALL_INT",
        "LOAD_FAST",
        "LOAD_FAST_LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "STORE_FAST",
        "STORE_FAST_LOAD_FAST",
        "STORE_FAST_STORE_FAST",
        "UNPACK_SEQUENCE",
        "BUILD_TUPLE",
        "BUILD_LIST",
        "UNARY_NEGATIVE",
        "BINARY_OP",
        "RETURN_VALUE",
    }
)
_OPERATORS = frozenset({"+", "-", "*", "/"})


def is_vmapped(function: types.FunctionType) -> bool:
    """Whether a function is what torch.vmap returned while torch believes to be compiled."""
    code = function.__code__
    return code.co_qualname == _WRAPPED and function.__globals__.get("__name__") == "torch._functorch.apis"


def call_vmapped(
    interp: Interpreter, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """vmap(f)(*args) as f(*args).

    Raises:
        Break: LW105: f does more than arithmetic, or its arguments are not tensors of one shape, batched at 0.
    """
    refused = Break("LW105", "torch.vmap() of more than arithmetic on tensors of one shape")
    options = {
        name: interp.load_cell(cell, name)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    }
    inner: Any = interp.force(options["func"])
    given = [interp.force(arg) for arg in args]
    dims = [*_leaves(options["in_dims"]), *_leaves(options["out_dims"])]
    if kwargs or options["chunk_size"] is not None or any(type(dim) is not int or dim != 0 for dim in dims):
        raise refused
    tensors = list(_leaves(given))
    if not tensors or not all(type(t) is TraceTensor and len(t.spec.shape) > 0 for t in tensors):
        raise refused
    if any(t.spec.shape != tensors[0].spec.shape for t in tensors) or not _is_arithmetic(inner):
        raise refused
    result = interp.call(inner, given, {})
    made = list(_leaves(result))
    if not all(type(t) is TraceTensor and not any(t is tensor for tensor in tensors) for t in made):
        raise refused
    return result


def _is_arithmetic(function: Any) -> bool:
    if type(function) is not types.FunctionType or function.__defaults__ or function.__kwdefaults__:
        return False
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname not in _ARITHMETIC:
            return False
        if instruction.opname == "BINARY_OP" and instruction.argrepr not in _OPERATORS:
            return False
    return not function.__code__.co_flags & (0x04 | 0x08)  # *args and **kwargs


def _leaves(value: Any) -> Iterator[Any]:
    if type(value) in (tuple, list):
        for item in cast("Sequence[Any]", value):
            yield from _leaves(item)
    else:
        yield value
