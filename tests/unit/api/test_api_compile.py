"""compile(): its keywords, and all that can be called."""

from __future__ import annotations

import functools
import gc
import inspect
import operator
import weakref

import pytest
import torch
from torch import nn

import lampwork
from lampwork.backends.registry import get_backend
from lampwork.errors import BackendError, GraphBreakError, OptionError

MODES = '"default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs"'
X = torch.arange(6.0).reshape(2, 3)


def scaled(x, factor, *, shift=0.0):
    """Scale and shift."""
    return x * factor + shift


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def method(self, x):
        return x * self.factor + 1

    @lampwork.compile
    @classmethod
    def of_class(cls, x):
        return x * 2, cls

    @lampwork.compile
    @staticmethod
    def static(x):
        return x * 3

    @classmethod
    @lampwork.compile
    def inner_class(cls, x):
        return x * 4, cls

    @staticmethod
    @lampwork.compile(fullgraph=True)
    def inner_static(x):
        return x * 5

    relu = lampwork.compile(torch.relu)


@pytest.mark.parametrize(
    "fn, args",
    [
        (scaled, (X, 2.0)),
        (lambda x: x + 1, (X,)),
        (functools.partial(scaled, factor=3.0), (X,)),
        (functools.partial(scaled, X, shift=torch.ones(3)), (2.0,)),
        (functools.partial(functools.partial(scaled, X), 2.0), ()),
        (Scaler(2.0), (X,)),
        (Scaler(2.0).method, (X,)),
        (torch.relu, (X - 2,)),
        (torch.nn.functional.gelu, (X,)),
        (torch.Tensor.exp, (X,)),
        (operator.mul, (X, X)),
        (sum, ([X, X],)),
        (nn.Linear(3, 2).forward, (X,)),
        (nn.Linear(3, 2), (X,)),
        (dict, ([("a", X)],)),
    ],
    ids=lambda value: getattr(value, "__qualname__", type(value).__name__) if callable(value) else "",
)
def test_whatever_can_be_called(fn, args):
    lampwork.reset_stats()
    compiled = lampwork.compile(fn)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), fn(*args))
    assert lampwork.stats()["compiled_calls"] == 2


def test_a_cached_function_stays_cached():
    @functools.lru_cache
    def ones(n):
        return torch.ones(n)

    for compiled in (lampwork.compile(ones), lampwork.compile(functools.partial(ones, 3))):
        args = (3,) if compiled.__wrapped__ is ones else ()
        assert compiled(*args) is compiled(*args) is ones(3)


def test_a_cached_function_that_is_called_keeps_real_tensors():
    @functools.lru_cache
    def ones(n):
        return torch.ones(n)

    compiled = lampwork.compile(lambda x: x + ones(3))
    assert torch.equal(compiled(X), X + 1)
    assert type(ones(3)) is torch.Tensor and ones.cache_info().misses == 1


@pytest.mark.parametrize(
    "fn, name",
    [
        (torch.relu, "relu"),
        (functools.partial(torch.add, X), "add"),
        (functools.partial(scaled, X), "scaled"),
        (Scaler(2.0), "Scaler"),
        (Scaler(2.0).method, "Scaler.method"),
        (nn.Linear(3, 2), "Linear"),
    ],
)
def test_names(fn, name):
    assert lampwork.compile(fn).stages.name == name


def test_bound_method_of_a_tensor():
    assert torch.equal(lampwork.compile(X.add)(X), X + X)


def test_members_of_a_class():
    scaler = Scaler(1.0)
    for owner in (scaler, Scaler):
        doubled, cls = owner.of_class(X)
        assert torch.equal(doubled, X * 2) and cls is Scaler
        assert torch.equal(owner.static(X), X * 3)
        fourfold, cls = owner.inner_class(X)
        assert torch.equal(fourfold, X * 4) and cls is Scaler
        assert torch.equal(owner.inner_static(X), X * 5)
        assert torch.equal(owner.relu(X - 2), torch.relu(X - 2))


def test_it_looks_like_the_function():
    compiled = lampwork.compile(scaled)
    assert compiled.__name__ == "scaled" and compiled.__doc__ == "Scale and shift."
    assert inspect.signature(compiled) == inspect.signature(scaled)
    assert compiled.__wrapped__ is scaled
    assert compiled.entries == () and list(compiled.stages) == []


def test_compiling_again_takes_the_original():
    model = nn.Linear(3, 2)
    again = lampwork.compile(lampwork.compile(model, backend="eager"), fullgraph=True)
    assert again._lampwork_original is model
    fn = lampwork.compile(lampwork.compile(scaled))
    assert fn.__wrapped__ is scaled and torch.equal(fn(X, 2.0), X * 2)
    assert len(fn.entries) == 1


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"fullgraph": 1}, "fullgraph takes True or False, got 1"),
        ({"disable": None}, "disable takes True or False, got None"),
        ({"dynamic": 1}, "dynamic takes True, False or None, got 1"),
        ({"dynamic": "yes"}, "dynamic takes True, False or None, got 'yes'"),
        ({"mode": "max-autotun"}, f"option 'mode' takes {MODES}, got 'max-autotun'"),
        ({"mode": 3}, f"option 'mode' takes {MODES}, got 3"),
        ({"options": ["strict"]}, "options takes a mapping, got list"),
        ({"options": {"strikt": True}}, "unknown option 'strikt'"),
        ({"backend": "inductr"}, "unknown backend 'inductr'"),
        ({"backend": 3}, "backend takes a name, a Backend or a function, got int"),
    ],
)
def test_bad_keywords(keywords, message):
    for model in (None, scaled):
        with pytest.raises(OptionError) as caught:
            lampwork.compile(model, **keywords)
        assert caught.value.cause == message and caught.value.fix


@pytest.mark.parametrize("model", [3, "model", X, [scaled]], ids=lambda m: type(m).__name__)
def test_what_cannot_be_called(model):
    with pytest.raises(OptionError) as caught:
        lampwork.compile(model)
    assert caught.value.cause == f"compile() takes a function or a module, got {type(model).__name__}"


def test_a_class_of_modules_is_no_module():
    with pytest.raises(OptionError) as caught:
        lampwork.compile(nn.Linear)
    assert caught.value.cause == "compile() takes a module, got the class Linear"


def test_warnings_point_at_the_call(monkeypatch):
    monkeypatch.setenv("LAMPWORK_STRICT", "0")
    compiled = lampwork.compile(generating)
    with pytest.warns(lampwork.LampworkWarning) as caught:
        list(compiled(X))
    (warning,) = caught
    assert warning.filename == __file__
    assert warning.lineno == test_warnings_point_at_the_call.__code__.co_firstlineno + 4


def test_every_keyword_in_a_decorator():
    @lampwork.compile(
        fullgraph=True,
        dynamic=False,
        backend=get_backend("eager"),
        mode="max-autotune",
        options={"verify": True},
        disable=False,
    )
    def f(x):
        return x + 1

    assert torch.equal(f(X), X + 1)
    assert lampwork.compile(disable=True)(scaled) is scaled


# --- backends that are functions --------------------------------------------------------------------------------------


def test_a_function_as_a_backend():
    seen = []

    def backend(gm, example_inputs):
        seen.append((gm, example_inputs))
        return gm.forward

    layer = nn.Linear(3, 2)
    compiled = lampwork.compile(lambda x, y: layer(x.relu()) + y.t(), backend=backend)
    y = torch.randn(2, 2)
    torch.testing.assert_close(compiled(X, y), layer(X.relu()) + y.t())
    ((gm, inputs),) = seen
    assert isinstance(gm, torch.fx.GraphModule)
    assert [tuple(t.shape) for t in inputs] == [(2, 3), (2, 2), (2, 3), (2,)]
    assert [t.requires_grad for t in inputs] == [False, False, True, True]
    assert torch.ops.aten.relu.default in {node.target for node in gm.graph.nodes}
    compiled(X, y).sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.ones(2, 2).mm(X))


def test_a_backend_that_changes_the_graph_and_one_that_writes():
    def softer(gm, example_inputs):
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.sigmoid.default
        gm.recompile()
        return gm

    assert torch.equal(lampwork.compile(torch.relu, backend=softer)(X), X.sigmoid())

    def f(x):
        x.add_(1)
        return x * 2

    mine, theirs = X.clone(), X.clone()
    assert torch.equal(lampwork.compile(f, backend=lambda gm, inputs: gm)(mine), f(theirs))
    assert torch.equal(mine, theirs)


def test_a_backend_that_returns_nothing_to_call():
    with pytest.raises(BackendError, match="returned int, which is not callable"):
        lampwork.compile(scaled, backend=lambda gm, inputs: 3)(X, 2.0)


# --- fullgraph --------------------------------------------------------------------------------------------------------


def data_dependent(x):
    if x.sum() > 0:
        return x
    return -x


def printing(x):
    print(x.shape)
    return x


def calling(x):
    return printing(x * 2)


def looping(x):
    for _ in range(2):
        x = x * x.sum().item()
    return x


def generating(x):
    yield x


class Printing(nn.Module):
    def forward(self, x):
        return printing(x)


@pytest.mark.parametrize(
    "fn, code, offset, owner",
    [
        (data_dependent, "LW101", 1, data_dependent),
        (printing, "LW104", 1, printing),
        (calling, "LW104", 1, printing),
        (looping, "LW102", 2, looping),
        (generating, "LW133", 0, generating),
        (Printing(), "LW104", 1, printing),
        (lampwork.disable(printing), "LW113", 0, printing),
    ],
)
def test_fullgraph_names_code_line_cause_and_fix(fn, code, offset, owner, capsys):
    compiled = lampwork.compile(fn, fullgraph=True)
    for _ in range(2):
        with pytest.raises(GraphBreakError) as caught:
            compiled(X)
        error = caught.value
        assert error.code == code and error.cause and error.fix
        assert (error.location.file, error.location.line) == (
            __file__,
            owner.__code__.co_firstlineno + offset,
        )
        assert str(error).startswith(f"[{code}] ") and f"{__file__}:{error.location.line}" in str(error)
    assert not capsys.readouterr().out and not compiled.entries


def test_fullgraph_raises_what_the_program_raises():
    def f(x, n):
        if n > 2:
            raise KeyError(n)
        return x.view(n, -1)

    compiled = lampwork.compile(f, fullgraph=True)
    with pytest.raises(KeyError):
        compiled(X, 3)
    with pytest.raises(RuntimeError) as caught, torch.no_grad():
        compiled(X, -7)
    with pytest.raises(RuntimeError) as wanted:
        f(X, -7)
    assert str(caught.value) == str(wanted.value)
    assert torch.equal(compiled(X, 2), f(X, 2))


# --- Lampwork in what it compiles -------------------------------------------------------------------------------------


def doubled(x):
    return x * 2


def makes(x):
    return lampwork.compile(doubled)(x) + 1


def disables(x):
    return lampwork.disable(doubled)(x) + 1


def explains(x):
    return x + len(lampwork.explain(doubled)(x).regions)


def configures(x):
    with lampwork.config.using(fuel=7):
        return x + lampwork.config.current().fuel


def marks(x):
    y = x.clone()
    lampwork.mark_dynamic(y, 0)
    return y + 1


def lists(x):
    return x + len(lampwork.list_backends())


@pytest.mark.parametrize("fn", [makes, disables, explains, configures, marks, lists])
def test_calls_of_lampwork_are_breaks(fn):
    compiled = lampwork.compile(fn)
    for _ in range(2):
        assert torch.equal(compiled(X), fn(X))
    assert compiled.entries[0].breaks[0].code == "LW103"


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("sizes", [(2,), (2, 3, 5)])
def test_a_compiled_function_goes_with_its_last_reference(breaks, sizes):
    def compiled_once():
        layer = nn.Linear(4, 4)

        def f(x):
            y = layer(x)
            if breaks:
                print(end="")
            return y + 1

        compiled = lampwork.compile(f)
        for size in sizes:
            compiled(torch.randn(size, 4))
        lampwork.explain(compiled)(torch.randn(2, 4))
        return [weakref.ref(each) for each in (layer, f, compiled)]

    references = compiled_once()
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_methods_of_a_compiled_module_act_on_the_original():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    compiled = lampwork.compile(model)
    compiled.register_buffer("buffer", torch.ones(2))
    compiled.register_parameter("parameter", torch.nn.Parameter(torch.ones(1)))
    compiled.add_module("tanh", torch.nn.Tanh())
    assert [*model._buffers, *model._parameters, *model._modules] == ["buffer", "parameter", "0", "1", "tanh"]
    for name in ("half", "float", "eval", "train", "share_memory", "requires_grad_", "cpu"):
        assert getattr(compiled, name)() is compiled, name
    assert compiled.to(torch.float64) is compiled
    assert model[0].weight.dtype == torch.float64
    seen = []
    assert compiled.apply(seen.append) is compiled
    assert seen[-1] is model
    compiled.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in model.named_parameters()]
    outer = torch.nn.Sequential(compiled, torch.nn.Linear(3, 2))
    assert list(outer.state_dict())[:2] == ["0.parameter", "0.buffer"]
    outer.float()
    assert model[0].weight.dtype == torch.float32
    handle = compiled.register_forward_hook(lambda module, args, output: output * 2)
    x = torch.ones(1, 3)
    torch.testing.assert_close(compiled(x), model(x))
    handle.remove()
    torch.testing.assert_close(compiled(x), model(x))


def test_a_compiled_module_has_the_class_of_its_original_and_stands_for_it_among_modules():
    class Other(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    compiled = lampwork.compile(model)
    assert isinstance(compiled, torch.nn.Sequential)
    assert compiled == model
    assert {model: 1}[compiled] == 1
    assert next(compiled.modules()) is compiled
    assert [(name, module is compiled) for name, module in compiled.named_modules()] == [
        ("", True),
        ("0", False),
    ]
    outer = torch.nn.ModuleList([compiled, model])
    assert [module is compiled for module in outer.modules()] == [False, True, False]
    inner = lampwork.compile(model[0])
    inner.__class__ = Other
    assert type(model[0]) is Other
    torch.testing.assert_close(inner(torch.ones(2, 3)), model[0](torch.ones(2, 3)))
    assert isinstance(inner, Other)


def test_attributes_named_as_our_own_are_the_modules():
    class Staged(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

        def forward(self, x):
            return self.stages[0](x)

    model = Staged()
    assert lampwork.compile(model).stages is model.stages
