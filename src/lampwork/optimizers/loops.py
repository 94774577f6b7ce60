"""`lampwork.compile(optimizer.step)` for a step that is a loop over parameters, torch's or anybody's.

Python runs the step as it is written, under a `Deferral`: so whatever it reads, branches on or raises is eager's, and
pointwise operators end up in few kernels. A function mode does not see native code that reads memory by itself, such as
a collective or an extension. Therefore each call in the step asks first (`ask`): what is not known to work by operators
of torch is called after what is pending, with the mode off.
"""

from __future__ import annotations

import builtins
import collections
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn, optim

from lampwork import logs
from lampwork.capture.breaks.assemble import is_editable
from lampwork.capture.breaks.compiled_callees import asking_code
from lampwork.capture.state.contexts import surroundings
from lampwork.codegen.target import Target
from lampwork.compiled.stance import current_stance
from lampwork.optimizers.deferral import Deferral
from lampwork.optimizers.update import updater_for
from lampwork.standard import functools, math

LEAST_ELEMENTS = 16384
"""Elements of a parameter, on average, from which it pays to put operators off."""

_torch: Any = torch
_ASYNCHRONOUS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NESTED = frozenset(["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"])

_TENSORS = (Tensor, nn.Parameter)
_CALL_BACK = frozenset([map, filter, functools.partial, functools.reduce, exec, eval])
"""What they call is called by native code, perhaps later."""
_KNOWN_OWNERS = frozenset(
    [*_TENSORS, list, dict, tuple, set, frozenset, str, float, int, collections.defaultdict]
)
"""Methods of these call nothing but special methods."""
_KNOWN_TYPES = frozenset(
    [
        *(each for each in vars(builtins).values() if isinstance(each, type) and each not in _CALL_BACK),
        *(collections.defaultdict, collections.OrderedDict, torch.Size),
        *(torch.no_grad, torch.enable_grad, torch.set_grad_enabled),
    ]
)
_NATIVE: list[Any] = [*vars(builtins).values(), *vars(math).values()]
_OPERATORS: list[Any] = [
    getattr(torch, name) for name in dir(_torch._C._VariableFunctions) if hasattr(torch, name)
]
_KNOWN_FUNCTIONS = frozenset(
    [
        *(each for each in (*_NATIVE, *_OPERATORS) if isinstance(each, BuiltinFunctionType)),
        *(torch.is_tensor, torch.is_grad_enabled, torch.compiler.is_compiling, warnings.warn),
    ]
).difference(_CALL_BACK, [__import__, compile, input, breakpoint, torch.from_numpy])
_LIBRARIES = sys.stdlib_module_names | {"torch", "lampwork", "numpy"}

StandIn = Callable[[FunctionType], Callable[..., Any] | None]


class _Thread(threading.local):
    """What code of this thread runs under. stand_in: gives what is called in place of the step of a base class."""

    deferral: Deferral | None = None
    stand_in: StandIn | None = None


_thread = _Thread()
_asking: dict[int, tuple[CodeType, CodeType | None]] = {}
"""By id of a code object, that and its copy that asks, or None where there is none."""


def deferring(step: FunctionType, target: Target, stand_in: StandIn) -> Callable[..., Any]:
    """A step of an optimizer, by kernels where that pays."""
    updater = updater_for(target)
    inner = cast(Any, step).__wrapped__ if hasattr(step, "hooked") else step
    left: weakref.WeakSet[optim.Optimizer] = weakref.WeakSet()
    known = functools.cache(stand_in)

    def deferred(optimizer: optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        deferral = Deferral(updater)
        around = functools.partial(_around, deferral)
        args = tuple([around(arg) for arg in args])
        kwargs = {key: around(arg) for key, arg in kwargs.items()}
        before = _thread.deferral, _thread.stand_in
        _thread.deferral, _thread.stand_in = deferral, known
        try:
            with deferral:
                result = ask(inner)(optimizer, *args, **kwargs)
        finally:
            _thread.deferral, _thread.stand_in = before
        if deferral.saved < 0:
            leave(optimizer, "it looks at tensors too often, or at too small ones")
        return result

    def leave(optimizer: optim.Optimizer, why: str) -> None:
        left.add(optimizer)
        rule = "a rule of lampwork.optimizers.update has kernels of its own"
        logs.emit("breaks", f"{step.__qualname__} stays in plain Python: {why}; {rule}")

    whole = optim.Optimizer.profile_hook_step(deferred) if inner is not step else deferred

    @functools.wraps(step)
    def run(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if optimizer in left or not _is_plain():
            return step(optimizer, *args, **kwargs)
        if not _pays(optimizer):
            leave(optimizer, "its parameters are small, or not on the CPU")
            return step(optimizer, *args, **kwargs)
        return whole(optimizer, *args, **kwargs)

    return run


def _is_plain() -> bool:
    """Whether nothing watches operators, and compiled code is to run."""
    return current_stance() != "force_eager" and surroundings() == "plain"


def _pays(optimizer: optim.Optimizer) -> bool:
    """Whether operators on the parameters take long, next to noting them."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not params or params[0].device.type != "cpu":
        return False
    return sum([param.numel() for param in params]) >= LEAST_ELEMENTS * len(params)


def _around(deferral: Deferral, arg: Any) -> Any:
    """An argument of a step: a closure is called with nothing pending, and the mode off."""
    if isinstance(arg, Tensor) or not callable(arg):
        return arg
    return functools.partial(_outside, deferral, arg)


def _outside(deferral: Deferral, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _thread.deferral = None
    try:
        return deferral.outside(function, *args, **kwargs)
    finally:
        _thread.deferral = deferral


def ask(callee: Any) -> Any:
    """What is called in place of `callee`, by code that is part of a step."""
    deferral = _thread.deferral
    if deferral is None:
        return callee
    kind = type(callee)
    if kind is BuiltinFunctionType:
        if type(callee.__self__) in _KNOWN_OWNERS or callee in _KNOWN_FUNCTIONS:
            return callee
    elif kind is MethodType:
        if type(callee.__self__) in _TENSORS:
            return callee
        function = callee.__func__
        if type(function) is FunctionType:
            if hasattr(function, "hooked") and _thread.stand_in is not None:
                step = _thread.stand_in(function)
                return functools.partial(_outside, deferral, step or function, callee.__self__)
            function = _of_step(function)
            if function is not None:
                return MethodType(function, callee.__self__)
    elif kind is FunctionType:
        function = _of_step(callee)
        if function is not None:
            return function
    elif (isinstance(callee, type) and (callee in _KNOWN_TYPES or issubclass(callee, BaseException))) or (
        kind is functools.partial and callee.func is _outside
    ):
        return callee
    if kind in (type, BuiltinFunctionType) and callee in _CALL_BACK:
        deferral.stop()
        return callee
    return functools.partial(_outside, deferral, callee)


def _of_step(function: FunctionType) -> FunctionType | None:
    """A function of Python as part of a step, whose calls ask; None where it is not known what it does."""
    if function in _KNOWN_FUNCTIONS:
        return function
    module = function.__globals__.get("__name__") or ""
    if "func" in function.__code__.co_freevars and module in (
        "torch.utils._contextlib",
        "torch.optim.optimizer",
    ):
        return None if hasattr(function, "hooked") else _around_its_function(function)
    if module.startswith("torch.optim."):
        return function
    if module.partition(".")[0] in _LIBRARIES:
        return None
    code = _asking_version(function.__code__)
    if code is None:
        return None
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _around_its_function(wrapper: FunctionType) -> FunctionType | None:
    """A function that torch has wrapped, such as by no_grad, with what it wraps as part of a step."""
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    cells["func"] = CellType(functools.partial(_asked_call, cells["func"].cell_contents))
    return FunctionType(
        wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, tuple(cells.values())
    )


def _asked_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return ask(function)(*args, **kwargs)


def _asking_version(code: CodeType) -> CodeType | None:
    """The code with `ask` before each call, also in comprehensions."""
    known = _asking.get(id(code))
    if known is None:
        made = None
        if is_editable(code) and not code.co_flags & _ASYNCHRONOUS:
            constants = [
                (_asking_version(each) or each)
                if isinstance(each, CodeType) and each.co_name in _NESTED
                else each
                for each in code.co_consts
            ]
            made = asking_code(code.replace(co_consts=tuple(constants)), ask)
        known = _asking[id(code)] = (code, made)
    return known[1]
