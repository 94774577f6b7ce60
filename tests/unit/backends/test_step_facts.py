"""What programs tell of their steps: which nodes each computes, the bytes it moves and the arithmetic it does."""

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lampwork
from lampwork.rewriting.flops import flops, moved_bytes


def stages_of(fn, *args, calls=1, **options):
    compiled = lampwork.compile(fn, **options)
    for _ in range(calls):
        compiled(*args)
    return compiled.stages


def computed(stages, half=""):
    return {name for step in stages.steps(half) for name in step.nodes}


def of(steps, kind):
    found = [step for step in steps if step.kind == kind]
    assert len(found) == 1, steps
    return found[0]


@torch.no_grad()
def test_a_product_with_its_epilogue():
    layer = nn.Linear(32, 16).eval()
    stages = stages_of(lambda x: torch.tanh(layer(x)), torch.randn(20, 32))
    (step,) = stages.steps()
    assert step.kind == "gemm" and step.nodes == ("linear", "tanh") and step.dtype == "float32"
    assert step.bytes_read == 4 * (20 * 32 + 32 * 16 + 16)
    assert step.bytes_written == 4 * 20 * 16
    # The product, the bias, tanh.
    assert step.flops == 20 * 16 * (2 * 32 + 1 + 1)
    assert [line.line for line in step.lines]


def test_a_pointwise_kernel_counts_each_node_once():
    stages = stages_of(lambda x, y: ((x + y) * x).exp() - 1, torch.randn(8, 8), torch.randn(8))
    (step,) = stages.steps()
    assert (step.kind, step.nodes) == ("kernel", ("add", "mul", "exp", "sub"))
    assert (step.bytes_read, step.bytes_written, step.flops) == (4 * 72, 4 * 64, 4 * 64)


def test_of_a_slice_and_a_gather_only_what_is_read():
    def fn(table, rows, x):
        return table[rows] + x[:, :4]

    table, rows, x = torch.randn(1000, 4), torch.tensor([3, 5]), torch.randn(2, 1000)
    (step,) = stages_of(fn, table, rows, x).steps()
    assert step.bytes_read == 4 * 8 + 8 * 2 + 4 * 8


def test_of_matrices_of_groups_no_more_are_read_than_there_are_rows():
    def fn(x, w, ends):
        return torch._grouped_mm(x, w, offs=ends)

    x, w = torch.randn(3, 16), torch.randn(10, 8, 16).transpose(1, 2)
    ends = torch.tensor([1] * 9 + [3], dtype=torch.int32)
    step = of(stages_of(fn, x, w, ends).steps(), "gemm")
    assert step.bytes_read == 4 * (3 * 16 + 3 * 16 * 8 + 10)
    assert step.flops == 3 * 8 * 2 * 16


def test_a_call_of_aten():
    stages = stages_of(lambda x: (x + 1).sort().values, torch.randn(6, 50))
    kernel, call = stages.steps()
    assert kernel.nodes == ("add",) and call.kind == "aten" and call.nodes == ("sort",)
    assert (call.bytes_read, call.bytes_written) == (4 * 300, 12 * 300)
    assert (kernel.index, call.index) == (0, 1)


@torch.no_grad()
def test_of_a_table_whose_rows_are_looked_up_the_rows_count():
    bags = nn.EmbeddingBag(1000, 8, mode="mean").requires_grad_(False)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    stages = stages_of(lambda ids: bags(ids) * 2, ids)
    call = next(step for step in stages.steps() if step.kind == "aten")
    assert call.flops == 6 * 8 and call.bytes_read == 4 * 6 * 8 + 8 * 6 + 8 * 2
    (node,) = (n for n in stages.compilation.graph.nodes if n.name in call.nodes)
    assert moved_bytes(node)[0] == call.bytes_read


@torch.no_grad()
def test_nodes_move_distinct_elements_and_views_none():
    lstm = nn.LSTM(4, 8, 2, batch_first=True).requires_grad_(False)

    def fn(x, bias):
        return lstm(x)[0].transpose(1, 2) + bias.expand(8, 5)

    stages = stages_of(fn, torch.randn(3, 5, 4), torch.randn(1, 5))
    nodes = {node.name: node for node in stages.compilation.recorded.nodes if node.op == "call_function"}
    assert moved_bytes(nodes["add"]) == (4 * (3 * 5 * 8 + 5), 4 * 3 * 5 * 8)
    assert all(moved_bytes(nodes[name]) == (0, 0) for name in ("expand", "transpose"))
    assert moved_bytes(next(node for node in nodes.values() if node.target is operator.getitem)) == (0, 0)
    # Four gates of eight, of the input and of the state, at each of five places of three samples.
    assert flops(nodes["lstm"]) == 2 * 15 * 32 * (4 + 8 + 8 + 8)


@torch.no_grad()
def test_convolution_attention_and_recurrent_layers():
    conv = nn.Conv2d(16, 32, 3, padding=1).eval()
    step = of(stages_of(conv, torch.randn(1, 16, 12, 12)).steps(), "conv")
    assert step.flops == 32 * 144 * (2 * 16 * 9 + 1)

    q = torch.randn(1, 4, 256, 32)
    step = of(stages_of(F.scaled_dot_product_attention, q, q, q).steps(), "attention")
    assert step.flops >= 2 * 4 * 256 * 256 * 64 and step.nodes == ("scaled_dot_product_attention",)

    lstm = nn.LSTM(8, 8)
    step = of(stages_of(lambda x: lstm(x)[0], torch.randn(5, 2, 8)).steps(), "recurrence")
    assert step.flops == 2 * 5 * 2 * 8 * 32


def test_a_written_input_and_pieces_of_a_whole():
    def fn(cache, x):
        cache[2:4] = x * 2
        return torch.cat([x.exp(), x.sin()]).sort().values

    stages = stages_of(fn, torch.zeros(8, 3), torch.ones(2, 3))
    assert {"exp", "sin"} <= computed(stages)
    writes = [step for step in stages.steps() if step.kind == "kernel" and step.bytes_written == 24]
    assert writes, stages.steps()


def test_every_node_that_computes_is_some_step_s_in_training_too():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    compiled = lampwork.compile(lambda x: F.cross_entropy(model(x), torch.tensor([1, 2])))
    x = torch.randn(2, 8)
    for _ in range(3):
        compiled(x).backward()
    stages = compiled.stages
    assert {"backward"} <= stages.halves.keys()
    for half in stages.halves:
        views = {"getitem", "view", "t", "expand", "permute", "unsqueeze", "squeeze", "detach"}
        graph = stages.made(half)[-1].graph
        nodes = {
            node.name
            for node in graph.nodes
            if node.op == "call_function" and getattr(node.target, "__name__", "").split(".")[0] not in views
        }
        assert nodes - computed(stages, half) == set(), half
    assert sum(step.flops for step in stages.steps("backward")) > 2 * 2 * 8 * 16


def test_open_sizes_are_those_that_run():
    compiled = lampwork.compile(lambda x: (x.double() @ x.T.double()).sort().values, dynamic=True)
    compiled(torch.randn(6, 5))
    compiled(torch.randn(9, 5))
    (entry,) = compiled.entries
    assert of(entry.stages.steps(), "gemm").flops == 2 * 6 * 6 * 5


def test_a_version_without_tensors_and_a_half_that_is_not_there():
    stages = stages_of(lambda x: x, 3)
    assert stages.steps() == ()
    with pytest.raises(KeyError, match="no half 'backward'"):
        stages.steps("backward")


def test_each_size_has_a_program_with_facts_of_its_own():
    compiled = lampwork.compile(lambda x: (x.double() @ x.T.double()).sort().values, dynamic=True)
    compiled(torch.randn(6, 5))
    compiled(torch.randn(9, 5))
    (entry,) = compiled.entries
    programs = [each.program for _, each in entry.served.specializations]
    flops = sorted(of(program.steps(), "gemm").flops for program in programs)
    assert flops == [2 * 6 * 6 * 5 + 36, 2 * 9 * 9 * 5 + 81] or flops == [2 * 6 * 6 * 5, 2 * 9 * 9 * 5]
