"""Generated code touches nothing beside its buffers: operators and networks run between pages without access.

Each group of programs runs in a child of its own, so that a wrong access is a failure and not the end of the tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from children import failure
from guarded_memory import KernelFailed, guarded, run
from instruction_sets import HERE, INSTRUCTION_SETS
from lower_harness import record
from test_lower_nn import INDEXING, INDICES, POOLS, PRODUCTS, REARRANGED, REDUCTIONS, X
from test_lower_views import VIEWS

from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.runtime.program import Program

SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65, 100]
Case = tuple[str, Callable[..., Any], Sequence[torch.Tensor], Sequence[torch.Tensor]]


def compiled(case: Case, isa: str) -> tuple[Program, list[torch.Tensor]]:
    """The program, and all of its bound tensors: literals of the function, too."""
    _, fn, inputs, bound = case
    recorded = record(fn, inputs, bound)
    target = replace(host_isa(isa), winograd=(2, 4))
    program = compile_program(recorded.graph, recorded.mutations, target, Artifacts())
    assert isinstance(program, Program)
    return program, [each.tensor for each in recorded.bound]


def check(case: Case, isa: str, *, front: bool) -> None:
    _, fn, inputs, bound = case
    expected = fn(*inputs, *bound)
    flat = list(expected) if isinstance(expected, tuple | list) else [expected]
    program, literals = compiled(case, isa)
    for got, wanted in zip(run(program, inputs, literals, front=front), flat, strict=False):
        near = 1e-3 if wanted.dtype.itemsize != 2 else 2e-2
        torch.testing.assert_close(got, wanted, rtol=near, atol=near, equal_nan=True, check_stride=False)


def samples() -> list[Case]:
    table: list[Case] = [(name, fn, [X], []) for name, fn in {**REDUCTIONS, **POOLS, **REARRANGED}.items()]
    table += [(name, fn, [X, INDICES], []) for name, fn in INDEXING.items()]
    table += [(name, fn, inputs, []) for name, (fn, *inputs) in PRODUCTS.items()]
    table += [(name, partial(_doubled, fn), [torch.randn(2, 3, 4, 5)], []) for name, fn in VIEWS.items()]
    return table


def _doubled(view: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    made = view(x + 1)
    return [part * 2 for part in made] if isinstance(made, tuple | list) else made * 2


def networks() -> list[Case]:
    """Rows, products and gathers of every awkward size, for tails and panels."""
    table: list[Case] = []
    for m, n, k in ((16, 96, 17), (33, 100, 40), (40, 131, 193)):
        x, w, b = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
        table.append((f"{m} rows of {k} in lanes", lambda x, w, b: F.gelu(F.linear(x, w, b)), [x], [w, b]))
    for n in SIZES:
        x, w, b = torch.randn(3, n), torch.randn(n, n), torch.randn(n)
        ids = torch.randint(0, n, (5,))
        table += [
            (f"linear {n}", F.linear, [x], [w, b]),
            (f"linear of inputs {n}", lambda x, w, b: F.gelu(F.linear(x, w, b)), [x, w, b], []),
            (f"many rows {n}", lambda x, w: x.repeat(7, 1) @ w, [x], [w]),
            (f"columns {n}", lambda x, w: (x @ w)[:, 0], [x, w], []),
            (f"norm {n}", lambda x, w, b: F.layer_norm(x, x.shape[-1:], b, b) + 1, [x, w, b], []),
            (f"softmax {n}", lambda x: x.softmax(-1), [x], []),
            (f"softmax in half {n}", lambda x: (x.softmax(-1) / 16).to(torch.bfloat16), [x], []),
            (f"rows of a table {n}", lambda i, w: F.embedding(i, w) * 2, [ids], [w]),
            (f"half {n}", lambda x: (x.half() * 2).to(torch.bfloat16) + 1, [x], []),
            (f"bytes {n}", lambda x: (x > 0, (x * 3).to(torch.uint8) + 1), [x.abs()], []),
            (f"backwards {n}", lambda x: x.flip(1) + x[:, ::2].sum(), [x], []),
            (
                f"attention {n}",
                lambda x: F.scaled_dot_product_attention(x, x, x),
                [torch.randn(1, 2, n, 8)],
                [],
            ),
        ]
    return table


def attentions() -> list[Case]:
    """Lengths and heads of every awkward size, in blocks."""
    table: list[Case] = []
    for n in SIZES:
        heads = [(torch.randn(1, 2, size, 8) / 16).bfloat16() for size in (n, n + 3, n + 3)]
        wide = [*((torch.randn(2, size, n + 1) / 16).half() for size in (5, 33)), torch.rand(5, 33) < 0.5]
        words = [x.bfloat16() for x in wide[:2]]
        panels = [torch.randn(1, 2, n + 32, 64) for _ in range(3)]
        cache = [torch.randn(2, size, n) for size in (1, 40, 40)]
        pieces = [torch.randn(1, size, n) for size in (1, 2048 + n, 2048 + n)]
        table += [
            (f"words of {n}", lambda q, k: F.scaled_dot_product_attention(q, k, k[..., :-1]), words, []),
            (f"panels of {n}", F.scaled_dot_product_attention, panels, []),
            (
                f"lengths of {n}",
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                heads,
                [],
            ),
            (f"heads of {n}", lambda q, k, m: F.scaled_dot_product_attention(q, k, k[..., :-1], m), wide, []),
            (f"one query {n}", F.scaled_dot_product_attention, cache, []),
            (f"one query in pieces {n}", F.scaled_dot_product_attention, pieces, []),
        ]
    return table


def convolutions() -> list[Case]:
    """Channels and pixels of every awkward number, with and without padding, which is never read."""

    def many(n: int) -> torch.Tensor:
        return torch.randn(2, n, n % 7 + 12, 16).to(memory_format=torch.channels_last)

    table: list[Case] = []
    for n in [*SIZES, 32, 48]:
        x = torch.randn(2, n, 7, 5).to(memory_format=torch.channels_last)
        images = torch.randn(9, n, 3, 4).to(memory_format=torch.channels_last)
        line, w = torch.randn(1, 3, 9, n + 4), torch.randn(n, n, 3, 3) / 8
        line = line.to(memory_format=torch.channels_last)
        table += [
            (f"3 x 3 of {n}", lambda x, w: F.relu(F.conv2d(x, w, padding=1)), [x], [w]),
            (f"many pixels of {n}", lambda x, w: F.relu(F.conv2d(x, w, padding=(1, 0))), [many(n)], [w]),
            (f"images of {n}", lambda x, w: F.conv2d(x, w, None, 1, (2, 1)), [images], [w]),
            (f"strided of {n}", lambda x, w: F.conv2d(x, w, None, 2, (3, 0), (2, 1)), [x], [w]),
            (
                f"pixels of {n}",
                lambda x, w: F.conv2d(x, w[:, :, 1:2, :1], w[0, 0, 0, 0].expand(len(w))),
                [x],
                [w],
            ),
            (
                f"few channels by {n}",
                lambda x, w: F.silu(F.conv2d(x, w, padding=1)),
                [line],
                [w[:, :1].repeat(1, 3, 1, 1)],
            ),
            (
                f"transposed of {n}",
                lambda x, w: F.relu(F.conv_transpose2d(x, w, None, 2, 1, 1)),
                [x],
                [w],
            ),
            (
                f"depthwise of {n}",
                lambda x, w: F.relu(F.conv2d(x, w, None, 1, 1, groups=len(w))),
                [x],
                [w[:, :1]],
            ),
            (
                f"depthwise and strided of {n}",
                lambda x, w: F.silu(F.conv2d(x, w, None, 2, (3, 0), (2, 1), len(w))),
                [x],
                [w[:, :1]],
            ),
        ]
    return table


def half_convolutions() -> list[Case]:
    """Of both half types: words of two channels, and channels that are widened."""
    table: list[Case] = []
    for n, dtype in ((n, dtype) for n in (1, 8, 17) for dtype in (torch.bfloat16, torch.float16)):
        x = torch.randn(2, n, 7, 5, dtype=dtype).to(memory_format=torch.channels_last)
        w = torch.randn(n + 1, n, 3, 3, dtype=dtype) / 8
        table += [
            (f"3 x 3 of {n}", lambda x, w: F.relu(F.conv2d(x, w, padding=1)), [x], [w]),
            (f"strided of {n}", lambda x, w: F.conv2d(x, w, None, 2, (3, 0), (2, 1)), [x], [w]),
            (f"pixels of {n}", lambda x, w: F.conv2d(x, w[:, :, 1:2, :1], w[:, 0, 0, 0]), [x], [w]),
        ]
    return table


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("table", [samples, networks, attentions, convolutions, half_convolutions])
def test_nothing_beside_buffers(table: Callable[[], list[Case]], isa: str, front: bool) -> None:
    jobs = [(case[0], partial(check, case, isa, front=front)) for case in table()]
    assert not failure(jobs)


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
def test_the_pages_guard(front: bool) -> None:
    """Reading one element too far ends the process."""
    x = guarded((5,), (1,), torch.float32, front=front)
    place = x.data_ptr() - 4 if front else x.data_ptr() + 20
    assert "signal 11" in failure([("beside", lambda: ctypes.string_at(place, 4) and None)])
    assert not failure([("inside", lambda: ctypes.string_at(x.data_ptr(), 20) and None)])


def test_a_bad_index_is_reported() -> None:
    ids, table = torch.tensor([2, 9]), torch.randn(3, 4)
    case: Case = ("embedding", F.embedding, [torch.tensor([0, 1])], [table])
    with pytest.raises(KernelFailed):
        run(compiled(case, HERE[-1])[0], [ids], [table], front=False)
