"""Who is told of a backend's fault."""

from __future__ import annotations

from typing import Protocol

from lampwork.errors import BackendError


class Report(Protocol):
    """Is told of a fault and of who takes over; raises where nothing may be hidden, or `instead` is empty.

    `calling`: the fault came up in a call, not while compiling.
    """

    def __call__(self, error: BackendError, instead: str, *, calling: bool = False) -> None: ...


def raise_fault(error: BackendError, instead: str, *, calling: bool = False) -> None:
    """The Report of those who want no fallback."""
    raise error
