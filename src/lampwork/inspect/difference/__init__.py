"""What differs between two reports: of two commits, two machines, two sets of options."""

from __future__ import annotations

from lampwork.inspect.difference.compare import THRESHOLD, diff
from lampwork.inspect.difference.difference import KINDS, Difference, Finding

__all__ = ["KINDS", "THRESHOLD", "Difference", "Finding", "diff"]
