"""The page of a study, and its pictures, made of the document alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lampwork.bench.machine import where
from lampwork.display.units import bytes_text, time_text
from lampwork.study.document import check, write
from lampwork.study.findings import findings
from lampwork.study.pictures import Cell, Picture, bars, heat_map, shares
from lampwork.study.sections import details
from lampwork.study.tables import markdown
from lampwork.study.worth import Worth, against, eager_bytes, inverse, measured, own_bytes, speedup, worth

Document = Mapping[str, Any]

MADE = "Made by `lampwork study --page`; measure again, or edit the code, not this page."
SAME, UNKNOWN = "=", "-"
KINDS = ("gemm", "conv", "attention", "recurrence", "kernel", "aten", "other")
"""Of steps, as the picture of times has them; what is left is "other"."""


def page(document: Document, pictures: str = "study") -> dict[str, str]:
    """The page "study.md" and its pictures, by the name of the file. `pictures`: what their names begin with, seen from
    the page.

    Raises:
        StudyError: it is no document of a study.
    """
    check(document)
    drawn = {f"{pictures}-{name}.svg": str(picture) for name, picture in _pictures(document).items()}
    return {"study.md": _markdown(document, pictures), **drawn}


def save(document: Document, target: Path) -> list[Path]:
    """Write the page to a file, and its pictures beside it; gives the paths.

    Raises:
        StudyError: it is no document of a study, or a file cannot be written.
    """
    made = page(document, target.stem)
    paths = [target if name == "study.md" else target.with_name(name) for name in made]
    for path, text in zip(paths, made.values(), strict=True):
        write(path, text)
    return paths


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(document: Document) -> dict[str, Picture]:
    rows = measured(document)
    names = [row["name"] for row in rows]
    switches = [each["name"] for each in document["switches"]]
    found = {
        "worth": heat_map(
            "What each optimization is worth",
            "Time of a call without an optimization, divided by that with it, for each architecture and switch. "
            "Above 1 it helps. The table below has the same numbers.",
            names,
            switches,
            [[_heat(worth(row, switch)) for switch in switches] for row in rows],
        ),
        "speed": bars(
            "Speed against eager",
            "How many times as fast as eager each architecture is compiled, for a batch and for one sample.",
            names,
            [f"batch of {document['settings']['batch']}", "one sample"],
            [
                [speedup(row["columns"]), speedup(row["one_sample"]) if "one_sample" in row else None]
                for row in rows
            ],
            mark=1.0,
        ),
        "fusion": bars(
            "Operators for each step",
            "How many operators of the optimized graph there are for each kernel or call of ATen.",
            names,
            ["operators / steps"],
            [[_part(row["fusion"]["nodes"], row["fusion"]["steps"])] for row in rows],
            mark=1.0,
        ),
        "traffic": bars(
            "Bytes moved, against operators one by one",
            "Bytes that compiled kernels read and write, divided by those of the operators one by one.",
            names,
            ["bytes compiled / bytes one by one"],
            [[_part(own_bytes(row), eager_bytes(row))] for row in rows],
            mark=1.0,
        ),
    }
    timed = [row for row in rows if "time" in row]
    if timed:
        found["time"] = shares(
            "Where the time goes",
            "The share of each kind of step in the time of a call.",
            [row["name"] for row in timed],
            KINDS,
            [_kinds(row["time"]["seconds"]) for row in timed],
        )
    return found


def _heat(cell: Worth | None) -> Cell:
    if cell is None:
        return Cell(UNKNOWN)
    return (
        Cell(f"{cell.ratio:.2f}", cell.ratio if cell.helps or cell.costs else 1.0)
        if cell.changes
        else Cell(SAME)
    )


def _kinds(seconds: Mapping[str, float]) -> list[float]:
    known = [seconds.get(kind, 0.0) for kind in KINDS[:-1]]
    return [*known, sum(seconds.values()) - sum(known)]


def _part(number: float, of: float) -> float | None:
    return number / of if of else None


# --- the page ---------------------------------------------------------------------------------------------------------


def _markdown(document: Document, pictures: str) -> str:
    return "\n".join(_lines(document, pictures)).rstrip() + "\n"


def _lines(document: Document, pictures: str) -> Iterator[str]:
    settings, rows = document["settings"], measured(document)
    threads = settings["threads"]
    yield "# Which architectures allow which optimizations"
    yield f"\n{MADE}\n"
    yield (
        f"{len(document['architectures'])} architectures, each by one small network in plain PyTorch, and "
        f"{len(document['switches'])} optimizations, switched off one at a time. {where(document['machine'])} "
        f"Code is made for {document['machine'].get('code_for', 'an unknown machine')}; {threads} "
        f"thread{'' if threads == 1 else 's'}, a batch of {settings['batch']}, float32 unless it says otherwise."
    )
    if settings["quick"]:
        yield "\n**This is a quick run, of tiny networks and few rounds: it shows that all works, and no speed.**"
    yield "\n## What surprised\n"
    yield from (f"* {sentence}" for sentence in findings(document))
    yield "\n## What each optimization is worth\n"
    yield (
        "The time of a call without it, divided by that with everything on: above 1 it helps. Medians of the ratios of "
        "rounds that take all variants in turn, in one process; ± is half the distance between their quartiles. "
        f"`{SAME}`: the code is the same without it. *same again* is everything once more, compiled anew: how far two "
        "measurements of one program are apart. Coloured are ratios that differ from 1 by more than 3 %, twice the "
        "noise, and twice what that differs.\n"
    )
    yield _image(
        pictures, "worth", "What each optimization is worth, as a heat map; the table has the numbers"
    )
    yield from _worth_table(document, rows)
    yield "\nWithout it:\n"
    yield from (f"* **{each['name']}**: {each['without']}." for each in document["switches"])
    yield "\n## How each is represented\n"
    yield (
        "Operators are those of the ATen graph as it is recorded; guards are checked on every call, or only after "
        "something that they look at has changed. Symbols are the sizes that a program leaves open where it may.\n"
    )
    yield from markdown(
        ("", "parameters", "operators", "views", "after passes", "regions", "breaks", "guards", "symbols"),
        (_represented(row) for row in rows),
    )
    yield "\n## What fuses\n"
    yield "Operators that do work, and the steps that they become: kernels, templates of products, calls of ATen.\n"
    yield _image(pictures, "fusion", "Operators for each step, as bars; the table has the numbers")
    yield from markdown(
        (
            "",
            "operators",
            "steps",
            "of ATen",
            "fused",
            "largest",
            "changes by passes",
            "joined",
            "not joined",
        ),
        (_fused(row) for row in rows),
    )
    yield "\nBytes are of distinct elements, each once for an operator or a kernel that reads or writes it.\n"
    yield _image(pictures, "traffic", "Bytes moved against operators one by one; the table has the numbers")
    yield from markdown(
        (
            "",
            "bytes one by one",
            "compiled",
            "operations one by one",
            "compiled",
            "constants",
            "arena",
            "reordered",
        ),
        (_moved(row) for row in rows),
    )
    yield "\n## Speed, memory, errors\n"
    yield _image(pictures, "speed", "Speed against eager, as bars; the table has the numbers")
    yield from markdown(
        ("", "eager", "compiled", "times as fast", "eager, one thread", "open sizes", "first call", "memory"),
        (_speeds(row) for row in rows),
    )
    yield "\nErrors are the largest differences from float64, by the largest magnitude there.\n"
    yield from markdown(
        (
            "",
            "error",
            "eager's",
            "one sample",
            "bfloat16 against float32",
            "against eager",
            "its error",
            "eager's",
        ),
        (_precisions(row) for row in rows),
    )
    timed = [row for row in rows if "time" in row]
    if timed:
        yield "\n## Where the time goes\n"
        yield (
            "By kind of step: products, convolutions, attention and recurrent layers by templates, loops, calls of "
            "ATen, and what else a call does. *of limit*: the least time of a machine at its limits, of arithmetic or "
            "memory, divided by that of the steps for which it is known.\n"
        )
        yield _image(pictures, "time", "Where the time goes, as bars; the table has the numbers")
        yield from markdown(("", *KINDS, "of limit"), (_timed(row) for row in timed))
    yield "\n## The architectures"
    for row in document["architectures"]:
        yield from details(row, document)
    yield from _again(document)


def _image(pictures: str, name: str, alternative: str) -> str:
    return f"![{alternative}]({pictures}-{name}.svg)\n"


def _worth_table(document: Document, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    switches = [each["name"] for each in document["switches"]]
    return markdown(("", *switches, "same again"), (_worth_row(row, switches) for row in rows))


def _worth_row(row: Mapping[str, Any], switches: Sequence[str]) -> Iterator[str]:
    yield row["name"]
    for name in switches:
        yield _cell(row["switches"][name], worth(row, name))
    again = inverse(row["columns"]["everything, again"])
    yield UNKNOWN if again is None else f"{again[0]:.2f} ± {again[1]:.2f}"


def _cell(column: Mapping[str, Any], cell: Worth | None) -> str:
    if column["failure"]:
        return "failed"
    if cell is None:
        return UNKNOWN
    return f"{cell.ratio:.2f} ± {cell.noise:.2f}" if cell.changes else SAME


def _represented(row: Mapping[str, Any]) -> Iterable[str]:
    found = row["representation"]
    codes = list(dict.fromkeys(each["code"] for each in found["breaks"]))
    breaks = f"{len(found['breaks'])} ({', '.join(codes)})" if codes else "0"
    return (
        row["name"],
        f"{row['parameters']:,}",
        f"{found['nodes']}",
        f"{found['views']}",
        f"{found['nodes_after_passes']}",
        f"{found['regions']}",
        breaks,
        f"{found['guards']} + {found['guards_after_changes']}",
        f"{len(row['symbols_when_open'])}",
    )


def _fused(row: Mapping[str, Any]) -> Iterable[str]:
    found = row["fusion"]
    share = _part(100 * found["fused_nodes"], found["nodes"])
    return (
        row["name"],
        f"{found['nodes']}",
        f"{found['steps']}",
        f"{sum(found['aten'].values())}",
        UNKNOWN if share is None else f"{share:.0f} %",
        f"{found['largest_nodes']}",
        f"{sum(row['passes'].values())}",
        f"{found['joined']}",
        f"{found['not_joined']}",
    )


def _moved(row: Mapping[str, Any]) -> Iterable[str]:
    work, layout = row["work"], row["layout"]
    return (
        row["name"],
        bytes_text(eager_bytes(row)),
        bytes_text(own_bytes(row)),
        f"{work['eager_flops'] / 1e6:,.1f} M",
        f"{work['flops'] / 1e6:,.1f} M",
        f"{layout['constants']}, {bytes_text(layout['constants_bytes'])}",
        bytes_text(row["arena_bytes"]),
        f"{layout['conversions']}",
    )


def _speeds(row: Mapping[str, Any]) -> Iterable[str]:
    columns = row["columns"]
    ours, alone, opened = columns["everything"], columns["eager, one thread"], inverse(columns["open sizes"])
    return (
        row["name"],
        time_text(columns["eager"]["call_seconds"]),
        time_text(ours["call_seconds"]),
        _ratio(speedup(columns)),
        time_text(alone["call_seconds"]),
        UNKNOWN if opened is None else f"{opened[0]:.2f} ± {opened[1]:.2f}",
        time_text(ours["first_call_seconds"]),
        UNKNOWN if ours["peak_bytes"] is None else bytes_text(ours["peak_bytes"]),
    )


def _precisions(row: Mapping[str, Any]) -> Iterable[str]:
    columns, half = row["columns"], row.get("bfloat16")
    single = against(half["everything"], half["float32"]) if half else None
    return (
        row["name"],
        _error(columns["everything"]),
        _error(columns["eager"]),
        _ratio(speedup(row["one_sample"])) if "one_sample" in row else UNKNOWN,
        UNKNOWN if single is None else f"{single[0]:.2f} ± {single[1]:.2f}",
        _ratio(speedup(half)) if half else UNKNOWN,
        _error(half["everything"]) if half else UNKNOWN,
        _error(half["eager"]) if half else UNKNOWN,
    )


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _error(column: Mapping[str, Any]) -> str:
    return UNKNOWN if column["error"] is None else f"{column['error']:.1e}"


def _timed(row: Mapping[str, Any]) -> Iterable[str]:
    found = row["time"]
    limit = _part(100 * found["least_seconds"], found["least_known_of_seconds"])
    times = (time_text(each) if each else UNKNOWN for each in _kinds(found["seconds"]))
    return row["name"], *times, UNKNOWN if limit is None else f"{limit:.0f} %"


def _again(document: Document) -> Iterator[str]:
    yield "\n## How to measure it again\n"
    yield "<!-- not run: the study takes a quarter of an hour; tests/unit/study runs a small one -->\n"
    yield "    lampwork study --json study.json --page            # on a machine that does nothing else"
    yield "    lampwork study --only encoder --switches fusion    # one architecture, one switch"
    yield "    lampwork study --page study.json                   # this page, of numbers that are there\n"
    yield (
        f"This took {document['took_seconds'] / 60:.1f} minutes. `lampwork.study.run()` gives the same numbers as "
        "dicts and lists, whose keys `lampwork/study/document.py` lists. Networks are in "
        "`lampwork/study/architectures/`, with random weights; switches in `lampwork/study/switches.py`: options of "
        "`lampwork.compile`, or another description of the machine (`NativeBackend(target)`)."
    )
