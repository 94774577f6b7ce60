"""What this machine can do at most in products of int8 and bfloat16: chains of dot products, without memory."""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.templates.code import function
from lampwork.codegen.target import Target


def bf16_loop(target: Target, chains: int) -> tuple[str, int]:
    """As `int8_loop`, of products of bfloat16."""
    dot, lanes = target.dot("bf16"), target.sum_lanes("bf16")
    if dot is None:
        return "", 0
    b = Builder(Module(), target)
    pointer = b.emit("load ptr, ptr %buffers, align 8", "i64", 1, pure=False).text
    x = b.emit(f"load <{lanes} x i32>, ptr {pointer}, align 4", "i32", lanes, pure=False)
    zero = Value("zeroinitializer", "f32", lanes)
    with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1, [zero] * chains) as scope:
        scope.next = [dot.emit(b, total, x, x) for total in scope.carried]
    total = scope.results[0]
    for other in scope.results[1:]:
        total = b.add(total, other)
    b.line(f"store {total.type} {total.text}, ptr {pointer}, align 4")
    return function(b, "dot"), 2 * chains * lanes * dot.steps


def int8_loop(target: Target, chains: int) -> tuple[str, int]:
    """LLVM IR of `dot` (of the ABI of `Kernel`, reading 64 bytes at its first buffer), and the operations of a turn of
    its loop; ("", 0) for a target without products of int8."""
    dot, lanes = target.dot("i8"), target.sum_lanes("i8")
    if dot is None:
        return "", 0
    b = Builder(Module(), target)
    pointer = b.emit("load ptr, ptr %buffers, align 8", "i64", 1, pure=False).text
    x = b.emit(f"load <{lanes} x i32>, ptr {pointer}, align 4", "i32", lanes, pure=False)
    zero = Value("zeroinitializer", "i32", lanes)
    with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1, [zero] * chains) as scope:
        # The sums are factors too, so that no product is the same in each turn.
        scope.next = [dot.emit(b, total, total, x) for total in scope.carried]
    total = scope.results[0]
    for other in scope.results[1:]:
        total = b.xor(total, other)
    b.line(f"store {total.type} {total.text}, ptr {pointer}, align 4")
    return function(b, "dot"), 2 * chains * lanes * dot.steps
