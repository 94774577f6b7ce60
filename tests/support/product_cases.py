"""Matrix products of every kind: definitions, and their inputs and results by float64."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lampwork.loops.ir.expr import definition_exprs, loads
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, DType, Expr, Gemm, Load, Local, Op
from lampwork.loops.ir.symbols import likely
from lampwork.loops.reference.evaluate import NUMPY_DTYPES, round_bf16

ACC = Local("acc", "f32")
EPILOGUES = ("none", "bias", "residual", "gelu", "rows")


def matrix(
    name: str, dtype: DType, shape: Sequence[int | Index], order: str = "", padding: int = 0
) -> Buffer:
    """A buffer. order: "t" if the last dimension but one is the innermost in memory. padding: elements after lines."""
    sizes = tuple(map(as_index, shape))
    dims = list(range(len(sizes)))
    if order == "t":
        dims[-2:] = reversed(dims[-2:])
    strides: dict[int, Index] = {}
    step = as_index(1)
    for dim in reversed(dims):
        strides[dim] = step
        step = step * (sizes[dim] + padding if dim == dims[-1] else sizes[dim])
    return Buffer(name, dtype, sizes, tuple(strides[dim] for dim in range(len(sizes))))


def widened(load: Load) -> Expr:
    return Op("cast", (load,), "f32") if load.dtype in ("f16", "bf16") else load


def narrowed(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype == dtype else Op("cast", (value,), dtype)


def product(
    dtype: DType,
    m: int | Index,
    n: int | Index,
    k: int | Index,
    *,
    batch: Sequence[int | Index] = (),
    orders: str = "nt",
    epilogue: str = "none",
    shared: bool = False,
    padding: int = 0,
) -> Gemm:
    """out = epilogue(a @ b). orders: of a and b as BLAS has them, "nt": rows of a and columns of b lie along k.
    shared: b is the same for the whole batch. padding: elements between lines of a and b."""
    axes = tuple(Axis(f"p{number}", as_index(size)) for number, size in enumerate(batch))
    here = tuple(Index.var(axis.name) for axis in axes)
    am, an, ak = Axis("m", as_index(m)), Axis("n", as_index(n)), Axis("k", as_index(k))
    im, in_, ik = (Index.var(name) for name in "mnk")
    a = matrix("a", dtype, (*batch, m, k), "t" if orders[0] == "t" else "", padding)
    over = () if shared else tuple(batch)
    b = matrix("b", dtype, (*over, k, n), "t" if orders[1] == "t" else "", padding)
    out = matrix("out", dtype, (*batch, m, n))
    value: Expr = ACC
    if epilogue in ("bias", "gelu"):
        bias = Load(matrix("bias", dtype, (n,)), (in_,))
        value = Op("add", (value, widened(bias)), "f32")
    if epilogue == "gelu":
        inner = Op("erf", (Op("mul", (value, Const(0.5**0.5, "f32")), "f32"),), "f32")
        half = Op("mul", (value, Const(0.5, "f32")), "f32")
        value = Op("mul", (half, Op("add", (inner, Const(1.0, "f32")), "f32")), "f32")
    if epilogue == "residual":
        other = Load(matrix("residual", dtype, (*batch, m, n)), (*here, im, in_))
        value = Op("add", (Op("maximum", (value, Const(0.0, "f32")), "f32"), widened(other)), "f32")
    if epilogue == "rows":
        scale = Load(matrix("scale", "f32", (m,)), (im,))
        value = Op("mul", (value, scale), "f32")
    load_a, load_b = Load(a, (*here, im, ik)), Load(b, (*(() if shared else here), ik, in_))
    return Gemm(out, axes, am, an, ak, load_a, load_b, (*here, im, in_), narrowed(value, dtype))


@dataclass
class ProductCase:
    """A product with inputs. sizes: of symbols. exact: float32 is not rounded to TF32.
    heads: the columns of a head, if `out` is of (heads, m, columns)."""

    gemm: Gemm
    epilogue: str = "none"
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    exact: bool = False
    heads: int = 0

    def inputs(self) -> dict[str, np.ndarray]:
        """Random numbers that the dtypes hold, by buffer, in their logical shapes."""
        rng = np.random.default_rng(self.seed)
        found: dict[str, np.ndarray] = {}
        for expr in definition_exprs(self.gemm):
            for load in loads(expr):
                each = load.buffer
                if each.name in found:
                    continue
                shape = tuple(likely(size, self.sizes) for size in each.shape)
                numbers = rng.standard_normal(shape).astype(NUMPY_DTYPES[each.dtype])
                found[each.name] = round_bf16(numbers) if each.dtype == "bf16" else numbers
        return found

    def expected(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The results in float64, of what float32 is as TF32."""
        given = {name: each.astype(np.float64) for name, each in inputs.items()}
        if self.gemm.a.dtype == "f32" and not self.exact:
            given |= {name: tf32(inputs[name]) for name in "ab"}
        acc = given["a"] @ given["b"]
        if self.epilogue in ("bias", "gelu"):
            acc = acc + given["bias"]
        if self.epilogue == "gelu":
            acc = acc * 0.5 * (1 + np.vectorize(math.erf)(acc / 2**0.5))
        if self.epilogue == "residual":
            acc = np.maximum(acc, 0) + given["residual"]
        if self.epilogue == "rows":
            acc = acc * given["scale"][:, None]
        return np.moveaxis(acc.reshape(acc.shape[0], -1, self.heads), 0, 1) if self.heads else acc


ORDERS = ("nt", "nn", "tn", "tt")


def random_case(seed: int, most: int = 90) -> ProductCase:
    """A product of up to so many rows and columns, whose sizes are multiples of something, or of nothing."""
    draw = random.Random(seed)
    steps = (1, 2, 4, 8, 8)
    sizes = [
        step * draw.randint(1, end // step)
        for end in (most, most, 2 * most)
        for step in (draw.choice(steps),)
    ]
    batch = tuple(draw.randint(1, 2) for _ in range(draw.choice((0, 0, 1, 2))))
    epilogue = draw.choice(EPILOGUES)
    gemm = product(
        draw.choice(("bf16", "f16", "f32")),
        *sizes,
        batch=batch,
        orders=draw.choice(ORDERS),
        epilogue=epilogue,
        shared=draw.random() < 0.3,
    )
    return ProductCase(gemm, epilogue, seed=seed)


def tf32(numbers: np.ndarray) -> np.ndarray:
    """The nearest numbers of TF32, ties away from zero, as float64."""
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


TOLERANCE: Mapping[DType, float] = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 1e-5}
"""Of results: half a unit of the last place of a half type, and a little."""


def compare(case: ProductCase, got: np.ndarray, want: np.ndarray, depth: int, note: str = "") -> None:
    """Results are as exact as their dtype has them, beside the rounding of sums of float32."""
    tolerance = TOLERANCE[case.gemm.out.dtype]
    sums = 2.0**-22 * depth  # of numbers of about one
    np.testing.assert_allclose(got, want, rtol=tolerance * 1.02, atol=sums, err_msg=note)
