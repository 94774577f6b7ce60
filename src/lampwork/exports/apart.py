"""Sizes that programs of their own are made for: which ones, and what the other open sizes are then.

Open sizes belong together where one gives the other: equal Dims, Dims that are computed of one another, and what the
model makes of them (`x + y`).

    dynamic_shapes: x: {0: 2*half}, y: {0: half};  the model cuts y to y[:, :8] and keeps z with y
    y is 1:         x is 2, z is 1
    x is 1:         nothing, as half is no half
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lampwork.exports.dims import Open
from lampwork.loops.ir.polynomial import Index, Sym
from lampwork.records import record

_MOST_ELEMENTS = 2**28
"""Of a tensor whose size is apart: one is made to capture the model for it. That `x[1:]` stays below 2**63 - 1 rows is
asked too."""

Sizes = tuple[tuple[Open, int], ...]
"""A number for each of several open sizes."""


@record(eq=False)
class _Line:
    """A size is `times * of + plus`, of a Dim or a symbol."""

    of: tuple[str, str]
    times: int
    plus: int


@record(eq=False)
class Group:
    """Open sizes of which each gives all others. `indices`: what they are in the program."""

    sizes: tuple[Open, ...]
    indices: tuple[Index, ...]
    lines: tuple[tuple[_Line, ...], ...]

    def with_size(self, number: int, size: int) -> Sizes | None:
        """All sizes, if the one of this number is `size`; None if they are no whole numbers within their bounds."""
        found = {number: size}
        known: dict[tuple[str, str], int] = {}
        before = -1
        while before != len(found) + len(known):
            before = len(found) + len(known)
            for at, lines in enumerate(self.lines):
                for line in lines:
                    if at not in found and line.of in known:
                        found[at] = line.times * known[line.of] + line.plus
                    if at not in found:
                        continue
                    value, rest = divmod(found[at] - line.plus, line.times)
                    if rest or known.setdefault(line.of, value) != value:
                        return None
        sizes = tuple((each, found[at]) for at, each in enumerate(self.sizes))
        return sizes if all(_takes(each, size) for each, size in sizes) else None


def _takes(each: Open, size: int) -> bool:
    return size >= max(1, each.low or 1) and (each.high is None or size <= each.high)


def groups_of(sizes: Iterable[tuple[Open, Index]]) -> Iterator[Group]:
    """The groups of open sizes. Sizes that the model has fixed are in none."""
    members: list[tuple[Open, Index, tuple[_Line, ...]]] = []
    for each, index in sizes:
        lines = _lines(each, index)
        if lines and not index.is_const:
            members.append((each, index, lines))
    while members:
        group = [members.pop(0)]
        known = {line.of for line in group[0][2]}
        while more := [each for each in members if any(line.of in known for line in each[2])]:
            group += more
            known.update(line.of for each in more for line in each[2])
            members = [each for each in members if all(each is not one for one in more)]
        yield Group(*(tuple(part) for part in zip(*group, strict=True)))


def _elements(each: Open, size: int) -> int:
    return each.tensor.numel() // each.tensor.shape[each.dim] * size


def _lines(each: Open, index: Index) -> tuple[_Line, ...]:
    found: list[_Line] = []
    if each.name:
        found.append(_Line(("Dim", each.root or each.name), each.times, each.plus))
    match [term for term in index.terms if term[0]]:
        case [((Sym(name),), times)] if times > 0:
            found.append(_Line(("symbol", name), times, index.constant))
        case _:
            pass
    return tuple(found)


@record(eq=False)
class Asked:
    """What the model asks of sizes, by what they are in the program: what they are at most, and what they are not."""

    highest: Mapping[Index, int]
    excluded: Mapping[Index, Sequence[int]]


def sizes_apart(group: Group, asked: Asked) -> list[Sizes]:
    """What programs for all sizes leave out, and others may serve: 1, which broadcasts, what makes another size 1
    (2 for `x[1:]`), and the largest, if the model asks whether a size is smaller."""
    found: dict[tuple[int, ...], Sizes] = {}
    for number, (each, index) in enumerate(zip(group.sizes, group.indices, strict=True)):
        tries = [1] if (each.low or 1) <= 1 else []
        tries += [size for size in asked.excluded.get(index, ()) if size > 1]
        top = asked.highest.get(index)
        if top is not None and top != each.high and (each.high is None or top + 1 == each.high):
            tries.append(top + 1)
        for size in tries:
            sizes = group.with_size(number, size)
            if sizes is not None and all(_elements(*each) <= _MOST_ELEMENTS for each in sizes):
                found.setdefault(tuple(size for _, size in sizes), sizes)
    return list(found.values())
