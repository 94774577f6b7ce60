"""Lampwork: a just-in-time compiler for PyTorch.

model = lampwork.compile(model)
"""

from __future__ import annotations

from lampwork import config, patterns, testing
from lampwork.api import compile, reset, stats
from lampwork.approximate import approximate
from lampwork.backends.registry import list_backends, register_backend
from lampwork.capture.state.dynamic import mark_dynamic
from lampwork.errors import LampworkError
from lampwork.explain import Explanation, explain
from lampwork.function import LampworkWarning
from lampwork.marks import disable
from lampwork.passes.listing import rewrites
from lampwork.passes.register import passes, register_pass, rewrite, sequence
from lampwork.plan import partition
from lampwork.stance import set_stance
from lampwork.swap import swap
from lampwork.verdict import No, Yes
from lampwork.why import why_not

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "LampworkError",
    "LampworkWarning",
    "No",
    "Yes",
    "__version__",
    "approximate",
    "compile",
    "config",
    "disable",
    "explain",
    "list_backends",
    "mark_dynamic",
    "partition",
    "passes",
    "patterns",
    "register_backend",
    "register_pass",
    "reset",
    "rewrite",
    "rewrites",
    "sequence",
    "set_stance",
    "stats",
    "swap",
    "testing",
    "why_not",
]
