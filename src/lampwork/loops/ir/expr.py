"""Walking and rewriting expressions, also those inside index expressions (indices taken from data)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lampwork.loops.ir.index import ZERO, FloorDiv, Index, Indirect, Mod, simplify
from lampwork.loops.ir.nodes import (
    Const,
    Definition,
    DType,
    Expr,
    Gemm,
    IndexValue,
    Load,
    Local,
    Map,
    Op,
    PackB,
    Reduce,
    Scan,
)
from lampwork.loops.ir.ops import OPS

LoadRewrite = Callable[[Load], Expr]
IndexRewrite = Callable[[Index], Index]


def loads(expr: Expr) -> list[Load]:
    """Every Load of an expression: in operands, masks and indices taken from data; a shared one each time it occurs."""
    found: list[Load] = []
    _collect_loads(expr, found)
    return found


def index_loads(index: Index) -> list[Load]:
    """Every Load inside an index expression."""
    found: list[Load] = []
    for indirect in index.indirects():
        _collect_loads(indirect.value, found)
        found.extend(index_loads(indirect.size))
    return found


def _collect_loads(expr: Expr, found: list[Load]) -> None:
    if isinstance(expr, Op):
        for arg in expr.args:
            _collect_loads(arg, found)
    elif isinstance(expr, Load):
        found.append(expr)
        if expr.mask is not None:
            _collect_loads(expr.mask, found)
        for position in expr.index:
            if not position.is_flat:
                found.extend(index_loads(position))
    elif isinstance(expr, IndexValue) and not expr.index.is_flat:
        found.extend(index_loads(expr.index))


def definition_exprs(definition: Definition) -> tuple[Expr, ...]:
    """The expressions a definition computes (a Gemm's operands too); none for an Extern."""
    if isinstance(definition, Map | Scan):
        return (definition.value,)
    if isinstance(definition, Reduce):
        return (definition.value,) if definition.finish is None else (definition.value, definition.finish)
    if isinstance(definition, Gemm):
        return (definition.a, definition.b, definition.value)
    if isinstance(definition, PackB):
        return (definition.b,)
    return ()


def rewrite(expr: Expr, on_load: LoadRewrite, on_index: IndexRewrite | None = None) -> Expr:
    """The expression with each Load replaced by `on_load` (bottom up: masks and indices come rewritten) and each index
    replaced by `on_index`. Unchanged parts are kept as they are; a part shared by identity is rewritten once.

    What `on_index` gets is rewritten inside Indirects already: it must leave the inside of Indirects alone.
    """
    done: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        if isinstance(node, Const | Local):
            return node
        known = done.get(id(node))
        if known is None:
            known = done[id(node)] = change(node)
        return known

    def change(node: Op | IndexValue | Load) -> Expr:
        if isinstance(node, Op):
            args = tuple([visit(arg) for arg in node.args])
            if all(new is old for new, old in zip(args, node.args, strict=True)):
                return node
            return Op(node.name, args, node.dtype)
        if isinstance(node, IndexValue):
            index = rewrite_index(node.index, on_load, on_index)
            return node if index is node.index else IndexValue(index, node.dtype)
        mask = None if node.mask is None else visit(node.mask)
        point = tuple([rewrite_index(position, on_load, on_index) for position in node.index])
        if mask is node.mask and all(new is old for new, old in zip(point, node.index, strict=True)):
            return on_load(node)
        return on_load(Load(node.buffer, point, mask, node.other))

    return visit(expr)


def rewrite_index(index: Index, on_load: LoadRewrite, on_index: IndexRewrite | None = None) -> Index:
    """`rewrite` inside an index expression, then `on_index` of the whole."""
    if not index.is_flat and index.indirects():
        total = ZERO
        for monomial, coefficient in index.terms:
            product = Index.const(coefficient)
            for atom in monomial:
                if isinstance(atom, FloorDiv):
                    a = rewrite_index(atom.a, on_load, on_index)
                    factor = a // rewrite_index(atom.b, on_load, on_index)
                elif isinstance(atom, Mod):
                    a = rewrite_index(atom.a, on_load, on_index)
                    factor = a % rewrite_index(atom.b, on_load, on_index)
                elif isinstance(atom, Indirect):
                    factor = Index.indirect(rewrite(atom.value, on_load, on_index), atom.size)
                else:
                    factor = Index.of_atom(atom)
                product = product * factor
            total = total + product
        index = total
    return index if on_index is None else on_index(index)


def indices(expr: Expr) -> Iterator[Index]:
    """Every index expression of an expression: of Loads (those inside indices too) and IndexValues."""
    if isinstance(expr, Op):
        for arg in expr.args:
            yield from indices(arg)
    elif isinstance(expr, IndexValue):
        yield from nested_indices(expr.index)
    elif isinstance(expr, Load):
        if expr.mask is not None:
            yield from indices(expr.mask)
        for position in expr.index:
            yield from nested_indices(position)


def parts(expr: Expr) -> Iterator[Expr]:
    """An expression and every one inside it, masks of loads too, each once; not those inside indices."""
    seen: set[int] = set()
    todo = [expr]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Op):
            todo.extend(node.args)
        elif isinstance(node, Load) and node.mask is not None:
            todo.append(node.mask)


def requires(expr: Expr) -> bool:
    """Whether evaluating an expression fails for some values (`require`), indices taken from data aside."""
    return any(isinstance(part, Op) and part.name == "require" for part in parts(expr))


def nested_indices(index: Index) -> Iterator[Index]:
    """An index expression and every one inside the data it is taken from."""
    yield index
    for indirect in index.indirects():
        yield from indices(indirect.value)


def keep(load: Load) -> Expr:
    """The load itself: the identity for `rewrite`."""
    return load


def move(expr: Expr, mapping: Mapping[str, Index], extents: Mapping[str, Index]) -> Expr:
    """Loop variables replaced, all at once; indices simplified by the ranges `extents` of the new variables."""
    return rewrite(expr, keep, lambda index: simplify(index.substitute(mapping, inside_data=False), extents))


def move_index(index: Index, mapping: Mapping[str, Index], extents: Mapping[str, Index]) -> Index:
    """`move` for an index expression."""
    return rewrite_index(
        index, keep, lambda outer: simplify(outer.substitute(mapping, inside_data=False), extents)
    )


def cast_to(expr: Expr, dtype: DType) -> Expr:
    """expr converted to dtype, as a store into a buffer of that dtype converts."""
    if expr.dtype == dtype:
        return expr
    return Op("cast", (expr,), dtype)


def cost(expr: Expr) -> int:
    """Roughly, in additions, what one evaluation costs; a load counts 1, an equal subexpression once."""
    seen: set[int] = set()

    def visit(node: Expr) -> int:
        if isinstance(node, Const | Local) or id(node) in seen:
            return 0
        seen.add(id(node))
        if isinstance(node, IndexValue):
            return 1
        if isinstance(node, Load):
            inside = sum(
                visit(indirect.value) + 2 for position in node.index for indirect in position.indirects()
            )
            return 1 + inside + (0 if node.mask is None else visit(node.mask))
        return OPS[node.name].cost + sum(visit(arg) for arg in node.args)

    return visit(expr)


def count_nodes(expr: Expr) -> int:
    """How large an expression is."""
    if isinstance(expr, Op):
        return 1 + sum(count_nodes(arg) for arg in expr.args)
    return 1
