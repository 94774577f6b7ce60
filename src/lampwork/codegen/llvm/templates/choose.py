"""Which tile a GEMM uses: rows and vectors of the micro-kernel, panel width, blocks.

The micro-kernel keeps rows x vectors accumulators in registers. A step over k costs `vectors` loads of B, `rows`
broadcasts of A and rows * vectors FMAs, so a good tile is near square in (rows, vectors), uses most registers, and
leaves few for B and the broadcast: 8 x 3 vectors of the 32 of AVX-512, 6 x 2 of the 16 of AVX2.
"""

from __future__ import annotations

from lampwork.codegen.llvm.types import compute_bits, product_dtype
from lampwork.codegen.target import Target, TileShape
from lampwork.loops.ir.nodes import DType, Gemm
from lampwork.records import record


@record
class GemmConfig:
    """The tile of a GEMM. What a tuner may vary.

    rows, vectors: accumulators of the micro-kernel, `vectors` ISA vectors wide.
    unroll: steps over k in one iteration.
    k_block: the K range of one pass over the rows; partial sums wait in scratch. 0: all of K.
    m_block: the rows that one work item covers (a multiple of `rows`, or 0 for all).
    prefetch: whether the next block of a packed B is prefetched while this one is multiplied.
    lines: where M is symbolic, the cache lines that a step over k prefetches at most.
    """

    rows: int
    vectors: int
    unroll: int = 1
    k_block: int = 0
    m_block: int = 0
    prefetch: bool = True
    lines: int = 1


@record
class Likely:
    """The sizes of the call that a GEMM was compiled for, to choose by where they are symbolic. None: not known."""

    m: int | None = None
    n: int | None = None


UNKNOWN = Likely()


def max_rows(vectors: int, target: Target) -> int:
    """The most rows that leave registers for `vectors` loads of B and a broadcast."""
    return next(tile.rows for tile in target.tiles if tile.vectors == vectors)


def balanced_rows(m: int | None, most: int) -> int:
    """Rows of the tile: the fewest that need no more tiles than `most` would, so that little is computed twice."""
    if m is None:
        return most
    tiles = -(-m // most)
    return -(-m // tiles)


def _rows_for(m: int | None, likely: int | None, most: int, target: Target) -> int:
    """A tile that any M can use; for a likely M of one tile or two, one that computes no rows past it."""
    if m is None and likely is not None and likely <= 2 * most:
        return max(balanced_rows(likely, most), min(most, target.few_rows))
    return balanced_rows(m, most)


def choose_vectors(n: int | None, target: Target, dtype: DType = "f32") -> int:
    """Vectors in a panel: the width that computes the fewest columns past N, wide ones first."""
    lanes = target.sum_lanes(dtype)
    if n is None:
        return target.tiles[0].vectors

    def cost(tile: TileShape) -> float:
        width = tile.vectors * lanes
        # Columns computed, and loads per FMA of the tile.
        return -(-n // width) * width * tile.cost

    return min(target.tiles, key=cost).vectors


def _wide_vectors(m: int, n: int | None, lanes: int, target: Target) -> int:
    """For few rows, whose time is that of reading B's rows: long runs of them."""
    most = min(target.registers * 3 // 4 // m, 16)
    if n is None:
        return most
    panels = -(-n // (most * lanes))
    return -(-n // (panels * lanes))


def choose_panel(
    m: int | None, n: int | None, target: Target, dtype: DType = "f32", *, runs_along_k: bool = True
) -> int:
    """The panel width for PackB in columns; 0 if B had better stay as it lies. None stands for a symbolic size.

    runs_along_k: B is contiguous along k, as a linear layer's weight is: then few rows are computed as dot products,
    unless there is an instruction for those: panels, which are one stream, are read 1.2 to 2.9 times as fast then (1 to
    4 rows of bfloat16, 768 x 3072 and 2048 x 2048).
    """
    if m is not None and m <= target.few_rows and runs_along_k and target.dot(dtype) is None:
        return 0
    return choose_vectors(n, target, dtype) * target.sum_lanes(dtype)


def choose_config(
    m: int | None,
    n: int | None,
    k: int | None,
    packed: int,
    split: int,
    target: Target,
    dtype: DType = "f32",
    likely: Likely = UNKNOWN,
) -> GemmConfig:
    """The tile for a GEMM of this size. `packed`: the panel width, which fixes the tile's; `split`: a number that K
    blocks must be multiples of, or 0. For a dot product instruction, k, split and K blocks count words of what it takes
    at once."""
    lanes = target.sum_lanes(dtype)
    if packed:
        vectors = packed // lanes
    elif m is not None and m <= target.few_rows:
        vectors = _wide_vectors(m, n, lanes, target)
    else:
        vectors = choose_vectors(likely.n if n is None else n, target, dtype)
    rows = (
        m
        if m is not None and m <= target.few_rows
        else _rows_for(m, likely.m, max_rows(vectors, target), target)
    )
    unroll = 1 if rows * vectors >= 12 else 4 if rows * vectors < 6 else 2
    k_block, longest = 0, _longest_sum(target, dtype, packed)
    if k is None:
        k_block = longest
    elif k > longest:
        k_block = _rounded(-(-k // -(-k // longest)), max(split, unroll))
    most = 256 if k_block else 512
    m_block = 0 if m is not None and m <= most else most // rows * rows
    lines = 1
    if m is None and likely.m is not None:
        share = -(-vectors * lanes // -(-likely.m // rows))
        lines = -(-share * compute_bits(dtype) // (8 * target.cache_line))
    return GemmConfig(rows, vectors, unroll, k_block, m_block, lines=lines)


def _longest_sum(target: Target, dtype: DType, packed: int) -> int:
    """The longest chain of sums. Those of integers are exact, so only what waits in scratch limits them."""
    dot = target.dot(dtype)
    exact = product_dtype(dtype) == "i32" and packed and dot is not None and dot.factor is None
    return target.exact_block if exact else target.sum_block


def _rounded(k_block: int, step: int) -> int:
    """Upwards to a multiple of `step`."""
    return -(-k_block // step) * step


def dot_config(m: int, target: Target, dtype: DType = "f32") -> GemmConfig:
    """Tile and work item of a GEMM of few rows that is computed as dot products."""
    return GemmConfig(m, target.dot_columns // target.sum_lanes(dtype))


def _conv_rows(m: int, most: int) -> int:
    """Rows of a convolution's tile: the most, so that shapes share their function, unless many were computed twice."""
    return most if -(-m // most) * most <= m * 1.06 else balanced_rows(m, most)


def choose_conv_tile(m: int | None, n: int | None, target: Target, dtype: DType = "f32") -> TileShape:
    """Rows and vectors of a convolution's tile: what computes the fewest rows and columns past the ends."""
    lanes = target.sum_lanes(dtype)

    def cost(tile: TileShape) -> float:
        width = tile.vectors * lanes
        columns = width if n is None else -(-n // width) * width / n
        if m is None:
            return columns * tile.cost
        # A tile of fewer rows than there are registers for loads more of B for each row.
        rows = _conv_rows(m, tile.rows)
        loads = (tile.vectors / rows + 1) / (tile.vectors / tile.rows + 1)
        return columns * (-(-m // rows) * rows / m) * tile.cost * loads**0.5

    best = min(target.tiles, key=cost)
    return TileShape(best.vectors, best.rows if m is None else _conv_rows(m, best.rows), best.cost)


def conv_config(gemm: Gemm, target: Target, likely: Likely = UNKNOWN) -> GemmConfig:
    """The tile of a convolution whose B is packed, which fixes its width."""
    dtype = gemm.a.buffer.dtype
    m = gemm.m.extent.as_int()
    m = likely.m if m is None else m
    vectors = gemm.packed // target.sum_lanes(dtype)
    rows = max_rows(vectors, target)
    if m is not None:
        rows = _conv_rows(m, rows)
    unroll = 1 if rows * vectors >= 12 else 2
    return GemmConfig(rows, vectors, unroll, m_block=max(1, target.conv_rows // rows) * rows)
