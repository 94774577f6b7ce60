"""What pieces cost on devices, and copies between them: all measured, here and now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.errors import text_of
from lampwork.graph.hashing import structural_hash
from lampwork.graph.interpret import last_uses, run_graph
from lampwork.min_cut import NEVER
from lampwork.placement.assignment import HOME, Crossing, Problem
from lampwork.placement.devices import SAMPLE_SECONDS, Device
from lampwork.placement.execution import Fragment, Placing, nbytes, results_of
from lampwork.records import record

LINK_SIZES = (1 << 12, 1 << 18, 1 << 22)
"""Bytes of the copies that are measured."""

ROUNDS = 15
"""How often each of several candidates is timed, in turn."""


@record
class Time:
    """Seconds of a call; NEVER where it cannot be, and `reason` says why."""

    seconds: float
    reason: str = ""


@record
class Link:
    """The time of a copy: latency, and seconds a byte."""

    latency: float
    per_byte: float

    def seconds(self, size: int) -> float:
        return self.latency + self.per_byte * size


def measure_pieces(placing: Placing, inputs: Sequence[Tensor]) -> list[list[Time]]:
    """The time of each piece on each device, on what reaches it in a call with `inputs`. Pieces that look alike are
    measured once."""
    graph = placing.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder" and node not in placing.weights]
    values: dict[fx.Node, Tensor] = dict(zip(arguments, inputs, strict=False))
    dead = last_uses(graph)
    known: dict[str, list[Time]] = {}
    found: list[list[Time]] = []
    for piece in placing.pieces:
        fragment = Fragment.of(graph, piece.nodes)
        key = f"{structural_hash(fragment.graph)} {piece.pinned}"
        given = [values[node] for node in fragment.arguments]
        if key not in known:
            known[key] = [_time(placing, fragment, piece.pinned, d, given) for d in placing.devices]
        found.append(known[key])
        weights = [placing.weights[node] for node in fragment.weights]
        values.update(zip(fragment.outputs, run_graph(fragment.graph, [*given, *weights]), strict=True))
        for node in (each for done in piece.nodes for each in dead.get(done, ())):
            values.pop(node, None)
    return found


def _time(
    placing: Placing, fragment: Fragment, pinned: str, device: Device, arguments: Sequence[Tensor]
) -> Time:
    home = placing.home
    if pinned and device.memory != home.memory:
        return Time(NEVER, pinned)
    weights = 0 if device.memory == home.memory else sum(map(nbytes, fragment.weights))
    if weights > device.free_bytes():
        return Time(NEVER, f"its weights, {weights:,} bytes, do not fit")
    try:
        call = fragment.compiled(device, home.where, placing.weights)
        moved = [device.to(tensor) for tensor in arguments]
        return Time(device.seconds(lambda: call(*moved)))
    except Exception as error:  # noqa: BLE001  (whatever it is, the part cannot run there)
        return Time(NEVER, text_of(error).splitlines()[0])


def measure_links(memories: Sequence[Device]) -> list[list[Link]]:
    """From each memory to each other; devices stand for their memories."""
    return [[_link(source, target) for target in memories] for source in memories]


def _link(source: Device, target: Device) -> Link:
    if source.memory == target.memory:
        return Link(0.0, 0.0)
    points: list[tuple[int, float]] = []
    for size in LINK_SIZES:
        tensor = source.to(pristine.zeros(size, dtype=torch.uint8))
        source.synchronise()
        points.append((size, target.seconds(lambda tensor=tensor: target.to(tensor))))
    return fit(points)


def fit(points: Sequence[tuple[int, float]]) -> Link:
    """The line through measured (bytes, seconds) with the least squares of relative errors; nothing is negative."""
    # Each point is divided by its time: the sum of (latency / t + size / t * per_byte - 1) ** 2 is the least.
    ones = [(1 / t, size / t) for size, t in points]
    aa, ab, bb = (sum(x[i] * x[j] for x in ones) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(x[i] for x in ones) for i in (0, 1))
    determinant = aa * bb - ab * ab
    latency, per_byte = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if latency < 0:
        return Link(0.0, b / bb)
    return Link(latency, per_byte) if per_byte >= 0 else Link(a / aa, 0.0)


@record
class Costs:
    """The costs of all assignments. `nodes`: the tensors that pieces hand on, one for each crossing of the problem."""

    nodes: tuple[fx.Node, ...]
    problem: Problem


def problem_of(placing: Placing, times: Sequence[Sequence[Time]]) -> Costs:
    """From what pieces cost, and what copies cost that are measured now."""
    memories: dict[str, Device] = {each.memory: each for each in (placing.home, *placing.devices)}
    numbers = {memory: i for i, memory in enumerate(memories)}
    links = measure_links(list(memories.values()))
    owner = {node: i for i, piece in enumerate(placing.pieces) for node in piece.nodes}
    results = results_of(placing.graph)
    nodes: list[fx.Node] = []
    crossings: list[Crossing] = []
    for node in placing.graph.nodes:
        maker = owner.get(node, HOME)
        if node.op == "output" or node in placing.weights or (maker == HOME and node.op != "placeholder"):
            continue
        users = sorted({owner[user] for user in node.users if user in owner} - {maker})
        if maker != HOME and node in results:
            users.append(HOME)
        if users:
            seconds = tuple(tuple(link.seconds(nbytes(node)) for link in row) for row in links)
            crossings.append(Crossing(maker, tuple(users), seconds))
            nodes.append(node)
    problem = Problem(
        tuple(tuple(time.seconds for time in row) for row in times),
        tuple(crossings),
        tuple(numbers[device.memory] for device in placing.devices),
        numbers[placing.home.memory],
    )
    return Costs(tuple(nodes), problem)


def time_in_turn(calls: Sequence[Callable[[], object]], devices: Sequence[Device]) -> list[list[float]]:
    """Seconds of calls, all work of all devices done: a list of rounds for each of them."""
    clock, *others = devices

    def sample(call: Callable[[], object], count: int) -> float:
        def all_calls() -> None:
            for _ in range(count):
                call()
            for device in others:
                device.synchronise()

        return clock.sample(all_calls, 1) / count

    counts = [max(1, int(SAMPLE_SECONDS / max(sample(each, 3), 1e-7))) for each in calls]
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for found, call, count in zip(rounds, calls, counts, strict=True):
            found.append(sample(call, count))
    return rounds
