"""One kernel over the rows of a table of tensors on a card: how an optimizer updates all of its parameters at once.

A block takes `TILE` neighbouring elements of one row. The one parameter, of 4 KB, holds the kernel's sizes, the number
of rows, and of each row the block that the next one begins with, its length, and the addresses of its columns. Rows
that do not fit go to another launch (csrc/device_rows.cpp).

    block b:    row = the first whose end is above b
                for i in range(its place in the row, + TILE), shared by the threads:
                    c0[i] = c0[i] + c1[i] * factor
"""

from __future__ import annotations

from lampwork.codegen.gpu.device import ATTRIBUTES, LAYOUT, TRIPLE, DeviceWriter, Stride
from lampwork.codegen.llvm.builder import Module, Value
from lampwork.codegen.llvm.env import Env
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import Grid, parallel_loop

TILE = 4096
WORDS = 512  # of a launch's parameter: csrc/device_rows.h
TABLE = f"ptr byval([{WORDS} x i64]) align 8 %table"


class RowsWriter(DeviceWriter):
    """A flat kernel over rows. The extent of its parallel loop is a size of its own: the length of the row.

    flag: a parameter, of one float32; nothing is done if it is not 0.
    """

    def __init__(self, module: Module, grid: Grid, target: Target, flag: str | None) -> None:
        super().__init__(module, grid, target)
        loop = parallel_loop(grid.kernel)
        if not grid.is_flat or loop is None or grid.kernel.scratch:
            raise CodegenError("rows are updated by elementwise operations only")
        self._outer = loop
        self._flag = flag

    def _signature(self, pointer: str = "ptr") -> str:
        return TABLE

    def write(self, name: str) -> None:
        kernel, b = self.kernel, self.b
        head = len(kernel.sizes) + 1
        sizes = {size: self._word(b.const(place, "i64")) for place, size in enumerate(kernel.sizes)}
        self._start, row = self._row(head)
        length = self._word(b.add(row, 1))
        bases: dict[str, str] = {}
        for place, buffer in enumerate(kernel.params):
            address = self._word(b.add(row, 2 + place)).text
            memory = b.emit(f"inttoptr i64 {address} to ptr addrspace(1)", "i64", 1).text
            bases[buffer.name] = b.emit(f"addrspacecast ptr addrspace(1) {memory} to ptr", "i64", 1).text
        if self._flag is not None:
            self._leave_if(bases[self._flag])
        self._stop = b.intrinsic("smin", b.add(self._start, TILE), length)
        (extent,) = self._outer.axis.extent.symbols()
        env = Env(sizes={**sizes, extent: length}, bases=bases)
        self.hoist(self._outer.axis.name, self._outer.axis.extent, self._outer.body, [], env)
        if self.has_vectors():
            moving = [buffer.name for buffer in kernel.params if buffer.shape[0].as_int() is None]
            self._for_both([bases[each] for each in moving], env)
        else:
            self._wide = False
            self._blocks(env)
        b.line("ret void")
        self.module.functions.append(f"{self._head(name)} {{\n{b.body()}\n}}\n")

    def _blocks(self, env: Env) -> None:
        """The elements of the block's tile that are the thread's."""
        b, grid = self.b, self.grid
        thread = self._register("tid.x")
        lanes = grid.lanes if self._wide else 1
        whole = self._multiple(self._stop, lanes)
        start = b.add(self._start, b.mul(thread, lanes))
        with Stride(b, start, b.const(grid.groups * lanes, "i64"), whole) as index:
            self.iteration(self._outer, index, lanes, env)
        if lanes > 1:
            with Stride(b, b.add(whole, thread), b.const(grid.groups, "i64"), self._stop) as index:
                self.iteration(self._outer, index, 1, env)

    def _row(self, head: int) -> tuple[Value, Value]:
        """Where the block's tile begins in its row, and the place of that row's record in the table."""
        b, each = self.b, len(self.kernel.params) + 2
        block = self._register("ctaid.x")
        last = b.sub(self._word(b.const(head - 1, "i64")), 1)
        before = b.block
        search, found = b.new_label("search"), b.new_label("found")
        low, high = Value(b.name("low"), "i64"), Value(b.name("high"), "i64")
        b.branch(search)
        b.start(search)
        write_low, write_high = b.reserve(), b.reserve()
        with b.scope():
            middle = b.lshr(b.add(low, high), 1)
            end = self._word(b.add(b.mul(middle, each), head))
            is_after = b.cmp("le", end, block)
            lower = b.select(is_after, b.add(middle, 1), low)
            upper = b.select(is_after, high, middle)
            again = b.cmp("lt", lower, upper)
            latch = b.block
            b.branch_if(again, search, found)
        write_low(f"{low.text} = phi i64 [ 0, %{before} ], [ {lower.text}, %{latch} ]")
        write_high(f"{high.text} = phi i64 [ {last.text}, %{before} ], [ {upper.text}, %{latch} ]")
        b.start(found)
        row = b.add(b.mul(lower, each), head)
        return self._place_in(row, lower, block, each), row

    def _place_in(self, row: Value, number: Value, block: Value, each: int) -> Value:
        """The first element of the block's tile: the row begins where the one before it ends."""
        b = self.b
        earlier = b.select(b.cmp("eq", number, 0), row, b.sub(row, each))
        begin = b.select(b.cmp("eq", number, 0), 0, self._word(earlier))
        return b.mul(b.sub(block, begin), TILE)

    def _leave_if(self, flag: str) -> None:
        b = self.b
        leave, stay = b.new_label("leave"), b.new_label("stay")
        value = b.emit(f"load float, ptr {flag}, align 4", "f32", 1, pure=False)
        b.branch_if(b.emit(f"fcmp une float {value.text}, 0.0", "bool", 1), leave, stay)
        b.start(leave)
        b.line("ret void")
        b.start(stay)

    def _word(self, place: Value) -> Value:
        """A word of the table."""
        address = self.b.element("%table", "i64", place)
        return self.b.emit(f"load i64, ptr {address.text}, align 8", "i64", 1)


def emit_rows(grid: Grid, target: Target, name: str, flag: str | None = None) -> str:
    """The LLVM IR of a module with one kernel `name` over rows.

    Raises CodegenError for loop code that there is no rule for.
    """
    module = Module()
    RowsWriter(module, grid, target, flag).write(name)
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n{module.text}\n{ATTRIBUTES}\n'
