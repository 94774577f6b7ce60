"""What became of a function: its regions, breaks, guards and operators, as data, as text and as JSON."""

from __future__ import annotations

from lampwork.inspect.explain import Explainer, explain
from lampwork.inspect.explanation import Explanation, FunctionReport, GuardLine, RegionReport
from lampwork.inspect.report import report_data

__all__ = [
    "Explainer",
    "Explanation",
    "FunctionReport",
    "GuardLine",
    "RegionReport",
    "explain",
    "report_data",
]
