"""Sets of operators as people write them: overloads, packets, names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.errors import OptionError


def operators_of(given: Iterable[Any]) -> frozenset[OpOverload]:
    """The overloads that `given` names.

    A packet (`torch.ops.aten.gelu`) stands for all of its overloads. So does its name, "aten.gelu" or "gelu";
    "aten.add.Tensor" is one overload.

    Raises:
        OptionError: there is no such operator, or something is neither an operator nor a name.
    """
    found: set[OpOverload] = set()
    for operator in given:
        named: Any = _named(operator) if isinstance(operator, str) else operator
        if isinstance(named, OpOverloadPacket):
            found.update(cast(OpOverload, getattr(named, name)) for name in named.overloads())
        elif isinstance(named, OpOverload):
            found.add(named)
        else:
            raise OptionError(
                f"{operator!r} is no operator",
                fix='name operators of torch.ops: torch.ops.aten.add, "aten.add"',
            )
    return frozenset(found)


def _named(text: str) -> OpOverload | OpOverloadPacket:
    """The packet or the overload of a name."""
    parts = text.replace("::", ".").split(".")
    namespace, *path = parts if len(parts) > 1 and _has_operators(parts[0]) else ("aten", *parts)
    found: Any = getattr(torch.ops, namespace)
    for part in path:
        found = getattr(found, part, None)
    if not isinstance(found, (OpOverload, OpOverloadPacket)):
        raise OptionError(f"there is no operator called {text!r}", fix=_nearest(namespace, path))
    return found


def _has_operators(namespace: str) -> bool:
    return any(name.startswith(f"{namespace}::") for name in _names())


def _nearest(namespace: str, path: list[str]) -> str:
    known = {n.partition("::")[2] for n in _names() if n.startswith(f"{namespace}::")}
    known |= {name.partition(".")[0] for name in known}
    near = difflib.get_close_matches(".".join(path), known, n=1)
    hint = f"did you mean {namespace}.{near[0]}? " if near else ""
    return f'{hint}names are like "aten.add" and "aten.add.Tensor"'


def _names() -> list[str]:
    """All operators of the process, as "aten::add.Tensor"."""
    return torch._C._dispatch_get_all_op_names()  # pyright: ignore
