"""A failing case as a script that needs nothing but torch and Lampwork."""

from __future__ import annotations

import ast
import keyword
import linecache
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from lampwork.graph.printing import quoted, to_python
from lampwork.minifying.case import Case, described
from lampwork.minifying.data import literal
from lampwork.plugins.registry import Registered, registry
from lampwork.records import record
from lampwork.testing.failing import Check, Failure


def script_of(case: Case, failure: Failure, check: Check, texts: Mapping[str, str], needed: Plugins) -> str:
    """The source. It prints how the program fails and exits with 1, or with 0 if it does not.

    texts: how tensors are written; others are written out.
    needed: what registers the rewrites and passes.
    """
    case = described(case)
    written = {name: texts.get(name) or literal(tensor) for name, tensor in case.tensors.items()}
    packed = any("unpacked(" in text for text in written.values())
    paths = _paths(needed.modules)
    source = to_python(case.graph).split("\n\n\n", 1)
    lines = [
        f'"""A program that Lampwork gets wrong, cut out of {quoted(case.name)}.',
        "",
        quoted(str(failure).splitlines()[0]),
        '"""',
        "",
        *(["import base64"] if packed else []),
        "import sys",
        *(["import zlib"] if packed else []),
        "",
        *source[0].splitlines(),
        "",
        *(f"sys.path.append({path!r})" for path in paths),
        *map(_import, needed.modules),
        *(["import lampwork"] if any("lampwork." in text for text in needed.statements) else []),
        "from lampwork.testing import failure",
        "",
        "",
        *(line for text in needed.statements for line in (text, "", "")),
        *(_UNPACKED if packed else ()),
        *source[1].rstrip().splitlines(),
        "",
        "",
        *_tensors("inputs", case.inputs, written),
        *_tensors("bound", case.bound, written),
        "",
        'if __name__ == "__main__":',
        f"    found = failure({', '.join(_arguments(case, failure, check))})",
        '    print(found or "it does not fail")',
        "    sys.exit(1 if found else 0)",
    ]
    return "\n".join(lines) + "\n"


_UNPACKED = (
    "def unpacked(text):",
    "    return bytearray(zlib.decompress(base64.b85decode(text)))",
    "",
    "",
)


def _import(module: str) -> str:
    """A statement that imports a module, whose name need not be one of Python's."""
    parts = module.split(".")
    plain = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    made = f"import {module}" if plain else f"__import__({module!r})"
    return f"{made}  # registers rewrites or passes"


def _tensors(group: str, names: Sequence[str], written: Mapping[str, str]) -> list[str]:
    if not names:
        return [f"{group} = []"]
    return [f"{group} = [", *(f"    {written[name]},  # {name}" for name in names), "]"]


def _arguments(case: Case, failure: Failure, check: Check) -> list[str]:
    given = ["forward", "inputs", "bound", f"kinds={(failure.kind,)!r}"]
    if failure.kind == "slow":
        given.append(f"slow={check.slow!r}")
    if case.is_random or not check.exact:
        given.append("exact=False")
    given.append(f"seconds={check.seconds!r}")
    return [*given, *(f"{name}={value!r}" for name, value in case.keywords.items())]


# --- what is registered -----------------------------------------------------------------------------------------------


@record
class Plugins:
    """What a script needs of the rewrites and passes that are on. `modules`: those that register them. `statements`: of
    the main script, source that registers them. `nowhere`: the names of those that neither gives."""

    modules: tuple[str, ...]
    statements: tuple[str, ...]
    nowhere: tuple[str, ...]


def keep_source(script: str) -> None:
    """Read a script before it runs, for statements of it: it may go to another folder, where its name is another
    file's or none's. So it is kept without a time, and nobody looks whether it is still there."""
    linecache.cache.pop(script, None)  # of another folder
    lines = linecache.getlines(script)
    linecache.cache[script] = sum(map(len, lines)), None, lines, script


def plugins() -> Plugins:
    """Where the rewrites and passes that are on come from."""
    main = _file(sys.modules.get("__main__"))
    files = {file: name for name, module in list(sys.modules.items()) if (file := _file(module))}
    modules, statements, nowhere = dict[str, None](), dict[str, None](), list[str]()
    for item in registry().all():
        file = _written(item)
        if not item.enabled:
            continue
        if file in files and file != main:
            modules[files[file]] = None
        elif item.source is not None and (text := _statement(item.source.file, item.source.line)):
            statements[text] = None
        else:
            nowhere.append(item.name)
    return Plugins(tuple(modules), tuple(statements), tuple(nowhere))


def _statement(file: str, line: int) -> str:
    """The statement of a file, outside of functions, that this line is part of; "" if there is none."""
    lines = linecache.getlines(file)
    try:
        body = ast.parse("".join(lines)).body
    except (SyntaxError, ValueError):
        return ""
    for each in body:
        decorators = each.decorator_list if isinstance(each, (ast.ClassDef, ast.FunctionDef)) else []
        first = min([each.lineno, *(one.lineno for one in decorators)])
        last = each.end_lineno or first
        if first <= line <= last:
            value = each.value if isinstance(each, (ast.Expr, ast.Assign)) else None
            registers = any(map(_registers, (value, *decorators)))
            return "".join(lines[first - 1 : last]).rstrip() if registers else ""
    return ""


def _registers(made: ast.expr | None) -> bool:
    """Whether it is `lampwork.rewrite`, or the like, or a call of that: other statements do more than register."""
    function = made.func if isinstance(made, ast.Call) else made
    return isinstance(function, ast.Attribute) and function.attr in ("rewrite", "register_pass", "sequence")


def _written(item: Registered) -> str:
    return os.path.abspath(item.source.file) if item.source is not None else ""


def _file(module: types.ModuleType | Any) -> str:
    file = getattr(module, "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) else ""


def _paths(imports: Sequence[str]) -> list[str]:
    """The folders that modules are found in, where Python does not look by itself."""
    found: dict[str, None] = {}
    for name in imports:
        file = _file(sys.modules.get(name))
        if file and "site-packages" not in file:
            folder = os.path.dirname(file)
            depth = name.count(".") + (os.path.basename(file) == "__init__.py")
            for _ in range(depth):
                folder = os.path.dirname(folder)
            found[folder] = None
    return list(found)
