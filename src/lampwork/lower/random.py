"""Random numbers.

With numerics="fast" they are words of a counter, and so are those of a CUDA device (`random_words`). Otherwise they are
torch's own stream, drawn in blocks by operators of the runtime (csrc/random.cpp), and what follows is fused with other
code.

The operators leave the generator as ATen's do. They fill a contiguous tensor in row-major order, as ATen does; where
the result lies otherwise ATen goes through memory in that order, and is called. No two of them change places, as no
two random nodes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.graph.spec import contiguous_strides
from lampwork.graph.symbols import same_sizes
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower import extern
from lampwork.lower.arrays import Array, read
from lampwork.lower.context import Context, keep
from lampwork.lower.dtypes import FLOATS, TORCH_DTYPES, compute_dtype
from lampwork.lower.reduce import reduce_value
from lampwork.lower.registry import NotExpressible, Registry, Rule

rules = Registry()

_GENERATED: frozenset[DType] = frozenset(("f32", "f64"))


def _drawn(ctx: Context, target: str, args: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Array:
    """A new buffer with what an operator of the runtime draws."""
    out = ctx.buffer(shape, dtype, hint="drawn")
    extern.emit(ctx, f"lampwork::{target}.default", args, (out.buffer,))
    return out


def _shape(ctx: Context) -> tuple[int, ...]:
    """The shape of the result, which lies in row-major order."""
    spec = ctx.spec
    if not same_sizes(spec.strides, contiguous_strides(spec.shape)):
        raise NotExpressible("random numbers in another order than the rows'")
    return spec.shape


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise NotExpressible("a parameter that is open")
    return float(value)


def _uniform(ctx: Context, low: Any = 0.0, high: Any = 1.0) -> Array:
    if ctx.dtype not in _GENERATED:
        raise NotExpressible(f"uniform numbers of {ctx.dtype}")
    shape = _shape(ctx)
    args = (list(shape), _number(low), _number(high), TORCH_DTYPES[ctx.dtype])
    return _drawn(ctx, "uniform", args, shape, ctx.dtype)


def _normal(ctx: Context, mean: Any = 0.0, std: Any = 1.0) -> Array:
    if ctx.dtype != "f32":
        raise NotExpressible(f"normal numbers of {ctx.dtype}")
    shape = _shape(ctx)
    return _drawn(
        ctx, "normal", (list(shape), _number(mean), _number(std), TORCH_DTYPES["f32"]), shape, "f32"
    )


def _randint(ctx: Context, low: Any, high: Any) -> Array:
    if ctx.dtype != "i64":
        raise NotExpressible(f"whole numbers as {ctx.dtype}")
    shape = _shape(ctx)
    return _drawn(ctx, "randint", (list(shape), low, high), shape, "i64")


def _of_size(draw: Rule) -> Rule:
    """rand(size), and likes of it: the spec has the size already."""

    def rule(ctx: Context, size: Any, *, generator: None = None, **options: Any) -> Array:
        return draw(ctx)  # pyright: ignore[reportReturnType]

    return rule


rules.lowers("rand", "rand_like")(_of_size(_uniform))
rules.lowers("randn", "randn_like")(_of_size(_normal))


@rules.lowers("uniform")
def uniform(
    ctx: Context, x: Array, low: float = 0.0, high: float = 1.0, *, generator: None = None, **given: float
) -> Array:
    return _uniform(ctx, given.get("from", low), given.get("to", high))


@rules.lowers("normal_functional")
def normal(ctx: Context, x: Array, mean: float = 0.0, std: float = 1.0, *, generator: None = None) -> Array:
    return _normal(ctx, mean, std)


@rules.lowers("randint", "randint_like")
def randint(ctx: Context, first: Any, second: Any, **options: Any) -> Array:
    return _randint(ctx, 0, second if isinstance(first, Array) else first)


@rules.lowers("randint.low", "randint_like.low_dtype")
def randint_from(ctx: Context, first: Any, second: Any, third: Any, **options: Any) -> Array:
    return _randint(ctx, *((second, third) if isinstance(first, Array) else (first, second)))


@rules.lowers("exponential")
def exponential(ctx: Context, x: Array, lambd: float = 1.0, *, generator: None = None) -> Array:
    if ctx.dtype != "f32":
        raise NotExpressible(f"exponential numbers of {ctx.dtype}")
    shape = _shape(ctx)
    args = (list(shape), _number(lambd), TORCH_DTYPES["f32"])
    return _drawn(ctx, "exponential", args, shape, "f32")


def _chosen(ctx: Context, shape: tuple[int, ...], p: float) -> Array:
    if not 0 <= p <= 1:
        raise NotExpressible("a probability that is none")
    return _drawn(ctx, "bernoulli", (list(shape), p), shape, "bool")


@rules.lowers("bernoulli.p")
def bernoulli_of_number(ctx: Context, x: Array, p: float = 0.5, *, generator: None = None) -> Array:
    chosen = _chosen(ctx, _shape(ctx), _number(p))
    return ctx.result(read(chosen, chosen.shape))


@rules.lowers("bernoulli")
def bernoulli(ctx: Context, x: Array, *, generator: None = None) -> Array:
    if x.dtype != "f32":
        raise NotExpressible(f"probabilities of {x.dtype}")
    shape = _shape(ctx)
    chosen = _drawn(ctx, "bernoulli_of", (x,), shape, "bool")
    return ctx.result(read(chosen, shape))


def _dropped(ctx: Context, x: Array, p: Any, noise: tuple[int, ...]) -> Array:
    """x times noise, that is 0 or 1 / (1 - p), rounded to x's dtype as eager's noise is."""
    p = _number(p)
    if not 0 < p < 1 or x.dtype not in FLOATS:
        raise NotExpressible("what drops all or nothing")
    wide = compute_dtype(x.dtype)
    chosen = _chosen(ctx, noise, 1 - p)
    scale = e.cast(e.cast(e.div(e.const(1.0, wide), e.const(1 - p, wide)), x.dtype), wide)
    factor: Expr = e.where(read(chosen, x.shape), scale, e.const(0.0, wide))
    return ctx.result(e.mul(e.cast(read(x, x.shape), wide), factor))


@rules.lowers("dropout")
def dropout(ctx: Context, x: Array, p: float, train: bool) -> Array:
    return _dropped(ctx, x, p, _shape(ctx))


@rules.lowers("feature_dropout")
def feature_dropout(ctx: Context, x: Array, p: float, train: bool) -> Array:
    """Whole channels are dropped: the noise has sizes of 1 behind them."""
    return _dropped(ctx, x, p, (*x.shape[:2], *(1 for _ in x.shape[2:])))


@rules.lowers("multinomial")
def multinomial(
    ctx: Context, p: Array, count: int, replacement: bool = False, *, generator: None = None
) -> Array:
    """One sample a row: the largest of p over exponential numbers, as eager takes it."""
    if p.dtype != "f32" or p.rank not in (1, 2) or type(count) is not int or count != 1:
        raise NotExpressible("more than one sample, or probabilities that are not float32")
    if p.strides is None or not same_sizes(p.strides, contiguous_strides(p.shape)):
        raise NotExpressible("random numbers in another order than the rows'")
    raced = _drawn(ctx, "race", (p,), p.shape, "f32")
    dims = [p.rank - 1]
    return keep(reduce_value(ctx, "argmax", p.shape, dims, read(raced, p.shape)), p.shape, dims)
