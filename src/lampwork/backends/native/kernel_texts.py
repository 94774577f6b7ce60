"""The texts of the kernels of a program, for people."""

from __future__ import annotations

from lampwork.backends.native.generate import Generated
from lampwork.backends.native.tasks import KernelTask
from lampwork.codegen.target import CodeGenerator
from lampwork.loops.ir.nodes import Kernel
from lampwork.loops.ir.printing import format_kernel
from lampwork.runtime.program import CallKernel
from lampwork.standard import functools


class KernelTexts:
    """Finds the text of a kernel by its code and its name; nothing is looked up before somebody asks."""

    def __init__(self, generated: Generated, generator: CodeGenerator) -> None:
        self.generated = generated
        self.generator = generator

    def loops(self, call: CallKernel) -> str:
        """The loops of a kernel of a program; "" for a template."""
        named = self._by_origin.get(call.name, [])
        if len(named) > 1:  # a group that takes several kernels
            named = [kernel for kernel in named if self._codes.get(kernel.name) == id(call.code)]
        return "\n\n".join(map(format_kernel, named))

    def llvm(self, call: CallKernel) -> str:
        """What the code of a kernel or template of a program was compiled from."""
        key = id(call.code)
        if key in self._templates:
            return self._templates[key]
        return "\n".join(self.generator.texts(self._by_code.get(key, [])[:1]))

    @functools.cached_property
    def _by_origin(self) -> dict[str, list[Kernel]]:
        found: dict[str, list[Kernel]] = {}
        for kernel in self.generated.kernels:
            found.setdefault(kernel.origin, []).append(kernel)
        return found

    @functools.cached_property
    def _by_code(self) -> dict[int, list[Kernel]]:
        found: dict[int, list[Kernel]] = {}
        for kernel in self.generated.kernels:
            if kernel.name in self._codes:
                found.setdefault(self._codes[kernel.name], []).append(kernel)
        return found

    @functools.cached_property
    def _codes(self) -> dict[str, int]:
        """Kernels by name, and which code they are, which the tasks hold."""
        return {task.name: id(task.code) for task in self.generated.tasks if isinstance(task, KernelTask)}

    @functools.cached_property
    def _templates(self) -> dict[int, str]:
        return {id(template.code): template.text for template in self.generated.templates}
