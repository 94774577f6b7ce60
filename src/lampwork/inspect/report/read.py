"""Reports read back: the data of a file, and what stands where in it.

Files come from anywhere. Nothing in them is run, sizes are bounded, and a value of another type than is expected is an
error that says where it stands.
"""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from lampwork.display import printable
from lampwork.errors import ReportReadError, text_of
from lampwork.inspect.report.data import FORMAT
from lampwork.inspect.report.page import PLACE
from lampwork.records import record

LARGEST = 1 << 28
"""Bytes of a file, and of its data when it is unpacked: 256 MiB."""

LARGEST_NUMBER = 1e300

AGAIN = "write the report again, by `lampwork explain` or `Explanation.save`"

_START, _, _END = PLACE.partition(">null")
_PACKED = ' data-encoding="gzip-base64"'


@record
class Place:
    """A value in a report. `where`: "regions[0].name"; `source`: the file."""

    value: Any
    where: str
    source: str

    def __getitem__(self, key: str) -> Place:
        """What a dict has there; None where it has nothing, or is None itself."""
        found = self._as(dict, "no object").get(key)
        return Place(found, f"{self.where}.{key}" if self.where else key, self.source)

    def __iter__(self) -> Iterator[Place]:
        """The items of a list; None has none."""
        found = cast("list[Any]", self._as(list, "no list"))
        return (Place(each, f"{self.where}[{n}]", self.source) for n, each in enumerate(found))

    def items(self) -> Iterator[tuple[str, Place]]:
        """The items of a dict; None has none."""
        return ((key, self[key]) for key in self._as(dict, "no object"))

    def text(self) -> str:
        """A string, of characters that can be printed; "" for None."""
        return printable(self._as(str, "no string"))

    def number(self) -> float | None:
        """A finite number, 0 or more; None for None."""
        if self.value is None:
            return None
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self.wrong("no number")
        if not 0 <= self.value <= LARGEST_NUMBER:
            raise self.wrong("out of range")
        return float(self.value)

    def brief(self) -> str:
        """Any value in a few characters; "" for None."""
        match self.value:
            case None:
                return ""
            case str():
                return self.text()[:200]
            case bool():
                return str(self.value)
            case int() | float() if abs(self.value) <= LARGEST_NUMBER:
                return f"{self.value:.10g}"
            case list() | dict():
                return f"{len(cast('list[Any]', self.value))} items"
            case _:
                raise self.wrong("out of range")

    def _as(self, kind: type, lacking: str) -> Any:
        if self.value is None:
            return kind()
        if not isinstance(self.value, kind):
            raise self.wrong(lacking)
        return self.value

    def wrong(self, what: str) -> ReportReadError:
        where = f"{self.where} is" if self.where else "the data is"
        return ReportReadError(f"{self.source} is no report of Lampwork: {where} {what}", fix=AGAIN)


def read_report(given: str | os.PathLike[str] | Mapping[str, Any], name: str = "the data") -> Place:
    """The data of a report: of a page that `Explanation.save` wrote, of its data as a JSON file, or as it is given.
    `name`: what errors call data that is given.

    Raises:
        ReportReadError: it cannot be read, is no report, is damaged or too large, or of another format.
    """
    if isinstance(given, Mapping):
        return _checked(Place(dict(given), "", name))
    path = Path(given)
    source = printable(str(given))
    return _checked(Place(_parsed(_text(path, source), source), "", source))


def _text(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or text_of(error)
        raise ReportReadError(f"{source} cannot be read: {why}", fix="give the path of a report") from error
    if len(found) > LARGEST:
        raise _too_large(source)
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _none(source, "it is no text") from error


def _parsed(text: str, source: str) -> Any:
    stripped = text.lstrip()
    if not stripped:
        raise _none(source, "it is empty")
    return _json(text if stripped.startswith("{") else _element(text, source), source)


def _element(page: str, source: str) -> str:
    """The JSON in a page."""
    _, found, rest = page.partition(_START)
    if not found:
        raise _none(source, "it holds no data of a report")
    attributes, closed, rest = rest.partition(">")
    content, ended, _ = rest.partition("</script>")
    if not closed or not ended:
        raise ReportReadError(f"{source} ends in the middle of its data", fix=AGAIN)
    if attributes == _PACKED:
        return _unpacked(content, source)
    if attributes:
        raise _none(source, f"its data is written in a way that is not known:{attributes[:80]}")
    return content


def _unpacked(content: str, source: str) -> str:
    try:
        unpack = zlib.decompressobj(wbits=31)
        found = unpack.decompress(b64decode(content, validate=True), LARGEST + 1)
        if len(found) > LARGEST:
            raise _too_large(source)
        if not unpack.eof:
            raise ReportReadError(f"{source} ends in the middle of its data", fix=AGAIN)
        return found.decode()
    except (ValueError, zlib.error) as error:
        raise ReportReadError(f"the data in {source} is damaged: {error}", fix=AGAIN) from error


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise _none(source, "its data is nested too deep") from error
    except ValueError as error:
        raise ReportReadError(f"the data in {source} is damaged: {error}", fix=AGAIN) from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _checked(data: Place) -> Place:
    if not isinstance(data.value, dict):
        raise data.wrong("no object")
    version = data["format"]
    if version.value is None or data["regions"].value is None:
        raise _none(data.source, "its data has no `format` or no `regions`")
    if type(version.value) is not int or version.value != FORMAT:
        raise ReportReadError(
            f"{data.source} is of format {version.brief()}, and format {FORMAT} is read",
            fix="write both reports with one version of Lampwork",
        )
    return data


def _too_large(source: str) -> ReportReadError:
    return ReportReadError(
        f"{source} is larger than {LARGEST >> 20} MiB",
        fix="make the report of a part of the program",
    )


def _none(source: str, why: str) -> ReportReadError:
    return ReportReadError(
        f"{source} is no report of Lampwork: {why}",
        fix="give a file that `lampwork explain` or `Explanation.save` wrote, or its data as JSON",
    )
