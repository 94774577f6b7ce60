"""The registry of backends, by name."""

from __future__ import annotations

import difflib
import re
import threading
from dataclasses import field
from typing import Any, TypeVar, cast

from lampwork.backends.callable import CallableBackend
from lampwork.backends.eager import EagerBackend
from lampwork.backends.optional import OPTIONAL, load_optional, missing
from lampwork.backends.protocol import Backend, Traits
from lampwork.errors import OptionError
from lampwork.locks import importing, new_lock
from lampwork.plugins.registry import registry
from lampwork.records import record


@record
class Registry:
    """Backends by name; safe to use from several threads."""

    backends: dict[str, Backend] = field(default_factory=dict[str, Backend])
    lock: threading.RLock = field(default_factory=new_lock)

    def register(self, backend: Any) -> None:
        if not isinstance(backend, Backend):
            raise OptionError(
                f"{backend!r} is no backend",
                fix="give it a name, supports(node) and compile(graph, inputs, options)",
            )
        name: Any = backend.name
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
            raise OptionError(f"{name!r} is no name for a backend", fix="use lower case, digits, - and _")
        traits = Traits.of(backend)
        registry().reserve(step.name for step, _ in traits.passes)
        with self.lock:
            self.backends[name] = backend

    def get(self, name: str) -> Backend:
        with self.lock:
            found = self.backends.get(name)
        if found is None:
            found = load_optional(name)
            if found is not None:
                with self.lock:
                    return self.backends.setdefault(name, found)
            names = self.names()
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(f"unknown backend {name!r}", fix=f"{hint}the backends are {', '.join(names)}")
        return found

    def names(self) -> list[str]:
        with self.lock:
            known = set(self.backends)
        return sorted(known.union(name for name in OPTIONAL if not missing(name)))


def _standard() -> Registry:
    # Imported here: the native backend brings LLVM, which needs no loading to register a backend of one's own.
    with importing:
        from lampwork.backends.native.compile import NativeBackend

    standard = Registry()
    standard.register(EagerBackend())
    standard.register(NativeBackend())
    return standard


class _Lazy:
    """The process's registry, made when first asked for."""

    __slots__ = ("_lock", "_registry")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._registry: Registry | None = None

    def __call__(self) -> Registry:
        with self._lock:
            if self._registry is None:
                self._registry = _standard()
            return self._registry


_registry = _Lazy()


B = TypeVar("B")


def register_backend(backend: B) -> B:
    """Register `backend`, a Backend object or class, under its name. It replaces a backend of the same name.

    Returns `backend`, so it can decorate a class.

    Raises:
        OptionError: `backend` is not a backend, or its name is not made of lower-case letters, digits, - and _.
    """
    _registry().register(_instance(backend))
    return backend


def get_backend(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        OptionError: there is no such backend; the message suggests the nearest name.
    """
    return _registry().get(name)


def list_backends() -> list[str]:
    """The names of all backends, sorted."""
    return _registry().names()


def resolve_backends(given: Any) -> tuple[Backend, ...]:
    """The backends that `compile(backend=given)` selects, in order and without duplicates.

    Args:
        given: a name, a Backend object or class, a function as for `torch.compile`, or a list of these.

    Raises:
        OptionError: an unknown name, or something that is not a backend.
    """
    if isinstance(given, (list, tuple)):
        several = [_resolve(item) for item in cast("list[Any]", given)]
        if not several:
            raise OptionError("backend is an empty list", fix='name at least one, such as "native"')
        return tuple(dict.fromkeys(several))
    return (_resolve(given),)


def _resolve(given: Any) -> Backend:
    if isinstance(given, str):
        return get_backend(given)
    found = _instance(given)
    if isinstance(found, Backend):
        Traits.of(found)
        return found
    if callable(given):
        return cast(Backend, CallableBackend(given))
    raise OptionError(
        f"backend takes a name, a Backend or a function, got {type(given).__name__}",
        fix="see lampwork.list_backends() for the names",
    )


def _instance(given: Any) -> Any:
    """An object of the class, if `given` is a class of backends."""
    if not isinstance(given, type) or not isinstance(given, Backend):
        return given
    try:
        return given()
    except TypeError as error:
        raise OptionError(
            f"backend {given.__name__} cannot be made without arguments: {error}", fix="pass an object of it"
        ) from error
