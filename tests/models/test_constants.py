"""Freezing that is always safe: however a weight changes, the next call answers as eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lampwork


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


def foreach_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


def load(model):
    model.load_state_dict(
        {k: torch.rand_like(v) if v.is_floating_point() else v for k, v in model.state_dict().items()}
    )


def load_assign(model):
    state = {k: torch.rand_like(v) if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def replace_data(model):
    for p in model.parameters():
        p.data = torch.randn_like(p)


def edit_in_place(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)


def edit_data_in_place(model):
    for p in model.parameters():
        p.data.mul_(1.5)


def edit_one_element(model):
    with torch.no_grad():
        model.fc.weight[0, 0] = 3.0


def edit_buffer(model):
    model.bn.running_mean.add_(0.3)


def new_parameter(model):
    model.fc.weight = nn.Parameter(torch.randn(5, 8))


def new_module(model):
    model.fc = nn.Linear(8, 5)


def to_double_and_back(model):
    model.double().float()


CHANGES = [
    step,
    foreach_step,
    load,
    load_assign,
    replace_data,
    edit_in_place,
    edit_data_in_place,
    edit_one_element,
    edit_buffer,
    new_parameter,
    new_module,
    to_double_and_back,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_changed_weight_is_seen_by_the_next_call(change):
    model = Net().eval()
    compiled = lampwork.compile(model)
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
        before = model(x)
        change(model)
        model.eval()
        if change is not to_double_and_back:
            assert not torch.allclose(model(x), before), (
                "the change must change the answer for the test to mean anything"
            )
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))


def test_a_refresh_is_not_a_recompile():
    model = Net().eval()
    compiled = lampwork.compile(model)
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        compiled(x)
        lampwork.reset()
        edit_in_place(model)
        compiled(x)
        compiled(x)
    stats = lampwork.stats()
    assert stats["constant_refreshes"] == 1 and stats["recompiles"] == 0 and stats["compiled_calls"] == 2, (
        stats
    )
