"""What `place` found, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lampwork.display import Block, Shown, Table
from lampwork.display.units import time_text
from lampwork.placement.devices import Absent
from lampwork.records import record


@record
class PartPlan(Shown):
    """One part of a model. `name`: the modules whose weights it reads, or its operators. `operators`: how many.

    `seconds`: of a call of the part alone, compiled, on each device where it can run. `refused`: why it cannot on the
    others. `device`: where it runs, and `why`. `weight_bytes`: of the weights it reads.
    """

    name: str
    operators: int
    weight_bytes: int
    seconds: Mapping[str, float]
    refused: Mapping[str, str]
    device: str
    why: str


@record
class CopyPlan(Shown):
    """A tensor that is copied on each call. `name`: the part that makes it, or the input."""

    name: str
    source: str
    target: str
    nbytes: int
    seconds: float


@record
class WholePlan(Shown):
    """The model on one device or on several, from the caller's tensors to the caller's: `seconds` of a call, measured;
    None where it cannot run, and `reason` says why."""

    devices: tuple[str, ...]
    seconds: float | None
    reason: str = ""

    def _brief(self) -> str:
        return str(self)

    def __str__(self) -> str:
        name = " and ".join(self.devices)
        return f"{name} {time_text(self.seconds)}" if self.seconds is not None else f"{name}: {self.reason}"


@record
class PlacementPlan(Shown):
    """Where the parts of a model run, and why. `str()` lists it.

    `predicted`: seconds of a call, parts and copies one after another; parts that follow each other on a device are
    compiled as one, and their times are shares of what the whole takes there. `seconds`: of a call, measured.
    `singles`: everything on one device. `mixed`: the plan with several devices that was measured, None if one device is
    best by prediction. `won`: in how many rounds, of how many, that was faster than the best single one. `difference`:
    of the results from eager's, largest over largest magnitude. `weight_bytes`: for each device, the weights that were
    copied to it, once. `absent`: devices that this machine lacks.
    """

    home: str
    parts: tuple[PartPlan, ...]
    copies: tuple[CopyPlan, ...]
    predicted: float
    seconds: float
    singles: tuple[WholePlan, ...]
    mixed: WholePlan | None
    won: tuple[int, int]
    verdict: str
    difference: float
    weight_bytes: Mapping[str, int]
    absent: tuple[Absent, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that run something, in the order of parts."""
        return tuple(dict.fromkeys(part.device for part in self.parts))

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _brief(self) -> str:
        return f"on {' and '.join(self.devices)}, {time_text(self.seconds)} a call"

    def _blocks(self) -> Iterable[Block]:
        return _blocks(self)


def _blocks(plan: PlacementPlan) -> Iterable[Block]:
    yield f"placed on {' and '.join(plan.devices)}: {time_text(plan.seconds)} a call, {plan.verdict}"
    yield f"each alone: {'; '.join(map(str, plan.singles))}"
    copying = sum(copy.seconds for copy in plan.copies)
    yield f"predicted {time_text(plan.predicted)}, copies {time_text(copying)} of it"
    names = list(dict.fromkeys(single.devices[0] for single in plan.singles))
    rows: list[tuple[str, ...]] = []
    for number, part in enumerate(plan.parts):
        times = (time_text(part.seconds[name]) if name in part.seconds else "-" for name in names)
        rows.append((str(number), part.name, str(part.operators), *times, part.device, part.why))
    yield Table(("", "part", "operators", *names, "runs on", "why"), tuple(rows))
    for copy in plan.copies:
        yield (
            f"copied: {copy.name}, {copy.source} -> {copy.target}, {copy.nbytes:,} bytes, "
            f"{time_text(copy.seconds)}"
        )
    for name, size in plan.weight_bytes.items():
        yield f"weights copied to {name} once: {size:,} bytes"
    for device in plan.absent:
        yield f"{device.name} is absent: {device.reason}"
    yield f"results differ from eager's by {plan.difference:.2g} of the largest"
