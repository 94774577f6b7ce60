"""What values an option takes. Each field of `Config` declares one of these checks, which is all that judges a value,
wherever it comes from: `options=`, a context, or the environment.

A check has three parts. `value` judges what is given by itself, `read` a text of the environment, and `look` the world:
whether a folder can be written to, this CPU has an instruction set, a pass is registered.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from lampwork.errors import OptionError
from lampwork.records import record

_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


class _Wrong:
    """What `Check.taken` gives for a value that the option does not take."""


_WRONG = _Wrong()


def nearest(name: object, known: Iterable[str], what: str) -> str:
    """A fix for a name that is not among the `known` ones: the nearest of them, and all of them."""
    names = tuple(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}{what} {', '.join(names)}"


@dataclass(slots=True)
class Told:
    """What a room above the configuration knows of an option's values, and tells when it is imported.

    `now` raises OptionError for a value that is wrong now, `ever` for one that stays wrong whatever is registered
    later.
    """

    now: Callable[[str], object] | None = None
    ever: Callable[[str], object] | None = None

    def tell(self, now: Callable[[str], object], ever: Callable[[str], object] | None = None) -> None:
        self.now, self.ever = now, ever or now


@record
class Check:
    """Takes every text. `takes` says what an option takes, `fix` what to pass; `told` knows more of it."""

    takes: str = "a text"
    fix: str = "pass a text"
    told: Told | None = None

    @property
    def is_told(self) -> bool:
        """Whether all that it has to be told has been."""
        return self.told is None or self.told.now is not None

    def taken(self, given: Any) -> Any:
        """`given` as the option holds it, or `_WRONG`."""
        return given if type(given) is str else _WRONG

    def parsed(self, text: str) -> Any:
        """A text of the environment as a value to judge."""
        return text

    def advice(self, given: Any) -> str:
        """What to pass instead of `given`."""
        return self.fix

    def value(self, name: str, given: Any) -> Any:
        """`given` as option `name` holds it.

        Raises:
            OptionError: the option does not take it.
        """
        taken = self.taken(given)
        if taken is _WRONG:
            raise OptionError(f"option {name!r} takes {self.takes}, got {given!r}", fix=self.advice(given))
        return taken

    def read(self, name: str, text: str) -> Any:
        """The value that a text of the environment stands for.

        Raises:
            OptionError: it stands for none.
        """
        value = self.value(name, self.parsed(text))
        self.look(name, value, later=True)
        return value

    def look(self, name: str, value: Any, *, later: bool = False) -> None:
        """Hold a value that the option takes against the world as it is. `later`: what it names may still come.

        Raises:
            OptionError: it cannot be used here.
        """
        ask = None if self.told is None else self.told.ever if later else self.told.now
        if ask is not None:
            ask(value)


@record
class Flag(Check):
    """True or False."""

    takes: str = "True or False"
    fix: str = "pass True or False"

    def taken(self, given: Any) -> Any:
        return given if type(given) is bool else _WRONG

    def parsed(self, text: str) -> Any:
        lowered = text.strip().lower()
        return True if lowered in _YES else False if lowered in _NO else text


@record
class Whole(Check):
    """A whole number, `least` or more."""

    least: int = 0

    def taken(self, given: Any) -> Any:
        return given if type(given) is int and given >= self.least else _WRONG

    def parsed(self, text: str) -> Any:
        try:
            return int(text)
        except ValueError:
            return text


@record
class Real(Check):
    """A number from `least` to `most`; no infinity."""

    least: float = 0.0
    most: float = float("inf")

    def taken(self, given: Any) -> Any:
        if type(given) not in (int, float) or not self.least <= given <= self.most or given == float("inf"):
            return _WRONG
        return float(given)

    def parsed(self, text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text


@record
class OneOf(Check):
    """One of `names`. `spellings`: what else stands for one of them."""

    names: tuple[str, ...] = ()
    spellings: Mapping[Any, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def taken(self, given: Any) -> Any:
        if type(given) in (str, int, bool):
            given = self.spellings.get(given, given)
        return given if type(given) is str and given in self.names else _WRONG

    def advice(self, given: Any) -> str:
        near = difflib.get_close_matches(str(given), self.names, n=1)
        return (f"did you mean {near[0]!r}? " if near else "") + self.fix


@record
class Several(Check):
    """Some of `names`, with commas between them."""

    names: tuple[str, ...] = ()

    def taken(self, given: Any) -> Any:
        return given if type(given) is str and not self._unknown(given) else _WRONG

    def advice(self, given: Any) -> str:
        unknown = self._unknown(given) if isinstance(given, str) else ()
        return nearest(unknown[0] if unknown else given, self.names, self.fix)

    def _unknown(self, text: str) -> tuple[str, ...]:
        return tuple(name for part in text.split(",") if (name := part.strip()) and name not in self.names)


@record
class Url(Check):
    """A URL, or "". It has no password in it, as options are shown in reports and logs."""

    fix: str = "put a password into the environment, never into the URL"

    def taken(self, given: Any) -> Any:
        if type(given) is not str or (given and not re.match(r"[a-z][a-z0-9+.-]*:/", given)):
            return _WRONG
        return _WRONG if _PASSWORD.search(given) else given

    def value(self, name: str, given: Any) -> Any:
        shown = _PASSWORD.sub("//...@", given) if isinstance(given, str) else given
        if self.taken(given) is _WRONG:
            raise OptionError(f"option {name!r} takes {self.takes}, got {shown!r}", fix=self.fix)
        return given


_PASSWORD = re.compile("//[^/@]*:[^/]*@")


@record
class Folder(Check):
    """A folder, which is made at once; "" or one of `words` stands for something else. `written`: it has to let files
    be written. `mode`: who may enter it, where it is made."""

    words: tuple[str, ...] = ()
    written: bool = True
    mode: int = 0o777

    def look(self, name: str, value: Any, *, later: bool = False) -> None:
        if not value or value in self.words:
            return
        try:
            path = Path(cast(str, value)).expanduser()
            path.mkdir(mode=self.mode, parents=True, exist_ok=True)
            if self.written:
                # What permissions say is not the whole story: there are superusers, and systems that are read only.
                with tempfile.NamedTemporaryFile(dir=path, prefix=".lampwork-"):
                    pass
        except (OSError, ValueError, RuntimeError) as error:  # the last one where "~" stands for no home
            raise OptionError(
                f"option {name!r} takes {self.takes}, got {value!r}: {error}", fix=self.fix
            ) from error
