"""Inlining: a Map's value put where it was loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from lampwork.loops.fusion.effects import at_one_place, checked, is_needed_anyway, may_fail, reads_all
from lampwork.loops.fusion.invert import invert
from lampwork.loops.fusion.work import Work
from lampwork.loops.ir.addresses import ITEM_BYTES
from lampwork.loops.ir.definitions import domain, extents_of, name_of, outs_of, points
from lampwork.loops.ir.expr import cast_to, cost, count_nodes, loads, move
from lampwork.loops.ir.index import ZERO, Index, indirects_of
from lampwork.loops.ir.nodes import (
    Attention,
    Const,
    Definition,
    Expr,
    Extern,
    Gemm,
    Load,
    Map,
    Op,
    PackB,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    Scan,
)
from lampwork.loops.ir.traverse import rewrite

_CHEAP = 4  # an expression of at most this cost may be computed several times
_FREE = 2  # of at most this cost with one load: computing it again costs no more than loading it
_NO_LOADS = 8  # an expression without loads of at most this cost goes everywhere
_LARGEST = 160  # nodes in an expression, above which reading it (and compiling it) gets slow
_MOST_SITES = 4  # different places at which one definition may compute a cheap value


def drop_unused(work: Work) -> None:
    """Removes definitions that no output needs, but for those that do more than give a result."""
    for number in reversed(range(len(work.definitions))):
        definition = work.definitions[number]
        if definition is None:
            continue
        outs = outs_of(definition)
        if not outs or any(out.name in work.outputs or work.readers.get(out.name) for out in outs):
            continue
        if is_needed_anyway(definition):
            continue
        work.remove(number)


def drop_units(work: Work) -> None:
    """Axes of extent 1 vanish from Maps, Reduces and Scans: their variable is 0.

    before: y[i0, i1] = x[i1, i0] for i0 < 1, i1 < 8      after: y[0, i1] = x[i1, 0] for i1 < 8
    """
    for number, definition in work.alive():
        if not isinstance(definition, Map | Reduce | Scan):
            continue
        units = {axis.name: ZERO for axis in domain(definition) if axis.extent.as_int() == 1}
        if isinstance(definition, Scan):
            units.pop(definition.along.name, None)
        if isinstance(definition, Reduce) and len(definition.over) == sum(
            axis.name in units for axis in definition.over
        ):
            # A reduction over nothing but units stays one: its meaning is in `op` and `finish`.
            units.pop(definition.over[-1].name, None) if definition.over else None
        if units:
            work.replace(number, _without(definition, units))


def _without(definition: Map | Reduce | Scan, units: Mapping[str, Index]) -> Definition:
    axes = tuple(axis for axis in definition.axes if axis.name not in units)
    index = tuple(position.substitute(units) for position in definition.index)
    value = move(definition.value, units, {})
    if isinstance(definition, Reduce):
        over = tuple(axis for axis in definition.over if axis.name not in units)
        return replace(definition, axes=axes, over=over, index=index, value=value)
    return replace(definition, axes=axes, index=index, value=value)


def inline_into_maps(work: Work) -> None:
    """Each Map whose only reader is another Map goes into it, unless that repeats costly work."""
    for number, definition in work.alive():
        if not _may_vanish(definition, work):
            continue
        readers = work.readers_of(definition.out.name)
        if len(readers) == 1 and isinstance(work.definitions[readers[0]], Map):
            _inline(work, number, definition, readers)


def inline_everywhere(work: Work) -> None:
    """Maps with one reader of any kind go into it; cheap ones with several readers go into all of them."""
    for number, definition in work.alive():
        if not _may_vanish(definition, work):
            continue
        readers = work.readers_of(definition.out.name)
        if (
            len(readers) == 1
            or _is_free(definition.value)
            or (_is_free_in_rows(definition) and _share_rows(definition, readers, work))
            or (work.machine.processors and _is_free_of_memory(definition))
        ):
            _inline(work, number, definition, readers)


def _may_vanish(definition: Definition, work: Work) -> TypeGuard[Map]:
    """Whether a definition is a Map whose value says all about its buffer, which nobody else needs."""
    if not isinstance(definition, Map) or definition.onto is not None:
        return False
    return work.is_internal(definition.out.name) and definition.out.name not in work.mutated


def _is_free(value: Expr) -> bool:
    reads = set(loads(value))
    if not reads:
        return cost(value) <= _NO_LOADS
    return len(reads) == 1 and cost(value) <= _FREE + 1


def _is_free_in_rows(producer: Map) -> bool:
    """Whether loops along the rows of a Map compute it again for no more than loading it: what is the same for a whole
    row, they have in a register.

    before: d[i, j] = x[i, j] - m[i]; s[i] = sum(exp(d[i, j]) for j); y[i, j] = d[i, j] - s[i]
    after:  s[i] = sum(exp(x[i, j] - m[i]) for j); y[i, j] = (x[i, j] - m[i]) - s[i]
    """
    reads = set(loads(producer.value))
    if any(position.indirects() for load in reads for position in load.index):
        return False
    if not producer.axes:
        return False
    inner = producer.axes[-1].name
    moving = sum(any(inner in position.variables() for position in load.index) for load in reads)
    price = cost(producer.value) - (len(reads) - moving)
    return moving <= 1 and price <= (_FREE if moving else _CHEAP)


def _is_free_of_memory(producer: Map) -> bool:
    """Whether a Map is cheap, and reads no more bytes than it stores: a card waits for these."""
    inner = producer.axes[-1].name if producer.axes else ""
    reads = set(loads(producer.value))
    moving = [load for load in reads if any(inner in position.variables() for position in load.index)]
    if cost(producer.value) > _CHEAP + 1 or any(load.index != producer.index for load in moving):
        return False
    if any(position.indirects() for load in reads for position in load.index):
        return False
    return sum(ITEM_BYTES[load.dtype] for load in moving) <= ITEM_BYTES[producer.out.dtype]


def _share_rows(producer: Map, readers: Sequence[int], work: Work) -> bool:
    """Whether all readers go along the rows, each with what comes of what the one before makes of them: then one kernel
    has them all, which reads the row once from memory."""
    found = {number: definition for number in sorted(readers) if (definition := work.definitions[number])}
    return all(_goes_along(reader, producer) for reader in found.values()) and all(
        _leads_to(number, following, work) for number, following in pairwise(found)
    )


def _leads_to(first: int, last: int, work: Work) -> bool:
    """Whether a definition depends on another one."""
    made: set[str] = set()
    for number in range(first, last):
        definition = work.definitions[number]
        if definition is not None and (number == first or work.reads[number] & made):
            made.update(out.name for out in outs_of(definition))
    return bool(work.reads[last] & made)


def _goes_along(reader: Definition, producer: Map) -> bool:
    """Whether the innermost loop of a reader runs along the rows of what it reads."""
    if not isinstance(reader, Map | Reduce) or not domain(reader):
        return False
    inner = Index.var(domain(reader)[-1].name)
    sites = [load.index for load in loads(reader.value) if load.buffer.name == producer.out.name]
    return producer.index[-1:] == (Index.var(producer.axes[-1].name),) and all(
        site[-1] == inner and not any(inner.variables() & position.variables() for position in site[:-1])
        for site in sites
    )


def _inline(work: Work, number: int, producer: Map, readers: list[int]) -> None:
    """Inlines one Map into all its readers, or, with a reason, into none."""
    name = producer.out.name
    if may_fail(producer) and not all(
        _covers(producer, consumer)
        for reader in readers
        if (consumer := work.definitions[reader]) is not None
    ):
        work.decide(f"inline {name}", False, "it checks indices that its reader does not read", name)
        return
    if work.reads[number] & work.mutated:
        work.decide(f"inline {name}", False, "it reads a buffer that is written to", name)
        return
    replaced: list[tuple[int, Definition]] = []
    for reader in readers:
        consumer = work.definitions[reader]
        if consumer is None:
            continue
        result = inlined(producer, consumer)
        if isinstance(result, str):
            onto = name_of(consumer)
            work.decide(f"inline {name} into {onto}", False, result, name, onto)
            return
        replaced.append((reader, result))
    for reader, result in replaced:
        work.replace(reader, result)
        onto = name_of(result)
        work.decide(f"inline {name} into {onto}", True, "computed where it is read", name, onto)
    work.remove(number)


def inlined(producer: Map, consumer: Definition) -> Definition | str:
    """The consumer with the producer's value in place of loads of it; or why not.

    before: t[i] = a[i] + 1 for i < 8; y[i, j] = exp(t[i]) * b[j]      after: y[i, j] = exp(a[i] + 1) * b[j]
    """
    if isinstance(consumer, Extern | PackB):
        return "an ATen call reads it"
    if isinstance(consumer, Recurrence | RecurrenceGradient):
        return "a recurrence reads it many times"
    axes = domain(consumer)
    extents = extents_of(axes)
    read = (consumer.value, *_store_places(consumer))
    sites = {load.index for load in loads(*read) if load.buffer.name == producer.out.name}
    operands = _operands(consumer)
    if any(load.buffer.name == producer.out.name for operand in operands for load in loads(operand)):
        return "a matrix product reads it many times"
    if isinstance(consumer, Attention) and may_fail(producer):
        return "it fails for some values, which an attention does not check"
    refusal = _too_costly(producer, consumer, len(sites))
    if refusal:
        return refusal
    values: dict[tuple[Index, ...], Expr | None] = {}
    unchecked: list[tuple[Index, ...]] = []

    def value_at(site: tuple[Index, ...]) -> Expr | None:
        if site not in values:
            solution = invert(producer.index, site, producer.axes, producer.out.shape, extents)
            moved = None if solution is None else move(producer.value, solution, extents)
            looked_at = indirects_of(site)
            if moved is not None and looked_at:
                if not looked_at <= checked(moved):
                    unchecked.append(site)
                moved = at_one_place(moved)
            values[site] = None if moved is None else cast_to(moved, producer.out.dtype)
        return values[site]

    def on_load(load: Load) -> Expr:
        # The index comes rewritten: what it takes from data may have been read from the producer, too.
        value = value_at(load.index) if load.buffer.name == producer.out.name else None
        if value is None:
            return load
        return value if load.mask is None else _masked(value, load.mask, load.other)

    value = rewrite(consumer.value, {Load: on_load})
    if isinstance(consumer, Map):
        index = tuple(rewrite(position, {Load: on_load}) for position in consumer.index)
        consumer = replace(consumer, index=index)
    if None in values.values():
        return "the place read cannot be traced to a point of it"
    if unchecked:
        return "its value does not depend on an index from data that it is read at, which has to be checked"
    if (
        isinstance(consumer, Reduce)
        and consumer.finish is not None
        and any(load.buffer.name == producer.out.name for load in loads(consumer.finish))
    ):
        return "the end of a reduction reads it"
    if count_nodes(value) > _LARGEST:
        return f"the expression would have more than {_LARGEST} nodes"
    return replace(consumer, value=value)


def _store_places(consumer: Definition) -> tuple[Expr, ...]:
    """What the places that a Map writes to are taken from."""
    if not isinstance(consumer, Map):
        return ()
    return tuple(indirect.value for position in consumer.index for indirect in position.indirects())


def _operands(consumer: Definition) -> tuple[Load, ...]:
    """What a template multiplies."""
    if isinstance(consumer, Gemm):
        return (consumer.a, consumer.b, *(() if consumer.ends is None else (consumer.ends,)))
    return (consumer.q, consumer.k, consumer.v) if isinstance(consumer, Attention) else ()


def _covers(producer: Map, consumer: Definition) -> bool:
    """Whether a consumer reads every element of the producer."""
    if isinstance(consumer, Extern | PackB | Recurrence | RecurrenceGradient):
        return True  # nothing is inlined there
    extents = extents_of(domain(consumer))
    read = (consumer.value, *_store_places(consumer))
    sites = [load for load in loads(*read) if load.buffer.name == producer.out.name]
    return any(reads_all(load, extents) for load in sites)


def _too_costly(producer: Map, consumer: Map | Reduce | Scan | Gemm | Attention, sites: int) -> str:
    price = cost(producer.value)
    if price <= _CHEAP and sites <= _MOST_SITES:
        return ""
    if isinstance(consumer, Attention) and price <= _NO_LOADS and not loads(producer.value):
        return ""  # a mask that compares places tells which keys need not be looked at
    if isinstance(consumer, Gemm):
        return f"costs {price}, and the epilogue of a matrix product holds up the next tile"
    if sites > 1:
        return f"costs {price} and is read at {sites} places"
    made, used = points(producer.axes), points(domain(consumer))
    made_count, used_count = made.as_int(), used.as_int()
    if made == used:
        return ""
    if made_count is not None and used_count is not None and used_count * 3 <= made_count * 4:
        return ""  # a border of padding around it is not worth a buffer
    return f"costs {price} and would be computed {used} instead of {made} times"


def _masked(value: Expr, mask: Expr, other: float | int | bool) -> Expr:
    """value where mask holds, else other; where it does not nothing is read, nor required of what is read."""

    def on_load(load: Load) -> Expr:
        both: Expr = mask if load.mask is None else Op("and", (mask, load.mask), "bool")
        return Load(load.buffer, load.index, both, load.other)

    def on_op(op: Op) -> Op:
        if op.name != "require":
            return op
        kept, condition = op.args
        return Op("require", (kept, Op("or", (Op("not", (mask,), "bool"), condition), "bool")), op.dtype)

    if isinstance(value, Load) and value.mask is None and not any(i.indirects() for i in value.index):
        return Load(value.buffer, value.index, mask, other)
    guarded = rewrite(value, {Load: on_load, Op: on_op})
    return Op("where", (mask, guarded, Const(other, value.dtype)), value.dtype)
