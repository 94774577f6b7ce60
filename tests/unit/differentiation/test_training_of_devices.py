"""What training minds of tensors on CUDA devices: their generators, the layouts of gradients, attention's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from devices import CPU, CUDA, compile_on, record_on
from torch import nn
from torch.nn import functional as F

from lampwork.differentiation import attention
from lampwork.differentiation.joint import Asked, input_of
from lampwork.errors import UnsupportedOpError
from lampwork.graph.record import Recorder
from lampwork.graph.shapes import infer
from lampwork.graph.shapes_common import ShapeError
from lampwork.graph.spec import TensorSpec
from lampwork.graph.verify import verify
from lampwork.runtime.generators import accelerators, drawing_from, state_of
from lampwork.runtime.program import CallAten

SPEC = TensorSpec((4, 6), (6, 1), torch.float32, CPU)
TURNED = replace(SPEC, strides=(1, 4))


def test_which_generators_a_graph_draws_from() -> None:
    assert accelerators(record_on(lambda x: F.dropout(x, 0.5), [torch.ones(4)]).graph) == {CUDA}
    assert accelerators(record_on(lambda x: F.dropout(x, 0.5), [torch.ones(4)], ["cpu"]).graph) == frozenset()
    assert accelerators(record_on(lambda x: x + 1, [torch.ones(4)]).graph) == frozenset()


def test_generators_of_devices_begin_again_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch.cuda, "default_generators", (there,), raising=False)

    def draw() -> tuple[Any, Any]:
        return torch.rand(3).tolist(), torch.rand(3, generator=there).tolist()

    state = state_of(frozenset({CUDA}))
    first, second = draw(), draw()
    after = state_of(frozenset({CUDA}))
    with drawing_from(state):
        assert (draw(), draw()) == (first, second)
        draw()
    third = draw()
    with drawing_from(after):
        assert draw() == third


def test_the_cpu_alone_has_one_state() -> None:
    state = state_of(frozenset())
    assert isinstance(state, torch.Tensor)
    first = torch.rand(3)
    with drawing_from(state):
        torch.testing.assert_close(torch.rand(3), first)
    with drawing_from(None):
        assert not torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_layouts_of_gradients_are_held_to_eagers_on_the_cpu(device: torch.device) -> None:
    node = record_on(lambda x: x + 1, [torch.ones(4, 6)], [str(device)]).graph.output_node().args[0][0]
    Asked((), (), (), (replace(SPEC, device=device),)).check([node])
    turned = Asked((), (), (), (replace(TURNED, device=device),))
    if device == CPU:
        with pytest.raises(UnsupportedOpError, match="a gradient is recorded as"):
            turned.check([node])
    else:
        turned.check([node])
        with pytest.raises(UnsupportedOpError, match="a gradient is recorded as"):
            Asked((), (), (), (replace(SPEC, device=device, dtype=torch.float64),)).check([node])


def test_stand_ins_take_no_memory_of_the_device() -> None:
    recorder = Recorder()
    made = input_of(recorder, "x", replace(SPEC, device=CUDA))
    assert made.spec.device == CUDA and recorder.inputs[0].tensor.device == CPU


def test_attention_on_devices_is_what_eager_chooses() -> None:
    inputs = [torch.ones(2, 3, 5, 16) for _ in range(3)]
    seen: list[Any] = []

    def fn(q: Any, k: Any, v: Any) -> Any:
        seen.append(attention.form(q, k, v))
        return q

    record_on(fn, inputs)
    assert seen == [NotImplemented] and attention.form(*inputs) is not NotImplemented


KERNELS = {"flash": (), "cudnn": (None, True), "efficient": (None, True)}
ARGS = {"flash": (0.0, True, False), "cudnn": (0.0, True, False), "efficient": (0.0, True)}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("turned", [False, True])
def test_kernels_of_attention_are_recorded(kernel: str, turned: bool) -> None:
    """Forward and backward, as autograd calls them: some results are numbers, some tensors are not defined."""
    aten = torch.ops.aten
    op = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
    back = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default

    def fn(q: Any, k: Any, v: Any) -> Any:
        made = op(q, k, v, *KERNELS[kernel], *ARGS[kernel], scale=0.5)
        y, sums = made[:2]
        if kernel == "efficient":
            rest = (None, y, sums, *made[2:4], 0.0, [True, True, True, False], True)
        elif kernel == "flash":
            assert made[2:6] == (None, None, 5, 7)
            rest = (y, sums, *made[2:6], 0.0, True, *made[6:8])
        else:
            assert made[2:6] == (None, None, 5, 7)
            rest = (y, sums, *made[6:8], None, *made[2:6], 0.0, True)
        return (y, *back(y * 2, q, k, v, *rest, scale=0.5)[:3])

    heads = 3 if kernel == "efficient" else 1
    shapes = ((2, 3, 5, 16), (2, heads, 7, 16), (2, heads, 7, 16))
    inputs = [torch.ones(s[0], s[2], s[1], s[3]).transpose(1, 2) if turned else torch.ones(s) for s in shapes]
    inputs = [x.to(torch.bfloat16) for x in inputs]
    graph = record_on(fn, inputs).graph
    verify(graph)
    forward, backward = (next(n for n in graph.nodes if n.target is each) for each in (op, back))
    assert not forward.meta.get("random")
    results = [node.meta["val"] for node in graph.output_node().args[0]]
    assert [each.shape for each in results] == [(2, 3, 5, 16), *shapes]
    if kernel != "efficient":
        assert [each.strides for each in results] == [inputs[0].stride(), *(x.stride() for x in inputs)]
    steps = [step for step in compile_on(graph).instructions if isinstance(step, CallAten)]
    assert [step.op.partition(".")[0].removeprefix("aten::") for step in steps] == [op._opname, back._opname]


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_dropout_of_attention_is_left_to_eager(kernel: str) -> None:
    op = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention").default
    inputs = [torch.ones(2, 3, 5, 16) for _ in range(3)]
    with pytest.raises(UnsupportedOpError, match="with dropout"):
        record_on(lambda *x: op(*x, *KERNELS[kernel], 0.1, False)[0], inputs)


BATCH, WIDE, STATE = (2, 12), (2, 11), (2, 4)


@pytest.mark.parametrize("bias", [True, False])
def test_cells_of_gru_are_one_operator_there(bias: bool) -> None:
    """In forward and, as autograd calls it, in backward. On the CPU a cell is several operators."""
    cell = nn.GRUCell(3, 4, bias=bias)
    names = [name for name, _ in cell.named_parameters()]
    aten = torch.ops.aten
    op, back = aten._thnn_fused_gru_cell.default, aten._thnn_fused_gru_cell_backward.default

    def fn(x: Any, *params: Any) -> Any:
        given = dict(zip(names, params, strict=True))
        state = torch.zeros(2, 4, device=x.device)
        state = torch.func.functional_call(cell, given, (x, state)).detach()
        y, kept = op(x @ params[0].t(), state @ params[1].t(), state, *params[2:])
        return y, *(each for each in back(y * 2, kept, bias) if each is not None)

    inputs = [torch.ones(2, 3), *(parameter.detach() for parameter in cell.parameters())]
    graph = record_on(fn, inputs).graph
    verify(graph)
    results = [node.meta["val"] for node in graph.output_node().args[0]]
    shapes = [STATE, BATCH, BATCH, STATE, *([(12,), (12,)] if bias else [])]
    assert [each.shape for each in results] == shapes and {each.device for each in results} == {CUDA}
    steps = [step.op for step in compile_on(graph).instructions if isinstance(step, CallAten)]
    fused = [step.partition(".")[0].removeprefix("aten::") for step in steps if "thnn" in step]
    assert fused == [op._opname, op._opname, back._opname]


CELLS: dict[str, Any] = {
    "right": (torch.float32, BATCH, BATCH, STATE, (12,), (12,)),
    "without biases": (torch.float32, BATCH, BATCH, STATE, None, None),
    "one bias": (None, BATCH, BATCH, STATE, (12,), None),
    "gates too narrow": (None, BATCH, WIDE, STATE, None, None),
    "another batch": (None, BATCH, BATCH, (3, 4), None, None),
    "a short bias": (None, BATCH, BATCH, STATE, (12,), (11,)),
    "no batch": (None, (12,), (12,), (4,), None, None),
}


@pytest.mark.parametrize("name", CELLS)
def test_what_cells_of_gru_take(name: str) -> None:
    dtype, *shapes = CELLS[name]
    args: Any = tuple(
        None if shape is None else replace(TensorSpec.of(torch.ones(shape)), device=CUDA) for shape in shapes
    )
    op = torch.ops.aten._thnn_fused_gru_cell.default
    if dtype is None:
        with pytest.raises(ShapeError):
            infer(op, args)
        return
    made: Any = infer(op, args)
    assert [(each.shape, each.dtype, each.device) for each in made] == [
        ((2, 4), dtype, CUDA),
        ((2, 20), dtype, CUDA),
    ]
    with pytest.raises(ShapeError):
        infer(op, (replace(args[0], dtype=torch.float64), *args[1:]))
    backward = torch.ops.aten._thnn_fused_gru_cell_backward.default
    found: Any = infer(backward, (made[0], made[1], args[3] is not None))
    assert [None if each is None else each.shape for each in found] == [BATCH, BATCH, STATE, *shapes[3:]]
    with pytest.raises(ShapeError):
        infer(backward, (made[0], made[0], True))
