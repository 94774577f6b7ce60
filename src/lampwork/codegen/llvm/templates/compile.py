"""Template definitions in, functions out: like compile.py for kernels, equal ones are compiled once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from lampwork.codegen.llvm.compile import REMEMBERED
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.structure import template_structure
from lampwork.codegen.llvm.templates.attention import emit_attention
from lampwork.codegen.llvm.templates.choose import UNKNOWN, Likely
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.target import CompiledTemplate, MachineFunction, Target
from lampwork.locks import new_lock
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Attention, Buffer, Gemm, Template
from lampwork.loops.ir.symbols import NO_HINTS, likely, replace_symbols
from lampwork.recent import Recent
from lampwork.records import record


@record
class _Known:
    emitted: GemmCode
    params: tuple[int, ...]  # numbers of buffers in the order of template_structure
    symbols: tuple[str, ...]  # of the definition that was emitted, in the order of template_structure
    code: MachineFunction


class TemplateCompiler:
    """Compiles Gemm, Attention and PackB definitions for the target of `jit`. Safe to use from many threads."""

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
        structure, order, symbols = template_structure(definition)
        sizes = _likely(definition, hints)
        key = (structure, sizes)
        known = self._known.get(key)
        if known is None:
            name = f"lwt{self._count}"
            self._count += 1
            target = self._jit.target
            emitted = _emit(definition, name, target, sizes)
            code = self._jit.compile(emitted.text, [name])
            params = tuple(order.index(buffer.name) for buffer in emitted.params)
            known = self._known.put(
                key, _Known(emitted, params, symbols, MachineFunction(code.addresses[name], code))
            )
        buffers = _buffers(definition)
        emitted, renamed = known.emitted, dict(zip(known.symbols, symbols, strict=True))
        indices = {old: Index.sym(new) for old, new in renamed.items() if old != new}
        return CompiledTemplate(
            known.code,
            tuple(buffers[order[number]] for number in known.params),
            tuple(renamed[name] for name in emitted.sizes),
            replace_symbols(emitted.extent, indices),
            replace_symbols(emitted.work, indices),
            emitted.chunk,
            emitted.text,
        )


def _emit(definition: Template, name: str, target: Target, sizes: Likely) -> GemmCode:
    if isinstance(definition, Gemm):
        return emit_gemm(definition, name, target, likely=sizes)
    if isinstance(definition, Attention):
        return emit_attention(definition, name, target)
    return emit_pack(definition, name, target)


def _likely(definition: Template, hints: Mapping[str, int]) -> Likely:
    if not isinstance(definition, Gemm):
        return UNKNOWN
    return Likely(*(_hinted(axis.extent, hints) for axis in (definition.m, definition.n)))


def _hinted(size: Index, hints: Mapping[str, int]) -> int | None:
    """A symbolic size's value for the hints."""
    return None if size.is_const else likely(size, hints)


def _buffers(definition: Template) -> dict[str, Buffer]:
    return {load.buffer.name: load.buffer for load in loads(definition)} | {
        definition.out.name: definition.out
    }
