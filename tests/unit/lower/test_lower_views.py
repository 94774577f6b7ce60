"""View rules: where elements come from, strides, aliasing of inputs, and what must be copied."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check, record, run

from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.nodes import Extern, Map
from lampwork.lower.lowering import lower_graph

VIEWS = {
    "view_merge": lambda x: x.view(6, 20),
    "view_split": lambda x: x.view(2, 3, 2, 2, 5),
    "view_mixed": lambda x: x.view(3, 8, 5),
    "view_ones": lambda x: x.view(1, 6, 1, 20, 1),
    "flatten": lambda x: x.flatten(1),
    "reshape": lambda x: x.reshape(-1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "permute": lambda x: x.permute(2, 0, 3, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "permute_view": lambda x: x.permute(2, 3, 0, 1).reshape(20, 6),
    "permute_merge": lambda x: x.permute(2, 3, 0, 1).view(20, 6),
    "permute_reshape": lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 15),
    "heads": lambda x: (
        x.reshape(2, 3, 4, 5).permute(0, 2, 1, 3).reshape(2, 4, 15).view(2, 4, 3, 5).transpose(1, 2)
    ),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim((0, 1), (-1, 0)),
    "slice": lambda x: x[:, 1:, :3],
    "slice_step": lambda x: x[..., ::2],
    "slice_negative": lambda x: x[:, -2:, :, -3:-1],
    "slice_empty": lambda x: x[:, 3:],
    "select": lambda x: x[1, :, -1],
    "none": lambda x: x[:, None, ..., None],
    "expand": lambda x: x[:, :1].expand(2, 7, 4, 5),
    "expand_new": lambda x: x.expand(3, 2, 3, 4, 5),
    "squeeze": lambda x: x[:1, :, :1].squeeze(),
    "squeeze_dim": lambda x: x[:1].squeeze(0),
    "squeeze_dims": lambda x: x[:1, :1].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unbind": lambda x: x.unbind(1),
    "split": lambda x: x.split(2, dim=3),
    "split_sizes": lambda x: x.split([1, 3, 1], dim=3),
    "chunk": lambda x: x.chunk(3, dim=3),
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "diagonal_offset": lambda x: x.diagonal(1, -2, -1),
    "diagonal_below": lambda x: x.diagonal(-2, 1, 3),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "as_strided": lambda x: x.as_strided((3, 4), (2, 5)),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(torch.empty(6, 20)),
    "swapaxes": lambda x: x.swapaxes(0, 3),
    "select_slice": lambda x: x[1][:, 2:],
    "slice_view": lambda x: x[:, :, :, :4].reshape(2, 3, 16),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(name):
    x = torch.randn(2, 3, 4, 5)
    lowered = check(VIEWS[name], x)
    check(lambda x: [part * 2 for part in parts(VIEWS[name](x))], x)
    check(lambda x: parts(VIEWS[name](x + 1)), x)
    assert lowered is not None


@pytest.mark.parametrize(
    "name",
    sorted(
        VIEWS.keys()
        - {"permute_merge", "view_merge", "view_split", "view_mixed", "view_ones", "view_as", "as_strided"}
    ),
)
def test_view_of_transposed_input(name):
    x = torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0)
    check(VIEWS[name], x)
    check(lambda x: [part * 2 for part in parts(VIEWS[name](x))], x)


def parts(value):
    return value if isinstance(value, tuple | list) else [value]


@pytest.mark.parametrize(
    "name",
    ["view_merge", "permute", "slice", "select", "expand", "diagonal", "unfold", "detach", "as_strided"],
)
def test_a_view_of_an_input_stays_one(name):
    x = torch.randn(2, 3, 4, 5)
    lowered = lower_graph(record(VIEWS[name], [x]).graph)
    assert lowered.definitions == []
    (output,) = lowered.outputs
    assert output.buffer == lowered.placeholders[0]
    view = output.view
    expected = VIEWS[name](x)
    if view is None:
        assert expected.shape == x.shape
    else:
        assert [s.as_int() for s in view.shape] == list(expected.shape)
        assert [s.as_int() for s in view.strides] == list(expected.stride())
        assert view.offset.as_int() == expected.storage_offset()


def test_a_copy_of_an_input_is_one():
    x = torch.randn(3, 4)
    for fn in (torch.clone, lambda x: x.t().contiguous(), lambda x: torch.ops.aten.view_copy(x, (4, 3))):
        lowered = check(fn, x)
        assert [type(d) for d in lowered.definitions] == [Map]
        assert lowered.outputs[0].buffer != lowered.placeholders[0]


def test_copying_twins():
    x = torch.randn(2, 3, 4)
    aten = torch.ops.aten
    check(lambda x: aten.permute_copy(x, (2, 0, 1)), x)
    check(lambda x: aten.slice_copy(x, 1, 0, 2), x)
    check(lambda x: aten.expand_copy(x[:, :1], (2, 3, 4)), x)
    check(lambda x: aten.diagonal_copy(x), x)
    check(lambda x: aten.unbind_copy(x, 1), x)


def test_a_view_that_only_torch_can_take_is_copied():
    check(lambda x: x.as_strided((2, 2), (1, 2)) + 1, torch.randn(3, 4).t(), extern=True)


def test_empty_tensors():
    x = torch.randn(2, 0, 3)
    for fn in (
        lambda x: x + 1,
        lambda x: x.sum(1),
        lambda x: x.mean(),
        lambda x: x.reshape(0, 6) * 2,
        lambda x: x.transpose(0, 1).reshape(-1),
        lambda x: torch.cat([x, x], 1),
        lambda x: F.linear(x, torch.ones(4, 3)),
        lambda x: F.layer_norm(x, (3,)),
        lambda x: x.flip(1).unsqueeze(0),
    ):
        check(fn, x)


def test_unused_inputs_have_no_buffer():
    lowered = lower_graph(record(lambda x, y: y + 1, [torch.randn(2), torch.randn(2)]).graph)
    assert lowered.placeholders[0] is None and lowered.placeholders[1] is not None


def test_an_operator_without_a_rule_gets_strided_arguments():
    def fn(x):
        # flip makes a fresh tensor; the reshape of a permuted one has strides again after its copy.
        return torch.linalg.det(x.permute(0, 2, 1)) + torch.cummax(x.flip(0), 0).values.sum()

    lowered = check(fn, torch.randn(2, 3, 3), extern=True, scale=10)
    first = next(d for d in lowered.definitions if isinstance(d, Extern))
    assert first.args[0].buffer.name == "x0"


def test_constants_are_split_off_and_do_not_leave():
    def fn(x, w, b):
        scaled = w * 2
        return F.linear(x, scaled, b), scaled.t(), b

    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    recorded = record(fn, [x], [w, b])
    for node in recorded.graph.nodes:
        if node.op == "call_function" and node.name.startswith("mul"):
            node.meta["constant"] = True
    lowered = lower_graph(recorded.graph)
    assert [out.name for d in lowered.constant for out in outs_of(d)] == ["mul"]
    results = run(lowered, [x, w, b])
    torch.testing.assert_close(results[0], F.linear(x, w * 2, b))
    torch.testing.assert_close(results[1], (w * 2).t())
    # The caller may write to what it gets: not to the constant, but to its own parameter.
    assert lowered.outputs[1].buffer.name not in {out.name for d in lowered.constant for out in outs_of(d)}
    assert lowered.outputs[2].buffer == lowered.placeholders[2]
