"""Guards evaluated in Python, to explain which of them fail; the runtime checks them in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from lampwork._C import strictly_equal
from lampwork.capture.model.region import (
    Arg,
    Attr,
    CellContents,
    ClassAttr,
    DictItem,
    FunctionState,
    Guard,
    InstanceDict,
    Item,
    Known,
    Kwarg,
    Result,
    Slot,
    Source,
    TensorGuard,
)

_LOOKUP_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError)


def find(source: Source, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The object at a source.

    Raises:
        AttributeError, KeyError, IndexError, TypeError, ValueError: there is none.
    """
    match source:
        case Arg(index):
            return args[index]
        case Kwarg(name):
            return kwargs[name]
        case Known(value, _):
            return value
        case Attr(base, name):
            return getattr(find(base, args, kwargs), name)
        case Slot(base, descriptor):
            return descriptor.__get__(find(base, args, kwargs))
        case DictItem(base, key):
            table = find(base, args, kwargs)
            if not dict.__contains__(table, key):  # a `__missing__` of the dict is not to be asked
                raise KeyError(key)
            return dict.__getitem__(table, key)
        case Item(base, key):
            return find(base, args, kwargs)[key]
        case CellContents(base):
            return find(base, args, kwargs).cell_contents
        case InstanceDict(base):
            return find(base, args, kwargs).__dict__
        case Result(base):
            return find(base, args, kwargs)()


def holds(guard: Guard, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a guard holds for a call. A source that leads nowhere does not hold."""
    try:
        value = find(guard.source, args, kwargs)
        other = (
            find(guard.expected, args, kwargs)
            if guard.kind in ("same", "distinct", "storage_distinct")
            else guard.expected
        )
    except _LOOKUP_ERRORS:
        return False
    match guard.kind:
        case "type":
            return type(value) is other
        case "is" | "same":
            return value is other
        case "distinct":
            return value is not other
        case "equals":
            return strictly_equal(value, other)
        case "len":
            return len(value) == other
        case "keys":
            return strictly_equal(tuple(value), other)
        case "missing_key":
            return other not in value
        case "missing_attr":
            return not hasattr(value, other)
        case "tensor":
            return _tensor_fits(value, other)
        case "storage_distinct":
            return not overlap(value, other)
        case "mro":
            mro: tuple[type, ...] = value.__mro__
            return len(mro) == len(other) and all(a is b for a, b in zip(mro, other, strict=True))
        case "class_attr":
            return _class_gives(value, other)
        case "function":
            now = FunctionState.of(value)
            slots = ("code", "defaults", "kwdefaults")
            return all(getattr(now, name) is getattr(other, name) for name in slots)
        case "predicate":
            return bool(other(value))


def _class_gives(cls: type, expected: ClassAttr) -> bool:
    for base in cls.__mro__:
        if expected.name in base.__dict__:
            found = base.__dict__[expected.name]
            plain = type(expected.found) in (int, float, str)
            return not expected.missing and (
                found is expected.found or (plain and strictly_equal(found, expected.found))
            )
    return expected.missing


def _tensor_fits(value: Any, expected: TensorGuard) -> bool:
    if type(value) is not expected.type:
        return False
    tensor = cast(torch.Tensor, value)
    return (
        tensor.dtype == expected.dtype
        and tensor.device == expected.device
        and tensor.requires_grad == expected.requires_grad
        and _fits(tensor.shape, expected.sizes)
        and _fits(tensor.stride(), expected.strides)
    )


def _fits(numbers: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(numbers) == len(expected) and all(
        want is None or have == want for have, want in zip(numbers, expected, strict=True)
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor and the one past its last."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the memory that two tensors span has a byte in common."""
    a, b = _extent(left), _extent(right)
    return a[0] < b[1] and b[0] < a[1]
