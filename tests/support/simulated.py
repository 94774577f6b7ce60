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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from grids import CARD, as_stored, from_stored, placed

from lampwork import config
from lampwork.codegen.gpu.device import emit_device
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.llvm.jit import Code, Jit
from lampwork.codegen.target import Target
from lampwork.loops.ir.grid import ALIGNED, Grid
from lampwork.loops.ir.kernel import parallel_extent
from lampwork.loops.ir.symbols import likely

SOURCE = Path(__file__).with_name("simulated_card.c")
MODEL = describe(75)  # the newest without instructions for bfloat16, for which this CPU has none
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
REGISTER = re.compile(r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.(\w+)\(")
SHARED = re.compile(r"addrspacecast ptr addrspace\(3\) @(\w+) to ptr")
SLOT = re.compile(r"@(\w+) = internal addrspace\(3\) global \[(\d+) x (\w+)\] poison")
DEFINED = re.compile(r'define ptx_kernel void @(\w+)\((.*)\) "nvvm.maxntid"="(\d+)"')
TOUCHED = re.compile(
    r"^\s*(?:\S+ = )?(load|store) (<\d+ x \w+>|\w+)[ ,].*?ptr ([%@][\w.]+)(?:, align (\d+))?$"
)
DROPPED = ("target ", "declare i32 @llvm.nvvm", "declare void @llvm.nvvm", "declare float @llvm.nvvm")


@dataclass
class SharedMemory:
    """Where the arrays of shared memory are, with gaps between them: name -> (start, bytes)."""

    dynamic: int
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    end: int = GAP

    def __post_init__(self) -> None:
        self.add("shared", self.dynamic)

    def add(self, name: str, size: int) -> None:
        self.places[name] = (self.end, size)
        self.end += -(-size // ALIGNED) * ALIGNED + GAP


def for_this_cpu(text: str, arena: int, layout: SharedMemory) -> str:
    """The IR of a kernel, as it is for a card, as that of a function `entry` of an array of addresses of parameters."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith((*DROPPED, "declare void @__assertfail", "@shared =")):
            continue
        if found := SLOT.match(line):
            layout.add(found[1], int(found[2]) * BYTES[found[3]])
            continue
        if touched := TOUCHED.match(line):
            lines.append(_touch(touched, number))
        elif re.search(r"\b(load|store|masked|memset|memcpy|atomicrmw)\b", line):
            raise AssertionError(f"line {number} reaches memory by ways that are not known: {line}")
        lines.append(_instruction(line, number))
    written = SHARED.sub(lambda m: f"inttoptr i64 {arena + layout.places[m[1]][0]} to ptr", "\n".join(lines))
    (signature,) = DEFINED.findall(written)
    whole = DEFINED.sub(r"define internal void @\1(\2)", written)
    assert "nvvm" not in whole and "addrspace(3)" not in whole, whole
    return f"{whole}\n{_entry(signature[0], signature[1].split(', '))}"


def _instruction(line: str, number: int) -> str:
    line = SHUFFLE.sub(lambda m: f"{address_of('meet')}(i32 {KINDS.index(m[1])}, i32 {number}, ", line)
    line = REGISTER.sub(lambda m: f"{address_of(f'{m[1]}_{m[2]}')}(", line)
    line = line.replace("@llvm.nvvm.ex2.approx.ftz.f(", f"{address_of('exp2')}(")
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


@dataclass
class Simulated:
    """A kernel of a grid for the simulated card. text: its code for the card."""

    grid: Grid
    text: str
    layout: SharedMemory
    arena: np.ndarray
    code: Code

    @classmethod
    def of(cls, grid: Grid, target: Target = MODEL, text: str | None = None) -> Simulated:
        """`text`: what is run in place of what is emitted."""
        text = emit_device(grid, target, "lw_kernel") if text is None else text
        layout = SharedMemory(grid.shared_bytes)
        arena = np.empty(1 << 19, np.uint8)
        start = arena.ctypes.data + -arena.ctypes.data % ALIGNED
        here = for_this_cpu(text, start, layout)
        assert layout.end < arena.nbytes - ALIGNED
        with config.using(verify=True):
            return cls(
                grid, text, layout, arena[start - arena.ctypes.data :], _jit().compile(here, ["entry"])
            )

    @property
    def block(self) -> tuple[int, int]:
        return (self.grid.groups, 1) if self.grid.is_flat else (self.grid.threads, self.grid.groups)

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
        places = [(self.arena.ctypes.data + start, size) for start, size in self.layout.places.values()]
        shared = len(places)
        places += [(array.ctypes.data, array.nbytes) for array in buffers]
        traces = [np.empty((max(size, 1), 5), np.int32) for _, size in places]
        regions = (_Region * len(places))(
            *[(start, size, trace.ctypes.data) for (start, size), trace in zip(places, traces, strict=True)]
        )
        values = [*(array.ctypes.data for array in buffers), *sizes, extent]
        numbers = (ctypes.c_int64 * len(values))(*values)
        first = ctypes.addressof(numbers)
        parameters = (ctypes.c_void_p * len(values))(*[first + 8 * n for n in range(len(values))])
        launch = _Launch(
            self.code.addresses["entry"],
            ctypes.addressof(parameters),
            *self.block,
            blocks,
            self.grid.threads,
            self.arena.ctypes.data,
            self.layout.end,
            ctypes.addressof(regions),
            len(places),
            shared,
            seed,
        )
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
        for thread in range(self.block[0] * self.block[1]):
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
