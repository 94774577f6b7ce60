"""The order in which backends take turns: few turns, none of which needs what comes after it.

Running all that is ready on one backend, then all that is ready on the next, gives parts that are convex by
construction: a part needs what ran before it only. With two backends, this makes as few parts as there can be, for one
of the two starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import fx

from lampwork.graph.collectives import is_wait, started_by
from lampwork.partitioning.assign import Assignment, source_of
from lampwork.records import record
from lampwork.rewriting.schema import is_pinned
from lampwork.standard import heapq

MERGED = 400
"""With more parts than this, parts are not merged over others: it takes time with the cube of their number."""


@record
class Units:
    """Nodes that stay together, as numbers in graph order, what each needs and is needed by, and whose it is."""

    nodes: tuple[tuple[fx.Node, ...], ...]
    needs: tuple[frozenset[int], ...]
    users: tuple[frozenset[int], ...]
    colors: tuple[int, ...]


@record
class Turn:
    """Nodes, in graph order, that the backend of number `color` takes at once."""

    color: int
    nodes: tuple[fx.Node, ...]


def units_of(assignment: Assignment) -> Units:
    """The units of a graph: calls with their results, collectives with what waits for them, groups. Random nodes and
    effects are chained."""
    leader: dict[fx.Node, fx.Node] = {}
    for _, group in assignment.groups:
        for node in group:
            leader[node] = group[0]
    for node in assignment.chosen:
        if is_wait(node.target) and (start := started_by(node)) in assignment.chosen:
            leader[node] = leader.get(start, start)
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in assignment.chosen:
        source = source_of(node)
        members.setdefault(leader.get(source, source), []).append(node)
    number = {node: i for i, nodes in enumerate(members.values()) for node in nodes}
    needs: list[set[int]] = [set() for _ in members]
    pinned: int | None = None
    for node in assignment.chosen:
        mine = number[node]
        needs[mine].update(number[i] for i in node.all_input_nodes if i in number)
        if is_pinned(node) and not is_wait(node.target):
            if pinned is not None:
                needs[mine].add(pinned)
            pinned = mine
    users: list[set[int]] = [set() for _ in members]
    for mine, needed in enumerate(needs):
        needed.discard(mine)
        for other in needed:
            users[other].add(mine)
    return Units(
        tuple(map(tuple, members.values())),
        tuple(map(frozenset, needs)),
        tuple(map(frozenset, users)),
        tuple(assignment.chosen[nodes[0]] for nodes in members.values()),
    )


def cycle(units: Units) -> set[int]:
    """Units that cannot be ordered, as each needs another of them; empty if there are none."""
    rest = set(range(len(units.nodes)))
    for edges in (units.needs, units.users):
        waiting = {unit: len(edges[unit] & rest) for unit in rest}
        free = [unit for unit, count in waiting.items() if count == 0]
        back = units.users if edges is units.needs else units.needs
        while free:
            unit = free.pop()
            rest.discard(unit)
            for other in back[unit]:
                if other in rest:
                    waiting[other] -= 1
                    if waiting[other] == 0:
                        free.append(other)
    return rest


def schedule(units: Units) -> list[Turn]:
    """The turns that backends take, in order. The units must have no cycle."""
    starts = sorted({units.colors[u] for u, needed in enumerate(units.needs) if not needed})
    tries = [_merged(units, _turns(units, start)) for start in starts]
    best = min(tries, key=len, default=[])
    return [_turn(units, turn) for turn in best]


def _turn(units: Units, turn: Sequence[int]) -> Turn:
    # Graph order within the part: members of a unit may lie far apart.
    nodes = {node for unit in turn for node in units.nodes[unit]}
    graph = next(iter(nodes)).graph
    return Turn(units.colors[turn[0]], tuple(node for node in graph.nodes if node in nodes))


def _turns(units: Units, start: int) -> list[list[int]]:
    waiting = [len(needed) for needed in units.needs]
    ready: dict[int, list[int]] = {}
    left: dict[int, int] = {}
    for unit, count in enumerate(waiting):
        left[units.colors[unit]] = left.get(units.colors[unit], 0) + 1
        if count == 0:
            ready.setdefault(units.colors[unit], []).append(unit)
    turns: list[list[int]] = []
    color = start
    while ready:
        turn = _drain(units, color, ready.pop(color), waiting)
        left[color] -= len(turn)
        turns.append(turn)
        for unit in turn:
            for user in units.users[unit]:
                if waiting[user] == 0 and units.colors[user] != color:
                    found = ready.setdefault(units.colors[user], [])
                    if user not in found:
                        found.append(user)
        if ready:
            color = _next(units, ready, waiting, left)
    return turns


def _drain(units: Units, color: int, ready: Iterable[int], waiting: list[int]) -> list[int]:
    """All units of one backend that can run now, one after another; `waiting` is brought up to date."""
    heap = list(ready)
    heapq.heapify(heap)
    turn: list[int] = []
    while heap:
        unit = heapq.heappop(heap)
        turn.append(unit)
        for user in units.users[unit]:
            waiting[user] -= 1
            if waiting[user] == 0 and units.colors[user] == color:
                heapq.heappush(heap, user)
    return turn


def _next(
    units: Units, ready: Mapping[int, Sequence[int]], waiting: Sequence[int], left: Mapping[int, int]
) -> int:
    """The backend whose turn leaves the fewest of its units for a later turn."""
    if len(ready) == 1:
        return next(iter(ready))
    rest: dict[int, int] = {}
    for color in sorted(ready):
        rest[color] = left[color] - len(_drain(units, color, ready[color], list(waiting)))
    return min(rest, key=lambda color: (rest[color], color))


def _merged(units: Units, turns: list[list[int]]) -> list[list[int]]:
    """Turns of one backend made one, where no turn between them needs the one and is needed by the other."""
    if len(turns) > MERGED or len({units.colors[turn[0]] for turn in turns}) < 3:
        return turns
    owner = {unit: i for i, turn in enumerate(turns) for unit in turn}
    needs = [{owner[n] for unit in turn for n in units.needs[unit]} - {i} for i, turn in enumerate(turns)]
    parts: dict[int, list[int]] = dict(enumerate(turns))
    changed = True
    while changed:
        changed = False
        order = _sorted(parts, needs)
        reach = _reach(order, needs)
        for at, first in enumerate(order):
            for second in order[at + 1 :]:
                if units.colors[parts[first][0]] != units.colors[parts[second][0]]:
                    continue
                if any(first in reach[middle] for middle in needs[second] if middle != first):
                    continue
                parts[first] += parts.pop(second)
                needs[first] |= needs[second]
                for i in parts:
                    if second in needs[i]:
                        needs[i] = (needs[i] - {second}) | {first}
                needs[first] -= {first}
                changed = True
                break
            if changed:
                break
    return [sorted(parts[i]) for i in _sorted(parts, needs)]


def _sorted(parts: Collection[int], needs: Sequence[set[int]]) -> list[int]:
    """The parts in an order in which they can run, the first of those that are ready first."""
    waiting = {part: len(needs[part]) for part in parts}
    ready = [part for part, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        part = heapq.heappop(ready)
        order.append(part)
        for other in parts:
            if part in needs[other]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, other)
    return order


def _reach(order: Sequence[int], needs: Sequence[set[int]]) -> dict[int, set[int]]:
    """For each part, itself and all parts that must run before it."""
    reach: dict[int, set[int]] = {}
    for part in order:
        reach[part] = {part}.union(*(reach[needed] for needed in needs[part]))
    return reach
