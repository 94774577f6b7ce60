"""The command `lampwork`, also `python -m lampwork`."""

from __future__ import annotations

import argparse
import linecache
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lampwork.artifacts import signing
from lampwork.checks import nearest
from lampwork.compiled.function import Function
from lampwork.compiled.live_functions import kept
from lampwork.display import printable, run_for_reader, show
from lampwork.errors import BisectError, ExportError, LampworkError, MinifyError, ReportReadError
from lampwork.exports.door import check_folder, format_of, places, write
from lampwork.inspect.bisect import bisect, check_script
from lampwork.inspect.difference import KINDS, THRESHOLD, diff
from lampwork.inspect.environment import environment
from lampwork.inspect.explain import explanation_of
from lampwork.inspect.explanation import format_counts
from lampwork.inspect.profile import profile
from lampwork.inspect.profile.rows import BY
from lampwork.inspect.profile.session import MOST
from lampwork.inspect.profile.watch import Watch
from lampwork.inspect.rewrites import rewrites
from lampwork.inspect.scripts import run_script
from lampwork.minifying.command import CHECKS, check_of, minify_noted
from lampwork.minifying.noting import noting
from lampwork.minifying.script import keep_source
from lampwork.standard import math

ELSEWHERE = {
    "bench": ("lampwork.bench.__main__", "measure networks under every compiler"),
    "cache": (
        "lampwork.cache.command",
        "look at what is kept on disk between processes, clear it, or take it along",
    ),
    "inspect": ("lampwork.artifacts.inspecting", "say what is in a .lamp file"),
    "study": ("lampwork.study.command", "measure what each optimization is worth to each architecture"),
}
"""Commands with arguments of their own: where their `main` is, and what they do. They are loaded when asked for."""

MINIFIED = "minified.py"
REPORT = "report.html"


def parser() -> argparse.ArgumentParser:
    """The arguments of all subcommands."""
    top = argparse.ArgumentParser(prog="lampwork", description="A just-in-time compiler for PyTorch.")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    found = commands.add_parser(
        "bisect",
        help="find the rewrite that breaks a script",
        description="Run a script, which exits with 0 when all is right, with fewer and fewer rewrites, and name the "
        "one that breaks it.",
    )
    found.add_argument(
        "--passes", action="store_true", help="find the pass first, where there are many rewrites"
    )
    found.add_argument("--timeout", type=_seconds, help="seconds after which a run counts as wrong")
    found.add_argument("--quiet", action="store_true", help="print the result only")
    _takes_script(found)
    found.set_defaults(run=_bisect)

    listed = commands.add_parser(
        "rewrites",
        help="list rewrites with their hits",
        description="List the rewrites of Lampwork; after a script has run, those it registered too, with how often "
        "each fired.",
    )
    listed.add_argument("--json", action="store_true", help="as JSON")
    listed.add_argument("--never-fired", action="store_true", help="only those without hits")
    _takes_script(listed, nargs="?", help="a Python file to run first")
    listed.set_defaults(run=_rewrites)

    measured = commands.add_parser(
        "profile",
        help="run a script and show which kernels are slow",
        description="Run a script, then print what took how long, how far that is from what the machine can do, and "
        "where it comes from. The exit status is the script's.",
    )
    measured.add_argument("--by", choices=BY, default="kernel", help="what a row is (default: kernel)")
    measured.add_argument("--most", type=_count, default=MOST, help=f"so many rows at most (default: {MOST})")
    measured.add_argument("--json", metavar="FILE", help="write all numbers there")
    measured.add_argument("--trace", metavar="FILE", help="write a trace for https://ui.perfetto.dev there")
    _takes_script(measured)
    measured.set_defaults(run=_profile)

    explained = commands.add_parser(
        "explain",
        help="write a report of all that a script compiles",
        description="Run a script, then write what became of every function that it compiled to one HTML file, also if "
        "the script raises. The exit status is the script's.",
    )
    explained.add_argument(
        "-o", "--output", metavar="FILE", default=REPORT, help=f"the report (default: {REPORT})"
    )
    _takes_script(explained)
    explained.set_defaults(run=_explain)

    exported = commands.add_parser(
        "export",
        help="write what a script compiles in a format of other tools",
        description="Run a script, then write what it compiled: .pt2 for torch.export, .onnx, .json for Model "
        "Explorer, .dot for Graphviz, or a folder for tlparse. The exit status is the script's.",
        usage="lampwork export [-h] [--function NAME] [--region N] [--module PATH] [--format FORMAT] script OUT "
        "[-- arguments of the script]",
    )
    exported.add_argument("--function", metavar="NAME", help="of one compiled function only")
    exported.add_argument(
        "--region", metavar="N", help="one region, by number or name, where there are several"
    )
    exported.add_argument("--module", metavar="PATH", default="", help="what this module computes only")
    exported.add_argument("--format", metavar="FORMAT", help="where the suffix does not say")
    exported.add_argument("script", help="a Python file")
    exported.add_argument("output", metavar="OUT", help="the file, or the folder of a trace")
    exported.set_defaults(run=_export, arguments=[])

    signing.add_commands(commands)

    compared = commands.add_parser(
        "diff",
        help="show what differs between two reports",
        description="Compare two reports of `lampwork explain`: what is faster and slower, fused and unfused, breaks, "
        "kernels, memory, operators, the time to compile. The exit status is 0, 1 if --fail-on names something that "
        "was found, and 2 if there is nothing to compare.",
    )
    compared.add_argument("--json", action="store_true", help="as JSON")
    compared.add_argument(
        "--threshold",
        type=_percent,
        default=THRESHOLD,
        metavar="PERCENT",
        help=f"the part by which a time has to differ to count (default: {100 * THRESHOLD:g})",
    )
    compared.add_argument(
        "--fail-on",
        type=_kinds,
        default=(),
        metavar="KINDS",
        help=f"exit with 1 if there are such; with commas between them: {', '.join(KINDS)}",
    )
    compared.add_argument("before", help="a report, .html, or its data, .json")
    compared.add_argument("after", help="another one")
    compared.set_defaults(run=_diff)

    told = commands.add_parser(
        "env",
        help="say what there is, and whether Lampwork works here",
        description="Print what a bug report needs: versions, machine, cache, variables, packages, options; then "
        "compile and run a function and a training step, and compare them with eager. The exit status is 0 if they "
        "are right, else 1.",
    )
    told.add_argument("--json", action="store_true", help="as JSON")
    told.set_defaults(run=_env)

    reduced = commands.add_parser(
        "minify",
        help="cut a small script that fails out of one that does",
        description="Run a script in eager PyTorch, then compile each of its graphs alone, and make the first one that "
        "fails as small as it gets. The exit status is 0 if one does, else 2.",
    )
    reduced.add_argument("--check", choices=CHECKS, default="any", help="what to look for (default: any)")
    reduced.add_argument(
        "--slow", type=_seconds, default=2.0, help="with --check slow: times eager's time (2)"
    )
    reduced.add_argument("--seconds", type=_seconds, default=300.0, help="how long to go on (300)")
    reduced.add_argument("--timeout", type=_seconds, default=60.0, help="of one program, in seconds (60)")
    reduced.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="what the result imports",
    )
    reduced.add_argument("--quiet", action="store_true", help="print the result only")
    reduced.add_argument(
        "-o", "--output", metavar="FILE", default=MINIFIED, help=f"the small script (default: {MINIFIED})"
    )
    _takes_script(reduced)
    reduced.set_defaults(run=_minify)

    for name, (_, does) in ELSEWHERE.items():
        commands.add_parser(name, help=does)
    return top


def _takes_script(command: argparse.ArgumentParser, help: str = "a Python file", **how: Any) -> None:
    command.add_argument("script", help=help, **how)
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def _count(text: str) -> int:
    found = int(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of rows, give 1 or more")
    return found


def _seconds(text: str) -> float:
    found = float(text)
    if not found > 0:
        raise argparse.ArgumentTypeError(f"{text} is no time, give seconds above 0")
    return found


def _percent(text: str) -> float:
    found = float(text)
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no part, give percent, 0 or more")
    return found / 100


def _kinds(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in found:
        if name not in KINDS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no kind of difference: {nearest(name, KINDS, 'the kinds are')}"
            )
    return found


def _bisect(given: argparse.Namespace) -> int:
    keep_source(given.script)
    say: Any = (lambda text: None) if given.quiet else (lambda text: print(text, flush=True))
    try:
        print(bisect(given.script, given.arguments, passes=given.passes, timeout=given.timeout, say=say))
    except BisectError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _rewrites(given: argparse.Namespace) -> int:
    status = run_script(given.script, given.arguments) if given.script else 0
    table = rewrites(all=True)
    table = table.never_fired if given.never_fired else table
    if given.json:
        print(table.to_json())
    else:
        show(table)
    return status


def _profile(given: argparse.Namespace) -> int:
    check_script(given.script)
    # The script may go elsewhere.
    numbers, trace = (path and Path(path).absolute() for path in (given.json, given.trace))
    with profile() as found:
        status = run_script(given.script, given.arguments)
    if numbers:
        found.save_numbers(numbers)
    if trace:
        found.save(trace)
    print(printable(found.table(given.by, given.most)))
    return status


def _explain(given: argparse.Namespace) -> int:
    check_script(given.script)
    output = Path(given.output).absolute()  # the script may go elsewhere
    linecache.getlines(given.script)
    with kept() as made, Watch() as watch:
        status = run_script(given.script, given.arguments)
    functions = [each for each in made if isinstance(each, Function) and each.root]
    found = explanation_of(*functions, name=Path(given.script).name, times=watch.times())
    try:
        found.save(output)
    except LampworkError as error:
        print(error, file=sys.stderr)
        return status or 1
    print(f"{format_counts(found)}\nreport: {output}", file=sys.stderr)
    return status


def _export(given: argparse.Namespace) -> int:
    check_script(given.script)
    output = Path(given.output).absolute()  # the script may go elsewhere
    format = format_of(output, given.format)
    if format != "tlparse":
        check_folder(output)
    with kept() as made, Watch() as watch:
        status = run_script(given.script, given.arguments)
    functions = [each for each in made if isinstance(each, Function) and each.root]
    if given.function is not None:
        names = tuple(dict.fromkeys(each.name for each in functions))
        functions = [each for each in functions if each.name == given.function]
        if not functions:
            fix = (
                nearest(given.function, names, "those are") if names else "call what lampwork.compile returns"
            )
            raise ExportError(f"the script compiled no function {given.function!r}", fix=fix)
    region = int(given.region) if given.region is not None and given.region.isdigit() else given.region
    print(write(places(*functions), format, output, region, given.module, watch.times()), file=sys.stderr)
    return status


def _diff(given: argparse.Namespace) -> int:
    try:
        found = diff(given.before, given.after, threshold=given.threshold)
    except ReportReadError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(found.to_json())
    else:
        show(found)
    failed = [kind for kind in given.fail_on if found.of(kind)]
    if failed:
        print(f"failed: {', '.join(KINDS[kind] for kind in failed)}", file=sys.stderr)
    return 1 if failed else 0


def _env(given: argparse.Namespace) -> int:
    found = environment()
    if given.json:
        print(found.to_json())
    else:
        show(found)
    return 0 if found.ok else 1


def _minify(given: argparse.Namespace) -> int:
    check_script(given.script)
    check = check_of(given.check, given.slow, given.timeout, given.seconds)
    output = Path(given.output).absolute()  # the script may go elsewhere
    keep_source(given.script)
    say: Any = (lambda text: None) if given.quiet else (lambda text: print(text, flush=True))
    with noting() as noted:
        status = run_script(given.script, given.arguments)
    if status:
        print(f"the script ended with exit status {status}, in eager PyTorch", file=sys.stderr)
    try:
        found = minify_noted(noted, check, given.seconds, given.imports, say)
    except MinifyError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        found.save(output)
    except LampworkError as error:
        print(f"{found.script}\n{found.summary()}")
        print(error, file=sys.stderr)
        return 1
    print(f"{found.summary()}\nscript: {output}")
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; those of the script that `export` runs are after --."""
    if arguments[:1] != ["export"] or "--" not in arguments:
        return parser().parse_args(arguments)
    end = arguments.index("--")
    given = parser().parse_args(arguments[:end])
    given.arguments = arguments[end + 1 :]
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit status: 0, 1 for an error, 2 for a question without an answer."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_for_reader(lambda: _run(given))


def _run(arguments: list[str]) -> int:
    try:
        if arguments and arguments[0] in ELSEWHERE:
            return import_module(ELSEWHERE[arguments[0]][0]).main(arguments[1:])
        given = _parsed(arguments)
        return given.run(given)
    except LampworkError as error:
        print(error, file=sys.stderr)
        return 1
