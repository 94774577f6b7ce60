"""What each rewrite of the library is worth: a small model with it and without it, turn about in one process.

    python benchmarks/rewrites.py [--only gelu] [--rounds 200] [--json FILE]

Two backends compile every model: native, which fuses pointwise ops itself, and eager, which calls ATen op by op.
Printed are the best microseconds without and with the rewrites, their ratio (above 1: the rewrites win) and how many
ATen ops a call computes; the JSON also has the median ratio of the turns. Samples are short and many, so that some are
undisturbed on a busy machine. A model on which a rewrite does not fire is an error, as is one whose result differs by
more than float rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_cases import CASES as ATTENTION
from torch import Tensor, nn

import lampwork
from lampwork.bench.machine import machine

BACKENDS = ("native", "eager")
SAMPLE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Case:
    """`rules`: the rewrites (or passes) that are switched on and off. `threads`: each number is a row."""

    title: str
    rules: tuple[str, ...]
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
    switch: str = "-"
    threads: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Figure:
    """Microseconds and ratios; see the head of the file."""

    title: str
    rules: tuple[str, ...]
    backend: str
    threads: int
    without_us: float
    with_us: float
    ratio: float
    median_ratio: float
    ops_without: int
    ops_with: int


class Net(nn.Module):
    """A function of some layers and parameters, and of what it is called with."""

    def __init__(self, fn: Callable[..., Any], *layers: nn.Module, **parameters: Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.layers = nn.ModuleList(layers)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *inputs: Tensor) -> Any:
        return self.fn(self, *inputs)


def net(fn: Callable[..., Any], *layers: nn.Module, **parameters: Tensor) -> nn.Module:
    return Net(fn, *layers, **parameters).eval()


# --- activations ----------------------------------------------------------------------------------------------------


def mlp(
    activation: Callable[[Tensor], Tensor], width: int = 768, inner: int = 3072, rows: int = 16
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    """Two linear layers and an activation between."""

    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        up, down = nn.Linear(width, inner), nn.Linear(inner, width)
        return net(lambda m, x: down(activation(up(x))), up, down), (torch.randn(rows, width),)

    return make


def gelu_by_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def convolution(
    activation: Callable[[Tensor], Tensor],
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        first, second = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 32, 1)
        return net(lambda m, x: second(activation(first(x))), first, second), (torch.randn(1, 32, 28, 28),)

    return make


def pointwise(
    activation: Callable[[Tensor], Tensor],
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    return lambda: (net(lambda m, x: activation(x)), (torch.randn(128, 3072),))


def softplus(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.log1p(torch.exp(-x.abs()))


# --- norms ----------------------------------------------------------------------------------------------------------


def residual(
    norm: Callable[..., Tensor], width: int = 768, rows: int = 128
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    """A sum and its norm, with weights."""

    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        model = net(
            lambda m, x, y: norm(x + y, m.g, m.b), g=torch.rand(width) + 0.5, b=torch.randn(width) * 0.1
        )
        return model, (torch.randn(rows, width), torch.randn(rows, width))

    return make


def layer_norm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return g * centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) + b


def rms_norm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def group_norm(m: Any, x: Tensor) -> Tensor:
    y = x.view(x.shape[0], 8, -1)
    y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, unbiased=False, keepdim=True) + 1e-5)
    return y.view(x.shape) * m.g.view(1, -1, 1, 1) + m.b.view(1, -1, 1, 1)


def softmax(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.max(-1, keepdim=True)[0])
    return powers / powers.sum(-1, keepdim=True)


def log_softmax(x: Tensor) -> Tensor:
    centred = x - x.amax(-1, keepdim=True)
    return centred - torch.log(torch.exp(centred).sum(-1, keepdim=True))


def scores(function: Callable[[Tensor], Tensor]) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    return lambda: (net(lambda m, x: function(x * 2)), (torch.randn(12, 128, 128),))


# --- constants ------------------------------------------------------------------------------------------------------


def layer(
    fn: Callable[..., Tensor], rows: int = 16, width: int = 768
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        model = net(fn, nn.Linear(width, width), g=torch.rand(width) + 0.5, b=torch.randn(width))
        return model, (torch.randn(1, rows, width),)

    return make


def scaled_heads(m: Any, x: Tensor) -> Tensor:
    heads = m.layers[0](x).view(1, x.shape[1], 12, 64).transpose(1, 2) / 3.0
    return heads @ x.view(1, x.shape[1], 12, 64).permute(0, 2, 3, 1)


def scaled_convolution(m: Any, x: Tensor) -> Tensor:
    return m.layers[0](x) * m.g + m.b


def projections(
    width: int, rows: int, outs: Sequence[int], join: Callable[..., Tensor]
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    """Linear layers of one input, and what is made of their results."""

    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        layers = [nn.Linear(width, out) for out in outs]
        return net(lambda m, x: join(*(p(x) for p in layers)), *layers), (torch.randn(1, rows, width),)

    return make


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (t.view(1, t.shape[1], -1, 64).transpose(1, 2) for t in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped).transpose(1, 2).flatten(2)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def normed(
    fn: Callable[..., Tensor], *layers: Callable[[], nn.Module], shape: tuple[int, ...]
) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return net(fn, *(make_layer() for make_layer in layers)), (torch.randn(shape),)

    return make


def pieces(fn: Callable[[Tensor], Tensor], *shape: int) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    return lambda: (net(lambda m, x: fn(x)), (torch.randn(shape),))


CASES = (
    Case("MLP with GELU by erf (BERT)", ("gelu_by_erf",), mlp(gelu_by_erf)),
    Case("MLP with GELU by tanh (GPT-2)", ("gelu_by_tanh",), mlp(gelu_by_tanh)),
    Case("convolution and clamp at 0", ("clamp_to_relu",), convolution(lambda x: x.clamp(min=0))),
    Case("MLP with SiLU by sigmoid", ("silu_by_sigmoid",), mlp(lambda x: x * torch.sigmoid(x), 512, 1376)),
    Case("SiLU by reciprocal", ("silu_by_reciprocal",), pointwise(lambda x: x * (1 / (1 + torch.exp(-x))))),
    Case("SiLU by exp", ("silu_by_exp",), pointwise(lambda x: x / (1 + torch.exp(-x)))),
    Case("Mish by softplus", ("mish_by_softplus",), pointwise(lambda x: x * torch.tanh(F.softplus(x)))),
    Case(
        "Mish by log1p",
        ("mish_by_log1p",),
        pointwise(lambda x: x * torch.tanh(torch.log1p(torch.exp(x)))),
    ),
    Case("convolution and hardswish", ("hardswish_formula",), convolution(lambda x: x * F.relu6(x + 3) / 6)),
    Case("hardsigmoid", ("hardsigmoid_formula",), pointwise(lambda x: F.relu6(x + 3) / 6)),
    Case("softplus by its stable formula", ("softplus_formula",), pointwise(softplus)),
    Case(
        "softplus by where",
        ("softplus_above_threshold",),
        pointwise(lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x)))),
    ),
    Case(
        "residual and layer norm",
        ("layer_norm_formula", "weight_into_layer_norm", "bias_into_layer_norm"),
        residual(layer_norm),
    ),
    Case("residual and RMS norm", ("rms_norm_formula", "weight_into_rms_norm"), residual(rms_norm)),
    Case(
        "group norm by views",
        ("group_norm_formula", "weight_into_group_norm", "bias_into_group_norm", "layer_norm_formula"),
        lambda: (
            net(group_norm, g=torch.rand(64) + 0.5, b=torch.randn(64)),
            (torch.randn(4, 64, 28, 28),),
        ),
    ),
    Case("softmax by formula", ("softmax_formula",), scores(softmax)),
    Case("log softmax by formula", ("log_softmax_formula",), scores(log_softmax)),
    Case("linear / 3", ("scale_behind_layer",), layer(lambda m, x: m.layers[0](x) / 3.0)),
    Case("linear * vector", ("scale_behind_layer",), layer(lambda m, x: m.layers[0](x) * m.g)),
    Case(
        "convolution * vector + vector",
        ("scale_behind_layer", "shift_behind_layer"),
        lambda: (
            net(
                scaled_convolution,
                nn.Conv2d(64, 64, 3, padding=1),
                g=torch.rand(64, 1, 1) + 0.5,
                b=torch.randn(64, 1, 1),
            ),
            (torch.randn(1, 64, 28, 28),),
        ),
    ),
    Case(
        "linear + vector", ("shift_behind_layer",), layer(lambda m, x: F.linear(x, m.layers[0].weight) + m.b)
    ),
    Case("heads of a linear layer / 3", ("scale_behind_heads",), layer(scaled_heads)),
    Case("linear of x * vector", ("scale_before_linear",), layer(lambda m, x: m.layers[0](x * m.g))),
    Case(
        "query, key, value: 256, 16 tokens",
        ("merge-linears",),
        projections(256, 16, [256] * 3, attention),
        threads=(1, 2),
    ),
    Case(
        "query, key, value: 512, 8 tokens",
        ("merge-linears",),
        projections(512, 8, [512] * 3, attention),
        threads=(1, 2),
    ),
    Case(
        "query, key, value: 768, 1 token",
        ("merge-linears",),
        projections(768, 1, [768] * 3, attention),
        threads=(1, 2),
    ),
    Case(
        "query, key, value: 512 of 2 heads, 16 tokens",
        ("merge-linears",),
        projections(512, 16, [512, 128, 128], attention),
        threads=(1, 2),
    ),
    Case(
        "gate and up: 384 to 1024, 8 tokens",
        ("merge-linears",),
        projections(384, 8, [1024] * 2, gated),
        threads=(1, 2),
    ),
    Case(
        "gate and up: 512 to 1376, 1 token",
        ("merge-linears",),
        projections(512, 1, [1376] * 2, gated),
        threads=(1, 2),
    ),
    Case(
        "convolution and batch norm",
        ("fold-batch-norm",),
        normed(
            lambda m, x: m.layers[1](m.layers[0](x)).relu(),
            lambda: nn.Conv2d(64, 64, 3, padding=1),
            lambda: nn.BatchNorm2d(64),
            shape=(1, 64, 28, 28),
        ),
    ),
    Case(
        "batch norm and convolution",
        ("fold-batch-norm",),
        normed(
            lambda m, x: m.layers[1](m.layers[0](x)).relu(),
            lambda: nn.BatchNorm2d(64),
            lambda: nn.Conv2d(64, 64, 1),
            shape=(1, 64, 28, 28),
        ),
    ),
    Case(
        "linear, channels first, batch norm",
        ("fold-batch-norm",),
        normed(
            lambda m, x: m.layers[1](m.layers[0](x).transpose(1, 2)).relu(),
            lambda: nn.Linear(64, 128),
            lambda: nn.BatchNorm1d(128),
            shape=(4, 256, 64),
        ),
    ),
    Case(
        "split and cat", ("cat_of_pieces",), pieces(lambda x: torch.cat(x.chunk(4, -1), -1).sin(), 128, 768)
    ),
    Case(
        "unbind and stack",
        ("stack_of_pieces",),
        pieces(lambda x: torch.stack(x.unbind(1), 1).sin(), 128, 12, 64),
    ),
    Case(
        "cat and slices",
        ("slice_of_cat",),
        pieces(lambda x: (lambda c: c[:, :768].sin() + c[:, 768:].cos())(torch.cat([x, x + 1], 1)), 128, 768),
    ),
    Case(
        "stack and selects",
        ("select_of_stack",),
        pieces(lambda x: (lambda c: c[0].sin() + c[1].cos())(torch.stack([x, x + 1])), 128, 768),
    ),
    Case(
        "pointwise between permutes",
        ("permute_undone",),
        pieces(lambda x: (x.transpose(1, 2).tanh() * 2).transpose(1, 2).sum(-1), 4, 256, 256),
    ),
    Case(
        "pointwise between views",
        ("view_undone",),
        pieces(lambda x: x.view(-1, 256).tanh().view(4, 256, 256).sum(-1), 4, 256, 256),
    ),
    Case(
        "squeeze and unsqueeze",
        ("squeeze_undone",),
        pieces(lambda x: x.squeeze(1).unsqueeze(1).tanh(), 128, 1, 768),
    ),
    Case(
        "x + y / z",
        ("fuse-pairs",),
        lambda: (
            net(lambda m, x, y, z: x + y / z),
            (torch.randn(128, 768), torch.randn(128, 768), torch.rand(128, 768) + 0.5),
        ),
        "+",
    ),
    Case(
        "x + y * z",
        ("fuse-pairs",),
        lambda: (
            net(lambda m, x, y, z: x + y * z),
            tuple(torch.randn(128, 768) for _ in range(3)),
        ),
        "+",
    ),
    *(Case(*case) for case in ATTENTION),
)


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(case: Case, backend: str, rounds: int) -> Figure:
    """Raises AssertionError where a rewrite does not fire or changes the result."""
    torch.manual_seed(0)
    model, inputs = case.make()
    named = ",".join(f"{case.switch}{rule}" for rule in case.rules)
    off, on = ("", named) if case.switch == "+" else (named, "")
    without, with_rules = (
        lampwork.compile(model, backend=backend, options={"passes": switches}) for switches in (off, on)
    )
    results = [compiled(*inputs) for compiled in (without, with_rules)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    texts = [compiled.stages.text("optimized") for compiled in (without, with_rules)]
    assert texts[0] != texts[1], f"{case.title}: {case.rules} does not fire"
    times: tuple[list[float], list[float]] = ([], [])
    ops = [sum("aten." in line and "# constant" not in line for line in t.splitlines()) for t in texts]
    counts = [max(1, int(SAMPLE_SECONDS / sample(c, inputs, 3))) for c in (without, with_rules)]
    for _ in range(rounds):
        for compiled, count, found in zip((without, with_rules), counts, times, strict=True):
            found.append(sample(compiled, inputs, count))
    best = [min(found) * 1e6 for found in times]
    median = statistics.median(a / b for a, b in zip(*times, strict=True))
    threads = torch.get_num_threads()
    return Figure(case.title, case.rules, backend, threads, *best, best[0] / best[1], median, *ops)


def sample(fn: Callable[..., Any], inputs: tuple[Tensor, ...], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        fn(*inputs)
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", default="", help="cases whose title or rewrites contain this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures: list[Figure] = []
    print(f"{'':56}{'native':>10} {'with':>9} {'ratio':>6}   {'eager':>9} {'with':>9} {'ratio':>6}   ops")
    with torch.no_grad():
        for case in CASES:
            if args.only not in f"{case.title} {case.rules}":
                continue
            for threads in case.threads:
                torch.set_num_threads(threads)
                row = [measure(case, backend, args.rounds) for backend in BACKENDS]
                figures += row
                cells = "   ".join(f"{f.without_us:9.1f} {f.with_us:9.1f} {f.ratio:6.2f}" for f in row)
                title = case.title if threads == 1 else f"{case.title}, {threads} threads"
                print(f"{title:56} {cells}   {row[0].ops_without} -> {row[0].ops_with}", flush=True)
    if args.json:
        document = {"machine": machine(), "figures": [asdict(f) for f in figures]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
