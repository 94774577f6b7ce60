"""Which functions of torch run natively under the recorder, which are inlined, and which break."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lampwork import pristine
from lampwork.capture.calls import default_device, natives
from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import Callback, Lazy
from lampwork.capture.semantics.attributes import load_attr
from lampwork.capture.semantics.dtensors import call_distributed, takes_dtensors
from lampwork.capture.semantics.symbolic import NumbersNeeded, fixed
from lampwork.capture.state.effects import Effect
from lampwork.errors import LampworkError
from lampwork.frames import Unwatched
from lampwork.graph.distributed import is_dtensor
from lampwork.graph.tracetensor import TraceTensor
from lampwork.graph.within import CAST

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Modules of torch whose Python functions only compute: run as they are, on trace tensors.
_NATIVE_MODULES = frozenset(
    {
        "torch",
        "torch.functional",
        "torch.nn.functional",
        "torch._tensor",
        "torch._ops",
        "torch._utils",
        "torch._jit_internal",
        "torch._C",
        "torch._C._nn",
        "torch._C._linalg",
        "torch._C._fft",
        "torch._C._special",
        "torch.special",
        "torch.fft",
        "torch.linalg",
        "torch.nn._reduction",
        "torch.nn.init",
        "torch.nn.parameter",
        "torch.autograd.grad_mode",
        "torch.amp.autocast_mode",
        "torch.random",
        "torch.types",
        "torch._linalg_utils",
        "torch._lowrank",
        "torch.masked._ops",
        "torch.backends.cuda",
        "torch.backends.mkldnn",
        "torch.backends.cudnn",
        "torch.cuda",
        "torch.cuda.amp.autocast_mode",
        "torch.cpu",
        "torch.cpu.amp.autocast_mode",
        "torch.mps",
        "torch.xpu",
        "torch.overrides",
        "torch.nn.modules.utils",
        "torch.jit._trace",
        "torch.jit",
        "torch.onnx",
        "torch.utils._pytree",
        "torch.distributed",
        "torch.distributed.distributed_c10d",
    }
)
# Their functions push and pop transforms on torch's own stacks.
_TRANSFORMS = frozenset({"torch._functorch", "torch.func", "torch.autograd"})
# A scan is ordinary Python around torch.vmap, unless it is an operator.
_SCANS = "torch._higher_order_ops.associative_scan"
# These of them only make a function.
_TRANSFORM_FACTORIES = frozenset(
    {
        "grad",
        "grad_and_value",
        "vmap",
        "jacrev",
        "jacfwd",
        "hessian",
        "_check_randomness_arg",
        "_wraps_without_dynamo_attrs",
        "_wraps_without_dynamo_attrs.<locals>.inner",
    }
)
_BREAKING_MODULES = frozenset(
    {"torch._dynamo", "torch._inductor", "torch.serialization", "torch.multiprocessing"}
)
_OPERATOR_MODULES = frozenset(
    {
        "torch._C._nn",
        "torch._C._linalg",
        "torch._C._fft",
        "torch._C._special",
        "torch._C._sparse",
        "torch._C._nested",
    }
)
_QUESTIONS = (
    "_get",
    "get",
    "_is",
    "is",
    "_has",
    "has",
    "_log_api_usage",
    "_len",
    "_are",
    "_jit_get",
    "_autograd_is",
)
# Names in those modules that change state, start other machinery, or answer differently on each call.
_STATEFUL = frozenset(
    {
        "manual_seed",
        "seed",
        "initial_seed",
        "get_rng_state",
        "set_rng_state",
        "fork_rng",
        "set_default_dtype",
        "set_default_device",
        "set_default_tensor_type",
        "set_num_threads",
        "set_num_interop_threads",
        "set_printoptions",
        "set_float32_matmul_precision",
        "set_deterministic_debug_mode",
        "use_deterministic_algorithms",
        "set_flush_denormal",
        "set_warn_always",
        "save",
        "load",
        "compile",
        "backward",
        "vmap",
        "synchronize",
        "empty_cache",
        "from_file",
        "init_process_group",
        "barrier",
        "set_anomaly_enabled",
        "set_autocast_enabled",
        "set_autocast_dtype",
        "set_autocast_cache_enabled",
        "__setstate__",
        "_set_deterministic_algorithms",
    }
)
# Function modes, and what pushes and pops them.
_MODES = (
    "TorchFunctionMode.__",
    "BaseTorchFunctionMode.__",
    "_push_mode",
    "_pop_mode",
    "_enable_torch_function",
)
# Answers that differ from call to call, and that no entry is guarded on.
_UNGUARDED = frozenset(
    {
        "get_num_threads",
        "get_num_interop_threads",
        "get_float32_matmul_precision",
        "get_deterministic_debug_mode",
        "is_deterministic_algorithms_warn_only_enabled",
        "is_autocast_cache_enabled",
        "is_warn_always_enabled",
        "is_anomaly_enabled",
        "is_anomaly_check_nan_enabled",
    }
)
_OPERATOR_CALLS: dict[type, Any] = {
    kind: vars(kind).get("__call__") for kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
}
# Steps of a training loop. Schedulers reckon with numbers that change on each call.
_TRAINING_MODULES = frozenset({"torch.optim.lr_scheduler", "torch.nn.utils.clip_grad"})
_TRAINING_METHODS = frozenset({"step", "zero_grad"})
# What an optimizer's class has in place of its `step` once there is an instance.
_HOOKED_STEP = "Optimizer.profile_hook_step.<locals>.wrapper"
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
# They read numbers out of Python data. Of a symbolic number torch keeps 32 bits there.
_OF_DATA = ("tensor", "as_tensor", "asarray", "new_tensor", "sparse_coo_tensor")
# Classes of C++ whose objects are values.
_KNOWN_NATIVES = frozenset({"torch._C._distributed_c10d"})
_WRAPPERS = frozenset({"DistributedDataParallel._run_ddp_forward"})
"""What is called of torch in plain Python to call a module of the program."""
_ACTING_NATIVES = frozenset({"Reducer", "Logger"})
"""Of these, classes whose methods change what the object holds."""

GRAD_CONTEXTS: tuple[type, ...] = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
CONTEXTS: tuple[type, ...] = (*GRAD_CONTEXTS, torch.inference_mode, torch.autocast)


def is_compiling(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """torch.compiler.is_compiling(). torch.nn does otherwise than eager where it is true, so it is told the opposite:
    nn.TransformerEncoder gives other numbers at padded places, nn.Module leaves out hooks when it raises."""
    name = interp.frames[-1].globals.get("__name__") if interp.frames else None
    return not (type(name) is str and name.startswith(("torch.nn.modules.", "torch.nn.functional")))


def is_dynamo_compiling(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """torch.compiler.is_dynamo_compiling(). A program asks it to leave out what torch.compile cannot compile, which
    holds for us as well; torch asks it to talk to Dynamo, which is not here."""
    name = interp.frames[-1].globals.get("__name__") if interp.frames else None
    return not (type(name) is str and is_torch_module(name))


def break_graph(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """lampwork.graph_break(reason).

    Raises:
        Break: LW139, always.
    """
    reason = interp.force(args[0] if args else kwargs.get("reason", ""))
    raise Break(
        "LW139", "lampwork.graph_break()" + (f" ({reason})" if type(reason) is str and reason else "")
    )


RUN_AS_THEY_ARE = frozenset({"traceback", "linecache", "warnings"})
"""Modules whose functions read the frames of their callers, the lines of whole files, or the filters of warnings, which
are others while a call is captured: they run as they are."""


def is_disabled(function: Any) -> bool:
    """Whether a function, a module or its class is marked as not to be compiled: see lampwork.disable."""
    own = function.__dict__.get("_torchdynamo_disable")
    if own is None and type(function) is not types.FunctionType:
        own = any(vars(cls).get("_torchdynamo_disable") for cls in type(function).__mro__)
    return bool(own)


def described_mark(function: Any) -> str:
    """What is marked, with the reason that the mark gives."""
    named = function if hasattr(function, "__qualname__") else type(function)
    reason = getattr(function, "_torchdynamo_disable_msg", None)
    return f"{named.__module__}.{named.__qualname__}()" + (f" ({reason})" if reason else "")


UNMARKED: Any = object()


def marked(interp: Interpreter, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a function with a mark of torch.compiler or torch._dynamo, UNMARKED if it has none that matters.

    What torch.compile was put on is captured itself: one region for both. `allow_in_graph` needs nothing: what it
    marks is inlined.

    Raises:
        Break: LW113 for a function that is disabled, LW105 for a transform of torch.func.
    """
    marks = function.__dict__
    if is_disabled(function):
        raise Break("LW113", described_mark(function))
    original = marks.get("_torchdynamo_orig_callable")
    if original is not None and "get_compiler_config" in marks:
        return interp.call(interp.environment.known(original, function.__qualname__), args, kwargs)
    if marks.get("_dynamo_marked_constant"):
        values = [interp.environment.original(interp.force(a)) for a in args]
        named = {name: interp.environment.original(interp.force(a)) for name, a in kwargs.items()}
        if not any(isinstance(value, torch.Tensor) for value in (*values, *named.values())):
            result = run_unrecorded(function, values, named)
            return interp.environment.known(result, function.__qualname__)
    return UNMARKED


def run_unrecorded(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs), of which the region sees the result only. What it makes, and may keep, are tensors
    with data, not those of the recording."""
    with _disable_current_modes(), Unwatched():
        return function(*args, **kwargs)


def is_torch_module(name: str | None) -> bool:
    return name is not None and (name == "torch" or name.startswith("torch."))


def is_only_of_torch(function: types.FunctionType) -> bool:
    """Whether a Python function of torch calls nothing of the program's that is worth compiling."""
    return is_torch_module(function.__module__) and function.__qualname__ not in _WRAPPERS


def runs_native(function: types.FunctionType) -> bool:
    """Whether a Python function of torch is run as it is rather than inlined.

    Raises:
        Break: it changes state.
    """
    module = function.__module__
    if module not in _NATIVE_MODULES:
        root = ".".join(module.split(".")[:2])
        if root in _BREAKING_MODULES and function.__qualname__ == "graph_break":
            raise Break("LW139", "torch._dynamo.graph_break()")
        if root in _BREAKING_MODULES:
            raise Break("LW113", f"{module}.{function.__qualname__}")
        if root in _TRANSFORMS and module != "torch.autograd.function" and not is_transform(function):
            raise Break("LW105", f"{module}.{function.__qualname__}")
        return False
    check_allowed(function.__name__, module)
    if function.__qualname__.startswith(_MODES):
        raise Break("LW105", f"{module}.{function.__qualname__}()")
    return True


def check_training(function: types.FunctionType, module: str, args: list[Any]) -> None:
    """
    Raises:
        Break: LW116 for backward(); LW123 for what else a training loop calls besides its model: an optimizer's step,
            gradient clipping, a scheduler. The step of a program's own optimizer reads gradients and makes its state on
            the way, so that it would fall into pieces.
    """
    if function is TraceTensor.backward:
        raise Break("LW116", "Tensor.backward()")
    in_step = module.startswith("torch.optim.") and function.__name__ in _TRAINING_METHODS
    if in_step or module in _TRAINING_MODULES or _is_own_step(function, args):
        raise Break("LW123", f"{module}.{function.__qualname__}()")


def is_named_as_step(function: types.FunctionType) -> bool:
    """Whether a function may be the step of an optimizer, as its first argument says."""
    return function.__code__.co_qualname == _HOOKED_STEP


def _is_own_step(function: types.FunctionType, args: list[Any]) -> bool:
    """Whether a function is the step of an optimizer that is not made of one of torch's."""
    if not is_named_as_step(function) or not args:
        return False
    receiver = args[0].value if type(args[0]) is Lazy else args[0]
    named = [cls for cls in type(receiver).__mro__ if (cls.__module__ or "").startswith("torch.optim.")]
    return named == [torch.optim.Optimizer]


def is_transform(function: types.FunctionType) -> bool:
    """Whether a function belongs to torch.func or is a higher-order operator as torch.cond, whatever it says of
    itself: what grad() and vmap() return takes the name and module of the user's function."""
    home = cast(str, function.__globals__.get("__name__", ""))
    return home.startswith(("torch._functorch.", "torch._higher_order_ops.")) and home != _SCANS


def check_transform(function: types.FunctionType) -> None:
    """
    Raises:
        Break: LW105 for what runs a transform; what only makes the function that does is harmless.
    """
    if is_transform(function) and function.__code__.co_qualname not in _TRANSFORM_FACTORIES:
        raise Break("LW105", f"{function.__module__}.{function.__qualname__}()")


def check_allowed(name: str, module: str) -> None:
    """Refuse the functions of torch that a graph cannot hold."""
    if name in _STATEFUL:
        raise Break("LW105", f"{module}.{name}")
    if name in _UNGUARDED:
        raise Break("LW104", f"{module}.{name}()")


def check_builtin(function: Any) -> None:
    """Refuse the native functions of torch that change state. Operators are class or submodule attributes; what lies
    in torch._C itself is machinery, of which only questions are let through.

    Raises:
        Break: LW105.
    """
    name = cast(str, function.__name__)
    module = cast("str | None", getattr(function, "__module__", None)) or "torch"
    check_allowed(name, module)
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, types.ModuleType) or owner.__name__ in _OPERATOR_MODULES:
        return
    if name != "_set_grad_enabled" and not name.startswith(_QUESTIONS):
        raise Break("LW105", f"{owner.__name__}.{name}")


def _calls_back(function: Any) -> bool:
    """Whether a function of torch calls functions among its arguments, and keeps none of them."""
    module = getattr(function, "__module__", None)
    return module == "torch.utils._pytree" or (module == "torch" and function.__name__.startswith("_check"))


def _callback(interp: Interpreter, value: Any) -> Any:
    """An argument of such a function: calling it comes back into the interpreter."""
    return Callback(interp, value) if isinstance(value, (types.FunctionType, types.MethodType)) else value


def call_native(interp: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a function of torch on trace tensors; the recorder notes what it does."""
    force = interp.force
    answer = default_device.answered(interp, function, args, kwargs)
    if answer is not default_device.UNMOVED:
        return answer
    args = [force(a) if type(a) is Lazy else a for a in args]
    if takes_dtensors(function, args, kwargs):
        return call_distributed(interp, function, args, kwargs)
    for value in args:
        if type(value) is TraceTensor:
            continue
        if type(type(value)).__name__ == "pybind11_type" and type(value).__module__ not in _KNOWN_NATIVES:
            raise Break(
                "LW103", f"{function.__name__}() of a {type(value).__name__}, whose content no guard sees,"
            )
        if type(value).__name__ in _ACTING_NATIVES and type(value).__module__ in _KNOWN_NATIVES:
            raise Break("LW105", f"{function.__name__}() of a {type(value).__name__}")
        if natives.is_python_sequence(interp, value):
            raise Break("LW103", f"{function.__name__}() of a {type(value).__name__}")
    natives.guard_numbers(interp, args)
    if kwargs:
        natives.guard_numbers(interp, map(force, kwargs.values()))
    if function is _ATTENTION and not torch._C._get_math_sdp_enabled():
        raise Break("LW105", "attention without torch's math kernel")
    if kwargs.get("requires_grad"):
        raise Break("LW106", "a leaf that requires grad is made")
    named = {name: force(a) for name, a in kwargs.items()}
    if getattr(function, "__name__", "") in _OF_DATA:
        scalar = _scalar(function, args, named)
        if scalar is None:
            args, named = [_numbers(a) for a in args], {name: _numbers(a) for name, a in named.items()}
        else:
            function, args, named = scalar
    named = default_device.placed(interp, function, named)
    if _calls_back(function):
        args = [_callback(interp, a) for a in args]
        named = {name: _callback(interp, a) for name, a in named.items()}
    try:
        return function(*args, **named)
    except (LampworkError, StopIteration):
        raise
    except Exception as error:
        if not interp.environment.lifting.symbols:
            raise
        # It may be the symbols that it does not know. With numbers, what it raises is eager's.
        raise NumbersNeeded(error) from error


def _scalar(
    function: Any, args: list[Any], named: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]] | None:
    """torch.tensor(number) and its like as the call of torch.full that they are, of a symbolic number for all of its
    values; None where they are something else."""
    if function not in (torch.tensor, torch.as_tensor) or len(args) != 1 or not named.keys() <= {"dtype"}:
        return None
    own = {torch.SymInt: torch.int64, torch.SymFloat: pristine.get_default_dtype()}.get(type(args[0]))
    if own is None:
        return None
    dtype = named.get("dtype") or own
    if dtype is not torch.int64 and not dtype.is_floating_point:
        return None
    return torch.full, [[], args[0]], {"dtype": dtype}


def _numbers(value: Any) -> Any:
    """Python data with numbers in place of symbolic ones."""
    if type(value) in (list, tuple):
        return type(value)([_numbers(item) for item in value])
    return fixed(value)


def make_parameter(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """nn.Parameter(data, requires_grad=True), where no gradient is recorded: a parameter on the memory of `data`.

    Raises:
        Break: LW107 for other arguments.
    """
    given = dict(zip(("data", "requires_grad"), [interp.force(a) for a in args], strict=False))
    given |= {name: interp.force(value) for name, value in kwargs.items()}
    data, wanted = given.get("data"), given.get("requires_grad", True)
    if type(data) is not TraceTensor or type(wanted) is not bool:
        raise Break("LW107", "Parameter")
    made = cast(TraceTensor, data.detach())
    made.spec = replace(made.spec, requires_grad=wanted)
    made._is_param = True  # pyright: ignore
    return made


def is_torch_builtin(function: Any) -> bool:
    """Whether a native function is one of torch's operators."""
    owner: Any = getattr(function, "__self__", None)
    kind = type(owner)
    if kind is TraceTensor or is_dtensor(kind):
        return True
    if issubclass(kind, types.ModuleType):
        return is_torch_module(owner.__name__)
    if issubclass(kind, type):
        return is_torch_module(owner.__module__)
    return is_torch_module(getattr(function, "__module__", None)) or is_torch_module(
        getattr(getattr(function, "__objclass__", None), "__module__", None)
    )


def is_operator(interp: Interpreter, function: Any) -> bool:
    """torch.ops.namespace.name, with or without an overload, if nobody has patched how it is called."""
    plain = next((call for kind, call in _OPERATOR_CALLS.items() if isinstance(function, kind)), None)
    return plain is not None and interp.lookup(type(function), "__call__")[0] is plain


def call_operator(interp: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run torch.ops.namespace.name on trace tensors, as `call_native`.

    Where some overload takes integers, a symbolic float becomes its number first: eager refuses a float there, or goes
    on to another overload, while a torch.SymFloat passes for an integer.
    """
    schemas = (
        [function._schema]
        if isinstance(function, torch._ops.OpOverload)
        else [getattr(function, name)._schema for name in function.overloads()]
    )
    taken: set[int | str] = set()
    for schema in schemas:
        for position, argument in enumerate(schema.arguments):
            if "int" in str(argument.type):
                taken |= {argument.name} if argument.kwarg_only else {argument.name, position}

    def number(value: Any) -> Any:
        value = interp.force(value)
        if type(value) in (tuple, list):
            return type(value)(number(item) for item in value)
        return fixed(value) if type(value) is torch.SymFloat else value

    args = [number(value) if position in taken else value for position, value in enumerate(args)]
    kwargs = {name: number(value) if name in taken else value for name, value in kwargs.items()}
    return call_native(interp, function, args, kwargs)


def make_context(interp: Interpreter, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """torch.no_grad() and its like: really made, entered and left while capturing; capture restores what they set."""
    values = [interp.force(a) for a in args]
    named = {name: interp.force(a) for name, a in kwargs.items()}
    if len(values) == 1 and isinstance(values[0], (types.FunctionType, types.MethodType)):
        raise Break("LW105", f"{cls.__name__} as a decorator inside the function")
    guard_context(interp, cls)
    mode = pristine.is_grad_enabled()
    context = cast(Any, cls)(*values, **named)
    # torch.set_grad_enabled already switches when it is made, so it is then that it finds the mode to put back.
    interp.contexts.modes[id(context)] = mode
    interp.contexts.made[id(context)] = (context, cls, tuple(values), named)
    return context


def guard_context(interp: Interpreter, cls: type) -> None:
    """Guard what the methods of a context manager, which run as they are, read of torch and of the class."""
    for name in ("__init__", "__enter__", "__exit__"):
        natives.guard_method(interp, cls, name)


def enter_or_leave(interp: Interpreter, name: str, args: list[Any]) -> Any:
    """context.__enter__() or context.__exit__(*error).

    One from outside, as in `@torch.inference_mode()` above a function, is left alone: a twin of it is entered.

    Raises:
        Break: LW105 if it cannot be entered so.
    """
    contexts, context = interp.contexts, args[0]
    guard_context(interp, type(context))
    if id(context) in contexts.made:
        return contexts.enter(context) if name == "__enter__" else contexts.leave(*args)
    if name == "__enter__":
        if interp.environment.entry(context) is not None:
            for attribute in vars(context):
                if not attribute.startswith("prev"):
                    load_attr(interp, context, attribute)
        twin = contexts.stand_in(context)
        if twin is not None:
            return context if contexts.enter(twin) is twin else None
    elif contexts.outside.get(id(context)):
        return contexts.leave(contexts.outside[id(context)].pop(), *args[1:])
    elif isinstance(context, GRAD_CONTEXTS):
        # Entered before a graph break, left after it: all that leaving does is to set the mode.
        return torch._C._set_grad_enabled(load_attr(interp, context, "prev"))
    elif type(context) is torch.autocast and (kind := load_attr(interp, context, "device")) in CAST:
        # Likewise. The cache of cast weights is looked after when the region is done.
        pristine.set_autocast_enabled(kind, load_attr(interp, context, "prev"))
        pristine.set_autocast_dtype(kind, load_attr(interp, context, "prev_fastdtype"))
        interp.effects.calls.append(Effect(torch.autocast.__exit__, (context, None, None, None)))
        return False
    raise Break("LW105", f"{type(context).__name__} made outside of the function")
