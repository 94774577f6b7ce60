"""How the classes of torch.optim update parameters: their `step` with another function in it, and their rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import optim

from lampwork.optimizers.update import GRADIENTS, Columns, Rule, counted_there
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
    counts: list[Any] = columns[-1] if algorithm.counts else []
    if counted_there(counts):
        options.update(capturable=True)  # the count is a tensor
    adds_momentum = _adds_momentum_to_gradients(given, columns[0])

    def on_row(cells: list[list[Any]], step: Any) -> None:
        if scale is not None:
            cells[GRADIENTS][0].div_(scale)
        rule(*cells, *([[step]] if algorithm.counts else ()), **options)
        if adds_momentum:
            cells[GRADIENTS][0].add_(cells[_MOMENTA][0], alpha=options["momentum"])

    return (on_row, columns[:-1], counts) if algorithm.counts else (on_row, columns, [])


def _adds_momentum_to_gradients(given: dict[str, Any], params: list[Any]) -> bool:
    """Whether these options make SGD look ahead in `.grad` itself: with `foreach`, torch's default on cards, it does,
    where it has no copy yet."""
    foreach = given.get("foreach")
    if foreach is None and given.get("fused") is None:
        foreach = bool(params) and all(param.is_cuda for param in params)
    copies = given.get("maximize") or given.get("weight_decay")
    return bool(foreach and given.get("nesterov") and not copies)
