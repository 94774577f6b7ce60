"""Template definitions in, addresses out: like compile.py for kernels, equal ones are compiled once a process."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache

from lampwork.codegen.llvm.compile import shared_compiler
from lampwork.codegen.llvm.isa import Isa
from lampwork.codegen.llvm.jit import Code, Jit
from lampwork.codegen.llvm.structure import template_structure
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.loops.expr import definition_exprs, loads
from lampwork.loops.index import Index
from lampwork.loops.nodes import Buffer, Gemm, PackB


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """One generated function with its ABI, see GemmCode. `code` owns the memory of the address."""

    address: int
    params: tuple[Buffer, ...]
    extent: Index
    grain: int
    text: str = field(repr=False)
    code: Code = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Known:
    address: int
    params: tuple[int, ...]  # numbers of buffers in the order of template_structure
    extent: Index
    grain: int
    text: str
    code: Code


class TemplateCompiler:
    """Compiles Gemm and PackB definitions for one instruction set. Safe to use from many threads."""

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._lock = threading.Lock()
        self._known: dict[Hashable, _Known] = {}
        self._count = 0

    def compile(self, definitions: Sequence[Gemm | PackB]) -> list[CompiledTemplate]:
        """The code of each definition, in order.

        Raises CodegenError for what the templates do not support.
        """
        with self._lock:
            return [self._one(definition) for definition in definitions]

    def _one(self, definition: Gemm | PackB) -> CompiledTemplate:
        key, order = template_structure(definition)
        known = self._known.get(key)
        if known is None:
            name = f"lwt{self._count}"
            self._count += 1
            isa = self._jit.isa
            emitted = (
                emit_gemm(definition, name, isa)
                if isinstance(definition, Gemm)
                else emit_pack(definition, name, isa)
            )
            code = self._jit.compile(emitted.text, [name])
            params = tuple(order.index(buffer.name) for buffer in emitted.params)
            known = _Known(code.addresses[name], params, emitted.extent, emitted.grain, emitted.text, code)
            self._known[key] = known
        buffers = _buffers(definition)
        found = tuple(buffers[order[number]] for number in known.params)
        return CompiledTemplate(known.address, found, known.extent, known.grain, known.text, known.code)


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
