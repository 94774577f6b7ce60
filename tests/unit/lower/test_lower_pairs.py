"""Complex numbers as pairs of real ones: against eager, on each instruction set, and what stays a call of ATen."""

from __future__ import annotations

import pytest
import torch
from scalar_target import native_on, target_named

import lampwork
from lampwork.graph.record import Recorder
from lampwork.loops.ir.nodes import Extern
from lampwork.lower.lowering import lower_graph

torch.manual_seed(11)


def numbers(*shape, dtype=torch.complex64):
    return torch.randn(*shape, dtype=dtype)


def as_pairs(x):
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def rotate(x, table):
    """Llama's apply_rotary_emb."""
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * table
    return torch.view_as_real(turned).flatten(x.ndim - 1).type_as(x)


TABLE = torch.polar(torch.ones(6, 8), torch.randn(6, 8))[:, None]
Q = torch.randn(2, 6, 3, 16)
Z, W = numbers(5, 7), numbers(5, 7)
X = torch.randn(5, 14)
SPECIAL = torch.tensor([0.0, -0.0, 1.5, float("inf"), -float("inf"), float("nan")])
CORNERS = torch.complex(*torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))

PROGRAMS = {
    "rotary": lambda q, table, z, w, x, corners: rotate(q, table) * 2,
    "rotary alone": lambda q, table, z, w, x, corners: rotate(q, table),
    "rotary of half": lambda q, table, z, w, x, corners: rotate(q.bfloat16(), table),
    "rotary, one token": lambda q, table, z, w, x, corners: rotate(q[:, :1], table[2:3]),
    "rotary, transposed": lambda q, table, z, w, x, corners: rotate(q.transpose(1, 2), table.transpose(0, 1)),
    "rotary, heads first": lambda q, table, z, w, x, corners: rotate(q, table).transpose(1, 2).contiguous(),
    "rotary of two": lambda q, table, z, w, x, corners: (rotate(q, table), rotate(q[:, :, :1] + 1, table)),
    "rotary f64": lambda q, table, z, w, x, corners: rotate(q, table.to(torch.complex128)),
    "product with the conjugate": lambda q, table, z, w, x, corners: (
        torch.view_as_real(as_pairs(x) * as_pairs(x).conj()) + 1
    ),
    "sum": lambda q, table, z, w, x, corners: torch.view_as_real(z + w * z - w.conj()) * 2,
    "result": lambda q, table, z, w, x, corners: (z * w + z, (z - w).conj() * w),
    "complex128": lambda q, table, z, w, x, corners: (
        z.to(torch.complex128) * w.to(torch.complex128) + z
    ).abs(),
    "negative": lambda q, table, z, w, x, corners: torch.view_as_real(-(z * w)),
    "abs": lambda q, table, z, w, x, corners: (z.abs(), (z * w).abs() ** 2),
    "angle": lambda q, table, z, w, x, corners: (z * w).angle(),
    "corners": lambda q, table, z, w, x, corners: (
        corners.abs(),
        corners.angle(),
        torch.view_as_real(corners * corners.flip(0) + corners),
    ),
    "parts": lambda q, table, z, w, x, corners: z.real * z.imag + w.real,
    "parts of a product": lambda q, table, z, w, x, corners: (z * w).real - (z * w).imag,
    "polar": lambda q, table, z, w, x, corners: torch.polar(x.abs(), x),
    "polar of a table": lambda q, table, z, w, x, corners: rotate(
        q, torch.polar(torch.ones(6, 8), torch.arange(48.0).view(6, 8))[:, None]
    ),
    "complex": lambda q, table, z, w, x, corners: torch.complex(x, x + 1) * torch.complex(x, -x),
    "transposed": lambda q, table, z, w, x, corners: torch.view_as_real(z.t() * w.t() + z.t()),
    "views": lambda q, table, z, w, x, corners: (
        torch.view_as_real((z[:, 1:5] * w[:, 2:6])[1].unsqueeze(0).expand(3, 4).reshape(12)) + 1
    ),
    "views to complex": lambda q, table, z, w, x, corners: as_pairs(x)[1:, ::2] * as_pairs(x)[:4, ::2] + 1j,
    "broadcast": lambda q, table, z, w, x, corners: torch.view_as_real(z[:, :1] * w[:1] * w[0]),
    "no dimensions": lambda q, table, z, w, x, corners: torch.view_as_real(z[0, 0] * w[0, 0] + z[1, 1]) * 2,
    "numbers": lambda q, table, z, w, x, corners: torch.view_as_real(z * 2.0 + 1),
    "real operand": lambda q, table, z, w, x, corners: torch.view_as_real(z * x[:, :7]),
    "transform": lambda q, table, z, w, x, corners: torch.fft.rfft(x).abs().square().sum(-1),
    "filter": lambda q, table, z, w, x, corners: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x + 1)),
    "nothing": lambda q, table, z, w, x, corners: torch.view_as_real(z[:0] * w[:0]) + 1,
    "into a product": lambda q, table, z, w, x, corners: torch.view_as_real((z * w + w).t() @ (z * z - w)),
}


INPUTS = (Q, TABLE, Z, W, X, CORNERS)


def run_all(*inputs):
    return [fn(*inputs) for fn in PROGRAMS.values()]


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)]


def check(expected, found):
    for a, b in zip(flat(expected), flat(found), strict=True):
        assert a.stride() == b.stride()
        assert b._base is None or a._base is not None
        torch.testing.assert_close(b, a, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn = PROGRAMS[name]
    compiled = lampwork.compile(fn, options={"strict": True})
    check(fn(*INPUTS), compiled(*INPUTS))
    check(fn(*INPUTS), compiled(*INPUTS))


def test_constants():
    """All that they are made of is bound."""
    check(run_all(*INPUTS), lampwork.compile(lambda: run_all(*INPUTS), options={"strict": True})())


@pytest.mark.parametrize("isa", ["avx2", "sse4", "scalar"])
def test_other_machines(isa):
    with native_on(target_named(isa)):
        check(run_all(*INPUTS), lampwork.compile(run_all, options={"strict": True})(*INPUTS))


def test_results_are_not_overwritten():
    compiled = lampwork.compile(lambda z, w: z * w + z)
    first = compiled(Z, W)
    kept = first.clone()
    compiled(W, W)
    assert torch.equal(first, kept)


def test_conjugated_argument():
    compiled = lampwork.compile(lambda z, w: torch.view_as_real(z * w + z))
    z = Z.conj()
    check(torch.view_as_real(z * W + z), compiled(z, W))


def test_open_sizes():
    compiled = lampwork.compile(rotate, dynamic=True, options={"strict": True})
    for length in (2, 6, 5):
        check(rotate(Q[:, :length], TABLE[:length]), compiled(Q[:, :length], TABLE[:length]))


def calls(fn, *inputs):
    with Recorder() as rec:
        result = fn(*[rec.input(tensor, f"x{n}") for n, tensor in enumerate(inputs)])
    recorded = rec.finish([result])
    return [each.target for each in lower_graph(recorded.graph).definitions if isinstance(each, Extern)]


def test_rotary_calls_no_arithmetic():
    assert calls(rotate, Q, TABLE) == ["lampwork::as_real.default"]


def test_a_product_alone_is_atens():
    assert calls(lambda z, w: z * w, Z, W) == ["aten::mul.Tensor"]
