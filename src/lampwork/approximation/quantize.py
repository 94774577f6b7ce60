"""`lampwork.quantize`: byte precision for a model, with a report of what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from torch import nn

from lampwork import pristine
from lampwork.approximation.int8 import Activations, Int8, int8
from lampwork.approximation.metrics import max_relative_difference
from lampwork.approximation.quantization_report import (
    LayerReport,
    OutputReport,
    QuantizationReport,
    layer_report,
    output_report,
)
from lampwork.approximation.report import Refusal
from lampwork.approximation.statistics import Statistics
from lampwork.approximation.work import Metric, Work, apply_rule, batches_of
from lampwork.errors import OptionError, text_of
from lampwork.progress import Progress
from lampwork.records import record
from lampwork.standard import math
from lampwork.swapping.difference import evaluating, run
from lampwork.swapping.sites import root_of, sites_of
from lampwork.verdict import Verdict

Filter = Callable[[nn.Module, str], bool]


def quantize(
    model: nn.Module,
    calibration: Any = None,
    *,
    weights: Literal["int8"] = "int8",
    activations: Activations = "dynamic",
    budget: float | None = None,
    metric: Metric | None = None,
    filter_fn: Filter | None = None,
) -> QuantizationReport:
    """Keep the weights of a model's linear layers and convolutions in int8, and multiply them as int8.

    before:  model.encoder.fc = nn.Linear(768, 3072)
    after:   model.encoder.fc = Int8Linear(in_features=768, out_features=3072, activations='dynamic')

    Linear layers (and `Conv1D` of `transformers`) are replaced by `Int8Linear` modules, convolutions by `Int8Conv`, in
    place; all else stays as it is: with `activations`, convolutions in groups of few channels (depthwise ones) and of
    few channels (a first layer) too. The result runs eager and compiled, and is for inference: no gradients reach the
    weights.

    Args:
        model: a module, compiled or not, of float32, bfloat16 or float16.
        calibration: a set of inputs (a tensor, a tuple of arguments, a dict of keyword arguments), or an iterable of
            sets. The errors in the report are measured on them, and static scales are taken from them. None: the report
            has no errors.
        weights: "int8": symmetric, one scale for each output.
        activations: "dynamic": int8 by a scale that each row (token; of a convolution: each image) gets when it comes;
            "static": int8 by one scale for each layer, which `calibration` gives: faster, less exact, and larger
            numbers than it showed saturate; None: floating point, which saves memory and its traffic only: for one row
            at a time, as in decoding.
        budget: the largest acceptable error of the model's output, as the metric measures it: layers that would
            exceed it stay as they are, the most harmful ones first.
        metric: `(reference, output) -> float`, as for `approximate`. By default `max_relative_difference`.
        filter_fn: `(module, name) -> bool`, whether a layer may be replaced. By default all.

    Raises:
        OptionError: an unknown scheme, static activations or a budget without calibration, a calibration that does not
            fit the model, a model without a layer to quantize. The model is unchanged.
        PassError: a layer could not be replaced. The model is unchanged.
        Exception: the metric or the filter raised it. The model is unchanged.
    """
    int8_rule = _checked(model, calibration, weights, activations, budget, metric, filter_fn)
    batches = [] if calibration is None else batches_of(calibration)
    root = root_of(model)
    rule = _Filtered(int8_rule, None if filter_fn is None else _taken(root, int8_rule, filter_fn))
    limit = math.inf if budget is None else budget
    before = _weight_bytes(root)
    with evaluating(root), Progress("quantize") as progress:
        work = Work(root, batches, [], metric or max_relative_difference, limit, shared=True, at=progress.at)
        work.at("the original's outputs")
        for number, batch in enumerate(batches):
            work.reference.append(_reference(root, batch, number, len(batches)))
        try:
            _, refused, whole_error = apply_rule(work, rule)
            if not work.installed and whole_error <= limit:
                raise OptionError(_no_layer(root, refused, filter_fn), fix=_no_layer_fix(root, refused))
            report = QuantizationReport(
                model,
                activations,
                _layers(work),
                tuple(refused),
                _output(work),
                work.error() if batches else math.nan,
                limit,
                (before, _weight_bytes(root)),
                work.installed,
            )
        except BaseException:
            work.retreat(0)
            raise
    for item in work.installed:
        item.new.train(item.old.training)  # the mode of the place, now that the model is in its own again
    return report


@record
class _Filtered:
    """The rule for the layers that the caller's filter took, by name; None: all."""

    rule: Int8
    taken: frozenset[str] | None

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def calibrated(self) -> bool:
        return self.rule.calibrated

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        verdict = self.rule.applies(name, module)
        return verdict if not verdict or self.taken is None or name in self.taken else False

    def replace(self, module: nn.Module, statistics: Statistics | None) -> Any:
        return self.rule.replace(module, statistics)


def _taken(root: nn.Module, rule: Int8, filter_fn: Filter) -> frozenset[str]:
    """The names of the layers that the filter takes. What it raises is the caller's, and no failure of the rule."""
    layers = ((root_of(site.module), site.name) for site in sites_of(root))
    return frozenset(name for layer, name in layers if rule.applies(name, layer) and filter_fn(layer, name))


def _checked(
    model: object,
    calibration: Any,
    weights: object,
    activations: Activations,
    budget: object,
    metric: object,
    filter_fn: Filter | None,
) -> Int8:
    if not isinstance(model, nn.Module):
        raise OptionError(f"quantize() takes a module, got {type(model).__name__}", fix="pass the model")
    if weights != "int8":
        raise OptionError(f'weights is {weights!r}, expected "int8"', fix='pass weights="int8"')
    rule = int8(activations)
    if calibration is None and activations == "static":
        raise OptionError(
            'activations="static" without calibration: the scales are taken from inputs',
            fix='pass calibration=[inputs, ...], or activations="dynamic", which needs none',
        )
    if budget is not None and (not isinstance(budget, (int, float)) or not budget >= 0):
        raise OptionError(f"budget is {budget!r}, expected a number from 0 on", fix="pass for example 0.05")
    if budget is not None and calibration is None:
        raise OptionError(
            "budget without calibration: errors are measured on inputs", fix="pass calibration=[inputs, ...]"
        )
    if metric is not None and not callable(metric):
        raise OptionError(
            f"metric is {metric!r}, expected a function", fix="pass (reference, output) -> float"
        )
    if filter_fn is not None and not callable(cast(object, filter_fn)):
        raise OptionError(
            f"filter_fn is {filter_fn!r}, expected a function", fix="pass (module, name) -> bool"
        )
    return rule


def _reference(root: nn.Module, batch: Any, number: int, count: int) -> Any:
    try:
        return run(root, batch)
    except Exception as error:
        which = "calibration" if count == 1 else f"set {number} of calibration"
        raise OptionError(
            f"{which} does not fit the model, which raised {text_of(error)}",
            fix="pass what the model is called with: a tensor, a tuple of arguments, a dict of keyword arguments, or "
            "a list of those",
        ) from error


def _no_layer(root: nn.Module, refused: Sequence[Refusal], filter_fn: Filter | None) -> str:
    if refused:
        return f"no layer can be quantized; of {refused[0].name!r}: {refused[0].reason}"
    if filter_fn is not None and any(
        Int8().applies(site.name, root_of(site.module)) for site in sites_of(root)
    ):
        return "filter_fn takes no linear layer or convolution"
    return f"{type(root).__name__} has no linear layer or convolution to quantize"


def _no_layer_fix(root: nn.Module, refused: Sequence[Refusal]) -> str:
    if not refused and Int8().applies("", root):
        return "modules are replaced inside of others: pass nn.Sequential(layer)"
    return "nn.Linear, nn.Conv1d to Conv3d and transformers' Conv1D are quantized; embeddings and subclasses are not"


def _layers(work: Work) -> tuple[LayerReport, ...]:
    """Each new module against the one it replaced, on what reached that in the model as it was."""
    found = {
        item.site.name: LayerReport(item.site.name, math.nan, math.nan, math.nan) for item in work.installed
    }
    if not work.batches:
        return tuple(found.values())
    for item in reversed(work.installed):
        item.take_out()

    def hook_of(name: str, new: nn.Module) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            found[name] = found[name].worse(layer_report(name, output, new.forward(*args, **kwargs)))

        return hook

    handles = [
        item.old.register_forward_hook(hook_of(item.site.name, item.new), with_kwargs=True)
        for item in work.installed
    ]
    try:
        with pristine.no_grad():
            for batch in work.batches:
                run(work.root, batch)
    finally:
        for handle in handles:
            handle.remove()
        for item in work.installed:
            item.put()
    return tuple(found.values())


def _output(work: Work) -> OutputReport | None:
    """The output against that of the model as it was: the worst of all sets."""
    found: OutputReport | None = None
    for reference, batch in zip(work.reference, work.batches, strict=True):
        now = output_report(reference, run(work.root, batch))
        found = now if found is None else found.worse(now)
    return found


def _weight_bytes(root: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*root.parameters(), *root.buffers()))
