"""What PyTorch's Python functions and tensor methods are called as ATen ops, and in which order they take arguments."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.errors import PassError

Arguments = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The name of an op, its arguments by position and by name."""

# Arguments of torch.nn.functional that the ATen ops do not have and that change no value.
_PYTHON_ONLY = ("inplace", "_stacklevel")

_ALIASES: Mapping[str, str] = {
    "absolute": "abs",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
}

CASTS: Mapping[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
}


def adapt(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, functional: bool = False, rest: bool = False
) -> Arguments:
    """A call as Python has it by that of the ATen op: `softmax(x, dim=-1, _stacklevel=3)` by `softmax(x, dim=-1)`.

    `functional`: the function is one of torch.nn.functional, some of which have another order of arguments. `rest`:
    more arguments follow, which are not known.

    Raises:
        PassError: arguments are left open of a function that has another order of them than its op.
    """
    kwargs = {k: v for k, v in kwargs.items() if k not in _PYTHON_ONLY}
    name = _ALIASES.get(name, name)
    if name.endswith("_") and not name.endswith("__") and hasattr(torch.ops.aten, name[:-1]):
        # Graphs are functional: what is written in place is a value like any other.
        name = name[:-1]
    if rest:
        if functional and name in _FUNCTIONAL:
            raise PassError(
                f"torch.nn.functional.{name} has other arguments than the op, so their rest means nothing",
                fix=f"call torch.ops.aten.{name}, whose arguments are in the order of its schema",
            )
        return name, tuple(args), kwargs
    adapter = (_FUNCTIONAL.get(name) if functional else None) or _ADAPTERS.get(name)
    if adapter is not None:
        return adapter(tuple(args), kwargs)
    if name in CASTS and not kwargs and len(args) == 1:
        return "to.dtype", (*args, CASTS[name]), {}
    return name, tuple(args), kwargs


def op_called(name: str) -> Any:
    """The op a name like "add", "add.Tensor" or "mkldnn._linear_pointwise" means."""
    parts = name.split(".")
    if hasattr(torch.ops.aten, parts[0]):
        found: Any = getattr(torch.ops.aten, parts[0])
        parts = parts[1:]
    else:
        found = getattr(torch.ops, parts[0])
        if len(parts) > 1:
            if not hasattr(found, parts[1]):
                raise _unknown(name)
            found = getattr(found, parts[1])
        parts = parts[2:]
    for part in parts:
        if not hasattr(found, part):
            raise _unknown(name)
        found = getattr(found, part)
    if not isinstance(found, OpOverloadPacket | OpOverload):
        raise _unknown(name)
    return found


def _unknown(name: str) -> PassError:
    stem, _, rest = name.partition(".")
    last = name.rpartition(".")[2]
    if rest and not hasattr(torch.ops.aten, stem) and last in _names_of_aten():
        near = last  # torch.sin, x.sin
    elif rest and hasattr(torch.ops.aten, stem):
        near = nearest(rest, getattr(torch.ops.aten, stem).overloads())
        near = near and f"{stem}.{near}"
    elif rest:
        near = ""
    else:
        near = nearest(name, _names_of_aten())
    fix = f"did you mean {near!r}?" if near else "name an op of torch.ops.aten, or namespace.op"
    return PassError(f"no op is called {name!r}", fix=fix)


def _names_of_aten() -> list[str]:
    prefix = "aten::"
    names = torch._C._dispatch_get_all_op_names()
    return sorted({n.removeprefix(prefix).partition(".")[0] for n in names if n.startswith(prefix)})


def nearest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str:
    """What was meant by a misspelled name, "" if nothing is as near as `cutoff`, where 1 is the name itself."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return found[0] if found else ""


def _to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    if len(args) == 1 and isinstance(kwargs.get("dtype"), torch.dtype):
        args = (*args, kwargs.pop("dtype"))
    if len(args) > 1 and isinstance(args[1], torch.dtype):
        return "to.dtype", args, kwargs
    return "to", args, kwargs


def _dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    train = kwargs.pop("training", kwargs.pop("train", args[2] if len(args) > 2 else True))
    p = kwargs.pop("p", args[1] if len(args) > 1 else 0.5)
    return "dropout", (*args[:1], p, train), kwargs


def _batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """torch.nn.functional has the statistics before the weights."""
    names = ("input", "running_mean", "running_var", "weight", "bias")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    order = ("input", "weight", "bias", "running_mean", "running_var")
    first = tuple(given.get(n) for n in order)
    last = (given.get("training", False), given.get("momentum", 0.1), given.get("eps", 1e-5), ...)
    return "batch_norm", (*first, *last), {}


def _max_pool(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    """torch.nn.functional says by arguments of its own that there are no indices, and no stride."""

    def adapter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        kwargs.pop("return_indices", None)  # the function's name says which of the two it is
        if kwargs.get("stride", ()) is None:
            kwargs.pop("stride")
        return name, args, kwargs

    return adapter


def _embedding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """torch.nn.functional has the indices first."""
    if "weight" in kwargs:
        args = (*args, kwargs.pop("weight"))
    return "embedding", (args[1], args[0], ...), {}


def _where(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    for name in ("condition", "input", "self", "other"):
        if name in kwargs:
            args = (*args, kwargs.pop(name))
    return "where", args, kwargs


def _sizes(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    def adapter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        rest = [kwargs.pop(k) for k in ("shape", "size", "dims", "sizes") if k in kwargs]
        args = (*args, *rest)
        items = args[1:]
        if len(items) == 1 and isinstance(items[0], list | tuple):
            items = tuple(cast("Sequence[Any]", items[0]))
        elif len(items) == 1 and not isinstance(items[0], int):
            # A variable stands for the whole list, and a dtype is another overload.
            return name, args, kwargs
        return name, (args[0], list(items)), kwargs

    return adapter


_ADAPTERS: Mapping[str, Callable[[tuple[Any, ...], dict[str, Any]], Arguments]] = {
    "to": _to,
    "where": _where,
    **{name: _sizes(name) for name in ("view", "reshape", "permute", "expand", "repeat", "flip", "tile")},
}

_FUNCTIONAL: Mapping[str, Callable[[tuple[Any, ...], dict[str, Any]], Arguments]] = {
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    **{
        name: _max_pool(name)
        for rank in (1, 2, 3)
        for name in (f"max_pool{rank}d", f"max_pool{rank}d_with_indices")
    },
}
