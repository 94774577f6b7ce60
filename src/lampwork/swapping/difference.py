"""Outputs of a model, taken in evaluation mode and compared tensor by tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lampwork import pristine
from lampwork.api import arguments_of
from lampwork.compiled.stance import set_stance
from lampwork.display import Shown
from lampwork.records import record
from lampwork.standard import copy


@record
class Difference(Shown):
    """How far one tensor of the output moved.

    `output`: where it stands in the output ("" if it is the output). `max_abs`: the largest difference. `relative`:
    that, by the largest magnitude of the reference. Both are infinite where shapes differ, a tensor is missing, or one
    has a value that is not finite where the other has another. Tensors that are not floating point are compared as
    float64.
    """

    output: str
    max_abs: float
    relative: float

    def __str__(self) -> str:
        return f"{self.output or 'output'}: max {self.max_abs:.3g}, relative {self.relative:.3g}"


def compare(reference: Any, output: Any) -> tuple[Difference, ...]:
    """One Difference for each tensor in either of two outputs of a model, in order."""
    before, after = dict(tensors_of(reference)), dict(tensors_of(output))
    return tuple(
        _difference(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))
    )


def _difference(name: str, a: Tensor | None, b: Tensor | None) -> Difference:
    if a is None or b is None or a.shape != b.shape:
        return Difference(name, torch.inf, torch.inf)
    if a.numel() == 0:
        return Difference(name, 0.0, 0.0)
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = a.detach().to(wide), b.detach().to(wide)
    # Infinities and NaNs that both have at one place are no difference.
    same = (a == b) | (a.isnan() & b.isnan())
    distance = pristine.where(same, 0.0, (a - b).abs())
    worst = float(distance.nan_to_num(nan=torch.inf).max())
    finite = a[a.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    if worst == 0.0:
        return Difference(name, 0.0, 0.0)
    return Difference(name, worst, worst / scale if scale else torch.inf)


def tensors_of(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of an output with their places: "logits", "[0]", "past[1].keys"."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_of(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from tensors_of(item, f"{name}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            yield from tensors_of(item, f"{name}.{field.name}" if name else field.name)


def twin(model: nn.Module) -> nn.Module:
    """A copy of a model with modules of its own, and the same parameters and buffers."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, dict(tensors))


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """`model` in evaluation mode, without gradients; each module has its own mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with pristine.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def run(model: nn.Module, inputs: Any) -> Any:
    """The output for one set of inputs: a tensor, a tuple or list of arguments, or a mapping of keyword arguments.

    The inputs are copied, since models may write into theirs, random numbers are the same on every run, and parts that
    are compiled run eager.
    """
    args, kwargs = _cloned(arguments_of(inputs))
    with torch.random.fork_rng(devices=[]), set_stance("force_eager"):
        pristine.manual_seed(0)
        return _cloned(model(*args, **kwargs))


def _cloned(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)
