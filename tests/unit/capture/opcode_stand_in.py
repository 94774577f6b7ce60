"""A torch in which every name exists and nothing computes, and the part of Lampwork that can live with it.

It lets capture run, on programs without tensors, in a Python for which no torch is at hand.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import operator
import sys
import types
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[3] / "src" / "lampwork"
# What torch has as modules where the code reaches them as attributes.
_MODULES = frozenset({"_C", "autograd", "backends", "compiler", "fx", "nn", "ops", "utils"})


def _is_protocol(name: str) -> bool:
    """Whether Python or a library asks for a name to find out what an object can do."""
    return name.startswith("__") and name != "__func__"


class _NameType(type):
    def __getattr__(cls, name: str) -> Any:
        if _is_protocol(name):
            raise AttributeError(name)
        made = _NameType(name, (Name,), {"__module__": cls.__module__})
        setattr(cls, name, made)
        return made

    def __iter__(cls) -> Any:
        return iter(())


class Name(metaclass=_NameType):
    """Any name of the stand-in: a class to derive from, a function to call, a value to look at."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if _is_protocol(name):
            raise AttributeError(name)
        return _NameType(name, (Name,), {})

    def __iter__(self) -> Any:
        return iter(())

    def __invert__(self) -> Any:
        return self

    def __and__(self, other: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if _is_protocol(name):
            raise AttributeError(name)
        if name in _MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        made = _NameType(name, (Name,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "torch":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> _Module:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Let `import torch` find the stand-in, and `import lampwork.capture` capture only."""
    sys.meta_path.insert(0, _Finder())
    torch: Any = importlib.import_module("torch")
    torch.__file__ = str(SOURCE.parent / "torch" / "__init__.py")
    torch.is_grad_enabled = lambda: True
    torch.is_inference_mode_enabled = lambda: False
    torch.is_autocast_enabled = lambda device: False
    torch.are_deterministic_algorithms_enabled = lambda: False
    # The default of a process that nothing has changed; equal on every call.
    torch.get_default_dtype = lambda: "float32"
    torch.get_autocast_dtype = lambda device: "bfloat16"
    torch._C._len_torch_dispatch_stack = lambda: 0
    torch._C._len_torch_function_stack = lambda: 0
    torch.fx.Graph.nodes = ()
    package = types.ModuleType("lampwork")
    package.__path__ = [str(SOURCE)]
    sys.modules["lampwork"] = package
    # The extension is torch's too. What native code calls of a program is not watched without it.
    extension: Any = types.ModuleType("lampwork._C")
    extension.watch_frames = lambda is_program, refusal: None
    extension.unwatch_frames = lambda: None
    extension.has_stack = lambda: True
    extension.pause_watch = bool
    extension.strictly_equal = operator.eq
    package._C = sys.modules["lampwork._C"] = extension  # pyright: ignore[reportAttributeAccessIssue]
