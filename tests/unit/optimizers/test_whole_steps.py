"""Functions that train, compiled as a whole: the steps of optimizers in them are the compiled ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import lampwork
from lampwork.errors import GraphBreakError
from lampwork.optimizers.replay import Replays
from lampwork.optimizers.update import Updater

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (optim.Adam, {"lr": 0.01}),
    "adamw": (optim.AdamW, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.01}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01}),
    "adadelta": (optim.Adadelta, {"lr": 0.1}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "radam": (optim.RAdam, {"lr": 0.01}),
}

Train = Callable[[nn.Module, optim.Optimizer, Tensor, Tensor], Any]


def train(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch), target)
    loss.backward()
    optimizer.step()
    return loss.detach()


class Twins:
    """Two networks that begin alike, each with an optimizer: one for a compiled function, one for eager."""

    def __init__(self, make: Callable[[Any], optim.Optimizer]) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.models = (network, copy.deepcopy(network))
        self.optimizers = tuple(make(model.parameters()) for model in self.models)
        self.numbers = torch.Generator().manual_seed(1)

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(5, 6, generator=self.numbers), torch.randn(5, 3, generator=self.numbers)

    def advance(self, compiled: Train, eager: Train, steps: int = 1, **tolerances: float) -> None:
        """Run both for some steps, with the same random numbers, and compare what they return."""
        for seed in range(steps):
            given = self.batch()
            results: list[Any] = []
            for function, model, optimizer in zip(
                (compiled, eager), self.models, self.optimizers, strict=True
            ):
                torch.manual_seed(seed)
                results.append(function(model, optimizer, *given))
            torch.testing.assert_close(*results, equal_nan=True, **tolerances)

    def check(self) -> None:
        ours, eager = (optimizer.state_dict() for optimizer in self.optimizers)
        assert ours["param_groups"] == eager["param_groups"]
        torch.testing.assert_close(ours["state"], eager["state"], rtol=1e-4, atol=1e-6)
        for mine, theirs in zip(*(model.parameters() for model in self.models), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
            assert (mine.grad is None) == (theirs.grad is None)
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each update so far was done by kernels."""
    found: list[bool] = []
    run, replay = Updater.run, Replays.run

    def noted(self: Updater, *args: Any) -> bool:
        found.append(run(self, *args))
        return found[-1]

    def replayed(self: Replays, optimizer: optim.Optimizer) -> bool:
        done = replay(self, optimizer)
        found.extend([True] * done)
        return done

    monkeypatch.setattr(Updater, "run", noted)
    monkeypatch.setattr(Replays, "run", replayed)
    return found


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_steps_are_compiled(case: str, updates: list[bool]) -> None:
    cls, options = OPTIMIZERS[case]
    made: Any = cls
    twins = Twins(lambda params: made(params, **options))
    compiled = lampwork.compile(train)
    twins.advance(compiled, train, 3)
    settled = lampwork.stats()["regions"]
    twins.advance(compiled, train, 7)
    twins.check()
    assert updates == [True] * 10
    assert lampwork.stats()["regions"] == settled


@pytest.mark.parametrize("per_step", [False, True])
def test_schedulers(per_step: bool, updates: list[bool]) -> None:
    twins = Twins(lambda params: optim.AdamW(params, lr=0.1))
    schedulers = {
        id(optimizer): optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        for optimizer in twins.optimizers
    }

    def scheduled(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Tensor:
        loss = train(model, optimizer, batch, target)
        if per_step:
            schedulers[id(optimizer)].step()
        return loss

    compiled, settled = lampwork.compile(scheduled), 0.0
    for step in range(12):
        twins.advance(compiled, scheduled)
        if not per_step:
            for scheduler in schedulers.values():
                scheduler.step()
        if step == 3:
            settled = lampwork.stats()["regions"]
    twins.check()
    assert updates == [True] * 12
    assert lampwork.stats()["regions"] == settled


class Counting(optim.AdamW):
    """Has a step of its own, around torch's."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["calls"] = self.param_groups[0].get("calls", 0) + 1
        return super().step(closure)


class Same(optim.AdamW):
    pass


@pytest.mark.parametrize("cls", [Same, Counting])
def test_subclasses(cls: type[optim.Optimizer]) -> None:
    optim.AdamW([nn.Parameter(torch.ones(1))])
    made: Any = cls
    twins = Twins(lambda params: made(params, lr=0.01))
    twins.advance(lampwork.compile(train), train, 4)
    twins.check()


def test_hooks_and_closures(updates: list[bool]) -> None:
    twins = Twins(lambda params: optim.SGD(params, lr=0.1, momentum=0.5))
    called: list[tuple[int, str]] = []
    for number, optimizer in enumerate(twins.optimizers):
        optimizer.register_step_pre_hook(lambda *_, number=number: called.append((number, "before")))
        optimizer.register_step_post_hook(lambda *_, number=number: called.append((number, "after")))

    def by_closure(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Any:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            return loss

        step: Any = optimizer.step
        return step(closure)

    twins.advance(lampwork.compile(by_closure), by_closure, 4)
    twins.check()
    assert updates == [True] * 4
    assert called == [(0, "before"), (0, "after"), (1, "before"), (1, "after")] * 4


def test_other_optimizers_of_one_function(updates: list[bool]) -> None:
    compiled = lampwork.compile(train)
    for cls in (optim.SGD, optim.AdamW, optim.SGD, optim.Rprop):
        made: Any = cls
        twins = Twins(lambda params, made=made: made(params, lr=0.01))
        twins.advance(compiled, train, 3)
        twins.check()
    assert updates == [True] * 9  # Rprop is eager's


def test_a_step_that_raises_in_the_middle() -> None:
    twins = Twins(lambda params: optim.AdamW(params, lr=0.1))

    def fails(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Any:
        try:
            return train(model, optimizer, batch, target)
        except RuntimeError as error:
            return torch.tensor(len(str(error)) % 7)

    def refuse(*_: Any) -> None:
        raise RuntimeError("no step")

    compiled = lampwork.compile(fails)
    twins.advance(compiled, fails, 3)
    hooks = [optimizer.register_step_pre_hook(refuse) for optimizer in twins.optimizers]
    twins.advance(compiled, fails, 2)
    twins.check()
    for hook in hooks:
        hook.remove()
    twins.advance(compiled, fails, 2)
    twins.check()


def test_accumulation_and_clipping() -> None:
    twins = Twins(lambda params: optim.AdamW(params, lr=0.05))

    def accumulates(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Any:
        optimizer.zero_grad(set_to_none=False)
        for part, wanted in zip(batch.chunk(2), target.chunk(2), strict=True):
            (nn.functional.mse_loss(model(part), wanted) / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return norm

    twins.advance(lampwork.compile(accumulates), accumulates, 6)
    twins.check()


def test_what_the_records_say() -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = optim.lr_scheduler.LinearLR(optimizer)
    causes: list[tuple[str, str]] = []
    for function in (optimizer.step, optimizer.zero_grad, scheduler.step):
        with pytest.raises(GraphBreakError) as raised:
            lampwork.compile(lambda function=function: function(), fullgraph=True)()
        causes.append((raised.value.code, raised.value.cause))
    after = "() works on gradients, parameters or what is kept of them, so it runs between two compiled parts"
    assert causes == [
        ("LW123", f"torch.optim.sgd.SGD.step{after}"),
        ("LW123", f"torch.optim.optimizer.Optimizer.zero_grad{after}"),
        ("LW123", f"torch.optim.lr_scheduler.LRScheduler.step{after}"),
    ]
    with pytest.raises(GraphBreakError, match=r"Tensor.backward\(\) runs autograd") as raised:
        lampwork.compile(lambda x: (x * 2).backward(), fullgraph=True)(torch.ones((), requires_grad=True))
    assert raised.value.code == "LW116"


class Lion(optim.Optimizer):
    """An optimizer of the program's own, with a state and a step count."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["average"], state["step"] = torch.zeros_like(param), 0
                state["step"] += 1
                average, grad = state["average"], param.grad
                param.add_((average * 0.9 + grad * 0.1).sign_(), alpha=-group["lr"] / state["step"])
                average.lerp_(grad, 0.01)


def test_an_optimizer_of_ones_own_compiles_nothing() -> None:
    twins = Twins(lambda params: Lion(params, lr=0.01))
    compiled = lampwork.compile(train)
    twins.advance(compiled, train, 3)
    settled = lampwork.stats()["regions"]
    for optimizer in twins.optimizers:
        optimizer.param_groups[0]["lr"] = 0.02
    twins.advance(compiled, train, 3)
    twins.check()
    assert lampwork.stats()["regions"] == settled


def test_autocast_scaling_and_gradients_by_hand(updates: list[bool]) -> None:
    """What a step may have besides: autocast, a GradScaler, torch.autograd.grad, a second backward."""

    def mixed(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(batch).float(), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def by_hand(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Tensor:
        params = list(model.parameters())
        loss = nn.functional.mse_loss(model(batch), target)
        for param, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
            param.grad = grad
        optimizer.step()
        return loss.detach()

    for function in (mixed, by_hand):
        twins = Twins(lambda params: optim.SGD(params, lr=0.05))
        scales = 2e-2 if function is mixed else 1e-5
        twins.advance(lampwork.compile(function), function, 6, rtol=scales, atol=scales)
    assert updates == [True] * 12

    twins = Twins(lambda params: optim.AdamW(params, lr=0.05))
    scalers = {id(optimizer): torch.amp.GradScaler("cpu", init_scale=64.0) for optimizer in twins.optimizers}

    def scaled(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor, target: Tensor) -> Tensor:
        scaler = scalers[id(optimizer)]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return norm

    twins.advance(lampwork.compile(scaled), scaled, 6)
    twins.check()
