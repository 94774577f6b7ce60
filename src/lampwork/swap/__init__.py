"""Put other modules in the place of a model's own: `lampwork.swap`."""

from __future__ import annotations

from lampwork.swap.difference import Difference
from lampwork.swap.replacement import Functional
from lampwork.swap.report import Change, SwapReport, Unmatched
from lampwork.swap.swap import swap

__all__ = ["Change", "Difference", "Functional", "SwapReport", "Unmatched", "swap"]
