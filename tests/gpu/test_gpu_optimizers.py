"""Optimizers whose parameters are on the GPU: `lampwork.compile(optimizer.step)` against eager's foreach and fused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import gpu
import lampwork
from lampwork.optimizers.update import Updater

gpu.require()

SHAPES = [(8,), (64, 33), (1,), (0,), (), (5, 3, 2, 2), (30000,), (4096,), (1, 4097)]
OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adamw": (optim.AdamW, {"lr": 0.01, "maximize": True}),
    "amsgrad": (optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9}),
    "adadelta": (optim.Adadelta, {"lr": 0.1}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "radam": (optim.RAdam, {"lr": 0.01}),
}
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
NO_FUSED = {"adagrad", "rmsprop", "adadelta", "adamax", "radam"}  # on CUDA, of some releases of torch
NO_CAPTURABLE = {"sgd", "momentum", "nesterov", "adagrad"}
EAGERS = {("radam", "capturable")}  # a rule with a comparison: it stays eager's
CASES = [
    (name, way)
    for name in OPTIMIZERS
    for way in WAYS
    if not (way == "fused" and name in NO_FUSED)
    and not (way == "capturable" and (name in NO_CAPTURABLE or not gpu.ON_GPU))
]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each update of a group was done by kernels, of those that were not repeated without Python."""
    told: list[bool] = []
    inner = Updater.run

    def run(self: Updater, *args: Any) -> bool:
        told.append(inner(self, *args))
        return told[-1]

    monkeypatch.setattr(Updater, "run", run)
    return told


class Pair:
    """An optimizer whose step is compiled, and its twin in eager."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        cls, given = OPTIMIZERS[name]
        torch.manual_seed(0)
        start = [torch.randn(shape).to(gpu.DEVICE, dtype) for shape in SHAPES]
        self.params = tuple([nn.Parameter(each.clone()) for each in start] for _ in range(2))
        made: Callable[..., Any] = cls
        self.ours, self.eager = (made(each, **copy.deepcopy({**given, **options})) for each in self.params)
        self.step = self.ours.step = lampwork.compile(self.ours.step)

    def gradients(self, scale: float = 1.0) -> None:
        for number, row in enumerate(zip(*self.params, strict=True)):
            grad = torch.randn_like(row[0]) * scale
            for param in row:
                param.grad = None if number == 2 else grad.clone()

    def advance(self, steps: int = 3) -> None:
        for _ in range(steps):
            self.gradients()
            self.step()
            self.eager.step()

    def check(self, rounding: float = 1e-5) -> None:
        mine, theirs = self.ours.state_dict(), self.eager.state_dict()
        close = {"rtol": rounding, "atol": rounding, "equal_nan": True}
        torch.testing.assert_close(self.params[0], self.params[1], **close)
        torch.testing.assert_close(
            [p.grad for p in self.params[0]], [p.grad for p in self.params[1]], **close
        )
        assert mine["param_groups"] == theirs["param_groups"]
        torch.testing.assert_close(mine["state"], theirs["state"], **close)  # devices too


@pytest.mark.parametrize(("name", "way"), CASES)
def test_steps_are_eagers(name: str, way: str, served: list[bool]) -> None:
    pair = Pair(name, **WAYS[way])
    pair.advance()
    pair.check()
    assert served and all(each is ((name, way) not in EAGERS) for each in served)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["momentum", "adamw", "rmsprop"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    options = {"eps": 1e-3} if name != "momentum" and dtype is torch.float16 else {}
    pair = Pair(name, dtype, **options)
    pair.advance()
    pair.check({torch.bfloat16: 0.06, torch.float16: 0.02, torch.float64: 1e-12}[dtype])


@pytest.mark.parametrize("way", ["default", "fused"])
def test_state_dicts_go_to_and_fro(way: str) -> None:
    pair = Pair("adamw", **WAYS[way])
    pair.advance(2)
    mine, theirs = copy.deepcopy(pair.ours.state_dict()), copy.deepcopy(pair.eager.state_dict())
    pair.ours.load_state_dict(theirs)
    pair.eager.load_state_dict(mine)
    pair.advance(2)
    pair.check()


def test_hundreds_of_parameters() -> None:
    torch.manual_seed(0)
    start = [torch.randn(7 + number % 50, device=gpu.DEVICE) for number in range(500)]
    sides = [[nn.Parameter(each.clone()) for each in start] for _ in range(2)]
    ours, eager = (optim.AdamW(side, lr=0.01) for side in sides)
    step = lampwork.compile(ours.step)
    for _ in range(3):
        for a, b in zip(*sides, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        step()
        eager.step()
    torch.testing.assert_close(*sides, rtol=1e-5, atol=1e-6)


def test_gradients_of_other_layouts_and_misaligned_parameters() -> None:
    memory = torch.randn(1001, device=gpu.DEVICE)
    sides = [
        [nn.Parameter(memory.clone()[1:]), nn.Parameter(torch.ones(30, 40, device=gpu.DEVICE).t())]
        for _ in range(2)
    ]
    ours, eager = (optim.Adam(side, lr=0.01) for side in sides)
    step = lampwork.compile(ours.step)
    for _ in range(2):
        grads = [torch.randn(1000, device=gpu.DEVICE), torch.randn(40, 30, device=gpu.DEVICE)]
        for side in sides:
            for param, grad in zip(side, grads, strict=True):
                param.grad = grad.clone()
        step()
        eager.step()
    torch.testing.assert_close(*sides, rtol=1e-5, atol=1e-6)


def test_own_rules() -> None:
    def lion(param: Tensor, grad: Tensor, average: Tensor, *, lr: float) -> None:
        param.add_((average * 0.9 + grad * 0.1).sign(), alpha=-lr)
        average.lerp_(grad, 0.01)

    def tensors() -> list[Tensor]:
        torch.manual_seed(1)
        return [torch.randn(shape).to(gpu.DEVICE) for shape in SHAPES]

    ours, theirs = [tensors() for _ in range(3)], [tensors() for _ in range(3)]
    for lr in (0.1, 0.2):
        lampwork.optimizers.update(lion, *ours, lr=lr)
        for row in zip(*theirs, strict=True):
            lion(*row, lr=lr)
    torch.testing.assert_close(ours, theirs)


def test_closures_and_groups() -> None:
    pair = Pair("adamw")
    calls: list[int] = []

    def closure() -> float:
        calls.append(1)
        return 3.5

    for optimizer in (pair.ours, pair.eager):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(5, device=gpu.DEVICE))], "lr": 0.5})
    pair.gradients()
    assert pair.step(closure) == pair.eager.step(closure) == 3.5 and len(calls) == 2
    pair.check()


@pytest.mark.parametrize("way", ["default", "fused"])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_a_gradient_scaler(name: str, way: str) -> None:
    """With and without infinities among the gradients; unscaled before the step, or by it."""
    pair = Pair(name, **WAYS[way])
    pair.advance(1)  # states are there
    scalers = [torch.amp.GradScaler(gpu.DEVICE, init_scale=64.0) for _ in range(2)]
    for number in range(4):
        for scaler in scalers:
            scaler.scale(torch.zeros((), device=gpu.DEVICE))
        pair.gradients(64.0)
        if number == 2:
            for side in pair.params:
                assert side[1].grad is not None
                side[1].grad[3, 3] = float("inf")
        for scaler, optimizer in zip(scalers, (pair.ours, pair.eager), strict=True):
            if number == 1:
                scaler.unscale_(optimizer)
        scalers[0].step(pair.ours)
        scalers[1].step(pair.eager)
        for scaler in scalers:
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        if number != 2 or way == "default":
            pair.check()
        else:  # eager's kernel leaves infinite gradients as they are
            torch.testing.assert_close(pair.params[0], pair.params[1], rtol=1e-5, atol=1e-5)


def test_training_in_float16_under_autocast() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).to(gpu.DEVICE)
    nets = [net, copy.deepcopy(net)]
    optimizers = [optim.AdamW(each.parameters(), lr=1e-3, fused=True) for each in nets]
    optimizers[0].step = lampwork.compile(optimizers[0].step)
    scalers = [torch.amp.GradScaler(gpu.DEVICE, init_scale=256.0) for _ in nets]
    half = torch.float16 if gpu.ON_GPU else torch.bfloat16
    for _ in range(4):
        x, y = torch.randn(16, 32, device=gpu.DEVICE), torch.randint(10, (16,), device=gpu.DEVICE)
        for each, optimizer, scaler in zip(nets, optimizers, scalers, strict=True):
            optimizer.zero_grad()
            with torch.autocast(gpu.DEVICE, half):
                loss = nn.functional.cross_entropy(each(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()), rtol=1e-3, atol=1e-4)


def test_whole_steps_with_clipping() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).to(gpu.DEVICE)
    twin = copy.deepcopy(net)
    losses: list[list[Tensor]] = []
    for each, wrap in ((net, lampwork.compile), (twin, lambda f: f)):
        optimizer = optim.AdamW(each.parameters(), lr=1e-3)
        scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: Tensor, y: Tensor, each: Any = each, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(each(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            nn.utils.clip_grad_value_(each.parameters(), 0.05)
            optimizer.step()
            return loss.detach()

        compiled = wrap(step)
        numbers = torch.Generator().manual_seed(0)
        told: list[Tensor] = []
        for _ in range(5):
            x = torch.randn(16, 32, generator=numbers).to(gpu.DEVICE)
            told.append(compiled(x, torch.arange(16, device=gpu.DEVICE) % 10))
            scheduler.step()
        losses.append(told)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(net.parameters()), list(twin.parameters()), rtol=1e-3, atol=1e-5)


needs_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="of cards alone")


@needs_gpu
@pytest.mark.parametrize("way", ["default", "foreach", "fused", "capturable"])
def test_a_step_does_not_wait_for_the_card(way: str) -> None:
    pair = Pair("adamw", **WAYS[way])
    pair.advance(3)
    pair.gradients()
    torch.cuda.synchronize()
    with _synchronising_is_an_error():
        for _ in range(4):
            pair.step()


@needs_gpu
def test_found_infinities_are_not_waited_for() -> None:
    pair = Pair("adamw", fused=True)
    pair.advance(2)
    pair.gradients()
    pair.ours.grad_scale, pair.ours.found_inf = (torch.full((), v, device="cuda") for v in (2.0, 0.0))
    torch.cuda.synchronize()
    with _synchronising_is_an_error():
        pair.step()


class _synchronising_is_an_error:  # noqa: N801
    def __enter__(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *raised: object) -> None:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_a_captured_step_is_replayed() -> None:
    """By torch.cuda.graph, with `capturable` and a learning rate in a tensor, which may change between replays."""
    lr = torch.tensor(0.01, device="cuda")
    pair = Pair("adamw", capturable=True, lr=lr)
    for group in (*pair.ours.param_groups, *pair.eager.param_groups):
        group["lr"] = lr
    pair.advance(2)
    pair.gradients()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        pair.step()
    torch.cuda.current_stream().wait_stream(stream)
    pair.eager.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pair.step()
    for rate in (0.01, 0.1):
        lr.fill_(rate)
        graph.replay()
        pair.eager.step()
        torch.testing.assert_close(pair.params[0], pair.params[1], rtol=1e-5, atol=1e-5)


@needs_gpu
def test_a_step_that_cannot_be_captured_says_what_eager_says() -> None:
    pair = Pair("adamw")
    pair.advance(4)  # the compiled one is repeated without Python
    pair.gradients()
    said: list[str] = []
    for step in (pair.step, pair.eager.step):
        with pytest.raises(RuntimeError) as raised, torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda").add_(1)
            step()
        said.append(str(raised.value))
    assert "capturable" in said[0] and said[0] == said[1]


@needs_gpu
def test_steps_on_another_stream() -> None:
    pair = Pair("adamw")
    pair.advance(2)
    side = torch.cuda.Stream()
    for _ in range(3):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            pair.gradients()
            pair.step()
        torch.cuda.current_stream().wait_stream(side)
        pair.eager.step()
    pair.check()


@needs_gpu
def test_repeated_steps_run_without_python(served: list[bool]) -> None:
    pair = Pair("adamw")
    pair.advance(4)
    count = len(served)
    pair.advance(2)
    assert len(served) == count
    pair.check()
