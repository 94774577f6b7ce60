"""Handlers of bytecode instructions, named exactly as the opcodes; one table per version of CPython."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from lampwork.capture.model.frame import Handler
from lampwork.capture.opcodes import py311, py312, py313, py314

# The module of each version: its OPCODES, what is REFUSED and why, and what decoding has FOLDED away.
VERSIONS = {(3, 11): py311, (3, 12): py312, (3, 13): py313, (3, 14): py314}


def table_for(version: tuple[int, int]) -> Mapping[str, Handler]:
    """Opcode name → handler of a version of CPython.

    Raises:
        KeyError: Lampwork does not know the bytecode of this version.
    """
    return VERSIONS[version].OPCODES


def running_table() -> Mapping[str, Handler]:
    """The table of the Python that is running."""
    return table_for((sys.version_info.major, sys.version_info.minor))
