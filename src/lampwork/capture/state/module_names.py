"""What modules are called: their paths in what was compiled."""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from lampwork.capture.model.within import Within
from lampwork.standard import functools


class ModuleRoots:
    """The modules from which paths count, each with the path that it has itself: what was compiled, then what its
    functions have reached. Shared by the compiled functions of one root, so that callees that are compiled on their own
    have the paths that they have in it."""

    def __init__(self, compiled: Callable[..., Any] | None = None) -> None:
        self._roots: list[tuple[str, weakref.ref[nn.Module]]] = []
        module = module_behind(compiled)
        if module is not None:
            self.add("", module)

    def add(self, path: str, module: nn.Module) -> None:
        self._roots.append((path, weakref.ref(module)))

    def names(self) -> ModuleNames:
        """The names as they are now."""
        alive = [(path, module) for path, ref in self._roots if (module := ref()) is not None]
        return ModuleNames(self, alive)


class ModuleNames:
    """The names of modules for one capture, which keeps what it names alive. Only what lies in the tables of modules is
    looked at, so no code of the program's runs."""

    def __init__(self, roots: ModuleRoots, alive: list[tuple[str, nn.Module]]) -> None:
        self._roots = roots
        self._found: dict[int, Within] = {}
        self._kept: list[nn.Module] = []
        for path, module in alive:
            self._walk(path, module)

    def of(self, module: nn.Module, label: str | None, arguments: Mapping[str, str]) -> Within | None:
        """What a module is called: by its path in a root, else by the way in which the program reaches it. None if it
        has no name, as what the program makes.

        `label`: what the region calls it. `arguments`: the names of parameters, by the labels of what is passed for
        them.
        """
        found = self._found.get(id(module))
        if found is None and label is not None:
            path = _path(label, arguments)
            if path is not None:
                self._roots.add(path, module)
                self._walk(path, module)
                found = self._found.get(id(module))
        return found

    def _walk(self, path: str, module: nn.Module) -> None:
        """Name a module and those in it. One that lies at several places has its first name."""
        work = [(path, module)]
        while work:
            path, module = work.pop()
            if id(module) in self._found:
                continue
            self._kept.append(module)
            self._found[id(module)] = Within.of(path, type(module).__name__)
            table = _dict_of(module)
            inner: Any = table.get("_lampwork_original")
            if isinstance(inner, nn.Module):
                work.append((path, inner))
            held: Any = table.get("_modules")
            if isinstance(held, dict):
                prefix = f"{path}." if path else ""
                items = [
                    (f"{prefix}{name}", cast(nn.Module, child))
                    for name, child in dict.items(cast("dict[str, Any]", held))
                    if issubclass(type(child), nn.Module)
                ]
                work.extend(reversed(items))


def module_behind(function: Any) -> nn.Module | None:
    """The module that a callable is, or is a method of."""
    while type(function) is functools.partial:
        function = cast("functools.partial[Any]", function).func
    if type(function) is types.MethodType:
        function = function.__self__
    if not issubclass(type(function), nn.Module):
        return None
    inner = _dict_of(function).get("_lampwork_original")
    return function if inner is None else inner


def _dict_of(module: nn.Module) -> dict[str, Any]:
    """`module.__dict__`, whatever the class says of its attributes."""
    return cast("dict[str, Any]", object.__getattribute__(module, "__dict__"))


_KEY = re.compile(r"""\[(['"]?)(.*?)\1\]""")
_TABLES = ("_modules", "__dict__")


def _path(label: str, arguments: Mapping[str, str]) -> str | None:
    """What an object is labelled with, as a dotted path without the tables of modules: `model.layers.0` for
    `args[1].layers._modules['0']`. None for a label that is a description."""
    for passed, parameter in arguments.items():
        rest = label.removeprefix(passed)
        if rest is not label and rest[:1] in ("", ".", "["):
            label = parameter + rest
            break
    if " " in label:
        return None
    parts = _KEY.sub(r".\2", label).split(".")
    return ".".join(part for part in parts if part not in _TABLES)
