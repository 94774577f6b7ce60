"""Variants of a target: the same machine, described so that a template takes another tile, block or layout.

A template asks a `Target` for everything that it chooses by, so another choice is another description. A variant is a
few fields with other numbers, named by what it changes ("tile 2x12, sum_block 128"), and names are what definitions
hold and what a tuner keeps. Any variant gives right results, as any target does; a name that does not fit a target is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lampwork.codegen.target import Target, TileShape
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import DType
from lampwork.records import record
from lampwork.standard import functools

_NUMBERS: Mapping[str, range] = {
    "sum_block": range(32, 1025),
    "conv_rows": range(32, 1 << 16),
    "few_rows": range(65),
    "direct_rows": range(1 << 16),
    "unit_rows": range(1, 1 << 16),
    "unit_words": range(64, 4097),
    "attention_rows": range(8, 4097),
    "attention_keys": range(32, 8193),
}
"""The fields of a target that a variant may change, and to what."""


@record
class Shape:
    """What the candidates of a template depend on.

    kind: "gemm", "conv" or "attention". m: rows of A, at the sizes of the call at hand. constant: B is one.
    """

    kind: str
    dtype: DType
    m: int
    n: int
    k: int
    constant: bool


def candidates(shape: Shape, target: Target) -> Iterator[str]:
    """The variants worth a measurement, by the model's own guess first; "" is the model's choice.

    Blocks are not longer than what keeps rounding errors at those of MKL's (`Target.sum_block`), or a third more.
    """
    yield ""
    if shape.kind == "attention":
        for rows, keys in ((384, 192), (192, 384), (768, 384), (384, 768), (96, 192)):
            if (rows, keys) != (target.attention_rows, target.attention_keys):
                yield f"attention_rows {rows}, attention_keys {keys}"
        return
    if shape.kind == "gemm" and shape.constant and shape.m <= target.few_rows:
        yield "few_rows 0"
        return
    if _has_tiles(shape, target):
        yield f"unit_words {target.unit_words * 2}"
        yield f"unit_words {target.unit_words // 2}"
        yield f"unit_rows {_NUMBERS['unit_rows'][-1]}"
        return
    for tile in target.tiles:
        if tile.rows <= 2 * shape.m:
            yield _tile_name(tile)
    if shape.kind == "gemm" and not shape.constant:
        yield f"direct_rows {0 if shape.m <= target.direct_rows else 1 << 15}"


def refinements(best: str, shape: Shape, target: Target) -> Iterator[str]:
    """Once the best of `candidates` is known: what else to try with its tile."""
    if shape.kind == "attention" or _has_tiles(shape, target):
        return
    start = f"{best}, " if best else ""
    if shape.kind == "conv":
        for rows in (target.conv_rows // 4, target.conv_rows // 2, target.conv_rows * 2):
            yield f"{start}conv_rows {rows}"
    elif shape.k > target.sum_block // 2 and shape.m > target.few_rows:
        for block in (target.sum_block * 2 // 3, target.sum_block * 4 // 3):
            yield f"{start}sum_block {block}"


def _has_tiles(shape: Shape, target: Target) -> bool:
    """Whether a product is one of a unit with tile registers, by the model's choice."""
    return target.unit(shape.dtype) is not None and shape.m >= target.unit_rows


def _tile_name(tile: TileShape) -> str:
    return f"tile {tile.vectors}x{tile.rows}"


@functools.lru_cache(maxsize=512)
def varied(target: Target, name: str) -> Target:
    """The target of that variant; itself for "".

    Raises:
        CodegenError: the name is not that of a variant of this target.
    """
    if not name:
        return target
    changes: dict[str, object] = {}
    for part in name.split(", "):
        what, _, number = part.partition(" ")
        if what == "tile":
            found = [tile for tile in target.tiles if _tile_name(tile) == part]
            if not found:
                raise CodegenError(f"variant {name!r}: {target.name} has no {part}")
            changes["tiles"] = (found[0],)
        elif what in _NUMBERS and number.isdecimal() and int(number) in _NUMBERS[what]:
            changes[what] = int(number)
        else:
            raise CodegenError(f"there is no variant {name!r}")
    return replace(target, **changes)  # type: ignore[arg-type]
