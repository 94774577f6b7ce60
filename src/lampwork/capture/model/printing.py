"""The guards and symbols of a region as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.capture.model.region import (
    Arg,
    Attr,
    CellContents,
    DictItem,
    Guard,
    InstanceDict,
    Item,
    Known,
    Kwarg,
    Region,
    Result,
    Slot,
    Source,
    Symbol,
    TensorGuard,
)
from lampwork.errors import Location


def format_source(source: Source, names: Sequence[str] = ()) -> str:
    """A source as the expression that it stands for. `names`: what the positional arguments are called."""
    match source:
        case Arg(index):
            return names[index] if index < len(names) else f"args[{index}]"
        case Kwarg(name):
            return name
        case Known(_, name):
            return name
        case Attr(base, name):
            return f"{format_source(base, names)}.{name}"
        case Slot(base, descriptor):
            return f"{format_source(base, names)}.{descriptor.__name__}"
        case DictItem(base, key) | Item(base, key):
            where = format_source(base, names)
            if where.endswith(".__dict__") and isinstance(key, str) and key.isidentifier():
                return f"{where.removesuffix('__dict__')}{key}"
            return f"{where}[{key!r}]"
        case CellContents(base):
            return f"{format_source(base, names)}.cell_contents"
        case InstanceDict(base):
            return f"{format_source(base, names)}.__dict__"
        case Result(base):
            return f"{format_source(base, names)}()"


def format_guard(guard: Guard) -> str:
    """One guard as one line of pseudo Python."""
    return f"{format_condition(guard)}{_note(guard.line)}"


def format_condition(guard: Guard, names: Sequence[str] = ()) -> str:
    """The condition of a guard. `names`: what the positional arguments are called."""
    where, expected = format_source(guard.source, names), guard.expected
    match guard.kind:
        case "type":
            return f"type({where}) is {_name(expected)}"
        case "is":
            return f"{where} is {_name(expected)}"
        case "equals":
            return f"{where} == {expected!r}"
        case "len":
            return f"len({where}) == {expected}"
        case "keys":
            return f"keys({where}) == {expected!r}"
        case "missing_key":
            return f"{expected!r} not in {where}"
        case "missing_attr":
            return f"not hasattr({where}, {expected!r})"
        case "tensor":
            return f"{where}: {format_tensor(expected)}"
        case "same":
            return f"{where} is {format_source(expected, names)}"
        case "distinct":
            return f"{where} is not {format_source(expected, names)}"
        case "storage_distinct":
            return f"{where} does not overlap {format_source(expected, names)}"
        case "mro":
            return f"{where}.__mro__ has not changed"
        case "class_attr" if expected.missing:
            return f"not hasattr({where}, {expected.name!r})"
        case "class_attr":
            return f"{where}.{expected.name} has not changed"
        case "function":
            return f"the code and defaults of {where} have not changed"
        case "predicate":
            return f"{_name(expected)}({where})"


def format_tensor(guard: TensorGuard) -> str:
    """What a tensor guard expects."""
    dtype = str(guard.dtype).removeprefix("torch.")
    sizes = ", ".join("*" if size is None else str(size) for size in guard.sizes)
    strides = ", ".join("*" if stride is None else str(stride) for stride in guard.strides)
    grad = " requires_grad" if guard.requires_grad else ""
    return f"{guard.type.__name__} {dtype}[{sizes}]({strides}) {guard.device}{grad}"


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def format_symbol(symbol: Symbol, names: Sequence[str] = ()) -> str:
    """Where the value of a symbol is read, with its name: `s0 = x.size(0)`."""
    where = format_source(symbol.source, names)
    read = where if symbol.kind in ("int", "float") else f"{where}.{symbol.kind}({symbol.dim})"
    return f"{symbol.name} = {'-' if symbol.negated else ''}{read}"


def format_failure(failed: object) -> str:
    """What keeps a version from serving a call (`_C.Entry.explain`), as one line."""
    if isinstance(failed, Guard):
        return format_guard(failed)
    if isinstance(failed, Symbol):
        return (
            f"{format_symbol(failed)} cannot be read{' as an int of 64 bits' if failed.kind == 'int' else ''}"
        )
    return str(failed)


def format_guards(region: Region) -> str:
    """All guards: those of every call first, with the symbols and the conditions on them."""
    lines = [f"{len(region.guards)} guards on each call"]
    lines += [f"  {format_guard(guard)}" for guard in region.guards]
    if region.symbols:
        lines.append(f"{len(region.symbols)} symbols under {len(region.conditions)} conditions")
        lines += [f"  {format_symbol(symbol)}" for symbol in region.symbols]
        lines += [f"  {condition}{_note(condition.line)}" for condition in region.conditions]
    lines.append(f"{len(region.slow_guards)} guards when one of {len(region.versioned)} dicts has changed")
    lines += [f"  {format_guard(guard)}" for guard in region.slow_guards]
    return "\n".join(lines)


def _note(line: Location | None) -> str:
    return f"  # {line.line_text}" if line is not None else ""
