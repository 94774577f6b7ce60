"""The report of an approximation."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from lampwork.display import Block, Shown, Table
from lampwork.records import record
from lampwork.standard import math
from lampwork.swapping.install import Installed, take_all_out


@record
class Refusal(Shown):
    """A module that a rule applies to but did not replace."""

    name: str
    reason: str


@record
class RuleReport(Shown):
    """The outcome of one rule.

    `kept`: names of the modules it replaced. `whole_error`: the error with the rule applied wherever possible, on top
    of earlier rules; `error`: the error with the modules that were kept. `speedup`: the time of a compiled call before
    the rule divided by the time after it; 1 if nothing was kept, NaN if it was not measured.
    """

    rule: str
    kept: tuple[str, ...]
    refused: tuple[Refusal, ...]
    whole_error: float
    error: float
    speedup: float

    @property
    def verdict(self) -> str:
        """One clause: what was kept, and why no more."""
        total = len(self.kept) + len(self.refused)
        if not total:
            return "no module for it"
        if not self.refused:
            return "kept"
        if not self.kept:
            return f"refused: {self.refused[-1].reason}"
        return f"kept where it fits: {len(self.kept)} of {total}"


@record
class ApproximationReport(Shown):
    """What `approximate` changed. `str()` lists it, `undo()` reverts it.

    `error`: the error of the model against the original. `seconds`: the time of a compiled call of the original and of
    the approximation; `speedup`: their quotient; NaN if not measured. `parameter_bytes`: before and after.
    """

    model: nn.Module
    rules: tuple[RuleReport, ...]
    error: float
    budget: float
    speedup: float
    seconds: tuple[float, float]
    parameter_bytes: tuple[int, int]
    _installed: list[Installed]

    def undo(self) -> None:
        """Put every old module back, with the weights it had, in the mode that its replacement is in now. A second call
        does nothing.

        Raises:
            OptionError: a module has been swapped since; the rest stays as it is.
        """
        take_all_out(self._installed)

    def _brief(self) -> str:
        kept = sum(len(rule.kept) for rule in self.rules)
        brief = f"{type(self.model).__name__}: {kept} modules approximated, {_error(self)}"
        return brief if math.isnan(self.speedup) else f"{brief}, speed-up {self.speedup:.2f}x"

    def _blocks(self) -> Iterable[Block]:
        rows: list[tuple[str, ...]] = []
        for rule in self.rules:
            speed = "-" if math.isnan(rule.speedup) else f"{rule.speedup:.2f}x"
            errors = f"{rule.whole_error:.3g}", f"{rule.error:.3g}"
            rows.append((rule.rule, str(len(rule.kept)), *errors, speed, rule.verdict))
        yield Table(("rule", "modules", "error if whole", "error", "speed-up", ""), tuple(rows))
        yield _error(self)
        if not math.isnan(self.speedup):
            a, b = self.seconds
            yield f"speed-up {self.speedup:.2f}x ({a * 1e3:.3g} ms -> {b * 1e3:.3g} ms, compiled)"
        before, after = self.parameter_bytes
        yield f"parameters {before:,} -> {after:,} bytes"

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))


def _error(report: ApproximationReport) -> str:
    return f"error {report.error:.3g} of a budget of {report.budget:.3g}"
