"""`lampwork.set_stance`: whether compiled functions compile for new calls, run eager, or raise instead of compiling.
The stances have the names that `torch.compiler.set_stance` gives them.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar

from lampwork import runtime
from lampwork.errors import OptionError
from lampwork.locks import new_lock
from lampwork.standard import functools

F = TypeVar("F", bound=Callable[..., Any])

Stance = Literal["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]

_SPELLINGS: dict[str, Stance] = {
    "default": "default",
    "force_eager": "force_eager",
    "eager": "force_eager",
    "eager_on_recompile": "eager_on_recompile",
    "fail_on_recompile": "fail_on_recompile",
}


class set_stance:
    """Set what all compiled functions of the process do from now on; as a `with` block or a decorator, until the block
    or the call ends.

    * "default": a call that no compiled version serves compiles a new one.
    * "force_eager" (or "eager"): every call runs the original function; nothing is compiled.
    * "eager_on_recompile": compiled versions serve the calls they fit; other calls run eager.
    * "fail_on_recompile": compiled versions serve the calls they fit; any other call, even the first of a function,
      raises RecompileError. Functions that were refused run eager as before.

    If several threads set a stance, the one set last is in force until it ends. Dashes may stand for underscores.

    Raises:
        OptionError: an unknown stance.
    """

    def __init__(self, stance: str = "default") -> None:
        found = _SPELLINGS.get(str(stance).replace("-", "_"))
        if found is None:
            near = difflib.get_close_matches(str(stance), _SPELLINGS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"unknown stance {stance!r}", fix=f"{hint}the stances are {', '.join(_SPELLINGS)}"
            )
        self._stance: Stance = found
        self._setting: _Setting | None = _process.push(found)
        self._entered: list[_Setting] = []

    def __enter__(self) -> None:
        # The setting made on construction becomes the block's; a second `with` on the same object makes another.
        setting = self._setting or _process.push(self._stance)
        self._setting = None
        _process.open(setting)
        self._entered.append(setting)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _process.close(self._entered.pop())

    def __call__(self, fn: F) -> F:
        # As a decorator it is in force during calls only.
        if self._setting is not None:
            _process.close(self._setting)
            self._setting = None
        stance = self._stance

        @functools.wraps(fn)
        def under_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance):
                return fn(*args, **kwargs)

        return under_stance  # pyright: ignore[reportReturnType]


@dataclass(slots=True, eq=False)
class _Setting:
    stance: Stance
    block: bool = False  # ends with a `with` block; else it lasts until another is set


@dataclass(slots=True)
class _Process:
    """The settings in force, oldest first; the last one counts."""

    settings: list[_Setting] = field(default_factory=list[_Setting])
    current: Stance = "default"
    lock: threading.RLock = field(default_factory=new_lock)

    def push(self, stance: Stance) -> _Setting:
        """A new setting on top."""
        setting = _Setting(stance)
        with self.lock:
            # The topmost one may yet become a block, at whose end the one beneath is in force again; no others can.
            if len(self.settings) > 1 and not (self.settings[-1].block or self.settings[-2].block):
                del self.settings[-2]
            self.settings.append(setting)
            self._apply()
        return setting

    def open(self, setting: _Setting) -> None:
        """Make a setting a block's: on top, until it is closed."""
        with self.lock:
            if setting in self.settings:
                self.settings.remove(setting)
            setting.block = True
            self.settings.append(setting)
            self._apply()

    def close(self, setting: _Setting) -> None:
        """End a setting, and those set without a block since."""
        with self.lock:
            if setting not in self.settings:
                return
            place = self.settings.index(setting)
            del self.settings[place]
            while place < len(self.settings) and not self.settings[place].block:
                del self.settings[place]
            self._apply()

    def _apply(self) -> None:
        self.current = self.settings[-1].stance if self.settings else "default"
        runtime.skip_entries(self.current == "force_eager")


# Stances are a switch of the whole process by definition, as torch's are.
_process = _Process()


def current_stance() -> Stance:
    """The stance in force."""
    return _process.current
