"""Template definitions in, functions out: like compile.py for kernels, equal ones are compiled once. Convolutions and
packings are equal if they differ in numbers only (generalize.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from lampwork.codegen.llvm.compile import REMEMBERED
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.structure import template_structure
from lampwork.codegen.llvm.templates.attention import emit_attention
from lampwork.codegen.llvm.templates.choose import Likely, conv_config
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.templates.conv import emit_conv
from lampwork.codegen.llvm.templates.conv_plan import plan_conv
from lampwork.codegen.llvm.templates.epilogue import needs_checks
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.generalize import generalized_conv, generalized_pack
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.recurrent import emit_recurrence
from lampwork.codegen.target import CompiledTemplate, MachineFunction, Target
from lampwork.codegen.variants import varied
from lampwork.locks import new_lock
from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Attention, Buffer, Gemm, PackB, Recurrence, Template
from lampwork.loops.ir.symbols import NO_HINTS, likely, replace_symbols
from lampwork.recent import Recent
from lampwork.records import record


@record
class _Known:
    emitted: GemmCode
    params: tuple[int, ...]  # numbers of buffers in the order of the structure
    symbols: tuple[str, ...]  # of what was emitted, in the order of the structure
    code: MachineFunction


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
        with self._lock:
            return self._one(definition, hints)

    def _one(self, definition: Template, hints: Mapping[str, int]) -> CompiledTemplate:
        target = self._jit.target
        if isinstance(definition, Gemm | Attention):
            target = varied(target, definition.variant)
        asked = _asked(definition, target, hints)
        known = self._known.get(asked.key)
        if known is None:
            name = f"lwt{self._count}"
            self._count += 1
            emitted = asked.emit(name)
            code = self._jit.compile(emitted.text, [name])
            params = tuple(asked.buffers.index(buffer.name) for buffer in emitted.params)
            known = self._known.put(
                asked.key, _Known(emitted, params, asked.symbols, MachineFunction(code.addresses[name], code))
            )
        buffers = _buffers(definition)
        emitted, now = known.emitted, dict(zip(known.symbols, asked.symbols, strict=True))
        values = {old: asked.values.get(new, Index.sym(new)) for old, new in now.items()}
        return CompiledTemplate(
            known.code,
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
    if isinstance(definition, Attention):
        return _Asked(
            *template_structure(definition), {}, lambda name: emit_attention(definition, name, target)
        )
    if isinstance(definition, PackB):
        pack, values = generalized_pack(definition)
        return _Asked(*template_structure(pack), values, lambda name: emit_pack(pack, name, target))
    sizes = _likely(definition, hints)
    if definition.rows:
        return _asked_conv(definition, target, sizes)
    structure, buffers, symbols = template_structure(definition)
    return _Asked(
        (structure, sizes),
        buffers,
        symbols,
        {},
        lambda name: emit_gemm(definition, name, target, likely=sizes),
    )


def _asked_conv(gemm: Gemm, target: Target, sizes: Likely) -> _Asked:
    plan, config, values = plan_conv(gemm, target), conv_config(gemm, target, sizes), dict[str, Index]()
    proven = not needs_checks(plan.gemm)
    if proven:
        plan, values = generalized_conv(plan)
    extra = [plan.a, *(index for each in plan.places for index in (each.index, each.last))]
    structure, buffers, symbols = template_structure(plan.gemm, extra)
    return _Asked(
        (structure, config),
        buffers,
        symbols,
        values,
        lambda name: emit_conv(plan, name, target, config, proven=proven),
    )


def _likely(definition: Gemm, hints: Mapping[str, int]) -> Likely:
    return Likely(*(_hinted(axis.extent, hints) for axis in (definition.m, definition.n)))


def _hinted(size: Index, hints: Mapping[str, int]) -> int | None:
    """A symbolic size's value for the hints."""
    return None if size.is_const else likely(size, hints)


def _buffers(definition: Template) -> dict[str, Buffer]:
    found = {out.name: out for out in outs_of(definition)}
    return found | {load.buffer.name: load.buffer for load in loads(definition)}
