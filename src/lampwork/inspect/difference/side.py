"""What is compared of a report: its regions, kernels with what they compute, records and totals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field

from lampwork.inspect.report.read import Place
from lampwork.records import record

PLUMBING = frozenset({"getitem"})
"""Operators that only hand on what others compute."""


@record
class Node:
    """An operator that kernels compute. `phase`: "forward", "backward", "backward 2"; `region`: its number."""

    op: str
    module: str
    line: str
    region: int
    phase: str


@record
class Kernel:
    """A step of a region. `nodes`: numbers of the side's nodes; `seconds`: of all its calls in a run of the region."""

    region: int
    phase: str
    kind: str
    nodes: tuple[int, ...]
    seconds: float | None


@record
class Region:
    """A compiled region. `function`: its name without its version and without lines."""

    name: str
    function: str
    operators: Mapping[str, int]
    seconds: float | None


@record
class Fact:
    """A graph break, a refusal, a recompilation, or a fault of a plug-in or of ours."""

    kind: str
    code: str
    cause: str
    fix: str
    file: str
    line: str
    function: str
    module: str

    @property
    def where(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        place = f"{place} in {self.function}" if place and self.function else place or self.function
        return ", ".join(filter(None, (place, self.module)))


@record
class Side:
    """One of the two reports. `memory`: bytes by what they are for, in all regions; `compile`: seconds by stage."""

    source: str
    title: str
    made: str
    conditions: Mapping[str, str]
    regions: tuple[Region, ...]
    nodes: tuple[Node, ...]
    kernels: tuple[Kernel, ...]
    facts: tuple[Fact, ...]
    memory: Mapping[str, float]
    compile: Mapping[str, float]

    @property
    def operators(self) -> Counter[str]:
        """How often each operator was recorded, in all regions."""
        return sum((Counter(region.operators) for region in self.regions), Counter[str]())

    @property
    def seconds(self) -> float | None:
        """Of all kernels; None unless the time of each is known."""
        times = [kernel.seconds for kernel in self.kernels if kernel.seconds is not None]
        return sum(times) if times and len(times) == len(self.kernels) else None


def side_of(data: Place) -> Side:
    """What a report says.

    Raises:
        ReportReadError: a part of it has another type than in a report.
    """
    found = _Reader()
    for number, region in enumerate(data["regions"]):
        found.region(region, number)
    return Side(
        data.source,
        data["title"].text(),
        data["made"].text(),
        dict(_conditions(data)),
        tuple(found.regions),
        tuple(found.nodes),
        tuple(found.kernels),
        tuple(map(_fact, data["records"])),
        found.memory,
        found.compile,
    )


@record
class _Reader:
    """Collects what the regions have."""

    memory: dict[str, float] = field(default_factory=dict[str, float])
    compile: dict[str, float] = field(default_factory=dict[str, float])
    regions: list[Region] = field(default_factory=list[Region])
    nodes: list[Node] = field(default_factory=list[Node])
    kernels: list[Kernel] = field(default_factory=list[Kernel])

    def region(self, region: Place, number: int) -> None:
        name = region["name"].text()
        recorded = (node["op"].text() for node in region["graphs"]["recorded"]["nodes"])
        self.regions.append(
            Region(name, function_of(name), Counter(filter(None, recorded)), region["time"].number())
        )
        for stage, seconds in region["seconds"].items():
            self.compile[stage] = self.compile.get(stage, 0.0) + (seconds.number() or 0.0)
        self._compilation(region, number, "forward")
        if region["backward"].value is not None:
            self._compilation(region["backward"], number, "backward")
        for count, more in enumerate(region["more_backwards"], 2):
            self._compilation(more, number, f"backward {count}")

    def _compilation(self, made: Place, region: int, phase: str) -> None:
        known = {node["id"].text(): node for node in _nodes(made["graphs"])}
        numbers: dict[str, int] = {}
        for group in made["groups"]:
            kind = group["kind"].text()
            # Of a step without nodes nothing but its name is known.
            names = [each.text() for each in group["nodes"]] or [group["name"].text()]
            for name in names:
                if name not in numbers:
                    numbers[name] = len(self.nodes)
                    self.nodes.append(_node(known.get(name), name, region, phase))
            if kind != "view":
                self.kernels.append(
                    Kernel(region, phase, kind, tuple(numbers[name] for name in names), _seconds(group))
                )
        memory = made["memory"]
        sizes = {
            "arena": memory["arena"].number(),
            "arena of devices": memory["device_arena"].number(),
            "saved for backward": memory["saved"].number(),
            "constants": sum(each["bytes"].number() or 0.0 for each in made["constants"]),
        }
        for what, size in sizes.items():
            self.memory[what] = self.memory.get(what, 0.0) + (size or 0.0)


def function_of(name: str) -> str:
    """ "f_resume_12#1" -> "f_resume"."""
    return re.sub(r"_resume_\d+", "_resume", name.rpartition("#")[0] or name)


def _nodes(graphs: Place) -> Iterator[Place]:
    """The nodes of a graph through all passes; of one that changed, the last is as it became."""
    yield from graphs["recorded"]["nodes"]
    if isinstance(graphs["optimized"].value, dict):
        yield from graphs["optimized"]["nodes"]
    for step in graphs["steps"]:
        for change in (step, *step["rewrites"]):
            yield from change["added"]
            for pair in change["changed"]:
                yield from list(pair)[1:]


def _node(node: Place | None, name: str, region: int, phase: str) -> Node:
    if node is None:
        return Node(re.sub(r"_\d+$", "", name), "", "", region, phase)
    line = node["line"].number()
    file = node["file"].text()
    op = node["op"].text() or re.sub(r"_\d+$", "", name)
    return Node(op, node["module"].text(), file if line is None else f"{file}:{line:.0f}", region, phase)


def _seconds(group: Place) -> float | None:
    time, calls = group["time"].number(), group["calls"].number()
    return None if time is None else time * (1 if calls is None else calls)


def _fact(found: Place) -> Fact:
    line = found["line"].number()
    return Fact(
        found["kind"].text(),
        found["code"].text(),
        found["cause"].text(),
        found["fix"].text(),
        found["file"].text(),
        "" if line is None else f"{line:.0f}",
        found["function"].text(),
        found["module"].text(),
    )


def _conditions(data: Place) -> Iterator[tuple[str, str]]:
    """What a report was made with, and on."""
    for key in ("lampwork", "torch"):
        yield key, data[key].text()
    for key in ("cpu", "isa", "threads"):
        yield key, data["machine"][key].brief()
    for name, value in data["options"].items():
        yield f"option {name}", value.brief()
