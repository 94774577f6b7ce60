"""`lampwork.compile(optimizer.step)`, for the optimizers of torch.

The compiled step is torch's own, with one function exchanged: where `Adam.step` calls `adam(params, grads, ...)`, it
calls the rule `_single_tensor_adam` through an `Updater`. So hooks, closures, states, the checks of `_init_group` and
what a subclass makes of them are torch's, and a state dict is eager's. What an Updater does not take goes to `adam`
itself: sparse gradients, complex parameters, `differentiable` and `capturable` steps, tensors that overlap.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, optim

from lampwork import logs, pristine
from lampwork.codegen.target import Target
from lampwork.compiled.marks import disable
from lampwork.compiled.stages import Stages
from lampwork.config import Config, using_config
from lampwork.optimizers.algorithm import Algorithm, rows_of, step_with
from lampwork.optimizers.replay import Replays
from lampwork.optimizers.update import Columns, Updater, counted_there, updater_for
from lampwork.standard import functools

_ALGORITHMS = {
    inspect.unwrap(algorithm.optimizer.step): algorithm
    for algorithm in (
        Algorithm(optim.SGD, "sgd", counts=False, scales=True),
        Algorithm(optim.Adam, "adam", scales=True),
        Algorithm(optim.Adagrad, "adagrad", scales=True),
        Algorithm(optim.RMSprop, "rmsprop"),
        Algorithm(optim.Adadelta, "adadelta"),
        Algorithm(optim.Adamax, "adamax"),
        Algorithm(optim.RAdam, "radam"),
    )
}
"""By the code of a class's step. AdamW's is Adam's."""


def compile_step(step: Any, target: Target, options: Config, *, fullgraph: bool = False) -> Any:
    """The compiled form of an optimizer's bound `step`, a method of that optimizer; None if it is to be captured.

    One that goes through gradients in Python stays as it is, unless `fullgraph`: each `.grad` that it reads would be a
    graph break. A step that a learning rate scheduler has wrapped goes on telling it of each call.
    """
    optimizer, function, scheduled = _taken_apart(step)
    algorithm = _algorithm_of(optimizer, function)
    if algorithm is not None:
        run, how = _hooked(algorithm, target), "one kernel"
    elif not fullgraph and isinstance(optimizer, optim.Optimizer) and _reads_gradients(optimizer, function):
        run, how = function, "in plain Python: it reads the gradients of parameters one by one"
        rule = "write what it does to one parameter as a rule of lampwork.optimizers.update"
        logs.emit("breaks", f"{function.__qualname__} stays {how}; {rule}")
    else:
        return None

    @functools.wraps(function)
    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduled:
            self._opt_called = True
        with using_config(options):
            return run(self, *args, **kwargs)

    title = f"{function.__qualname__}, {how}"
    compiled.__dict__.update(
        lampwork_algorithm=algorithm, entries=(), stages=Stages(title, why_none=lambda: title)
    )
    if scheduled:
        compiled.__dict__["_wrapped_by_lr_sched"] = True
    # Code that a compiled function calls runs it as it is.
    return MethodType(disable(compiled, reason="an optimizer's compiled step"), optimizer)


def _reads_gradients(optimizer: optim.Optimizer, step: Any) -> bool:
    """Whether the code of a step, or of a method that it calls, reads `.grad`."""
    waiting = [getattr(inspect.unwrap(step), "__code__", None)]
    seen: set[Any] = set()
    while waiting:
        code = waiting.pop()
        if not isinstance(code, CodeType) or code in seen:
            continue
        seen.add(code)
        if "grad" in code.co_names:
            return True
        called = (getattr(type(optimizer), name, None) for name in code.co_names)
        waiting += [
            *code.co_consts,
            *(getattr(inspect.unwrap(each), "__code__", None) for each in called if callable(each)),
        ]
    return False


def step_instead(function: FunctionType, target: Target) -> Callable[..., Any] | None:
    """What compiled code calls in place of a step of torch's, as a class or a scheduler has it; None if it is none."""
    if hasattr(function, "_wrapped_by_lr_sched"):
        optimizer, function, _ = _taken_apart(function)
        found = None if optimizer is None else step_instead(function, target)
        return None if found is None else _telling(weakref.ref(optimizer), found)
    algorithm = _algorithm_behind(function)
    if algorithm is None:
        return None
    hooked = _hooked(algorithm, target)

    def step(*args: Any, **kwargs: Any) -> Any:
        known = bool(args) and isinstance(args[0], algorithm.optimizer)
        return hooked(*args, **kwargs) if known else function(*args, **kwargs)

    return step


def _telling(reference: Callable[[], Any], step: Callable[..., Any]) -> Callable[..., Any]:
    """A step as a scheduler wraps it, which tells of each call."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        optimizer = reference()
        optimizer._opt_called = True
        return step(optimizer, *args, **kwargs)

    return wrapper


def _hooked(algorithm: Algorithm, target: Target) -> Callable[..., Any]:
    """A class's step by kernels, with what torch does around each step."""
    updater = updater_for(target)
    whole = optim.Optimizer.profile_hook_step(_without_grad(algorithm, updater))
    replays = Replays(algorithm, updater)

    def step(optimizer: optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return whole(optimizer, *args, **kwargs)
        return None if replays.run(optimizer) else replays.learn(optimizer, whole)

    return step


def _taken_apart(step: Any) -> tuple[Any, Any, bool]:
    """The optimizer, the function that its step is, and whether a scheduler wraps that."""
    if isinstance(step, MethodType):
        return step.__self__, step.__func__, hasattr(step, "_wrapped_by_lr_sched")
    if isinstance(step, FunctionType) and hasattr(step, "_wrapped_by_lr_sched"):
        inside = inspect.getclosurevars(step).nonlocals
        if "opt_ref" in inside and "func" in inside:
            return inside["opt_ref"](), inside["func"], True
    return None, None, False


def _algorithm_of(optimizer: Any, function: Any) -> Algorithm | None:
    """The algorithm of a step that is torch's, wrapped by torch's two decorators and by nothing else, or compiled."""
    if not isinstance(optimizer, optim.Optimizer):
        return None
    known = getattr(function, "lampwork_algorithm", None)
    if known is not None:
        return known
    return _algorithm_behind(function) if function is getattr(type(optimizer), "step", None) else None


def _algorithm_behind(function: Any) -> Algorithm | None:
    """The algorithm of a class's step, wrapped by torch's two decorators and by nothing else."""
    if not hasattr(function, "hooked"):
        return None
    inner = getattr(getattr(function, "__wrapped__", None), "__wrapped__", None)
    return None if inner is None else _ALGORITHMS.get(inner)


def _without_grad(algorithm: Algorithm, updater: Updater) -> Callable[..., Any]:
    """The step of torch under no_grad, with the updater in it."""
    module: Any = inspect.getmodule(algorithm.optimizer)
    all_at_once = getattr(module, algorithm.name)

    def update(*columns: list[Any], **options: Any) -> None:
        if columns[0] and not _updates(updater, algorithm, columns, options):
            all_at_once(*columns, **options)

    ours = step_with(algorithm, update)

    def step(self: optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with pristine.enable_grad() if self.defaults["differentiable"] else pristine.no_grad():
            return ours(self, *args, **kwargs)

    step.__qualname__ = algorithm.optimizer.step.__qualname__  # errors of torch's name it
    return step


def _updates(updater: Updater, algorithm: Algorithm, columns: Columns, given: dict[str, Any]) -> bool:
    """Whether the updater has updated all rows, as the rule with these options would, or there was nothing to do."""
    scale: Tensor | None = given.get("grad_scale")
    found: Tensor | None = given.get("found_inf")
    is_scaled = scale is not None or found is not None
    if pristine.is_grad_enabled():
        return False  # the optimizer is differentiable
    kind = columns[0][0].device.type
    if kind not in ("cpu", "cuda") or (is_scaled and not given.get("fused")):
        return False
    # Counts on the device are for steps that nobody waits for. The others are read by whoever does the step.
    counts: list[Tensor] = columns[-1] if algorithm.counts else []
    unread = bool(given.get("capturable") or (kind == "cuda" and given.get("fused")))
    if counts and counted_there(counts) != unread:
        return False
    if kind == "cpu" and found is not None:
        if found.item():
            return True
        found = None
    return updater.run(*rows_of(algorithm, columns, given), found)
