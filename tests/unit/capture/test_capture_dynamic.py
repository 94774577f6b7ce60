"""Sizes and ints that differ from call to call: how many regions there are, what they rest on, what they compute."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from capture_reference import Reference, same

import lampwork
from lampwork.capture.state.dynamic import Dynamic, mark_dynamic


def regions_of(
    fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], mode: bool | None = None
) -> Reference:
    """Run all calls eager and captured, and compare."""
    compiled = Reference(fn)
    compiled.options.dynamic = Dynamic(mode)
    for args in calls:
        same(compiled(*args), fn(*args))
    return compiled


def conditions(compiled: Reference) -> list[list[str]]:
    return [[str(condition) for condition in region.conditions] for region in compiled.regions]


def batches(*sizes: int) -> list[tuple[Any, ...]]:
    return [(torch.randn(size, 3, 4),) for size in sizes]


def test_the_second_number_makes_a_symbol() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x**2
        if n >= 0:
            return (n + 1) * y
        return y / n

    x = torch.randn(200)
    compiled = Reference(fn)
    counts: list[int] = []
    for n in (2, 3, 6, -3, -7, 2, 9):
        same(compiled(x, n), fn(x, n))
        counts.append(len(compiled.regions))
    assert counts == [1, 2, 2, 3, 3, 3, 3]
    # Of n = -3 the symbol is 3: symbols are positive.
    assert conditions(compiled) == [
        [],
        ["s0 >= 0", "s0 + 1 fits int64"],
        ["s0 >= 1", "-s0 fits int64"],
    ]


def test_the_second_size_makes_a_symbol() -> None:
    compiled = regions_of(
        lambda x: (x.view(x.shape[0], -1).mean(1), x.shape, x.shape[0] * 2), batches(2, 5, 7, 9)
    )
    assert len(compiled.regions) == 2
    assert len(regions_of(lambda x: x + 1, batches(4, 1, 3, 5)).regions) == 3  # 1 is special


def test_dynamic_false_never_and_true_at_once() -> None:
    assert len(regions_of(lambda x: x.sum(0), batches(2, 3, 4), False).regions) == 3
    assert len(regions_of(lambda x: x.sum(0), batches(2, 3, 4), True).regions) == 1


def _attention(x: torch.Tensor) -> Any:
    b, t, _ = x.size()
    mask = torch.tril(torch.ones(t, t)).view(1, t, t)
    scores = (x @ x.transpose(1, 2)).masked_fill(mask == 0, -1e9).softmax(-1)
    return (
        scores @ x,
        torch.zeros(b, t),
        torch.arange(t),
        x[:, : t // 2],
        x.new_zeros(b),
        int(t) + 1,
        x.numel(),
    )


def test_two_sizes_of_one_tensor() -> None:
    calls = [(torch.randn(b, t, 4),) for b, t in ((2, 3), (5, 7), (7, 5), (6, 6), (2, 9))]
    assert len(regions_of(_attention, calls).regions) == 2


def test_types_and_questions_answer_as_for_an_int() -> None:
    def fn(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x + 1, isinstance(n, int), type(n) is int, isinstance(n, torch.SymInt), callable(n)

    assert len(regions_of(fn, batches(2, 5, 7)).regions) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1, f"{x.shape[0]:03d} {x.shape} {x.size(0)!r}"),
        lambda x: (x + 1, "%d %s" % (x.shape[0], x.shape), "{:>4}".format(x.shape[0])),
        lambda x: (x + 1, {x.shape[0]: 1}, {x.shape[0]}),
        lambda x: (x + 1, divmod(x.shape[0], 2), x.shape[0] / 2, math.sqrt(x.shape[0]), 2 ** -x.shape[0]),
        lambda x: (x + 1, [x * i for i in range(x.shape[0])]),
        lambda x: (x + 1, x.shape[0].bit_length(), list("abcdefghij")[x.shape[0]], "ab" * x.shape[0]),
        lambda x: (x + 1, str(x.shape[0]), repr([x.shape[0]]), hash(x.shape[0]), x.shape[0] & 3),
        lambda x: (x + 1, torch.tensor(x.shape[0]), torch.tensor([x.shape[0], 1])),
    ],
)
def test_what_needs_the_number_gets_it(fn: Callable[..., Any]) -> None:
    regions_of(fn, batches(2, 5, 7, 5, 2))


def test_two_arguments_and_their_comparison() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, y]).sum(0), x.shape == y.shape, min(x.shape[0], y.shape[0]), max(x.shape)

    calls = [(torch.randn(a, 3), torch.randn(b, 3)) for a, b in ((2, 4), (5, 7), (7, 5), (6, 6), (8, 9))]
    assert len(regions_of(fn, calls).regions) == 4


def test_numbers_as_bounds() -> None:
    def fn(x: torch.Tensor, k: int) -> Any:
        return x[:, :k], x[:, -k:], torch.topk(x, k).values, x.new_full((k, 2), k)

    assert len(regions_of(fn, [(torch.randn(4, 20), k) for k in (2, 4, 5, 6, 19)]).regions) == 2


def test_a_counter_on_an_object() -> None:
    class Cache:
        def __init__(self) -> None:
            self.position = 0

    def fn(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.position += x.shape[1]
        return x + cache.position

    compiled, mine, theirs = Reference(fn), Cache(), Cache()
    for size in (2, 3, 5, 4, 9, 8):
        x = torch.randn(2, size)
        same(compiled(x, mine), fn(x, theirs))
        assert mine.position == theirs.position and type(mine.position) is int
    assert len(compiled.regions) == 2


def test_sizes_across_a_graph_break() -> None:
    def fn(x: torch.Tensor) -> Any:
        shape, n = x.shape, x.shape[0]
        print(n)
        return (x * n).view(shape), shape

    compiled = regions_of(fn, batches(2, 5, 7, 6))
    assert len(compiled.regions) == 2
    assert [len(child.regions) for child in compiled.children.values()] == [2]


def test_marks_leave_sizes_open_from_the_first_call() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1) * x.shape[1]

    calls = [(torch.randn(2, size),) for size in (8, 9, 30, 40)]
    for (x,) in calls:
        mark_dynamic(x, 1, min=4, max=32) if x.shape[1] <= 32 else None
    compiled = regions_of(fn, calls)
    assert conditions(compiled)[0] == ["s0 >= 4", "s0 <= 32", "s1 == s0"]
    assert len(compiled.regions) == 2


def test_marks_are_checked() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(IndexError, match="dimension 2 of a tensor with 2 dimensions"):
        mark_dynamic(x, 2)
    with pytest.raises(ValueError, match=r"dimension 1 has size 8, outside of \[9, None\]"):
        mark_dynamic(x, 1, min=9)


def test_transposed_and_sliced_inputs_keep_their_strides() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x.contiguous(), x + 1, x.is_contiguous(), x.stride(0)

    calls = [(torch.randn(3, size).t(),) for size in (4, 6, 8)]
    calls += [(torch.randn(size, 7)[:, :3],) for size in (4, 6, 8)]
    assert len(regions_of(fn, calls).regions) == 3


@pytest.mark.parametrize(
    ("fn", "regions"),
    [
        (lambda x, s: x * s + 1, 2),
        (lambda x, s: ((x * (s * 2 - 1)).softmax(-1) / math.sqrt(s), isinstance(s, float), type(s)), 2),
        (lambda x, s: (x.long() * s, x.half() * s, x.double() * s, (x > 0) * s), 2),
        (lambda x, s: x * s if s > 1 else x - s, 5),
        (lambda x, s: (x * s, s, f"{s:.3f}", s * 2, round(s, 1)), 5),
    ],
)
def test_floats(fn: Callable[..., Any], regions: int) -> None:
    x = torch.randn(5, 6)
    compiled = regions_of(fn, [(x, value) for value in (0.5, 0.7, 1.5, 2.25, 1e-3)])
    assert len(compiled.regions) == regions


def test_floats_made_of_sizes() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x.sum(1) * (1.0 / x.shape[1]) + x.shape[0] / 2, x.shape[1] ** -0.5 * x, float(x.shape[0]) * x

    calls = [(torch.randn(n, m),) for n, m in ((2, 3), (4, 5), (7, 6), (8, 9))]
    assert len(regions_of(fn, calls).regions) == 2


def test_arithmetic_that_fails_for_some_numbers_raises_there() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (1 / n)

    compiled = regions_of(fn, [(torch.ones(3), n) for n in (2, 3, 4)])
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(3), 0)


def test_numbers_of_many_steps_are_fixed() -> None:
    """Simplifying what divides a quotient time and again, or evaluating what uses its past twice, has no end."""

    def collatz(k: int, x: torch.Tensor) -> torch.Tensor:
        while k != 1:
            k = k // 2 if k % 2 == 0 else 3 * k + 1
            x = x + k
        return x

    def schedule(s: float, x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            s = s * 0.9 + 1 / (s + 1)
        return x * s

    x = torch.zeros(2)
    assert len(regions_of(collatz, [(6, x), (7, x), (27, x), (27, x)]).regions) == 3
    assert len(regions_of(schedule, [(1.0, x), (2.0, x), (3.0, x), (3.0, x)]).regions) == 3


def test_of_python_data_symbolic_numbers_are_whole() -> None:
    """torch reads 32 bits of a symbolic number there. A number alone is left open, a list of them is not."""
    sizes = batches(3, 4, 50_000, 7)
    assert len(regions_of(lambda x: torch.tensor(x.shape[0] * 1_000_000), sizes).regions) == 2
    regions_of(lambda x: torch.tensor([x.numel() ** 2, 1]), sizes)
    regions_of(lambda x: x.new_tensor(x.shape[0] * 2**33), sizes)
    regions_of(lambda x: torch.as_tensor(x.shape[0] * 2**33, dtype=torch.float32), sizes)


X2 = torch.ones(2)
NUMBERS = (2, 3, 2**40, 3037000500, 2**62, 2**63 - 1, -(2**63), 2**64, 5, 7)
BEYOND: dict[str, Callable[[int], Any]] = {
    "square": lambda n: X2 * (n * n),
    "successor": lambda n: X2 + (n + 1),
    "negative": lambda n: X2 * (-n),
    "double": lambda n: X2 + n * 2,
    "quotient": lambda n: X2 / (n - 1),
    "shift": lambda n: X2 * (n << 1),
    "cube": lambda n: X2 * pow(n, 3),
    "integers": lambda n: X2.long() * (n * 3),
    "division": lambda n: X2.sum() * (n // 3 * n),
    "result": lambda n: (X2 + 1, n * n + 5),
    "size": lambda n: torch.zeros(n if 0 <= n < 2**20 or n > 2**61 else 2)[:2],
    "size times": lambda n: torch.zeros(3, n).sum() if n > 2**61 else X2,
    "padding": lambda n: torch.nn.functional.pad(X2, (0, n)) if n > 2**60 else X2,
}


@pytest.mark.parametrize("mode", [None, True])
@pytest.mark.parametrize("name", BEYOND)
def test_numbers_beyond_int64(name: str, mode: bool | None) -> None:
    """Compiled code reckons in int64; what does not fit is eager's to compute or to refuse."""
    fn = BEYOND[name]
    compiled = lampwork.compile(fn, dynamic=mode)
    for number in NUMBERS:

        def look(run: Callable[[int], Any], number: int = number) -> Any:
            try:
                return run(number)
            except (OverflowError, RuntimeError, TypeError) as error:
                return type(error), str(error).partition("\n")[0]

        same(look(compiled), look(fn))


def test_numbers_of_numpy_stay_numpys() -> None:
    calls = [
        (torch.ones(2), 2),
        (torch.ones(3), 3),
        (torch.ones(4), np.int8(127)),
        (torch.ones(5), np.float32(1.1)),
    ]
    for fn in (
        lambda x, n: x.shape[0] + n,
        lambda x, n: n * x.shape[0],
        lambda x, n: x.shape[0] // n,
        lambda x, n: x.shape[0] > n,
        lambda x, n: divmod(x.shape[0], n),
        lambda x, n: operator.pow(x.shape[0], n),
    ):
        compiled = lampwork.compile(fn)
        for args in calls:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert repr(compiled(*args)) == repr(fn(*args))
