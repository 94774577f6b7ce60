# ruff: noqa: E501  (tables of calls read better in long lines)
"""Every own shape rule against what real torch gives on CPU: shape, strides and dtype must be equal."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lampwork
from lampwork.graph import shapes
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten


class Comparing(TorchDispatchMode):
    """Runs each operator for real and compares its results with its own rule, if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.checked: set[Any] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = specs((args, kwargs))
        result = func(*args, **kwargs)
        rule = shapes.own_rule(func)
        if rule is None:
            return result
        self.checked.add(func)
        expected = specs(result)
        expected = tuple(expected) if isinstance(expected, (list, tuple)) else expected
        try:
            found = bare(rule(*before[0], **before[1]))
        except shapes.ShapeError as error:
            found = str(error)
        if found != bare(expected):
            self.wrong.append(f"{func} of {bare(before)}: torch {bare(expected)}, rule {found}")
        return result


def specs(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    if isinstance(value, (list, tuple)):
        return [specs(item) for item in value] if isinstance(value, list) else tuple(map(specs, value))
    if isinstance(value, dict):
        return {key: specs(item) for key, item in value.items()}
    return value


def bare(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{list(value.strides)}"
    if isinstance(value, (tuple, list)):
        return [bare(item) for item in value]
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items()}
    return value


def compare(calls: list[Any]) -> set[Any]:
    """Run the calls; the operators whose rules were compared. Fails on the first rule that is wrong."""
    mode = Comparing()
    with torch._C._AutoDispatchBelowAutograd(), mode:
        for call in calls:
            call()
    if mode.wrong:
        first_of_each = {text.partition(" ")[0]: text for text in reversed(mode.wrong)}
        pytest.fail("\n".join([f"{len(mode.wrong)} rules wrong", *first_of_each.values()]), pytrace=False)
    return mode.checked


def layouts(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Tensors that broadcast with [2, 3, 4, 5] in many layouts."""
    base = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(dtype)
    return [
        base,
        base.to(memory_format=torch.channels_last),
        base.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        base.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3),
        torch.cat([base, base], 3)[..., ::2],
        torch.cat([base, base], 1)[:, :3],
        base[:1].expand(2, 3, 4, 5),
        base[:, :1],
        base[..., :1],
        base[0, 0],
        base[0, 0, 0],
        base[0, 0, 0, 0],
        base[:1, :, :1],
    ]


def small_layouts() -> list[torch.Tensor]:
    base = torch.randn(2, 6, 8, 8)
    return [
        base,
        base.to(memory_format=torch.channels_last),
        base.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3),
        torch.cat([base, base], 1)[:, :6],
        base.to(memory_format=torch.channels_last)[:, :, ::2],
        base[:1],
        base[:1].to(memory_format=torch.channels_last),
    ]


UNARY = [
    "neg abs relu sign ceil floor trunc round frac square hardtanh hardswish hardsigmoid leaky_relu elu celu silu",
    "mish softplus gelu nan_to_num exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos",
    "atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc isnan isinf isfinite logical_not signbit clone",
    "zeros_like ones_like empty_like rand_like randn_like hardshrink softshrink sgn",
]


@pytest.mark.parametrize("name", " ".join(UNARY).split())
def test_unary_rules(name: str) -> None:
    packet = getattr(aten, name)
    compare([lambda x=x: packet.default(x) for x in layouts()])


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_the_rule_of_the_softmax_of_masked_scores(dtype: torch.dtype | None) -> None:
    given = [x for x in layouts() if x.dim()]
    assert compare(
        [lambda x=x, d=d: aten._safe_softmax(x, d, dtype) for x in given for d in range(-x.dim(), x.dim())]
    )
    scores = torch.rand(2, 3, 4, 4)
    assert compare(
        [lambda x=x: aten._safe_softmax(x, -1) for x in (scores.mT, scores.bfloat16(), scores[0, 0, 0, 0])]
    )


def test_the_rule_of_draws_with_one_probability() -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool]
    given = [*layouts(), torch.zeros(0, 3), *(torch.zeros(2, 3, dtype=dtype).t() for dtype in dtypes)]
    assert compare([lambda x=x, p=p: aten.bernoulli.p(x, p) for x in given for p in (0, 0.3, 1.0, True)])


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.uint16])
def test_draws_that_eager_refuses_have_no_shape(p: float, dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError):
        aten.bernoulli.p(torch.zeros(2, dtype=dtype), p)
    with pytest.raises(shapes.ShapeError):
        shapes.infer(aten.bernoulli.p, (TensorSpec.of(torch.zeros(2, dtype=dtype)), p))


def test_a_large_draw_is_not_made_for_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "infer_by_torch", None)
    assert shapes.infer(aten.bernoulli.p, (TensorSpec.of(torch.empty(4, 5).t()), 0.1)).strides == (4, 1)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float64]
)
def test_unary_rules_promote(dtype: torch.dtype) -> None:
    x = torch.ones(3, 4).to(dtype)
    names = [
        "exp",
        "sqrt",
        "sin",
        "sigmoid",
        "tanh",
        "log1p",
        "reciprocal",
        "rsqrt",
        "erf",
        "isnan",
        "logical_not",
    ]
    compare([lambda n=name: getattr(aten, n).default(x) for name in names])
    if dtype is not torch.bool:
        compare(
            [lambda n=name: getattr(aten, n).default(x) for name in ["neg", "abs", "relu", "square", "sign"]]
        )


def test_binary_rules_on_all_pairs_of_layouts() -> None:
    for first, second in itertools.product(layouts(), layouts()):
        compare([lambda: aten.add.Tensor(first, second), lambda: aten.gt.Tensor(first, second)])


def test_binary_rules_promote() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
              torch.bool, torch.complex64]  # fmt: skip
    values = [torch.ones(2, 3, dtype=d) for d in dtypes] + [torch.ones((), dtype=d) for d in dtypes]
    calls: list[Any] = []
    for a, b in itertools.product(values, values):
        if {a.dtype, b.dtype} == {torch.complex64, torch.float16}:
            continue
        calls += [lambda a=a, b=b: aten.mul.Tensor(a, b), lambda a=a, b=b: aten.div.Tensor(a, b),
                  lambda a=a, b=b: aten.eq.Tensor(a, b)]  # fmt: skip
    for a, scalar in itertools.product(values, [True, 2, 2.5, 1j]):
        if a.dtype is torch.float16 and scalar == 1j:
            continue
        calls += [lambda a=a, s=scalar: aten.mul.Tensor(a, s), lambda a=a, s=scalar: aten.div.Tensor(a, s),
                  lambda a=a, s=scalar: aten.mul.Scalar(a, s), lambda a=a, s=scalar: aten.eq.Scalar(a, s)]  # fmt: skip
    compare(calls)


@pytest.mark.parametrize(
    "name",
    "sub maximum minimum fmax fmin remainder fmod floor_divide atan2 pow copysign hypot logical_and le ne".split(),
)
def test_more_binary_rules(name: str) -> None:
    packet = getattr(aten, name)
    calls: list[Any] = []
    for a, b in itertools.product(layouts()[:6], layouts()[:8]):
        for overload in ("Tensor", "default", "Tensor_Tensor"):
            if overload in packet.overloads() and (
                overload != "default" or "Tensor" not in packet.overloads()
            ):
                op = getattr(packet, overload)
                calls.append(lambda op=op, a=a, b=b: op(a + 1, b + 1))
    for x in layouts():
        for overload in ("Scalar", "Tensor_Scalar"):
            if overload in packet.overloads() and (name, overload) != ("pow", "Scalar"):
                op = getattr(packet, overload)
                calls.append(lambda op=op, x=x: op(x, 2))
    assert compare(calls)


def test_pointwise_rules_with_literals() -> None:
    calls: list[Any] = []
    for x in layouts():
        condition = x > 3
        calls += [
            lambda x=x: x + 2, lambda x=x: 2 - x, lambda x=x: x * 0.5, lambda x=x: x / 3, lambda x=x: 3 / x,
            lambda x=x: x**2, lambda x=x: x**0.5, lambda x=x: 2**x, lambda x=x: x.clamp(0, 2), lambda x=x: x.clamp(min=1),
            lambda x=x: x.clamp_min(2.5), lambda x=x: x.clamp_max(3), lambda x=x: x > 2, lambda x=x: x // 2,
            lambda x=x: x % 3, lambda x=x: torch.div(x, 2, rounding_mode="floor"),
            lambda x=x: torch.div(x, x, rounding_mode="trunc"), lambda x=x: torch.lerp(x, x, 0.5),
            lambda x=x: torch.addcmul(x, x, x, value=2), lambda x=x: torch.clamp(x, torch.zeros(5), torch.ones(5)),
            lambda x=x: torch.where(x > 3, x, x), lambda x=x, c=condition: torch.where(c, x, 1.0),
            lambda x=x, c=condition: torch.where(c, 0, x), lambda c=condition: torch.where(c, 0.0, 1.0),
            lambda x=x, c=condition: x.masked_fill(c, 2.0), lambda x=x, c=condition: x.masked_fill(c, torch.tensor(1.0)),
        ]  # fmt: skip
    for x, y in itertools.product(layouts()[:8], layouts()[:10]):
        calls += [
            lambda x=x, y=y: torch.where(x > 3, y, 2.0), lambda x=x, y=y: x.masked_fill(y > 3, 2.0),
            lambda x=x, y=y: torch.addcmul(x, y, y), lambda x=x, y=y: torch.lerp(x, y, 0.3),
        ]  # fmt: skip
    ints = torch.arange(6).reshape(2, 3)
    calls += [lambda: ints + 1.5, lambda: ints / 2, lambda: ints // 2, lambda: ints**2, lambda: ints**0.5,
              lambda: ints.clamp(0, 2.5), lambda: ints * True, lambda: (ints > 1) + 1, lambda: (ints > 1) * 1.0,
              lambda: ints & 1, lambda: ints << 1, lambda: ~ints]  # fmt: skip
    compare(calls)


def test_view_rules() -> None:
    calls: list[Any] = []
    for x in layouts():
        rank = x.dim()
        calls += [lambda x=x: x.t() if x.dim() <= 2 else None, lambda x=x: x.squeeze(), lambda x=x: x.unsqueeze(0),
                  lambda x=x: x.unsqueeze(-1), lambda x=x: x.detach(), lambda x=x: x.expand(7, *x.shape)]  # fmt: skip
        for dim in range(rank):
            calls += [
                lambda x=x, d=dim: x.select(d, 0), lambda x=x, d=dim: x.select(d, -1), lambda x=x, d=dim: x.squeeze(d),
                lambda x=x, d=dim: x.transpose(d, -1), lambda x=x, d=dim: x.unsqueeze(d),
                lambda x=x, d=dim: aten.slice.Tensor(x, d, 1, None, 2), lambda x=x, d=dim: aten.slice.Tensor(x, d, -2, 100),
                lambda x=x, d=dim: aten.slice.Tensor(x, d, 3, 1), lambda x=x, d=dim: x.unfold(d, 1, 2),
            ]  # fmt: skip
        calls.append(lambda x=x: x.permute(tuple(reversed(range(x.dim())))))
        calls.append(lambda x=x: aten.squeeze.dims(x, [0, -1]) if x.dim() > 1 else None)
        if rank > 1:
            calls += [lambda x=x: x.diagonal(), lambda x=x: x.diagonal(1, -1, 0), lambda x=x: x.diagonal(-1)]
    for shape in (
        [120],
        [2, 60],
        [6, 20],
        [2, 3, 20],
        [2, 3, 2, 2, 5],
        [-1, 5],
        [2, 3, 4, 5, 1],
        [1, 2, 1, 3, 4, 5],
    ):
        for x in layouts()[:6]:

            def attempt(x: torch.Tensor = x, shape: list[int] = shape) -> None:
                try:
                    torch.Tensor.view(x, shape)
                except RuntimeError:
                    with pytest.raises(shapes.ShapeError):
                        shapes.infer(aten.view.default, (TensorSpec.of(x), shape))

            calls.append(attempt)  # fmt: skip
    empty = torch.zeros(2, 0, 3)
    calls += [lambda: empty.view(0, 6), lambda: empty.view(2, 0, 3), lambda: empty.view(3, 0), lambda: empty.t if 0 else 0,
              lambda: torch.zeros(()).view(1, 1), lambda: torch.zeros(1, 1).view(()),
              lambda: torch.zeros(4, 4).as_strided([2, 2], [1, 2], 1)]  # fmt: skip
    compare(calls)


def test_reduction_rules() -> None:
    calls: list[Any] = []
    for x in layouts():
        calls += [lambda x=x: x.sum(), lambda x=x: x.mean(), lambda x=x: x.max(), lambda x=x: x.min(), lambda x=x: x.argmax(),
                  lambda x=x: x.prod(), lambda x=x: (x > 1).any(), lambda x=x: (x > 1).all(), lambda x=x: aten.var.correction(x),
                  lambda x=x: x.sum(dtype=torch.float64), lambda x=x: (x > 1).sum(), lambda x=x: x.long().sum(),
                  lambda x=x: aten.linalg_vector_norm.default(x),
                  lambda x=x: torch.histc(x.float(), 5), lambda x=x: torch.histc(x.double(), 3, -1, 2.5),
                  lambda x=x: torch.searchsorted(torch.arange(3.0), x.float()),
                  lambda x=x: torch.searchsorted(torch.arange(3.0), x.float(), out_int32=True)]  # fmt: skip
        for dim, keep in itertools.product(range(x.dim()), (False, True)):
            calls += [
                lambda x=x, d=dim, k=keep: x.sum(d, k), lambda x=x, d=dim, k=keep: x.mean(d, k),
                lambda x=x, d=dim, k=keep: x.max(d, k), lambda x=x, d=dim, k=keep: x.min(d, k),
                lambda x=x, d=dim, k=keep: x.amax(d, k), lambda x=x, d=dim, k=keep: x.argmax(d, k),
                lambda x=x, d=dim, k=keep: x.prod(d, k), lambda x=x, d=dim, k=keep: (x > 1).any(d, k),
                lambda x=x, d=dim, k=keep: aten.var.correction(x, [d], correction=1, keepdim=k),
                lambda x=x, d=dim, k=keep: aten.std.correction(x, [d], correction=0, keepdim=k),
                lambda x=x, d=dim, k=keep: aten.var_mean.correction(x, [d], correction=0, keepdim=k),
                lambda x=x, d=dim, k=keep: aten.logsumexp.default(x, [d], k), lambda x=x, d=dim: x.cumsum(d),
                lambda x=x, d=dim: x.cumprod(d), lambda x=x, d=dim: x.softmax(d), lambda x=x, d=dim: x.log_softmax(d),
                lambda x=x, d=dim: x.softmax(d, dtype=torch.float64), lambda x=x, d=dim: x.topk(1, d),
                lambda x=x, d=dim: x.cummax(d), lambda x=x, d=dim: x.cummin(d),
                lambda x=x, d=dim, k=keep: x.kthvalue(1, d, k), lambda x=x, d=dim: x.sort(d), lambda x=x, d=dim: aten._softmax.default(x, d, False),
                lambda x=x, d=dim: (x > 1).cumsum(d), lambda x=x, d=dim, k=keep: aten.any.dims(x, [d], k),
                lambda x=x, d=dim, k=keep: aten.linalg_vector_norm.default(x, 2, [d], k),
            ]  # fmt: skip
    for x in layouts()[:6]:
        calls += [lambda x=x: x.sum((1, 3)), lambda x=x: x.mean((2, 3), keepdim=True), lambda x=x: x.amin((0, 2)),
                  lambda x=x: aten.sum.dim_IntList(x, []), lambda x=x: aten.sum.dim_IntList(x, None, True),
                  lambda x=x: aten.amax.default(x)]  # fmt: skip
    assert len(compare(calls)) > 25


def test_creation_rules() -> None:
    checked = compare([
        lambda: torch.zeros(2, 3), lambda: torch.ones(2, 3, dtype=torch.int32), lambda: torch.empty(2, 0, 3),
        lambda: torch.full((2,), 3), lambda: torch.full((2,), 3.0), lambda: torch.full((2,), True), lambda: torch.rand(2),
        lambda: torch.randn(3, 2), lambda: torch.arange(5), lambda: torch.arange(5.0), lambda: torch.arange(2, 9),
        lambda: torch.arange(2, 9, 3), lambda: torch.arange(0, 1, 0.1), lambda: torch.arange(9, 2, -3), lambda: torch.eye(3),
        lambda: torch.arange(1, 7, 2, dtype=torch.float32), lambda: torch.arange(0, 3, 1, dtype=torch.int32),
        lambda: torch.eye(3, 4), lambda: aten.scalar_tensor.default(2), lambda: torch.empty_strided((2, 3), (1, 2)),
        lambda: torch.empty((2, 3, 4, 5), memory_format=torch.channels_last), lambda: torch.arange(0),
    ])  # fmt: skip
    assert len(checked) >= 12
    calls: list[Any] = []
    for x in layouts():
        calls += [lambda x=x: torch.full_like(x, 2), lambda x=x: torch.zeros_like(x, dtype=torch.int64),
                  lambda x=x: x.new_zeros(3, 2), lambda x=x: x.new_full((2,), 1), lambda x=x: x.new_ones(2),
                  lambda x=x: torch.empty_like(x, memory_format=torch.contiguous_format)]  # fmt: skip
    compare(calls)


def test_copying_rules() -> None:
    calls: list[Any] = []
    for x in layouts():
        calls += [lambda x=x: x.clone(), lambda x=x: x.clone(memory_format=torch.contiguous_format),
                  lambda x=x: aten._to_copy.default(x, dtype=torch.float64), lambda x=x: aten._to_copy.default(x),
                  lambda x=x: F.dropout(x, 0.5)]  # fmt: skip
        if x.dim() == 4:
            calls += [lambda x=x: x.clone(memory_format=torch.channels_last),
                      lambda x=x: aten._to_copy.default(x, dtype=torch.half, memory_format=torch.channels_last)]  # fmt: skip
        if x.dim() > 1:
            calls += [lambda x=x: x.tril(), lambda x=x: x.triu(1), lambda x=x: x.flip(0), lambda x=x: x.flip(0, 1),
                      lambda x=x: x.roll(1, 0), lambda x=x: x.roll((1, 2), (0, 1)), lambda x=x: x.flip([])]  # fmt: skip
        for dim in range(x.dim()):
            calls += [
                lambda x=x, d=dim: torch.select_scatter(x, x.select(d, 0), d, 0),
                lambda x=x, d=dim: torch.slice_scatter(x, x[(slice(None),) * d + (slice(0, 1),)], d, 0, 1),
                lambda x=x, d=dim: torch.index_add(x, d, torch.tensor([0]), x[(slice(None),) * d + (slice(0, 1),)]),
                lambda x=x, d=dim: torch.index_copy(x, d, torch.tensor([0]), x[(slice(None),) * d + (slice(0, 1),)]),
                lambda x=x, d=dim: torch.index_fill(x, d, torch.tensor([0]), 2.0),
                lambda x=x, d=dim: torch.scatter(x, d, torch.zeros_like(x, dtype=torch.long), x),
                lambda x=x, d=dim: torch.scatter(x, d, torch.zeros_like(x, dtype=torch.long), 1.0),
                lambda x=x, d=dim: torch.scatter_add(x, d, torch.zeros_like(x, dtype=torch.long), x),
                lambda x=x, d=dim: torch.gather(x, d, torch.zeros_like(x, dtype=torch.long)),
                lambda x=x, d=dim: torch.index_select(x, d, torch.tensor([0, 0])),
            ]  # fmt: skip
        if x.dim():
            calls.append(lambda x=x: torch.index_put(x, [torch.tensor([0])], torch.tensor(1.0)))
    assert len(compare(calls)) > 15


def test_joining_rules() -> None:
    calls: list[Any] = []
    full = layouts()[:6]
    for x, y in itertools.product(full, full):
        calls += [lambda x=x, y=y, d=d: torch.cat([x, y], d) for d in (0, 1, -1)]
        calls += [lambda x=x, y=y, d=d: torch.stack([x, y], d) for d in (0, 2, -1)]
        calls.append(lambda x=x, y=y: torch.cat([x, y.double()]))
    flat = torch.ones(3)
    calls += [lambda: torch.cat([flat, torch.ones(0)]), lambda: torch.cat([torch.ones(0), torch.ones(0)]),
              lambda: torch.cat([flat, flat.int()]), lambda: torch.stack([flat, flat.long()])]  # fmt: skip
    for x in full:
        calls += [lambda x=x: x.repeat(2, 1, 1, 1), lambda x=x: x.repeat(3, 2, 1, 1, 2),
                  lambda x=x: aten.constant_pad_nd.default(x, [1, 2, 0, 1]), lambda x=x: aten.constant_pad_nd.default(x, [0, 0]),
                  lambda x=x: aten.constant_pad_nd.default(x, [-1, 0, 1, 1, 2, 0], 3.0)]  # fmt: skip
    compare(calls)


def test_indexing_rules() -> None:
    calls: list[Any] = []
    one = torch.tensor([0, 1, 1])
    two = torch.tensor([[0, 1], [1, 0]])
    turned = torch.tensor([[0, 1, 1], [1, 0, 0]]).t()
    for x in layouts()[:8]:
        if x.shape[1] == 1:
            one_, two_, turned_ = one * 0, two * 0, turned * 0
        else:
            one_, two_, turned_ = one, two, turned
        calls += [
            lambda x=x, a=one: x[a], lambda x=x, a=two: x[a], lambda x=x, a=turned: x[a],
            lambda x=x, a=one_: x[:, a], lambda x=x, a=two_: x[:, a], lambda x=x, a=turned_: x[:, a],
            lambda x=x, a=one: x[:, :, a], lambda x=x, a=two: x[:, :, a, a],
            lambda x=x, a=one, b=one_: x[a, b], lambda x=x, a=two, b=two_: x[a, b], lambda x=x, a=one: x[a, :, a],
            lambda x=x, a=two, b=one: aten.index.Tensor(x, [a[:, :1], None, b[:2]]),
            lambda x=x: x[torch.tensor(0)], lambda x=x: x[:, :, torch.tensor([1])],
            lambda x=x, a=one, b=one_: aten.index.Tensor(x, [a, b, a, a]), lambda x=x, a=turned: aten.index.Tensor(x, [None, None, a, a]),
        ]  # fmt: skip
    weight = torch.randn(10, 4)
    calls += [lambda: F.embedding(torch.tensor([[1, 2]]), weight), lambda: F.embedding(torch.tensor(3), weight),
              lambda: F.embedding(torch.tensor([[1, 2]]).t(), weight.t().contiguous().t()), lambda: weight[torch.tensor([1])]]  # fmt: skip
    compare(calls)


def test_product_rules() -> None:
    vector, matrix, batch = torch.randn(4), torch.randn(4, 4), torch.randn(3, 4, 4)
    calls: list[Any] = []
    for a, b in itertools.product(
        (vector, matrix, matrix.t(), batch, batch.mT, batch[:1], batch[None]), repeat=2
    ):
        calls.append(lambda a=a, b=b: aten.matmul.default(a, b))
    for x in (vector, matrix, batch, batch.mT, batch.permute(1, 0, 2), torch.randn(2, 0, 4)):
        calls += [lambda x=x: F.linear(x, torch.randn(5, 4)), lambda x=x: F.linear(x, torch.randn(5, 4), torch.randn(5)),
                  lambda x=x: F.linear(x, vector)]  # fmt: skip
    calls += [lambda: torch.mm(matrix, matrix.t()), lambda: torch.bmm(batch, batch.mT), lambda: torch.mv(matrix, vector),
              lambda: torch.dot(vector, vector), lambda: torch.addmm(vector, matrix, matrix),
              lambda: torch.baddbmm(batch[:1], batch, batch), lambda: torch.addmm(matrix, matrix.t(), matrix, beta=0.5)]  # fmt: skip
    assert len(compare(calls)) >= 8


def test_convolution_rules() -> None:
    calls: list[Any] = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for x in small_layouts():
            x = x.to(dtype)
            for groups, size in ((1, 3), (2, 3), (6, 3), (1, 1)):
                weight = torch.randn(12, 6 // groups, size, size).to(dtype)
                for w in (weight, weight.to(memory_format=torch.channels_last)):
                    calls += [
                        lambda x=x, w=w, g=groups: F.conv2d(x, w, None, 1, 0, 1, g),
                        lambda x=x, w=w, g=groups: F.conv2d(x, w, torch.randn(12).to(w.dtype), 2, 1, 1, g),
                        lambda x=x, w=w, g=groups: F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), g),
                        lambda x=x, w=w, g=groups: F.conv2d(x, w, None, 1, "same", 1, g),
                        lambda x=x, w=w, g=groups: F.conv2d(x, w, None, 1, "valid", 1, g),
                        lambda x=x, w=w, g=groups: aten.convolution.default(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], g),
                    ]  # fmt: skip
            calls += [lambda x=x: F.conv_transpose2d(x, torch.randn(6, 4, 3, 3).to(x.dtype), stride=2, output_padding=1),
                      lambda x=x: F.conv2d(x[0], torch.randn(4, 6, 3, 3).to(x.dtype)),
                      lambda x=x: F.conv1d(x[0], torch.randn(4, x.shape[2], 3).to(x.dtype)),
                      lambda x=x: F.conv1d(x[:, 0], torch.randn(4, x.shape[2], 3).to(x.dtype)),
                      lambda x=x: F.conv1d(x[:, :, 0], torch.randn(4, 6, 3).to(x.dtype), padding=1),
                      lambda x=x: F.conv1d(x[0, 0], torch.randn(4, x.shape[2], 1).to(x.dtype)),
                      lambda x=x: F.conv_transpose1d(x[0], torch.randn(x.shape[2], 4, 3).to(x.dtype))]  # fmt: skip
        cube = torch.randn(2, 3, 5, 6, 7).to(dtype)
        for x in (cube, cube.to(memory_format=torch.channels_last_3d)):
            calls.append(lambda x=x: F.conv3d(x, torch.randn(4, 3, 3, 3, 3).to(x.dtype)))
            calls.append(lambda x=x: F.conv_transpose3d(x, torch.randn(3, 4, 2, 2, 2).to(x.dtype), stride=2))
    one = torch.randn(2, 1, 8, 8)
    for x in (
        one,
        one.to(memory_format=torch.channels_last),
        torch.randn(2, 1, 1, 1),
        torch.randn(1, 6, 1, 1),
    ):
        calls.append(lambda x=x: F.conv2d(x, torch.randn(4, x.shape[1], 1, 1)))
    assert len(compare(calls)) >= 10


@pytest.mark.parametrize("shape", [(9,), (7,), (1,), (), (1, 8)])
@pytest.mark.parametrize("computed", [False, True])
def test_a_bias_has_one_number_for_each_channel(shape: tuple[int, ...], computed: bool) -> None:
    x, bias = torch.randn(2, 4, 9, 9), torch.zeros(shape)
    for call, weight in (
        (F.conv2d, torch.randn(8, 4, 3, 3)),
        (F.conv_transpose2d, torch.randn(4, 8, 3, 3)),
    ):

        def program(x: torch.Tensor, call: Any = call, weight: torch.Tensor = weight) -> torch.Tensor:
            return call(x, weight, bias + 0 if computed else bias)

        with pytest.raises(RuntimeError) as eager:
            program(x)
        with pytest.raises(RuntimeError) as ours:
            lampwork.compile(program)(x)
        assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_rules_of_convolutions_gradients(groups: int, transposed: bool) -> None:
    calls: list[Any] = []
    plane, line = torch.randn(2, 6, 8, 7), torch.randn(2, 6, 9)
    for x in (plane, plane.to(memory_format=torch.channels_last), line, line.mT.contiguous().mT):
        for dtype, mask in itertools.product(
            (torch.float32, torch.float64), ([True, True, True], [True, True, False])
        ):
            rank = x.dim() - 2
            weight = (
                torch.randn(6, 12 // groups, *(3,) * rank)
                if transposed
                else torch.randn(12, 6 // groups, *(3,) * rank)
            )
            args = ([2] * rank, [1] * rank, [1] * rank, transposed, [0] * rank, groups)
            x, weight = x.to(dtype), weight.to(dtype)
            grad = torch.ones_like(aten.convolution.default(x, weight, None, *args))
            calls.append(
                lambda g=grad, x=x, w=weight, a=args, m=mask: aten.convolution_backward.default(
                    g, x, w, [12], *a, m
                )
            )
    assert aten.convolution_backward.default in compare(calls)


def test_pool_rules() -> None:
    calls: list[Any] = []
    for x in small_layouts():
        calls += [
            lambda x=x: F.interpolate(x, scale_factor=2), lambda x=x: F.interpolate(x, (5, 9)),
            lambda x=x: F.interpolate(x, (5, 9), mode="bilinear"), lambda x=x: F.interpolate(x, (5, 9), mode="nearest-exact"),
            lambda x=x: F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True),
            lambda x=x: F.max_pool2d(x, 2), lambda x=x: F.max_pool2d(x, 3, 2, 1, 1, True), lambda x=x: F.max_pool2d(x, (2, 3), 1),
            lambda x=x: F.avg_pool2d(x, 2), lambda x=x: F.avg_pool2d(x, 3, 2, 1, True), lambda x=x: F.adaptive_avg_pool2d(x, 1),
            lambda x=x: F.adaptive_avg_pool2d(x, (3, 2)), lambda x=x: F.adaptive_avg_pool2d(x[0], 1),
            lambda x=x: F.max_pool2d(x[0], 2), lambda x=x: F.max_pool2d_with_indices(x, 2),
            lambda x=x: aten.max_pool2d_with_indices.default(x, [3], [2], [1]), lambda x=x: F.avg_pool1d(x[0], 2),
            lambda x=x: F.max_pool1d(x[0], 2), lambda x=x: F.max_pool1d(x[:, :, 0], 3, 2, 1),
            lambda x=x: F.adaptive_avg_pool1d(x[0], 3), lambda x=x: F.adaptive_avg_pool1d(x[:, :, 0], 1),
            lambda x=x: F.adaptive_avg_pool1d(x[0, 0], 2), lambda x=x: F.avg_pool1d(x[:, :, 0], 2),
            lambda x=x: F.avg_pool1d(x[:, :, 0], (3,), (1,), (1,), True),
        ]  # fmt: skip
    cube = torch.randn(2, 3, 6, 6, 6)
    for x in (cube, cube.to(memory_format=torch.channels_last_3d)):
        calls += [lambda x=x: F.max_pool3d(x, 2), lambda x=x: F.avg_pool3d(x, 2), lambda x=x: F.adaptive_avg_pool3d(x, 1),
                  lambda x=x: F.adaptive_avg_pool3d(x, 2)]  # fmt: skip
    assert len(compare(calls)) >= 10


def test_image_rules() -> None:
    calls: list[Any] = []
    grid = torch.rand(2, 4, 7, 2) * 2 - 1
    for x in small_layouts():
        if x.dim() != 4 or x.shape[0] != 2:
            continue
        for flow in (grid, grid.permute(0, 2, 1, 3), grid[:, :, ::2]):
            calls.append(lambda x=x, g=flow: aten.grid_sampler_2d.default(x, g, 0, 0, False))
        for pads in ([1, 2, 0, 3], [0, -1, 2, 0]):
            calls += [lambda x=x, p=pads: aten.reflection_pad2d.default(x, p),
                      lambda x=x, p=pads: aten.replication_pad2d.default(x, p)]  # fmt: skip
        calls += [lambda x=x: aten.im2col.default(x, [2, 3], [1, 2], [0, 1], [2, 1]),
                  lambda x=x: aten.im2col.default(x[0], [2, 2], [1, 1], [0, 0], [1, 1]),
                  lambda x=x: aten._upsample_bilinear2d_aa.default(x, [3, 5], False, None, None),
                  lambda x=x: aten._upsample_bicubic2d_aa.default(x, [3, 5], False, None, None),
                  lambda x=x: aten._prelu_kernel.default(x, torch.rand(1, x.shape[1], 1, 1)),
                  lambda x=x: aten.scatter_reduce.two(x, 1, torch.zeros(x.shape, dtype=torch.long), x, "sum"),
                  lambda x=x: aten.reflection_pad2d.default(x[1], [1, 2, 0, 3])]  # fmt: skip
    base = torch.randn(2, 3, 4, 5, 6)
    for x in (base, base.to(memory_format=torch.channels_last_3d), base.permute(0, 1, 4, 2, 3)):
        calls += [lambda x=x: aten.grid_sampler_3d.default(x, torch.rand(2, 3, 4, 2, 3), 0, 0, True),
                  lambda x=x: aten.upsample_trilinear3d.default(x, [2, 7, 9], False, None, None, None),
                  lambda x=x: aten.upsample_nearest3d.default(x, [2, 7, 9], None, None, None),
                  lambda x=x: aten._upsample_nearest_exact3d.default(x, [2, 7, 9], None, None, None),
                  lambda x=x: aten.reflection_pad3d.default(x, [1, 2, 0, 3, 2, 1]),
                  lambda x=x: aten.replication_pad3d.default(x, [1, 2, 0, 3, 2, 1])]  # fmt: skip
    for x in (base[0, 0], base[0].permute(1, 0, 3, 2)[0], base[0, :, :, 0]):
        calls += [lambda x=x: aten.upsample_linear1d.default(x, [9], False, None),
                  lambda x=x: aten.upsample_nearest1d.default(x, [9], None),
                  lambda x=x: aten._upsample_nearest_exact1d.default(x, [9], None),
                  lambda x=x: aten.reflection_pad1d.default(x, [1, 2]),
                  lambda x=x: aten.replication_pad1d.default(x[0], [3, -1])]  # fmt: skip
    compare(calls)


def test_norm_rules() -> None:
    calls: list[Any] = []
    for x in small_layouts():
        channels = torch.rand(6)
        calls += [
            lambda x=x: F.layer_norm(x, (8,)) if x.shape[-1] == 8 else None,
            lambda x=x: F.rms_norm(x, (8,), torch.ones(8)) if x.shape[-1] == 8 else None,
            lambda x=x: F.rms_norm(x, (8,)) if x.shape[-1] == 8 else None,
            lambda x=x: F.group_norm(x, 3, channels, channels), lambda x=x: F.group_norm(x[:, :, 0], 3),
            lambda x=x: F.batch_norm(x, channels, channels, channels, channels),
            lambda x=x: F.batch_norm(x, channels, channels), lambda x=x: F.batch_norm(x, None, None, training=True),
            lambda x=x: F.batch_norm(x[:, :, 0], channels, channels), lambda x=x: F.batch_norm(x[:, :, 0, 0], channels, channels),
            lambda x=x: aten._native_batch_norm_legit_functional.default(x, channels, channels, channels, channels, True, 0.1, 1e-5),
            lambda x=x: F.glu(x, 1), lambda x=x: F.glu(x),
        ]  # fmt: skip
    cube = torch.randn(2, 6, 3, 4, 5)
    for x in (cube, cube.to(memory_format=torch.channels_last_3d)):
        calls.append(lambda x=x: F.batch_norm(x, torch.zeros(6), torch.ones(6)))
        calls.append(lambda x=x: F.group_norm(x, 2))
    compare(calls)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("transposed", [False, True])
def test_complex_volumes_are_convolved_by_parts(transposed: bool, dtype: torch.dtype) -> None:
    """Those of double precision by torch's own loops, which give them row-major."""
    x = torch.randn(2, 4, 5, 5, 4, dtype=dtype).to(memory_format=torch.channels_last_3d)
    weight = torch.randn(4, 4, 2, 3, 2, dtype=dtype)
    convolve = F.conv_transpose3d if transposed else F.conv3d

    def model(x: torch.Tensor) -> torch.Tensor:
        result = convolve(x, weight, stride=2)
        return result * result.conj()

    assert lampwork.compile(model)(x).stride() == model(x).stride()


def test_attention_rules() -> None:
    base = torch.randn(2, 5, 3, 8)
    calls: list[Any] = []
    for q in (base.transpose(1, 2), base.transpose(1, 2).contiguous(), base.transpose(1, 2)[:1]):
        k = q.clone()
        calls += [
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, torch.zeros(5, 5)),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, torch.ones(5, 5, dtype=torch.bool)),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, torch.zeros(1, 1, 5, 5)),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, torch.zeros(5, 5).t()),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, torch.zeros(1, 3, 5, 5)),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, torch.zeros(3, 5, 5)),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k[:, :, :4], k[:, :, :4]),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k, k, dropout_p=0.5),
            lambda q=q, k=k: F.scaled_dot_product_attention(q.double(), k.double(), k.double()),
            lambda q=q, k=k: F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), k.bfloat16()),
            lambda q=q, k=k: F.scaled_dot_product_attention(q[0], k[0], k[0]),
            lambda q=q, k=k: F.scaled_dot_product_attention(torch.cat([q, q], -1)[..., :8], k, k),
            lambda q=q, k=k: F.scaled_dot_product_attention(torch.cat([q, q], 1)[:, :3], k, k),
            lambda q=q, k=k: F.scaled_dot_product_attention(q[:, :, :1], k, k),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k[..., ::1], k[..., :4]),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k[:, :1], k[:, :1], enable_gqa=True),
            lambda q=q, k=k: F.scaled_dot_product_attention(q[..., ::2], k[..., ::2], k[..., ::2]),
            lambda q=q, k=k: F.scaled_dot_product_attention(q, k[:1], k[:1]) if q.shape[0] == 1 else None,
        ]  # fmt: skip
    compare(calls)


@pytest.mark.parametrize("empty", [(0, 5, 3, 8), (2, 5, 0, 8), (2, 0, 3, 8)])
def test_attention_rules_of_nothing(empty: tuple[int, ...]) -> None:
    q = torch.randn(empty).transpose(1, 2)
    k = torch.randn(empty[0], 5, empty[2], 8).transpose(1, 2)
    compare(
        [
            lambda: F.scaled_dot_product_attention(q, k, k),
            lambda: F.scaled_dot_product_attention(q, k, k, torch.ones(empty[1], 5, dtype=torch.bool)),
        ]
    )


def test_recurrence_rules() -> None:
    calls: list[Any] = []
    for batch_first, bidirectional in itertools.product((False, True), repeat=2):
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            for hidden in (6, 1):
                module = kind(4, hidden, 2, batch_first=batch_first, bidirectional=bidirectional)
                for x in (
                    torch.randn(3, 5, 4),
                    torch.randn(1, 5, 4),
                    torch.randn(3, 1, 4),
                    torch.randn(5, 4),
                    torch.randn(0, 5, 4) if batch_first else torch.randn(5, 0, 4),
                ):
                    calls.append(lambda m=module, x=x: m(x))
    assert len(compare(calls)) >= 3


@pytest.mark.parametrize("op", [torch.neg, torch.relu, torch.sigmoid])
def test_views_of_five_dimensions_that_look_channels_last(op) -> None:
    """TensorIterator knows the order of four dimensions alone."""
    x = torch.randn(1, 17, 14, 12).contiguous(memory_format=torch.channels_last)

    def model(x: torch.Tensor) -> torch.Tensor:
        return op(x.view(1, 17, 14, 2, 6))

    assert lampwork.compile(model)(x).stride() == model(x).stride()
