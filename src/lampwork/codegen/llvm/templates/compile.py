"""Template definitions in, addresses out: like compile.py for kernels, equal ones are compiled once a process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from functools import cache

from lampwork.codegen.llvm.compile import REMEMBERED, shared_compiler
from lampwork.codegen.llvm.isa import Isa
from lampwork.codegen.llvm.jit import Code, Jit
from lampwork.codegen.llvm.structure import template_structure
from lampwork.codegen.llvm.templates.choose import UNKNOWN, Likely
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.locks import new_lock
from lampwork.loops.expr import definition_exprs, loads
from lampwork.loops.index import Index
from lampwork.loops.nodes import Buffer, Gemm, PackB
from lampwork.loops.symbols import NO_HINTS, likely, replace_symbols
from lampwork.recent import Recent
from lampwork.records import record


@record
class CompiledTemplate:
    """One generated function with its ABI, see GemmCode. `code` owns the memory of the address."""

    address: int
    params: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    extent: Index
    work: Index
    chunk: int
    text: str = field(repr=False)
    code: Code = field(repr=False)


@record
class _Known:
    emitted: GemmCode
    params: tuple[int, ...]  # numbers of buffers in the order of template_structure
    symbols: tuple[str, ...]  # of the definition that was emitted, in the order of template_structure
    address: int
    code: Code


class TemplateCompiler:
    """Compiles Gemm and PackB definitions for one instruction set. Safe to use from many threads."""

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._lock = new_lock()
        self._known: Recent[Hashable, _Known] = Recent(REMEMBERED)
        self._count = 0

    def compile(
        self, definitions: Sequence[Gemm | PackB], hints: Mapping[str, int] = NO_HINTS
    ) -> list[CompiledTemplate]:
        """The code of each definition, in order. `hints`: likely values of symbols, to choose tiles by.

        Raises CodegenError for what the templates do not support.
        """
        with self._lock:
            return [self._one(definition, hints) for definition in definitions]

    def _one(self, definition: Gemm | PackB, hints: Mapping[str, int]) -> CompiledTemplate:
        structure, order, symbols = template_structure(definition)
        sizes = _likely(definition, hints)
        key = (structure, sizes)
        known = self._known.get(key)
        if known is None:
            name = f"lwt{self._count}"
            self._count += 1
            isa = self._jit.isa
            emitted = (
                emit_gemm(definition, name, isa, likely=sizes)
                if isinstance(definition, Gemm)
                else emit_pack(definition, name, isa)
            )
            code = self._jit.compile(emitted.text, [name])
            params = tuple(order.index(buffer.name) for buffer in emitted.params)
            known = self._known.put(key, _Known(emitted, params, symbols, code.addresses[name], code))
        buffers = _buffers(definition)
        emitted, renamed = known.emitted, dict(zip(known.symbols, symbols, strict=True))
        indices = {old: Index.sym(new) for old, new in renamed.items() if old != new}
        return CompiledTemplate(
            known.address,
            tuple(buffers[order[number]] for number in known.params),
            tuple(renamed[name] for name in emitted.sizes),
            replace_symbols(emitted.extent, indices),
            replace_symbols(emitted.work, indices),
            emitted.chunk,
            emitted.text,
            known.code,
        )


def _likely(definition: Gemm | PackB, hints: Mapping[str, int]) -> Likely:
    if isinstance(definition, PackB):
        return UNKNOWN
    return Likely(*(_hinted(axis.extent, hints) for axis in (definition.m, definition.n)))


def _hinted(size: Index, hints: Mapping[str, int]) -> int | None:
    """A symbolic size's value for the hints."""
    return None if size.is_const else likely(size, hints)


def _buffers(definition: Gemm | PackB) -> dict[str, Buffer]:
    found = {definition.out.name: definition.out, definition.b.buffer.name: definition.b.buffer}
    for expr in definition_exprs(definition):
        for load in loads(expr):
            found[load.buffer.name] = load.buffer
    return found


@cache
def shared_templates(isa: Isa) -> TemplateCompiler:
    """The template compiler of this process for an instruction set."""
    return TemplateCompiler(shared_compiler(isa).jit)
