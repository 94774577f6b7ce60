"""lampwork.quantize: the layers, reports, budgets, static scales, saving and loading, errors."""

from __future__ import annotations

import copy
import math
import os
import random

import pytest
import torch
from instruction_sets import HERE
from torch import Tensor, nn

import lampwork
from lampwork.approximation import Int8Linear, int8, top1_disagreement
from lampwork.errors import OptionError

SCHEMES = ("dynamic", "static", None)
SEEDS = range(int(os.environ.get("LAMPWORK_FUZZ", "25")))


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 40), nn.GELU(), nn.Linear(40, 5)).eval()


def inputs(rows: int = 16) -> Tensor:
    return torch.randn(rows, 24, generator=torch.Generator().manual_seed(1))


def layer(features: int, outputs: int, scheme: str | None, x: Tensor, bias: bool = True) -> Int8Linear:
    model = nn.Sequential(nn.Linear(features, outputs, bias=bias))
    made = lampwork.quantize(model, x, activations=scheme).model[0]  # type: ignore[arg-type,index]
    assert isinstance(made, Int8Linear)
    return made


def exact(quantized: Int8Linear, x: Tensor) -> Tensor:
    """What the layer computes, in float64 and int64 but for the rounding of x."""
    wide = quantized.weight.double()
    bias = 0 if quantized.bias is None else quantized.bias.double()
    rows = x.double()
    if quantized.activations is not None:
        step = quantized.input_scale
        if step is None:
            step = x.float().abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        rows = (x.float() / step).round().clamp(-127, 127).double() * step
    return rows @ (wide * quantized.scale.double()[:, None]).t() + bias


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("isa", HERE)
def test_a_layer_computes_what_it_says(scheme: str | None, isa: str) -> None:
    x = torch.randn(3, 7, 50, generator=torch.Generator().manual_seed(0))
    quantized = layer(50, 33, scheme, x)
    wanted = exact(quantized, x)
    compiled = lampwork.compile(quantized, options={"isa": isa})
    for y in (quantized(x), compiled(x)):
        assert y.dtype is torch.float32
        assert ((y - wanted).abs() <= 2e-6 * wanted.abs().max()).all()
    if scheme is not None:
        assert compiled(x).equal(quantized(x))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_models(scheme: str | None, dtype: torch.dtype) -> None:
    model, x = build().to(dtype), inputs().to(dtype)
    before = model(x)
    report = lampwork.quantize(model, x, activations=scheme)  # type: ignore[arg-type]
    for fn in (model, lampwork.compile(model)):
        assert fn(x).dtype is dtype
        assert (fn(x) - before).abs().max() <= 0.05 * before.abs().max()
    assert report.output is not None and report.output.cosine > 0.99


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_and_single_rows(scheme: str | None) -> None:
    x = torch.zeros(3, 24)
    x[1] = inputs(1)
    quantized = layer(24, 9, scheme, x)
    compiled = lampwork.compile(quantized)
    for rows in (x, x[:1], x[1], x[:0]):
        assert compiled(rows).shape == (*rows.shape[:-1], 9)
        torch.testing.assert_close(compiled(rows), quantized(rows))
    assert quantized(x)[0].equal(quantized.bias)


def test_single_rows_of_any_stride() -> None:
    """Between single rows every stride is right, and some that oneDNN does not take."""
    for scheme in SCHEMES:
        quantized = layer(24, 9, scheme, inputs())
        for x in (inputs(1).t().contiguous().t(), inputs(1).as_strided((1, 24), (0, 1)), inputs(2)[:1]):
            torch.testing.assert_close(quantized(x).double(), exact(quantized, x))
            torch.testing.assert_close(lampwork.compile(quantized)(x), quantized(x))


def test_static_scales_saturate() -> None:
    x = inputs()
    quantized = layer(24, 9, "static", x)
    torch.testing.assert_close(quantized(x * 100), exact(quantized, x * 100).float())
    torch.testing.assert_close(lampwork.compile(quantized)(x * 100), quantized(x * 100))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    x = inputs()
    quantized = layer(24, 9, "dynamic", x)
    wanted = quantized(x)
    x[3, 2] = value
    for fn in (quantized, lampwork.compile(quantized)):
        y = fn(x)
        assert not y[3].isfinite().any()
        others = torch.arange(16) != 3
        assert y[others].equal(wanted[others])


def test_open_sizes_and_threads() -> None:
    model = build()
    lampwork.quantize(model)
    compiled = lampwork.compile(model, dynamic=True)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (1, 2, 5, 17, 300):
                torch.testing.assert_close(compiled(inputs(rows)), model(inputs(rows)), rtol=1e-2, atol=1e-2)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_layers_fuzz(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    features, outputs = (pick.choice((2, 3, 4, 5, 16, 31, 48, 64, 97, 130)) for _ in range(2))
    shape = [pick.choice((1, 2, 3, 8, 17, 33)) for _ in range(pick.randint(0, 3))]
    x = torch.randn(*shape, features) * 10.0 ** pick.randint(-6, 6)
    if pick.random() < 0.3 and shape:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    scheme = pick.choice(SCHEMES)
    quantized = layer(features, outputs, scheme, x, bias=pick.random() < 0.7)
    model = nn.Sequential(
        quantized, pick.choice((nn.GELU(), nn.ReLU(), nn.LayerNorm(outputs), nn.Identity()))
    )
    y = lampwork.compile(model, options={"isa": pick.choice(HERE)})(x)
    torch.testing.assert_close(
        quantized(x).double(), exact(quantized, x), rtol=1e-4, atol=1e-5 * float(x.abs().max())
    )
    torch.testing.assert_close(
        y, model(x), rtol=1e-4, atol=1e-5 * max(1.0, float(model(x).detach().abs().max()))
    )


# --- reports and budgets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_report_is_what_one_measures(scheme: str | None) -> None:
    model, x = build(), inputs()
    original = copy.deepcopy(model)
    report = lampwork.quantize(model, x, activations=scheme)  # type: ignore[arg-type]
    assert report.model is model and [each.name for each in report.layers] == ["0", "2", "4"]
    assert all(isinstance(model[i], Int8Linear) for i in (0, 2, 4))
    a, b = (fn(x).detach().double().flatten() for fn in (original, model))
    assert report.output is not None
    assert report.output.max_error == pytest.approx(float((a - b).abs().max()))
    assert (
        report.output.relative
        == report.error
        == pytest.approx(report.output.max_error / float(a.abs().max()))
    )
    assert report.output.cosine == pytest.approx(float(torch.cosine_similarity(a, b, 0)))
    assert report.output.top1 == 1 - top1_disagreement(original(x), model(x))
    hidden = original[:2](x)
    second = report.layers[1]
    error = float((original[2](hidden) - model[2](hidden)).abs().max())
    assert second.max_error == pytest.approx(error, rel=1e-4)
    assert 0.99 < second.cosine <= 1
    before, after = report.weight_bytes
    assert before == 4 * (24 * 40 + 40 + 40 * 40 + 40 + 40 * 5 + 5)
    assert after < before / 2
    text = str(report)
    assert "top-1 agreement" in text and "max error" in text.splitlines()[0]


def test_without_calibration_there_are_no_errors() -> None:
    report = lampwork.quantize(build())
    assert report.output is None and math.isnan(report.error) and math.isnan(report.layers[0].cosine)
    assert "-" in str(report)


def test_the_worst_set_counts() -> None:
    model = build()
    sets = [inputs(), inputs() * 3, inputs(1)]
    alone = [lampwork.quantize(copy.deepcopy(model), [each]) for each in sets]
    together = lampwork.quantize(model, sets)
    assert together.error == max(each.error for each in alone)
    assert together.output is not None
    assert together.output.cosine == min(each.output.cosine for each in alone if each.output is not None)


def test_a_budget_leaves_layers_as_they_are() -> None:
    model, x = build(), inputs()
    whole = lampwork.quantize(copy.deepcopy(model), x)
    part = lampwork.quantize(model, x, budget=whole.error * 0.8)
    assert part.error <= whole.error * 0.8
    assert 0 < len(part.layers) < 3 and len(part.layers) + len(part.refused) == 3
    assert all("the error is" in no.reason for no in part.refused)
    assert [type(model[i]) for i in (0, 2, 4)].count(nn.Linear) == len(part.refused)
    none = lampwork.quantize(build(), x, budget=0)
    assert not none.layers and none.error == 0


def test_undo_and_modes() -> None:
    model, x = build().train(), inputs()
    old = model[0]
    before = {id(p) for p in model.parameters()}
    report = lampwork.quantize(model, x)
    assert all(module.training for module in model.modules())
    report.undo()
    report.undo()
    assert model[0] is old and {id(p) for p in model.parameters()} == before


def test_the_filter_chooses() -> None:
    model = build()
    report = lampwork.quantize(model, filter_fn=lambda module, name: name != "4")
    assert [each.name for each in report.layers] == ["0", "2"] and type(model[4]) is nn.Linear


def test_shared_weights_stay_with_the_others() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(30, 8)
            self.head = nn.Linear(8, 30, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids))

    model = Tied()
    report = lampwork.quantize(model, torch.arange(30))
    assert isinstance(model.head, Int8Linear) and model.table.weight.dtype is torch.float32
    assert report.error < 0.05


def test_hooks_and_compiled_models_follow() -> None:
    model, x = build(), inputs()
    compiled = lampwork.compile(model)
    before = compiled(x)
    lampwork.quantize(compiled, x)
    assert isinstance(model[0], Int8Linear)
    assert not compiled(x).equal(before)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_saving_and_loading(scheme: str | None) -> None:
    model, x = build(), inputs()
    lampwork.quantize(model, x, activations=scheme)  # type: ignore[arg-type]
    state = copy.deepcopy(model.state_dict())
    assert state["0.weight"].dtype is torch.int8
    assert ("0.input_scale" in state) == (scheme == "static")
    torch.manual_seed(7)
    other = nn.Sequential(*(type(m)(*_sizes(m)) if isinstance(m, nn.Linear) else m for m in build()))
    lampwork.quantize(other, inputs(3), activations=scheme)  # type: ignore[arg-type]
    compiled = lampwork.compile(other)
    compiled(x)
    other.load_state_dict(state)
    assert other(x).equal(model(x))
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)


def _sizes(linear: nn.Linear) -> tuple[int, int]:
    return linear.in_features, linear.out_features


def test_gradients_reach_x_where_it_is_not_rounded() -> None:
    x = inputs().requires_grad_()
    assert not layer(24, 5, "dynamic", inputs())(x).requires_grad
    kept = layer(24, 5, None, inputs())
    kept(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0], (kept.weight.float() * kept.scale[:, None]).sum(0))


def test_a_rule_for_approximate() -> None:
    model, x = build(), inputs()
    report = lampwork.approximate(model, int8(), calibration=x, budget=0.1, measure_speed=False)
    assert report.rules[0].rule == "int8-dynamic" and len(report.rules[0].kept) == 3


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_a_filter_raises_is_the_callers() -> None:
    model = build()
    with pytest.raises(ZeroDivisionError):
        lampwork.quantize(model, filter_fn=lambda module, name: bool(1 // 0))
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("weights is 'int4', expected \"int8\"", {"weights": "int4"}),
        ("activations is 'int8'", {"activations": "int8"}),
        ('activations="static" without calibration', {"activations": "static"}),
        ("budget without calibration", {"budget": 0.1}),
        ("budget is -1, expected a number from 0 on", {"budget": -1, "calibration": inputs()}),
        ("metric is 3, expected a function", {"metric": 3}),
        ("filter_fn is 3, expected a function", {"filter_fn": 3}),
        ("calibration holds no inputs, got int", {"calibration": 3}),
        ("calibration holds no inputs, got list", {"calibration": []}),
        ("calibration does not fit the model, which raised RuntimeError", {"calibration": torch.zeros(2, 3)}),
        (
            "set 1 of calibration does not fit the model, which raised TypeError",
            {"calibration": [inputs(), ()]},
        ),
        ("filter_fn takes no linear layer", {"filter_fn": lambda module, name: False}),
    ],
)
def test_errors_name_cause_and_option(message: str, options: dict[str, object]) -> None:
    model = build()
    with pytest.raises(OptionError) as raised:
        lampwork.quantize(model, **options)  # type: ignore[arg-type]
    assert message in str(raised.value) and "fix:" in str(raised.value)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    ("message", "model"),
    [
        ("quantize() takes a module, got function", build),
        ("ReLU has no linear layer or convolution to quantize", nn.ReLU()),
        ("pass nn.Sequential(layer)", nn.Linear(3, 4)),
        ("of '0': 3 channels are no whole words of int8", nn.Sequential(nn.Conv2d(3, 3, 3))),
        ("of '0': its weight is torch.float64", nn.Sequential(nn.Linear(3, 4).double())),
        ("of '0': its weight is empty", nn.Sequential(nn.Linear(3, 0))),
        ("of '0': it has one input", nn.Sequential(nn.Linear(1, 3))),
    ],
)
def test_models_without_a_layer(message: str, model: nn.Module) -> None:
    with pytest.raises(OptionError) as raised:
        lampwork.quantize(model)
    assert message in str(raised.value)


def test_layers_that_calibration_does_not_reach() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    report = lampwork.quantize(Branch(), torch.randn(2, 4), activations="static")
    assert [(no.name, no.reason) for no in report.refused] == [
        ("idle", "the calibration inputs do not reach it")
    ]
    with pytest.raises(OptionError, match="not finite"):
        lampwork.quantize(Branch(), torch.full((2, 4), math.nan), activations="static")
