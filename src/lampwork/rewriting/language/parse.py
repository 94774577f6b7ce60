"""The text form of terms: `mul(x, 1)`, `where(c:bool, x, x)`, `pow.Tensor_Scalar(x, 2)`, `clone(x, ...)`,
`mm(x:float32[_, k], y:[k, 64])`, `conv2d(x, w, b, ...options)`, `max(x, 1)[0]`; several outputs `sin(x), cos(x)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch

from lampwork.errors import PassError
from lampwork.rewriting.language.term import Call, Kind, Lit, Rest, Term, Var, call

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+(?:e[+-]?\d+)?|inf))(?![\w.])"
    r"|(?P<name>[A-Za-z_][\w.]*)|(?P<text>'[^']*')|(?P<mark>\.\.\.|[()\[\],:=]))"
)
_OPERATORS = tuple("+-*/@<>=!%&|^~")
_INFIX = (
    "write operators as calls, such as add(x, 1), matmul(x, y), gt(x, 0); two functions may have operators"
)
_WORDS = {"True": True, "False": False, "None": None}


@dataclass(slots=True)
class _Reader:
    """`rest`: the name of what a bare `...` stands for, "" if it is no more than anything."""

    text: str
    rest: str = ""
    at: int = 0

    def peek(self) -> tuple[str, str]:
        m = _TOKEN.match(self.text, self.at)
        if m is None:
            if self.text[self.at :].strip():
                raise self.error("an expression")
            return ("end", "")
        kind = m.lastgroup or "end"
        return kind, m.group(kind)

    def take(self) -> tuple[str, str]:
        token = self.peek()
        m = _TOKEN.match(self.text, self.at)
        self.at = m.end() if m else len(self.text)
        return token

    def expect(self, mark: str, end: str = "") -> None:
        start = self.at
        if self.take()[1] != mark:
            self.at = start
            raise self.error(f"{mark!r} or {end!r}" if end else repr(mark))

    def error(self, expected: str) -> PassError:
        return PassError(
            f"rewrite text {self.text!r}: expected {expected} at column {self.at}, "
            f"got {self.text[self.at :].strip()[:20] or 'the end'!r}",
            fix=_INFIX if self.text[self.at :].strip()[:1] in _OPERATORS else "",
        )


def parse_terms(text: str, *, rest: str = "") -> Any:
    """The term `text` means, or a tuple of them for several, with or without parentheses around them. A `...` without a
    name has the name `rest`.

    Raises:
        PassError: a syntax error, an unknown op or an unknown kind of variable.
    """
    reader, variables = _Reader(text, rest), dict[str, Var]()
    several = reader.peek()[1] == "("
    if several:
        reader.take()
        found, by_name = _items(reader, variables, ")")
        if by_name:
            raise PassError(
                f"rewrite text {text!r}: an output has the name {next(iter(by_name))!r}", fix="leave it out"
            )
    else:
        found = [_term(reader, variables)]
        while reader.peek()[1] == ",":
            reader.take()
            found.append(_term(reader, variables))
            several = True
    if reader.peek()[0] != "end":
        raise reader.error("the end")
    if not several and isinstance(found[0], list):
        found, several = cast("list[Any]", found[0]), True
    terms = tuple(term if isinstance(term, Term) else Lit(term) for term in found)
    return terms if several else terms[0]


def _term(reader: _Reader, variables: dict[str, Var]) -> Any:
    start = reader.at
    kind, text = reader.take()
    if kind == "number":
        return Lit(float(text) if re.search(r"[.e]|inf", text) else int(text))
    if kind == "text":
        return Lit(text[1:-1])
    if text == "...":
        # `...options` is the rest of the arguments by a name.
        named = reader.take()[1] if reader.peek()[0] == "name" else reader.rest
        return Rest(named) if named else Ellipsis
    if text == "[":
        return _items(reader, variables, "]")[0]
    if kind != "name":
        reader.at = start
        raise reader.error("a variable, a literal or an op")
    if text in _WORDS:
        return Lit(_WORDS[text])
    if reader.peek()[1] == "(":
        reader.take()
        args, kwargs = _items(reader, variables, ")")
        found = call(text, *args, **kwargs)
        # A line of algebra means the ops that it names: pow(x, 2) -> mul(x, x) is not to find its own result.
        found = Call(found.name, found.values, "named")
        while reader.peek()[1] == "[":
            reader.take()
            found = found[_index(reader)]
        return found
    return _variable(reader, variables, text)


def _index(reader: _Reader) -> int:
    """The number of a result, up to the closing bracket."""
    start = reader.at
    kind, text = reader.take()
    if kind != "number" or not text.lstrip("-").isdigit():
        reader.at = start
        raise reader.error("the number of a result")
    reader.expect("]")
    return int(text)


def _variable(reader: _Reader, variables: dict[str, Var], name: str) -> Var:
    """`x`, `x:float`, `x:float32`, `x:[_, 64, d]`, `x:float32[..., d]`."""
    known = variables.get(name)
    if reader.peek()[1] != ":":
        return variables.setdefault(name, Var(name))
    reader.take()
    start = reader.at
    kind, dtypes = "tensor", ()
    if reader.peek()[1] != "[":
        text = reader.take()[1]
        if text in get_args(Kind):
            kind = text
        elif isinstance(dtype := getattr(torch, text, None), torch.dtype):
            dtypes = (dtype,)
        else:
            reader.at = start
            raise reader.error(f"one of the kinds {', '.join(get_args(Kind))}, or a dtype")
    sizes = None
    if reader.peek()[1] == "[":
        if kind in ("any", "number", "constant"):
            raise reader.error("a tensor kind before the shape")
        reader.take()
        sizes = _sizes(reader)
    if known is not None:
        raise reader.error(f"the kind of {name} where it is first used")
    variables[name] = Var(name, cast(Kind, kind), dtypes, None, sizes)
    return variables[name]


def _sizes(reader: _Reader) -> tuple[Any, ...]:
    """The sizes up to the closing bracket: a number, _ for any, a name, or ... in front for any number of them."""
    found: list[Any] = []
    while reader.peek()[1] != "]":
        start = reader.at
        kind, text = reader.take()
        if text == "..." and not found:
            found.append(...)
        elif kind == "name":
            found.append(None if text == "_" else text)
        elif kind == "number" and text.isdigit():
            found.append(int(text))
        else:
            reader.at = start
            raise reader.error("a size, a name, _ or ...")
        if reader.peek()[1] != "]":
            reader.expect(",", "]")
    reader.take()
    return tuple(found)


def _items(reader: _Reader, variables: dict[str, Var], end: str) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    while reader.peek()[1] != end:
        start = reader.at
        kind, text = reader.take()
        if kind == "name" and reader.peek()[1] == "=":
            reader.take()
            kwargs[text] = _term(reader, variables)
        else:
            reader.at = start
            args.append(_term(reader, variables))
        if reader.peek()[1] != end:
            reader.expect(",", end)
    reader.take()
    return args, kwargs
