"""What is returned: all of it, in order, under names that are apart; or an error that says what cannot be."""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from export_models import error
from torch import Tensor, nn

import lampwork
from lampwork.errors import ExportError
from lampwork.exports.naming import identifier

X = torch.arange(6.0).view(2, 3)
W = nn.Parameter(torch.ones(3))


class Pair(NamedTuple):
    mean: Tensor
    std: Tensor


@dataclasses.dataclass
class Parts:
    a: Tensor
    b: Tensor
    c: Tensor


def inputs_views_and_duplicates(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    return y, x, x + y, z, z.t(), {"deep": [z, x]}, y.view(-1)


def written_and_returned(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    return x, x[0]


def not_computed_with(x: Tensor, y: Tensor) -> Any:
    return x * y.shape[0], y


def weights(x: Tensor, y: Tensor) -> Any:
    return x * W, W, y + 1


def parts(x: Tensor, y: Tensor) -> Any:
    return Parts(x * 2, y, x * 2), Pair(mean=y + 1, std=x)


def unbound(x: Tensor, y: Tensor) -> Any:
    return (x * y).unbind(0)


def leaves(result: Any) -> list[Tensor]:
    if isinstance(result, Parts):
        result = [result.a, result.b, result.c]
    if isinstance(result, dict):
        result = list(result.values())
    return [result] if isinstance(result, Tensor) else [leaf for item in result for leaf in leaves(item)]


FUNCTIONS = [
    (inputs_views_and_duplicates, 8),
    (written_and_returned, 2),
    (not_computed_with, 2),
    (weights, 3),
    (parts, 5),
    (unbound, 2),
]


@pytest.mark.parametrize(("function", "count"), FUNCTIONS, ids=lambda each: getattr(each, "__name__", ""))
@torch.no_grad()
def test_all_results_in_order(tmp_path: Path, function: Callable[..., Any], count: int) -> None:
    y = torch.randn(2, 3)
    expected = leaves(function(X.clone(), y))
    found = lampwork.export(function, tmp_path / "a.pt2", (X.clone(), y))
    result = leaves(torch.export.load(tmp_path / "a.pt2").module()(X.clone(), y))
    assert len(result) == len(expected) == len(found.outputs) == count
    assert all(error(one, other) == 0 for one, other in zip(result, expected, strict=True))

    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    found = lampwork.export(function, tmp_path / "a.onnx", (X.clone(), y))
    model = onnx.load(tmp_path / "a.onnx")
    assert tuple(each.name for each in model.graph.output) == found.outputs
    assert tuple(each.name for each in model.graph.input) == found.inputs
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    given = {"x": X.numpy(), "y": y.numpy()}
    result = session.run(None, {name: given[name] for name in found.inputs})
    assert all(error(one, other) < 1e-6 for one, other in zip(result, expected, strict=False))
    assert len(result) == count + any(name == "x.new" for name in found.outputs)


@torch.no_grad()
def test_views_of_complex_numbers(tmp_path: Path) -> None:
    def seen(x: Tensor) -> Any:
        y = x * 2
        return y, x.real, torch.view_as_real(y)

    x = torch.randn(2, 3, dtype=torch.complex64)
    lampwork.export(seen, tmp_path / "a.pt2", x)
    result = torch.export.load(tmp_path / "a.pt2").module()(x)
    assert all(torch.equal(one, other) for one, other in zip(result, seen(x), strict=True))


def test_names_of_results_are_those_of_fields(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    found = lampwork.export(parts, tmp_path / "a.onnx", (X, X + 1))
    assert found.outputs == ("a", "b", "c", "mean", "std")
    assert "tensors by name" in found.notes[0]


@torch.no_grad()
def test_what_is_no_tensor_is_named(tmp_path: Path) -> None:
    def mixed(x: Tensor) -> Any:
        made = Held(x * 2)
        made.itself, made.count = made, 7
        return made, 2.5, x.shape

    class Held:
        itself: Any
        count: int

        def __init__(self, value: Tensor) -> None:
            self.value = value

    found = lampwork.export(mixed, tmp_path / "a.pt2", X)
    assert found.outputs == ("value",)
    assert "what is no tensor is left out of the result: 7, 2.5, 2, 3" in found.notes


def test_results_that_no_file_can_have(tmp_path: Path) -> None:
    def passes(x: Tensor, anything: object) -> Any:
        return x + 1, anything

    with pytest.raises(ExportError, match=r"the result\[1\] is an argument of .* as it was passed"):
        lampwork.export(passes, tmp_path / "a.pt2", (X, object()))

    def makes(x: Tensor) -> Any:
        return x + 1, lambda: 3

    with pytest.raises(ExportError, match=r"the result\[1\] of .* is what make_function\(\) gives"):
        lampwork.export(makes, tmp_path / "a.pt2", X)
    assert not list(tmp_path.iterdir())


def test_nothing_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Counts(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> None:
            self.seen.add_(x)

    found = lampwork.export(Counts(), tmp_path / "a.pt2", torch.ones(3))
    assert found.outputs == ("seen.new",) and "nothing is returned" in found.notes[0]
    module: Any = torch.export.load(tmp_path / "a.pt2").module()
    assert module(torch.ones(3))["seen.new"].tolist() == [2, 2, 2] == module.seen.tolist()

    def ends(x: Tensor) -> Tensor:
        x.add_(1)
        print("!")
        return x * 2

    found = lampwork.export(ends, tmp_path / "a.pt2", torch.ones(2), region=0)
    assert torch.export.load(tmp_path / "a.pt2").module()(torch.ones(2))["x.new"].tolist() == [2, 2]


def test_open_floats_are_those_of_the_capture(tmp_path: Path) -> None:
    def scaled(x: Tensor, factor: float) -> Any:
        return x * factor + factor * 2

    compiled = lampwork.compile(scaled)
    compiled(X, 0.25)
    compiled(X, 0.75)
    for name in ("a.pt2", "a.onnx"):
        if name == "a.onnx":
            pytest.importorskip("onnx")
        found = lampwork.export(compiled, tmp_path / name, (X, 0.5))
        assert found.notes[0].endswith("those of the call that was captured: factor = 0.75")
    assert torch.equal(torch.export.load(tmp_path / "a.pt2").module()(X), scaled(X, 0.75))


def test_one_tensor_twice_is_one_input(tmp_path: Path) -> None:
    found = lampwork.export(lambda x, y: x + y, tmp_path / "a.pt2", (X, X))
    assert len(found.inputs) == 1 and "were one tensor in the call" in found.notes[0]


def test_identifiers_keep_their_underscores() -> None:
    names = ("_x", "y_", "self_", "__a", "b__", "_")
    assert [identifier(name, "input") for name in names] == [*names]
    assert identifier("[0].a[1]", "input") == "_0_a_1" and identifier("[]", "input") == "input"
    assert all(not keyword.iskeyword(identifier(name, "input")) for name in keyword.kwlist)


@torch.no_grad()
def test_parameters_keep_their_names(tmp_path: Path) -> None:
    def named(_x: Tensor, y_: Tensor, x: Tensor, self_: Tensor) -> Tensor:
        return _x - y_ * x + self_

    one, two, three, four = torch.randn(4, 3).clone().unbind(0)
    given = {"_x": one + 0, "y_": two + 0, "x": three + 0, "self_": four + 0}
    found = lampwork.export(named, tmp_path / "a.pt2", given)
    assert found.inputs == ("_x", "y_", "x", "self_")
    assert torch.equal(torch.export.load(tmp_path / "a.pt2").module()(**given), named(**given))
