"""What a forward computes of rows, maxima and sums and means, is saved for backward rather than computed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lampwork


@pytest.fixture(autouse=True)
def reset() -> None:
    lampwork.reset_stats()
    torch.manual_seed(7)


def trained(fn: Callable[..., Tensor], *inputs: Tensor) -> tuple[str, list[Tensor]]:
    """(what is saved, the loss and the gradients of the inputs that require grad)."""
    compiled = lampwork.compile(fn)
    loss = compiled(*inputs)
    grads = torch.autograd.grad(loss, [x for x in inputs if x.requires_grad])
    return compiled.stages.saved, [loss.detach(), *grads]


def computed_again(saved: str) -> str:
    return next((line for line in saved.splitlines() if line.startswith("computed again")), "")


def check(fn: Callable[..., Tensor], *inputs: Tensor) -> str:
    """What is saved, once numbers are held to float64."""
    saved, found = trained(fn, *inputs)
    wide = [
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs
    ]
    loss = fn(*wide)
    exact = [loss.detach(), *torch.autograd.grad(loss, [x for x in wide if x.requires_grad])]
    for ours, right in zip(found, exact, strict=True):
        scale = float(right.nan_to_num(0, 0, 0).abs().max())
        torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=5e-6 * scale, equal_nan=True)
    return saved


@pytest.mark.parametrize("shape, dim", [((5, 40), 1), ((40, 5), 0), ((2, 33, 3), 1), ((1, 1), 1), ((64,), 0)])
def test_log_softmax(shape: tuple[int, ...], dim: int) -> None:
    x, y = torch.randn(*shape, requires_grad=True), torch.rand(*shape)

    def fn(x: Tensor) -> Tensor:
        return (F.log_softmax(x * 1.0, dim) * y.to(x.dtype)).sum()

    check(fn, x)


def test_cross_entropy_saves_two_numbers_a_row() -> None:
    x, labels = torch.randn(12, 50, requires_grad=True), torch.randint(0, 50, (12,))
    saved = check(F.cross_entropy, x, labels)
    assert "amax: float32[12, 1]" in saved and "log: float32[12, 1]" in saved
    assert "[12, 50]" not in saved
    assert "exp" not in computed_again(saved) and "amax" not in computed_again(saved)


def test_large_and_infinite_scores() -> None:
    x = torch.randn(6, 40) * 1e4
    x[0, :7], x[1], x[2, 3], x[3, 4] = -torch.inf, -torch.inf, torch.inf, torch.nan
    labels = torch.randint(7, 40, (6,))

    def fn(x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(x, labels, reduction="none")[[0, 4, 5]].sum()

    def rows(x: Tensor) -> Tensor:
        return F.log_softmax(x, 1)[:, 8:].sum()

    check(fn, x.clone().requires_grad_(), labels)
    for row in x:
        check(rows, row[None].clone().requires_grad_())


def test_rows_in_other_layouts_and_types_stay_as_they_are() -> None:
    labels = torch.randint(0, 50, (12,))

    def turned(x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(x.t(), labels)

    assert "amax" not in check(turned, torch.randn(50, 12, requires_grad=True), labels)
    saved, _ = trained(F.cross_entropy, torch.randn(12, 50).bfloat16().requires_grad_(), labels)
    assert "amax" not in saved


@pytest.mark.parametrize(
    "name, fn",
    [
        ("native_layer_norm", lambda x, w: F.layer_norm(x, (64,), w)[:, 5:].sum()),
        ("_fused_rms_norm", lambda x, w: F.rms_norm(x, (64,), w)[:, 5:].sum()),
        ("native_group_norm", lambda x, w: F.group_norm(x, 2, w)[:, 5:].sum()),
        ("logsumexp", lambda x, w: (x * w).logsumexp(1).sum()),
        ("mean", lambda x, w: (x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * w).sum()),
    ],
)
def test_statistics_of_norms(name: str, fn: Callable[..., Tensor]) -> None:
    saved = check(fn, torch.randn(6, 64, requires_grad=True), torch.randn(64, requires_grad=True))
    assert name not in computed_again(saved)


def test_a_norm_whose_result_is_needed_is_computed_again() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (F.layer_norm(x, (64,)) @ w).square().sum()

    saved = check(fn, torch.randn(6, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True))
    assert "native_layer_norm" in computed_again(saved)
    assert "[6, 1]" not in saved


def test_sums_of_few_are_computed_again() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.view(16, 32, 2).sum(2).exp() * x[:, :32]).sum()

    assert "sum" in computed_again(check(fn, torch.randn(16, 64, requires_grad=True)))
