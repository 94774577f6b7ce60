"""The report of a quantization."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from lampwork.approximation.int8 import Activations
from lampwork.approximation.metrics import top1_disagreement
from lampwork.approximation.report import Refusal
from lampwork.display import Block, Shown, Table
from lampwork.records import record
from lampwork.standard import math
from lampwork.swapping.difference import compare, tensors_of
from lampwork.swapping.install import Installed, take_all_out


@record
class LayerReport(Shown):
    """One layer against its original, on what reached that in the model as it was: the worst of all calls; NaN if
    nothing did.

    `max_error`: the largest difference in its output. `relative`: that, by the largest magnitude there. `cosine`: of
    the angle between the two outputs.
    """

    name: str
    max_error: float
    relative: float
    cosine: float

    def worse(self, other: LayerReport) -> LayerReport:
        """The worse of each number; of a NaN and a number, the number."""
        return LayerReport(
            self.name,
            _worse(max, self.max_error, other.max_error),
            _worse(max, self.relative, other.relative),
            _worse(min, self.cosine, other.cosine),
        )


@record
class OutputReport(Shown):
    """The output of the model against that of the original: the worst of all sets of inputs.

    `max_error`, `relative`, `cosine`: as of a layer, of the tensor where it is worst. `top1`: the share of rows of the
    first tensor whose largest entry along the last axis is where it was.
    """

    max_error: float
    relative: float
    cosine: float
    top1: float

    def worse(self, other: OutputReport) -> OutputReport:
        """The worse of each number."""
        return OutputReport(
            _worse(max, self.max_error, other.max_error),
            _worse(max, self.relative, other.relative),
            _worse(min, self.cosine, other.cosine),
            _worse(min, self.top1, other.top1),
        )


@record
class QuantizationReport(Shown):
    """What `quantize` changed. `str()` lists it, `undo()` reverts it.

    `layers`: those that are int8 now, with their errors. `refused`: layers that are not, and why. `output`: the
    errors of the model's output, `error` that by the metric; None and NaN without calibration. `budget`: infinite if
    none was given. `weight_bytes`: of parameters and buffers, before and after.
    """

    model: nn.Module
    activations: Activations
    layers: tuple[LayerReport, ...]
    refused: tuple[Refusal, ...]
    output: OutputReport | None
    error: float
    budget: float
    weight_bytes: tuple[int, int]
    _installed: list[Installed]

    def undo(self) -> None:
        """Put every old module back, with the weights it had, in the mode that its replacement is in now. A second call
        does nothing.

        Raises:
            OptionError: a module has been swapped since; the rest stays as it is.
        """
        take_all_out(self._installed)

    def _brief(self) -> str:
        before, after = self.weight_bytes
        brief = f"{type(self.model).__name__}: {len(self.layers)} layers in int8, {len(self.refused)} are not"
        return f"{brief}, weights {before:,} -> {after:,} bytes"

    def _blocks(self) -> Iterable[Block]:
        rows = [(x.name, *map(_number, (x.max_error, x.relative)), _cosine(x.cosine)) for x in self.layers]
        yield Table(("layer", "max error", "relative", "cosine"), tuple(rows))
        yield from (f"{no.name} stays as it is: {no.reason}" for no in self.refused)
        if self.output is not None:
            o = self.output
            yield (
                f"output: max error {o.max_error:.3g}, relative {o.relative:.3g}, cosine {_cosine(o.cosine)}, "
                f"top-1 agreement {o.top1:.1%}"
            )
        if math.isfinite(self.budget):
            yield f"error {self.error:.3g} of a budget of {self.budget:.3g}"
        before, after = self.weight_bytes
        yield f"weights {before:,} -> {after:,} bytes"

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))


def layer_report(name: str, reference: Tensor, output: Tensor) -> LayerReport:
    """One call of a layer."""
    difference = compare(reference, output)[0]
    return LayerReport(name, difference.max_abs, difference.relative, cosine(reference, output))


def output_report(reference: Any, output: Any) -> OutputReport:
    """One call of a model."""
    differences = compare(reference, output)
    pairs = zip(tensors_of(reference), tensors_of(output), strict=False)
    first = next(tensors_of(reference), None)
    return OutputReport(
        max((d.max_abs for d in differences), default=0.0),
        max((d.relative for d in differences), default=0.0),
        min((cosine(a, b) for (_, a), (_, b) in pairs), default=1.0),
        1 - top1_disagreement(reference, output) if first is not None and _has_rows(first[1]) else math.nan,
    )


def cosine(a: Tensor, b: Tensor) -> float:
    """Of the angle between two tensors, as vectors of all their elements; 1 if both are zero."""
    if a.shape != b.shape:
        return math.nan
    x, y = a.detach().double().reshape(-1), b.detach().double().reshape(-1)
    length = float(x.norm() * y.norm())
    return float(x @ y) / length if length else float(bool((x == y).all()))


def _has_rows(tensor: Tensor) -> bool:
    return tensor.dim() > 0 and tensor.numel() > 0


def _worse(choose: Any, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return choose(a, b)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _cosine(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.5f}"
