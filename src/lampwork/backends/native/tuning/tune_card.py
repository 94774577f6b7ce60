"""`tune_on_card`: for each distinct product of a graph on a card where it is computed fastest, and for each distinct
kernel on what grid.

    before:  gelu(linear(x, w, b)): a call of ATen, and a kernel for gelu
    after:   one kernel of a source of products, "triton 128x128x64 stages 4 warps 8", if it took less time than both

A product is measured with what is computed in its registers where it has a kernel of its own, and the model's choice
is the call of ATen with a generated kernel behind it. Kernels are measured as the whole graph has them, products
chosen. A candidate whose results are not those of the model's choice is out of the race, as is one without code.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from lampwork import logs, pristine
from lampwork.backends.native.memory_plan import Devices, Result, plan
from lampwork.backends.native.tasks import KernelTask
from lampwork.backends.native.tuning.card import card_parts
from lampwork.backends.native.tuning.product import (
    Product,
    chain_of,
    filled,
    is_product,
    product_of,
)
from lampwork.backends.native.tuning.race import Contestant, Race, Tuning, known
from lampwork.backends.native.tuning.stopwatch import CudaStopwatch, Stopwatch, measure_on
from lampwork.backends.native.tuning.tune import LEAST_GAIN, Compile
from lampwork.backends.native.tuning.winner import Winner, tuning_key
from lampwork.cache import Key
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.grids import grid_key
from lampwork.codegen.gpu.products import check_product
from lampwork.codegen.gpu.sources import product_variants, source_of
from lampwork.config import Config
from lampwork.errors import BackendError, CodegenError
from lampwork.graph.devices import CPU
from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.expr import indices, loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import inner_body, iteration_work, parallel_extent, statements, stmt_exprs
from lampwork.loops.ir.nodes import Buffer, Const, Gemm, Kernel, Load, Node, Op, Stmt, Store, WhenLast
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.symbols import evaluate
from lampwork.loops.schedule.grid import grid_variants
from lampwork.lower.dtypes import TORCH_DTYPES
from lampwork.lower.lowering import lower_graph
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.program import Program

FOLLOWING = 8  # nodes behind a product that are looked at
THREADS = 8  # that compile candidates
LEAST_BYTES = 1 << 18  # that a kernel touches, to be measured: others take what a launch takes
MOST_KERNELS = 48  # of a graph
_FLOATS = ("f64", "f32", "f16", "bf16")

_TOLERANCES: Mapping[torch.dtype, float] = {torch.float64: 1e-9, torch.float32: 1e-4}
_FEW_DIGITS: Mapping[torch.dtype, float] = {torch.float16: 1e-2, torch.float32: 1e-2}
"""Of a result, relative to its largest element; others 4e-2. TF32 has float16's digits."""


@record
class Made:
    """A graph compiled with what was found so far: its kernels, and the values of symbols at hand."""

    kernels: Sequence[Kernel]
    hints: Mapping[str, int]


def tune_on_card(
    graph: fx.Graph,
    target: GpuTarget,
    config: Config,
    compile_alone: Compile,
    compile_whole: Callable[[Tuning], Made],
    watch: Stopwatch | None = None,
) -> Tuning:
    """Measure the products and kernels of a graph that are not known yet, for at most `config.tuning_seconds`.

    Args:
        compile_whole: compiles the graph with the winners so far, for its kernels.
        watch: the card's clock.
    """
    tuning = Tuning()
    if _is_capturing(target):
        return tuning
    machine = card_parts(target)
    with known.lock:
        race = Race(config, _check)
        watch = watch or CudaStopwatch(target.device or 0)
        products = _products(graph, target, machine)
        alone = _Products(target, compile_alone, watch)
        for _, verdict in race.winners(products, _within_memory(alone.winner)):
            tuning.verdicts.append(verdict)
            if verdict.winner is not None and verdict.winner.variant:
                tuning.variants.update(dict.fromkeys(verdict.nodes, verdict.winner.variant))
        try:
            made = compile_whole(tuning)
        except BackendError as error:
            logs.emit("tuning", f"the kernels of the graph are not measured: {error}")
            return tuning
        kernels = _kernels(made, machine)
        loops = _Kernels(target, watch, made.hints)
        for key, verdict in race.winners(kernels, _within_memory(loops.winner)):
            tuning.verdicts.append(verdict)
            if verdict.winner is not None and verdict.winner.variant:
                tuning.grids[key.parts["kernel"]] = verdict.winner.variant
    return tuning


def _within_memory(winner: Callable[[Any], Winner | str]) -> Callable[[Any], Winner | str]:
    """What fills the card's memory is not measured."""

    def run(what: Any) -> Winner | str:
        try:
            return winner(what)
        except torch.OutOfMemoryError:
            return "as there is no memory for it twice"

    return run


def _is_capturing(target: GpuTarget) -> bool:
    return target.device is not None and torch.cuda.is_current_stream_capturing()


def _check(variant: str) -> None:
    if variant and not variant.startswith("threads "):
        source_of(variant)


# --- products ---------------------------------------------------------------------------------------------------------


def _products(graph: fx.Graph, target: GpuTarget, machine: Mapping[str, str]) -> dict[Key, Contestant]:
    found: dict[Key, Contestant] = {}
    for node in graph.nodes:
        product = product_with_epilogue(node, target)
        if product is not None:
            key = tuning_key(machine, product=product.key)
            before = found[key].nodes if key in found else ()
            found[key] = Contestant(product.title, product, (*before, node.name))
    return found


def product_with_epilogue(node: fx.Node, target: GpuTarget) -> Product | None:
    """A product with what would be folded into its kernel; None if no kernel is made of it."""
    product = product_of(node) if is_product(node) else None
    if product is None or gemm_of(product, target) is None:
        return None
    nodes = [node]
    for _ in range(FOLLOWING):
        if len(nodes[-1].users) != 1:
            break
        nodes.append(next(iter(nodes[-1].users)))
        chain = chain_of(nodes)
        if chain is None:
            break
        if gemm_of(chain, target) is not None:
            product = chain
    return product


def gemm_of(product: Product, target: GpuTarget) -> Gemm | None:
    """The Gemm that makes the result of a product's graph, everything folded in; None if its result is made otherwise.
    Copies of operands may come before it."""
    try:
        lowered = lower_graph(product.graph, variants={"product": "any"}, templates=False)
        (output,) = lowered.outputs
        groups, _ = fuse(lowered.definitions, frozenset({output.buffer.name}), target)
    except BackendError:
        return None
    last = groups[-1].definitions[0] if groups else None
    if not isinstance(last, Gemm) or output.view is not None or last.out.name != output.buffer.name:
        return None
    try:
        check_product(last)
    except CodegenError:
        return None
    return last


@record
class _Products:
    """Measures one product at a time."""

    target: GpuTarget
    compile: Compile
    watch: Stopwatch

    def winner(self, product: Product) -> Winner | str:
        """The winner; or why there is none."""
        gemm = gemm_of(product, self.target)
        names = [] if gemm is None else product_variants(gemm, self.target, product.hints)
        if not names:
            return "as no source has a kernel for it"
        inputs, bound = product.tensors()

        def compiled(name: str) -> Executable | None:
            program = self.compile(product.graph, {"product": name} if name else {}).program
            return None if program.n_scalars else Executable(program, tuple(bound))

        made = _candidates(product.title, ["", *names], compiled)
        return _winner(product.title, made, inputs, self.watch, self.target)


def _candidates(
    title: str, names: Sequence[str], compiled: Callable[[str], Executable | None]
) -> dict[str, Executable]:
    """What has code, by name: compiled side by side."""

    def attempt(name: str) -> Executable | BackendError | None:
        try:
            return compiled(name)
        except BackendError as error:
            return error

    with ThreadPoolExecutor(THREADS, "lampwork-tuning") as pool:
        # Each thread has the options in force here.
        jobs = [pool.submit(contextvars.copy_context().run, attempt, name) for name in names]
    made: dict[str, Executable] = {}
    for name, job in zip(names, jobs, strict=True):
        found = job.result()
        if isinstance(found, Executable):
            made[name] = found
        elif found is not None:
            _left_out(title, name, found)
    return made


def _winner(
    title: str,
    made: Mapping[str, Executable],
    inputs: Sequence[Tensor],
    watch: Stopwatch,
    target: GpuTarget,
) -> Winner | str:
    """The fastest of those that give what "" gives, which is the model's choice; or why there is none."""
    if "" not in made:
        return "which did not compile alone"
    with pristine.no_grad():
        runs: dict[str, Callable[[], object]] = {}
        want = made[""](inputs)
        for name, run in made.items():
            try:
                apart = "" if not name else _difference(run(inputs), want, tf32=target.tf32)
            except BackendError as error:
                apart = str(error)
            if apart:
                _left_out(title, name, apart)
            else:
                runs[name] = _call(run, inputs)
        taken = measure_on(watch, runs, kept="")
    best = min(taken, key=lambda name: taken[name] * (LEAST_GAIN if name else 1.0))
    return Winner(best, taken[best], taken[""])


def _difference(got: Sequence[Tensor], want: Sequence[Tensor], *, tf32: bool) -> str:
    """How results differ more than by rounding; "": they do not."""
    tolerances = {**_FEW_DIGITS, **({} if tf32 else _TOLERANCES)}
    for one, other in zip(got, want, strict=True):
        if not other.dtype.is_floating_point:
            if not pristine.equal(one, other):
                return "other results"
            continue
        a, b = one.double(), other.double()
        odd = ~pristine.isfinite(b)
        if not pristine.equal(odd, ~pristine.isfinite(a)):
            return "other results that are no numbers"
        a, b = a.masked_fill(odd, 0), b.masked_fill(odd, 0)
        if b.numel() == 0:
            continue
        apart, largest = float((a - b).abs().max()), float(b.abs().max())
        if not apart <= tolerances.get(other.dtype, 4e-2) * max(largest, 1e-30):
            return f"results that are {apart:.2g} apart, of at most {largest:.2g}"
    return ""


def _call(run: Executable, inputs: Sequence[Tensor]) -> Callable[[], object]:
    return lambda: run(inputs)


def _left_out(title: str, name: str, reason: object) -> None:
    logs.emit("tuning", f"{title}: the variant {name or 'of the model'} is left out: {reason}")


# --- kernels ----------------------------------------------------------------------------------------------------------


def _kernels(made: Made, machine: Mapping[str, str]) -> dict[Key, Contestant]:
    """The kernels that are worth it, those that touch most first."""
    found: dict[Key, tuple[int, Contestant]] = {}
    for kernel in made.kernels:
        touched = _bytes(kernel, made.hints)
        if touched is None or touched < LEAST_BYTES or not _takes_zeros(kernel):
            continue
        if not grid_variants(kernel, made.hints):
            continue
        key = tuning_key(machine, kernel=grid_key(kernel, made.hints))
        before = found[key][1].nodes if key in found else ()
        title = f"kernel {kernel.origin or kernel.name} of {touched / 1e6:.1f} MB"
        found[key] = (touched, Contestant(title, kernel, (*before, kernel.name)))
    order = sorted(found.items(), key=lambda item: -item[1][0])
    return {key: contestant for key, (_, contestant) in order[:MOST_KERNELS]}


def _bytes(kernel: Kernel, hints: Mapping[str, int]) -> int | None:
    """Of a kernel's buffers; None if it cannot be run alone: a buffer's size is not known, or it changes what it
    reads."""
    reads, writes = reads_and_writes(kernel)
    if reads & writes:
        return None
    total = 0
    for buffer in kernel.params:
        elements = _elements(buffer, hints)
        if elements is None:
            return None
        total += elements * TORCH_DTYPES[buffer.dtype].itemsize
    return total


def _takes_zeros(kernel: Kernel) -> bool:
    """Whether a kernel's buffers of integers may hold zeros alone: every index from data is 0 then. Others might be out
    of range, which is an error that a device does not recover from."""
    reads, writes = reads_and_writes(kernel)
    places = [place for index in indices(*kernel.body) for place in index.indirects()]
    return all(_of_zeros(place.value, reads - writes) == 0 for place in places)


def _of_zeros(value: Any, zeros: frozenset[str]) -> int | None:
    """An expression's value where these buffers hold zeros; None if it depends on more."""
    if isinstance(value, Const):
        return int(value.value)
    if isinstance(value, Load):
        is_zero = value.buffer.name in zeros and value.dtype not in (*_FLOATS, "bool")
        return 0 if is_zero and value.other == 0 else None
    if not isinstance(value, Op) or value.dtype in _FLOATS:
        return None
    args = [_of_zeros(arg, zeros) for arg in value.args]
    numbers = [np.asarray(number) for number in args if number is not None]
    return int(OPS[value.name].reference(*numbers)) if len(numbers) == len(args) else None


def reads_and_writes(kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the buffers that a kernel reads, and of those that it writes. What is only passed to who comes last
    is written."""
    own = {buffer.name for buffer in kernel.params}
    stores = {stmt.buffer.name for stmt in statements(kernel.body) if isinstance(stmt, Store)}
    before: list[Node] = []
    for stmt in _before_the_last(kernel.body):
        before += [stmt] if isinstance(stmt, Store) else stmt_exprs(stmt)
    passed = stores.difference(load.buffer.name for load in loads(*before))
    reads = {load.buffer.name for load in loads(*kernel.body)} - passed
    return frozenset(reads & own), frozenset(stores & own)


def _before_the_last(body: Iterable[Stmt]) -> Iterator[Stmt]:
    for stmt in body:
        if not isinstance(stmt, WhenLast):
            yield stmt
            yield from _before_the_last(inner_body(stmt))


def _elements(buffer: Buffer, hints: Mapping[str, int]) -> int | None:
    try:
        return evaluate(buffer.shape[0], hints)
    except KeyError:
        return None


@record
class _Kernels:
    """Measures one kernel at a time."""

    target: GpuTarget
    watch: Stopwatch
    hints: Mapping[str, int]

    @property
    def device(self) -> torch.device:
        index = self.target.device
        return CPU if index is None else torch.device("cuda", index)

    def winner(self, kernel: Kernel) -> Winner | str:
        """The winner; or why there is none."""
        generator = self.target.generate(self.target)

        def compiled(name: str) -> Executable:
            varied = replace(kernel, variant=name)
            functions, _ = generator.compile([varied], (), self.hints)
            return Executable(self._program(varied, functions[kernel.name]), ())

        title = kernel.origin or kernel.name
        made = _candidates(title, ["", *grid_variants(kernel, self.hints)], compiled)
        reads, _ = reads_and_writes(kernel)
        inputs = [self._tensor(buffer) for buffer in kernel.params if buffer.name in reads]
        return _winner(title, made, inputs, self.watch, self.target)

    def _tensor(self, buffer: Buffer) -> Tensor:
        elements, dtype = _elements(buffer, self.hints) or 0, TORCH_DTYPES[buffer.dtype]
        return filled(pristine.empty(elements, dtype=dtype, device=self.device))

    def _program(self, kernel: Kernel, function: Any) -> Program:
        """One call of a kernel: what it reads in, what it writes out."""
        _, writes = reads_and_writes(kernel)
        task = KernelTask(
            kernel.name,
            function,
            kernel.params,
            tuple(map(Index.sym, kernel.sizes)),
            writes,
            parallel_extent(kernel),
            iteration_work(kernel),
            self.target.kernel_work,
            kernel.origin,
        )
        inputs = [buffer for buffer in kernel.params if buffer.name not in writes]
        outputs = [Result(buffer) for buffer in kernel.params if buffer.name in writes]
        layouts = {buffer.name: buffer for buffer in kernel.params}
        return plan([task], inputs, (), (), outputs, layouts, devices=Devices(self.device)).place(self.hints)
