"""What became of a function: its regions, breaks, guards and operators, as data, as text and as JSON."""

from __future__ import annotations

from lampwork.inspect.difference import Difference, Finding, diff
from lampwork.inspect.explain import Explainer, explain
from lampwork.inspect.explanation import Explanation, FunctionReport, GuardLine, RegionReport
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
