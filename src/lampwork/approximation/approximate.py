"""`lampwork.approximate`: approximations of a model within a budget of error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import nn

from lampwork.approximation.activations import gelu_to_relu, gelu_to_tanh
from lampwork.approximation.metrics import max_relative_difference
from lampwork.approximation.norms import layer_norm_to_affine
from lampwork.approximation.report import ApproximationReport, Refusal, RuleReport
from lampwork.approximation.rule import ApproximationRule
from lampwork.approximation.speed import Compiled, times
from lampwork.approximation.weights import bf16_weights, low_rank
from lampwork.approximation.work import Metric, Work, apply_rule, batches_of
from lampwork.errors import OptionError
from lampwork.progress import Progress
from lampwork.standard import math
from lampwork.swapping.difference import evaluating, run
from lampwork.swapping.sites import root_of

_NAMED: tuple[Callable[[], ApproximationRule], ...] = (
    lambda: gelu_to_relu,
    lambda: gelu_to_tanh,
    lambda: layer_norm_to_affine,
    low_rank,
    bf16_weights,
)


def approximate(
    model: nn.Module,
    rules: Sequence[ApproximationRule | str] | ApproximationRule | str,
    *,
    calibration: Any,
    budget: float,
    metric: Metric | None = None,
    measure_speed: bool = True,
    min_speedup: float | None = None,
) -> ApproximationReport:
    """Replace modules of a model by others that compute nearly the same, as long as the error stays within a budget.

    before:  model.encoder.act = nn.GELU()
    after:   model.encoder.act = nn.ReLU()          approximate(model, ["gelu-to-relu"], calibration=x, budget=0.02)

    The rules are tried in order, each on the model as earlier rules left it. A rule is first applied wherever possible.
    If the error then exceeds the budget, the rule is applied module by module instead: each module is tried alone, and
    then modules are added, least harmful first, as long as the total error stays within the budget. Modules that share
    parameters with others are not replaced.

    The model is changed in place, and its modules hold real parameters, so it can be trained further. Errors are
    measured in evaluation mode, whatever mode the model is in. Only modules are replaced, not functions that a forward
    calls.

    Args:
        model: a module, compiled or not.
        rules: a rule or a list of rules: of this package, such as `gelu_to_relu` or `low_rank(energy=0.9)`; by name
            ("gelu-to-relu", "gelu-to-tanh", "layer-norm-to-affine", "low-rank", "bf16-weights"); or your own, with the
            methods of ApproximationRule.
        calibration: a set of inputs (a tensor, a tuple of arguments, a dict of keyword arguments), or an iterable of
            sets. Errors are measured on them and calibrated rules take statistics from them, so they should resemble
            the inputs that the model will see.
        budget: the largest acceptable error of all rules together, as the metric measures it.
        metric: `(reference, output) -> float`, called with the outputs of the original and of the approximation for
            each set of inputs; the largest value counts. By default `max_relative_difference`.
        measure_speed: compile the model before and after each rule and time calls on the first set of inputs.
        min_speedup: revert a rule whose measured speed-up is smaller. By default speed does not matter.

    Raises:
        OptionError: an unknown rule, no inputs, a budget that is negative or not a number, a metric or a `min_speedup`
            of another type, or a `min_speedup` without `measure_speed`. The model is unchanged.
        PassError: a rule failed; the message names the rule and the module. The model is unchanged.
        Exception: the model or the metric raised it. The model is unchanged.
    """
    if not isinstance(cast(object, model), nn.Module):
        raise OptionError(f"approximate() takes a module, got {type(model).__name__}", fix="pass the model")
    if not isinstance(cast(object, budget), (int, float)) or not budget >= 0:
        raise OptionError(f"budget is {budget!r}, expected a number from 0 on", fix="pass for example 0.01")
    if metric is not None and not callable(metric):
        raise OptionError(
            f"metric is {metric!r}, expected a function", fix="pass (reference, output) -> float"
        )
    if min_speedup is not None and not isinstance(cast(object, min_speedup), (int, float)):
        raise OptionError(f"min_speedup is {min_speedup!r}, expected a number", fix="pass for example 1.05")
    if min_speedup is not None and not measure_speed:
        raise OptionError("min_speedup is given and no speed is measured", fix="leave measure_speed at True")
    chosen = [_rule(given) for given in (rules if isinstance(rules, (list, tuple)) else [rules])]
    batches = batches_of(calibration)
    root = root_of(model)
    with evaluating(root), Progress("approximate") as progress:
        work = Work(root, batches, [], metric or max_relative_difference, budget, at=progress.at)
        work.at("the original's outputs")
        work.reference.extend(run(root, batch) for batch in batches)
        try:
            report = _approximate(model, work, chosen, measure_speed, min_speedup)
        except BaseException:
            work.retreat(0)
            raise
    for item in work.installed:
        item.new.train(item.old.training)  # the mode of the place, now that the model is in its own again
    return report


def _approximate(
    model: nn.Module,
    work: Work,
    rules: Sequence[ApproximationRule],
    measure_speed: bool,
    min_speedup: float | None,
) -> ApproximationReport:
    bytes_before = _parameter_bytes(work.root)
    if measure_speed and rules:
        work.at("the original, compiled")
    first = last = Compiled(work.root, work.batches[0]) if measure_speed and rules else None
    reports: list[RuleReport] = []
    for rule in rules:
        length = len(work.installed)
        kept, refused, whole_error = apply_rule(work, rule)
        speedup = math.nan if last is None else 1.0
        if last is not None and kept:
            work.at(f"{rule.name}: the model compiled, and timed")
            now = Compiled(work.root, work.batches[0])
            speedup = times(last, now)[2]
            if min_speedup is not None and speedup < min_speedup:
                work.retreat(length)
                refused += [Refusal(name, f"the speed-up is {speedup:.2f}x") for name in kept]
                kept = []
            else:
                last = now
        reports.append(RuleReport(rule.name, tuple(kept), tuple(refused), whole_error, work.error(), speedup))
    before, after, speedup = (math.nan, math.nan, math.nan)
    if first is not None and last is not None:
        work.at("the original and the approximation, timed")
        before, after, speedup = times(first, last)
    return ApproximationReport(
        model,
        tuple(reports),
        work.error(),
        work.budget,
        speedup,
        (before, after),
        (bytes_before, _parameter_bytes(work.root)),
        work.installed,
    )


def _rule(given: Any) -> ApproximationRule:
    if isinstance(given, str):
        known = {rule.name: rule for rule in (make() for make in _NAMED)}
        if given not in known:
            raise OptionError(
                f"unknown approximation {given!r}", fix=f"the known ones are {', '.join(known)}"
            )
        return known[given]
    if isinstance(given, ApproximationRule) and not isinstance(given, type):
        return given
    hint = "call it to make the rule: low_rank()" if callable(given) else "see ApproximationRule"
    raise OptionError(f"a rule has a name and the methods applies and replace, got {given!r}", fix=hint)


def _parameter_bytes(root: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in root.parameters())
