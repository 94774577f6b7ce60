"""What `compile` returned is copied, saved and sent away as its original with the keywords of `compile`."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.api import function_of
from lampwork.errors import OptionError

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())

    def forward_twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(self.forward(x))


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def plain(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


@lampwork.compile
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x + 3


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


WAYS = {"save": saved, "pickle": pickled, "deepcopy": copy.deepcopy}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
Way = Callable[[Any], Any]


@each_way
def test_a_module_is_compiled_again_with_the_keywords_of_then(way: Way) -> None:
    compiled = lampwork.compile(
        Net(), fullgraph=True, dynamic=False, options={"recompile_limit": 3}, name="net"
    )
    want = compiled(X)
    other = way(compiled)
    assert isinstance(other, Net) and other.entries == () and len(compiled.entries) == 1
    torch.testing.assert_close(other(X), want, rtol=0, atol=0)
    assert len(other.entries) == 1, "it compiled for itself"
    mine, its = function_of(compiled), function_of(other)
    assert (its.fullgraph, its.config.recompile_limit, its.name) == (True, 3, mine.name)
    other(X[:2])
    assert len(other.entries) == 2, "dynamic=False"
    with torch.no_grad():
        other.first.weight.zero_()
    torch.testing.assert_close(compiled(X), want)
    twice = way(other)
    torch.testing.assert_close(twice(X), other(X))


@each_way
def test_half_compiled_and_with_hooks(way: Way) -> None:
    net = Net()
    net.first = lampwork.compile(net.first)
    net.second.register_forward_hook(hook)
    outer = nn.Sequential(lampwork.compile(net), nn.ReLU())
    want = outer(X)
    other = way(outer)
    assert [list(each.state_dict()) for each in (outer, other)] == [
        ["0.first.weight", "0.first.bias", "0.second.weight", "0.second.bias"]
    ] * 2
    torch.testing.assert_close(other(X), want)
    assert len(other[0].entries) == 1 and function_of(other[0].first) is not function_of(net.first)


def hook(_module: nn.Module, _args: Any, result: torch.Tensor) -> torch.Tensor:
    return result + 1


@each_way
def test_a_module_that_leads_back_to_what_was_compiled_of_it(way: Way) -> None:
    net = Net()
    compiled = lampwork.compile(net)
    net.__dict__["whole"] = compiled  # as callbacks and trainers keep it
    other = way(compiled)
    assert other.whole is other
    torch.testing.assert_close(other(X), compiled(X))


@each_way
def test_a_forward_that_is_compiled_computes_with_the_weights_of_its_copy(way: Way) -> None:
    net = Net()
    net.forward = lampwork.compile(net.forward, fullgraph=True)
    want = net(X)
    other = way(net)
    torch.testing.assert_close(other(X), want)
    assert len(other.forward.entries) == 1 and function_of(other.forward).fullgraph
    with torch.no_grad():
        other.second.weight.zero_()
        other.second.bias.zero_()
    assert not other(X).any()
    torch.testing.assert_close(net(X), want)
    alone = way(net.forward)
    torch.testing.assert_close(alone(X), want)


@each_way
def test_methods_partials_and_objects(way: Way) -> None:
    net = Net()
    for original in (net.forward_twice, functools.partial(plain, factor=3.0), Scaled(5.0), torch.relu, plain):
        compiled = lampwork.compile(original)
        other = way(compiled)
        torch.testing.assert_close(other(X), original(X))
        assert function_of(other) is not function_of(compiled) or original is plain
    scaled = Scaled(1.0)
    compiled = lampwork.compile(scaled)
    other = way(compiled)
    scaled.factor = 2.0
    torch.testing.assert_close((compiled(X), other(X)), (X * 2, X))


def test_decorated_functions_are_pickled_by_name_and_copied_as_themselves() -> None:
    assert all(way(decorated) is decorated for way in (*WAYS.values(), copy.copy))
    local = lampwork.compile(lambda x: x + 1)
    assert copy.deepcopy(local) is local
    with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
        pickle.dumps(local)


def test_what_pickles_functions_by_value_may_do_so() -> None:
    """As cloudpickle does: it sees the original, and never the C++ callable."""

    class ByValue(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is types.FunctionType and obj.__name__ == "<lambda>":
                return rebuilt, (obj.__code__.co_consts[1],)
            return NotImplemented

    file = io.BytesIO()
    ByValue(file).dump(lampwork.compile(lambda x: x + 7, fullgraph=True))
    other = pickle.loads(file.getvalue())
    torch.testing.assert_close(other(X), X + 7)
    assert function_of(other).fullgraph


def rebuilt(number: int) -> Any:
    return lambda x: x + number


def test_a_shallow_copy_shares_the_weights() -> None:
    compiled = lampwork.compile(Net(), fullgraph=True)
    other = copy.copy(compiled)
    assert other is not compiled and other.first.weight is compiled.first.weight
    torch.testing.assert_close(other(X), compiled(X))
    assert len(other.entries) == 1 and function_of(other).fullgraph


def test_options_of_a_context_stay_for_copies_and_are_the_loading_process_s_for_pickles() -> None:
    with lampwork.config.using(recompile_limit=2):
        compiled = lampwork.compile(Net())
    assert function_of(copy.deepcopy(compiled)).config.recompile_limit == 2
    assert (
        function_of(pickled(compiled)).config.recompile_limit
        == lampwork.config.current().recompile_limit
        != 2
    )


def test_a_backend_that_was_given_as_an_object_is_shared_by_copies() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        return graph.forward

    compiled = lampwork.compile(Net(), backend=backend)
    assert function_of(copy.deepcopy(compiled)).backends == function_of(compiled).backends
    with pytest.raises((pickle.PicklingError, AttributeError), match="backend"):
        pickle.dumps(compiled)


def test_a_pickle_with_a_keyword_that_is_not_known_says_so() -> None:
    from lampwork.api import compile_again

    with pytest.raises(OptionError, match="no keyword 'whole_graph'"):
        compile_again(Net(), {"whole_graph": True})


def test_weights_alone_are_loaded_without_pickle() -> None:
    compiled = lampwork.compile(nn.Sequential(nn.Linear(4, 4), lampwork.compile(nn.Linear(4, 2))))
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    plain_one = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    plain_one.load_state_dict(state)
    torch.testing.assert_close(plain_one(X), compiled(X))
    compiled.load_state_dict(plain_one.state_dict())


def _child(model: Any, function: Any, x: torch.Tensor, results: Any) -> None:
    with torch.no_grad():
        results.put((model(x).tolist(), function(x).tolist(), len(model.entries)))


def test_another_process_gets_a_module_that_it_compiles() -> None:
    context = multiprocessing.get_context("spawn")
    compiled = lampwork.compile(Net(), fullgraph=True)
    results = context.Queue()
    process = context.Process(target=_child, args=(compiled, decorated, X, results))
    process.start()
    model, function, count = results.get(timeout=120)
    process.join(timeout=60)
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(model), compiled(X))
    torch.testing.assert_close(torch.tensor(function), X + 3)
    assert (process.exitcode, count) == (0, 1)
