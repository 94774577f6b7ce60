"""The state of fusion: the definitions as they are now, and who reads whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lampwork.loops.fusion.group import Decision
from lampwork.loops.ir.definitions import mutated_by, outs_of, overwritten_by, reads_of
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Definition
from lampwork.loops.ir.symbols import NO_HINTS


class Work:
    """Definitions by number, in an order in which they can run; removed ones are None.

    `readers[name]`: the numbers of the definitions that read a buffer. `maker[name]`: who makes it; a buffer that
    several definitions make (pieces of one buffer) has no single maker and is left alone. `mutated`: buffers whose
    memory is written to: what reads them stays where it is. `hints`: likely values of symbols, to choose by.
    """

    def __init__(
        self,
        definitions: Sequence[Definition],
        outputs: frozenset[str],
        machine: Machine,
        hints: Mapping[str, int] = NO_HINTS,
    ) -> None:
        self.outputs = outputs
        self.hints = hints
        self.machine = machine
        self.decisions: list[Decision] = []
        self.definitions: list[Definition | None] = list(definitions)
        self.reads: list[set[str]] = [reads_of(definition) for definition in definitions]
        self.readers: dict[str, dict[int, None]] = {}
        self.maker: dict[str, int] = {}
        self.shared: set[str] = set()
        self.mutated = {
            name
            for definition in definitions
            for name in (*mutated_by(definition), *overwritten_by(definition))
        }
        for number, definition in enumerate(definitions):
            for out in outs_of(definition):
                if out.name in self.maker:
                    self.shared.add(out.name)
                self.maker[out.name] = number
        for number, reads in enumerate(self.reads):
            for name in reads:
                self.readers.setdefault(name, {})[number] = None

    def alive(self) -> Iterator[tuple[int, Definition]]:
        """The definitions that are there when the iteration reaches them."""
        for number in range(len(self.definitions)):
            definition = self.definitions[number]
            if definition is not None:
                yield number, definition

    def readers_of(self, name: str) -> list[int]:
        return list(self.readers.get(name, ()))

    def is_internal(self, name: str) -> bool:
        """Whether a buffer may vanish: no output, and made by one definition."""
        return name not in self.outputs and name not in self.shared

    def replace(self, number: int, definition: Definition) -> None:
        reads = reads_of(definition)
        for name in self.reads[number] - reads:
            self.readers[name].pop(number, None)
        for name in reads - self.reads[number]:
            self.readers.setdefault(name, {})[number] = None
        self.reads[number] = reads
        self.definitions[number] = definition
        for out in outs_of(definition):
            self.maker[out.name] = number

    def remove(self, number: int) -> None:
        for name in self.reads[number]:
            self.readers[name].pop(number, None)
        self.reads[number] = set()
        self.definitions[number] = None

    def decide(self, what: str, verdict: bool, reason: str, *names: str) -> bool:
        self.decisions.append(Decision(what, verdict, reason, names))
        return verdict
