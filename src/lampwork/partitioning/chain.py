"""The parts of a graph, compiled, as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.eager import EagerBackend
from lampwork.backends.native.heap_values import in_heap
from lampwork.backends.observer import NOBODY, Observer
from lampwork.backends.protocol import Backend, CompileOptions, Traits
from lampwork.capture.model.region import Region
from lampwork.config import current
from lampwork.errors import BackendError, BackendWriteError
from lampwork.partitioning.assign import Answers
from lampwork.partitioning.compiling import compile_graph
from lampwork.partitioning.faults import Report, raise_fault
from lampwork.partitioning.parts import Part, extract, is_fixed, subgraph
from lampwork.partitioning.running import Runner, Source
from lampwork.partitioning.weights import Weights
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import storage_root, view_base
from lampwork.runtime import Executable
from lampwork.runtime.cuda_graphs import Graphed, graphed
from lampwork.runtime.opaque import opaque
from lampwork.runtime.packed_weights import release_weights
from lampwork.runtime.program import Program
from lampwork.standard import functools, operator


@record
class Link:
    """One part: its results become the values `outputs`; nobody needs the values `dead` after it."""

    run: Runner
    outputs: tuple[int, ...]
    dead: tuple[int, ...] = ()


@record
class Chain:
    """Parts that run one after another. Values are numbered: the inputs, the bound tensors, the constants, then what
    parts give.

    Called with the list of input tensors (bound ones may follow) it returns the outputs, after it wrote `mutations`,
    (value number, output number) pairs, back.
    """

    weights: Weights
    n_inputs: int
    n_results: int
    links: tuple[Link, ...]
    outputs: tuple[int, ...]
    mutations: tuple[tuple[int, int], ...]

    @opaque
    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        state = self.weights.current()
        values: list[Any] = [*inputs[: self.n_inputs], *state.values]
        values += [None] * self.n_results
        for link in self.links:
            for number, value in zip(link.outputs, link.run(values, state), strict=True):
                values[number] = value
            for number in link.dead:
                values[number] = None
        outputs = [values[i] for i in self.outputs]
        if self.mutations:
            self._write_back(values, outputs)
        return outputs

    def _write_back(self, values: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        written = {values[target].untyped_storage().data_ptr() for target, _ in self.mutations}
        with pristine.no_grad():
            contents = [
                outputs[source].clone()
                if outputs[source].untyped_storage().data_ptr() in written
                else outputs[source]
                for _, source in self.mutations
            ]
            for (target, _), content in zip(self.mutations, contents, strict=True):
                values[target].copy_(content)

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Who runs the parts, in order."""
        return tuple(link.run.backend for link in self.links)


def executable(
    program: Program, region: Region, trains: bool = False, share: Executable | Graphed | None = None
) -> Executable | Graphed:
    """A program with the bound tensors of its region, which it may release (option `weights`). `trains`: it is part of
    a training step, whose parts share memory. `share`: what runs it for other sizes."""
    other = share.executable if isinstance(share, Graphed) else share
    if share is None and current().weights == "packed":
        release_weights(program, region.bound, current())
    if trains:
        return Executable(in_heap(program), region.bound, share=other)
    return graphed(Executable(program, region.bound, share=other), program, region)


def compile_parts(
    parts: Sequence[Part],
    region: Region,
    observer: Observer = NOBODY,
    report: Report = raise_fault,
) -> Any:
    """Compile what `partition` made of `region.graph` into what `make_entry` takes.

    One part that a backend compiled to a Program gives a `runtime.Executable`; otherwise a `Chain`. Mutations of the
    region are written back by either. A part whose backend fails goes to the next that takes all of its nodes, at last
    to eager PyTorch; `report` is told, and may raise instead.

    Raises:
        BackendError: a part could not be compiled at all; or what `report` raises.
    """
    return start_parts(parts, region, observer, report)()


def _nothing() -> None:
    """Nobody wants to know."""


def start_parts(
    parts: Sequence[Part],
    region: Region,
    observer: Observer = NOBODY,
    report: Report = raise_fault,
    trains: bool = False,
    whole: Callable[[], None] = _nothing,
) -> Callable[[], Any]:
    """Begin to do what `compile_parts` does; the call of what this gives ends it, under the same options. In between
    threads compile machine code if the region `trains`. `whole` is called where one Program is made of all of it."""
    if len(parts) > 1 or not Traits.of(parts[0].backend).writes_inputs:
        chain = _Linker(parts, region, observer, report).chain()
        return lambda: chain
    part = parts[0]
    options = CompileOptions(current(), tuple(region.mutations), observer, waits=not trains)

    def instead(error: BackendError) -> Chain:
        others = takers(part)
        if not others:
            raise error
        again = [replace(part, backend=others[0])]
        if isinstance(error, BackendWriteError):
            return _Linker(again, region, observer, report, unsaid=error).chain()
        report(error, others[0].name)
        return _Linker(again, region, observer, report).chain()

    def finish(program: Program) -> Any:
        try:
            return executable(program, region, trains)
        except BackendError as error:
            return instead(error)

    try:
        program = compile_graph(part.backend, part.graph, options, region.bound).compiled
        if isinstance(program, Program):
            whole()
            return functools.partial(finish, program)
        raise BackendError(
            f"backend {part.backend.name} says that it writes inputs, but made no Program",
            fix="leave writes_inputs out: the framework does it",
        )
    except BackendError as error:
        chain = instead(error)
        return lambda: chain


def takers(part: Part) -> list[Backend]:
    """The other backends that take the whole part, in order; eager PyTorch takes everything and is left out."""
    answers = Answers(part.graph, part.backends, _ignore)
    calls = [node for node in part.nodes if node.target is not operator.getitem]
    later = range(len(part.backends) - len(part.others), len(part.backends))
    return [
        part.backends[number]
        for number in later
        if not isinstance(part.backends[number], EagerBackend)
        and all(answers.supports(number, node) for node in calls)
    ]


def _ignore(error: BackendError, instead: str, *, calling: bool = False) -> None:
    """Nonsense has been reported when the parts were made."""


class _Numbers:
    """The numbers of a chain's values, asked for in the order in which parts run.

    What is made gets a number of its own each time, so two makers of one node (a part that gives a view to another
    part, and the tail that gives it to the caller) never share a place: who reads the node reads its last maker's.
    """

    def __init__(self, given: Sequence[fx.Node]) -> None:
        self._numbers = {node: number for number, node in enumerate(given)}
        self.n_given = len(given)
        self.n_made = 0

    def of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        return tuple(self._numbers[node] for node in nodes)

    def made(self, nodes: Sequence[fx.Node]) -> tuple[int, ...]:
        first = self.n_given + self.n_made
        self.n_made += len(nodes)
        found = tuple(range(first, first + len(nodes)))
        self._numbers.update(zip(nodes, found, strict=True))
        return found


class _Linker:
    """Makes a chain of parts."""

    def __init__(
        self,
        parts: Sequence[Part],
        region: Region,
        observer: Observer,
        report: Report,
        unsaid: BackendError | None = None,
    ) -> None:
        self.unsaid = unsaid
        self.region = region
        self.report = report
        self.observer = observer
        self.graph = parts[0].graph
        self.results = cast("tuple[fx.Node, ...]", _output(self.graph).args[0])
        self.parts = [part for part in parts if part.nodes]
        self.tail = _tail(self.results, self.parts)

    def chain(self) -> Chain:
        leaving = self._leaving()
        extracted = [subgraph(part, leaving, Traits.of(part.backend).keeps_constants) for part in self.parts]
        backends = [(part.backend, *takers(part)) for part in self.parts]
        if self.tail:
            extracted.append(self._tail_graph())
            backends.append((EagerBackend(),))
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        constants = _constants(self.graph, [inputs for _, inputs, _ in extracted])
        n_inputs = len(self.region.inputs)
        numbers = _Numbers((*placeholders, *constants))
        sources = [
            Source(
                graph,
                numbers.of(n for n in inputs if not is_fixed(n)),
                numbers.of(n for n in inputs if is_fixed(n)),
                numbers.made(outputs),
            )
            for graph, inputs, outputs in extracted
        ]
        results = numbers.of(self.results)
        weights = self._weights(placeholders[n_inputs:], constants, extracted)
        state = weights.current()
        options = CompileOptions(current())
        shown = self._shown()
        dead = _last_uses(sources, results, numbers.n_given)
        links: list[Link] = []
        for i, source in enumerate(sources):
            given = replace(options, observer=self.observer) if i == shown else options
            runner = Runner(
                source, backends[i], given, state, n_inputs, self.report, self.unsaid if i == 0 else None
            )
            links.append(Link(runner, source.outputs, dead[i]))
        return Chain(weights, n_inputs, numbers.n_made, tuple(links), results, tuple(self.region.mutations))

    def _shown(self) -> int:
        """The number of the part that the observer sees compiled: the largest that Lampwork compiles itself."""
        ours = [i for i, part in enumerate(self.parts) if Traits.of(part.backend).keeps_constants]
        return max(ours, key=lambda i: len(self.parts[i].nodes), default=-1)

    def _leaving(self) -> set[fx.Node]:
        """What a part has to return: what another one, the tail or the caller needs."""
        owner = {node: i for i, part in enumerate(self.parts) for node in part.nodes}
        leaving = {node for node in self.results if node not in self.tail}
        for node in self.tail:
            leaving.update(n for n in node.all_input_nodes if n not in self.tail)
        for node, number in owner.items():
            leaving.update(n for n in node.all_input_nodes if owner.get(n, number) != number)
        return leaving

    def _tail_graph(self) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
        body = [n for n in self.graph.nodes if n in self.tail]
        outside = dict.fromkeys(i for n in body for i in n.all_input_nodes if i not in self.tail)
        inputs = sorted(outside, key=is_fixed)
        outputs = [n for n in dict.fromkeys(self.results) if n in self.tail]
        return extract(inputs, body, outputs), inputs, outputs

    def _weights(
        self,
        bound: Sequence[fx.Node],
        constants: Sequence[fx.Node],
        extracted: Sequence[tuple[fx.Graph, list[fx.Node], list[fx.Node]]],
    ) -> Weights:
        """The bound tensors, watched where a change of them is for us to notice."""
        body = _closure(constants)
        watched = {n for node in body for n in node.all_input_nodes if n.op == "placeholder"}
        for part, (_, inputs, _) in zip(self.parts, extracted, strict=False):
            if any(Traits.of(b).bakes_weights for b in (part.backend, *part.others)):
                watched.update(n for n in inputs if n.op == "placeholder" and is_fixed(n))
        graph = None
        if constants:
            graph = extract(bound, [n for n in self.graph.nodes if n in body], constants)
        numbers = [i for i, node in enumerate(bound) if node in watched]
        return Weights(self.region.bound, graph, numbers)


def _output(graph: fx.Graph) -> fx.Node:
    return next(n for n in reversed(graph.nodes) if n.op == "output")


def _tail(results: Sequence[fx.Node], parts: Sequence[Part]) -> set[fx.Node]:
    """The nodes to be run at the very end, by eager PyTorch: views through which a result shares memory with an
    argument or with another result, which a backend may or may not give; constants that the caller gets to see."""
    if len(parts) == 1 and Traits.of(parts[0].backend).trusted:
        roots: set[fx.Node] = set()
    else:
        roots = _shared_roots(results)
    work = [n for n in dict.fromkeys(results) if n.op == "call_function"]
    work = [
        n for n in work if n.meta.get("constant") or (view_base(n) is not None and storage_root(n) in roots)
    ]
    found: set[fx.Node] = set()
    while work:
        node = work.pop()
        if node in found:
            continue
        found.add(node)
        for needed in node.all_input_nodes:
            if needed.op == "call_function" and (needed.meta.get("constant") or needed not in roots):
                work.append(needed)
    return found


def _shared_roots(results: Iterable[fx.Node]) -> set[fx.Node]:
    """Whose memory the caller can see from two sides."""
    seen: set[fx.Node] = set()
    shared: set[fx.Node] = set()
    for node in dict.fromkeys(results):
        root = storage_root(node)
        if root in seen or root.op == "placeholder" or root.meta.get("constant"):
            shared.add(root)
        seen.add(root)
    return shared


def _closure(constants: Sequence[fx.Node]) -> set[fx.Node]:
    """The constants with the nodes that they are computed from."""
    found: set[fx.Node] = set()
    work = list(constants)
    while work:
        node = work.pop()
        if node.op == "call_function" and node not in found:
            found.add(node)
            work.extend(node.all_input_nodes)
    return found


def _constants(graph: fx.Graph, inputs: Sequence[Sequence[fx.Node]]) -> list[fx.Node]:
    """The constants that parts take as inputs, in graph order."""
    wanted = {n for each in inputs for n in each if n.op == "call_function" and is_fixed(n)}
    return [n for n in graph.nodes if n in wanted]


def _last_uses(sources: Sequence[Source], results: Sequence[int], n_given: int) -> list[tuple[int, ...]]:
    """For each part, the numbers of what parts before it made and nobody after it needs."""
    seen = set(results)
    dead: list[tuple[int, ...]] = []
    for source in reversed(sources):
        used = [number for number in (*source.inputs, *source.bound) if number >= n_given]
        dead.append(tuple(number for number in used if number not in seen))
        seen.update(used)
    return dead[::-1]
