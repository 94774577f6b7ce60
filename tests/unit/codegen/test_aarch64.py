"""Code for AArch64, run by an emulator: every kind of kernel, held to the results of eager and of code for x86-64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulated_machine import MISSING, EmulatedMachine, Job
from instruction_sets import HERE
from torch import Tensor, nn

import lampwork
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING} here")

f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@dataclass(frozen=True, slots=True)
class Case:
    """`within`: how far results may be from eager's in float64, as a part of the largest of them; 0: not at all from
    eager's."""

    fn: Callable[..., Any]
    inputs: Sequence[Tensor]
    bound: Sequence[Tensor] = ()
    within: float = 1e-6


def _random(*shape: int, dtype: torch.dtype = f32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator, dtype=f64).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype is torch.uint8 else -100
    return torch.randint(low, 100, shape, generator=generator).to(dtype)


def _image(*shape: int, seed: int = 0) -> Tensor:
    return _random(*shape, seed=seed).contiguous(memory_format=torch.channels_last)


def _special(dtype: torch.dtype) -> Tensor:
    """Numbers of all magnitudes, and the limits."""
    limits = torch.finfo(dtype)
    some = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-3, -1e-3, 3.0, 20.0, -20.0, 100.0, -100.0, 1e4, -1e4]
    ends = [float("inf"), float("-inf"), float("nan"), limits.max, limits.min, limits.tiny, -limits.tiny]
    spread = (_random(37, seed=5).double() * 10 ** _random(37, seed=6).double()).tolist()
    return torch.tensor([*some, *ends, limits.tiny / 4, -limits.tiny / 4, limits.eps, *spread], dtype=dtype)


UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid "
    "sqrt rsqrt reciprocal floor ceil round trunc frac sign abs neg isnan isinf signbit"
).split()
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
}
BINARY = "add sub mul div pow atan2 fmod remainder copysign logaddexp maximum minimum fmax fmin lt eq".split()
INTEGER = "add sub mul bitwise_and bitwise_or bitwise_xor maximum minimum lt eq".split()
DTYPES = (f32, f64, bf16, f16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _unary(x: Tensor) -> tuple[Tensor, ...]:
    return (*(getattr(torch, name)(x) for name in UNARY), *(fn(x) for fn in ACTIVATIONS.values()))


def _binary(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return tuple(getattr(torch, name)(x, y) for name in BINARY)


def _integer(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    divided = (torch.div(x, 7, rounding_mode="floor"), x % 7, torch.div(x, 3, rounding_mode="trunc"))
    return (*(getattr(torch, name)(x, y) for name in INTEGER), *divided, x.sum(), x.amax(0), (x > y).any(1))


def _casts(*given: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) for x in given for dtype in DTYPES if dtype is not x.dtype)


EXACT = {
    **{
        f"{kind} {dtype}": (fn, inputs)
        for dtype in (f32, f64, bf16, f16)
        for kind, fn, inputs in (
            ("unary", _unary, [_special(dtype)]),
            ("binary", _binary, [_special(dtype), _special(dtype).flip(0).contiguous()]),
        )
    },
    **{
        f"integer {dtype}": (_integer, [_random(9, 13, dtype=dtype), _random(9, 13, dtype=dtype, seed=1)])
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    },
    "casts": (_casts, [_random(61, dtype=dtype).abs() for dtype in DTYPES[:-1]]),
    "casts of bool": (_casts, [_random(61, dtype=torch.bool)]),
    "float8": (
        lambda x: tuple(x.to(t).float() for t in (torch.float8_e4m3fn, torch.float8_e5m2)),
        [_special(f32).clamp(-400, 400).nan_to_num()],
    ),
}
"""Without sums whose order depends on the vectors: bit for bit the results of code for x86-64 with FMA."""


def _reductions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        *(x.sum(dim) for dim in (0, 1, 2)),
        x.mean((1, 2)),
        x.var(-1),
        x.amax(0),
        x.amin(2),
        x.argmax(1),
        x.argmin(2),
        x.logsumexp(2),
        x.norm(dim=1),
        x.cumsum(1),
        (x > 2).any(2),
        (x > -4).all(0),
        x.sum(),
    )


def _norms(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (
        F.softmax(x, -1),
        F.log_softmax(x, 1),
        F.layer_norm(x, x.shape[-1:], w, b),
        F.rms_norm(x, x.shape[-1:], w),
        F.group_norm(x, 5),
    )


def _epilogues(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    z = F.linear(x, w, b)
    return F.gelu(z), F.softmax(F.linear(x, w), -1), z + y, torch.tanh(F.linear(y, w.t()))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    return (
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, mask),
        F.scaled_dot_product_attention(q[:, :, :1], k, v),
    )


def _quantized(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.float() * scale[:, None])


def _int8(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    step = x.abs().amax(1, keepdim=True) / 127
    sums: Any = torch.ops.aten._int_mm((x / step).round().to(torch.int8), w.t())
    return sums.float() * step * scale


def _int8_conv(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    numbers = (x * 50).round().clamp(-127, 127).to(torch.int8)
    return F.conv2d(numbers.float(), w.float() * scale, padding=1)


def _indexing(x: Tensor, table: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    return (
        F.embedding(rows, table),
        x.gather(1, rows[:, :3]),
        x.index_select(0, rows[:, 1]),
        x.slice_scatter(-x[:, :3], 1, 2, 5),
        x[rows[:, 0]],
        torch.where(x > 0, x, -x.flip(1)),
        torch.cat([x, x * 2, x[:, :2]], 1),
        F.pad(x, (1, 2), value=3.0),
        x.t().contiguous(),
        x.roll(2, 1),
    )


def _pools(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.max_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 2),
        F.adaptive_avg_pool2d(x, 1),
        F.interpolate(x, scale_factor=2.0, mode="nearest"),
        F.interpolate(x, size=(9, 11), mode="bilinear"),
    )


def _convolved(x: Tensor, w: Tensor, b: Tensor, **how: Any) -> Tensor:
    return F.relu(F.conv2d(x, w, b, **how))


def _layer(layer: nn.Module) -> tuple[Callable[..., Any], list[Tensor]]:
    """A layer as a function of its input and its weights."""
    names, weights = zip(*layer.named_parameters(), strict=True)

    def fn(x: Tensor, *given: Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, given, strict=True)), (x,))[0]

    return fn, [weight.detach() for weight in weights]


def _products() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for dtype, within in ((f32, 1e-6), (bf16, 1e-2), (f16, 1e-3)):
        x, y, w, b = (
            _random(*shape, dtype=dtype, seed=seed)
            for seed, shape in enumerate(((50, 300), (50, 70), (70, 300), (70,)))
        )
        found[f"product {dtype}"] = Case(_epilogues, [x, y], [w / 17, b], within)
        found[f"few rows {dtype}"] = Case(F.linear, [_random(2, 300, dtype=dtype)], [w], within)
        q, k, v = (_random(1, 2, 40, 16, dtype=dtype, seed=seed) for seed in range(3))
        found[f"attention {dtype}"] = Case(_sdpa, [q, k, v, _random(40, 40, dtype=torch.bool)], (), within)
    found["product of float64"] = Case(
        F.linear, [_random(50, 300, dtype=f64)], [_random(70, 300, dtype=f64)], 1e-14
    )
    found["batched"] = Case(torch.matmul, [_random(3, 20, 33), _random(3, 33, 17, seed=1)])
    w, scale = _random(70, 64, dtype=torch.int8), _random(70).abs() / 64
    found["quantized weights"] = Case(_quantized, [_random(50, 64)], [w, scale])
    found["int8"] = Case(_int8, [_random(50, 64)], [w, scale])
    taps = _random(24, 16, 3, 3, dtype=torch.int8)
    found["int8 convolution"] = Case(
        _int8_conv, [_image(1, 16, 7, 8)], [taps, _random(24, 1, 1, 1).abs() / 64]
    )
    return found


def _convolutions() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name, channels, shape, how in (
        ("3 x 3", 16, (24, 16, 3, 3), {"padding": 1}),
        ("strided", 3, (20, 3, 7, 7), {"stride": 2, "padding": 3}),
        ("1 x 1", 32, (24, 32, 1, 1), {}),
        ("grouped", 32, (32, 8, 3, 3), {"groups": 4}),
        ("depthwise", 32, (32, 1, 3, 3), {"groups": 32, "padding": 1}),
        ("dilated", 16, (16, 16, 3, 3), {"dilation": 2}),
    ):

        def fn(x: Tensor, w: Tensor, b: Tensor, how: Any = how) -> Tensor:
            return _convolved(x, w, b, **how)

        inputs = [_image(1, channels, 11, 12)]
        found[f"convolution {name}"] = Case(fn, inputs, [_random(*shape, seed=1) / 8, _random(shape[0])])
    up = _random(16, 24, 4, 4) / 8
    found["transposed"] = Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), [_image(1, 16, 5, 6)], [up]
    )
    return found


def _layers() -> dict[str, Case]:
    torch.manual_seed(0)
    found: dict[str, Case] = {}
    for kind in (nn.LSTM, nn.GRU):
        fn, weights = _layer(kind(12, 20, 2, batch_first=True))
        found[kind.__name__] = Case(fn, [_random(3, 7, 12)], weights)
    return found


CASES = {
    "reductions": Case(_reductions, [_random(5, 19, 67)]),
    "norms": Case(_norms, [_random(3, 10, 67), *(_random(67, seed=n) for n in (1, 2))]),
    "norms of bfloat16": Case(
        _norms, [_random(3, 10, 67, dtype=bf16), *(_random(67, dtype=bf16, seed=n) for n in (1, 2))], (), 1e-2
    ),
    "indexing": Case(
        _indexing, [_random(12, 9), _random(40, 8), _random(12, 4, dtype=torch.int64).abs() % 9], (), 0
    ),
    "pools": Case(_pools, [_random(2, 3, 12, 14)]),
    **_products(),
    **_convolutions(),
    **_layers(),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Job]:
    """All cases, run in one process."""
    machine = EmulatedMachine(tmp_path_factory.mktemp("aarch64"), "aarch64")
    found = {name: machine.add(fn, inputs) for name, (fn, inputs) in EXACT.items()}
    found |= {name: machine.add(case.fn, case.inputs, case.bound) for name, case in CASES.items()}
    machine.run()
    return found


def _several(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple | list) else [results]


@pytest.mark.every_case
@pytest.mark.skipif("avx2" not in HERE, reason="this CPU has no FMA")
@pytest.mark.parametrize("name", EXACT)
def test_the_same_numbers_as_on_x86(jobs: Mapping[str, Job], name: str) -> None:
    fn, inputs = EXACT[name]
    with torch.no_grad(), lampwork.config.using(isa="avx2"):
        wanted = _several(lampwork.compile(fn)(*inputs))
    for number, (got, want) in enumerate(zip(jobs[name].outputs, wanted, strict=True)):
        torch.testing.assert_close(
            got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=number: f"{n}: {m}"
        )


@pytest.mark.every_case
@pytest.mark.parametrize("name", CASES)
def test_as_eager_computes(jobs: Mapping[str, Job], name: str) -> None:
    check(jobs[name], CASES[name])


def check(job: Job, case: Case) -> None:
    given = [*case.inputs, *case.bound]
    with torch.no_grad():
        eager = _several(case.fn(*given))
        is_quantized = any(x.dtype is torch.int8 for x in given)  # its function is of float32 alone
        wide = [x.double() if x.dtype.is_floating_point else x for x in given]
        wanted = eager if is_quantized or not case.within else _several(case.fn(*wide))
    for number, (got, want, known) in enumerate(zip(job.outputs, wanted, eager, strict=True)):
        assert (got.dtype, got.shape, got.stride()) == (known.dtype, known.shape, known.stride()), number
        if not case.within or not got.dtype.is_floating_point:
            assert torch.equal(got, known), number
            continue
        error = (got.double() - want).abs().max().item()
        assert error <= case.within * want.abs().max().item(), (number, error)


def _open(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = F.gelu(x @ w)
    return torch.softmax(y, 0), y.sum(0) / x.shape[0], torch.cat([y, y[:1]])


def test_open_sizes(tmp_path) -> None:
    """One program, placed for several numbers of rows."""
    w = _random(48, 40) / 7
    example = _random(20, 48)
    with Recorder() as recorder, torch.no_grad():
        rows = recorder.scope.symbol(20)
        spec = replace(TensorSpec.of(example), shape=(rows, 48))
        given = [recorder.input(example, "x", spec=spec), recorder.input(w, "w", bound=True)]
        graph = recorder.finish(list(_open(*given))).graph
    machine = EmulatedMachine(tmp_path, "aarch64")
    compiled = machine.compiled(graph)
    assert compiled.layout.keys == {str(rows)}
    cases = [Case(_open, [_random(number, 48, seed=number)], [w]) for number in (2, 7, 64, 129)]
    jobs = [
        machine.place(compiled, case.inputs, case.bound, {str(rows): case.inputs[0].shape[0]})
        for case in cases
    ]
    machine.run()
    for job, case in zip(jobs, cases, strict=True):
        check(job, case)


def test_dot_products_of_bytes(tmp_path) -> None:
    machine = EmulatedMachine(tmp_path, "aarch64+dotprod")
    names = [name for name in CASES if "int8" in name]
    jobs = [machine.add(CASES[name].fn, CASES[name].inputs, CASES[name].bound) for name in names]
    machine.run()
    for name, job in zip(names, jobs, strict=True):
        check(job, CASES[name])
