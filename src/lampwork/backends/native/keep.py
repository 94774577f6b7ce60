"""Native programs as bytes, for the cache; and what makes a difference to them beside the graph and the options."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from lampwork.backends.native.artifacts import Finished
from lampwork.backends.native.precision import float32_in_bf16
from lampwork.backends.native.print_program import format_program
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.observer import Details
from lampwork.codegen.target import Target
from lampwork.errors import SerialError
from lampwork.loops.ir.symbols import NO_HINTS, Sizes
from lampwork.processor import cpu_info
from lampwork.records import record
from lampwork.runtime.layout import Layout
from lampwork.runtime.program import CallKernel, Program
from lampwork.runtime.steps import StepFacts
from lampwork.serial import Linked, Modules, from_text, layout_from_json, layout_to_json, to_text
from lampwork.serial.values import items, mapping, text, whole
from lampwork.standard import functools

_KEYS = frozenset({"layout", "counts", "modules"})
_LENGTH = 8

# --- bytes ------------------------------------------------------------------------------------------------------------


def to_bytes(compiled: Program | SymbolicProgram) -> bytes:
    """A program: the length of the JSON in eight bytes, JSON, and the modules one after another.

    Raises:
        SerialError: it has no serial form.
    """
    if compiled.layout is None:
        raise SerialError("a program whose layout is not known has no serial form")
    modules = Modules()
    written = layout_to_json(compiled.layout, modules)
    sizes = [len(content) for content in modules.contents]
    counts = [list(pair) for pair in compiled.layout.counts.items()]
    head = to_text({"layout": written, "counts": counts, "modules": sizes})
    return b"".join((len(head).to_bytes(_LENGTH, "little"), head, *modules.contents))


def from_bytes(content: bytes, hints: Callable[[], Mapping[str, int]], title: str, again: Again) -> Restored:
    """The program, whose facts are found by compiling again. `hints`: gives the values of the graph's symbols, and is
    asked where the program has sizes that depend on them.

    Raises:
        SerialError: the bytes are damaged.
    """
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    if not _LENGTH < end <= len(content):
        raise SerialError(f"a program of {end} bytes or more was expected, not {len(content)}")
    found = mapping(from_text(content[_LENGTH:end]), _KEYS)
    sizes = [whole(size, range(1 << 40)) for size in items(found["modules"])]
    if end + sum(sizes) != len(content):
        raise SerialError(f"{sum(sizes)} bytes of modules were expected, not {len(content) - end}")
    modules: list[bytes] = []
    for size in sizes:
        modules.append(content[end : end + size])
        end += size
    counts = {text(name): whole(count) for name, count in map(_pair, items(found["counts"]))}
    layout = layout_from_json(found["layout"], Linked(modules))
    constants = layout.constants
    if constants is not None:
        constants = replace(constants, name=f"{title} constants".lstrip(), facts=again.facts_of_constants)
    layout = replace(layout, name=title, counts=counts, facts=again.facts, constants=constants)
    values = hints() if layout.keys else NO_HINTS
    if not layout.keys <= values.keys():
        raise SerialError(f"the symbols {sorted(values)} were expected, not {sorted(layout.keys)}")
    program = layout.place({name: values[name] for name in layout.keys})
    is_open = bool(layout.keys or layout.scalars)
    return Restored(SymbolicProgram(layout) if is_open else program, program, layout)


def _pair(value: Any) -> Sequence[Any]:
    return items(value, 2)


@record
class Restored:
    """What was kept: `compiled`, and the program for the hints at hand."""

    compiled: Program | SymbolicProgram
    program: Program
    layout: Layout


@dataclass(slots=True, eq=False)
class Again:
    """A restored program's other results: the same graph is compiled once more when somebody asks.

    compile: does it. program: the restored one, for the hints at hand.
    """

    compile: Callable[[], Finished]
    program: Program | None = None
    _made: Finished | None = None

    @property
    def finished(self) -> Finished:
        if self._made is None:
            self._made = self.compile()
        return self._made

    def facts(self, work: Sequence[Any], sizes: Sizes) -> Sequence[StepFacts]:
        return _facts(self.finished.layout, sizes)

    def facts_of_constants(self) -> Sequence[StepFacts]:
        constants = self.finished.layout.constants
        return () if constants is None or constants.facts is None else constants.facts()

    def details(self) -> Details:
        """Kernels of the restored program are looked up as those in their place in the other one."""
        found, codes = self.finished.details(), self._codes()

        def of(look: Callable[[CallKernel], str]) -> Callable[[CallKernel], str]:
            return lambda call: look(replace(call, code=codes.get(id(call.code), call.code)))

        return Details(found.names, found.decisions, of(found.loops), of(found.llvm), found.assembly)

    def _codes(self) -> dict[int, Any]:
        here, there = self.program, self.finished.program
        pairs: list[tuple[Program | None, Program | None]] = [(here, there)]
        if here is not None and here.constants is not None:
            pairs.append((here.constants, there.constants))
        return {
            id(mine.code): other.code
            for program, same in pairs
            for mine, other in zip(_kernels(program), _kernels(same), strict=True)
        }

    def texts(self) -> dict[str, Callable[[], str]]:
        """As `Finished.texts`; the program's is there already."""
        program = self.program
        assert program is not None
        found: dict[str, Callable[[], str]] = {
            stage: functools.partial(self._text, stage)
            for stage in ("definitions", "fusion", "kernels", "llvm", "assembly")
        }
        return {**found, "program": lambda: format_program(program)}

    def _text(self, stage: str) -> str:
        return self.finished.texts()[stage]()


def _facts(layout: Layout, sizes: Sizes) -> Sequence[StepFacts]:
    return () if layout.facts is None else layout.facts(layout.work, sizes)


def _kernels(program: Program | None) -> list[CallKernel]:
    """The calls of kernels, those that take writes back last."""
    if program is None:
        return []
    steps = [*program.instructions, *(kernel for _, kernel in program.undo)]
    return [step for step in steps if isinstance(step, CallKernel)]


# --- keys -------------------------------------------------------------------------------------------------------------


def machine_parts(target: Target) -> dict[str, str] | None:
    """All that code depends on beside graph and options: the target, where it is for the very CPU that this runs on the
    CPU, LLVM, and in what products of float32 are computed. None where no text tells a target from all others."""
    try:
        described = _described(target)
    except _NotPlain:
        return None
    return {
        "target": f"{target.name} {_digest(described)}",
        "cpu": _cpu() if target.cpu == "native" else target.cpu,
        "llvm": _llvm(),
        "products": repr(float32_in_bf16(target)),
    }


class _NotPlain(Exception):
    pass


@functools.lru_cache(maxsize=16)
def _described(value: Target) -> str:
    return _text_of(value)


def _text_of(value: Any) -> str:
    """Equal for equal values in all processes. Functions count by their names, as their code is Lampwork's own."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str, range, torch.dtype):
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        inside = ",".join(f"{field.name}={_text_of(getattr(value, field.name))}" for field in fields)
        return f"{kind.__module__}.{kind.__qualname__}({inside})"
    if isinstance(value, tuple):
        return f"({','.join(map(_text_of, cast('tuple[Any, ...]', value)))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_text_of, cast('frozenset[Any]', value))))}}}"
    function: Any = getattr(value, "__wrapped__", value)
    if isinstance(function, types.FunctionType | type):
        name = f"{function.__module__}.{function.__qualname__}"
        if name.startswith("lampwork.") and "<" not in name:
            return name
    raise _NotPlain


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _cpu() -> str:
    """The CPU, by all that LLVM knows it by: maker, family, model and flags."""
    info = cpu_info()
    numbers = " ".join(info.get(name, "?") for name in ("vendor_id", "cpu family", "model"))
    return f"{numbers} {_digest(' '.join(sorted(info.get('flags', '').split())))}"


@functools.cache
def _llvm() -> str:
    """The version of llvmlite, which brings LLVM, without an import of it."""
    try:
        return importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return "none"
