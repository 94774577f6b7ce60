"""Kernels for AMD cards: LLVM IR for the AMDGPU back end, and the targets by the name of the architecture.

A kernel lies on its grid as on other cards (device.py). Groups of up to 32 threads are whole lanes of a wave, which has
64 on CDNA: half a wave is a group of its own. The function is an `amdgpu_kernel` of code object version 5; its
arguments, 8 bytes each without gaps, are the buffers' addresses in the order of `Kernel.params`, the sizes in the order
of `Kernel.sizes`, the range of the parallel loop, and how many workgroups there are along x. It asks for no hidden
arguments. Workgroups are launched as blocks are, with `Grid.shared_bytes` of dynamic LDS.

LLVM makes assembly and relocatable objects of it. Nothing here links them, loads them or runs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.device import DeviceEmitter, DeviceWriter
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.nvidia import each_lane
from lampwork.codegen.gpu.writer import GridEmitter
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.library import Library
from lampwork.codegen.machine_code import Code
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import WARP, Grid
from lampwork.records import record
from lampwork.standard import functools

TRIPLE = "amdgcn-amd-amdhsa"
LAYOUT = (
    "e-m:e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48"
    "-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024"
    "-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
)
CONSTANT, STACK = 4, 5  # address spaces
LDS_BYTES = 64 << 10  # of a workgroup
OBJECT_VERSION = 500

_REGISTERS = {
    "tid.x": "llvm.amdgcn.workitem.id.x",
    "tid.y": "llvm.amdgcn.workitem.id.y",
    "ctaid.x": "llvm.amdgcn.workgroup.id.x",
}
_HIDDEN = (
    "completion-action",
    "default-queue",
    "dispatch-id",
    "dispatch-ptr",
    "heap-ptr",
    "hostcall-ptr",
    "implicitarg-ptr",
    "lds-kernel-id",
    "multigrid-sync-arg",
    "queue-ptr",
    "workgroup-id-y",
    "workgroup-id-z",
    "workitem-id-z",
)


@record
class _Card:
    """An architecture: compute units of a card of it, and lanes of a wave."""

    processors: int
    wave: int


_CARDS = {
    "gfx90a": _Card(104, 64),  # CDNA 2: MI210, half an MI250
    "gfx942": _Card(304, 64),  # CDNA 3: MI300X
    "gfx1100": _Card(96, 32),  # RDNA 3: RX 7900 XTX
    "gfx1201": _Card(64, 32),  # RDNA 4: RX 9070 XT
}


@record
class AmdTarget(GpuTarget):
    """A card of AMD. wave: its lanes; the vector that kernels are scheduled for is 32 of them."""

    wave: int = 64


class AmdEmitter(DeviceEmitter):
    """Where a check fails the wave traps, which ends the queue: nothing is read back."""

    scope = "agent"

    def _fail(self) -> None:
        self.b.module.declare("trap", "declare void @llvm.trap()")
        self.b.line("call void @llvm.trap()")


class AmdWriter(DeviceWriter):
    """One kernel as a function of an AMD card."""

    def _emitter(self, written: frozenset[str]) -> GridEmitter:
        return AmdEmitter(self.b, written=written, error_flag="")

    def _address(self, number: int) -> str:
        return self.b.emit(f"addrspacecast ptr addrspace(1) %b{number} to ptr", "i64", 1).text

    def _counters(self) -> str:
        return self.b.emit("addrspacecast ptr addrspace(1) %counters to ptr", "i64", 1).text

    def _head(self, name: str) -> str:
        threads = self.grid.threads * self.grid.groups
        attributes = [
            f'"amdgpu-flat-work-group-size"="{threads},{threads}"',
            '"uniform-work-group-size"="true"',
            *(f'"amdgpu-no-{hidden}"' for hidden in _HIDDEN),
        ]
        signature = f"{self._signature('ptr addrspace(1)')}, i64 %workgroups"
        return f"define amdgpu_kernel void @{name}({signature}) {' '.join(attributes)}"

    def _register(self, name: str) -> Value:
        if name == "nctaid.x":
            return Value("%workgroups", "i64")
        intrinsic = _REGISTERS[name]
        self.module.declare(intrinsic, f"declare i32 @{intrinsic}()")
        return self.b.convert("zext", self.b.emit(f"call i32 @{intrinsic}()", "i32", 1), "i64")

    def _wait_for_block(self) -> None:
        self._fenced("workgroup", "llvm.amdgcn.s.barrier")

    def _wait_for_lanes(self) -> None:
        """Lanes of a wave run in step: only what they write and read must stay in order."""
        self._fenced("wavefront", "llvm.amdgcn.wave.barrier")

    def _fenced(self, scope: str, intrinsic: str) -> None:
        """A barrier, and what stands before it in memory is seen after it."""
        self.module.declare(intrinsic, f"declare void @{intrinsic}()")
        self.b.line(f'fence syncscope("{scope}") release')
        self.b.line(f"call void @{intrinsic}()")
        self.b.line(f'fence syncscope("{scope}") acquire')

    def _other_lane(self, value: Value, how: str, by: int | Value, lanes: int) -> Value:
        """By its number in the wave. An "up" before the first of `lanes` gives any number."""
        b, lane = self.b, self._lane()
        offset = b.convert("trunc", by, "i32") if isinstance(by, Value) else by
        if how == "bfly":
            other = b.xor(lane, offset)
        elif how == "up":
            other = b.sub(lane, offset)
        else:
            other = b.add(b.and_(lane, -lanes), offset)
        name = "llvm.amdgcn.ds.bpermute"
        self.module.declare(name, f"declare i32 @{name}(i32, i32)")
        place = b.shl(other, 2).text
        return b.emit(f"call i32 @{name}(i32 {place}, i32 {value.text})", "i32", 1, pure=False)

    def _lane(self) -> Value:
        """The number of this lane in its wave."""
        found = self.b.const(0, "i32")
        for half in ("lo", "hi")[: _wave(self.target) // WARP]:
            name = f"llvm.amdgcn.mbcnt.{half}"
            self.module.declare(name, f"declare i32 @{name}(i32, i32)")
            found = self.b.emit(f"call i32 @{name}(i32 -1, i32 {found.text})", "i32", 1)
        return found


def _wave(target: Target) -> int:
    assert isinstance(target, AmdTarget)
    return target.wave


_CAST = re.compile(r"  (%\w+) = addrspacecast ptr (addrspace\(\d\)) ([%@]\w+) to ptr")
_TABLE = re.compile(r"(@\w+) = internal unnamed_addr (?=constant)")
_ELEMENT = re.compile(r"  (%\w+) = getelementptr .*, ptr (addrspace\(\d\)) ")
_POINTER = re.compile(r"\bptr ([%@]\w+)")


def in_spaces(text: str) -> str:
    """IR whose pointers keep the address space that they come from; tables are constant memory. LLVM has a pass for it,
    which is not among those of the code generator, and an access to unknown memory waits for all kinds of it.

    before: %p = addrspacecast ptr addrspace(3) @shared to ptr; %q = getelementptr i8, ptr %p, i64 4; load float, ptr %q
    after:  %q = getelementptr i8, ptr addrspace(3) @shared, i64 4; load float, ptr addrspace(3) %q
    """
    known: dict[str, str] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if cast := _CAST.fullmatch(line):
            known[cast[1]] = f"{cast[2]} {cast[3]}"
            continue
        if table := _TABLE.match(line):
            known[table[1]] = f"addrspace({CONSTANT}) {table[1]}"
            line = f"{table[0]}addrspace({CONSTANT}) {line[table.end() :]}"
        placed = _POINTER.sub(lambda pointer: f"ptr {known.get(pointer[1], pointer[1])}", line)
        if element := _ELEMENT.match(placed):
            known[element[1]] = f"{element[2]} {element[1]}"
        lines.append(placed)
    return "\n".join(lines)


def emit_amd(grid: Grid, target: Target, name: str) -> str:
    """The LLVM IR of a module with one kernel `name`.

    Raises CodegenError for loop code that there is no rule for.
    """
    module = Module()
    AmdWriter(module, grid, target).write(name)
    flags = (
        f'!llvm.module.flags = !{{!0}}\n!0 = !{{i32 1, !"amdhsa_code_object_version", i32 {OBJECT_VERSION}}}'
    )
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n{in_spaces(module.text)}\n{flags}\n'


class AmdJit(Jit):
    """IR in, relocatable objects or assembly out."""

    def machine(self, library: Library) -> Any:
        return library.card(self.target.cpu, self.target.features, TRIPLE)

    def load(self, object_code: bytes, names: Sequence[str]) -> Code:
        raise CodegenError(f"nothing runs kernels of {self.target.name} here: they can only be looked at")


class AmdGenerator(GpuGenerator):
    """`texts` and `assembly` of kernels; `compile` raises CodegenError."""

    def _new_jit(self) -> Jit:
        return AmdJit(self.target)

    def emit(self, grid: Grid, name: str) -> str:
        return emit_amd(grid, self.target, name)


@functools.cache
def amd_generator(target: Target) -> AmdGenerator:
    """The generator of this process for a card."""
    return AmdGenerator(target)


def exp2(b: Builder, x: Value) -> Value:
    """2**x of float32 by one instruction a lane, v_exp_f32: to one ulp as AMD says, subnormal results as 0."""
    return each_lane(b, "llvm.amdgcn.exp2.f32", x)


def describe_amd(architecture: str) -> AmdTarget:
    """The target of cards of an architecture: gfx90a, gfx942, gfx1100 or gfx1201.

    Raises:
        CodegenError: it is not one of these.
    """
    card = _CARDS.get(architecture)
    if card is None:
        raise CodegenError(f"no target is known for {architecture}: there are {', '.join(_CARDS)}")
    few = max(card.processors // 3, 2)
    return AmdTarget(
        architecture,
        architecture,
        amd_generator,
        vector_bytes=WARP * 4,
        registers=256,
        has_fma=True,
        has_f16c=True,
        has_libm=False,
        exp2=exp2,
        private_bytes=48 << 10,
        scratch_bytes=LDS_BYTES - (2 << 10),
        stack_space=STACK,
        atomics=frozenset({"f64", "f32", "i64", "i32"}),
        templates=False,
        tile_side=32,
        ahead_bytes=0,
        kernel_work=1 << 14,
        least_items=few,
        few_items=few,
        many_items=1 << 40,
        tiled_scores=1 << 62,
        processors=card.processors,
        wave=card.wave,
    )
