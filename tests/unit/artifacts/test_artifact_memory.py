"""What artifacts do with memory: inputs that have none, that overlap, that are written to; views of them; weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.nn.utils import parametrizations

import lampwork
from lampwork.artifacts.manifest import is_layout, overlaps
from lampwork.errors import ArtifactCallError, ArtifactWeightsError, ExportError, OptionError


@pytest.fixture
def made(tmp_path):
    """Exports, and loads."""

    def make(model, *args, trust=True, sizes=None):
        path = tmp_path / "m.lamp"
        found = lampwork.export(model, args, path=path, targets="host", dynamic_shapes=sizes)
        return lampwork.load(path, trust=trust), found

    return make


def add_one(x):
    x.add_(1)
    return x.t(), x[1:], x


class Adding(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros(3))

    def forward(self, x):
        self.sum.add_(x)
        return self.sum[1:]


class Views(nn.Module):
    """A parameter, and a tensor in its memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.row = self.weight.detach()[1]

    def forward(self, x):
        return x * self.row


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_tensors_of_transforms_are_refused(made):
    model, _ = made(nn.Linear(4, 4), torch.randn(2, 4))
    x = torch.randn(2, 4)
    for call in (
        lambda: torch.func.vmap(lambda each: model(each))(torch.randn(3, 2, 4)),
        lambda: torch.func.grad(lambda each: model(each).sum())(x),
        lambda: torch.func.jvp(lambda each: model(each), (x,), (x,)),
        lambda: torch.func.functionalize(lambda each: model(each))(x),
    ):
        with pytest.raises(
            ArtifactCallError, match=r"expected a dense tensor on the CPU, came one of a transform"
        ):
            call()
    with pytest.raises(ArtifactCallError, match="came a nested tensor"):
        model(torch.nested.nested_tensor([torch.randn(4), torch.randn(4)]))
    with pytest.raises(ArtifactCallError, match="came a lazy zero tensor"):
        model(torch._efficientzerotensor((2, 4)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(ArtifactCallError, match="expected a tensor without a tangent"):
            model(dual)
    with torch.inference_mode():
        assert model(torch.randn(2, 4)).shape == (2, 4)


def test_examples_that_overlap(made):
    x = torch.arange(12.0).view(3, 4)
    for example in (torch.arange(6.0).as_strided((3, 4), (1, 1)), torch.ones(1, 4).expand(3, 4)):
        model, _ = made(lambda x: x * 2, example)
        assert torch.equal(model(x), x * 2)
        assert torch.equal(model(example), example * 2)
    model, _ = made(
        lambda d: d["x"][0] * 2, {"x": [torch.ones(1, 4).expand(3, 4)]}, sizes=({"x": [{0: Dim.AUTO}]},)
    )
    y = torch.randn(5, 4)
    assert torch.equal(model({"x": [y]}), y * 2)


def test_what_is_written_to(made):
    model, _ = made(add_one, torch.ones(3, 4))
    for wrong, said in (
        (torch.zeros(10).as_strided((3, 4), (1, 1)), "elements in places of their own"),
        (torch.zeros(1, 4).expand(3, 4), "elements in places of their own"),
        (torch.zeros(3, 4, requires_grad=True), "requires no grad"),
    ):
        with pytest.raises(ArtifactCallError, match=said):
            model(wrong)
        assert not wrong.any()
    with torch.inference_mode():
        inferred = torch.zeros(3, 4)
        model(inferred)
    with pytest.raises(ArtifactCallError, match="a tensor that can be written to"):
        model(inferred)
    with torch.no_grad():
        model(leaf := torch.zeros(3, 4, requires_grad=True))
    assert leaf.eq(1).all()


# --- results ----------------------------------------------------------------------------------------------------------


def test_views_of_what_is_written(made):
    model, found = made(add_one, torch.ones(3, 4))
    base = torch.zeros(40)
    for x in (torch.zeros(3, 4), base[8:20].view(3, 4)):
        turned, rest, same = model(x)
        assert same is x and x.eq(1).all()
        assert turned.data_ptr() == x.data_ptr() and rest.data_ptr() == x[1:].data_ptr()
        turned.fill_(5)
        assert x.eq(5).all() and rest.eq(5).all()
    assert base[:8].eq(0).all() and found.notes == ()
    model, _ = made(Adding(), torch.ones(3))
    model(torch.ones(3)).fill_(7)
    assert model.sum.tolist() == [1, 7, 7]

    # What was computed, and then written, is no view of that.
    def copied(x):
        y = x + 1
        x.copy_(y)
        return y.t()

    model, _ = made(copied, torch.ones(3, 4))
    model(x := torch.zeros(3, 4)).fill_(5)
    assert x.eq(1).all()


LAYOUTS = {
    "rows": lambda: torch.arange(16.0).view(4, 4),
    "columns": lambda: torch.arange(16.0).view(4, 4).t(),
    "gaps": lambda: torch.arange(32.0).view(4, 8)[:, ::2],
}
VIEWS_OF_PARTS = (
    lambda x: x[1],
    lambda x: x.t()[:2],
    lambda x: x[:, ::2],
    lambda x: x[-1, -1],
    lambda x: x.unbind(1)[1],
    lambda x: x[0].expand(3, -1),
    lambda x: x.broadcast_to(2, *x.shape),
    lambda x: x.unfold(1, 2, 1),
    lambda x: x.diagonal(),
)


class WrittenInPart(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.kept = nn.Buffer(LAYOUTS[layout]())

    def forward(self, x):
        found = []
        for tensor in (x, self.kept):
            tensor[:, 1] = x[:, 0] + 7.0
            for view in VIEWS_OF_PARTS:
                found.append(view(tensor))
        return tuple(found)


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_what_is_written_in_part(made, layout, trust):
    loaded, found = made(WrittenInPart(layout), LAYOUTS[layout](), trust=trust)
    assert found.notes == ()
    for given in LAYOUTS.values():
        model = WrittenInPart(layout)
        ours, theirs = given(), given()
        results, wanted = loaded(ours), model(theirs)
        n = len(VIEWS_OF_PARTS)
        for number, (result, expected) in enumerate(zip(results, wanted, strict=True)):
            assert torch.equal(result, expected) and result.stride() == expected.stride()
            base = ours if number < n else loaded.get_buffer("kept")
            assert result.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        for each in (results, wanted):
            each[0].fill_(5)
            each[n + 1].mul_(2)
        assert torch.equal(ours, theirs) and torch.equal(loaded.get_buffer("kept"), model.kept)
        loaded.load_state_dict(WrittenInPart(layout).state_dict())


def test_flat_views_of_what_lies_in_memory_with_gaps(made):
    def flat(x):
        x[:, 1] = 7.0
        return x.view(-1)

    model, _ = made(flat, LAYOUTS["rows"]())
    model(x := LAYOUTS["gaps"]()).fill_(5)
    assert x.eq(5).all()


def test_inputs_that_are_returned(made):
    model, _ = made(lambda x: (x, x + 1, x.t()), torch.ones(3, 4))
    x = torch.ones(4, 3).t()
    assert model(x)[0] is x
    given = torch.ones(3, 4, requires_grad=True)
    same, more, turned = model(given)
    assert same is given and not more.requires_grad and not turned.requires_grad


def test_copies_for_views_are_said(made):
    _, found = made(lambda x: (x.view(torch.int32), x + 1), torch.ones(3))
    assert found.notes == ("output_0 is a copy, where eager returns a view of x",)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.conj(),
        lambda x: x.conj()[1],
        lambda x: x.real,
        lambda x: x._neg_view(),
        lambda x: x.view(torch.float32),
    ],
)
def test_copies_for_views_of_what_is_written_are_said(made, view):
    def written(x):
        x[0] = 1j
        return view(x)

    x = torch.randn(2, 2, dtype=torch.complex64)
    model, found = made(written, x.clone())
    assert found.notes == ("output is a copy, where eager returns a view of x",)
    assert torch.equal(model(x.clone()), written(x))


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weights_cannot_be_exchanged(made):
    model, _ = made(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4))
    x, inner = torch.randn(2, 4), getattr(model, "0")
    before, state = model(x), {name: each.clone() for name, each in model.state_dict().items()}
    other = nn.Parameter(torch.randn(4, 4))

    def set_weight(name, value):
        inner._parameters[name] = value

    for change in (
        lambda: torch.func.functional_call(model, {name: each + 1 for name, each in state.items()}, (x,)),
        lambda: set_weight("weight", other),
        lambda: inner.register_parameter("weight", other),
        lambda: inner.register_parameter("other", other),
        lambda: model.register_buffer("other", torch.ones(1)),
        lambda: model.add_module("other", nn.Linear(4, 4)),
        lambda: setattr(model, "0", nn.Linear(4, 4)),
        lambda: delattr(inner, "weight"),
        lambda: delattr(model, "0"),
        lambda: inner._parameters.update(weight=other),
        lambda: inner._parameters.pop("weight"),
        lambda: inner._parameters.clear(),
        lambda: torch.nn.utils.weight_norm(inner),
        lambda: parametrizations.weight_norm(inner),
        lambda: model.load_state_dict(state, assign=True),
    ):
        with pytest.raises(ArtifactWeightsError):
            change()
        assert list(model.state_dict()) == list(state) and torch.equal(model(x), before)
    inner.weight = inner.weight
    model.load_state_dict({name: each + 1 for name, each in state.items()})
    assert not torch.equal(model(x), before)
    assert torch.equal(copy.deepcopy(inner).weight, inner.weight)


@pytest.mark.parametrize("called", (False, True))
@pytest.mark.parametrize("trust", (True, False))
def test_data_of_weights_may_not_become_other_tensors(made, trust, called):
    model, _ = made(nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4), trust=trust)
    x, weight = torch.randn(2, 4), getattr(model, "0").weight
    if called:
        model(x)
    kept = weight.data
    for data, came in (
        (torch.randn(4, 3).t(), r"float32 of shape \[3, 4\] with the strides \[1, 3\]"),
        (torch.randn(1, 4), r"float32 of shape \[1, 4\]"),
        (torch.randn(3, 4).double(), "float64"),
        (torch._neg_view(torch.randn(3, 4)), ".* of negated or conjugated memory"),
    ):
        weight.data = data
        with pytest.raises(
            ArtifactWeightsError, match=rf"LW364\] 0.weight of a loaded .*expected .*came {came}"
        ) as error:
            model(x)
        assert "model.get_parameter('0.weight').copy_(value)" in error.value.fix
    weight.data = kept
    model(x)
    weight.data = torch.randn(3, 4)  # others that lie as these do are read
    expected = nn.functional.linear(x, weight, getattr(model, "0").bias)
    assert torch.allclose(model(x), expected, atol=1e-6)


def test_weights_that_are_negated_or_conjugated_when_they_are_read(tmp_path):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("phase", torch.randn(3, dtype=torch.complex64))
            self.register_buffer("scale", torch.randn(2, 3))

        def forward(self, x):
            return x * self.phase, x * self.scale

    x, path = torch.randn(2, 3), tmp_path / "m.lamp"
    lampwork.export(Complex(), (x,), path=path, targets="host")
    phase, scale = torch.randn(3, dtype=torch.complex64).conj(), torch._neg_view(torch.randn(2, 3))
    loaded = lampwork.load(path, trust=True, weights={"phase": phase, "scale": scale})
    phased, scaled = loaded(x)
    assert torch.allclose(phased, x * phase) and torch.allclose(scaled, x * scale)
    assert torch.equal(loaded.phase, phase) and not loaded.phase.is_conj()


def test_tied_weights_in_one_memory_that_are_others(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.two = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.one + self.two

    path, weight = tmp_path / "m.lamp", torch.randn(3, 3)
    lampwork.export(Tied(), (x := torch.randn(3, 3),), path=path, targets="host")
    assert torch.allclose(
        lampwork.load(path, trust=True, weights={"one": weight, "two": weight.view(3, 3)})(x),
        x @ weight + weight,
        atol=1e-6,
    )
    for other in (weight.t(), torch._neg_view(weight)):
        with pytest.raises(ArtifactWeightsError, match="the artifact has them as one"):
            lampwork.load(path, trust=True, weights={"one": weight, "two": other})


def test_weights_without_memory_are_refused(made, tmp_path):
    made(nn.Linear(4, 3), torch.randn(2, 4))
    freed = torch.randn(3, 4)
    freed.untyped_storage().resize_(0)
    for weight, kind in (
        (FakeTensorMode().from_tensor(torch.randn(3, 4)), "FakeTensor"),
        (torch._to_functional_tensor(torch.randn(3, 4)), "Tensor"),
        (torch._efficientzerotensor(3, 4), "Tensor"),
        (freed, "Tensor"),
    ):
        with pytest.raises(
            ArtifactWeightsError, match=rf"LW364\] weight in weights is a {kind} without elements in memory"
        ):
            lampwork.load(tmp_path / "m.lamp", weights={"weight": weight, "bias": torch.zeros(3)}, trust=True)


def test_weights_with_holes(made):
    class Holes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("even", torch.arange(6.0)[::2])
            self.register_buffer("same", torch.ones(1).expand(3))

        def forward(self, x):
            return x + self.even * self.same

    for trust in (True, False):
        model, _ = made(Holes(), torch.ones(3), trust=trust)
        assert model(torch.ones(3)).tolist() == [1, 3, 5]
        model.even.copy_(torch.ones(3))
        assert model(torch.ones(3)).tolist() == [2, 2, 2]


def test_weights_far_apart_are_refused(made):
    class Far(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("far", torch.zeros(200_000)[::100])

        def forward(self, x):
            return x + self.far

    with pytest.raises(ExportError, match=r"far lies in memory with the strides \(100,\)"):
        made(Far(), torch.ones(2000))


def test_weights_in_one_another_are_refused(made):
    with pytest.raises(ExportError, match="row lies in the memory of weight"):
        made(Views(), torch.ones(3))

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            both = torch.arange(6.0)
            self.register_buffer("even", both[::2])
            self.register_buffer("odd", both[1::2])

        def forward(self, x):
            return x + self.even * self.odd

    assert made(Apart(), torch.ones(3))[0](torch.ones(3)).tolist() == [1, 7, 21]


@pytest.mark.parametrize(
    ("shape", "strides", "together"),
    [((3, 4), (4, 1), False), ((3, 4), (1, 3), False), ((3, 4), (1, 1), True), ((3, 4), (0, 1), True),
     ((1, 4), (0, 1), False), ((0, 4), (0, 0), False), ((), (), False), ((2, 2), (2, 1), False)],
)  # fmt: skip
def test_overlaps(shape, strides, together):
    assert overlaps(shape, strides) == together
    assert is_layout(shape, strides) == (strides != (1, 1))


# --- arguments of load ------------------------------------------------------------------------------------------------


def test_wrong_arguments_of_load_and_export(made, tmp_path):
    for path in (5, None):
        with pytest.raises(OptionError, match="expected the path of a .lamp file"):
            lampwork.load(path)
    with pytest.raises(OptionError, match="targets is a int"):
        lampwork.export(nn.Linear(2, 2), (torch.ones(2),), path=tmp_path / "n.lamp", targets=5)
    made(nn.Linear(2, 2), torch.ones(2))
    state = nn.Linear(2, 2).state_dict()
    for wrong, said in (({**state, 3: torch.ones(1)}, "a key of type int"),
                        ({**state, "weight": torch.eye(2).to_sparse()}, "is no dense tensor")):  # fmt: skip
        with pytest.raises(ArtifactWeightsError, match=said):
            lampwork.load(tmp_path / "m.lamp", trust=True, weights=wrong)
    with pytest.raises(ExportError, match="self="):
        lampwork.export(
            lambda x, **kw: x + kw["self"],
            (torch.ones(2),),
            {"self": torch.ones(2)},
            path=tmp_path / "s.lamp",
        )


# --- graphs that are not trusted --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "x", "sizes"),
    [
        (torch.linalg.inv, torch.eye(3) * 2, None),
        (torch.linalg.cholesky, torch.eye(3), None),
        (lambda x: torch.stack(list(x[:3])), torch.randn(4, 3), ({0: Dim.AUTO},)),
        (lambda x: x.conj() * 2, torch.randn(3, dtype=torch.complex64), None),
        (parametrizations.weight_norm(nn.Linear(3, 3)), torch.randn(2, 3), None),
    ],
    ids=["inverse", "cholesky", "rows", "conj", "weight_norm"],
)
def test_ordinary_graphs_need_no_trust(made, model, x, sizes):
    loaded, _ = made(model, x, trust=False, sizes=sizes)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize(
    "view",
    [lambda x: x.t(), lambda x: x[1:, 1], lambda x: x.unsqueeze(0)[:, ::2], lambda x: x[:1].expand(4, 3)],
)
@pytest.mark.parametrize("trust", [True, False])
def test_views_of_what_lies_in_memory_with_gaps(view, trust, tmp_path):
    def written(x):
        x.add_(1)
        return view(x)

    def inputs():
        return torch.arange(24.0).view(4, 6)[:, ::2]

    lampwork.export(written, (inputs(),), path=tmp_path / "m.lamp", targets="host")
    model = lampwork.load(tmp_path / "m.lamp", trust=trust)
    for given in (inputs, lambda: inputs().contiguous(), lambda: inputs().t().contiguous().t()):
        ours, theirs = given(), given()
        found, expected = model(ours), written(theirs)
        assert torch.equal(found, expected) and torch.equal(ours, theirs)
        assert found.stride() == expected.stride() and found.storage_offset() == expected.storage_offset()
        assert found.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()
