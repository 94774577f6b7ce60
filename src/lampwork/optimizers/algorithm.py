"""How the classes of torch.optim update parameters: their `step` with another function in it, and their rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import optim

from lampwork.optimizers.update import GRADIENTS, Columns, Rule
from lampwork.records import record

_MOMENTA = 2  # the column of SGD that holds them


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


def step_with(algorithm: Algorithm, update: Callable[..., None]) -> Callable[..., Any]:
    """The step of torch, calling `update` in place of the function that updates all parameters of a group."""
    original: Any = inspect.unwrap(algorithm.optimizer.step)
    names = {**original.__globals__, algorithm.name: update}
    return FunctionType(
        original.__code__, names, original.__name__, original.__defaults__, original.__closure__
    )


def rows_of(algorithm: Algorithm, columns: Columns, given: dict[str, Any]) -> tuple[Rule, Columns, list[Any]]:
    """What `Updater.run` takes, of what torch's step gives the function that updates all parameters of a group."""
    module: Any = inspect.getmodule(algorithm.optimizer)
    rule = getattr(module, f"_single_tensor_{algorithm.name}")
    scale = given.get("grad_scale")
    options = {name: value for name, value in given.items() if name not in ("foreach", "fused")}
    if algorithm.scales:
        options.update(grad_scale=None, found_inf=None)
    adds_momentum = _adds_momentum_to_gradients(given)

    def on_row(cells: list[list[Any]], step: float) -> None:
        if scale is not None:
            cells[GRADIENTS][0].div_(scale)
        rule(*cells, *([[step]] if algorithm.counts else ()), **options)
        if adds_momentum:
            cells[GRADIENTS][0].add_(cells[_MOMENTA][0], alpha=options["momentum"])

    return (on_row, columns[:-1], columns[-1]) if algorithm.counts else (on_row, columns, [])


def _adds_momentum_to_gradients(given: dict[str, Any]) -> bool:
    """Whether these options make SGD look ahead in `.grad` itself: with `foreach` it does, where it has no copy yet."""
    copies = given.get("maximize") or given.get("weight_decay")
    return bool(given.get("foreach") and given.get("nesterov") and not copies)
