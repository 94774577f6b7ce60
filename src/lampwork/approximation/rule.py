"""The protocol of a rule for `lampwork.approximate`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

from lampwork.approximation.statistics import Statistics
from lampwork.verdict import No, Verdict


@runtime_checkable
class ApproximationRule(Protocol):
    """A way to replace modules by others that compute nearly the same.

    `name` identifies the rule in the report. Two more attributes are optional. `calibrated = False`: the rule needs no
    statistics. `sequential = True`: the statistics of each module are taken after the modules before it have been
    replaced, which costs a pass over the calibration inputs for each module; by default one pass serves all modules.
    """

    @property
    def name(self) -> str: ...

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        """Whether the rule can replace the module. False: the module is not of the rule's kind. No(reason): it is, but
        cannot be replaced; the report gives the reason."""
        ...

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        """A new module with the call signature of `module`, or a No with the reason why there is none. `module` itself
        must not change.

        statistics: of the module's inputs and outputs on the calibration inputs, in the model as earlier rules left it;
        None if the rule is not calibrated.
        """
        ...


def is_sequential(rule: ApproximationRule) -> bool:
    """Whether the rule wants statistics taken module by module."""
    return bool(getattr(rule, "sequential", False))


def is_calibrated(rule: ApproximationRule) -> bool:
    """Whether the rule wants statistics, which is the default."""
    return bool(getattr(rule, "calibrated", True))
