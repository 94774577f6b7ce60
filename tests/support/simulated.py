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
from lampwork.codegen.llvm.jit import Code, Jit
from lampwork.codegen.target import Target
from lampwork.loops.ir.grid import ALIGNED, Grid
from lampwork.loops.ir.kernel import parallel_extent
from lampwork.loops.ir.symbols import likely

SOURCE = Path(__file__).with_name("simulated_card.c")
MODEL = describe(75)  # the newest without instructions for bfloat16, for which this CPU has none
MOST_SHARED = 256 << 10
GAP = 64  # bytes out of reach around what lies in shared memory

KINDS = ("bfly", "up", "idx", "warp", "block")
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
        *((name, ctypes.c_int32) for name in ("x", "y", "blocks", "group")),
        ("shared", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_int64),
        ("regions", ctypes.c_void_p),
        ("region_count", ctypes.c_int32),
        ("shared_regions", ctypes.c_int32),
        ("is_open", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
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
    return found


def address_of(name: str) -> str:
    """A function of the card, in IR."""
    address = ctypes.cast(getattr(library(), f"card_{name}"), ctypes.c_void_p).value
    return f"inttoptr (i64 {address} to ptr)"


# --- code -------------------------------------------------------------------------------------------------------------

SHUFFLE = re.compile(r"@llvm\.nvvm\.shfl\.sync\.(\w+)\.i32\(")
QUOTIENT = re.compile(r"call float @llvm\.nvvm\.div\.(?:full|approx\.ftz\.f)\((float \S+), float (\S+)\)")
REGISTER = re.compile(r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.(\w+)\(")
SHARED = re.compile(r"addrspacecast ptr addrspace\(3\) @(\w+) to ptr")
SLOT = re.compile(r"@(\w+) = internal addrspace\(3\) global \[(\d+) x (\w+)\] poison")
DEFINED = re.compile(r'define ptx_kernel void @(\w+)\((.*)\) "nvvm.maxntid"="(\d+)"')
TOUCHED = re.compile(
    r"^\s*(?:\S+ = )?(load|store) (<\d+ x \w+>|\w+)[ ,].*?ptr ([%@][\w.]+)(?:, align (\d+))?$"
)
MASKED = re.compile(
    r"call .*@llvm\.masked\.(load|store|gather|scatter)\.v(\d+)[a-z]+(\d+)\..*"
    r"(?:\(|, )(ptr|<\d+ x ptr>) (%\w+), i32 (\d+), (<\d+ x i1> (?:splat \(i1 true\)|%\w+))"
)
DROPPED = ("target ", "declare i32 @llvm.nvvm", "declare void @llvm.nvvm", "declare float @llvm.nvvm")


@dataclass
class SharedMemory:
    """Shared memory of a block. places: of its arrays, with gaps between them: name -> (address, bytes)."""

    dynamic: int
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    bytes: int = GAP

    def __post_init__(self) -> None:
        self.memory = np.empty(MOST_SHARED + ALIGNED, np.uint8)
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
        if line.startswith((*DROPPED, "declare void @__assertfail", "@shared =")):
            continue
        if found := SLOT.match(line):
            shared.add(found[1], int(found[2]) * BYTES[found[3]])
            continue
        if touched := TOUCHED.match(line):
            lines.append(_touch(touched, number))
        elif masked := MASKED.search(line):
            lines += _touch_lanes(masked, number)
        elif re.search(r"\b(load|store|masked|memset|memcpy|atomicrmw)\b", line) and "declare" not in line:
            raise AssertionError(f"line {number} reaches memory by ways that are not known: {line}")
        lines.append(_instruction(line, number))
    written = SHARED.sub(lambda m: f"inttoptr i64 {shared.places[m[1]][0]} to ptr", "\n".join(lines))
    (signature,) = DEFINED.findall(written)
    whole = DEFINED.sub(r"define internal void @\1(\2)", written)
    assert "nvvm" not in whole and "addrspace(3)" not in whole, whole
    return f"{whole}\n{_entry(signature[0], signature[1].split(', '))}"


def _instruction(line: str, number: int) -> str:
    line = SHUFFLE.sub(lambda m: f"{address_of('meet')}(i32 {KINDS.index(m[1])}, i32 {number}, ", line)
    line = REGISTER.sub(lambda m: f"{address_of(f'{m[1]}_{m[2]}')}(", line)
    line = line.replace("@llvm.nvvm.ex2.approx.ftz.f(", f"{address_of('exp2')}(")
    if found := QUOTIENT.search(line):
        line = f"{line[: line.index('=')]}= fdiv {found[1]}, {found[2]}"
    line = line.replace("@__assertfail(", f"{address_of('assert')}(")
    rest = "i32 0, i32 0, i32 0)"
    if found := re.match(r"\s*call void @llvm\.nvvm\.bar\.warp\.sync\((i32 \S+)\)", line):
        line = f"call i32 {address_of('meet')}(i32 3, i32 {number}, {found[1]}, {rest}"
    if "@llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)" in line:
        line = f"call i32 {address_of('meet')}(i32 4, i32 {number}, i32 -1, {rest}"
    return line


def _touch(found: re.Match[str], number: int) -> str:
    count, element = re.fullmatch(r"(?:<(\d+) x )?(\w+)>?", found[2]).groups()
    size = int(count or 1) * BYTES[element]
    arguments = (
        f"ptr {found[3]}, i32 {size}, i32 {found[4] or size}, i32 {number}, i32 {int(found[1] == 'store')}"
    )
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
        lines.append(f"%p{number} = load {parameter.split()[0]}, ptr %to{number}")
    given = ", ".join(f"{each.split()[0]} %p{number}" for number, each in enumerate(parameters))
    return "\n".join([*lines, f"call void @{name}({given})", "ret void", "}", ""])


@cache
def _jit() -> Jit:
    return Jit(CARD)


def launch_of(grid: Grid, shared: SharedMemory, memory: Sequence[tuple[int, int]]) -> _Launch:
    """What the card has to know of a launch, but for the code and the number of blocks. `memory`: (address, bytes)."""
    places = [*shared.places.values(), *memory]
    traces = [np.empty((max(size, 1), 5), np.int32) for _, size in places]
    regions = (_Region * len(places))(
        *[(start, size, trace.ctypes.data) for (start, size), trace in zip(places, traces, strict=True)]
    )
    launch = _Launch()
    launch.x, launch.y = (grid.groups, 1) if grid.is_flat else (grid.threads, grid.groups)
    launch.group, launch.shared, launch.shared_bytes = grid.threads, shared.start, shared.bytes
    launch.regions, launch.region_count = ctypes.addressof(regions), len(places)
    launch.shared_regions = len(shared.places)
    launch.keep = (regions, traces)
    return launch


@dataclass
class Simulated:
    """A kernel of a grid for the simulated card. text: its code for the card."""

    grid: Grid
    text: str
    shared: SharedMemory
    code: Code

    @classmethod
    def of(cls, grid: Grid, target: Target = MODEL, text: str | None = None) -> Simulated:
        """`text`: what is run in place of what is emitted."""
        text = emit_device(grid, target, "lw_kernel") if text is None else text
        shared = SharedMemory(grid.shared_bytes)
        here = for_this_cpu(text, shared)
        with config.using(verify=True):
            return cls(grid, text, shared, _jit().compile(here, ["entry"]))

    def launch(
        self,
        buffers: Sequence[np.ndarray],
        sizes: Sequence[int],
        extent: int,
        *,
        blocks: int = 1 << 31,
        seed: int = 0,
    ) -> None:
        """The kernel on arrays in the order of its parameters, by at most so many blocks.

        Raises:
            AssertionOfKernel, ForbiddenError: see there.
        """
        blocks = min(-(-extent // self.grid.per_block), blocks)
        if blocks <= 0:
            return
        launch = launch_of(self.grid, self.shared, [(array.ctypes.data, array.nbytes) for array in buffers])
        values = [*(array.ctypes.data for array in buffers), *sizes, extent]
        numbers = (ctypes.c_int64 * len(values))(*values)
        first = ctypes.addressof(numbers)
        parameters = (ctypes.c_void_p * len(values))(*[first + 8 * n for n in range(len(values))])
        launch.entry, launch.parameters = self.code.addresses["entry"], ctypes.addressof(parameters)
        launch.blocks, launch.seed = blocks, seed
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
        for thread in range(self.grid.threads * self.grid.groups):
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
    _fields_ = (("launch", _Launch), *((name, ctypes.c_int32) for name in ("buffers", "sizes", "per_block")))


class SimulatingGenerator(EmulatingGenerator):
    """Kernels on the simulated card as functions of this CPU, in one thread: of their memory no more is looked at than
    whether addresses are aligned.

    functions: of all generators, what their code has the addresses of.
    """

    functions: ClassVar[list[tuple[_Function, _Launch, SharedMemory]]] = []

    def emit(self, grid: Grid, name: str) -> str:
        shared = SharedMemory(grid.shared_bytes)
        target = replace(self.target, exp2=MODEL.exp2)
        here = for_this_cpu(emit_device(grid, target, f"{name}_of_card"), shared)
        launch = launch_of(grid, shared, ())
        launch.is_open = 1
        function = _Function(launch, len(grid.kernel.params), len(grid.kernel.sizes), grid.per_block)
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
