"""verify="numeric": rewrites and passes that change results are refused, by name; right ones are not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, fx

import lampwork
from lampwork.config import Config
from lampwork.errors import LampworkWarning, NumericError, NumericPassError, OptionError
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import registry
from lampwork.testing import check_rewrite
from lampwork.transforms.pipeline import run_passes

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    yield
    for item in registry().all():
        item.unregister()


X = torch.randn(3, 4)
NUMERIC = {"verify": "numeric"}


def program(x: Tensor) -> Tensor:
    return torch.tanh(torch.sin(x) * 0.5) + 1


def test_a_wrong_rewrite_is_refused_and_named() -> None:
    wrong = lampwork.rewrite("tanh(x)", "mul(x, 1.001)", name="wrong")
    right = lampwork.rewrite("mul(sin(x), 0.5)", "div(sin(x), 2.0)", name="right")
    with pytest.raises(
        NumericError, match="rewrite wrong .*at tanh changes results: error .* largest error"
    ) as raised:
        lampwork.compile(program, options=NUMERIC)(X)
    assert raised.value.location is not None
    assert raised.value.location.line == program.__code__.co_firstlineno + 1
    compiled = lampwork.compile(program, options={**NUMERIC, "strict": False})
    with pytest.warns(LampworkWarning, match="goes on without it.*LW311.*rewrite wrong") as caught:
        assert torch.allclose(compiled(X), program(X))
    assert len(caught) == 1 and wrong.hits == 0 and right.hits >= 1
    loose = lampwork.compile(program)
    assert not torch.allclose(loose(X), program(X), atol=1e-5), "else it is not looked at"


@pytest.mark.parametrize(
    "pattern, replacement",
    [
        ("add(x, 1)", "add(x, 1.00001)"),
        ("mul(sin(x), 0.5)", "mul(x, 0.5)"),
        ("sin(x)", "neg(sin(x))"),
        ("tanh(x)", "div(x, abs(x))"),
    ],
)
def test_small_and_large_differences_are_seen(pattern: str, replacement: str) -> None:
    lampwork.rewrite(pattern, replacement, name="wrong")
    with pytest.raises(NumericError, match="rewrite wrong"):
        lampwork.compile(program, options=NUMERIC)(X)


def test_differences_of_rounding_are_not() -> None:
    lampwork.rewrite("mul(sin(x), 0.5)", "sub(sin(x), div(sin(x), 2.0))", name="right")
    lampwork.rewrite("tanh(x)", "sub(mul(2.0, sigmoid(mul(x, 2.0))), 1.0)", name="formula")
    compiled = lampwork.compile(program, options=NUMERIC)
    assert torch.allclose(compiled(X), program(X), atol=1e-6)
    assert [r.hits for r in lampwork.rewrites()] == [1, 1]


def test_what_holds_for_what_the_graph_computes_is_accepted() -> None:
    """abs(x) is not x, but where x is an exponential it is: samples for the inputs decide."""

    def check(match):
        return match["x"].target is aten.exp.default

    fine = lampwork.rewrite("abs(x)", "x", name="fine", check=check)
    compiled = lampwork.compile(lambda x: x.exp().abs() + 1, options=NUMERIC)
    assert torch.allclose(compiled(X), X.exp() + 1) and fine.hits == 1
    lampwork.rewrite("abs(x)", "x", name="fine")
    with pytest.raises(NumericError, match="rewrite fine"):
        lampwork.compile(lambda x: x.sin().abs() + 1, options=NUMERIC)(X)


def test_integers_and_masks() -> None:
    lampwork.rewrite("gt(x, 0)", "ge(x, 0)", name="wrong")
    with pytest.raises(NumericError, match="elements differ"):
        lampwork.compile(lambda x: (x > 0).sum(), options=NUMERIC)(torch.arange(8) - 4)


def test_a_wrong_pass_is_undone_and_named() -> None:
    def half(graph: fx.Graph, ctx: PassContext) -> None:
        for node in graph.nodes:
            if node.target is aten.mul.Tensor:
                node.args = (node.args[0], 0.25)

    lampwork.register_pass(half, after="algebra")
    with pytest.raises(NumericPassError, match="pass half changes results"):
        lampwork.compile(program, options=NUMERIC)(X)
    compiled = lampwork.compile(program, options={**NUMERIC, "strict": False})
    with pytest.warns(LampworkWarning, match="goes on without it.*pass half"):
        assert torch.allclose(compiled(X), program(X))
    assert "0.25" not in compiled.stages.optimized


def test_what_cannot_be_verified_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lampwork.rewrite("tanh(x)", "sub(mul(2.0, sigmoid(mul(x, 2.0))), 1.0)", name="formula")

    def noisy(x: Tensor) -> Tensor:
        return torch.tanh(torch.rand_like(x) + x)

    compiled = lampwork.compile(noisy, options={**NUMERIC, "logs": "passes"})
    torch.manual_seed(1)
    got = compiled(X)
    torch.manual_seed(1)
    assert torch.allclose(got, noisy(X), atol=1e-6)
    err = capsys.readouterr().err
    assert "not verified" in err and "is random or has an effect" in err


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        self.out = torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        q, k, v = (part(x).view(*x.shape[:2], 2, 8).transpose(1, 2) for part in self.qkv)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        h = self.norm(x)
        return h * 0.5 * (1 + torch.erf(h / 2**0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_rewrites_of_the_tree_pass(dtype: torch.dtype, dynamic: bool) -> None:
    model = Block().eval().to(dtype)
    ids = torch.randint(0, 50, (2, 7))
    compiled = lampwork.compile(model, options=NUMERIC, dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        want, got = model(ids), compiled(ids)
    assert torch.allclose(got.double(), want.double(), atol=5e-2 if dtype is torch.bfloat16 else 1e-5)


def test_convolutions_and_batch_norms_pass() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 4),
    ).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        compiled = lampwork.compile(model, options=NUMERIC)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)


def test_the_option_has_levels() -> None:
    assert [Config(verify=v).verify for v in ("", False, True, "graph", "numeric")] == [
        "",
        "",
        "graph",
        "graph",
        "numeric",
    ]
    with pytest.raises(OptionError, match="option 'verify' takes"):
        Config(verify="much")


def test_counts_of_what_was_checked() -> None:
    lampwork.rewrite("tanh(x)", "sub(mul(2.0, sigmoid(mul(x, 2.0))), 1.0)", name="formula")
    compiled = lampwork.compile(program)
    compiled(X)
    graph = lampwork.compile(program, options={"passes": "-rewrites"})
    graph(X)
    ctx = PassContext.of(Config(verify="numeric", strict=True))
    from lampwork.graph.copying import copy_graph

    run_passes(copy_graph(graph.stages.aten), ctx.config, ctx=ctx)
    assert ctx.numeric is not None and ctx.numeric.checked >= 2 and not ctx.numeric.unverified


# --- approximations on purpose ----------------------------------------------------------------------------------------


ROUGH = ("tanh(x)", "sub(mul(2.0, sigmoid(mul(x, 2.02))), 1.0)")  # tanh(1.01 * x)


def test_a_tolerance_accepts_what_it_says() -> None:
    def shifted(x: Tensor) -> Tensor:
        return torch.tanh(x) + 1

    rough = lampwork.rewrite(*ROUGH, name="rough", tolerance=0.02)
    compiled = lampwork.compile(shifted, backend="eager", options=NUMERIC)
    assert torch.allclose(compiled(X), torch.tanh(1.01 * X) + 1) and rough.hits == 1
    (row,) = lampwork.rewrites()
    assert row.tolerance == 0.02 and "tolerance" in str(lampwork.rewrites()).splitlines()[0]
    fine = lampwork.rewrite(*ROUGH, name="rough", tolerance=0.0001)
    message = "rewrite rough .*changes results: error .*beyond its tolerance of 0.0001"
    with pytest.raises(NumericError, match=message) as raised:
        lampwork.compile(shifted, backend="eager", options=NUMERIC)(X)
    assert "tolerance=" in raised.value.fix and fine.hits == 0


def test_a_tolerance_is_measured_on_the_size_of_results() -> None:
    """1 % of what is large is much, of what is small is little."""
    for scale in (1e-2, 1e4):
        program = lambda x, s=scale: (torch.sin(x) * s).neg()  # noqa: E731
        for tolerance, fits in ((0.011, True), (0.009, False)):
            lampwork.rewrite(
                "neg(mul(x, s:number))", "mul(mul(x, s), -1.01)", name="mine", tolerance=tolerance
            )
            compiled = lampwork.compile(program, backend="eager", options=NUMERIC)
            if fits:
                torch.testing.assert_close(compiled(X), -1.01 * scale * X.sin())
            else:
                with pytest.raises(NumericError, match="mine"):
                    compiled(X)


def test_the_others_are_held_to_rounding_still() -> None:
    @lampwork.rewrite
    class Rough:
        tolerance = 0.02

        def pattern(x: Tensor):
            return torch.tanh(x)

        def replacement(x):
            return 2 * torch.sigmoid(2.02 * x) - 1

    wrong = lampwork.rewrite("sin(x)", "mul(x, 1.001)", name="wrong")
    with pytest.raises(NumericError, match="rewrite wrong"):
        lampwork.compile(program, backend="eager", options=NUMERIC)(X)
    wrong.unregister()

    @lampwork.register_pass(after="algebra")
    def shifts(graph: fx.Graph, ctx: PassContext) -> None:
        for node in graph.nodes:
            if node.target is aten.add.Tensor:
                node.args = (node.args[0], node.args[1] + 1e-3)

    with pytest.raises(NumericPassError, match="pass shifts"):
        lampwork.compile(program, backend="eager", options=NUMERIC)(X)
    shifts.unregister()
    lampwork.compile(program, backend="eager", options=NUMERIC)(X)
    assert Rough.hits == 1 and Rough.rule.tolerance == 0.02


def test_the_battery_knows_the_tolerance() -> None:
    def battery(tolerance: float) -> bool:
        mine = lampwork.rewrite("neg(sin(x))", "mul(sin(x), -1.01)", name="mine", tolerance=tolerance)
        return check_rewrite(mine, only=["same results", "compiled"], raises=False).ok

    assert (battery(0.02), battery(0.001)) == (True, False)
