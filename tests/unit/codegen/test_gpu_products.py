"""Our own matrix products on tensor cores: the very code, on the simulated card, against float64."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from product_cases import EPILOGUES, ORDERS, ProductCase, matrix, product, random_case
from simulated import MODEL, ForbiddenError, library
from simulated_products import check_product

from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.strips import STRIPS, Strip
from lampwork.codegen.gpu.mma.tiles import Tile, tiles
from lampwork.codegen.gpu.mma.warpgroups import Groups
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.products import ProductCode, ProductSource
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Gemm

SOURCE: ProductSource = TensorCores()
# What this CPU has no instructions for is as on older cards.
CARD = replace(describe(80, 4), tf32=True, has_bf16c=False, has_maximum=False, exp2=MODEL.exp2)
SMALL = {"bf16": "mma 32x32x32 stages 3 warps 2x1x1", "f32": "mma 32x32x16 stages 3 warps 2x1x1"}


def small(dtype: str) -> str:
    return SMALL.get(dtype, SMALL["bf16"])


def code_of(gemm: Gemm, variant: str) -> ProductCode:
    return SOURCE.compile(gemm, CARD, variant, "lw_product")


def check(case: ProductCase, variant: str, aligned: Sequence[bool] = (True, False), seed: int = 0) -> None:
    code = code_of(case.gemm, variant)
    for each in aligned:
        check_product(case, code, aligned=each, seed=seed)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_products(dtype: str, orders: str, epilogue: str) -> None:
    """Edges in all directions, in rows of 16 bytes."""
    gemm = product(dtype, 40, 56, 72, orders=orders, epilogue=epilogue)
    check(ProductCase(gemm, epilogue), small(dtype))


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 17, 5), (33, 31, 35), (1, 64, 100), (64, 1, 33)])
def test_odd_sizes(shape: tuple[int, int, int], orders: str) -> None:
    check(ProductCase(product("bf16", *shape, orders=orders, epilogue="bias"), "bias"), small("bf16"))


@pytest.mark.parametrize("variant", [tile.name for tile in tiles("bf16", CARD)])
def test_every_tile(variant: str) -> None:
    check(ProductCase(product("bf16", 144, 136, 136, orders="nt")), variant, aligned=(True,))


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "24"))))
def test_products_fuzz(seed: int) -> None:
    case = random_case(seed)
    small_ones = [tile for tile in tiles(case.gemm.a.dtype, CARD) if tile.m * tile.n <= 8192]
    check(case, random.Random(seed).choice(small_ones).name, seed=seed)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("orders", ORDERS)
def test_open_sizes(dtype: str, orders: str) -> None:
    """One kernel for all sizes, of which some are aligned and some are not."""
    names = ("s0", "s1", "s2", "s3")
    m, n, k, batch = map(Index.sym, names)
    gemm = product(dtype, m, n, k, batch=(batch,), orders=orders, epilogue="residual")
    for sizes in ((40, 48, 64, 2), (33, 35, 37, 1), (8, 8, 8, 3)):
        named = dict(zip(names, sizes, strict=True))
        check(ProductCase(gemm, "residual", named), small(dtype))


def test_a_batch_shares_what_has_no_batch() -> None:
    gemm = product("bf16", 24, 40, 48, batch=(2, 3), orders="nt", shared=True)
    check(ProductCase(gemm), small("bf16"))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_results_in_any_order(dtype: str) -> None:
    """Transposed, and split into heads, of whole vectors or not."""
    m, n = Index.var("m"), Index.var("n")
    plain, few = (product(dtype, rows, 48, 40, orders="nt", epilogue="bias") for rows in (24, 2))
    turned = matrix("out", dtype, (24, 48), "t")
    check(ProductCase(replace(plain, out=turned), "bias"), small(dtype))
    for size in (16, 12, 3):
        heads = (n // size, m, n % size)
        for gemm, rows, variant in ((plain, 24, small(dtype)), (few, 2, STRIPS[0].name)):
            out = matrix("out", dtype, (48 // size, rows, size))
            case = ProductCase(replace(gemm, out=out, index=heads), "bias", heads=size, exact=rows == 2)
            check(case, variant)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_in_any_order(seed: int) -> None:
    """More rows of tiles than are next to each other in the order of blocks."""
    gemm = product("bf16", 16 * 19, 48, 32, orders="nt")
    check(ProductCase(gemm), "mma 16x16x32 stages 2 warps 1x1x1", aligned=(True,), seed=seed)


def test_numbers_that_are_not_finite() -> None:
    """A NaN and infinities stay in the rows and columns that they are in."""
    for dtype in ("bf16", "f16", "f32"):
        case = ProductCase(product(dtype, 24, 24, 40, orders="nt"))
        given = case.inputs()
        given["a"][3, 5], given["a"][7, 9], given["b"][2, 11] = np.nan, np.inf, -np.inf
        case.inputs = lambda given=given: given  # type: ignore[method-assign]
        check(case, small(dtype))


# --- few rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("strip", [each.name for each in STRIPS])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_strips(dtype: str, strip: str, rows: int) -> None:
    """Rows that whole turns divide and others, and columns past the last strip."""
    for n, k, epilogue in ((37, 1096, "gelu"), (8, 40, "rows")):
        gemm = product(
            dtype, rows, n, k, batch=(2,) if epilogue == "gelu" else (), orders="nt", epilogue=epilogue
        )
        if Strip.named(strip).columns * rows > 32:
            with pytest.raises(CodegenError):
                code_of(gemm, strip)
            continue
        check(ProductCase(gemm, epilogue, exact=True), strip)


def test_strips_of_open_columns() -> None:
    n, k = Index.sym("s0"), Index.sym("s1")
    gemm = product("f32", 2, n, k, orders="nt", epilogue="bias")
    for sizes in ((13, 77), (16, 1024)):
        check(
            ProductCase(gemm, "bias", dict(zip(("s0", "s1"), sizes, strict=True)), exact=True), STRIPS[0].name
        )


def test_exact_float32_has_strips_alone() -> None:
    exact = replace(CARD, tf32=False)
    assert SOURCE.variants(product("f32", 64, 64, 64), exact) == []
    found = SOURCE.variants(product("f32", 4, 64, 64, orders="nt"), exact)
    assert found and all(Strip.named(name) for name in found)
    with pytest.raises(CodegenError):
        SOURCE.compile(product("f32", 64, 64, 64), exact, small("f32"), "lw_product")
    assert not any(
        Strip.named(name) for name in SOURCE.variants(product("bf16", 4, 64, 64, orders="tn"), CARD)
    )


# --- what would be wrong is found -------------------------------------------------------------------------------------


def without_line(text: str, pattern: str, number: int) -> str:
    """A text without the line of this number among those that a pattern is in."""
    lines = text.splitlines()
    found = [place for place, line in enumerate(lines) if re.search(pattern, line) and "declare" not in line]
    del lines[found[number]]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        (r"barrier\.cta", 0),  # between what was copied and reading it
        (r"barrier\.cta", 1),  # between reading operands and putting sums there
        (r"wait\.group\(i32 1\)", 0),
        (r"wait\.group\(i32 0\)", 0),
        (r"bar\.warp\.sync", 0),
    ],
)
def test_a_missing_wait_is_found(pattern: str, number: int) -> None:
    case = ProductCase(product("bf16", 32, 32, 160, orders="nt"))
    code = code_of(case.gemm, small("bf16"))
    check_product(case, code)
    assert isinstance(code.image, str)
    with pytest.raises(ForbiddenError, match="a race|a copy is on its way|nobody has written"):
        for seed in range(3):
            check_product(case, code, seed=seed, text=without_line(code.image, pattern, number))


def test_too_few_copies_are_waited_for() -> None:
    case = ProductCase(product("bf16", 32, 32, 160, orders="nt"))
    code = code_of(case.gemm, small("bf16"))
    assert isinstance(code.image, str)
    with pytest.raises(ForbiddenError, match="a copy is on its way"):
        check_product(case, code, text=code.image.replace("wait.group(i32 1)", "wait.group(i32 2)", 1))


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("variant", [tile.name for tile in tiles("bf16", CARD)])
def test_no_two_rows_are_in_the_same_banks(variant: str, orders: str) -> None:
    tile = Tile.named(variant)
    case = ProductCase(product("bf16", 16, 16, 2 * tile.k, orders=orders))
    library().card_conflicts()
    check_product(case, code_of(case.gemm, variant))
    assert library().card_conflicts() == 0


# --- what it takes ----------------------------------------------------------------------------------------------------


def test_variants_are_tiles_that_fit() -> None:
    for dtype in ("bf16", "f16", "f32"):
        for card in (describe(80, 108), describe(86, 84), describe(90, 132), describe(120, 170)):
            found = SOURCE.variants(product(dtype, 512, 768, 768), replace(card, tf32=True))
            assert len(found) >= 4
            for name in found:
                if (groups := Groups.named(name)) is not None:
                    assert groups.name == name and dtype != "f32" and card.capability == 90
                    continue
                assert Tile.named(name).name == name and Tile.named(name).is_possible(dtype, card)


def test_the_best_guess_follows_the_shape() -> None:
    card = describe(90, 132)

    def first(*shape: int) -> Tile:
        names = SOURCE.variants(product("bf16", *shape), card)
        return next(Tile.named(name) for name in names if Groups.named(name) is None)

    assert first(4096, 4096, 4096).m * first(4096, 4096, 4096).n >= 128 * 128
    assert first(16, 4096, 4096).m == 16
    assert first(256, 256, 256).m * first(256, 256, 256).n <= 64 * 64


@pytest.mark.parametrize(
    ("gemm", "card"),
    [
        (product("bf16", 64, 64, 64), describe(75, 4)),
        (product("f64", 64, 64, 64), CARD),
        (product("bf16", 64, 64, 0), CARD),
        (replace(product("bf16", 64, 64, 64), depth=(Axis("d", Index.const(64)),)), CARD),
    ],
)
def test_others_are_refused(gemm: Gemm, card) -> None:
    assert SOURCE.variants(gemm, card) == ()
    with pytest.raises(CodegenError):
        SOURCE.compile(gemm, card, small("bf16"), "lw_product")


def test_elements_one_by_one_are_not_worth_it() -> None:
    assert SOURCE.variants(product("bf16", 64, 64, 63, orders="nt"), CARD) == ()
    for dtype, size in (("bf16", 62), ("bf16", 60), ("f32", 63)):
        assert SOURCE.variants(product(dtype, 64, 64, size, orders="nt"), CARD)


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_copies_of_fewer_bytes(dtype: str, orders: str) -> None:
    """Lines of multiples of 8 and of 4 bytes, for which there are narrower copies."""
    for size in (36, 38) if dtype != "f32" else (38, 37):
        code = code_of(product(dtype, size, size, size, orders=orders), small(dtype))
        width = 8 if size in (36, 38) and (dtype == "f32" or size == 36) else 4
        assert f"global.{width}.s(" in code.image and "global.16" not in code.image
        check(ProductCase(product(dtype, size, size, size, orders=orders)), small(dtype))


def test_strips_of_fewer_bytes() -> None:
    for size in (1028, 1030):
        check(ProductCase(product("bf16", 2, 9, size, orders="nt")), STRIPS[0].name)


@pytest.mark.parametrize(
    "name", ["mma", "mma 48x32x32 stages 3 warps 1x1x1", "mma 32x32x32 stages 1 warps 1x1x1"]
)
def test_no_such_tile(name: str) -> None:
    with pytest.raises(CodegenError):
        code_of(product("bf16", 64, 64, 64), name)
