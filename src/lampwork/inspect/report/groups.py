"""The steps of a compiled region as data: kernels and calls of ATen, with what each computes and its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lampwork.backends.observer import Inside
from lampwork.inspect.profile.rows import bounds_of
from lampwork.inspect.report.machine import Measured
from lampwork.inspect.report.memory import Steps
from lampwork.inspect.report.tables import Tables
from lampwork.runtime.program import CallKernel


def groups_data(
    inside: Inside, steps: Steps, names: Mapping[str, str], tables: Tables, measured: Measured
) -> list[dict[str, Any]]:
    """One group for each step, in order. `names`: those that the report gives to nodes of what was compiled."""
    codes = _Codes(inside, tables)
    facts = inside.program.steps()
    times = measured.times.get(inside.program)
    found: list[dict[str, Any]] = []
    for number, call in enumerate(steps.calls):
        data: dict[str, Any] = {"id": f"k{number}", "step": number, "name": call.name}
        if facts:
            fact = facts[number]
            data |= {"kind": fact.kind, "nodes": [names[name] for name in fact.nodes]}
            data |= {"reads": fact.bytes_read, "writes": fact.bytes_written}
            # 0 is also what an operator counts whose arithmetic is not known.
            data |= {"flops": fact.flops} if fact.flops or fact.kind != "aten" else {}
            data |= {"dtype": fact.dtype} if fact.dtype else {}
            data |= {"why": [fact.why]} if fact.why else {}
            if measured.limits is not None and (bounds := bounds_of(fact, measured.limits)) is not None:
                data |= {"least": max(bounds), "bound": "arithmetic" if bounds[0] >= bounds[1] else "memory"}
        if times is not None and (time := times.steps[number]) is not None:
            data |= {"time": time, "calls": 1}  # in a run, as every step
        if isinstance(call, CallKernel):
            data["texts"] = codes.of(call)
        found.append(data)
    return found


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
