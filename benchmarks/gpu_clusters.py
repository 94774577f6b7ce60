"""Long rows on a card: held by clusters of blocks, and read twice, by two kernels.

    python benchmarks/gpu_clusters.py [--variants] [--only NAME...] [--shapes 64x262144 ...] [--device cuda]

For each function, shape and dtype the microseconds of a call on the device and the part of `copy_`'s bandwidth: as on a
card without clusters, by the cluster that the model would choose and, with --variants, by the others that max-autotune
would measure. A `*` stands before what is taken by default, a `!` behind figures whose results are wrong. Some 40
seconds; --variants takes that for one shape.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from gpu_timing import Clock
from gpu_workloads import DTYPES, Function, layer_norm, rms_norm
from torch import Tensor
from torch.utils import _pytree as pytree

import lampwork
from lampwork.codegen.gpu import nvidia
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.nodes import Kernel
from lampwork.loops.schedule import clusters
from lampwork.loops.schedule import grid as grids
from lampwork.loops.schedule.clusters import cluster_grid, cluster_variants
from lampwork.testing.compare import difference, exact_result

SHAPES = ("64x262144", "16x262144", "1x262144", "200x100000", "64x65536")
SETS = 3  # of inputs, used in turn
NUMBERS = itertools.count()


def functions(rows: int, width: int) -> Iterator[Function]:
    def of(*others: int) -> Callable[[torch.dtype], tuple[Tensor, ...]]:
        return lambda dtype: (
            torch.randn(rows, width, dtype=dtype),
            *(torch.randn(n, dtype=dtype) for n in others),
        )

    def labelled(dtype: torch.dtype) -> tuple[Tensor, ...]:
        return torch.randn(rows, width, dtype=dtype), torch.randint(0, width, (rows,))

    yield Function("softmax", lambda x: x.softmax(-1), of())
    yield Function("log_softmax", lambda x: x.log_softmax(-1), of())
    yield Function("layer_norm", layer_norm, of(width, width))
    yield Function("rms_norm", rms_norm, of(width))
    yield Function("cross_entropy", F.cross_entropy, labelled)
    yield Function("mean and var", lambda x: (x.mean(-1), x.var(-1)), of())


@contextmanager
def without_clusters() -> Generator[None]:
    described = nvidia._described  # pyright: ignore[reportPrivateUsage]
    nvidia._described = lambda *given: replace(described(*given), cluster=1)  # pyright: ignore
    try:
        yield
    finally:
        nvidia._described = described  # pyright: ignore


@contextmanager
def by_grid(change: Callable[[Grid], Grid]) -> Generator[list[bool]]:
    """Clusters for all rows that they can hold; yields, for each, whether it is so by default."""
    pays, chosen = clusters.pays, list[bool]()

    def forced(kernel: Kernel) -> bool:
        chosen.append(pays(kernel))
        return True

    grids.cluster_grid = lambda kernel, rows: change(cluster_grid(kernel, rows))
    clusters.pays = forced
    try:
        yield chosen
    finally:
        grids.cluster_grid = cluster_grid
        clusters.pays = pays


class Measured:
    """One function of one shape and dtype."""

    def __init__(
        self, function: Function, dtype: torch.dtype, options: argparse.Namespace, copied: float
    ) -> None:
        self.function, self.copied, self.clock = function, copied, Clock(options.device)
        torch.manual_seed(0)
        with torch.device(options.device):
            self.sets = [function.make(dtype) for _ in range(SETS)]
        self.want, self.exact = function.fn(*self.sets[0]), exact_result(function.fn, self.sets[0])
        results = pytree.tree_leaves(self.want)
        self.bytes = sum(each.nbytes for each in (*self.sets[0], *results))

    def cell(self) -> str:
        """Compiled as things are now."""
        fn = self.function.fn
        try:
            # Equal graphs are compiled once for equal options: this one differs each time.
            with lampwork.config.using(tuning_seconds=1000.0 + next(NUMBERS)):
                call: Any = lampwork.compile(lambda *args: fn(*args))
                wrong = difference(call(*self.sets[0]), self.want, self.exact, strides=False)
                ms = self.clock.device_ms(call, self.sets)
        except Exception as error:  # noqa: BLE001  (what fails is a result)
            return f"{type(error).__name__}: {error}"[:60]
        return f"{ms * 1e3:7.1f} us {100 * self.bytes / ms / 1e6 / self.copied:3.0f} %{'!' if wrong else ''}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    clock = Clock(options.device)
    for name, dtype in DTYPES.items():
        elements = 1 << 24 if options.device == "cuda" else 1 << 14
        source = [(torch.randn(elements, device=options.device).to(dtype),) for _ in range(SETS)]
        target = torch.empty_like(source[0][0])
        copied = 2 * target.nbytes / clock.device_ms(lambda x, y=target: y.copy_(x), source) / 1e6
        print(f"copy_ of {name}: {copied:.0f} GB/s")
        for shape in options.shapes:
            rows, width = map(int, shape.split("x"))
            for function in functions(rows, width):
                if options.only and not function.name.startswith(tuple(options.only)):
                    continue
                one, made = Measured(function, dtype, options, copied), list[Grid]()

                def note(grid: Grid, made: list[Grid] = made) -> Grid:
                    made.append(grid)
                    return grid

                with torch.no_grad():
                    with without_clusters():
                        twice = one.cell()
                    with by_grid(note) as chosen:
                        held = one.cell()
                    held, twice = f"{' *'[any(chosen)]}{held}", f"{'* '[any(chosen)]}{twice}"
                    how = f"{made[0].cluster} x {made[0].block[0]}" if made else "no cluster"
                    print(
                        f"{function.name:14} {shape:12} {name:5} two kernels {twice}   {how:10} {held}",
                        flush=True,
                    )
                    for variant in cluster_variants(made[0]) if made and options.variants else ():
                        to = {"threads": variant.threads, "cluster": variant.cluster}
                        with by_grid(lambda grid, to=to: replace(grid, **to)):
                            print(f"{'':48} {variant.cluster} x {variant.block[0]}: {one.cell()}", flush=True)


if __name__ == "__main__":
    main()
