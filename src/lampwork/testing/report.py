"""What a battery of checks found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from lampwork.display import Shown
from lampwork.errors import LampworkError
from lampwork.records import record

Outcome = Literal["passed", "failed", "skipped"]


@record
class Check(Shown):
    """One check: what it looks at, how it ended, and what exactly was seen."""

    name: str
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        mark = {"passed": "ok  ", "failed": "FAIL", "skipped": "skip"}[self.outcome]
        return f"{mark} {self.name}" + (f": {self.detail}" if self.detail else "")


@record
class Report(Shown):
    """All checks of one plug-in, in order. Printable."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if c.outcome == "failed")

    @property
    def ok(self) -> bool:
        return not self.failed

    def __str__(self) -> str:
        counts = ", ".join(f"{_count(self.checks, o)} {o}" for o in ("passed", "failed", "skipped"))
        return "\n".join([f"{self.subject}: {counts}", *map(str, self.checks)])


def _count(checks: Sequence[Check], outcome: str) -> int:
    return sum(c.outcome == outcome for c in checks)


class ConformanceError(LampworkError, AssertionError):
    """A plug-in failed its battery. `report` has every check."""

    code = "LW600"

    def __init__(self, report: Report) -> None:
        self.report = report
        first = report.failed[0]
        more = len(report.failed) - 1
        super().__init__(
            f"{report.subject} fails the check {first.name!r}: {first.detail}"
            + (f" (and {more} more checks)" if more else ""),
            fix="print(error.report) lists all checks; docs/testing.md says what each asks for",
        )


class Failed(Exception):
    """A check did not hold; the text says what was seen."""


class Skipped(Exception):
    """A check does not apply; the text says why."""


B = TypeVar("B")


def run_checks(
    checks: Mapping[str, Callable[[B], str]], battery: B, only: Iterable[str], skip: Iterable[str]
) -> tuple[Check, ...]:
    """Run them in order: those that `only` names, or all if it names none, without those in `skip`.

    Raises:
        LampworkError: there is no check of a name in `only` or `skip`.
    """
    chosen, left_out = set(only) or set(checks), set(skip)
    unknown = sorted((chosen | left_out) - set(checks))
    if unknown:
        raise LampworkError(f"no check is called {unknown[0]!r}", fix=f"the checks are {', '.join(checks)}")
    return tuple(
        Check(name, "skipped", "as asked") if name in left_out else _run(name, check, battery)
        for name, check in checks.items()
        if name in chosen
    )


def _run(name: str, check: Callable[[B], str], battery: B) -> Check:
    try:
        return Check(name, "passed", check(battery))
    except Skipped as reason:
        return Check(name, "skipped", str(reason))
    except Failed as reason:
        return Check(name, "failed", str(reason))
    except LampworkError as error:
        return Check(name, "failed", str(error))
    except Exception as error:  # noqa: BLE001  (a plug-in may raise anything: the report must say so, and go on)
        return Check(name, "failed", f"{type(error).__name__}: {error}")


def conclude(report: Report, raises: bool) -> Report:
    """The report.

    Raises:
        ConformanceError: a check failed, and `raises` is true.
    """
    if raises and not report.ok:
        raise ConformanceError(report)
    return report
