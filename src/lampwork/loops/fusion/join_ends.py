"""What all rows of a group together give, into the group: on a card the last block to come puts it together.

before: group 0 over i: m = max_j x[i, j]; s = sum_j exp(x[i, j] - m); l[i] = log(s) + m - x[i, label[i]]
        group 1: y = sum_i l[i] / n
after:  group 0 over i: m, s, l; y = sum_i l[i] / n
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.loops.fusion.group import Decision, Group, ends_of
from lampwork.loops.ir.definitions import points
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Definition, Map, Reduce


def join_ends(groups: Sequence[Group], outputs: frozenset[str], decisions: list[Decision]) -> list[Group]:
    """The groups, those that only reduce what rows of an earlier one make joined to it. `outputs`: what must exist."""
    found = list(groups)
    for number in range(len(found) - 1, 0, -1):
        end = found[number]
        for before in range(number - 1, -1, -1):
            rows = found[before]
            if _ends(end, rows):
                names = (rows.outs[0].name, end.outs[0].name)
                what = f"{names[1]} with the rows of {names[0]}"
                decisions.append(Decision(what, True, "the block that comes last puts it together", names))
                others = [each for place, each in enumerate(found) if place not in (before, number)]
                found[before] = _joined(rows, end, others, outputs)
                del found[number]
                break
            if rows.kind == "extern" or end.reads & {out.name for out in rows.outs}:
                break  # it has to stay behind this one
    return found


def _joined(rows: Group, end: Group, others: Sequence[Group], outputs: frozenset[str]) -> Group:
    read = {name for each in others for name in each.reads}
    inside = {out.name for out in rows.outs if out.name in end.reads} - read - outputs
    return Group(
        "rows", (*rows.definitions, *end.definitions), rows.rows, rows.private | end.private | inside
    )


def _ends(end: Group, rows: Group) -> bool:
    """Whether a group reduces single values of what each row of another one makes."""
    if rows.kind != "rows" or not rows.rows or ends_of(rows) or points(rows.rows).as_int() is None:
        return False
    if end.kind != "rows" or end.rows or not end.reads & {out.name for out in rows.outs}:
        return False
    made = {each.out.name: each for each in rows.definitions if isinstance(each, Map | Reduce)}
    own: set[str] = set()
    for each in end.definitions:
        if isinstance(each, Reduce):
            fits = (
                not each.axes and each.op not in ("argmax", "argmin") and _reads_rows(each, rows, made, own)
            )
        else:
            fits = isinstance(each, Map) and _is_result(each, made)
        if not fits or not isinstance(each, Map | Reduce):
            return False
        own.add(each.out.name)
    return True


def _is_result(each: Map, made: Mapping[str, Definition]) -> bool:
    """Whether a Map is one of results alone."""
    plain = not each.axes and each.onto is None and each.combine is None
    return plain and not any(load.buffer.name in made for load in loads(each.value))


def _reads_rows(end: Reduce, rows: Group, made: Mapping[str, Map | Reduce], own: set[str]) -> bool:
    """Whether a reduction over as many points as there are rows reads what rows make where these make it."""
    if [axis.extent for axis in end.over] != [axis.extent for axis in rows.rows]:
        return False
    if end.finish is not None and any(load.buffer.name in made for load in loads(end.finish)):
        return False
    place = {row.name: Index.var(axis.name) for row, axis in zip(rows.rows, end.over, strict=True)}
    for load in loads(end.value):
        if load.buffer.name in own:
            return False
        maker = made.get(load.buffer.name)
        if maker is None:
            continue
        if maker.axes != rows.rows or load.mask is not None:
            return False
        if tuple(each.substitute(place) for each in maker.index) != load.index:
            return False
    return True
