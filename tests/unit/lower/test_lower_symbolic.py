"""The tables of operators with every size a symbol: compiled once, right for all sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from symbolic_harness import check_sizes, compile_symbolic, record
from test_lower_nn import (
    ATTENTIONS,
    INDEXING,
    INDICES,
    MASK,
    POOLS,
    PRODUCTS,
    REARRANGED,
    REDUCTIONS,
    K,
    Q,
    V,
    X,
)
from test_lower_pointwise import BINARY

from lampwork.backends.native import compile as native
from lampwork.backends.native import generate
from lampwork.backends.native.print_program import format_program
from lampwork.backends.protocol import CompileOptions
from lampwork.errors import CodegenError
from lampwork.graph.symbols import SymbolicInt
from lampwork.loops.ir.nodes import Extern
from lampwork.loops.ir.printing import format_definitions, format_kernel
from lampwork.runtime import Executable, Program

IMAGE = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(0))
NAMED = ["a", "b", "c", "d"]

# Sizes from 2 on: small, prime, next to a vector's width, larger than a tile.
X_SIZES = [
    dict(zip(NAMED, sizes, strict=True))
    for sizes in ((2, 3, 4, 5), (5, 3, 7, 17), (3, 2, 33, 6), (2, 11, 5, 64))
]


def free_of(conditions, names) -> bool:
    """Whether no condition fixes a size."""
    return not any(c.op == "==" for c in conditions)


def check_table(table, inputs, names, sizes, least: int, skipped=()):
    """All functions of a table that say nothing about the sizes, in one program; there are at least so many."""
    fits = {}
    for name, fn in table.items():
        if name in skipped:
            continue
        _, recorder, _ = record(fn, inputs, names)
        if free_of(recorder.scope.conditions, names):
            fits[name] = fn
    assert len(fits) >= least, (len(fits), sorted(table.keys() - fits.keys()))

    def every(*args):
        found = []
        for fn in fits.values():
            result = fn(*args)
            found.extend(result if isinstance(result, tuple | list) else [result])
        return found

    compiled = compile_symbolic(every, inputs, names)
    assert check_sizes(compiled, every, inputs, names, sizes, 32) >= 2, [str(c) for c in compiled.conditions]


def test_reductions():
    check_table(REDUCTIONS, [X], [NAMED], X_SIZES, 40)


def test_rearrangements():
    # What they do at the end of a dimension depends on its size, which other conditions than equality may say.
    check_table(
        REARRANGED, [X], [NAMED], X_SIZES, 25, {"upsample", "upsample_size", "roll_two", "rotate_half"}
    )


def test_indexing():
    inputs = [X, INDICES]
    names = [NAMED, [None] * INDICES.dim()]
    check_table(INDEXING, inputs, names, X_SIZES, 5, {"take_along_dim"})


def test_binary():
    inputs = [torch.randn(16), torch.randn(16)]
    sizes = [{"a": size} for size in (16, 2, 3, 17, 1031)]
    check_table(
        {n: f for n, f in BINARY.items() if n in ("add", "sub", "mul", "div")},
        inputs,
        [["a"], ["a"]],
        sizes,
        3,
    )


@pytest.mark.parametrize(
    "name", sorted(POOLS.keys() - {"adaptive_even", "adaptive_uneven", "adaptive_larger"})
)
def test_pools(name):
    compiled = compile_symbolic(POOLS[name], [IMAGE], [NAMED])
    sizes = [
        dict(zip(NAMED, (2, c, h, w), strict=True)) for c, h, w in ((3, 9, 11), (5, 19, 21), (3, 14, 16))
    ]
    assert check_sizes(compiled, POOLS[name], [IMAGE], [NAMED], sizes) >= 2, [
        str(c) for c in compiled.conditions
    ]


@pytest.mark.parametrize("name", ["scaled", "causal", "row_mask", "plain"])
def test_attention(name):
    names = [["b", "h", "q", None], ["b", "h", "k", None], ["b", "h", "k", None], [None] * MASK.dim()]
    inputs = [Q, K, V, MASK]
    if name == "row_mask":
        names[3] = ["k"] if MASK.dim() == 1 else [None] * (MASK.dim() - 1) + ["k"]
    compiled = compile_symbolic(ATTENTIONS[name], inputs, names)
    same = {"q": Q.shape[2], "k": K.shape[2]}
    sizes = [{"b": b, "h": h, **same} for b, h in ((2, 4), (3, 5), (7, 2))]
    sizes += [{"b": 2, "h": 3, "q": t, "k": t} for t in (2, 7, 50)]
    served = [s for s in sizes if {*s} >= {*compiled.symbols}]
    sizes = [{n: v for n, v in s.items() if n in compiled.symbols} for s in served]
    assert check_sizes(compiled, ATTENTIONS[name], inputs, names, sizes, 16) >= 2


@pytest.mark.parametrize("isa", [None, "avx2", "sse4"])
@pytest.mark.parametrize("rows", [2, 5, 8, 64])
@pytest.mark.parametrize("columns", [10, 48, 129])
def test_linear(rows, columns, isa):
    """Tiles chosen for a few rows and for many serve any number of them."""
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(columns, 33, generator=generator), torch.randn(columns, generator=generator)

    def fn(x):
        return F.gelu(F.linear(x, weight, bias)), torch.relu(F.linear(x, weight, bias))

    inputs = [torch.randn(rows, 33)]
    compiled = compile_symbolic(fn, inputs, [["n", None]], isa)
    sizes = [{"n": n} for n in (2, 3, 4, 7, 8, 9, 12, 31, 256, 509, 511, 521)]
    assert check_sizes(compiled, fn, inputs, [["n", None]], sizes, 16) == len(sizes)


@pytest.mark.parametrize("name", ["mm", "mm_transposed", "bmm", "bmm_transposed", "baddbmm", "matmul_31"])
def test_products(name):
    fn, *inputs = PRODUCTS[name]
    names = [[f"s{size}" for size in tensor.shape] for tensor in inputs]
    compiled = compile_symbolic(fn, inputs, names)
    hints = {
        n: s
        for tensor, dims in zip(inputs, names, strict=True)
        for n, s in zip(dims, tensor.shape, strict=True)
    }
    sizes = [hints] + [
        {n: s * factor + extra for n, s in hints.items()}
        for factor, extra in ((1, 1), (7, 3), (20, 0), (60, 1))
    ]
    assert check_sizes(compiled, fn, inputs, names, sizes, 64) >= 3


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = {
    "scale": lambda x: x * x.shape[0] + x.shape[1],
    "divide": lambda x: x / x.shape[1],
    "divide_integers": lambda x: (x * 10).long() // x.shape[0] + (x * 10).long() % x.shape[1],
    "full": lambda x: (
        torch.full((x.shape[0], 3), x.shape[1]) + torch.full((3,), x.shape[0], dtype=torch.float64)
    ),
    "range": lambda x: torch.arange(x.shape[0], x.shape[0] + x.shape[1]) * x.shape[0],
    "range_step": lambda x: torch.arange(0, x.shape[1] * 3, 3),
    "mask": lambda x: x.masked_fill(torch.arange(x.shape[1]) < x.shape[0], 0.5),
    "causal": lambda x: torch.ones(x.shape[1], x.shape[1]).tril() @ x.t(),
    "slice": lambda x: x[:, 1 : x.shape[1] - 1],
    "halves": lambda x: torch.cat([x[: x.shape[0] // 2], x[x.shape[0] // 2 :] * 2]),
    "ceil": lambda x: x.new_zeros(-(-x.shape[0] // 2), x.shape[1]) + x[0],
    "flatten": lambda x: x.reshape(-1) * x.numel(),
    "expand": lambda x: x.unsqueeze(1).expand(-1, x.shape[0], -1).reshape(-1, x.shape[1]),
    "pad": lambda x: F.pad(x, (x.shape[0], 1)),
    "roll": lambda x: x.roll(1, 0) + x.flip(1),
    "cumsum": lambda x: x.cumsum(0) + x.cumsum(1),
    "moments": lambda x: (x.var(0), x.std(), x.mean(1)),
    "sort": lambda x: x.sort(1).values * x.shape[0],
    "repeat": lambda x: x.repeat(2, x.shape[0]),
    "strided": lambda x: x[::2, ::3].contiguous(),
    "topk_of_ones": lambda x: x.new_ones(x.shape).topk(2, 1).values,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    """Sizes as numbers: in kernels, in views and in arguments of ATen calls."""
    inputs, names = [torch.randn(4, 9)], [["n", "m"]]
    compiled = compile_symbolic(NUMBERS[name], inputs, names)
    sizes = [{"n": n, "m": m} for n, m in ((4, 9), (2, 3), (6, 17), (5, 4), (10, 131))]
    assert check_sizes(compiled, NUMBERS[name], inputs, names, sizes) >= 3, [
        str(c) for c in compiled.conditions
    ]


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"size": (7, 20)}, {"scale_factor": 1.5}])
def test_resizing(mode, options):
    """Of any batch; of any height and width too where the new size is a multiple, or does not depend on them."""

    def fn(x):
        return F.interpolate(x, mode=mode, **options) + 1

    names = [["n", None, "h", "w"] if options != {"scale_factor": 1.5} else ["n", None, None, None]]
    inputs = [torch.randn(2, 3, 6, 10)]
    compiled = compile_symbolic(fn, inputs, names)
    sizes = [{"n": n, "h": h, "w": w} for n, h, w in ((2, 6, 10), (3, 6, 10), (5, 9, 4), (2, 31, 7))]
    sizes = [{name: size for name, size in each.items() if name in compiled.symbols} for each in sizes]
    assert check_sizes(compiled, fn, inputs, names, sizes, 16) >= 3, [str(c) for c in compiled.conditions]


def test_a_call_gets_numbers_for_its_symbols():
    compiled = compile_symbolic(
        lambda x: x.sort(1).values.view(-1, x.shape[0]), [torch.randn(4, 9)], [["n", None]]
    )
    calls = [d for d in compiled.artifacts.definitions if isinstance(d, Extern)]
    assert len(calls) == 1
    program = compiled.program.instantiate(compiled.values({"n": 7}))
    assert not any(isinstance(number, SymbolicInt) for value in program.values for number in value.shape)


def test_what_depends_on_sizes_is_no_constant():
    """A slice of a weight is no constant of all sizes: it is read where it lies, on each call."""
    table = torch.randn(512, 8)
    compiled = compile_symbolic(lambda x: x + table[: x.shape[0]] * 2, [torch.randn(4, 8)], [["n", None]])
    assert compiled.artifacts.program is not None and compiled.artifacts.program.constants is None
    sizes = [{"n": n} for n in (2, 3, 512)]
    assert (
        check_sizes(
            compiled, lambda x: x + table[: x.shape[0]] * 2, [torch.randn(4, 8)], [["n", None]], sizes
        )
        == 3
    )


def test_programs_of_all_sizes_share_constants_and_code():
    weight = torch.randn(96, 64)
    compiled = compile_symbolic(lambda x: F.linear(x, weight), [torch.randn(8, 64)], [["n", None]])
    small, large = (compiled.program.instantiate(compiled.values({"n": n})) for n in (2, 300))
    assert small.constants is not None and small.constants is large.constants
    assert [step.code.address for step in small.instructions] == [
        step.code.address for step in large.instructions
    ]
    assert small.arena_bytes <= large.arena_bytes


def test_text(golden):
    """What a program for all sizes looks like: kernels over symbols, and the program for one choice of them."""

    def fn(x, mask):
        scores = (x @ x.transpose(-1, -2) * 0.5 + mask).softmax(-1)
        return (scores @ x).transpose(0, 1).reshape(x.shape[1], -1) * x.shape[0]

    inputs = [torch.zeros(2, 5, 8), torch.zeros(5, 5)]
    compiled = compile_symbolic(fn, inputs, [["n", "m", None], ["m", "m"]], "avx2")
    generated = compiled.artifacts.generated
    assert generated is not None
    program = compiled.program.instantiate(compiled.values({"n": 3, "m": 7}))
    parts = [
        "# definitions",
        format_definitions(compiled.artifacts.definitions),
        "# conditions",
        *map(str, compiled.conditions),
        "# kernels",
        *map(format_kernel, generated.kernels),
        "# program for n = 3, m = 7",
        format_program(program),
    ]
    golden("stages/symbolic_sizes", "\n".join(parts))


def test_what_cannot_be_compiled_for_all_sizes_is_compiled_for_these(monkeypatch):
    """A failure with symbols fixes them by conditions; it never passes for a program for all sizes."""
    recorded, recorder, symbols = record(lambda x: x * 2, [torch.randn(4, 9)], [["n", None]])
    failures = []

    def generate_static(groups, constant_groups, isa, hints, *rest):
        if any(size.symbols() for group in groups for out in group.outs for size in out.shape):
            failures.append(hints)
            raise CodegenError("no schedule for symbols")
        return generate.generate(groups, constant_groups, isa, hints, *rest)

    monkeypatch.setattr(native, "generate", generate_static)
    program = native.NativeBackend().compile(recorded.graph, (), CompileOptions())
    assert len(failures) == 1 and isinstance(program, Program)
    assert [str(condition) for condition in recorder.scope.conditions] == [f"{symbols['n']} == 4"]
    x = torch.randn(4, 9)
    assert torch.equal(Executable(program, []).run([x])[recorded.outputs[0]], x * 2)
