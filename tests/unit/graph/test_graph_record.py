# ruff: noqa: E501  (tables of programs read better in long lines)
"""The recorder itself: what it keeps whole, refuses, marks, rolls back, and imports."""

from __future__ import annotations

import copy
import operator
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recording import check, record
from torch import nn

from lampwork.errors import DataDependentError, Location, UnsupportedOpError
from lampwork.graph.interpret import run_graph
from lampwork.graph.origin import Place
from lampwork.graph.printing import format_graph
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import TraceTensor
from lampwork.graph.verify import verify

aten = torch.ops.aten
X = torch.arange(32.0).reshape(4, 8)


def targets(fn: Callable[..., Any], *inputs: Any) -> list[str]:
    recorded, _ = record(fn, inputs)
    return [str(node.target) for node in recorded.graph.nodes if node.op == "call_function"]


# --- what arrives how ------------------------------------------------------------------------------------------------

IMAGE = torch.randn(2, 4, 8, 8)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: F.linear(x, x), "aten.linear.default"),
        (lambda x: x @ x.T, "aten.matmul.default"),
        (lambda x: F.layer_norm(x, (8,)), "aten.layer_norm.default"),
        (lambda x: F.rms_norm(x, (8,)), "aten.rms_norm.default"),
        (lambda x: F.gelu(x), "aten.gelu.default"),
        (lambda x: F.silu(x), "aten.silu.default"),
        (lambda x: x.softmax(-1), "aten.softmax.int"),
        (lambda x: F.log_softmax(x, -1), "aten.log_softmax.int"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "aten.scaled_dot_product_attention.default"),
        (lambda x: F.conv2d(IMAGE, IMAGE), "aten.conv2d.default"),
        (lambda x: F.max_pool2d(IMAGE, 2), "aten.max_pool2d.default"),
        (lambda x: F.adaptive_avg_pool2d(IMAGE, 1), "aten.adaptive_avg_pool2d.default"),
        (lambda x: F.group_norm(IMAGE, 2), "aten.group_norm.default"),
        (lambda x: F.batch_norm(IMAGE, x[0, :4], x[0, :4]), "aten.batch_norm.default"),
        (lambda x: F.embedding(torch.tensor([[1, 2]]), x), "aten.embedding.default"),
        (lambda x: F.dropout(x, 0.5), "aten.dropout.default"),
    ],
)
def test_composites_stay_whole(program: Callable[..., Any], expected: str) -> None:
    assert targets(program, X)[-1] == expected


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.chunk(2), ["aten.slice.Tensor"] * 2),
        (lambda x: x.split([1, 3]), ["aten.slice.Tensor"] * 2),
        (lambda x: x.unbind(), ["aten.select.int"] * 4),
        (lambda x: x.reshape(8, 4), ["aten.view.default"]),
        (lambda x: x.t().reshape(4, 8), ["aten.t.default", "aten.clone.default", "aten.view.default"]),
        (lambda x: x.flatten(), ["aten.view.default"]),
        (lambda x: x.unflatten(1, (2, 4)), ["aten.view.default"]),
        (lambda x: x.to(torch.float64), ["aten._to_copy.default"]),
        (lambda x: x.to(torch.float32), []),
        (lambda x: x.float().contiguous().to("cpu").cpu(), []),
        (lambda x: x.t().contiguous(), ["aten.t.default", "aten.clone.default"]),
        (lambda x: F.dropout(x, 0.5, training=False), []),
        (lambda x: x.T, ["aten.permute.default"]),
        (lambda x: x.mT, ["aten.transpose.int"]),
        (lambda x: x.relu_(), ["aten.relu.default"]),
        (lambda x: x.var(1), ["aten.var.correction"]),
        (lambda x: x.type_as(x), []),
        (lambda x: torch.tensor(2.0), ["aten.full.default"]),
        (lambda x: +x, []),
    ],
)
def test_the_rest_becomes_simpler(program: Callable[..., Any], expected: list[str]) -> None:
    assert targets(program, X) == expected
    check(program, X.clone())


def test_scalars_stay_literals() -> None:
    recorded, _ = record(lambda x: (2 * x - 1) / 3, [X])
    calls = [node for node in recorded.graph.nodes if node.op == "call_function"]
    assert [node.args[1] for node in calls] == [2, 1, 3]


def test_creation_does_not_depend_on_the_default_dtype() -> None:
    recorded, _ = record(lambda x: torch.zeros(3) + torch.arange(3.0) + torch.rand(3), [X])
    torch.set_default_dtype(torch.float64)
    try:
        assert run_graph(recorded.graph, [X])[0].dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


# --- what tensors answer ---------------------------------------------------------------------------------------------


def test_tensors_answer_as_in_eager() -> None:
    parameter = nn.Parameter(torch.ones(3, 2))
    turned = X.t()
    spec = TensorSpec.of(turned)
    with Recorder() as rec:
        x = rec.input(turned, "x")
        p = rec.input(parameter, "p", bound=True)
        assert (x.shape, x.stride(), x.dtype, x.device) == (
            (8, 4),
            (1, 8),
            torch.float32,
            torch.device("cpu"),
        )
        assert x.dim() == x.ndim == 2 and x.numel() == 32 and len(x) == 8 and x.size(0) == 8
        assert not x.is_contiguous() and x.t().is_contiguous()
        assert isinstance(x, torch.Tensor) and not isinstance(x, nn.Parameter) and isinstance(p, nn.Parameter)
        assert p.requires_grad and p.is_leaf and not x.requires_grad and x.is_floating_point()
        assert (p * 2).requires_grad and not (p > 1).requires_grad and not p.detach().requires_grad
        assert not torch.zeros_like(p).requires_grad
        with torch.no_grad():
            assert not (p * 2).requires_grad
        assert x.spec == spec
        assert [part.shape for part in x] == [(4,)] * 8


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[0, 0].item(), lambda x: bool(x[0, 0] > 0), lambda x: float(x[0, 0]), lambda x: int(x[0, 0]),
        lambda x: x.tolist(), lambda x: x.numpy(), lambda x: np.asarray(x), lambda x: x.nonzero(), lambda x: x[x > 0],
        lambda x: torch.masked_select(x, x > 0), lambda x: torch.unique(x), lambda x: torch.equal(x, x),
        lambda x: torch.allclose(x, x), lambda x: x.data_ptr(), lambda x: x.untyped_storage(), lambda x: f"{x}",
        lambda x: repr(x), lambda x: torch.where(x > 0), lambda x: torch.bincount(x.long().view(-1)),
        lambda x: operator.index(x[0, 0].long()), lambda x: 3.0 in x, lambda x: torch.tensor([x[0, 0], 1.0]),
        lambda x: torch.repeat_interleave(x, x[0].long(), 1), lambda x: operator.setitem(x, x > 0, x[0]),
        lambda x: 1 if x.sum() > 0 else 2, lambda x: torch.is_nonzero(x[0, 0]),
        lambda x: x.apply_(abs), lambda x: x.map_(x, max), lambda x: x.const_data_ptr(),
    ],
)  # fmt: skip
def test_data_is_refused(program: Callable[..., Any]) -> None:
    with Recorder() as rec:
        x = rec.input(X, "x")
        with pytest.raises(DataDependentError):
            program(x)
    verify(rec.finish([x]).graph)


def test_deepcopy_is_a_clone() -> None:
    check(lambda x: copy.deepcopy(x), X.clone())


# --- tensors from outside --------------------------------------------------------------------------------------------


def test_real_tensors_become_bound_placeholders_once() -> None:
    weight = torch.randn(8)
    recorded = check(lambda x: x * weight + weight, X.clone())
    assert [b.tensor is weight for b in recorded.bound] == [True]
    assert [node.meta["bound"] for node in recorded.graph.nodes if node.op == "placeholder"] == [False, True]


def test_inputs_come_before_bound_tensors() -> None:
    weight = torch.ones(8)
    with Recorder() as rec:
        w = rec.input(weight, "w", bound=True)
        x = rec.input(X, "x")
        y = x * w
        z = y + rec.input(X, "late")
    recorded = rec.finish([z])
    verify(recorded.graph)
    assert [n.name for n in recorded.graph.nodes if n.op == "placeholder"] == ["x", "late", "w"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
)
def test_strange_inputs_are_refused(tensor: torch.Tensor) -> None:
    with Recorder() as rec, pytest.raises(UnsupportedOpError):
        rec.input(tensor, "x")


# --- random operators ------------------------------------------------------------------------------------------------


def draws(x: torch.Tensor) -> Any:
    y = torch.empty(3)
    y.uniform_()
    z = torch.zeros(4).normal_(1.0, 2.0)
    return (
        F.dropout(x, 0.5), torch.rand(3), torch.randn_like(x), y, z, (x / 32).bernoulli(), torch.zeros(4).bernoulli_(0.4),
        torch.randint(0, 9, (3,)), torch.randperm(5), torch.empty(3).exponential_(), torch.multinomial(x + 1, 2),
        torch.normal(x, 1.0), x.clone().random_(0, 5),
    )  # fmt: skip


def test_random_operators_keep_their_order_and_stream() -> None:
    recorded = check(draws, X.clone())
    marked = [node.name for node in recorded.graph.nodes if node.meta.get("random")]
    assert len(marked) == 13


def test_recording_draws_nothing() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    record(draws, [X])
    assert torch.equal(before, torch.get_rng_state())


def test_a_failed_operator_leaves_the_graph_valid() -> None:
    with Recorder() as rec:
        x = rec.input(X, "x")
        with pytest.raises(Exception, match="matmul"):
            x @ x
        y = x @ x.t()
    verify(rec.finish([y]).graph)


# --- places, names, modes --------------------------------------------------------------------------------------------


def test_locations_are_stamped() -> None:
    with Recorder() as rec:
        x = rec.input(X, "x")
        rec.where = lambda: Place(Location("/some/where/model.py", 12, "forward"))
        y = x + 1
        rec.where = lambda: Place(Location("/some/where/model.py", 13, "forward"))
        a, b = y.max(1)
    graph = rec.finish([a, b]).graph
    assert format_graph(graph) == textwrap.dedent(
        """\
        %x: float32[4, 8] = input
        %add: float32[4, 8] = aten.add.Tensor(%x, 1)  # model.py:12
        %max_1: (float32[4], int64[4]) = aten.max.dim(%add, 1)  # model.py:13
        %max_1_0: float32[4] = getitem(%max_1, 0)  # model.py:13
        %max_1_1: int64[4] = getitem(%max_1, 1)  # model.py:13
        return (%max_1_0, %max_1_1)
        """
    )


def test_autocast_is_recorded_as_casts() -> None:
    linear = nn.Linear(8, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x)

    with torch.no_grad():
        recorded = check(program, X.clone(), module=linear)
    calls = [str(node.target) for node in recorded.graph.nodes if node.op == "call_function"]
    assert calls.count("aten._to_copy.default") == 3 and calls[-1] == "aten.linear.default"


def test_inference_mode() -> None:
    with torch.inference_mode():
        check(lambda x: (x[1:] * 2).relu_(), X.clone())


def test_no_grad_inside_cuts_the_gradient_of_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = (x * 2)[0]
        return x * scale

    x = X.clone().requires_grad_()
    recorded, _ = record(program, [x])
    (value,) = run_graph(recorded.graph, [x])
    value.sum().backward()
    twin = X.clone().requires_grad_()
    program(twin).sum().backward()
    assert x.grad is not None and twin.grad is not None
    assert torch.equal(x.grad, twin.grad)


def test_requires_grad_flows_through_writes() -> None:
    weight = nn.Parameter(torch.ones(4))

    def program(x: torch.Tensor) -> Any:
        y = torch.zeros(4, 8)
        before = y[1]
        y[:, 0] = weight
        return y, before, y.detach(), x.clone()

    check(program, X.clone())


def test_running_statistics_are_mutations() -> None:
    module = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True)).train()
    recorded = check(module, IMAGE.clone(), module=module, tolerance=1e-6)
    names = [(*recorded.inputs, *recorded.bound)[i].name for i, _ in recorded.mutations]
    assert sorted(names) == ["num_batches_tracked", "running_mean", "running_var"]


# --- networks --------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        y += x
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


NETWORKS: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
    ("residual", Residual, (2, 4, 8, 8)),
    ("lstm", lambda: nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), (2, 5, 8)),
    ("gru", lambda: nn.GRU(8, 6), (2, 5, 8)),
    ("lstm_cell", lambda: nn.LSTMCell(8, 6), (2, 8)),
    ("encoder_layer", lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    ("decoder", lambda: _Decoder(), (2, 5, 16)),
    ("group_norm", lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)), (2, 4, 8, 8)),
    ("attention", lambda: _SelfAttention(), (2, 5, 16)),
]  # fmt: skip


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x.flip(1))


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, x, x)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("name", "make", "shape"), NETWORKS, ids=[n[0] for n in NETWORKS])
def test_networks(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], train: bool) -> None:
    torch.manual_seed(1)
    module = make().train(train)
    x = torch.randn(shape)
    with torch.no_grad():
        check(module, x, module=module, tolerance=1e-5)
    check(module, x, module=module, tolerance=1e-5)
    if x.dim() == 4:
        check(module, x.to(memory_format=torch.channels_last), module=module, tolerance=1e-5)


def test_losses() -> None:
    target = torch.tensor([1, 0, 3, 2])

    def program(x: torch.Tensor) -> Any:
        return (
            F.cross_entropy(x, target), F.mse_loss(x, x * 0), F.l1_loss(x, x * 2), F.smooth_l1_loss(x, x * 0),
            F.binary_cross_entropy_with_logits(x, x.sigmoid()), F.kl_div(x.log_softmax(-1), x.softmax(-1)),
            F.nll_loss(x.log_softmax(-1), target), F.cosine_similarity(x, x + 1), F.normalize(x),
        )  # fmt: skip

    check(program, X.clone(), tolerance=1e-6)


# --- imports ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
from torch import nn
import torch.nn.functional as F
from lampwork.graph.record import Recorder

def alexnet(x, w):
    x = F.max_pool2d(F.relu(F.conv2d(x, w["c1"], w["b1"], 4, 2), inplace=True), 3, 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w["c2"], None, 1, 2)), 3, 2)
    x = F.adaptive_avg_pool2d(x, (6, 6)).flatten(1)
    return F.linear(F.dropout(x, 0.5, training=False), w["l"])

def bert(ids, w):
    x = F.embedding(ids, w["e"]) + F.embedding(torch.arange(ids.shape[1]), w["e"])
    x = F.layer_norm(x, (16,), w["g"], w["g"])
    q, k, v = (F.linear(x, w["q"], w["g"]).view(1, -1, 2, 8).transpose(1, 2) for _ in range(3))
    mask = torch.ones_like(ids)[:, None, None, :].to(torch.float32)
    mask = (1.0 - mask) * torch.finfo(torch.float32).min
    a = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(1, -1, 16)
    x = F.layer_norm(x + F.dropout(a, 0.1, training=False), (16,), w["g"], w["g"])
    x = F.gelu(F.linear(x, w["q"])) + x
    x[:, 0] = 1
    return torch.tanh(x[:, 0]), x.masked_fill(x > 1, 0.0), torch.cat([x, x], 1).softmax(-1).mean(1)

image, ids = torch.randn(1, 3, 224, 224), torch.randint(0, 9, (1, 12))
weights = {"c1": torch.randn(8, 3, 11, 11), "b1": torch.randn(8), "c2": torch.randn(8, 8, 5, 5), "l": torch.randn(4, 288)}
with Recorder() as rec:
    w = {k: rec.input(v, k, bound=True) for k, v in weights.items()}
    out = alexnet(rec.input(image, "x"), w)
rec.finish([out])
weights = {"e": torch.randn(100, 16), "g": torch.randn(16), "q": torch.randn(16, 16)}
with Recorder() as rec:
    w = {k: rec.input(v, k, bound=True) for k, v in weights.items()}
    outs = bert(rec.input(ids, "ids"), w)
    more = outs[1].cummax(0)[0], F.interpolate(outs[1][None], scale_factor=2), outs[1].erfinv()
rec.finish([*outs, *more])
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_recording_imports_neither_sympy_nor_dynamo_nor_inductor() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_trace_tensor_outside_its_recorder_is_refused() -> None:
    with Recorder() as rec:
        x = rec.input(X, "x")
    assert isinstance(x, TraceTensor)
    with pytest.raises(UnsupportedOpError):
        x + 1
