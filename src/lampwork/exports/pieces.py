"""What can run by itself elsewhere: a region, or the part of it that a module computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from lampwork.capture.model.region import Arg, Kwarg, Region, Source, root_of
from lampwork.checks import nearest
from lampwork.compiled.entries import Entry
from lampwork.errors import ExportError
from lampwork.exports.naming import identifier, input_names, source_names, unique, weight_names
from lampwork.exports.results import (
    Leaf,
    Results,
    leaves_of,
    numbers_of,
    passed_on,
    read_results,
    symbols_of,
)
from lampwork.graph.concrete import scope_of, symbol_names
from lampwork.graph.copying import copy_graph
from lampwork.graph.nodes import copy_node
from lampwork.graph.origin import Origin
from lampwork.graph.shapes import infer
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt, float_of_bits
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import storage_root, view_base
from lampwork.standard import operator

_LAZY = frozenset({torch.ops.aten._conj.default, torch.ops.aten._neg_view.default})
"""Views that change numbers as they are read."""


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
        tree: what a call returns: the outputs that a caller gets, in containers.
        whole: the same with the objects that the program makes, where `tree` has their tensors by name.
        sizes: for each symbol that is the size of an input, (input, dimension).
        hints: for each symbol, the number in the call that was captured.
        sources: where each input comes from; () of a module in a region.
        kinds: the classes of modules, by path.
        trained: it was captured with gradients.
        notes: what a user has to know of it.
        views: (output, placeholder): the output is a view of a placeholder that is written to.
        copies: the same of views in eager that have another dtype, or are conjugated or negated when they are read.
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
    sources: tuple[Source, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    tree: Any = ()
    whole: Any = None
    trained: bool = False
    notes: tuple[str, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def results(self) -> tuple[fx.Node, ...]:
        return results_of(self.graph)

    @property
    def returned(self) -> tuple[str, ...]:
        """The outputs that a caller gets."""
        return tuple(self.outputs[leaf.number] for leaf in leaves_of(self.tree))

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
    graph = entry.stages.aten
    if graph is None or not any(node.op == "call_function" for node in graph.nodes):
        raise ExportError(
            f"{entry.name} computes no tensors, so there is nothing to export",
            fix="export another region, or a function that computes something",
        )
    region = entry.region
    return piece_of_graph(entry.name, region, graph, original, passed_on(region), module)


def piece_of_graph(
    name: str,
    region: Region,
    graph: fx.Graph,
    original: Callable[..., Any],
    passed: Mapping[Source, TensorSpec],
    module: str = "",
    keeps: bool = False,
) -> Piece:
    """The piece of a region's graph. `passed`: tensors of a call that the graph has no placeholders for yet. `keeps`:
    arguments that nothing looked at may be returned.

    Raises:
        ExportError: the region has no such module, or what no piece can have.
    """
    if region.dtensors or region.islands:
        raise ExportError(
            f"{name} computes with DTensors, which only the processes of their mesh have",
            fix="export the model before it is distributed",
        )
    copy = copy_graph(graph)
    sources = (*region.inputs, *passed)
    shift = len(passed)
    _declare(copy, passed, len(region.inputs))
    order = _in_order(region, sources, copy)
    inputs = input_names(sources, original)
    placeholders = [node for node in copy.nodes if node.op == "placeholder"]
    given = dict(zip((sources[number] for number in order), placeholders, strict=False))
    at = {source: number for number, source in enumerate(sources[number] for number in order)}
    writes = [
        (at[region.inputs[place]] if place < len(region.inputs) else place + shift, number)
        for place, number in region.mutations
    ]
    weights = _Weights(copy, list(weight_names(region, original)), list(region.bound), len(sources))
    results = results_of(copy)
    now = {placeholders[place]: results[number] for place, number in writes}
    found = (
        _as_they_are(region, results)
        if region.breaks or module
        else read_results(region, copy, results, given, weights.node, keeps)
    )
    names = tuple(inputs[number] for number in order)
    # What is written back has the name of what it is written to.
    written = tuple(f"{(*names, *weights.names)[place]}.new" for place, _ in writes)
    outputs = unique((*found.names, *written))
    nodes = _after_writes(copy, found.nodes, now)
    all_given = [node for node in copy.nodes if node.op == "placeholder"]
    views, copies = list[tuple[int, int]](), list[tuple[int, int]]()
    for number, node in enumerate(found.nodes):
        if node.op != "placeholder" and (root := storage_root(node)) in now:
            (views if _shows_as_it_lies(node) else copies).append((number, all_given.index(root)))
    copy.output_node().args = ((*nodes, *(results[number] for _, number in writes)),)
    sizes, hints = _symbols(copy, region, len(sources))
    tree, notes = _tree(found, outputs, len(written), hints)
    whole = Piece(
        name,
        copy,
        names,
        unique(weights.names),
        outputs,
        tuple(weights.tensors),
        frozenset(
            inputs[number] for number, source in enumerate(sources) if isinstance(root_of(source), Kwarg)
        ),
        tuple((place, len(found.nodes) + number) for number, (place, _) in enumerate(writes)),
        sizes,
        hints,
        tuple(sources[number] for number in order),
        kinds_of(copy, original),
        tree,
        found.tree,
        region.state.grad_enabled,
        (*_notes(region, original), *notes),
        tuple(views),
        tuple(copies),
    )
    whole = _cut(whole, region, module) if module else whole
    return replace(whole, notes=(*whole.notes, *_closed(whole, region, original)))


def flat(piece: Piece) -> Piece:
    """A piece as a format has it in which all names are apart, nothing is written, and only tensors are returned: an
    input that is returned after it was written is what was written to it."""
    results = piece.results
    now = {piece.placeholders[place]: results[number] for place, number in piece.writes}
    graph = copy_graph(piece.graph)
    names = {node.name: node for node in graph.nodes}
    graph.output_node().args = (tuple(names[now.get(node, node).name] for node in results),)
    outputs = unique(piece.outputs, piece.inputs)
    return replace(
        piece, graph=graph, outputs=outputs, notes=(*piece.notes, *_left_out(piece.tree, piece.hints))
    )


def _left_out(tree: Any, hints: Mapping[str, int]) -> tuple[str, ...]:
    left = ", ".join(map(repr, numbers_of(tree, hints)))
    return (f"what is no tensor is left out of the result: {left}",) if left else ()


def _after_writes(
    graph: fx.Graph, nodes: Sequence[fx.Node], now: Mapping[fx.Node, fx.Node]
) -> tuple[fx.Node, ...]:
    """Results that are views of what is written, as a caller finds them: views of what was written.

    before:  %v = select(%x, 0, 0), %n = add(%x, 1), return %v      %n is written to %x
    after:   %n = add(%x, 1), %w = select(%n, 0, 0), return %w
    """
    made: dict[fx.Node, fx.Node] = dict(now)

    def twin(node: fx.Node) -> fx.Node:
        if node not in made:
            is_view = view_base(node) is not None and storage_root(node) in now
            made[node] = copy_node(graph, node, twin) if is_view else node
        return made[node]

    with graph.inserting_before(graph.output_node()):
        found = tuple(node if node.op == "placeholder" else twin(node) for node in nodes)
    if now:
        # What is written may lie in memory in another way than what it is written to, of which eager's views are.
        for node in graph.nodes:
            if view_base(node) is not None:
                node.meta["val"] = _given_by(node)
    return found


def _shows_as_it_lies(view: fx.Node) -> bool:
    """Whether elements of a view are elements of what it is a view of, bit by bit."""
    node, dtype = view, view.meta["val"].dtype
    while (base := view_base(node)) is not None:
        if node.target in _LAZY or base.meta["val"].dtype != dtype:
            return False
        node = base
    return True


def _given_by(view: fx.Node) -> Any:
    """The spec of a view, of its operands as they are."""
    args, kwargs = map_arg((view.args, view.kwargs), lambda node: node.meta["val"])
    if view.target is operator.getitem:
        return operator.getitem(*cast(Any, args))
    return infer(view.target, cast(Any, args), cast(Any, kwargs))


def _declare(graph: fx.Graph, passed: Mapping[Source, TensorSpec], after: int) -> None:
    """Placeholders for tensors that a region does not compute with."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    first = (
        placeholders[after]
        if after < len(placeholders)
        else next(node for node in graph.nodes if node.op != "placeholder")
    )
    for number, spec in enumerate(passed.values()):
        with graph.inserting_before(first):
            graph.placeholder(f"passed_{number}").meta = {"val": spec, "bound": False}


@dataclass(slots=True)
class _Weights:
    """The bound tensors of a graph, and those that its result has besides."""

    graph: fx.Graph
    names: list[str]
    tensors: list[Tensor]
    inputs: int

    def node(self, tensor: Tensor, name: str) -> fx.Node:
        """The placeholder of a tensor, which is there already or new."""
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node, known in zip(placeholders[self.inputs :], self.tensors, strict=True):
            if known is tensor:
                return node
        with self.graph.inserting_before(next(n for n in self.graph.nodes if n.op != "placeholder")):
            made = self.graph.placeholder(f"result_weight_{len(self.tensors)}")
        made.meta = {"val": TensorSpec.of(tensor), "bound": True}
        self.names.append(name)
        self.tensors.append(tensor)
        return made


def _as_they_are(region: Region, results: Sequence[fx.Node]) -> Results:
    """The outputs of a region that goes on after a break, which takes them as a tuple."""
    written = {number for _, number in region.mutations}
    nodes = tuple(node for number, node in enumerate(results) if number not in written)
    names = ("output",) if len(nodes) == 1 else tuple(f"output_{number}" for number in range(len(nodes)))
    return Results(tuple(Leaf(number) for number in range(len(nodes))), False, nodes, names, 0, ())


def _tree(
    found: Results, outputs: Sequence[str], written: int, hints: Mapping[str, int]
) -> tuple[Any, list[str]]:
    """What a call of the piece returns, and what to say of it."""
    notes = list(found.notes)
    shown = len(found.nodes) - found.stored
    if (found.made and found.nodes) or (not shown and found.stored):
        notes += _left_out(found.tree, hints)
        return {outputs[number]: Leaf(number) for number in range(len(found.nodes))}, notes
    if not shown:
        notes.append("nothing is returned, so it returns what is written, by name")
        return {name: Leaf(number) for number, name in enumerate(outputs[:written])}, notes
    if found.stored:
        names = ", ".join(outputs[shown : len(found.nodes)])
        notes.append(f"what the model stores in objects is no result: {names}")
    return found.tree, notes


def _in_order(region: Region, sources: Sequence[Source], graph: fx.Graph) -> list[int]:
    """Have the inputs of a graph come in the order of a call: gives their numbers in the region in that order."""

    def key(number: int) -> tuple[int, int]:
        source = root_of(sources[number])
        if isinstance(source, Arg):
            return 0, source.index
        return (1, region.kwarg_names.index(source.name)) if isinstance(source, Kwarg) else (2, 0)

    order = sorted(range(len(sources)), key=key)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for number in reversed(order):
        graph._root.append(placeholders[number])
    return order


def _notes(region: Region, original: Callable[..., Any]) -> tuple[str, ...]:
    found = [f"it ends in a graph break: {record.cause}, line {record.line}" for record in region.breaks]
    if region.state.grad_enabled and any(tensor.requires_grad for tensor in region.bound):
        found.append(
            "it was captured for training: this is the forward; call it under torch.no_grad() for inference"
        )
    for guard in region.guards:
        if guard.kind == "same" and all(
            isinstance(root_of(each), (Arg, Kwarg)) for each in (guard.source, guard.expected)
        ):
            one, other = source_names((guard.source, guard.expected), original)
            found.append(f"{one} and {other} were one tensor in the call, so they are one input")
    return tuple(found)


def _symbols(
    graph: fx.Graph, region: Region, inputs: int
) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Where symbols are the sizes of inputs, and what each was in the call that was captured."""
    sizes: dict[str, tuple[int, int]] = {}
    for number, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        for dim, size in enumerate(node.meta["val"].shape):
            if isinstance(size, SymbolicInt) and number < inputs and str(size) in size.symbols():
                sizes.setdefault(str(size), (number, dim))
    scope = scope_of(graph)
    hints = {symbol.name: symbol.hint for symbol in region.symbols} | ({} if scope is None else scope.hints)
    return sizes, hints


def _closed(piece: Piece, region: Region, original: Callable[..., Any]) -> tuple[str, ...]:
    """What to say of numbers that no input's size tells."""
    names = (symbol_names(piece.graph) | symbols_of(piece.tree)) - piece.sizes.keys()
    known = {symbol.name: symbol for symbol in region.symbols}
    said: list[str] = []
    for name in sorted(names):
        symbol, value = known.get(name), piece.hints[name]
        if symbol is None:
            said.append(f"{name} = {value}")
            continue
        (text,) = source_names([symbol.source], original)
        text += {"size": f".shape[{symbol.dim}]", "stride": f".stride({symbol.dim})"}.get(symbol.kind, "")
        number = float_of_bits(value) if symbol.kind == "float" else -value if symbol.negated else value
        said.append(f"{text} = {number!r}")
    if not said:
        return ()
    return (
        f"numbers that are no sizes of inputs are those of the call that was captured: {', '.join(said)}",
    )


def _cut(whole: Piece, region: Region, module: str) -> Piece:
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
    sizes, hints = _symbols(graph, region, len(given))
    return Piece(
        f"{whole.name} {module}",
        graph,
        unique(names[node] if node in names else identifier(node.name, "input") for node in given),
        tuple(weights[node][0] for node in bound),
        ("output",) if len(results) == 1 else unique(f"output_{node.name}" for node in results),
        tuple(weights[node][1] for node in bound),
        sizes=sizes,
        hints=hints,
        kinds=whole.kinds,
        tree=Leaf(0) if len(results) == 1 else tuple(Leaf(number) for number in range(len(results))),
        trained=whole.trained,
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
