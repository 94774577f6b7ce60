"""What is known about a GEMM before a line of it is emitted: which ones have a template, and how they read A and B."""

from __future__ import annotations

from typing import Literal

from lampwork.codegen.llvm.emit import is_sum
from lampwork.codegen.llvm.templates.choose import UNKNOWN, Likely
from lampwork.codegen.llvm.types import compute_dtype, is_float, itemsize
from lampwork.codegen.target import Dot, Target
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.expr import cost, loads
from lampwork.loops.ir.index import ONE, ZERO, FloorDiv, Index, Mod, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, Const, Expr, Gemm, IndexValue, Load, Op
from lampwork.loops.ir.traverse import Node, walk
from lampwork.records import record

BMode = Literal["packed", "direct", "scratch", "dot"]
"""How B is read: in panels that a PackB made, in rows as it lies, rearranged into scratch first, or (few rows of A, B
contiguous along k) as dot products."""


@record
class Plan:
    """What is known about a GEMM before a line is emitted.

    a, b: flat offsets over batch, m, k and batch, k, n. split: k is walked as split * outer + inner, because A is only
    affine in the two parts (0: it is affine in k). steps: the numbers along k that are multiplied at once. in_place:
    A's rows are multiplied as they lie, not from a copy in scratch.
    """

    gemm: Gemm
    a: Index
    b: Index
    split: int
    mode: BMode
    params: tuple[Buffer, ...]
    steps: int = 1
    in_place: bool = True

    @property
    def words(self) -> Index:
        """The length of k, in what is multiplied at once."""
        return (self.gemm.k.extent + (self.steps - 1)) // self.steps


def supports(gemm: Gemm, target: Target) -> bool:
    """Whether `emit_gemm` can make this one: of one dtype with templates, plain loads, no empty dimension."""
    dtype = gemm.a.buffer.dtype
    if dtype not in target.products or not (gemm.b.buffer.dtype == dtype or is_mixed(gemm)):
        return False
    if gemm.a.mask is not None or gemm.b.mask is not None:
        return False
    if any(size.as_int() == 0 for size in extents_of(gemm).values()):
        return False
    offset = simplify(offset_in(gemm.a.buffer, gemm.a.index), extents_of(gemm))
    if offset.indirects() or (not gemm.packed and offset_in(gemm.b.buffer, gemm.b.index).indirects()):
        return False
    return _split_of(gemm, offset) is not None


def is_mixed(gemm: Gemm) -> bool:
    """Whether B is int8 where A is float32: it is widened on the way."""
    return (gemm.a.buffer.dtype, gemm.b.buffer.dtype) == ("f32", "i8")


def extents_of(gemm: Gemm) -> dict[str, Index]:
    return {axis.name: axis.extent for axis in (*gemm.batch, *gemm.groups, gemm.m, gemm.n, gemm.k)}


def _split_of(gemm: Gemm, offset: Index) -> int | None:
    """0 if `offset` is affine in k; c if it is in k // c and k % c; None if neither."""
    k = gemm.k
    if offset.coefficient(k.name) is not None:
        return 0
    for divisor in sorted(_divisors(offset, k.name)):
        size = k.extent.as_int()
        if size is None or size % divisor:
            continue
        inner = split_offset(gemm, offset, divisor).coefficient(f"{k.name}.inner")
        if inner is not None:
            return divisor
    return None


def split_offset(gemm: Gemm, offset: Index, split: int) -> Index:
    """`offset` with k = split * outer + inner."""
    k = gemm.k.name
    outer, inner = Index.var(f"{k}.outer"), Index.var(f"{k}.inner")
    ranges = extents_of(gemm) | {f"{k}.outer": gemm.k.extent // split, f"{k}.inner": Index.const(split)}
    return simplify(offset.substitute({k: outer * split + inner}), ranges)


def _divisors(index: Index, name: str) -> set[int]:
    found: set[int] = set()
    for atom in index.atoms():
        if isinstance(atom, FloorDiv | Mod) and name in atom.a.variables():
            divisor = atom.b.as_int()
            if divisor is not None:
                found.add(divisor)
            found |= _divisors(atom.a, name)
    return found


def plan_gemm(gemm: Gemm, target: Target, likely: Likely = UNKNOWN) -> Plan:
    """The plan of a Gemm that is supported."""
    extents = extents_of(gemm)
    a = simplify(offset_in(gemm.a.buffer, gemm.a.index), extents)
    split = _split_of(gemm, a)
    assert split is not None
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value) if gemm.ends is None else (gemm.ends, *loads(gemm.value)):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    params = tuple(seen.values())
    steps, in_place = target.steps(gemm.a.buffer.dtype), _reads_in_place(gemm, a, split, target)
    if gemm.packed:
        return Plan(gemm, a, Index.const(0), split, "packed", params, steps, in_place)
    b = simplify(offset_in(gemm.b.buffer, gemm.b.index), extents)
    return Plan(gemm, a, b, split, _mode(gemm, a, b, target, likely), params, steps, in_place)


def _reads_in_place(gemm: Gemm, a: Index, split: int, target: Target) -> bool:
    """Whether A's numbers lie in memory as they are multiplied: of the dtype of the sums, or in whole words."""
    dtype, k = gemm.a.buffer.dtype, gemm.k
    steps, size = target.steps(dtype), k.extent.as_int()
    dot = target.dot(dtype)
    if dot is None:
        return compute_dtype(dtype) == dtype
    if dot.factor is not None:
        return False
    if size is None or size % steps:
        return False
    if not split:
        return a.coefficient(k.name) == ONE
    return split % steps == 0 and split_offset(gemm, a, split).coefficient(f"{k.name}.inner") == ONE


def _mode(gemm: Gemm, a: Index, b: Index, target: Target, likely: Likely) -> BMode:
    one, m = Index.const(1), known_rows(gemm)
    few_rows = m is not None and m <= target.few_rows and is_float(gemm.a.buffer.dtype)
    if few_rows and a.coefficient(gemm.k.name) == one and b.coefficient(gemm.k.name) == one:
        return "dot"
    dtype = gemm.a.buffer.dtype
    as_it_lies = not is_mixed(gemm) and compute_dtype(dtype) == dtype and target.steps(dtype) == 1
    rows_of_columns = b.coefficient(gemm.n.name) == one and b.coefficient(gemm.k.name) is not None
    rows = likely.m if m is None else m
    direct = as_it_lies and rows_of_columns and rows is not None and rows <= _direct_rows(gemm, b, target)
    return "direct" if direct else "scratch"


def known_rows(gemm: Gemm) -> int | None:
    """How many rows are multiplied by a matrix of B, if that is known before the call."""
    return gemm.m.extent.as_int() if gemm.group is None else None


def _direct_rows(gemm: Gemm, b: Index, target: Target) -> int:
    """`Target.direct_rows` of a B in rows; less where they drive each other out of the caches."""
    stride = b.coefficient(gemm.k.name)
    apart = None if stride is None else stride.as_int()
    if apart is None or apart * itemsize(gemm.b.buffer.dtype) % target.alias_bytes == 0:
        return target.direct_rows // 4
    return target.direct_rows


def streams_rows(gemm: Gemm, target: Target) -> bool:
    """Whether B, in rows, is multiplied as fast as it lies as in panels: the tiles of one panel fetch the next one's
    rows ahead, a cache line of each."""
    m, n = gemm.m.extent.as_int(), gemm.n.extent.as_int()
    tile = target.tiles[0]
    lines = -(-tile.vectors * target.vector_bytes // target.cache_line)
    if m is None or n is None or m < tile.rows * lines or n < tile.vectors * target.vector_bytes:
        return False
    b = simplify(offset_in(gemm.b.buffer, gemm.b.index), extents_of(gemm))
    return m <= _direct_rows(gemm, b, target) and _mode(gemm, ZERO, b, target, UNKNOWN) == "direct"


def _is_picked(value: Expr, dot: Dot) -> bool:
    """Whether a value is the larger or smaller of numbers of dot.dtype, which conversion does not round."""
    if isinstance(value, Op) and value.name in ("maximum", "minimum"):
        return all(isinstance(arg, Const) or _is_picked(arg, dot) for arg in value.args)
    return isinstance(value, Op) and value.name == "cast" and value.args[0].dtype == dot.dtype


def packed_batch(gemm: Gemm) -> tuple[Axis, ...]:
    """The batch axes that B depends on: the leading dimensions of its packed form."""
    used: frozenset[str] = frozenset[str]().union(*(index.variables() for index in gemm.b.index))
    return tuple(axis for axis in gemm.batch if axis.name in used)


_CHEAP = frozenset({"add", "sub", "mul", "maximum", "minimum", "fma", "neg", "relu"})
_SHORT = 8
"""The cost of an epilogue that is repeated for each vector of the tile; longer ones are a loop."""


def is_short(value: Expr, dot: Dot | None = None, *, converts_f16: bool = False) -> bool:
    """Whether an epilogue has few operations, few constants, and checks nothing. `dot`: see `Emitter`. `converts_f16`:
    whether an instruction does (`Target.has_f16c`)."""
    return cost(value) <= _SHORT and all(_is_plain(node, dot, converts_f16) for node in walk(value))


def _is_plain(node: Node, dot: Dot | None, converts_f16: bool) -> bool:
    if isinstance(node, Op):
        if node.name == "cast" and converts_f16 and {node.dtype, node.args[0].dtype} == {"f16", "f32"}:
            return True
        if node.name == "cast" and dot is not None:
            narrows = node.dtype == dot.dtype
            return not narrows or is_sum(node.args[0]) or _is_picked(node.args[0], dot)
        return node.name in _CHEAP
    if isinstance(node, Load):
        return node.mask is None and not any(index.indirects() for index in node.index)
    return not isinstance(node, IndexValue)
