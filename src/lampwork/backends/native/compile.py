"""The native backend: an ATen graph becomes a `Program` of LLVM kernels and ATen calls.

lower -> prepack -> fuse -> schedule -> generate code -> plan memory
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, fx

from lampwork import config, logs
from lampwork.backends.native.artifacts import Artifacts, Finished
from lampwork.backends.native.demand import in_order_of_demand
from lampwork.backends.native.generate import Generated, generate
from lampwork.backends.native.keep import Again, from_bytes, machine_parts, to_bytes
from lampwork.backends.native.memory_plan import Devices, Result, plan
from lampwork.backends.native.passes.bias_behind_convolution import BiasBehindConvolution
from lampwork.backends.native.passes.bias_behind_product import BiasBehindProduct
from lampwork.backends.native.passes.channels_last_convolution import ChannelsLastConvolution
from lampwork.backends.native.passes.channels_last_on_cards import ChannelsLastOnCards
from lampwork.backends.native.passes.choose_layouts import ChooseLayouts
from lampwork.backends.native.passes.gelu_in_product import GeluInProduct
from lampwork.backends.native.passes.known_masks import KnownMasks
from lampwork.backends.native.passes.merge_linears import MergeLinears
from lampwork.backends.native.passes.prepack_convolution import PrepackConvolution
from lampwork.backends.native.passes.widen_convolution import WidenConvolution
from lampwork.backends.native.place_pieces import place_pieces
from lampwork.backends.native.place_writes import Write
from lampwork.backends.native.precision import float32_in_bf16
from lampwork.backends.native.step_facts import Facts
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.native.tasks import ExternTask
from lampwork.backends.native.tuning.race import Tuning
from lampwork.backends.native.tuning.tune import Candidate, tune
from lampwork.backends.observer import Inside
from lampwork.backends.protocol import CompileOptions
from lampwork.codegen.llvm.isa.x86 import host_target
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.errors import BackendError
from lampwork.graph.concrete import concrete_graph, scope_of
from lampwork.graph.devices import CPU, kernel_device
from lampwork.graph.symbols import Scope
from lampwork.loops.fusion.effects import is_needed_anyway
from lampwork.loops.fusion.fuse import apart, fuse
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.definitions import outs_of, reads_of
from lampwork.loops.ir.nodes import Buffer, Definition, Map
from lampwork.loops.ir.symbols import NO_HINTS
from lampwork.loops.ir.verify import verify_definitions
from lampwork.lower.lowering import Lowered, lower_graph
from lampwork.plugins.context import BackendPasses
from lampwork.plugins.registry import Place
from lampwork.records import record
from lampwork.runtime.program import Program
from lampwork.standard import functools
from lampwork.verdict import Verdict, Yes


@record
class NativeBackend:
    """Compiles every graph: what the loop language cannot express becomes an ATen call inside the program.

    target: the machine to generate code for, under given options.
    """

    name: ClassVar[str] = "native"
    writes_inputs: ClassVar[bool] = True
    keeps_constants: ClassVar[bool] = True
    trusted: ClassVar[bool] = True

    target: Callable[[Config], Target] = host_target

    @property
    def passes(self) -> BackendPasses:
        """Products merged and convolutions packed as its templates and oneDNN want them."""
        return (
            (MergeLinears(self.target, device_target), Place("algebra")),
            (WidenConvolution(self.target), Place(MergeLinears.name)),
            (ChooseLayouts(self.target), Place(WidenConvolution.name)),
            (ChannelsLastConvolution(self.target), Place(ChooseLayouts.name)),
            (PrepackConvolution(self.target), Place(ChannelsLastConvolution.name)),
            (ChannelsLastOnCards(device_target), Place(PrepackConvolution.name)),
            (BiasBehindConvolution(), Place(ChannelsLastOnCards.name)),
            (GeluInProduct(), Place(BiasBehindConvolution.name)),
            (BiasBehindProduct(device_target), Place(GeluInProduct.name)),
            (KnownMasks(), Place(BiasBehindProduct.name)),
        )

    def supports(self, node: fx.Node) -> Verdict:
        return Yes()

    def prepare(self) -> None:
        """Something is about to be captured, and compiled after that, under the options in force. What is kept needs no
        LLVM, so that is loaded by the first compilation where there is a cache."""
        options = config.current()
        if options.cache == "off" or options.tunes:
            target = self.target(options)
            target.generate(target).prepare()
        if torch.version.cuda is not None and torch.cuda.is_initialized():
            _prepare_card(options)

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Program | SymbolicProgram:
        made = self._made(graph, options)
        observer = options.observer
        observer.built(Inside(graph, made.program, made.details))
        if observer.looks:
            observer.compiled(made.texts(), made.layout.counts, made.artifacts.seconds)
        return made.compiled

    def _made(self, graph: fx.Graph, options: CompileOptions) -> Finished:
        artifacts = Artifacts()
        title = options.observer.title
        device = kernel_device(graph)
        target = self.target(options.config) if device == CPU else device_target(device, options.config)
        target.generate(target).prepare()
        if options.config.tunes:
            artifacts.tuning = _tuned(graph, target, options)
        program = None
        if device != CPU and artifacts.tuning is not None and artifacts.tuning.is_of_use:
            program = _with_winners(graph, target, artifacts, options)
            if program is None:
                artifacts = Artifacts(tuning=Tuning(verdicts=artifacts.tuning.verdicts))
        if program is None:
            tuning = artifacts.tuning
            artifacts, program = compile_open(
                graph, options.mutations, target, tuning, options.waits, title, options.views
            )
        return Finished(program, artifacts, target)

    def key_parts(self, graph: fx.Graph, options: CompileOptions) -> Mapping[str, str] | None:
        """The machine, and what torch was asked about products. Not what was chosen by measurement, nor kernels of
        cards: these are not kept; nor is there anything to see of LLVM where nothing is compiled."""
        if options.config.tunes or kernel_device(graph) != CPU or logs.enabled("llvm"):
            return None
        return machine_parts(self.target(options.config))

    def save(self, compiled: Program | SymbolicProgram) -> bytes:
        return to_bytes(compiled)

    def restore(self, content: bytes, graph: fx.Graph, options: CompileOptions) -> Program | SymbolicProgram:
        """Nothing of LLVM is loaded. What an observer may ask for beyond the program is found by compiling again."""
        observer = options.observer
        again = Again(functools.partial(self._again, graph, options))
        restored = from_bytes(content, lambda: _scope(graph)[1], observer.title, again)
        again.program = restored.program
        observer.built(Inside(graph, restored.program, again.details, options.ready))
        if observer.looks:
            observer.compiled(again.texts(), restored.layout.counts, {})
        return restored.compiled

    def _again(self, graph: fx.Graph, options: CompileOptions) -> Finished:
        options.ready()
        with config.using_config(options.config):
            return self._made(graph, options)


def compile_open(
    graph: fx.Graph,
    mutations: Sequence[tuple[int, int]],
    target: Target,
    tuning: Tuning | None = None,
    waits: bool = True,
    title: str = "",
    views: Sequence[tuple[int, int]] = (),
) -> tuple[Artifacts, Program | SymbolicProgram]:
    """What `compile_program` gives and leaves. Where a graph with symbols cannot be compiled for all sizes, its symbols
    are fixed, and it is compiled for their hints.

    Raises:
        BackendError: as `compile_program`.
    """
    artifacts = Artifacts(tuning=tuning)
    try:
        program = compile_program(graph, mutations, target, artifacts, waits, title, views)
    except BackendError as error:
        scope, hints = _scope(graph)
        if scope is None:
            raise
        if logs.enabled("loops"):
            logs.emit("loops", f"compiled for {dict(hints)} only, not for all sizes: {error}")
        scope.fix_all()
        artifacts = Artifacts(tuning=tuning)
        fixed = concrete_graph(graph, hints)
        program = compile_program(fixed, mutations, target, artifacts, title=title, views=views)
    return artifacts, program


def compile_program(
    graph: fx.Graph,
    mutations: Sequence[tuple[int, int]],
    target: Target,
    artifacts: Artifacts,
    waits: bool = True,
    title: str = "",
    views: Sequence[tuple[int, int]] = (),
) -> Program | SymbolicProgram:
    """Compile a functional ATen graph whose inputs come before its bound placeholders.

    Gives a Program if no number in the graph is symbolic, else one for all sizes.

    Args:
        mutations: (placeholder number, output number) pairs that the program writes back itself.
        views: (output number, placeholder number): outputs that may be views of what is written there.
        artifacts: receives what each step made.
        title: of what is compiled, for profilers.
        waits: for machine code; else whoever asks a kernel for its address waits, and meets LLVM's errors.

    Raises:
        BackendError: lowering, scheduling or code generation failed.
    """
    clock = _Clock(artifacts.seconds)
    checking = config.current().verify

    tuning = Tuning() if artifacts.tuning is None else artifacts.tuning
    variants = tuning.variants
    in_bf16 = float32_in_bf16(target)
    lowered = lower_graph(
        graph,
        target.products,
        target.tiled_scores,
        variants,
        in_bf16,
        mutations,
        views=views,
        templates=target.templates,
        atomics=target.atomics,
        grouped=target.grouped,
        standalone=target.standalone,
    )
    devices = Devices(lowered.device, lowered.elsewhere)
    inputs, bound = _placeholders(graph, lowered)
    clock.lap("lower")

    fixed = {b.name for b in bound if b is not None}
    fixed.update(out.name for definition in lowered.constant for out in outs_of(definition))
    generator = target.generate(target)
    _, hints = _scope(graph)
    main, constant = generator.prepack(lowered.definitions, lowered.constant, frozenset(fixed), hints)
    leaving = frozenset(output.buffer.name for output in lowered.outputs)
    saved = frozenset(name for undo in lowered.undo for name in undo.needs)
    placement = place_pieces(main, leaving | saved, lowered.elsewhere)
    main = placement.definitions
    artifacts.definitions, artifacts.constant = main, constant
    if checking:
        verify_definitions([*constant, *main])
    clock.lap("prepack")

    if config.current().fusion:
        groups, artifacts.decisions = fuse(main, leaving | saved, target, hints, generator.attends)
    else:
        groups, artifacts.decisions = apart(main, leaving | saved, target)
    needed = _needed_constants(groups, constant, leaving | saved)
    constant_groups, _ = fuse(constant, frozenset(b.name for b in needed), target)
    clock.lap("fuse")

    undo_groups = [Group("pointwise", (undo.restore,)) for undo in lowered.undo]
    generated = generate(groups, constant_groups, target, hints, undo_groups, waits, tuning.grids)
    artifacts.generated = generated
    clock.lap("codegen")

    layouts = {out.name: out for group in (*groups, *constant_groups) for out in group.outs}
    whole = [*lowered.definitions, *lowered.constant]
    facts = Facts(graph, whole, lowered.made_for, generated.made, layouts)
    constant_program = None
    if needed:
        results = [Result(buffer) for buffer in needed]
        constant_layout = plan(
            in_order_of_demand(generated.constant_tasks, needed),
            bound,
            (),
            (),
            results,
            layouts,
            devices=devices,
        )
        named = f"{title} constants".lstrip()
        constant_program = replace(constant_layout, name=named, facts=facts).place({})
    outputs = [Result(output.buffer, output.view) for output in lowered.outputs]
    layout = plan(
        generated.tasks,
        inputs,
        bound,
        needed,
        outputs,
        layouts,
        mutations,
        constant_program,
        [
            Write(undo.out, undo.onto, undo.saved, undo.needs, task)
            for undo, task in zip(lowered.undo, generated.undo_tasks, strict=True)
        ],
        placement.places,
        devices,
        _updates(groups),
    )
    artifacts.names = layout.names
    layout = replace(layout, name=title, labels=facts.labels(layout.work), facts=facts)
    counts: dict[str, int] = {}
    layout = replace(layout, counts=counts)
    artifacts.program = layout.place(hints)
    counts.update(artifacts.counts(graph, artifacts.program))
    clock.lap("plan")
    return SymbolicProgram(layout) if layout.keys or layout.scalars else artifacts.program


def _updates(groups: Sequence[Group]) -> dict[str, str]:
    """What updates make -> the buffer that they are made of, whose memory it has."""
    found: dict[str, str] = {}
    for group in groups:
        for each in group.definitions:
            if isinstance(each, Map) and each.combine is not None and each.onto is not None:
                found[each.out.name] = found.get(each.onto.name, each.onto.name)
    return found


def device_target(device: torch.device, config: Config) -> Target:
    """The target for a device other than the CPU."""
    # Loaded when a graph has such a device: the CPU does without it.
    from lampwork.codegen.gpu import nvidia

    return nvidia.device_target(device.index or 0, config)


def _prepare_card(options: Config) -> None:
    """A program that uses cards may be about to be captured for one."""
    # Loaded when a program uses cards: the CPU does without it.
    from lampwork.codegen.gpu.early import start_early

    # Within a capture of CUDA's nothing is done ahead that need not be.
    if not torch.cuda.is_current_stream_capturing():
        device = torch.device("cuda", torch.cuda.current_device())
        start_early(lambda: device_target(device, options))


def _tuned(graph: fx.Graph, target: Target, options: CompileOptions) -> Tuning:
    """What measurements say of a graph."""
    if kernel_device(graph) == CPU:
        return tune(graph, target, options.config, _Alone(target))
    # Loaded when a graph has such a device: the CPU does without it.
    from lampwork.backends.native.tuning.tune_card import Made, tune_on_card
    from lampwork.codegen.gpu.card import GpuTarget

    if not isinstance(target, GpuTarget):
        return Tuning()

    def whole(tuning: Tuning) -> Made:
        artifacts = Artifacts(tuning=tuning)
        compile_program(graph, options.mutations, target, artifacts, views=options.views)
        return Made(cast(Generated, artifacts.generated).kernels, _scope(graph)[1])

    return tune_on_card(graph, target, options.config, _Alone(target), whole)


def _with_winners(
    graph: fx.Graph, target: Target, artifacts: Artifacts, options: CompileOptions
) -> Program | SymbolicProgram | None:
    """The program with what was measured to be the best; None if something that is better alone has no code here."""
    try:
        return compile_program(
            graph,
            options.mutations,
            target,
            artifacts,
            options.waits,
            options.observer.title,
            options.views,
        )
    except BackendError as error:
        logs.emit("tuning", f"a graph is compiled without what was measured: {error}")
        return None


@record
class _Alone:
    """Compiles one product of a graph for the tuner."""

    target: Target

    def __call__(self, graph: fx.Graph, variants: Mapping[str, str]) -> Candidate:
        artifacts = Artifacts(tuning=Tuning(dict(variants)))
        compile_program(graph, (), self.target, artifacts)
        generated, program = cast(Generated, artifacts.generated), cast(Program, artifacts.program)
        texts = [_NAME.sub("", template.text) for template in generated.templates]
        calls = [repr(task.extern) for task in generated.tasks if isinstance(task, ExternTask)]
        return Candidate(program, (*texts, *calls))


_NAME = re.compile(r"\blw[tp]\d+")


def _scope(graph: fx.Graph) -> tuple[Scope | None, Mapping[str, int]]:
    """Where the symbols of a graph belong, and their values on the call that it was recorded for."""
    scope = scope_of(graph)
    return scope, NO_HINTS if scope is None else scope.hints


@dataclass(slots=True)
class _Clock:
    seconds: dict[str, float]
    last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self.last
        self.last = now


def _placeholders(graph: fx.Graph, lowered: Lowered) -> tuple[list[Buffer | None], list[Buffer | None]]:
    """(inputs' buffers, bound tensors' buffers)."""
    inputs: list[Buffer | None] = []
    bound: list[Buffer | None] = []
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    for node, buffer in zip(nodes, lowered.placeholders, strict=True):
        (bound if node.meta.get("bound") else inputs).append(buffer)
    return inputs, bound


def _needed_constants(
    groups: Sequence[Group], constant: Sequence[Definition], leaving: frozenset[str]
) -> list[Buffer]:
    """The buffers of the constant part that the main part reads or returns, in order of definition; and those that have
    to be computed although nobody reads them."""
    read: set[str] = set(leaving)
    for group in groups:
        read |= group.reads
    inside = {name for definition in constant for name in reads_of(definition)}
    return [
        out
        for definition in constant
        for out in outs_of(definition)
        if out.name in read or (out.name not in inside and is_needed_anyway(definition))
    ]
