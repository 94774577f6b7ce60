"""What an artifact says of itself: weights, entries, targets. What is read is checked in all that is used of it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from typing import Any, Literal, cast

import torch

from lampwork.artifacts.checked import Place, parsed
from lampwork.artifacts.container import (
    ALIGNMENT,
    DTYPES,
    LONGEST_NAME,
    PREPACKED,
    SECTION,
    Container,
    damaged,
)
from lampwork.artifacts.trees import (
    Number,
    Tree,
    dtype_from_json,
    kept_of,
    leaves_of,
    parts_of,
    tree_from_json,
    tree_to_json,
)
from lampwork.errors import ArtifactError, ArtifactVersionError
from lampwork.graph.symbols import Condition
from lampwork.loops.ir.polynomial import Index
from lampwork.records import record
from lampwork.serial.indices import index_to_json
from lampwork.standard import math
from lampwork.version import __version__

FORMAT = "lampwork"
VERSION = 1
MANIFEST = "manifest"
"""The key of the manifest in the metadata of the file."""

_MOST_SPREAD = 64
_SMALL = 1 << 16
"""How many times as much memory as it has elements a weight may have, and how many elements it may have anyhow."""

WeightKind = Literal["parameter", "buffer", "constant"]


@record
class Weight:
    """A weight under its module path. `tensor`: the name of its bytes in the file; tied weights share them. `strides`:
    how programs expect it to lie in memory; in the file it lies row after row. `persistent`: in the state dict."""

    name: str
    tensor: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: WeightKind
    persistent: bool = True


@record
class Prepacked:
    """What programs computed of the weights at the export, as it lies in memory, from the first byte of a tensor in the
    file on."""

    tensor: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@record
class Tensed:
    """What an entry expects of an input, or gives for an output."""

    name: str
    dtype: torch.dtype
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]


@record
class Symbol:
    """A number that differs between calls: the size `dim` of an input; with an `index`, what that is. `hint`:
    what it was at the export. `max`: None where there is no bound."""

    name: str
    hint: int
    min: int
    max: int | None
    input: int
    dim: int
    index: Index | None = None

    def range_text(self, others: Set[int | None]) -> str:
        """The sizes that an input may have. `others`: those that other entries are for, None for those without one."""
        low, high = self.min, self.max
        while low - 1 in others:
            low -= 1
        while high is not None and high + 1 in others:
            high += 1
        return f"{low} or more" if high is None else f"{low} to {high}"


@record
class Entry:
    """Something that can be called.

    Attributes:
        inputs: the tensors, in the order of the program's.
        args, kwargs: what a call passes; `names`: under which each of `args` may be passed too.
        symbols: those with an index come last.
        conditions: what has to hold for them.
        weights: numbers of weights, in the order of the program's bound tensors.
        outputs: of the program; those that are written come last.
        result: what a call returns.
        writes: (number among the inputs and then the weights, output): the program writes it back itself.
        views: (output, number as in `writes`): calls return it as a view of what is written there.
        graph: the section of the graph that its programs are compiled from.
        training: whether the model was in training mode.
        otherwise: other entries, for sizes that are 1, of which the first that fits serves a call that this one does
            not fit. Their names have a point in them, and nobody calls them by these.
        notes: what a user has to know of it.
        ordered: keywords that the model gets as a dict, and a call passes in this order.
    """

    inputs: tuple[Tensed, ...]
    args: tuple[Tree, ...]
    kwargs: Mapping[str, Tree]
    symbols: tuple[Symbol, ...]
    conditions: tuple[Condition, ...]
    weights: tuple[int, ...]
    outputs: tuple[Tensed, ...]
    result: Tree
    writes: tuple[tuple[int, int], ...]
    graph: str
    names: tuple[str, ...] = ()
    training: bool = False
    otherwise: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    ordered: tuple[str, ...] = ()


@record
class Code:
    """The programs for one kind of machine. `needs`: what its CPU has to have, as Linux names it. `calls`: for each
    entry the ATen operators that its program calls; none: it is standalone. `prepacked`: numbers of what its programs
    need not compute."""

    name: str
    machine: str
    isa: str
    needs: tuple[str, ...]
    programs: str
    code: tuple[str, ...]
    calls: Mapping[str, tuple[str, ...]]
    prepacked: tuple[int, ...] = ()


@record
class Section:
    sha256: str
    nbytes: int


@record
class Manifest:
    """`targets`: best first."""

    name: str
    weights: tuple[Weight, ...]
    entries: Mapping[str, Entry]
    targets: tuple[Code, ...]
    sections: Mapping[str, Section]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lampwork: str = __version__
    torch: str = torch.__version__
    made: str = ""
    prepacked: tuple[Prepacked, ...] = ()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# --- writing ----------------------------------------------------------------------------------------------------------


def manifest_to_text(manifest: Manifest) -> str:
    found = {
        "format": FORMAT,
        "version": VERSION,
        "lampwork": manifest.lampwork,
        "torch": manifest.torch,
        "made": manifest.made,
        "name": manifest.name,
        "metadata": dict(manifest.metadata),
        "weights": [
            {
                "name": weight.name,
                "tensor": weight.tensor,
                "dtype": short(weight.dtype),
                "shape": list(weight.shape),
                "strides": list(weight.strides),
                "kind": weight.kind,
                "persistent": weight.persistent,
            }
            for weight in manifest.weights
        ],
        "entries": {name: _entry_to_json(entry) for name, entry in manifest.entries.items()},
        "targets": [
            {
                "name": each.name,
                "machine": each.machine,
                "isa": each.isa,
                "needs": list(each.needs),
                "programs": each.programs,
                "code": list(each.code),
                "calls": {name: list(calls) for name, calls in each.calls.items()},
                "prepacked": list(each.prepacked),
            }
            for each in manifest.targets
        ],
        "prepacked": [
            {
                "tensor": each.tensor,
                "dtype": short(each.dtype),
                "shape": list(each.shape),
                "strides": list(each.strides),
            }
            for each in manifest.prepacked
        ],
        "sections": {
            name: {"sha256": each.sha256, "bytes": each.nbytes} for name, each in manifest.sections.items()
        },
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    return {
        "inputs": [_tensed_to_json(each) for each in entry.inputs],
        "arguments": {
            "args": [tree_to_json(tree, "input") for tree in entry.args],
            "names": list(entry.names),
            "ordered": list(entry.ordered),
            "kwargs": {name: tree_to_json(tree, "input") for name, tree in entry.kwargs.items()},
        },
        "symbols": [
            {
                "name": each.name,
                "hint": each.hint,
                "min": each.min,
                "max": each.max,
                "input": each.input,
                "dim": each.dim,
                "kind": "size" if each.index is None else "stride",
                "index": None if each.index is None else index_to_json(each.index),
            }
            for each in entry.symbols
        ],
        "conditions": [
            {"op": each.op, "index": index_to_json(each.index), "text": str(each)}
            for each in entry.conditions
        ],
        "weights": list(entry.weights),
        "outputs": [_tensed_to_json(each) for each in entry.outputs],
        "result": tree_to_json(entry.result, "output"),
        "writes": [list(pair) for pair in entry.writes],
        "views": [list(pair) for pair in entry.views],
        "graph": entry.graph,
        "training": entry.training,
        "otherwise": list(entry.otherwise),
        "notes": list(entry.notes),
    }


def _tensed_to_json(each: Tensed) -> dict[str, Any]:
    return {
        "name": each.name,
        "dtype": short(each.dtype),
        "shape": [index_to_json(size) for size in each.shape],
        "strides": [index_to_json(stride) for stride in each.strides],
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def read_manifest(container: Container) -> Manifest:
    """The manifest of a file, with what it says checked against what there is.

    Raises:
        ArtifactError: it has none, or says what is not so.
        ArtifactVersionError: it is of a later version.
    """

    def refusal(what: str) -> ArtifactError:
        return damaged(container.path, f"its manifest: {what}")

    given = container.metadata
    if given.get("format") != FORMAT or MANIFEST not in given:
        is_plain = not any(name.startswith(SECTION) for name in container.spans)
        raise ArtifactError(
            f"{container.path} is no artifact of Lampwork"
            + (": a safetensors file of weights" if is_plain else ": it has no manifest"),
            fix="give a file that lampwork.export(model, args, path='m.lamp') wrote; a file of weights is passed as "
            "weights=",
        )
    text = given[MANIFEST].encode("utf-8", "surrogatepass")
    place = Place(parsed(text, lambda what: damaged(container.path, f"its manifest {what}")), "", refusal)
    place["format"].one_of(FORMAT)
    version = place["version"].number(at_least=1)
    if version > VERSION:
        raise ArtifactVersionError(
            f"{container.path} is of version {version} of the format, and this Lampwork ({__version__}) reads up to "
            f"{VERSION}",
            fix=f"install Lampwork {place['lampwork'].text()[:40]} or later, which wrote it; or export it again",
        )
    sections = {name: _section(name, each, container) for name, each in place["sections"].items()}
    unknown = [name for name in container.spans if name.startswith(SECTION) and name not in sections]
    if unknown:
        raise refusal(f"it does not know the section {unknown[0]!r}")
    weights = tuple(_weight(each, container) for each in place["weights"])
    _check_names(place["weights"], [weight.name for weight in weights])
    entries = {name: _entry(each, weights, sections) for name, each in place["entries"].items()}
    if not any(map(is_entry_name, entries)) or not all(
        map(is_entry_name, (n.split(".")[0] for n in entries))
    ):
        raise place["entries"].wrong("entries by name")
    for name, entry in entries.items():
        for other in entry.otherwise:
            if other not in entries or other.partition(".")[0] != name or entries[other].otherwise:
                raise place["entries"][name]["otherwise"].wrong(
                    f"names of entries {name}.1, {name}.2 and so on"
                )
    prepacked = tuple(_prepacked(each, container) for each in _if_there(place["prepacked"]))
    named = {each.tensor for each in prepacked}
    if len(named) < len(prepacked):
        raise place["prepacked"].wrong("tensors of different names")
    if further := [name for name in container.spans if name.startswith(PREPACKED) and name not in named]:
        raise refusal(f"it does not know the tensor {further[0][:80]!r}")
    targets = tuple(_code(each, entries, sections, len(prepacked)) for each in place["targets"])
    if len({each.name for each in targets}) < len(targets):
        raise place["targets"].wrong("targets of different names")
    return Manifest(
        place["name"].text(),
        weights,
        entries,
        targets,
        sections,
        place["metadata"].object(),
        place["lampwork"].text(),
        place["torch"].text(),
        place["made"].text(),
        prepacked,
    )


def is_entry_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def is_weight_name(name: str) -> bool:
    """Whether it is a module path, as state dicts have them."""
    return (
        0 < len(name) <= LONGEST_NAME and all(name.split(".")) and not name.startswith((SECTION, PREPACKED))
    )


def _section(name: str, place: Place, container: Container) -> Section:
    found = Section(place["sha256"].text(), place["bytes"].number())
    span = container.spans.get(name)
    if not name.startswith(SECTION) or span is None or span.dtype != torch.uint8:
        raise place.refusal(f"the file has no section {name[:80]!r}")
    if span.end - span.begin != found.nbytes:
        raise place["bytes"].wrong(f"{span.end - span.begin}, the bytes of {name[:80]}")
    return found


def _weight(place: Place, container: Container) -> Weight:
    name, tensor = place["name"].text(), place["tensor"].text()
    if not is_weight_name(name):
        raise place["name"].wrong("a module path")
    span = container.spans.get(tensor)
    if span is None or tensor.startswith((SECTION, PREPACKED)):
        raise place["tensor"].wrong("the name of a tensor in the file")
    dtype = dtype_from_json(place["dtype"])
    shape, strides = (tuple(each.number() for each in place[key]) for key in ("shape", "strides"))
    if (dtype, shape) != (span.dtype, span.shape) or dtype not in DTYPES.values():
        raise place.wrong(f"{short(span.dtype)} of shape {list(span.shape)}, which {tensor[:80]} is")
    if len(strides) != len(shape) or not is_layout(shape, strides):
        raise place["strides"].wrong("strides that give its elements places near to one another")
    return Weight(
        name,
        tensor,
        dtype,
        shape,
        strides,
        cast(WeightKind, place["kind"].one_of("parameter", "buffer", "constant")),
        _flag(place["persistent"]),
    )


def _prepacked(place: Place, container: Container) -> Prepacked:
    name = place["tensor"].text()
    span = container.spans.get(name)
    if span is None or not name.startswith(PREPACKED):
        raise place["tensor"].wrong("the name of a prepacked tensor in the file")
    dtype = dtype_from_json(place["dtype"])
    shape, strides = (tuple(each.number() for each in place[key]) for key in ("shape", "strides"))
    if len(strides) != len(shape) or overlaps(shape, strides):
        raise place["strides"].wrong("strides that give its elements different places")
    used = extent(shape, strides) * dtype.itemsize
    if span.dtype != torch.uint8 or len(span.shape) != 1:
        raise place["tensor"].wrong("the name of a tensor of bytes")
    if (container.start + span.begin) % ALIGNMENT or not 0 < used <= span.end - span.begin:
        raise place.wrong(f"bytes from a multiple of {ALIGNMENT} on, which it lies in")
    return Prepacked(name, dtype, shape, strides)


def _if_there(place: Place) -> Iterable[Place]:
    return place if place.is_there else ()


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements the memory of a tensor has."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements are in one place, or may be, as far as sizes from the innermost outwards tell."""
    if not all(shape):
        return False
    reached = 0
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride <= reached:
            return True
        reached += (size - 1) * stride
    return False


def is_layout(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a weight may lie so in memory: elements are in one place only along dimensions of stride 0, and holes
    between them are not what most of its memory would be."""
    kept = [(n, s) for n, s in zip(shape, strides, strict=True) if s]
    return not overlaps([n for n, _ in kept], [s for _, s in kept]) and extent(shape, strides) <= max(
        _SMALL, _MOST_SPREAD * math.prod(shape)
    )


def _check_names(place: Place, names: Sequence[str]) -> None:
    """No name comes twice, and none goes through another: one of `a` and `a.b` is no tensor."""
    seen = set(names)
    if len(seen) < len(names):
        raise place.wrong("weights of different names")
    for name in names:
        parts = name.split(".")
        if any(".".join(parts[:end]) in seen for end in range(1, len(parts))):
            raise place.wrong(f"no weight on the way to {name[:80]!r}")


def _flag(place: Place) -> bool:
    if not isinstance(place.value, bool):
        raise place.wrong("true or false")
    return place.value


def _entry(place: Place, weights: Sequence[Weight], sections: Mapping[str, Section]) -> Entry:
    inputs = tuple(map(_tensed, place["inputs"]))
    outputs = tuple(map(_tensed, place["outputs"]))
    symbols: list[Symbol] = []
    for each in place["symbols"]:
        symbols.append(_symbol(each, inputs, {symbol.name for symbol in symbols}))
    known = {symbol.name for symbol in symbols}
    if len(known) < len(symbols):
        raise place["symbols"].wrong("symbols of different names")
    arguments = place["arguments"]
    args = tuple(tree_from_json(each, "input", len(inputs)) for each in arguments["args"])
    kwargs = {name: tree_from_json(each, "input", len(inputs)) for name, each in arguments["kwargs"].items()}
    names = tuple(each.text() for each in arguments["names"])
    if len(names) != len(args) or len({*names, *kwargs}) < len(names) + len(kwargs):
        raise arguments["names"].wrong(f"{len(args)} names, none of which comes twice")
    at_ordered = arguments["ordered"]
    ordered = tuple(each.text() for each in at_ordered) if at_ordered.is_there else ()
    if not set(ordered) <= set(kwargs):
        raise at_ordered.wrong("names of keywords")
    given = {leaf.number for tree in (*args, *kwargs.values()) for leaf in leaves_of(tree)}
    if len(given) < len(inputs):
        raise arguments.wrong("each input to be passed")
    result = tree_from_json(place["result"], "output", len(outputs))
    passed = {number for tree in (*args, *kwargs.values()) for number in kept_of(tree)}
    if not set(kept_of(result)) <= passed:
        raise place["result"].wrong("arguments that are passed")
    conditions = tuple(map(_condition, place["conditions"]))
    indices = (
        *(index for each in (*inputs, *outputs) for index in (*each.shape, *each.strides)),
        *(condition.index for condition in conditions),
        *_numbers_of(result),
    )
    for index in indices:
        if not index.symbols() <= known:
            raise place["symbols"].wrong(f"{', '.join(sorted(index.symbols() - known))} among the symbols")
    bound = tuple(each.number(below=len(weights)) for each in place["weights"])
    writes = tuple(_write(each, len(inputs) + len(bound), len(outputs)) for each in place["writes"])
    return Entry(
        inputs,
        args,
        kwargs,
        tuple(symbols),
        conditions,
        bound,
        outputs,
        result,
        writes,
        _section_name(place["graph"], sections),
        names,
        _flag(place["training"]),
        tuple(each.text() for each in place["otherwise"]),
        tuple(each.text() for each in place["notes"]),
        tuple(_view(each, writes, len(outputs)) for each in place["views"])
        if place["views"].is_there
        else (),
        ordered,
    )


def _numbers_of(tree: Tree) -> list[Index]:
    found = [tree.index] if isinstance(tree, Number) else []
    return found + [index for part in parts_of(tree) for index in _numbers_of(part)]


def _section_name(place: Place, sections: Mapping[str, Section]) -> str:
    if place.text() not in sections:
        raise place.wrong("the name of a section")
    return place.text()


def _tensed(place: Place) -> Tensed:
    shape, strides = (tuple(each.index() for each in place[key]) for key in ("shape", "strides"))
    if len(shape) != len(strides):
        raise place["strides"].wrong(f"{len(shape)} of them")
    return Tensed(place["name"].text(), dtype_from_json(place["dtype"]), shape, strides)


def _symbol(place: Place, inputs: Sequence[Tensed], before: Set[str]) -> Symbol:
    name = place["name"].text()
    if not name.isidentifier():
        raise place["name"].wrong("a name")
    number = place["input"].number(below=len(inputs))
    most = place["max"]
    is_size = place["kind"].one_of("size", "stride") == "size"
    index = None if is_size else place["index"].index()
    if index is not None and not index.symbols() <= before:
        raise place["index"].wrong("symbols that come before it")
    return Symbol(
        name,
        place["hint"].number(),
        place["min"].number(),
        most.number() if most.is_there else None,
        number,
        place["dim"].number(below=len(inputs[number].shape)),
        index,
    )


def _condition(place: Place) -> Condition:
    return Condition(cast(Any, place["op"].one_of("==", "!=", ">=", "fits")), place["index"].index())


def _write(place: Place, tensors: int, outputs: int) -> tuple[int, int]:
    items = list(place)
    if len(items) != 2:
        raise place.wrong("two numbers")
    return items[0].number(below=tensors), items[1].number(below=outputs)


def _view(place: Place, writes: Sequence[tuple[int, int]], outputs: int) -> tuple[int, int]:
    items = list(place)
    written = dict(writes)
    if len(items) != 2 or items[1].number() not in written:
        raise place.wrong("an output, and what is written")
    return items[0].number(below=outputs), items[1].number()


def _code(place: Place, entries: Mapping[str, Any], sections: Mapping[str, Section], prepacked: int) -> Code:
    calls = {name: tuple(each.text() for each in found) for name, found in place["calls"].items()}
    if calls.keys() != entries.keys():
        raise place["calls"].wrong(f"those of {', '.join(entries)}")
    return Code(
        place["name"].text(),
        place["machine"].text(),
        place["isa"].text(),
        tuple(each.text() for each in place["needs"]),
        _section_name(place["programs"], sections),
        tuple(_section_name(each, sections) for each in place["code"]),
        calls,
        tuple(each.number(below=prepacked) for each in _if_there(place["prepacked"])),
    )
