"""What is recorded of tensors on CUDA devices, and of moves between devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import CUDA, record_on
from graphkit import find, ops
from torch.nn import functional as F

from lampwork.errors import UnsupportedOpError
from lampwork.graph import probed
from lampwork.graph.devices import main_device
from lampwork.graph.shapes import ShapeError, infer
from lampwork.graph.spec import TensorSpec, contiguous_strides

aten = torch.ops.aten
CPU = torch.device("cpu")
X = torch.randn(4, 6)
PLACES = torch.tensor([2, 0, 3])


def specs(fn: Any, *inputs: torch.Tensor, devices: tuple[str, ...] = ()) -> list[TensorSpec]:
    recorded = record_on(fn, inputs, devices)
    return [node.meta["val"] for node in recorded.graph.output_node().args[0]]


MOVES = {
    "to": (lambda x: x.to("cuda:0"), ("cpu",)),
    "without a number": (lambda x: x.to("cuda"), ("cpu",)),
    "to another tensor's": (lambda x: x.to(torch.empty(0, device="cuda")), ("cpu",)),
    "cuda()": (lambda x: x.cuda(), ("cpu",)),
    "made": (lambda x: torch.zeros(4, 6, device="cuda:0"), ("cpu",)),
    "made like": (lambda x: torch.ones_like(x, device="cuda"), ("cpu",)),
    "made new": (lambda x: x.new_zeros((4, 6), device="cuda"), ("cpu",)),
    "as it is": (lambda x: x.to(x.device), ("cuda:0",)),
    "a number of the CPU": (lambda x: x * torch.tensor(2.0), ("cuda:0",)),
    "numbers": (lambda x: x * (torch.tensor(2.0) + x.sum()), ("cuda:0",)),
}


@pytest.mark.parametrize("name", MOVES)
def test_results_are_on_the_device(name: str) -> None:
    fn, devices = MOVES[name]
    (spec,) = specs(fn, X, devices=devices)
    assert spec == TensorSpec((4, 6), (6, 1), torch.float32, CUDA)


def test_numbers_go_where_other_numbers_are() -> None:
    both = [TensorSpec((), (), torch.float32, device) for device in (CPU, CUDA)]
    assert infer(aten.add.Tensor, tuple(both)).device == CUDA
    assert infer(aten.add.Tensor, tuple(both[::-1])).device == CUDA


def test_a_move_keeps_its_options() -> None:
    graph = record_on(lambda x: x.to("cuda", torch.float64, non_blocking=True), [X], ["cpu"]).graph
    node = find(graph, "_to_copy")
    assert dict(node.kwargs) == {"device": CUDA, "dtype": torch.float64, "non_blocking": True}


def test_a_move_to_the_same_device_is_none() -> None:
    assert ops(record_on(lambda x: x.to("cuda:0") + 1, [X]).graph) == ["add"]
    assert ops(record_on(lambda x: x.to("cpu:0") + 1, [X], ["cpu"]).graph) == ["add"]


def test_the_current_device_is_noted_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lampwork.graph.devices.current_device", lambda: 1)
    (spec,) = specs(lambda x: x.to("cuda"), X, devices=("cpu",))
    assert spec.device == torch.device("cuda:1")


def test_a_write_from_another_device_moves() -> None:
    recorded = record_on(lambda x, y: aten.copy_.default(x, y), [X, X[0].double()], ["cuda:0", "cpu"])
    assert [node.name for node in recorded.graph.nodes if node.op == "call_function"] == [
        "_to_copy",
        "expand",
        "clone",
    ]
    assert recorded.mutations == ((0, 1),)


def test_other_accelerators_are_left_to_eager() -> None:
    with pytest.raises(UnsupportedOpError, match="from cpu to meta"):
        record_on(lambda x: x.to("meta"), [X], ["cpu"])


def test_an_in_place_result_elsewhere_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="an in-place result on"):
        record_on(
            lambda n, x: aten.add_.Tensor(n, x), [torch.tensor(1.0), torch.tensor(1.0)], ["cpu", "cuda:0"]
        )


def test_the_main_device_is_the_one_of_most_tensors() -> None:
    assert main_device(record_on(lambda x: x + 1, [X], ["cpu"]).graph) == CPU
    graph = record_on(lambda x, y: (x + 1, y * 2 + 1), [X, X], ["cuda:0", "cuda:1"]).graph
    assert main_device(graph) == torch.device("cuda:1")
    assert main_device(record_on(lambda x, y: (x.sum(), y * 2 + 1), [X, X], ["cuda:0", "cpu"]).graph) == CUDA
    assert main_device(record_on(lambda x: x + 1, [X], ["xpu:0"]).graph) == CPU


def test_statistics_of_half_types_are_of_float32() -> None:
    x = TensorSpec((4, 6), (6, 1), torch.float16, CUDA)
    _, mean, rstd = infer(aten.native_layer_norm.default, (x, [6], None, None, 1e-5))
    assert mean.dtype is rstd.dtype is torch.float32
    assert infer(aten._softmax.default, (x, 1, True)).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_keep_channels_last(dtype: torch.dtype, rank: int) -> None:
    shape, kernel = (2, 4, *[5] * rank), (3, 4, *[2] * rank)
    order = (0, *range(2, rank + 2), 1)
    x = torch.empty([shape[i] for i in order], dtype=dtype).permute(0, rank + 1, *range(1, rank + 1))
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    (spec,) = specs(convolve, x, torch.empty(kernel, dtype=dtype))
    is_last = spec.strides[1] == 1
    assert is_last == (dtype is not torch.float64 and rank > 1)
    assert spec.device == CUDA


def test_what_has_no_rule_is_asked_on_the_cpu() -> None:
    (spec,) = specs(lambda x: torch.fft.rfft(x).real, X)
    assert (spec.shape, spec.dtype, spec.device) == ((4, 4), torch.float32, CUDA)


def test_what_eager_refuses_is_refused() -> None:
    with pytest.raises(Exception, match="norm|dtype|float"):
        record_on(lambda x: F.layer_norm(x.long(), [5]), [X])


NOT_OF_THE_CPU = {
    "abs": (torch.abs, torch.tensor([True, False])),
    "abs in place": (lambda x: x.clone().abs_(), torch.tensor([True, False])),
    "softsign": (F.softsign, torch.tensor([True, False])),
    "pool in half": (lambda x: F.avg_pool3d(x, 2), torch.ones(1, 2, 4, 4, 4, dtype=torch.float16)),
    "pool in bfloat16": (lambda x: F.avg_pool3d(x, 2), torch.ones(2, 4, 4, 4, dtype=torch.bfloat16)),
    "random slopes": (lambda x: F.rrelu(x, training=True), torch.ones(4, dtype=torch.float16)),
}


@pytest.mark.parametrize("name", NOT_OF_THE_CPU)
def test_dtypes_that_the_cpu_has_no_kernel_for(name: str) -> None:
    fn, x = NOT_OF_THE_CPU[name]
    (spec,) = specs(fn, x)
    made = fn(x.to("meta"))
    assert (spec.shape, spec.dtype, spec.device) == (tuple(made.shape), made.dtype, CUDA)


def test_what_only_the_cpu_is_known_to_refuse_is_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probed, "taken_on_meta", lambda *args: None)
    with pytest.raises(UnsupportedOpError, match="not implemented for 'Bool'"):
        record_on(torch.abs, [torch.tensor([True])])
    with pytest.raises(UnsupportedOpError, match="not implemented for 'Bool'"):
        record_on(lambda x, out: torch.abs(x, out=out), [torch.tensor([True]), torch.tensor([True])])
    with pytest.raises(UnsupportedOpError, match="square"):
        record_on(torch.linalg.inv, [torch.ones(2, 3)])


def test_the_cpu_speaks_for_itself() -> None:
    with pytest.raises(ShapeError, match="not implemented for 'Bool'"):
        record_on(torch.abs, [torch.tensor([True])], ["cpu"])


@pytest.mark.parametrize("op", [aten._softmax_backward_data.default, aten._log_softmax_backward_data.default])
def test_gradients_of_softmax_are_of_dtypes_that_the_device_takes(op: Any) -> None:
    half, single, double = torch.float16, torch.float32, torch.float64
    for grad, result, given in ((half,) * 3, (single,) * 3, (double,) * 3, (single, single, half)):
        (spec,) = specs(lambda g, y, to=given: op(g, y, 1, to), X.to(grad), X.to(result))
        assert spec.dtype is given
    for grad, result, given in (
        (single, half, single),
        (double, single, single),
        (single, single, torch.bfloat16),
    ):
        with pytest.raises(UnsupportedOpError, match="softmax"):
            record_on(lambda g, y, to=given: op(g, y, 1, to), [X.to(grad), X.to(result)])


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_activations_of_the_fast_path(place: str) -> None:
    x, rows, wide = torch.ones(2, 3, 4), torch.ones(4), torch.ones(4, 4)
    weights = (torch.ones(12, 4), torch.ones(12), wide, rows)

    def layer(x: Any) -> Any:
        norms = (rows, rows, rows, rows)
        return aten._transformer_encoder_layer_fwd(
            x, 4, 2, *weights, True, False, 1e-5, *norms, wide, rows, wide, rows
        )

    node = find(record_on(layer, [x], [place]).graph, "gelu")
    assert node.kwargs.get("approximate", "none") == ("none" if place == "cpu" else "tanh")


def test_libraries_of_cuda_lay_their_results_out() -> None:
    """Singular vectors lie in rows there, on the CPU in columns; Fourier transforms put batches first."""
    for place, strides in (("cpu", (1, 2)), ("cuda:0", (3, 1))):
        made = specs(lambda x: torch.linalg.svd(x, full_matrices=False), torch.ones(2, 3), devices=(place,))
        assert [made[0].strides, made[2].strides] == [(1, 2), strides]
    (spec,) = specs(lambda x: aten._fft_r2c(x, [0], 0, True), torch.ones(8, 3, 2))
    assert (spec.shape, spec.strides) == ((5, 3, 2), (1, 10, 5))
    with pytest.raises(UnsupportedOpError, match="linalg_eig"):
        record_on(torch.linalg.eig, [torch.ones(3, 3)])
    record_on(torch.linalg.eig, [torch.eye(3)], ["cpu"])


def test_efficient_attention() -> None:
    q = TensorSpec((2, 3, 40, 16), contiguous_strides((2, 3, 40, 16)), torch.float16, CUDA)
    made = infer(aten._scaled_dot_product_efficient_attention.default, (q, q, q, None, True))
    assert made[0].strides == (40 * 3 * 16, 16, 3 * 16, 1)
    assert made[1].shape == (2, 3, 64) and made[1].dtype is torch.float32
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    args = (made[0], q, q, q, None, *made, 0.0, [True, True, True, False])
    assert [None if each is None else each.shape for each in infer(backward, args)] == [q.shape] * 3 + [None]
