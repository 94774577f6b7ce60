"""What a partition would be, as a text and as a page: `PartitionPlan.dry_run()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx

from lampwork.display import Shown
from lampwork.display.units import bytes_text, time_text
from lampwork.graph.origin import Origin
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.partitioning.assign import Answers
from lampwork.partitioning.parts import Part, calls_in
from lampwork.records import record
from lampwork.rewriting.schema import packet_name
from lampwork.standard import math

SHOWN = 12
"""Of how many parts the text says what they move and take."""

SHOWN_MODULES = 3
"""How many modules of a part the text names."""


@record
class PartEstimate:
    """What a part is expected to do in a call. `read`, `given`: bytes of what it takes from other parts, and of what
    other parts or the caller take from it; sizes that are open count as on the call at hand. `seconds`: as its backend
    estimates by `cost`; None where it has no estimate. `modules`: the paths of the modules of its operators,
    such as "encoder.layer.3", in the order of the graph."""

    backend: str
    operators: tuple[str, ...]
    read: int
    given: int
    seconds: float | None
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        time = "" if self.seconds is None else f", {time_text(self.seconds)} predicted"
        of = f", of {_listed(self.modules)}" if self.modules else ""
        return f"reads {bytes_text(self.read)} of other parts, gives {bytes_text(self.given)}{time}{of}"


def _listed(modules: Sequence[str]) -> str:
    more = len(modules) - SHOWN_MODULES
    return ", ".join(modules[:SHOWN_MODULES]) + (f" and {more} more" if more > 0 else "")


@record
class DryRun(Shown):
    """A printable account of a `PartitionPlan`: coverage, parts, every reason for a refusal, and what would change it.

    `moved`: bytes that parts take from other parts in a call.
    """

    parts: tuple[PartEstimate, ...]
    text: str

    @property
    def moved(self) -> int:
        return sum(part.read for part in self.parts)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def estimates(parts: Sequence[Part], answers: Answers) -> list[PartEstimate]:
    """Of the parts of one graph."""
    owner = {node: number for number, part in enumerate(parts) for node in part.nodes}
    numbers = {id(backend): number for number, backend in enumerate(answers.backends)}
    found: list[PartEstimate] = []
    for number, part in enumerate(parts):
        inputs = dict.fromkeys(given for node in part.nodes for given in node.all_input_nodes)
        read = [node for node in inputs if owner.get(node, number) != number]
        given = [
            node
            for node in part.nodes
            if any(user.op == "output" or owner.get(user, number) != number for user in node.users)
        ]
        calls = [node for node in part.nodes if calls_in([node])]
        seconds = answers.cost(numbers[id(part.backend)], calls) if calls else math.nan
        found.append(
            PartEstimate(
                part.backend.name,
                tuple(packet_name(node.target) for node in calls),
                sum(map(_bytes, read)),
                sum(map(_bytes, given)),
                None if math.isnan(seconds) else seconds,
                tuple(dict.fromkeys(path for node in calls if (path := _module(node)))),
            )
        )
    return found


def _module(node: fx.Node) -> str:
    origin: Origin | None = node.meta.get("origin")
    return "" if origin is None else origin.module


def estimate_lines(parts: Sequence[PartEstimate]) -> Iterable[str]:
    """One line for each of the first parts; none where there is nothing to tell."""
    if len(parts) < 2 and all(part.seconds is None for part in parts):
        return
    moved = sum(part.read for part in parts)
    yield f"\nbetween parts: {bytes_text(moved)} in a call"
    for number, part in enumerate(parts[:SHOWN]):
        yield f"  part {number}, {part.backend}: {part}"
    if len(parts) > SHOWN:
        yield f"  and {len(parts) - SHOWN} more parts"


def _bytes(node: fx.Node) -> int:
    val: Any = node.meta["val"]
    specs = [val] if isinstance(val, TensorSpec) else [spec for spec in val if spec is not None]
    return sum(math.prod(map(hint_of, spec.shape)) * spec.dtype.itemsize for spec in specs)
