"""Epilogues: Maps over a matrix product's result, folded into its value and store index."""

from __future__ import annotations

from dataclasses import replace

from lampwork.loops.fusion.invert import invert
from lampwork.loops.fusion.work import Work
from lampwork.loops.ir.addresses import flat_load
from lampwork.loops.ir.definitions import domain, extents_of, points
from lampwork.loops.ir.expr import cast_to, move, moving
from lampwork.loops.ir.index import FloorDiv, Index, Mod, simplify
from lampwork.loops.ir.nodes import Expr, Gemm, Load, Map, Op
from lampwork.loops.ir.traverse import rewrite, walk_once


def fold_epilogues(work: Work) -> None:
    """Each Map that is the only reader of a Gemm, one point for one point, becomes part of it.

    before: c[m, n] = acc; y[i, h, d] = relu(c[i, 64*h + d] + r[i, h, d])
    after:  y[m, n // 64, n % 64] = relu(acc + r[m, n // 64, n % 64])
    """
    done: set[str] = set()
    for number, definition in work.alive():
        gemm, place = definition, number
        if isinstance(gemm, Gemm) and gemm.out.name in done:
            continue
        while isinstance(gemm, Gemm) and work.is_internal(gemm.out.name):
            readers = work.readers_of(gemm.out.name)
            if len(readers) != 1:
                if readers:
                    what = f"epilogue of {gemm.out.name}"
                    work.decide(what, False, f"{len(readers)} definitions read it", gemm.out.name)
                break
            consumer = work.definitions[readers[0]]
            if not isinstance(consumer, Map) or consumer.onto is not None:
                break
            what = f"fold {consumer.out.name} into the matrix product {gemm.out.name}"
            names = consumer.out.name, gemm.out.name
            result = folded(gemm, consumer)
            if isinstance(result, str):
                work.decide(what, False, result, *names)
                break
            work.decide(what, True, "computed while the tile is in registers", *names)
            work.remove(place)
            place = readers[0]
            work.replace(place, result)
            gemm = result
            done.add(result.out.name)


def folded(gemm: Gemm, consumer: Map) -> Gemm | str:
    """The Gemm with the Map's value and store index; or why not."""
    name = gemm.out.name
    reads = [
        node for node in walk_once(consumer.value) if isinstance(node, Load) and node.buffer.name == name
    ]
    sites = {load.index for load in reads}
    if len(sites) != 1 or any(load.mask is not None for load in reads):
        return "it is read at several places"
    axes = domain(gemm)
    extents = extents_of(axes)
    if points(consumer.axes) != points(axes):
        return "they do not have the same number of points"
    site = next(iter(sites))
    stored = tuple(simplify(position, extents) for position in gemm.index)
    solution = invert(site, stored, consumer.axes, gemm.out.shape, extents)
    if solution is None:
        return "its points cannot be traced to those of the matrix product"

    acc = cast_to(gemm.value, gemm.out.dtype)

    def on_load(load: Load) -> Expr:
        return acc if load.buffer.name == name else load

    # A load has the Gemm's variables when it is replaced, and so has acc.
    value = rewrite(consumer.value, {Index: moving(solution, extents), Load: on_load})
    inside = list(walk_once(value))
    if any(index.indirects() for node in inside if isinstance(node, Load) for index in node.index):
        return "it gathers"
    if any(isinstance(node, Op) and node.name == "require" for node in inside):
        return "it fails for some values"
    index = tuple(move(position, solution, extents) for position in consumer.index)
    if any(position.indirects() for position in index):
        return "it scatters"
    target = flat_load(Load(consumer.out, index), extents)
    along_columns = gemm.n.extent.as_int() != 1 and not gemm.is_weight_gradient
    if along_columns and not _is_contiguous(target.index[0], gemm.n.name):
        return "it stores with a stride along the columns"
    return replace(gemm, out=consumer.out, index=index, value=value)


def _is_contiguous(offset: Index, name: str) -> bool:
    """Whether neighbouring columns are stored side by side, but for the ends of blocks (n // 64, n % 64)."""
    factor = 0
    for monomial, coefficient in offset.terms:
        if any(name in Index.of_atom(atom).variables() for atom in monomial):
            atom = monomial[0]
            if len(monomial) > 1 or isinstance(atom, FloorDiv):
                continue
            if isinstance(atom, Mod) and atom.a.as_var() != name:
                continue
            factor = max(factor, coefficient) if factor else coefficient
    return factor == 1
