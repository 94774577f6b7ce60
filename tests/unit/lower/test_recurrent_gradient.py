"""Recurrent layers that are trained: the operators against autograd, their lowering and their code against them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from children import failure
from guarded_memory import run as run_guarded
from instruction_sets import HERE
from lower_harness import check, externs, record
from scalar_target import target_named

from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.graph.recurrence import recurrence, recurrence_backward
from lampwork.graph.shapes import infer
from lampwork.graph.spec import TensorSpec
from lampwork.loops.ir.nodes import GATES, KEPT, CellKind, Recurrence, RecurrenceGradient
from lampwork.lower.lowering import lower_graph
from lampwork.runtime.program import Program

TARGETS = ["scalar", *HERE]
KINDS: tuple[CellKind, ...] = ("lstm", "gru", "tanh", "relu")
FORWARD_RESULTS = {"lstm": 3, "gru": 2, "tanh": 1, "relu": 1}


@dataclass(frozen=True)
class Layer:
    kind: CellKind
    steps: int = 4
    batch: int = 5
    units: int = 19
    turned: bool = False
    has_bias: bool = True
    has_grad_cell: bool = True

    def operands(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """x, w, h, and c and the bias where the kind has one."""
        torch.manual_seed(7)
        width = GATES[self.kind] * self.units
        x = torch.randn(self.steps, self.batch, width, dtype=dtype)
        w = torch.randn(width, self.units, dtype=dtype) / self.units**0.5
        h = torch.randn(self.batch, self.units, dtype=dtype)
        more = [torch.randn(self.batch, self.units, dtype=dtype)] if self.kind == "lstm" else []
        if self.kind == "gru" and self.has_bias:
            more.append(torch.randn(self.units, dtype=dtype))
        return (x, w, h, *more)

    def forward(self, x, w, h, *more):
        c = more[0] if self.kind == "lstm" else None
        bias = more[0] if self.kind == "gru" and more else None
        return recurrence(x, w, h, c, bias, self.kind, self.turned)[: FORWARD_RESULTS[self.kind]]

    def problem(self, dtype: torch.dtype):
        """The backward, and what it is given."""
        x, w, h, *more = self.operands(dtype)
        results = self.forward(x, w, h, *more)
        kept = results[1] if KEPT[self.kind] else results[0]
        grads = [torch.randn_like(results[0])]
        if self.kind == "lstm" and self.has_grad_cell:
            grads.append(torch.randn_like(h))

        def backward(kept, w, grad, grad_cell=None):
            found = recurrence_backward(grad, grad_cell, kept, w, self.kind, self.turned)
            return tuple(gradient for gradient in found if gradient.shape != (0,))

        return backward, [kept, w, *grads]


LAYERS = [
    Layer("lstm"),
    Layer("lstm", 3, 9, 37, True, True, False),
    Layer("lstm", 1, 1, 1),
    Layer("lstm", 2, 3, 130),
    Layer("gru", 4, 7, 33),
    Layer("gru", 3, 2, 16, True, False),
    Layer("gru", 1, 1, 1),
    Layer("tanh", 5, 10, 70, True),
    Layer("tanh", 3, 1, 5),
    Layer("relu", 2, 13, 21),
    Layer("relu", 1, 4, 64, True),
]


def by_torch(layer: Layer, x, w, h, *more):
    """The states and the last cell, by a layer of torch whose product with the input is x itself."""
    units, width = layer.units, w.shape[0]
    names = {"lstm": "LSTM", "gru": "GRU"}
    own = {"nonlinearity": layer.kind} if layer.kind not in names else {}
    module = getattr(torch.nn, names.get(layer.kind, "RNN"))(width, units, **own).double()
    params = {
        "weight_ih_l0": torch.eye(width, dtype=x.dtype),
        "weight_hh_l0": w,
        "bias_ih_l0": torch.zeros(width, dtype=x.dtype),
        "bias_hh_l0": torch.zeros(width, dtype=x.dtype),
    }
    state = h.unsqueeze(0)
    if layer.kind == "lstm":
        state = (state, more[0].unsqueeze(0))
    elif layer.kind == "gru" and more:
        params["bias_hh_l0"] = torch.cat([torch.zeros(2 * units, dtype=x.dtype), more[0]])
    out, last = torch.func.functional_call(module, params, (x.flip(0) if layer.turned else x, state))
    out = out.flip(0) if layer.turned else out
    return (out, last[1][0]) if layer.kind == "lstm" else (out,)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_operators_are_a_layer_and_its_gradient(layer: Layer):
    operands = [each.requires_grad_() for each in layer.operands(torch.float64)]
    wanted = by_torch(layer, *operands)
    grads = [torch.randn_like(each) for each in wanted]
    x, w, h, *more = (each.detach() for each in operands)
    out, kept, cell = recurrence(
        x,
        w,
        h,
        more[0] if layer.kind == "lstm" else None,
        more[0] if layer.kind == "gru" and more else None,
        layer.kind,
        layer.turned,
    )
    torch.testing.assert_close(out, wanted[0], rtol=1e-12, atol=1e-12)
    if layer.kind == "lstm":
        torch.testing.assert_close(cell, wanted[1], rtol=1e-12, atol=1e-12)
    of_x, of_sums, of_h, of_c = recurrence_backward(
        grads[0],
        grads[1] if len(grads) > 1 else None,
        kept if KEPT[layer.kind] else out,
        w,
        layer.kind,
        layer.turned,
    )
    before = torch.cat([out[1:], h[None]]) if layer.turned else torch.cat([h[None], out[:-1]])
    sums = of_sums if layer.kind == "gru" else of_x
    found = [of_x, torch.einsum("tbn,tbk->nk", sums, before), of_h]
    if layer.kind == "lstm":
        found.append(of_c)
    elif more:
        found.append(of_sums[..., 2 * layer.units :].sum((0, 1)))
    for got, want in zip(found, torch.autograd.grad(wanted, operands, grads), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_shapes(layer: Layer):
    x, w, h, *more = layer.operands(torch.float32)
    c, bias = (more[0] if layer.kind == kind and more else None for kind in ("lstm", "gru"))
    given = (x, w, h, c, bias, layer.kind, layer.turned)
    results = recurrence(*given)
    backward = (results[0], None, results[1] if KEPT[layer.kind] else results[0], w, layer.kind, layer.turned)
    for operator, args in ((recurrence, given), (recurrence_backward, backward)):
        specs = tuple(TensorSpec.of(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        assert infer(operator, specs) == tuple(map(TensorSpec.of, operator(*args)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_lowered(layer: Layer, dtype: torch.dtype):
    check(layer.forward, *layer.operands(dtype), scale=4)
    backward, given = layer.problem(dtype)
    check(backward, *given, scale=16)


@pytest.mark.parametrize("kind", KINDS)
def test_any_strides(kind: CellKind):
    layer = Layer(kind, 3, 4, 6)

    def turned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim > 1 else tensor

    check(layer.forward, *map(turned, layer.operands(torch.float64)))
    backward, given = layer.problem(torch.float64)
    check(backward, *map(turned, given), scale=10)
    batch_first = [
        each.transpose(0, 1).contiguous().transpose(0, 1) if each.ndim == 3 else each for each in given
    ]
    check(backward, *batch_first, scale=10)
    spread = [each[:1].expand(each.shape) if each.ndim == 3 else each for each in given]
    check(backward, *spread, scale=10)


def test_what_is_not_a_kernel_is_called():
    layer = Layer("lstm", 2, 2, 4)
    backward, given = layer.problem(torch.bfloat16)
    assert externs(check(backward, *given, extern=True)) == ["lampwork::recurrence_backward.default"]
    empty = Layer("lstm", 2, 0, 4)
    check(empty.problem(torch.float32)[0], *empty.problem(torch.float32)[1], extern=True)


def run_code(
    layer: Layer, dtype: torch.dtype, target: str, given: list[torch.Tensor], *, front: bool = False
):
    """The backward by code for this target, in guarded memory."""
    recorded = record(layer.problem(dtype)[0], given)
    artifacts = Artifacts()
    program = compile_program(recorded.graph, recorded.mutations, target_named(target), artifacts)
    assert isinstance(program, Program)
    assert sum(isinstance(each, RecurrenceGradient) for each in artifacts.definitions) == 1
    return run_guarded(program, given, [], front=front)


def run_forward(
    layer: Layer, dtype: torch.dtype, target: str, given: list[torch.Tensor], *, front: bool = False
):
    recorded = record(layer.forward, given)
    program = compile_program(recorded.graph, recorded.mutations, target_named(target), Artifacts())
    assert isinstance(program, Program)
    return run_guarded(program, given, [], front=front)


def check_code(layer: Layer, dtype: torch.dtype, target: str, *, front: bool) -> None:
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    backward, given = layer.problem(dtype)
    exact = backward(*(each.double() for each in given))
    for got, want in zip(run_code(layer, dtype, target, given, front=front), exact, strict=True):
        scale = max(float(want.abs().max()), 1.0)
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * scale)
    operands = list(layer.operands(dtype))
    exact = layer.forward(*(each.double() for each in operands))
    for got, want in zip(run_forward(layer, dtype, target, operands, front=front), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("target", TARGETS)
def test_code(target: str, dtype: torch.dtype, front: bool):
    jobs = [(str(layer), partial(check_code, layer, dtype, target, front=front)) for layer in LAYERS]
    assert not failure(jobs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_none(kind: CellKind, target: str):
    """nan and infinity come out where eager has them."""
    layer = Layer(kind, 3, 6, 19)
    backward, given = layer.problem(torch.float32)
    kept, _, grad, *_ = given
    kept[1, 0, 2], kept[1, 3, 17], kept[0, 2, 3] = float("nan"), -0.0, 0.0
    grad[0, 1, 0], grad[2, 4, 1] = float("inf"), float("nan")
    for got, want in zip(run_code(layer, torch.float32, target, given), backward(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_any_share_of_the_rows_gives_the_same():
    layer = Layer("lstm", 3, 9, 37)
    backward, given = layer.problem(torch.float32)
    recorded = record(backward, given)
    program = compile_program(recorded.graph, recorded.mutations, target_named(HERE[-1]), Artifacts())
    assert isinstance(program, Program)
    whole = run_guarded(program, given, [], front=False)
    for cut in (1, 4, 8):
        shares = lambda n, cut=cut: [(cut, n), (0, cut)] if n > cut else [(0, n)]  # noqa: E731
        for a, b in zip(whole, run_guarded(program, given, [], front=False, shares=shares), strict=True):
            assert torch.equal(a, b)


def test_what_nobody_reads_is_not_kept():
    layer = LAYERS[0]
    for wanted, keeps in ((0, False), (1, True)):
        graph = record(
            lambda *args, wanted=wanted: layer.forward(*args)[wanted], layer.operands(torch.float32)
        ).graph
        graph.eliminate_dead_code()
        (node,) = (each for each in lower_graph(graph).definitions if isinstance(each, Recurrence))
        assert (node.kept is not None) == keeps
