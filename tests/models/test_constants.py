"""Freezing that is always safe: however a weight changes, the next call answers as eager."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import pytest
import torch
from torch import nn
from weight_writes import EVERYWHERE, OWN_MEMORY, Channel, Pixels

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
        lampwork.reset_stats()
        edit_in_place(model)
        compiled(x)
        compiled(x)
    stats = lampwork.stats()
    assert stats["constant_refreshes"] == 1 and stats["recompiles"] == 0 and stats["compiled_calls"] == 2, (
        stats
    )


@pytest.mark.parametrize("channel", [*EVERYWHERE, *OWN_MEMORY], ids=lambda f: f.__name__)
def test_one_element_written_through_any_channel_is_seen(channel: Channel):
    model = Pixels().eval()
    compiled = lampwork.compile(model)
    x = torch.rand(2, 3, 9, 9)
    keep = {}
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
        for name, where in (
            ("fc.weight", (3, 7)),
            ("conv.weight", (7, 0, 1, 2)),
            ("bn.running_mean", (7,)),
        ) * 2:
            before = model(x)
            weight = dict([*model.named_parameters(), *model.named_buffers()])[name]
            channel(weight, where, 0.9 if weight[where] < 0.5 else 0.3, keep)
            assert not torch.allclose(model(x), before), (
                "the change must change the answer for the test to mean anything"
            )
            torch.testing.assert_close(compiled(x), model(x))
            torch.testing.assert_close(compiled(x), model(x))


def test_swapped_tensors_are_seen():
    t, u = torch.ones(4), torch.full((4,), 5.0)
    compiled = lampwork.compile(lambda x: x + t * 2)
    x = torch.zeros(4)
    assert torch.equal(compiled(x), torch.full((4,), 2.0))
    torch.utils.swap_tensors(t, u)
    assert torch.equal(compiled(x), torch.full((4,), 10.0))
    t.fill_(9)
    assert torch.equal(compiled(x), torch.full((4,), 18.0))
    u.fill_(-3)
    assert torch.equal(compiled(x), torch.full((4,), 18.0))


def convert_by_swapping(model: nn.Module) -> None:
    model.double().float()


def load_by_swapping(model: nn.Module) -> None:
    load(model)


@pytest.mark.parametrize("change", [convert_by_swapping, load_by_swapping], ids=lambda f: f.__name__)
def test_parameters_swapped_by_modules_are_seen(change: Callable[[nn.Module], None]):
    model = Net().eval()
    compiled = lampwork.compile(model)
    x = torch.randn(2, 3, 9, 9)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
            for _ in range(2):
                change(model)
                torch.testing.assert_close(compiled(x), model(x))
                model.fc.weight.data[0, 0] = 7.0
                torch.testing.assert_close(compiled(x), model(x))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_an_array_taken_before_compiling_is_watched_until_it_is_gone():
    model = nn.Linear(8, 8)
    compiled = lampwork.compile(model)
    x = torch.randn(3, 8)
    array = model.weight.detach().numpy()
    with torch.no_grad():
        compiled(x)
        for value in range(3):
            array[2, 3] = value
            torch.testing.assert_close(compiled(x), model(x))
        del array
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.detach().numpy()[1, 1] = 4.0
        torch.testing.assert_close(compiled(x), model(x))


def test_dlpack_of_a_buffer_itself_is_watched():
    """No alias is made: the capsule holds the very tensor."""
    table = torch.randn(8, 8)
    scale = torch.rand(8, 8)
    alias = torch.from_dlpack(table)
    compiled = lampwork.compile(lambda x: x @ (table @ scale))
    x = torch.randn(3, 8)
    for value in range(3):
        alias[4, 5] = value
        torch.testing.assert_close(compiled(x), x @ (table @ scale))


def test_memory_written_by_another_process_is_watched():
    model = nn.Linear(8, 8).share_memory()
    compiled = lampwork.compile(model)
    x = torch.randn(3, 8)
    with torch.no_grad():
        compiled(x)
        for value in (3.0, 4.0):
            pid = os.fork()
            if pid == 0:
                model.weight[3, 7] = value
                os._exit(0)
            os.waitpid(pid, 0)
            assert model.weight[3, 7] == value
            torch.testing.assert_close(compiled(x), model(x))


def test_reading_a_weight_computes_nothing_again():
    model = Net().eval()
    compiled = lampwork.compile(model)
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        compiled(x)
        lampwork.reset_stats()
        for _ in range(3):
            model(x)
            copy.deepcopy(model)
            repr(list(model.parameters()))
            kept = model.state_dict()
            aliases = [p.data for p in model.parameters()]
            compiled(x)
    assert lampwork.stats()["constant_refreshes"] == 0
    assert kept and aliases


def test_a_lazy_clone_of_a_weight_is_still_made():
    model = nn.Linear(8, 8)
    compiled = lampwork.compile(model)
    x = torch.randn(3, 8)
    with torch.no_grad():
        compiled(x)
        clone = model.weight.detach()._lazy_clone()
        clone.fill_(1)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.data.fill_(2)
        torch.testing.assert_close(compiled(x), model(x))
        assert clone.eq(1).all()


def test_programs_keep_no_reference_of_their_own_to_a_parameter():
    model = Net().eval()
    compiled = lampwork.compile(model)
    with torch.no_grad():
        compiled(torch.randn(2, 3, 9, 9))
    assert all(p._use_count() == 1 for p in model.parameters())
