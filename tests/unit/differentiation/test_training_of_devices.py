"""What training minds of tensors on CUDA devices: their generators, the layouts of gradients, attention's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from devices import CPU, CUDA, record_on
from torch.nn import functional as F

from lampwork.differentiation import attention
from lampwork.differentiation.joint import Asked, input_of
from lampwork.errors import UnsupportedOpError
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.runtime.generators import accelerators, drawing_from, state_of

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [16, 6])
def test_attention_takes_a_kernel_of_eagers(dtype: torch.dtype, width: int) -> None:
    taken = dtype is not torch.float64 and width == 16
    seen: list[Any] = []

    def fn(q: Any, k: Any, v: Any) -> Any:
        made = attention.form(q, k, v, is_causal=True, scale=0.5)
        seen.append(made is not NotImplemented)
        return q if made is NotImplemented else made

    inputs = [torch.ones(2, 3, 5, width, dtype=dtype) for _ in range(3)]
    graph = record_on(fn, inputs).graph
    assert seen == [taken]
    operator = torch.ops.aten._scaled_dot_product_efficient_attention.default
    called = [node for node in graph.nodes if node.target is operator]
    assert len(called) == taken
    if taken:
        assert called[0].args[3:] == (None, True, 0.0, True) and called[0].kwargs == {"scale": 0.5}
        assert not called[0].meta.get("random")
    assert attention.form(*inputs, attn_mask=torch.ones(5, 5, dtype=torch.bool)) is NotImplemented
