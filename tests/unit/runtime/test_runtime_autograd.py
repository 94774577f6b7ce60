"""Results of compiled regions in autograd: nodes between results, writes, hooks, and what is saved."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint

import lampwork
from lampwork.runtime import autograd, nodes


@pytest.fixture(autouse=True, params=["nodes of our own", "compiled backward"])
def strategy(request, monkeypatch):
    """Each test runs with a first backward that is eager's, and with backwards that are compiled before the first."""
    monkeypatch.setattr(autograd, "AHEAD", request.param == "compiled backward")
    return request.param


def both(make):
    """What `make(transform)` gives for eager and compiled, from the same random state."""
    found = []
    for transform in (lambda f: f, lampwork.compile):
        torch.manual_seed(0)
        found.append(make(transform))
    return found


def agree(make):
    eager, compiled = both(make)
    for a, b in zip(
        torch.utils._pytree.tree_leaves(eager), torch.utils._pytree.tree_leaves(compiled), strict=True
    ):
        torch.testing.assert_close(a, b) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b


def message(action):
    with pytest.raises(RuntimeError) as caught:
        action()
    return str(caught.value)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_gradients_between_results():
    def make(transform):
        w, x = leaf(4, 4), torch.randn(3, 4)

        def hidden(x):
            h = torch.tanh(x @ w)
            return h, h.square().sum()

        h, y = transform(hidden)(x)
        return torch.autograd.grad(y, [h, w])

    agree(make)


def test_hooks_and_retained_gradients_of_results():
    def make(transform):
        w, seen = leaf(4, 4), []

        def two(x):
            h = x @ w
            return h.t(), torch.tanh(h.t()).sum(), h

        view, y, h = transform(two)(torch.randn(3, 4))
        h.retain_grad()
        h.register_hook(lambda grad: seen.append(grad.clone()))
        h.register_hook(lambda grad: grad * 2)
        y.backward()
        return seen, h.grad, w.grad, view.grad_fn is None, view._is_view()

    agree(make)


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.mul_(2),
        lambda t: t.relu_(),
        lambda t: t[0].add_(1),
        lambda t: t.view(-1).mul_(3),
        lambda t: t.detach().mul_(2),
    ],
)
def test_writes_to_results(write):
    def make(transform):
        w = leaf(4, 4)
        y, z = transform(lambda x: (x * w, (x * w).view(-1)))(torch.randn(4, 4))
        write(y)
        z.add_(1)
        (y.sum() + z.sum()).backward()
        return y, z, w.grad

    agree(make)


def test_a_view_of_an_input_is_one_of_the_input():
    def make(transform):
        x = leaf(2, 2)
        z = x * 1
        y = transform(lambda t: t.view(-1))(z)
        y.mul_(5)
        z.sum().backward()
        return x.grad, z, y._base is z

    agree(make)


def test_what_eager_does_not_save_may_be_written():
    def make(transform):
        m = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        x = torch.randn(3, 4)
        y = transform(m)(x)
        with torch.no_grad():
            m[0].weight.mul_(0.5)
            m[0].bias.zero_()
            m[2].bias.zero_()
        y.sum().backward()
        return [p.grad for p in m.parameters()]

    agree(make)


def test_what_eager_saves_must_not_be_written():
    def make(transform):
        w = leaf(4)
        x = torch.randn(4)
        y = transform(lambda t: (t * w).exp().sum())(x)
        x.add_(1)
        return message(y.backward)

    agree(make)


def test_a_result_that_is_saved_must_not_be_written():
    def make(transform):
        w = leaf(4)
        y = transform(lambda t: (t * w).exp())(torch.randn(4))
        y.mul_(2)
        return message(lambda: y.sum().backward())[:80]

    agree(make)


def test_indices_that_are_saved_must_not_be_written():
    def make(transform):
        w = leaf(4)
        values, order = transform(lambda x: (x * w).sort(-1))(torch.randn(3, 4))
        order.add_(0)
        return message(lambda: values.sum().backward())[:100]

    agree(make)


def test_a_buffer_written_by_the_region_and_again_before_backward():
    def make(transform):
        b, w = torch.ones(3), leaf(3)

        def step(x):
            b.mul_(2)
            return (x * w * b).sum()

        run = transform(step)
        run(torch.ones(3)).backward()
        first = w.grad.clone()
        y = run(torch.ones(3))
        run(torch.ones(3))
        return first, b, message(y.backward)[:80]

    agree(make)


def test_training_batch_norm_twice_before_backward():
    def make(transform):
        m = nn.BatchNorm1d(4)
        run = transform(m)
        y, z = run(torch.randn(5, 4)), run(torch.randn(5, 4))
        (y.square().sum() + z.pow(3).sum()).backward()
        return m.weight.grad, m.running_mean

    agree(make)


def test_a_second_backward():
    def make(transform):
        w = leaf(4)
        y = transform(lambda x: (x * w).exp().sum())(torch.ones(4))
        y.backward(retain_graph=True)
        y.backward()
        z = transform(lambda x: (x + w).sum())(torch.ones(4))
        z.backward()
        z.backward()
        return message(y.backward), w.grad

    agree(make)


def test_second_derivatives_through_results():
    def make(transform):
        w, x = leaf(4), leaf(4)

        def cube(x):
            h = torch.sin(x) * w
            return h, h.pow(3).sum()

        h, y = transform(cube)(x)
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum() + h.sum(), [x, w])

    agree(make)


def test_order_of_hooks_of_parameters():
    def make(transform):
        m = nn.Sequential(
            nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        )
        order = []
        for name, p in m.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name))
        transform(m)(torch.randn(3, 4)).sum().backward()
        return order

    agree(make)


def test_dropout_is_replayed_and_the_generator_left_alone():
    def make(transform):
        w = leaf(50)
        y, z = transform(lambda x: (F.dropout(x * w, 0.5), F.dropout(w, 0.5)))(torch.ones(50))
        torch.rand(3)
        (y.sum() + z.sum()).backward()
        return y, z, w.grad, torch.rand(1)

    agree(make)


def test_autocast_around_backward_changes_nothing():
    def make(transform):
        w = leaf(4, 4)
        y = transform(lambda x: (x @ w).tanh().sum())(torch.randn(4, 4))
        with torch.autocast("cpu"):
            y.backward()
        return w.grad

    agree(make)


def test_saved_tensor_hooks_see_what_eager_saves():
    def make(transform):
        w, shapes = leaf(4, 4), []

        def pack(t):
            shapes.append(list(t.shape))
            return t

        run = transform(lambda x: (x @ w).tanh().sum())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            run(torch.randn(2, 4)).backward()
        return shapes, w.grad

    agree(make)


def test_anomalies_are_named():
    def make(transform):
        x = torch.ones(3, requires_grad=True)
        run = transform(lambda t: torch.sqrt(t - t))
        with (
            pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
            torch.autograd.detect_anomaly(),
        ):
            y = run(x)
            return message(lambda: (y * 0).sum().backward())

    agree(make)


def test_the_graph_leads_to_the_parameters():
    w, u = leaf(4), leaf(4)
    y = lampwork.compile(lambda x: (x * w).exp() * u)(torch.ones(4))
    work, found = [y.grad_fn], set()
    while work:
        node = work.pop()
        found.add(id(getattr(node, "variable", None)))
        work.extend(item for item, _ in node.next_functions if item is not None)
    assert {id(w), id(u)} <= found


def test_nothing_stays_alive():
    w = leaf(4)
    run = lampwork.compile(lambda x: (x * w).exp())
    x = torch.ones(4)
    y = run(x)
    gone = weakref.ref(y)
    y.sum().backward()
    del y
    gc.collect()
    assert gone() is None


def _layers(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def _without_grad(module):
    with torch.no_grad():
        module[0].weight.mul_(0.5)


def _through_data(module):
    module[0].weight.data[3] = 2.0
    module[2].weight.data.mul_(0.5)


def _through_numpy(module):
    module[0].weight.detach().numpy()[:] = 0.25


def _other_memory(module):
    module[0].weight.data = module[0].weight.data * 3


@pytest.mark.parametrize("width", [4, 200], ids=["small", "large"])
@pytest.mark.parametrize("write", [_without_grad, _through_data, _through_numpy, _other_memory])
def test_weights_that_eager_does_not_save_may_be_written_before_backward(write, width):
    """The first layer's weight is not saved, as its input needs no gradient; the second's is, and eager uses what
    is there by the time of backward."""

    def make(transform):
        module, x = _layers(width), torch.randn(3, width)
        run = transform(module)
        found = []
        for _ in range(2):
            y = run(x)
            write(module)
            y.square().sum().backward()
            found += [parameter.grad.clone() for parameter in module.parameters()]
        return found

    agree(make)


@pytest.mark.parametrize("size", [8, 300], ids=["small", "large"])
@pytest.mark.parametrize("foreign", [False, True], ids=["torch's memory", "NumPy's memory"])
def test_an_input_may_be_written_before_backward(size, foreign):
    def make(transform):
        w, memory = leaf(size, size), torch.randn(size, size).numpy().copy()
        run = transform(lambda x: ((x + w).exp() + x).sin())
        found = []
        for _ in range(2):
            x = torch.from_numpy(memory) if foreign else torch.tensor(memory)
            y = run(x)
            if foreign:
                memory += 1
            else:
                x.mul_(2)
            y.sum().backward()
            found.append(w.grad.clone())
        return found

    agree(make)


def test_a_saved_result_that_was_written_through_data():
    def make(transform):
        w = leaf(6)
        run = transform(lambda x: (x * w).exp())
        found = []
        for _ in range(2):
            y = run(torch.ones(6))
            y.data.mul_(2)
            y.sum().backward()
            found.append(w.grad.clone())
        return found

    agree(make)


def test_an_optimizer_that_steps_while_backward_runs():
    def make(transform):
        torch.manual_seed(0)
        module = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(150, 150), nn.Tanh())])

        @torch.no_grad()
        def step(parameter):
            parameter -= 0.1 * parameter.grad
            parameter.grad = None

        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        run = transform(module)
        for _ in range(3):
            run(torch.randn(2, 150)).square().sum().backward()
        return list(module.parameters())

    agree(make)


def test_what_memory_held():
    """Copied when it is first written, once for all that hold it; not at all for what was let go."""
    big = torch.arange(40000.0)
    tensors = [big, big[100:200].view(10, 10).t(), torch.ones(3), torch.ones(3)]
    holds = [nodes.hold(tensors, how) for how in (b"\1\1\1\0", b"\1\3\2\1")]
    assert all(nodes.changed(held, tensors) == {} for held in holds)
    expected = [tensor.clone() for tensor in tensors]
    big.data.zero_()
    tensors[2].numpy()[1] = 5
    tensors[3].mul_(2)
    first, second = (nodes.changed(held, tensors) for held in holds)
    assert set(first) == {0, 1, 2} and set(second) == {0, 1, 2, 3}
    for number, held in first.items():
        torch.testing.assert_close(held, expected[number], rtol=0, atol=0)
        assert held.stride() == tensors[number].stride()
    assert second[1] is None and first[0].data_ptr() == second[0].data_ptr()
    torch.testing.assert_close(second[3], expected[3], rtol=0, atol=0)


def test_the_version_of_a_written_input():
    def make(transform):
        b = torch.zeros(3)

        def write(x):
            x.add_(1)
            x.view(-1).mul_(2)
            x[0] = 3
            b.copy_(x)
            b.add_(1)
            return x.sum()

        run = transform(write)
        found = []
        for _ in range(3):
            x = torch.ones(3)
            run(x)
            found += [x._version, b._version, x]
        z = leaf(3) * 1
        w = z * z
        with torch.no_grad():
            run(z)
        return [*found, message(lambda: w.sum().backward())]

    agree(make)


def test_results_that_eager_calls_no_views():
    def results(x):
        y = x * 2
        t = y.t().reshape(-1)
        return (
            x.detach(),
            x.t().detach(),
            y,
            y.detach(),
            y[0],
            t,
            torch.empty_like(x.t()).fill_(1),
            x.view(-1),
        )

    def look(transform):
        run = transform(results)
        found = []
        for _ in range(2):
            x = torch.randn(2, 3)
            returned = run(x)
            found.append([(item._is_view(), item._base is x) for item in returned])
        return found

    agree(look)


@pytest.mark.parametrize(
    "pieces", [lambda y: y.unbind(), lambda y: y.chunk(2), lambda y: [row for row in y], lambda y: y.split(1)]
)
def test_views_of_which_one_operator_gives_several_must_not_be_written(pieces):
    def make(transform):
        w, x = leaf(4, 4), torch.randn(4, 4)
        found = transform(lambda x: list(pieces(x * w)))(x)
        with torch.no_grad():
            found[1].mul_(1)

        def inside(x):
            several = pieces(x * w)
            several[0].mul_(2)
            return several

        return [
            message(lambda: found[0].mul_(2))[-60:],
            message(lambda: found[0].view(-1).mul_(2))[-60:],
            message(lambda: transform(inside)(x))[-60:],
        ]

    agree(make)


def view_without_gradient(x):
    with torch.no_grad():
        v = x.view(3)
    return v


def used_outside(x):
    return view_without_gradient(x) * 2


def used_inside(x):
    with torch.no_grad():
        least = x.view(3)[1:] - 1
    return x + least.sum()


@pytest.mark.parametrize("fn", [view_without_gradient, used_outside, used_inside])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_views_of_a_block_without_gradients_are_leaves(fn, is_leaf) -> None:
    """Eager has such a view require grad, as a leaf of its own."""
    x = torch.randn(3, requires_grad=True)
    x = x if is_leaf else x * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lampwork.LampworkWarning)
        mine = lampwork.compile(fn, options={"strict": False})(x)
    eager = fn(x)
    assert torch.equal(mine, eager)
    assert (mine.requires_grad, mine.is_leaf, mine._is_view()) == (
        eager.requires_grad,
        eager.is_leaf,
        eager._is_view(),
    )


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_view_taken_without_gradients_is_lost_to_a_later_write(without) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.view(-1)
        x.mul_(2)
        return y, x.view(-1)

    x = torch.ones(2, 3, requires_grad=True)
    with without(), warnings.catch_warnings():
        warnings.simplefilter("ignore", lampwork.LampworkWarning)
        lost, kept = lampwork.compile(fn, options={"strict": False})(x)
    assert kept.is_leaf
    with pytest.raises(RuntimeError, match="A view was created in"):
        lost * 2


def test_views_that_stay_in_the_block_are_captured() -> None:
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(lampwork.compile(used_inside, options={"strict": True})(x), used_inside(x))


def test_written_data_leaves_the_masks_of_forward_alone():
    w0, x0 = torch.randn(8, 8), torch.randn(4, 8)

    def make(transform):
        def f(x, w):
            y = F.dropout(x.tanh() @ w, 0.3)
            for _ in range(8):
                y = (y.sin() * 2).tanh()
            return y

        x, w = x0.clone().requires_grad_(), w0.clone().requires_grad_()
        result = transform(f)(x, w)
        w.data.mul_(1.0001)
        drawn = torch.get_rng_state()
        result.sum().backward()
        return result.detach(), x.grad, w.grad, drawn.equal(torch.get_rng_state())

    agree(make)


def test_randint_like_has_no_gradient():
    def make(transform):
        x = leaf(40, 40)
        result = transform(lambda x: x.sin() * torch.randint_like(x, 3) * torch.randint_like(x, 1, 5))(x)
        result.sum().backward()
        return result.detach(), x.grad

    agree(make)


def test_a_kernel_that_only_reads_has_not_written():
    """torch._weight_norm asks for memory as if to write."""
    w = torch.randn(8, 8)
    held = nodes.hold([w], bytes([1]))
    torch._weight_norm(w, w[:, :1], 0)
    assert nodes.changed(held, [w]) == {}
    before = w.clone()
    held = nodes.hold([w], bytes([1]))
    w.data.add_(1)
    found = nodes.changed(held, [w])
    assert list(found) == [0] and torch.equal(found[0], before)


def _assigned(x):
    y = x * 2
    y[0] = 1
    y[1:] += 2
    return y


def _aliases(x):
    y = x * 2
    z = y[1:]
    y.add_(1)
    z.mul_(2)
    return y, z


def _ten_times(x):
    for _ in range(10):
        x = (x.sin() + 1).mul_(0.5).add_(1)
    return x


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).add_(1),
        lambda x: (x * 2).add_(1)[1:],
        lambda x: (x * 2).add_(1).detach(),
        lambda x: (x * 2).add_(1).unsqueeze_(0),
        lambda x: torch.empty_like(x).copy_(x),
        lambda x: torch.empty_like(x).normal_(),
        lambda x: torch.zeros(3) + x[0, :3],
        lambda x: torch.add(x.detach(), 1, out=torch.empty(4, 4)),
        _assigned,
        _aliases,
        _ten_times,
    ],
)
def test_versions_of_what_a_region_makes(function, grad):
    def make(transform):
        f = transform(function)
        x = torch.randn(4, 4, requires_grad=grad) * 1
        results = torch.utils._pytree.tree_leaves(f(x))
        seen = [result._version for result in results]
        for result in results:
            if result.requires_grad:
                result.sum().backward(retain_graph=True)
        return seen

    agree(make)


_VIEWS = {
    "slice": lambda x: x[1:],
    "view": lambda x: x.view(-1),
    "copied": lambda x: x.t().reshape(-1),
    "itself": lambda x: x.contiguous(),
    "detached": lambda x: x[1:].detach(),
    "of detached": lambda x: x.detach()[1:],
    "split": lambda x: x.split(2)[1],
    "in place": lambda x: x.unsqueeze_(0),
    "fresh": lambda x: x.exp(),
}


@pytest.mark.parametrize("name", _VIEWS)
def test_views_know_that_they_are(name):
    def make(transform):
        def f(x):
            y = _VIEWS[name](x + 1)
            return y._is_view(), y.sum()

        return transform(f)(torch.randn(4, 4))

    agree(make)


def test_whether_a_tensor_from_outside_is_a_view():
    def f(x):
        return x._is_view(), x.sum()

    compiled = lampwork.compile(f)
    base = torch.randn(4, 4)
    assert [compiled(x)[0] for x in (base, base[1:], base)] == [False, True, False]


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_effects_before_the_point_where_a_checkpoint_stops_happen() -> None:
    counts, layer, norm = [0], torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)

    def block(x: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return torch.relu(norm(layer(x))) * 2

    seen: list[tuple[int, torch.Tensor]] = []
    x = torch.randn(4, 3)
    for function in (block, lampwork.compile(block)):
        counts[0] = 0
        norm.reset_running_stats()
        for _ in range(3):
            given = x.clone().requires_grad_()
            torch.utils.checkpoint.checkpoint(function, given, use_reentrant=False).sum().backward()
        assert norm.running_mean is not None
        seen.append((counts[0], norm.running_mean.clone()))
    assert seen[0][0] == seen[1][0] == 6
    torch.testing.assert_close(seen[0][1], seen[1][1])


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_effects_before_a_hook_that_raises_happen() -> None:
    told: list[str] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        told.append("before")
        y = torch.sin(x)
        told.append("after")
        return y

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        raise ValueError("pack")

    compiled = lampwork.compile(function)
    compiled(torch.ones(2, requires_grad=True))
    told.clear()
    with pytest.raises(ValueError, match="pack"), torch.autograd.graph.saved_tensors_hooks(pack, torch.clone):
        compiled(torch.ones(2, requires_grad=True))
    assert told == ["before"]
