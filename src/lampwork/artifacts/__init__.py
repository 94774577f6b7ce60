"""Artifacts: `.lamp` files, models that run without their source and without a compiler.

A file is a safetensors file: `container.py` writes and reads it, `manifest.py` says what is in it, and `trees.py` how a
call passes its tensors. `loading.py` makes a `LoadedModel` of one: `programs.py` links its code, or compiles its graphs
where the code is not trusted (`trust.py`), and `calls.py` runs them. `exports/lamp.py` makes such files of models.
"""

from __future__ import annotations

from lampwork.artifacts.calls import LoadedEntry
from lampwork.artifacts.inspecting import Inspection, inspect
from lampwork.artifacts.loading import load
from lampwork.artifacts.model import LoadedModel
from lampwork.artifacts.trust import generate_key, sign, verify

__all__ = [
    "Inspection",
    "LoadedEntry",
    "LoadedModel",
    "generate_key",
    "inspect",
    "load",
    "sign",
    "verify",
]
