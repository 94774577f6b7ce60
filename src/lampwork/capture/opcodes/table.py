"""The table of one version of CPython, or of what several have in common: opcode name → handler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from lampwork.capture.model.errors import Break
from lampwork.capture.semantics.operands import Handler

__all__ = ["Opcodes"]


class Opcodes(dict[str, Handler]):
    """Handlers register themselves:

        OPCODES = Opcodes(COMMON, without=("LIST_TO_TUPLE",), refused={"LOAD_NAME": "only found in class bodies"})

        @OPCODES.handles
        def LOAD_FAST(interp, frame, name): ...

    `refused`: opcodes that break a region, with the reason.
    """

    def __init__(
        self,
        *bases: Mapping[str, Handler],
        without: Collection[str] = (),
        refused: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        for base in bases:
            self.update((name, handler) for name, handler in base.items() if name not in without)
        self.update((name, _refuse(name)) for name in refused or ())

    def handles(self, handler: Handler) -> Handler:
        """Register `handler` under its own name."""
        self[handler.__name__] = handler
        return handler

    def handles_also(self, *names: str) -> Callable[[Handler], Handler]:
        """Register a handler under its own name and under `names`."""

        def register(handler: Handler) -> Handler:
            self.update(dict.fromkeys(names, handler))
            return self.handles(handler)

        return register


def _refuse(name: str) -> Handler:
    def refuse(interp: Any, frame: Any, arg: Any) -> None:
        raise Break("LW115", name)

    return refuse
