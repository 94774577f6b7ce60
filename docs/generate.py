"""Write docs/reference/ from the code: options, codes, opcodes, loop operations, rules and passes. `make docs`."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import torch

import lampwork
from lampwork import errors, logs
from lampwork.approximation import (
    ApproximationReport,
    ApproximationRule,
    Int8Linear,
    LayerReport,
    OutputReport,
    QuantizationReport,
    RuleReport,
)
from lampwork.backends import reachable_operators
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.protocol import Backend, CompileOptions
from lampwork.capture.model.codes import CODES
from lampwork.capture.model.region import Record
from lampwork.capture.opcodes import VERSIONS
from lampwork.compiled.entries import Entry
from lampwork.compiled.recompiles import RECOMPILES
from lampwork.config import Config
from lampwork.inspect import Explanation, RegionReport
from lampwork.inspect.comparison import Column, Comparison
from lampwork.loops.ir.ops import OPS
from lampwork.lower.table import RULES
from lampwork.placement import CopyPlan, Device, PartPlan, PlacedModel, PlacementPlan, WholePlan
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.apply.driver import Rule
from lampwork.rewriting.library import activations
from lampwork.rewriting.library.pairs import pair_rules
from lampwork.rewriting.library.table import CONSTANTS, FORMULAS
from lampwork.rewriting.padding import padding_rules
from lampwork.rewriting.views import view_rules
from lampwork.swapping import Change, SwapReport
from lampwork.transforms.pipeline import Pass, default_passes, optional_passes, with_backend_passes

REFERENCE = Path(__file__).parent / "reference"
FIGURES = Path(__file__).parent.parent / "benchmarks" / "rewrites.json"
GENERATED = "Made from the code by `make docs`; edit the code, not this page."


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; `|` inside a cell is escaped."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def options() -> str:
    source = inspect.getsource(Config)
    rows: list[list[str]] = []
    for field in fields(Config):
        found = re.search(rf'{field.name}: \w+\[.*?\] = .*?\n    """(.*?)"""', source, re.S)
        if found is None:
            raise ValueError(f"option {field.name} has no docstring")
        kind = get_type_hints(Config)[field.name].__name__
        text = re.sub(r"\s+", " ", found.group(1))
        rows.append([f"`{field.name}`", kind, f"`{field.default!r}`", text])
    return "\n".join(
        [
            "# Options",
            "",
            GENERATED,
            "",
            "Each is a key of `lampwork.compile(options={...})`, a keyword of `lampwork.config.using(...)` and an",
            "environment variable `LAMPWORK_<NAME>`, in that order of strength. What an option does not take is an",
            "OptionError where it is given. A wrong variable of the environment, or a `LAMPWORK_…` that nothing",
            "reads, is warned of once and left out. What `passes` names has to be registered by then; what",
            "`LAMPWORK_PASSES` names may be registered later.",
            "",
            *table(["option", "type", "default", ""], rows),
            "",
            f"Log topics: {', '.join(f'`{topic}`' for topic in logs.TOPICS)}, or `all`.",
        ]
    )


def codes() -> str:
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.LampworkError)]
    rows = [
        [cls.code, f"`{cls.__name__}`", " ".join((cls.__doc__ or "").split("\n\n")[0].split())]
        for cls in sorted(classes, key=lambda c: (c.code, c.__name__))
    ]
    records, recompiles = (
        [[code, entry.title, entry.cause, entry.fix] for code, entry in sorted(codes.items())]
        for codes in (CODES, RECOMPILES)
    )
    return "\n".join(
        [
            "# Codes",
            "",
            GENERATED,
            "",
            "## Errors",
            "",
            "`lampwork.errors`; all are LampworkError, with `.code`, `.cause`, `.fix` and `.location`.",
            "",
            *table(["code", "error", ""], rows),
            "",
            "## Records of capture",
            "",
            "A record is a graph break or a refusal: its code, the user's line, the cause and the fix.",
            "`LAMPWORK_LOGS=breaks` prints them. `{detail}` stands for the value, function or instruction at fault.",
            "",
            *table(["code", "", "cause", "fix"], records),
            "",
            "In addition, LW500 is a fault of Lampwork itself, after which a function runs eager.",
            "",
            "## Records of recompilations",
            "",
            "Why a call needed another version: `{source}` stands for the value that differs, `{detail}` for what the",
            "nearest version needs and what the call has; the line is the one that needs it.",
            "`LAMPWORK_LOGS=recompiles` prints them.",
            "",
            *table(["code", "", "cause", "fix"], recompiles),
        ]
    )


def opcodes() -> str:
    names = sorted({name for m in VERSIONS.values() for name in (*m.OPCODES, *m.FOLDED)})
    rows: list[list[str]] = []
    for name in names:
        cells: list[str] = []
        reasons: dict[str, None] = {}
        for module in VERSIONS.values():
            if name in module.REFUSED:
                reasons[module.REFUSED[name]] = None
                cells.append("refused")
            elif name in module.FOLDED:
                cells.append("folded")
            else:
                cells.append("handled" if name in module.OPCODES else "")
        rows.append([f"`{name}`", *cells, "; ".join(reasons)])
    return "\n".join(
        [
            "# Opcodes",
            "",
            GENERATED,
            "",
            "What capture does with each instruction of each version of CPython. *Handled*: interpreted. *Folded*:",
            "becomes part of its neighbours when code is decoded. *Refused*: a graph break, LW115, for the reason",
            "given. An empty cell: the version does not have the opcode. Each has programs that are compared with",
            "plain Python; those of 3.12 to 3.14 run without torch.",
            "",
            *table(["opcode", *(".".join(map(str, version)) for version in VERSIONS), "why refused"], rows),
        ]
    )


def api() -> str:
    public = {name: getattr(lampwork, name) for name in lampwork.__all__}
    functions = {n: v for n, v in public.items() if inspect.isfunction(v) or n == "set_stance"}
    functions["config.using"] = lampwork.config.using
    classes = {"Explanation": Explanation, "RegionReport": RegionReport, "Entry": Entry, "Backend": Backend}
    classes |= {"CompileOptions": CompileOptions, "LampworkError": lampwork.LampworkError, "Record": Record}
    reports = (Change, SwapReport, ApproximationRule, RuleReport, ApproximationReport)
    reports += (QuantizationReport, LayerReport, OutputReport, Int8Linear)
    reports += (Comparison, Column, PlacedModel, PlacementPlan, PartPlan, CopyPlan, WholePlan, Device)
    classes |= {cls.__name__: cls for cls in reports}
    lines = [
        "# The API",
        "",
        GENERATED,
        "",
        "What `import lampwork` offers; the [tour](../tour.md) shows it at work. The result of `compile` is called",
        "like the original, and also has the attributes `entries` and `stages`.",
        "",
    ]
    for name, function in sorted(functions.items()):
        lines += [f"## `lampwork.{name}{signature(function)}`", "", *text_block(inspect.getdoc(function)), ""]
    lines += ["## Objects", ""]
    for name, cls in classes.items():
        lines += [
            f"### {name}",
            "",
            f"`{cls.__module__}.{cls.__qualname__}`",
            "",
            *text_block(inspect.getdoc(cls)),
            "",
        ]
        members = [(n, m) for n, m in vars(cls).items() if isinstance(m, property) and m.__doc__]
        if members:
            rows = ([f"`{n}`", " ".join((m.__doc__ or "").split())] for n, m in members)
            lines += [*table(["property", ""], rows), ""]
    return "\n".join(lines).rstrip()


def signature(function: Callable[..., object]) -> str:
    """The parameters with their defaults, without types."""
    found = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def text_block(text: str | None) -> list[str]:
    return ["```text", *(text or "").splitlines(), "```"]


def operations() -> str:
    rows = [[f"`{name}`", str(info.arity), str(info.cost), info.doc] for name, info in OPS.items()]
    return "\n".join(
        [
            "# Operations of the loop language",
            "",
            GENERATED,
            "",
            "The pointwise operations that an expression may hold. `cost` counts roughly in additions: what fusion",
            "weighs before it computes something twice.",
            "",
            *table(["name", "arguments", "cost", ""], rows),
        ]
    )


def rules() -> str:
    families: dict[str, list[str]] = {}
    for operator, rule in RULES.items():
        family = rule.__module__.rpartition(".")[2]
        families.setdefault(family, []).append(operator.removeprefix("aten::"))
    lines = [
        "# Rules: lowering, passes, rewrites",
        "",
        GENERATED,
        "",
        "## ATen operators with a lowering rule",
        "",
        f"{len(RULES)} operators become loops, by file of `src/lampwork/lower/`. A rule may decline some",
        "arguments (a dtype that the loop language lacks, a size); those calls, and all other operators, become calls",
        "of ATen inside the compiled program.",
        "",
        *table(["file", "operators"], ([f, ", ".join(f"`{o}`" for o in families[f])] for f in families)),
        "",
        "## Passes",
        "",
        'In the order in which they run; `passes="-name"` switches one off. `merge-linears`, `widen-convolution`,',
        "`choose-layouts`, `channels-last-convolution`, `prepack-convolution`, `channels-last-on-cards`,",
        "`bias-behind-convolution` and `gelu-in-product` are the native backend's, and run for it only.",
        "",
    ]
    steps_of_native = with_backend_passes(default_passes(), NativeBackend().passes)
    numbers: dict[str, list[int]] = {}
    steps: dict[str, Pass] = {}
    for number, step in enumerate((*steps_of_native, *optional_passes()), 1):
        numbers.setdefault(step.name, []).append(number)
        steps[step.name] = step
    for name, step in steps.items():
        lines += [f"### {', '.join(map(str, numbers[name]))}. {name}", "", *docstring(type(step)), ""]
    lines += ["Those of the pass `library` have [a page of their own](library.md).", ""]
    lines += ["## Rewrites of the pass `algebra`", ""]
    tables: dict[str, Callable[[], tuple[Rule, ...]]] = {
        "algebra.py": algebra_rules,
        "views.py": view_rules,
        "padding.py": padding_rules,
    }
    for file, make in tables.items():
        lines += [
            f"`src/lampwork/rewriting/{file}`:",
            "",
            "```text",
            *(rule.name for rule in make()),
            "```",
            "",
        ]
    return "\n".join(lines).rstrip()


def operators() -> str:
    found = reachable_operators()
    sections = {
        "Core ATen": [each for each in found if each.core],
        "With a decomposition": [each for each in found if not each.core and each.decomposes],
        "Without one": [each for each in found if not each.core and not each.decomposes],
    }
    lines = [
        "# Operators that reach a backend",
        "",
        GENERATED,
        "",
        f"The {len(found)} ATen operators of torch {torch.__version__.partition('+')[0]} on the CPU that a graph can",
        "contain where [backends](../backends.md) are asked; `lampwork.backends.reachable_operators()` gives the list",
        "for the installed torch, and for another device. `operator.getitem` takes the results of operators of",
        'several. With `decompose = "core"` a backend is asked about those of the first section, about what the',
        "decompositions of the second leave, and about those of the third.",
    ]
    for title, operators in sections.items():
        packets: dict[str, list[str]] = {}
        for each in operators:
            _, packet, overload = each.name.split(".")
            packets.setdefault(packet, []).append(overload)
        rows = ([f"`{name}`", ", ".join(names)] for name, names in packets.items())
        lines += ["", f"## {title}", "", *table(["operator", "overloads"], rows)]
    return "\n".join(lines)


def library() -> str:
    lines = [
        "# The library of rewrites",
        "",
        GENERATED,
        "",
        'What the pass `library` applies, after the rewrites that users registered. `passes="-name"` switches one',
        "off, `-library` all. They keep eager's results within float rounding. Most make no difference to the native",
        "backend, which makes the same loops of a formula as of the op (those that were slower are not here): they are",
        "for backends that run op by op, and for the rewrites that look for the op. The passes `merge-linears` and",
        "`fold-batch-norm`, whose figures are here too, are on the page of [passes](rules.md).",
        "",
    ]
    for name, family in {**FORMULAS, **CONSTANTS, "pairs": pair_rules}.items():
        rules = {rule.name: rule for rule in family()}
        module = sys.modules[family.__module__]
        lines += [f"## {name}", "", *(inspect.getdoc(module) or "").splitlines(), ""]
        described: dict[str, list[str]] = {}
        for rule_name, rule in rules.items():
            described.setdefault("\n".join(rule_text(rule_name, rule)), []).append(rule_name)
        for text, names in described.items():
            lines += [f"### {', '.join(f'`{n}`' for n in names)}", "", text, ""]
    return "\n".join([*lines, *figures()])


def rule_text(name: str, rule: Rule) -> list[str]:
    """What a rewrite does: its class's docstring, or its line."""
    if name in activations.LINES:
        pattern, replacement = activations.LINES[name]
        return ["```text", f"before:  {pattern}", f"after:   {replacement}", "```"]
    owner = type(getattr(rule.check, "__self__", None))
    documented = next((c for c in owner.__mro__ if "before:" in (c.__doc__ or "")), owner)
    return docstring(documented)


def figures() -> list[str]:
    """What the rewrites were measured to be worth."""
    found = json.loads(FIGURES.read_text())
    machine = found["machine"]
    rows: dict[tuple[str, int], dict[str, dict[str, object]]] = {}
    for figure in found["figures"]:
        rows.setdefault((figure["title"], figure["threads"]), {})[figure["backend"]] = figure
    cells: list[list[str]] = []
    for (title, threads), backends in rows.items():
        native, eager = backends["native"], backends["eager"]
        cells.append(
            [
                title if threads == 1 else f"{title}, {threads} threads",
                ", ".join(f"`{rule}`" for rule in native["rules"]),  # type: ignore[attr-defined]
                *(f"{native[key]:.1f}" for key in ("without_us", "with_us")),
                f"{native['ratio']:.2f}",
                f"{eager['ratio']:.2f}",
                f"{native['ops_without']} → {native['ops_with']}",
            ]
        )
    return [
        "## What they are worth",
        "",
        f"Best of many short turns (`benchmarks/rewrites.py`) on {machine['cpu']}, torch {machine['torch']}:",
        "microseconds by the native backend without and with the rewrites, the ratio of the two, the ratio on the",
        "backend `eager`, and the ATen ops of a call. Differences below 0.05 are within what two runs differ by.",
        "",
        *table(["model", "rewrites", "without", "with", "ratio", "eager's", "ops"], cells),
    ]


def docstring(cls: type) -> list[str]:
    """A transform's docstring as Markdown: prose, and its before/after lines as a block."""
    lines: list[str] = []
    for part in (inspect.getdoc(cls) or "").split("\n\n"):
        prose, found, rest = part.partition("before:")
        lines += textwrap.dedent(prose).strip().splitlines()
        if found:
            gap = [""] if lines and lines[-1] else []
            lines += [*gap, "```text", *(found + rest).splitlines(), "```"]
        lines.append("")
    while lines and not lines[-1]:
        lines.pop()
    return lines


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options,
    "api.md": api,
    "codes.md": codes,
    "opcodes.md": opcodes,
    "operations.md": operations,
    "rules.md": rules,
    "library.md": library,
    "operators.md": operators,
}


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make() + "\n")


if __name__ == "__main__":
    main()
