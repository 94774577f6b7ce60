"""Short ways to write definitions in the tests of the loop language."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scalar_target import SCALAR

from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, Gemm, Load, Local, Map, Op, Reduce
from lampwork.loops.reference.evaluate import NUMPY_DTYPES, evaluate_definitions
from lampwork.loops.reference.evaluate_kernel import evaluate_kernels
from lampwork.loops.schedule.schedule import schedule

I = [Index.var(f"i{n}") for n in range(8)]  # noqa: E741
MACHINE = replace(SCALAR, vector_bytes=64)


def buffer(name, *shape, dtype="f32", strides=None):
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    return Buffer(name, dtype, tuple(map(as_index, shape)), tuple(map(as_index, strides)))


def axes(*shape, first=0):
    return tuple(Axis(f"i{first + n}", as_index(size)) for n, size in enumerate(shape))


def ints(buf):
    return tuple(size.as_int() for size in buf.shape)


def at(buf, *index):
    """buf[index]; all of the leading variables by default."""
    return Load(buf, tuple(map(as_index, index)) if index else tuple(I[: len(buf.shape)]))


def op(name, *args, dtype=None):
    args = tuple(Const(arg, args[0].dtype) if isinstance(arg, int | float) else arg for arg in args)
    return Op(name, args, dtype or args[-1].dtype)


def pointwise(out, value):
    rank = len(out.shape)
    return Map(out, axes(*ints(out)), tuple(I[:rank]), value)


def reduce(out, over, how, value, finish=None):
    """out over its own shape (leading variables), `over` sizes as the following variables."""
    rank = len(out.shape)
    return Reduce(out, axes(*ints(out)), axes(*over, first=rank), tuple(I[:rank]), how, value, finish)


ACC = Local("acc", "f32")


def mean_of(n):
    return op("div", ACC, Const(float(n), "f32"))


def linear(out, x, w, m, n, k, value=ACC):
    """out[m, n] = sum_k x[m, k] * w[n, k]."""
    am, an, ak = Axis("i0", as_index(m)), Axis("i1", as_index(n)), Axis("i2", as_index(k))
    return Gemm(out, (), am, an, ak, at(x, I[0], I[2]), at(w, I[1], I[2]), (I[0], I[1]), value)


def random_inputs(seed, *buffers):
    rng = np.random.default_rng(seed)
    result = {}
    for buf in buffers:
        if buf.dtype == "bool":
            result[buf.name] = rng.integers(0, 2, ints(buf)).astype(bool)
        elif buf.dtype.startswith(("i", "u")):
            result[buf.name] = rng.integers(0, 5, ints(buf)).astype(NUMPY_DTYPES[buf.dtype])
        else:
            result[buf.name] = rng.standard_normal(ints(buf)).astype(NUMPY_DTYPES[buf.dtype])
    return result


def all_buffers(definitions, inputs):
    from lampwork.loops.ir.expr import definition_exprs, loads

    found = {}
    for definition in definitions:
        for expr in definition_exprs(definition):
            for load in loads(expr):
                found[load.buffer.name] = load.buffer
        for out in outs_of(definition):
            found[out.name] = out
    return found


def run_groups(groups, buffers, inputs):
    """Runs fused groups: kernels by the interpreter of kernels, the rest by the interpreter of definitions."""
    arrays = dict(inputs)
    for number, group in enumerate(groups):
        if group.kind in ("pointwise", "rows", "scan"):
            kernels = schedule(group, f"k{number}", MACHINE)
            needed = {name: array for name, array in arrays.items() if name not in group.private}
            arrays.update(evaluate_kernels(kernels, needed, buffers))
        else:
            arrays.update(evaluate_definitions(group.definitions, arrays))
    return arrays


def check(definitions, outputs, inputs, *, tolerance=1e-5, groups=None, kinds=None, fusing=fuse):
    """Fused and scheduled, the outputs are as the definitions say. Returns the groups."""
    outputs = frozenset(outputs)
    expected = evaluate_definitions(definitions, inputs)
    fused, decisions = fusing(definitions, outputs, MACHINE)
    buffers = all_buffers(definitions, inputs)
    for group in fused:
        for definition in group.definitions:
            for out in outs_of(definition):
                buffers[out.name] = out
    got = run_groups(fused, buffers, inputs)
    for name in outputs:
        np.testing.assert_allclose(got[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name)
    if groups is not None:
        assert len(fused) == groups, "\n".join(map(str, decisions))
    if kinds is not None:
        assert [group.kind for group in fused] == kinds, "\n".join(map(str, decisions))
    return fused
