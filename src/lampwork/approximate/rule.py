"""What a rule of `lampwork.approximate` is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

from lampwork.approximate.statistics import Statistics
from lampwork.verdict import No, Verdict


@runtime_checkable
class ApproximationRule(Protocol):
    """A way to replace modules by others that compute nearly the same.

    `name` stands in the report. A rule that has `calibrated = False` needs no statistics, and saves the passes over the
    calibration inputs that take them.
    """

    @property
    def name(self) -> str: ...

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        """Whether the module is one for this rule. False: it is none of its kind. No(reason): it is, but cannot be
        replaced; the report says why."""
        ...

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        """A new module with the call signature of `module`, which stays as it is; or why there is none.

        statistics: of the module's inputs and outputs on the calibration inputs, in the model as it is approximated so
        far; None if the rule is not calibrated.
        """
        ...


def is_calibrated(rule: ApproximationRule) -> bool:
    """Whether the rule wants statistics: unless it says otherwise."""
    return bool(getattr(rule, "calibrated", True))
