"""The steps of a compiled region as data: kernels and calls of ATen, with what each computes and its code."""

from __future__ import annotations

from typing import Any

from lampwork.backends.observer import Inside
from lampwork.compiled.stages import Stages
from lampwork.inspect.report.memory import Steps
from lampwork.inspect.report.tables import Tables
from lampwork.runtime.program import CallAten, CallKernel


def groups_data(inside: Inside, steps: Steps, stages: Stages, tables: Tables) -> list[dict[str, Any]]:
    """One group for each step, in order."""
    codes = _Codes(inside, tables)
    found: list[dict[str, Any]] = []
    for number, call in enumerate(steps.calls):
        data: dict[str, Any] = {"id": f"k{number}", "step": number, "name": call.name, "kind": _kind(call)}
        if isinstance(call, CallKernel):
            data["texts"] = codes.of(call)
        found.append(data)
    return found


def _kind(call: CallKernel | CallAten) -> str:
    if isinstance(call, CallAten):
        return "aten"
    first = call.name.split(" ", 1)[0]
    return first if first in ("gemm", "conv", "attention") else "kernel"


class _Codes:
    """The texts of kernels. Compiling one to assembly takes as long as compiling it did, so equal ones share theirs."""

    def __init__(self, inside: Inside, tables: Tables) -> None:
        self.inside = inside
        self.tables = tables
        self.llvm: dict[int, str] = {}

    def of(self, call: CallKernel) -> dict[str, int]:
        """The numbers of the texts of a kernel."""
        key = id(call.code)  # which the program holds
        if key not in self.llvm:
            self.llvm[key] = self.inside.llvm(call)
        llvm = self.llvm[key]
        texts = {
            "loops": self.inside.loops(call),
            "llvm": llvm,
            "assembly": self.tables.made_of(llvm, self.inside.assembly) if llvm else "",
        }
        return {name: self.tables.text(text) for name, text in texts.items() if text}
