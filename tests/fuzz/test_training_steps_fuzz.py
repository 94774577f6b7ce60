"""Random training loops: optimizers with random options, whole steps or their parts compiled, and between the steps
what programs do to parameters, gradients and groups. After each step losses, parameters, gradients and states are those
of a twin in eager. A few here, many with LAMPWORK_FUZZ (`make fuzz`); a failure prints its seed.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import lampwork

F = nn.functional
COUNT = max(1, int(os.environ.get("LAMPWORK_FUZZ", "240")) // 20)
SEED = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
ROUNDING = 1e-9
KINDS: list[Any] = [
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adagrad,
    optim.RMSprop,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Rprop,
    optim.ASGD,
]


def network(rng: random.Random) -> nn.Module:
    first = rng.choice(
        [nn.Linear(6, 8), nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten())]
    )
    middle = rng.choice([nn.Tanh(), nn.Dropout(0.3), nn.LayerNorm(8), nn.GELU()])
    return nn.Sequential(first, middle, nn.Linear(8, 5)).double()


def optimizer_of(rng: random.Random, net: nn.Module) -> optim.Optimizer:
    kind = rng.choice(KINDS)
    options: dict[str, Any] = {
        "lr": rng.choice([0.05, 0.01]),
        "foreach": rng.choice([None, None, False, True]),
    }
    if kind is optim.SGD:
        options |= rng.choice([{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
    if kind in (optim.Adam, optim.AdamW):
        options |= {"amsgrad": rng.random() < 0.3}
    if kind is optim.RMSprop:
        options |= {"momentum": rng.choice([0, 0.9]), "centered": rng.random() < 0.3}
    if kind is not optim.Rprop and rng.random() < 0.4:
        options["weight_decay"] = 0.1
    options["maximize"] = rng.random() < 0.2
    params = list(net.parameters())
    groups = [{"params": params[:2], "lr": 0.02}, {"params": params[2:]}]
    return kind(groups if rng.random() < 0.3 else params, **options)


class Side:
    """A network that is trained, compiled by `wrap` in the parts that `mode` names."""

    def __init__(self, seed: int, wrap: Callable[[Any], Any], device: str = "cpu") -> None:
        rng = self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.net = network(rng).to(device)
        self.optimizer = optimizer_of(rng, self.net)
        self.clip = rng.choice(["", "norm", "value"])
        self.keeps = rng.random() < 0.2  # gradients, from one step to the next
        self.scaler = torch.amp.GradScaler(device, init_scale=64.0) if rng.random() < 0.25 else None
        self.scheduler = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9) if rng.random() < 0.3 else None
        mode = rng.choice(["whole", "whole", "parts", "step"])
        self.model: Callable[[Tensor], Tensor] = wrap(self.net) if mode == "parts" else self.net
        self.train = wrap(self.step) if mode == "whole" else self.step
        if mode != "whole":
            self.optimizer.step = wrap(self.optimizer.step)

    def step(self, batch: Tensor, target: Tensor) -> Tensor:
        if not self.keeps:
            self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch), target)
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        if self.clip == "norm":
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.3)
        if self.clip == "value":
            nn.utils.clip_grad_value_(self.net.parameters(), 0.05)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss.detach()

    def between(self) -> None:
        """What a program does between two steps."""
        params = list(self.net.parameters())
        param = self.rng.choice(params)
        event = self.rng.choice(EVENTS)
        event(self, param)

    def seen(self) -> list[Any]:
        params = [
            *self.net.parameters(),
            *(p for group in self.optimizer.param_groups for p in group["params"]),
        ]
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        states = [dict(self.optimizer.state.get(param, {})) for param in params]
        return [[p.detach() for p in params], [p.grad for p in params], states, groups]


def _load_optimizer(side: Side, param: nn.Parameter) -> None:
    side.optimizer.load_state_dict(copy.deepcopy(side.optimizer.state_dict()))


def _load_network(side: Side, param: nn.Parameter) -> None:
    side.net.load_state_dict({name: value * 0.9 for name, value in side.net.state_dict().items()})


def _add_group(side: Side, param: nn.Parameter) -> None:
    other = nn.Parameter(torch.ones(3).double().to(param.device))
    other.grad = torch.full_like(other, 0.1)
    side.optimizer.add_param_group({"params": [other], "lr": 0.5})


def _replace(side: Side, param: nn.Parameter) -> None:
    for module in side.net.modules():
        for name, value in module.named_parameters(recurse=False):
            if value is param:
                setattr(module, name, nn.Parameter(value.detach() * 0.5))


def _swap_memory(side: Side, param: nn.Parameter) -> None:
    param.data = param.data.clone() * 0.9


def _clear_gradient(side: Side, param: nn.Parameter) -> None:
    param.grad = None


def _set_gradient(side: Side, param: nn.Parameter) -> None:
    param.grad = torch.linspace(-1, 1, param.numel()).to(param).view(param.shape)


def _gradient_views(side: Side, param: nn.Parameter) -> None:
    """All gradients in one memory, as wrappers of several processes have them."""
    params = list(side.net.parameters())
    flat = param.new_zeros(sum(each.numel() for each in params))
    for each, part in zip(params, flat.split([each.numel() for each in params]), strict=True):
        each.grad = part.view(each.shape)


def _hook(side: Side, param: nn.Parameter) -> None:
    if param.requires_grad:
        param.register_hook(lambda grad: grad * 2)


def _change_options(side: Side, param: nn.Parameter) -> None:
    for group in side.optimizer.param_groups:
        group["lr"] *= 0.5
        if group.get("weight_decay") is not None:
            group["weight_decay"] = 0.2


EVENTS: list[Callable[[Side, nn.Parameter], object]] = [
    lambda side, param: None,
    lambda side, param: param.requires_grad_(not param.requires_grad),
    lambda side, param: side.net.train(not side.net.training),
    lambda side, param: side.optimizer.zero_grad(set_to_none=False),
    lambda side, param: side.optimizer.step(),
    _load_optimizer,
    _load_network,
    _add_group,
    _replace,
    _swap_memory,
    _clear_gradient,
    _set_gradient,
    _gradient_views,
    _hook,
    _change_options,
]


def outcomes(seed: int, wrap: Callable[[Any], Any], device: str = "cpu") -> list[Any]:
    side = Side(seed, wrap, device)
    numbers = torch.Generator().manual_seed(seed)
    told: list[Any] = []
    for _ in range(5):
        size = side.rng.choice([2, 4])
        batch = torch.randn(size, 6, generator=numbers).double()
        if side.rng.random() < 0.1:
            batch[0, 0] = float("nan")
        target = torch.randint(0, 5, (size,), generator=numbers)
        loss = side.train(batch.to(device), target.to(device))
        states = [torch.get_rng_state(), *([] if device == "cpu" else [torch.cuda.get_rng_state()])]
        told.append(copy.deepcopy([loss, states, side.seen()]))
        side.between()
    return told


def compare(seed: int, device: str = "cpu", rounding: float = ROUNDING) -> None:
    eager, ours = outcomes(seed, lambda function: function, device), outcomes(seed, lampwork.compile, device)
    torch.testing.assert_close(ours, eager, rtol=rounding, atol=rounding, equal_nan=True)


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_random_training_steps(seed: int) -> None:
    compare(seed)
