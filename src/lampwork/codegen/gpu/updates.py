"""Elements of memory that threads combine values with, in any order: by one instruction, or tried until nobody else has
changed the element meanwhile.

Nothing is ordered by it but the element itself: what the kernel reads otherwise, nobody updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.emit_ops import emit_op
from lampwork.codegen.llvm.types import BITS, is_float, is_unsigned, itemsize, vector_type
from lampwork.loops.ir.nodes import CombineOp, DType

_OPS: Mapping[CombineOp, str] = MappingProxyType(
    {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
)
_WORDS: Mapping[int, DType] = MappingProxyType({8: "i8", 16: "i16", 32: "i32", 64: "i64"})
_MINUS_ZERO = 1 << 15  # of half types: what changes nothing that it is added to


def emit_update(b: Builder, op: CombineOp, address: str, value: Value, dtype: DType, scope: str) -> None:
    """The element of `dtype` at an address becomes `op` of itself and a value, in the form that it has in memory.

    scope: LLVM's name of the threads that see one order of the updates of an element: those of the device.
    """
    order = f'syncscope("{scope}") monotonic'
    align = itemsize(dtype)
    if op == "put":
        b.line(f"store atomic {b.typed(value)}, ptr {address} {order}, align {align}")
        return
    instruction = _instruction(b, op, dtype)
    if instruction is None:
        _try_until_done(b, op, address, value, dtype, order)
        return
    b.line(f"{b.name()} = atomicrmw {instruction} ptr {address}, {b.typed(value)} {order}, align {align}")


def add_half(b: Builder, address: str, value: Value, dtype: DType) -> None:
    """A sum of a half type by the instruction that NVIDIA cards have for two neighbours: the other one gets -0.0. That
    one may lie beside the buffer, in memory of whole words that nobody uses.

    before: the half at address 6 gets x        after: those at addresses 4 and 6 get -0.0 and x
    """
    number = b.emit(f"ptrtoint ptr {address} to i64", "i64", 1)
    odd = b.and_(number, 2)
    word = b.element(address, "i8", b.sub(b.const(0, "i64"), odd)).text
    place = b.convert("trunc", b.shl(odd, 3), "i32")
    own = b.shl(b.emit(f"zext {value.type} {value.text} to i32", "i32", 1), place)
    other = b.shl(b.const(_MINUS_ZERO, "i32"), b.xor(place, 16))
    target = b.emit(f"addrspacecast ptr {word} to ptr addrspace(1)", "i64", 1).text
    b.line(
        f'call void asm sideeffect "red.relaxed.gpu.global.add.noftz.{dtype}x2 [$0], $1;", "l,r,~{{memory}}"'
        f"(ptr addrspace(1) {target}, i32 {b.or_(own, other).text})"
    )


def add_neighbours(b: Builder, address: str, value: Value, dtype: DType) -> None:
    """Sums of 4 to 16 bytes of neighbours, at a multiple of as many, by the instruction that NVIDIA cards have for them
    from compute capability 9.0 and PTX 8.1 on. Each element is one of its own to other threads."""
    halves = dtype in ("f16", "bf16")
    words = value.lanes // 2 if halves else value.lanes
    element: DType = "i32" if halves else dtype
    if halves:
        value = b.emit(f"bitcast {value.type} {value.text} to {vector_type('i32', words)}", "i32", words)
    parts = (
        [value]
        if words == 1
        else [b.emit(f"extractelement {value.type} {value.text}, i64 {n}", element, 1) for n in range(words)]
    )
    names = [f"${n}" for n in range(1, words + 1)]
    given = names[0] if words == 1 else f"{{{', '.join(names)}}}"
    how = f"noftz{'' if words == 1 else f'.v{words}'}.{dtype}x2" if halves else f"v{words}.f32"
    kinds = ",".join(("r" if halves else "f") * words)
    target = b.emit(f"addrspacecast ptr {address} to ptr addrspace(1)", "i64", 1).text
    b.line(
        f'call void asm sideeffect "red.relaxed.gpu.global.add.{how} [$0], {given};", "l,{kinds},~{{memory}}"'
        f"(ptr addrspace(1) {target}, {', '.join(b.typed(each) for each in parts)})"
    )


def _instruction(b: Builder, op: CombineOp, dtype: DType) -> str | None:
    """What LLVM calls the instruction for it, if the target has one."""
    if dtype not in b.target.atomics or dtype in ("f16", "bf16") or op == "prod":
        return None
    if op == "sum":
        return "fadd" if is_float(dtype) else "add"
    if is_float(dtype):
        return None
    return f"u{op}" if is_unsigned(dtype) else op


def _try_until_done(b: Builder, op: CombineOp, address: str, value: Value, dtype: DType, order: str) -> None:
    """Where the value changes nothing the element is left alone."""
    word, align = _WORDS[BITS[dtype]], itemsize(dtype)
    first = b.emit(f"load atomic {word}, ptr {address} {order}, align {align}", word, 1, pure=False)
    before = b.block
    again, attempt, done = (b.new_label(hint) for hint in ("again", "attempt", "combined"))
    b.branch(again)
    b.start(again)
    seen = Value(b.name("seen"), word)
    write = b.reserve()
    with b.scope():
        both = emit_op(b, _OPS[op], (_as(b, seen, dtype), value), dtype)
        wanted = _as(b, both, word)
        b.branch_if(b.cmp("eq", wanted, seen), done, attempt)
        b.start(attempt)
        pair = b.name("pair")
        b.line(
            f"{pair} = cmpxchg ptr {address}, {word} {seen.text}, {word} {wanted.text} {order} monotonic, align {align}"
        )
        found = b.emit(f"extractvalue {{ {word}, i1 }} {pair}, 0", word, 1, pure=False)
        is_done = b.emit(f"extractvalue {{ {word}, i1 }} {pair}, 1", "bool", 1, pure=False)
        b.branch_if(is_done, done, again)
    write(f"{seen.text} = phi {word} [ {first.text}, %{before} ], [ {found.text}, %{attempt} ]")
    b.start(done)


def _as(b: Builder, value: Value, dtype: DType) -> Value:
    """The same bits as another dtype."""
    if dtype in ("f32", "f64") or value.dtype in ("f32", "f64"):
        return b.bitcast(value, dtype)
    return Value(value.text, dtype)
