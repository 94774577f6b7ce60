"""What draws random numbers, or looks at memory, reads the layout that it was recorded with, whatever passes change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphkit import ops, record
from torch import Tensor

import lampwork
from lampwork.backends.native.compile import NativeBackend
from lampwork.errors import InvalidGraphError
from lampwork.graph.interpret import run_graph
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.transforms.pipeline import run_passes

aten = torch.ops.aten
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")

LIBRARY = torch.library.Library("lw_layouts", "DEF")
LIBRARY.define("strides(Tensor x) -> Tensor")
LIBRARY.impl("strides", lambda x: torch.tensor(x.stride(), dtype=torch.float32), "CPU")
torch.library.register_fake("lw_layouts::strides", lambda x: x.new_empty(x.dim()), lib=LIBRARY)

MINDFUL: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda c: F.dropout(c.relu(), 0.5),
    "dropout of a slice": lambda c: F.dropout(F.gelu(c[..., :-1]), 0.5),
    "dropout of a permutation": lambda c: F.dropout(c.permute(0, 2, 3, 1), 0.3),
    "dropout of rows": lambda c: F.dropout(c.flatten(2), 0.3),
    "dropout after pooling": lambda c: F.dropout(F.max_pool2d(c, 2), 0.3),
    "dropout of a concatenation": lambda c: F.dropout(torch.cat([c, c], 1), 0.3),
    "alpha_dropout": lambda c: F.alpha_dropout(c, 0.3, True),
    "rand_like": torch.rand_like,
    "randn_like of a slice": lambda c: torch.randn_like(c[..., :-1]),
    "randint_like": lambda c: torch.randint_like(c, 5),
    "normal_": lambda c: (c + 1).normal_(),
    "exponential_": lambda c: (c + 1).exponential_(),
    "empty_like, normal_": lambda c: torch.empty_like(c).normal_(),
    "rrelu": lambda c: F.rrelu(torch.zeros_like(c) - 1, training=True),
    "as_strided": lambda c: (c + 1).as_strided((3, 7), (7, 1), 2).sin(),
    "an operator from outside": lambda c: torch.ops.lw_layouts.strides(c.relu()),
}


@needs_onednn
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MINDFUL)
def test_behind_a_packed_convolution(name: str, dynamic: bool) -> None:
    weight, x = torch.randn(8, 8, 3, 3) / 8, torch.randn(2, 8, 12, 12)

    def function(x: Tensor) -> Tensor:
        return MINDFUL[name](F.conv2d(x, weight))

    compiled = lampwork.compile(function, dynamic=dynamic)
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(3)
            want, drawn = function(x), torch.get_rng_state()
            torch.manual_seed(3)
            have = compiled(x)
            assert torch.equal(torch.get_rng_state(), drawn)
            assert have.stride() == want.stride()
            torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_copy_only_where_the_layout_differs() -> None:
    def function(x: Tensor, w: Tensor) -> list[Tensor]:
        return [F.dropout(F.conv2d(x, w).relu(), 0.5)]

    x, w = torch.randn(2, 8, 12, 12), torch.randn(8, 8, 3, 3)
    planar, last = (
        record(function, x, bound=[w]),
        record(function, x.to(memory_format=torch.channels_last), bound=[w]),
    )
    for graph in (planar, last):
        run_passes(graph, ctx=PassContext(backend_passes=NativeBackend().passes))
    assert "clone" in ops(planar)
    assert "clone" not in ops(last)


def _transposed(x: Tensor) -> tuple[torch.fx.Graph, torch.fx.Node, torch.fx.Node]:
    """The graph of dropout(relu(x)) with a relu that lies in memory the other way round; both nodes."""
    graph = record(lambda x: [F.dropout(x.relu(), 0.5)], x)
    relu, dropout = (node for node in graph.nodes if node.op == "call_function")
    edit = Editor(graph, PassContext().infer, relu)
    turned = edit.call(aten.permute.default, relu.args[0], [1, 0])
    copied = edit.call(aten.clone.default, turned, memory_format=torch.contiguous_format)
    new = edit.call(aten.relu.default, edit.call(aten.permute.default, copied, [1, 0]))
    relu.replace_all_uses_with(new)
    assert adopt_strides(new, relu.meta["val"])
    graph.erase_node(relu)
    return graph, new, dropout


def test_what_draws_reads_a_copy() -> None:
    """before: %r: (3, 4) in column order, dropout(%r)    after: %k = clone(%r, contiguous), dropout(%k)"""
    graph, relu, dropout = _transposed(torch.randn(3, 4))
    assert propagate_strides(graph, PassContext().infer, [relu]) == 1
    verify(graph)
    assert dropout.args[0].meta["val"].is_contiguous


def test_a_pass_that_forgets_is_found() -> None:
    graph, _, _ = _transposed(torch.randn(3, 4))
    with pytest.raises(InvalidGraphError, match=r"reads relu_?\w* as .* but was recorded with"):
        verify(graph)


ONE_VALUE = {
    "median": lambda x: torch.median(x, 1),
    "nanmedian": lambda x: torch.nanmedian(x, -1, keepdim=True),
    "sort": lambda x: torch.sort(x, 1),
    "sort, descending": lambda x: torch.sort(x, -1, descending=True),
    "sort of columns": lambda x: torch.sort(x.t(), 0),
    "argsort": lambda x: (torch.argsort(x, 1),),
}
SAME = {
    "x": lambda x: x,
    "x * 1": lambda x: x * 1,
    "x + 0": lambda x: x + 0,
    "where": lambda x: torch.where(x > 0, x, x),
    "clone": lambda x: x.clone(),
    "neg neg": lambda x: x.neg().neg(),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool], ids=str)
@pytest.mark.parametrize("same", SAME)
@pytest.mark.parametrize("name", ONE_VALUE)
def test_rows_of_one_value(name: str, same: str, dtype: torch.dtype) -> None:
    """ATen sorts rows of stride 0 otherwise, and its medians of them are wrong: calls get eager's."""
    medians, expanded = "median" in name, torch.randint(-9, 9, (16, 1)).to(dtype).expand(16, 100)
    if dtype is torch.bool and (medians or same not in ("x", "clone")):
        return

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return ONE_VALUE[name](SAME[same](x))

    for x in (expanded, expanded.contiguous(), expanded.t().contiguous().t()):
        if medians and 0 in SAME[same](x).stride():
            continue
        graph = record(function, x)
        run_passes(graph, ctx=PassContext(backend_passes=NativeBackend().passes))
        verify(graph)
        for found in (lampwork.compile(function)(x), run_graph(graph, [x])):
            assert all(map(torch.equal, found, function(x)))


@pytest.mark.parametrize("median", [torch.median, torch.nanmedian])
def test_medians_of_rows_of_stride_0_are_right(median: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Eager's read past them."""
    for x in (torch.randn(16, 1), torch.randint(-9, 9, (16, 1)), torch.full((16, 1), torch.nan)):
        found = lampwork.compile(lambda x: median(x, 1, keepdim=True))(x.expand(16, 20))
        torch.testing.assert_close(found[0], x, equal_nan=True)
        torch.testing.assert_close(
            tuple(found), tuple(median(x.expand(16, 20).clone(), 1, keepdim=True)), equal_nan=True
        )


def test_a_copy_only_of_rows_of_one_value() -> None:
    x = torch.randn(16, 1)
    for given, copies in (
        (x.expand(16, 20), 1),
        (x.expand(16, 20).contiguous(), 0),
        (x.t().expand(20, 16), 0),
    ):
        for function in (lambda x: torch.median(x * 1, 1), lambda x: torch.sort(x * 1, 1)):
            graph = record(lambda x, function=function: list(function(x)), given)
            run_passes(graph)
            assert ops(graph).count("clone") == copies


@pytest.mark.parametrize(
    "copied",
    [
        lambda y: y.clone(),
        lambda y: y * 1,
        lambda y: y.neg().neg(),
        lambda y: torch.cat([y]),
        lambda y: y.float().double().float(),
        lambda y: torch.empty(8).copy_(y),
    ],
)
def test_a_copy_of_a_part_has_memory_of_its_own(copied) -> None:
    """Where it begins, how much memory there is and what lies around it can be told from outside."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return copied((x + 1)[1:9])

    x = torch.randn(20)
    found, expected = lampwork.compile(model)(x), model(x)
    assert found.storage_offset() == 0 and found.untyped_storage().nbytes() == 32
    assert torch.equal(found.as_strided((2,), (1,), 0), expected.as_strided((2,), (1,), 0))
    reinterpreted = lampwork.compile(lambda x: model(x).view(torch.float64))
    assert torch.equal(reinterpreted(x), expected.view(torch.float64))
