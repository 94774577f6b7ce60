"""What a model returns of an input that it wrote to is that input, or a view of it, in C++ as in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_runtime import BUILDS, CppError, Runtime
from lamp_files import object_code, write_lamp
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.artifacts import inspect

pytestmark = BUILDS


class Written(nn.Module):
    """Views of an input that is written to, of one that is not, and what is none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        x.add_(1)
        self.count.add_(1)
        views = {
            "row": x[1],
            "turned": x.t(),
            "x": x,
            "part": x[:, 1:3],
            "last": x[-1, -1],
            "flat": x.view(-1),
        }
        return {**views, "y": y, "sum": x.sum(0), "count": self.count[1:]}


def _aliases(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
    """As `Model.aliases` has it, of tensors."""
    found: list[Any] = []
    for result in results:
        for number, each in enumerate(inputs):
            if result.untyped_storage().data_ptr() == each.untyped_storage().data_ptr():
                offset = int(result.storage_offset() - each.storage_offset())
                found.append((number, offset, list(result.stride())))
                break
        else:
            found.append(None)
    return found


LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "rows": lambda n: torch.randn(n, 4),
    "columns": lambda n: torch.randn(4, n).t(),
    "with gaps": lambda n: torch.randn(n, 9)[:, 5:],
    "every other": lambda n: torch.randn(2 * n, 8)[::2, ::2],
    "behind others": lambda n: torch.randn(n + 3, 4)[3:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_written_inputs(
    runtime: Runtime, tmp_path_factory: pytest.TempPathFactory, layout: str
) -> None:
    """Wherever Python gives a view of what was written, and there alone; what they hold is the same."""
    path = tmp_path_factory.getbasetemp() / "written.lamp"
    if not path.exists():
        shapes = {"x": {0: Dim("n", min=2, max=64)}, "y": {}}
        example = (torch.randn(3, 4), torch.randn(2))
        lampwork.export(Written(), example, dynamic_shapes=shapes, path=path, targets=["host"])
    here, there = lampwork.load(path, trust=True), runtime.load(path)
    for n in (3, 2, 7):
        x, y = LAYOUTS[layout](n), torch.randn(2)
        same = x.as_strided(x.shape, x.stride(), x.storage_offset())
        mine = torch.empty_strided(x.shape, x.stride()).copy_(same)
        results = here(mine, y)
        found = there.aliases(x, y)
        wanted = _aliases(list(results.values()), [mine, y])
        wanted[list(results).index("y")] = None  # it is not written to: a copy
        assert found == wanted
        assert torch.equal(x, mine)
        values = there.run(x, y)
        expected = here(mine, y)
        for one, (name, other) in zip(values, expected.items(), strict=True):
            assert torch.equal(one, other), name
    if layout == "rows":
        assert dict(zip(results, found, strict=True)) == {
            "row": (0, 4, [1]),
            "turned": (0, 0, [1, 4]),
            "x": (0, 0, [4, 1]),
            "part": (0, 1, [4, 1]),
            "last": (0, 4 * n - 1, []),
            "flat": (0, 0, [1]),
            "y": None,
            "sum": None,
            "count": None,
        }


class WrittenInPart(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x[:, 1] = x[:, 0] + 7
        return {
            "row": x[1],
            "part": x.t()[1:],
            "last": x[-1, -1],
            "expanded": x[0].expand(3, -1),
            "all": x.broadcast_to(2, *x.shape),
        }


@pytest.mark.parametrize("example", ["rows", "columns"])
def test_views_of_inputs_that_are_written_in_part(runtime: Runtime, tmp_path: Path, example: str) -> None:
    path, model = tmp_path / "part.lamp", WrittenInPart()
    lampwork.export(model, (LAYOUTS[example](4),), path=path, targets=["host"])
    here, there = lampwork.load(path, trust=True), runtime.load(path)
    for layout in ("rows", "columns", "every other", "with gaps"):
        x = LAYOUTS[layout](4)
        results = [torch.empty_strided(x.shape, x.stride()).copy_(x) for _ in range(3)]
        ours, theirs, given = results
        expected = list(model(theirs).values())
        assert [found and found[:2] for found in there.aliases(x)] == [
            found and found[:2] for found in _aliases(list(here(ours).values()), [ours])
        ]
        for one, other in zip(there.run(given), expected, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(given, theirs) and torch.equal(ours, theirs)
        into = [torch.zeros(each.shape) for each in expected]
        there.run_into(given, into=into)
        for one, other in zip(into, model(theirs).values(), strict=True):
            assert torch.equal(one, other)
    assert [found and found[0] for found in there.aliases(torch.randn(4, 4))] == [0] * 5


def test_results_in_memory_of_the_caller_are_copies(runtime: Runtime, tmp_path: Path) -> None:
    class Whole(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.mul_(2)
            return x, x[0]

    path, x = tmp_path / "whole.lamp", torch.randn(3, 4)
    lampwork.export(Whole(), (x,), path=path, targets=["host"])
    model, into = runtime.load(path), [torch.zeros(3, 4), torch.zeros(4)]
    before = x.clone()
    model.run_into(x, into=into)
    assert torch.equal(x, before * 2) and torch.equal(into[0], x) and torch.equal(into[1], x[0])
    assert model.aliases(x) == [(0, 0, [4, 1]), (0, 0, [1])]
    assert model.aliases(torch.randn(4, 3).t()) == [(0, 0, [1, 3]), (0, 0, [3])]


def test_what_a_file_says_of_views_is_checked(runtime: Runtime, tmp_path: Path) -> None:
    code = object_code()
    model, x = runtime.load(write_lamp(tmp_path / "fine.lamp", code)), torch.zeros(3, 4)
    assert model.aliases(x, entry="viewed") == [(0, 5, [4]), (0, 0, [4, 1])]
    assert model.run(x, entry="viewed")[0].tolist() == [2, 2] and torch.equal(x, torch.full((3, 4), 2.0))
    for views, message in (
        ([[9, 0]], "an output of the entry 'viewed'"),
        ([[0, 1]], "a view of the entry 'viewed'"),
        ([[0, -1]], "a view of the entry 'viewed'"),
        ([[0]], "a view of the entry 'viewed'"),
        (3, "the views of the entry 'viewed'"),
    ):

        def change(manifest: Any, programs: Any, views: Any = views) -> None:
            manifest["entries"]["viewed"]["views"] = views

        with pytest.raises(CppError, match=f"LW_FORMAT: .*{message}"):
            runtime.load(write_lamp(tmp_path / "bad.lamp", code, change=change))

    def elsewhere(manifest: Any, programs: Any) -> None:
        programs["entries"]["viewed"]["values"][1]["shape"] = [4, 4]
        programs["entries"]["viewed"]["values"][2]["offset"] = 11
        programs["entries"]["viewed"]["outputs"][2] = 3
        programs["entries"]["viewed"]["steps"][1]["args"][1]["ref"] = 3
        part = {
            "kind": "view",
            "dtype": "float32",
            "shape": [3, 4],
            "strides": [4, 1],
            "offset": 0,
            "base": 1,
        }
        programs["entries"]["viewed"]["values"].append(part)

    # Behind the part of the memory that is written back: no view of the input, so a copy.
    model = runtime.load(write_lamp(tmp_path / "behind.lamp", code, change=elsewhere))
    assert model.aliases(x, entry="viewed") == [None, (0, 0, [4, 1])]


def test_what_is_no_result_lies_nowhere(runtime: Runtime) -> None:
    place = ctypes.c_int64()
    with pytest.raises(CppError, match="LW_ARGUMENT: there is no result 0"):
        runtime.check(
            runtime.lib.lw_result_alias(None, ctypes.c_size_t(0), ctypes.byref(place), ctypes.byref(place))
        )


class Returning(nn.Module):
    def __init__(self, returned: Callable[..., Any]) -> None:
        super().__init__()
        self.returned = returned
        self.w = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("b", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return *self.returned(self, x, y), x + y


def _after(write: torch.Tensor, *found: torch.Tensor) -> tuple[torch.Tensor, ...]:
    write.add_(1)
    return found


RETURNED: dict[str, Callable[..., Any]] = {
    "inputs": lambda m, x, y: (x, y),
    "views of inputs": lambda m, x, y: (x[0], y.t(), x.reshape(-1)),
    "weights": lambda m, x, y: (m.w, m.w[1:]),
    "buffers that are written": lambda m, x, y: _after(m.b, m.b, m.b[1]),
    "inputs that are written": lambda m, x, y: _after(x, x, x[1], x.view(-1), y),
    "what is computed": lambda m, x, y: ((z := x * y), z[0], x.flip(0), x.clone(), x.t().reshape(-1)),
    "the same twice": lambda m, x, y: (x[0], x[0]),
}


@pytest.mark.parametrize("of", RETURNED)
def test_the_file_says_what_is_a_copy_in_cpp_alone(runtime: Runtime, tmp_path: Path, of: str) -> None:
    path = tmp_path / "m.lamp"
    example = (torch.randn(4, 4), torch.randn(4, 4))
    assert lampwork.export(Returning(RETURNED[of]), example, path=path, targets="host").notes == ()
    here, there = lampwork.load(path, trust=True), runtime.load(path)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    in_cpp = there.aliases(x, y)
    in_python = _aliases(list(here(x, y)), [x, y, *here.state_dict().values()])
    differ = [
        number for number, (one, other) in enumerate(zip(in_cpp, in_python, strict=True)) if one != other
    ]
    assert all(in_cpp[number] is None for number in differ)
    said = _notes(path)
    assert all(" is a copy in C++; in Python it is " in note for note in said)
    assert [note.partition(" ")[0] for note in said] == [f"output_{number}" for number in differ]


def _notes(path: Path) -> list[str]:
    return inspect(path).to_dict()["entries"]["forward"]["notes"]


def test_what_is_said_of_copies(tmp_path: Path) -> None:
    path, example = tmp_path / "m.lamp", (torch.randn(4, 4), torch.randn(4, 4))
    lampwork.export(Returning(lambda m, x, y: (x, m.w.t())), example, path=path, targets="host")
    assert _notes(path) == [
        "output_0 is a copy in C++; in Python it is the input x",
        "output_1 is a copy in C++; in Python it is a view of the weight w",
    ]
    assert all(note in str(inspect(path)) for note in _notes(path))

    def passing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y

    lampwork.export(passing, example, path=path, targets="host")
    assert _notes(path) == [
        "Python returns arguments as they were passed that nothing looks at; C++ neither takes nor returns them"
    ]
    x, y = example
    assert lampwork.load(path, trust=True)(x, y) is y
