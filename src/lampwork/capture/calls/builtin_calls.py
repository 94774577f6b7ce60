"""The builtins that need the interpreter: they look at types and attributes, or call back."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork import pristine
from lampwork.capture.calls import torch_calls
from lampwork.capture.calls.deepcopy import deepcopy
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Known, Result, root_of
from lampwork.capture.model.values import CONSTANTS, Generator
from lampwork.capture.semantics.attributes import MISSING, has_attr, load_attr
from lampwork.capture.semantics.iteration import get_iter, next_item
from lampwork.capture.semantics.operands import taken
from lampwork.capture.semantics.protocols import contains, truth
from lampwork.capture.semantics.repr_proxy import legible
from lampwork.capture.semantics.symbolic import SYMBOLS, apply, fixed
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Args = list[Any]
Kwargs = dict[str, Any]
Override = Callable[[Any, Args, Kwargs], Any]


def _all(interp: Interpreter, args: Args) -> list[Any]:
    return [interp.force(a) for a in args]


# --- types and attributes ---------------------------------------------------------------------------------------------


def _guard_class_test(interp: Interpreter, kind: type, cls: Any) -> None:
    """What isinstance and issubclass ask of two classes: the bases of the one, and what the other, an abstract base
    class, has registered and looks for."""
    interp.environment.classes.guard_bases(kind)
    if not isinstance(cls, abc.ABCMeta):
        return
    # Not as a number that may stay open: nothing is computed from it.
    token = Result(Known(abc.get_cache_token, "abc.get_cache_token"))
    interp.guards.add(token, "equals", abc.get_cache_token())
    for name in sorted(cls.__abstractmethods__):
        interp.lookup(kind, name)


def call_isinstance(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    if kwargs:
        raise TypeError("isinstance() takes no keyword arguments")
    value, cls = _all(interp, args)
    _guard_class_test(interp, type(value), cls)
    if type(value) is torch.SymFloat:
        return isinstance(1.0, cls)
    if type(value) is torch.SymInt:
        return isinstance(1, cls)
    if isinstance(cls, tuple):
        return any(call_isinstance(interp, [value, c], {}) for c in cast(tuple[Any, ...], cls))
    hook = _class_hook(interp, cls, "__instancecheck__")
    if hook is not None:
        return type(value) is cls or truth(interp, interp.call(hook, [cls, value], {}))
    if type(value) is Generator:
        return issubclass(types.GeneratorType, cls)
    if type(value) is not TraceTensor:
        if isinstance(cls, type(typing.Protocol)):
            _guard_protocol(interp, value, cast(type, cls))
        return isinstance(value, cls)
    return _tensor_isinstance(interp, value, cls)


def _guard_protocol(interp: Interpreter, value: Any, cls: type) -> None:
    """Guard what `typing` is about to look at: what kind of protocol a class is, and its members in `value`."""
    for name in ("_is_protocol", "_is_runtime_protocol"):
        interp.lookup(cls, name)
    if getattr(cls, "_is_protocol", False):
        for name in cast(Any, typing)._get_protocol_attrs(cls):
            has_attr(interp, value, name)


def _class_hook(interp: Interpreter, cls: Any, name: str) -> types.FunctionType | None:
    """The Python `__instancecheck__` or `__subclasscheck__` of the program's own metaclass; those of the standard
    library and of torch look at types alone."""
    hook = interp.python_method(type(cls), name)
    if hook is None or hook.__module__.partition(".")[0] in ("abc", "typing", "enum", "torch", "types"):
        return None
    return hook


def _tensor_isinstance(interp: Interpreter, value: TraceTensor, cls: Any) -> bool:
    if isinstance(cls, tuple):
        return any(_tensor_isinstance(interp, value, c) for c in cast(tuple[Any, ...], cls))
    if isinstance(cls, types.UnionType):
        return any(_tensor_isinstance(interp, value, c) for c in cls.__args__)
    if type(cls) is type(torch.FloatTensor):
        # torch.FloatTensor and its like are not classes, but descriptions of dtype and device.
        return cls.dtype is value.dtype and value.device.type == ("cuda" if cls.is_cuda else "cpu")
    kind = interp.environment.python_type(value)
    if cls in (torch.nn.Parameter, torch.nn.Buffer):
        _guard_tensor_class(interp, value)
        return kind is cls
    if isinstance(cls, type) and type(cls).__module__ == "torch.nn.parameter":
        return False
    return issubclass(kind, cls)


def _guard_tensor_class(interp: Interpreter, value: Any) -> None:
    """The guard on a tensor has its class too; that it was asked for is what exports have to know."""
    lifted = interp.environment.lifting.of_trace.get(id(value))
    if lifted is not None and not isinstance(root_of(lifted.source), Known):
        interp.guards.add(lifted.source, "type", type(lifted.real))


def call_issubclass(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    kind, cls = _all(interp, args)
    if isinstance(kind, type):
        _guard_class_test(interp, kind, cls)
    if isinstance(cls, tuple):
        return any(call_issubclass(interp, [kind, c], {}) for c in cast(tuple[Any, ...], cls))
    hook = _class_hook(interp, cls, "__subclasscheck__")
    return issubclass(kind, cls) if hook is None else truth(interp, interp.call(hook, [cls, kind], {}))


def call_type(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    values = _all(interp, args)
    if len(values) != 1:
        raise Break("LW110", str(values[0]))
    _guard_tensor_class(interp, values[0])
    return interp.environment.python_type(values[0])


def call_getattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    values = _all(interp, args)
    if len(values) == 2:
        return load_attr(interp, values[0], values[1])
    try:
        return load_attr(interp, values[0], values[1])
    except AttributeError:
        return values[2]


def call_callable(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether the class has `__call__`."""
    value = interp.force(args[0])
    return interp.lookup(type(value), "__call__")[0] is not MISSING


def call_id(interp: Interpreter, args: Args, kwargs: Kwargs) -> int:
    value = interp.force(args[0])
    entry = interp.environment.entry(value)
    if entry is None or not entry.known:
        raise Break("LW103", "id() of an object that differs from call to call")
    return id(interp.environment.original(value))


def call_vars(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if not args:
        raise Break("LW103", "vars()")
    with contextlib.suppress(AttributeError):
        return load_attr(interp, interp.force(args[0]), "__dict__")
    raise TypeError("vars() argument must have __dict__ attribute")


def call_super(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if args or kwargs:
        if len(args) == 1 and not kwargs:
            raise Break("LW103", "super() of a class alone")
        return cast(Any, super)(*_all(interp, args), **kwargs)
    frame = interp.frames[-1]
    cell = frame.cells.get("__class__")
    if cell is None:
        raise RuntimeError("super(): __class__ cell not found")
    first = frame.decoded.code.co_varnames[0]
    receiver = frame.locals.get(first, MISSING)
    if receiver is MISSING:
        receiver = interp.load_cell(frame.cells[first], first)
    cls = interp.load_cell(cell, "__class__")
    return super(cls, interp.force(receiver))


# --- conversions ------------------------------------------------------------------------------------------------------


def _text(interp: Interpreter, value: Any, name: str, native: Callable[[Any], str]) -> str:
    """str(value) or repr(value).

    Raises:
        Break: LW103 if the text has the object's address in it.
    """
    kind = type(value)
    if kind in CONSTANTS or kind is TraceTensor:
        return native(value)
    if name == "__str__" and interp.lookup(kind, "__str__")[1] is object:
        name = "__repr__"
    method, owner = interp.lookup(kind, name)
    if isinstance(method, types.FunctionType):
        return cast(str, taken(name, value, interp.call(method, [value], {})))
    if owner is object and not isinstance(value, type):
        entry = interp.environment.entry(value)
        if entry is None or not entry.known:
            raise Break("LW103", f"the text of a {kind.__name__}, which is its address,")
        return native(value)
    if owner in (BaseException, KeyError):
        given = load_attr(interp, value, "args")
        texts = [cast(str, interp.call(repr, [a], {})) for a in given]
        if name == "__repr__":
            return f"{kind.__name__}({', '.join(texts)})"
        if len(texts) == 1:
            return texts[0] if owner is KeyError else cast(str, interp.call(str, [given[0]], {}))
        return f"({', '.join(texts)})" if texts else ""
    return native(legible(interp, value))


def call_str(interp: Interpreter, args: Args, kwargs: Kwargs) -> str:
    values = _all(interp, args)
    if len(values) != 1:
        return str(*values, **kwargs)
    return _text(interp, values[0], "__str__", str)


def call_repr(interp: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return _text(interp, interp.force(args[0]), "__repr__", repr)


def call_ascii(interp: Interpreter, args: Args, kwargs: Kwargs) -> str:
    return call_repr(interp, args, kwargs).encode("ascii", "backslashreplace").decode("ascii")


def call_number(kind: Callable[..., Any], name: str) -> Override:
    """int() and float()."""

    def convert(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        values = _all(interp, args)
        if len(values) == 1 and type(values[0]) in SYMBOLS:
            if interp.environment.python_type(values[0]) is kind:
                return values[0]
            return apply(float, values[0]) if kind is float else kind(fixed(values[0]))
        if len(values) == 1:
            methods = (interp.python_method(type(values[0]), n) for n in (name, "__index__"))
            method = next((found for found in methods if found is not None), None)
            if method is not None:
                number = interp.call(method, values, {})
                is_number = interp.environment.python_type(number) is kind
                return number if is_number else _checked_number(kind, name, method, number)
        return kind(*values, **kwargs)

    return convert


def _checked_number(kind: Callable[..., Any], name: str, method: types.FunctionType, number: Any) -> Any:
    """What int() or float() makes of what a special method gave.

    Raises:
        Break: LW103 where Python warns or refuses it.
    """
    if method.__name__ == name or type(number) not in (int, torch.SymInt):
        raise Break("LW103", f"{method.__qualname__}() of another type than {name} has")
    return apply(float, number) if type(number) in SYMBOLS else kind(number)


def call_bool(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return truth(interp, interp.force(args[0])) if args else False


def call_not(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return not truth(interp, interp.force(args[0]))


# --- containers -------------------------------------------------------------------------------------------------------


def call_iter(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1:
        return interp.call_python(calls_until, args, {})
    return get_iter(interp, interp.force(args[0]))


def calls_until(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    """iter(function, sentinel). Interpreted, never run as it stands."""
    while True:
        value = function()
        if value == sentinel:
            return
        yield value


def call_next(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    values = _all(interp, args)
    try:
        return next_item(interp, values[0])
    except StopIteration:
        if len(values) == 1:
            raise
        return values[1]


def call_contains(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    container, item = _all(interp, args)
    return contains(interp, item, container)


def call_deepcopy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return deepcopy(interp, interp.force(args[0]), {})


def call_exc_info(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """sys.exc_info() of the interpreted program.

    Raises:
        Break: LW104, since tracebacks are eager's, and a caller of the root frame may be handling an exception.
    """
    error = _handled(interp, "sys.exc_info()")
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def call_exception(interp: Interpreter, args: Args, kwargs: Kwargs) -> BaseException | None:
    """sys.exception() of the interpreted program.

    Raises:
        Break: LW104, as for `call_exc_info`.
    """
    return _handled(interp, "sys.exception()")


def _handled(interp: Interpreter, question: str) -> BaseException | None:
    error = interp.handled()
    # An ExitStack only sets contexts of exceptions with it.
    if interp.frames[-1].globals.get("__name__") != "contextlib":
        raise Break("LW104", question)
    return error


# --- torch ------------------------------------------------------------------------------------------------------------


def call_is_tensor(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return type(interp.force(args[0])) is TraceTensor


_CONTEXT_METHODS = (
    "save_for_backward",
    "save_for_forward",
    "mark_dirty",
    "mark_non_differentiable",
    "set_materialize_grads",
)
_CONTEXTS_OWN = {name: getattr(torch.autograd.function.FunctionCtx, name) for name in _CONTEXT_METHODS}


class FunctionContext:
    """The `ctx` of a custom autograd function whose backward is not needed: most of what it is told, it forgets."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.dirty: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        pass

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def call_autograd_function(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """Function.apply(...): its forward, where nothing requires grad.

    Raises:
        Break: LW114 where its backward may be needed.
    """
    cls, *values = _all(interp, args)
    if pristine.is_grad_enabled() and any(type(v) is TraceTensor and v.requires_grad for v in values):
        raise Break("LW114", cls.__qualname__)
    forward = load_attr(interp, cls, "forward")
    made = load_attr(interp, cls, "_backward_cls")
    for name, own in _CONTEXTS_OWN.items():
        if interp.lookup(made, name)[0] is not own:
            raise Break("LW114", f"{cls.__qualname__}, whose contexts have a {name} of their own,")
    ctx = FunctionContext(tuple(False for _ in values))
    mode = pristine.is_grad_enabled()
    torch._C._set_grad_enabled(False)  # as in eager
    try:
        if interp.lookup(cls, "setup_context")[1] is torch.autograd.function._SingleLevelFunction:
            result = interp.call(forward, [ctx, *values], {})
        else:
            result = interp.call(forward, values, {})
            interp.call(load_attr(interp, cls, "setup_context"), [ctx, tuple(values), result], {})
    finally:
        torch._C._set_grad_enabled(mode)
    for tensor in ctx.dirty:
        if type(tensor) is TraceTensor and tensor.base.written:
            tensor.base.versions += 1  # once for the write, once for having said so
    if type(result) is tuple:
        return tuple([_not_an_argument(item, values, ctx) for item in cast("tuple[Any, ...]", result)])
    return _not_an_argument(result, values, ctx)


def _not_an_argument(result: Any, values: list[Any], ctx: FunctionContext) -> Any:
    """An argument that a function returns comes back as another tensor on the same memory, unless it was written. Of
    one that requires grad all the same, as a leaf in a no_grad block, the result is cut off."""
    if type(result) is not TraceTensor or not any(result is value for value in values):
        return result
    if any(result is tensor for tensor in ctx.dirty):
        return result.detach() if result.requires_grad else result
    return result.view_as(result)


def call_context_slot(name: str) -> Override:
    """torch.set_grad_enabled's own __enter__ and __exit__."""

    def slot(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        torch_calls.guard_context(interp, type(args[0]))
        return interp.contexts.enter(args[0]) if name == "__enter__" else interp.contexts.leave(*args)

    return slot


def call_state(function: Callable[[], Any]) -> Override:
    """A function without arguments that says how the process or thread is set up: asked again on every call."""
    return lambda interp, args, kwargs: interp.environment.state(function, function.__qualname__)


def answer(value: Any) -> Override:
    """A function with one answer while compiling."""
    return lambda interp, args, kwargs: value


def call_plain(function: Callable[..., Any]) -> Override:
    """Run natively on forced arguments."""
    return lambda interp, args, kwargs: function(*_all(interp, args), **kwargs)


def call_inside(function: Callable[..., Any]) -> Override:
    """Run `function(interp, *values)` on forced arguments: what the call does in the region."""
    return lambda interp, args, kwargs: function(interp, *_all(interp, args))


def call_known(function: Callable[..., Any]) -> Override:
    """A function that gives the same object on every call."""
    return lambda interp, args, kwargs: interp.environment.known(
        function(*_all(interp, args), **kwargs), function.__qualname__
    )


def call_fields(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """dataclasses.fields()."""
    (value,) = _all(interp, args)
    kind = value if isinstance(value, type) else interp.environment.python_type(value)
    found, _ = interp.lookup(kind, "__dataclass_fields__")
    if type(found) is not dict:
        return dataclasses.fields(cast(Any, kind))  # raises
    fields = interp.environment.known(found, f"{kind.__name__}.__dataclass_fields__")
    plain = cast(Any, dataclasses)._FIELD
    return tuple([f for f in fields.values() if load_attr(interp, f, "_field_type") is plain])


def call_is_dataclass(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """dataclasses.is_dataclass()."""
    (value,) = _all(interp, args)
    kind = value if isinstance(value, type) else interp.environment.python_type(value)
    interp.lookup(kind, "__dataclass_fields__")
    return dataclasses.is_dataclass(kind)
