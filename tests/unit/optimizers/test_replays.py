"""Steps that are done again without Python: what they may not depend on, and that they are eager's."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

import lampwork
from lampwork.errors import LampworkError
from lampwork.optimizers.replay import Replays
from lampwork.optimizers.tape import Tape, Unrepeatable

SHAPES = [(8,), (6, 5), (1,), (0,), (), (3, 2, 2, 2)]
CASES: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adamw": (optim.AdamW, {"lr": 0.01}),
    "fused": (optim.AdamW, {"lr": 0.01, "fused": True}),
    "amsgrad": (optim.AdamW, {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "adagrad": (optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9}),
    "adadelta": (optim.Adadelta, {"lr": 0.01}),
    "adamax": (optim.Adamax, {"lr": 0.01}),
    "radam": (optim.RAdam, {"lr": 0.01}),
}


class Pair:
    """An optimizer with a compiled step, and its twin in eager; each parameter has a group of its own if `apart`."""

    def __init__(self, cls: Any, *, apart: bool = False, dtype: Any = torch.float32, **options: Any) -> None:
        numbers = torch.Generator().manual_seed(3)
        made = [torch.randn(shape, generator=numbers).to(dtype) for shape in SHAPES]
        self.params = tuple([nn.Parameter(value.clone()) for value in made] for _ in range(2))
        self.ours, self.eager = (
            cls([{"params": [p]} for p in params] if apart else params, **copy.deepcopy(options))
            for params in self.params
        )
        self.step = lampwork.compile(self.ours.step)

    def both(self, change: Callable[[Any, list[nn.Parameter]], Any]) -> None:
        change(self.ours, self.params[0])
        change(self.eager, self.params[1])

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            for mine, theirs in zip(*self.params, strict=True):
                if theirs.grad is not None or not theirs.__dict__.get("skipped"):
                    theirs.grad = torch.randn(theirs.shape).to(theirs.dtype)
                    mine.grad = theirs.grad.clone()
            self.step()
            self.eager.step()
        self.check()

    def check(self) -> None:
        for mine, theirs in zip(*self.params, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
        mine, theirs = self.ours.state_dict(), self.eager.state_dict()
        assert repr(mine["param_groups"]) == repr(theirs["param_groups"])
        torch.testing.assert_close(mine["state"], theirs["state"], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step so far was done again without Python."""
    found: list[bool] = []
    run = Replays.run

    def noted(self: Replays, optimizer: optim.Optimizer) -> bool:
        found.append(run(self, optimizer))
        return found[-1]

    monkeypatch.setattr(Replays, "run", noted)
    return found


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_done_again_with_other_numbers(case: str, apart: bool, replayed: list[bool]) -> None:
    cls, options = CASES[case]
    pair = Pair(cls, apart=apart, **options)
    for number in range(24):
        if number == 20:
            replayed.clear()
        for optimizer in (pair.ours, pair.eager):
            for place, group in enumerate(optimizer.param_groups):
                group["lr"] *= 0.9 + 0.01 * place
        pair.advance()
    assert replayed == [True] * 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_numbers_are_those_of_the_step_by_torch(dtype: torch.dtype, replayed: list[bool]) -> None:
    pair = Pair(optim.AdamW, lr=0.01, dtype=dtype)
    other = Pair(optim.AdamW, lr=0.01, dtype=dtype)
    for _ in range(6):
        for mine, theirs in zip(pair.params[0], other.params[0], strict=True):
            mine.grad = torch.randn(mine.shape).to(dtype)
            theirs.grad = mine.grad.clone()
        pair.step()
        other.step(None)  # with an argument it is torch's code that runs
        for mine, theirs in zip(pair.params[0], other.params[0], strict=True):
            assert torch.equal(mine, theirs)
    assert replayed == [False, False, False, True, True, True]


def with_tensor(optimizer: Any, params: Any) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.02)


def with_hook(optimizer: Any, params: Any) -> None:
    optimizer.register_step_pre_hook(lambda opt, *_: opt.param_groups[0].update(lr=0.2))


def with_post_hook(optimizer: Any, params: Any) -> None:
    optimizer.register_step_post_hook(lambda *_: params[0].data.zero_())


def without_gradient(optimizer: Any, params: Any) -> None:
    params[1].grad = None
    params[1].skipped = True


def with_group(optimizer: Any, params: Any) -> None:
    params.append(nn.Parameter(torch.ones(4)))
    optimizer.add_param_group({"params": [params[-1]], "lr": 0.5, "weight_decay": 0.0})


def with_loaded_state(optimizer: Any, params: Any) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for each in state["state"].values():
        each["exp_avg"] += 1
    optimizer.load_state_dict(state)


def with_other_counts(optimizer: Any, params: Any) -> None:
    optimizer.state[params[1]]["step"] += 5


def with_other_states(optimizer: Any, params: Any) -> None:
    optimizer.state[params[1]]["exp_avg"] = torch.full_like(params[1], 0.5)


def without_state(optimizer: Any, params: Any) -> None:
    del optimizer.state[params[0]]


def with_state_in_float64(optimizer: Any, params: Any) -> None:
    optimizer.state[params[1]]["exp_avg"] = optimizer.state[params[1]]["exp_avg"].double()


def with_other_data(optimizer: Any, params: Any) -> None:
    params[0].data = torch.ones(8)
    params[1].data = torch.ones(5, 6).t()
    optimizer.state.clear()


def with_swapped_parameters(optimizer: Any, params: Any) -> None:
    group = optimizer.param_groups[0]["params"]
    group[0], group[1] = group[1], group[0]


def with_one_less(optimizer: Any, params: Any) -> None:
    del optimizer.param_groups[0]["params"][1], optimizer.state[params[1]]


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "a rate": lambda optimizer, _: optimizer.param_groups[0].update(lr=0.03),
    "betas": lambda optimizer, _: optimizer.param_groups[0].update(betas=(0.3, 0.4)),
    "integers": lambda optimizer, _: optimizer.param_groups[0].update(lr=1, eps=1),
    "no decay": lambda optimizer, _: optimizer.param_groups[0].update(weight_decay=0),
    "no decay in floats": lambda optimizer, _: optimizer.param_groups[0].update(weight_decay=0.0),
    "a rate of zero": lambda optimizer, _: optimizer.param_groups[0].update(lr=0.0),
    "a rate of -1": lambda optimizer, _: optimizer.param_groups[0].update(lr=-1.0),
    "a rate of nan": lambda optimizer, _: optimizer.param_groups[0].update(lr=float("nan")),
    "maximize": lambda optimizer, _: optimizer.param_groups[0].update(maximize=True),
    "foreach": lambda optimizer, _: optimizer.param_groups[0].update(foreach=True),
    "fused": lambda optimizer, _: optimizer.param_groups[0].update(fused=True),
    "a tensor": with_tensor,
    "a hook": with_hook,
    "a hook behind": with_post_hook,
    "no gradient": without_gradient,
    "a group": with_group,
    "a state dict": with_loaded_state,
    "counts": with_other_counts,
    "a state": with_other_states,
    "no state": without_state,
    "a dtype": with_state_in_float64,
    "memory": with_other_data,
    "an order": with_swapped_parameters,
    "one less": with_one_less,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_steps(change: str, replayed: list[bool]) -> None:
    pair = Pair(optim.AdamW, lr=0.01, weight_decay=0.1)
    pair.advance(5)
    assert replayed[-1]
    pair.both(CHANGES[change])
    if change == "a dtype":
        with pytest.raises((RuntimeError, LampworkError)):  # as in eager
            pair.step()
        return
    pair.advance(6)


@pytest.mark.parametrize("name", ["_init_group", "grad_scale", "note"])
def test_attributes_in_front_of_the_classes(name: str, replayed: list[bool]) -> None:
    pair = Pair(optim.SGD, lr=0.1)
    pair.advance(5)
    calls: list[Any] = []

    def init_group(group: Any, params: list[Any], *rest: Any) -> bool:
        calls.append(group)
        return False  # and there is nothing to update

    value = {"_init_group": init_group, "grad_scale": None, "note": object()}[name]
    pair.both(lambda optimizer, _: setattr(optimizer, name, value))
    pair.advance(4)
    assert bool(calls) == (name == "_init_group")
    assert replayed[-1] == (name != "_init_group")


def test_a_patched_class(monkeypatch: pytest.MonkeyPatch, replayed: list[bool]) -> None:
    pair = Pair(optim.SGD, lr=0.1)
    pair.advance(5)
    assert replayed[-1]
    monkeypatch.setattr(optim.SGD, "_init_group", lambda *args: False)
    before = [param.clone() for param in pair.params[0]]
    pair.advance(2)
    assert all(map(torch.equal, before, pair.params[0]))


def test_a_subclass_runs_its_own_code(replayed: list[bool]) -> None:
    class Careful(optim.SGD):
        seen = 0

        def _init_group(self, *args: Any) -> Any:
            self.seen += 1
            return super()._init_group(*args)  # pyright: ignore

    pair = Pair(Careful, lr=0.1)
    pair.advance(6)
    assert pair.ours.seen == pair.eager.seen == 6
    assert not any(replayed)


def test_hooks_of_all_optimizers(replayed: list[bool]) -> None:
    pair = Pair(optim.SGD, lr=0.1)
    pair.advance(5)
    seen: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    pair.advance(2)
    assert len(seen) == 4 and not any(replayed[-2:])
    handle.remove()
    pair.advance()
    assert replayed[-1]


def test_what_watches(replayed: list[bool]) -> None:
    pair = Pair(optim.SGD, lr=0.1)
    pair.advance(5)

    class Counts(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.calls += 1
            return func(*args, **(kwargs or {}))

    with Counts():
        pair.step()
    assert Counts.calls
    pair.eager.step()
    with torch.profiler.profile() as profile:
        pair.step()
    pair.eager.step()
    assert any("Optimizer.step#SGD.step" in event.key for event in profile.key_averages())
    with lampwork.set_stance("force_eager"):
        pair.step()
    pair.eager.step()
    assert not any(replayed[-3:])
    pair.check()


def test_gradients_that_lie_elsewhere(replayed: list[bool]) -> None:
    pair = Pair(optim.AdamW, lr=0.01)
    pair.advance(5)
    for params in pair.params:
        for param in params:
            param.grad = None
        params[0].grad = params[1].detach().flatten()[:8]  # in memory that the step writes to
        params[5].grad = torch.ones(2, 3, 2, 2).transpose(0, 1)  # laid out in another way
    pair.step()
    pair.eager.step()
    assert not replayed[-1]
    pair.check()


def test_closures_and_schedulers(replayed: list[bool]) -> None:
    pair = Pair(optim.AdamW, lr=0.01)
    schedulers = [
        lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30) for optimizer in (pair.ours, pair.eager)
    ]
    for _ in range(10):
        pair.advance()
        for scheduler in schedulers:
            scheduler.step()
    assert all(replayed[-6:])  # with other betas on each
    assert pair.step(lambda: 3.5) == 3.5
    pair.eager.step(lambda: 3.5)
    pair.check()


def test_gradient_scaler(replayed: list[bool]) -> None:
    pair = Pair(optim.AdamW, lr=0.01, fused=True)
    pair.ours.step = pair.step
    pair.advance(5)
    scalers = [torch.amp.GradScaler("cpu", init_scale=4.0) for _ in range(2)]  # pyright: ignore
    for bad in (False, True, False):
        for scaler, optimizer, params in zip(scalers, (pair.ours, pair.eager), pair.params, strict=True):
            for param in params:
                param.grad = torch.full_like(param, float("inf") if bad else 3.0)
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        pair.check()
    assert not any(replayed[5:])
    pair.advance(2)
    assert replayed[-1]


def test_several_optimizers_of_one_function(replayed: list[bool]) -> None:
    pairs = [Pair(optim.AdamW, lr=0.01), Pair(optim.AdamW, lr=0.1, amsgrad=True), Pair(optim.SGD, lr=0.1)]

    @lampwork.compile
    def steps(optimizers: list[optim.Optimizer]) -> None:
        for optimizer in optimizers:
            optimizer.step()

    for _ in range(12):
        for pair in pairs:
            for mine, theirs in zip(*pair.params, strict=True):
                theirs.grad = torch.randn(theirs.shape)
                mine.grad = theirs.grad.clone()
            pair.eager.step()
        steps([pair.ours for pair in pairs])
        for pair in pairs:
            pair.check()
    assert all(replayed[-3:])


def test_steps_that_never_repeat_are_tried_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    remember = Replays._remember
    monkeypatch.setattr(Replays, "_remember", lambda self, *args: (tried.append(0), remember(self, *args))[1])
    pair = Pair(optim.SGD, lr=0.1)
    for _ in range(40):
        pair.params[0][5].grad = pair.params[0][5].detach()  # overlaps: there is no kernel for it
        pair.step()
    assert len(tried) <= 7


def test_nothing_is_kept_alive() -> None:
    param = nn.Parameter(torch.ones(4))
    optimizer = optim.AdamW([param])
    optimizer.step = lampwork.compile(optimizer.step)  # pyright: ignore
    for _ in range(6):
        param.grad = torch.ones(4)
        optimizer.step()
    gone = weakref.ref(optimizer), weakref.ref(param)
    del optimizer, param
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_watchers_notice_what_was_written() -> None:
    param = nn.Parameter(torch.ones(40))
    optimizer = optim.SGD([param], lr=0.1)
    step = lampwork.compile(optimizer.step)
    model = lampwork.compile(lambda x: (param.detach() * x).sum())
    for number in range(8):
        param.grad = torch.ones(40)
        version = param._version
        step()
        assert param._version > version
        torch.testing.assert_close(model(torch.ones(40)), torch.tensor(40 - 4.0 * (number + 1)))


def test_threads_step_optimizers_of_their_own() -> None:
    pairs = [Pair(optim.AdamW, lr=0.01) for _ in range(4)]
    large = [nn.Parameter(torch.zeros(50_000)) for _ in pairs]
    for pair, param in zip(pairs, large, strict=True):
        pair.ours.add_param_group({"params": [param], "lr": 1.0, "weight_decay": 0.0})
        param.grad = torch.ones(50_000)

    @lampwork.compile
    def steps(optimizer: optim.Optimizer) -> None:
        optimizer.step()

    def work(pair: Pair) -> None:
        for _ in range(50):
            steps(pair.ours)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for param in large:
        torch.testing.assert_close(param, torch.full((50_000,), -50.0), rtol=1e-3, atol=0)


# --- the tape -----------------------------------------------------------------------------------------------------


def test_a_tape_notes_arithmetic_and_answers() -> None:
    tape = Tape()
    rate, step = tape.float(0, 0.5), tape.count(0, 3.0)
    made: Any = -(rate / (1 - 0.9**step)) + abs(rate - 1)
    assert made.value == -(0.5 / (1 - 0.9**3)) + 0.5
    assert rate > 0.25 and not step <= 1 and rate == 0.5 and rate != 0
    names = [name for name, *_ in tape.instructions if name not in ("constant", "float", "count")]
    assert names == ["pow", "sub", "truediv", "neg", "sub", "abs", "add", "lt", "le", "eq", "eq"]
    count = len(tape.instructions)
    assert (rate - 1).place < count and len(tape.instructions) == count  # once


def refused() -> Generator[Callable[[Any], Any]]:
    yield float
    yield int
    yield hash
    yield lambda number: number + 2**60
    yield lambda number: (-number) ** 0.5
    yield lambda number: [1, 2][number]


@pytest.mark.parametrize("use", list(refused()))
def test_what_no_tape_can_do(use: Callable[[Any], Any]) -> None:
    with pytest.raises((Unrepeatable, TypeError)):
        use(Tape().float(0, 0.5))


def test_numbers_of_which_python_would_raise() -> None:
    pair = Pair(optim.AdamW, lr=0.01)
    pair.advance(5)
    pair.both(lambda optimizer, _: optimizer.param_groups[0].update(betas=(1.0, 0.9)))
    for step in (pair.step, pair.eager.step):
        with pytest.raises(ZeroDivisionError):
            step()
