"""The document of a study: what it has to hold, and how it is read and written. Names of numbers end in their units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lampwork.errors import StudyError, text_of
from lampwork.records import record
from lampwork.written import write_whole

SCHEMA = 1
"""Rises when a key changes its meaning or is dropped; new ones may come."""

LEAST, MOST = 1e-30, 1e30
"""Between these are all numbers that are not 0: what is made of them, such as the inverse of a square, is finite."""
LARGEST = 2**63 - 1

AGAIN = "measure again: lampwork study --json FILE"


@record
class Each:
    """A mapping from any name to values of one shape."""

    of: Any


@record
class Maybe:
    """A value of this shape, or None."""

    of: Any


COUNT, NUMBER, TIME, TEXT, FLAG = "a whole number", "a number", "a number above 0", "a text", "true or false"

_COUNTS = Each(COUNT)
_RECORDS = [{"code": TEXT, "cause": TEXT}]
COLUMN: Mapping[str, Any] = {
    "call_seconds": Maybe(NUMBER),
    "speedup": Maybe(NUMBER),
    "noise": Maybe(NUMBER),
    "first_call_seconds": Maybe(NUMBER),
    "peak_bytes": Maybe(COUNT),
    "error": Maybe(NUMBER),
    "agrees": Maybe(FLAG),
    "failure": TEXT,
    "note": TEXT,
}
"""A way to run a network. `speedup` is that over the first column of its comparison, `noise` half the distance between
the quartiles of its rounds; `error` is the largest difference from float64, by the largest magnitude there; `agrees`
says whether it is at most twice eager's, and a rounding."""

FAILED: Mapping[str, Any] = {"name": TEXT, "says": TEXT, "failure": TEXT}
ROW: Mapping[str, Any] = {
    "name": TEXT,
    "says": TEXT,
    "batch": COUNT,
    "parameters": COUNT,
    "parameter_bytes": COUNT,
    "representation": {
        "regions": COUNT,
        "nodes": COUNT,
        "views": COUNT,
        "nodes_after_passes": COUNT,
        "operators": _COUNTS,
        "breaks": _RECORDS,
        "refusals": _RECORDS,
        "guards": COUNT,
        "guards_after_changes": COUNT,
        "symbols": [TEXT],
    },
    "passes": _COUNTS,
    "rewrites": _COUNTS,
    "fusion": {
        "nodes": COUNT,
        "steps": COUNT,
        "kinds": _COUNTS,
        "aten": _COUNTS,
        "fused_nodes": COUNT,
        "largest_nodes": COUNT,
        "distinct_functions": COUNT,
        "joined": COUNT,
        "not_joined": COUNT,
        "reasons": _COUNTS,
    },
    "work": {
        "eager_flops": COUNT,
        "eager_bytes_read": COUNT,
        "eager_bytes_written": COUNT,
        "flops": COUNT,
        "bytes_read": COUNT,
        "bytes_written": COUNT,
    },
    "layout": {"conversions": COUNT, "constants": COUNT, "constants_bytes": COUNT},
    "arena_bytes": COUNT,
    "compile_seconds": Each(NUMBER),
    "symbols_when_open": [TEXT],
    "reference": TEXT,
    "rounds": COUNT,
    "columns": {
        "everything": COLUMN,
        "eager": COLUMN,
        "eager, one thread": COLUMN,
        "open sizes": COLUMN,
        "everything, again": COLUMN,
    },
    "switches": Each({**COLUMN, "steps": COUNT, "changes_code": FLAG}),
}
"""An architecture that was measured. Unless only the switches were asked for, it has `MORE` too."""

MORE: Mapping[str, Any] = {
    "time": {"seconds": Each(NUMBER), "least_seconds": NUMBER, "least_known_of_seconds": NUMBER},
    "one_sample": {"everything": COLUMN, "eager": COLUMN},
    "bfloat16": {"everything": COLUMN, "eager": COLUMN, "float32": COLUMN},
}

DOCUMENT: Mapping[str, Any] = {
    "schema": COUNT,
    "lampwork": TEXT,
    "machine": Each(TEXT),
    "settings": {"threads": COUNT, "batch": COUNT, "column_seconds": NUMBER, "quick": FLAG},
    "took_seconds": NUMBER,
    "switches": [{"name": TEXT, "without": TEXT}],
    "architectures": [{"name": TEXT}],
}


def check(document: Any, source: str = "the document") -> Mapping[str, Any]:
    """The document, if it is one of a study.

    Raises:
        StudyError: it is not; it says where, and what was expected.
    """
    if not isinstance(document, dict) or "schema" not in document:
        raise StudyError(f"{source} is no result of lampwork study", fix=AGAIN)
    found = cast("dict[str, Any]", document)
    if found["schema"] != SCHEMA:
        raise StudyError(
            f"{source} has schema {_text(found['schema'])}, this version reads {SCHEMA}", fix=AGAIN
        )
    _check(found, DOCUMENT, "", source)
    for name in ("cpu", "python", "torch"):
        _check(found["machine"].get(name), TEXT, f"machine.{name}", source)
    known = {each["name"] for each in found["switches"]}
    for number, row in enumerate(found["architectures"]):
        where = f"architectures[{number}]"
        if row.get("failure"):
            _check(row, FAILED, where, source)
            continue
        _check(row, ROW, where, source)
        for part in MORE.keys() & row.keys():
            _check(row[part], MORE[part], f"{where}.{part}", source)
        for part in ("columns", "switches", *(MORE.keys() & row.keys() - {"time"})):
            for name, column in row[part].items():
                _check_column(column, f"{where}.{part}.{name}", source)
        if not row["work"]["eager_bytes_read"] + row["work"]["eager_bytes_written"]:
            raise _wrong(0, "bytes that eager moves", f"{where}.work.eager_bytes_read", source)
        if row["switches"].keys() != known:
            raise StudyError(f"{source}: {where}.switches are not those of the document", fix=AGAIN)
    return found


def _check_column(column: Mapping[str, Any], where: str, source: str) -> None:
    """What did not fail was measured: it has times, which are above 0."""
    for name in () if column["failure"] else ("call_seconds", "speedup", "first_call_seconds"):
        _check(column[name], TIME, f"{where}.{name}", source)


def _check(value: Any, shape: Any, where: str, source: str) -> None:
    match shape:
        case Maybe():
            if value is not None:
                _check(value, shape.of, where, source)
        case Each():
            for name, each in _as(value, dict, where, source).items():
                _check(each, shape.of, f"{where}.{name}", source)
        case list():
            for number, each in enumerate(_as(value, list, where, source)):
                _check(each, cast("list[Any]", shape)[0], f"{where}[{number}]", source)
        case str():
            if not _is(value, shape):
                raise _wrong(value, shape, where, source)
        case _:
            given = _as(value, dict, where, source)
            for name, each in shape.items():
                if name not in given:
                    raise StudyError(f"{source}: {_at(where, name)} is missing", fix=AGAIN)
                _check(given[name], each, _at(where, name), source)


def _is(value: Any, shape: str) -> bool:
    match shape:
        case "a whole number":
            return type(value) is int and 0 <= value <= LARGEST
        case "a number" | "a number above 0":
            between = type(value) in (int, float) and LEAST <= value <= MOST
            return between or (shape == NUMBER and type(value) in (int, float) and value == 0)
        case "a text":
            return isinstance(value, str)
        case _:
            return type(value) is bool


def _as(value: Any, kind: type, where: str, source: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(value, "an object" if kind is dict else "a list", where, source)
    return value


def _wrong(value: Any, expected: str, where: str, source: str) -> StudyError:
    return StudyError(f"{source}: {where} is {_text(value)!r}, expected {expected}", fix=AGAIN)


def _text(value: Any) -> str:
    """Its first signs; of a number of thousands of digits, and of lists in lists in lists, Python makes no text."""
    try:
        return str(value)[:80]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def read(path: Path) -> Mapping[str, Any]:
    """The document in a file.

    Raises:
        StudyError: the file cannot be read, or holds none.
    """
    try:
        return check(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}", fix="give the path of a file") from error
    except RecursionError as error:
        raise StudyError(f"{path} has lists in lists, deeper than any result", fix=AGAIN) from error
    except ValueError as error:
        raise StudyError(f"{path} is no JSON: {text_of(error)}", fix=AGAIN) from error


def write(path: Path, text: str) -> None:
    """
    Raises:
        StudyError: it cannot be written.
    """
    write_whole(path, text, "the study", StudyError)


def to_json(document: Mapping[str, Any]) -> str:
    """The document as a file has it."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
