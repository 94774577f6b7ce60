"""Smaller programs that still fail: statements are deleted, and compound ones replaced by what is in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def shrunk(text: str, fails: Callable[[str], bool], most: int = 400) -> str:
    """The smallest program found that still fails, after `most` trials at most."""
    tries = 0
    again = True
    while again and tries < most:
        again = False
        for number in range(len(list(_changes(text)))):
            smaller = _changed(text, number)
            if smaller is None or len(smaller) >= len(text):
                continue
            tries += 1
            if fails(smaller):
                text, again = smaller, True
                break
            if tries >= most:
                break
    return text


Change = Callable[[], None]


def _changed(text: str, number: int) -> str | None:
    """The program after change number `number`; None if that is no program."""
    tree = ast.parse(text)
    changes = list(_edits(tree))
    if number >= len(changes):
        return None
    changes[number]()
    try:
        made = ast.unparse(tree) + "\n"
        compile(made, "<smaller>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return made


def _changes(text: str) -> Iterator[Change]:
    return _edits(ast.parse(text))


def _edits(tree: ast.Module) -> Iterator[Change]:
    """All changes to a tree, those that delete most first."""
    nodes = sorted(_lists(tree), key=lambda pair: -sum(1 for _ in ast.walk(pair[0])))
    for node, name in nodes:
        body: list[Any] = getattr(node, name)
        # Halves first, then one by one.
        if len(body) > 3:
            half = len(body) // 2
            yield lambda b=body, n=node, f=name, h=half: _set(n, f, b[:h])
            yield lambda b=body, n=node, f=name, h=half: _set(n, f, b[h:])
        for i in range(len(body)):
            yield lambda b=body, n=node, f=name, i=i: _set(n, f, [*b[:i], *b[i + 1 :]])
            for field in _BODIES:
                inner = getattr(body[i], field, None)
                if inner and isinstance(inner[0], ast.stmt) and not isinstance(body[i], ast.FunctionDef):
                    yield lambda b=body, n=node, f=name, i=i, c=inner: _set(n, f, [*b[:i], *c, *b[i + 1 :]])
    for node in ast.walk(tree):
        if isinstance(node, (ast.With, ast.AsyncWith)) and len(node.items) > 1:
            for i in range(len(node.items)):
                yield lambda n=node, i=i: n.items.pop(i) and None
        if isinstance(node, ast.BinOp):
            for side in (node.left, node.right):
                yield lambda n=node, s=side: _become(tree, n, s)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            yield lambda n=node: _become(tree, n, n.args[0])


def _become(tree: ast.AST, node: ast.AST, other: ast.AST) -> None:
    """Put another expression in the place of one."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, other)
            elif isinstance(value, list):
                setattr(parent, name, [other if item is node else item for item in value])


def _lists(tree: ast.AST) -> Iterator[tuple[Any, str]]:
    for node in ast.walk(tree):
        for name in _BODIES:
            if isinstance(getattr(node, name, None), list) and getattr(node, name):
                yield node, name


def _set(node: Any, name: str, body: list[Any]) -> None:
    if not body and name == "body":
        body = [ast.Pass()]
    setattr(node, name, body)
