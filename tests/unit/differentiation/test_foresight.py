"""A region that returns a loss is trained from its first call on; what is foreseen wrongly is mended."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lampwork
from lampwork.differentiation.saved import Probe, Savings
from lampwork.runtime import autograd


@pytest.fixture(autouse=True)
def reset() -> None:
    lampwork.reset_stats()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        h = self.drop(nn.functional.gelu(self.attend(h, h, h)[0]).contiguous()) + h
        return nn.functional.cross_entropy(self.last(h.mean(1)), labels)


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = y * 2
    y[0].mul_(x[1])
    return (z.exp() * y).sum()


def several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = (x @ x.t()).tanh()
    scores, _ = hidden.softmax(-1).sort(-1)
    return hidden, scores, (scores[:, ::2] * hidden[:, ::2]).mean()


def attended(x: torch.Tensor) -> torch.Tensor:
    """Recorded as products around a softmax, which save other tensors than eager's kernel."""
    heads = (x * 2).view(1, 2, 4, 2)
    return nn.functional.scaled_dot_product_attention(heads, heads.sin(), heads.cos(), is_causal=True).sum()


def given(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(4, 4, requires_grad=True)


def ran() -> dict[str, int]:
    return {
        name: int(lampwork.stats()[name]) for name in ("trained", "compiled_backwards", "eager_backwards")
    }


def test_a_loss_is_trained_from_its_first_call_on():
    torch.manual_seed(0)
    net = Net()
    loss = lampwork.compile(net)
    x, labels = torch.randn(2, 3, 4, 4), torch.tensor([1, 3])
    for _ in range(3):
        lampwork.reset_stats()
        found: list[list[torch.Tensor | None]] = []
        state = {name: value.clone() for name, value in net.state_dict().items()}
        for run in (net, loss):
            net.load_state_dict(state)
            net.zero_grad()
            torch.manual_seed(7)
            value = run(x, labels)
            value.backward()
            found.append(
                [value.detach(), *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]
            )
        torch.testing.assert_close(found[1], found[0])
        assert ran()["compiled_backwards"] == 1
        assert ran()["eager_backwards"] == 0
    assert {"kernels", "saved", "forward", "backward"} <= set(loss.stages)


@pytest.mark.parametrize(
    "program", [written, several, attended, lambda x: x.cumsum(0).std(), lambda x: (x @ x).trace()]
)
def test_what_eager_saves_is_known_without_it(program, monkeypatch: pytest.MonkeyPatch):
    seen: list[Savings] = []
    savings = Probe.savings
    monkeypatch.setattr(Probe, "savings", lambda self: seen.append(savings(self)) or seen[-1])

    def run() -> None:
        result = lampwork.compile(lambda x: program(x))(given())
        (result if isinstance(result, torch.Tensor) else result[-1]).backward()

    run()
    monkeypatch.setattr(autograd, "foresee", lambda segments: {})
    run()
    foreseen, eager = (
        {
            number: [(each.root.name, each.text, each.sources, each.lost) for each in found]
            for number, found in every.saved.items()
        }
        | {"valued": sorted(node.name for node in every.valued), "again": sorted(every.again)}
        for every in seen
    )
    assert foreseen == eager


def test_attention_in_another_form_is_trained_from_the_first_call_on():
    compiled = lampwork.compile(attended)
    found: list[torch.Tensor | None] = []
    for run in (attended, compiled):
        x = given(3)
        run(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
    assert ran() == {"trained": 1, "compiled_backwards": 1, "eager_backwards": 0}


def test_of_results_before_the_loss_nothing_is_asked():
    run = lampwork.compile(several)
    for seed in range(2):
        found = []
        for each in (several, run):
            x = given(seed)
            each(x)[-1].backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])
    assert ran()["eager_backwards"] == 0


def test_other_gradients_than_foreseen_are_compiled_when_they_come_again():
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).tanh().sum()

    run = lampwork.compile(program)
    x, y = given(), given(1)
    for eager_backwards in (1, 0, 0):
        lampwork.reset_stats()
        (slope,) = torch.autograd.grad(run(x, y), x)
        torch.testing.assert_close(slope, torch.autograd.grad(program(x, y), x)[0])
        assert ran()["eager_backwards"] == eager_backwards


def test_a_saved_tensor_that_is_written_raises_at_the_first_backward():
    weight = given()
    loss = lampwork.compile(lambda x: (x * weight).exp().sum())(torch.ones(4, 4))
    with torch.no_grad():
        weight.add_(1)
    x = torch.ones(4, 4, requires_grad=True)
    loss.backward()  # what x is multiplied by is not asked for
    later = lampwork.compile(lambda x: (x * weight).exp().sum())(x)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation: \[torch.FloatTensor \[4, 4\]\]"
    ):
        later.backward()


def test_who_watches_what_is_saved_sees_eager():
    shapes: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t):
        lampwork.compile(lambda x: (x * 2).tanh().sum())(given()).backward()
    assert shapes == [(4, 4)]


def test_a_write_to_what_eager_saves_of_attention_is_its_error():
    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v).square().mean()

    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 9, 8, requires_grad=True) for _ in range(3)]
    compiled = lampwork.compile(loss)
    found = torch.autograd.grad(compiled(*tensors), tensors)
    assert ran() == {"trained": 1, "compiled_backwards": 1, "eager_backwards": 0}
    torch.testing.assert_close(found, torch.autograd.grad(loss(*tensors), tensors))
    value = compiled(*tensors)
    with torch.no_grad():
        tensors[1].mul_(2)  # eager saves it
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("name", ["prod", "median", "nanmedian", "max", "min"])
@pytest.mark.parametrize("dense", [False, True])
def test_gradients_are_laid_out_as_the_values_have_eager_lay_them_out(name: str, dense: bool) -> None:
    compiled = lampwork.compile(lambda x: getattr(x, name)())
    for seed in range(3):
        found = []
        for function in (compiled, lambda x: getattr(x, name)()):
            x = given(seed).detach()[:, :3]
            x = (x.contiguous() if dense else x.contiguous().t()).requires_grad_()
            function(x).backward()
            found.append(x.grad)
            found.append(torch.autograd.grad(function(x), x)[0])
        torch.testing.assert_close(found[:2], found[2:])
        assert [grad.stride() for grad in found[:2]] == [grad.stride() for grad in found[2:]]
