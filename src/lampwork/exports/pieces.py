"""What can run by itself elsewhere: a region, or the part of it that a module computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from torch import Tensor, fx, nn

from lampwork.capture.model.region import Arg, Known, Kwarg, Region, Source
from lampwork.checks import nearest
from lampwork.compiled.entries import Entry
from lampwork.errors import ExportError
from lampwork.exports.naming import input_names, is_rebuilt, output_names, unique, weight_names
from lampwork.graph.copying import copy_graph
from lampwork.graph.nodes import copy_node
from lampwork.graph.origin import Origin
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.records import record
from lampwork.standard import operator


@record(eq=False)
class Piece:
    """A graph with all that it needs.

    Attributes:
        name: of the region, and of the module.
        graph: functional ATen: a placeholder for each input, then one for each weight.
        inputs, weights, outputs: their names. Those of inputs are Python's, those of weights are module paths.
        tensors: one for each weight.
        keywords: the inputs that are passed by keyword.
        writes: (placeholder, output): what is written to inputs and weights after it ran; these outputs come last.
        sizes: for each symbol that is the size of an input, (input, dimension).
        hints: for each symbol, the number in the call that was captured.
        kinds: the classes of modules, by path.
        region: the region that it is all of; None for a part. `sources`: of its inputs, in order.
        notes: what a user has to know of it.
    """

    name: str
    graph: fx.Graph
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    keywords: frozenset[str] = frozenset()
    writes: tuple[tuple[int, int], ...] = ()
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    hints: Mapping[str, int] = field(default_factory=dict[str, int])
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    region: Region | None = None
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def results(self) -> tuple[fx.Node, ...]:
        return results_of(self.graph)

    @property
    def returned(self) -> tuple[str, ...]:
        """The outputs that are not written back."""
        written = {number for _, number in self.writes}
        return tuple(name for number, name in enumerate(self.outputs) if number not in written)

    @property
    def calls(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "call_function"]


def results_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])


def module_of(node: fx.Node) -> str | None:
    """The path of the module that a node comes from; None where that is not known. What takes one result of several
    belongs to what gives them."""
    if node.target is operator.getitem:
        return module_of(cast(fx.Node, node.args[0]))
    origin = node.meta.get("origin")
    return origin.module if isinstance(origin, Origin) else None


def within(module: str | None, path: str) -> bool:
    """Whether a module is the one at `path`, or in it."""
    return module is not None and (not path or module == path or module.startswith(f"{path}."))


def modules_in(graph: fx.Graph) -> tuple[str, ...]:
    """The paths of all modules that a graph computes, and of what they are in, in order."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        module = module_of(node) if node.op == "call_function" else None
        if module:
            parts = module.split(".")
            found.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    return tuple(found)


def kinds_of(graph: fx.Graph, original: Any) -> dict[str, str]:
    """The classes of modules by path, as far as they are known."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        origin = node.meta.get("origin")
        if isinstance(origin, Origin) and origin.module_type:
            found.setdefault(origin.module, origin.module_type)
    if isinstance(original, nn.Module):
        named = dict(original.named_modules())
        for path in ("", *modules_in(graph)):
            if path in named:
                found.setdefault(path, type(named[path]).__name__)
    return found


def piece_of(entry: Entry, original: Callable[..., Any], module: str = "") -> Piece:
    """All of a region, or what a module computes in it.

    Raises:
        ExportError: the region does no tensor work, or has no such module.
    """
    region, graph = entry.region, entry.stages.aten
    if graph is None or not any(node.op == "call_function" for node in graph.nodes):
        raise ExportError(
            f"{entry.name} computes no tensors, so there is nothing to export",
            fix="export another region, or a function that computes something",
        )
    if region.dtensors or region.islands:
        raise ExportError(
            f"{entry.name} computes with DTensors, which only the processes of their mesh have",
            fix="export the model before it is distributed",
        )
    copy = copy_graph(graph)
    weights = weight_names(region, original)
    inputs = input_names(region, original)
    order = _in_order(region, copy)
    places = {before: now for now, before in enumerate(order)}
    # What is written back has the name of what it is written to.
    written = {number: f"{(*inputs, *weights)[place]}.new" for place, number in region.mutations}
    count = len(results_of(copy))
    named = (
        output_names(region.recipe, [number for number in range(count) if number not in written]) | written
    )
    whole = Piece(
        entry.name,
        copy,
        tuple(inputs[number] for number in order),
        weights,
        unique(named[number] for number in range(count)),
        region.bound,
        frozenset(
            name
            for name, source in zip(inputs, region.inputs, strict=True)
            if isinstance(root_of(source), Kwarg)
        ),
        tuple((places.get(place, place), number) for place, number in region.mutations),
        *_symbols(copy, len(inputs)),
        kinds_of(copy, original),
        region,
        tuple(region.inputs[number] for number in order),
        _notes(entry),
    )
    return _cut(whole, module) if module else whole


def root_of(source: Source) -> Source:
    """What a call, or a known object, gives, that the source was reached from."""
    while not isinstance(source, (Arg, Kwarg, Known)):
        source = source.base
    return source


def _in_order(region: Region, graph: fx.Graph) -> list[int]:
    """Have the inputs of a graph come in the order of a call: gives their numbers in the region in that order."""

    def key(number: int) -> tuple[int, int]:
        source = root_of(region.inputs[number])
        if isinstance(source, Arg):
            return 0, source.index
        return (1, region.kwarg_names.index(source.name)) if isinstance(source, Kwarg) else (2, 0)

    order = sorted(range(len(region.inputs)), key=key)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for number in reversed(order):
        graph._root.append(placeholders[number])
    return order


def _notes(entry: Entry) -> tuple[str, ...]:
    region = entry.region
    found = [f"it ends in a graph break: {record.cause}, line {record.line}" for record in region.breaks]
    if region.state.grad_enabled and any(tensor.requires_grad for tensor in region.bound):
        found.append(
            "it was captured for training: this is the forward; call it under torch.no_grad() for inference"
        )
    if not is_rebuilt(region) and not region.breaks:
        found.append("the result is tensors by name, as the object that the model returns is made by Python")
    return tuple(found)


def _symbols(graph: fx.Graph, inputs: int) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Where symbols are the sizes of inputs, and what each was in the call that was captured."""
    sizes: dict[str, tuple[int, int]] = {}
    hints: dict[str, int] = {}
    for number, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        spec = node.meta["val"]
        for dim, size in enumerate(spec.shape):
            if isinstance(size, SymbolicInt):
                hints |= size.scope.hints
                if number < inputs and str(size) in size.symbols():
                    sizes.setdefault(str(size), (number, dim))
    return sizes, hints


def _cut(whole: Piece, module: str) -> Piece:
    """What `module` computes: values that come from elsewhere are inputs, what is used elsewhere is an output."""
    known = modules_in(whole.graph)
    inside = [node for node in whole.calls if within(module_of(node), module)]
    if not inside:
        raise ExportError(
            f"{whole.name} has no module {module!r}",
            fix=nearest(module, known, "its modules are")
            if known
            else "it has no modules: leave `module` out",
        )
    first = _first_call(whole, frozenset(inside))
    chosen = frozenset(first)
    placeholders = whole.placeholders
    weights = dict(
        zip(placeholders[len(whole.inputs) :], zip(whole.weights, whole.tensors, strict=True), strict=True)
    )
    names = dict(zip(placeholders, whole.inputs, strict=False))
    used = list(dict.fromkeys(each for node in first for each in node.all_input_nodes if each not in chosen))
    given = [node for node in used if node not in weights]
    bound = [node for node in used if node in weights]
    results = [
        node
        for node in first
        if isinstance(node.meta["val"], TensorSpec) and any(user not in chosen for user in node.users)
    ]
    if not results:
        raise ExportError(
            f"nothing uses what {module} computes in {whole.name}", fix="export the region itself"
        )

    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in (*given, *bound):
        made[node] = graph.placeholder(node.name)
        made[node].meta = {"val": node.meta["val"], "bound": node in weights}
    for node in first:
        made[node] = copy_node(graph, node, made.__getitem__)
    graph.output(tuple(made[node] for node in results))
    notes: tuple[str, ...] = ()
    if len(first) < len(inside):
        notes = (f"{module} is called again with what comes of its results, which is left out",)
    return Piece(
        f"{whole.name} {module}",
        graph,
        unique(names.get(node, node.name) for node in given),
        tuple(weights[node][0] for node in bound),
        ("output",) if len(results) == 1 else unique(f"output_{node.name}" for node in results),
        tuple(weights[node][1] for node in bound),
        sizes=(found := _symbols(graph, len(given)))[0],
        hints={**whole.hints, **found[1]},
        kinds=whole.kinds,
        notes=notes,
    )


def _first_call(whole: Piece, inside: frozenset[fx.Node]) -> Sequence[fx.Node]:
    """The nodes up to the first one that needs what others made of their results: a module that is called again."""
    outside: set[fx.Node] = set()  # what needs a node of the call
    call: list[fx.Node] = []
    chosen: set[fx.Node] = set()
    for node in whole.calls:
        later = any(each in outside for each in node.all_input_nodes)
        if node in inside and not later:
            call.append(node)
            chosen.add(node)
        elif later or any(each in chosen for each in node.all_input_nodes):
            outside.add(node)
    return call
