"""The frame of a product's kernel: its parameters, the place of a block, and what becomes of sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.device import ATTRIBUTES, LAYOUT, TRIPLE, DeviceEmitter
from lampwork.codegen.gpu.mma.instructions import special
from lampwork.codegen.gpu.mma.operands import Operand, is_multiple
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import ACCUMULATOR
from lampwork.codegen.llvm.env import Env, VectorAxis
from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.llvm.templates.ints import Int, branch, div, evaluate, mod, value_of
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import definition_exprs, indices, loads
from lampwork.loops.ir.grid import ALIGNED
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Buffer, DType, Gemm


def params_of(gemm: Gemm) -> tuple[Buffer, ...]:
    """The buffers of a product, each once, the one that is written last."""
    found = {load.buffer.name: load.buffer for expr in definition_exprs(gemm) for load in loads(expr)}
    found.pop(gemm.out.name, None)
    return (*found.values(), gemm.out)


def sizes_of(gemm: Gemm) -> tuple[str, ...]:
    """The symbols that a product's kernel is called with."""
    axes = (*gemm.batch, gemm.m, gemm.n, gemm.k)
    used = [index for expr in definition_exprs(gemm) for index in indices(expr)]
    used += [*(axis.extent for axis in axes), *gemm.index]
    for buffer in params_of(gemm):
        used += [*buffer.shape, *buffer.strides, elements_of(buffer)]
    return tuple(sorted({name for index in used for name in index.symbols()}))


class ProductWriter:
    """One kernel being written, twice: for operands that can be read in widths of theirs, and for others.

    threads, shared: of a block; bytes of shared memory.
    """

    def __init__(
        self, gemm: Gemm, operands: tuple[Operand, Operand], target: GpuTarget, threads: int, shared: int
    ) -> None:
        self.module, self.gemm, self.target = Module(), gemm, target
        self.threads, self.shared_bytes = threads, shared
        self.flat = flattened(gemm)
        self.dtype: DType = gemm.a.buffer.dtype
        self.left, self.right = operands
        self.b = Builder(self.module, target)
        self.emitter = DeviceEmitter(self.b, written=frozenset((gemm.out.name,)), error_flag="")
        self.bases: dict[str, str] = {}
        self.env: dict[str, Int] = {}

    def write(self, name: str, blocks: Index) -> ProductCode:
        """The kernel, of so many blocks."""
        b, gemm = self.b, self.gemm
        params, sizes = params_of(gemm), sizes_of(gemm)
        self.module.declare("shared", f"@shared = external addrspace(3) global [0 x i8], align {ALIGNED}")
        self.bases = {buffer.name: f"%b{number}" for number, buffer in enumerate(params)}
        self.env = {size: Value(f"%s{number}", "i64") for number, size in enumerate(sizes)}
        self.prepare()
        branch(b, self._is_aligned(), lambda: self._body(True), lambda: self._body(False))
        b.line("ret void")
        signature = ", ".join(
            [
                *(f"ptr %b{number}" for number in range(len(params))),
                *(f"i64 %s{number}" for number in range(len(sizes))),
                "i64 %extent",
            ]
        )
        head = f'define ptx_kernel void @{name}({signature}) "nvvm.maxntid"="{self.threads}"'
        self.module.functions.append(f"{head} {{\n{b.body()}\n}}\n")
        text = (
            f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n{self.module.text}\n{ATTRIBUTES}\n'
        )
        symbols = tuple(map(Index.sym, sizes))
        return ProductCode(text, name, self.threads, self.shared_bytes, params, symbols, blocks)

    def _body(self, wide: bool) -> None:
        self.emitter.aligned = wide
        self.body(wide)

    # --- what kernels differ in ---------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """What both bodies need."""
        raise NotImplementedError

    @abstractmethod
    def body(self, wide: bool) -> None:
        """All of the rest. wide: the operands can be read in widths of theirs."""
        raise NotImplementedError

    # --- blocks -------------------------------------------------------------------------------------------------------

    def block_of_batch(self, each: Int) -> Int:
        """The number of this block in its element of the batch, which has `each`; names the places in the batch."""
        b, gemm, env = self.b, self.gemm, self.env
        block: Int = b.convert("zext", special(b, "ctaid.x"), "i64")
        if not gemm.batch:
            return block
        rest, block = self.divided(block, each)
        for axis in reversed(gemm.batch[1:]):
            rest, env[axis.name] = self.divided(rest, evaluate(b, axis.extent, env))
        env[gemm.batch[0].name] = rest
        return block

    def divided(self, number: Int, by: Int) -> tuple[Int, Int]:
        """Quotient and remainder of numbers of blocks, which have 32 bits."""
        b = self.b
        if isinstance(number, int) or isinstance(by, int):
            return div(b, number, by), mod(b, number, by)
        left, right = (b.convert("trunc", each, "i32") for each in (number, by))
        both = [b.emit(f"{opcode} i32 {left.text}, {right.text}", "i32", 1) for opcode in ("udiv", "urem")]
        quotient, remainder = (b.convert("zext", each, "i64") for each in both)
        return quotient, remainder

    def _is_aligned(self) -> Value | bool:
        """Whether the operands can be copied in widths of theirs, and all buffers start at multiples of 16 bytes."""
        b = self.b
        together: Value | None = None
        for operand in (self.left, self.right):
            elements = operand.neighbours
            if operand.width == 0:
                return False
            for index in operand.multiples:
                if is_multiple(index, elements) is None:
                    rest = b.and_(value_of(b, evaluate(b, index, self.env)), elements - 1)
                    together = rest if together is None else b.or_(together, rest)
        for base in self.bases.values():
            number = b.and_(b.emit(f"ptrtoint ptr {base} to i64", "i64", 1), ALIGNED - 1)
            together = number if together is None else b.or_(together, number)
        assert together is not None, "a product has buffers"
        return b.cmp("eq", together, 0)

    # --- results ------------------------------------------------------------------------------------------------------

    def store_value(self, acc: Value, m: Int, n: Int) -> None:
        """`value` of neighbours, to where it belongs."""
        self.store_values([(acc, m, n)])

    def store_values(self, places: Sequence[tuple[Value, Int, Int]]) -> None:
        """`value` of neighbours of several rows, all that it loads before the first one is stored."""
        b, gemm = self.b, self.flat
        extents = {each.name: each.extent for each in (*gemm.batch, gemm.m, gemm.n)}
        found: list[tuple[Value, Env]] = []
        with b.scope():
            for acc, m, n in places:
                named = {**self.env, gemm.m.name: m, gemm.n.name: n}
                values = {name: value_of(b, each) for name, each in named.items()}
                axis = VectorAxis(gemm.n.name, acc.lanes, None, acc.lanes) if acc.lanes > 1 else None
                env = Env(values, values, {ACCUMULATOR: acc}, self.bases, axis, extents)
                found.append((self.emitter.emit_wide(gemm.value, env), env))
            for value, env in found:
                self.emitter.emit_store(gemm.out, gemm.index, value, env)
