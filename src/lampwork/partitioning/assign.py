"""Which backend takes a node: what backends answer, and what follows from the answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import fx

from lampwork.backends.eager import EagerBackend
from lampwork.backends.protocol import Backend, Traits
from lampwork.display import Shown
from lampwork.errors import BackendAnswerError, text_of
from lampwork.partitioning.faults import Report
from lampwork.records import record
from lampwork.rewriting.schema import packet_name
from lampwork.standard import math, operator
from lampwork.verdict import No, Verdict, Yes, as_verdict

Ban = tuple[fx.Node, int]
"""A node that the backend of this number does not get."""


@record
class Assignment:
    """`chosen`: the number of the backend of each node that is no constant, in graph order; eager PyTorch comes after
    all others. `groups`: nodes that belong into one part, with the number of the backend that says so."""

    chosen: dict[fx.Node, int]
    groups: tuple[tuple[int, tuple[fx.Node, ...]], ...]


@dataclass(slots=True, repr=False)
class Answers(Shown):
    """What backends say of the nodes of one graph; each is asked once. Nonsense counts as a refusal.

    `backends`: in order; eager PyTorch, which takes everything, is added.
    """

    graph: fx.Graph
    backends: Sequence[Backend]
    report: Report
    nodes: list[fx.Node] = field(init=False)
    _traits: list[Traits] = field(init=False)
    _verdicts: dict[Ban, Verdict] = field(default_factory=dict[Ban, Verdict])
    _groups: dict[int, list[tuple[fx.Node, ...]]] = field(
        default_factory=dict[int, list[tuple[fx.Node, ...]]]
    )
    _faulty: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])

    def __post_init__(self) -> None:
        if not any(isinstance(backend, EagerBackend) for backend in self.backends):
            self.backends = (*self.backends, EagerBackend())
        self._traits = [Traits.of(backend) for backend in self.backends]
        calls = [node for node in self.graph.nodes if node.op == "call_function"]
        self.nodes = [node for node in calls if not node.meta.get("constant")]

    def varied(
        self, number: int, *, min_block_size: int | None = None, also: Collection[str] = ()
    ) -> Answers:
        """What would be said if a backend had another `min_block_size`, or took all calls of the operators `also`."""
        other = Answers(self.graph, self.backends, self.report)
        other._verdicts = dict(self._verdicts)
        other._groups = dict(self._groups)
        other._faulty = set(self._faulty)
        if min_block_size is not None:
            other._traits[number] = replace(other._traits[number], min_block_size=min_block_size)
        for node in self.nodes:
            if packet_name(node.target) in also:
                other._verdicts[node, number] = Yes()
        return other

    def traits(self, number: int) -> Traits:
        return self._traits[number]

    def supports(self, number: int, node: fx.Node) -> Verdict:
        """The verdict of a backend on a node."""
        key = (node, number)
        if key not in self._verdicts:
            self._verdicts[key] = self._ask(number, node)
        return self._verdicts[key]

    def _ask(self, number: int, node: fx.Node) -> Verdict:
        backend = self.backends[number]
        if not self._traits[number].trusted and any(n.meta.get("opaque") for n in node.all_input_nodes):
            return No("it reads a weight that is packed for another library")
        if self._traits[number].decompose and (pieces := node.meta.get("core_pieces")):
            return No(f"it takes none of the core operators that this is made of: {pieces}")
        try:
            answer: Any = backend.supports(node)
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            return self._nonsense(number, "supports", f"raised {text_of(error)}", node, error)
        verdict = as_verdict(answer, "not supported")
        if verdict is not None:
            return verdict
        return self._nonsense(
            number, "supports", f"returned {type(answer).__name__}, expected lampwork.Yes or No", node
        )

    def _nonsense(
        self, number: int, method: str, what: str, node: fx.Node | None, cause: Exception | None = None
    ) -> No:
        """Report a wrong answer, the first one of each method."""
        name = self.backends[number].name
        if (number, method) not in self._faulty:
            self._faulty.add((number, method))
            where = f" for node {node.name}" if node is not None else ""
            error = BackendAnswerError(
                f"backend {name}: {method} {what}{where}",
                fix=f"leave {name} out of the backends, or report this to its author",
                location=node.meta.get("location") if node is not None else None,
            )
            error.__cause__ = cause
            self.report(error, "what comes after it")
        return No(f"its {method} {what}")

    def groups(self, number: int) -> list[tuple[fx.Node, ...]]:
        """The nodes that a backend wants together; groups that overlap are one."""
        if number not in self._groups:
            self._groups[number] = self._clusters(number)
        return self._groups[number]

    def _clusters(self, number: int) -> list[tuple[fx.Node, ...]]:
        clusters = self._traits[number].clusters
        if clusters is None:
            return []
        try:
            given = [set(group) for group in clusters(self.graph)]
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            self._nonsense(number, "clusters", f"raised {text_of(error)}", None, error)
            return []
        known = set(self.nodes)
        merged: list[set[fx.Node]] = []
        for members in given:
            stranger = next(iter(members - known), None)
            if stranger is not None:
                self._nonsense(number, "clusters", f"named {stranger}, which is none of the nodes", None)
                continue
            touching = [other for other in merged if other & members]
            merged = [other for other in merged if not other & members]
            merged.append(members.union(*touching))
        return [tuple(node for node in self.nodes if node in members) for members in merged if members]

    def cost(self, number: int, nodes: Sequence[fx.Node]) -> float:
        """The seconds that a backend estimates for some nodes; nan if it has no estimate."""
        estimate = self._traits[number].cost
        if estimate is None:
            return math.nan
        try:
            seconds: Any = estimate(nodes)
            if isinstance(seconds, (int, float)) and seconds >= 0:
                return float(seconds)
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            self._nonsense(number, "cost", f"raised {text_of(error)}", nodes[0], error)
            return math.nan
        self._nonsense(number, "cost", f"returned {seconds!r}, expected seconds", nodes[0])
        return math.nan

    def assign(self, banned: Collection[Ban] = (), preferred: dict[fx.Node, int] | None = None) -> Assignment:
        """Give each node to the first backend that takes it, or to the cheapest of those that estimate.

        A group is taken where all of its nodes are free; its nodes are not taken otherwise. `preferred` wins over the
        order, where that backend takes the node alone.
        """
        chosen: dict[fx.Node, int] = {}
        groups: list[tuple[int, tuple[fx.Node, ...]]] = []
        grouped: set[fx.Node] = set()
        for number in range(len(self.backends)):
            clustered: set[fx.Node] = set()
            for group in self.groups(number):
                clustered.update(group)
                if all(node not in chosen and (node, number) not in banned for node in group):
                    chosen.update(dict.fromkeys(group, number))
                    groups.append((number, group))
                    grouped.update(group)
            for node in self.nodes:
                free = node not in chosen and node not in clustered and (node, number) not in banned
                if free and not _is_item(node) and self.supports(number, node):
                    chosen[node] = number
        for node in self.nodes:
            if node not in grouped and not _is_item(node):
                chosen[node] = self._cheapest(node, chosen[node], banned, preferred or {})
        for node in self.nodes:
            if _is_item(node):
                chosen[node] = chosen[cast(fx.Node, node.args[0])]
        return Assignment({node: chosen[node] for node in self.nodes}, tuple(groups))

    def _cheapest(
        self, node: fx.Node, first: int, banned: Collection[Ban], preferred: dict[fx.Node, int]
    ) -> int:
        if node in preferred:
            return preferred[node]
        if self._traits[first].cost is None:
            return first
        others = [
            number
            for number in range(first + 1, len(self.backends))
            if self._traits[number].cost is not None
            and (node, number) not in banned
            and self.supports(number, node)
        ]
        return self.cheapest([first, *others], [node])

    def cheapest(self, numbers: Sequence[int], nodes: Sequence[fx.Node]) -> int:
        """The first of these backends, unless another one estimates less."""
        best, least = numbers[0], math.inf
        for number in numbers:
            seconds = self.cost(number, nodes)
            if seconds < least:
                best, least = number, seconds
        return best

    def refusals(self, node: fx.Node, taker: int) -> list[Refusal]:
        """Why the backends before its taker did not take a node."""
        found: list[Refusal] = []
        for number in range(taker):
            verdict = self.supports(number, node)
            if isinstance(verdict, No):
                found.append(
                    Refusal(self.backends[number].name, node, packet_name(node.target), verdict.reason)
                )
        return found


@record
class Refusal:
    """`backend` did not take `node`, a call of `op`."""

    backend: str
    node: fx.Node
    op: str
    reason: str


def _is_item(node: fx.Node) -> bool:
    return node.target is operator.getitem


def source_of(node: fx.Node) -> fx.Node:
    """The call that a result is one of; the node itself if it is no result."""
    return cast(fx.Node, node.args[0]) if _is_item(node) else node
