"""The products of warpgroups (compute capability 9.0): `wgmma`, which multiplies tiles from shared memory while its
threads go on.

A warpgroup is four warps of 32 lanes that follow each other. Its sums are 64 x n; lane l of warp w has those of row
16 * w + l // 4 in columns 8 * j + 2 * (l % 4) and the next, and those of the eighth row below: four for each j.

An operand lies in shared memory in lines of 128 bytes, in groups of eight lines that start at multiples of 1024:
chunk c (of 16 bytes) of line r is at  128 * r + 16 * (c ^ (r % 8)). Lines lie along k; or across it, of 64 places, and
places 64 to 127 lie in lines of their own, so far behind as the descriptor says.

The instructions have no intrinsics in LLVM, so they are assembler, whose operands are the sums. Those of a product are
no numbers before `wait_for_sums` has given them back; LLVM sees that nothing else can read them.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.loops.ir.nodes import DType

GROUP_ROWS = 64  # of the sums of a warpgroup
GROUP_THREADS = 128
LINE = 128  # bytes
EIGHT_LINES = 8 * LINE
DEPTH = 16  # elements of k of one instruction
_SWIZZLED = 1 << 62  # by 128 bytes
_ADDRESS = (1 << 18) - 1
_FENCE = "wgmma.fence.sync.aligned;"


def descriptor(b: Builder, address: Value, panel_bytes: int | None) -> Value:
    """What the instruction knows of an operand at an address in shared memory. panel_bytes: from 64 places to the next
    ones; None: lines lie along k."""
    place = b.lshr(b.and_(address, _ADDRESS), 4)
    panel = 1 if panel_bytes is None else panel_bytes >> 4
    fixed = _SWIZZLED | EIGHT_LINES >> 4 << 32 | panel << 16
    return b.or_(b.convert("zext", place, "i64"), fixed)


def multiply_tiles(
    b: Builder,
    dtype: DType,
    sums: Sequence[Value],
    left: tuple[Value, bool],
    right: tuple[Value, bool],
    steps: int,
) -> list[Value]:
    """Starts to add products along so many steps of k to the sums of a warpgroup, as a group of its own.

    left, right: descriptors, and whether lines lie along k.
    """
    count = len(sums)
    registers = ", ".join(f"${number}" for number in range(count))
    shape = f"m{GROUP_ROWS}n{2 * count}k{DEPTH}"
    lines = [_FENCE]
    turned = [int(not along_k) for _, along_k in (left, right)]
    ahead = [2 * DEPTH * (1 if along_k else LINE // 2) >> 4 for _, along_k in (left, right)]
    for step in range(steps):
        a, c = (f"${2 * count + number}" if step == 0 else f"d{number}" for number in range(2))
        if step:
            lines += [
                f"add.s64 d{number}, ${2 * count + number}, {step * distance};"
                for number, distance in enumerate(ahead)
            ]
        lines.append(
            f"wgmma.mma_async.sync.aligned.{shape}.f32.{dtype}.{dtype} "
            f"{{{registers}}}, {a}, {c}, 1, 1, 1, {turned[0]}, {turned[1]};"
        )
    lines.append("wgmma.commit_group.sync.aligned;")
    text = " ".join(lines)
    if steps > 1:
        text = f"{{ .reg .b64 d0; .reg .b64 d1; {text} }}"
    return _on_sums(b, text, sums, [left[0], right[0]])


def wait_for_sums(b: Builder, sums: Sequence[Value]) -> list[Value]:
    """Waits for all products; gives their sums."""
    return _on_sums(b, "wgmma.wait_group.sync.aligned 0;", sums, [])


def wait_for_products_but(b: Builder, groups: int) -> None:
    """Waits for the products of the warpgroup, but for so many last ones: nobody reads their operands any more."""
    b.line(f'call void asm sideeffect "wgmma.wait_group.sync.aligned {groups};", "~{{memory}}"() #8')


def show_to_products(b: Builder) -> None:
    """What this thread has written to shared memory is there for products that start after the next barrier."""
    b.line('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"() #8')


def _on_sums(b: Builder, text: str, sums: Sequence[Value], others: Sequence[Value]) -> list[Value]:
    """Assembler that changes sums where they are."""
    count = len(sums)
    type_ = "{" + ", ".join(["float"] * count) + "}"
    constraints = ",".join(
        ["=f"] * count + list(map(str, range(count))) + ["l"] * len(others) + ["~{memory}"]
    )
    given = ", ".join([*(f"float {each.text}" for each in sums), *(f"i64 {each.text}" for each in others)])
    whole = b.emit(f'call {type_} asm sideeffect "{text}", "{constraints}"({given}) #8', "f32", 1, pure=False)
    return [b.emit(f"extractvalue {type_} {whole.text}, {part}", "f32", 1) for part in range(count)]
