"""Symbols, and what is known of tensors that have them, as JSON."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast, get_args

from lampwork.errors import SerialError
from lampwork.graph.devices import CPU
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import (
    Condition,
    Relation,
    Scope,
    SymbolicFloat,
    SymbolicInt,
    float_of_bits,
    held,
)
from lampwork.loops.ir.symbols import evaluate
from lampwork.serial.indices import index_from_json, index_to_json, symbol_from_json
from lampwork.serial.values import (
    DEEPEST,
    device_from_json,
    dtype_from_json,
    dtype_to_json,
    each,
    expected,
    flag,
    float_from_json,
    float_to_json,
    items,
    mapping,
    one_of,
    only,
    plain_from_json,
    plain_to_json,
    text,
    whole,
)
from lampwork.standard import functools, math, operator

_RELATIONS = frozenset(get_args(Relation))
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs")
_BUILTINS = ("float", "abs", "round", "pow", "min", "max")
_OF_WHOLE_NUMBERS = frozenset({"comb", "factorial", "gcd", "isqrt", "lcm", "perm", "prod", "sumprod"})
_LARGEST_POWER = 1024
_SPEC = frozenset({"dtype", "shape", "strides"})
_SCOPE = frozenset({"symbols", "equal", "derived", "conditions"})


@functools.cache
def float_functions() -> Mapping[str, Callable[..., Any]]:
    """The functions that floats are computed of by Python, by the names of the form."""
    found: dict[str, Callable[..., Any]] = {"held": held, "float_of_bits": float_of_bits}
    found.update((f"operator.{name}", getattr(operator, name)) for name in _OPERATORS)
    found.update((f"builtins.{name}", getattr(builtins, name)) for name in _BUILTINS)
    found.update(
        (f"math.{name}", each)
        for name, each in vars(math).items()
        if callable(each) and not name.startswith("_") and name not in _OF_WHOLE_NUMBERS
    )
    return MappingProxyType(found)


@functools.cache
def _function_names() -> Mapping[Any, str]:
    return MappingProxyType({function: name for name, function in float_functions().items()})


# --- numbers ----------------------------------------------------------------------------------------------------------


def symbolic_to_json(number: SymbolicInt | SymbolicFloat) -> dict[str, Any]:
    """{"i": index} or {"x": [function, argument...]}.

    Raises:
        SerialError: a function that has no name in the form.
    """
    if isinstance(number, SymbolicInt):
        return {"i": index_to_json(number.index)}
    name = _function_names().get(number.function)
    if name is None:
        raise SerialError(f"floats that {number.function!r} computes have no serial form")
    return {"x": [name, *map(_part_to_json, number.args)]}


def _part_to_json(value: Any) -> Any:
    if isinstance(value, (SymbolicInt, SymbolicFloat)):
        return symbolic_to_json(value)
    if isinstance(value, frozenset):  # the numbers that a float must not be
        return {"set": [float_to_json(each) for each in sorted(cast("frozenset[float]", value))]}
    return plain_to_json(value)


def symbolic_from_json(value: Any, scope: Scope, depth: int = 0) -> Any:
    """The symbolic number. Its hint is what it is for the hints of the scope."""
    key, inner = only(value, "a number that depends on symbols")
    if key == "i":
        index = index_from_json(inner)
        if index.is_const or not index.symbols() <= scope.hints.keys():
            raise expected("an index of symbols that there are", inner)
        return SymbolicInt(scope, index, _computed(lambda: evaluate(index, scope.hints), inner))
    if key != "x":
        raise expected("a number that depends on symbols", value)
    if depth > DEEPEST:
        raise expected(f"a float that is computed in no more than {DEEPEST} steps", value)
    parts = items(inner)
    name = one_of(parts[0] if parts else None, frozenset(float_functions()))
    args = tuple(_part_from_json(part, scope, depth + 1) for part in parts[1:])
    if not any(isinstance(arg, (SymbolicInt, SymbolicFloat)) for arg in args):
        raise expected("a float that depends on symbols", inner)
    hints = [arg.hint if isinstance(arg, (SymbolicInt, SymbolicFloat)) else arg for arg in args]
    # What whole numbers make of these is whole, and as long as the second one says.
    if name.rpartition(".")[2] in ("pow", "round") and any(
        isinstance(each, int) and abs(each) > _LARGEST_POWER for each in hints[1:]
    ):
        raise expected(f"a power up to {_LARGEST_POWER}", inner)
    hint = _computed(lambda: float_functions()[name](*hints), inner)
    if type(hint) is not float:
        raise expected("what computes a float", inner)
    return SymbolicFloat(scope, float_functions()[name], args, hint)


def _part_from_json(value: Any, scope: Scope, depth: int) -> Any:
    if type(value) is dict:
        key, inner = only(value, "a part of a number")
        if key in ("i", "x"):
            return symbolic_from_json(cast(Any, value), scope, depth)
        if key == "set":
            return frozenset(map(float_from_json, items(inner)))
    found = plain_from_json(value)
    if not isinstance(found, (int, float)):  # functions of Python do other things with texts
        raise expected("a number", value)
    return found


def _computed(compute: Callable[[], Any], value: Any) -> Any:
    try:
        return compute()
    except (ArithmeticError, ValueError, TypeError) as error:
        raise expected("what can be computed for the hints", value) from error


# --- specs ------------------------------------------------------------------------------------------------------------


def spec_to_json(val: Any) -> Any:
    """A TensorSpec, None, or a tuple of such."""
    if isinstance(val, TensorSpec):
        found: dict[str, Any] = {
            "dtype": dtype_to_json(val.dtype),
            "shape": [_size_to_json(size) for size in val.shape],
            "strides": [_size_to_json(stride) for stride in val.strides],
        }
        if val.device != CPU:
            found["device"] = str(val.device)
        if val.requires_grad:
            found["requires_grad"] = True
        return found
    if val is None:
        return None
    if isinstance(val, tuple):
        return [spec_to_json(item) for item in cast("tuple[Any, ...]", val)]
    raise SerialError(f"what is known of a value, a {type(val).__name__}, has no serial form")


def _size_to_json(size: Any) -> Any:
    if type(size) is int:
        return size
    if isinstance(size, SymbolicInt):
        return index_to_json(size.index)
    raise SerialError(f"a size, a {type(size).__name__}, has no serial form")


def spec_from_json(value: Any, scope: Scope, depth: int = 0) -> Any:
    if value is None:
        return None
    if type(value) is list and depth < DEEPEST:
        return tuple(spec_from_json(item, scope, depth + 1) for item in cast("list[Any]", value))
    found = mapping(value, _SPEC, frozenset({"device", "requires_grad"}))
    shape = tuple(_size_from_json(size, scope) for size in items(found["shape"]))
    strides = tuple(_size_from_json(stride, scope) for stride in items(found["strides"], len(shape)))
    return TensorSpec(
        shape,
        strides,
        dtype_from_json(found["dtype"]),
        device_from_json(found["device"]) if "device" in found else CPU,
        flag(found.get("requires_grad", False)),
    )


def _size_from_json(value: Any, scope: Scope) -> Any:
    return whole(value, _SIZE) if type(value) is int else symbolic_from_json({"i": value}, scope)


_SIZE = range(1 << 63)


# --- scopes -----------------------------------------------------------------------------------------------------------


def condition_to_json(condition: Condition) -> dict[str, Any]:
    return {"op": condition.op, "index": index_to_json(condition.index)}


def condition_from_json(value: Any, names: Mapping[str, Any]) -> Condition:
    """The condition on some of these symbols."""
    found = mapping(value, frozenset({"op", "index"}), frozenset({"text"}))
    index = index_from_json(found["index"])
    if not index.symbols() <= names.keys():
        raise expected("a condition on symbols that there are", found["index"])
    return Condition(cast(Relation, one_of(found["op"], _RELATIONS)), index)


def scope_to_json(scope: Scope) -> dict[str, Any]:
    """The symbols of a scope, and what is known of them and was asked of them; not the user's lines."""
    return {
        "symbols": [
            {
                "name": name,
                "hint": hint,
                **({"least": scope.lowest[name]} if name in scope.lowest else {}),
                **({"number": True} if name in scope.numbers else {}),
            }
            for name, hint in scope.hints.items()
            if name not in scope.derived
        ],
        "equal": [[name, index_to_json(index)] for name, index in scope.equal.items()],
        "derived": [[name, symbolic_to_json(number)] for name, number in scope.derived.items()],
        "conditions": [condition_to_json(condition) for condition in scope.conditions],
    }


def scope_from_json(value: Any) -> Scope:
    """A scope with the same symbols, in which the conditions hold for the hints."""
    found, scope = mapping(value, _SCOPE), Scope()
    for each_symbol in items(found["symbols"]):
        symbol = mapping(each_symbol, frozenset({"name", "hint"}), frozenset({"least", "number"}))
        name = symbol_from_json(symbol["name"])
        if name in scope.hints:
            raise expected("symbols with names of their own", name)
        scope.hints[name] = whole(symbol["hint"])
        if "least" in symbol:
            scope.lowest[name] = whole(symbol["least"], range(-(2**63), scope.hints[name] + 1))
        if flag(symbol.get("number", False)):
            scope.numbers.add(name)
    for pair in items(found["derived"]):
        name, number = items(pair, 2)
        made = symbolic_from_json(number, scope)
        if not isinstance(made, SymbolicFloat) or symbol_from_json(name) in scope.hints:
            raise expected("a float with a name of its own", pair)
        raw = made.args[0] if made.function is held else made
        if not isinstance(raw, SymbolicFloat) or scope.derive(raw).symbols() != frozenset((name,)):
            raise expected("floats with the names that they were given in order", pair)
        scope.derived[name] = made
    for pair in items(found["equal"]):
        name, index = items(pair, 2)
        scope.put_equal(_known(name, scope), index_from_json(index))
    scope.conditions.extend(
        each("conditions", found["conditions"], lambda item: condition_from_json(item, scope.hints))
    )
    for number, condition in enumerate(scope.conditions):
        if not _computed(lambda condition=condition: condition.holds(scope.hints), str(condition)):
            raise expected(f"conditions[{number}] to hold for the hints", str(condition))
    return scope


def _known(name: Any, scope: Scope) -> str:
    if text(name) not in scope.hints:
        raise expected("the name of a symbol", name)
    return name
