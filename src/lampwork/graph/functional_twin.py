"""Operators of torch.library that write to their arguments, as operators that give what was written.

before:  own::increment(Tensor(a!) x, int by) -> ()
after:   lampwork_functional::own_increment_default(Tensor x, int by) -> Tensor
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_NAMESPACE = "lampwork_functional"
_ALIAS = re.compile(r"(?<=[\w\]?])\([a-z]\w*!?\)")


@dataclass(frozen=True, slots=True)
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
    """The twin of an operator, registered on first use; None for lists of written tensors and unusual results."""
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
    name = re.sub(r"\W", "_", f"{schema.name}_{schema.overload_name or 'default'}")
    text = _ALIAS.sub("", str(schema).split(" -> ")[0].partition("(")[2]).replace("*, ", "")
    count = len(written) + returned.count(None)
    results = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(f"{name}({text} -> {results}")
    library.impl(name, _kernel(op, written, returned), "CompositeExplicitAutograd")
    return Twin(getattr(getattr(torch.ops, _NAMESPACE), name).default, written, returned, library)


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
