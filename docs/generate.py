"""Write docs/reference/ from the code: options, error codes, capture records, loop operations. `make docs`."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from lampwork import errors, logs
from lampwork.capture.codes import CODES
from lampwork.config import Config
from lampwork.loops.ops import OPS

REFERENCE = Path(__file__).parent / "reference"


def options() -> str:
    source = inspect.getsource(Config)
    lines = [
        "# Options",
        "",
        "Each is a key of `lampwork.compile(options={...})`, a keyword of `lampwork.config.using(...)` and an environment",
        "variable `LAMPWORK_<NAME>`.",
        "",
        "| option | default | |",
        "|---|---|---|",
    ]
    for field in fields(Config):
        found = re.search(rf'{field.name}: \w+ = .*?\n    """(.*?)"""', source, re.S)
        text = re.sub(r"\s+", " ", found.group(1)) if found else ""
        lines.append(f"| `{field.name}` | `{field.default!r}` | {text} |")
    lines += ["", f"Log topics: {', '.join(f'`{topic}`' for topic in logs.TOPICS)}, or `all`."]
    return "\n".join(lines)


def codes() -> str:
    lines = ["# Codes", "", "Errors (`lampwork.errors`):", "", "| code | error | |", "|---|---|---|"]
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.LampworkError)]
    for cls in sorted(classes, key=lambda c: (c.code, c.__name__)):
        lines.append(f"| {cls.code} | `{cls.__name__}` | {(cls.__doc__ or '').splitlines()[0]} |")
    lines += ["", "Records of capture (graph breaks, refusals):", "", "| code | | fix |", "|---|---|---|"]
    for code, entry in sorted(CODES.items()):
        lines.append(f"| {code} | {entry.title} | {entry.fix} |")
    return "\n".join(lines)


def operations() -> str:
    lines = ["# Operations of the loop language", "", "| name | arguments | |", "|---|---|---|"]
    for name, info in OPS.items():
        lines.append(f"| `{name}` | {info.arity} | {info.doc} |")
    return "\n".join(lines)


PAGES = {"options.md": options, "codes.md": codes, "operations.md": operations}


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make() + "\n")


if __name__ == "__main__":
    main()
