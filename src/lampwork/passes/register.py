"""`lampwork.rewrite`: optimizations of one's own."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, cast

from lampwork.errors import PassError
from lampwork.passes.registry import make
from lampwork.rewrite.driver import Rewrite, Rule, as_rule, rule
from lampwork.rewrite.match import Match
from lampwork.verdict import Verdict, Yes

Check = Callable[[Match], Verdict]


def rewrite(
    pattern: Any = None,
    replacement: Any = None,
    *,
    name: str = "",
    check: Check | None = None,
    priority: int = 0,
    enabled: bool = True,
) -> Any:
    """Register a rewrite: from now on every compilation applies it.

    before:  %a = add(%x, %y), %b = div(%a, 8.0)
    after:   %b = mine.add_div(%x, %y, 8.0)

    It is a line of algebra, `rewrite("neg(neg(x))", "x")`; two functions of PyTorch code,
    `rewrite(lambda x, y, c: (x + y) / c, lambda x, y, c: torch.ops.mine.add_div(x, y, c))`; or, as a decorator, a class
    with `pattern`, `replacement` and perhaps `check(match)`. One of the same name that is registered already is
    replaced.

    Args:
        pattern: the text, the function or the class.
        replacement: the text or the function; nothing for a class.
        name: what it is called in logs and switches. Else the text, or the class's name in snake case.
        check: further conditions on a match: Yes() or No(reason).
        priority: higher ones are tried first.
        enabled: False: only compilations with passes="+name" apply it, until it is enabled.

    Raises:
        PassError: the pattern or the replacement is wrong.
    """
    if pattern is None:
        return functools.partial(rewrite, name=name, check=check, priority=priority, enabled=enabled)
    made, source = _made(pattern, replacement, name, check)
    return make(made.name, "rewrite", rule=made, source=source, enabled=enabled)


def _made(pattern: Any, replacement: Any, name: str, check: Check | None) -> tuple[Rule, str]:
    if isinstance(pattern, str):
        return rule(pattern, replacement, name=name, check=check), _caller()
    if isinstance(pattern, Rule):
        return pattern, _caller()
    if isinstance(pattern, type):
        parts = cast(Any, pattern)
        title = name or getattr(parts, "name", "") or _snake(pattern.__name__)
        test = check or (_plain(parts, "check") if hasattr(parts, "check") else None)
        made = _OfFunctions(title, _plain(parts, "pattern"), _plain(parts, "replacement"), test)
        return as_rule(made), _place(made.pattern)
    if callable(pattern) and callable(replacement):
        made = _OfFunctions(name or getattr(pattern, "__name__", ""), pattern, replacement, check)
        if not made.name or made.name == "<lambda>":
            made.name = f"rewrite at {_place(pattern)}"
        return as_rule(made), _place(pattern)
    raise PassError(f"rewrite() takes two texts, two functions or a class, got {pattern!r}")


class _OfFunctions(Rewrite):
    def __init__(
        self, name: str, pattern: Callable[..., Any], replacement: Callable[..., Any], check: Check | None
    ) -> None:
        self.name = name
        self.pattern = _annotated(pattern)  # pyright: ignore[reportAttributeAccessIssue]
        self.replacement = _annotated(replacement)  # pyright: ignore[reportAttributeAccessIssue]
        self._check = check

    def check(self, match: Match) -> Verdict:
        return Yes() if self._check is None else self._check(match)


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with parameters that say nothing of their kind taken for anything."""
    signature = inspect.signature(function)
    parameters = [
        p.replace(annotation="Any") if p.annotation is p.empty else p for p in signature.parameters.values()
    ]

    @functools.wraps(function)
    def annotated(*args: Any) -> Any:
        return function(*args)

    cast(Any, annotated).__signature__ = signature.replace(parameters=parameters)
    return annotated


def _plain(owner: Any, name: str) -> Callable[..., Any]:
    """A method of a class, whether it is written with `self` or without."""
    raw = inspect.getattr_static(owner, name, None)
    if raw is None:
        raise PassError(f"the rewrite {owner.__name__} has no {name}")
    found = getattr(owner, name)
    if isinstance(raw, (staticmethod, classmethod)):
        return found
    first = next(iter(inspect.signature(found).parameters), "")
    return getattr(owner(), name) if first == "self" else found


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _caller() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
