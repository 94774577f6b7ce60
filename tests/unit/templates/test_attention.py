"""The attention template: special values, what it skips, memory, open sizes, shared code; what its definition says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from attention_support import Case, check, compiled, everywhere
from gemm_support import buffer, c, caller, v
from instruction_sets import HERE, INSTRUCTION_SETS
from scalar_target import native_on, target_named

import lampwork
from lampwork.codegen.llvm.templates.attention import emit_attention
from lampwork.codegen.llvm.templates.attention_plan import bounds_of, choose_blocks, few_blocks, supports
from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.nodes import Attention, Axis, Const, Expr, IndexValue, Load, Local, Op
from lampwork.loops.ir.printing import format_definition
from lampwork.loops.ir.verify import verify_definitions

INF, NAN = math.inf, math.nan
HOST = target_named(HERE[-1])
ACC = Local("acc", "f32")
SCORE = Op("mul", (ACC, Const(0.125, "f32")), "f32")
N, M = IndexValue(v("n"), "i64"), IndexValue(v("m"), "i64")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def qkv(rows: int, columns: int, depth: int = 16) -> list[torch.Tensor]:
    return [normal(1, 2, size, depth, seed=seed) for seed, size in enumerate((rows, columns, columns))]


def definition(score: Expr = SCORE, rows: int = 5, columns: int = 7) -> Attention:
    q, k, values = qkv(rows, columns, 8)
    batch = (Axis("b0", c(1)), Axis("b1", c(2)))
    at = (v("b0"), v("b1"))
    return Attention(
        buffer("out", q),
        batch,
        *(Axis(name, c(size)) for name, size in (("m", rows), ("n", columns), ("d", 8), ("e", 8))),
        Load(buffer("q", q), (*at, v("m"), v("d"))),
        Load(buffer("k", k), (*at, v("n"), v("d"))),
        Load(buffer("v", values), (*at, v("n"), v("e"))),
        (*at, v("m"), v("e")),
        score,
    )


# --- special values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_rows_without_an_open_place_are_zero(isa: str, rows: int) -> None:
    q, k, values = qkv(rows, 50)
    mask = torch.rand(rows, 50) < 0.5
    mask[rows // 2] = False
    check(Case(q, k, values, mask), target_named(isa))
    assert compiled(Case(q, k, values, mask), target_named(isa))[:, :, rows // 2].eq(0).all()
    check(Case(q, k, values, torch.zeros(rows, 50).masked_fill(~mask, -INF)), target_named(isa))


@pytest.mark.parametrize("number", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_special_numbers(isa: str, rows: int, number: float) -> None:
    """As in float64, by the formula. An infinite or nan score makes its row nan; a nan value its column."""
    for place in range(3):
        operands = qkv(rows, 50)
        operands[place][0, 0, operands[place].shape[2] // 2, 3] = number
        result = compiled(Case(*operands), target_named(isa)).double()
        q, k, values = (x.double() for x in operands)
        scores = q @ k.transpose(-1, -2) / 4
        exact = torch.softmax(scores, -1) @ values
        torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_later_keys_are_not_looked_at() -> None:
    """A nan behind a causal mask does not spread: to eager's fused kernel, and to this one, it is not there."""
    q, k, values = qkv(300, 300)
    k[:, :, 200] = NAN
    result = compiled(Case(q, k, values, is_causal=True), HOST)
    assert not result[:, :, :200].isnan().any()
    assert result[:, :, 200:].isnan().all()


def test_long_rows_of_equal_scores() -> None:
    """Sums over many blocks of keys stay exact enough: the mean of the values."""
    q, k, values = torch.zeros(1, 1, 70, 16), normal(1, 1, 5000, 16), normal(1, 1, 5000, 16, seed=1)
    result = compiled(Case(q, k, values), HOST)
    torch.testing.assert_close(
        result.double(), values.double().mean(2, keepdim=True).expand(1, 1, 70, 16), rtol=1e-5, atol=1e-7
    )


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_memory_is_linear_in_the_length() -> None:
    q, k, values = qkv(3000, 3000)
    with torch.no_grad():
        fn = lampwork.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v) + 1)
        torch.testing.assert_close(
            fn(q, k, values), F.scaled_dot_product_attention(q, k, values) + 1, rtol=1e-4, atol=1e-5
        )
    assert fn.stages.counts["arena bytes"] < 4 * q.nbytes
    assert fn.stages.counts["ATen calls"] == 0


def test_equal_layers_share_code() -> None:
    def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, k, v)
        return q

    with native_on(everywhere(HOST)), torch.no_grad():
        fn = lampwork.compile(layers)
        fn(*qkv(20, 30))
    assert fn.stages.counts["kernel calls"] == 3
    assert fn.stages.counts["distinct functions"] == 1


def test_projections_are_read_and_written_in_place() -> None:
    """Heads are views of a fused projection, and the result goes where the next layer reads it: no copy is made."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(2, 150, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 150, 64)

    x = normal(2, 150, 3 * 64)
    with native_on(everywhere(HOST)), torch.no_grad():
        fn = lampwork.compile(attend)
        torch.testing.assert_close(fn(x), attend(x), rtol=1e-4, atol=1e-5)
    assert fn.stages.counts["kernel calls"] == 1


def test_open_lengths_and_batches_share_one_version() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with torch.no_grad():
        fn = lampwork.compile(attend, dynamic=True)
        for batch, length in ((2, 37), (3, 64), (2, 400), (5, 2), (4, 1000)):
            given = [normal(batch, 2, length, 16, seed=seed) for seed in range(3)]
            torch.testing.assert_close(fn(*given), attend(*given), rtol=1e-4, atol=1e-5)
    assert len(fn.entries) == 1


def test_one_query_of_an_open_number() -> None:
    """The version for any number of queries has a path for one, as decoding after a prompt needs it."""
    with native_on(HOST), torch.no_grad():
        fn = lampwork.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
        for rows, columns in ((9, 9), (7, 16), (30, 31), (2, 500)):
            q, k, values = qkv(rows, columns)
            torch.testing.assert_close(
                fn(q, k, values), F.scaled_dot_product_attention(q, k, values), rtol=1e-4, atol=1e-5
            )
        entries = len(fn.entries)
        assert ".few" in fn.stages.llvm
    assert entries == 2


# --- the definition ---------------------------------------------------------------------------------------------------


def test_what_it_says() -> None:
    causal = Op("where", (Op("le", (N, M), "bool"), SCORE, Const(-INF, "f32")), "f32")
    assert format_definition(definition(causal)) == (
        "out: f32[1, 2, 5, 8] at [b0, b1, m, e] = sum(softmax(score over n < 7) * v[b0, b1, n, e] for n) "
        "for b0 < 1, b1 < 2, m < 5, e < 8\n"
        "    where score = where(i64(n) <= i64(m), acc * 0.125, -inf)\n"
        "    where acc = sum(q[b0, b1, m, d] * k[b0, b1, n, d] for d < 8)"
    )


def test_what_it_must_obey() -> None:
    verify_definitions([definition()])
    with pytest.raises(InvalidLoopsError, match="out: the scores are f64, not f32"):
        verify_definitions([definition(Local("acc", "f64"))])
    with pytest.raises(InvalidLoopsError, match="the loop variable d is not bound"):
        verify_definitions(
            [definition(Op("add", (ACC, Load(definition().q.buffer, definition().q.index)), "f32"))]
        )


def test_the_keys_that_a_row_looks_at() -> None:
    window = Op(
        "and", (Op("le", (N, M), "bool"), Op("gt", (N, IndexValue(v("m") - 4, "i64")), "bool")), "bool"
    )
    found = bounds_of(definition(Op("where", (window, SCORE, Const(-INF, "f32")), "f32")))
    assert str(found.end) == "m + 1" and str(found.begin) == "m - 3"
    added = Op("add", (SCORE, Op("where", (window, Const(0.0, "f32"), Const(-INF, "f32")), "f32")), "f32")
    assert bounds_of(definition(added)).end is None
    assert bounds_of(definition(Op("where", (window, SCORE, Const(-1e9, "f32")), "f32"))).end is None


def test_blocks() -> None:
    few, many = definition(rows=2), definition(rows=500, columns=500)
    assert few_blocks(few, HOST, 2) is not None
    blocks = choose_blocks(many, HOST)
    assert blocks.rows <= HOST.attention_rows and blocks.padded_rows >= blocks.strip
    assert blocks.keys % blocks.score.width == 0
    assert not supports(many, replace(HOST, products=frozenset()))


def test_a_mask_that_is_too_short_is_reported() -> None:
    """A place that is not proven to exist is checked; one behind a condition that proves it is not read."""
    short, many = torch.tensor([0.5, -1.0, 2.0]), Op("lt", (N, Const(3, "i64")), "bool")
    q, k, values = qkv(5, 7, 8)
    for condition, status in ((None, 1), (many, 0)):
        out = torch.full((1, 2, 5, 8), NAN)
        score = Op("add", (SCORE, Load(buffer("s", short), (v("n"),), condition)), "f32")
        code = emit_attention(definition(score), "f", HOST)
        run, _ = caller(code, HOST, {"q": q, "k": k, "v": values, "s": short, "out": out})
        assert run() == status
    exact = F.scaled_dot_product_attention(q, k, values, F.pad(short, (0, 4)).expand(5, 7), scale=0.125)
    torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-5)


def test_which_sizes_it_takes() -> None:
    """Few scores are products around a softmax, causal ones sooner a template; heads that are too large are ATen's."""

    def tiled(
        rows: int, depth: int = 16, dtype: torch.dtype = torch.float32, *, is_causal: bool = False
    ) -> bool:
        given = [normal(1, 2, rows, depth, seed=seed).to(dtype) for seed in range(3)]
        with native_on(HOST), torch.no_grad():
            fn = lampwork.compile(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            )
            fn(*given)
        return "softmax(score" in fn.stages.definitions

    assert not tiled(128) and tiled(128, is_causal=True) and tiled(160)
    assert tiled(1) and tiled(8, dtype=torch.bfloat16)
    assert tiled(160, 512) and not tiled(160, 520) and not tiled(8, 520, torch.bfloat16)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 0.5])
def test_a_scale_that_turns_the_causal_mask_around(scale: float) -> None:
    given = [normal(1, 1, 4, 8, seed=seed) for seed in range(3)]

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    ours = lampwork.compile(fn, options={"strict": True})(*given)
    torch.testing.assert_close(ours, fn(*given), equal_nan=True)
