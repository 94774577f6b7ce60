"""`decompose = "core"`: what the backend is asked about, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lampwork
from lampwork.backends import core_aten
from lampwork.backends.core_aten import decomposition_of, is_core
from lampwork.graph.interpret import run_graph
from lampwork.graph.verify import verify
from lampwork.testing.compare import difference, exact_result

aten = torch.ops.aten


class Core:
    """Takes core operators only, and notes what it is asked about."""

    name = "core"
    decompose = "core"

    def __init__(self):
        self.asked = set()

    def supports(self, node):
        self.asked.add(node.target)
        return is_core(node.target)

    def compile(self, graph, example_inputs, options):
        verify(graph)
        return lambda *tensors: run_graph(graph, tensors)


class Only(Core):
    """Takes these operators."""

    name = "only"

    def __init__(self, *takes):
        super().__init__()
        self.takes = takes

    def supports(self, node):
        self.asked.add(node.target)
        return node.target in self.takes


def network():
    return nn.Sequential(
        nn.Linear(8, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)
    ).eval()


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


def attention(q):
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def run(fn, *args, backend=None, others=("native",), **options):
    """The parts, after a strict call that gives what eager gives."""
    options = {"strict": True, "verify": "graph", **options}
    compiled = lampwork.compile(fn, backend=[backend, *others], options=options)
    with torch.no_grad():
        want = fn(*args)
        got = compiled(*args)
    assert not difference(got, want, exact_result(fn, args))
    return compiled.stages.partition


@pytest.mark.parametrize(
    ("fn", "shape"), [(network(), (3, 8)), (convolutions(), (2, 3, 8, 8)), (attention, (2, 3, 4, 8))]
)
def test_networks_are_one_part_of_core_operators(fn, shape) -> None:
    core = Core()
    partition = run(fn, torch.randn(shape), backend=core)
    assert partition.count("part ") == 1 and partition.startswith("part 0: core")
    assert all(map(is_core, core.asked))


class Encoder(nn.Module):
    """What a layer of BERT is made of."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids, mask):
        x = self.words(ids)
        q, k, v = (t.view(2, -1, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y + F.scaled_dot_product_attention(q, k, v)
        x = self.norm(x + self.out(y.transpose(1, 2).reshape(x.shape)))
        return self.norm(x + self.down(F.gelu(self.up(x))))


def test_a_transformer() -> None:
    core = Core()
    mask = torch.arange(7) < torch.tensor([[[[4]]], [[[7]]]])
    partition = run(Encoder().eval(), torch.randint(0, 50, (2, 7)), mask, backend=core)
    assert partition.count("part ") == 1 and partition.startswith("part 0: core")
    assert all(map(is_core, core.asked))


def test_what_it_takes_no_piece_of_stays_whole() -> None:
    only = Only(aten.addmm.default, aten.view.default, aten.permute.default)
    partition = run(network(), torch.randn(3, 8), backend=only)
    assert "native_layer_norm" not in partition and "layer_norm" in partition and "silu" in partition
    assert partition.count("addmm") == 2
    assert not {aten.linear.default, aten.layer_norm.default, aten.silu.default} & only.asked
    plan = lampwork.partition(network(), torch.randn(3, 8), [only, "native"])
    reasons = {group.op: group.reason for group in plan.refusals}
    assert "it takes none of the core operators that this is made of: mul, sigmoid" == reasons["silu"]


def test_what_a_backend_before_it_takes_stays_whole() -> None:
    class First(Only):
        name, decompose = "first", ""

    first, core = First(aten.linear.default), Core()
    partition = run(network(), torch.randn(3, 8), backend=first, others=(core,))
    assert partition.count("first, 1 nodes: linear") == 2 and "addmm" not in partition


def test_kept_operators_and_switches() -> None:
    class Keeps(Core):
        keep_ops = ("aten.silu",)

        def supports(self, node):
            return super().supports(node) or node.target is aten.silu.default

    assert "silu" in run(network(), torch.randn(3, 8), backend=Keeps())
    assert "linear" in run(network(), torch.randn(3, 8), backend=Core(), passes="-decompose-core")


def test_random_operators_stay() -> None:
    core = Core()
    compiled = lampwork.compile(
        lambda x: F.dropout(F.silu(x), 0.5, True), backend=core, options={"strict": True}
    )
    torch.manual_seed(3)
    got = compiled(torch.ones(4, 8))
    torch.manual_seed(3)
    torch.testing.assert_close(got, F.dropout(F.silu(torch.ones(4, 8)), 0.5, True))
    assert aten.sigmoid.default in core.asked and aten.dropout.default in core.asked


def test_results_lie_in_memory_as_before() -> None:
    def fn(x):
        return F.dropout(x, 0.5, False), F.silu(x.t()), x.t().contiguous().t(), F.glu(x[:, ::2])

    run(fn, torch.randn(4, 16), backend=Core())


def test_open_sizes_and_training() -> None:
    module = network()
    compiled = lampwork.compile(
        module, backend=[Core(), "native"], dynamic=True, options={"strict": True, "verify": "graph"}
    )
    for rows in (3, 5, 1, 2):
        x, y = torch.randn(rows, 8), torch.randn(rows, 8, requires_grad=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))
        compiled(y).square().sum().backward()
        got, y.grad = y.grad, None
        module(y).square().sum().backward()
        torch.testing.assert_close(got, y.grad)


def test_under_autocast() -> None:
    module, x = network(), torch.randn(3, 8)
    compiled = lampwork.compile(module, backend=[Core(), "native"], options={"strict": True})
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), module(x), atol=0.02, rtol=0.02)


def test_core_operators_have_no_decomposition() -> None:
    assert decomposition_of(aten.add.Tensor) is None and decomposition_of(len) is None
    assert decomposition_of(aten.linear.default) is not None
    assert decomposition_of(aten.erfc.default) is None


def test_who_does_not_ask_does_not_pay(monkeypatch) -> None:
    def loaded():
        raise AssertionError("the table of torch is loaded")

    monkeypatch.setattr(core_aten, "_tables", loaded)

    class Whole(Core):
        name, decompose = "whole", ""

    run(network(), torch.randn(3, 8), backend=Whole())
