"""A failing model as a small script."""

from __future__ import annotations

from lampwork.minifying.command import Minified, minify

__all__ = ["Minified", "minify"]
