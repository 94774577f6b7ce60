"""Rewrites as they are written, and the rules that the driver makes of them.

A rewrite is a line of algebra::

    rule("neg(neg(x))", "x")

two functions in plain PyTorch::

    rule_of(lambda x, y, c: (x + y) / c, lambda x, y, c: torch.ops.mine.add_div(x, y, c))

or a class that holds them::

    class MulSigmoidToSilu(Rewrite):
        def pattern(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

        def replacement(self, x: Tensor) -> Tensor:
            return torch.nn.functional.silu(x)

        def check(self, match: Match) -> Verdict:
            return match.only_use()
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar, cast

from torch import fx

from lampwork.display import Shown
from lampwork.errors import Location, PassError, text_of
from lampwork.records import record
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.names import nearest
from lampwork.rewriting.language.parse import parse_terms
from lampwork.rewriting.language.term import (
    PARTING,
    Call,
    Kind,
    Leaf,
    Lit,
    Rest,
    Term,
    Var,
    parts_of_call,
    results,
)
from lampwork.rewriting.language.traverse import (
    calls_of,
    check_pattern,
    names_of,
    parts_of,
    rest_of,
    rests_of,
)
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import Verdict, Yes

Pattern = Term | tuple[Term, ...]
"""What a rule looks for: one term, or a term for each of several outputs."""

Check = Callable[[Match], Verdict | bool]
Build = Callable[[Match, Editor], Any]


class Rewrite:
    """A rewrite in class form. `name` defaults to the class name in snake case; of rewrites that match at the same
    node, the one of the highest `priority` comes first, then the one that stands first.

    Parameters of `pattern` are its variables; their annotations give the kind: Tensor or Term, Const (a tensor known
    once the weights are), float or int (a Python number), Any (a list, a dtype, None). `replacement` takes variables
    by the same names (any subset): tensors as terms with `.shape`, `.dtype`, `.ndim`, all else as it stands in the
    graph. A parameter called `match` is given the Match, one called `editor` the Editor that makes nodes. Both
    functions may be written without `self`. A pattern of several outputs returns a tuple, or calls an op that has
    several, and so does its replacement. `tolerance` is how far results may be off on purpose: see Rule.
    """

    name: str = ""
    priority: int = 0
    tolerance: float = 0.0
    pattern: ClassVar[Callable[..., Any]]
    replacement: ClassVar[Callable[..., Any]]

    def check(self, match: Match) -> Verdict | bool:
        """Further conditions, after the pattern matched."""
        return Yes()


@record(eq=False)
class Rule(Shown):
    """A rewrite ready for the driver.

    `build` makes the replacement: a node, or a sequence with one for each output of the pattern. `strict`: a
    replacement of another shape or dtype is an error, not a miss. `source`: where the author wrote it. `tolerance`: how
    far its results may be from what they were, as a share of their root mean square, on purpose.
    """

    name: str
    pattern: Pattern
    build: Build
    check: Check
    strict: bool
    priority: int = 0
    source: Location | None = None
    tolerance: float = 0.0

    @property
    def roots(self) -> tuple[Term, ...]:
        """One term for each output of the pattern."""
        return self.pattern if isinstance(self.pattern, tuple) else (self.pattern,)

    def __str__(self) -> str:
        return f"{self.name} ({self.source})" if self.source else self.name


def rule(
    pattern: str,
    replacement: str,
    *,
    name: str = "",
    check: Check | None = None,
    priority: int = 0,
    tolerance: float = 0.0,
    source: Location | None = None,
) -> Rule:
    """A line of algebra. It fires only where the replacement has the shape and dtype of what it replaces.

    `source` is where the line stands; the caller's line if it is left out.

    Raises:
        PassError: the text cannot be parsed, or the pattern is not a call.
    """
    source = source or _caller()
    result = parse_terms(replacement, rest=_OPEN)
    # Only where the replacement takes it does a bare `...` bind what it stands for.
    takes_open = _OPEN in rests_of(result)
    read = parse_terms(pattern, rest=_OPEN if takes_open else "")
    wanted = _checked_pattern(read, f"the pattern {pattern!r}", source)
    if takes_open:
        _check_open(pattern, replacement, wanted, source)
    has = sorted(set(variables_of(wanted)) | rests_of(wanted) - {_OPEN})
    unbound = sorted((set(variables_of(result)) | rests_of(result) - {_OPEN}) - set(has))
    if unbound:
        near = nearest(unbound[0], has)
        raise PassError(
            f"the replacement {replacement!r} uses {unbound[0]!r}, which the pattern does not bind",
            fix=f"did you mean {near!r}?" if near else f"the pattern binds {', '.join(has)}",
            location=source,
        )
    _check_counts(pattern, replacement, wanted, result, source)

    def build(match: Match, editor: Editor) -> Any:
        return editor.build(result, match.values)

    name = name or " ".join(f"{pattern} -> {replacement}".split())
    return Rule(
        name,
        wanted,
        build,
        _checked(check, name),
        strict=False,
        priority=priority,
        source=source,
        tolerance=tolerance,
    )


_OPEN = "..."
"""The name of a `...` that has none."""


def _check_open(pattern: str, replacement: str, wanted: Pattern, source: Location | None) -> None:
    """Raise PassError unless there is one `...` that the one of the replacement can be."""
    open_calls = [c for c in calls_of(wanted) if any(a.rest.name == _OPEN for a in rest_of(c))]
    if len(open_calls) == 1:
        return
    raise PassError(
        f"the replacement {replacement!r} has '...', and the pattern {pattern!r} has it {len(open_calls)} times",
        fix="name it in both, such as ...options, behind the arguments of one call of the pattern",
        location=source,
    )


def _check_counts(
    pattern: str, replacement: str, wanted: Pattern, result: Any, source: Location | None
) -> None:
    """Raise PassError if it is plain that the replacement has more or fewer results than the pattern."""
    want, have = _count(wanted), _count(result)
    if want is None or have is None or want == have:
        return
    fix = "write all of them, with commas between them"
    if have > want:
        fix = f"leave {have - want} of them out; [0] behind a call is the first of its results"
    raise PassError(
        f"the pattern {pattern!r} has {_results(want)}, the replacement {replacement!r} {_results(have)}",
        fix=fix,
        location=source,
    )


def _count(terms: Any) -> int | None:
    """How many tensors terms give, None where it is not known: an op with a list of them."""
    counts = [
        results(t) if isinstance(t, Call) else 1
        for t in (cast("tuple[Any, ...]", terms) if isinstance(terms, tuple) else (terms,))
    ]
    return sum(counts) if all(counts) else None


def _results(count: int) -> str:
    return "1 result" if count == 1 else f"{count} results"


def rule_of(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    *,
    name: str = "",
    check: Check | None = None,
    priority: int = 0,
    tolerance: float = 0.0,
    source: Location | None = None,
) -> Rule:
    """A rewrite of two functions in plain PyTorch; see Rewrite for their parameters.

    `name` defaults to the pattern function's, that of a lambda to its file and line.

    Raises:
        PassError: the pattern raises or is not a call, or `replacement` takes a variable that `pattern` does not.
    """
    source = source or source_of(pattern)
    name = name or _name_of(pattern, source)
    variables = _variables(pattern, name, source)
    wanted = _traced(pattern, variables, name, source)
    known = {v.name for v in variables} | names_of(wanted)
    takes = tuple(parameter for parameter, _, _ in _parameters(replacement))
    unknown = [p for p in takes if p not in known and p not in ("match", "editor")]
    if unknown:
        near = nearest(unknown[0], sorted(known))
        hint = f"did you mean {near!r}? " if near else ""
        raise PassError(
            f"the replacement of rewrite {name} takes {unknown[0]!r}, which its pattern does not",
            fix=f"{hint}its pattern has {', '.join(sorted(known))}",
            location=source,
        )

    def build(match: Match, editor: Editor) -> Any:
        given: dict[str, Any] = {
            "match": match,
            "editor": editor,
            **match.sizes,
            **match.counts,
            **match.values,
        }
        values = [_as_term(given.get(p), p) for p in takes]
        return editor.build(replacement(*values), match.values)

    return Rule(
        name,
        wanted,
        build,
        _checked(check, name),
        strict=True,
        priority=priority,
        source=source,
        tolerance=tolerance,
    )


def as_rule(rewrite: Any) -> Rule:
    """The rule of a rewrite: a Rule, a class or an instance of one with `pattern` and `replacement`.

    Raises:
        PassError: as `rule_of`, or there is no pattern or replacement.
    """
    if isinstance(rewrite, Rule):
        return rewrite
    kind: type = rewrite if isinstance(rewrite, type) else type(rewrite)
    name = cast(str, getattr(rewrite, "name", "")) or snake_case(kind.__name__)
    if isinstance(rewrite, type) and any(
        _has_self(rewrite, part) for part in ("pattern", "replacement", "check")
    ):
        rewrite = kind()
    parts = {part: _method(rewrite, part) for part in ("pattern", "replacement", "check")}
    _check_parts(kind, name, rewrite)
    priority: Any = getattr(rewrite, "priority", 0)
    if type(priority) is not int:
        raise PassError(f"the priority of rewrite {name} is {priority!r}", fix="give an int")
    return rule_of(
        cast("Callable[..., Any]", parts["pattern"]),
        cast("Callable[..., Any]", parts["replacement"]),
        name=name,
        check=parts["check"],
        priority=priority,
        tolerance=checked_tolerance(getattr(rewrite, "tolerance", 0.0)),
    )


_PARTS = ("pattern", "replacement", "check", "priority", "tolerance")


def _check_parts(kind: type, name: str, rewrite: Any) -> None:
    """Raise PassError if a part that a rewrite needs is missing, or one has its name misspelled."""
    given = {n for base in kind.__mro__ if base not in (object, Rewrite) for n in vars(base)}
    given |= set(getattr(rewrite, "__dict__", ()))
    others = sorted(n for n in given if not n.startswith("_") and n not in (*_PARTS, "name"))
    for part in _PARTS:
        if part in given:
            continue
        near = nearest(part, others, 0.8)
        missing = part in ("pattern", "replacement")
        if near:
            raise PassError(
                f"rewrite {name} has `{near}`, and no `{part}`", fix=f"did you mean `{part}`? rename `{near}`"
            )
        if missing:
            raise PassError(f"rewrite {name} has no `{part}`", fix=f"give the class a function `{part}`")
    for part in ("pattern", "replacement", "check"):
        value: Any = getattr(rewrite, part, None)
        if value is not None and not callable(value):
            raise PassError(
                f"`{part}` of rewrite {name} is {value!r}, not a function",
                fix='give a function; texts go into lampwork.rewrite("neg(neg(x))", "x")',
            )


def checked_tolerance(tolerance: Any) -> float:
    """The tolerance of a rewrite.

    Raises:
        PassError: it is no number from 0 on.
    """
    if type(tolerance) in (int, float) and 0 <= tolerance < float("inf"):
        return float(tolerance)
    raise PassError(
        f"the tolerance of a rewrite is {tolerance!r}",
        fix="give the error that is meant to be, as a share of the root mean square of the results, such as 0.01",
    )


def snake_case(name: str) -> str:
    """ "MulSigmoid" -> "mul_sigmoid"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def source_of(function: Callable[..., Any]) -> Location | None:
    """Where a function was written, None for those without Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return None
    return Location(code.co_filename, code.co_firstlineno)


def variables_of(term: Any) -> Iterable[str]:
    """The names of the variables in a term."""
    return (part for part in parts_of(term) if isinstance(part, str))


def _checked(check: Check | None, name: str) -> Check:
    """The check of a rewrite.

    Raises:
        PassError: it cannot be called with a match.
    """
    if check is None:
        return _always
    try:
        inspect.signature(check).bind(None)
    except TypeError:
        raise PassError(
            f"the check of rewrite {name} takes {inspect.signature(check)}, and is called with the match",
            fix="write it with one argument, (match)",
            location=source_of(check),
        ) from None
    except ValueError:
        pass  # of a builtin, which does not say what it takes
    return check


def _always(_: Match) -> Verdict:
    return Yes()


def _caller() -> Location:
    frame = sys._getframe(2)
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _name_of(function: Callable[..., Any], source: Location | None) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    if (
        name in ("<lambda>", "pattern") and source is not None
    ):  # which says nothing, and would be each other's
        return f"{Path(source.file).name}:{source.line}"
    return name


def _method(owner: Any, name: str) -> Callable[..., Any] | None:
    """A function of a class or instance, bound unless it is written without self."""
    if not hasattr(owner, name):
        return None
    plain = inspect.getattr_static(owner, name)
    if inspect.isfunction(plain) and not _takes_self(plain):
        return plain
    return cast("Callable[..., Any]", getattr(owner, name))


def _has_self(cls: type, name: str) -> bool:
    plain = inspect.getattr_static(cls, name, None)
    return inspect.isfunction(plain) and _takes_self(plain)


def _takes_self(function: Callable[..., Any]) -> bool:
    return next(iter(_parameters(function)), ("", None, None))[0] == "self"


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """(name, annotation, default) of each parameter that a caller gives."""
    plain: Any = function.__func__ if inspect.ismethod(function) else function
    code = getattr(plain, "__code__", None)
    special = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if (
        not isinstance(plain, FunctionType)
        or not isinstance(code, CodeType)
        or code.co_flags & special
        or code.co_kwonlyargcount
        or hasattr(plain, "__wrapped__")
        or hasattr(plain, "__signature__")
    ):
        try:
            found = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise PassError(
                f"{function!r} is no function of a rewrite: {error}",
                fix="write a function with named parameters, such as lambda x: torch.relu(x)",
            ) from error
        return [(p.name, p.annotation, p.default) for p in found]
    # The same, without what makes inspect.signature slow: there are many rules.
    names = code.co_varnames[: code.co_argcount]
    given = plain.__defaults__ or ()
    defaults = (*[inspect.Parameter.empty] * (len(names) - len(given)), *given)
    annotations = plain.__annotations__
    found = [
        (n, annotations.get(n, inspect.Parameter.empty), d) for n, d in zip(names, defaults, strict=True)
    ]
    return found[1:] if inspect.ismethod(function) else found


def _as_term(value: Any, name: str = "") -> Any:
    """What a replacement is given for the value of the variable `name`."""
    if isinstance(value, fx.Node):
        return Leaf(value)
    if isinstance(value, list | tuple):
        return [_as_term(v) for v in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return Rest(name, {k: _as_term(v) for k, v in cast("dict[str, Any]", value).items()})
    return value


# --- patterns -------------------------------------------------------------------------------------------------------

_KIND_OF: dict[str, Kind] = {
    "Tensor": "tensor",
    "Term": "tensor",
    "Leaf": "tensor",
    "Const": "const",
    "float": "number",
    "int": "number",
    "Any": "any",
}


def _variables(function: Callable[..., Any], name: str, source: Location | None) -> list[Var | Rest]:
    """The variables that the parameters of a pattern function stand for, by default or annotation."""
    found: list[Var | Rest] = []
    for parameter, annotation, default in _parameters(function):
        if isinstance(default, Var | Rest):
            found.append(dataclasses.replace(default, name=parameter))
        else:
            found.append(Var(parameter, _kind(annotation, name, source)))
    return found


def _kind(annotation: Any, name: str, source: Location | None) -> Kind:
    if annotation is inspect.Parameter.empty:
        return "any"
    text = annotation if isinstance(annotation, str) else str(annotation.__name__)
    kind = _KIND_OF.get(text.rpartition(".")[2])
    if kind is None:
        raise PassError(
            f"rewrite {name}: no kind of variable is called {text!r}",
            fix=f"annotate with one of {', '.join(_KIND_OF)}",
            location=source,
        )
    return kind


def _traced(
    function: Callable[..., Any], variables: Sequence[Var | Rest], name: str, source: Location | None
) -> Pattern:
    try:
        result = function(*variables)
    except PassError as error:
        raise PassError(
            f"the pattern of rewrite {name}: {error.cause}", fix=error.fix, location=source
        ) from error
    except Exception as error:  # whatever the author's code raises
        fix = "write rest() where torch's functions take no ..." if "ellipsis" in str(error) else ""
        raise PassError(
            f"the pattern of rewrite {name} raised {text_of(error)}", fix=fix, location=source
        ) from error
    wanted = _checked_pattern(result, f"the pattern of rewrite {name}", source)
    used = set(variables_of(wanted)) | rests_of(wanted)
    unused = [v.name for v in variables if v.name not in used]
    if unused:
        raise PassError(
            f"the pattern of rewrite {name} never uses its parameter {unused[0]!r}",
            fix="take it out, or use it in what the pattern returns",
            location=source,
        )
    return wanted


def _checked_pattern(term: Any, what: str, source: Location | None) -> Pattern:
    try:
        roots = tuple(_outputs(term))
        for root in roots:
            if not isinstance(root, Call) and (
                not isinstance(root, Term)
                or isinstance(root, Var | Leaf | Lit)
                or not any(variables_of(root))
            ):
                shown = "nothing" if root is None else str(root)
                raise PassError(
                    f"it gives {shown}, which is not a call of an op",
                    fix="a pattern returns what to look for, such as torch.relu(x)",
                )
            if not any(variables_of(root)):
                raise PassError(f"{root} is not a call of an op with a variable among its arguments")
        wanted = roots if len(roots) != 1 or isinstance(term, list | tuple) else roots[0]
        check_pattern(wanted)
    except PassError as error:
        raise PassError(f"{what}: {error.cause}", fix=error.fix, location=source) from error
    return wanted


def _outputs(term: Any) -> Iterator[Any]:
    """The outputs of a pattern one by one. A graph has the parts of a tensor as slices, each for itself; the results of
    other ops with several stay together."""
    if isinstance(term, list | tuple):
        for item in cast("Sequence[Any]", term):
            yield from _outputs(item)
    elif isinstance(term, Call) and term.name in PARTING and results(term) == 0:
        parts = parts_of_call(term)
        if parts is None:
            raise PassError(
                f"{term} gives a list of tensors, and how many is not known here",
                fix="return the parts that are meant, such as parts[0], parts[1]",
            )
        yield from parts
    else:
        yield term
