"""Our own matrix products on a card, beside torch's: `python benchmarks/gpu_products.py`, in some 30 seconds.

Each line is a variant of a product: its time, TFLOP/s (or GB/s of a product that reads more than it computes), how many
times torch's speed that is, and the largest error against float64 as a part of what its dtype allows; WRONG if it is
more than 1. Kernels are launched by the driver itself, with nothing of the runtime in between. Operands are taken in
turn from several sets, so that weights come from memory where the set is larger than the second-level cache.

    python benchmarks/gpu_products.py --only skinny            # what has this in its name
    python benchmarks/gpu_products.py --all --only 1024        # every tile, not only those that are worth a try
    python benchmarks/gpu_products.py --wide                   # large ones alone: cuBLAS, mma.sync, wgmma; 20 seconds
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpu_timing import Clock

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.strips import Strip
from lampwork.codegen.gpu.mma.tiles import tiles
from lampwork.codegen.gpu.mma.warpgroups import CAPABILITY, GROUPS, Groups
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.llvm.library import slots
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, DType, Expr, Gemm, Load, Local, Op

DTYPES: dict[DType, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ALLOWED = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23}
TF32 = 2.0**-10  # what rounding operands to it costs, at most
CACHE = 200 << 20  # bytes of operands that are taken in turn
FEW = 4  # variants of mma.sync beside those of wgmma
SOURCE = TensorCores()


@dataclass(frozen=True)
class Shape:
    """out = epilogue(a (m x k) @ w (n x k).T)."""

    name: str
    dtype: DType
    m: int
    n: int
    k: int
    epilogue: str = ""

    @property
    def reads(self) -> bool:
        """Whether it reads longer than it computes."""
        return min(self.m, self.n) <= 32

    @property
    def rated(self) -> str:
        """What its speed is measured in."""
        return "GB/s" if self.reads else "TFLOP/s"

    def rate(self, time: float) -> float:
        return self.bytes / time / 1e9 if self.reads else self.operations / time / 1e12

    @property
    def tf32(self) -> bool:
        """Whether float32 is rounded to TF32."""
        return "tf32" in self.name

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        size = 4 if self.dtype == "f32" else 2
        return (self.m * self.k + self.n * self.k + self.m * self.n) * size

    def gemm(self) -> Gemm:
        m, n, k = (
            Axis(name, Index.const(size)) for name, size in zip("mnk", (self.m, self.n, self.k), strict=True)
        )
        places = {name: Index.var(name) for name in "mnk"}

        def at(name: str, *over: str) -> Load:
            sizes = tuple(Index.const({"m": self.m, "n": self.n, "k": self.k}[each]) for each in over)
            strides = (sizes[1], Index.const(1)) if len(sizes) == 2 else (Index.const(1),)
            return Load(Buffer(name, self.dtype, sizes, strides), tuple(places[each] for each in over))

        def wide(value: Expr) -> Expr:
            return value if value.dtype == "f32" else Op("cast", (value,), "f32")

        value: Expr = Local("acc", "f32")
        if self.epilogue:
            value = Op("add", (value, wide(at("bias", "n"))), "f32")
        if self.epilogue == "gelu":
            half = Op("mul", (value, Const(0.5, "f32")), "f32")
            error = Op("erf", (Op("mul", (value, Const(0.5**0.5, "f32")), "f32"),), "f32")
            value = Op("mul", (half, Op("add", (error, Const(1.0, "f32")), "f32")), "f32")
        if self.dtype != "f32":
            value = Op("cast", (value,), self.dtype)
        out = at("out", "m", "n")
        return Gemm(out.buffer, (), m, n, k, at("a", "m", "k"), at("w", "n", "k"), out.index, value)

    def eager(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        found = torch.nn.functional.linear(given["a"], given["w"], given["bias"] if self.epilogue else None)
        return torch.nn.functional.gelu(found) if self.epilogue == "gelu" else found


def shapes() -> list[Shape]:
    found: list[Shape] = []
    for dtype in ("bf16", "f16"):
        found += [
            Shape("4096", dtype, 4096, 4096, 4096),
            Shape("1024", dtype, 1024, 1024, 1024),
            Shape("bert", dtype, 512, 768, 768, "bias"),
            Shape("bert gelu", dtype, 512, 3072, 768, "gelu"),
            *(Shape(f"skinny {rows}", dtype, rows, 4096, 4096) for rows in (1, 4, 16)),
        ]
    return [
        *found,
        Shape("4096 tf32", "f32", 4096, 4096, 4096),
        Shape("1024 tf32", "f32", 1024, 1024, 1024),
        *(Shape(f"skinny {rows} exact", "f32", rows, 4096, 4096) for rows in (1, 4)),
    ]


def wide() -> list[Shape]:
    """Those that compute much longer than they read."""
    return [
        Shape("4096", "bf16", 4096, 4096, 4096),
        Shape("8192", "bf16", 8192, 4096, 4096),
        Shape("512", "bf16", 512, 4096, 4096),
        Shape("bert gelu", "bf16", 2048, 3072, 768, "gelu"),
    ]


# --- kernels ----------------------------------------------------------------------------------------------------------


class Driver:
    """The CUDA driver, as far as it takes to load and launch."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        error = getattr(self.library, name)(*arguments)
        if error:
            raise RuntimeError(f"{name}: error {error}")

    def load(self, text: bytes, name: str, shared: int) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > 48 << 10:
            self.call("cuFuncSetAttribute", function, 8, shared)
        return function


class Kernel:
    """A product that can be launched."""

    def __init__(self, driver: Driver, code: ProductCode, text: bytes) -> None:
        self.driver, self.code = driver, code
        self.function = driver.load(text, code.name, code.shared)
        blocks = code.extent.as_int()
        assert blocks is not None and not code.sizes
        self.blocks = blocks

    def launcher(self, given: dict[str, torch.Tensor]) -> Callable[[], None]:
        values = [given[each.name].data_ptr() for each in self.code.params] + [self.blocks]
        numbers = (ctypes.c_int64 * len(values))(*values)
        first = ctypes.addressof(numbers)
        parameters = (ctypes.c_void_p * len(values))(*[first + 8 * each for each in range(len(values))])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        launch, threads, shared = self.driver.library.cuLaunchKernel, self.code.threads, self.code.shared

        def run() -> None:
            _ = numbers
            error = launch(self.function, self.blocks, 1, 1, threads, 1, 1, shared, stream, parameters, None)
            if error:
                raise RuntimeError(f"cuLaunchKernel: error {error}")

        return run


def made(
    target: GpuTarget, driver: Driver, wanted: Sequence[tuple[Shape, str]]
) -> dict[tuple[Shape, str], Kernel | CodegenError | RuntimeError]:
    """The kernels of variants, compiled by all cores."""
    generator = GpuGenerator(target)
    context = ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(context))

    def make(number: int) -> Kernel | CodegenError | RuntimeError:
        shape, variant = wanted[number]
        driver.call("cuCtxSetCurrent", context)
        try:
            code = SOURCE.compile(shape.gemm(), replace(target, tf32=shape.tf32), variant, "lw_product")
            assert isinstance(code.image, str)
            text = generator.jit.emit(code.image, number % len(slots.locks), verify=False)
            return Kernel(driver, code, text + b"\0")
        except (CodegenError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(len(slots.locks)) as pool:
        return dict(zip(wanted, pool.map(make, range(len(wanted))), strict=True))


# --- measuring --------------------------------------------------------------------------------------------------------


def inputs(shape: Shape) -> list[dict[str, torch.Tensor]]:
    count = max(2, min(8, CACHE // shape.bytes + 1))
    dtype = DTYPES[shape.dtype]

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda", dtype=torch.float32).to(dtype)

    return [
        {
            "a": numbers(shape.m, shape.k),
            "w": numbers(shape.n, shape.k),
            "bias": numbers(shape.n),
            "out": torch.full((shape.m, shape.n), float("nan"), device="cuda", dtype=dtype),
        }
        for _ in range(count)
    ]


def seconds(runs: Sequence[Callable[[], object]]) -> float:
    """Of one run, by the device's clock, while the host is ahead: the median of some tries."""
    clock = Clock("cuda", samples=5)
    return clock.device_ms(lambda run: run(), [(run,) for run in runs], calls=2 * len(runs)) / 1e3


def error(shape: Shape, given: dict[str, torch.Tensor], got: torch.Tensor) -> float:
    """The largest error, as a part of what rounding results, sums and operands may cost."""
    a, w = given["a"].double(), given["w"].double()
    want = a @ w.T
    size = a.abs() @ w.abs().T
    if shape.epilogue:
        want = want + given["bias"].double()
        size = size + given["bias"].double().abs()
    if shape.epilogue == "gelu":
        want = torch.nn.functional.gelu(want)
    sums = 2.0**-24 * shape.k**0.5 * 4 + (TF32 if shape.tf32 else 0)
    allowed = want.abs() * ALLOWED[shape.dtype] + size * sums + 1e-6
    wrong = (got.double() - want).abs() / allowed
    return float("inf") if bool(wrong.isnan().any()) else float(wrong.max())


def line(shape: Shape, name: str, time: float, base: float, off: float) -> str:
    rate = f"{shape.rate(time):8.{0 if shape.reads else 1}f} {shape.rated:7}"
    wrong = "" if off <= 1 else "   WRONG"
    return f"  {name:44}{time * 1e6:9.1f} us {rate} {base / time:6.2f} x {off:8.2f}{wrong}"


def kind_of(variant: str) -> str:
    """Whose instructions it is made of."""
    if Groups.named(variant) is not None:
        return "wgmma"
    return "mma.sync" if Strip.named(variant) is None else "strips"


def variants_of(shape: Shape, target: GpuTarget, every: bool, wide: bool = False) -> Sequence[str]:
    """What to measure. wide: all that `wgmma` has, and the first few others."""
    groups = GROUPS if shape.dtype != "f32" and target.capability == CAPABILITY else ()
    if every:
        return [each.name for each in (*groups, *tiles(shape.dtype, target))]
    if wide:
        others = [name for name in variants_of(shape, target, False) if Groups.named(name) is None]
        return [*(each.name for each in groups), *others[:FEW]]
    return SOURCE.variants(shape.gemm(), replace(target, tf32=shape.tf32))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="shapes with this in their name or dtype")
    parser.add_argument("--all", action="store_true", help="every tile")
    parser.add_argument("--wide", action="store_true", help="large products of bfloat16 alone")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device")
    began = time.perf_counter()
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    found = torch.cuda.get_device_properties(0)
    target = describe(found.major * 10 + found.minor, found.multi_processor_count)
    every = wide() if options.wide else shapes()
    chosen = [shape for shape in every if options.only in f"{shape.name} {shape.dtype}"]
    wanted = [
        (shape, variant)
        for shape in chosen
        for variant in variants_of(shape, target, options.all, options.wide)
    ]
    kernels = made(target, Driver(), wanted)
    print(
        f"{found.name}, torch {torch.__version__}: {len(wanted)} kernels in {time.perf_counter() - began:.1f} s"
    )
    for shape in chosen:
        torch.backends.cuda.matmul.allow_tf32 = shape.tf32
        sets = inputs(shape)
        base = seconds([partial(shape.eager, each) for each in sets])
        print(f"{shape.name} {shape.dtype}: {shape.m} x {shape.n} x {shape.k} {shape.epilogue}")
        print(line(shape, "torch", base, base, error(shape, sets[0], shape.eager(sets[0]))))
        best = {"torch": base}
        for each, variant in wanted:
            if each is not shape:
                continue
            kernel = kernels[each, variant]
            if not isinstance(kernel, Kernel):
                print(f"  {variant:44} FAILED: {kernel}")
                continue
            taken = seconds([kernel.launcher(given) for given in sets])
            off = error(shape, sets[0], sets[0]["out"])
            print(line(shape, variant, taken, base, off), flush=True)
            if off <= 1:
                best[kind_of(variant)] = min(taken, best.get(kind_of(variant), taken))
        rates = ", ".join(f"{name} {shape.rate(each):.0f}" for name, each in best.items())
        print(f"  best, {shape.rated}: {rates}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
