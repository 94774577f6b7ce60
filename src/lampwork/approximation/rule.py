"""What a rule of `lampwork.approximate` is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

from lampwork.approximation.statistics import Statistics
from lampwork.verdict import No, Verdict


@runtime_checkable
class ApproximationRule(Protocol):
    """A way to replace modules by others that compute nearly the same.

    `name` stands in the report. Two more attributes are looked at where they are there. `calibrated = False`: the rule
    needs no statistics. `sequential = True`: statistics of each module are taken anew with the modules before it
    replaced, at the price of a pass over the calibration inputs for each; else one pass serves all modules of the rule.
    """

    @property
    def name(self) -> str: ...

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        """Whether the module is one for this rule. False: it is none of its kind. No(reason): it is, but cannot be
        replaced; the report says why."""
        ...

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        """A new module with the call signature of `module`, which stays as it is; or why there is none.

        statistics: of the module's inputs and outputs on the calibration inputs, in the model with what was kept of the
        rules before this one; None if the rule is not calibrated.
        """
        ...


def is_sequential(rule: ApproximationRule) -> bool:
    """Whether statistics are to be taken module by module."""
    return bool(getattr(rule, "sequential", False))


def is_calibrated(rule: ApproximationRule) -> bool:
    """Whether the rule wants statistics: unless it says otherwise."""
    return bool(getattr(rule, "calibrated", True))
