"""The instructions of tensor cores, and of copies to shared memory behind the registers' back, as LLVM's intrinsics.

Addresses in shared memory are numbers of 32 bits (dtype i32), from which a pointer is made where one is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.loops.ir.nodes import DType

_FOUR = "{i32, i32, i32, i32}"
_SUMS = "{float, float, float, float}"
_LDMATRIX = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{}.b16.p3"
_PRODUCT: dict[DType, tuple[str, str]] = {
    "bf16": ("llvm.nvvm.mma.m16n8k16.row.col.bf16", "i32"),
    "f16": ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", "<2 x half>"),
    "f32": ("llvm.nvvm.mma.m16n8k8.row.col.tf32", "i32"),
}


def shared_start(b: Builder) -> Value:
    """Where the block's own shared memory starts."""
    return b.emit("ptrtoint ptr addrspace(3) @shared to i32", "i32", 1)


def shared_pointer(b: Builder, address: Value, offset: int = 0) -> str:
    """The pointer to so many bytes behind an address."""
    pointer = b.emit(f"inttoptr i32 {address.text} to ptr addrspace(3)", "i64", 1).text
    if offset == 0:
        return pointer
    return b.emit(f"getelementptr i8, ptr addrspace(3) {pointer}, i32 {offset}", "i64", 1).text


def special(b: Builder, name: str) -> Value:
    """A special register, as i32."""
    intrinsic = f"llvm.nvvm.read.ptx.sreg.{name}"
    b.module.declare(intrinsic, f"declare i32 @{intrinsic}()")
    return b.emit(f"call i32 @{intrinsic}()", "i32", 1)


def barrier(b: Builder) -> None:
    """All threads of the block wait for each other."""
    b.module.declare("barrier", "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) #8")
    b.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")


def warp_barrier(b: Builder) -> None:
    """The threads of a warp wait for each other."""
    b.module.declare("syncwarp", "declare void @llvm.nvvm.bar.warp.sync(i32) #8")
    b.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")


# --- copies -----------------------------------------------------------------------------------------------------------


def copy_chunk(b: Builder, to: str, source: str, wanted: Value | None, width: int) -> None:
    """So many bytes of global memory (16, 8 or 4) to shared memory; zeros, without a look at the source, where they are
    not wanted. They are there when the thread has waited for the group that they belong to."""
    name = f"llvm.nvvm.cp.async.{'cg' if width == 16 else 'ca'}.shared.global.{width}.s"
    b.module.declare(name, f"declare void @{name}(ptr addrspace(3), ptr addrspace(1), i32)")
    size = b.const(width, "i32")
    if wanted is not None:
        size = b.select(wanted, size, b.const(0, "i32"))
    b.line(f"call void @{name}(ptr addrspace(3) {to}, ptr addrspace(1) {source}, i32 {size.text})")


def commit(b: Builder) -> None:
    """The copies since the last one are a group."""
    name = "llvm.nvvm.cp.async.commit.group"
    b.module.declare(name, f"declare void @{name}()")
    b.line(f"call void @{name}()")


def wait_for_all_but(b: Builder, groups: int) -> None:
    """Wait for the thread's copies, but for those of so many last groups."""
    name = "llvm.nvvm.cp.async.wait.group"
    b.module.declare(name, f"declare void @{name}(i32)")
    b.line(f"call void @{name}(i32 {groups})")


# --- tensor cores -----------------------------------------------------------------------------------------------------


def load_matrices(b: Builder, pointer: str, *, transposed: bool) -> list[Value]:
    """Four matrices of 8 rows of 16 bytes, of which each lane of the warp points to a row: those of lanes 0 to 7 are
    the first one's. Lane l gets of each the word l % 4 of row l // 4; `transposed`: of 16-bit elements, those of rows
    2 * (l % 4) and the next, in column l // 4."""
    name = _LDMATRIX.format(".trans" if transposed else "")
    b.module.declare(name, f"declare {_FOUR} @{name}(ptr addrspace(3)) #8")
    whole = b.emit(f"call {_FOUR} @{name}(ptr addrspace(3) {pointer})", "i32", 1, pure=False)
    return [b.emit(f"extractvalue {_FOUR} {whole.text}, {part}", "i32", 1) for part in range(4)]


def multiply(
    b: Builder, dtype: DType, left: Sequence[Value], right: Sequence[Value], sums: Sequence[Value]
) -> list[Value]:
    """A warp's sums (16 x 8) with the product of 16 x 32 bytes of A and 32 bytes x 8 of B added: `left` are the four
    words of a lane, `right` the two. Lane l has the sums of row l // 4, columns 2 * (l % 4) and the next, and those of
    the eighth row below."""
    name, type_ = _PRODUCT[dtype]
    words = [*left, *right]
    if dtype == "f16":
        texts = [b.emit(f"bitcast i32 {word.text} to {type_}", "i32", 1).text for word in words]
    else:
        texts = [word.text for word in words]
    types = ", ".join([type_] * 6 + ["float"] * 4)
    b.module.declare(name, f"declare {_SUMS} @{name}({types}) #8")
    given = ", ".join([*(f"{type_} {text}" for text in texts), *(f"float {each.text}" for each in sums)])
    whole = b.emit(f"call {_SUMS} @{name}({given})", "f32", 1, pure=False)
    return [b.emit(f"extractvalue {_SUMS} {whole.text}, {part}", "f32", 1) for part in range(4)]


def rounded(b: Builder, word: Value) -> Value:
    """The bits of a float32, rounded to TF32: to the nearest one, ties away from zero."""
    name = "llvm.nvvm.f2tf32.rna"
    b.module.declare(name, f"declare i32 @{name}(float)")
    number = b.emit(f"bitcast i32 {word.text} to float", "f32", 1)
    return b.emit(f"call i32 @{name}(float {number.text})", "i32", 1)
