"""What surprised: sentences that rules derive from the numbers of a document, so that they hold wherever it was made.

A rule gives a sentence, or none where its numbers are missing or say nothing beyond the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lampwork.bench.summary import geometric_mean
from lampwork.standard import math
from lampwork.study.worth import (
    LEAST,
    Worth,
    against,
    cells,
    drift,
    eager_bytes,
    inverse,
    margin,
    measured,
    own_bytes,
    speedup,
)

Document = Mapping[str, Any]
Rule = Callable[[Document], Iterator[str]]

MOST = 3
"""Examples in a sentence."""


def findings(document: Document) -> list[str]:
    """The sentences of all rules, in the order of the rules."""
    return [sentence for rule in RULES for sentence in rule(document)]


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def times(ratio: float) -> str:
    """ "1.42 times as long"."""
    return f"{ratio:.2f} times as long"


def _more(count: int) -> str:
    if count < 1:
        return ""
    return "; there is 1 more such case" if count == 1 else f"; there are {count} more such cases"


# --- switches ---------------------------------------------------------------------------------------------------------


def largest(document: Document) -> Iterator[str]:
    """The one that is worth most to one architecture."""
    best = max((c for c in cells(document) if c.helps), key=lambda c: c.ratio, default=None)
    if best is not None:
        yield (
            f"Nothing else is worth as much to any architecture as {best.switch} to {best.architecture}: "
            f"a call takes {times(best.ratio)} without."
        )


def most_over_all(document: Document) -> Iterator[str]:
    """The one that is worth most over all architectures."""
    by_switch: dict[str, list[Worth]] = {}
    for cell in cells(document):
        by_switch.setdefault(cell.switch, []).append(cell)
    means = {
        name: geometric_mean(c.ratio if c.changes else 1.0 for c in found)
        for name, found in by_switch.items()
    }
    if len(means) < 2:
        return
    best = max(means, key=lambda name: means[name])
    if means[best] > 1 + LEAST:
        helped = sum(c.helps for c in by_switch[best])
        yield (
            f"Over all architectures {best} is worth most: {means[best]:.2f} by the geometric mean; "
            f"it helps {helped} of {len(by_switch[best])}."
        )


def costing(document: Document) -> Iterator[str]:
    """Those that cost instead of helping."""
    found = sorted((c for c in cells(document) if c.costs), key=lambda c: c.ratio)
    if found:
        examples = [
            f"{c.architecture} with {c.switch} takes {times(1 / c.ratio)} as without" for c in found[:MOST]
        ]
        more = _more(len(found) - MOST)
        yield f"Not all of it helps everywhere: {listed(examples)}{more}."
    elif any(cells(document)):
        yield "Nothing that was switched off made any architecture faster, beyond the noise."


def without_effect(document: Document) -> Iterator[str]:
    """What changes code, and makes no difference to any architecture."""
    by_switch: dict[str, list[Worth]] = {}
    for cell in cells(document):
        by_switch.setdefault(cell.switch, []).append(cell)
    idle = [
        name
        for name, found in by_switch.items()
        if any(c.changes for c in found) and not any(c.helps or c.costs for c in found)
    ]
    if idle:
        yield f"Switching off {listed(idle)} changes code, but no architecture's time beyond the noise."
    unused = [name for name, found in by_switch.items() if not any(c.changes for c in found)]
    if unused:
        yield f"Without {listed(unused)} the program of every architecture is the same."


def indifferent(document: Document) -> Iterator[str]:
    """The architecture that depends least on any optimization."""
    rows = {
        row["name"]: [c for c in cells(document) if c.architecture == row["name"]]
        for row in measured(document)
    }
    most = {
        name: max((c.ratio if c.helps else 1.0 for c in found), default=math.nan)
        for name, found in rows.items()
    }
    known = {name: ratio for name, ratio in most.items() if not math.isnan(ratio)}
    if len(known) < 2 or len(document["switches"]) < 2:
        return
    least = min(known, key=lambda name: known[name])
    unhelped = [name for name, ratio in known.items() if ratio == 1]
    if unhelped:
        yield f"No single optimization helps {listed(unhelped)} beyond the noise."
    else:
        yield f"{least} depends least on any one optimization: without the best one a call takes {times(known[least])}."


# --- what is computed together ----------------------------------------------------------------------------------------


def fused(document: Document) -> Iterator[str]:
    """Where most is computed together, and where nothing is."""
    shares = {
        row["name"]: row["fusion"]["fused_nodes"] / row["fusion"]["nodes"]
        for row in measured(document)
        if row["fusion"]["nodes"]
    }
    none = [name for name, share in shares.items() if not share]
    if none:
        yield f"Nothing fuses in {listed(none)}: each kernel computes one operator at most."
    if len(shares) > 1:
        best, worst = max(shares, key=lambda n: shares[n]), min(shares, key=lambda n: shares[n])
        if shares[best] > shares[worst] > 0:
            yield (
                f"{best} fuses best, with {100 * shares[best]:.0f} % of its operators in kernels with others; "
                f"{worst} least, with {100 * shares[worst]:.0f} %."
            )
    deep = max(measured(document), key=lambda row: row["fusion"]["largest_nodes"], default=None)
    if deep is not None and deep["fusion"]["largest_nodes"] > 1:
        yield f"The largest kernel is one of {deep['name']}: it computes {deep['fusion']['largest_nodes']} operators."


def left_to_aten(document: Document) -> Iterator[str]:
    """What stays calls of ATen."""
    counts = {row["name"]: sum(row["fusion"]["aten"].values()) for row in measured(document)}
    some = sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])
    if some:
        most = next(row for row in measured(document) if row["name"] == some[0])
        names = list(most["fusion"]["aten"])[:MOST]
        yield (
            f"{len(counts) - len(some)} of {len(counts)} architectures leave nothing to ATen; "
            f"{some[0]} leaves it most calls, {counts[some[0]]}: {listed(names)}."
        )
    elif counts:
        yield "No architecture leaves anything to ATen: all of it is generated code."


def breaking(document: Document) -> Iterator[str]:
    """Where Python has to run between regions."""
    broken = [row for row in measured(document) if row["representation"]["breaks"]]
    for row in broken[:MOST]:
        found = row["representation"]
        codes = list(dict.fromkeys(each["code"] for each in found["breaks"]))
        yield (
            f"{row['name']} is no single graph: it has {found['regions']} regions, with graph breaks "
            f"{listed(codes)} between ({found['breaks'][0]['cause']})."
        )
    refused = [row["name"] for row in measured(document) if row["representation"]["refusals"]]
    if refused:
        yield f"Parts of {listed(refused)} run eager as a whole."
    if measured(document) and not broken and not refused:
        yield "Every architecture is one graph, without a graph break."


def traffic(document: Document) -> Iterator[str]:
    """Where fewer bytes move, and where more do."""
    ratios = {row["name"]: eager_bytes(row) / own_bytes(row) for row in measured(document) if own_bytes(row)}
    if not ratios:
        return
    best, worst = max(ratios, key=lambda n: ratios[n]), min(ratios, key=lambda n: ratios[n])
    if ratios[best] > 1 + LEAST:
        yield f"Kernels of {best} move {1 / ratios[best]:.2f} of the bytes that its operators do, one by one."
    if ratios[worst] < 1 - LEAST:
        yield f"Those of {worst} move more than its operators do, one by one: {1 / ratios[worst]:.2f} times as much."


# --- speed ------------------------------------------------------------------------------------------------------------


def against_eager(document: Document) -> Iterator[str]:
    """The largest and the smallest gain, and what is slower than eager."""
    known = {
        row["name"]: ratio
        for row in measured(document)
        if (ratio := against(row["columns"]["everything"], row["columns"]["eager"])) is not None
    }
    found = {name: ratio for name, (ratio, _) in known.items()}
    if not found:
        return
    best, worst = max(found, key=lambda n: found[n]), min(found, key=lambda n: found[n])
    slower = [name for name, (ratio, noise) in known.items() if ratio < 1 - margin(noise, 0.0)]
    if slower:
        yield f"Slower than eager: {listed([f'{name} ({found[name]:.2f} of its speed)' for name in slower])}."
    if len(found) > 1:
        yield (
            f"Compiling gains most for {best}, {found[best]:.2f} times eager's speed, and least for {worst}, "
            f"{found[worst]:.2f} times."
        )


def samples(document: Document) -> Iterator[str]:
    """Whether one sample gains more than many."""
    pairs = {
        row["name"]: (one, many)
        for row in measured(document)
        if "one_sample" in row
        and (one := speedup(row["one_sample"])) is not None
        and (many := speedup(row["columns"])) is not None
    }
    if len(pairs) < 2:
        return
    more = [name for name, (one, many) in pairs.items() if one > many]
    most = max(pairs, key=lambda name: pairs[name][0] / pairs[name][1])
    yield (
        f"{len(more)} of {len(pairs)} gain more with one sample than with {document['settings']['batch']}; "
        f"the difference is largest for {most}, {pairs[most][0]:.2f} against {pairs[most][1]:.2f} times eager."
    )


def half(document: Document) -> Iterator[str]:
    """What bfloat16 is worth."""
    known = {
        row["name"]: ratio
        for row in measured(document)
        if "bfloat16" in row
        and (ratio := against(row["bfloat16"]["everything"], row["bfloat16"]["float32"])) is not None
    }
    if not known:
        return
    faster = {name: ratio for name, (ratio, noise) in known.items() if ratio > 1 + margin(noise, 0.0)}
    slower = [name for name, (ratio, noise) in known.items() if ratio < 1 - margin(noise, 0.0)]
    best = max(faster, key=lambda n: faster[n], default="")
    said = f", most {best}, {faster[best]:.2f} times as fast" if faster else ""
    also = f"; slower: {listed(slower)}" if slower else ""
    yield f"In bfloat16 {len(faster)} of {len(known)} are faster than in float32{said}{also}."


def open_sizes(document: Document) -> Iterator[str]:
    """What it costs to leave sizes open."""
    costs: dict[str, float] = {}
    for row in measured(document):
        column = row["columns"]["open sizes"]
        if column["failure"] or (found := inverse(column)) is None or not row["symbols_when_open"]:
            continue
        costs[row["name"]] = found[0] if abs(found[0] - 1) > margin(found[1], drift(row)) else 1.0
    if costs:
        worst = max(costs, key=lambda n: costs[n])
        free = sum(cost <= 1 for cost in costs.values())
        dear = f"; most for {worst}, whose call takes {times(costs[worst])}" if costs[worst] > 1 else ""
        yield f"Sizes left open cost {free} of {len(costs)} nothing beyond the noise{dear}."


def first_calls(document: Document) -> Iterator[str]:
    """The longest first call, in calls of eager that it takes to be worth it."""
    pays: dict[str, float] = {}
    for row in measured(document):
        ours, eager = row["columns"]["everything"], row["columns"]["eager"]
        if ours["failure"] or eager["failure"] or not eager["call_seconds"]:
            continue
        gained = eager["call_seconds"] - ours["call_seconds"]
        if gained > 0:
            pays[row["name"]] = ours["first_call_seconds"] / gained
    if len(pays) > 1:
        soon, late = min(pays, key=lambda n: pays[n]), max(pays, key=lambda n: pays[n])
        yield (
            f"Compiling pays for itself after {math.ceil(pays[soon])} calls of {soon}, "
            f"and after {math.ceil(pays[late])} of {late}."
        )


# --- correctness ------------------------------------------------------------------------------------------------------


def errors(document: Document) -> Iterator[str]:
    """What is farther from float64 than twice eager's error and a rounding."""
    wrong: list[str] = []
    known = 0
    for row in measured(document):
        columns = {**row["columns"], **{f"without {n}": c for n, c in row["switches"].items()}}
        wrong += [f"{row['name']}, {name}" for name, column in columns.items() if column["agrees"] is False]
        known += sum(column["agrees"] is not None for column in columns.values())
    if wrong:
        more = f" and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
        yield f"Farther from float64 than twice eager's error and a rounding: {'; '.join(wrong[:MOST])}{more}."
    elif known:
        yield f"All {known} variants that were compared are as near to float64 as twice eager's error and a rounding."


def failures(document: Document) -> Iterator[str]:
    """What could not be measured."""
    failed = [row["name"] for row in document["architectures"] if row.get("failure")]
    if failed:
        yield f"Could not be measured: {listed(failed)}; the reason is in their sections."
    columns = [
        f"{row['name']} without {name}"
        for row in measured(document)
        for name, column in row["switches"].items()
        if column["failure"]
    ]
    if columns:
        yield f"Failed: {listed(columns)}."


RULES: tuple[Rule, ...] = (
    failures,
    errors,
    largest,
    most_over_all,
    costing,
    without_effect,
    indifferent,
    against_eager,
    fused,
    left_to_aten,
    breaking,
    traffic,
    samples,
    half,
    open_sizes,
    first_calls,
)
