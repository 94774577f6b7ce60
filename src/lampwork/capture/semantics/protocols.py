"""The operators of Python on the values of a region: natively on native types, else by dunder methods."""

from __future__ import annotations

import collections
import decimal
import enum
import types
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import DictItem, Known
from lampwork.capture.model.values import CONSTANTS, PLAIN, is_constant
from lampwork.capture.semantics.attributes import MISSING, load_attr
from lampwork.capture.semantics.dtensors import call_distributed
from lampwork.capture.semantics.iteration import (
    class_of,
    is_iterated_by_index,
    iterate,
    length,
    native_iterable,
    native_operand,
    native_view,
    special_method,
)
from lampwork.capture.semantics.keys import check_key, guard_distinct, is_same
from lampwork.capture.semantics.repr_proxy import repr_proxy
from lampwork.capture.semantics.symbolic import numbers, operate
from lampwork.capture.state.enumerations import guard_enumeration
from lampwork.capture.state.guards import mapping_behind
from lampwork.graph.distributed import is_dtensor
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import operator

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Binary = Callable[[Any, Any], Any]

_NESTED = (list, tuple, dict)
_SEQUENCES: tuple[type[Any], ...] = (list, tuple, collections.deque)
_HASHED = (dict, set, frozenset, type({}.keys()))

BINARY: tuple[tuple[str, Binary], ...] = (
    ("add", operator.add),
    ("and", operator.and_),
    ("floordiv", operator.floordiv),
    ("lshift", operator.lshift),
    ("matmul", operator.matmul),
    ("mul", operator.mul),
    ("mod", operator.mod),
    ("or", operator.or_),
    ("pow", operator.pow),
    ("rshift", operator.rshift),
    ("sub", operator.sub),
    ("truediv", operator.truediv),
    ("xor", operator.xor),
    ("iadd", operator.iadd),
    ("iand", operator.iand),
    ("ifloordiv", operator.ifloordiv),
    ("ilshift", operator.ilshift),
    ("imatmul", operator.imatmul),
    ("imul", operator.imul),
    ("imod", operator.imod),
    ("ior", operator.ior),
    ("ipow", operator.ipow),
    ("irshift", operator.irshift),
    ("isub", operator.isub),
    ("itruediv", operator.itruediv),
    ("ixor", operator.ixor),
)
_IADD = 13
# Of the first 13 operators, as error messages name them; the others are their in-place forms.
SYMBOLS = ("+", "&", "//", "<<", "@", "*", "%", "|", "** or pow()", ">>", "-", "/", "^")
COMPARE: dict[str, tuple[str, str, Binary]] = {
    "<": ("__lt__", "__gt__", operator.lt),
    "<=": ("__le__", "__ge__", operator.le),
    "==": ("__eq__", "__eq__", operator.eq),
    "!=": ("__ne__", "__ne__", operator.ne),
    ">": ("__gt__", "__lt__", operator.gt),
    ">=": ("__ge__", "__le__", operator.ge),
}


def binary(interp: Interpreter, number: int, left: Any, right: Any) -> Any:
    """The binary operator `number` of BINARY_OP."""
    name, function = BINARY[number]
    symbol = SYMBOLS[number % 13] + ("=" if number >= 13 else "")
    if type(left) is str and symbol in ("%", "%="):
        return left % repr_proxy(interp, right)
    if is_dtensor(type(left)) or is_dtensor(type(right)):
        return call_distributed(interp, function, [left, right], {})
    own = BINARY[number % 13][0]
    replaced = TraceTensor in (type(left), type(right)) and (
        (number >= 13 and special_method(interp, left, f"__{name}__") is not None)
        or _is_replaced(interp, f"__{own}__", f"__r{own}__", left, right)
    )
    if type(left) in PLAIN and type(right) in PLAIN and not replaced:
        return operate(function, left, right)
    if number >= 13:
        in_place, _ = interp.lookup(class_of(interp, left), f"__{name}__")
        if isinstance(in_place, types.FunctionType):
            result = interp.call(in_place, [left, right], {})
            if result is not NotImplemented:
                return result
        elif in_place is not MISSING:
            _may_write(interp, left)
            if isinstance(left, dict):
                return interp.call(cast(Any, left).__ior__, [right], {})
            walks = isinstance(left, (list, collections.deque)) and number == _IADD
            given = native_iterable(interp, right) if walks else native_operand(interp, right, name)
            return function(*numbers(left, given))
        name, plain_function = BINARY[number - 13]
        # Of a class without a method of its own in place, the native operator in place does the same, and says so.
        function = function if in_place is MISSING else plain_function
    return two_sided(interp, f"__{name}__", f"__r{name}__", function, left, right, symbol)


def compare(interp: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`."""
    name, reflected, function = COMPARE[symbol]
    if is_dtensor(type(left)) or is_dtensor(type(right)):
        return call_distributed(interp, function, [left, right], {})
    replaced = TraceTensor in (type(left), type(right)) and _is_replaced(interp, name, reflected, left, right)
    if type(left) in PLAIN and type(right) in PLAIN and not replaced:
        if (
            type(left) is type(right)
            and type(left) in _NESTED
            and not (_inert(interp, left) and _inert(interp, right))
        ):
            return _compare_items(interp, symbol, left, right)
        return operate(function, left, right)
    return two_sided(interp, name, reflected, function, left, right, symbol)


def _is_replaced(interp: Interpreter, name: str, reflected: str, left: Any, right: Any) -> bool:
    """Whether the program put a method of its own in the place of one of tensors that an operator asks for."""
    # Both are asked, and so guarded, whatever the first is.
    asked = [
        special_method(interp, v, n) for v, n in ((left, name), (right, reflected)) if type(v) is TraceTensor
    ]
    return any(method is not None for method in asked)


def equal(interp: Interpreter, left: Any, right: Any) -> bool:
    """bool(left == right)."""
    return truth(interp, compare(interp, "==", left, right))


def _inert(interp: Interpreter, value: Any) -> bool:
    """Whether native code may compare a value: there are no Python methods in it."""
    if type(value) is dict:
        return all(_inert(interp, item) for item in cast("dict[Any, Any]", value).values())
    if type(value) in (list, tuple):
        return all(_inert(interp, item) for item in value)
    # What is equal only to itself must be told from the others on later calls, too.
    return type(value) in PLAIN or is_constant(value)


def plain(container: Any) -> Any:
    """The items of a sequence or dict as a list or dict, whatever its class makes of iteration."""
    if isinstance(container, dict):
        return dict(dict.items(cast("dict[Any, Any]", container)))
    base = next(base for base in _SEQUENCES if isinstance(container, base))
    return list(base.__iter__(container))


def _are_alike(left: Any, right: Any) -> bool:
    """Whether native code compares two objects item by item."""
    if isinstance(left, collections.OrderedDict) and isinstance(right, collections.OrderedDict):
        ordered = collections.OrderedDict
        return list(ordered.__iter__(left)) == list(ordered.__iter__(right))  # else they differ anyway
    return any(isinstance(left, base) and isinstance(right, base) for base in (*_SEQUENCES, dict))


def _compare_items(interp: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right` of two lists, two tuples or two dicts."""
    if symbol in ("==", "!="):
        return _same_items(interp, left, right) == (symbol == "==")
    if type(left) is dict:
        return COMPARE[symbol][2](left, right)  # raises
    for a, b in zip(left, right, strict=False):
        if not is_same(interp, a, b) and not equal(interp, a, b):
            return compare(interp, symbol, a, b)
    return COMPARE[symbol][2](len(left), len(right))


def _same_items(interp: Interpreter, left: Any, right: Any) -> bool:
    if len(left) != len(right):
        return False
    if type(left) is not dict:
        return all(is_same(interp, a, b) or equal(interp, a, b) for a, b in zip(left, right, strict=True))
    return all(
        contains(interp, key, right) and (is_same(interp, a, right[key]) or equal(interp, a, right[key]))
        for key, a in left.items()
    )


def find(interp: Interpreter, items: Iterable[Any], value: Any) -> int:
    """The position of the first item that is `value` or equal to it; -1 if there is none."""
    for i, item in enumerate(items):
        if is_same(interp, item, value) or equal(interp, item, value):
            return i
    return -1


def two_sided(
    interp: Interpreter, name: str, reflected: str, function: Binary, left: Any, right: Any, symbol: str
) -> Any:
    """left.name(right), else right.reflected(left), the reflected one first if right's class is a subclass that
    overrides it, and not at all for two of one class unless they are compared; natively if neither is Python."""
    kind, other_kind = class_of(interp, left), class_of(interp, right)
    mine = _operator_method(interp, kind, name)
    theirs = _operator_method(interp, other_kind, reflected)
    if mine is None and theirs is None:
        left, right = numbers(native_operand(interp, left, name), native_operand(interp, right, reflected))
        if symbol in ("==", "!="):
            guard_distinct(interp, left, right)
        if symbol in COMPARE and _are_alike(left, right):
            items, others = plain(left), plain(right)
            if not (_inert(interp, items) and _inert(interp, others)):
                return _compare_items(interp, symbol, items, others)
        if function in (operator.mul, operator.imul):
            left, right = _native_index(interp, left), _native_index(interp, right)
        check_decimals(symbol, left, right)
        return function(left, right)
    attempts = [(mine, left, right), (theirs, right, left)]
    compared = symbol in COMPARE
    if other_kind is kind:
        attempts = attempts if compared else attempts[:1]
    elif issubclass(other_kind, kind) and theirs is not None:
        overridden = interp.lookup(kind, reflected)[0] is not interp.lookup(other_kind, reflected)[0]
        if compared or overridden:
            attempts.reverse()
    for method, receiver, other in attempts:
        if method is not None:
            result = interp.call(method, [receiver, other], {})
            if result is not NotImplemented:
                return result
        else:
            asked = (kind, name) if receiver is left else (other_kind, reflected)
            native, _ = interp.lookup(*asked)
            if native is not MISSING:
                held = native_operand(interp, receiver, asked[1])
                result = native(*numbers(held, other))
                if result is not NotImplemented:
                    return result
    if function in (operator.eq, operator.ne):
        guard_distinct(interp, left, right)
        return (left is right) == (function is operator.eq)
    names = f"{kind.__name__!r} and {other_kind.__name__!r}"
    if compared:
        raise TypeError(f"{symbol!r} not supported between instances of {names}")
    raise TypeError(f"unsupported operand type(s) for {symbol}: {names}")


def check_decimals(symbol: str, *operands: Any) -> None:
    """
    Raises:
        Break: LW104: the context of the thread says what comes of decimals, and notes how it went.
    """
    if not any(isinstance(value, decimal.Decimal) for value in operands):
        return
    if symbol not in COMPARE or any(isinstance(value, float) for value in operands):
        raise Break("LW104", f"{symbol} of decimals, by the context of the thread,")


def _operator_method(interp: Interpreter, kind: type, name: str) -> types.FunctionType | None:
    """The Python function behind an operator; `__ne__` of object is Python where the `__eq__` that it asks is."""
    method = interp.python_method(kind, name)
    if method is not None or name != "__ne__" or interp.lookup(kind, name)[1] is not object:
        return method
    return None if interp.python_method(kind, "__eq__") is None else differs


def differs(receiver: Any, other: Any) -> Any:
    """object.__ne__(receiver, other). Interpreted, never run as it stands."""
    result = type(receiver).__eq__(receiver, other)  # pyright: ignore[reportCallIssue]
    return result if result is NotImplemented else not result


def truth(interp: Interpreter, value: Any) -> bool:
    """bool(value).

    Raises:
        Break: LW101 for a tensor that depends on more than literals.
    """
    kind = type(value)
    if is_dtensor(kind):
        raise Break("LW101")
    method = special_method(interp, value, "__bool__") if kind is TraceTensor else None
    if kind is TraceTensor and method is None:
        if value.known is None:
            raise Break("LW101")
        return bool(value)
    if kind in PLAIN and kind is not TraceTensor:
        return bool(value)
    method = method or interp.python_method(kind, "__bool__")
    if method is not None:
        result = interp.call(method, [value], {})
        if not isinstance(result, bool):
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result
    if interp.lookup(kind, "__bool__")[0] is MISSING and interp.python_method(kind, "__len__") is not None:
        return bool(length(interp, value))
    return bool(value)


def get_item(interp: Interpreter, container: Any, key: Any) -> Any:
    """container[key]."""
    kind = class_of(interp, container)
    if is_dtensor(kind):
        return call_distributed(interp, operator.getitem, [container, key], {})
    if type(container) in PLAIN and (
        type(container) is not TraceTensor or interp.python_method(kind, "__getitem__") is None
    ):
        return container[_native_key(interp, container, key)]
    if isinstance(container, type):
        return _class_item(interp, cast(Any, container), key)
    method, _ = interp.lookup(kind, "__getitem__")
    if isinstance(method, types.FunctionType):
        return interp.call(method, [container, key], {})
    if isinstance(container, dict):
        missing = interp.python_method(kind, "__missing__")
        view = native_view(interp, container)
        check_key(interp, key, view)
        if missing is not None and key not in view:
            return interp.call(missing, [container, key], {})
        if missing is None and isinstance(container, collections.defaultdict) and key not in view:
            return _make_default(interp, cast(Any, container), key)
        return dict.__getitem__(view, key) if missing is not None else view[key]
    if kind is types.MappingProxyType:
        return _proxied_item(interp, container, key)
    return native_view(interp, container)[_native_key(interp, container, key)]


def _class_item(interp: Interpreter, cls: Any, key: Any) -> Any:
    """cls[key]: what the metaclass makes of it, else `__class_getitem__`, interpreted unless they are Python's own."""
    method, owner = interp.lookup(type(cls), "__getitem__")
    if owner is enum.EnumType:
        guard_enumeration(interp.environment, cls)
        return cls[key]
    if isinstance(method, types.FunctionType):
        return interp.call(method, [cls, key], {})
    maker, owner = interp.lookup(cls, "__class_getitem__")
    if isinstance(maker, classmethod) and owner is not typing.Generic:
        return interp.call(load_attr(interp, cls, "__class_getitem__"), [key], {})
    for parameter in cast("tuple[Any, ...]", key) if type(key) is tuple else (key,):
        if interp.environment.entry(parameter) is not None:
            interp.environment.register(parameter)
    return interp.environment.known(cls[key], f"{cls.__name__}[...]")


def _proxied_item(interp: Interpreter, proxy: Any, key: Any) -> Any:
    """proxy[key] of a view of an outside dict, or of a class's namespace: one item, guarded alone."""
    table = mapping_behind(proxy)
    environment = interp.environment
    outside = environment.entry(proxy) is not None or id(table) in environment.entries
    if (
        not outside
        or id(table) in environment.shadows.of_original
        or type(table) is not dict
        or type(key) not in CONSTANTS
    ):
        return get_item(interp, interp.environment.behind(proxy), key)
    source = Known(table, "mapping proxy")
    interp.guards.version(table, source.name)
    if key not in table:
        interp.guards.add(source, "missing_key", key, slow=True)
        raise KeyError(key)
    return interp.environment.read(table[key], DictItem(source, key), f"item {key!r}", slow=True)


def found_behind(interp: Interpreter, proxy: Any, key: Any, default: Any) -> Any:
    """proxy.get(key, default)."""
    try:
        return _proxied_item(interp, proxy, key)
    except KeyError:
        return default


def _make_default(interp: Interpreter, table: collections.defaultdict[Any, Any], key: Any) -> Any:
    """What collections.defaultdict puts in where a key is missing."""
    factory = load_attr(interp, table, "default_factory")
    if factory is None:
        raise KeyError(key)
    value = interp.call(factory, [], {})
    set_item(interp, table, key, value)
    return value


def _native_key(interp: Interpreter, container: Any, key: Any) -> Any:
    """A key or index as native code may have it."""
    if isinstance(container, dict):
        check_key(interp, key, cast("dict[Any, Any]", container))
        return key
    return _native_index(interp, key)


def _native_index(interp: Interpreter, key: Any) -> Any:
    """An index, slice or tuple of them, with what `__index__` of Python classes gives in their place."""
    kind = type(key)
    if kind is slice:
        parts = (key.start, key.stop, key.step)
        if all(type(part) in PLAIN for part in parts):
            return key
        return slice(*(_native_index(interp, part) for part in parts))
    if kind is tuple:
        items = [_native_index(interp, item) for item in key]
        return key if all(new is old for new, old in zip(items, key, strict=True)) else tuple(items)
    if kind not in PLAIN and (method := interp.python_method(kind, "__index__")) is not None:
        return interp.call(method, [key], {})
    return key


def set_item(interp: Interpreter, container: Any, key: Any, value: Any) -> None:
    """container[key] = value."""
    method = special_method(interp, container, "__setitem__")
    if method is not None:
        interp.call(method, [container, key, value], {})
        return
    if type(container) is TraceTensor:
        container[key] = value
        return
    _may_write(interp, container)
    container[_native_key(interp, container, key)] = value


def delete_item(interp: Interpreter, container: Any, key: Any) -> None:
    """del container[key]."""
    method = special_method(interp, container, "__delitem__")
    if method is not None:
        interp.call(method, [container, key], {})
        return
    _may_write(interp, container)
    del container[_native_key(interp, container, key)]


def contains(interp: Interpreter, item: Any, container: Any) -> bool:
    """item in container."""
    kind = type(container)
    if kind is types.MappingProxyType:
        return found_behind(interp, container, item, MISSING) is not MISSING
    if kind not in PLAIN:
        method = interp.python_method(kind, "__contains__")
        if method is not None:
            return truth(interp, interp.call(method, [container, item], {}))
        walks = interp.python_method(kind, "__iter__") is not None or is_iterated_by_index(interp, kind)
        if walks and interp.lookup(kind, "__contains__")[0] is MISSING:
            return find(interp, iterate(interp, container), item) >= 0
        container = native_view(interp, container)
    if isinstance(container, _HASHED):
        check_key(interp, item, container)
    elif isinstance(container, _SEQUENCES):
        items = plain(container)
        if not (_inert(interp, items) and _inert(interp, item)):
            return find(interp, items, item) >= 0
    return item in container


def _may_write(interp: Interpreter, container: Any) -> None:
    if (
        interp.environment.entry(container) is not None
        and id(container) not in interp.environment.shadows.of_copy
    ):
        raise Break("LW111", f"an outside {type(container).__name__} is written to")
