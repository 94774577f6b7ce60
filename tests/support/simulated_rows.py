"""Kernels over the rows of a table of tensors, run by the simulated card: what csrc/device_rows.cpp launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from simulated import MODEL, Shape, SharedMemory, Simulated, for_this_cpu, jit, launch_of
from torch import Tensor

from lampwork import config
from lampwork.codegen.gpu.rows import TILE, WORDS, emit_rows
from lampwork.codegen.target import Target
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.nodes import Kernel
from lampwork.loops.schedule.grid import on_grid


class SimulatedRows:
    """Stands for a DeviceRows. launches: how many there were."""

    def __init__(self, kernel: Kernel, flag: str | None, target: Target = MODEL) -> None:
        self.kernel = kernel
        self.grid: Grid = on_grid(kernel)
        self.text = emit_rows(self.grid, target, "lw_kernel", flag)
        self.launches = 0
        shared = SharedMemory(0)
        with config.using(verify=True):
            code = jit().compile(for_this_cpu(self.text, shared), ["entry"])
        self.simulated = Simulated(Shape.of(self.grid), self.text, shared, code)

    def run(self, rows: Sequence[Sequence[Tensor]], sizes: Sequence[int], *, seed: int = 0) -> None:
        """The kernel over rows of tensors of this CPU, in the order of its parameters, the first whole."""
        head, each = len(sizes) + 1, len(self.kernel.params) + 2
        most = (WORDS - head) // each
        whole = [row for row in rows if row[0].numel()]
        for first in range(0, len(whole), most):
            self._launch(whole[first : first + most], sizes, seed)

    def _launch(self, rows: Sequence[Sequence[Tensor]], sizes: Sequence[int], seed: int) -> None:
        table = np.zeros(WORDS, np.int64)
        table[: len(sizes)] = sizes
        table[len(sizes)] = len(rows)
        tiles, place = 0, len(sizes) + 1
        for row in rows:
            tiles += -(-row[0].numel() // TILE)
            record = [tiles, row[0].numel(), *(tensor.data_ptr() for tensor in row)]
            table[place : place + len(record)] = record
            place += len(record)
        memory = {(tensor.data_ptr(), tensor.nbytes) for row in rows for tensor in row}
        launch = launch_of(
            Shape.of(self.grid), self.simulated.shared, [*sorted(memory), (table.ctypes.data, place * 8)]
        )
        parameters = (ctypes.c_void_p * 1)(table.ctypes.data)
        launch.entry = self.simulated.code.addresses["entry"]
        launch.parameters = ctypes.addressof(parameters)
        launch.blocks, launch.seed = tiles, seed
        self.launches += 1
        self.simulated.start(launch)


def bits(number: float) -> int:
    """As a kernel takes a float among its sizes."""
    return int(torch.tensor(number, dtype=torch.float64).view(torch.int64).item())
