"""How what `lampwork.compile` returned is copied and pickled: as its original, with the keywords of `compile`. Machine
code and guards belong to one object of one process, so a copy compiles again, on its first call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from lampwork.records import record
from lampwork.standard import copy


@record
class Saving:
    """Of one compiled callable: `original`, what it was made of; `compiled`, the C++ callable.

    make: compiles another original under the same options, in this process.
    again: a function that pickles by its name; it compiles a model with keywords of `compile`.
    given: these keywords. Options that came from a context or the environment are not among them: those are the loading
        process's affair.
    """

    original: Any
    compiled: Any
    make: Callable[[Any], Any]
    again: Callable[[Any, dict[str, Any]], Any]
    given: Mapping[str, Any]

    def reduce(self) -> Any:
        """As `__reduce__`. What its module has under its name, as a decorator leaves it, is pickled by that name."""
        if isinstance(self.original, FunctionType) and _named(self.original) is self.compiled:
            return self.original.__qualname__
        return self.again, (self.original, dict(self.given))

    def deepcopy(self, owner: Any, memo: dict[int, Any]) -> Any:
        """As `__deepcopy__` of `owner`, the callable or the module around it. Functions are copied as themselves."""
        if isinstance(self.original, FunctionType):
            return owner
        copied = copy.deepcopy(self.original, memo)
        # What the original holds may lead back here.
        known = memo.get(id(owner))
        return self.make(copied) if known is None else known

    def copy(self) -> Any:
        """A compiled shallow copy of the original."""
        return self.make(copy.copy(self.original))

    def install(self) -> None:
        """Make Python's `copy` and `pickle` use this for the C++ callable: they look at instances first."""
        compiled = self.compiled
        compiled.__reduce__ = self.reduce
        compiled.__deepcopy__ = lambda memo: self.deepcopy(compiled, memo)


def _named(function: FunctionType) -> Any:
    """What is to be had under the name of a function."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found
