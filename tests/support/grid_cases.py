"""What GPUs run most: definitions of each family of kernels, with inputs."""

from __future__ import annotations

import numpy as np
import torch
from grids import Case
from loops_build import I, at, axes, buffer, mean_of, op, pointwise, random_inputs, reduce

from lampwork.graph.record import Recorder
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import FLOAT8, Axis, Buffer, Const, IndexValue, Load, Local, Map, Reduce, Scan
from lampwork.loops.reference.float8 import round_float8
from lampwork.lower.lowering import lower_graph

FLOATS = ("f64", "f32", "f16", "bf16")
DTYPES = (*FLOATS, "i64", "i32", "i16", "i8", "u8", "bool")
TOLERANCE = {"f16": 4e-3, "bf16": 4e-2, "f64": 1e-12}


def inputs_of(seed, *buffers):
    """Random inputs that their dtypes can hold."""
    found = random_inputs(seed, *buffers)
    for each in buffers:
        if each.dtype == "bf16":
            found[each.name] = (found[each.name].view(np.uint32) & 0xFFFF0000).view(np.float32)
        elif each.dtype in FLOAT8:
            found[each.name] = round_float8(found[each.name], each.dtype)
    return found


def of(definitions, outputs, *buffers, seed=0, **more):
    return Case(definitions, frozenset(outputs.split()), inputs_of(seed, *buffers), **more)


def cast(value, dtype):
    return value if value.dtype == dtype else op("cast", value, dtype=dtype)


def wide(buf, *index):
    """A value of a buffer, half types as float32."""
    return cast(at(buf, *index), "f32") if buf.dtype in ("f16", "bf16") else at(buf, *index)


def flat(n=1003, dtype="f32"):
    x, y, z = (buffer(name, n, dtype=dtype) for name in "xyz")
    if dtype == "bool":
        return of([pointwise(z, op("xor", at(x), at(y)))], "z", x, y)
    value = op("add", op("mul", wide(x), wide(y)), wide(x))
    value = op("tanh", value) if dtype in FLOATS else op("maximum", value, wide(y))
    return of([pointwise(z, cast(value, dtype))], "z", x, y, tolerance=TOLERANCE.get(dtype, 1e-5))


def half_of(name, dtype, n):
    """A function of numbers of a half type."""
    x, y = buffer("x", n, dtype=dtype), buffer("y", n, dtype=dtype)
    return of([pointwise(y, cast(op(name, wide(x)), dtype))], "y", x, tolerance=TOLERANCE[dtype])


def float8(dtype="f8e4m3", n=1003):
    """Both conversions, and a choice between elements as they are."""
    x, w, z = buffer("x", n), buffer("w", n, dtype=dtype), buffer("z", n)
    narrow, picked = buffer("narrow", n, dtype=dtype), buffer("picked", n, dtype=dtype)
    is_less = op("lt", at(x), Const(0.0, "f32"), dtype="bool")
    definitions = [
        pointwise(narrow, cast(op("mul", at(x), Const(0.1, "f32")), dtype)),
        pointwise(z, op("add", cast(at(w), "f32"), at(x))),
        pointwise(picked, op("where", is_less, at(w), at(narrow))),
    ]
    return of(definitions, "narrow z picked", x, w, tolerance=0)


def broadcast(m=6, n=40):
    x, b, y = buffer("x", m, n), buffer("b", n), buffer("y", m, n)
    return of([pointwise(y, op("add", at(x), at(b, I[1])))], "y", x, b)


def transpose(m=40, n=33, dtype="f32"):
    x, y = buffer("x", m, n, dtype=dtype), buffer("y", n, m, dtype=dtype)
    return of([pointwise(y, at(x, I[1], I[0]))], "y", x, tolerance=0)


def softmax(m=5, n=100, dtype="f32"):
    x, y = buffer("x", m, n, dtype=dtype), buffer("y", m, n, dtype=dtype)
    kind = "f64" if dtype == "f64" else "f32"
    top, total, powers = (
        buffer("top", m, dtype=kind),
        buffer("total", m, dtype=kind),
        buffer("powers", m, n, dtype=kind),
    )
    definitions = [
        reduce(top, (n,), "max", wide(x, I[0], I[1])),
        pointwise(powers, op("exp", op("sub", wide(x), at(top, I[0])))),
        reduce(total, (n,), "sum", at(powers, I[0], I[1])),
        pointwise(y, cast(op("div", at(powers), at(total, I[0])), dtype)),
    ]
    return of(definitions, "y", x, tolerance=TOLERANCE.get(dtype, 1e-5))


def softmax_of_columns(m=9, n=100):
    """Along the first axis: each column is a thread's, and its numerators lie in scratch."""
    x, y, powers = (buffer(name, m, n) for name in ("x", "y", "powers"))
    top, total = buffer("top", n), buffer("total", n)
    definitions = [
        reduce(top, (m,), "max", at(x, I[1], I[0])),
        pointwise(powers, op("exp", op("sub", at(x), at(top, I[1])))),
        reduce(total, (m,), "sum", at(powers, I[1], I[0])),
        pointwise(y, op("div", at(powers), at(total, I[1]))),
    ]
    return of(definitions, "y", x)


def planes(m=3, n=240, k=4):
    """Planes of short lines apart in memory, divided by their sums: few threads, and much scratch."""
    x, y = (buffer(name, m, n, k, strides=(n * (k + 2), k + 2, 1)) for name in "xy")
    powers, total = buffer("powers", m, n, k), buffer("total", m)
    definitions = [
        pointwise(powers, op("exp", at(x))),
        reduce(total, (n, k), "sum", at(powers, *I[:3])),
        pointwise(y, op("div", at(powers, I[0], as_index(n - 1) - I[1], I[2]), at(total, I[0]))),
    ]
    return of(definitions, "y", x)


def layer_norm(m=5, n=96, dtype="f32"):
    x, y = buffer("x", m, n, dtype=dtype), buffer("y", m, n, dtype=dtype)
    w, b, mean, var, rstd = (
        buffer("w", n),
        buffer("b", n),
        buffer("mean", m),
        buffer("var", m),
        buffer("rstd", m),
    )
    centred = op("sub", wide(x, I[0], I[1]), at(mean, I[0]))
    normal = op("mul", centred, at(rstd, I[0]))
    definitions = [
        reduce(mean, (n,), "sum", wide(x, I[0], I[1]), mean_of(n)),
        reduce(var, (n,), "sum", op("mul", centred, centred), mean_of(n)),
        pointwise(rstd, op("rsqrt", op("add", at(var), 1e-5))),
        pointwise(y, cast(op("add", op("mul", normal, at(w, I[1])), at(b, I[1])), dtype)),
    ]
    return of(definitions, "y mean rstd", x, w, b, tolerance=TOLERANCE.get(dtype, 1e-4))


def rows(how="sum", m=5, n=100, dtype="f32"):
    """A reduction of the last axis, of half types as float32."""
    x = buffer("x", m, n, dtype=dtype)
    value = wide(x, I[0], I[1])
    y = buffer("y", m, dtype="i64" if how.startswith("arg") else value.dtype)
    return of([reduce(y, (n,), how, value)], "y", x, seed=1, tolerance=1e-3)


def columns(how="sum", m=40, n=48, dtype="f32"):
    x = buffer("x", m, n, dtype=dtype)
    y = buffer("y", n, dtype="i64" if how.startswith("arg") else dtype)
    value = wide(x, I[1], I[0])
    end = None if value.dtype == dtype else cast(Local("acc", value.dtype), dtype)
    tolerance = max(1e-3, TOLERANCE.get(dtype, 0))
    return of([reduce(y, (m,), how, value, end)], "y", x, seed=1, tolerance=tolerance)


def total(n=5000, how="sum"):
    x, y = buffer("x", n), buffer("y", dtype="i64" if how.startswith("arg") else "f32")
    return of([reduce(y, (n,), how, at(x, I[0]))], "y", x, tolerance=1e-3)


def scan(how="sum", along=1, m=5, n=24):
    x, y = buffer("x", m, n), buffer("y", m, n)
    rest = axes(m, n)[1 - along]
    definition = Scan(y, (rest,), axes(m, n)[along], (I[0], I[1]), how, at(x))
    return of([definition], "y", x, seed=2, tolerance=1e-3)


def gather(m=3, n=4, k=16):
    """Rows of a table by ids, those above the diagonal masked."""
    table, ids, y = buffer("w", 5, k), buffer("ids", m, n, dtype="i64"), buffer("y", m, n, k)
    row = Index.indirect(at(ids, I[0], I[1]), 5)
    causal = op("ge", IndexValue(I[1], "i64"), IndexValue(I[2], "i64"), dtype="bool")
    return of([pointwise(y, Load(table, (row, I[2]), causal, -1.0))], "y", table, ids, seed=4, tolerance=0)


def updated(how="sum", m=40, n=12, dtype="f32", rows=7):
    """Rows that are combined with those of a table, several with one."""
    x, base, y = (buffer(name, rows, n, dtype=dtype) for name in ("x", "base", "y"))
    ids, s = buffer("ids", m, dtype="i64"), buffer("s", m, n, dtype=dtype)
    place = (Index.indirect(at(ids, I[0]), rows), I[1])
    value = cast(op("mul", wide(s, I[0], I[1]), 2.0), dtype) if dtype in FLOATS else at(s)
    definitions = [pointwise(base, at(x)), Map(y, axes(m, n), place, value, base, how)]
    return of(definitions, "y", x, ids, s, seed=5, tolerance=4 * TOLERANCE.get(dtype, 1e-4))


def updated_elements(how="sum", m=23, n=9, dtype="f32", columns=5):
    """Elements each of which has a place of its own in its row."""
    x, base, y = (buffer(name, m, columns, dtype=dtype) for name in ("x", "base", "y"))
    ids, s = buffer("ids", m, n, dtype="i64"), buffer("s", m, n, dtype=dtype)
    place = (I[0], Index.indirect(at(ids, I[0], I[1]), columns))
    definitions = [pointwise(base, at(x)), Map(y, axes(m, n), place, at(s), base, how)]
    return of(definitions, "y", x, ids, s, seed=6, tolerance=4 * TOLERANCE.get(dtype, 1e-4))


def updated_numbers(how="sum", n=2000, dtype="f32", places=5):
    """A flat kernel, whose threads meet at few places."""
    x, base, y = (buffer(name, places, dtype=dtype) for name in ("x", "base", "y"))
    ids, s = buffer("ids", n, dtype="i64"), buffer("s", n, dtype=dtype)
    place = (Index.indirect(at(ids, I[0]), places),)
    definitions = [pointwise(base, at(x)), Map(y, axes(n), place, at(s), base, how)]
    return of(definitions, "y", x, ids, s, seed=7, tolerance=16 * TOLERANCE.get(dtype, 1e-4))


def cross_entropy(m=6, n=50):
    """The loss of each row: the value at its label, after a softmax."""
    x, labels, y = buffer("x", m, n), buffer("labels", m, dtype="i64"), buffer("y", m)
    top, total = buffer("top", m), buffer("total", m)
    definitions = [
        reduce(top, (n,), "max", at(x, I[0], I[1])),
        reduce(total, (n,), "sum", op("exp", op("sub", at(x, I[0], I[1]), at(top, I[0])))),
        pointwise(
            y,
            op(
                "sub",
                op("add", op("log", at(total)), at(top)),
                Load(x, (I[0], Index.indirect(at(labels), n))),
            ),
        ),
    ]
    return of(definitions, "y", x, labels)


def mirrored(m=4, n=70):
    """A softmax whose numerators are read from the other end: by other threads than wrote them."""
    x, y, total, powers = buffer("x", m, n), buffer("y", m, n), buffer("total", m), buffer("powers", m, n)
    definitions = [
        pointwise(powers, op("exp", at(x))),
        reduce(total, (n,), "sum", at(powers, I[0], I[1])),
        pointwise(y, op("div", at(powers, I[0], as_index(n - 1) - I[1]), at(total, I[0]))),
    ]
    return of(definitions, "y", x)


def normed_rows(rows_now=7, columns_now=33):
    """A softmax of open sizes."""
    m, n = Index.sym("m"), Index.sym("n")
    one = as_index(1)
    x, y = (Buffer(name, "f32", (m, n), (n, one)) for name in "xy")
    top, total = (Buffer(name, "f32", (m,), (one,)) for name in ("top", "total"))
    row, column = Axis("i0", m), Axis("i1", n)
    powers = op("exp", op("sub", at(x), at(top, I[0])))
    definitions = [
        Reduce(top, (row,), (column,), (I[0],), "max", at(x)),
        Reduce(total, (row,), (column,), (I[0],), "sum", powers),
        Map(y, (row, column), (I[0], I[1]), op("div", powers, at(total, I[0]))),
    ]
    given = inputs_of(0, buffer("x", rows_now, columns_now))
    return Case(definitions, frozenset("y"), given, {"m": rows_now, "n": columns_now})


def counted(n=37):
    """Places, and what depends on them."""
    y = buffer("y", n, dtype="i64")
    return of([pointwise(y, op("mul", IndexValue(I[0] // 3, "i64"), Const(2, "i64")))], "y", tolerance=0)


def losses(m=512, n=64, dtype="f32"):
    """The mean of the cross entropy of rows, but those whose label is less than 0."""
    x, labels, y = buffer("x", m, n, dtype=dtype), buffer("labels", m, dtype="i64"), buffer("y")
    top, total, loss = (buffer(name, m) for name in ("top", "total", "loss"))
    known = op("ge", at(labels, I[0]), 0, dtype="bool")
    label = Index.indirect(op("where", known, at(labels, I[0]), Const(0, "i64"), dtype="i64"), n)
    apart = op("sub", wide(x, I[0], I[1]), at(top, I[0]))
    left = op("sub", op("log", at(total, I[0])), op("sub", wide(x, I[0], label), at(top, I[0])))
    definitions = [
        reduce(top, (n,), "max", wide(x, I[0], I[1])),
        reduce(total, (n,), "sum", op("exp", apart)),
        pointwise(loss, op("where", known, left, Const(0.0, "f32"))),
        reduce(y, (m,), "sum", at(loss, I[0]), mean_of(m)),
    ]
    case = of(definitions, "y", x, labels, tolerance=1e-3)
    case.inputs["labels"][:] = np.random.default_rng(0).integers(-1, n, m)
    return case


def moments(m=2, n=32768, dtype="f32"):
    """The mean and the variance of each row."""
    x, mean, var = buffer("x", m, n, dtype=dtype), buffer("mean", m), buffer("var", m)
    apart = op("sub", wide(x, I[0], I[1]), at(mean, I[0]))
    definitions = [
        reduce(mean, (n,), "sum", wide(x, I[0], I[1]), mean_of(n)),
        reduce(var, (n,), "sum", op("product", apart, apart), mean_of(n - 1)),
    ]
    return of(definitions, "mean var", x, tolerance=1e-3)


def dropout(m=16, n=300, width=4):
    """x where a word of the stream of one of 512 threads is small, which takes `width` elements at a turn."""
    given = torch.rand(m, n), torch.tensor([-5, 12])
    with Recorder() as recorder:
        x, state = (recorder.input(tensor, name) for tensor, name in zip(given, ("x", "state"), strict=True))
        order, words = [n, 1], max(width, 4) if width > 1 else 1
        drawn = torch.ops.lampwork.philox_words(state, [m, n], order, order, 4, 512, width, words, 0)
        y = x * (((drawn ^ -(2**31)) <= 2**30).to(torch.float32) * 1.25)
    lowered = lower_graph(recorder.finish([y]).graph, templates=False)
    names = [buffer.name for buffer in lowered.placeholders if buffer is not None]
    inputs = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
    return Case(lowered.definitions, frozenset(out.buffer.name for out in lowered.outputs), inputs)


FAMILIES = {
    "flat": flat,
    "broadcast": broadcast,
    "transpose": transpose,
    "softmax": softmax,
    "softmax of columns": softmax_of_columns,
    "planes": planes,
    "layer_norm": layer_norm,
    "sum of rows": rows,
    "sum of columns": columns,
    "sum of all": total,
    "argmax": lambda: rows("argmax"),
    "scan": scan,
    "scan of columns": lambda: scan(along=0),
    "gather": gather,
    "updated": updated,
    "updated elements": updated_elements,
    "larger rows": lambda: updated("max"),
    "smaller numbers": lambda: updated_numbers("min", 300),
    "cross_entropy": cross_entropy,
    "mirrored": mirrored,
    "open sizes": normed_rows,
    "places": counted,
}

CUT = {
    "softmax of long rows": lambda: softmax(2, 32768),
    "softmax of long rows of bf16": lambda: softmax(1, 65536, "bf16"),
    "layer_norm of long rows": lambda: layer_norm(2, 32768),
    "moments of long rows": moments,
    "blocks of columns": lambda: columns("sum", 256, 64),
    "blocks of columns of bf16": lambda: columns("max", 96, 160, "bf16"),
    "blocks of many lines": lambda: columns("sum", 512, 32),
    "blocks of many lines of bf16": lambda: columns("max", 768, 64, "bf16"),
    "pieces of columns": lambda: columns("sum", 4096, 16),
    "pieces of columns of bf16": lambda: columns("sum", 4096, 32, "bf16"),
    "losses": losses,
    "losses of a block's rows": lambda: losses(24, 1024, "bf16"),
    "transpose of bf16": lambda: transpose(64, 128, "bf16"),
    "transpose of bytes": lambda: transpose(64, 64, "u8"),
    "transpose of doubles": lambda: transpose(64, 32, "f64"),
}
"""Work that the card of the tests shares among more groups than there are results."""
