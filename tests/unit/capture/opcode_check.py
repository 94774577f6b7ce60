"""Runs a case of the opcode table, or a random program, in this Python, with torch or with its stand-in.

As a script it runs all cases of the running version and as many random programs as it is told to, and prints what
went wrong with each as lines of JSON.
"""

from __future__ import annotations

import argparse
import copy
import dis
import itertools
import json
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opcode_case import Case
from opcode_fuzz import Program
from opcode_programs import CASES

VERSION = (sys.version_info.major, sys.version_info.minor)
_numbers = itertools.count()


def contained(code: types.CodeType) -> Iterator[str]:
    """The opcodes of a code object and of those in it."""
    yield from (dis.opname[number] for number in code.co_code[::2])
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from contained(constant)


def load(case: Case) -> tuple[types.CodeType, dict[str, Any]]:
    """The case's code object, and its namespace once it has run (empty for a case that is not a module)."""
    name = f"<case {next(_numbers)}>"
    linecache.cache[name] = (len(case.source), None, case.source.splitlines(True), name)
    code = compile(case.source, name, case.mode)
    space: dict[str, Any] = {"__name__": "case"}
    if case.calls:
        exec(code, space)
    return code, space


def run_case(opcode: str, case: Case) -> str | None:
    """What is wrong with the interpreter's treatment of an opcode; None if nothing is.

    The program must contain the opcode, and do the same in plain Python and captured. A handled opcode must be run by
    the interpreter and lead to no break but those that the case names; a refused one must break with its name.
    """
    from lampwork.capture.model.errors import Break
    from lampwork.capture.opcodes import table_for

    table = table_for(VERSION)
    (code, space), (_, plain) = load(case), load(case)
    if opcode not in contained(code):
        return "the program does not contain it"
    refused = opcode in table and table[opcode].__qualname__.startswith("_refuse.")
    if refused:
        try:
            table[opcode](None, None, None)
        except Break as stop:
            if (stop.code, stop.detail) != ("LW115", opcode):
                return f"it is refused as {stop.code} {stop.detail}"
    if not case.calls:
        return None
    executed: set[str] = set()
    reference = static_reference(space["f"])
    with recording(table, executed):
        problem = first_difference(reference, plain["f"], case.calls)
    if problem is None and case.breaks != ():
        (_, space), (_, plain) = load(case), load(case)
        other = static_reference(space["f"], captures_resumes=False)
        problem = first_difference(other, plain["f"], case.calls)
    if problem is not None:
        return problem
    records = [*reference.records, *refusals_of(reference)]
    codes = {record.code for record in records}
    if not codes if case.breaks is None else codes != set(case.breaks):
        return f"records {[str(record) for record in records]}"
    if not refused and opcode in table and opcode not in executed and not case.skipped:
        return "the interpreter never ran it"
    return None


def run_random(seed: int) -> str | None:
    """What a random program does otherwise when it is captured; None if nothing."""
    case = Case(Program(seed).source(), ((),))
    for resumes in ("captured", "plain"):
        (_, space), (_, plain) = load(case), load(case)
        reference = static_reference(space["f"], captures_resumes=resumes == "captured")
        calls = [(n, items) for n in (1, 3) for items in ([1, 2], ["x"], [])]
        problem = first_difference(reference, plain["f"], calls)
        if problem is not None:
            return f"resume functions {resumes}: {problem}\n{case.source}"
    return None


def first_difference(
    function: Callable[..., Any], plain: Callable[..., Any], calls: Iterable[tuple[Any, ...]]
) -> str | None:
    """How two functions differ on calls, each made twice; None if they do not."""
    for args in calls:
        for _ in range(2):
            problem = difference(function, plain, args)
            if problem is not None:
                return problem
    return None


def difference(function: Callable[..., Any], plain: Callable[..., Any], args: tuple[Any, ...]) -> str | None:
    """How a call of two functions differs in result, exception, output or effects on the arguments."""
    from capture_reference import outcome, same

    theirs, mine = copy.deepcopy(args), copy.deepcopy(args)
    eager = outcome(plain, theirs, {})
    ours = outcome(function, mine, {})
    if eager[1:] != ours[1:]:
        return f"{args}: {ours[1:]} instead of {eager[1:]}"
    try:
        same(ours[0], eager[0])
        same(mine, theirs)
    except AssertionError:
        return f"{args}: {ours[0]}, {mine} instead of {eager[0]}, {theirs}"
    return None


def static_reference(function: Callable[..., Any], captures_resumes: bool = True) -> Any:
    """A Reference that leaves no integer open: the stand-in of torch has no symbolic integers. Its resume functions
    are captured, or run in plain Python."""
    from capture_reference import Reference

    class Static(Reference):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.options.dynamic = None
            if not captures_resumes:
                self.options.compile_resume = None

    return Static(function)


def refusals_of(reference: Any) -> Iterator[Any]:
    """What a reference and those of its callees and resume functions refused."""
    yield from reference.refusals
    for child in reference.children.values():
        yield from refusals_of(child)


def _of_the_compiler(function: Any) -> Any:
    """`function`, which is to run while a program is captured, though code of the program's must not."""
    import lampwork.capture

    function.__code__ = function.__code__.replace(co_filename=lampwork.capture.__file__)
    return function


class recording:
    """While active, names of the opcodes that the interpreter runs are added to a set."""

    def __init__(self, table: Mapping[str, Callable[..., Any]], executed: set[str]) -> None:
        def noting(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
            def run(interp: Any, frame: Any, arg: Any) -> Any:
                executed.add(name)
                return handler(interp, frame, arg)

            return _of_the_compiler(run)

        self.table = {name: noting(name, handler) for name, handler in table.items()}
        self.module: Any = None
        self.before: Any = None

    def __enter__(self) -> None:
        import lampwork.capture  # noqa: F401

        self.module = sys.modules["lampwork.capture.capture"]
        self.before = self.module.running_table
        self.module.running_table = _of_the_compiler(lambda: self.table)

    def __exit__(self, *error: Any) -> None:
        self.module.running_table = self.before


def opcodes_of_running() -> list[str]:
    """What this Python can have in code objects."""
    return [
        name for name, number in dis.opmap.items() if number < 256 and not name.startswith("INSTRUMENTED_")
    ]


def main() -> None:
    import opcode_stand_in

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("random", type=int, help="how many random programs")
    parser.add_argument("opcodes", nargs="*", help="of which opcodes to run the cases; by default of all")
    given = parser.parse_args()
    opcode_stand_in.install()
    print(json.dumps({"opcodes": opcodes_of_running()}), flush=True)
    cases = {
        opcode: next((p for case in cases if (p := run_case(opcode, case)) is not None), None)
        for opcode, cases in CASES[VERSION].items()
        if not given.opcodes or opcode in given.opcodes
    }
    print(json.dumps({"cases": cases}), flush=True)
    print(json.dumps({"random": {seed: run_random(seed) for seed in range(given.random)}}))


if __name__ == "__main__":
    main()
