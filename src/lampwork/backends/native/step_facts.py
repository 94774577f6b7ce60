"""What each task of a compiled graph computes: `Facts`, kept with a program, works it out when somebody looks.

A kernel computes what its results need of the definitions as they were lowered, before fusion, back to what it reads
and to what other tasks make. The bytes that it moves are read off the definitions after fusion, whose loads are the
kernel's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from lampwork.backends.native.tasks import ExternTask, KernelTask, Task, task_reads, task_writes
from lampwork.graph.concrete import concrete_graph, scope_of
from lampwork.graph.nested import leaves
from lampwork.graph.origin import Labels, place_of
from lampwork.graph.spec import TensorSpec
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.definitions import outs_of, reads_of, views_in
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import (
    Attention,
    Axis,
    Buffer,
    Definition,
    DType,
    Expr,
    Extern,
    Gemm,
    Map,
    Op,
    Opaque,
    PackB,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    Scan,
)
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.symbols import Sizes
from lampwork.loops.ir.traverse import walk_once
from lampwork.lower.dtypes import TORCH_DTYPES
from lampwork.rewriting.flops import flops as flops_of_node
from lampwork.rewriting.flops import moved_bytes
from lampwork.runtime.steps import StepFacts, StepKind
from lampwork.standard import functools, math

_NO_ARITHMETIC = frozenset({"cast", "unrounded", "from_bits", "where", "require"})


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known of a graph's tasks once it is compiled.

    definitions: as they were lowered, of the main and the constant part. made_for: by buffer, the node that it was made
    for. made: every group with its tasks.
    """

    graph: fx.Graph
    definitions: Sequence[Definition]
    made_for: Mapping[str, str]
    made: Sequence[tuple[Group, Sequence[Task]]]
    layouts: Mapping[str, Buffer] = field(default_factory=dict[str, Buffer])

    def labels(self, work: Sequence[Task | None]) -> tuple[Labels, ...]:
        """Of each task, the labels that all of its nodes have in common; () if the graph has none."""
        by_name: dict[str, Labels] = {}
        for node in self.graph.nodes:
            if (place := place_of(node)).origin is not None:
                by_name[node.name] = place.origin.labels
        if not any(by_name.values()):
            return ()
        looked = _Looked(self, Sizes({}), {node.name: node for node in self.graph.nodes})
        return tuple(_common([by_name.get(name, ()) for name in looked.names(task)]) for task in work)

    def __call__(self, work: Sequence[Task | None], sizes: Sizes) -> tuple[StepFacts, ...]:
        """Of each task in order; None is a result that is written back to an input."""
        scope = scope_of(self.graph)
        graph = self.graph if scope is None else concrete_graph(self.graph, {**scope.hints, **sizes.values})
        looked = _Looked(self, sizes, {node.name: node for node in graph.nodes})
        return tuple(looked.with_places(_WRITE_BACK if task is None else looked.facts(task)) for task in work)


def _common(labels: Sequence[Labels]) -> Labels:
    """What all of them begin with."""
    if not labels:
        return ()
    first, last = min(labels), max(labels)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[:same]


_WRITE_BACK = StepFacts(-1, "", "aten", (), 0, 0, 0)


class _Looked:
    """The facts of a graph's tasks for given sizes."""

    def __init__(self, known: Facts, sizes: Sizes, nodes: Mapping[str, fx.Node]) -> None:
        self.known = known
        self.sizes = sizes
        self.nodes = nodes
        self.group_of = {id(task): group for group, tasks in known.made for task in tasks}
        self.first_of = {id(tasks[0]) for _, tasks in known.made if tasks}
        self.makers: dict[str, list[Definition]] = {}
        for definition in known.definitions:
            for out in outs_of(definition):
                self.makers.setdefault(out.name, []).append(definition)
        tasks = [task for _, made in known.made for task in made]
        self.made_by_tasks = frozenset(name for task in tasks for name in task_writes(task))
        self.readers: dict[str, list[Task]] = {}
        for task in tasks:
            for name in task_reads(task):
                self.readers.setdefault(name, []).append(task)

    def names(self, task: Task | None) -> tuple[str, ...]:
        """The nodes that a task computes."""
        if task is None:
            return ()
        if isinstance(task, ExternTask):
            return self._called(task.extern)
        return self._nodes(task, self.computed(task), frozenset())

    def facts(self, task: Task) -> StepFacts:
        if isinstance(task, ExternTask):
            return self._of_call(task.extern)
        group = self.group_of[id(task)]
        computed = self.computed(task)
        is_first = id(task) in self.first_of
        return StepFacts(
            -1,
            task.origin or task.name,
            _kind(group),
            self.names(task),
            sum(self._bytes_read(task, group).values()),
            sum(self._bytes_written(task, group).values()),
            sum(map(self._flops, computed)) if is_first else 0,
            _dtype(computed or group.definitions),
        )

    def with_places(self, facts: StepFacts) -> StepFacts:
        metas = [self.nodes[name].meta for name in facts.nodes]
        lines = (meta.get("location") for meta in metas)
        modules = (meta["origin"].module for meta in metas if meta.get("origin") is not None)
        return replace(
            facts,
            lines=tuple(dict.fromkeys(line for line in lines if line is not None)),
            modules=tuple(dict.fromkeys(modules)),
        )

    def computed(self, task: Task) -> list[Definition]:
        """The definitions as they were lowered that a task computes, in order."""
        stops = self.made_by_tasks | task_reads(task)
        found: dict[int, Definition] = {}
        work = list(task_writes(task))
        seen = set(work)
        while work:
            for definition in self.makers.get(work.pop(), ()):
                found[id(definition)] = definition
                for name in reads_of(definition) - seen - stops:
                    seen.add(name)
                    work.append(name)
        return [each for each in self.known.definitions if id(each) in found]

    def _nodes(self, task: Task, computed: Iterable[Definition], seen: frozenset[int]) -> tuple[str, ...]:
        """The nodes that a task computes. What only prepares an operand is for the nodes of those who read it."""
        made_for = self.known.made_for
        names = (made_for.get(out.name) for each in computed for out in outs_of(each))
        found = tuple(dict.fromkeys(name for name in names if name in self.nodes and name is not None))
        if found or id(task) in seen:
            return found
        readers = [reader for name in task_writes(task) for reader in self.readers.get(name, ())]
        beyond = seen | {id(task)}
        of_readers = (name for each in readers for name in self._nodes(each, self.computed(each), beyond))
        return tuple(dict.fromkeys(of_readers))

    # --- calls of ATen ------------------------------------------------------------------------------------------------

    def _called(self, extern: Extern) -> tuple[str, ...]:
        """The nodes that a call of ATen computes."""
        made_for = (self.known.made_for.get(out.name) for out in extern.outs)
        names = tuple(dict.fromkeys(name for name in made_for if name is not None and name in self.nodes))
        return (extern.origin,) if not names and extern.origin in self.nodes else names

    def _of_call(self, extern: Extern) -> StepFacts:
        names = self._called(extern)
        read = {view.buffer.name: 0 for view in views_in((extern.args, [v for _, v in extern.kwargs]))}
        for view in views_in((extern.args, [v for _, v in extern.kwargs])):
            amount = (
                self._opaque_bytes(view.buffer.name)
                if isinstance(view.buffer, Opaque)
                else self._elements(view.shape, view.strides) * _itemsize(view.buffer.dtype)
            )
            read[view.buffer.name] = max(read[view.buffer.name], amount)
        written = sum(
            self._opaque_bytes(out.name) if isinstance(out, Opaque) else self._buffer_bytes(out)
            for out in extern.outs
        )
        taken = sum(read.values())
        if len(names) == 1:
            # Of a table it reads the rows that are looked up.
            taken = min(taken, moved_bytes(self.nodes[names[0]])[0])
        arithmetic = sum(flops_of_node(self.nodes[name]) or 0 for name in names)
        dtypes = [str(out.dtype) for name in names for out in _specs(self.nodes[name])]
        dtype = dtypes[0].removeprefix("torch.") if dtypes else ""
        return StepFacts(-1, extern.origin, "aten", names, taken, written, arithmetic, dtype, why=extern.why)

    def _opaque_bytes(self, name: str) -> int:
        """Of a tensor whose layout torch alone knows, by the graph; 0 if that does not know it either."""
        node = self.nodes.get(self.known.made_for.get(name, ""))
        if node is None:
            return 0
        return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in _specs(node))

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _bytes_read(self, task: KernelTask, group: Group) -> dict[str, int]:
        """By buffer that the kernel is given, the bytes of the elements that it reads."""
        found: dict[str, int] = {}
        for definition in group.definitions:
            extents = {axis.name: self.sizes.number(axis.extent) for axis in _axes(definition)}
            for load in loads(*definition.nodes()) if not isinstance(definition, Extern) else ():
                read = math.prod(
                    extents.get(name, 1) for name in set[str]().union(*(i.variables() for i in load.index))
                )
                if isinstance(definition, Gemm) and definition.group and load is definition.b:
                    # A group without rows reads no matrix.
                    groups, rows = extents[definition.group.name], extents[definition.m.name]
                    read = read // groups * min(groups, rows)
                name = load.buffer.name
                found[name] = found.get(name, 0) + read * _itemsize(load.buffer.dtype)
        given = {buffer.name: buffer for buffer in task.params if buffer.name in task.reads}
        return {
            name: min(found.get(name, self._buffer_bytes(buffer)), self._buffer_bytes(buffer))
            for name, buffer in given.items()
        }

    def _bytes_written(self, task: KernelTask, group: Group) -> dict[str, int]:
        partly = {
            each.out.name: math.prod(self.sizes.number(axis.extent) for axis in each.axes)
            * _itemsize(each.out.dtype)
            for each in group.definitions
            if isinstance(each, Map) and each.onto is not None
        }
        given = [buffer for buffer in task.params if buffer.name in task.writes]
        return {
            buffer.name: min(partly.get(buffer.name, self._buffer_bytes(buffer)), self._buffer_bytes(buffer))
            for buffer in given
        }

    def _buffer_bytes(self, buffer: Buffer) -> int:
        laid_out = self.known.layouts.get(buffer.name, buffer)
        return self._elements(laid_out.shape, laid_out.strides) * _itemsize(buffer.dtype)

    def _elements(self, shape: tuple[Index, ...], strides: tuple[Index, ...]) -> int:
        """How many distinct elements there are: dimensions of stride 0 repeat them."""
        pairs = zip(self.sizes.numbers(shape), self.sizes.numbers(strides), strict=True)
        return math.prod(size for size, stride in pairs if stride != 0 or size == 0)

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def _flops(self, definition: Definition) -> int:
        number = self.sizes.number

        def points(*axes: Axis) -> int:
            return math.prod(number(axis.extent) for axis in axes)

        match definition:
            case Map():
                return points(*definition.axes) * _arithmetic(definition.value)
            case Reduce():
                each = _arithmetic(definition.value) + 1
                finish = 0 if definition.finish is None else _arithmetic(definition.finish)
                return points(*definition.axes) * (points(*definition.over) * each + finish)
            case Scan():
                return points(*definition.axes, definition.along) * (_arithmetic(definition.value) + 1)
            case Gemm():
                each = 2 * number(definition.k.extent) + _arithmetic(definition.value)
                return points(*definition.batch, definition.m, definition.n) * each
            case Attention():
                products = 2 * (number(definition.d.extent) + number(definition.e.extent))
                softmax = 3  # the largest is taken off, the exponential, the sum
                each = products + softmax + _arithmetic(definition.value)
                return points(*definition.batch, definition.m, definition.n) * each
            case Recurrence():
                steps = points(definition.d, *definition.steps)
                projected = points(definition.u, definition.k) if definition.project is not None else 0
                return 2 * steps * (points(definition.n, definition.k) + projected)
            case RecurrenceGradient():
                return 2 * points(definition.t, definition.b, definition.n, definition.u)
            case Extern():
                node = (
                    self.nodes.get(self.known.made_for.get(definition.outs[0].name, ""))
                    if definition.outs
                    else None
                )
                return 0 if node is None else flops_of_node(node) or 0
            case PackB():
                return 0


def _kind(group: Group) -> StepKind:
    match group.definitions[0]:
        case Gemm() as gemm:
            return "conv" if gemm.rows else "gemm"
        case Attention():
            return "attention"
        case PackB():
            return "pack"
        case Recurrence() | RecurrenceGradient():
            return "recurrence"
        case _:
            return "kernel"


def _axes(definition: Definition) -> Iterator[Axis]:
    """Every axis of a definition."""
    for name in type(definition).__dataclass_fields__:
        yield from leaves(getattr(definition, name), Axis)


def _dtype(definitions: Iterable[Definition]) -> str:
    """What the heaviest of the definitions computes in: that of its operands if it is a product, else of its result."""
    found = ""
    for each in definitions:
        if isinstance(each, Gemm):
            return _name(each.a.buffer.dtype)
        if isinstance(each, Attention):
            return _name(each.q.buffer.dtype)
        if isinstance(each, Recurrence | RecurrenceGradient):
            return _name(each.w.buffer.dtype)
        if not found and outs_of(each) and not isinstance(outs_of(each)[0], Opaque):
            found = _name(outs_of(each)[0].dtype)
    return found


def _name(dtype: DType) -> str:
    return str(TORCH_DTYPES[dtype]).removeprefix("torch.")


@functools.cache
def _itemsize(dtype: DType) -> int:
    return TORCH_DTYPES[dtype].itemsize


def _arithmetic(expr: Expr) -> int:
    """How many operations one evaluation takes; conversions, comparisons and choices are none."""
    counted = (
        each.name for each in walk_once(expr) if isinstance(each, Op) and each.name not in _NO_ARITHMETIC
    )
    return sum(1 + (name == "fma") for name in counted if OPS[name].result != "bool")


def _specs(node: fx.Node) -> list[TensorSpec]:
    return list(leaves(node.meta.get("val"), TensorSpec))
