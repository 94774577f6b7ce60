"""`CompiledModule`: what `lampwork.compile(module)` returns. It *is* the module for every purpose but being called: it
has its class, so that `fully_shard` may exchange that, is equal to it, and stands for it in the list of its modules."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

from torch import nn

from lampwork.compiled.saving import Saving
from lampwork.standard import functools

# Attributes that live on the wrapper itself; all others are read from and written to the original module.
_OWN = frozenset({"_lampwork_original", "_lampwork_compiled", "_lampwork_saving"})


class CompiledModule(nn.Module):
    """Shares parameters, buffers, submodules, hooks and attributes with the original. Copied and pickled, it is a
    compiled copy of the original.

    Calls do not pass through Python: each instance has a class of its own whose `__call__` is the C++ entry point.
    """

    _lampwork_original: nn.Module
    _lampwork_compiled: Any
    _lampwork_saving: Saving

    def __new__(cls, original: nn.Module, compiled: Any, saving: Saving) -> CompiledModule:
        compiled.binds = False  # the class's `__call__` takes the call's arguments, not the wrapper
        own = type(cls.__name__, (cls,), {"__call__": compiled, "__module__": cls.__module__})
        return cast(CompiledModule, object.__new__(own))

    def __init__(self, original: nn.Module, compiled: Any, saving: Saving) -> None:
        # nn.Module.__init__ would give the wrapper tables of its own; it has none: everything is the original's.
        object.__setattr__(self, "_lampwork_original", original)
        object.__setattr__(self, "_lampwork_compiled", compiled)
        object.__setattr__(self, "_lampwork_saving", saving)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._lampwork_original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._lampwork_original, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._lampwork_original, name)

    @property
    def __class__(self) -> type[nn.Module]:
        return type(self._lampwork_original)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        self._lampwork_original.__class__ = value

    def __eq__(self, other: object) -> bool:
        return self is other or self._lampwork_original is other

    def __hash__(self) -> int:
        return hash(self._lampwork_original)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._lampwork_original), "entries", "stages"})

    def __repr__(self) -> str:
        return f"CompiledModule({self._lampwork_original!r})"

    def _repr_html_(self) -> str:
        # The original's own view, where its class has one: what an instance makes up for any name is none.
        own = inspect.getattr_static(type(self._lampwork_original), "_repr_html_", None)
        shown: Any = self._lampwork_compiled if own is None else self._lampwork_original
        return shown._repr_html_()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._lampwork_saving.reduce()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._lampwork_saving.deepcopy(self, memo)

    def __copy__(self) -> Any:
        return self._lampwork_saving.copy()

    def __len__(self) -> int:
        return len(cast(Any, self._lampwork_original))

    def __getitem__(self, key: Any) -> Any:
        return cast(Any, self._lampwork_original)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(cast(Any, self._lampwork_original))

    @property
    def stages(self) -> Any:
        """The stages of the version compiled last, unless the original has an attribute of that name."""
        return getattr(self._lampwork_original, "stages", self._lampwork_compiled.stages)

    @property
    def entries(self) -> Any:
        """The versions compiled so far, a tuple of `lampwork.compiled.entries.Entry`; or the original's `entries`."""
        return getattr(self._lampwork_original, "entries", self._lampwork_compiled.entries)

    def named_modules(self, *args: Any, **kwargs: Any) -> Generator[tuple[str, nn.Module]]:
        original = self._lampwork_original
        for name, module in original.named_modules(*args, **kwargs):
            yield name, self if module is original else module

    def modules(self, remove_duplicate: bool = True) -> Generator[nn.Module]:
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._lampwork_compiled(*args, **kwargs)


def _delegate(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of modules, called on the original; where that gives the original it gives the compiled module."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._lampwork_original
        result = getattr(original, name)(*args, **kwargs)
        return self if result is original else result

    return call


# What nn.Module defines would run on the wrapper's tables, which are absent.
for _name, _method in list(vars(nn.Module).items()):
    if (
        isinstance(_method, types.FunctionType)
        and _name not in vars(CompiledModule)
        and not _name.startswith("__")
    ):
        setattr(CompiledModule, _name, _delegate(_name, _method))
