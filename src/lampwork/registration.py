"""`lampwork.rewrite`, `register_pass`, `sequence` and `passes`: optimizations of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

from torch import fx

from lampwork.backends.registry import get_backend
from lampwork.config import current, using
from lampwork.errors import Location, OptionError, PassError
from lampwork.plugins.arrange import DEFAULT_PLACE
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import Place, Registered, registry
from lampwork.rewriting.apply.driver import Rule, as_rule, rule, rule_of
from lampwork.rewriting.language.rules import source_of
from lampwork.rewriting.matching.match import Match
from lampwork.standard import functools
from lampwork.transforms.pipeline import pass_names, select_passes
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
) -> Any:
    """Register a rewrite: from now on every compilation applies it.

    before:  %a = add(%x, %y), %b = div(%a, 8.0)
    after:   %b = mine.add_div(%x, %y, 8.0)

    It is a line of algebra, `rewrite("neg(neg(x))", "x")`; two functions of PyTorch code,
    `rewrite(lambda x, y, c: (x + y) / c, lambda x, y, c: torch.ops.mine.add_div(x, y, c))`; or, as a decorator, a class
    with `pattern`, `replacement` and perhaps `check(match)`. One of the same name that is registered already is
    replaced.

    Gives the `Registered`: its `hits`, `enable()`, `disable()`, `unregister()`.

    Args:
        pattern: the text, the function or the class.
        replacement: the text or the function; nothing for a class.
        name: what it is called in logs and switches. Else the text, the function's name or its file and line, or the
            class's name in snake case.
        check: further conditions on a match: Yes() or No(reason).
        priority: higher ones are tried first.
        after, before: a pass behind or in front of which it runs by itself; else all run together in the pass
            `rewrites`.
        enabled: False: only compilations with passes="+name" apply it, until it is enabled.

    Raises:
        PassError: the pattern or the replacement is wrong.
        OptionError: no pass is called as `after` or `before` say, or the name is that of a pass of ours.
    """
    if pattern is None:
        return functools.partial(
            rewrite, name=name, check=check, priority=priority, after=after, before=before, enabled=enabled
        )
    place = _place(after, before)
    made = _rule(pattern, replacement, name, check, priority)
    _check_name(made.name)
    plugin = (pattern, replacement, check, priority)
    item = Registered(
        made.name, "rewrite", plugin, registry(), made.source, enabled=enabled, place=place, rule=made
    )
    return registry().add(item)


def _rule(pattern: Any, replacement: Any, name: str, check: Check | None, priority: int) -> Rule:
    if isinstance(pattern, str):
        return rule(pattern, replacement, name=name, check=check, priority=priority, source=_caller())
    if isinstance(pattern, Rule) or hasattr(pattern, "pattern"):
        made = as_rule(pattern)
        return dataclasses.replace(
            made, name=name or made.name, check=check or made.check, priority=priority or made.priority
        )
    if callable(pattern) and callable(replacement):
        return rule_of(pattern, replacement, name=name, check=check, priority=priority)
    raise PassError(
        f"rewrite() takes two texts, two functions or a class with `pattern` and `replacement`, got {pattern!r}",
        fix='write lampwork.rewrite("neg(neg(x))", "x")',
    )


def register_pass(
    step: Any = None, *, after: str = "", before: str = "", name: str = "", enabled: bool = True
) -> Any:
    """Register a pass: from now on every compilation runs it. Also a decorator, with or without arguments.

    before:  canonicalize, ..., rewrites, library, ..., algebra
    after:   canonicalize, ..., rewrites, library, ..., algebra, mine       (after="algebra")

    A pass is a function `(graph, ctx) -> None`, or a class or an instance with `run(graph, ctx)` and perhaps a `name`;
    it changes the `torch.fx.Graph` in place. Nodes it makes without `meta["val"]` are given their specs. The graph is
    checked after it; where it raises, breaks the graph or does not end, the graph is put back as it was.

    Gives the `Registered`: its `hits`, `enable()`, `disable()`, `unregister()`.

    Args:
        step: the pass.
        after, before: the pass behind or in front of which it runs (its first run, of those that run twice); behind
            `rewrites` if neither is given.
        name: else the pass's `name`, or its own with dashes.
        enabled: False: only compilations with passes="+name" run it, until it is enabled.

    Raises:
        OptionError: it is no pass, no pass is called as `after` or `before` say, or the name is that of one of ours.
    """
    if step is None:
        return functools.partial(register_pass, after=after, before=before, name=name, enabled=enabled)
    place = _place(after, before) or DEFAULT_PLACE
    return registry().add(_pass(step, name, place, enabled))


def _pass(step: Any, name: str, place: Place | None, enabled: bool) -> Registered:
    made = step() if isinstance(step, type) else step
    run: Any = getattr(made, "run", None) or made
    if not callable(run):
        raise OptionError(
            f"{step!r} is no pass", fix="give a function (graph, ctx), or a class with run(graph, ctx)"
        )
    given = name or getattr(made, "name", "") or _dashed(getattr(step, "__name__", type(made).__name__))
    _check_name(given)
    source = source_of(getattr(run, "__func__", run)) or _caller()
    return Registered(given, "pass", made, registry(), source, enabled=enabled, place=place, step=run)


def sequence(
    name: str, steps: Sequence[Any], *, after: str = "", before: str = "", enabled: bool = True
) -> Registered:
    """Register several passes and rewrites that run in a row, in this order, under one name.

    before:  rewrites, library                                       mine = [A, "dead-code", B]
    after:   rewrites, mine (A, dead-code, B), library

    Each step is a pass or a rewrite as `register_pass` and `rewrite` take them, a pair of texts or functions, one of
    these registered already (it then runs here only), or the name of a pass of ours. Rewrites that follow each other
    work together until none fires. Each keeps a switch of its own.

    Raises:
        OptionError: a step is neither, or as for `register_pass`.
        PassError: as for `rewrite`.
    """
    place = _place(after, before) or DEFAULT_PLACE
    _check_name(name)
    members = tuple(_member(name, step) for step in steps)
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
        step.sequence = name
        return step
    if isinstance(step, tuple):
        pattern, replacement = cast("tuple[Any, Any]", step)
        made = _rule(pattern, replacement, "", None, 0)
        return Registered(made.name, "rewrite", step, registry(), made.source, sequence=name, rule=made)
    if isinstance(step, Rule) or hasattr(step, "pattern"):
        made = as_rule(step)
        return Registered(made.name, "rewrite", step, registry(), made.source, sequence=name, rule=made)
    found = _pass(step, "", None, True)
    found.sequence = name
    return found


@contextlib.contextmanager
def passes(switches: str) -> Generator[None]:
    """Switch passes and rewrites by name, `passes("+mine,-algebra")`, for what is `compile()`d inside the block.

    Raises:
        OptionError: an unknown name, or one without a sign.
    """
    get_backend("native")  # as in _pass_names
    select_passes(switches)
    together = ",".join(part for part in (current().passes, switches) if part)
    with using(passes=together):
        yield


def _place(after: str, before: str) -> Place | None:
    if after and before:
        raise OptionError(f"after={after!r} and before={before!r}: a place is one of both")
    anchor = after or before
    if not anchor:
        return None
    known = _pass_names() | {i.name for i in registry().all() if i.place is not None and not i.sequence}
    if anchor not in known:
        raise OptionError(f"no pass is called {anchor!r}", fix=_nearest(anchor, known))
    return Place(anchor, before=bool(before))


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
    if name in _pass_names():
        raise OptionError(f"{name!r} is the name of a pass of Lampwork", fix="choose another name")
    if not name or name[0] in "+-":
        raise OptionError(f"{name!r} is no name for a pass or rewrite", fix="begin with a letter")


def _dashed(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower().replace("_", "-")


def _caller() -> Location | None:
    """The line outside of this module that led here."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in (__file__, functools.__file__):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
