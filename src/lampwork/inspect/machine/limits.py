"""What this machine can do at most, measured with generated loops: multiply-adds, and bytes read and copied."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from lampwork import pristine
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.llvm.jit import Jit, as_function
from lampwork.codegen.target import Target
from lampwork.inspect.machine.limit_int8 import bf16_loop, int8_loop
from lampwork.inspect.machine.limit_tiles import tile_loop
from lampwork.records import record

Loop = Callable[[int, int, int, int], int]
"""(address read, address written, first, last) -> 0; counts vectors, or turns of the multiply-adds."""

UNROLL = 8
TURNS = 1 << 16
"""Of the loops that do arithmetic, in one call."""

ROUNDS = 5
"""In which all limits are measured, one after the other."""

DOTS: tuple[Literal["i8", "bf16"], ...] = ("i8", "bf16")


@record
class Limits:
    """Of so many threads together. gflops: of float32 multiply-adds at the widest instruction set; int8: of its
    products of int8 (0: it has none), in 10^9 operations a second; bf16: of its products of bfloat16, which are those
    of float32 where there is no instruction. The others are GB/s; a copy counts what it reads and what it writes; from
    memory, in the cache that cores share, and in a core's own.
    shared_bytes, private_bytes: the sizes of the third- and the second-level cache."""

    threads: int
    gflops: float
    read: float
    copy: float
    shared_read: float
    shared_copy: float
    private_read: float
    private_copy: float
    shared_bytes: int
    private_bytes: int
    int8: float = 0.0
    bf16: float = 0.0

    def or_more(self, other: Limits) -> Limits:
        """The larger of both in each: what was measured while something else ran is too little."""
        return replace(self, **{name: max(getattr(self, name), getattr(other, name)) for name in RATES})

    @property
    def rates(self) -> dict[str, float]:
        """10^9 operations a second in each dtype that steps compute in; where there is no instruction for products of
        int8, those of float32."""
        return {
            "float32": self.gflops,
            "float16": self.gflops,
            "float64": self.gflops / 2,
            "bfloat16": self.bf16,
            "int8": self.int8 or self.gflops,
        }

    def bandwidth(self, reads: int, writes: int) -> float:
        """GB/s that a kernel of so many bytes could reach: those of the smallest cache that holds them all."""
        if reads + writes <= self.private_bytes * self.threads:
            found = (self.private_read, self.private_copy)
        elif reads + writes <= self.shared_bytes // 2:
            found = (self.shared_read, self.shared_copy)
        else:
            found = (self.read, self.copy)
        return found[writes * 8 >= reads]


RATES = (
    "gflops",
    "bf16",
    "int8",
    "read",
    "copy",
    "shared_read",
    "shared_copy",
    "private_read",
    "private_copy",
)
"""The fields that are measured."""


def cache_bytes(level: int, otherwise: int) -> int:
    """The size of the first CPU's cache of a level (Linux: /sys)."""
    path = Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size")
    if not path.exists():
        return otherwise
    text = path.read_text().strip()
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]


def measure_limits(threads: int, seconds: float = 0.2, large: int | None = None) -> Limits:
    """Best of several samples in `seconds` for each limit, which are spread over the whole measuring: what else runs on
    the machine for a while slows down some of them. large: bytes of the array that no cache holds."""
    pristine.set_num_threads(threads)
    target = host_isa("")
    code = Jit(target).compile(loops(target), ["fma", "read", "copy"])
    fma, read, copy = (as_function(code.addresses[name]) for name in ("fma", "read", "copy"))
    private, shared = cache_bytes(2, 1 << 20), cache_bytes(3, 1 << 24)
    large = large or max(1 << 27, 4 * shared)
    works = [
        _multiply_adds(fma, target, threads),
        *(
            _moves(loop, size, target.vector_bytes, threads, moved)
            for size in (large, shared // 4, private // 2)
            for loop, moved in ((read, 1), (copy, 2))
        ),
        *(_dots(target, each, threads) for each in DOTS),
    ]
    with ThreadPoolExecutor(threads) as pool:
        rounds = [
            [work.rate(pool, seconds / ROUNDS) if work.amount else 0.0 for work in works]
            for _ in range(ROUNDS)
        ]
    gflops, *rates, int8, bf16 = (max(samples) for samples in zip(*rounds, strict=True))
    return Limits(
        threads, gflops, *rates, shared_bytes=shared, private_bytes=private, int8=int8, bf16=bf16 or gflops
    )


@record(eq=False)
class _Work:
    """What is measured for a limit: a call for each thread, and what all of them together do. `held`: the memory that
    they work on."""

    calls: Sequence[Callable[[], None]]
    amount: int
    held: object

    def rate(self, pool: ThreadPoolExecutor, seconds: float) -> float:
        """Billions a second in the best sample of some that take `seconds`; at least one is taken."""
        best = float("inf")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or best == float("inf"):
            start = time.perf_counter()
            if len(self.calls) == 1:
                self.calls[0]()
            else:
                for done in [pool.submit(call) for call in self.calls]:
                    done.result()
            best = min(best, time.perf_counter() - start)
        return self.amount / best / 1e9


def _multiply_adds(loop: Loop, target: Target, threads: int) -> _Work:
    numbers = pristine.full((threads, 64), 0.5)
    lanes = target.vector_bytes // 4
    calls = [_call(loop, row.data_ptr(), row.data_ptr(), TURNS) for row in numbers]
    return _Work(calls, 2 * TURNS * _chains(target) * lanes * threads, numbers)


def _dots(target: Target, dtype: Literal["i8", "bf16"], threads: int) -> _Work:
    """Products of a dtype; nothing for a target that has no instruction for them."""
    unit, loop_of = target.unit(dtype), int8_loop if dtype == "i8" else bf16_loop
    text, operations = loop_of(target, _chains(target)) if unit is None else tile_loop(target, unit)
    if not operations:
        return _Work((), 0, None)
    code = Jit(target).compile(text, ["dot"])
    loop = as_function(code.addresses["dot"])
    numbers = pristine.ones(threads, 64, dtype=torch.int8)
    buffers = [(ctypes.c_void_p * 1)(row.data_ptr()) for row in numbers]
    calls = [_call(loop, ctypes.addressof(each), 0, TURNS) for each in buffers]
    return _Work(calls, TURNS * operations * threads, (code, numbers, buffers))


def _call(loop: Loop, source: int, to: int, last: int, repeat: int = 1) -> Callable[[], None]:
    def run() -> None:
        for _ in range(repeat):
            loop(source, to, 0, last)

    return run


def _moves(loop: Loop, size: int, vector: int, threads: int, moved: int) -> _Work:
    """Bytes over `size` of them: of each thread if they fit its private cache, else of all together."""
    each = size // moved
    if size > cache_bytes(2, 1 << 20):
        each //= threads
    arrays = [[pristine.ones(each // 4) for _ in range(moved)] for _ in range(threads)]
    last = each // (vector * UNROLL) * UNROLL
    repeat = max(1, (1 << 22) // each)
    calls = [_call(loop, own[0].data_ptr(), own[-1].data_ptr(), last, repeat) for own in arrays]
    return _Work(calls, last * vector * moved * repeat * threads, arrays)


def _chains(target: Target) -> int:
    """Independent chains of multiply-adds: more than latency times throughput, fewer than the registers."""
    return 24 if target.registers >= 32 else 12


def loops(target: Target) -> str:
    """LLVM IR of `fma`, `read` and `copy`, each (ptr source, ptr to, i64 first, i64 last) -> i64."""
    lanes = target.vector_bytes // 4
    vector = f"<{lanes} x float>"
    chains = _chains(target)
    body = [_multiply_add(target, vector, i) for i in range(chains)]
    fma = _loop(
        "fma",
        vector,
        chains,
        1,
        [f"  %x = load {vector}, ptr %source, align 4", f"  %y = load {vector}, ptr %to, align 4"],
        body,
    )
    reads = [
        f"  %p{i} = getelementptr {vector}, ptr %source, i64 %i\n"
        f"  %q{i} = getelementptr {vector}, ptr %p{i}, i64 {i}\n"
        f"  %v{i} = load {vector}, ptr %q{i}, align 4\n"
        f"  %next{i} = fadd {vector} %acc{i}, %v{i}"
        for i in range(UNROLL)
    ]
    copies = [
        f"  %p{i} = getelementptr {vector}, ptr %source, i64 %i\n"
        f"  %q{i} = getelementptr {vector}, ptr %p{i}, i64 {i}\n"
        f"  %v{i} = load {vector}, ptr %q{i}, align 4\n"
        f"  %t{i} = getelementptr {vector}, ptr %to, i64 %i\n"
        f"  %u{i} = getelementptr {vector}, ptr %t{i}, i64 {i}\n"
        f"  store {vector} %v{i}, ptr %u{i}, align 4"
        for i in range(UNROLL)
    ]
    texts = [
        fma,
        _loop("read", vector, UNROLL, UNROLL, [], reads),
        _loop("copy", vector, 0, UNROLL, [], copies),
    ]
    texts.append(f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})")
    return "\n\n".join(texts)


def _multiply_add(target: Target, vector: str, i: int) -> str:
    lanes = target.vector_bytes // 4
    if target.has_fma:
        call = f"call {vector} @llvm.fma.v{lanes}f32({vector} %x, {vector} %y, {vector} %acc{i})"
        return f"  %next{i} = {call}"
    return f"  %m{i} = fmul {vector} %acc{i}, %x\n  %next{i} = fadd {vector} %m{i}, %y"


def _loop(name: str, vector: str, chains: int, step: int, before: list[str], body: list[str]) -> str:
    """A loop with `chains` accumulators, whose sum is returned as 0 or not so that they are computed."""
    phis = [
        f"  %acc{i} = phi {vector} [ zeroinitializer, %entry ], [ %next{i}, %loop ]" for i in range(chains)
    ]
    sums: list[str] = []
    total = "%next0"
    for i in range(1, chains):
        sums.append(f"  %s{i} = fadd {vector} {total}, %next{i}")
        total = f"%s{i}"
    if chains:
        sums += [
            f"  %one = extractelement {vector} {total}, i64 0",
            "  %odd = fcmp ueq float %one, 0x7FF0000000000000",
            "  %status = zext i1 %odd to i64",
        ]
    lines = [
        f"define i64 @{name}(ptr %source, ptr %to, i64 %first, i64 %last) {{",
        "entry:",
        *before,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ %first, %entry ], [ %after, %loop ]",
        *phis,
        *body,
        f"  %after = add i64 %i, {step}",
        "  %more = icmp ult i64 %after, %last",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *sums,
        f"  ret i64 {'%status' if chains else '0'}",
        "}",
    ]
    return "\n".join(lines)
