"""Compiling ahead of time, for a machine that need not be this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import cast

import torch
from torch import fx

from lampwork import config
from lampwork.backends.native.compile import NativeBackend, compile_open
from lampwork.backends.native.generate import Generated
from lampwork.backends.native.tasks import ExternTask, Task
from lampwork.backends.protocol import kept_operators, passes_of
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.copying import copy_graph
from lampwork.graph.spec import TensorSpec
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.runtime.layout import AtenStep, Layout
from lampwork.runtime.program import CallAten, Program, Ref
from lampwork.transforms.pipeline import run_passes


@record
class CompiledFor:
    """A program for a machine, whose code is not in this process.

    layout: also of a graph without symbols. calls: the ATen operators that are left in it and in what makes its
    constants, each with why; {}: it is standalone. Copies of a tensor into another one of its dtype are none: the
    runtime without torch does them itself.
    """

    target: Target
    layout: Layout
    calls: Mapping[str, str] = field(hash=False)


def compile_for(
    graph: fx.Graph,
    target: Target,
    *,
    mutations: Sequence[tuple[int, int]] = (),
    views: Sequence[tuple[int, int]] = (),
    options: Config | None = None,
    standalone: bool = False,
    name: str = "",
) -> CompiledFor:
    """Compile a graph for a target of `codegen.llvm.targets`, which may be of a machine that this one is not. Nothing
    is measured for it, whatever the mode.

    Args:
        graph: functional ATen as it was recorded, its inputs before its bound placeholders. It is left as it is; what
            compiling asks of its symbols is among the conditions of its Scope afterwards.
        mutations: (placeholder number, output number) pairs that the program writes back itself.
        views: (output number, placeholder number): outputs that may be views of what is written there.
        options: those in force, if left out.
        standalone: templates and loops take whatever they can, also where ATen is faster.
        name: of what is compiled, for profilers.

    Raises:
        BackendError: lowering, scheduling or code generation failed.
    """
    options = config.current() if options is None else options
    target = target.alone() if standalone else target
    target = target.relaxed() if options.numerics == "fast" else target
    backend = NativeBackend(lambda _: target)
    copy = copy_graph(graph)
    with config.using_config(options):
        ctx = PassContext.of(options, kept_operators([backend]))
        ctx.backend_passes = passes_of([backend])
        run_passes(copy, options, ctx=ctx)
        artifacts, _ = compile_open(copy, mutations, target, title=name, views=views)
    program = cast(Program, artifacts.program)
    layout, generated = cast(Layout, program.layout), cast(Generated, artifacts.generated)
    return CompiledFor(target, layout, _calls(layout, [*generated.tasks, *generated.constant_tasks], graph))


def _calls(layout: Layout, tasks: Sequence[Task], graph: fx.Graph) -> Mapping[str, str]:
    """The operators that a program and its constants call through ATen, each with why its first call is one."""
    steps = [*layout.steps, *(layout.constants.instructions if layout.constants is not None else ())]
    calls = [step.call if isinstance(step, AtenStep) else step for step in steps]
    ops = {call.op for call in calls if isinstance(call, CallAten) and not _is_copy(call, layout, graph)}
    found = dict.fromkeys(sorted(ops), "it writes back to an input what torch alone knows the form of")
    for task in reversed(tasks):
        if isinstance(task, ExternTask) and task.extern.target in found:
            found[task.extern.target] = task.extern.why or "a rule chose it"
    return found


def _is_copy(call: CallAten, layout: Layout, graph: fx.Graph) -> bool:
    """Whether a step of the program copies elements as they are, as the steps that write back do: `is_copy` of
    cpp/src/program.cpp."""
    if call.op != "aten::copy_.default" or call.kwargs or any(out >= 0 for out in call.outs):
        return False
    match call.args:
        case (Ref(to), Ref(source)):
            form = _form(to, layout, graph)
            return form is not None and form == _form(source, layout, graph)
        case _:
            return False


def _form(number: int, layout: Layout, graph: fx.Graph) -> tuple[torch.dtype, int] | None:
    """Dtype and dimensions of a value. The layout does not say them of what no kernel touches; of inputs, of what is
    bound and of results the graph does, and so does the manifest of an artifact."""
    value = layout.values[number]
    if value.dtype is not None:
        return value.dtype, len(value.shape)
    placeholders, (output,) = graph.find_nodes(op="placeholder"), graph.find_nodes(op="output")
    match value.kind:
        case "input":
            node = placeholders[value.position]
        case "bound":
            node = placeholders[layout.n_inputs + value.position]
        case "aten" if number in layout.outputs:
            node = output.args[0][layout.outputs.index(number)]
        case _:
            return None
    spec = cast(TensorSpec, node.meta["val"])
    return spec.dtype, len(spec.shape)
