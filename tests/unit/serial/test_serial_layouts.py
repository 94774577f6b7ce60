"""Layouts as JSON and object code: what comes back is equal, and damage is an error of ours."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compiled_parts import Seen, compile_all, seen

import lampwork
from lampwork import _C
from lampwork.codegen.target import MachineFunction
from lampwork.errors import BackendError, SerialError
from lampwork.literals import bits_of_nan, nan_of_bits
from lampwork.loops.ir.index import Index
from lampwork.runtime.layout import Layout
from lampwork.serial import Linked, Modules, from_text, layout_from_json, layout_to_json, to_text
from lampwork.serial.arguments import argument_from_json, argument_to_json
from lampwork.serial.indices import index_from_json, index_to_json

_ = seen


def functions_of(layout: Layout) -> dict[tuple[int, str], Any]:
    """The functions of a layout, by what they are called in JSON."""
    modules = Modules()
    found: dict[tuple[int, str], Any] = {}
    layouts = [layout, *([layout.constants.layout] if layout.constants else [])]
    for each in layouts:
        for step in [*each.steps, *(step for _, step in each.undo)]:
            if hasattr(step, "code"):
                number, name = modules.place(step.code)
                found[number, name] = step.code
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_comes_back_is_equal(seen: Seen, dynamic: bool) -> None:
    compile_all(dynamic)
    assert len(seen.layouts) >= 6
    kinds: set[str] = set()
    for layout in seen.layouts:
        modules = Modules()
        written = to_text(layout_to_json(layout, modules))
        assert written == to_text(layout_to_json(layout, Modules())), "the same bytes each time"
        known = {tuple(modules.place(code)): code for code in functions_of(layout).values()}
        back = layout_from_json(from_text(written), lambda n, name, known=known: known[n, name])
        assert back == layout
        assert (back.constants is None) == (layout.constants is None)
        if layout.constants is not None and back.constants is not None:
            assert back.constants.layout == layout.constants.layout
        linked = layout_from_json(from_text(written), Linked(modules.contents))
        again = Modules()
        assert to_text(layout_to_json(linked, again)) == written
        assert again.contents == modules.contents
        kinds.update(key for step in json.loads(written)["steps"] for key in step)
        assert b"0x" not in written, "no addresses"
    assert {"kernel", "aten"} <= kinds
    assert any(layout.constants for layout in seen.layouts)
    assert not dynamic or any(layout.keys for layout in seen.layouts)
    assert not dynamic or any(layout.scalars for layout in seen.layouts)


def test_what_comes_back_runs(seen: Seen) -> None:
    weight = torch.randn(6, 6)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ weight, -1).sort(-1).values * 2

    x = torch.randn(5, 6)
    expected = lampwork.compile(program)(x)
    modules = Modules()
    written = from_text(to_text(layout_to_json(seen.layouts[0], modules)))
    placed = layout_from_json(written, Linked(modules.contents)).place({})
    got = _C.Executable(placed, [weight])([x])[0]
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


# --- damage -----------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def damaged(value: Any, rng: random.Random) -> Any:
    """The value with one part of it replaced, dropped or added."""
    value = copy.deepcopy(value)
    path = rng.choice(list(places(value))[1:])
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    how = rng.random()
    if how < 0.15:
        del holder[path[-1]]
    elif how < 0.25 and isinstance(holder, list):
        holder.insert(path[-1], rng.choice([0, "x", None, []]))
    else:
        others = [-1, 0, 1, 7, 10**6, 2**63, 2**70, 1.5, True, None, "", "s0", "view", [], [[2, ["s9"]]], {}]
        holder[path[-1]] = rng.choice([*others, {"ref": 99}, {"i": [[1, [["//", 1, 0]]]]}, {"s": 3}])
    return value


def test_damage_is_an_error_of_ours(seen: Seen) -> None:
    compile_all()
    compile_all(dynamic=True)
    rng, refused, tried = random.Random(0), 0, 0
    for layout in seen.layouts:
        modules = Modules()
        written = layout_to_json(layout, modules)
        names = {name: n for n, name in (modules.place(c) for c in functions_of(layout).values())}

        def function(number: int, name: str, names: dict[str, int] = names) -> Any:
            if names.get(name) != number:
                raise SerialError("no such function")
            return MachineFunction(1, None, name)

        for _ in range(40):
            tried += 1
            try:
                back = layout_from_json(from_text(to_text(damaged(written, rng))), function)
                back.place(dict.fromkeys(back.keys, 7))
            except (SerialError, BackendError):
                refused += 1
    assert tried > 400 and refused > tried * 0.7


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("steps"), "an object with steps was expected, not "),
        (lambda d: d.update(more=1), "was expected, not ['more']"),
        (lambda d: d["outputs"].append(99), "outputs[1]: the number of one of"),
        (lambda d: d["outputs"].append(True), "values was expected, not True"),
        (lambda d: d["values"][0].update(kind="file"), "values[0]: one of arena, aten"),
        (lambda d: d["values"][0].update(dtype="float33"), "values[0]: the name of a dtype was expected"),
        (lambda d: d["values"][0].update(shape=[-4, 6]), "a number that is not below 0 was expected, not -4"),
        (lambda d: d["values"][0].update(position=3), "values[0]: a whole number from -1 to 0 was expected"),
        (lambda d: d["steps"][0].update(kernel=[7, "f"]), "steps[0]: a whole number from 0 to 0"),
        (lambda d: d["steps"][0].update(kernel=[0, "f"]), "steps[0]: a function of module 0 was expected"),
        (lambda d: d["steps"][0].update(sizes=[[[1, ["s5"]]]]), "scalars that are the numbers"),
        (lambda d: d["values"][0].update(shape=[[[1, ["s5"]]], 6]), "keys with every symbol of a size"),
        (lambda d: d.update(labels=[[], [], []]), "labels of "),
        (lambda d: d.update(n_inputs=10**10), "a whole number from 0 to 2147483647"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(seen: Seen, change: Any, says: str) -> None:
    lampwork.compile(lambda x: x.exp().sum(-1))(torch.ones(4, 6))
    modules = Modules()
    written = layout_to_json(seen.layouts[0], modules)
    written = from_text(to_text(written))
    change(written)
    with pytest.raises(SerialError) as raised:
        layout_from_json(written, Linked(modules.contents))
    assert says in raised.value.cause and raised.value.code == "LW350"


def test_modules_that_are_damaged_are_not_linked(seen: Seen) -> None:
    lampwork.compile(lambda x: x.exp())(torch.ones(4))
    modules = Modules()
    written = layout_to_json(seen.layouts[0], modules)
    with pytest.raises(SerialError, match="module 0: the generated code could not be linked"):
        layout_from_json(written, Linked([modules.contents[0][:100]]))


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 1.0, -0.0, 2**64 - 1, "a\ud800 text", 1 - 2j, float("inf"), [1, (2.5, ["x"], ())]),
        *(torch.float32, torch.device("cuda:1"), torch.strided, torch.channels_last, Index.sym("s0") // 2),
    ],
)
def test_arguments(value: Any) -> None:
    back = argument_from_json(from_text(to_text(argument_to_json(value))), 0)
    assert back == value and type(back) is type(value) and repr(back) == repr(value)


def test_nan_is_nan() -> None:
    assert argument_to_json(float("nan")) == {"f": "nan"}
    assert repr(argument_from_json({"f": "nan"}, 0)) == "nan"


@pytest.mark.parametrize("bits", [0xFFF8 << 48, (0x7FF8 << 48) + 7, 0xFFF8 << 48 | 1])
def test_other_nans_keep_their_bits(bits: int) -> None:
    written = {"f": f"nan({bits:#x})"}
    assert argument_to_json(nan_of_bits(bits)) == written
    assert bits_of_nan(argument_from_json(written, 0)) == bits


@pytest.mark.parametrize(
    "text",
    [
        *(
            "nan(0x7ff8000000000000)",
            "nan(0x7ff0000000000000)",
            "nan(0x0)",
            "nan(0xFFF8000000000000)",
            "nan()",
        ),
        *(
            "nan(0x-fff80000000000)",
            "nan(0xfff800000000000)",
            "nan(0xfff80000000000000)",
            "0xfff8000000000000",
        ),
        *(
            " nan(0xfff8000000000000)",
            "nan(0xfff8000000000000",
            "nan(0xfff8_00000000000)",
            0xFFF8 << 48,
            True,
            0,
        ),
    ],
)
def test_what_are_no_bits_of_another_nan(text: object) -> None:
    with pytest.raises(SerialError):
        argument_from_json({"f": text}, 0)


@pytest.mark.parametrize("value", [object(), {1}, 2**64, slice(1)])
def test_other_values_have_no_form(value: Any) -> None:
    with pytest.raises(SerialError, match="no serial form"):
        argument_to_json(value)


def test_indices() -> None:
    a, b = Index.sym("s0"), Index.sym("s1")
    for index in (a * 0, a * 0 + 7, a, a * b * 3 + a - 5, (a + 3) // b % 4 + a * a, (a // 2 * b) % (a + b)):
        assert index_from_json(from_text(to_text(index_to_json(index)))) == index
    assert index_to_json(a * 2 + 1) == [[1, []], [2, ["s0"]]]
    with pytest.raises(SerialError, match="is no size"):
        index_to_json(Index.var("i"))


@pytest.mark.parametrize(
    "value",
    [
        *(True, 2**63, "s0", [[0, ["s0"]]], [[1, ["s1"]], [1, ["s0"]]], [[2, []]], [[1, ["1"]]], []),
        *(
            [[1, [["//", [[1, ["s0"]]], 0]]]],
            [[1, [["/", 1, 2]]]],
            [[1, [["//", 1]]]],
            [[1, ["s0"]], [1, ["s0"]]],
        ),
    ],
)
def test_what_is_no_index(value: Any) -> None:
    with pytest.raises(SerialError):
        index_from_json(value)


def test_nested_deeply() -> None:
    index: Any = [[1, ["s0"]]]
    for _ in range(5000):
        index = [[1, [["//", index, 3]]]]
    with pytest.raises(SerialError):
        index_from_json(index)
    with pytest.raises(SerialError):
        from_text(b"[" * 100000)
    for text in (b"NaN", b"\xff", b"{", b"1" * 5000):
        with pytest.raises(SerialError, match="JSON was expected"):
            from_text(text)
