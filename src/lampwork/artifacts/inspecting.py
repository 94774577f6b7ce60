"""What is in a `.lamp` file: `lampwork inspect FILE` and `lampwork.artifacts.inspect`. Nothing of it runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from lampwork.artifacts.container import PREPACKED, SECTION, Container, open_container
from lampwork.artifacts.manifest import Code, Entry, Manifest, Tensed, is_entry_name, read_manifest, short
from lampwork.codegen.llvm.targets import TargetFacts, pick
from lampwork.display import Block, Shown, Table, printable, show
from lampwork.errors import ArtifactError
from lampwork.records import record
from lampwork.standard import math

LARGEST = 20
"""How many weights are listed."""


@record(eq=False)
class Inspection(Shown):
    """What a file says of itself, and how large its parts are.

    `sizes`: bytes of weights, of what was computed of them, of code, programs, graphs and header.
    """

    path: str
    manifest: Manifest
    sizes: dict[str, int]
    runs: dict[str, str]
    signer: str
    prepacked: dict[str, int]

    def _brief(self) -> str:
        names = ", ".join(filter(is_entry_name, self.manifest.entries))
        return f"{os.path.basename(self.path)}: {self.manifest.name} for {names}, {_bytes(sum(self.sizes.values()))}"

    def _blocks(self) -> Iterable[Block]:
        manifest = self.manifest
        yield (
            f"{self.path}: {manifest.name}, made {manifest.made or 'at an unknown time'} by Lampwork "
            f"{manifest.lampwork} with torch {manifest.torch}; {self.signer}"
        )
        for name, entry in manifest.entries.items():
            if is_entry_name(name):
                yield f"entry {signature(name, entry)}"
                rows = [*_ranges(entry, manifest), *(("condition", str(each)) for each in entry.conditions)]
                rows += [("note", note) for note in entry.notes]
                if rows:
                    yield Table(("", ""), tuple(rows))
        yield Table(
            ("target", "needs", "here", "ATen calls", "prepacked"),
            tuple(
                (
                    each.name,
                    " ".join(each.needs),
                    self.runs[each.name],
                    _calls(each),
                    _bytes(self.prepacked[each.name]),
                )
                for each in manifest.targets
            ),
        )
        weights = sorted(
            (each for each in manifest.weights if each.name == each.tensor),
            key=lambda each: -math.prod(each.shape) * each.dtype.itemsize,
        )
        yield Table(
            ("weight", "dtype", "shape", "bytes"),
            tuple(
                (each.name, short(each.dtype), str(list(each.shape)), _bytes(_size(each)))
                for each in weights[:LARGEST]
            ),
        )
        if len(weights) > LARGEST:
            yield f"and {len(weights) - LARGEST} smaller weights"
        yield Table(("part", "bytes"), tuple((name, _bytes(size)) for name, size in self.sizes.items()))
        if manifest.metadata:
            yield Table(
                ("metadata", ""),
                tuple((key, json.dumps(value)[:200]) for key, value in manifest.metadata.items()),
            )

    def __str__(self) -> str:
        return "\n\n".join(printable(str(block)) for block in self._blocks())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        manifest = self.manifest
        return {
            "path": self.path,
            "name": manifest.name,
            "made": manifest.made,
            "lampwork": manifest.lampwork,
            "torch": manifest.torch,
            "signature": self.signer,
            "entries": {
                name: {
                    "signature": signature(name, entry),
                    "ranges": dict(_ranges(entry, manifest)),
                    "conditions": [str(each) for each in entry.conditions],
                    "notes": list(entry.notes),
                    "training": entry.training,
                }
                for name, entry in manifest.entries.items()
                if is_entry_name(name)
            },
            "targets": [
                {
                    "name": each.name,
                    "machine": each.machine,
                    "needs": list(each.needs),
                    "here": self.runs[each.name],
                    "calls": {name: list(calls) for name, calls in each.calls.items()},
                    "prepacked": self.prepacked[each.name],
                }
                for each in manifest.targets
            ],
            "weights": [
                {
                    "name": each.name,
                    "tensor": each.tensor,
                    "dtype": short(each.dtype),
                    "shape": list(each.shape),
                    "kind": each.kind,
                    "bytes": _size(each),
                }
                for each in manifest.weights
            ],
            "sections": {name: each.nbytes for name, each in manifest.sections.items()},
            "sizes": self.sizes,
            "metadata": dict(manifest.metadata),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """What is in a `.lamp` file: entries with their sizes, targets, weights, metadata. Its code is not loaded.

    Raises:
        ArtifactError: it cannot be read, or is damaged.
    """
    container = open_container(path)
    manifest = read_manifest(container)
    offered = [TargetFacts(each.name, each.machine, each.isa, each.needs) for each in manifest.targets]
    signer = container.metadata.get("signer", "")
    signed = f"signed by {signer}, not verified" if "signature" in container.metadata else "not signed"
    packed = {
        each.name: sum(_span(container, manifest.prepacked[number].tensor) for number in each.prepacked)
        for each in manifest.targets
    }
    sizes, runs = _sizes(container), dict(pick(offered).reasons)
    return Inspection(container.path, manifest, sizes, runs, signed, packed)


def _span(container: Container, name: str) -> int:
    span = container.spans[name]
    return span.end - span.begin


def _sizes(container: Container) -> dict[str, int]:
    found = {"weights": 0, "prepacked": 0, "code": 0, "programs": 0, "graph": 0, "header": container.start}
    for name, span in container.spans.items():
        kind = (
            name.split(".")[1]
            if name.startswith(SECTION)
            else "prepacked"
            if name.startswith(PREPACKED)
            else "weights"
        )
        found[kind] = found.get(kind, 0) + span.end - span.begin
    return found


def signature(name: str, entry: Entry) -> str:
    """An entry as one writes a function: `forward(x: float32[s0, 16]) -> (output: float32[s0, 8])`."""
    given = ", ".join(map(_tensor, entry.inputs))
    results = entry.outputs[: len(entry.outputs) - len(entry.writes)]
    return f"{name}({given}) -> ({', '.join(map(_tensor, results))})"


def _tensor(each: Tensed) -> str:
    return f"{each.name}: {short(each.dtype)}[{', '.join(map(str, each.shape))}]"


def _ranges(entry: Entry, manifest: Manifest) -> list[tuple[str, str]]:
    """The sizes that are open: each symbol with what it is, and its range."""
    others = [manifest.entries[name] for name in entry.otherwise]
    found: list[tuple[str, str]] = []
    for each in (symbol for symbol in entry.symbols if symbol.index is None):
        fixed = {
            other.inputs[each.input].shape[each.dim].as_int()
            for other in others
            if len(other.inputs) == len(entry.inputs) and each.dim < len(other.inputs[each.input].shape)
        }
        where = f"dimension {each.dim} of {entry.inputs[each.input].name}"
        found.append((each.name, f"{where}, {each.range_text(fixed)}"))
    return found


def _calls(code: Code) -> str:
    names = dict.fromkeys(call for calls in code.calls.values() for call in calls)
    return ", ".join(names) or "none: standalone"


def _size(weight: Any) -> int:
    return math.prod(weight.shape) * weight.dtype.itemsize


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count = count / 1000  # pyright: ignore[reportAssignmentType]
    return f"{count:.4g} GB"


def main(arguments: Sequence[str]) -> int:
    """The command `lampwork inspect`; gives the exit status: 0, or 1 if the file is none."""
    parser = argparse.ArgumentParser(
        prog="lampwork inspect", description="Say what is in a .lamp file. Nothing of it runs."
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("file", help="a .lamp file")
    given = parser.parse_args(arguments)
    try:
        found = inspect(given.file)
    except ArtifactError as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(found.to_json())
    else:
        show(found)
    return 0
