"""What a partition would be, and why, without compiling anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import fx

from lampwork.backends.protocol import Backend
from lampwork.errors import BackendError
from lampwork.partitioning.assign import Answers, Refusal
from lampwork.partitioning.faults import raise_fault
from lampwork.partitioning.parts import Part, partition
from lampwork.rewriting.schema import packet_name


def format_partition(parts: Sequence[Part]) -> str:
    """One line a part: its backend, the number of its nodes, its ops by frequency."""
    lines: list[str] = []
    for number, part in enumerate(parts):
        counts = Counter(packet_name(n.target) for n in part.nodes)
        ops = ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.most_common())
        lines.append(f"part {number}: {part.backend.name}, {len(part.nodes)} nodes: {ops}")
    return "\n".join(lines)


def why_taken(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """For each part, why the backends that come before its own did not take its nodes, each reason once. Backends are
    asked again; wrong answers were reported when the parts were made."""
    found: list[tuple[str, ...]] = []
    for part in parts:
        answers = Answers(part.graph, part.backends, _ignore)
        numbers = {id(backend): number for number, backend in enumerate(part.backends)}
        ops: dict[tuple[str, str], dict[str, None]] = {}
        for node in part.nodes:
            for each in answers.refusals(node, numbers[id(part.backend)]):
                ops.setdefault((each.backend, each.reason), {})[each.op] = None
        found.append(
            tuple(
                f"{name} did not take {', '.join(names)}: {reason}" for (name, reason), names in ops.items()
            )
        )
    return found


def _ignore(error: BackendError, instead: str, *, calling: bool = False) -> None:
    pass


def dry_run(graph: fx.Graph, backends: Sequence[Backend]) -> str:
    """Which backend would take how much of `graph`, in which parts, and each reason for which one refused a node.

    Reasons are grouped by backend, op and text, with the number of nodes and the first one's name.
    """
    answers = Answers(graph, tuple(backends), raise_fault)
    parts = partition(graph, backends, answers=answers)
    numbers = {id(backend): i for i, backend in enumerate(answers.backends)}
    taken: Counter[str] = Counter()
    refusals: dict[tuple[str, str, str], list[Refusal]] = {}
    for part in parts:
        taken[part.backend.name] += len(part.nodes)
        for node in part.nodes:
            for r in answers.refusals(node, numbers[id(part.backend)]):
                refusals.setdefault((r.backend, r.op, r.reason), []).append(r)
    lines = [f"{name}: {count} of {taken.total()} nodes" for name, count in taken.most_common()]
    lines.append(format_partition(parts))
    for (backend, op, reason), found in refusals.items():
        times = f" ({len(found)} nodes)" if len(found) > 1 else ""
        lines.append(f"{backend} did not take {op}: {reason}, at {found[0].node.name}{times}")
    return "\n".join(lines)
