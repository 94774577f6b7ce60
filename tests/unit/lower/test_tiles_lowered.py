"""Operators whose products are made of (emulated) tiles: results, and nothing beside their buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from children import failure
from emulated_tiles import emulated, has_emulation
from guarded_memory import run
from lower_harness import record

from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.generator import LlvmGenerator
from lampwork.codegen.llvm.isa import amx
from lampwork.codegen.llvm.isa.x86 import host_flags, host_isa
from lampwork.codegen.llvm.templates import compile as templates
from lampwork.codegen.target import Target
from lampwork.runtime.program import Program

Case = tuple[str, Callable[..., torch.Tensor], list[torch.Tensor], list[torch.Tensor]]

HAS_AMX = host_flags() >= amx.FLAGS and not amx.refusal()
TARGETS = [
    pytest.param("emulated", marks=pytest.mark.skipif(not has_emulation(), reason="no AVX512-BF16 here")),
    pytest.param("amx", marks=pytest.mark.skipif(not HAS_AMX, reason="no AMX here")),
]


def target_named(name: str) -> Target:
    return emulated() if name == "emulated" else host_isa("amx")


def products() -> list[Case]:
    table: list[Case] = []
    for m, n, k in ((8, 1, 16), (15, 17, 33), (16, 31, 64), (17, 32, 65), (33, 33, 100), (50, 70, 129)):
        x, w, b = (torch.randn(*shape).bfloat16() for shape in ((m, k), (n, k), (n,)))
        heads = torch.randn(2, m, 2, 32).bfloat16()
        left, right = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((m + 1, k), (k, n)))
        table += [
            (f"linear {m} {n} {k}", lambda x, w, b: F.gelu(F.linear(x, w, b)), [x], [w, b]),
            (f"product of inputs {m} {n} {k}", lambda x, w: x @ w.T, [x, w], []),
            (f"transposed {m} {n} {k}", lambda x, w: F.relu(w @ x.T)[:, 1:], [x], [w.repeat(8, 1)]),
            (f"rows {m} {n} {k}", lambda x, w: F.linear(x.repeat(3, 1, 1)[:, 1:], w), [x], [w]),
            (
                f"scores {m}",
                lambda x: (x.transpose(1, 2) @ x.permute(0, 2, 3, 1)).float(),
                [heads],
                [],
            ),
            (
                f"merged {m}",
                lambda x, w: F.linear(x.transpose(1, 2).reshape(2, -1, 64), w),
                [torch.randn(2, 2, m, 32).bfloat16()],
                [torch.randn(n, 64).bfloat16()],
            ),
            (f"bytes {m} {n} {k}", torch._int_mm, [left.repeat(2, 1)], [right.repeat(1, 8)]),
        ]
    return table


def convolutions() -> list[Case]:
    table: list[Case] = []
    for n in (1, 8, 15, 16, 17, 33, 64):
        x = torch.randn(2, n, 7, 5).bfloat16().to(memory_format=torch.channels_last)
        w = (torch.randn(n + 1, n, 3, 3) / 8).bfloat16()
        wide = torch.randn(1, n, 17, 23).bfloat16().to(memory_format=torch.channels_last)
        table += [
            (f"3 x 3 of {n}", lambda x, w: F.relu(F.conv2d(x, w, padding=1)), [x], [w]),
            (f"many pixels of {n}", lambda x, w: F.conv2d(x, w, padding=(1, 0)), [wide], [w]),
            (f"strided of {n}", lambda x, w: F.conv2d(x, w, None, 2, (3, 0), (2, 1)), [x], [w]),
            (f"pixels of {n}", lambda x, w: F.conv2d(x, w[:, :, 1:2, :1], w[:, 0, 0, 0]), [x], [w]),
            (f"strided pixels of {n}", lambda x, w: F.conv2d(x, w[:, :, 1:2, :1], None, 2), [wide], [w]),
            (f"few channels by {n}", lambda x, w: F.conv2d(x[:, :3], w, None, 2, 3), [wide.repeat(1, 3, 1, 1)],
             [w[:, :1].repeat(1, 3, 1, 1)]),
        ]  # fmt: skip
    x = torch.randn(1, 32, 9, 9).bfloat16().to(memory_format=torch.channels_last)
    groups = (torch.randn(40, 16, 3, 3) / 8).bfloat16()
    table.append(("groups", lambda x, w: F.conv2d(x, w, padding=1, groups=2), [x], [groups]))
    volume = torch.randn(1, 16, 4, 5, 6).bfloat16().to(memory_format=torch.channels_last_3d)
    cube = (torch.randn(20, 16, 3, 3, 3) / 16).bfloat16()
    table.append(("volumes", lambda x, w: F.conv3d(x, w, padding=1), [volume], [cube]))
    return table


def check(case: Case, name: str, *, front: bool) -> None:
    _, fn, inputs, bound = case
    wanted = fn(*[each.double() if each.is_floating_point() else each for each in (*inputs, *bound)])
    recorded = record(fn, inputs, bound)
    program = compile_program(recorded.graph, recorded.mutations, target_named(name), Artifacts())
    assert isinstance(program, Program)
    (got,) = run(program, inputs, [each.tensor for each in recorded.bound], front=front)
    scale = max(1.0, wanted.abs().max().item()) * 2**-7
    torch.testing.assert_close(got.double(), wanted.double(), rtol=2**-7, atol=scale)


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("table", [products, convolutions])
def test_right_and_nothing_beside_buffers(table: Callable[[], list[Case]], name: str, front: bool) -> None:
    torch.manual_seed(0)
    jobs = [(case[0], partial(check, case, name, front=front)) for case in table()]
    assert not failure(jobs)


@pytest.mark.skipif(not has_emulation(), reason="no AVX512-BF16 here")
def test_these_are_made_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above are about."""
    made: list[str] = []

    def noting(how: str, emit: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **kwargs: (made.append(how), emit(*args, **kwargs))[1]

    for how in ("emit_tiles", "emit_conv_tiles", "emit_gemm", "emit_conv"):
        monkeypatch.setattr(templates, how, noting(how, getattr(templates, how)))
    fresh = LlvmGenerator(emulated())  # which has compiled nothing yet
    target = replace(emulated(), generate=lambda _: fresh)
    for case in (*products()[7:14], *convolutions()[-8:]):
        recorded = record(case[1], case[2], case[3])
        compile_program(recorded.graph, recorded.mutations, target, Artifacts())
    assert made.count("emit_tiles") == 7 and made.count("emit_conv_tiles") >= 2
    assert set(made) == {"emit_tiles", "emit_conv_tiles"}
