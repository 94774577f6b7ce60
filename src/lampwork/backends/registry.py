"""The registry of backends, by name."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, TypeVar, cast, overload

from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.backends.callable import CallableBackend
from lampwork.backends.eager import EagerBackend
from lampwork.backends.operators import operators_of
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
        _reserve_passes(backend)
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


Supported = Iterable[Any] | Callable[[fx.Node], Any]
"""Operators (`torch.ops.aten.add`, "aten.add"), or what answers for a node as `Backend.supports` does."""


@overload
def register_backend(
    backend: str, function: None = None, *, supports: Supported | None = None, decompose: str = ""
) -> Callable[[B], B]: ...
@overload
def register_backend(
    backend: str, function: B, *, supports: Supported | None = None, decompose: str = ""
) -> B: ...
@overload
def register_backend(
    backend: B, function: None = None, *, supports: Supported | None = None, decompose: str = ""
) -> B: ...
def register_backend(
    backend: Any, function: Any = None, *, supports: Supported | None = None, decompose: str = ""
) -> Any:
    """Register a backend under a name. It replaces a backend of the same name.

        @register_backend                                       # a class, or an object, that is a Backend
        class Mine: ...

        @register_backend("mine", supports=["aten.linear"])     # a function as for torch.compile
        def mine(gm, example_inputs): ...

        register_backend("mine", mine, supports=lambda node: node.target is torch.ops.aten.linear.default)

    Args:
        backend: a Backend object or class; or the name of one that is made of a function.
        function: takes `(gm, example_inputs)` and returns a callable. Left out after a name: the decorator's.
        supports: the operators that the function is given, as `torch.ops.aten.add`, `torch.ops.aten.add.Tensor` or
            "aten.add"; or a function of a node that returns Yes(), No(reason) or a bool. By default all.
        decompose: "core": the function is given core ATen operators only; see `Backend`.

    Returns `backend`, or `function`, so it can decorate either.

    Raises:
        OptionError: it is no backend, its name is not made of lower-case letters, digits, - and _, or `supports` names
            no operator.
    """
    if isinstance(backend, str):
        if function is None:
            return lambda given: register_backend(backend, given, supports=supports, decompose=decompose)
        _registry().register(_of_function(backend, function, supports, decompose))
        return function
    if function is not None or supports is not None or decompose:
        raise OptionError(
            "function, supports and decompose go with a name and a function",
            fix='write register_backend("name", function, supports=...), or give the backend these as attributes',
        )
    _registry().register(_instance(backend))
    return backend


def _of_function(name: str, function: Any, supports: Any, decompose: str) -> CallableBackend:
    if not callable(function) or isinstance(function, type):
        raise OptionError(
            f"backend {name!r} is made of {function!r}, which is no function",
            fix="give it a function of (gm, example_inputs); a class with a name needs no other",
        )
    return CallableBackend(function, name, _taken(supports), decompose)


def _taken(supports: Any) -> Any:
    if supports is None:
        return None
    if isinstance(supports, str | OpOverload | OpOverloadPacket):
        return operators_of([supports])
    if callable(supports):
        return supports
    if isinstance(supports, Iterable):
        return operators_of(cast("Iterable[Any]", supports))
    raise OptionError(
        f"supports is {supports!r}", fix="make it a collection of operators, or a function of a node"
    )


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
        # A backend need not be hashable: dataclasses with fields that change are not.
        return tuple(b for number, b in enumerate(several) if b not in several[:number])
    return (_resolve(given),)


def _resolve(given: Any) -> Backend:
    if isinstance(given, str):
        return get_backend(given)
    found = _instance(given)
    if isinstance(found, Backend):
        _reserve_passes(found)
        return found
    if callable(given):
        return cast(Backend, CallableBackend(given))
    raise OptionError(
        f"backend takes a name, a Backend or a function, got {type(given).__name__}",
        fix="see lampwork.list_backends() for the names",
    )


def _reserve_passes(backend: Backend) -> None:
    """The passes that a backend brings can be switched by their names from now on."""
    traits = Traits.of(backend)
    registry().reserve(step.name for step, _ in traits.passes)
    if traits.decompose:
        registry().reserve(["decompose-core"])


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
