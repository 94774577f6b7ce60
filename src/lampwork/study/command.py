"""`lampwork study`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lampwork.standard import functools
from lampwork.study.architectures import ARCHITECTURES
from lampwork.study.document import read, to_json, write
from lampwork.study.findings import findings
from lampwork.study.render import save
from lampwork.study.study import run
from lampwork.study.switches import switches

PAGE = "study.md"
MEASURED = object()
"""`--page` without a file: the page of what is measured now."""


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    found = argparse.ArgumentParser(
        prog="lampwork study",
        description="Compile twelve architectures, switch off one optimization at a time, and write down what each is "
        "worth: as JSON, and as a page with pictures. The exit status is 0, or 1 if an architecture failed.",
        epilog=f"architectures: {', '.join(ARCHITECTURES)}. switches: {', '.join(switches())}.",
    )
    found.add_argument("--only", nargs="+", metavar="ARCH", help="these architectures (default: all)")
    found.add_argument("--switches", nargs="+", metavar="SWITCH", help="switch off these (default: all)")
    found.add_argument(
        "--quick", action="store_true", help="tiny networks, few rounds: whether all of it works"
    )
    found.add_argument("--threads", type=int, help="of torch (default: 2, if there are as many CPUs)")
    found.add_argument("--seconds", type=float, help="for each variant (default: 0.6)")
    found.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    found.add_argument(
        "--page",
        nargs="?",
        const=MEASURED,
        metavar="FILE",
        help="write a page, of this JSON; without a file, of what is measured now",
    )
    found.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"the page (default: {PAGE})")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or read what was measured; then write, and say what surprised."""
    arguments_of = parser()
    given = arguments_of.parse_args(arguments)
    numbers = None if given.page in (None, MEASURED) else Path(given.page)
    measuring = (given.only, given.switches, given.threads, given.seconds, given.json)
    if numbers is not None and (given.quick or any(each is not None for each in measuring)):
        arguments_of.error("--page FILE measures nothing, so it goes with --output alone")
    if given.page is None and given.output is not None:
        arguments_of.error("--output is where the page goes: add --page")
    if numbers is not None:
        document = read(numbers)
    else:
        document = run(
            given.only,
            without=given.switches,
            quick=given.quick,
            threads=given.threads,
            seconds=given.seconds,
            say=functools.partial(print, flush=True),
        )
    if given.json:
        write(given.json, to_json(document))
        print(f"numbers: {given.json}")
    if given.page is not None:
        print(f"page: {save(document, given.output or Path(PAGE))[0]}")
    print("\n".join(findings(document)))
    return 1 if any(row.get("failure") for row in document["architectures"]) else 0
