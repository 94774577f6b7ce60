"""A call as one region."""

from __future__ import annotations

from typing import Any

from lampwork.capture.model.errors import ProgramRaised
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.config import using_config
from lampwork.errors import CaptureError, GraphBreakError
from lampwork.garbage import without_collections


def captured_whole(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Region:
    """All that a call does, from its start to its return; nothing of it runs.

    Raises:
        GraphBreakError: it is more than one region, or cannot be captured.
        Exception: what the program raises on this call.
    """
    try:
        with using_config(function.config), without_collections():
            region = function.captured(args, kwargs)
    except ProgramRaised as error:
        raise error.error from None
    except CaptureError as error:
        raise GraphBreakError(error.cause, fix=error.fix, location=error.location, code=error.code) from error
    for record in region.breaks:
        raise GraphBreakError(record.cause, fix=record.fix, location=record.location, code=record.code)
    return region
