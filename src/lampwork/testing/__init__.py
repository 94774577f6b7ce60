"""Batteries of checks for plug-ins: run them in the tests of your own backend or rewrite.

from lampwork.testing import check_backend, check_rewrite
check_backend(MyBackend)
check_rewrite(MyRewrite)
"""

from __future__ import annotations

from lampwork.testing.backend import check_backend
from lampwork.testing.failing import Failure, failure
from lampwork.testing.promises import BACKEND_PROMISES, Promise
from lampwork.testing.report import Check, ConformanceError, Report
from lampwork.testing.rewrite import check_rewrite

__all__ = [
    "BACKEND_PROMISES",
    "Check",
    "ConformanceError",
    "Failure",
    "Promise",
    "Report",
    "check_backend",
    "check_rewrite",
    "failure",
]
