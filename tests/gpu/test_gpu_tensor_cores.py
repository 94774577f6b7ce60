"""Our own matrix products on the card, launched by the driver itself, against float64: products of random sizes, orders
and epilogues, by tiles and strips of all kinds. What runs on the simulated card runs here too."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from card_products import card, check
from product_cases import ProductCase, product, random_case

import gpu
from lampwork.codegen.gpu.mma.strips import STRIPS
from lampwork.codegen.gpu.mma.tiles import tiles

gpu.require()
if not gpu.ON_GPU:
    pytest.skip("kernels of cards run on cards", allow_module_level=True)

FUZZ = int(os.environ.get("LAMPWORK_FUZZ", "48"))


@pytest.mark.parametrize("seed", range(FUZZ))
def test_products_fuzz(seed: int) -> None:
    case = random_case(seed, most=300)
    variant = random.Random(seed).choice(tiles(case.gemm.a.dtype, card())).name
    for aligned in (True, False):
        check(case, variant, aligned)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_tile(dtype: str) -> None:
    for number, tile in enumerate(tiles(dtype, card())):
        orders = ("nt", "nn", "tn", "tt")[number % 4]
        check(
            ProductCase(product(dtype, 264, 280, 296, orders=orders, epilogue="bias"), "bias"),
            tile.name,
            True,
        )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_strip(dtype: str) -> None:
    exact = replace(card(), tf32=False)
    for strip in STRIPS:
        for rows in (1, 4):
            gemm = product(dtype, rows, 333, 1096, orders="nt", epilogue="gelu")
            for aligned in (True, False):
                check(ProductCase(gemm, "gelu", exact=True), strip.name, aligned, exact)
