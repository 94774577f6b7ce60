"""`lampwork.rewrite`, `register_pass`, `sequence` and `passes`: optimizations that a user adds."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import fx

from lampwork.backends.registry import get_backend
from lampwork.config import PASSES_TOLD, current, using_config
from lampwork.errors import Location, OptionError, PassError
from lampwork.plugins.arrange import DEFAULT_PLACE
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import Place, Registered, registry
from lampwork.plugins.switches import Switches
from lampwork.rewriting.apply.driver import Rule, as_rule, rule, rule_of
from lampwork.rewriting.language.rules import checked_tolerance, source_of
from lampwork.rewriting.matching.match import Match
from lampwork.standard import functools
from lampwork.transforms.pipeline import check_switches, pass_names
from lampwork.verdict import Verdict

Check = Callable[[Match], "Verdict | bool"]
Step = Callable[[fx.Graph, PassContext], None]


def rewrite(
    pattern: Any = None,
    replacement: Any = None,
    *,
    name: str = "",
    check: Check | None = None,
    priority: int = 0,
    after: str = "",
    before: str = "",
    enabled: bool = True,
    tolerance: float = 0.0,
) -> Any:
    """Register a rewrite: from now on every compilation applies it.

    before:  %a = add(%x, %y), %b = div(%a, 8.0)
    after:   %b = mine.add_div(%x, %y, 8.0)

    A rewrite is a line of algebra, `rewrite("neg(neg(x))", "x")`; two functions of PyTorch code,
    `rewrite(lambda x, y, c: (x + y) / c, lambda x, y, c: torch.ops.mine.add_div(x, y, c))`; or, as a decorator, a class
    with `pattern`, `replacement` and optionally `check(match)`, `priority` and `tolerance`. It replaces a registered
    rewrite of the same name.

    Returns the `Registered`, which has `hits`, `enable()`, `disable()` and `unregister()`.

    Args:
        pattern: the text, the function or the class.
        replacement: the text or the function; left out for a class.
        name: its name in logs and switches. By default the text, the function's name or its file and line, or the
            class's name in snake case.
        check: a further condition on a match, which returns Yes() or No(reason).
        priority: rewrites of higher priority are tried first.
        after, before: the name of a pass; the rewrite then runs on its own right after or before that pass. By
            default all rewrites run together in the pass `rewrites`.
        enabled: if False, only compilations with passes="+name" apply it, until `enable()` is called.
        tolerance: for an approximation on purpose: the root mean square error that it may make, as a share of the root
            mean square of the results that it replaces. verify="numeric" accepts it up to that, for floating results;
            nothing else depends on it.

    Raises:
        PassError: the pattern or the replacement is invalid.
        OptionError: `after` or `before` names no pass; `name` is the name of one of Lampwork's passes, or none that a
            switch can name; `enabled` is no bool.
    """
    _check_enabled(enabled)
    if pattern is None and replacement is None:
        return functools.partial(
            rewrite,
            name=name,
            check=check,
            priority=priority,
            after=after,
            before=before,
            enabled=enabled,
            tolerance=tolerance,
        )
    place = _place(after, before)
    made = _rule(pattern, replacement, name, check, priority, tolerance)
    _check_name(made.name)
    plugin = (pattern, replacement, check, priority, tolerance)
    item = Registered(
        made.name, "rewrite", plugin, registry(), made.source, enabled=enabled, place=place, rule=made
    )
    return registry().add(item)


def _rule(
    pattern: Any,
    replacement: Any,
    name: str = "",
    check: Check | None = None,
    priority: int = 0,
    tolerance: float = 0.0,
) -> Rule:
    if check is not None and not callable(check):
        raise PassError(
            f"the check of a rewrite is {check!r}", fix="give a function (match) -> Yes() or No(reason)"
        )
    if type(priority) is not int:
        raise PassError(f"the priority of a rewrite is {priority!r}", fix="give an int")
    tolerance = checked_tolerance(tolerance)
    if isinstance(pattern, str) and isinstance(replacement, str):
        return rule(
            pattern,
            replacement,
            name=name,
            check=check,
            priority=priority,
            tolerance=tolerance,
            source=_caller(),
        )
    whole = isinstance(pattern, type | Rule) or hasattr(pattern, "pattern") or hasattr(pattern, "replacement")
    if replacement is None and whole:
        made = as_rule(pattern)
        return dataclasses.replace(
            made,
            name=name or made.name,
            check=check or made.check,
            priority=priority or made.priority,
            tolerance=tolerance or made.tolerance,
        )
    if callable(pattern) and callable(replacement) and not whole:
        return rule_of(pattern, replacement, name=name, check=check, priority=priority, tolerance=tolerance)
    raise _no_rewrite(pattern, replacement)


def _no_rewrite(pattern: Any, replacement: Any) -> PassError:
    """The error of arguments that are no rewrite together."""
    given = f"got {_what(pattern)} and {_what(replacement)}"
    forms = "two texts, two functions or a class with `pattern` and `replacement`"
    if replacement is None and isinstance(pattern, str):
        return PassError(
            f"the rewrite of {pattern!r} has no replacement: rewrite() takes {forms}",
            fix=f'give it as the second argument, lampwork.rewrite({pattern!r}, "...")',
        )
    if replacement is None and callable(pattern):
        return PassError(
            f"the rewrite of {_what(pattern)} has no replacement: rewrite() takes {forms}",
            fix="give a second function, lampwork.rewrite(pattern, replacement), or put both into a class",
        )
    if isinstance(pattern, type) or hasattr(pattern, "pattern"):
        return PassError(
            f"{_what(pattern)} has its own replacement, and rewrite() is given another: {_what(replacement)}",
            fix="give the class alone, or two functions",
        )
    return PassError(f"rewrite() takes {forms}, {given}", fix='write lampwork.rewrite("neg(neg(x))", "x")')


def _what(value: Any) -> str:
    """A value in the words of a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    plain = value is None or isinstance(value, str | int | float)
    return repr(value) if plain else f"a {type(value).__name__}"


def register_pass(
    step: Any = None, *, after: str = "", before: str = "", name: str = "", enabled: bool = True
) -> Any:
    """Register a pass: from now on every compilation runs it. Also works as a decorator, with or without arguments.

    before:  canonicalize, ..., rewrites, library, ..., algebra
    after:   canonicalize, ..., rewrites, library, ..., algebra, mine       (after="algebra")

    A pass is a function `(graph, ctx) -> None`, or a class or an instance with `run(graph, ctx)` and optionally a
    `name`; it changes the `torch.fx.Graph` in place. New nodes without `meta["val"]` get their specs inferred. The
    graph is checked after the pass; if the pass raises, leaves an invalid graph or does not finish, it is restored.

    Returns the `Registered`, which has `hits`, `enable()`, `disable()` and `unregister()`.

    Args:
        step: the pass.
        after, before: the name of the pass after or before which it runs; of a pass that runs twice, the first run
            counts. By default it runs after `rewrites`.
        name: its name in logs and switches. By default its attribute `name`, or the name of the function or class in
            lower case with dashes.
        enabled: if False, only compilations with passes="+name" run it, until `enable()` is called.

    Raises:
        OptionError: `step` is not a pass; otherwise as for `rewrite`.
    """
    _check_enabled(enabled)
    if step is None:
        return functools.partial(register_pass, after=after, before=before, name=name, enabled=enabled)
    place = _place(after, before) or DEFAULT_PLACE
    return registry().add(_pass(step, name, place, enabled))


def _pass(step: Any, name: str, place: Place | None, enabled: bool) -> Registered:
    try:
        made = step() if isinstance(step, type) else step
    except TypeError as error:
        raise OptionError(
            f"pass {step.__name__} cannot be made without arguments: {error}", fix="pass an object of it"
        ) from error
    run: Any = getattr(made, "run", None) or made
    if not callable(run):
        raise OptionError(
            f"{_what(step)} is no pass", fix="give a function (graph, ctx), or a class with run(graph, ctx)"
        )
    source = source_of(getattr(run, "__func__", run)) or _caller()
    own = _dashed(str(getattr(step, "__name__", type(made).__name__)))
    if own == "<lambda>" and source is not None:
        own = f"{Path(source.file).name}:{source.line}"
    given = name or getattr(made, "name", "") or own
    _check_name(given)
    _check_takes(run, given, source)
    return Registered(given, "pass", made, registry(), source, enabled=enabled, place=place, step=run)


def _check_takes(run: Callable[..., Any], name: str, source: Location | None) -> None:
    """Raise OptionError if a pass cannot be called with the graph and the context."""
    try:
        signature = inspect.signature(run)
    except ValueError:
        return  # of a builtin, which does not say
    try:
        signature.bind(None, None)
    except TypeError:
        raise OptionError(
            f"pass {name} takes {signature}, and is called with the graph and the context",
            fix="write it with two arguments, (graph, ctx)",
            location=source,
        ) from None


def sequence(
    name: str, steps: Sequence[Any], *, after: str = "", before: str = "", enabled: bool = True
) -> Registered:
    """Register several passes and rewrites under one name, to run in this order with nothing in between.

    before:  rewrites, library                                       mine = [A, "dead-code", B]
    after:   rewrites, mine (A, dead-code, B), library

    A step is anything that `register_pass` or `rewrite` accepts, a pair of texts or functions, an already registered
    pass or rewrite (which then runs only here), or the name of one of Lampwork's passes. Consecutive rewrites run
    together until none of them fires. Each step keeps its own switch.

    Raises:
        OptionError: a step is none of these, or there is none, or as for `register_pass`.
        PassError: as for `rewrite`.
    """
    _check_enabled(enabled)
    place = _place(after, before) or DEFAULT_PLACE
    _check_name(name)
    if not isinstance(cast(object, steps), (list, tuple)):
        raise OptionError(f"sequence {name}: its steps are {steps!r}", fix="give a list of steps")
    if not steps:
        raise OptionError(f"sequence {name} has no steps", fix="give at least one pass or rewrite")
    members = tuple(_member(name, step) for step in steps)
    registered = {member.name: member for member in members if isinstance(member, Registered)}
    for member in members:
        if isinstance(member, Registered) and (member.name == name or registered[member.name] is not member):
            what = "a step has its name" if member.name == name else f"two steps are called {member.name!r}"
            raise OptionError(f"sequence {name}: {what}", fix="give the steps names of their own")
    for member in registered.values():
        member.sequence = (
            name  # once nothing can fail: until then an already registered one runs in its own place
        )
    plugin = tuple(m if isinstance(m, str) else (m.name, m.plugin) for m in members)
    item = Registered(
        name, "sequence", plugin, registry(), _caller(), enabled=enabled, place=place, members=members
    )
    return registry().add(item)


def _member(name: str, step: Any) -> Registered | str:
    if isinstance(step, str):
        if step not in _pass_names():
            raise OptionError(f"sequence {name}: no pass is called {step!r}", fix=_nearest(step))
        return step
    if isinstance(step, Registered):
        if step.kind == "sequence":
            raise OptionError(f"sequence {name}: {step.name} is a sequence itself", fix="name its steps")
        return step
    if isinstance(step, tuple):
        pair = cast("tuple[Any, ...]", step)
        if len(pair) != 2:
            raise OptionError(f"sequence {name}: {step!r} is no pair", fix="give a pattern and a replacement")
        made = _rule(*pair)
        _check_name(made.name)
        return Registered(made.name, "rewrite", step, registry(), made.source, rule=made)
    if isinstance(step, Rule) or hasattr(step, "pattern"):
        made = as_rule(step)
        _check_name(made.name)
        return Registered(made.name, "rewrite", step, registry(), made.source, rule=made)
    return _pass(step, "", None, True)


@contextlib.contextmanager
def passes(switches: str) -> Generator[None]:
    """Switch passes and rewrites on or off by name, `passes("+mine,-algebra")`, for each `compile()` inside the block.

    Raises:
        OptionError: a name is unknown or has no sign.
    """
    if not isinstance(cast(object, switches), str):
        raise OptionError(f"passes() takes a text, got {switches!r}", fix='write passes("+mine,-algebra")')
    _check_switches(switches)
    together = ",".join(part for part in (current().passes, switches) if part)
    with using_config(replace(current(), passes=together)):
        yield


def _place(after: str, before: str) -> Place | None:
    for word, anchor in (("after", after), ("before", before)):
        if not isinstance(cast(object, anchor), str):
            raise OptionError(f"{word} takes the name of a pass, got {anchor!r}", fix=_nearest(""))
    if after and before:
        raise OptionError(f"after={after!r} and before={before!r}: a place is one of both")
    anchor = after or before
    if not anchor:
        return None
    known = _pass_names() | {i.name for i in registry().all() if i.place is not None and not i.sequence}
    if anchor not in known:
        raise OptionError(f"no pass is called {anchor!r}", fix=_nearest(anchor, known))
    return Place(anchor, before=bool(before))


def _check_switches(switches: str) -> None:
    get_backend("native")  # as in _pass_names
    check_switches(switches)


PASSES_TOLD.tell(_check_switches, ever=Switches.of)


def _pass_names() -> frozenset[str]:
    get_backend(
        "native"
    )  # it reserves the names of its passes when it is loaded, with the first who asks for it
    return pass_names()


def _nearest(name: str, known: frozenset[str] | None = None) -> str:
    names = sorted(known if known is not None else _pass_names())
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}the passes are {', '.join(names)}"


def _check_name(name: str) -> None:
    if not isinstance(cast(object, name), str):
        raise OptionError(f"{name!r} is no name for a pass or rewrite", fix="give a text")
    if name in _pass_names():
        raise OptionError(f"{name!r} is the name of a pass of Lampwork", fix="choose another name")
    if not name or name[0] in "+-":
        raise OptionError(f"{name!r} is no name for a pass or rewrite", fix="begin with a letter")
    if not Switches.can_name(name):
        raise OptionError(
            f'{name!r} is no name for a pass or rewrite: passes="-name" could not switch it off',
            fix="give name= a text without spaces at its ends, and without commas or odd brackets",
        )


def _check_enabled(enabled: object) -> None:
    if type(enabled) is not bool:
        raise OptionError(f"enabled is {enabled!r}, expected a bool", fix="give True or False")


def _dashed(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower().replace("_", "-")


def _caller() -> Location | None:
    """The line outside of this module that led here."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in (__file__, functools.__file__):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
