"""The programs of an entry, ready to run: linked from the code of a file, or compiled here from its graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lampwork.artifacts.checked import Place, parsed
from lampwork.artifacts.container import Container, digest
from lampwork.artifacts.manifest import Code, Manifest, Weight, short
from lampwork.artifacts.manifest import Prepacked as Described
from lampwork.artifacts.plain import is_dense, is_lazy
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.errors import (
    ArtifactError,
    ArtifactTrustError,
    ArtifactVersionError,
    ArtifactWeightsError,
    RuntimeFailure,
    SerialError,
)
from lampwork.graph.concrete import scope_of
from lampwork.graph.symbols import Condition
from lampwork.locks import new_lock
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.symbols import evaluate
from lampwork.recent import Recent
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.layout import Layout
from lampwork.runtime.program import Program, Value
from lampwork.serial import Linked, graph_from_json, layout_from_json
from lampwork.version import __version__

KEPT = 64
"""For how many sizes an entry keeps its programs."""


@record(eq=False)
class Prepacked:
    """What of a program's constants the file has, for its own weights. `tensors`: numbers of what the manifest
    describes. `places`: for each constant its place among these, or -1: the next output of `rest`, whose inputs are the
    weights and then the tensors."""

    constants: Program
    tensors: tuple[int, ...]
    places: tuple[int, ...]
    rest: Program | None

    def over(self, bound: Sequence[Tensor], tensors: Sequence[Tensor]) -> Executable:
        """What programs over the file's weights, which nobody has written to yet, share their constants with."""
        none = Program((), (), (), 0, len(bound), 0, self.constants)
        made = Executable(none, bound)
        made.adopt(tuple(tensors), self.places, self.rest)
        return made


@record(eq=False)
class Source:
    """What makes the program for given sizes. `keys`: the symbols that it depends on, in order; `scalars`: the numbers
    that it takes with each call. `conditions`: what calls are held to besides those of the manifest."""

    keys: tuple[str, ...]
    scalars: tuple[Index, ...]
    make: Callable[[Mapping[str, int]], Program]
    conditions: tuple[Condition, ...] = ()
    prepacked: Prepacked | None = None

    @staticmethod
    def of_layout(layout: Layout, prepacked: Prepacked | None) -> Source:
        keys = tuple(sorted(layout.keys))
        return Source(keys, layout.scalars, layout.place, prepacked=prepacked)

    @staticmethod
    def of_program(program: Program | SymbolicProgram, conditions: tuple[Condition, ...]) -> Source:
        if isinstance(program, Program):
            return Source((), (), lambda values: program, conditions)
        return Source(tuple(sorted(program.keys)), program.scalars, program.instantiate, conditions)


@dataclass(slots=True, eq=False)
class Runner:
    """Runs the programs of an entry over its weights. Safe to use from many threads."""

    source: Source
    bound: Sequence[Tensor]
    described: Sequence[Weight]
    """What programs take the bound tensors for."""
    shared: Executable | None = None
    """What the programs share their constants with."""
    _first: Executable | None = None
    _made: Recent[tuple[int, ...], Executable] = field(
        default_factory=lambda: Recent[tuple[int, ...], Executable](KEPT)
    )
    _lock: threading.RLock = field(default_factory=new_lock)

    def __call__(self, tensors: Sequence[Tensor], values: Mapping[str, int]) -> list[Tensor]:
        source = self.source
        if not source.keys:
            executable = self._first or self._make((), values)
        else:
            numbers = tuple([values[key] for key in source.keys])
            with self._lock:
                executable = self._made.get(numbers)
            executable = executable or self._make(numbers, values)
        try:
            if not source.scalars:
                return executable.run(tensors)
            return executable.run(tensors, tuple(evaluate(index, values) for index in source.scalars))
        except RuntimeFailure:
            self._check_bound()
            raise

    def _make(self, numbers: tuple[int, ...], values: Mapping[str, int]) -> Executable:
        with self._lock:
            made = self._made.get(numbers)
            if made is None:
                self._check_bound()
                # What is computed from the weights alone is computed once, for all sizes.
                made = Executable(self.source.make(values), self.bound, share=self.shared)
                self._first = self._first or made
                self.shared = self.shared or made
                self._made.put(numbers, made)
            return made

    def _check_bound(self) -> None:
        """
        Raises:
            ArtifactWeightsError: a weight got other data (`weight.data = ...`), which programs would misread.
        """
        for weight, tensor in zip(self.described, self.bound, strict=True):
            expected = (weight.shape, weight.strides, weight.dtype)
            came = (tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if came == expected and is_dense(tensor) and not is_lazy(tensor):
                continue
            raise ArtifactWeightsError(
                f"{weight.name} of a loaded artifact was made another tensor since: expected {_shown(*expected)} in "
                f"memory of the CPU, came {_shown(*came)}{' of negated or conjugated memory' * is_lazy(tensor)}",
                fix=f"load the file again, and copy under torch.no_grad(): model.get_{weight.kind}({weight.name!r})"
                ".copy_(value), or load_state_dict; or load(path, weights=...)",
            )


def _shown(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> str:
    return f"{short(dtype)} of shape {list(shape)} with the strides {list(strides)}"


def checked_section(container: Container, manifest: Manifest, name: str) -> bytes:
    """
    Raises:
        ArtifactError: its bytes are not those that were written.
    """
    data = container.section(name)
    found = digest(data)
    if found != manifest.sections[name].sha256:
        raise container.damaged(
            f"section {name} has the sha256 {found[:16]}..., expected {manifest.sections[name].sha256[:16]}..."
        )
    return data


def linked(container: Container, manifest: Manifest, code: Code) -> dict[str, Source]:
    """The programs of all entries for a target, with their code linked into this process.

    Raises:
        ArtifactError: they are damaged.
    """

    def refusal(what: str) -> ArtifactError:
        return container.damaged(f"{code.programs}: {what}")

    text = checked_section(container, manifest, code.programs)
    place = Place(parsed(text, refusal), "", refusal)
    modules = tuple(each.text() for each in place["modules"])
    if modules != code.code:
        raise place["modules"].wrong(f"those of the manifest, {list(code.code)}")
    functions = Linked([checked_section(container, manifest, name) for name in modules])
    found: dict[str, Source] = {}
    for name, entry in manifest.entries.items():
        try:
            layout = layout_from_json(place["entries"][name].object(), functions)
        except SerialError as error:
            raise refusal(f"entry {name}: {error.cause}") from error
        if (layout.n_inputs, layout.n_bound, len(layout.outputs)) != (
            len(entry.inputs),
            len(entry.weights),
            len(entry.outputs),
        ):
            raise refusal(f"entry {name} has other inputs, weights or outputs than the manifest says")
        symbols = {symbol.name for symbol in entry.symbols}
        needed = layout.keys.union(*(index.symbols() for index in layout.scalars))
        if not needed <= symbols:
            raise refusal(
                f"entry {name} has the symbols {sorted(needed - symbols)}, which its inputs do not give"
            )
        at = place["prepacked"]
        at = at[name] if at.is_there else at
        prepacked = _prepacked(at, layout, manifest, code, functions) if at.is_there else None
        found[name] = Source.of_layout(layout, prepacked)
    return found


def _prepacked(at: Place, layout: Layout, manifest: Manifest, code: Code, functions: Linked) -> Prepacked:
    """
    Raises:
        ArtifactError: it is not what the constants of the program are.
    """
    constants = layout.constants
    if constants is None:
        raise at.wrong("nothing, as the program has no constants")
    tensors = tuple(each.number(below=len(manifest.prepacked)) for each in at["tensors"])
    if not set(tensors) <= set(code.prepacked):
        raise at["tensors"].wrong(f"numbers that the target has, {list(code.prepacked)}")
    places = tuple(each.number(below=len(tensors), at_least=-1) for each in at["places"])
    if len(places) != len(constants.outputs):
        raise at["places"].wrong(f"{len(constants.outputs)} places")
    described = [manifest.prepacked[number] for number in tensors]
    rest = None
    if at["rest"].is_there:
        try:
            read = layout_from_json(at["rest"].value, functions)
        except SerialError as error:
            raise at.refusal(f"{at.where}: {error.cause}") from error
        form = (read.n_inputs, read.n_bound, read.keys, read.scalars, read.constants)
        if form != (layout.n_bound + len(tensors), 0, frozenset(), (), None):
            raise at["rest"].wrong("a program of the weights and these tensors alone")
        rest = read.place({})
        for value in rest.values:
            known = value.position - layout.n_bound
            if value.kind == "input" and known >= 0 and not _is_like(described[known], value):
                raise at["rest"].wrong("a program that takes the tensors for what they are")
    others = iter(() if rest is None else [rest.values[number] for number in rest.outputs])
    made = [next(others, None) if place < 0 else described[place] for place in places]
    if None in made or next(others, None) is not None:
        raise at["rest"].wrong("a program that gives the other constants")
    for number, each in zip(constants.outputs, made, strict=True):
        if each is not None and not _is_like(each, constants.values[number]):
            raise at["places"].wrong("tensors that are what the program computes")
    return Prepacked(constants, tensors, places, rest)


def _is_like(one: Described | Value, other: Value) -> bool:
    """Whether a program may take one for the other; of some tensors torch alone knows what they are."""
    if one.dtype is None or other.dtype is None:
        return True
    return one.dtype == other.dtype and one.shape == other.shape and _steps(one) == _steps(other)


def _steps(of: Described | Value) -> list[int]:
    return [stride for size, stride in zip(of.shape, of.strides, strict=True) if size > 1]


def _unreadable(container: Container, manifest: Manifest, what: str, error: SerialError) -> ArtifactError:
    """Why a section cannot be read: by the versions that wrote it, or else because it is damaged."""
    theirs = (manifest.lampwork, manifest.torch)
    if theirs == (__version__, torch.__version__):
        return container.damaged(f"{what}: {error.cause}")
    return ArtifactVersionError(
        f"{container.path}: {what} cannot be read here: {error.cause}",
        fix=f"it says that Lampwork {theirs[0]} with torch {theirs[1]} wrote it: install these, or export it again; if "
        "they cannot read it either, it is damaged, or was tampered with",
    )


def compiled(container: Container, manifest: Manifest) -> dict[str, Source]:
    """The programs of all entries, compiled for this machine from their graphs.

    Raises:
        ArtifactError: a graph is damaged, or computes something else than its entry says.
        ArtifactTrustError: it has an operator that is not run for everybody.
        ArtifactVersionError: it has operators that are not known here.
        BackendError: it cannot be compiled.
    """
    # Loaded here: a file that is trusted needs no compiler.
    from lampwork.artifacts.compiling import compile_here
    from lampwork.artifacts.sound import Unsound, check_graph, conditions_of, divided_by, fill_memory

    found: dict[str, Source] = {}
    for name, entry in manifest.entries.items():
        text = checked_section(container, manifest, entry.graph)
        given = parsed(text, container.damaged)
        try:
            graph = graph_from_json(given)
        except SerialError as error:
            raise _unreadable(container, manifest, f"the graph of {name}", error) from error
        scope = scope_of(graph)
        try:
            check_graph(graph, entry, manifest.weights)
            fill_memory(graph)
            divided = divided_by(graph, entry)
            made = compile_here(graph, entry.writes, entry.views, manifest.sections[entry.graph].sha256)
            # Compilation has added to them.
            found[name] = Source.of_program(made, (*divided, *conditions_of(scope, entry.symbols)))
        except Unsound as error:
            if error.operator:
                raise ArtifactTrustError(
                    f"{container.path}: the graph of {name}: {error}",
                    fix="load it with key= or trust=True, if you know where it comes from",
                ) from error
            raise container.damaged(f"the graph of {name}: {error}") from error
    return found
