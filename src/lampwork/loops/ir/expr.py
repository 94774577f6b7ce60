"""What can be asked of expressions, and how they are moved to other loop variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lampwork.loops.ir.index import Index, simplify
from lampwork.loops.ir.nodes import Definition, DType, Expr, Extern, IndexValue, Load, Op
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.traverse import Node, P, rewrite, walk, walk_once


def loads(*roots: Node) -> list[Load]:
    """Every Load: in operands, masks and indices taken from data; a shared one each time it occurs."""
    return [node for node in walk(*roots) if isinstance(node, Load)]


def indices(*roots: Node) -> list[Index]:
    """Every index: of Loads (those inside indices too), IndexValues, and what else nodes have."""
    return [index for node in walk(*roots) for index in node.places()]


def definition_exprs(definition: Definition) -> list[Expr]:
    """The expressions a definition computes (a Gemm's operands too); none for an Extern."""
    return [] if isinstance(definition, Extern) else definition.nodes()


def requires(expr: Expr) -> bool:
    """Whether evaluating an expression fails for some values (`require`), indices taken from data aside."""
    inside = walk_once(expr, data=False)
    return any(isinstance(node, Op) and node.name == "require" for node in inside)


def moving(mapping: Mapping[str, Index], extents: Mapping[str, Index]) -> Callable[[Index], Index]:
    """What `move` makes of an index whose data is moved already."""
    return lambda index: simplify(index.substitute(mapping, inside_data=False), extents)


def move(root: P, mapping: Mapping[str, Index], extents: Mapping[str, Index]) -> P:
    """Loop variables replaced, all at once; indices simplified by the ranges `extents` of the new variables."""
    return rewrite(root, {Index: moving(mapping, extents)})


def cast_to(expr: Expr, dtype: DType) -> Expr:
    """expr converted to dtype, as a store into a buffer of that dtype converts."""
    if expr.dtype == dtype:
        return expr
    return Op("cast", (expr,), dtype)


def cost(expr: Expr) -> int:
    """Roughly, in additions, what one evaluation costs; a load counts 1, an index from data 2, a shared subexpression
    once."""
    total = 0
    for part in walk_once(expr):
        if isinstance(part, Op):
            total += OPS[part.name].cost
        elif isinstance(part, Load):
            total += 1 + 2 * sum(len(position.indirects()) for position in part.index)
        elif isinstance(part, IndexValue):
            total += 1
    return total


def count_nodes(expr: Expr) -> int:
    """How large an expression is."""
    if isinstance(expr, Op):
        return 1 + sum(count_nodes(arg) for arg in expr.args)
    return 1
