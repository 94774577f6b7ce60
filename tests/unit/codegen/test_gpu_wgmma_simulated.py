"""Products by warpgroups: the very code, on the simulated card, against float64."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from product_cases import ORDERS, ProductCase, matrix, product
from simulated import MODEL, ForbiddenError
from simulated_products import check_product

from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.tiles import Tile
from lampwork.codegen.gpu.mma.warpgroups import GROUPS, Groups
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.products import ProductCode
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Gemm

SOURCE = TensorCores()
# What this CPU has no instructions for is as on older cards.
CARD = replace(describe(90, 4), has_bf16c=False, has_maximum=False, exp2=MODEL.exp2)
K = 64  # of a turn
ONE, TWO = "mma wgmma 64x64 stages 3", "mma wgmma 128x64 stages 4"


def code_of(gemm: Gemm, variant: str) -> ProductCode:
    return SOURCE.compile(gemm, CARD, variant, "lw_product")


def check(case: ProductCase, variant: str, aligned: tuple[bool, ...] = (True, False), seed: int = 0) -> None:
    code = code_of(case.gemm, variant)
    for each in aligned:
        check_product(case, code, aligned=each, seed=seed)


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize(
    ("variant", "k", "dtype", "epilogue"),
    [(ONE, 200, "bf16", "gelu"), (ONE, 64, "f16", "bias"), (TWO, 328, "bf16", "residual")],
)
def test_products(variant: str, k: int, dtype: str, epilogue: str, orders: str) -> None:
    """Edges in all directions, in rows of 16 bytes, and turns enough to come to the first room again."""
    check(ProductCase(product(dtype, 72, 88, k, orders=orders, epilogue=epilogue), epilogue), variant)


@pytest.mark.parametrize("variant", [groups.name for groups in GROUPS])
@pytest.mark.parametrize("orders", ["nt", "tn"])
def test_every_tile(variant: str, orders: str) -> None:
    groups = Groups.named(variant)
    assert groups is not None
    gemm = product("bf16", groups.m + 8, groups.n, K * (groups.stages + 1), orders=orders, epilogue="bias")
    if 192 in (groups.m, groups.n) and orders == "tn":
        with pytest.raises(CodegenError):
            code_of(gemm, variant)
        return
    check(ProductCase(gemm, "bias"), variant, aligned=(True,))


@pytest.mark.parametrize("epilogue", ["residual", "rows"])
def test_whole_tiles(epilogue: str) -> None:
    """Rows that are loaded together before they are stored."""
    gemm = product("bf16", 128, 128, 128, orders="nt", epilogue=epilogue)
    check(ProductCase(gemm, epilogue), "mma wgmma 64x128 stages 4", aligned=(True,))


@pytest.mark.parametrize("orders", ["nt", "tn"])
def test_open_sizes(orders: str) -> None:
    """One kernel for all sizes, of which some are aligned and some are not."""
    names = ("s0", "s1", "s2", "s3")
    m, n, k, batch = map(Index.sym, names)
    gemm = product("bf16", m, n, k, batch=(batch,), orders=orders, epilogue="residual")
    for sizes in ((72, 80, 136, 2), (65, 35, 67, 1), (8, 8, 8, 2)):
        check(ProductCase(gemm, "residual", dict(zip(names, sizes, strict=True))), ONE, aligned=(True,))


def test_odd_sizes_and_batches() -> None:
    for shape in ((1, 1, 1), (3, 67, 65)):
        check(ProductCase(product("f16", *shape, orders="nn", epilogue="bias"), "bias"), ONE, aligned=(True,))
    batches = product("bf16", 24, 40, 72, batch=(2, 2), orders="tt", shared=True, padding=8)
    check(ProductCase(batches), ONE, aligned=(True,))


def test_results_in_any_order() -> None:
    """Transposed, and split into heads."""
    m, n = Index.var("m"), Index.var("n")
    plain = product("bf16", 24, 48, 40, orders="nt", epilogue="bias")
    check(ProductCase(replace(plain, out=matrix("out", "bf16", (24, 48), "t")), "bias"), ONE, (True,))
    heads = replace(plain, out=matrix("out", "bf16", (3, 24, 16)), index=(n // 16, m, n % 16))
    check(ProductCase(heads, "bias", heads=16), ONE, (True,))


def test_numbers_that_are_not_finite() -> None:
    """A NaN and infinities stay in the rows and columns that they are in."""
    case = ProductCase(product("bf16", 72, 72, 136, orders="nn"))
    given = case.inputs()
    given["a"][3, 5], given["a"][70, 9], given["b"][2, 11] = np.nan, np.inf, -np.inf
    case.inputs = lambda: given  # type: ignore[method-assign]
    check(case, ONE)


# --- what would be wrong is found -------------------------------------------------------------------------------------


def without_line(text: str, pattern: str, number: int) -> str:
    """A text without the line of this number among those that a pattern is in."""
    lines = text.splitlines()
    found = [place for place, line in enumerate(lines) if re.search(pattern, line) and "declare" not in line]
    del lines[found[number]]
    return "\n".join(lines)


CASE = ProductCase(product("bf16", 64, 64, 7 * K, orders="nn"))
WRONG = "a race|a copy is on its way|nobody has written|not shown|products read|not waited for|no fence"


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        (r"barrier\.cta", 0),  # between what was copied and its products
        (r"barrier\.cta", 1),  # between products and putting sums where operands were
        (r"cp\.async\.wait\.group\(i32 0\)", 0),
        (r"cp\.async\.wait\.group\(i32 0\)", 1),
        (r"fence\.proxy", 0),
        (r"\"wgmma\.wait_group\S+ 1", 0),  # between products and the next copies to their place
    ],
)
def test_a_missing_wait_is_found(pattern: str, number: int) -> None:
    code = code_of(CASE.gemm, ONE)
    assert isinstance(code.image, str)
    with pytest.raises(ForbiddenError, match=WRONG):
        for seed in range(4):
            check_product(CASE, code, seed=seed, text=without_line(code.image, pattern, number))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"wgmma.wait_group.sync.aligned 1;"', '"wgmma.wait_group.sync.aligned 2;"'),
        ('"wgmma.wait_group.sync.aligned 0;"', '"wgmma.wait_group.sync.aligned 1;"'),
        ("wgmma.fence.sync.aligned; ", ""),
    ],
)
def test_too_few_products_are_waited_for(right: str, wrong: str) -> None:
    code = code_of(CASE.gemm, ONE)
    assert isinstance(code.image, str) and right in code.image
    with pytest.raises(ForbiddenError, match=WRONG):
        check_product(CASE, code, text=code.image.replace(right, wrong))


@pytest.mark.parametrize(
    ("pattern", "number"), [(r"barrier\.cta", 2), (r"barrier\.cta", 3), (r"fence\.proxy", 1)]
)
def test_a_missing_wait_is_found_among_elements(pattern: str, number: int) -> None:
    code = code_of(CASE.gemm, ONE)
    assert isinstance(code.image, str)
    with pytest.raises(ForbiddenError, match=WRONG):
        for seed in range(4):
            check_product(
                CASE, code, aligned=False, seed=seed, text=without_line(code.image, pattern, number)
            )


# --- what it takes ----------------------------------------------------------------------------------------------------


def groups_of(gemm: Gemm, capability: int) -> list[Groups]:
    names = SOURCE.variants(gemm, describe(capability, 132))
    return [groups for groups in map(Groups.named, names) if groups is not None]


def test_the_best_guess_follows_the_shape() -> None:
    def first(*shape: int) -> Groups:
        return groups_of(product("bf16", *shape, orders="nt"), 90)[0]

    assert first(4096, 4096, 4096).n == 256
    assert first(512, 4096, 4096).m * first(512, 4096, 4096).n <= 128 * 128
    assert not groups_of(product("bf16", 16, 4096, 4096, orders="nt"), 90)


def test_others_are_refused() -> None:
    """Other cards, later ones too; float32; what would be copied in parts of 16 bytes."""
    wide = product("bf16", 512, 512, 512)
    assert groups_of(wide, 90)
    for capability in (80, 89, 100, 120):
        assert not groups_of(wide, capability)
        with pytest.raises(CodegenError, match="wgmma"):
            SOURCE.compile(wide, describe(capability, 132), ONE, "lw_product")
    tf32 = replace(describe(90, 132), tf32=True)
    single = product("f32", 512, 512, 512)
    assert all(Tile.named(name) for name in SOURCE.variants(single, tf32))
    with pytest.raises(CodegenError, match="f32"):
        SOURCE.compile(single, tf32, ONE, "lw_product")
    assert not groups_of(product("bf16", 512, 512, 516, orders="nt"), 90)
    for name in ("mma wgmma 128x512 stages 3", "mma wgmma 96x64 stages 3", "mma wgmma 64x64 stages 2"):
        with pytest.raises(CodegenError):
            code_of(wide, name)
