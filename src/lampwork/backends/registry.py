"""The backends there are, by name."""

from __future__ import annotations

import difflib
import re
import threading
from dataclasses import dataclass, field

from lampwork.backends.eager import EagerBackend
from lampwork.backends.protocol import Backend
from lampwork.errors import OptionError


@dataclass(frozen=True, slots=True)
class Registry:
    """Backends by name; safe to use from several threads."""

    backends: dict[str, Backend] = field(default_factory=dict[str, Backend])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, backend: Backend) -> None:
        if not isinstance(backend, Backend):  # pyright: ignore[reportUnnecessaryIsInstance]  (users' objects)
            raise OptionError(
                f"{backend!r} is no backend",
                fix="give it a name, supports(node) and compile(graph, inputs, options)",
            )
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", backend.name):
            raise OptionError(
                f"{backend.name!r} is no name for a backend", fix="use lower case, digits, - and _"
            )
        with self.lock:
            self.backends[backend.name] = backend

    def get(self, name: str) -> Backend:
        with self.lock:
            found = self.backends.get(name)
            names = sorted(self.backends)
        if found is None:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(f"unknown backend {name!r}", fix=f"{hint}the backends are {', '.join(names)}")
        return found

    def names(self) -> list[str]:
        with self.lock:
            return sorted(self.backends)


def _standard() -> Registry:
    # Imported here: the native backend brings LLVM, which needs no loading to register a backend of one's own.
    from lampwork.backends.native.compile import NativeBackend

    registry = Registry()
    registry.register(EagerBackend())
    registry.register(NativeBackend())
    return registry


class _Lazy:
    """The process's registry, made when first asked for."""

    __slots__ = ("_lock", "_registry")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registry: Registry | None = None

    def __call__(self) -> Registry:
        with self._lock:
            if self._registry is None:
                self._registry = _standard()
            return self._registry


_registry = _Lazy()


def register_backend(backend: Backend) -> None:
    """Make `backend` known by its name, in place of one of the same name.

    Raises:
        OptionError: it is no backend, or its name is not lower case letters, digits, - and _.
    """
    _registry().register(backend)


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        OptionError: there is none; the message names the nearest.
    """
    return _registry().get(name)


def list_backends() -> list[str]:
    """The names of all backends, sorted."""
    return _registry().names()
