"""The report as one HTML file: the page, with the data in it.

The page (`assets/report.html`) needs nothing else and asks for nothing; its policy allows no script but its own, and
the data is a script of type application/json, which a browser never runs. What could end that element early, in a name
or in a source line, is written as an escape of JSON.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from lampwork.errors import ReportError, text_of
from lampwork.written import write_whole

PLACE = '<script type="application/json" id="lampwork-data">null</script>'
"""What the data goes into, once in the page."""

COMPRESSED = 1 << 20
"""Characters of JSON from which it is compressed: browsers unpack gzip themselves."""

_ESCAPES = {each: f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
"""What could end the element, or begin another one; none of it occurs in JSON outside of strings."""


def to_html(data: Mapping[str, Any]) -> str:
    """The report of `report_data` as an HTML document.

    Raises:
        ReportError: the page is not part of this installation.
    """
    found = template()
    if found.count(PLACE) != 1:
        raise ReportError("the page of the report has no place for its data", fix="install Lampwork again")
    text = to_json(data)
    if len(text) < COMPRESSED:
        element = PLACE.replace("null", text)
    else:
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        element = PLACE.replace(">null", f' data-encoding="gzip-base64">{packed}')
    return found.replace(PLACE, element)


def to_json(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element, whatever its strings are."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for each, escape in _ESCAPES.items():
        text = text.replace(each, escape)
    # Surrogates alone, as names of files may hold, are no text: these become escapes too.
    return text.encode("utf-8", "backslashreplace").decode()


def template() -> str:
    """The page without data."""
    file = resources.files("lampwork.inspect.report") / "assets" / "report.html"
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(
            f"the page of the report cannot be read: {text_of(error)}", fix="install Lampwork again"
        ) from error


def save(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the report of `report_data` to a file; gives its path. A file that is there is replaced, as a whole.

    Raises:
        ReportError: it cannot be written.
    """
    return write_whole(path, to_html(data), "the report", ReportError)
