"""The code generator of targets that LLVM knows: loops and templates become LLVM IR, and that machine code here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from lampwork.codegen.llvm.compile import KernelCompiler
from lampwork.codegen.llvm.emit_kernel import emit_kernel
from lampwork.codegen.llvm.jit import Batch, Jit
from lampwork.codegen.llvm.library import load_early
from lampwork.codegen.llvm.structure import structure
from lampwork.codegen.llvm.templates.attention_plan import is_worth_it, supports
from lampwork.codegen.llvm.templates.compile import TemplateCompiler
from lampwork.codegen.llvm.templates.prepack import prepack
from lampwork.codegen.llvm.templates.prepack_recurrences import prepack_recurrences
from lampwork.codegen.target import CompiledTemplate, HostFunction, Target
from lampwork.loops.ir.nodes import Attention, Definition, Kernel, Template
from lampwork.loops.ir.symbols import NO_HINTS


class LlvmGenerator:
    """A `CodeGenerator`. Kernels and templates are compiled by one `jit`."""

    def __init__(self, target: Target) -> None:
        self.jit = Jit(target)
        self._kernels = KernelCompiler(self.jit)
        self._templates = TemplateCompiler(self.jit)

    def prepare(self) -> None:
        load_early()

    def compile_kernels(self, kernels: Sequence[Kernel]) -> dict[str, HostFunction]:
        return self._kernels.compile(kernels)

    def compile_rows(self, kernel: Kernel, flag: str | None = None) -> HostFunction:
        return self.compile_kernels([kernel])[kernel.name]

    def compile(
        self,
        kernels: Iterable[Kernel],
        templates: Sequence[Template],
        hints: Mapping[str, int] = NO_HINTS,
        waits: bool = True,
    ) -> tuple[dict[str, HostFunction], list[CompiledTemplate]]:
        with Batch(self.jit, waits) as batch:
            compiled = self._templates.start(templates, hints, batch)
            found = self._kernels.start(tuple(kernels), batch)
            return found(), compiled()

    def attends(self, attention: Attention) -> bool:
        return supports(attention, self.jit.target) and is_worth_it(attention, self.jit.target)

    def prepack(
        self,
        main: Sequence[Definition],
        constant: Sequence[Definition],
        fixed: frozenset[str],
        hints: Mapping[str, int] = NO_HINTS,
    ) -> tuple[list[Definition], list[Definition]]:
        main, constant = prepack(main, constant, fixed, self.jit.target, hints)
        return prepack_recurrences(main, constant, fixed, self.jit.target)

    def texts(self, kernels: Sequence[Kernel]) -> list[str]:
        distinct = {structure(kernel): kernel for kernel in kernels}
        return [emit_kernel(kernel, self.jit.target) for kernel in distinct.values()]

    def assembly(self, text: str) -> str:
        return self.jit.assembly(text)


@cache
def llvm_generator(target: Target) -> LlvmGenerator:
    """The generator of this process for a target: whoever compiles through it shares its kernels."""
    return LlvmGenerator(target)
