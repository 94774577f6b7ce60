"""`lampwork.explain(fn)(*args)`: run a function compiled and report how it was compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from lampwork.api import check_keywords, check_model, function_of, make_function, original_of
from lampwork.capture.model.printing import format_condition, format_symbol
from lampwork.capture.model.region import Guard
from lampwork.compiled.entries import Entry
from lampwork.compiled.function import Function
from lampwork.compiled.module import CompiledModule
from lampwork.display import Shown
from lampwork.errors import Location, OptionError
from lampwork.inspect.explanation import Explanation, FunctionReport, GuardLine, RegionReport
from lampwork.inspect.profile.watch import UNSEEN, Times, Watch
from lampwork.records import record
from lampwork.runtime import Compiled


@record
class Explainer(Shown):
    """Explains a function: call it with the arguments that the function is to be called with."""

    function: Function

    def _brief(self) -> str:
        return f"{self.function.name}: call this with the arguments of a call to have it explained"

    def __str__(self) -> str:
        return self._brief()

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call the function once and explain the versions that it has after the call. How long their steps took is of
        this call, if nobody profiles meanwhile.

        Raises:
            Exception: what the function raises.
        """
        with Watch() as watch:
            self.function.compiled(*args, **kwargs)
        return explanation_of(self.function, times=watch.times())


def explain(fn: Callable[..., Any], **keywords: Any) -> Explainer:
    """`explain(fn)(*args)` runs `fn(*args)` compiled, once, and returns an Explanation: the compiled regions with their
    lines, operators and guards, the graph breaks, the refusals, and the recompilations with their reasons.

    Args:
        fn: anything that `compile` takes, which is compiled anew with `keywords`; what cannot be compiled is only
            reported, without a warning or an error, unless the options set `strict`. Or a callable that `compile`
            returned, which is explained with all its versions.
        keywords: the keywords of `compile`.

    Raises:
        OptionError: as for `compile`; or keywords were given for an already compiled callable.
    """
    if isinstance(fn, (Compiled, CompiledModule)):
        if keywords:
            raise OptionError(
                "explain() takes no options for what is compiled already",
                fix="leave them out, or pass the original function",
            )
        return Explainer(function_of(fn))
    keywords.setdefault("options", {})
    check_model(fn, "explain")
    if isinstance(keywords["options"], Mapping):
        keywords["options"] = {"strict": False, **keywords["options"]}
    return Explainer(make_function(original_of(fn), check_keywords(**keywords), quiet=True))


def explanation_of(*roots: Function, name: str = "", times: Times = UNSEEN) -> Explanation:
    """The explanation of functions in their current state, with their resume functions and callees. `name`: of all of
    them; that of the first if it is left out. `times`: of calls that were seen."""
    functions = list({id(each): each for root in roots for each in root.tree()}.values())
    regions: dict[int, Entry] = {}
    for entry in (entry for each in functions for entry in each.entries):
        for part in entry.regions:
            regions.setdefault(id(part), part)
    places = {number: place for place, number in enumerate(regions)}
    options = [asdict(root.config) for root in roots]
    return Explanation(
        name or roots[0].name,
        tuple(_report(entry) for entry in regions.values()),
        tuple(dict.fromkeys(record for entry in regions.values() for record in entry.breaks)),
        tuple(record for each in functions for record in each.refusals),
        tuple(record for each in functions for record in each.recompiles),
        tuple(
            FunctionReport(
                each.name, tuple(places[id(entry)] for entry in each.entries), tuple(each.refusals)
            )
            for each in functions
        ),
        {key: value for key, value in (options or [{}])[0].items() if all(o[key] == value for o in options)},
        times,
    )


def _report(entry: Entry) -> RegionReport:
    region = entry.region
    guards = [
        *(_guard(guard) for guard in region.guards),
        *(GuardLine(str(condition), _line_text(condition.line)) for condition in region.conditions),
        *(_guard(guard, slow=True) for guard in region.slow_guards),
    ]
    return RegionReport(
        entry.name,
        _ranges(entry.lines),
        entry.operators,
        tuple(guards),
        tuple(format_symbol(symbol) for symbol in region.symbols),
        entry.breaks,
        dict(entry.stages.counts),
        dict(entry.stages.seconds),
        entry.hits,
        entry.refreshes,
        entry.stages,
    )


def _guard(guard: Guard, *, slow: bool = False) -> GuardLine:
    return GuardLine(format_condition(guard), _line_text(guard.line), slow)


def _line_text(line: Location | None) -> str:
    return "" if line is None else line.line_text


def _ranges(locations: Iterable[Location]) -> dict[str, str]:
    """{file: "12-14, 20"}, files in order of first appearance."""
    numbers: dict[str, set[int]] = {}
    for location in locations:
        numbers.setdefault(location.file, set()).add(location.line)
    return {file: _range_text(sorted(lines)) for file, lines in numbers.items()}


def _range_text(lines: list[int]) -> str:
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
