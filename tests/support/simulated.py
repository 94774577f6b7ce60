"""The very code that a card would be given, run by a simulated card on this CPU (simulated_card.c).

The IR of a kernel is compiled for this CPU, with calls of the simulated card where it has instructions of NVIDIA's, and
with a call before each load and store that looks whether the place is in reach, aligned, and free of races.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

import numpy as np
import pytest
from grids import CARD, as_stored, from_stored, placed

from lampwork import config
from lampwork.codegen.gpu.device import emit_device
from lampwork.codegen.gpu.generator import EmulatingGenerator
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.machine_code import Code
from lampwork.codegen.target import Target
from lampwork.loops.ir.grid import ALIGNED, Grid
from lampwork.loops.ir.kernel import parallel_extent
from lampwork.loops.ir.symbols import likely

SOURCE = Path(__file__).with_name("simulated_card.c")
MODEL = describe(75)  # the newest without instructions for bfloat16, for which this CPU has none
MOST_SHARED = 256 << 10
TRACE = 13  # numbers that are kept of a byte
GAP = 64  # bytes out of reach around what lies in shared memory

SHARED_AT = 1040  # the address in shared memory where the block's own starts

KINDS = (
    "bfly", "up", "idx", "warp", "block", "matrices", "transposed", "bf16", "f16", "tf32", "arrival", "cluster",
    "group bf16", "group f16",
)  # fmt: skip
TOUCHES = ("loads", "stores", "updates")
STATES = ("runs", "waits", "has ended")
BYTES = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "half": 2,
    "bfloat": 2,
    "i32": 4,
    "float": 4,
    "i64": 8,
    "double": 8,
    "ptr": 8,
}


class AssertionOfKernel(Exception):
    """A check of the kernel failed: what `__assertfail` was called with."""


class ForbiddenError(Exception):
    """The kernel did what PTX forbids or leaves undefined."""


# --- the card ---------------------------------------------------------------------------------------------------------


class _Region(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("traces", ctypes.c_void_p))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("x", "y", "blocks", "group", "cluster")),
        ("shared", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_int64),
        ("regions", ctypes.c_void_p),
        ("region_count", ctypes.c_int32),
        ("shared_regions", ctypes.c_int32),
        ("is_open", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("counters", ctypes.c_void_p),
        ("counter_count", ctypes.c_int64),
    )


@cache
def library() -> ctypes.CDLL:
    """The simulated card; skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = Path(mkdtemp()) / "libsimulatedcard.so"
    flags = ["-O2", "-U_FORTIFY_SOURCE", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", path, SOURCE, "-lm"], check=True)
    found = ctypes.CDLL(path)
    found.card_message.restype = ctypes.c_char_p
    found.card_conflicts.restype = ctypes.c_int64
    return found


def address_of(name: str) -> str:
    """A function of the card, in IR."""
    address = ctypes.cast(getattr(library(), f"card_{name}"), ctypes.c_void_p).value
    return f"inttoptr (i64 {address} to ptr)"


# --- code -------------------------------------------------------------------------------------------------------------

SHUFFLE = re.compile(r"@llvm\.nvvm\.shfl\.sync\.(\w+)\.i32\(")
RECIPROCAL = re.compile(r"call float @llvm\.nvvm\.rcp\.approx\.ftz\.f\(float (\S+)\)")
QUOTIENT = re.compile(r"call float @llvm\.nvvm\.div\.(?:full|approx\.ftz\.f)\((float \S+), float (\S+)\)")
REGISTER = re.compile(r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.(\w+)\(")
SHARED = re.compile(r"addrspacecast ptr addrspace\(3\) @(\w+) to ptr")
SLOT = re.compile(r"@(\w+) = internal addrspace\(3\) global \[(\d+) x (\w+)\] poison")
DEFINED = re.compile(
    r'define ptx_kernel void @(\w+)\((.*)\) "nvvm.maxntid"="(\d+)"(?: "nvvm.(?:cluster_dim|minctasm)"="\d+")*'
)
TOUCHED = re.compile(
    r"^\s*(?:\S+ = )?(load|store) (<\d+ x \w+>|\w+)[ ,].*?ptr ([%@][\w.]+)(?:, align (\d+))?(?:, !invariant\.load !1)?$"
)
ADD_HALF = re.compile(
    r'call void asm sideeffect "red\.\S+\.f16x2 \S+ \S+;", "\S+"\(ptr(?: addrspace\(1\))? (%\w+), (.*)\)'
)
ADD_SEVERAL = re.compile(
    r'call void asm sideeffect "red\.\S+\.v([24])\.(f32|f16x2) .*?"\(ptr(?: addrspace\(1\))? (%\w+), (.*)\)'
)
ATOMIC = re.compile(
    r"^\s*(?:%\w+ = )?(?:(?:load|store) atomic|atomicrmw \w+|cmpxchg) .*?ptr ([%@][\w.]+)[ ,].*, align (\d+)$"
)
COUNT = re.compile(
    r'\s*(%\w+) = atomicrmw uinc_wrap ptr (%\w+), (i32 \d+) syncscope\("device"\) monotonic, align 4'
)
MASKED = re.compile(
    r"call .*@llvm\.masked\.(load|store|gather|scatter)\.v(\d+)[a-z]+(\d+)\..*"
    r"(?:\(|, )(ptr|<\d+ x ptr>) (%\w+), i32 (\d+), (<\d+ x i1> (?:splat \(i1 true\)|%\w+))"
)
MATRICES = re.compile(
    r"\s*(%\w+) = call (\{.*?\}) @llvm\.nvvm\.ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.b16\.p3\(ptr (%\w+)\)"
)
MULTIPLY = re.compile(
    r"\s*(%\w+) = call (\{.*?\}) @llvm\.nvvm\.mma\.m16n8k(?:16|8)\.row\.col\.(bf16|f32\.f32|tf32)\((.*)\)"
)
ON_SUMS = re.compile(r'\s*(%\w+) = call (\{.*?\}) asm sideeffect "([^"]*)", "[^"]*"\((.*)\) #8')
GROUP_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.(?:bf16|f16) "
    r"\{([^}]*)\}, (\S+), (\S+), 1, 1, 1, ([01]), ([01])"
)
BY_VALUE = re.compile(r"byval\(\[\d+ x i64\]\) align 8 ")
DROPPED = (
    "target ",
    "declare {",
    *(f"declare {type_} @llvm.nvvm" for type_ in ("i32", "void", "float", "ptr")),
)


@dataclass
class SharedMemory:
    """Shared memory of a block, or of the blocks of a cluster, one behind the other. places: of the first one's arrays,
    with gaps between them: name -> (address, bytes)."""

    dynamic: int
    blocks: int = 1
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    bytes: int = GAP

    def __post_init__(self) -> None:
        self.memory = np.empty(MOST_SHARED * self.blocks + ALIGNED, np.uint8)
        self.start = self.memory.ctypes.data + -self.memory.ctypes.data % ALIGNED
        self.add("shared", self.dynamic)

    def add(self, name: str, size: int) -> None:
        self.places[name] = (self.start + self.bytes, size)
        self.bytes += -(-size // ALIGNED) * ALIGNED + GAP
        assert self.bytes <= MOST_SHARED, f"{name} of {size} bytes is too much shared memory"


def for_this_cpu(text: str, shared: SharedMemory) -> str:
    """The IR of a kernel, as it is for a card, as that of a function `entry` of an array of addresses of parameters."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = _address_spaces(line, shared) if "@shared =" not in line else line
        if line.startswith((*DROPPED, "declare void @__assertfail", "@shared =")):
            continue
        if found := SLOT.match(line):
            shared.add(found[1], int(found[2]) * BYTES[found[3]])
            continue
        if count := COUNT.match(line):
            lines.append(
                f"{count[1]} = call i32 {address_of('count')}(ptr {count[2]}, {count[3]}, i32 {number})"
            )
            continue
        if line.strip() == 'fence syncscope("device") acq_rel':
            lines.append(f"call void {address_of('fence')}()")
            continue
        if atomic := ATOMIC.match(line):
            place, size = atomic.groups()
            lines.append(_call_touch(place, int(size), int(size), number, "updates"))
        elif touched := TOUCHED.match(line):
            lines.append(_touch(touched, number))
        elif masked := MASKED.search(line):
            lines += _touch_lanes(masked, number)
        elif re.search(r"\b(load|store|masked|memset|memcpy|atomicrmw)\b", line) and "declare" not in line:
            raise AssertionError(f"line {number} reaches memory by ways that are not known: {line}")
        lines += _of_warp(line, number) or [_instruction(line, number)]
    written = SHARED.sub(lambda m: _in_shared(shared, m[1]), "\n".join(lines))
    (signature,) = DEFINED.findall(written)
    given = BY_VALUE.sub("", signature[1])
    whole = DEFINED.sub(rf"define internal void @\1({given})", written)
    assert "nvvm" not in whole and "addrspace(3)" not in whole, whole
    return f"{whole}\n{_entry(signature[0], signature[1].split(', '))}"


def _in_shared(shared: SharedMemory, name: str) -> str:
    """The address of an array, as an instruction."""
    address = shared.places[name][0]
    if shared.blocks == 1:
        return f"inttoptr i64 {address} to ptr"
    return f"call ptr {address_of('own')}(ptr inttoptr (i64 {address} to ptr))"


def _address_spaces(line: str, shared: SharedMemory) -> str:
    """Addresses of 32 bits in shared memory are offsets in it."""
    if "addrspacecast" in line and "addrspace(3)" not in line and "@" not in line:
        line = line.replace("addrspacecast", "bitcast").replace(" addrspace(1)", "")
    if "addrspacecast" in line or line.startswith("@"):
        return line
    line = line.replace("ptrtoint ptr addrspace(3) @shared to i32", f"add i32 {SHARED_AT}, 0")
    start = f"getelementptr i8, ptr inttoptr (i64 {shared.places['shared'][0] - SHARED_AT} to ptr), i32 \\1"
    line = re.sub(r"inttoptr i32 (\S+) to ptr addrspace\(3\)", start, line)
    return re.sub(r" addrspace\([13]\)", "", line)


def _of_warp(line: str, number: int) -> list[str]:
    """What the lanes of a warp do together with matrices: calls that make it, and others for its results."""
    if found := MATRICES.match(line):
        result, type_, transposed, pointer = found.groups()
        call = f"call void {address_of('matrices')}(ptr {pointer}, i32 {int(transposed is not None)}, i32 {number})"
        return [call, *_results(result, type_, "word", number)]
    if found := MULTIPLY.match(line):
        result, type_, kind, given = found.groups()
        kind = "f16" if kind == "f32.f32" else kind
        lines, values = [], given.split(", ")
        for place, each in enumerate(values):
            if each.startswith("<2 x half> "):
                word = f"%word{number}_{place}"
                lines.append(f"{word} = bitcast {each} to i32")
                values[place] = f"i32 {word}"
        call = (
            f"call void {address_of('multiply')}(i32 {KINDS.index(kind)}, i32 {number}, {', '.join(values)})"
        )
        return [*lines, call, *_results(result, type_, "sum", number)]
    if found := ON_SUMS.match(line):
        return _on_sums(*found.groups(), number)
    return []


def _on_sums(result: str, type_: str, text: str, given: str, number: int) -> list[str]:
    """Assembler of a warpgroup: the sums to registers, its statements one after the other, and the sums from there."""
    count, values = type_.count("float"), given.split(", ")
    lines = [
        f"call void {address_of('put')}(i32 {place}, {each}, i32 {number})"
        for place, each in enumerate(values[:count])
    ]
    names = {f"${2 * count + place}": each.split()[1] for place, each in enumerate(values[count:])}
    for place, statement in enumerate(map(str.strip, text.strip("{} ").split(";"))):
        words = statement.replace(",", "").split()
        if statement == "wgmma.fence.sync.aligned":
            lines.append(f"call void {address_of('product_fence')}()")
        elif statement.startswith("add.s64 "):
            names[words[1]] = f"{result}_{place}"
            lines.append(f"{result}_{place} = add i64 {names[words[2]]}, {words[3]}")
        elif found := GROUP_PRODUCT.fullmatch(statement):
            assert found[3] == ", ".join(f"${each}" for each in range(int(found[1]) // 2)), statement
            kind, across = KINDS.index(f"group {found[2]}"), int(found[6]) + 2 * int(found[7])
            operands = f"i64 {names[found[4]]}, i64 {names[found[5]]}"
            call = f"(i32 {kind}, i32 {found[1]}, {operands}, i32 {across}, i32 {number})"
            lines.append(f"call void {address_of('multiply_group')}{call}")
        elif statement == "wgmma.commit_group.sync.aligned":
            lines.append(f"call void {address_of('commit_products')}()")
        elif found := re.fullmatch(r"wgmma\.wait_group\.sync\.aligned (\d+)", statement):
            lines.append(f"call void {address_of('wait_products')}(i32 {found[1]}, i32 1, i32 {number})")
        else:
            assert not statement or statement.startswith(".reg "), statement
    return [*lines, *_results(result, type_, "take", number)]


def _results(result: str, type_: str, of: str, number: int) -> list[str]:
    lines, whole = [], "poison"
    element = "i32" if of == "word" else "float"
    last = type_.count(",")
    for part in range(last + 1):
        name = f"{result}_r{part}"
        made = result if part == last else f"{name}x"
        lines.append(f"{name} = call {element} {address_of(of)}(i32 {part})")
        lines.append(f"{made} = insertvalue {type_} {whole}, {element} {name}, {part}")
        whole = made
    return lines


def _instruction(line: str, number: int) -> str:
    line = SHUFFLE.sub(lambda m: f"{address_of('meet')}(i32 {KINDS.index(m[1])}, i32 {number}, ", line)
    line = REGISTER.sub(lambda m: f"{address_of(f'{m[1]}_{m[2]}')}(", line)
    line = line.replace("@llvm.nvvm.ex2.approx.ftz.f(", f"{address_of('exp2')}(")
    line = line.replace("@llvm.nvvm.f2tf32.rna(", f"{address_of('tf32')}(")
    line = line.replace("@llvm.nvvm.cp.async.commit.group(", f"{address_of('commit')}(")
    line = re.sub(
        r"@llvm\.nvvm\.cp\.async\.wait\.group\((.*)\)",
        lambda m: f"{address_of('wait')}({m[1]}, i32 {number})",
        line,
    )
    line = re.sub(
        r"@llvm\.nvvm\.cp\.async\.c[ag]\.shared\.global\.(\d+)\.s\((.*), (i32 \S+)\)",
        lambda m: f"{address_of('copy')}({m[2]}, i32 {m[1]}, {m[3]}, i32 {number})",
        line,
    )
    if several := ADD_SEVERAL.search(line):
        return _several_sums(several, number)
    if added := ADD_HALF.search(line):
        return f"call void {address_of('add_halves')}(ptr {added[1]}, {added[2]}, i32 {number})"
    if '"fence.proxy.async.shared::cta;"' in line:
        return f"call void {address_of('show')}()"
    if found := re.search(r'asm sideeffect "wgmma\.wait_group\.sync\.aligned (\d+);"', line):
        return f"call void {address_of('wait_products')}(i32 {found[1]}, i32 0, i32 {number})"
    if found := QUOTIENT.search(line):
        line = f"{line[: line.index('=')]}= fdiv {found[1]}, {found[2]}"
    if found := RECIPROCAL.search(line):
        line = f"{line[: line.index('=')]}= fdiv float 1.0, {found[1]}"
    line = line.replace("@llvm.nvvm.mapa(", f"{address_of('mapa')}(")
    line = line.replace("@llvm.nvvm.barrier.cluster.arrive.aligned(", f"{address_of('arrive')}(i32 {number}")
    line = line.replace("@llvm.nvvm.barrier.cluster.wait.aligned(", f"{address_of('await')}(i32 {number}")
    line = line.replace("@__assertfail(", f"{address_of('assert')}(")
    rest = "i32 0, i32 0, i32 0)"
    if found := re.match(r"\s*call void @llvm\.nvvm\.bar\.warp\.sync\((i32 \S+)\)", line):
        line = f"call i32 {address_of('meet')}(i32 3, i32 {number}, {found[1]}, {rest}"
    if "@llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)" in line:
        line = f"call i32 {address_of('meet')}(i32 4, i32 {number}, i32 -1, {rest}"
    return line


def _several_sums(found: re.Match[str], number: int) -> str:
    """Sums of neighbours: of the words of one aligned place, one after the other."""
    count, kind, place, given = found.groups()
    size = 4 * int(count)
    lines = [_call_touch(place, size, size, number, "updates")]
    for part, value in enumerate(given.split(", ")):
        address = f"%sum{number}_{part}"
        lines.append(f"{address} = getelementptr i8, ptr {place}, i64 {4 * part}")
        if kind == "f32":
            lines.append(f"{address}r = atomicrmw fadd ptr {address}, {value} monotonic, align 4")
        else:
            lines.append(f"call void {address_of('add_halves')}(ptr {address}, {value}, i32 {number})")
    return "\n".join(lines)


def _touch(found: re.Match[str], number: int) -> str:
    count, element = re.fullmatch(r"(?:<(\d+) x )?(\w+)>?", found[2]).groups()
    size = int(count or 1) * BYTES[element]
    return _call_touch(found[3], size, int(found[4] or size), number, f"{found[1]}s")


def _call_touch(place: str, size: int, alignment: int, number: int, how: str) -> str:
    arguments = f"ptr {place}, i32 {size}, i32 {alignment}, i32 {number}, i32 {TOUCHES.index(how)}"
    return f"call void {address_of('touch')}({arguments})"


def _touch_lanes(found: re.Match[str], number: int) -> list[str]:
    """Of a vector with a mask, those that are reached."""
    kind, count, bits, type_, places, alignment, mask = found.groups()
    size, lines = int(bits) // 8, []
    for lane in range(int(count)):
        name = f"%lane{number}_{lane}"
        address = f"getelementptr i8, ptr {places}, i64 {lane * size}"
        if type_ != "ptr":
            address = f"extractelement {type_} {places}, i64 {lane}"
        reached = f"i32 {size}, i32 {min(int(alignment), size)}, i32 {number}, i32 {int(kind in ('store', 'scatter'))}"
        lines += [
            f"{name} = {address}",
            f"{name}m = extractelement {mask}, i64 {lane}",
            f"{name}i = zext i1 {name}m to i32",
            f"call void {address_of('touch_if')}(i32 {name}i, ptr {name}, {reached})",
        ]
    return lines


def _entry(name: str, parameters: Sequence[str]) -> str:
    lines = ["define void @entry(ptr %parameters) {"]
    for number, parameter in enumerate(parameters):
        lines.append(f"%at{number} = getelementptr ptr, ptr %parameters, i64 {number}")
        lines.append(f"%to{number} = load ptr, ptr %at{number}")
        lines.append(
            f"%p{number} = getelementptr i8, ptr %to{number}, i64 0"
            if BY_VALUE.search(parameter)
            else f"%p{number} = load {parameter.split()[0]}, ptr %to{number}"
        )
    given = ", ".join(f"{each.split()[0]} %p{number}" for number, each in enumerate(parameters))
    return "\n".join([*lines, f"call void @{name}({given})", "ret void", "}", ""])


@cache
def jit() -> Jit:
    return Jit(CARD)


@dataclass(frozen=True)
class Shape:
    """How a kernel is launched: threads of a block along x and y, those of a group, iterations that a block takes at a
    time, bytes of shared memory, blocks of a cluster, and counters."""

    x: int
    y: int
    group: int
    per_block: int
    shared: int
    cluster: int = 1
    counters: int = 0

    @classmethod
    def of(cls, grid: Grid) -> Shape:
        return cls(*grid.block, grid.threads, grid.per_block, grid.shared_bytes, grid.cluster, grid.counters)


def launch_of(shape: Shape, shared: SharedMemory, memory: Sequence[tuple[int, int]]) -> _Launch:
    """What the card has to know of a launch, but for the code and the number of blocks. `memory`: (address, bytes)."""
    own = [
        (start + block * MOST_SHARED, size)
        for block in range(shape.cluster)
        for start, size in shared.places.values()
    ]
    places = [*own, *memory]
    traces = [np.empty((max(size, 1), TRACE), np.int32) for _, size in places]
    regions = (_Region * len(places))(
        *[(start, size, trace.ctypes.data) for (start, size), trace in zip(places, traces, strict=True)]
    )
    launch = _Launch()
    launch.x, launch.y = shape.x, shape.y
    launch.group, launch.cluster, launch.shared = shape.group, shape.cluster, shared.start
    launch.shared_bytes = MOST_SHARED if shape.cluster > 1 else shared.bytes
    launch.regions, launch.region_count = ctypes.addressof(regions), len(places)
    launch.shared_regions = len(own)
    counters = np.zeros(shape.counters, np.uint32)
    launch.counters, launch.counter_count = counters.ctypes.data, shape.counters
    launch.keep = (regions, traces, counters)
    return launch


@dataclass
class Simulated:
    """A kernel for the simulated card. text: its code for the card."""

    shape: Shape
    text: str
    shared: SharedMemory
    code: Code

    @classmethod
    def of(cls, grid: Grid, target: Target = MODEL, text: str | None = None) -> Simulated:
        """`text`: what is run in place of what is emitted."""
        return cls.written(Shape.of(grid), emit_device(grid, target, "lw_kernel") if text is None else text)

    @classmethod
    def written(cls, shape: Shape, text: str) -> Simulated:
        """The kernel that a text has."""
        shared = SharedMemory(shape.shared, shape.cluster)
        here = for_this_cpu(text, shared)
        with config.using(verify=True):
            return cls(shape, text, shared, jit().compile(here, ["entry"]))

    def launch(
        self,
        buffers: Sequence[np.ndarray],
        sizes: Sequence[int],
        extent: int,
        *,
        blocks: int = 1 << 31,
        seed: int = 0,
    ) -> None:
        """The kernel on arrays in the order of its parameters, by at most so many blocks, or clusters of them.

        Raises:
            AssertionOfKernel, ForbiddenError: see there.
        """
        blocks = min(-(-extent // self.shape.per_block), blocks) * self.shape.cluster
        if blocks <= 0:
            return
        launch = launch_of(self.shape, self.shared, [(array.ctypes.data, array.nbytes) for array in buffers])
        values = [*(array.ctypes.data for array in buffers), *sizes, extent, launch.counters or 0]
        numbers = (ctypes.c_int64 * len(values))(*values)
        first = ctypes.addressof(numbers)
        parameters = (ctypes.c_void_p * len(values))(*[first + 8 * n for n in range(len(values))])
        launch.entry, launch.parameters = self.code.addresses["entry"], ctypes.addressof(parameters)
        launch.blocks, launch.seed = blocks, seed
        self.start(launch)
        assert not launch.keep[-1].any(), "the kernel leaves counters that are not zero"

    def start(self, launch: _Launch) -> None:
        """A launch to the end.

        Raises:
            AssertionOfKernel, ForbiddenError: see there.
        """
        status = library().card_launch(ctypes.byref(launch))
        if status:
            self._explain(status)

    def _explain(self, status: int) -> None:
        message = library().card_message().decode()
        if status == 1:
            raise AssertionOfKernel(message)
        if status == 2:
            message = "threads wait for others that do not come: " + "; ".join(self._waits())
        lines = self.text.splitlines()
        said = dict.fromkeys(int(number) for number in re.findall(r"line (\d+)", message))
        raise ForbiddenError("\n".join([message, *(f"{each}: {lines[each - 1].strip()}" for each in said)]))

    def _waits(self) -> list[str]:
        """What the threads do, those that do the same together."""
        found: dict[str, list[int]] = {}
        state = (ctypes.c_int32 * 4)()
        for thread in range(self.shape.x * self.shape.y * self.shape.cluster):
            library().card_thread(thread, state)
            what = STATES[state[0]]
            if what == "waits":
                what += f" at line {state[2]} ({KINDS[state[1]]}) for {state[3] & 0xFFFFFFFF:#x}"
            found.setdefault(what, []).append(thread)
        return [f"{len(each)} threads ({each[0]} ...): {what}" for what, each in found.items()]


def run_simulated(
    grid: Grid,
    memory: Mapping[str, np.ndarray],
    sizes: Mapping[str, int] | None = None,
    *,
    aligned: bool = True,
    blocks: int = 2,
    seed: int = 0,
    target: Target = MODEL,
    text: str | None = None,
) -> None:
    """Runs a grid on flat memory in place, as `run_grid` does; bf16 memory is as float32.

    aligned: whether the buffers start at multiples of 16 bytes, or one element behind these.
    """
    sizes = sizes or {}
    kernel = grid.kernel
    rooms = {each.name: placed(as_stored(memory[each.name], each.dtype), aligned) for each in kernel.params}
    extent = likely(parallel_extent(kernel), sizes)
    simulated = Simulated.of(grid, target, text)
    simulated.launch(
        list(rooms.values()), [sizes[name] for name in kernel.sizes], extent, blocks=blocks, seed=seed
    )
    for param in kernel.params:
        memory[param.name][...] = from_stored(rooms[param.name], param.dtype)


# --- as functions of this CPU -----------------------------------------------------------------------------------------


class _Function(ctypes.Structure):
    _fields_ = (
        ("launch", _Launch),
        *((name, ctypes.c_int32) for name in ("buffers", "sizes", "per_block")),
        ("counters", ctypes.c_void_p),
    )


class SimulatingGenerator(EmulatingGenerator):
    """Kernels on the simulated card as functions of this CPU, in one thread: of their memory no more is looked at than
    whether addresses are aligned.

    functions: of all generators, what their code has the addresses of.
    """

    functions: ClassVar[list[tuple[_Function, _Launch, SharedMemory]]] = []

    def emit(self, grid: Grid, name: str) -> str:
        shared = SharedMemory(grid.shared_bytes, grid.cluster)
        target = replace(self.target, exp2=MODEL.exp2)
        here = for_this_cpu(emit_device(grid, target, f"{name}_of_card"), shared)
        launch = launch_of(Shape.of(grid), shared, ())
        launch.is_open = 1
        given = len(grid.kernel.params), len(grid.kernel.sizes), grid.per_block
        function = _Function(launch, *given, launch.counters)
        self.functions.append((function, launch, shared))
        given = "ptr %buffers, ptr %sizes, i64 %begin, i64 %end"
        place = f"ptr inttoptr (i64 {ctypes.addressof(function)} to ptr)"
        return (
            f"{here}\ndefine i64 @{name}({given}) {{\n"
            f"%status = call i64 {address_of('call')}({place}, {given}, ptr @entry)\nret i64 %status\n}}\n"
        )


@cache
def simulating_generator(target: Target) -> SimulatingGenerator:
    return SimulatingGenerator(target)


def simulating_target() -> Target:
    """A card whose kernels run on the simulated one, behind tensors of this CPU."""
    return replace(CARD, name="simulated", generate=simulating_generator)
