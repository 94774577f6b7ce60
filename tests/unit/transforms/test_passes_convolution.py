"""Batch norm in weights, convolutions in oneDNN, and the layouts that follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from graphkit import find, ops, record, run
from torch import nn

import lampwork
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.native.passes.prepack_convolution import PrepackConvolution
from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.graph.record import Recorder
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.algebra import Algebra
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.fold_batch_norm import FoldBatchNorm
from lampwork.transforms.pipeline import run_passes
from lampwork.transforms.split_constants import SplitConstants

F = torch.nn.functional
# Of a machine without templates, for which every convolution is oneDNN's.
PACKING = PrepackConvolution(lambda options: replace(describe("avx512"), products=frozenset()))
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")


def record_module(module: nn.Module, *inputs: torch.Tensor):
    """The graph of an eval-mode module with its parameters and buffers bound, and the tensors it takes."""
    module.eval()
    with torch.no_grad(), Recorder() as rec:
        args = [rec.input(t, f"x{i}") for i, t in enumerate(inputs)]
        state = {n: rec.input(t, n, bound=True) for n, t in module.state_dict(keep_vars=True).items()}
        result = torch.func.functional_call(module, state, tuple(args))
    recorded = rec.finish(list(result) if isinstance(result, tuple | list) else [result])
    return recorded.graph, [*inputs, *(b.tensor for b in recorded.bound)]


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 1.5 + 0.25)
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            with torch.no_grad():
                parameter.sub_(1.0)
    return module


def apply(graph, *passes):
    ctx = PassContext()
    for p in passes:
        p.run(graph, ctx)
        verify(graph)
    return ctx


def check(module, *inputs, passes=None):
    """Run the passes; compare with the module in float64, by eager's own error. Returns the graph and counters."""
    graph, tensors = record_module(module, *inputs)
    ctx = PassContext(backend_passes=NativeBackend().passes)
    steps = passes if passes is None else (SplitConstants(), *passes, SplitConstants())
    run_passes(graph, passes=steps, ctx=ctx)
    verify(graph)
    with torch.no_grad():
        eager = module(*inputs)
        actual = run(graph, *tensors)
        exact = module.double()(*(t.double() if t.is_floating_point() else t for t in inputs))
    module.to(inputs[0].dtype)
    if not isinstance(eager, tuple | list):
        eager, exact = [eager], [exact]
    for a, e, x in zip(actual, eager, exact, strict=True):
        assert a.stride() == e.stride() and a.dtype is e.dtype and a.shape == e.shape
        scale = x.abs().max().item()
        error, own = (a - x).abs().max().item(), (e - x).abs().max().item()
        assert error <= 2 * own + 1e-6 * scale, (error, own)
    return graph, ctx


# --- fold-batch-norm --------------------------------------------------------------------------------------------------

FOLDS = [
    ("conv", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), (2, 3, 6, 6)),
    ("no bias", lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)), (2, 3, 6, 6)),
    ("not affine", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)), (2, 3, 6, 6)),
    ("groups", lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)), (2, 4, 6, 6)),
    ("conv1d", lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8)), (2, 3, 9)),
    ("conv3d", lambda: nn.Sequential(nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4)), (2, 3, 4, 4, 4)),
    ("transposed", lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 3, 2), nn.BatchNorm2d(8)), (2, 3, 5, 5)),
    ("linear", lambda: nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5)), (4, 7)),
    ("transposed 1d", lambda: nn.Sequential(nn.ConvTranspose1d(3, 8, 3, 2), nn.BatchNorm1d(8)), (2, 3, 5)),
    ("before a convolution", lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)), (2, 3, 6, 6)),
    ("before a strided one", lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Conv1d(4, 6, 3, 2)), (2, 4, 9)),
    (
        "before one without bias",
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 1, bias=False)),
        (2, 3, 6, 6),
    ),
    ("before a linear layer", lambda: nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 5)), (4, 7)),
]


@pytest.mark.parametrize("name, make, shape", FOLDS, ids=[f[0] for f in FOLDS])
def test_batch_norm_goes_into_the_weights(name: str, make, shape: tuple[int, ...]) -> None:
    graph, ctx = check(randomized(make()), torch.randn(shape), passes=[FoldBatchNorm()])
    assert ctx.hits == {"fold-batch-norm": 1}
    live = [n for n in graph.nodes if n.op == "call_function" and not n.meta.get("constant")]
    assert len(live) == 1


class Between(nn.Module):
    """A layer, what lies between, and a batch norm."""

    def __init__(self, layer: nn.Module, between, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.between, self.norm = layer, between, norm

    def forward(self, x):
        return self.norm(self.between(self.layer(x)))


THROUGH = [
    ("points in one row", nn.Linear(7, 5), lambda y: y.view(-1, 5), nn.BatchNorm1d(5), (2, 3, 7)),
    ("channels first", nn.Linear(7, 5), lambda y: y.transpose(1, 2), nn.BatchNorm1d(5), (2, 3, 7)),
    ("pooled away", nn.Conv2d(4, 6, 5, groups=2), lambda y: y.flatten(1), nn.BatchNorm1d(6), (2, 4, 5, 5)),
    ("one pixel row", nn.Conv2d(4, 6, 3), lambda y: y.flatten(2), nn.BatchNorm1d(6), (2, 4, 5, 5)),
    ("squeezed", nn.Conv1d(4, 6, 5), lambda y: y.squeeze(2), nn.BatchNorm1d(6), (2, 4, 5)),
]


@pytest.mark.parametrize("name, layer, between, norm, shape", THROUGH, ids=[t[0] for t in THROUGH])
def test_batch_norm_goes_into_the_weights_through_views(name, layer, between, norm, shape) -> None:
    passes = [Canonicalize(), FoldBatchNorm()]
    graph, ctx = check(randomized(Between(layer, between, norm)), torch.randn(shape), passes=passes)
    assert ctx.hits["fold-batch-norm"] == 1
    assert "add" not in ops_of_main(graph) and "mul" not in ops_of_main(graph)


APART = [
    (
        "channels and pixels in one",
        nn.Conv2d(4, 6, 4),
        lambda y: y.flatten(1),
        nn.BatchNorm1d(24),
        (2, 4, 5, 5),
    ),
    ("rows for channels", nn.Linear(7, 5), lambda y: y, nn.BatchNorm1d(3), (2, 3, 7)),
    ("an activation", nn.Linear(7, 5), torch.relu, nn.BatchNorm1d(5), (4, 7)),
]


@pytest.mark.parametrize("name, layer, between, norm, shape", APART, ids=[t[0] for t in APART])
def test_batch_norm_of_other_channels_stays_behind(name, layer, between, norm, shape) -> None:
    passes = [Canonicalize(), FoldBatchNorm()]
    graph, _ = check(randomized(Between(layer, between, norm)), torch.randn(shape), passes=passes)
    assert ops_of_main(graph)[-2:] == ["mul", "add"]


def test_a_padded_convolution_ahead_takes_no_shift() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, padding=1))
    graph, _ = check(randomized(model), torch.randn(2, 3, 6, 6), passes=[FoldBatchNorm()])
    assert ops_of_main(graph) == ["mul", "add", "conv2d"]


STANDALONE = [
    ("behind an activation", lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), (2, 3, 5, 5)),
    (
        "grouped transposed",
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
        (2, 4, 5, 5),
    ),
    ("channels not last of a linear", lambda: nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(3)), (2, 3, 7)),
    ("in two dimensions", lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), (4, 3)),
]


@pytest.mark.parametrize("name, make, shape", STANDALONE, ids=[f[0] for f in STANDALONE])
def test_batch_norm_elsewhere_is_a_scale_and_a_shift(name: str, make, shape: tuple[int, ...]) -> None:
    graph, _ = check(randomized(make()), torch.randn(shape), passes=[FoldBatchNorm()])
    live = [n for n in ops_of_main(graph)]
    assert live[-2:] == ["mul", "add"] and "batch_norm" not in ops(graph)


def ops_of_main(graph):
    return [n.target._opname for n in graph.nodes if n.op == "call_function" and not n.meta.get("constant")]


def test_a_convolution_that_others_read_keeps_its_weights() -> None:
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.conv(x)
            return y, self.bn(y)

    graph, _ = check(randomized(Both()), torch.randn(1, 3, 6, 6), passes=[FoldBatchNorm()])
    assert ops_of_main(graph) == ["conv2d", "mul", "add"]


def test_batch_norm_that_is_not_folded() -> None:
    x, stats = torch.randn(4, 3, 5, 5), torch.rand(4, 3).unbind()
    gamma, beta, mean, var = stats

    def trained(x, g, b):
        return F.batch_norm(x, None, None, g, b, True)

    graph = record(trained, x, bound=[gamma, beta])
    ctx = apply(graph, SplitConstants(), FoldBatchNorm())
    assert ctx.refusals == {("fold-batch-norm", "the statistics are the batch's"): 1}

    def given(x, mean, var, g, b):
        return F.batch_norm(x, mean, var, g, b)

    graph = record(given, x, mean, var, bound=[gamma, beta])
    ctx = apply(graph, SplitConstants(), FoldBatchNorm())
    assert ctx.refusals == {("fold-batch-norm", "the statistics are computed in the graph"): 1}

    graph = record(given, x.bfloat16(), bound=[mean, var, gamma, beta])
    ctx = apply(graph, SplitConstants(), FoldBatchNorm())
    assert not ctx.hits and "batch_norm" in ops(graph)


def test_new_weights_are_computed_from_the_bound_ones() -> None:
    """Other weights, same graph."""
    module = randomized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    x = torch.randn(1, 3, 6, 6)
    graph, tensors = record_module(module, x)
    run_passes(graph, ctx=PassContext(backend_passes=NativeBackend().passes))
    randomized(module, seed=7)
    with torch.no_grad():
        torch.testing.assert_close(run(graph, *tensors)[0], module(x), rtol=1e-5, atol=1e-5)


# --- prepack-convolution ------------------------------------------------

CONVOLUTIONS = [
    ("3x3", lambda: nn.Conv2d(16, 32, 3, padding=1), (1, 16, 9, 9)),
    ("1x1", lambda: nn.Conv2d(16, 8, 1), (2, 16, 5, 5)),
    ("stride", lambda: nn.Conv2d(3, 16, 7, 2, 3, bias=False), (1, 3, 20, 22)),
    ("dilated", lambda: nn.Conv2d(8, 8, 3, dilation=2, padding=2), (1, 8, 9, 9)),
    ("groups", lambda: nn.Conv2d(8, 16, 3, groups=4), (2, 8, 7, 7)),
    ("depthwise", lambda: nn.Conv2d(12, 12, 3, padding=1, groups=12), (1, 12, 8, 8)),
    ("same", lambda: nn.Conv2d(4, 4, (3, 5), padding="same"), (1, 4, 8, 8)),
    ("valid", lambda: nn.Conv2d(4, 4, 3, padding="valid"), (1, 4, 8, 8)),
    ("one channel", lambda: nn.Conv2d(1, 1, 3), (3, 1, 6, 6)),
    ("to one pixel", lambda: nn.Conv2d(4, 6, 6), (3, 4, 6, 6)),
    ("conv1d", lambda: nn.Conv1d(6, 8, 3, padding=1), (2, 6, 11)),
    ("conv1d groups", lambda: nn.Conv1d(6, 12, 4, stride=2, groups=3), (1, 6, 11)),
]


@needs_onednn
@pytest.mark.parametrize("name, make, shape", CONVOLUTIONS, ids=[c[0] for c in CONVOLUTIONS])
def test_convolutions_are_packed(name: str, make, shape: tuple[int, ...]) -> None:
    graph, ctx = check(randomized(make()), torch.randn(shape), passes=[PACKING])
    assert ctx.hits == {"prepack-convolution": 1}
    packed = find(graph, "mkldnn._reorder_convolution_weight")
    assert packed.meta["constant"] and packed.meta["opaque"]


ACTIVATIONS = [
    ("swish", nn.SiLU()),
    ("hardswish", nn.Hardswish()),
    ("sigmoid", nn.Sigmoid()),
    ("tanh", nn.Tanh()),
    ("gelu", nn.GELU()),
    ("gelu", nn.GELU(approximate="tanh")),
    ("leaky_relu", nn.LeakyReLU(0.2)),
]


@needs_onednn
@pytest.mark.parametrize("name, activation", ACTIVATIONS, ids=[str(a[1]) for a in ACTIVATIONS])
def test_activations_are_done_in_place(name: str, activation: nn.Module) -> None:
    module = randomized(nn.Sequential(nn.Conv2d(4, 8, 3), activation))
    graph, _ = check(module, torch.randn(2, 4, 7, 7), passes=[PACKING])
    assert find(graph, "mkldnn._convolution_pointwise").args[7] == name


@needs_onednn
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.Hardsigmoid()], ids=str)
def test_activations_that_would_lose_nan_stay_apart(activation: nn.Module) -> None:
    module = randomized(nn.Sequential(nn.Conv2d(4, 8, 1), activation))
    x = torch.randn(2, 4, 7, 7)
    graph, _ = check(module, x, passes=[PACKING])
    assert find(graph, "mkldnn._convolution_pointwise").args[7] == "none"
    x[0, 1, 2, 3] = float("nan")
    with torch.no_grad():
        assert torch.equal(torch.isnan(lampwork.compile(module)(x)), torch.isnan(module(x)))


@needs_onednn
@pytest.mark.parametrize("name, activation", ACTIVATIONS, ids=[str(a[1]) for a in ACTIVATIONS])
def test_nan_goes_through_activations_done_in_place(name: str, activation: nn.Module) -> None:
    module = randomized(nn.Sequential(nn.Conv2d(4, 8, 1), activation))
    x = torch.randn(2, 4, 7, 7)
    x[0, 1, 2, 3] = float("nan")
    with torch.no_grad():
        assert torch.equal(torch.isnan(lampwork.compile(module)(x)), torch.isnan(module(x)))


class Residual(nn.Module):
    def __init__(self, relu: bool, swap: bool, plain: bool = False):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu, self.swap, self.plain = relu, swap, plain

    def forward(self, x):
        y = x.cos() if self.plain else self.a(x).cos()
        z = self.b(y)
        s = y + z if self.swap else z + y
        return (F.relu(s) if self.relu else s).mean((2, 3))


@needs_onednn
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_residual_sums_are_done_in_place(relu: bool, swap: bool, plain: bool) -> None:
    module = randomized(Residual(relu, swap, plain))
    graph, _ = check(module, torch.randn(2, 8, 6, 6), passes=[PACKING])
    fused = next(n for n in graph.nodes if n.op == "call_function" and n.target._overloadname == "binary")
    assert fused.args[8] == "add" and fused.args[10:] == (None, [], None)
    assert "add" not in ops(graph)


@needs_onednn
@pytest.mark.parametrize(
    "name",
    [
        "broadcast",
        "alpha",
        "number",
        "itself",
        "read elsewhere",
        "result",
        "computed weight",
        "unbatched",
        "float64",
    ],
)
def test_what_is_not_fused_or_packed(name: str) -> None:
    x, w = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3) / 6
    other = torch.randn(4, 1, 1)
    programs = {
        "broadcast": lambda x, w, o: (F.conv2d(x, w) + o).sum(1),
        "alpha": lambda x, w, o: torch.add(F.conv2d(x, w), x[:, :, 1:-1, 1:-1], alpha=2).sum(1),
        "number": lambda x, w, o: (F.conv2d(x, w) + 1).sum(1),
        "itself": lambda x, w, o: (lambda c: c + c)(F.conv2d(x, w)).sum(1),
        "read elsewhere": lambda x, w, o: (lambda c: F.relu(c) * c)(F.conv2d(x, w)).sum(1),
        "result": lambda x, w, o: (lambda c: (c, F.relu(c).sum(1)))(F.conv2d(x, w)),
        "computed weight": lambda x, w, o: F.conv2d(x, w * x.mean()).sum(1),
        "unbatched": lambda x, w, o: F.conv2d(x[0], w).sum(1),
        "float64": lambda x, w, o: F.conv2d(x.double(), w.double()).sum(1),
    }
    fn = programs[name]
    graph = record(fn, x, bound=[w, other])
    ctx = apply(graph, SplitConstants(), PACKING)
    if name in ("computed weight", "unbatched", "float64"):
        assert not ctx.hits and ctx.refusals.total() == 1
    else:
        assert find(graph, "mkldnn._convolution_pointwise").args[7] == "none"
    expected = fn(x, w, other)
    for a, e in zip(
        run(graph, x, w, other), expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        assert a.stride() == e.stride()
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


class Layouts(nn.Module):
    """Everything that reads a channels-last value in one network."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.bn, self.fc = nn.BatchNorm2d(16), nn.Linear(16 * 16, 5)

    def forward(self, x):
        y = self.a(x)
        z = torch.cat([self.b(F.relu(y)), F.silu(y)], 1)
        pooled = F.max_pool2d(self.bn(z), 2)
        tokens = pooled.flatten(2).transpose(1, 2)
        return self.fc(pooled.flatten(1)), tokens.softmax(-1), y, y[0].transpose(0, 1)


@needs_onednn
def test_layouts_follow_and_results_have_eagers() -> None:
    module = randomized(Layouts())
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.2)
    graph, ctx = check(module, torch.randn(2, 3, 8, 8))
    assert ctx.hits["channels-last-convolution"] == 2 and "prepack-convolution" not in ctx.hits
    pool = find(graph, "max_pool2d").meta["val"]
    assert pool.strides[1] == 1


@needs_onednn
def test_an_input_that_several_read_is_converted_once() -> None:
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            return (self.a(x) * self.b(x)).mean((2, 3))

    graph, _ = check(randomized(Branches()), torch.randn(1, 8, 6, 6), passes=[PACKING])
    assert ops_of_main(graph).count("clone") == 1


def test_padding_goes_into_the_convolution() -> None:
    def padded(x, w):
        return F.conv2d(F.pad(x, [1, 1, 2, 2]), w, None, 2, 1)

    x, w = torch.randn(1, 3, 8, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    graph = record(padded, x, bound=[w])
    apply(graph, SplitConstants(), Canonicalize(), Algebra())
    assert ops(graph) == ["conv2d"] and list(find(graph, "conv2d").args[4]) == [3, 2]
    torch.testing.assert_close(run(graph, x, w)[0], padded(x, w))


@pytest.mark.parametrize(
    "pad, value", [([0, 1, 0, 1], 0.0), ([1, 1, 1, 1], 1.0), ([-1, -1], 0.0), ([0] * 4 + [1, 1], 0)]
)
def test_padding_that_stays(pad: list[int], value: float) -> None:
    def padded(x, w):
        return F.conv2d(F.pad(x, pad, value=value), w)

    x, w = torch.randn(1, 3, 8, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    w = w if len(pad) < 6 else torch.randn(4, 5, 3, 3, dtype=torch.float64)
    graph = record(padded, x, bound=[w])
    apply(graph, SplitConstants(), Canonicalize(), Algebra())
    assert "constant_pad_nd" in ops(graph)
    torch.testing.assert_close(run(graph, x, w)[0], padded(x, w))


@pytest.mark.parametrize("shape", [(2, 16, 1, 1), (2, 16, 5, 5), (4, 16, 3, 3)], ids=str)
def test_a_bias_that_is_not_contiguous(shape: tuple[int, ...]) -> None:
    """oneDNN does not look at the stride."""
    x, w, b = torch.randn(2, 32, 8, 8), torch.randn(*shape), torch.randn(2 * shape[0])[::2]

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, b, groups=2)

    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(model)(x), model(x), rtol=1e-4, atol=1e-4)
