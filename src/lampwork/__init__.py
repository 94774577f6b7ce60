"""Lampwork: a just-in-time compiler for PyTorch.

model = lampwork.compile(model)
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from lampwork.installed import check_extension

# Before anything imports the extension.
check_extension(Path(__file__).parent, torch.__version__)

from lampwork import config, optimizers, patterns, testing
from lampwork.api import compile, reset, reset_stats, stats
from lampwork.approximation import approximate, quantize
from lampwork.artifacts import LoadedModel, load
from lampwork.backends.registry import list_backends, register_backend
from lampwork.capture.state.asked import allow_in_graph, graph_break, is_compiling
from lampwork.capture.state.dynamic import mark_dynamic, mark_static
from lampwork.compiled.marks import disable
from lampwork.compiled.stance import set_stance
from lampwork.errors import LampworkError, LampworkWarning
from lampwork.exports import Exported, export
from lampwork.inspect import Explanation, explain
from lampwork.inspect.compare import compare
from lampwork.inspect.dry_run import partition
from lampwork.inspect.profile import Profile, profile
from lampwork.inspect.rewrites import rewrites
from lampwork.inspect.why import why_not
from lampwork.minifying import Minified, minify
from lampwork.placement import place
from lampwork.registration import passes, register_pass, rewrite, sequence
from lampwork.swapping import swap
from lampwork.verdict import No, Yes
from lampwork.version import __version__

__all__ = [
    "Explanation",
    "Exported",
    "LampworkError",
    "LampworkWarning",
    "LoadedModel",
    "Minified",
    "No",
    "Profile",
    "Yes",
    "__version__",
    "allow_in_graph",
    "approximate",
    "compare",
    "compile",
    "config",
    "disable",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "load",
    "mark_dynamic",
    "mark_static",
    "minify",
    "optimizers",
    "partition",
    "passes",
    "patterns",
    "place",
    "profile",
    "quantize",
    "register_backend",
    "register_pass",
    "reset",
    "reset_stats",
    "rewrite",
    "rewrites",
    "sequence",
    "set_stance",
    "stats",
    "swap",
    "testing",
    "why_not",
]

config.check_environment()

if os.environ.get("TORCH_TRACE"):  # where torch, too, has looked for it by now
    from lampwork.exports.tracing import begin

    begin()
