"""Fuel for the whole process: `LAMPWORK_FUEL=n` lets the first n rewrites happen and no more.

`lampwork bisect` finds with it the rewrite that breaks a program. With `LAMPWORK_FUEL_LOG=file` each rewrite that
happens appends a line to that file: JSON with its number, name, pass, node and the user's line.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lampwork.locks import new_lock

FUEL = "LAMPWORK_FUEL"
LOG = "LAMPWORK_FUEL_LOG"


@dataclass(slots=True)
class Fuel:
    """`spent` rewrites happened since LAMPWORK_FUEL was set to `text`."""

    text: str = ""
    limit: int = -1
    spent: int = 0
    lock: threading.RLock = field(default_factory=new_lock)

    def empty(self) -> bool:
        """Whether no rewrite may happen any more."""
        if FUEL not in os.environ:
            return False
        with self.lock:
            self._read()
            return 0 <= self.limit <= self.spent

    def spend(self, describe: Callable[[], Mapping[str, str]]) -> bool:
        """Count one rewrite; False when it must not happen. `describe` gives what the log says of it."""
        if FUEL not in os.environ:
            return True
        with self.lock:
            self._read()
            if 0 <= self.limit <= self.spent:
                return False
            self.spent += 1
            file = os.environ.get(LOG)
            if file:
                with Path(file).open("a") as out:
                    out.write(json.dumps({"number": self.spent, **describe()}) + "\n")
        return True

    def _read(self) -> None:
        # It may be set anew while the process runs; what is no number is refused where options are read.
        text = os.environ[FUEL]
        if text != self.text:
            self.text, self.spent = text, 0
            self.limit = int(text) if text.lstrip("-").isdigit() else -1


# One for the process by definition.
_fuel = Fuel()


def process_fuel() -> Fuel:
    """The process's fuel."""
    return _fuel
