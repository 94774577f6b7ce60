"""`lampwork.compile(optimizer.step)`: torch's optimizers against eager, step after step."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

import lampwork
from lampwork.codegen.llvm.isa.x86 import host_target
from lampwork.config import current
from lampwork.optimizers.update import updater_for

SHAPES = [(8,), (64, 33), (1,), (0,), (), (5, 3, 2, 2), (3000,)]

CASES: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "sgd of integers": (optim.SGD, {"lr": 1, "momentum": 1, "weight_decay": 1}),
    "sgd with momentum": (
        optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01, "maximize": True},
    ),
    "sgd by nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adamw": (optim.AdamW, {"lr": 0.01}),
    "adamw with a tensor": (optim.AdamW, {"lr": torch.tensor(0.01), "weight_decay": 0.1}),
    "amsgrad": (optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True, "foreach": True}),
    "adam of wide betas": (optim.Adam, {"lr": 0.01, "betas": (0.3, 0.4)}),
    "fused adamw": (optim.AdamW, {"lr": 0.01, "fused": True}),
    "adagrad": (
        optim.Adagrad,
        {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    ),
    "rmsprop": (optim.RMSprop, {"lr": 0.01}),
    "centered rmsprop": (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    "adadelta": (optim.Adadelta, {"lr": 0.01}),
    "adamax": (optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    "radam": (optim.RAdam, {"lr": 0.01}),
}
ROUNDING = {torch.float64: 1e-14, torch.float32: 5e-6, torch.bfloat16: 0.05, torch.float16: 0.01}


def parameters(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[nn.Parameter]:
    numbers = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=numbers).to(dtype)) for shape in shapes]


def set_grads(*sides: list[nn.Parameter]) -> None:
    """New random gradients, the same for each side."""
    for row in zip(*sides, strict=True):
        grad = torch.randn(row[0].shape).to(row[0].dtype)
        for param in row:
            param.grad = grad.clone()


def assert_close(ours: list[nn.Parameter], eager: list[nn.Parameter]) -> None:
    for mine, theirs in zip(ours, eager, strict=True):
        # Eager rounds the factor of `add` to a half type in its vectors, but not in what is left behind them; such
        # a difference stays when most of the number has cancelled.
        rounding = ROUNDING[mine.dtype]
        torch.testing.assert_close(mine, theirs, rtol=rounding, atol=rounding, equal_nan=True)


def kernels() -> int:
    return updater_for(host_target(current())).compiled


class Pair:
    """An optimizer whose step is compiled, and its twin in eager."""

    def __init__(
        self, cls: type[optim.Optimizer], dtype: torch.dtype = torch.float32, **options: Any
    ) -> None:
        self.params = (parameters(dtype), parameters(dtype))
        made: Callable[..., Any] = cls
        self.ours, self.eager = (made(params, **copy.deepcopy(options)) for params in self.params)
        self.step = lampwork.compile(self.ours.step)

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            set_grads(*self.params)
            self.step()
            self.eager.step()

    def check(self) -> None:
        assert_close(*self.params)
        mine, theirs = self.ours.state_dict(), self.eager.state_dict()
        assert mine["param_groups"] == theirs["param_groups"]
        assert mine["state"].keys() == theirs["state"].keys()
        for number, state in theirs["state"].items():
            assert mine["state"][number].keys() == state.keys()
            for key, value in state.items():
                got = mine["state"][number][key]
                assert got.dtype == value.dtype and got.stride() == value.stride()
                rounding = ROUNDING[value.dtype]
                torch.testing.assert_close(got, value, rtol=rounding, atol=rounding, equal_nan=True)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_eagers(case: str, dtype: torch.dtype) -> None:
    cls, options = CASES[case]
    if cls in (optim.Adam, optim.AdamW, optim.RMSprop, optim.Adamax, optim.RAdam) and dtype == torch.float16:
        options = {**options, "eps": 1e-3}  # 1e-8 is zero in float16
    pair = Pair(cls, dtype, **options)
    given = {key: value for key, value in options.items() if key in ("foreach", "fused")}
    if dtype.itemsize == 2:
        # Ours is the formula of one tensor at a time; the others round less.
        pair.eager.param_groups[0].update(dict.fromkeys(given))
    pair.advance()
    before = kernels()
    for _ in range(19):
        for optimizer in (pair.ours, pair.eager):
            optimizer.param_groups[0]["lr"] *= 0.97 if "integers" not in case else 1
        pair.advance()
    pair.eager.param_groups[0].update(given)
    pair.check()
    # The first step of a momentum is a copy, and RAdam begins with another formula.
    assert kernels() - before <= (cls in (optim.SGD, optim.RAdam))


@pytest.mark.parametrize("case", ["sgd", "amsgrad", "centered rmsprop"])
def test_it_is_a_kernel_that_runs(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    cls, options = CASES[case]
    pair = Pair(cls, **options)
    with lampwork.config.using(logs="breaks"):
        pair.advance(3)
    assert "eager" not in capfd.readouterr().err


def test_values_that_are_no_numbers() -> None:
    pair = Pair(optim.AdamW, lr=0.1, amsgrad=True)
    special: float
    for special in (float("nan"), float("inf"), -0.0):
        set_grads(*pair.params)
        for params in pair.params:
            grad = params[1].grad
            assert grad is not None
            grad[0] = special
        pair.step()
        pair.eager.step()
    pair.check()


def test_a_scheduler_before_and_after() -> None:
    pair = Pair(optim.AdamW, lr=0.1)
    pair.ours.step = pair.step
    ours = optim.lr_scheduler.OneCycleLR(pair.ours, 0.1, total_steps=30)
    eager = optim.lr_scheduler.OneCycleLR(pair.eager, 0.1, total_steps=30)
    pair.step = pair.ours.step
    pair.advance()
    again = lampwork.compile(pair.ours.step)
    before = kernels()
    for step in (pair.step, again) * 5:
        pair.step = step
        pair.advance()
        ours.step()
        eager.step()
    pair.check()
    assert ours.get_last_lr() == eager.get_last_lr()
    assert kernels() == before


@pytest.mark.parametrize(
    "changed", [{}, {"weight_decay": 0.1}, {"maximize": True}, {"foreach": False}], ids=str
)
def test_gradients_hold_what_eager_leaves_in_them(changed: dict[str, Any]) -> None:
    """SGD by nesterov with `foreach` adds the momentum to `.grad` itself, if nothing was copied before."""
    pair = Pair(optim.SGD, torch.float64, **{**CASES["sgd by nesterov"][1], **changed})
    for _ in range(3):
        pair.advance()
        for mine, theirs in zip(*pair.params, strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-14, atol=1e-14)
    pair.check()


def test_frozen_in_between_and_other_gradients() -> None:
    pair = Pair(optim.SGD, lr=0.1, momentum=0.9)
    adam = Pair(optim.Adam, lr=0.1)
    for frozen in (0, 1, 2, None):
        for each in (pair, adam):
            set_grads(*each.params)
            for params in each.params:
                if frozen is not None:
                    params[frozen].grad = None
            each.step()
            each.eager.step()
            each.check()
    for each in (pair, adam):
        for optimizer in (each.ours, each.eager):
            optimizer.zero_grad()
        each.step()
        each.eager.step()
        each.check()


def test_groups_and_parameters_that_come_later() -> None:
    pair = Pair(optim.AdamW, lr=0.1)
    pair.advance(2)
    late = [parameters(torch.bfloat16, [(4, 4)]), parameters(torch.bfloat16, [(4, 4)])]
    for optimizer, params, more in zip((pair.ours, pair.eager), pair.params, late, strict=True):
        optimizer.add_param_group({"params": more, "weight_decay": 0.0, "lr": 0.5})
        params += more
    pair.advance(3)
    pair.check()


@pytest.mark.parametrize("case", ["sgd with momentum", "amsgrad", "adagrad", "centered rmsprop"])
def test_state_dicts_go_both_ways(case: str) -> None:
    cls, options = CASES[case]
    pair = Pair(cls, **options)
    pair.advance(3)
    mine, theirs = copy.deepcopy(pair.ours.state_dict()), copy.deepcopy(pair.eager.state_dict())
    pair.ours.load_state_dict(theirs)
    pair.eager.load_state_dict(mine)
    pair.advance(3)
    pair.check()


def test_copies_and_pickles() -> None:
    pair = Pair(optim.AdamW, lr=0.1)
    pair.ours.step = pair.step
    pair.advance(2)
    for duplicate in (copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))):
        other: Any = duplicate(pair.ours)
        step = lampwork.compile(other.step)
        mine, theirs = other.param_groups[0]["params"], pair.params[0]
        set_grads(mine, theirs)
        step()
        pair.step()
        assert_close(mine, theirs)


def test_hooks_and_closures() -> None:
    pair = Pair(optim.SGD, lr=0.1)
    seen: list[str] = []
    pair.ours.register_step_pre_hook(lambda *given: seen.append("pre"))
    pair.ours.register_step_post_hook(lambda *given: seen.append("post"))
    set_grads(*pair.params)

    def closure() -> float:
        seen.append(f"closure {torch.is_grad_enabled()}")
        return 7.5

    with torch.no_grad():
        assert pair.step(closure) == 7.5
    pair.eager.step()
    assert seen == ["pre", "closure True", "post"]
    assert torch.is_grad_enabled()
    pair.check()


@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("case", ["fused adamw", "adamw"])
def test_grad_scaler(case: str, infinite: bool) -> None:
    cls, options = CASES[case]
    pair = Pair(cls, **options)
    for _ in range(3):
        set_grads(*pair.params)
        for optimizer, params, step in zip(
            (pair.ours, pair.eager), pair.params, (pair.step, pair.eager.step), strict=True
        ):
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            scaler.scale(torch.ones(()))
            for param in params:
                assert param.grad is not None
                param.grad.mul_(float("inf") if infinite else 4)
            optimizer.step = step
            scaler.step(optimizer)
            scaler.update()
    pair.check()
    for mine, theirs in zip(*pair.params, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True)


def test_layouts() -> None:
    sides = [
        [nn.Parameter(torch.ones(4, 3, 5, 5).contiguous(memory_format=torch.channels_last))] for _ in "ab"
    ]
    sides[0].append(nn.Parameter(torch.ones(6, 4).t()))
    sides[1].append(nn.Parameter(torch.ones(6, 4).t()))
    ours, eager = (optim.Adam(side, lr=0.1) for side in sides)
    step = lampwork.compile(ours.step)
    for strided in (True, False):
        for params in zip(*sides, strict=True):
            grad = torch.randn(params[0].shape)
            for param in params:
                param.grad = grad.clone() if strided else grad[..., :1].expand(grad.shape)
        step()
        eager.step()
    assert_close(*sides)


def test_memory_that_is_shared_is_eagers() -> None:
    sides: list[list[nn.Parameter]] = []
    for _ in "ab":
        base = torch.ones(8)
        sides.append([nn.Parameter(base[:6]), nn.Parameter(base[2:])])
    ours, eager = (optim.SGD(side, lr=0.1, momentum=0.5) for side in sides)
    step = lampwork.compile(ours.step)
    for _ in range(3):
        set_grads(*sides)
        step()
        eager.step()
    assert_close(*sides)
    for side in sides:
        side[0].grad = side[0].data  # what is read is what is written
    step()
    eager.step()
    assert_close(*sides)


def test_sparse_gradients_and_complex_parameters() -> None:
    sides = [
        [nn.Parameter(torch.ones(5, 2)), nn.Parameter(torch.ones(3, dtype=torch.complex64))] for _ in "ab"
    ]
    ours, eager = (optim.SGD([{"params": side[:1]}, {"params": side[1:]}], lr=0.1) for side in sides)
    step = lampwork.compile(ours.step)
    for side in sides:
        side[0].grad = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.ones(2, 2), (5, 2))
        side[1].grad = torch.full((3,), 1 + 2j)
    step()
    eager.step()
    for mine, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(mine, theirs)


def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_bad_input_raises_as_eager_does() -> None:
    for cls in (optim.AdamW, optim.RMSprop):
        pair = Pair(cls, torch.float32, lr=0.1, capturable=True)
        set_grads(*pair.params)
        assert message_of(pair.step) == message_of(pair.eager.step)
    pair = Pair(optim.Adam, lr=0.1)
    for params in pair.params:
        params[1].grad = torch.zeros(64, 33).to_sparse()
    assert message_of(pair.step) == message_of(pair.eager.step)


def test_writes_are_seen() -> None:
    param = nn.Parameter(torch.ones(3))
    version = param._version
    product = (param * param).sum()
    optimizer = optim.SGD([param], lr=0.1)
    param.grad = torch.ones(3)
    lampwork.compile(optimizer.step)()
    assert param._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_compiled_modules_read_the_new_weights() -> None:
    model = nn.Linear(64, 64)
    compiled = lampwork.compile(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    step = lampwork.compile(optimizer.step)
    x = torch.randn(4, 64)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        for param in model.parameters():
            param.grad = torch.randn_like(param)
        step()


def test_steps_that_are_not_torchs_are_left_alone() -> None:
    class Twice(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step(closure)

    param = nn.Parameter(torch.ones(3))
    optimizer = Twice([param], lr=0.1)
    param.grad = torch.ones(3)
    with lampwork.config.using(strict=False):
        lampwork.compile(optimizer.step)()
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.8))


def test_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        sides = [parameters(shapes=[(100_000,), (7,), (50_001,)]) for _ in "ab"]
        ours, eager = (optim.AdamW(side, lr=0.1) for side in sides)
        step = lampwork.compile(ours.step)
        for _ in range(2):
            set_grads(*sides)
            step()
            eager.step()
        assert_close(*sides)
    finally:
        torch.set_num_threads(threads)


def test_other_stances_and_modes() -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    pair = Pair(optim.SGD, lr=0.1)
    with lampwork.set_stance("force_eager"):
        pair.advance()
    set_grads(*pair.params)
    with Watch():
        pair.step()
    pair.eager.step()
    pair.check()
    assert any("add_" in name for name in seen)


def test_a_whole_training_step() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in "ab"]
    models[1].load_state_dict(models[0].state_dict())
    ours, eager = (optim.AdamW(model.parameters(), lr=0.01) for model in models)
    ours.step = lampwork.compile(ours.step)

    def train(model: nn.Module, optimizer: optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    compiled = lampwork.compile(train)
    for _ in range(5):
        x = torch.randn(4, 8)
        torch.testing.assert_close(compiled(models[0], ours, x), train(models[1], eager, x))
    assert_close(list(models[0].parameters()), list(models[1].parameters()))
    assert all(state["step"] == 5 for state in ours.state.values())


def lion(param: Tensor, grad: Tensor, average: Tensor, *, lr: float, beta1: float, beta2: float) -> None:
    param.add_((average * beta1 + grad * (1 - beta1)).sign(), alpha=-lr)
    average.mul_(beta2).add_(grad, alpha=1 - beta2)


def by_norm(param: Tensor, grad: Tensor, average: Tensor, *, lr: float) -> None:
    param.add_(grad / grad.norm(), alpha=-lr)


@pytest.mark.parametrize("rule", [lion, by_norm])
def test_a_rule_of_ones_own(rule: Any) -> None:
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99} if rule is lion else {"lr": 0.1}
    ours, eager = ([parameters(), parameters(), parameters()] for _ in "ab")
    for _ in range(5):
        options["lr"] *= 0.9
        set_grads(ours[0], eager[0])
        grads = [param.grad for param in ours[0] if param.grad is not None]
        with torch.no_grad():
            lampwork.optimizers.update(rule, ours[0], grads, ours[2], **options)
            for param, average in zip(eager[0], eager[2], strict=True):
                rule(param, param.grad, average, **options)
    assert_close(ours[0], eager[0])
    assert_close(ours[2], eager[2])
    with pytest.raises(ValueError, match="columns must have one length"):
        lampwork.optimizers.update(rule, ours[0], [], ours[2], **options)
