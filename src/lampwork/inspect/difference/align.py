"""Which operator, and which region, of one report is which of the other.

Names say little: they are counted within a graph. Operators are the same where the same module calls the same one, in
the same order; regions, where they are versions of the same function and hold most of the same operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from lampwork.inspect.difference.side import Region, Side

MOST_WORK = 1 << 18
"""Pairs of equal operators from which two sequences are paired in order, instead of by their longest common parts."""

MOST_REGIONS = 1 << 14
"""Pairs of regions of one function from which they are paired in order."""

ALIKE = 0.5
"""The share of operators that regions of other names have in common if they are the same."""


def same_regions(before: Side, after: Side) -> dict[int, int]:
    """Regions of `before` -> those of `after`. Those of the same operators come first, then the most alike."""
    ours, theirs = before.regions, after.regions
    pairs: dict[int, int] = {}
    left, right = dict.fromkeys(range(len(ours))), dict.fromkeys(range(len(theirs)))

    def take(key: Callable[[Region], Hashable], least: float) -> None:
        for some, others in _both(left, right, lambda n: key(ours[n]), lambda n: key(theirs[n])):
            for score, _, a, b in sorted(_scores(some, others, ours, theirs)):
                if -score >= least and a in left and b in right:
                    pairs[a] = b
                    del left[a], right[b]

    take(lambda region: (region.function, *sorted(region.operators.items())), 0.0)
    take(lambda region: region.function, 0.0)
    take(lambda region: "", ALIKE)
    return pairs


def _scores(
    some: Sequence[int], others: Sequence[int], ours: Sequence[Region], theirs: Sequence[Region]
) -> list[tuple[float, int, int, int]]:
    """(-how much they are alike, how far they are apart, one, the other)."""
    if len(some) * len(others) > MOST_REGIONS:
        return [(-1.0, 0, a, b) for a, b in zip(some, others, strict=False)]
    return [(-_alike(ours[a].operators, theirs[b].operators), abs(a - b), a, b) for a in some for b in others]


def same_nodes(before: Side, after: Side, regions: Mapping[int, int]) -> dict[int, int]:
    """Nodes of `before` -> those of `after`. `regions`: what `same_regions` found."""
    pairs: dict[int, int] = {}
    ours, theirs = before.nodes, after.nodes
    left, right = dict.fromkeys(range(len(ours))), dict.fromkeys(range(len(theirs)))

    def take(ours_key: Callable[[int], Hashable], theirs_key: Callable[[int], Hashable]) -> None:
        """Pair what is left, in order, within each key; None is left alone."""
        for a, b in _both(left, right, ours_key, theirs_key):
            for i, j in _aligned([ours[n].op for n in a], [theirs[n].op for n in b]):
                pairs[a[i]] = b[j]
                del left[a[i]], right[b[j]]

    back = {b: a for a, b in regions.items()}
    take(
        lambda n: (ours[n].region, ours[n].phase, ours[n].module) if ours[n].region in regions else None,
        lambda n: (back.get(theirs[n].region), theirs[n].phase, theirs[n].module),
    )
    # A model that has been put into another one, or taken out of it, has no module of the same name.
    named = [{node.module for node in side} - {""} for side in (ours, theirs)]
    if all(named) and not named[0] & named[1]:
        take(
            lambda n: (ours[n].region, ours[n].phase) if ours[n].region in regions else None,
            lambda n: (back.get(theirs[n].region), theirs[n].phase),
        )
    # What has moved within a module, or to another region, as that behind a break.
    take(
        lambda n: (ours[n].phase, ours[n].module, ours[n].op) if ours[n].module else None,
        lambda n: (theirs[n].phase, theirs[n].module, theirs[n].op) if theirs[n].module else None,
    )
    lone = any(each not in regions for each in range(len(before.regions)))
    fresh = any(each not in back for each in range(len(after.regions)))
    take(
        lambda n: ours[n].phase if not ours[n].module and (fresh or ours[n].region not in regions) else None,
        lambda n: (
            theirs[n].phase if not theirs[n].module and (lone or theirs[n].region not in back) else None
        ),
    )
    return pairs


def _aligned(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Places of equal items, in order."""
    least = min(len(ours), len(theirs))
    start = next((n for n in range(least) if ours[n] != theirs[n]), least)
    if start:  # which most often is all of them
        rest = _aligned(ours[start:], theirs[start:])
        return [*((n, n) for n in range(start)), *((start + i, start + j) for i, j in rest)]
    counts = Counter(theirs)
    if sum(counts[each] for each in ours) > MOST_WORK:
        return _ordinals(ours, theirs)
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def _ordinals(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """The first of a kind with the first, the second with the second."""
    places: dict[tuple[str, int], int] = {}
    seen = Counter[str]()
    for place, each in enumerate(theirs):
        places[each, seen[each]] = place
        seen[each] += 1
    seen.clear()
    found: list[tuple[int, int]] = []
    for place, each in enumerate(ours):
        if (each, seen[each]) in places:
            found.append((place, places[each, seen[each]]))
        seen[each] += 1
    return found


def _alike(ours: Mapping[str, int], theirs: Mapping[str, int]) -> float:
    """The share of operators in common; 1 where neither has any."""
    union = sum((Counter(ours) | Counter(theirs)).values())
    return sum((Counter(ours) & Counter(theirs)).values()) / union if union else 1.0


def _both(
    left: Iterable[int],
    right: Iterable[int],
    left_key: Callable[[int], Hashable],
    right_key: Callable[[int], Hashable],
) -> list[tuple[list[int], list[int]]]:
    """Numbers with the same key, where both sides have some."""
    ours: dict[Hashable, list[int]] = {}
    theirs: dict[Hashable, list[int]] = {}
    for numbers, key, found in ((left, left_key, ours), (right, right_key, theirs)):
        for number in numbers:
            found.setdefault(key(number), []).append(number)
    return [(found, theirs[key]) for key, found in ours.items() if key is not None and key in theirs]
