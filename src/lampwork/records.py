"""`record`: a dataclass that nobody changes.

A compilation makes thousands of small objects: sources, guards, loads, indices. What `dataclass(frozen=True)` makes
refuses every assignment, its own `__init__`'s too, which therefore goes through `object.__setattr__` and takes three
times as long: 5 % of a first call. Here the type checker refuses them, and `__init__` is a plain one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

from lampwork.display import Shown

Kind = TypeVar("Kind", bound=type)


@overload
def record(kind: Kind, /) -> Kind: ...
@overload
def record(*, eq: bool = True, repr: bool = True) -> Callable[[Kind], Kind]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(kind: Any = None, /, *, eq: bool = True, repr: bool = True) -> Any:
    """A class of data with slots, compared and hashed by its fields, which are set once. One that is Shown keeps the
    short `repr` of that.

    Args:
        eq: False: compared and hashed by identity, or as the class itself says.
        repr: False: printed as the class itself says.
    """

    def make(kind: type) -> type:
        bare = repr and not issubclass(kind, Shown)
        return dataclasses.dataclass(slots=True, eq=eq, unsafe_hash=eq, repr=bare)(kind)

    return make if kind is None else make(kind)
