"""Tensors, modules, effects and torch's own state in the region."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from capture_reference import Reference, check, same

X = torch.arange(6.0).reshape(2, 3)


def plain(fn, *calls, regions=1):
    return check(fn, *(calls or [(X,)]), regions=regions, breaks=[])


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 3)])
        self.norm = nn.LayerNorm(3)
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})
        self.register_buffer("offset", torch.ones(3))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.names = ["a", "b"]
        self.act = F.gelu
        self.options = {"p": 0.5}

    def forward(self, x, *, shift=None, **unused):
        for i, layer in enumerate(self.layers):
            x = self.act(layer(x)) * (i + 1)
        x = self.norm(x) * self.scale + self.offset
        if shift is not None:
            x = x + shift
        x = F.dropout(x, self.options["p"], self.training)
        return {name: self.heads[name](x) for name in self.names}


def test_module():
    plain(MLP().eval(), (X,), ((X,), {"shift": 2.0}), ((X,), {"shift": X, "other": 1}), regions=3)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.layers.append(nn.Identity()),
        lambda m: m.names.append("a"),
        lambda m: m.options.update(p=0.25),
        lambda m: setattr(m, "act", F.relu),
        lambda m: setattr(m, "scale", nn.Parameter(torch.tensor(3.0))),
        lambda m: m.heads.update({"b": nn.Linear(3, 5)}),
        lambda m: m.register_buffer("offset", torch.zeros(3)),
        lambda m: m.layers[0].register_forward_hook(lambda mod, args, out: out * 2),
        lambda m: m.layers[1].register_forward_pre_hook(lambda mod, args: (args[0] + 1,)),
        lambda m: m.norm.__setattr__("eps", 1e-2),
        lambda m: setattr(m.layers[0], "forward", lambda x: x[:, :1].expand(-1, 4)),
        lambda m: m.train(),
        lambda m: m.double(),
    ],
)
def test_a_changed_module_is_captured_anew(change):
    module = MLP().eval()
    reference = Reference(module)
    reference(X)
    reference(X)
    assert len(reference.regions) == 1
    change(module)
    x = X.to(module.scale.dtype)
    torch.manual_seed(1)
    ours = reference(x)
    torch.manual_seed(1)
    same(ours, module(x))
    assert len(reference.regions) == 2


def test_values_of_parameters_are_not_guarded():
    module = MLP().eval()
    reference = Reference(module)
    reference(X)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2)
    same(reference(X), module(X))
    assert len(reference.regions) == 1


def test_hooks_of_all_kinds():
    module = MLP().eval()
    module.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kwargs, out: {**out, "k": len(kwargs)}, with_kwargs=True)
    module.norm.register_forward_hook(lambda m, args, out: None)
    plain(module, (X,), ((X,), {"shift": 1.0}), regions=2)


def test_bound_method_and_nested_functions_as_roots():
    module = MLP().eval()
    plain(module.forward)


def test_lstm_gru_conv_batchnorm():
    plain(nn.LSTM(3, 4, 2).eval(), (torch.randn(5, 2, 3),))
    plain(nn.GRU(3, 4, bidirectional=True), (torch.randn(5, 2, 3),))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    plain(net.eval(), (torch.randn(2, 1, 8, 8),))


def test_batchnorm_in_training_updates_its_buffers():
    net = nn.BatchNorm1d(3)
    twin = copy.deepcopy(net)
    reference = Reference(net)
    for _ in range(3):
        same(reference(X), twin(X))
    same(dict(net.named_buffers()), dict(twin.named_buffers()))
    assert int(net.num_batches_tracked) == 3


def test_mutated_argument():
    def f(x, y):
        x.add_(1)
        x[0] = y[1]
        return x, x * 2

    plain(f, (X, X + 1))


def test_mutated_argument_keeps_its_identity():
    reference = Reference(lambda x: x.add_(1))
    x = X.clone()
    assert reference(x) is x
    same(x, X + 1)


def test_overlapping_mutated_arguments_are_not_confused():
    def f(x, y):
        x.add_(1)
        return y * 2

    reference = Reference(f)
    same(reference(X.clone(), X.clone()), X * 2)
    x = X.clone()
    same(reference(x, x), (X + 1) * 2)
    y = X.clone()
    same(reference(y, y.view(2, 3)), (X + 1) * 2)


def test_same_tensor_twice():
    def f(x, y):
        return x + y, x is y

    plain(f, (X, X.clone()))
    reference = Reference(f)
    assert reference(X, X)[1] is True
    assert reference(X, X.clone())[1] is False
    assert len(reference.regions) == 2


def test_tensor_guards():
    reference = Reference(lambda x: x * 2)
    for x in (X, X.double(), X[:1], X.t(), X.clone().requires_grad_()):
        same(reference(x), x * 2)
    assert len(reference.regions) == 5


def test_containers_of_tensors_as_arguments():
    def f(items, table):
        return sum(items), table["a"] + table["b"][0], len(items)

    plain(f, ([X, X + 1], {"a": X, "b": (X,)}), ([X], {"a": X, "b": (X,)}), regions=2)


def test_effects_on_arguments():
    class Box:
        pass

    def f(x, items, table, box):
        items.append(x + 1)
        items[0] = len(items)
        table["new"] = x * 2
        table.pop("old")
        box.value = items[-1]
        box.count = getattr(box, "count", 0) + 1
        return box.value, box.count, list(table)

    def fresh():
        return [0, 5], {"old": 1, "kept": 2}, Box()

    reference = Reference(f)
    for _ in range(2):
        mine, theirs = fresh(), fresh()
        same(reference(X, *mine), f(X, *theirs))
        same(mine[0], theirs[0])
        same(mine[1], theirs[1])
        same(vars(mine[2]), vars(theirs[2]))
        assert mine[2].value is mine[0][-1]
    assert len(reference.regions) == 1


def test_effects_on_modules_and_globals():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.seen = []
            self.last = None

        def forward(self, x):
            self.calls += 1
            self.seen.append(self.calls)
            self.last = x * self.calls
            return self.last

    module, twin = Counter(), Counter()
    reference = Reference(module)
    for _ in range(3):
        same(reference(X), twin(X))
    assert (module.calls, module.seen) == (3, [1, 2, 3])
    same(module.last, twin.last)


TOTAL = 0


def test_effect_on_a_global_and_on_a_closure():
    count = 0

    def f(x):
        global TOTAL
        nonlocal count
        TOTAL = TOTAL + 1
        count += 2
        return x + TOTAL + count

    reference = Reference(f)
    same(reference(X), X + 3)
    same(reference(X), X + 6)
    assert (TOTAL, count) == (2, 4)


def test_nothing_happens_during_capture():
    from lampwork.capture import capture

    items: list[Any] = []

    def f(x, items):
        items.append(x)
        x.add_(1)
        return x

    x = X.clone()
    capture(f, (x, items), {})
    assert items == []
    same(x, X)


def test_grad_modes():
    def f(x):
        with torch.no_grad():
            a = torch.is_grad_enabled(), x * 2
        with torch.enable_grad():
            b = torch.is_grad_enabled()
        with torch.set_grad_enabled(False):
            c = torch.is_grad_enabled()
        return a, b, c, torch.is_grad_enabled()

    plain(f)
    assert torch.is_grad_enabled()


def test_no_grad_decorator_and_inference_mode():
    @torch.no_grad()
    def g(x):
        return x * 2, torch.is_grad_enabled()

    plain(lambda x: g(x))

    @torch.no_grad()
    def root(x):
        return x * 2, torch.is_grad_enabled()

    plain(root)


def test_grad_mode_left_changed():
    def f(x):
        torch._C._set_grad_enabled(False)
        return x * 2

    reference = Reference(f)
    for _ in range(2):
        reference(X)
        assert not torch.is_grad_enabled()
        torch.set_grad_enabled(True)


def test_autocast_inside():
    linear = nn.Linear(3, 4)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x)
        return y, torch.is_autocast_enabled("cpu")

    reference = Reference(f)
    for _ in range(2):
        ours, theirs = reference(X), f(X)
        assert ours[0].dtype == theirs[0].dtype == torch.bfloat16
        torch.testing.assert_close(ours[0], theirs[0])
        assert ours[1] == theirs[1]
    assert not reference.refusals and not reference.records
    assert torch.is_autocast_cache_enabled()


def test_autocast_outside_is_guarded():
    linear = nn.Linear(3, 4)
    reference = Reference(linear)
    same(reference(X), linear(X))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert reference(X).dtype == torch.bfloat16
    assert reference(X).dtype == torch.float32
    assert len(reference.regions) == 2


def test_factories_and_random_numbers():
    def f(x):
        return (
            torch.zeros(2, 3)
            + torch.arange(3)
            + torch.tensor([1.0, 2.0, 3.0])
            + x.new_ones(3)
            + torch.ones_like(x)
        )

    plain(f)
    reference = Reference(lambda x: x + torch.rand(2, 3) + torch.randn_like(x))
    for _ in range(2):
        torch.manual_seed(3)
        ours = reference(X)
        torch.manual_seed(3)
        same(ours, X + torch.rand(2, 3) + torch.randn_like(X))


def test_torch_functions_with_containers():
    def f(x, ys):
        a, b = torch.split(x, [1, 2], dim=1)
        return (
            torch.cat([x, *ys]),
            torch.stack((a, a)),
            torch.einsum("ij,kj->ik", x, x),
            b,
            torch.max(x, dim=1).indices,
        )

    plain(f, (X, [X, X]))


def test_tensor_methods_on_classes():
    plain(
        lambda x: (
            torch.Tensor.add(x, 1),
            x.split(1),
            x.unflatten(1, (3, 1)),
            x.norm(),
            x.masked_fill(x > 2, 0.0),
        )
    )


def test_compiling_flags():
    reference = Reference(
        lambda x: (x + 1, torch.compiler.is_compiling(), torch.jit.is_scripting(), torch.jit.is_tracing())
    )
    assert reference(X)[1:] == (True, False, False)


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    linear = nn.Linear(3, 3)
    plain(
        lambda x: (
            checkpoint(linear, x, use_reentrant=False)
            + checkpoint(lambda a, b=1: a * b, x, b=2, use_reentrant=False)
        )
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_of_a_function_with_effects(reentrant):
    """Eager runs the function a second time in the backward pass, with all its effects."""
    from torch.utils.checkpoint import checkpoint

    def outcome(compile_function):
        torch.manual_seed(0)
        norm, calls, x = nn.BatchNorm1d(3), [], X.clone().requires_grad_()

        def counted(x):
            calls.append(x.shape)
            return x.sin()

        f = compile_function(
            lambda x: (
                checkpoint(norm, x, use_reentrant=reentrant) + checkpoint(counted, x, use_reentrant=reentrant)
            )
        )
        for _ in range(2):
            f(x).sum().backward()
        return len(calls), norm.num_batches_tracked, x.grad, norm.weight.grad

    for one, other in zip(outcome(Reference), outcome(lambda f: f), strict=True):
        same(one, other)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("preserved", [True, False])
def test_checkpoint_of_a_function_that_draws(reentrant, preserved):
    """Without preserve_rng_state eager's second run draws other numbers, and leaves the generator where they end."""
    from torch.utils.checkpoint import checkpoint

    def dropped(x):
        return nn.functional.dropout(x.sin(), 0.5)

    def outcome(compile_function):
        torch.manual_seed(0)
        x = torch.randn(4, 8, requires_grad=True)
        f = compile_function(
            lambda x: checkpoint(dropped, x, use_reentrant=reentrant, preserve_rng_state=preserved).sum()
        )
        for _ in range(3):
            f(x).backward()
        return x.grad, torch.get_rng_state()

    for one, other in zip(outcome(Reference), outcome(lambda f: f), strict=True):
        same(one, other)


def test_reentrant_checkpoint_of_tensors_that_need_no_gradient():
    from torch.utils.checkpoint import checkpoint

    linear = nn.Linear(3, 3)
    reference = Reference(lambda x: checkpoint(linear, x, use_reentrant=True))
    with pytest.warns(UserWarning, match="requires_grad=True"):
        assert not reference(X).requires_grad


def test_attribute_on_an_outside_tensor():
    def f(x):
        return x * x.factor if hasattr(x, "factor") else x

    x = X.clone()
    x.factor = 3
    reference = Reference(f)
    same(reference(x), X * 3)
    x.factor = 4
    same(reference(x), X * 4)


def test_tensor_subclass_is_left_alone():
    class Mine(torch.Tensor):
        pass

    reference = Reference(lambda x: x + 1)
    out = reference(X.as_subclass(Mine))
    assert type(out) is Mine


def test_graph_nodes_know_the_users_line():
    reference = Reference(lambda x: torch.relu(x))
    reference(X)
    node = next(n for n in reference.regions[0].graph.nodes if n.op == "call_function")
    assert node.meta["location"].file == __file__


def test_no_warning_is_lost():
    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x + 1

    reference = Reference(f)
    for _ in range(2):
        with pytest.warns(UserWarning, match="careful"):
            same(reference(X), X + 1)


def test_aliased_containers_are_told_apart():
    def f(a, b):
        a.append(1)
        return len(b), a is b

    reference = Reference(f)
    assert reference([0], [0]) == (1, False)
    items = [0]
    assert reference(items, items) == (2, True)
    assert items == [0, 1]


def test_aliased_objects_are_told_apart():
    class Box:
        value = 1

    def f(a, b):
        a.value = 2
        return b.value

    reference = Reference(f)
    assert reference(Box(), Box()) == 1
    box = Box()
    assert reference(box, box) == 2


def test_torch_return_types():
    plain(lambda x: (torch.topk(x, 2), x.sort(dim=-1), torch.max(x, 1), tuple(x.min(0))))
    plain(lambda pair: pair.values + 1, (torch.max(X, 1),))


def test_wrapping_inside_the_region():
    def g(x):
        "A docstring."
        return x + 1

    def f(x):
        @functools.wraps(g)
        def wrapper(y):
            return g(y) * 2

        return wrapper(x), wrapper

    reference = Reference(f)
    for _ in range(2):
        out, wrapper = reference(X)
        same(out, (X + 1) * 2)
        assert wrapper.__wrapped__ is g
        same(wrapper(X), out)
    assert len(reference.regions) == 1 and not g.__dict__


def test_function_transforms_leave_no_trace():
    reference = check(lambda x: torch.vmap(lambda v: v.sum() * 2)(x) + 1, (X,))
    assert {record.code for record in reference.records} == {"LW105"}
    torch.rand(2)  # raises if a transform were still in force


def test_numpy_breaks():
    import numpy

    # The call of numpy, and that of torch on its array, whose content no guard sees.
    check(lambda x: x + torch.from_numpy(numpy.ones(3, dtype="float32")), (X,), breaks=["LW103", "LW111"])
