"""lampwork.approximate: the budget, rule by rule and module by module, reports, undo, errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork import No
from lampwork.approximation import (
    ApproximationRule,
    HalfLinear,
    LowRankLinear,
    Statistics,
    bf16_weights,
    gelu_to_relu,
    low_rank,
    max_relative_difference,
    top1_disagreement,
)
from lampwork.errors import OptionError, PassError


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).eval()


class Scale:
    """Replaces linear layers by themselves with one more factor, by name."""

    name = "scale"
    calibrated = False

    def __init__(self, factors: dict[str, float]) -> None:
        self.factors = factors
        self.seen: list[str] = []

    def applies(self, name: str, module: nn.Module) -> bool:
        return name in self.factors

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module:
        assert statistics is None
        factor = next(f for n, f in self.factors.items() if self.owner.get_submodule(n) is module)
        return Times(module, factor)

    owner: nn.Module


class Times(nn.Module):
    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner = inner
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


def approximate(model: nn.Module, rules, **keywords):
    return lampwork.approximate(model, rules, measure_speed=False, **keywords)


def test_whole_rule_within_the_budget() -> None:
    model, x = build(), torch.randn(5, 8)
    with torch.no_grad():
        before = model(x)
        report = approximate(model, ["gelu-to-tanh"], calibration=x, budget=0.01)
        assert report.model is model and report.rules[0].kept == ("1", "3")
        want = float((model(x) - before).abs().max() / before.abs().max())
        assert report.error == pytest.approx(want) and 0 < want <= 0.01
        assert report.rules[0].error == report.rules[0].whole_error == report.error
        assert model[1].approximate == "tanh" and math.isnan(report.speedup)
        report.undo()
        report.undo()
        assert torch.equal(model(x), before) and model[1].approximate == "none"


def test_budget_is_for_all_rules_together_and_refused_rules_leave_no_trace() -> None:
    model, x = build(), torch.randn(5, 8)
    modules = dict(model.named_modules())
    report = approximate(model, [gelu_to_relu], calibration=x, budget=1e-6)
    assert dict(model.named_modules()) == modules
    rule = report.rules[0]
    assert rule.kept == () and report.error == 0.0 and rule.whole_error > 1e-6
    assert all("with it alone the error is" in r.reason for r in rule.refused)
    assert "refused: with it alone the error" in str(report) and "error 0 of a budget of 1e-06" in str(report)


def test_modules_least_harm_first() -> None:
    """Errors of factors in a linear chain are known: the product of those kept, less 1."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4))).eval()
    rule = Scale({"0": 1.5, "1": 1.04, "2": 1.01, "3": 1.07})
    rule.owner = model
    report = approximate(model, [rule], calibration=torch.randn(3, 4), budget=0.06)
    (result,) = report.rules
    assert result.whole_error == pytest.approx(1.5 * 1.04 * 1.01 * 1.07 - 1, rel=1e-4)
    assert result.kept == ("2", "1") and report.error == pytest.approx(1.04 * 1.01 - 1, rel=1e-4)
    reasons = {r.name: r.reason for r in result.refused}
    assert (
        reasons["3"] == "with it alone the error is 0.07" and reasons["0"] == "with it alone the error is 0.5"
    )
    again = Scale({"3": 1.03})
    again.owner = model
    report = approximate(model, [again], calibration=torch.randn(3, 4), budget=0.01)
    assert report.rules[0].kept == ()


def test_what_no_longer_fits_beside_the_others() -> None:
    first, second = Scale({"0": 1.04}), Scale({"1": 1.04})
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(2))).eval()
    first.owner = second.owner = model
    report = approximate(model, [first, second], calibration=torch.randn(3, 4), budget=0.05)
    assert [r.kept for r in report.rules] == [("0",), ()]
    assert report.rules[1].refused[0].reason == "with it alone the error is 0.0816"
    report.undo()
    both = Scale({"0": 1.04, "1": 1.03})
    both.owner = model
    report = approximate(model, [both], calibration=torch.randn(3, 4), budget=0.05)
    assert report.rules[0].kept == ("1",)
    assert report.rules[0].refused[0].reason == "with it the error is 0.0712"


def test_metric_and_several_sets_of_inputs() -> None:
    model = build()
    batches = [torch.randn(4, 8), (torch.randn(6, 8),), {"input": torch.randn(2, 8)}]
    calls: list[tuple[int, ...]] = []

    def metric(reference: Tensor, output: Tensor) -> float:
        calls.append(tuple(output.shape))
        return 0.25 if len(output) == 6 else 0.1

    report = approximate(model, ["gelu-to-relu"], calibration=batches, budget=0.3, metric=metric)
    assert report.error == 0.25 and set(calls) == {(4, 4), (6, 4), (2, 4)}


def test_errors_that_are_not_finite_are_refused() -> None:
    model = build()
    report = approximate(
        model, ["gelu-to-relu"], calibration=torch.randn(2, 8), budget=1e9, metric=lambda a, b: math.nan
    )
    assert report.rules[0].kept == () and report.rules[0].whole_error == math.inf


def test_metrics() -> None:
    a, b = torch.tensor([[1.0, 2.0], [4.0, 3.0]]), torch.tensor([[1.0, 2.0], [4.0, 5.0]])
    assert max_relative_difference({"x": a, "y": a[0]}, {"x": b, "y": b[0]}) == 0.5
    assert top1_disagreement((a,), (b,)) == 0.5 and top1_disagreement(a, a) == 0


def test_evaluation_mode_while_measuring_and_own_modes_after() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5)).train()
    model[2].eval()
    report = approximate(model, ["gelu-to-tanh"], calibration=torch.randn(3, 8), budget=0.01)
    assert report.rules[0].kept == ("1",)
    assert [m.training for m in model] == [True, True, False] and model.training


def test_modules_that_share_parameters_are_left_alone() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 8)
            self.decoder = nn.Linear(8, 10, bias=False)
            self.decoder.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.embedding(x))

    report = approximate(Tied(), ["bf16-weights"], calibration=torch.arange(5), budget=1.0)
    assert report.rules[0].refused[0].reason == "it shares parameters with 'embedding.weight'"


def test_rules_see_what_earlier_rules_made() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(32, 2) @ torch.randn(2, 32))
    calls = approximate(model, [low_rank(), "bf16-weights"], calibration=torch.randn(3, 32), budget=0.1)
    assert isinstance(model[0], LowRankLinear) and calls.rules[1].verdict == "no module for it"


def test_fine_tuning_lowers_the_error() -> None:
    model, x = build(), torch.randn(64, 8)
    teacher = build()
    teacher.load_state_dict(model.state_dict())
    report = approximate(
        model, ["gelu-to-relu", low_rank(rank=6), bf16_weights("bfloat16")], calibration=x, budget=10.0
    )
    assert [len(r.kept) for r in report.rules] == [2, 1, 2]
    assert {type(m) for m in model} == {HalfLinear, LowRankLinear, nn.ReLU}
    parameters = list(model.parameters())
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in parameters)
    copy = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(copy)
    target = teacher(x).detach()
    compiled = lampwork.compile(model.train())
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    losses: list[float] = []
    for _ in range(30):
        loss = (compiled(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0], losses


def test_compiled_models_and_speed() -> None:
    model, x = build(), torch.randn(5, 8)
    compiled = lampwork.compile(model)
    with torch.no_grad():
        compiled(x)
        report = lampwork.approximate(compiled, ["gelu-to-relu", "low-rank"], calibration=x, budget=10.0)
        torch.testing.assert_close(compiled(x), model(x))
    assert report.model is compiled and type(model[1]) is nn.ReLU
    assert report.speedup > 0 and min(report.seconds) > 0
    assert report.rules[0].speedup > 0 and report.rules[1].speedup == 1.0
    assert "compiled)" in str(report)
    report.undo()
    report = lampwork.approximate(model, ["gelu-to-relu"], calibration=x, budget=10.0, min_speedup=1e9)
    assert report.rules[0].kept == () and "the speed-up is" in report.rules[0].refused[0].reason
    assert type(model[1]) is nn.GELU and report.error == 0.0


def test_model_with_a_compiled_part() -> None:
    """Parts that are compiled are seen through, and statistics are taken of what runs eager."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()).eval(), torch.randn(20, 8)
    twin = nn.Sequential(*[nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()]).eval()
    twin.load_state_dict(model.state_dict())
    for i in (1, 2):
        model[i] = lampwork.compile(model[i])
    for m in (model, twin):
        report = approximate(m, ["layer-norm-to-affine", "gelu-to-tanh"], calibration=x, budget=99.0)
        assert [rule.kept for rule in report.rules] == [("1",), ("2",)]
    with torch.no_grad():
        assert torch.equal(model(x), twin(x))


def test_one_rule_needs_no_list() -> None:
    x = torch.randn(5, 8)
    assert approximate(build(), "gelu-to-tanh", calibration=x, budget=1.0).rules[0].rule == "gelu-to-tanh"
    assert approximate(build(), gelu_to_relu, calibration=x, budget=1.0).rules[0].rule == "gelu-to-relu"


class Failing:
    name = "failing"

    def __init__(self, where: str) -> None:
        self.where = where

    def applies(self, name: str, module: nn.Module) -> bool:
        if self.where == "applies":
            raise ZeroDivisionError("division")
        return isinstance(module, nn.GELU)

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        assert statistics is not None and statistics.count == 5
        if self.where == "replace":
            raise ZeroDivisionError("division")
        return No("I will not") if self.where == "no" else 3


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("applies", "'failing' failed on '0': ZeroDivisionError: division"),
        ("replace", "'failing' failed on '1': ZeroDivisionError: division"),
        ("result", "'failing' made int of '1', expected a module"),
    ],
)
def test_rules_that_fail_are_named_and_nothing_stays(where: str, message: str) -> None:
    model, x = build(), torch.randn(5, 8)
    modules = dict(model.named_modules())
    assert isinstance(Failing(where), ApproximationRule)
    with pytest.raises(PassError, match=message):
        approximate(
            model,
            ["bf16-weights", Failing(where)] if where != "applies" else [Failing(where)],
            calibration=x,
            budget=10.0,
        )
    assert dict(model.named_modules()) == modules


def test_rules_may_decline() -> None:
    report = approximate(build(), [Failing("no")], calibration=torch.randn(5, 8), budget=1.0)
    assert [r.reason for r in report.rules[0].refused] == ["I will not"] * 2


@pytest.mark.parametrize(
    ("rules", "keywords", "message"),
    [
        (["gelu"], {}, "unknown approximation 'gelu'"),
        ([low_rank], {}, r"call it to make the rule"),
        ([3], {}, "a rule has a name"),
        ([], {"calibration": []}, "holds no inputs"),
        ([], {"calibration": 3}, "holds no inputs, got int"),
        ([], {"budget": math.nan}, "budget is nan"),
        ([], {"budget": -1}, "budget is -1"),
        ([], {"budget": "1"}, "budget is '1'"),
        ([], {"min_speedup": 1.0}, "no speed is measured"),
    ],
)
def test_options(rules, keywords, message: str) -> None:
    given = {"calibration": torch.randn(2, 8), "budget": 1.0} | keywords
    with pytest.raises(OptionError, match=message):
        approximate(build(), rules, **given)
    with pytest.raises(OptionError, match="energy is 0"):
        low_rank(0)
    with pytest.raises(OptionError, match="rank is 0"):
        low_rank(rank=0)
    with pytest.raises(OptionError, match="compute is 'int8'"):
        bf16_weights("int8")
    with pytest.raises(OptionError, match="takes a module"):
        approximate(torch.relu, [], calibration=torch.ones(1), budget=1.0)
