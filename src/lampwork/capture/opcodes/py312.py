"""Instructions of CPython 3.12."""

from __future__ import annotations

from lampwork.capture.opcodes.common import Handler

TABLE: dict[str, Handler] = {}
