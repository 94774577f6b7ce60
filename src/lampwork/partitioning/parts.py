"""Which backend takes which nodes: a graph cut into convex parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from torch import fx

from lampwork.backends.protocol import Backend
from lampwork.display import Shown
from lampwork.errors import InvalidGraphError
from lampwork.graph.nodes import copy_node
from lampwork.partitioning.assign import Answers, Assignment, Ban
from lampwork.partitioning.faults import Report, raise_fault
from lampwork.partitioning.schedule import Turn, Units, cycle, schedule, units_of
from lampwork.records import record
from lampwork.standard import operator


@record
class Part(Shown):
    """Nodes that one backend compiles together, in graph order. `graph` is the whole graph.

    Constant nodes belong to no part: they are computed once per set of weights, by the part that reads them if its
    backend keeps constants. `backends`: all there are, in order.
    """

    backend: Backend
    nodes: tuple[fx.Node, ...]
    graph: fx.Graph
    backends: tuple[Backend, ...] = ()

    @property
    def others(self) -> tuple[Backend, ...]:
        """The backends that come after this one, should it fail."""
        for number, backend in enumerate(self.backends):
            if backend is self.backend:
                return self.backends[number + 1 :]
        return ()


def partition(
    graph: fx.Graph,
    backends: Sequence[Backend],
    report: Report = raise_fault,
    *,
    answers: Answers | None = None,
) -> list[Part]:
    """Cut `graph` into parts, in an order in which they can run.

    Each node goes to the first backend that supports it, to eager PyTorch if none does; of backends that estimate
    costs, to the cheapest. No path of the graph leaves a part and comes back to it. Nodes of a cluster are in one part,
    or not its backend's; parts below a backend's `min_block_size` go to the next. Random nodes and effects keep their
    order. A graph without calls gives one empty part.

    before:  %a = mm (x), %b = sort (eager), %c = mm(%b), %d = relu(%a)      backends: [x]
    after:   x: %a, %d | eager: %b | x: %c

    Args:
        report: is told where a backend answers nonsense; it then counts as a refusal.
        answers: of these backends on this graph, to be asked again.
    """
    answers = answers or Answers(graph, tuple(backends), report)
    turns = _turns(answers)
    ordered = tuple(answers.backends)
    parts = [Part(ordered[turn.color], turn.nodes, graph, ordered) for turn in turns]
    return parts or [Part(ordered[0], (), graph, ordered)]


def _turns(answers: Answers) -> list[Turn]:
    banned: set[Ban] = set()
    preferred: dict[fx.Node, int] = {}
    compared = False
    while True:
        assignment = answers.assign(banned, preferred)
        units = units_of(assignment)
        stuck = cycle(units)
        if stuck:
            banned.update(_first_group(assignment, units, stuck))
            continue
        turns = schedule(units)
        small = [t for t in turns if calls_in(t.nodes) < answers.traits(t.color).min_block_size]
        if small:
            banned.update((node, turn.color) for turn in small for node in turn.nodes)
            preferred = {node: c for node, c in preferred.items() if (node, c) not in banned}
            continue
        if compared:
            return turns
        compared = True
        preferred = _cheaper(answers, turns, banned)
        if not preferred:
            return turns


def calls_in(nodes: Iterable[fx.Node]) -> int:
    """How many of the nodes call an operator: results of one are no calls."""
    return sum(node.target is not operator.getitem for node in nodes)


def _first_group(assignment: Assignment, units: Units, stuck: Collection[int]) -> list[Ban]:
    """The first group that a path leaves and comes back to: it is not taken."""
    inside = {node for unit in stuck for node in units.nodes[unit]}
    for number, group in assignment.groups:
        if group[0] in inside and len(group) > 1:
            return [(node, number) for node in group]
    raise InvalidGraphError("a graph has a cycle")


def _cheaper(answers: Answers, turns: Sequence[Turn], banned: Collection[Ban]) -> dict[fx.Node, int]:
    """The nodes of parts that cost less as a whole with another backend, and which one that is."""
    found: dict[fx.Node, int] = {}
    numbers = [i for i in range(len(answers.backends)) if answers.traits(i).cost is not None]
    for turn in turns:
        if turn.color not in numbers:
            continue
        calls = [node for node in turn.nodes if node.target is not operator.getitem]
        able = [
            i
            for i in numbers
            if i != turn.color
            and all((node, i) not in banned and answers.supports(i, node) for node in calls)
        ]
        best = answers.cheapest([turn.color, *able], calls)
        if best != turn.color:
            found.update(dict.fromkeys(calls, best))
    return found


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def subgraph(
    part: Part, leaving: Collection[fx.Node] | None = None, keep_constants: bool = False
) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
    """The part as a graph of its own: (graph, the nodes its placeholders stand for, the nodes it returns).

    Inputs come first, then bound placeholders. Constant nodes are copied in with `keep_constants`, and stand behind
    bound placeholders otherwise. It returns those of its nodes that are in `leaving`, or that others use.
    """
    inside = set(part.nodes)
    members = [n for n in _calls(part.graph) if n in inside]
    wanted: set[fx.Node] = set()
    work = list(members) if keep_constants else []
    while work:
        for needed in work.pop().all_input_nodes:
            if needed.meta.get("constant") and needed not in wanted and needed not in inside:
                wanted.add(needed)
                work.append(needed)
    body = [n for n in part.graph.nodes if n in inside or n in wanted]
    outside: dict[fx.Node, None] = {}
    for node in body:
        outside.update(dict.fromkeys(i for i in node.all_input_nodes if i not in inside and i not in wanted))
    inputs = sorted(outside, key=is_fixed)
    if leaving is None:
        outputs = [n for n in members if any(user not in inside for user in n.users)]
    else:
        outputs = [n for n in members if n in leaving]
    return extract(inputs, body, outputs), inputs, outputs


def is_fixed(node: fx.Node) -> bool:
    """Bound, or computed from bound tensors only."""
    if node.op == "placeholder":
        return bool(node.meta.get("bound"))
    return bool(node.meta.get("constant"))


def extract(inputs: Sequence[fx.Node], body: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Graph:
    """A graph of the nodes `body`, with placeholders for `inputs`, which returns `outputs`."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        twins[node] = graph.create_node("placeholder", node.name, (), {}, name=node.name)
        twins[node].meta = {"val": node.meta["val"], "bound": is_fixed(node)}
    for node in body:
        twins[node] = copy_node(graph, node, twins.__getitem__)
    graph.output(tuple(twins[n] for n in outputs))
    return graph
