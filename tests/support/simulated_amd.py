"""The code for an AMD card as the simulated card's: its instructions in terms of the NVIDIA ones that this knows.

A wave of 64 is two warps. What a lane reads of one that is not of its group, or not of its half of the wave, is a
number that shows in results.
"""

from __future__ import annotations

import re

from lampwork.codegen.gpu.amd import AmdTarget, emit_amd
from lampwork.loops.ir.grid import WARP, Grid

STRANGE = -559038737
RENAMED = {
    "llvm.amdgcn.workitem.id.x": "llvm.nvvm.read.ptx.sreg.tid.x",
    "llvm.amdgcn.workitem.id.y": "llvm.nvvm.read.ptx.sreg.tid.y",
    "llvm.amdgcn.workgroup.id.x": "llvm.nvvm.read.ptx.sreg.ctaid.x",
    "llvm.amdgcn.exp2.f32": "llvm.nvvm.ex2.approx.ftz.f",
    "llvm.trap()": "__assertfail(ptr null, ptr null, i32 0, ptr null, i64 1)",
}
DROPPED = ("declare i32 @llvm.amdgcn", "declare void @llvm", "declare float @llvm.amdgcn", "!", "fence ")
HEAD = re.compile(r"define amdgpu_kernel void @(\w+)\((.*), i64 %workgroups\)")
LDS = re.compile(r"ptr addrspace\(3\) @(\w+)")
COUNT = re.compile(r"  (\S+) = call i32 @llvm\.amdgcn\.mbcnt\.(lo|hi)\(i32 -1, i32 (\S+)\)")
PERMUTE = re.compile(r"  (\S+) = call i32 @llvm\.amdgcn\.ds\.bpermute\(i32 (\S+), i32 (\S+)\)")


def for_simulated_card(grid: Grid, target: AmdTarget) -> str:
    """The code for `target` as IR for the simulated card."""
    lines: list[str] = []
    arrays: set[str] = set()
    for line in emit_amd(grid, target, "lw_kernel").splitlines():
        if line.strip().startswith(DROPPED):
            continue
        for amd, other in RENAMED.items():
            line = line.replace(f"@{amd}", f"@{other}")
        if " addrspace(3) global " not in line:
            arrays |= set(LDS.findall(line))
            line = re.sub(r"ptr addrspace\(\d\) ", "ptr ", LDS.sub(r"ptr %lds.\1", line))
        lines += _instruction(line, grid, target)
    start = lines.index("entry:") + 1
    return "\n".join([*lines[:start], *_beginning(grid, target, arrays), *lines[start:], ""])


def _beginning(grid: Grid, target: AmdTarget, arrays: set[str]) -> list[str]:
    """Of a thread: arrays of shared memory, its lane in the wave, and the lanes of the warp that are of its group."""
    group = min(grid.threads, WARP)
    width = grid.groups if grid.is_flat else grid.threads
    return [
        *(f"  %lds.{name} = addrspacecast ptr addrspace(3) @{name} to ptr" for name in sorted(arrays)),
        *(f"  %at.{axis} = call i32 @llvm.nvvm.read.ptx.sreg.tid.{axis}()" for axis in "xy"),
        "  %at.blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()",
        "  %workgroups = zext i32 %at.blocks to i64",
        f"  %at.before = mul i32 %at.y, {width}",
        "  %at.thread = add i32 %at.before, %at.x",
        f"  %at.lane = and i32 %at.thread, {target.wave - 1}",
        f"  %at.first = and i32 %at.lane, {-group & WARP - 1}",
        f"  %at.members = shl i32 {(1 << group) - 1 if group < WARP else -1}, %at.first",
    ]


def _instruction(line: str, grid: Grid, target: AmdTarget) -> list[str]:
    if found := HEAD.match(line):
        threads = grid.threads * grid.groups
        return [f'define ptx_kernel void @{found[1]}({found[2]}) "nvvm.maxntid"="{threads}" {{']
    if "@llvm.amdgcn.wave.barrier" in line:
        return ["  call void @llvm.nvvm.bar.warp.sync(i32 %at.members)"]
    if "@llvm.amdgcn.s.barrier" in line:
        return ["  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"]
    if found := COUNT.match(line):
        result, half, base = found.groups()
        below = (
            f"call i32 @llvm.umin.i32(i32 %at.lane, i32 {WARP})"
            if half == "lo"
            else f"call i32 @llvm.usub.sat.i32(i32 %at.lane, i32 {WARP})"
        )
        return [f"  {result}.below = {below}", f"  {result} = add i32 {result}.below, {base}"]
    if found := PERMUTE.match(line):
        result, place, value = found.groups()
        return [
            f"  {result}.number = lshr i32 {place}, 2",
            f"  {result}.from = and i32 {result}.number, {target.wave - 1}",
            f"  {result}.differs = xor i32 {result}.from, %at.lane",
            f"  {result}.apart = and i32 {result}.differs, {-min(grid.threads, WARP)}",
            f"  {result}.is = icmp eq i32 {result}.apart, 0",
            f"  {result}.lane = select i1 {result}.is, i32 {result}.from, i32 %at.lane",
            f"  {result}.half = and i32 {result}.lane, {WARP - 1}",
            f"  {result}.got = call i32 @llvm.nvvm.shfl.sync.idx.i32("
            f"i32 %at.members, i32 {value}, i32 {result}.half, i32 {WARP - 1})",
            f"  {result} = select i1 {result}.is, i32 {result}.got, i32 {STRANGE}",
        ]
    return [line]
