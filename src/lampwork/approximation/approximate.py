"""`lampwork.approximate`: approximations of a model within a budget of error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from lampwork.approximation.activations import gelu_to_relu, gelu_to_tanh
from lampwork.approximation.metrics import max_relative_difference
from lampwork.approximation.norms import layer_norm_to_affine
from lampwork.approximation.report import ApproximationReport, Refusal, RuleReport
from lampwork.approximation.rule import ApproximationRule, is_calibrated, is_sequential
from lampwork.approximation.speed import Compiled, times
from lampwork.approximation.statistics import Statistics, collect
from lampwork.approximation.weights import bf16_weights, low_rank
from lampwork.errors import OptionError, PassError, text_of
from lampwork.standard import math
from lampwork.swapping.difference import evaluating, run
from lampwork.swapping.install import Installed, install
from lampwork.swapping.sites import Site, root_of, sites_of
from lampwork.verdict import No

Metric = Callable[[Any, Any], float]

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
    batches = _batches(calibration)
    root = root_of(model)
    with evaluating(root):
        work = _Work(root, batches, [], metric or max_relative_difference, budget)
        work.reference.extend(run(root, batch) for batch in batches)
        try:
            report = _approximate(model, work, chosen, measure_speed, min_speedup)
        except BaseException:
            work.retreat(0)
            raise
    for item in work.installed:
        item.new.train(item.old.training)  # the mode of the place, now that the model is in its own again
    return report


@dataclass(slots=True)
class _Work:
    """The model under approximation. `installed` is what is in it now, in the order of its coming."""

    root: nn.Module
    batches: Sequence[Any]
    reference: list[Any]
    metric: Metric
    budget: float
    installed: list[Installed] = field(default_factory=list[Installed])
    statistics: dict[int, Statistics] = field(default_factory=dict[int, Statistics])

    def calibrate(self, rule: ApproximationRule, sites: Sequence[Site]) -> None:
        """Take statistics for all modules of a rule at once, unless it wants them one by one, or none."""
        self.statistics.clear()
        if sites and is_calibrated(rule) and not is_sequential(rule):
            modules = [site.module for site in sites]
            taken = collect(modules, self._run_all)
            self.statistics.update(zip(map(id, modules), taken, strict=True))

    def error(self) -> float:
        """The largest of the sets of inputs. Infinite if one is NaN."""
        if not self.installed:
            return 0.0
        errors = [
            float(self.metric(reference, run(self.root, batch)))
            for reference, batch in zip(self.reference, self.batches, strict=True)
        ]
        return math.inf if any(map(math.isnan, errors)) else max(errors)

    def retreat(self, length: int) -> None:
        """Take out what came last until `length` modules are in."""
        while len(self.installed) > length:
            self.installed.pop().take_out()

    def apply(self, rule: ApproximationRule, site: Site) -> No | None:
        """Replace the module of the site, or say why not.

        Raises:
            PassError: the rule failed.
        """
        statistics = self.statistics.get(id(site.module))
        if statistics is None and is_calibrated(rule):
            statistics = collect([site.module], self._run_all)[0]
        try:
            new = rule.replace(root_of(site.module), statistics)
        except Exception as error:
            raise PassError(
                f"the approximation {rule.name!r} failed on {site.name!r}: {text_of(error)}",
                fix="return lampwork.No(reason) from replace() for modules that it cannot replace",
            ) from error
        if isinstance(new, No):
            return new
        if not isinstance(cast(object, new), nn.Module):
            raise PassError(
                f"the approximation {rule.name!r} made {type(new).__name__} of {site.name!r}, expected a module",
                fix="return an nn.Module or lampwork.No(reason) from replace()",
            )
        other = _shares(self.root, site.module, new)
        if other is not None:
            return No(f"it shares parameters with {other!r}")
        self.installed.append(install(site, new, fits=False))
        return None

    def _run_all(self) -> None:
        for batch in self.batches:
            run(self.root, batch)


def _approximate(
    model: nn.Module,
    work: _Work,
    rules: Sequence[ApproximationRule],
    measure_speed: bool,
    min_speedup: float | None,
) -> ApproximationReport:
    bytes_before = _parameter_bytes(work.root)
    first = last = Compiled(work.root, work.batches[0]) if measure_speed and rules else None
    reports: list[RuleReport] = []
    for rule in rules:
        length = len(work.installed)
        kept, refused, whole_error = _apply_rule(work, rule)
        speedup = math.nan if last is None else 1.0
        if last is not None and kept:
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


def _apply_rule(work: _Work, rule: ApproximationRule) -> tuple[list[str], list[Refusal], float]:
    """(names of what was replaced, what was not, the error with the rule applied wherever it can be)."""
    sites, refused = _sites(work, rule)
    work.calibrate(rule, sites)
    start = len(work.installed)
    able: list[Site] = []
    for site in sites:
        no = work.apply(rule, site)
        if no is None:
            able.append(site)
        else:
            refused.append(Refusal(site.name, no.reason))
    whole_error = work.error()
    if whole_error <= work.budget:
        return [site.name for site in able], refused, whole_error
    work.retreat(start)
    kept: list[str] = []
    for site, alone in sorted(_harm(work, rule, able), key=lambda pair: pair[1]):
        if alone > work.budget:
            refused.append(Refusal(site.name, f"with it alone the error is {alone:.3g}"))
            continue
        length = len(work.installed)
        no = work.apply(rule, site)
        if no is not None:
            refused.append(Refusal(site.name, no.reason))
            continue
        error = work.error()
        if error <= work.budget:
            kept.append(site.name)
        else:
            work.retreat(length)
            refused.append(Refusal(site.name, f"with it the error is {error:.3g}"))
    return kept, refused, whole_error


def _harm(work: _Work, rule: ApproximationRule, sites: Sequence[Site]) -> list[tuple[Site, float]]:
    """Each site with the error of the model when it alone comes to what is there."""
    harm: list[tuple[Site, float]] = []
    for site in sites:
        length = len(work.installed)
        work.apply(rule, site)
        harm.append((site, work.error()))
        work.retreat(length)
    return harm


def _sites(work: _Work, rule: ApproximationRule) -> tuple[list[Site], list[Refusal]]:
    sites: list[Site] = []
    refused: list[Refusal] = []
    for site in sites_of(work.root):
        try:
            verdict = rule.applies(site.name, root_of(site.module))
        except Exception as error:
            raise PassError(
                f"the approximation {rule.name!r} failed on {site.name!r}: {text_of(error)}",
                fix="return False from applies() for modules that it is not made for",
            ) from error
        if verdict:
            sites.append(site)
        elif isinstance(verdict, No):
            refused.append(Refusal(site.name, verdict.reason))
    return sites, refused


def _shares(root: nn.Module, old: nn.Module, new: nn.Module) -> str | None:
    """The name of a parameter outside of the module `old` that is one of its own and is none of `new`'s."""
    own = {id(p) for p in old.parameters()} - {id(p) for p in new.parameters()}
    inside = {id(module) for module in old.modules()}
    for prefix, module in root.named_modules():
        if id(module) in inside:
            continue
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) in own:
                return f"{prefix}.{name}" if prefix else name
    return None


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


def _batches(calibration: Any) -> list[Any]:
    if isinstance(calibration, (Tensor, tuple, Mapping)):
        return [calibration]
    batches = list(cast("Iterable[Any]", calibration)) if isinstance(calibration, Iterable) else []
    if not batches:
        raise OptionError(
            f"calibration holds no inputs, got {type(calibration).__name__}",
            fix="pass a tensor, a tuple of arguments, a dict of keyword arguments, or a list of those",
        )
    return batches


def _parameter_bytes(root: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in root.parameters())
