"""What a native compilation leaves to look at: counts, and texts of every step, made when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import fx

from lampwork.backends.native.generate import Generated
from lampwork.backends.native.kernel_texts import KernelTexts
from lampwork.backends.native.place_pieces import ASSEMBLE
from lampwork.backends.native.print_program import format_program
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.native.tasks import ExternTask, KernelTask
from lampwork.backends.native.tuning.race import Tuning
from lampwork.backends.observer import Details
from lampwork.codegen.target import CodeGenerator, Target
from lampwork.graph.layouts import same_strides
from lampwork.loops.fusion.group import Decision
from lampwork.loops.ir.nodes import Definition
from lampwork.loops.ir.printing import format_definitions, format_kernel
from lampwork.rewriting.matching.values import is_constant
from lampwork.runtime.layout import Layout
from lampwork.runtime.program import Program


@dataclass(slots=True)
class Artifacts:
    """What a native compilation leaves to look at. `seconds`: by step."""

    definitions: list[Definition] = field(default_factory=list[Definition])
    constant: list[Definition] = field(default_factory=list[Definition])
    decisions: list[Decision] = field(default_factory=list[Decision])
    generated: Generated | None = None
    names: Mapping[str, int] = field(default_factory=dict[str, int])
    """Buffers -> the values of the program."""
    layout: Layout | None = None
    program: Program | None = None
    """Of a graph with symbols, the one for their hints."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    tuning: Tuning | None = None
    """What mode="max-autotune" found."""

    def counts(self, graph: fx.Graph, program: Program) -> dict[str, int]:
        """How much of what the program of a graph was made of."""
        generated = cast(Generated, self.generated)
        kernels = [task for task in generated.tasks if isinstance(task, KernelTask)]
        tuned = self.tuning is not None and self.tuning.verdicts
        return {
            "definitions": len(self.definitions),
            "kernel calls": len(kernels),
            "gemms": sum(task.origin.startswith("gemm") for task in kernels),
            "layout conversions": len(conversions(graph)),
            "ATen calls": sum(
                isinstance(task, ExternTask) and task.extern.target != ASSEMBLE for task in generated.tasks
            ),
            "distinct functions": len({task.code for task in kernels}),
            "constants": len(program.constants.outputs) if program.constants else 0,
            "arena bytes": program.arena_bytes,
            **({"tuned products": len(cast(Tuning, self.tuning).variants)} if tuned else {}),
        }


@dataclass(slots=True, eq=False)
class Finished:
    """What a native compilation gives, and what it leaves to look at."""

    compiled: Program | SymbolicProgram
    artifacts: Artifacts
    target: Target

    @property
    def program(self) -> Program:
        """Of a graph with symbols, the one for their hints."""
        return cast(Program, self.artifacts.program)

    @property
    def layout(self) -> Layout:
        return cast(Layout, self.program.layout)

    def details(self) -> Details:
        generator = self.target.generate(self.target)
        texts = KernelTexts(cast(Generated, self.artifacts.generated), generator)
        return Details(
            self.artifacts.names,
            self.artifacts.decisions,
            texts.loops,
            texts.llvm,
            generator.assembly,
        )

    def texts(self) -> dict[str, Callable[[], str]]:
        """Makers of the texts of all steps, by stage."""
        artifacts, generated = self.artifacts, cast(Generated, self.artifacts.generated)
        generator = self.target.generate(self.target)
        verdicts = [] if artifacts.tuning is None else artifacts.tuning.verdicts
        return {
            **({"tuning": lambda: "\n".join(map(str, verdicts))} if verdicts else {}),
            "definitions": lambda: format_definitions([*artifacts.constant, *artifacts.definitions]),
            "fusion": lambda: "\n".join(map(str, artifacts.decisions)) or "nothing to fuse",
            "kernels": lambda: "\n\n".join(map(format_kernel, generated.kernels)) or "templates only",
            "llvm": lambda: "\n".join(_texts(generated, generator)),
            "assembly": lambda: "\n".join(map(generator.assembly, _texts(generated, generator))),
            "program": lambda: format_program(self.program),
        }


def conversions(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that change nothing but the order of the elements in memory; not those of constants, which run once."""
    return [
        node
        for node in graph.nodes
        if node.target is torch.ops.aten.clone.default
        and not is_constant(node)
        and not same_strides(node.meta["val"], node.args[0].meta["val"])
    ]


def _texts(generated: Generated, generator: CodeGenerator) -> list[str]:
    """The module of each distinct kernel and template."""
    templates = (template.text for template in generated.templates)
    return list(dict.fromkeys([*templates, *generator.texts(generated.kernels)]))
