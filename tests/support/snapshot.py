"""Snapshots: what can be seen of a value, as flat data that two runs are compared by."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_VALUES = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice)
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_OPAQUE = ("_io", "_thread", "logging", "re", "threading", "weakref")
_COMPILERS = ("torch._dynamo.", "lampwork.")  # their objects hold caches, no state of a program
_OF_COMPILERS = ("_lampwork_held", "_torchdynamo_wrapper_id")  # what they keep with a module or function
# Entering one notes in it what to put back; what is left there afterwards, nobody reads.
_MANAGERS = (torch.autocast, torch.no_grad, torch.enable_grad, torch.inference_mode)
_ITERATED = 5  # how many items of an iterator are taken to compare it


@dataclass(slots=True)
class Snapshot:
    """`items`: (path, what is there), in the order of the walk. An object met before is a reference to its number, so
    that who shares what with whom is compared too."""

    items: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])

    @staticmethod
    def of(value: Any, seen: dict[int, Any]) -> Snapshot:
        """`seen` holds the objects met so far, by id; share it between snapshots that are to be compared jointly."""
        snapshot = Snapshot()
        snapshot._walk(value, "value", seen)
        return snapshot

    def _walk(self, value: Any, path: str, seen: dict[int, Any]) -> None:
        if isinstance(value, enum.Enum):
            self._put(path, f"{type(value).__qualname__}.{value.name}")
        elif isinstance(value, _VALUES + _TORCH_VALUES) and type(value).__module__ in ("builtins", "torch"):
            self._put(path, value)
        elif isinstance(value, type):
            self._put(path, f"class {value.__qualname__}")
        elif isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
            self._put(path, f"{type(value).__name__} {value.__name__}")
        elif isinstance(value, (tuple, frozenset)):
            self._put(path, f"{type(value).__qualname__} of {len(value)}")
            self._content(value, path, seen)
            self._attributes(value, path, seen)
        elif id(value) in seen:
            self._put(path, f"object {seen[id(value)][0]}")
        else:
            # Holds the value too: its id must stay taken.
            seen[id(value)] = (len(seen), value)
            self._object(value, path, seen)

    def _put(self, path: str, what: Any) -> None:
        self.items.append((path, what))

    def _object(self, value: Any, path: str, seen: dict[int, Any]) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value, path, seen)
            return
        self._put(path, f"{type(value).__qualname__} object")
        if type(value).__module__ in _OPAQUE or type(value).__module__.startswith(_COMPILERS):
            return
        if isinstance(value, _MANAGERS):
            return
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._callable(value, path, seen)
        elif isinstance(value, torch.nn.Module):
            self._module(value, path, seen)
        elif isinstance(value, (torch.Generator, torch.random.default_generator.__class__)):
            self._put(path, value.get_state())
        elif isinstance(value, BaseException):
            self._walk(value.args, f"{path}.args", seen)
            self._attributes(value, path, seen)
        elif isinstance(value, Iterator):
            for i, item in enumerate(itertools.islice(value, _ITERATED)):
                self._walk(item, f"{path}->{i}", seen)
        else:
            self._content(value, path, seen)
            self._attributes(value, path, seen)

    def _content(self, value: Any, path: str, seen: dict[int, Any]) -> None:
        """The items of a container, read as its native base class would."""
        if isinstance(value, dict):
            if isinstance(value, collections.defaultdict):
                self._walk(value.default_factory, f"{path}.default_factory", seen)
            self._put(path, f"{dict.__len__(value)} keys")
            base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            for number, key in enumerate(base.__iter__(value)):
                self._walk(key, f"{path} key", seen)
                label = repr(key) if isinstance(key, _VALUES) else f"key {number}"
                self._walk(dict.__getitem__(value, key), f"{path}[{label}]", seen)
        elif isinstance(value, (set, frozenset)):
            self._put(path, sorted(map(repr, value)))
        elif isinstance(value, (list, tuple, collections.deque)):
            if isinstance(value, collections.deque):
                self._put(path, value.maxlen)
            base = next(b for b in (list, tuple, collections.deque) if isinstance(value, b))
            items = list(base.__iter__(value))
            self._put(path, len(items))
            for i, item in enumerate(items):
                self._walk(item, f"{path}[{i}]", seen)

    def _attributes(self, value: Any, path: str, seen: dict[int, Any]) -> None:
        for name, item in getattr(value, "__dict__", {}).items():
            if name in _OF_COMPILERS:
                continue
            self._walk(item, f"{path}.{name}", seen)
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    self._walk(getattr(value, name), f"{path}.{name}", seen)

    def _callable(self, value: Any, path: str, seen: dict[int, Any]) -> None:
        if isinstance(value, types.MethodType):
            self._walk(value.__self__, f"{path}.__self__", seen)
            self._walk(value.__func__, f"{path}.__func__", seen)
        elif isinstance(value, functools.partial):
            self._walk([value.func, value.args, value.keywords], f"{path}.partial", seen)
        else:
            self._put(path, [value.__qualname__, value.__code__.co_firstlineno, value.__doc__])
            self._walk(value.__defaults__, f"{path}.__defaults__", seen)
            self._walk(value.__kwdefaults__, f"{path}.__kwdefaults__", seen)
            self._walk(
                {k: v for k, v in value.__dict__.items() if k not in _OF_COMPILERS}, f"{path}.__dict__", seen
            )
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                self._walk(_content_of(cell), f"{path}.{name}", seen)

    def _module(self, value: torch.nn.Module, path: str, seen: dict[int, Any]) -> None:
        own = {k: v for k, v in value.__dict__.items() if not k.startswith("_") and "hooks" not in k}
        for table in (own, value._parameters, value._buffers, value._modules):
            for name, item in table.items():
                self._walk(item, f"{path}.{name}", seen)

    def _tensor(self, value: torch.Tensor, path: str, seen: dict[int, Any]) -> None:
        facts = [type(value).__qualname__, value.dtype, value.device, value.requires_grad, value.layout]
        facts.append(value.is_inference())
        if value.layout is not torch.strided or value.is_nested:
            self._put(path, facts)
            self._put(
                path,
                value.detach().to_dense() if not value.is_nested else value.detach().to_padded_tensor(0.0),
            )
        else:
            self._put(path, [*facts, tuple(value.shape), value.stride(), value.is_conj(), value.is_neg()])
            content = value.detach().clone()
            # A class of a program is another on the other side.
            self._put(path, content if type(content) is torch.Tensor else content.as_subclass(torch.Tensor))
            if type(value) in (torch.Tensor, torch.nn.Parameter) and value.numel():
                # Tensors that share memory, however they came to.
                storage = value.untyped_storage()
                number = seen.setdefault(-storage.data_ptr() - 1, (len(seen), storage))[0]
                self._put(path, f"storage {number}")
        if value.is_leaf and value.grad is not None:
            self._walk(value.grad, f"{path}.grad", seen)
        self._walk(dict(value.__dict__), f"{path}.__dict__", seen)


def _content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "an empty cell"


def difference(actual: Snapshot, expected: Snapshot, steps: int = 1) -> str | None:
    """Where two snapshots part, in words; None if they are equal, up to the rounding of `steps` layers in floating
    point."""
    for (path, mine), (other, theirs) in itertools.zip_longest(
        actual.items, expected.items, fillvalue=("end", None)
    ):
        if path != other:
            return f"{path}: {mine!r}, in eager {other}: {theirs!r}"
        if type(mine) is not type(theirs) or not _equal(mine, theirs, steps):
            return f"{path}: {_distance(mine, theirs)}{mine!r}, in eager {theirs!r}"
    return None


def _distance(mine: Any, theirs: Any) -> str:
    """How far numbers are apart, since long tensors print but a few."""
    if not (isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        return ""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype or not mine.is_floating_point():
        return ""
    if mine.is_meta or mine.numel() == 0:
        return ""
    got, wanted = mine.detach().double(), theirs.detach().double()
    apart, largest = (got - wanted).abs().nan_to_num(nan=math.inf).max().item(), wanted.abs().max().item()
    return f"off by up to {apart:.2g}, of values up to {largest:.2g}: "


def _equal(mine: Any, theirs: Any, steps: int) -> bool:
    if isinstance(mine, torch.Tensor):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        if mine.is_meta or theirs.is_meta:
            return mine.is_meta == theirs.is_meta
        rounding = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.bfloat16: 2e-2, torch.float16: 2e-3}
        if mine.is_quantized:
            return bool(torch.equal(mine, theirs))
        tolerance = steps * rounding.get(mine.dtype, 1e-5)
        return bool(torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True))
    if isinstance(mine, float):
        return mine == theirs or mine != mine and theirs != theirs or abs(mine - theirs) <= 1e-5 * abs(theirs)
    return bool(mine == theirs)
