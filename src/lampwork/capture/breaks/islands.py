"""Where the islands of a region lie: the calls on DTensors that follow each other, with nothing between them that some
need of others. What lies between and is none of theirs is moved behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, fx

from lampwork.capture.state.distributed import Event, LiftedDTensor, Made
from lampwork.graph.distributed import is_dtensor
from lampwork.graph.islands import Call, Entering, Island, Placed, Sharding, Value
from lampwork.graph.nested import replaced


def islands_of(
    graph: fx.Graph, events: Sequence[Event], lifted: Mapping[int, LiftedDTensor]
) -> tuple[Placed, ...]:
    """The islands of a graph, none if nothing that the events gave requires grad. `lifted`: DTensors from outside."""
    if not any(made.requires_grad for event in events for made in event.made):
        return ()
    groups = _grouped(graph, events)
    uses = _uses(groups, lifted)
    return tuple(_Builder(graph, lifted, uses).build(group) for group in groups)


def _grouped(graph: fx.Graph, events: Sequence[Event]) -> list[list[Event]]:
    """The events, those together that can run as one. One that recorded nothing goes with what follows, unless it only
    gives what it was given."""
    groups: list[list[Event]] = []
    of_first = {event.inside[0]: event for event in events if event.inside}
    owned = {name for event in events for name in event.inside}
    inside, reached, apart = set[str](), set[str](), True
    rest = iter(events)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.name not in owned:
            if any(used.name in inside or used.name in reached for used in node.all_input_nodes):
                reached.add(node.name)
            apart = apart or bool(node.meta.get("effect") or node.meta.get("random"))
            continue
        event = of_first.get(node.name)
        if event is None:
            continue
        coming: list[Event] = []
        while (found := next(rest)) is not event:
            if not found.inside and not _only_passes(found):
                coming.append(found)
        coming.append(event)
        given = {name for each in coming for name, _ in each.given.values()}
        if apart or given & reached:
            groups.append([])
            inside, reached, apart = set[str](), set[str](), False
        groups[-1] += coming
        inside.update(event.inside)
    return groups


def _only_passes(event: Event) -> bool:
    given = {id(tensor) for _, tensor in event.given.values()}
    return given.issuperset(id(made.tensor) for made in event.made)


def _uses(groups: Sequence[Sequence[Event]], lifted: Mapping[int, LiftedDTensor]) -> dict[int, int]:
    """How many islands a DTensor from outside is given to."""
    found: dict[int, int] = {}
    for group in groups:
        for key in {key for event in group for key in event.given if key in lifted}:
            found[key] = found.get(key, 0) + 1
    return found


class _Builder:
    """Makes an island of events."""

    def __init__(self, graph: fx.Graph, lifted: Mapping[int, LiftedDTensor], uses: Mapping[int, int]) -> None:
        self._by_name = {node.name: node for node in graph.nodes}
        self._lifted = lifted
        self._uses = uses
        self._entering: list[Entering] = []
        self._inputs: list[str] = []
        self._numbers: dict[int, int] = {}  # of a tensor, by its id
        self._made: list[tuple[int, Made]] = []
        self._calls: list[Call] = []

    def build(self, group: Sequence[Event]) -> Placed:
        self._enter_all(group)
        count = len(self._inputs)
        for event in group:
            numbers = {key: self._numbers[id(tensor)] for key, (_, tensor) in event.given.items()}
            args, kwargs = replaced(
                (event.args, event.kwargs), Tensor, lambda tensor, numbers=numbers: Value(numbers[id(tensor)])
            )
            self._calls.append(Call(event.function, args, kwargs, count))
            for made in event.made:
                self._numbers[id(made.tensor)] = self._numbers[id(made.given)] = count
                self._made.append((count, made))
                count += 1
        nodes = dict.fromkeys(name for event in group for name in event.inside)
        outputs = {
            made.name: (number, made.requires_grad)
            for number, made in self._made
            if made.name in nodes and any(user.name not in nodes for user in self._by_name[made.name].users)
        }
        waits = tuple(name for event in group for name in event.waits)
        numbers = tuple(number for number, _ in outputs.values())
        island = Island(tuple(self._entering), tuple(self._calls), numbers, len(waits))
        flags = tuple((name, flag) for name, (_, flag) in outputs.items())
        return Placed(island, tuple(self._inputs), flags, waits, tuple(nodes))

    def _enter_all(self, group: Sequence[Event]) -> None:
        """Number what the events are given that none of them gave."""
        known: set[int] = set()
        for event in group:
            for key, (name, tensor) in event.given.items():
                if id(tensor) not in known:
                    known.add(id(tensor))
                    self._numbers[id(tensor)] = len(self._inputs)
                    self._inputs.append(name)
                    self._entering.append(self._enters(key, tensor))
            known.update(id(tensor) for made in event.made for tensor in (made.tensor, made.given))

    def _enters(self, key: int, tensor: Tensor) -> Entering:
        if not is_dtensor(type(tensor)):
            return Entering()
        lifted = self._lifted.get(key)
        alone = lifted is not None and lifted.trained and self._uses[key] == 1
        return Entering(tensor._spec, Sharding() if alone else None)  # pyright: ignore[reportAttributeAccessIssue]
