"""What there is to draw of a compiled region: its graphs after the passes, with modules, kernels, lines and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import fx

from lampwork.checks import nearest
from lampwork.compiled.entries import Entry
from lampwork.compiled.stages import Compilation
from lampwork.errors import ExportError
from lampwork.exports.naming import input_names, weight_names
from lampwork.exports.pieces import kinds_of, module_of, modules_in, within
from lampwork.graph.printing import target_name
from lampwork.graph.spec import TensorSpec
from lampwork.inspect.profile.watch import Times
from lampwork.records import record
from lampwork.standard import operator


@record
class Kernel:
    """A step of a program. `seconds`: how long it took in a call that was seen; None if none was."""

    number: int
    name: str
    kind: str
    seconds: float | None = None


@record
class Drawn:
    """A node. `kind`: input, weight, operator or output. `values`: what it gives, as `float32[4, 8]`. `reads`: (id of a
    node, number of its value). `kernels`: the numbers of those that compute it, the first one that it ends in last."""

    id: str
    label: str
    kind: str
    module: str
    values: tuple[str, ...] = ()
    reads: tuple[tuple[str, int], ...] = ()
    kernels: tuple[int, ...] = ()
    line: str = ""
    text: str = ""


@record
class Drawing:
    """A graph. `kinds`: the classes of modules by path."""

    name: str
    nodes: tuple[Drawn, ...]
    kernels: tuple[Kernel, ...]
    kinds: Mapping[str, str]


def drawings(entry: Entry, original: Callable[..., Any], module: str, times: Times) -> list[Drawing]:
    """The graphs of a region, of forward and backward where it is trained; or what of them a module computes.

    Raises:
        ExportError: the region computes no tensors, or has no such module.
    """
    stages = entry.stages
    if stages.aten is None:
        raise ExportError(
            f"{entry.name} computes no tensors, so there is nothing to draw", fix="export another region"
        )
    region = entry.region
    placeholders = [node.name for node in stages.aten.nodes if node.op == "placeholder"]
    weights = weight_names(region, original)
    given = [
        *((name, False) for name in input_names(region.inputs, original)),
        *((path, True) for path in weights),
    ]
    names = dict(zip(placeholders, given, strict=True))
    made: list[tuple[str, fx.Graph, Compilation | None]] = []
    if stages.halves:
        for half in stages.halves:
            made += [(f"{entry.name} {half}", each.graph, each) for each in stages.made(half)]
        if "forward" not in stages.halves and stages.compilation is not None:
            made.insert(0, (f"{entry.name} forward", stages.compilation.graph, stages.compilation))
    elif stages.compilation is not None:
        made.append((entry.name, stages.compilation.graph, stages.compilation))
    else:
        made.append((entry.name, stages.aten, None))
    kinds = kinds_of(stages.aten, original)
    known = tuple(dict.fromkeys(path for _, graph, _ in made for path in modules_in(graph)))
    if module and not any(within(path, module) for path in known):
        raise ExportError(
            f"{entry.name} has no module {module!r}", fix=nearest(module, known, "its modules are")
        )
    found = [
        _drawing(name, graph, compilation, names, kinds, module, times) for name, graph, compilation in made
    ]
    return [each for each in found if any(node.kind == "operator" for node in each.nodes)]


def _drawing(
    name: str,
    graph: fx.Graph,
    compilation: Compilation | None,
    names: Mapping[str, tuple[str, bool]],
    kinds: Mapping[str, str],
    module: str,
    times: Times,
) -> Drawing:
    kernels, of_node = _kernels(compilation, times)
    inside = {node for node in graph.nodes if node.op == "call_function" and within(module_of(node), module)}
    shown = (
        inside | {each for node in inside for each in node.all_input_nodes} if module else set(graph.nodes)
    )
    nodes: list[Drawn] = []
    for node in graph.nodes:
        if node not in shown or node.target is operator.getitem:
            continue
        if node.op == "output":
            results = cast("Sequence[Any]", node.args[0])
            reads = tuple(_read(each) for each in results if isinstance(each, fx.Node))
            nodes.append(Drawn("output", "output", "output", "", reads=reads))
        elif node.op == "placeholder" or node not in inside:
            nodes.append(_given(node, names))
        else:
            nodes.append(_operator(node, shown, of_node))
    title = f"{name} {module}" if module else name
    return Drawing(title, tuple(nodes), kernels, kinds)


def _given(node: fx.Node, names: Mapping[str, tuple[str, bool]]) -> Drawn:
    """An input, a weight, or a value that comes from outside of what is drawn."""
    name, is_weight = names.get(node.name, (node.name, False))
    if not is_weight:
        return Drawn(node.name, name, "input", "", _values(node))
    module, _, label = name.rpartition(".")
    return Drawn(node.name, label, "weight", module, _values(node))


def _operator(node: fx.Node, shown: set[fx.Node], of_node: Mapping[str, tuple[int, ...]]) -> Drawn:
    reads = tuple(
        _read(each) for each in node.all_input_nodes if each in shown or each.target is operator.getitem
    )
    location = node.meta.get("location")
    return Drawn(
        node.name,
        target_name(node.target),
        "operator",
        module_of(node) or "",
        _values(node),
        reads,
        of_node.get(node.name, ()),
        "" if location is None else str(location),
        _arguments(node),
    )


def _read(node: fx.Node) -> tuple[str, int]:
    if node.target is operator.getitem:
        return cast(fx.Node, node.args[0]).name, cast(int, node.args[1])
    return node.name, 0


def _values(node: fx.Node) -> tuple[str, ...]:
    found = node.meta.get("val")
    values: Sequence[Any] = found if isinstance(found, tuple) else (found,)
    return tuple(str(value) for value in values if isinstance(value, TensorSpec))


def _arguments(node: fx.Node) -> str:
    """The arguments that are no tensors, as they are written."""
    given = [*(repr(arg) for arg in node.args), *(f"{key}={value!r}" for key, value in node.kwargs.items())]
    return ", ".join(given)


def _kernels(
    compilation: Compilation | None, times: Times
) -> tuple[tuple[Kernel, ...], dict[str, tuple[int, ...]]]:
    """The steps of a program that compute something, and by node those that it is in."""
    if compilation is None or compilation.inside is None:
        return (), {}
    program = next(
        (each for each in compilation.programs if times.get(each) is not None), compilation.inside.program
    )
    seen = times.get(program)
    found: list[Kernel] = []
    of_node: dict[str, tuple[int, ...]] = {}
    for place, step in enumerate(program.steps()):
        if not step.nodes:
            continue
        number = len(found)
        found.append(Kernel(number, step.name, step.kind, seen.steps[place] if seen is not None else None))
        for node in step.nodes:
            of_node[node] = (*of_node.get(node, ()), number)
    return tuple(found), of_node


def ends(drawing: Drawing) -> dict[int, str]:
    """For each kernel the id of the last node that it computes: what is said once of it, such as its time, is said
    there."""
    found: dict[int, str] = {}
    for node in drawing.nodes:
        for number in node.kernels:
            found[number] = node.id
    return found


COLOURS = ("#cfe8fc", "#d7f0d0", "#fde2c4", "#e6d9f5", "#fbd3d9", "#d2f0ee", "#f6efc0", "#e3e3e3")


def colour(kernel: int) -> str:
    """Of what a kernel computes: neighbours differ."""
    return COLOURS[kernel % len(COLOURS)]
