"""Random views, operators and writes in place on complex numbers and on what is sorted along any dimension, against
eager: values, and where the results lie: whose storage they share, offsets, strides, the size of the storage."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

import lampwork
from lampwork.errors import CaptureError

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "80"))

VIEWS = (
    "{v}[0]",
    "{v}[1:]",
    "{v}[..., ::2]",
    "{v}[:, 1:]",
    "{v}.squeeze(0)",
    "{v}.squeeze()",
    "{v}.unsqueeze(-1)",
    "{v}.unsqueeze(0)",
    "{v}.t()",
    "{v}.transpose(0, -1)",
    "{v}.movedim(0, -1)",
    "{v}.view(-1)",
    "{v}.view(*{v}.shape, 1)",
    "{v}.flatten()",
    "{v}.detach()",
    "{v}.diagonal()",
    "{v}.narrow(-1, 1, 1)",
    "{v}.unfold(-1, 2, 1)",
    "{v}.chunk(2, -1)[-1]",
    "{v}.unbind(0)[-1]",
    "{v}.expand(2, *{v}.shape)",
    "{v}.conj()",
    "{v}.real",
    "torch.view_as_real({v})",
)
OPERATORS = (
    "{v} + {v}",
    "{v} * {v}",
    "{v} * {w}",
    "{v} - {w}",
    "-{v}",
    "{v}.abs()",
    "{v}.angle()",
    "{v}.conj() * 3",
    "{v}.conj().resolve_conj()",
    "{v}.clone()",
    "torch.complex({v}.real, {v}.imag)",
    "torch.polar({v}.abs(), {v}.abs())",
    "torch.diff({v}, dim=-1)",
    "{v} + 1",
    "{v}.exp()",
    "{v}.cumsum(0)",
    "torch.topk({v}.abs(), 2, dim=0)[0]",
    "torch.topk({v}.real, 1, dim=0)[1]",
    "torch.argsort({v}.abs(), dim=0, stable=True)",
    "torch.sort({v}.real, dim=0, stable=True)[0]",
    "torch.cat([{v}, {w}])",
)
WRITES = ("{v}.mul_(2)", "{v}.add_({w})", "{v}.fill_(3)", "{v}.zero_()", "{v}.copy_({w})", "{v}.neg_()")
SHAPES = ((3, 4), (1, 3), (4, 1), (2, 3, 4), (5,), (1, 1, 2), ())


def _input(rng: random.Random) -> torch.Tensor:
    dtype = rng.choice((torch.complex64, torch.complex128))
    x = torch.randn(rng.choice(SHAPES), dtype=dtype)
    layout = rng.randrange(4)
    if layout == 1 and x.dim() > 1:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == 2 and x.dim():
        return torch.cat([x, x], -1)[..., 1 : 1 + x.shape[-1]]
    return x.conj() if layout == 3 and rng.random() < 0.3 else x


def _copy(x: torch.Tensor) -> torch.Tensor:
    """In a storage of its own of the same size, at the same place in it."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage().clone())  # pyright: ignore
    copy = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    return copy.conj() if x.is_conj() else copy


def _program(seed: int) -> tuple[str, list[torch.Tensor]]:
    """Lines that eager takes, each tried on what the lines before it gave."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [_input(rng), _input(rng)]
    names = ["a", "b"]
    values: dict[str, Any] = {"torch": torch, **{n: _copy(x) for n, x in zip(names, inputs, strict=True)}}
    lines: list[str] = []
    while len(lines) < 6:
        table = rng.choices((VIEWS, OPERATORS, WRITES), (5, 3, 2))[0]
        v, w = rng.choice(names[-3:] + names[:1]), rng.choice(names)
        if table is WRITES and values[w].is_complex() and not values[v].is_complex():
            continue  # it warns
        line = rng.choice(table).format(v=v, w=w)
        if table is not WRITES:
            line = f"v{len(names)} = {line}"
        try:
            exec(line, values)
        except (RuntimeError, IndexError, TypeError):
            continue
        lines.append(line)
        if table is not WRITES:
            names.append(f"v{len(names)}")
    results = [name for name in names[2:] if rng.random() < 0.6] or names[-1:]
    body = "\n".join(f"    {line}" for line in [*lines, f"return {', '.join(results)},"])
    return f"def f(a, b):\n{body}\n", inputs


def _function(text: str) -> Any:
    space: dict[str, Any] = {"torch": torch}
    exec(compile(text, "<program>", "exec"), space)
    return space["f"]


def _places(tensors: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    """By tensor, what a caller can tell of its memory."""
    numbers: dict[int, int] = {}
    return [
        (
            numbers.setdefault(x.untyped_storage().data_ptr(), len(numbers))
            if x.untyped_storage().nbytes()
            else -1,
            x.storage_offset(),
            x.stride(),
            x.untyped_storage().nbytes(),
            x.is_conj(),
        )
        for x in tensors
    ]


def check(text: str, inputs: list[torch.Tensor], **options: Any) -> None:
    mine, theirs = [_copy(x) for x in inputs], [_copy(x) for x in inputs]
    try:
        got = [*lampwork.compile(_function(text), **options)(*mine), *mine]
    except CaptureError:
        return  # a write that eager refuses, too, or that breaks the graph where nothing can go on
    expected = [*_function(text)(*theirs), *theirs]
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, equal_nan=True, msg=lambda error: f"{error}\n{text}")
    assert _places(got) == _places(expected), text
    # A write from outside reaches what shares the memory.
    for have, want in zip(got[:-2], expected[:-2], strict=True):
        have.detach().reshape(-1)[:1].zero_()
        want.detach().reshape(-1)[:1].zero_()
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, equal_nan=True, msg=lambda error: f"{error}, later\n{text}")


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_programs(seed: int) -> None:
    check(*_program(seed))


@pytest.mark.parametrize("seed", range(0, COUNT, 4))
def test_random_programs_of_open_sizes(seed: int) -> None:
    check(*_program(1000 + seed), dynamic=True)


X = torch.arange(1.0, 13.0).view(3, 4)
Z = torch.complex(X, -X)


def _stale(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    v = x[0]
    u = v.abs()
    v.mul_(2)
    return u, v


def _of_a_sum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    v = x.t() + x.t()
    return v, v[1:], v.t(), v[..., ::2].unsqueeze(0)


def _of_a_write(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    v = x.unfold(0, 1, 2)
    x.diagonal().fill_(3)
    return torch.nan_to_num(v, 0.5), v.exp()


PROGRAMS: dict[str, tuple[Any, torch.Tensor]] = {
    "a view that is read before a write": (_stale, Z),
    "a view beside its conjugate": (lambda x: (v := x[:1].squeeze(0), v.conj().resolve_conj()), Z),
    "a view of a sum": (_of_a_sum, Z),
    "a view of complex": (lambda x: (v := torch.complex(x, x), v[1]), X),
    "a view of polar": (lambda x: (v := torch.polar(x, x), v[..., ::2]), X),
    "a view of a difference": (lambda x: (v := torch.diff(x, dim=1), v[..., ::2]), Z),
    "a part of a sum": (lambda x: (x + x)[1:], Z),
    "strides after a write": (_of_a_write, torch.cat([Z, Z], -1)[:, ::2]),
    "a part of the largest": (lambda x: torch.topk(x, 2, dim=-2)[0].narrow(-2, 1, 1), X),
    "a half of the largest": (lambda x: torch.topk(x, 2, dim=-2)[0].chunk(2, -1)[-1], X),
    "windows of the largest": (lambda x: (v := torch.topk(x, 2, dim=0)[0], v.unfold(1, 2, 2)), X),
    "windows of an order": (lambda x: (v := torch.argsort(x, dim=0, stable=True), v.unfold(-2, 1, 2)), X),
    "a view of a sort": (lambda x: (v := torch.sort(x, dim=0, stable=True)[0], v.t()[1:]), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, x = PROGRAMS[name]
    mine, theirs = _copy(x), _copy(x)
    got, expected = lampwork.compile(function)(mine), function(theirs)
    if not isinstance(got, tuple):
        got, expected = (got,), (expected,)
    assert _places([*got, mine]) == _places([*expected, theirs])
    torch.testing.assert_close([*got, mine], [*expected, theirs])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.conj(),
        torch.view_as_real,
        lambda x: x.conj().imag,
        lambda x: x.view(torch.float32),
        lambda x: (x + x).conj(),
        lambda x: torch.view_as_real(x + x),
    ],
)
def test_strides_over_other_elements(view: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return view(x).as_strided((2,), (1,)) * 3

    torch.testing.assert_close(lampwork.compile(function)(Z), function(Z))
