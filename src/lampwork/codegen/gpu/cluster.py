"""What the threads of a cluster of blocks do together (compute capability 9.0 and later).

A block's results go to the shared memory of all blocks of the cluster, where each has room for those of each, and a
barrier of the cluster later every block has them all at hand. Outside of these exchanges each thread has arrived at a
barrier that it has not waited for: the one after which all have begun, or have read what they were sent. So a block
writes to another's memory only after it has waited, and ends only then: nobody is left who reaches its memory.

    arrive;  ...  wait; send to all; arrive; wait; read; arrive;  ...  wait
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lampwork.codegen.gpu.writer import GridWriter
from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.reduce import Reduction, State
from lampwork.loops.ir.nodes import DType


class ClusterWriter(GridWriter):
    """Writes, of a kernel whose groups are clusters, what differs from groups that are blocks."""

    @property
    def _is_cluster(self) -> bool:
        return self.grid.cluster > 1

    # --- what cards differ in -----------------------------------------------------------------------------------------

    @abstractmethod
    def _register(self, name: str) -> Value:
        """A special register, as i64."""
        raise NotImplementedError

    @abstractmethod
    def _room(self, number: int, dtype: DType, warps: int, of: str = "slot") -> str:
        """Shared memory for a value of each warp, or of what `of` says."""
        raise NotImplementedError

    @abstractmethod
    def _put(self, room: str, value: Value, place: Value) -> None:
        """Stores a value to its place in a room."""
        raise NotImplementedError

    @abstractmethod
    def _from_rooms(
        self, reductions: Sequence[Reduction], states: Sequence[State], rooms: Sequence[str], count: int
    ) -> list[State]:
        """The states of which `count` lie in rooms, side by side, merged; `states`: of this thread, as they are."""
        raise NotImplementedError

    # --- clusters -----------------------------------------------------------------------------------------------------

    def _begin_cluster(self) -> None:
        self._arrive()

    def _end_cluster(self) -> None:
        self._wait()

    def _thread_of_cluster(self) -> Value:
        """The number of the thread in its cluster."""
        b, threads = self.b, self.grid.block[0]
        return b.add(b.mul(self._register("cluster.ctarank"), threads), self._register("tid.x"))

    def _wait_for_cluster(self) -> None:
        """All threads of the cluster wait for each other."""
        self._wait()
        self._arrive()
        self._wait()
        self._arrive()

    def _across_blocks(self, reductions: Sequence[Reduction], states: Sequence[State]) -> list[State]:
        """The states of all blocks merged, of which each thread of a block has that of the block."""
        b, blocks = self.b, self.grid.cluster
        values = [value for state in states for value in state]
        rooms = [self._room(number, value.dtype, blocks, "block") for number, value in enumerate(values)]
        thread, rank = self._register("tid.x"), self._register("cluster.ctarank")
        self._wait()
        # One thread for each block that the results go to.
        send, sent = b.new_label("send"), b.new_label("sent")
        b.branch_if(b.cmp("lt", thread, blocks), send, sent)
        b.start(send)
        with b.scope():
            to = b.convert("trunc", thread, "i32")
            for room, value in zip(rooms, values, strict=True):
                self._put(self._in_block(room, to), value, rank)
        b.branch(sent)
        b.start(sent)
        self._arrive()
        self._wait()
        found = self._from_rooms(reductions, states, rooms, blocks)
        self._arrive()
        return found

    def _in_block(self, address: str, block: Value) -> str:
        """The place in a block's shared memory that is at this address in the own."""
        self.module.declare("mapa", "declare ptr @llvm.nvvm.mapa(ptr, i32)")
        return self.b.emit(f"call ptr @llvm.nvvm.mapa(ptr {address}, i32 {block.text})", "i64", 1).text

    def _arrive(self) -> None:
        """What the thread has written so far, those who wait behind this will see."""
        self._call("arrive")

    def _wait(self) -> None:
        self._call("wait")

    def _call(self, what: str) -> None:
        name = f"llvm.nvvm.barrier.cluster.{what}.aligned"
        self.module.declare(name, f"declare void @{name}() #8")
        self.b.line(f"call void @{name}()")
