"""Texts that show tensors: nobody who drops one ends a region, and whoever looks into one gets eager's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lampwork

Tensor = torch.Tensor
quiet = logging.getLogger("lampwork.tests.texts")
weight = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
box = SimpleNamespace(text="", log=[])


def check(condition: Any, message: str, last: str = "") -> None:
    if not condition:
        raise ValueError(message, last)


def dropped(x: Tensor) -> Tensor:
    f"{x}"
    check(x.shape[0] == 3, f"x is {x}, its sum {x.sum():.2f}, shown {x!r}", last=f"{x.max()!s:>9}")
    return x + 1


def assigned(x: Tensor) -> Tensor:
    text = f"{x}"
    other = text
    y = x * 2
    del text, other
    return y


def one_way(x: Tensor) -> Tensor:
    text = f"{x.sum()}" if x.shape[0] == 3 else "none"
    return x + (1 if x.shape[0] == 3 else len(text))


def of_a_closure(x: Tensor) -> Tensor:
    text = f"{x}"

    def fail() -> None:
        raise ValueError(text)

    if x.shape[0] > 5:
        fail()
    return x - 1


def in_a_callee(x: Tensor) -> Tensor:
    def scaled(y: Tensor, note: str) -> Tensor:
        return y * 2

    return scaled(x, f"{x}") + scaled(x + 1, note=f"{x} and {x}")


FREE = [dropped, assigned, one_way, in_a_callee]


def returned(x: Tensor) -> Any:
    return x + 1, f"<{x.sum()}>"


def in_no_format(x: Tensor) -> Any:
    f"{x.sum():d}"
    return x


def in_no_format_of_a_text(x: Tensor) -> Any:
    f"{x.sum()!s:d}"
    return x


def of_no_number(x: Tensor) -> Any:
    f"{x:.2f}"
    return x


def of_a_parameter(x: Tensor) -> Any:
    f"{weight:.2f}"
    return x * weight


def of_a_character(x: Tensor) -> Any:
    f"{(x.sum() * -1).long():c}"
    return x


def in_a_format_of_data(x: Tensor) -> Any:
    return (
        x,
        f"{x.sum():{'>12'}}",
        f"{x.sum().long():05d}",
        f"{(x.sum() > 3)!r:^9}",
        f"{x.sum():>{x.shape[0] * 4}.1f}",
    )


def gathered(x: Tensor) -> Any:
    def first(*texts: str, **named: str) -> int:
        return len(texts) + len(named)

    return x + first(f"{x}", f"{x.sum()}", a=f"{x}")


def logged(x: Tensor) -> Tensor:
    quiet.debug(f"x is {x}")
    return x + 1


def printed(x: Tensor) -> Tensor:
    y = x * 2
    print(f"{y.sum()} of {x}")
    return y + 1


def printed_after_a_write(x: Tensor) -> Tensor:
    text = f"{x}"
    x.add_(1)
    print(text)
    return x * 2


def beside_a_break(x: Tensor) -> Any:
    text = f"{x.sum()}"
    y = x + 1
    print("a break")
    return y * 2, text


def asked(x: Tensor) -> Any:
    text = f"{x}"
    if "tensor" in text and text is not None and text and len(text) > 3:
        return x + 1
    return x - 1


def is_none(x: Tensor) -> Any:
    text: str | None = f"{x}"
    return x + 1 if text is None else x - 1


def added(x: Tensor) -> Any:
    return x + 1, "sum " + f"{x.sum()}" + "!"


def nested(x: Tensor) -> Any:
    text = f"[{x.sum()}]"
    return x + 1, f"<{text}>", f"{text:>30}", f"{text!r}"


def held(x: Tensor) -> Any:
    box.text = f"{x.sum()}"
    box.log.append(f"{x.max()}")
    return x + 1


def in_containers(x: Tensor) -> Any:
    text = f"{x.sum()}"
    return x + 1, [text, (text,), {"a": text}, {text: 1}, {text}]


def raised(x: Tensor) -> Any:
    try:
        check(False, f"{x.sum()}")
    except ValueError as error:
        return x + 1, str(error)
    return x


def escapes(x: Tensor) -> Any:
    check(x.shape[0] != 3, f"{x.sum()} is wrong")
    return x


def in_a_loop(x: Tensor) -> Any:
    found = []
    for n in range(3):
        found.append(f"{n}: {x[n]}")
    return x, found


def of_generators(x: Tensor) -> Any:
    return x + 1, ", ".join(f"{each}" for each in x)


def unpacked(x: Tensor) -> Any:
    a, b = f"{x.sum()}", x + 1
    a, b = b, a
    c, *d = a, b
    return c, d


def compared(x: Tensor) -> Any:
    return x + (f"{x.sum()}" == "6.0"), f"{x.sum()}" < "7"


def formatted(x: Tensor) -> Any:
    return x, format(x.sum(), ".3f"), f"{x.sum():.3f}", "{}".format(f"{x}"), "%s" % f"{x.sum()}"


def waits(x: Tensor) -> Any:
    text = f"{x}"

    def later() -> str:
        return text

    return x + 1, later()


LOOKED_INTO = [
    *(
        in_no_format,
        in_no_format_of_a_text,
        of_no_number,
        of_a_parameter,
        of_a_character,
        in_a_format_of_data,
    ),
    *(
        returned,
        gathered,
        logged,
        printed,
        printed_after_a_write,
        beside_a_break,
        asked,
        is_none,
        added,
        nested,
        held,
        in_containers,
    ),
    *(raised, escapes, in_a_loop, of_generators, unpacked, compared, formatted, waits, of_a_closure),
]


def outcome(fn: Callable[..., Any], x: Tensor, capsys: pytest.CaptureFixture[str]) -> Any:
    box.text, box.log = "", []
    x = x.clone()
    capsys.readouterr()
    try:
        got = fn(x)
    except Exception as error:  # noqa: BLE001  (compared)
        got = (type(error), error.args)
    return repr((got, x, box.text, box.log)), capsys.readouterr().out


@pytest.mark.parametrize("fn", FREE)
def test_what_nobody_looks_into(fn: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    before = lampwork.stats()["breaks"]
    compiled = lampwork.compile(fn)
    for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 9.0])):
        assert outcome(compiled, x, capsys) == outcome(fn, x, capsys)
    assert lampwork.stats()["breaks"] == before and len(compiled.entries) == 1


@pytest.mark.parametrize("fn", LOOKED_INTO)
def test_what_somebody_looks_into(fn: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    compiled = lampwork.compile(fn, options={"strict": False})
    for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 9.0]), torch.tensor([1.0, 2.0, 3.0])):
        assert outcome(compiled, x, capsys) == outcome(fn, x, capsys)


def test_the_region_ends_where_the_text_is_made() -> None:
    first = lampwork.explain(printed)(torch.ones(3)).breaks[0]
    assert (first.code, first.line) == ("LW102", printed.__code__.co_firstlineno + 2)
