"""Why no version serves a call: the record of a recompilation.

`describe_miss` asks the runtime which guard of an earlier version failed. The record says what the guard needs, what
the call has, which line of the user's program needs it, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import torch

from lampwork.capture.model.codes import Code
from lampwork.capture.model.evaluate import find, holds
from lampwork.capture.model.printing import (
    format_condition,
    format_failure,
    format_source,
    format_symbol,
    format_tensor,
)
from lampwork.capture.model.region import (
    GlobalState,
    Guard,
    Known,
    Record,
    Region,
    Source,
    Symbol,
    TensorGuard,
    root_of,
)
from lampwork.compiled.callables import target_of
from lampwork.errors import Location
from lampwork.graph.symbols import Condition
from lampwork.records import record
from lampwork.runtime import Entry

# Why a call made another version. {source}: what differs, {detail}: what was needed and what came.
RECOMPILES: dict[str, Code] = {
    entry.code: entry
    for entry in (
        Code(
            "LW140",
            "recompile limit",
            "{detail} versions are compiled, the limit; calls that none of them serves run eager",
            "do what the fixes of the recompile records say (LAMPWORK_LOGS=recompiles), or raise `recompile_limit`",
        ),
        Code(
            "LW141",
            "another number or text",
            "compiled again, for another value of {source}: {detail}",
            "if it is an int, pass dynamic=True; if it only takes part in arithmetic, make it a 0-d tensor",
        ),
        Code(
            "LW142",
            "another size",
            "compiled again, for another size of {source}: {detail}",
            "pass dynamic=True or call lampwork.mark_dynamic({source}, {dims}), or pad to few sizes",
        ),
        Code(
            "LW143",
            "another kind of tensor",
            "compiled again, for another kind of tensor in {source}: {detail}",
            "convert it before the call (dtype, device, dimensions, strides, requires_grad), if one kind is enough",
        ),
        Code(
            "LW144",
            "another object",
            "compiled again, for another object in {source}: {detail}",
            "pass the same object again, or what the function needs of it as numbers and tensors",
        ),
        Code(
            "LW145",
            "other contents of a container",
            "compiled again, for other items in {source}: {detail}",
            "pass containers of one length with the same keys, or a stacked tensor",
        ),
        Code(
            "LW146",
            "outside state",
            "compiled again, because {source}, which is not an argument, has changed: {detail}",
            "if it changes from call to call, pass it as an argument or keep it in a tensor",
        ),
        Code(
            "LW147",
            "different aliasing",
            "compiled again, because the arguments share memory in a different way: {detail}",
            "clone the argument that is written to",
        ),
        Code(
            "LW148",
            "another mode",
            "compiled again, for another global mode: {detail}",
            "call it under one mode: grad mode, autocast and default dtype each make a version",
        ),
        Code(
            "LW149",
            "another form of call",
            "compiled again, for another form of call: {detail}",
            "pass the same arguments by position and by keyword on every call",
        ),
        Code(
            "LW150",
            "a mark that the program contradicts",
            "{source} is marked dynamic, but the program needs {detail}; it is compiled for that",
            "remove the mark, or change the line so that it does not need the number",
        ),
    )
}

_CONTAINER_KINDS = frozenset({"len", "keys", "missing_key"})
_ALIAS_KINDS = frozenset({"same", "distinct", "storage_distinct"})
_LONGEST = 60  # of a value's text
_ABSENT = object()
_HAS = "this call has "
_FAR = 1_000_000


@record
class Version:
    """An earlier version of the function."""

    number: int
    region: Region
    entry: Entry


@record
class Call:
    """The call that no version serves. `names`: the names of its positional arguments."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]


@record
class Difference:
    """How a call differs from a version. `source`: the value that differs; `detail`: both values; `line`: the user's
    line that needs it; `dims`: the dimensions that differ, if the value is a tensor whose sizes differ; `values`: what
    the version needs and what the call has, where the two can be told apart."""

    code: str
    source: str
    detail: str
    line: Location | None = None
    dims: tuple[int, ...] = ()
    values: tuple[str, ...] = ()

    @staticmethod
    def between(
        code: str,
        source: str,
        version: Version,
        needed: str,
        got: str,
        line: Location | None = None,
        dims: tuple[int, ...] = (),
    ) -> Difference:
        """What a version needs, and a sentence about the call."""
        detail = f"version {version.number} needs {needed}; {got}"
        return Difference(code, source, detail, line, dims, (needed, got.removeprefix(_HAS)))


def describe_miss(
    fn: Callable[..., Any],
    name: str,
    versions: Sequence[Version],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Record | None:
    """The record of compiling `fn` again for a call, or None if an earlier version serves the call after all.

    The record is about the version with the fewest failing guards; of several, about the latest.
    """
    with torch._C.DisableTorchFunctionSubclass():  # a subclass of Tensor is not to hear of this
        return _described_miss(fn, name, versions, args, kwargs)


def _described_miss(
    fn: Callable[..., Any],
    name: str,
    versions: Sequence[Version],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Record | None:
    target = target_of(fn)
    call = Call(args, kwargs, target.parameters)
    found = [(version, reason) for version in versions if (reason := _reason(version, call)) is not None]
    if not found or len(found) < len(versions):
        return None
    version, reason = min(found, key=lambda pair: (_distance(*pair, call), -pair[0].number))
    difference = _difference(version, reason, call)
    line = difference.line or Location(*target.place)
    code = RECOMPILES[difference.code]
    return Record(
        code.code,
        code.cause.format(source=difference.source, detail=difference.detail),
        code.fix.format(source=difference.source, dims=_dims_text(difference.dims)),
        line.file,
        line.line,
        name,
        line.module,
        difference.values,
    )


def contradicted_marks(fn: Callable[..., Any], name: str, region: Region) -> list[Record]:
    """A record for each size that is marked dynamic (`mark_dynamic`) and yet was fixed, by the line that needs it."""
    code = RECOMPILES["LW150"]
    target = target_of(fn)
    records: list[Record] = []
    for symbol in region.symbols:
        fixed = [c for c in region.conditions if c.op == "==" and set(c.index.symbols()) == {symbol.name}]
        if symbol.marked and fixed:
            line = fixed[0].line or Location(*target.place)
            cause = code.cause.format(source=format_symbol(symbol, target.parameters), detail=str(fixed[0]))
            records.append(Record(code.code, cause, code.fix, line.file, line.line, name, line.module))
    return records


def limit_record(fn: Callable[..., Any], name: str, count: int) -> Record:
    """The record of reaching the recompile limit."""
    code = RECOMPILES["LW140"]
    file, line = target_of(fn).place
    return Record(code.code, code.cause.format(detail=count), code.fix, file, line, name)


def _reason(version: Version, call: Call) -> Guard | Condition | str | None:
    failed = version.entry.explain(call.args, dict(call.kwargs))
    return format_failure(failed) if isinstance(failed, Symbol) else failed


def _distance(version: Version, reason: Guard | Condition | str, call: Call) -> int:
    """How many guards of a version fail; another global mode or form of call is further away than any guard."""
    region = version.region
    if _is_other_form(region, call):
        return 2 * _FAR
    failing = sum(not _holds(guard, call) for guard in (*region.guards, *region.slow_guards))
    return max(failing, 1) + (_FAR if isinstance(reason, str) else 0)


def _holds(guard: Guard, call: Call) -> bool:
    try:
        return holds(guard, call.args, call.kwargs)
    except Exception:  # noqa: BLE001  (a property of the user's may raise anything)
        return False


def _difference(version: Version, reason: Guard | Condition | str, call: Call) -> Difference:
    if isinstance(reason, Guard):
        return _of_guard(version, reason, call)
    if isinstance(reason, Condition):
        return _of_condition(version, reason, call)
    return _of_call(version, reason, call)


def _of_guard(version: Version, guard: Guard, call: Call) -> Difference:
    where = format_source(guard.source, call.names)
    value = _value(guard.source, call)
    code = _code(guard, call)
    if code == "LW142":
        return _of_sizes(version, guard, where, value)
    got = "it is not there" if value is _ABSENT else _got(guard, value, where)
    needed = format_condition(guard, call.names)
    return Difference.between(code, where, version, needed, got, guard.line)


def _of_sizes(version: Version, guard: Guard, where: str, value: torch.Tensor) -> Difference:
    sizes = cast(TensorGuard, guard.expected).sizes
    dims = tuple(i for i, size in enumerate(sizes) if size is not None and size != value.shape[i])
    needed = " and ".join(f"{where}.size({i}) == {sizes[i]}" for i in dims)
    got = " and ".join(str(value.shape[i]) for i in dims)
    return Difference.between("LW142", where, version, needed, _HAS + got, guard.line, dims)


def _code(guard: Guard, call: Call) -> str:
    if guard.kind in _ALIAS_KINDS:
        return "LW147"
    if isinstance(root_of(guard.source), Known):
        return "LW146"
    if guard.kind == "equals":
        return "LW141"
    if guard.kind in _CONTAINER_KINDS:
        return "LW145"
    if guard.kind == "tensor":
        return "LW142" if _only_sizes_differ(guard, call) else "LW143"
    return "LW144"


def _only_sizes_differ(guard: Guard, call: Call) -> bool:
    expected = cast(TensorGuard, guard.expected)
    value = _value(guard.source, call)
    if type(value) is not expected.type:
        return False
    tensor = cast(torch.Tensor, value)
    return (
        tensor.dtype == expected.dtype
        and tensor.device == expected.device
        and tensor.requires_grad == expected.requires_grad
        and tensor.dim() == len(expected.sizes)
        and any(
            want is not None and have != want for have, want in zip(tensor.shape, expected.sizes, strict=True)
        )
    )


def _value(source: Source, call: Call) -> Any:
    """The object at a source of the call, or _ABSENT."""
    try:
        return find(source, call.args, call.kwargs)
    except Exception:  # noqa: BLE001  (a property of the user's may raise anything)
        return _ABSENT


def _got(guard: Guard, value: Any, where: str) -> str:
    """What the call has where the guard looked."""
    match guard.kind:
        case "len":
            return f"this call has len({where}) == {len(value)}"
        case "keys":
            return f"this call has keys({where}) == {_short(tuple(value))}"
        case "missing_key":
            return f"this call has {guard.expected!r} in it"
        case "missing_attr":
            return f"this call has that attribute, {_short(getattr(value, guard.expected, None))}"
        case "same" | "distinct" | "storage_distinct":
            return "this is not so in this call"
        case "mro" | "class_attr" | "function":
            return "it has changed since"
        case "type":
            return f"this call has type {type(value).__qualname__}"
        case "tensor" if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            return f"this call has {format_tensor(_guard_of(value))}"
        case "is":
            other = " (another one)" if _short(value) == _short(guard.expected) else ""
            return f"this call has {_short(value)}{other}"
        case _:
            return f"this call has {_short(value)}"


def _guard_of(tensor: torch.Tensor) -> TensorGuard:
    return TensorGuard(
        type(tensor),
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.requires_grad,
    )


def _of_condition(version: Version, condition: Condition, call: Call) -> Difference:
    """A condition on symbols: it names those that occur in it, with the values of this call."""
    text = str(condition)
    symbols = [s for s in version.region.symbols if s.name in condition.index.symbols()]
    values: list[str] = []
    for symbol in symbols:
        value = _symbol_value(symbol.source, symbol.kind, symbol.dim, call)
        values.append(f"{format_symbol(symbol, call.names)} = {value}")
    sizes = any(symbol.kind in ("size", "stride") for symbol in symbols)
    where = ", ".join(dict.fromkeys(format_source(s.source, call.names) for s in symbols)) or "a number"
    got = _HAS + ", ".join(values)
    dims = tuple(dict.fromkeys(symbol.dim for symbol in symbols if symbol.kind == "size"))
    return Difference.between("LW142" if sizes else "LW141", where, version, text, got, condition.line, dims)


def _symbol_value(source: Source, kind: str, dim: int, call: Call) -> str:
    value = _value(source, call)
    if value is _ABSENT:
        return "nothing"
    if kind in ("int", "float"):
        return _short(value)
    return str(value.size(dim) if kind == "size" else value.stride(dim))


def _of_call(version: Version, reason: str, call: Call) -> Difference:
    """What is no guard: the form of the call, a global mode, a source that leads nowhere, a bound tensor."""
    region = version.region
    if _is_other_form(region, call):
        needed = _form(region.n_args, region.kwarg_names)
        got = _HAS + _form(len(call.args), tuple(call.kwargs))
        return Difference.between("LW149", "the call", version, needed, got)
    now = GlobalState.now()
    for field in fields(GlobalState):
        needed, got = getattr(region.state, field.name), getattr(now, field.name)
        if needed != got:
            return Difference.between("LW148", field.name, version, f"{field.name} {needed}", f"{_HAS}{got}")
    if reason.startswith("global state"):
        return Difference("LW148", "torch", f"version {version.number}: {reason}")
    code = "LW146" if reason.startswith("a bound tensor") else "LW144"
    return Difference(
        code, "a tensor" if code == "LW146" else "an argument", f"version {version.number}: {reason}"
    )


def _is_other_form(region: Region, call: Call) -> bool:
    return len(call.args) != region.n_args or tuple(call.kwargs) != region.kwarg_names


def _dims_text(dims: tuple[int, ...]) -> str:
    """As `mark_dynamic` takes them."""
    return str(dims[0]) if len(dims) == 1 else str(dims)


def _form(count: int, keywords: tuple[str, ...]) -> str:
    text = f"{count} positional argument{'' if count == 1 else 's'}"
    return f"{text} and {', '.join(keywords)}" if keywords else text


def _short(value: Any) -> str:
    """A value as text that runs no code of the user's."""
    if (
        isinstance(value, (int, float, complex, str, bytes, type(None)))
        and type(value).__module__ == "builtins"
    ):
        text = repr(value)
    elif type(value) is tuple and all(type(item) in (int, float, str, bool) for item in value):
        text = repr(cast("tuple[Any, ...]", value))
    elif isinstance(value, (type, torch.dtype, torch.device)):
        text = getattr(value, "__qualname__", None) or str(value)
    else:
        text = getattr(value, "__qualname__", None) or f"an object of {type(value).__qualname__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
