"""Compiled programs and graphs as plain data: JSON, and modules of object code. For the cache on disk and for files."""

from __future__ import annotations

from lampwork.serial.graphs import graph_from_json, graph_to_json
from lampwork.serial.layouts import layout_from_json, layout_to_json
from lampwork.serial.modules import Linked, Modules
from lampwork.serial.values import from_text, to_text

__all__ = [
    "Linked",
    "Modules",
    "from_text",
    "graph_from_json",
    "graph_to_json",
    "layout_from_json",
    "layout_to_json",
    "to_text",
]
