"""lampwork.swap: keys, values, shared and nested modules, what belongs to a place, undo, errors."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import lampwork
from lampwork.errors import OptionError
from lampwork.swapping import Functional


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.linear(self.norm(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.heads = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.GELU()), "b": nn.Linear(4, 2)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {name: head(x) for name, head in self.heads.items()}


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@torch.no_grad()
def test_by_class_with_report_and_undo() -> None:
    model, x = Model().eval(), torch.randn(3, 4)
    before, modules = model(x), dict(model.named_modules())
    relu = nn.ReLU()
    report = lampwork.swap(model, {nn.GELU: relu}, check=x)
    assert [c.name for c in report.changes] == ["layers.0.act", "layers.1.act", "heads.a.1"]
    assert all(c.new is relu and type(c.old) is nn.GELU for c in report.changes)
    assert not any(isinstance(m, nn.GELU) for m in model.modules())
    after = model(x)
    moved = {d.output: d for d in report.differences}
    assert set(moved) == {"a", "b"}
    assert moved["b"].max_abs == pytest.approx(float((after["b"] - before["b"]).abs().max()))
    assert moved["b"].relative == pytest.approx(moved["b"].max_abs / float(before["b"].abs().max()))
    text = str(report)
    assert "swapped 3 modules" in text and "layers.0.act: GELU -> ReLU  (by GELU)" in text
    report.undo()
    report.undo()
    assert dict(model.named_modules()) == modules and same(model(x), before)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("layers.1.act", ["layers.1.act"]),
        ("layers.*.act", ["layers.0.act", "layers.1.act"]),
        ("layers.[1-9].*", ["layers.1.norm", "layers.1.linear", "layers.1.act"]),
        ("**.act", ["layers.0.act", "layers.1.act"]),
        ("*.a.*", ["heads.a.0", "heads.a.1"]),
        (lambda name, m: name.startswith("heads") and isinstance(m, nn.GELU), ["heads.a.1"]),
    ],
)
def test_keys(key, names: list[str]) -> None:
    report = lampwork.swap(Model(), {key: nn.Identity})
    assert [c.name for c in report.changes] == names


def test_a_module_is_a_key() -> None:
    model = Model()
    report = lampwork.swap(model, {model.layers[1].act: nn.ReLU()})
    assert [c.name for c in report.changes] == ["layers.1.act"]


def test_more_specific_keys_win_over_earlier_ones() -> None:
    model = Model()
    report = lampwork.swap(
        model,
        {
            nn.GELU: nn.ReLU(),
            (lambda name, m: name == "layers.1.act"): nn.ELU(),
            "layers.*.act": nn.SiLU(),
            "layers.0.act": nn.Tanh(),
        },
    )
    assert type(model.layers[0].act) is nn.Tanh
    assert type(model.layers[1].act) is nn.SiLU
    assert type(model.heads["a"][1]) is nn.ReLU
    assert len(report.unmatched) == 1 and "come before it" in report.unmatched[0].reason


def test_class_is_exact_and_the_report_says_what_is_near() -> None:
    class MyGELU(nn.GELU):
        pass

    model = nn.Sequential(MyGELU(), nn.ReLU())
    report = lampwork.swap(model, {nn.GELU: nn.Tanh(), nn.ReLU: nn.Tanh()})
    assert [c.name for c in report.changes] == ["1"]
    assert report.unmatched[0].key == "GELU" and "only subclasses of it" in report.unmatched[0].reason
    assert "key GELU changed nothing" in str(report)


def test_parametrized_modules_are_of_their_class() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    lampwork.swap(model, {nn.Linear: nn.Identity()})
    assert type(model[0]) is nn.Identity


def test_shared_module_is_swapped_once_in_all_its_places() -> None:
    act = nn.GELU()
    model = nn.ModuleDict({"x": nn.Sequential(nn.Linear(4, 4), act), "y": act})
    made: list[str] = []

    def factory(name: str, old: nn.Module) -> nn.Module:
        made.append(name)
        return nn.PReLU()

    report = lampwork.swap(model, {nn.GELU: factory})
    assert made == ["x.1"] and model["y"] is model["x"][1] and type(model["y"]) is nn.PReLU
    assert report.changes[0].names == ("x.1", "y")
    report.undo()
    assert model["y"] is act and model["x"][1] is act


def test_any_name_of_a_shared_container_reaches_what_is_in_it() -> None:
    block = Block()
    model = nn.ModuleDict({"first": block, "second": block})
    report = lampwork.swap(model, {"second.act": nn.ReLU()})
    assert type(block.act) is nn.ReLU
    assert report.changes[0].names == ("first.act", "second.act")


def test_modules_that_hold_each_other() -> None:
    a, b = nn.Sequential(nn.GELU()), nn.Sequential(nn.GELU())
    a.add_module("other", b)
    b.add_module("other", a)
    assert len(lampwork.swap(a, {nn.GELU: nn.ReLU()}).changes) == 2


def test_instance_with_weights_is_copied_for_further_places() -> None:
    model = Model()
    new = nn.PReLU()
    lampwork.swap(model, {nn.GELU: new})
    places = [model.layers[0].act, model.layers[1].act, model.heads["a"][1]]
    assert places[0] is new and len({id(p.weight) for p in places}) == 3
    model = Model()
    lampwork.swap(model, {nn.GELU: new}, share=True)
    assert model.layers[0].act is model.layers[1].act is new


def test_values() -> None:
    x = torch.randn(2, 4)

    def result(value) -> nn.Module:
        model = nn.Sequential(nn.GELU())
        lampwork.swap(model, {nn.GELU: value})
        return model

    assert isinstance(result(None)[0], nn.Identity)
    assert torch.equal(result(torch.relu)(x), torch.relu(x))
    assert torch.equal(result(nn.functional.relu)(x), torch.relu(x))
    assert torch.equal(
        result(functools.partial(nn.functional.gelu, approximate="tanh"))(x), nn.GELU("tanh")(x)
    )
    assert torch.equal(result(quick_gelu)(x), quick_gelu(x))
    assert torch.equal(result(lambda old: torch.sin)(x), torch.sin(x))
    assert repr(result(quick_gelu)[0]) == "Functional(quick_gelu)"
    assert isinstance(result(lambda old: nn.Sequential(old, nn.ReLU()))[0][0], nn.GELU)
    assert isinstance(result(lambda name, old: nn.Tanh())[0], nn.Tanh)
    assert isinstance(copy.deepcopy(result(quick_gelu))[0], Functional)


def test_class_that_takes_the_old_module() -> None:
    class Twice(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x))

    model = nn.Sequential(nn.Linear(4, 4))
    old = model[0]
    lampwork.swap(model, {nn.Linear: Twice})
    assert model[0].inner is old
    lampwork.swap(model, {nn.Linear: Twice})  # what was wrapped is found again, once
    assert model[0].inner.inner is old


def test_torch_functions_of_modules_are_factories() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    lampwork.swap(model, {nn.Linear: nn.utils.parametrizations.weight_norm})
    assert nn.utils.parametrize.is_parametrized(model[0])


def test_factory_that_keeps_the_old_module_changes_nothing() -> None:
    model = Model()
    report = lampwork.swap(model, {nn.Linear: lambda old: nn.Identity() if old.out_features == 4 else old})
    assert [c.name for c in report.changes] == ["layers.0.linear", "layers.1.linear", "heads.a.0"]


def test_inner_modules_are_swapped_in_what_is_wrapped_and_not_in_what_is_dropped() -> None:
    model = Model()
    report = lampwork.swap(
        model, {"layers.0": lambda old: nn.Sequential(old), "layers.1": Block(), nn.GELU: nn.ReLU()}
    )
    assert [c.name for c in report.changes] == ["layers.0.act", "layers.0", "layers.1", "heads.a.1"]
    assert type(model.layers[0][0].act) is nn.ReLU
    assert type(model.layers[1].act) is nn.GELU  # of the new block
    report.undo()
    assert type(model.layers[0].act) is nn.GELU


def test_changes_in_what_a_factory_dropped_are_not_reported_and_are_undone() -> None:
    model = Model()
    report = lampwork.swap(model, {"layers.0": lambda old: nn.Identity(), nn.GELU: nn.ReLU()})
    assert [c.name for c in report.changes] == ["layers.0", "layers.1.act", "heads.a.1"]
    report.undo()
    assert type(model.layers[0].act) is nn.GELU


def test_replacement_of_the_same_class_is_not_replaced_again() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    lampwork.swap(model, {nn.Linear: lambda old: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))})
    assert [type(m) for m in model[0]] == [nn.Linear, nn.Linear]


def test_mode_dtype_and_device_go_over() -> None:
    model = Model().double()
    model.layers[0].eval()
    lampwork.swap(model, {nn.GELU: nn.PReLU(), nn.Linear: nn.Linear(4, 4)})
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert not model.layers[0].act.training and model.layers[1].act.training
    model = nn.Sequential(nn.Linear(2, 2, device="meta"))
    lampwork.swap(model, {nn.Linear: lambda old: nn.Linear(2, 2, dtype=torch.bfloat16)})
    assert model[0].weight.dtype is torch.bfloat16


def test_one_instance_in_both_modes_is_two() -> None:
    model = nn.Sequential(nn.GELU(), nn.GELU(), nn.GELU()).eval()
    model[1].train()
    lampwork.swap(model, {nn.GELU: nn.ReLU()})
    assert [m.training for m in model] == [False, True, False] and model[0] is model[2]


def test_wrapped_modules_keep_their_modes() -> None:
    model = nn.Sequential(Block())
    model[0].norm.eval()
    lampwork.swap(model, {Block: lambda old: nn.Sequential(old, nn.ReLU())})
    assert not model[0][0].norm.training and model[0][1].training


def test_hooks_belong_to_the_place() -> None:
    model, seen = Model(), []
    handle = model.layers[0].act.register_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
    report = lampwork.swap(model, {nn.GELU: nn.ReLU()})
    model(torch.randn(2, 4))
    assert seen == ["ReLU"]  # once: no other place has got the hook
    handle.remove()
    model(torch.randn(2, 4))
    assert seen == ["ReLU"]
    report.undo()
    model(torch.randn(2, 4))
    assert seen == ["ReLU"]


def test_hooks_of_what_is_wrapped_run_once() -> None:
    model, seen = nn.Sequential(nn.GELU()), []
    model[0].register_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
    lampwork.swap(model, {nn.GELU: lambda old: nn.Sequential(old, nn.ReLU())})
    model(torch.randn(2))
    assert seen == ["GELU"]


def test_hooks_that_compute_weights_stay() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    prune.l1_unstructured(model[0], "weight", amount=2)
    lampwork.swap(model, {nn.Linear: nn.Identity()})
    x = torch.randn(2, 4)
    assert torch.equal(model(x), x)


def test_undo_follows_the_mode_and_refuses_out_of_order() -> None:
    model = Model()
    first = lampwork.swap(model, {nn.GELU: nn.ReLU()})
    second = lampwork.swap(model, {nn.ReLU: nn.Tanh()})
    with pytest.raises(OptionError, match="was swapped again since"):
        first.undo()
    model.eval()
    second.undo()
    first.undo()
    assert type(model.layers[0].act) is nn.GELU and not model.layers[0].act.training


def test_encoder_layers_of_torch_call_what_was_swapped_in() -> None:
    """Their fast path reads weights and a flag that says which activation they had."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=nn.GELU(), batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    with torch.no_grad():
        before = model(x, src_key_padding_mask=mask)
        report = lampwork.swap(model, {nn.GELU: nn.ReLU(), "**.linear1": lambda old: nn.Sequential(old)})
        after = model(x, src_key_padding_mask=mask)
        slow = copy.deepcopy(model).train()
        for m in slow.modules():
            if isinstance(m, nn.Dropout):
                m.p = 0.0
            elif isinstance(m, nn.MultiheadAttention):
                m.dropout = 0.0
        torch.testing.assert_close(after[0], slow(x, src_key_padding_mask=mask)[0])
        assert not torch.allclose(before[0], after[0], atol=1e-4)
        report.undo()
        assert torch.equal(model(x, src_key_padding_mask=mask), before)


def test_notes() -> None:
    model = Model()
    model.acts = [model.layers[0].act]
    report = lampwork.swap(model, {nn.GELU: nn.ReLU()})
    assert report.notes == ("acts[0] holds a GELU in a plain container, which is left as it is",)
    attention = nn.ModuleList([nn.MultiheadAttention(4, 2)])
    report = lampwork.swap(attention, {"0.out_proj": lambda old: nn.Linear(4, 4)})
    assert "never calls it" in report.notes[0]


def test_check_runs_in_evaluation_mode_and_leaves_modes() -> None:
    model = nn.Sequential(nn.Dropout(), nn.ReLU(inplace=True), nn.GELU())
    model[0].eval()
    x = torch.randn(4)
    kept = x.clone()
    report = lampwork.swap(model, {nn.GELU: nn.GELU("tanh")}, check=(x,))
    assert torch.equal(x, kept) and [m.training for m in model] == [False, True, True]
    assert report.differences[0].output == "" and 0 < report.differences[0].max_abs < 1e-2
    assert "difference of output: max " in str(report)


def test_check_of_other_shapes_and_missing_outputs() -> None:
    model = Model().eval()
    report = lampwork.swap(model, {"heads.b": nn.Linear(4, 3)}, check={"x": torch.randn(2, 4)})
    assert [d.relative for d in report.differences] == [0.0, torch.inf]


@pytest.mark.parametrize(
    ("replacements", "message"),
    [
        ({}, "takes a mapping"),
        ([nn.GELU], "takes a mapping"),
        ({3: nn.ReLU()}, "a key of swap"),
        ({int: nn.ReLU()}, "int is no class of modules"),
        ({nn.GELU: 3}, "a replacement is a module"),
        ({nn.GELU: int}, "int is no class of modules"),
        ({nn.GELU: nn.Linear}, "requires 2 arguments"),
        ({nn.GELU: lambda a, b, c: a}, "a factory takes"),
        ({nn.GELU: lambda old: 3}, "the replacement of 'layers.0.act' is int"),
        ({Model: nn.Identity()}, "means the model itself"),
        ({"": nn.Identity()}, "means the model itself"),
        ({"layers.0.akt": nn.Identity()}, "near it are layers.0.act"),
        ({nn.SiLU: nn.Identity()}, "is no module"),
        ({(lambda name, m: False): nn.Identity()}, "false for all"),
        ({nn.ReLU(): nn.Identity()}, "not a submodule"),
    ],
)
def test_errors_change_nothing(replacements, message: str) -> None:
    model = Model()
    before = dict(model.named_modules())
    with pytest.raises(OptionError, match=message):
        lampwork.swap(model, replacements)
    assert dict(model.named_modules()) == before


def test_factory_and_model_that_raise_change_nothing() -> None:
    model = Model()
    before = dict(model.named_modules())
    calls: list[nn.Module] = []

    def second_fails(old: nn.Module) -> nn.Module:
        calls.append(old)
        if len(calls) == 2:
            raise ZeroDivisionError
        return nn.ReLU()

    with pytest.raises(ZeroDivisionError) as raised:
        lampwork.swap(model, {nn.GELU: second_fails})
    assert "the replacement of 'layers.1.act' for the key GELU" in raised.value.__notes__[0]
    assert dict(model.named_modules()) == before
    with pytest.raises(RuntimeError):
        lampwork.swap(model, {"layers.0.norm": nn.LayerNorm(7)}, check=torch.randn(2, 4))
    assert dict(model.named_modules()) == before
    with pytest.raises(OptionError, match="takes a module, got function"):
        lampwork.swap(quick_gelu, {nn.GELU: nn.ReLU()})


def test_scripted_models_are_refused() -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.GELU())))
    with pytest.raises(OptionError, match="TorchScript"):
        lampwork.swap(model, {nn.GELU: nn.ReLU()})
