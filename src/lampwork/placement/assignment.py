"""Which device runs which part: the cheapest assignment.

With two devices a cheapest cut is a cheapest assignment (Stone, Multiprocessor scheduling with the aid of network flow
algorithms, 1977). With more, pairs of devices trade their parts by such cuts until no pair gains (swap moves: Boykov,
Veksler, Zabih, Fast approximate energy minimization via graph cuts, 2001), from several beginnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.min_cut import NEVER, Network
from lampwork.records import record
from lampwork.standard import itertools

HOME = -1
"""In place of a part: the caller, who has the inputs and gets the results."""


@record
class Crossing:
    """A tensor that its maker (a part, or HOME for an input) hands to other parts or to the caller.

    `seconds[a][b]`: of a copy from memory a to memory b. One copy serves all users there.
    """

    maker: int
    users: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]


@record
class Problem:
    """`times[p][d]`: seconds of part p on device d, NEVER if it cannot run there; each part has a device where it can.
    `memories[d]`: the number of the memory of device d. `home`: that of the caller."""

    times: tuple[tuple[float, ...], ...]
    crossings: tuple[Crossing, ...]
    memories: tuple[int, ...]
    home: int

    @property
    def devices(self) -> int:
        return len(self.memories)

    def memory(self, place: int, assignment: Sequence[int]) -> int:
        """Where a part, or HOME, has its tensors."""
        return self.home if place == HOME else self.memories[assignment[place]]

    def cost(self, assignment: Sequence[int]) -> float:
        """Seconds of a call: all parts, then all copies, nothing at once."""
        return self.work(assignment) + self.copying(assignment)

    def work(self, assignment: Sequence[int]) -> float:
        return sum(times[device] for times, device in zip(self.times, assignment, strict=True))

    def copying(self, assignment: Sequence[int]) -> float:
        return sum(
            each.seconds[self.memory(each.maker, assignment)][target]
            for each in self.crossings
            for target in self.targets(each, assignment)
        )

    def targets(self, crossing: Crossing, assignment: Sequence[int]) -> list[int]:
        """The memories that a tensor is copied to."""
        source = self.memory(crossing.maker, assignment)
        return sorted({self.memory(user, assignment) for user in crossing.users} - {source})


def assign(problem: Problem) -> tuple[int, ...]:
    """A cheapest assignment, one device for each part: with up to two devices exactly, with more as a rule."""
    best: tuple[int, ...] | None = None
    for start in _starts(problem):
        found = _improved(problem, start)
        if best is None or problem.cost(found) < problem.cost(best):
            best = found
        if problem.devices <= 2:
            break  # one cut decides everything, wherever it begins
    return best or ()


def assign_within(
    problem: Problem, sizes: Sequence[Sequence[float]], limits: Sequence[float]
) -> tuple[int, ...]:
    """A cheap assignment such that on no device d the `sizes[p][d]` of its parts add up to more than `limits[d]`.

    From a device that the cheapest assignment overfills, parts move away one by one, those first that cost least for
    their bytes. Where they leave too little to be worth the copies, nothing with a size stays there.
    """
    found = assign(problem)
    full = _overfull(found, sizes, limits)
    if not full:
        return found
    emptied = tuple(
        tuple(NEVER if d in full and sizes[part][d] > 0 else t for d, t in enumerate(times))
        for part, times in enumerate(problem.times)
    )
    candidates: list[tuple[int, ...]] = []
    if all(min(times) < NEVER for times in emptied):
        candidates.append(assign_within(replace(problem, times=emptied), sizes, limits))
    while full:
        moves = [
            ((*found[:part], device, *found[part + 1 :]), sizes[part][found[part]])
            for part in range(len(found))
            for device in range(problem.devices)
            if found[part] in full and device not in full and sizes[part][found[part]] > 0
        ]
        moves = [(moved, size) for moved, size in moves if problem.cost(moved) < NEVER]
        if not moves:
            break  # it does not fit, and will be seen not to
        before = problem.cost(found)
        found, _ = min(moves, key=lambda move: (problem.cost(move[0]) - before) / move[1])
        full = _overfull(found, sizes, limits)
    return min([found, *candidates] if not full else candidates or [found], key=problem.cost)


def _overfull(found: Sequence[int], sizes: Sequence[Sequence[float]], limits: Sequence[float]) -> set[int]:
    used = [0.0] * len(limits)
    for part, device in enumerate(found):
        used[device] += sizes[part][device]
    return {device for device, limit in enumerate(limits) if used[device] > limit}


def _starts(problem: Problem) -> list[tuple[int, ...]]:
    """Each part where it is fastest; and everything on one device, but for what cannot run there."""
    fastest = tuple(min(range(problem.devices), key=times.__getitem__) for times in problem.times)
    alone = [
        tuple(
            device if times[device] != NEVER else fast
            for times, fast in zip(problem.times, fastest, strict=True)
        )
        for device in range(problem.devices)
    ]
    return list(dict.fromkeys([fastest, *alone]))


def _improved(problem: Problem, assignment: tuple[int, ...]) -> tuple[int, ...]:
    cost = problem.cost(assignment)
    changed = True
    while changed:
        changed = False
        for first, second in itertools.combinations(range(problem.devices), 2):
            found = _Trade(problem, assignment, first, second).result()
            if (less := problem.cost(found)) < cost * (1 - 1e-12):
                assignment, cost, changed = found, less, problem.devices > 2
    return assignment


class _Trade:
    """The cheapest way to share the parts of two devices between them, while all others stay where they are: a cut
    with the first device on the source's side."""

    def __init__(self, problem: Problem, assignment: tuple[int, ...], first: int, second: int) -> None:
        self.problem, self.assignment = problem, assignment
        self.first, self.second = first, second
        self.sides = (problem.memories[first], problem.memories[second])
        self.network = Network()
        self.nodes = {
            part: self.network.node() for part, at in enumerate(assignment) if at in (first, second)
        }

    def result(self) -> tuple[int, ...]:
        for part, node in self.nodes.items():
            times = self.problem.times[part]
            self._pay(node, times[self.first], times[self.second])
        for crossing in self.problem.crossings:
            self._add(crossing)
        near = self.network.source_side()
        return tuple(
            (self.first if self.nodes[part] in near else self.second) if part in self.nodes else device
            for part, device in enumerate(self.assignment)
        )

    def _pay(self, node: int, first: float, second: float) -> None:
        """What it costs to have a node on the first device, and on the second."""
        if first != NEVER and second != NEVER:
            common = min(first, second)
            first, second = first - common, second - common
        self.network.edge(node, self.network.sink, first)
        self.network.edge(self.network.source, node, second)

    def _add(self, crossing: Crossing) -> None:
        free = [self.nodes[user] for user in crossing.users if user in self.nodes]
        fixed = {
            self.problem.memory(user, self.assignment) for user in crossing.users if user not in self.nodes
        }
        seconds = crossing.seconds
        first, second = self.sides
        if crossing.maker in self.nodes:
            maker = self.nodes[crossing.maker]
            for target in fixed:
                self._pay(maker, *(0.0 if target == side else seconds[side][target] for side in self.sides))
            if first == second:
                return
            if second not in fixed:
                self._copy_to_second(maker, free, seconds[first][second])
            if first not in fixed:
                self._copy_to_first(maker, free, seconds[second][first])
            return
        source = self.problem.memory(crossing.maker, self.assignment)
        if first == second:
            return
        if second not in fixed and second != source:
            self._copy_to_second(self.network.source, free, seconds[source][second])
        if first not in fixed and first != source:
            self._copy_to_first(self.network.sink, free, seconds[source][first])

    def _copy_to_second(self, maker: int, users: Sequence[int], seconds: float) -> None:
        """Paid if the maker is on the source's side and a user is not."""
        copy = self.network.node()
        self.network.edge(maker, copy, seconds)
        for user in users:
            self.network.edge(copy, user, NEVER)

    def _copy_to_first(self, maker: int, users: Sequence[int], seconds: float) -> None:
        """Paid if a user is on the source's side and the maker is not."""
        copy = self.network.node()
        self.network.edge(copy, maker, seconds)
        for user in users:
            self.network.edge(user, copy, NEVER)
