"""What became of a function: its regions, breaks, guards and operators, as data, as text and as JSON."""

from __future__ import annotations

from lampwork.inspect.explain import Explainer, explain
from lampwork.inspect.explanation import Explanation, GuardLine, RegionReport

__all__ = ["Explainer", "Explanation", "GuardLine", "RegionReport", "explain"]
