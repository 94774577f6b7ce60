"""Operators that write to their arguments, as operators that give what was written.

Torch has such twins of some of its own; for operators of torch.library they are made.

before:  own::increment(Tensor(a!) x, int by) -> ()
after:   lampwork_functional::own_increment_default(Tensor x, int by) -> Tensor
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from lampwork.records import record

_NAMESPACE = "lampwork_functional"
_ALIAS = re.compile(r"(?<=[\w\]?])\([a-z]\w*!?\)")


@record
class Twin:
    """`op` takes all arguments of the operator by position and gives its results that are no arguments, then the new
    content of those at the positions `written`. `returned`: for each result of the operator, the position of the
    argument that it is, or None. `library` holds the registration."""

    op: Any
    written: tuple[int, ...]
    returned: tuple[int | None, ...]
    library: Any


@cache
def functional_twin(op: Any) -> Twin | None:
    """The twin of an operator, registered on first use; None for lists of written tensors, unusual results and
    operators of torch without one."""
    schema = op._schema
    arguments: Sequence[Any] = schema.arguments
    written = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    if any(str(arguments[i].type) != "Tensor" for i in written):
        return None
    returned = tuple(_argument_of(result, arguments, written) for result in schema.returns)
    if any(
        str(result.type) != "Tensor" or (place is None and result.alias_info is not None)
        for result, place in zip(schema.returns, returned, strict=True)
    ):
        return None
    if op.namespace in ("aten", "prims"):
        found = (
            _twin_in_torch(op, len(returned) + len(written))
            if returned.count(None) == len(returned)
            else None
        )
        return None if found is None else Twin(found, written, returned, None)
    name = re.sub(r"\W", "_", f"{schema.name}_{schema.overload_name or 'default'}")
    text = _ALIAS.sub("", str(schema).split(" -> ")[0].partition("(")[2]).replace("*, ", "")
    count = len(written) + returned.count(None)
    results = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(f"{name}({text} -> {results}")
    library.impl(name, _kernel(op, written, returned), "CompositeExplicitAutograd")
    return Twin(getattr(getattr(torch.ops, _NAMESPACE), name).default, written, returned, library)


def _twin_in_torch(op: Any, results: int) -> Any:
    """`aten._native_batch_norm_legit` → `aten._native_batch_norm_legit_functional`: takes the same arguments, gives the
    same results and then what was written; None if there is no such operator."""
    schema = op._schema
    name = str(schema.name).rpartition("::")[2]
    packet = getattr(getattr(torch.ops, op.namespace), f"{name}_functional", None)
    overload = schema.overload_name or "default"
    if packet is None or overload not in packet.overloads():
        return None
    twin = getattr(packet, overload)
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    given = [(a.name, str(a.type)) for a in twin._schema.arguments]
    return twin if given == wanted and len(twin._schema.returns) == results else None


def _argument_of(result: Any, arguments: Sequence[Any], written: Sequence[int]) -> int | None:
    """The written argument that a result is."""
    if result.alias_info is None:
        return None
    sets = result.alias_info.before_set
    return next((i for i in written if arguments[i].alias_info.before_set == sets), None)


def _kernel(op: Any, written: tuple[int, ...], returned: tuple[int | None, ...]) -> Any:
    names = [(argument.name, argument.kwarg_only) for argument in op._schema.arguments]

    def run(*args: Any) -> Any:
        values = list(args)
        for i in written:
            values[i] = values[i].clone()
        made: tuple[Any, ...] = ()
        # An operator without results of its own needs no fake kernel: what it writes keeps its shape.
        if None in returned or not all(values[i].is_meta for i in written):
            positional = [value for value, (_, named) in zip(values, names, strict=True) if not named]
            keywords = {name: value for value, (name, named) in zip(values, names, strict=True) if named}
            result = op(*positional, **keywords)
            results = result if isinstance(result, tuple) else (result,)
            made = tuple(r for r, place in zip(results, returned, strict=False) if place is None)
        found = (*made, *(values[i] for i in written))
        return found[0] if len(found) == 1 else found

    return run
