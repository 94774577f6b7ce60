"""Winners on disk: one small file for each product, by what it is and what it was measured on.

A file is written beside its place and then moved there, so that no reader, in whatever process or thread, sees half of
one; who writes last wins. A file that cannot be read, is of another version, or is not about the product that it is
looked up for, counts as missing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

from lampwork.codegen.target import Target
from lampwork.folders import keep_file, kept_file
from lampwork.processor import cpu_info
from lampwork.records import record

VERSION = 1
"""Of the files, and of what there is to choose from: with another one everything is measured again."""
_MOST_BYTES = 1 << 16
"""Of a file: an entry has a few hundred."""


@record
class Winner:
    """What was measured best for a product. `variant`: its name (`codegen.variants`); "": the model's choice.

    seconds, model_seconds: a call with it, and with the model's choice.
    """

    variant: str
    seconds: float
    model_seconds: float


class DamagedEntry(Exception):
    """A file of the store that says nothing about what it should; args[0] is the reason."""


@record
class Store:
    """A folder of winners, of this user alone. Safe to use from many threads and processes at a time."""

    folder: Path

    def get(self, key: str) -> Winner | None:
        """The winner for `key`; None if there is none.

        Raises:
            DamagedEntry: there is a file for it that is of no use.
        """
        try:
            text, _ = kept_file(self._path(key), _MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedEntry(str(error)) from error
        if len(text) > _MOST_BYTES:
            raise DamagedEntry(f"longer than {_MOST_BYTES} bytes")
        try:
            entry: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedEntry(f"no JSON: {error}") from error
        return _read(entry, key)

    def put(self, key: str, winner: Winner) -> None:
        """Keep a winner.

        Raises:
            OSError: nothing can be written there, or the folder is somebody else's.
        """
        entry = {
            "version": VERSION,
            "key": key,
            "variant": winner.variant,
            "seconds": winner.seconds,
            "model_seconds": winner.model_seconds,
        }
        keep_file(self._path(key), json.dumps(entry, indent=1).encode())

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read(entry: Any, key: str) -> Winner:
    if not isinstance(entry, dict):
        raise DamagedEntry("no entry")
    fields = cast("dict[str, Any]", entry)
    if fields.get("version") != VERSION:
        raise DamagedEntry(f"of version {fields.get('version')!r}, this is {VERSION}")
    if fields.get("key") != key:
        raise DamagedEntry("about something else")
    variant, times = fields.get("variant"), [fields.get("seconds"), fields.get("model_seconds")]
    if type(variant) is not str or not all(type(time) is float and time > 0 for time in times):
        raise DamagedEntry("without a winner")
    return Winner(variant, cast(float, times[0]), cast(float, times[1]))


def machine_key(target: Target, threads: int) -> str:
    """What a measurement holds for: the CPU's model, what is generated for it, and how many threads run."""
    described = hashlib.sha256(description(target).encode()).hexdigest()[:16]
    return f"{_cpu_model()} | {target.name} {described} | {threads} threads"


def description(target: Target) -> str:
    """The numbers of a target, the same in every process: without the functions in it, and with sets in order."""
    parts: list[str] = []
    for name in target.__dataclass_fields__:
        value = getattr(target, name)
        if name == "dots":
            value = [(dot.dtype, dot.steps) for dot in target.dots]
        elif name == "units":
            value = [(unit.dtype, unit.steps) for unit in target.units]
        elif isinstance(value, frozenset):
            value = sorted(cast("frozenset[str]", value))
        elif callable(value):
            value = "given"
        parts.append(f"{name}={value!r}")
    return " ".join(parts)


def _cpu_model() -> str:
    fields = cpu_info()
    if not fields:
        return "unknown CPU"
    wanted = (
        fields.get(name, "?") for name in ("model name", "cpu family", "model", "stepping", "cache size")
    )
    return ", ".join(wanted)
