"""Steps written as loops over parameters: their pointwise operators are put off, and done by few kernels."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

import lampwork
from lampwork import _C
from lampwork.codegen.llvm.isa.x86 import host_target
from lampwork.config import current
from lampwork.errors import LampworkError
from lampwork.optimizers import loops
from lampwork.optimizers.deferral import Deferral
from lampwork.optimizers.update import Updater, updater_for

SHAPES = [(8, 5), (3,), (4, 1, 3), (2, 3, 4), (7,), (1,), (0, 3), ()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parameters are worth it."""
    monkeypatch.setattr(loops, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr("lampwork.optimizers.pending._SLOWNESS", 1e6)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each kernel so far ran over."""
    found: list[int] = []

    def counting(*args: Any) -> None:
        found.append(len(args[4]))
        run_rows(*args)

    run_rows = _C.run_rows
    monkeypatch.setattr(_C, "run_rows", counting)
    return found


class Loop(optim.Optimizer):
    """A step that is a function of one parameter, its state and its group, called for one after the other."""

    def __init__(self, params: Any, each: Callable[..., Any], **options: Any) -> None:
        super().__init__(params, options)
        self.each = each

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                self.each(param, self.state[param], group)
        return loss


def lion(param: Any, state: Any, group: Any) -> None:
    grad = param.grad
    if len(state) == 0:
        state["m"] = torch.zeros_like(param)
    beta1, beta2 = group.get("betas", (0.9, 0.99))
    param.mul_(1 - group["lr"] * 0.01)
    update = state["m"].clone().mul_(beta1).add(grad, alpha=1 - beta1).sign_()
    param.add_(update, alpha=-group["lr"])
    state["m"].mul_(beta2).add_(grad, alpha=1 - beta2)


def adam(param: Any, state: Any, group: Any) -> None:
    grad = param.grad.data
    if group.get("maximize"):
        grad = -grad
    if "step" not in state:
        state["step"], state["m"], state["v"] = 0, torch.zeros_like(param.data), torch.zeros_like(param.data)
    state["step"] += 1
    step = state["step"]
    grad = grad.add(param.data, alpha=0.02)
    state["m"].mul_(0.9).add_(grad, alpha=0.1)
    state["v"].mul_(0.99).addcmul_(grad, grad, value=0.01)
    denom = (state["v"].sqrt() / math.sqrt(1 - 0.99**step)).add_(1e-8)
    param.data.addcdiv_(state["m"], denom, value=-group["lr"] / (1 - 0.9**step))


def adam_with_a_tensor(param: Any, state: Any, group: Any) -> None:
    if "step" not in state:
        state["step"], state["m"] = torch.tensor(0.0), torch.zeros_like(param)
        state["v"] = torch.zeros_like(param)
    state["step"] += 1
    correction = 1 - 0.9 ** state["step"]
    state["m"].lerp_(param.grad, 0.1)
    state["v"] = 0.99 * state["v"] + 0.01 * param.grad**2
    param -= group["lr"] * (state["m"] / correction) / (state["v"].sqrt() + 1e-8)


def operators(param: Any, state: Any, group: Any) -> None:
    grad = param.grad
    value = 2 - grad
    value = 1 / (value * value + 1.5) + 2**grad - grad / 3 + abs(grad) ** 0.5
    value[grad > 0.3] = 0.25
    value = torch.where(value < 0.1, grad, value.clamp(-2, 2)).exp().tanh()
    state["kept"] = torch.maximum(value, grad).mul(group["lr"])
    state["mask"] = grad.eq(0.0)
    param += state["kept"]
    param -= value.square().rsqrt().nan_to_num(0.0)


def foreach(param: Any, state: Any, group: Any) -> None:
    if not state:
        state["m"] = torch.zeros_like(param)
    params, grads, averages = [param], [param.grad], [state["m"]]
    torch._foreach_mul_(averages, 0.9)
    torch._foreach_addcmul_(averages, grads, grads, value=0.1)
    torch._foreach_add_(params, torch._foreach_sqrt(averages), alpha=-group["lr"])


def normed(param: Any, state: Any, group: Any) -> None:
    """The update depends on norms, one of them of what was just written, and on data."""
    grad = param.grad
    state["m"] = state.get("m", 0.0) + grad * 0.5
    scale = float(param.norm()) / (state["m"].norm().item() + 1.0)
    param.add_(state["m"], alpha=-group["lr"] * scale)
    if (param > 0.5).any():
        param.mul_(0.9)
    state["sum"] = param.sum()


RULES = [lion, adam, adam_with_a_tensor, operators, foreach, normed]


class Sides:
    """Parameters of many shapes, with an optimizer whose step is compiled, one in eager, and one in float64."""

    def __init__(
        self, make: Callable[..., optim.Optimizer], dtype: Any = torch.float32, shapes: Any = SHAPES
    ) -> None:
        self.numbers = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=self.numbers).to(dtype) for shape in shapes * 2]
        self.params = [
            [nn.Parameter(value.to(kind, copy=True)) for value in values]
            for kind in (dtype, dtype, torch.float64)
        ]
        self.optimizers = [make(params) for params in self.params]
        self.optimizers[0].step = lampwork.compile(self.optimizers[0].step)

    def step(self, count: int = 1, *, scale: float = 1.0) -> None:
        for _ in range(count):
            for rows in zip(*self.params, strict=True):
                grad = torch.randn(rows[0].shape, generator=self.numbers).mul(scale).to(rows[0].dtype)
                for param in rows:
                    param.grad = grad.to(param.dtype, copy=True)
            for optimizer in self.optimizers:
                optimizer.step()

    def check(self) -> None:
        """Ours is eager's up to the roundings of square roots, and as near to float64."""
        for ours, eager, truth in zip(*self.params, strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6, equal_nan=True)
            states = [
                opt.state[param] for opt, param in zip(self.optimizers, (ours, eager, truth), strict=True)
            ]
            assert states[0].keys() == states[1].keys()
            for key, value in states[0].items():
                assert type(value) is type(states[1][key])
                torch.testing.assert_close(value, states[1][key], equal_nan=True)
            torch.testing.assert_close(ours.double(), truth, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_eagers(rule: Any) -> None:
    sides = Sides(functools.partial(Loop, each=rule, lr=0.1))
    schedulers = [lr_scheduler.ExponentialLR(each, 0.9) for each in sides.optimizers]
    for _ in range(4):
        sides.step()
        for scheduler in schedulers:
            scheduler.step()
    sides.check()


@pytest.mark.parametrize("rule", [lion, adam, operators])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(rule: Any, dtype: torch.dtype) -> None:
    sides = Sides(functools.partial(Loop, each=rule, lr=0.1), dtype)
    sides.step(3)
    # Where eager has no vector left, it rounds sums in half precision otherwise.
    tolerance = 4 * torch.finfo(dtype).eps
    for ours, eager in zip(*sides.params[:2], strict=True):
        torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert ours.dtype is dtype


def test_states_in_single_precision_of_parameters_in_half() -> None:
    def mixed(param: Any, state: Any, group: Any) -> None:
        grad = param.grad.float()
        master = state.setdefault("master", param.detach().clone().float())
        master.add_(grad, alpha=-group["lr"])
        param.copy_(master.to(torch.bfloat16))

    sides = Sides(functools.partial(Loop, each=mixed, lr=0.1), torch.bfloat16)
    sides.step(3)
    for ours, eager in zip(*sides.params[:2], strict=True):
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_special_values(value: float) -> None:
    sides = Sides(functools.partial(Loop, each=adam, lr=0.1))
    sides.step()
    for params in sides.params:
        for param in params:
            if param.numel() > 1:
                param.data.flatten()[1:2].fill_(value)
                param.grad.flatten()[:1].fill_(value)  # pyright: ignore
    for optimizer in sides.optimizers:
        optimizer.step()
    sides.check()


def test_rows_alike_are_one_kernel(launches: list[int]) -> None:
    sides = Sides(functools.partial(Loop, each=lion, lr=0.1), shapes=[(5, 4), (7,), (2, 3, 3)])
    sides.step()
    assert launches == [6]
    sides.step()
    assert launches == [6, 6]


def test_nothing_is_compiled_for_other_numbers(launches: list[int]) -> None:
    sides = Sides(functools.partial(Loop, each=adam, lr=0.1), shapes=[(5, 4)])
    sides.step(2)
    before = updater_for(host_target(current())).compiled
    schedulers = [lr_scheduler.StepLR(each, 1, gamma=0.7) for each in sides.optimizers]
    for _ in range(6):
        sides.step()
        for scheduler in schedulers:
            scheduler.step()
    sides.check()
    assert updater_for(host_target(current())).compiled == before
    assert launches == [2] * 8


def test_lists_of_tensors_are_one_kernel(launches: list[int]) -> None:
    class Foreach(optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                params = [param for param in group["params"] if param.grad is not None]
                grads = [param.grad for param in params]
                averages = [self.state[param].setdefault("m", torch.zeros_like(param)) for param in params]
                torch._foreach_mul_(averages, 0.9)
                torch._foreach_add_(averages, grads, alpha=0.1)
                torch._foreach_addcdiv_(
                    params, averages, torch._foreach_add(torch._foreach_abs(grads), 1.0), -0.1
                )

    sides = Sides(lambda params: Foreach(params, {}), shapes=[(5, 4), (7,)])
    sides.step(2)
    sides.check()
    assert launches == [4, 4]


def test_parameters_of_other_layouts() -> None:
    def strided(values: Any) -> list[nn.Parameter]:
        made = [torch.randn(3, 4).t(), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)]
        return [nn.Parameter(value) for value in [*made, torch.randn(6, 6)[:, ::2]]]

    torch.manual_seed(0)
    sides = [strided(None), strided(None)]
    for ours, eager in zip(*sides, strict=True):
        ours.data.copy_(eager.data)
    optimizers = [Loop(side, lion, lr=0.1) for side in sides]
    optimizers[0].step = lampwork.compile(optimizers[0].step)
    for _ in range(3):
        for ours, eager in zip(*sides, strict=True):
            ours.grad = torch.randn(ours.shape)
            eager.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for ours, eager in zip(*sides, strict=True):
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()


def shared_memory() -> list[nn.Parameter]:
    flat = torch.linspace(-1, 1, 20)
    return [nn.Parameter(flat[:12]), nn.Parameter(flat[8:]), nn.Parameter(torch.ones(4))]


def tied() -> list[nn.Parameter]:
    first = nn.Parameter(torch.linspace(-1, 1, 6))
    return [first, nn.Parameter(torch.ones(3)), nn.Parameter(first.data)]


@pytest.mark.parametrize("make", [shared_memory, tied])
@pytest.mark.parametrize("rule", [lion, adam])
def test_parameters_that_share_memory(make: Callable[[], list[nn.Parameter]], rule: Any) -> None:
    results: list[list[Tensor]] = []
    for compiled in (True, False):
        params = make()
        optimizer = Loop(params, rule, lr=0.1)
        if compiled:
            optimizer.step = lampwork.compile(optimizer.step)
        for count in range(3):
            grad = torch.linspace(1, 2, 12) * (count + 1)
            for param in params:
                param.grad = grad[: param.numel()]  # of one memory, too
            optimizer.step()
        results.append([param.detach() for param in params])
    torch.testing.assert_close(*results)


def test_an_exception_leaves_what_eager_leaves() -> None:
    def failing(param: Any, state: Any, group: Any) -> None:
        lion(param, state, group)
        if param.shape == (7,):
            param.add_(torch.ones(8))

    sides = Sides(functools.partial(Loop, each=failing, lr=0.1), shapes=[(5, 4), (7,), (3,)])
    for _ in range(2):
        messages: list[str] = []
        for place, params in enumerate(sides.params):
            for param in params:
                param.grad = torch.ones_like(param)
            with pytest.raises(RuntimeError) as raised:
                sides.optimizers[place].step()
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
        assert not torch._C._len_torch_function_stack()
    sides.check()


def test_closures_run_as_they_would() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    results: list[Any] = []
    for compiled in (True, False):
        network = copy.deepcopy(model)
        optimizer = Loop(network.parameters(), adam, lr=0.01)
        if compiled:
            network = lampwork.compile(network)
            optimizer.step = lampwork.compile(optimizer.step)
        depths: list[int] = []

        def closure(network: Any = network, optimizer: Any = optimizer, depths: Any = depths) -> Tensor:
            depths.append(torch._C._len_torch_function_stack())
            optimizer.zero_grad()
            loss = network(torch.ones(3, 6)).square().sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        results.append((losses, *[param.detach() for param in network.parameters()]))
        assert depths == [0, 0, 0]
    torch.testing.assert_close(*results)


def test_native_code_that_no_mode_sees_finds_memory_written() -> None:
    seen: list[list[float]] = [[], []]

    def watched(param: Any, state: Any, group: Any) -> None:
        param.mul_(0.5)
        norm = _C.total_norm([param.data], 2.0)
        group["seen"].append(norm.item())
        param.add_(param.grad, alpha=-group["lr"])
        view = param.detach().numpy()
        param.mul_(3.0)
        group["seen"].append(float(view.sum()))

    params = [[nn.Parameter(torch.linspace(1, 2, 9)) for _ in range(3)] for _ in range(2)]
    for side, numbers in zip(params, seen, strict=True):
        optimizer = Loop(side, watched, lr=0.1, seen=numbers)
        if numbers is seen[0]:
            optimizer.step = lampwork.compile(optimizer.step)
        for param in side:
            param.grad = torch.ones(9)
        optimizer.step()
    torch.testing.assert_close(*seen)
    torch.testing.assert_close(*params)


def test_calls_in_comprehensions_and_lambdas_ask_too() -> None:
    results: list[Any] = []
    for compiled in (True, False):
        found: list[Any] = []

        class Gathering(optim.Optimizer):
            @torch.no_grad()
            def step(self, closure: Any = None, found: Any = found) -> Any:
                params = self.param_groups[0]["params"]
                for param in params:
                    param.mul_(2.0).sub_(param.grad)
                norms = [_C.total_norm([param.data], 2.0) for param in params]
                for param in params:
                    param.mul_(2.0)
                found += [*norms, *map(lambda param: _C.total_norm([param.data], 2.0), params)]
                for param in params:
                    param.mul_(2.0)
                found += sorted(
                    [param.data for param in params], key=lambda each: _C.total_norm([each], 2.0).item()
                )

        params = [nn.Parameter(torch.linspace(1, size, size)) for size in (5, 3, 4)]
        optimizer = Gathering(params, {})
        if compiled:
            optimizer.step = lampwork.compile(optimizer.step)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        results.append(found)
    torch.testing.assert_close(*results)


def test_results_that_are_kept_are_computed() -> None:
    kept: list[Tensor] = []

    def keeping(param: Any, state: Any, group: Any) -> None:
        value = param.grad * 2
        kept.append(value + 1)
        state["view"] = value.view(-1)
        value.add_(1)
        param.sub_(kept[-1])
        kept[-1].mul_(3)
        state["alias"] = (param + 1).detach()

    sides = Sides(functools.partial(Loop, each=keeping))
    sides.step(2)
    sides.check()
    ours, eager = kept[: len(kept) // 6], kept[len(kept) // 6 : len(kept) // 3]
    torch.testing.assert_close(ours, eager)


def test_hooks_profiles_and_deep_copies() -> None:
    sides = Sides(functools.partial(Loop, each=lion, lr=0.1))
    called: list[str] = []
    sides.optimizers[0].register_step_pre_hook(lambda *_: called.append("pre"))
    sides.optimizers[0].register_step_post_hook(lambda *_: called.append("post"))
    sides.step()
    with torch.profiler.profile() as profile:
        sides.step()
    assert called == ["pre", "post"] * 2
    assert "Optimizer.step#Loop.step" in [event.key for event in profile.key_averages()]
    state = sides.optimizers[1].state_dict()
    assert sides.optimizers[0].state_dict().keys() == state.keys()
    sides.optimizers[0].load_state_dict(copy.deepcopy(state))
    sides.step(2)
    sides.check()
    twin = copy.deepcopy(sides.optimizers[0])
    assert "step" not in vars(twin) and "step" not in vars(pickle.loads(pickle.dumps(twin)))


def test_a_step_that_is_compiled_twice_runs_hooks_once() -> None:
    sides = Sides(functools.partial(Loop, each=lion, lr=0.1))
    called: list[str] = []
    sides.optimizers[0].register_step_pre_hook(lambda *_: called.append("pre"))
    sides.optimizers[0].step = lampwork.compile(sides.optimizers[0].step)
    sides.step(2)
    assert called == ["pre", "pre"]
    sides.check()


def test_a_base_class_does_its_step_by_its_own_kernel(launches: list[int]) -> None:
    class Centered(optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:  # pyright: ignore
            for param in self.param_groups[0]["params"]:
                param.grad.mul_(0.5).add_(param, alpha=0.1)
            return super().step(closure)

    sides = Sides(lambda params: Centered(params, lr=0.1, momentum=0.9), shapes=[(5, 4), (7,)])
    called: list[list[str]] = [[], []]
    for optimizer, names in zip(sides.optimizers, called, strict=False):
        optimizer.register_step_pre_hook(lambda *_, names=names: names.append("pre"))
    sides.step(3)
    sides.check()
    assert launches[:2] == [4, 4] and called[0] == called[1]


def test_a_function_with_a_whole_step(launches: list[int]) -> None:
    def train(model: nn.Module, optimizer: optim.Optimizer, batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    models = model, copy.deepcopy(model)
    optimizers = [Loop(each.parameters(), adam, lr=0.01) for each in models]
    functions = lampwork.compile(train), train
    for _ in range(4):
        batch = torch.randn(5, 6)
        pairs = zip(functions, models, optimizers, strict=True)
        torch.testing.assert_close(*[function(each, opt, batch) for function, each, opt in pairs])
    torch.testing.assert_close(*[list(each.parameters()) for each in models])
    assert launches == [4] * 4


def test_scaled_gradients() -> None:
    sides = Sides(functools.partial(Loop, each=lion, lr=0.1), shapes=[(5, 4)])
    scalers = [torch.amp.GradScaler("cpu", init_scale=16.0) for _ in sides.optimizers]
    for place in range(4):
        for params, optimizer, scaler in zip(sides.params, sides.optimizers, scalers, strict=True):
            optimizer.zero_grad()
            factor = math.inf if place == 2 else 1.0
            loss = sum((param * factor).square().sum() for param in params)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    sides.check()


def test_modes_see_each_operator() -> None:
    seen: list[str] = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    sides = Sides(functools.partial(Loop, each=lion, lr=0.1), shapes=[(3,)])
    with Watching():
        sides.step()
    assert seen.count("sign_") == 6
    with lampwork.set_stance("force_eager"):
        sides.step()
    sides.check()


@pytest.mark.parametrize(
    "cls", [optim.Rprop, optim.NAdam, optim.ASGD, optim.Adafactor, optim.SparseAdam, optim.LBFGS, optim.Muon]
)
def test_torchs_own(cls: Any) -> None:
    shapes = [(5, 4), (4, 6)] if cls is optim.Muon else SHAPES[:-2]
    sides = Sides(lambda params: cls(params, lr=0.01), shapes=shapes)
    for _ in range(4):
        for rows in zip(*sides.params, strict=True):
            grad = torch.randn(rows[0].shape, generator=sides.numbers)
            for param in rows:
                param.grad = (
                    grad.to(param.dtype).to_sparse()
                    if cls is optim.SparseAdam
                    else grad.to(param.dtype, copy=True)
                )
        for optimizer in sides.optimizers:
            optimizer.step(*([lambda: torch.ones(())] if cls is optim.LBFGS else []))
    for ours, eager in zip(*sides.params[:2], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-6)


def test_gradients_that_flow_are_not_put_off() -> None:
    deferral = Deferral(updater_for(host_target(current())))
    weight = torch.ones(4, requires_grad=True)
    with deferral:
        loss = (weight * 2).sum()
    assert loss.requires_grad


def test_a_step_that_does_not_pay_is_left_to_eager(
    monkeypatch: pytest.MonkeyPatch, launches: list[int]
) -> None:
    monkeypatch.setattr("lampwork.optimizers.pending._SLOWNESS", 0.0)
    sides = Sides(functools.partial(Loop, each=lion, lr=0.1), shapes=[(5, 4)])
    sides.step(3)
    sides.check()
    assert launches == [2]


def test_zeros_of_both_signs_are_two_numbers() -> None:
    class Signed(optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for place, param in enumerate(self.param_groups[0]["params"]):
                param.copy_(param.grad).mul_(-0.0 if place % 2 else 0.0)

    sides = Sides(lambda params: Signed(params, {}), shapes=[(4,), (5,), (6,)])
    sides.step()
    for ours, eager in zip(*sides.params[:2], strict=True):
        assert torch.equal(ours.signbit(), eager.signbit())


def test_a_kernel_that_fails_leaves_what_eager_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise LampworkError("no kernel")

    sides = Sides(functools.partial(Loop, each=lion, lr=0.1), shapes=[(5, 4), (7,)])
    with monkeypatch.context() as patch:
        patch.setattr(Updater, "kernel_of", fails)
        with pytest.raises(LampworkError):
            sides.step()
    for optimizer in sides.optimizers[1:]:
        optimizer.step()
    sides.check()
