"""A machine with tile registers that any CPU with AVX-512 runs: AMX's instructions in plain LLVM IR, for tests.

As Intel's manual has them (TILELOADD, TILESTORED, TDPBF16PS, TDPBSSD): rows and bytes past a register's shape are
zero and not touched in memory; pairs of bf16 are two chains of fused multiply-adds in float32, rounded to nearest even,
whose sum is added to the destination, and subnormal numbers count as zero on the way in and out; int8 is added in
int32, which wraps. What the CPU refuses (an unconfigured register, shapes that do not fit) ends the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.codegen.llvm.builder import Builder
from lampwork.codegen.llvm.isa.amx import write_configuration
from lampwork.codegen.llvm.isa.x86 import host_flags, host_isa
from lampwork.codegen.llvm.templates.ints import Int, text_of
from lampwork.codegen.target import Target, TileUnit

NEEDED = frozenset(("avx512f", "avx512bw", "avx512_bf16", "avx512_vnni"))
_STATE = 64 + 8 * 1024
_V = "<16 x i32>"
_F = "<16 x float>"

_SHAPES = """
define internal i64 @emulated.rows(ptr %state, i64 %t) noinline nounwind {
  %at = add i64 %t, 48
  %p = getelementptr i8, ptr %state, i64 %at
  %rows = load i8, ptr %p
  %wide = zext i8 %rows to i64
  ret i64 %wide
}
define internal i64 @emulated.bytes(ptr %state, i64 %t) noinline nounwind {
  %twice = shl i64 %t, 1
  %at = add i64 %twice, 16
  %p = getelementptr i8, ptr %state, i64 %at
  %bytes = load i16, ptr %p, align 1
  %wide = zext i16 %bytes to i64
  ret i64 %wide
}
define internal ptr @emulated.tile(ptr %state, i64 %t) noinline nounwind {
  %rows = call i64 @emulated.rows(ptr %state, i64 %t)
  %bytes = call i64 @emulated.bytes(ptr %state, i64 %t)
  %palette = load i8, ptr %state
  %none = icmp ne i8 %palette, 1
  %no.rows = icmp eq i64 %rows, 0
  %no.bytes = icmp eq i64 %bytes, 0
  %either = or i1 %no.rows, %no.bytes
  %bad = or i1 %none, %either
  call void @emulated.refuse(i1 %bad)
  %far = shl i64 %t, 10
  %at = add i64 %far, 64
  %p = getelementptr i8, ptr %state, i64 %at
  ret ptr %p
}
define internal void @emulated.refuse(i1 %bad) noinline nounwind {
  br i1 %bad, label %no, label %yes
no:
  call void @llvm.trap()
  unreachable
yes:
  ret void
}
"""

_CONFIGURE = """
define internal void @emulated.configure(ptr %state, ptr %from) noinline nounwind {
entry:
  %config = load <64 x i8>, ptr %from, align 1
  call void @llvm.memset.p0.i64(ptr %state, i8 0, i64 8256, i1 false)
  store <64 x i8> %config, ptr %state, align 1
  %palette = load i8, ptr %state
  %wrong = icmp ne i8 %palette, 1
  call void @emulated.refuse(i1 %wrong)
  br label %loop
loop:
  %t = phi i64 [ 0, %entry ], [ %next, %loop ]
  %rows = call i64 @emulated.rows(ptr %state, i64 %t)
  %bytes = call i64 @emulated.bytes(ptr %state, i64 %t)
  %high = icmp ugt i64 %rows, 16
  %wide = icmp ugt i64 %bytes, 64
  %no.rows = icmp eq i64 %rows, 0
  %no.bytes = icmp eq i64 %bytes, 0
  %half = xor i1 %no.rows, %no.bytes
  %large = or i1 %high, %wide
  %bad = or i1 %large, %half
  call void @emulated.refuse(i1 %bad)
  %next = add i64 %t, 1
  %again = icmp ult i64 %next, 8
  br i1 %again, label %loop, label %end
end:
  ret void
}
define internal void @emulated.zero(ptr %state, i64 %t) noinline nounwind {
  %tile = call ptr @emulated.tile(ptr %state, i64 %t)
  call void @llvm.memset.p0.i64(ptr %tile, i8 0, i64 1024, i1 false)
  ret void
}
define internal void @emulated.release(ptr %state) noinline nounwind {
  call void @llvm.memset.p0.i64(ptr %state, i8 0, i64 8256, i1 false)
  ret void
}
"""

_MOVE = """
define internal void @emulated.NAME(ptr %state, i64 %t, ptr %memory, i64 %stride) noinline nounwind {
entry:
  %tile = call ptr @emulated.tile(ptr %state, i64 %t)
  %rows = call i64 @emulated.rows(ptr %state, i64 %t)
  %bytes = call i64 @emulated.bytes(ptr %state, i64 %t)
  %free = sub i64 64, %bytes
  %ones = lshr i64 -1, %free
  br label %loop
loop:
  %r = phi i64 [ 0, %entry ], [ %next, %loop ]
  %inside = icmp ult i64 %r, %rows
  %bits = select i1 %inside, i64 %ones, i64 0
  %mask = bitcast i64 %bits to <64 x i1>
  %far = mul i64 %r, %stride
  %p = getelementptr i8, ptr %memory, i64 %far
  %row = shl i64 %r, 6
  %q = getelementptr i8, ptr %tile, i64 %row
  BODY
  %next = add i64 %r, 1
  %again = icmp ult i64 %next, 16
  br i1 %again, label %loop, label %end
end:
  ret void
}
"""
_LOADS = """%v = call <64 x i8> @llvm.masked.load.v64i8.p0(ptr %p, i32 1, <64 x i1> %mask, <64 x i8> zeroinitializer)
  store <64 x i8> %v, ptr %q, align 1"""
_STORES = """%v = load <64 x i8>, ptr %q, align 1
  call void @llvm.masked.store.v64i8.p0(<64 x i8> %v, ptr %p, i32 1, <64 x i1> %mask)"""

_DOT = """
define internal void @emulated.dot(ptr %state, i64 %c, i64 %a, i64 %b) noinline nounwind {
entry:
  %sums = call ptr @emulated.tile(ptr %state, i64 %c)
  %left = call ptr @emulated.tile(ptr %state, i64 %a)
  %right = call ptr @emulated.tile(ptr %state, i64 %b)
  %rows = call i64 @emulated.rows(ptr %state, i64 %c)
  %left.rows = call i64 @emulated.rows(ptr %state, i64 %a)
  %right.rows = call i64 @emulated.rows(ptr %state, i64 %b)
  %bytes = call i64 @emulated.bytes(ptr %state, i64 %c)
  %left.bytes = call i64 @emulated.bytes(ptr %state, i64 %a)
  %right.bytes = call i64 @emulated.bytes(ptr %state, i64 %b)
  %depth = lshr i64 %left.bytes, 2
  %x = icmp ne i64 %rows, %left.rows
  %y = icmp ne i64 %bytes, %right.bytes
  %z = icmp ne i64 %depth, %right.rows
  %xy = or i1 %x, %y
  %bad = or i1 %xy, %z
  call void @emulated.refuse(i1 %bad)
  br label %row
row:
  %m = phi i64 [ 0, %entry ], [ %m.next, %done ]
  %far = shl i64 %m, 6
  %line = getelementptr i8, ptr %left, i64 %far
  %out = getelementptr i8, ptr %sums, i64 %far
  %old = load <16 x i32>, ptr %out, align 4
  br label %step
step:
  %k = phi i64 [ 0, %row ], [ %k.next, %step ]
  %t0 = phi TYPE [ START, %row ], [ %t0.next, %step ]
  %t1 = phi TYPE [ zeroinitializer, %row ], [ %t1.next, %step ]
  %ap = getelementptr i32, ptr %line, i64 %k
  %word = load i32, ptr %ap, align 4
  %one = insertelement <16 x i32> poison, i32 %word, i64 0
  %aw = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %b.far = shl i64 %k, 6
  %bp = getelementptr i8, ptr %right, i64 %b.far
  %bw = load <16 x i32>, ptr %bp, align 4
  BODY
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %depth
  br i1 %more, label %step, label %done
done:
  END
  store <16 x i32> %new, ptr %out, align 4
  %m.next = add i64 %m, 1
  %again = icmp ult i64 %m.next, %rows
  br i1 %again, label %row, label %end
end:
  ret void
}
"""

_FLUSH = """
define internal <16 x float> @emulated.flush(<16 x i32> %x) noinline nounwind {
  %exponent = and <16 x i32> %x, splat (i32 2139095040)
  %small = icmp eq <16 x i32> %exponent, zeroinitializer
  %sign = and <16 x i32> %x, splat (i32 -2147483648)
  %bits = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %x
  %y = bitcast <16 x i32> %bits to <16 x float>
  ret <16 x float> %y
}
"""


def _half(name: str, word: str) -> str:
    """Both numbers of each word as float32."""
    return "\n  ".join(
        f"%{name}{n}.bits = {how}\n  %{name}{n} = call {_F} @emulated.flush({_V} %{name}{n}.bits)"
        for n, how in enumerate((f"shl {_V} {word}, splat (i32 16)", f"and {_V} {word}, splat (i32 -65536)"))
    )


def _flushed(name: str, value: str) -> str:
    return (
        f"%{name}.raw = bitcast {_F} {value} to {_V}\n  %{name} = call {_F} @emulated.flush({_V} %{name}.raw)"
    )


def _bf16_dot() -> str:
    body = [_half("a", "%aw"), _half("b", "%bw")]
    for n in range(2):
        body.append(f"%f{n} = call {_F} @llvm.fma.v16f32({_F} %a{n}, {_F} %b{n}, {_F} %t{n})")
        body.append(_flushed(f"t{n}.next", f"%f{n}"))
    end = [f"%pair = fadd {_F} %t0.next, %t1.next", _flushed("pairs", "%pair")]
    end += [f"%before = call {_F} @emulated.flush({_V} %old)", f"%sum = fadd {_F} %before, %pairs"]
    end += [_flushed("total", "%sum"), f"%new = bitcast {_F} %total to {_V}"]
    text = _DOT.replace("TYPE", _F).replace("START", "zeroinitializer")
    return _FLUSH + text.replace("BODY", "\n  ".join(body)).replace("END", "\n  ".join(end))


def _int8_dot() -> str:
    body: list[str] = []
    total = "%t0"
    for n in range(4):
        for side in "ab":
            body.append(f"%{side}{n}.up = shl {_V} %{side}w, splat (i32 {24 - 8 * n})")
            body.append(f"%{side}{n} = ashr {_V} %{side}{n}.up, splat (i32 24)")
        body.append(f"%p{n} = mul {_V} %a{n}, %b{n}")
        name = "%t0.next" if n == 3 else f"%s{n}"
        body.append(f"{name} = add {_V} {total}, %p{n}")
        total = name
    body.append(f"%t1.next = add {_V} %t1, zeroinitializer")
    text = _DOT.replace("TYPE", _V).replace("START", "%old")
    return text.replace("BODY", "\n  ".join(body)).replace("END", f"%new = add {_V} %t0.next, %t1.next")


class EmulatedCode:
    """A `TileCode` whose registers are an array on the stack of the function that uses them."""

    def __init__(self, b: Builder, dot: str) -> None:
        self._b = b
        self._state = b.alloca(f"[{_STATE} x i8]", 64)
        b.line(f"store i8 0, ptr {self._state}")
        if not any("@emulated.rows" in text for text in b.module.functions):
            moves = [("load", _LOADS), ("store", _STORES)]
            texts = [_MOVE.replace("NAME", name).replace("BODY", body) for name, body in moves]
            b.module.functions.append("".join([_SHAPES, _CONFIGURE, *texts, dot]))
        for name, signature in (
            ("llvm.trap", "void @llvm.trap()"),
            ("llvm.memset.p0.i64", "void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)"),
            ("llvm.fma.v16f32", f"{_F} @llvm.fma.v16f32({_F}, {_F}, {_F})"),
            ("llvm.masked.load.v64i8", "<64 x i8> @llvm.masked.load.v64i8.p0(ptr, i32 immarg, <64 x i1>, <64 x i8>)"),
            ("llvm.masked.store.v64i8", "void @llvm.masked.store.v64i8.p0(<64 x i8>, ptr, i32 immarg, <64 x i1>)"),
        ):  # fmt: skip
            b.module.declare(name, f"declare {signature}")

    def configure(self, shapes: Sequence[tuple[Int, int]]) -> None:
        self._call("configure", f"ptr {write_configuration(self._b, shapes)}")

    def zero(self, tile: int) -> None:
        self._call("zero", f"i64 {tile}")

    def load(self, tile: int, pointer: str, stride: Int) -> None:
        self._call("load", f"i64 {tile}", f"ptr {pointer}", f"i64 {text_of(stride)}")

    def store(self, tile: int, pointer: str, stride: Int) -> None:
        self._call("store", f"i64 {tile}", f"ptr {pointer}", f"i64 {text_of(stride)}")

    def dot(self, sums: int, left: int, right: int) -> None:
        self._call("dot", f"i64 {sums}", f"i64 {left}", f"i64 {right}")

    def release(self) -> None:
        self._call("release")

    def _call(self, name: str, *arguments: str) -> None:
        self._b.line(f"call void @emulated.{name}({', '.join([f'ptr {self._state}', *arguments])})")


def _bf16(b: Builder) -> EmulatedCode:
    return EmulatedCode(b, _bf16_dot())


def _int8(b: Builder) -> EmulatedCode:
    return EmulatedCode(b, _int8_dot())


UNITS = (TileUnit("bf16", 2, _bf16), TileUnit("i8", 4, _int8))


def has_emulation() -> bool:
    """Whether this CPU has what the emulation and products of few rows are made of."""
    return NEEDED <= host_flags()


def emulated() -> Target:
    """This CPU's AVX-512 with the registers of AMX, which are emulated. It cuts k into small blocks and copies few rows
    at a time, so that small products have several of each."""
    found = host_isa("avx512")
    return replace(found, name="avx512 with emulated tiles", units=UNITS, unit_words=48, unit_bytes=32 << 10)
