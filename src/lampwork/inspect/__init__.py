"""What became of a function: its regions, breaks, guards and operators, as data, as text and as JSON."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lampwork.inspect.explain import Explainer, explain
from lampwork.inspect.explanation import Explanation, FunctionReport, GuardLine, RegionReport

if TYPE_CHECKING:
    from lampwork.inspect.difference import Difference, Finding, diff
    from lampwork.inspect.report import report_data

__all__ = [
    "Difference",
    "Explainer",
    "Explanation",
    "Finding",
    "FunctionReport",
    "GuardLine",
    "RegionReport",
    "diff",
    "explain",
    "report_data",
]

_LATER = dict.fromkeys(("Difference", "Finding", "diff"), "difference") | {"report_data": "report"}


def __getattr__(name: str) -> Any:
    """What reports need is loaded when it is first asked for: it would take longer than all of the rest."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found
