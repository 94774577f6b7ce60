"""What is known of an outside object."""

from __future__ import annotations

from typing import Any

from lampwork.capture.model.region import Source
from lampwork.records import record


@record(eq=False)
class Entry:
    """An outside object. `known`: the same object on every call."""

    value: Any
    source: Source
    known: bool
    name: str
