"""Compiled parts in the cache folder: what one process compiled, another one runs.

A key is made of everything that makes a difference to the code, by name, so that a miss can be explained. What is not
known to make none is in it: options and meta data are taken out of the key one by one, with a reason.
"""

from __future__ import annotations

import contextvars
import hashlib
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import fx

from lampwork import counters, logs
from lampwork.backends.protocol import Backend, Compiled, CompileOptions, Traits
from lampwork.cache import Key, Store, store
from lampwork.capture.model.region import GlobalState
from lampwork.config import Config
from lampwork.errors import BackendError, SerialError
from lampwork.graph.symbols import Scope
from lampwork.partitioning.demands import Demands, demands_from_json, demands_to_json
from lampwork.plugins.fingerprint import content_hash
from lampwork.records import record
from lampwork.serial import from_text, to_text
from lampwork.serial.graph_texts import graph_text
from lampwork.serial.own_code import own_code
from lampwork.serial.specs import scope_to_json
from lampwork.serial.values import mapping

NOT_IN_PASSES: Mapping[str, str] = {
    "strict": "what happens after a failure",
    "pass_timeout": "how long passes may take",
    "logs": "what is printed",
    "dump": "what is written for people",
    "recompile_limit": "when a function compiles",
    "error_on_recompile": "when a function compiles",
    "backend_timeout": "how long others may take",
    "cache": "where things are kept",
    "cache_bytes": "how much is kept",
    "cache_remote": "where things are kept",
}
"""The options that make no difference to what the passes make of a given graph, nor to its code, and why."""

NOT_IN_CODE: Mapping[str, str] = {
    **NOT_IN_PASSES,
    "passes": "the graph is what the passes made of it",
    "fuel": "the graph is what the rewrites made of it",
    "memory_budget": "the graph is what was split by it",
}
"""The options that make no difference to the code of a given graph, and why. All others are in the key."""

_LENGTH = 8
_SMALLEST_NORMAL = sys.float_info.min


@record
class Subject:
    """A graph that a backend compiles under some options, with the store that has what was made of others. `scope`: of
    its symbols. `parts`: of its keys, by name."""

    store: Store
    backend: Backend
    traits: Traits
    graph: fx.Graph
    options: CompileOptions
    scope: Scope | None
    parts: Mapping[str, str]

    @staticmethod
    def of(backend: Backend, traits: Traits, graph: fx.Graph, options: CompileOptions) -> Subject | None:
        """None if nothing that is made of it is to be kept.

        Steps of a program have the user's `record_function`s, which are told apart by numbers of this process: such
        graphs are not kept.
        """
        if traits.key_parts is None or (kept := store(options.config)) is None:
            return None
        theirs = traits.key_parts(graph, options)
        if theirs is None or _has_labels(graph):
            return None
        try:
            text = graph_text(graph)
            scope = text.scope
            parts = {
                "graph": _digest(text.nodes.encode()),
                "symbols": "" if scope is None else _digest(to_text(_symbols(scope))),
                "writes": repr(options.mutations),
                "views": repr(options.views),
                "backend": kind_of(backend),
                "code": own_code(),
                "torch": f"{torch.__version__} {torch.version.git_version}",
                "state": _fields_text(GlobalState.now()),
                "denormals": "flushed" if flushes_denormals() else "kept",
                **{f"{backend.name} {name}": text for name, text in theirs.items()},
            }
        except SerialError as error:
            logs.emit("cache", f"a graph has no key, and is compiled: {error.cause}")
            return None
        return Subject(kept, backend, traits, graph, options, scope, parts)

    def key(self, kind: str, left_out: Mapping[str, str], **more: str) -> Key:
        """All that makes a difference to what is made of it: its parts, the options but for those that are `left_out`,
        and what more there is."""
        return Key(kind, {**self.parts, "options": options_text(self.options.config, left_out), **more})


@record
class Keeping:
    """Where the program of a graph is kept."""

    subject: Subject
    key: Key

    def restored(self, content: bytes | None) -> tuple[Compiled, Demands | None] | None:
        """What was kept, and what it asks of the symbols; None if that is damaged, or does not serve this call."""
        subject, scope = self.subject, self.subject.scope
        if content is None or subject.traits.restore is None:
            return None
        try:
            demands, rest = _parts(content, scope)
            if demands is not None and scope is not None and not demands.hold_for(scope):
                logs.emit("cache", f"{self.key} is for other sizes")
                return None
            compiled = subject.traits.restore(rest, subject.graph, subject.options)
            if demands is not None and scope is not None:
                demands.make_of(scope)
        except (SerialError, BackendError) as error:
            logs.emit("cache", f"{self.key} cannot be used: {error.cause}")
            return None
        counters.add("backend_restored")
        return compiled, demands

    def keep(self, compiled: Any, demands: Demands | None) -> None:
        """Keep what was compiled, once the machine code is there; where that cannot be, the log has a line."""
        save = self.subject.traits.save
        assert save is not None
        try:
            saved = save(compiled)
            head = to_text({"demands": None if demands is None else demands_to_json(demands)})
        except (SerialError, BackendError) as error:
            logs.emit("cache", f"{self.key} is not kept: {error.cause}")
        else:
            content = b"".join((len(head).to_bytes(_LENGTH, "little"), head, saved))
            self.subject.store.put(self.key, content)


def keeping(
    backend: Backend, traits: Traits, graph: fx.Graph, options: CompileOptions, origin: str = ""
) -> Keeping | None:
    """Where what `backend` makes of `graph` is kept; None if it is not to be."""
    subject = Subject.of(backend, traits, graph, options)
    if subject is None:
        return None
    return Keeping(subject, subject.key("program", NOT_IN_CODE, origin=origin))


def options_text(config: Config, left_out: Mapping[str, str] = NOT_IN_CODE) -> str:
    """The options that may make a difference to code."""
    names = [each.name for each in fields(config) if each.name not in left_out]
    return ", ".join(f"{name}={getattr(config, name)!r}" for name in sorted(names))


def flushes_denormals() -> bool:
    """Whether this thread's arithmetic takes numbers below the smallest normal one for zero, as after
    `torch.set_flush_denormal(True)`: then constants that passes compute, and the texts of such numbers, are others."""
    return _SMALLEST_NORMAL / 2 == 0.0


def _fields_text(value: Any) -> str:
    return ", ".join(f"{each.name}={getattr(value, each.name)!r}" for each in fields(value))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _symbols(scope: Scope) -> Any:
    """What is known of symbols, with their values on this call as powers of two: code is chosen by these."""
    found = scope_to_json(scope)
    for symbol in found["symbols"]:
        symbol["hint"] = symbol["hint"].bit_length() * (-1 if symbol["hint"] < 0 else 1)
    return found


def _has_labels(graph: fx.Graph) -> bool:
    origins = (node.meta.get("origin") for node in graph.nodes)
    return any(origin is not None and origin.labels for origin in origins)


def kind_of(backend: Backend) -> str:
    """The backend's code; of Lampwork's own its name, as all of Lampwork's code is in the key."""
    kind = type(backend)
    if kind.__module__.startswith("lampwork."):
        return f"{kind.__module__}.{kind.__qualname__}"
    return content_hash(backend)


def _parts(content: bytes, scope: Scope | None) -> tuple[Demands | None, bytes]:
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    if not _LENGTH < end <= len(content):
        raise SerialError(f"an entry of {end} bytes or more was expected, not {len(content)}")
    found = mapping(from_text(content[_LENGTH:end]), frozenset({"demands"}))
    if (found["demands"] is None) != (scope is None):
        raise SerialError("demands were expected for a graph with symbols, and for no other")
    demands = None if scope is None else demands_from_json(found["demands"], scope)
    return demands, content[end:]


class Saver:
    """Keeps what is compiled, in a thread of its own, where nobody waits for the machine code.

    It holds the turn to make the key from `begin` until the content is kept, so other processes wait for that instead
    of compiling the same. The interpreter does not end before it has.

        saver = Saver(keeping)
        content = saver.begin()       made by another process while we waited for the turn, if any
        ...
        saver.keep(compiled, demands)
        saver.end()                   always
    """

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._begun, self._ended = threading.Event(), threading.Event()
        self._found: bytes | None = None
        self._made: tuple[Any, Demands | None] | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> bytes | None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._work,), name="lampwork-keep", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # the system has no more, or the interpreter is about to end: nothing is kept
            return None
        self._begun.wait()
        return self._found

    def keep(self, compiled: Any, demands: Demands | None) -> None:
        """What to keep."""
        self._made = compiled, demands

    def end(self) -> None:
        """Whatever is to be kept is known."""
        self._ended.set()

    def _work(self) -> None:
        keeping = self._keeping
        try:
            with keeping.subject.store.making(keeping.key) as self._found:
                self._begun.set()
                self._ended.wait()
                if self._made is not None:
                    keeping.keep(*self._made)
        finally:
            self._begun.set()
