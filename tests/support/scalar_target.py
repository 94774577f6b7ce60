"""A second machine, to hold the compiler to its `Target`: any x86-64, one element at a time.

No vectors, no masks, no FMA, no half conversions. `SCALAR` has no templates, so matrix products are calls of ATen;
`SCALAR_TILES` has those for products, with vectors of one element.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import lampwork
from lampwork.backends.native.compile import NativeBackend
from lampwork.codegen.llvm.generator import llvm_generator
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.target import Target, TileShape
from lampwork.config import Config

SCALAR = Target("scalar", "x86-64", llvm_generator, vector_bytes=0, registers=16)
SCALAR_TILES = replace(
    SCALAR,
    name="scalar tiles",
    products=frozenset(("f32", "f64", "bf16", "f16")),
    tiles=(TileShape(3, 4), TileShape(1, 8, 1.2)),
)


def target_named(name: str) -> Target:
    """An instruction set of this CPU, or "scalar"."""
    return SCALAR_TILES if name == "scalar" else host_isa(name)


@contextmanager
def native_on(target: Target) -> Iterator[None]:
    """Whatever is compiled for the backend "native" inside is compiled for `target`."""

    def given(config: Config) -> Target:
        return target.relaxed() if config.numerics == "fast" else replace(target, contract=False, winograd=())

    lampwork.register_backend(NativeBackend(given))
    try:
        yield
    finally:
        lampwork.register_backend(NativeBackend())
