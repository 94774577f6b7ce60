"""Lampwork: a just-in-time compiler for PyTorch."""

from __future__ import annotations

__version__ = "0.1.0"
