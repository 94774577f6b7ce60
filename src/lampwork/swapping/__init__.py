"""Put other modules in the place of a model's own: `lampwork.swap`."""

from __future__ import annotations

from lampwork.swapping.difference import Difference
from lampwork.swapping.replacement import Functional
from lampwork.swapping.report import Change, SwapReport, Unmatched
from lampwork.swapping.swap import swap

__all__ = ["Change", "Difference", "Functional", "SwapReport", "Unmatched", "swap"]
