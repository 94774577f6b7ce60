"""Matrix products by Triton, where it is installed: its compiler makes cubins, which our runtime launches.

Nothing else here needs it. It is imported when a product is tuned, or was; what it compiled it keeps in a folder of its
own (TRITON_CACHE_DIR). Its launcher, which needs a C compiler, is not used: a kernel's parameters are the buffers and
int64s, as of all kernels here, and behind them two addresses of memory that it has for other purposes, which are 0.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.gpu.triton_writer import POINTERS, Tile, TritonText, write_product
from lampwork.errors import CodegenError
from lampwork.locks import new_lock
from lampwork.loops.ir.addresses import ITEM_BYTES
from lampwork.loops.ir.index import ONE, ZERO, Index
from lampwork.loops.ir.nodes import DType, Gemm
from lampwork.loops.ir.symbols import NO_HINTS, likely
from lampwork.records import record
from lampwork.standard import functools

OLDEST = 80
"""The compute capability that there are kernels for: those before have no asynchronous copies."""
MOST = 6  # variants of a product
HIDDEN = 2  # addresses behind a kernel's own parameters

_HALF_TILES = (
    Tile(128, 256, 64, 3, 8),
    Tile(128, 128, 64, 4, 8),
    Tile(128, 128, 64, 3, 4),
    Tile(64, 256, 64, 3, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(32, 128, 64, 4, 4),
    Tile(32, 64, 128, 4, 4),
    Tile(16, 128, 128, 4, 4),
    Tile(16, 64, 128, 5, 4),
    Tile(16, 32, 256, 4, 4),
)
_FLOAT_TILES = (
    Tile(128, 128, 32, 3, 8),
    Tile(128, 64, 32, 4, 4),
    Tile(64, 128, 32, 4, 4),
    Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4),
    Tile(16, 64, 64, 4, 4),
    Tile(16, 32, 128, 4, 4),
)


@record
class TritonSource:
    """Variants "triton 128x128x64 stages 4 warps 8": a tile's rows, columns, and depth of a turn."""

    @property
    def name(self) -> str:
        return "triton"

    def variants(self, gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = NO_HINTS) -> Sequence[str]:
        dtype = gemm.a.buffer.dtype
        if not triton_version() or not _serves(gemm, target):
            return ()
        rows, columns = (likely(axis.extent, hints) or 1024 for axis in (gemm.m, gemm.n))
        count = 1
        for axis in gemm.batch:
            count *= likely(axis.extent, hints) or 1
        fitting = [
            tile
            for tile in _tiles(dtype)
            if _shared(tile, dtype) <= (target.scratch_bytes or 0)
            and (tile.rows <= 16 or tile.rows < 2 * rows)
            and (tile.columns <= 32 or tile.columns < 2 * columns)
        ]

        def cost(tile: Tile) -> float:
            """Of a multiprocessor, in elements of the product and of the operands that are read for them."""
            blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * count
            waves = -(-blocks // target.processors)
            return waves * (tile.rows * tile.columns + 64 * (tile.rows + tile.columns))

        best = sorted(fitting, key=cost)[:MOST]
        try:
            write_product(gemm, best[0], "product", tf32=target.tf32)
        except (CodegenError, IndexError):
            return ()
        return [_name(tile) for tile in best]

    def compile(
        self, gemm: Gemm, target: GpuTarget, variant: str, name: str, hints: Mapping[str, int] = NO_HINTS
    ) -> ProductCode:
        tile = next((each for each in _tiles(gemm.a.buffer.dtype) if _name(each) == variant), None)
        if tile is None or not _serves(gemm, target):
            raise CodegenError(f"there is no variant {variant!r}")
        written = write_product(gemm, tile, "product", tf32=target.tf32)
        made = _compiled(written, tile, target.capability)
        blocks = ONE
        for axis in gemm.batch:
            blocks = blocks * axis.extent
        for axis, size in ((gemm.m, tile.rows), (gemm.n, tile.columns)):
            blocks = blocks * ((axis.extent + (size - 1)) // size)
        sizes = (*map(Index.sym, written.symbols), *[ZERO] * HIDDEN)
        return ProductCode(made.image, made.name, tile.warps * 32, made.shared, written.params, sizes, blocks)


@functools.cache
def triton_version() -> str:
    """The version of the Triton that is installed; "" if there is none."""
    if importlib.util.find_spec("triton") is None:
        return ""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "unknown"


def _serves(gemm: Gemm, target: GpuTarget) -> bool:
    return target.capability >= OLDEST and gemm.a.buffer.dtype in ("bf16", "f16", "f32")


def _tiles(dtype: DType) -> Sequence[Tile]:
    return _FLOAT_TILES if dtype == "f32" else _HALF_TILES


def _name(tile: Tile) -> str:
    return f"triton {tile.rows}x{tile.columns}x{tile.depth} stages {tile.stages} warps {tile.warps}"


def _shared(tile: Tile, dtype: DType) -> int:
    return (tile.rows + tile.columns) * tile.depth * tile.stages * ITEM_BYTES[dtype]


@record
class _Image:
    image: bytes
    name: str
    shared: int


def _compiled(written: TritonText, tile: Tile, capability: int) -> _Image:
    """The kernel as a cubin.

    Raises:
        CodegenError: Triton has none, or its kernels are launched otherwise than is known here.
    """
    try:
        return _from_triton(written, tile, capability)
    except CodegenError:
        raise
    except Exception as error:
        raise CodegenError(f"Triton: {type(error).__name__}: {error}") from error


def _from_triton(written: TritonText, tile: Tile, capability: int) -> _Image:
    triton: Any = importlib.import_module("triton")
    compiler: Any = importlib.import_module("triton.compiler")
    backends: Any = importlib.import_module("triton.backends.compiler")
    function = _function(written.text)
    pointers = {f"p{n}": POINTERS[buffer.dtype] for n, buffer in enumerate(written.params)}
    signature = pointers | {f"s{n}": "i64" for n in range(len(written.symbols))}
    source = compiler.ASTSource(fn=triton.jit(function), signature=signature)
    made = triton.compile(
        source,
        target=backends.GPUTarget("cuda", capability, 32),
        options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    scratch = [getattr(made.metadata, name, 0) for name in ("global_scratch_size", "profile_scratch_size")]
    if any(scratch) or False:
        raise CodegenError("Triton's kernel wants memory of its own")
    return _Image(made.asm["cubin"], made.metadata.name, made.metadata.shared)


@functools.lru_cache(maxsize=256)
def _function(text: str) -> Any:
    """The Python function of a source. Triton reads it again, so it is where `inspect` looks for files."""
    place = f"<lampwork product {_places.next()}>"
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    scope: dict[str, Any] = {
        "tl": importlib.import_module("triton.language"),
        "libdevice": importlib.import_module("triton.language.extra.cuda.libdevice"),
        "__name__": "lampwork.codegen.gpu.triton_source",
    }
    exec(compile(text, place, "exec"), scope)
    return scope["product"]


class _Places:
    """Names of sources, each once."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._last = 0

    def next(self) -> int:
        with self._lock:
            self._last += 1
            return self._last


_places = _Places()
