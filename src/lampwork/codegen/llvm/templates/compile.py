"""Template definitions in, functions out: like compile.py for kernels, equal ones are compiled once. Convolutions and
packings are equal if they differ in numbers only (generalize.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from lampwork.codegen.llvm.compile import REMEMBERED, function_of
from lampwork.codegen.llvm.jit import Batch, Jit, Pending
from lampwork.codegen.llvm.structure import template_structure
from lampwork.codegen.llvm.templates.attention import emit_attention
from lampwork.codegen.llvm.templates.choose import Likely, conv_config
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.templates.conv import emit_conv
from lampwork.codegen.llvm.templates.conv_plan import by_pixels, gathers_pixels, in_blocks, plan_conv
from lampwork.codegen.llvm.templates.depthwise import emit_depthwise
from lampwork.codegen.llvm.templates.depthwise_gradient import emit_depthwise_gradient
from lampwork.codegen.llvm.templates.depthwise_plan import (
    choose_depthwise,
    generalized_depthwise,
    plan_depthwise,
)
from lampwork.codegen.llvm.templates.epilogue import needs_checks
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.generalize import generalized_conv, generalized_pack
from lampwork.codegen.llvm.templates.grouped import emit_grouped, likely_rows
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.recurrent import emit_recurrence
from lampwork.codegen.llvm.templates.recurrent_gradient import emit_recurrence_gradient
from lampwork.codegen.llvm.templates.tiles import emit_conv_tiles, emit_tiles
from lampwork.codegen.llvm.templates.tiles_plan import conv_tile_config, tile_unit
from lampwork.codegen.llvm.templates.turned import emit_turned
from lampwork.codegen.llvm.templates.weight_gradient import emit_weight_gradient
from lampwork.codegen.llvm.templates.weight_gradient_plan import choose_gradient, plan_weight_gradient
from lampwork.codegen.llvm.templates.winograd import emit_winograd
from lampwork.codegen.llvm.templates.winograd_plan import plan_winograd, winograd_config
from lampwork.codegen.target import CompiledTemplate, Target
from lampwork.codegen.variants import varied
from lampwork.errors import CodegenError
from lampwork.locks import new_lock
from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Attention, Buffer, Gemm, PackB, Recurrence, RecurrenceGradient, Template
from lampwork.loops.ir.symbols import NO_HINTS, likely, replace_symbols
from lampwork.recent import Recent
from lampwork.records import record


@record
class _Known:
    emitted: GemmCode
    params: tuple[int, ...]  # numbers of buffers in the order of the structure
    symbols: tuple[str, ...]  # of what was emitted, in the order of the structure
    pending: Pending


@record
class _Asked:
    """What to compile. Of equal `key` it is the same code, for the buffers and symbols at the same places.

    values: what symbols stand for that are not sizes of the graph.
    """

    key: Hashable
    buffers: tuple[str, ...]
    symbols: tuple[str, ...]
    values: Mapping[str, Index]
    emit: Callable[[str], GemmCode]


class TemplateCompiler:
    """Compiles the definitions of templates for the target of `jit`. Safe to use from many threads."""

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._lock = new_lock()
        self._known: Recent[Hashable, _Known] = Recent(REMEMBERED)
        self._count = 0

    def compile(self, definition: Template, hints: Mapping[str, int] = NO_HINTS) -> CompiledTemplate:
        """The code of a definition. `hints`: likely values of symbols, to choose tiles by.

        Raises CodegenError for what the templates do not support.
        """
        with Batch(self._jit) as batch:
            return self.start((definition,), hints, batch)()[0]

    def start(
        self, definitions: Sequence[Template], hints: Mapping[str, int], batch: Batch
    ) -> Callable[[], list[CompiledTemplate]]:
        """Start to compile what is new, each as a module of `batch`; the call of what this gives waits for
        them, if the batch is to be waited for."""
        found: list[tuple[Template, _Asked, _Known]] = []
        for definition in definitions:
            target = self._jit.target
            if isinstance(definition, Gemm | Attention):
                target = varied(target, definition.variant)
            asked = _asked(definition, target, hints)
            with self._lock:
                known = self._known.get(asked.key) or self._known.put(asked.key, self._started(asked, batch))
            found.append((definition, asked, known))
        return lambda: [_compiled(*each, batch.waits) for each in found]

    def _started(self, asked: _Asked, batch: Batch) -> _Known:
        name = f"lwt{self._count}"
        self._count += 1
        emitted = asked.emit(name)
        params = tuple(asked.buffers.index(buffer.name) for buffer in emitted.params)
        return _Known(emitted, params, asked.symbols, batch.compile(emitted.text, [name]))


def _compiled(definition: Template, asked: _Asked, known: _Known, waits: bool) -> CompiledTemplate:
    buffers = _buffers(definition)
    emitted, now = known.emitted, dict(zip(known.symbols, asked.symbols, strict=True))
    values = {old: asked.values.get(new, Index.sym(new)) for old, new in now.items()}
    return CompiledTemplate(
        function_of(known.pending, emitted.name, waits),
        tuple(buffers[asked.buffers[number]] for number in known.params),
        tuple(values[name] for name in emitted.sizes),
        replace_symbols(emitted.extent, values),
        replace_symbols(emitted.work, values),
        emitted.chunk,
        emitted.text,
    )


def _asked(definition: Template, target: Target, hints: Mapping[str, int]) -> _Asked:
    if isinstance(definition, Recurrence):
        return _Asked(
            *template_structure(definition), {}, lambda name: emit_recurrence(definition, name, target)
        )
    if isinstance(definition, RecurrenceGradient):
        return _Asked(
            *template_structure(definition),
            {},
            lambda name: emit_recurrence_gradient(definition, name, target),
        )
    if isinstance(definition, Attention):
        return _Asked(
            *template_structure(definition), {}, lambda name: emit_attention(definition, name, target)
        )
    if isinstance(definition, PackB):
        pack, values = generalized_pack(definition)
        return _Asked(*template_structure(pack), values, lambda name: emit_pack(pack, name, target))
    if definition.outputs:
        return _asked_winograd(definition, target, hints)
    if definition.is_weight_gradient:
        return _asked_weight_gradient(definition, target)
    if definition.is_depthwise:
        return _asked_depthwise(definition, target, hints)
    sizes = _likely(definition, hints)
    if definition.rows:
        return _asked_conv(definition, target, sizes)
    structure, buffers, symbols = template_structure(definition)
    if definition.turned:
        return _Asked(structure, buffers, symbols, {}, lambda name: emit_turned(definition, name, target))
    if tile_unit(definition, target) is not None:
        return _Asked(
            ("tiles", structure, sizes),
            buffers,
            symbols,
            {},
            lambda name: emit_tiles(definition, name, target, sizes),
        )
    emit = emit_grouped if definition.group else emit_gemm
    return _Asked(
        (structure, sizes),
        buffers,
        symbols,
        {},
        lambda name: emit(definition, name, target, likely=sizes),
    )


def _asked_conv(gemm: Gemm, target: Target, sizes: Likely) -> _Asked:
    config, values = conv_config(gemm, target, sizes), dict[str, Index]()
    plan = in_blocks(plan_conv(gemm, target), config)
    unit = tile_unit(gemm, target)
    tiles = None if unit is None else conv_tile_config(plan, unit, target, sizes)
    proven = not needs_checks(plan.gemm)
    if proven:
        gathers = tiles is None and gathers_pixels(plan)
        plan, values = generalized_conv(plan)
        plan = by_pixels(plan) if gathers else plan
    extra = [plan.a, plan.blocks, *(index for each in plan.places for index in (each.index, each.last))]
    structure, buffers, symbols = template_structure(plan.gemm, extra)
    if unit is not None and tiles is not None:
        return _Asked(
            ("tiles", structure, tiles),
            buffers,
            symbols,
            values,
            lambda name: emit_conv_tiles(plan, name, target, unit, tiles, proven=proven),
        )
    return _Asked(
        (structure, config),
        buffers,
        symbols,
        values,
        lambda name: emit_conv(plan, name, target, config, proven=proven),
    )


def _asked_winograd(gemm: Gemm, target: Target, hints: Mapping[str, int]) -> _Asked:
    plan = plan_winograd(gemm, target)
    if plan is None:
        raise CodegenError(f"no minimal filtering for the convolution {gemm.out.name!r}")
    config = winograd_config(plan, target, hints)
    structure, buffers, symbols = template_structure(plan.gemm, plan.indices)
    return _Asked(
        ("winograd", structure, tuple(line.padding for line in plan.lines), config),
        buffers,
        symbols,
        {},
        lambda name: emit_winograd(plan, name, target, config),
    )


def _asked_weight_gradient(gemm: Gemm, target: Target) -> _Asked:
    plan = plan_weight_gradient(gemm, target)
    config = choose_gradient(plan, target)
    structure, buffers, symbols = template_structure(gemm)
    emit = emit_depthwise_gradient if gemm.is_depthwise else emit_weight_gradient
    return _Asked(
        ("weight gradient", structure, config),
        buffers,
        symbols,
        {},
        lambda name: emit(plan, name, target, config),
    )


def _asked_depthwise(gemm: Gemm, target: Target, hints: Mapping[str, int]) -> _Asked:
    plan, values = plan_depthwise(gemm, target), dict[str, Index]()
    config = choose_depthwise(plan, target, hints)
    if plan.proven:
        plan, values = generalized_depthwise(plan)
    structure, buffers, symbols = template_structure(plan.gemm, plan.indices)
    return _Asked(
        (structure, config, plan.numbers, plan.proven),
        buffers,
        symbols,
        values,
        lambda name: emit_depthwise(plan, name, target, config),
    )


def _likely(definition: Gemm, hints: Mapping[str, int]) -> Likely:
    if definition.group is not None:
        return Likely(likely_rows(definition, hints), _hinted(definition.n.extent, hints))
    return Likely(*(_hinted(axis.extent, hints) for axis in (definition.m, definition.n)))


def _hinted(size: Index, hints: Mapping[str, int]) -> int | None:
    """A symbolic size's value for the hints."""
    return None if size.is_const else likely(size, hints)


def _buffers(definition: Template) -> dict[str, Buffer]:
    found = {out.name: out for out in outs_of(definition)}
    return found | {load.buffer.name: load.buffer for load in loads(definition)}
