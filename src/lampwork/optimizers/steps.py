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
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, optim

from lampwork import pristine
from lampwork.codegen.target import Target
from lampwork.compiled.marks import disable
from lampwork.compiled.stages import Stages
from lampwork.optimizers.update import GRADIENTS, Columns, Updater, updater_for
from lampwork.records import record
from lampwork.standard import functools


@record
class Algorithm:
    """How a class of torch's updates parameters.

    name: the function that its step calls with columns of tensors. "_single_tensor_" + name: the rule.
    counts: whether the last column is the step counts. scales: whether it may be told to unscale gradients.
    """

    optimizer: type[optim.Optimizer]
    name: str
    counts: bool = True
    scales: bool = False


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
_MOMENTA = 2  # the column of SGD that holds them


def compile_step(step: Any, target: Target) -> Any:
    """The compiled form of an optimizer's bound `step`, a method of that optimizer; None if it is not torch's own.

    A step that a learning rate scheduler has wrapped goes on telling it of each call.
    """
    optimizer, function, scheduled = _taken_apart(step)
    algorithm = _algorithm_of(optimizer, function)
    if algorithm is None:
        return None
    hooked = _hooked(algorithm, target)

    @functools.wraps(function)
    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduled:
            self._opt_called = True
        return hooked(self, *args, **kwargs)

    compiled.__dict__.update(
        lampwork_algorithm=algorithm, entries=(), stages=Stages(f"{function.__qualname__}, one kernel")
    )
    if scheduled:
        compiled.__dict__["_wrapped_by_lr_sched"] = True
    # Code that a compiled function calls runs it as it is.
    return MethodType(disable(compiled, reason="an optimizer's compiled step"), optimizer)


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
    return optim.Optimizer.profile_hook_step(_without_grad(algorithm, updater_for(target)))


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
    original: Any = inspect.unwrap(algorithm.optimizer.step)
    names = {**original.__globals__, algorithm.name: _exchanged(algorithm, updater)}
    ours = FunctionType(
        original.__code__, names, original.__name__, original.__defaults__, original.__closure__
    )

    def step(self: optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with pristine.enable_grad() if self.defaults["differentiable"] else pristine.no_grad():
            return ours(self, *args, **kwargs)

    return step


def _exchanged(algorithm: Algorithm, updater: Updater) -> Callable[..., None]:
    """What stands for `adam`: it is done by the updater, or else by `adam`."""
    module: Any = inspect.getmodule(algorithm.optimizer)
    all_at_once, rule = getattr(module, algorithm.name), getattr(module, f"_single_tensor_{algorithm.name}")

    def update(*columns: list[Any], **options: Any) -> None:
        if columns[0] and not _updates(updater, algorithm, rule, columns, options):
            all_at_once(*columns, **options)

    return update


def _updates(
    updater: Updater, algorithm: Algorithm, rule: Callable[..., Any], columns: Columns, given: dict[str, Any]
) -> bool:
    """Whether the updater has updated all rows, as the rule with these options would, or there was nothing to do."""
    options = {name: value for name, value in given.items() if name not in ("foreach", "fused")}
    scale: Tensor | None = options.get("grad_scale")
    found: Tensor | None = options.get("found_inf")
    is_scaled = scale is not None or found is not None
    if options.get("differentiable") or options.get("capturable") or (is_scaled and not given.get("fused")):
        return False
    if algorithm.scales:
        options.update(grad_scale=None, found_inf=None)
    if found is not None and found.item():
        return True
    adds_momentum = _adds_momentum_to_gradients(given)
    steps = columns[-1] if algorithm.counts else []
    tensors = columns[:-1] if algorithm.counts else columns

    def on_row(cells: list[list[Any]], step: float) -> None:
        if scale is not None:
            cells[GRADIENTS][0].div_(scale)
        rule(*cells, *([[step]] if algorithm.counts else ()), **options)
        if adds_momentum:
            cells[GRADIENTS][0].add_(cells[_MOMENTA][0], alpha=options["momentum"])

    return updater.run(on_row, tensors, steps)


def _adds_momentum_to_gradients(given: dict[str, Any]) -> bool:
    """Whether these options make SGD look ahead in `.grad` itself: with `foreach` it does, where it has no copy yet."""
    copies = given.get("maximize") or given.get("weight_decay")
    return bool(given.get("foreach") and given.get("nesterov") and not copies)
