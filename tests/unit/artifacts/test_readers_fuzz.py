"""What reads a file, on values that `hypothesis` changes and makes: each is read, or refused by an error of ours.

`LAMPWORK_FUZZ=20000` tries so many of each kind. Hypothesis prints the least value that fails.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from artifact_models import Small
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.artifacts.checked import Place, parsed
from lampwork.artifacts.container import METADATA, Container, read_container
from lampwork.artifacts.manifest import Manifest, read_manifest
from lampwork.artifacts.sound import Unsound, check_graph, conditions_of, divided_by, fill_memory
from lampwork.artifacts.trees import Reading, rebuilt, tree_from_json, tree_to_json
from lampwork.errors import ArtifactError, LampworkError
from lampwork.graph.concrete import scope_of
from lampwork.loops.ir.symbols import NoDivisor, evaluate
from lampwork.serial import graph_from_json, layout_from_json
from lampwork.serial.indices import index_from_json, index_to_json

SAMPLES = int(os.environ.get("LAMPWORK_FUZZ", "100"))
fuzzed = settings(
    max_examples=SAMPLES,
    deadline=None,
    database=None,
    derandomize="LAMPWORK_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)

NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 63, 64, 2**31, 2**32, 2**63 - 1, -(2**63), 2**63, 2**64]),
    st.integers(-10, 80),
    st.integers(),
    st.floats(),
)
WORDS = (
    "input output number const list tuple size dict object form fields absent kind unused said text kept "
    "tree namedtuple n l t i x r c slice ref bits s0 s1 // % call placeholder getitem aten::add.Tensor "
    "aten::view.default aten::sort.default aten::empty.memory_format aten::split.Tensor "
    "prims::sum.default float32 int64 bool complex64 bfloat16 device cpu cuda:0 meta dtype shape strides "
    "offset base position view arena heap fresh aten bound constant kernel buffers take release f nan inf "
    "== != >= fits __class__ __init__ a a.b forward forward.1 lampwork.graph.forward"
).split()
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.text("as0_.:/ \0\u00e9\ud800", max_size=3),
    st.sampled_from(["", "\0", "\ud800", "é", "a" * 300]),
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    PLAIN,
    lambda each: st.one_of(st.lists(each, max_size=3), st.dictionaries(TEXTS, each, max_size=3)),
    max_leaves=6,
)


class Places(NamedTuple):
    """The containers of a JSON value, each with a key of its."""

    found: list[tuple[Any, Any]]

    @staticmethod
    def of(value: Any) -> Places:
        found: list[tuple[Any, Any]] = []
        todo = [value]
        while todo:
            holder = todo.pop()
            for key, each in holder.items() if isinstance(holder, dict) else enumerate(holder):
                found.append((holder, key))
                if isinstance(each, (dict, list)):
                    todo.append(each)
        return Places(found)


def changed(data: st.DataObject, value: Any) -> Any:
    """A JSON value with one to three things in it made another, exchanged, doubled or left out."""
    made = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        places = Places.of(made).found
        if not places:
            break
        number = st.integers(0, len(places) - 1)
        holder, key = places[data.draw(number, "place")]
        kind = data.draw(
            st.sampled_from(["value", "number", "number", "exchange", "copy", "drop", "double"]), "kind"
        )
        if kind == "value":
            holder[key] = data.draw(VALUES, "value")
        elif kind == "number":
            holder[key] = data.draw(NUMBERS, "number")
        elif kind in ("exchange", "copy"):
            other, there = places[data.draw(number, "other")]
            taken = copy.deepcopy(other[there])
            if kind == "exchange":
                other[there] = copy.deepcopy(holder[key])
            holder[key] = taken
        elif kind == "drop":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[data.draw(TEXTS, "name")] = copy.deepcopy(holder[key])
    return made


class Sample(NamedTuple):
    container: Container
    manifest: Manifest
    manifest_json: Any
    graph: Any
    layout: Any


class Mixed(nn.Module):
    """Operators with lists, slices, several results, and divisions of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = x[:, 1:].split(2, 1)
        half = x[: x.shape[0] // 2].sort(1)[0]
        return first + second, half, self.table(words).flatten(1), torch.cat([x, x * 2], 0)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    torch.manual_seed(0)
    rows = Dim("rows", max=64)
    calls: list[tuple[nn.Module, tuple[Any, ...], Any]] = [
        (Small(), (torch.randn(4, 8),), ({0: rows},)),
        (Mixed(), (torch.randn(4, 5), torch.tensor([[0, 5], [3, 1]])), None),
        (
            Mixed(),
            (torch.randn(4, 5), torch.tensor([[0, 5], [3, 1]])),
            ({0: rows}, {}),
        ),
    ]
    found: list[Sample] = []
    for number, (model, inputs, shapes) in enumerate(calls):
        path = tmp_path_factory.mktemp("readers") / f"{number}.lamp"
        lampwork.export(model.eval(), inputs, dynamic_shapes=shapes, path=path, targets=["x86-64-v2"])
        container = read_container(str(path), bytearray(path.read_bytes()))
        manifest = read_manifest(container)
        texts = (
            container.section(name)
            for name in (manifest.entries["forward"].graph, manifest.targets[0].programs)
        )
        graph, programs = map(json.loads, texts)
        found.append(
            Sample(
                container,
                manifest,
                json.loads(container.metadata["manifest"]),
                graph,
                programs["entries"]["forward"],
            )
        )
    return found


def refuses(read: Callable[[], Any], *others: type[Exception]) -> bool:
    try:
        read()
    except (LampworkError, *others):
        return True
    return False


@fuzzed
@given(data=st.data())
def test_manifests(samples: list[Sample], data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(samples), "sample")
    text = json.dumps(changed(data, sample.manifest_json))
    container = sample.container
    metadata = {**container.metadata, "manifest": text}
    other = Container(
        container.path, metadata, container.spans, container.start, container.header, container.memory
    )
    refuses(lambda: read_manifest(other))


@fuzzed
@given(data=st.data())
def test_headers(samples: list[Sample], data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(samples), "sample")
    header = json.loads(sample.container.header)
    manifest = header.pop(METADATA)
    made = changed(data, header)
    if isinstance(made, dict):
        made.setdefault(METADATA, manifest)
    text = json.dumps(made).encode("utf-8", "surrogatepass")
    content = len(text).to_bytes(8, "little") + text + bytes(sample.container.data)

    def read() -> None:
        found = read_container("m.lamp", bytearray(content))
        for name in found.weights:
            found.tensor(name).sum()
        read_manifest(found)

    refuses(read)


@fuzzed
@given(data=st.data())
def test_graphs(samples: list[Sample], data: st.DataObject) -> None:
    """Up to where it would be compiled."""
    sample = data.draw(st.sampled_from(samples), "sample")
    entry = sample.manifest.entries["forward"]
    given_json = json.loads(json.dumps(changed(data, sample.graph)))

    def read() -> None:
        graph = graph_from_json(given_json)
        check_graph(graph, entry, sample.manifest.weights)
        fill_memory(graph)
        divided_by(graph, entry)
        conditions_of(scope_of(graph), entry.symbols)

    refuses(read, Unsound)


@fuzzed
@given(data=st.data())
def test_layouts(samples: list[Sample], data: st.DataObject) -> None:
    """And their programs, for some sizes."""
    sample = data.draw(st.sampled_from(samples), "sample")
    made = changed(data, sample.layout)
    values = {name: data.draw(st.integers(1, 9), name) for name in ("s0", "s1", "s2", "s3")}

    def read() -> None:
        layout = layout_from_json(made, lambda module, name: 1)
        if layout.keys <= values.keys():
            layout.place({name: values[name] for name in layout.keys})

    refuses(read)


CONSTANTS = st.one_of(
    PLAIN,
    st.sampled_from(
        [
            {"f": "nan"},
            {"f": "-inf"},
            {"dtype": "float32"},
            {"dtype": "nn"},
            {"device": "cpu"},
            {"device": "x"},
        ]
    ),
)
INDICES = st.recursive(
    st.one_of(st.integers(-3, 9), st.just([[1, ["s0"]]])),
    lambda each: st.lists(
        st.tuples(
            st.integers(-3, 9),
            st.lists(
                st.one_of(
                    st.sampled_from(["s0", "s1"]),
                    st.tuples(st.sampled_from(["//", "%"]), each, each).map(list),
                ),
                max_size=2,
            ),
        ).map(list),
        max_size=2,
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(["a", "b", "Pair", "class", "__x__", "_fields", "é", "a b", "\ud800"])


def _of_trees(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.tuples(NAMES, each).map(list), max_size=2)
    absent = st.lists(NAMES, max_size=1)
    return st.one_of(
        st.sampled_from(["list", "tuple", "size"]).flatmap(
            lambda kind: st.lists(each, max_size=3).map(lambda items: {kind: items})
        ),
        st.lists(st.tuples(CONSTANTS, each).map(list), max_size=2).flatmap(
            lambda items: fields.map(lambda found: {"dict": items, "fields": found})
        ),
        st.builds(
            lambda name, form, found, none: {"object": name, "form": form, "fields": found, "absent": none},
            NAMES,
            st.sampled_from(["namedtuple", "dict", "object", "other"]),
            fields,
            absent,
        ),
        st.builds(lambda number, tree: {"kept": number, "tree": tree}, st.integers(0, 2), each),
        st.builds(lambda number, found: {"output": number, "fields": found}, st.integers(0, 3), fields),
    )


TREES = st.recursive(
    st.one_of(
        st.integers(0, 3).map(lambda number: {"output": number}),
        INDICES.map(lambda index: {"number": index}),
        CONSTANTS.map(lambda value: {"const": value}),
        st.just({"unused": True}),
        st.just({"said": "device", "text": "cpu"}),
        VALUES,
    ),
    _of_trees,
    max_leaves=8,
)


def refusal(what: str) -> ArtifactError:
    return ArtifactError(what, fix="none")


@fuzzed
@example(value={"size": [{"output": 0}]}, sizes=(0, 0))
@given(value=TREES, sizes=st.tuples(st.integers(0, 9), st.integers(-9, 9)))
def test_trees(value: Any, sizes: tuple[int, int]) -> None:
    """A tree that is read stands for something, is written as it was read, and says whether a call has its form."""
    try:
        tree = tree_from_json(Place(value, "", refusal), "output", 3)
    except LampworkError:
        return
    tensors = [torch.zeros(n + 1) for n in range(3)]
    kept = {number: object() for number in range(3)}
    symbols = dict(zip(("s0", "s1"), sizes, strict=True))
    try:
        made = rebuilt(tree, tensors, lambda index: evaluate(index, symbols), kept)
    except (LampworkError, NoDivisor):
        return
    written = json.loads(json.dumps(tree_to_json(tree, "output")))
    again = tree_from_json(Place(written, "", refusal), "output", 3)
    assert tree_to_json(again, "output") == written
    refuses(lambda: Reading([None] * 3, [""] * 3).read(tree, made, "it"), ValueError)


@fuzzed
@given(value=INDICES, sizes=st.tuples(st.integers(), st.integers()))
def test_indices(value: Any, sizes: tuple[int, int]) -> None:
    try:
        index = index_from_json(value)
    except LampworkError:
        return
    assert index_from_json(index_to_json(index)) == index
    refuses(lambda: evaluate(index, dict(zip(("s0", "s1"), sizes, strict=True))), NoDivisor)


@fuzzed
@given(text=st.one_of(VALUES.map(lambda value: json.dumps(value).encode()), st.binary(max_size=40)))
def test_texts(text: bytes) -> None:
    refuses(lambda: parsed(text, refusal))
