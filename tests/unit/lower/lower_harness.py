"""Records a function, lowers its graph, evaluates the definitions with numpy and compares with eager torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lampwork.graph.record import Recorder
from lampwork.loops.ir.nodes import Buffer, Extern, Opaque, View
from lampwork.loops.ir.verify import verify_definitions
from lampwork.loops.reference.evaluate import evaluate_definitions
from lampwork.lower.dtypes import TORCH_DTYPES
from lampwork.lower.lowering import Lowered, lower_graph

NUMPY = frozenset({*TORCH_DTYPES.values()}) - {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def record(fn, inputs, bound=()):
    with Recorder() as rec:
        args = [rec.input(tensor, f"x{n}") for n, tensor in enumerate(inputs)]
        args += [rec.input(tensor, f"p{n}", bound=True) for n, tensor in enumerate(bound)]
        result = fn(*args)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    return rec.finish(outputs)


def to_numpy(tensor: torch.Tensor) -> Any:
    if tensor.dtype.is_complex:
        return tensor
    plain = tensor.detach()
    return (plain if plain.dtype in NUMPY else plain.float()).numpy().copy()


def in_memory(buffer: Buffer, array: Any) -> torch.Tensor:
    """A tensor that starts at the buffer's first element and lies as the buffer says."""
    if isinstance(array, torch.Tensor):
        return array
    shape = [size.as_int() for size in buffer.shape]
    strides = [stride.as_int() for stride in buffer.strides]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if 0 not in shape else 0
    memory = torch.zeros(max(extent, 1), dtype=TORCH_DTYPES[buffer.dtype])
    memory.as_strided(shape, strides).copy_(torch.from_numpy(np.ascontiguousarray(array)).reshape(shape))
    return memory.as_strided(shape, strides)


def through(view: View, array: Any) -> torch.Tensor:
    if isinstance(view.buffer, Opaque):
        return array
    base = in_memory(view.buffer, array)
    shape = [size.as_int() for size in view.shape]
    strides = [stride.as_int() for stride in view.strides]
    return base.as_strided(shape, strides, view.offset.as_int())


def run_extern(extern: Extern, arrays) -> dict[str, Any]:
    def decode(value):
        if isinstance(value, View):
            return through(value, arrays[value.buffer.name])
        if isinstance(value, list | tuple):
            return type(value)(decode(item) for item in value)
        return value

    namespace, _, rest = extern.target.partition("::")
    name, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    result = operator(*decode(extern.args), **{key: decode(value) for key, value in extern.kwargs})
    results = list(result) if isinstance(result, tuple | list) else [result]
    found: dict[str, Any] = {}
    for out, tensor in zip(extern.outs, results, strict=True):
        if isinstance(out, Opaque):
            found[out.name] = tensor
            continue
        assert tensor.dtype == TORCH_DTYPES[out.dtype]
        assert tuple(tensor.shape) == tuple(size.as_int() for size in out.shape)
        planned = [stride.as_int() for stride in out.strides]
        assert same_strides(tensor.shape, tensor.stride(), planned), (extern.target, tensor.stride(), planned)
        found[out.name] = to_numpy(tensor)
    return found


def same_strides(shape, have, want) -> bool:
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, have, want, strict=True))


def run(lowered: Lowered, tensors) -> list[torch.Tensor]:
    """The outputs, as the program would give them; `tensors` are those of all placeholders."""
    inputs = {
        buffer.name: tensor if isinstance(buffer, Opaque) else to_numpy(tensor)
        for buffer, tensor in zip(lowered.placeholders, tensors, strict=True)
        if buffer is not None
    }
    verify_definitions([*lowered.constant, *lowered.definitions])
    arrays = evaluate_definitions([*lowered.constant, *lowered.definitions], inputs, externs=run_extern)
    results = []
    for output in lowered.outputs:
        array = arrays[output.buffer.name]
        if isinstance(output.buffer, Opaque):
            results.append(array)
        elif output.view is None:
            results.append(in_memory(output.buffer, array))
        else:
            assert output.view.buffer == output.buffer
            results.append(through(output.view, array))
    return results


def externs(lowered: Lowered) -> list[str]:
    return [d.target for d in (*lowered.constant, *lowered.definitions) if isinstance(d, Extern)]


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def compare(result: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert same_strides(expected.shape, result.stride(), expected.stride()), (
        result.stride(),
        expected.stride(),
    )
    if expected.dtype.is_floating_point and expected.dtype.itemsize == 1:
        torch.testing.assert_close(result.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
    elif expected.dtype.is_floating_point:
        tolerance = TOLERANCE[expected.dtype] * scale
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        assert torch.equal(result, expected)


def check(fn, *inputs, bound=(), extern: bool = False, scale: float = 1.0) -> Lowered:
    """fn(*inputs, *bound) through lowering equals eager: values, dtype, shape, strides. `extern`: whether ATen calls
    are expected."""
    expected = fn(*inputs, *bound)
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    recorded = record(fn, inputs, bound)
    lowered = lower_graph(recorded.graph)
    placeholders = [given.tensor for given in (*recorded.inputs, *recorded.bound)]
    results = run(lowered, placeholders)
    assert len(expected) == len(recorded.outputs)
    for number, want in zip(recorded.outputs, expected):
        compare(results[number], want.detach(), scale)
    assert bool(externs(lowered)) == extern, externs(lowered)
    return lowered
