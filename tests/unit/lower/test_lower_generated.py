"""The same tables through generated code: fused, scheduled, compiled, run.

One program holds a whole table, so that a thousand expressions cost one compilation.
"""

from __future__ import annotations

import pytest
import torch
from lower_harness import compare, record
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
from test_lower_pointwise import BINARY, LOOSE, UNARY, inputs_of, pairs

from lampwork import config
from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.runtime import Executable


def check_table(table, names, inputs, scale=4.0):
    """Every function of the table, of the same inputs, in one program."""
    expected = {name: table[name](*inputs) for name in names}

    def every(*args):
        found = []
        for name in names:
            result = table[name](*args)
            found.extend(result if isinstance(result, tuple | list) else [result])
        return found

    recorded = record(every, inputs)
    with config.using(verify=True):
        program = compile_program(recorded.graph, (), host_isa(None), Artifacts())
    executable = Executable(program, [given.tensor for given in recorded.bound])
    results = executable.run([given.tensor for given in recorded.inputs])
    numbers = iter(recorded.outputs)
    wrong = []
    for name, want in expected.items():
        for tensor in want if isinstance(want, tuple | list) else [want]:
            try:
                compare(results[next(numbers)], tensor, scale)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_unary(dtype):
    half = dtype in (torch.bfloat16, torch.float16)
    # A power of -0.5 and 0.5 of -inf and -0.0 is another thing in float16, and only there.
    names = sorted(UNARY.keys() - (LOOSE | {"gelu", "pow_minus_half"} if half else {"gelu"}))
    check_table(UNARY, names, [inputs_of("", dtype)])
    check_table(UNARY, ["gelu"], [inputs_of("gelu", dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary(dtype):
    check_table(BINARY, [name for name in BINARY if not name.startswith("lerp")], pairs(dtype))


@pytest.mark.parametrize("table", ["reductions", "rearranged", "pools", "indexing", "attention"])
def test_table(table):
    if table == "indexing":
        return check_table(INDEXING, list(INDEXING), [X, INDICES])
    if table == "attention":
        return check_table(ATTENTIONS, list(ATTENTIONS), [Q, K, V, MASK], 8)
    functions = {"reductions": REDUCTIONS, "rearranged": REARRANGED, "pools": POOLS}[table]
    check_table(functions, list(functions), [X], 8)
    return None


def test_products():
    for names in (
        [n for n in PRODUCTS if n.startswith("matmul")],
        [n for n in PRODUCTS if not n.startswith("matmul")],
    ):
        given = [PRODUCTS[name][1:] for name in names]
        inputs = [tensor for tensors in given for tensor in tensors]
        table, start = {}, 0
        for name, tensors in zip(names, given):
            fn, stop = PRODUCTS[name][0], start + len(tensors)
            table[name] = lambda *args, fn=fn, start=start, stop=stop: fn(*args[start:stop])
            start = stop
        check_table(table, names, inputs, 8)
