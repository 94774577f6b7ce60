"""What a loaded artifact is called with is what it was exported for: all that the model asks of its arguments."""

from __future__ import annotations

import collections
import enum
import json
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import lampwork
from lampwork.artifacts.checked import Place
from lampwork.artifacts.trees import (
    Constant,
    Kept,
    Leaf,
    Made,
    Mapped,
    Said,
    Sequenced,
    Unused,
    tree_from_json,
    tree_to_json,
)
from lampwork.errors import ArtifactCallError, ArtifactError, ExportError, OptionError


class Mode(enum.Enum):
    A = 1
    B = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Both(NamedTuple):
    one: object
    two: object


class Holder:
    def __init__(self, **fields):
        vars(self).update(fields)

    def grown(self, x):
        return x * self.a


class Other(Holder):
    pass


class Output(collections.OrderedDict):
    """Has its items as attributes too, as the outputs of transformers have."""

    def __init__(self, **fields):
        super().__init__(**fields)
        vars(self).update(fields)


def loaded(function, *args, path, **options):
    lampwork.export(function, args, path=path / "m.lamp", targets="host", **options)
    return lampwork.load(path / "m.lamp", trust=True)


X = torch.arange(1.0, 4.0)
T = torch.ones(3)

PAIRS = [
    (lambda x, m: x * m.value, Mode.A, Mode.B),
    (lambda x, m: x * 2 if m is Mode.A else x, Mode.A, Mode.B),
    (lambda x, m: x * m, Level.HIGH, Level.LOW),
    (lambda x, m: x * m, Level.HIGH, 2),
    (lambda x, p: x * p.one, Both(3, 4), Both(5, 4)),
    (lambda x, p: x * p[0], (3, 4), Both(3, 4)),
    (lambda x, s: x.new_ones(s), torch.Size([2, 3]), torch.Size([4, 3])),
    (lambda x, r: x * len(r), range(3), range(4)),
    (lambda x, r: x[r] * 1, slice(0, 2), slice(0, 1)),
    (lambda x, r: x[r] * 1, ..., slice(0, 1)),
    (lambda x, c: x * c, 1 + 2j, 2 + 2j),
    (lambda x, c: x * c, np.float64(2), np.float64(3)),
    (lambda x, c: x * c, np.float64(2), 2.0),
    (lambda x, n: x * float(n), 2**70, 2**71),
    (lambda x, b: x * len(b), b"abc", b"abcd"),
    (lambda x, b: x * len(b), "\ud800", "\ud800\ud800"),
    (lambda x, s: x * 2 if 1 in s else x, {1, 2}, {2}),
    (lambda x, s: x * 2 if 1 in s else x, frozenset((1, 2)), {1, 2}),
    (lambda x, d: x * d["a"], collections.OrderedDict(a=3), collections.OrderedDict(a=4)),
    (lambda x, d: x * d["a"], {"a": 3}, collections.OrderedDict(a=3)),
    (lambda x, t: x * 2 if t is not None else x * 3, T, None),
    (lambda x, t: x * 2 if t.is_leaf else x, T, (T.clone().requires_grad_() * 1)),
    (lambda x, t: x * 2 if t.grad is None else x, T, None),
    (lambda x, t: x * 2 if hasattr(t, "label") else x * 3, T, None),
    (lambda x, t: x * 2 if t.requires_grad else x * 3, T, T.clone().requires_grad_()),
    (lambda x, t: x * 2 if isinstance(t, nn.Parameter) else x * 3, T, nn.Parameter(T.clone())),
    (lambda x, t: x + t if type(t) is nn.Parameter else x - t, T, nn.Parameter(T.clone())),
    (lambda x, h: x * h.a, Holder(a=3), Holder(a=4)),
    (lambda x, h: h.grown(x), Holder(a=3), Holder(a=4)),
    (lambda x, o: x * o.a * o["b"], Output(a=2, b=3), Output(a=2, b=4)),
    (lambda x, h: x * 2 if isinstance(h, Other) else x * 3, Holder(), Other()),
    (lambda x, h: x * getattr(h, "a", 3), Holder(), Holder(a=4)),
]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_what_was_asked_of_an_argument_is_checked(number, tmp_path):
    function, given, other = PAIRS[number]
    model = loaded(function, X, given, path=tmp_path)
    torch.testing.assert_close(model(X, given), function(X, given))
    with pytest.raises(ArtifactCallError):
        model(X, other)


def test_attributes_that_a_tensor_was_not_to_have(tmp_path):
    model = loaded(lambda x, t: x * 2 if hasattr(t, "label") else x * 3, X, T.clone(), path=tmp_path)
    labelled = T.clone()
    labelled.label = 1
    with pytest.raises(ArtifactCallError, match="without label"):
        model(X, labelled)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, f: f(x), torch.sin),
        (lambda x, f: x * 2 if f is Holder else x, Holder),
        (lambda x, f: f(x), nn.Linear(3, 3)),
        (lambda x, d: x * d[0], collections.deque([2])),
        (lambda x, f: x * f.eps, torch.finfo(torch.float32)),
    ],
)
def test_what_no_file_can_check_is_not_exported(function, given, tmp_path):
    with pytest.raises(ExportError) as raised:
        loaded(function, X, given, path=tmp_path)
    assert raised.value.fix and "depends on" in raised.value.cause


def test_one_tensor_passed_twice(tmp_path):
    model = loaded(lambda x, y: x + y, T, T, path=tmp_path)
    torch.testing.assert_close(model(X, X), X * 2)
    with pytest.raises(ArtifactCallError, match="the same tensor as x"):
        model(X, X * 10)


def test_the_order_of_a_dict(tmp_path):
    def function(named):
        return torch.cat(list(named.values()))

    model = loaded(function, {"a": torch.zeros(1), "b": torch.ones(1)}, path=tmp_path)
    assert model({"a": torch.zeros(1), "b": torch.ones(1)}).tolist() == [0, 1]
    with pytest.raises(ArtifactCallError, match=r"keys \['a', 'b'\] in this order"):
        model({"b": torch.ones(1), "a": torch.zeros(1)})


def test_a_named_tuple_of_tensors(tmp_path):
    model = loaded(lambda p: p.one + p[1], Both(X, T), path=tmp_path)
    torch.testing.assert_close(model(Both(X, X)), X * 2)
    with pytest.raises(ArtifactCallError, match="an object of a class Both"):
        model((X, X))


def test_arguments_that_are_returned_as_they_were_passed(tmp_path):
    model = loaded(lambda x, y, n: (x + 1, y, n), X, T, 3, path=tmp_path)
    y, n = torch.zeros(2, 2, dtype=torch.int64), object()
    total, one, other = model(X, y, n)
    torch.testing.assert_close(total, X + 1)
    assert one is y and other is n


def test_an_object_that_is_a_dict_too(tmp_path):
    model = loaded(lambda o: o.a * list(o.values())[0], Output(a=T), path=tmp_path)
    torch.testing.assert_close(model(Output(a=X)), X * X)


def test_a_returned_dtype(tmp_path):
    assert loaded(lambda x: (x + 1, x.dtype), X, path=tmp_path)(X)[1] is torch.float32


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_a_returned_shape_is_one(rows, tmp_path):
    dim = torch.export.Dim("rows", max=9)
    model = loaded(lambda x: (x + 1, x.shape), torch.ones(2, 4), path=tmp_path, dynamic_shapes=({0: dim},))
    found = model(torch.ones(rows, 4))[1]
    assert type(found) is torch.Size and found == (rows, 4)


def test_results_of_pytorch_s_own_tuples(tmp_path):
    values, indices = loaded(lambda x: x.sort(descending=True), X, path=tmp_path)(X)
    assert values.tolist() == [3, 2, 1] and indices.tolist() == [2, 1, 0]


class Taking(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, named, *, k=2):
        self.n.add_(named["a"])
        return {"o": self.n * k, "s": named["a"].shape[0]}


def test_a_program_of_torch_export_with_containers_and_keywords(tmp_path):
    program = torch.export.export(Taking(), ({"a": X},), {"k": 3})
    lampwork.export(program, path=tmp_path / "m.lamp", targets="host")
    model = lampwork.load(tmp_path / "m.lamp", trust=True)
    model({"a": X}, k=3)
    found = model({"a": X}, k=3)
    torch.testing.assert_close(found["o"], X * 6)
    assert found["s"] == 3
    with pytest.raises(ArtifactCallError):
        model({"a": X}, k=4)


class Keeping(nn.Module):
    """Keeps what `step` makes of it."""

    def __init__(self, kept, step):
        super().__init__()
        self.step = step
        if isinstance(kept, torch.Tensor):
            self.register_buffer("kept", kept)
        else:
            self.kept = kept

    def forward(self, x):
        self.kept = self.step(x, self.kept)
        return x * self.kept


@pytest.mark.parametrize(("kept", "step"), [(0, lambda x, n: n + 1), (torch.zeros(3), lambda x, n: n + x)])
def test_python_state_that_a_call_leaves_for_the_next_is_an_error(kept, step, tmp_path):
    with pytest.raises(ExportError, match="'kept' of a Keeping") as raised:
        loaded(Keeping(kept, step), X, path=tmp_path)
    assert "in place" in raised.value.fix


def test_python_state_in_a_global_dict(tmp_path):
    counts = {"n": 0}

    def function(x):
        counts["n"] += 1
        return x * counts["n"]

    with pytest.raises(ExportError, match="goes by 'n' of a dict"):
        loaded(function, X, path=tmp_path)


def test_python_state_that_stays_or_is_made_anew(tmp_path):
    model = Keeping(2, lambda x, n: 2)
    torch.testing.assert_close(loaded(model, X, path=tmp_path)(X), X * 2)
    lazy = Keeping(None, lambda x, n: torch.ones(3) if n is None else n)
    exported = lampwork.export(lazy, (X,), path=tmp_path / "m.lamp", targets="host")
    assert "kept is made in every call, as if there was none yet" in exported.notes


def test_what_could_not_be_loaded_is_not_written(tmp_path):
    path = tmp_path / "m.lamp"
    lampwork.export(lambda x: x + 1, (X,), path=path, targets="host")
    before = path.read_bytes()
    with pytest.raises(ExportError, match="result has"):
        lampwork.export(lambda x: (x + 1, 2**70), (X,), path=path, targets="host")
    with pytest.raises(ExportError, match="computes of open sizes"):
        lampwork.export(
            lambda x: x / x.shape[0] ** 0.5,
            (torch.ones(3, 4),),
            dynamic_shapes=({0: torch.export.Dim.AUTO},),
            path=path,
            targets="host",
        )
    with pytest.raises(OptionError, match="metadata has what JSON cannot have"):
        lampwork.export(lambda x: x + 1, (X,), path=path, targets="host", metadata={"a": "\ud800"})
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["m.lamp"]


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + self.w, self.w.data


def test_data_of_a_weight_is_returned(tmp_path):
    total, weight = loaded(Weighted(), X, path=tmp_path)(X)
    assert torch.equal(total, X + 1) and torch.equal(weight, torch.ones(3))


def test_names_of_arguments_are_those_of_the_function(tmp_path):
    def function(x, /, y, *others):
        return x + y + others[0]

    model = loaded(function, X, T, T, path=tmp_path)
    torch.testing.assert_close(model(X, T, T), X + 2)
    for wrong in ({"x": X}, {"others_0": T}):
        with pytest.raises(ArtifactCallError, match=f"came {next(iter(wrong))}="):
            model(*[T, T, T][: 3 - len(wrong)], **wrong)
    torch.testing.assert_close(loaded(lambda x, y: x + y, X, T, path=tmp_path)(y=T, x=X), X + 1)


def test_weights_that_were_loaded_in_inference_mode_may_change(tmp_path):
    lampwork.export(Taking(), ({"a": X},), {"k": 1}, path=tmp_path / "m.lamp", targets="host")
    with torch.inference_mode():
        model = lampwork.load(tmp_path / "m.lamp", trust=True)
    model({"a": X}, k=1)
    assert torch.equal(model.n, X)
    model.load_state_dict({"n": torch.ones(3)})
    assert torch.equal(model({"a": X}, k=1)["o"], X + 1)


TREES = [
    Leaf(0, (("is_leaf", Constant(True)),), ("label",), "Parameter"),
    Said("Mode", "A = 1"),
    Kept(1, Leaf(0)),
    Mapped((("a", Unused()),), "OrderedDict", (("size", Constant(3)),), ("other",)),
    Made("Holder", "object", (("a", Leaf(1)),), ("b",)),
    Sequenced("size", (Constant(2), Constant(3))),
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_a_tree_is_read_as_it_was_written(tree):
    given = json.loads(json.dumps(tree_to_json(tree, "input")))
    assert tree_from_json(Place(given, "", ArtifactError), "input", 2) == tree


@pytest.mark.parametrize(
    "given",
    [
        {"said": 3, "text": "a"},
        {"said": "Mode"},
        {"kept": -1, "tree": {"unused": True}},
        {"kept": 0},
        {"input": 0, "kind": 3},
        {"input": 0, "absent": [3]},
        {"input": 0, "fields": [["__class__", {"unused": True}]]},
        {"dict": [], "kind": None},
        {"object": "Holder", "form": "object", "absent": "b"},
    ],
)
def test_a_tree_that_says_what_none_can(given):
    with pytest.raises(ArtifactError):
        tree_from_json(Place(given, "", ArtifactError), "input", 2)


def test_views_of_other_dtypes(tmp_path):
    def function(x):
        return torch.view_as_complex(x) * 2

    given = torch.arange(12.0).view(3, 2, 2)
    model = loaded(function, given, path=tmp_path)
    assert torch.equal(model(given + 1), function(given + 1))
    apart = torch.arange(13.0)[1:].view(3, 2, 2)  # where eager refuses to look at two numbers as one
    assert torch.equal(model(apart), function(apart.clone()))


def test_the_order_of_keywords_that_are_collected(tmp_path):
    def function(x, y=None, **rest):
        return x + y + list(rest.values())[0] * 2

    lampwork.export(function, (X,), {"a": X, "y": T, "b": T}, path=tmp_path / "m.lamp", targets="host")
    model = lampwork.load(tmp_path / "m.lamp", trust=True)
    torch.testing.assert_close(model(X, a=X, b=T, y=T), X * 3 + 1)
    with pytest.raises(ArtifactCallError, match="expected a, b in this order, came b, a"):
        model(X, y=T, b=T, a=X)
