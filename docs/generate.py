"""Write docs/reference/ from the code: options, codes, opcodes, loop operations, rules and passes. `make docs`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import torch

import lampwork
from lampwork import errors, logs
from lampwork.backends import reachable_operators
from lampwork.backends.native.compile import NativeBackend
from lampwork.capture.model.codes import CODES
from lampwork.capture.opcodes import VERSIONS
from lampwork.compiled.recompiles import RECOMPILES
from lampwork.config import Config
from lampwork.loops.ir.ops import OPS
from lampwork.lower.table import RULES
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.apply.driver import Rule
from lampwork.rewriting.library import activations
from lampwork.rewriting.library.pairs import pair_rules
from lampwork.rewriting.library.table import CONSTANTS, FORMULAS
from lampwork.rewriting.padding import padding_rules
from lampwork.rewriting.views import view_rules
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


# The API by task: heading, what it is for, names below `lampwork`. A public name that is in none is an error.
API: tuple[tuple[str, str, str], ...] = (
    (
        "Compile",
        "See the [tour](../tour.md), [modes](../modes.md) and [options](options.md).",
        "compile config.using disable graph_break allow_in_graph is_compiling mark_dynamic mark_static set_stance "
        "reset",
    ),
    (
        "See what became of it",
        "See [reports](../reports.md), and [codes](codes.md) for the records.",
        "explain Explanation inspect.Explainer inspect.FunctionReport inspect.RegionReport inspect.GuardLine "
        "compiled.entries.Entry capture.model.region.Record stats reset_stats inspect.report_data inspect.diff "
        "inspect.Difference inspect.Finding",
    ),
    (
        "Measure",
        "See [profiling](../profiling.md).",
        "compare inspect.comparison.Comparison inspect.comparison.Column profile Profile",
    ),
    (
        "Take it elsewhere",
        "See [artifacts](../artifacts.md), [exports](../exports.md) and [the study](../study.md).",
        "export Exported load LoadedModel artifacts.LoadedEntry artifacts.inspect artifacts.Inspection study.run "
        "study.page",
    ),
    (
        "Change a model",
        "See [swapping](../swapping.md) and [quantization](../quantization.md).",
        "swap swapping.SwapReport swapping.Change swapping.Difference swapping.Unmatched swapping.Functional "
        "approximate approximation.gelu_to_relu approximation.gelu_to_tanh approximation.layer_norm_to_affine "
        "approximation.low_rank approximation.bf16_weights approximation.int8 approximation.ApproximationRule "
        "approximation.ApproximationReport approximation.RuleReport approximation.Refusal approximation.Statistics "
        "approximation.max_relative_difference approximation.top1_disagreement quantize "
        "approximation.QuantizationReport approximation.LayerReport approximation.OutputReport "
        "approximation.Int8Linear approximation.Int8Conv approximation.HalfLinear approximation.LowRankLinear "
        "approximation.ChannelAffine",
    ),
    (
        "Place on devices",
        "See [placement](../placement.md).",
        "place placement.PlacedModel placement.PlacementPlan placement.PartPlan placement.CopyPlan "
        "placement.WholePlan placement.Device placement.Absent",
    ),
    (
        "Rewrites and passes",
        "See [rewriting](../rewriting.md) and [extending](../extending.md).",
        "rewrite rewrites why_not register_pass passes sequence patterns.anything patterns.tensor patterns.number "
        "patterns.constant patterns.rest patterns.either patterns.maybe patterns.repeated patterns.scaled "
        "patterns.through patterns.call",
    ),
    (
        "Backends",
        "See [backends](../backends.md).",
        "register_backend list_backends partition Yes No backends.protocol.Backend backends.protocol.CompileOptions "
        "backends.protocol.Traits backends.reachable_operators backends.ReachableOperator",
    ),
    (
        "Test plug-ins and small failures",
        "See [testing](../testing.md).",
        "testing.check_backend testing.check_rewrite testing.Report testing.Check testing.ConformanceError "
        "testing.BACKEND_PROMISES testing.Promise testing.failure testing.Failure minify Minified",
    ),
    ("Train", "See [training](../training.md).", "optimizers.update"),
    ("Errors", "[Codes](codes.md) lists all.", "LampworkError LampworkWarning"),
)
PUBLIC = (
    "approximation",
    "backends",
    "inspect",
    "optimizers",
    "patterns",
    "placement",
    "study",
    "swapping",
    "testing",
)


def public_names() -> dict[str, object]:
    """Each public object by its shortest name below `lampwork`."""
    modules = {name: import_module(f"lampwork.{name}") for name in PUBLIC}
    found = {name: getattr(lampwork, name) for name in lampwork.__all__}
    found = {n: v for n, v in found.items() if not inspect.ismodule(v) and n != "__version__"}
    for name, module in modules.items():
        for each in module.__all__:
            value = getattr(module, each)
            if not any(value is known for known in found.values()):
                found[f"{name}.{each}"] = value
    return found


def api() -> str:
    public, listed = public_names(), {name for _, _, names in API for name in names.split()}
    if left := sorted(set(public) - listed):
        raise ValueError(f"public, but in no group of API in docs/generate.py: {', '.join(left)}")
    lines = [
        "# The API",
        "",
        GENERATED,
        "",
        "What `import lampwork` offers, by task. Parameters after `*` are keywords.",
    ]
    for heading, text, names in API:
        lines += ["", f"## {heading}", "", text]
        for name in names.split():
            lines += ["", *described(name, public.get(name) or attrgetter(name)(lampwork))]
    return "\n".join(lines)


def described(name: str, value: Any) -> list[str]:
    """The entry of an object: its name, how it is called, what it says of itself, and its members."""
    lines = [f"### `lampwork.{name}`", ""]
    shown = name.rpartition(".")[2]
    if inspect.isroutine(value) or name == "set_stance" or (inspect.isclass(value) and is_dataclass(value)):
        lines += [*called(shown, value), ""]
    if isinstance(value, tuple):
        return [*lines, f"A {type(value).__name__} of `{type(value[0]).__name__}`."]
    lines += markdown_of(inspect.getdoc(value) or "")
    rows = [[f"`{n}`", escaped(first_paragraph(member))] for n, member in members(value)]
    if rows:
        lines += ["", *table(["member", "what it is"], rows)]
    return lines


def members(value: Any) -> list[tuple[str, Any]]:
    """The documented properties and methods of a class, as `name` or `name(parameters)`."""
    if not inspect.isclass(value):
        return []
    found: list[tuple[str, Any]] = []
    for name, member in vars(value).items():
        inner = getattr(member, "__func__", member)  # of a class method
        if name.startswith("_") or not inspect.getdoc(inner):
            continue
        if isinstance(member, property):
            found.append((name, member))
        elif inspect.isfunction(inner):
            found.append((name + signature(inner).replace("(self, ", "(").replace("(self)", "()"), inner))
    return found


def first_paragraph(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def signature(function: Callable[..., object]) -> str:
    """The parameters with their defaults, without types."""
    found = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    text = str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"=<[^>]*>", "=...", text)  # objects whose text has an address, or says nothing


def called(name: str, function: Callable[..., object]) -> list[str]:
    """A block with the call of a function, over as many lines as it takes."""
    line = f"{name}{signature(function)}"
    broken = textwrap.wrap(
        line, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return ["```python", *broken, "```"]


def text_block(text: str | None) -> list[str]:
    return ["```text", *(text or "").splitlines(), "```"]


SECTION = re.compile(r"(Args|Raises|Returns|Attributes|Yields):$")


def markdown_of(docstring: str) -> list[str]:
    """A docstring as Markdown: sections become lists, and what is indented, or shows a transform, a block."""
    lines: list[str] = []
    block: list[str] = []
    section = False
    for paragraph in [*re.split(r"\n\s*\n", docstring), ""]:
        head, _, rest = paragraph.partition("\n")
        indented = head.startswith("    ")
        if block and not indented:
            lines += [f"```{'python' if is_python(block) else 'text'}", *block[:-1], "```", ""]
            block = []
        if SECTION.match(head):
            section = True
            lines += [f"**{head}**", "", *entries(rest), ""]
        elif section and indented:
            lines += [*entries(paragraph), ""]
        elif indented or re.search(r"^before:", paragraph, re.M):
            block += [*(line.removeprefix("    ") for line in paragraph.splitlines()), ""]
        else:
            section = False
            lines += [*escaped(paragraph).splitlines(), ""]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def is_python(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def entries(text: str) -> list[str]:
    """The lines of a section: "name: what it is" becomes an item, with what is below it."""
    lines: list[str] = []
    for line in textwrap.dedent(text).splitlines():
        name, colon, rest = line.partition(": ")
        if line[:1].isspace() or line.startswith("* "):
            lines.append("  " + escaped(line.removeprefix("    ")))
        elif colon:
            lines.append(f"* `{name.strip('`')}`: {escaped(rest)}")
        else:
            lines.append(f"* {escaped(line)}")
    return lines


MARKUP = re.compile(r"(?<=[^\W_])_(?=[^\W_])|(?<!\S)[*<](?!\S)|([*_<])")


def escaped(text: str) -> str:
    """Prose as Markdown: outside of code, only a list's bullet is markup. What stands alone, or in a word, is none."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [MARKUP.sub(lambda m: f"\\{m[1]}" if m[1] else m[0], part) for part in parts[::2]]
    return "".join(parts)


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
        "`bias-behind-convolution`, `gelu-in-product`, `bias-behind-product` and `known-masks` are the native",
        "backend's, and run for it only.",
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
