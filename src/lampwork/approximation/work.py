"""Rules at work on a model: what each replaces, and how much of that an error budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from lampwork.approximation.report import Refusal
from lampwork.approximation.rule import ApproximationRule, is_calibrated, is_sequential
from lampwork.approximation.statistics import Statistics, collect
from lampwork.errors import OptionError, PassError, text_of
from lampwork.standard import math
from lampwork.swapping.difference import run
from lampwork.swapping.install import Installed, install
from lampwork.swapping.sites import Site, root_of, sites_of
from lampwork.verdict import No

Metric = Callable[[Any, Any], float]
"""(reference, output) -> error of an output of a model."""


def _silent(text: str) -> None:
    """Tells nobody."""


@dataclass(slots=True)
class Work:
    """The model under approximation. `installed` is what is in it now, in the order of its coming.

    shared: whether modules may be replaced whose parameters others have too: those keep them.
    at: told what is being done.
    """

    root: nn.Module
    batches: Sequence[Any]
    reference: list[Any]
    metric: Metric
    budget: float
    installed: list[Installed] = field(default_factory=list[Installed])
    statistics: dict[int, Statistics] = field(default_factory=dict[int, Statistics])
    shared: bool = False
    at: Callable[[str], None] = _silent

    def calibrate(self, rule: ApproximationRule, sites: Sequence[Site]) -> None:
        """Take statistics for all modules of a rule at once, unless it wants them one by one, or none."""
        self.statistics.clear()
        if sites and is_calibrated(rule) and not is_sequential(rule):
            modules = [site.module for site in sites]
            taken = collect(modules, self._run_all)
            self.statistics.update(zip(map(id, modules), taken, strict=True))

    def error(self) -> float:
        """The largest of the sets of inputs. Infinite if one is NaN."""
        if not self.installed or not self.batches:
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
        other = None if self.shared else _shares(self.root, site.module, new)
        if other is not None:
            return No(f"it shares parameters with {other!r}")
        self.installed.append(install(site, new, fits=False))
        return None

    def _run_all(self) -> None:
        for batch in self.batches:
            run(self.root, batch)


def apply_rule(work: Work, rule: ApproximationRule) -> tuple[list[str], list[Refusal], float]:
    """(names of what was replaced, what was not, the error with the rule applied wherever it can be)."""
    sites, refused = _sites(work, rule)
    work.at(f"{rule.name}: statistics of {len(sites)} modules")
    work.calibrate(rule, sites)
    start = len(work.installed)
    able: list[Site] = []
    for number, site in enumerate(sites, 1):
        work.at(f"{rule.name}: {site.name}, {number} of {len(sites)}")
        no = work.apply(rule, site)
        if no is None:
            able.append(site)
        else:
            refused.append(Refusal(site.name, no.reason))
    work.at(f"{rule.name}: the error of the whole")
    whole_error = work.error()
    if whole_error <= work.budget:
        return [site.name for site in able], refused, whole_error
    work.retreat(start)
    kept: list[str] = []
    harm = sorted(_harm(work, rule, able), key=lambda pair: pair[1])
    for number, (site, alone) in enumerate(harm, 1):
        work.at(f"{rule.name}: {site.name} with those before it, {number} of {len(harm)}")
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


def _harm(work: Work, rule: ApproximationRule, sites: Sequence[Site]) -> list[tuple[Site, float]]:
    """Each site with the error of the model when it alone comes to what is there."""
    harm: list[tuple[Site, float]] = []
    for number, site in enumerate(sites, 1):
        work.at(f"{rule.name}: {site.name} alone, {number} of {len(sites)}")
        length = len(work.installed)
        work.apply(rule, site)
        harm.append((site, work.error()))
        work.retreat(length)
    return harm


def _sites(work: Work, rule: ApproximationRule) -> tuple[list[Site], list[Refusal]]:
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


def batches_of(calibration: Any) -> list[Any]:
    if isinstance(calibration, (Tensor, tuple, Mapping)):
        return [calibration]
    batches = list(cast("Iterable[Any]", calibration)) if isinstance(calibration, Iterable) else []
    if not batches:
        raise OptionError(
            f"calibration holds no inputs, got {type(calibration).__name__}",
            fix="pass a tensor, a tuple of arguments, a dict of keyword arguments, or a list of those",
        )
    return batches
