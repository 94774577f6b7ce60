"""Functions that are left to plain Python while what they call is compiled: a copy of the code that asks before calls.

before::

    y = self.layer(x)

after::

    y = through(self.layer)(x)

`through` gives the compiled version of a function or module, and everything else back as it is.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.breaks.assemble import ALWAYS_MAPPING, NULL_ABOVE, is_editable
from lampwork.capture.breaks.resume import Resume
from lampwork.capture.calls import torch_calls
from lampwork.capture.model.values import StandIn
from lampwork.installed import needed
from lampwork.standard import functools

if TYPE_CHECKING:
    import bytecode
else:
    bytecode = needed("bytecode", "to compile what a function calls behind a graph break")

_ASYNCHRONOUS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What may load the function of a call without arguments.
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "LOAD_SUPER_ATTR"})
# What comes before a call's arguments are taken, and how a function with one argument is called.
_BEFORE_CALL = "PRECALL" if sys.version_info < (3, 12) else "CALL"
_CALL_ONE: list[tuple[Any, ...]] = (
    [("PRECALL", 1), ("CALL", 1)] if sys.version_info < (3, 12) else [("CALL", 1)]
)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)

# What nn.Module does when nobody has patched it.
_CALL, _CALL_IMPL = (vars(torch.nn.Module).get(name) for name in ("__call__", "_call_impl"))

Through = Callable[[Any], Any]


def through(
    compile_function: Callable[[Callable[..., Any]], Callable[..., Any]],
    callee: Any,
    stand_in: StandIn | None = None,
) -> Any:
    """The compiled version of what a function in plain Python calls, or what stands in for it; other callees as they
    are."""
    if type(callee) is types.FunctionType:
        if _is_worth_compiling(callee):
            return compile_function(callee)
        return (stand_in and stand_in(callee)) or callee
    if type(callee) is types.MethodType:
        function = callee.__func__
        if type(function) is not types.FunctionType:
            return callee
        found = through(compile_function, function, stand_in)
        return callee if found is function else types.MethodType(found, callee.__self__)
    if isinstance(callee, torch.nn.Module) and "_lampwork_original" not in vars(callee):
        return compile_function(callee)
    return callee


def _is_worth_compiling(function: types.FunctionType) -> bool:
    """Whether it may do tensor work: a function of the program or of a library, there before the call."""
    module = function.__module__ or ""
    return not (
        torch_calls.is_only_of_torch(function)
        or module.partition(".")[0] in sys.stdlib_module_names | {"lampwork", "numpy"}
        or function.__code__.co_flags & _ASYNCHRONOUS
        or "<locals>" in function.__qualname__
        or function.__dict__.get("_torchdynamo_disable")
    )


@dataclass(slots=True)
class CompiledCallees:
    """What is called in place of a function that is refused. `made`: the functions in it, each with the one that it
    was made of and that one's code. `choose`: gives what to call this time, in place of `call`."""

    call: Callable[..., Any]
    made: list[tuple[types.FunctionType, types.FunctionType, types.CodeType]] = field(
        default_factory=list[tuple[types.FunctionType, types.FunctionType, types.CodeType]]
    )
    choose: Callable[[], Callable[..., Any]] | None = None

    def target(self) -> Callable[..., Any]:
        """What to call this time."""
        return self.call if self.choose is None else self.choose()

    def follow(self) -> bool:
        """Take over the defaults that the functions have now; false if one has other code."""
        for made, function, code in self.made:
            if function.__code__ is not code:
                return False
            if made.__defaults__ is not function.__defaults__:
                made.__defaults__ = function.__defaults__
            if made.__kwdefaults__ is not function.__kwdefaults__:
                made.__kwdefaults__ = function.__kwdefaults__
        return True


def compiled_callees(fn: Callable[..., Any], ask: Through) -> CompiledCallees:
    """`fn` with callees that `ask` has replaced; as it is where its code cannot be had or rewritten."""
    if isinstance(fn, Resume):
        fn.rewrite(functools.partial(asking_code, ask=ask))
        return CompiledCallees(fn)
    if isinstance(fn, types.MethodType):
        inner = compiled_callees(fn.__func__, ask)
        return (
            CompiledCallees(types.MethodType(inner.call, fn.__self__), inner.made)
            if inner.made
            else CompiledCallees(fn)
        )
    if isinstance(fn, torch.nn.Module):
        return _of_module(fn, ask)
    if type(fn) is not types.FunctionType or not is_editable(fn.__code__):
        return CompiledCallees(fn)
    code = fn.__code__
    made = types.FunctionType(
        asking_code(code, ask), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    made.__kwdefaults__ = fn.__kwdefaults__
    return CompiledCallees(functools.update_wrapper(made, fn), [(made, fn, code)])


def _of_module(module: torch.nn.Module, ask: Through) -> CompiledCallees:
    """The module's forward. Each call looks for hooks and patches: with any, the module itself is called."""
    forward = cast(Any, module).forward
    inner = compiled_callees(forward, ask) if isinstance(forward, types.MethodType) else None
    if inner is None or not inner.made:
        return CompiledCallees(module)
    function = inner.made[0][0]
    common = cast(Any, torch.nn.modules.module)

    def choose() -> Callable[..., Any]:
        hooked = any(getattr(module, name) for name in _HOOKS) or any(
            getattr(common, f"_global{name}") for name in _HOOKS
        )
        kind = type(module)
        patched = kind.__call__ is not _CALL or getattr(kind, "_call_impl", None) is not _CALL_IMPL
        changed = hooked or patched or cast(Any, module).forward != forward
        return module if changed else types.MethodType(function, module)

    return CompiledCallees(module, inner.made, choose)


def asking_code(code: types.CodeType, ask: Through) -> types.CodeType:
    """The code with `ask(callee)` in place of each callee."""
    source = bytecode.Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
    made: list[Any] = []
    for item in cast("list[Any]", source):
        # Besides instructions there are labels and the ends of try blocks.
        name, arg = cast(
            "tuple[str, Any]", (item.name, item.arg) if isinstance(item, bytecode.Instr) else ("", None)
        )
        if _is_method_load(name, arg):
            # NULL and a bound method, so that the callee always lies in the same place.
            made += _on_line(item, *_plain_load(name, arg))
            continue
        if name == _BEFORE_CALL:
            last = (
                made.pop() if isinstance(made[-1], bytecode.Instr) and made[-1].name == "KW_NAMES" else None
            )
            if arg > 0 or _loads_callee(made):
                made += _asked(item, ask, arg + NULL_ABOVE)
            made += [last] if last is not None else []
        elif name == "CALL_KW":
            made += _asked(item, ask, arg + 2)  # NULL and the names too
        elif name == "CALL_FUNCTION_EX":
            made += _asked(item, ask, 1 + (ALWAYS_MAPPING or arg & 1) + NULL_ABOVE)
        made.append(item)
    cast("list[Any]", source)[:] = made
    # The names of all locals, not of the arguments only: else they are numbered, and listed by locals(), as they come.
    source.argnames = list(code.co_varnames)
    return source.to_code(stacksize=code.co_stacksize + 4, compute_exception_stack_depths=False)


def _is_method_load(name: str, arg: Any) -> bool:
    """Whether it gives a method and its receiver where it can."""
    if name in ("LOAD_ATTR", "LOAD_SUPER_ATTR"):
        return not isinstance(arg, str) and arg[0]
    return name == "LOAD_METHOD"


def _plain_load(name: str, arg: Any) -> list[tuple[Any, ...]]:
    """The load of the attribute alone, with NULL in the place of its receiver."""
    load = ("LOAD_ATTR", arg) if name == "LOAD_METHOD" else (name, (False, *arg[1:]))
    null = [("PUSH_NULL",), ("SWAP", 2)]
    if NULL_ABOVE:
        return [load, ("PUSH_NULL",)]
    return [load, *null] if name == "LOAD_SUPER_ATTR" else [*null, load]


def _loads_callee(made: list[Any]) -> bool:
    """Whether what was loaded last is called without arguments. What decorators, comprehensions and assertions call
    lies below an argument instead."""
    instrs = [item for item in made[-3:] if isinstance(item, bytecode.Instr)]
    if NULL_ABOVE:
        last, arg = cast("tuple[str, Any]", (instrs[-1].name, instrs[-1].arg) if instrs else ("", None))
        return last == "PUSH_NULL" or (last == "LOAD_GLOBAL" and arg[0])
    if [i.name for i in instrs[-2:]] == ["PUSH_NULL", "SWAP"]:
        return True
    return (
        bool(instrs)
        and instrs[-1].name in _LOADS
        and all(i.name != "LOAD_ASSERTION_ERROR" for i in instrs[:-1])
    )


def _asked(item: bytecode.Instr, ask: Through, above: int) -> list[bytecode.Instr]:
    """Replace the callee, which lies below `above` others, by what `ask` gives for it."""
    reach = [("SWAP", above + 1)] if above else []
    call = [("LOAD_CONST", ask), ("SWAP", 2), ("PUSH_NULL",), ("SWAP", 2), ("CALL", 1)]
    if not NULL_ABOVE:
        call = [("PUSH_NULL",), ("SWAP", 2), ("LOAD_CONST", ask), ("SWAP", 2), *_CALL_ONE]
    return _on_line(item, *reach, *call, *reach)


def _on_line(item: bytecode.Instr, *parts: tuple[Any, ...]) -> list[bytecode.Instr]:
    return [bytecode.Instr(*part, location=item.location) for part in parts]
