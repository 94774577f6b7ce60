"""What a compiled function keeps alive, and what it does not."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.api import function_of
from lampwork.runtime import stats

x = torch.randn(2, 4)


def gone(*found: weakref.ref[Any]) -> list[bool]:
    gc.collect()
    gc.collect()
    return [each() is None for each in found]


def test_a_module_that_was_an_argument_may_go():
    compiled: Any = lampwork.compile(lambda m, x: m(x))
    model = nn.Linear(4, 4)
    torch.testing.assert_close(compiled(model, x), model(x))
    torch.testing.assert_close(compiled(model, x + 1), model(x + 1))
    assert len(compiled.entries) == 1 and compiled.entries[0].hits == 2
    refs = weakref.ref(model), weakref.ref(model.weight)
    del model
    assert gone(*refs) == [True, True]
    assert len(compiled.entries) == 0


def test_a_new_module_at_the_same_place_is_another():
    compiled: Any = lampwork.compile(lambda m, x: m(x))
    for number in range(20):
        model = nn.Linear(4, 4)
        nn.init.constant_(model.weight, number)
        for _ in range(2):
            torch.testing.assert_close(compiled(model, x), model(x))
        del model
        gc.collect()


def test_each_instance_has_its_own_limit():
    compiled: Any = lampwork.compile(lambda m, x: m(x), options={"recompile_limit": 2})
    models = [nn.Linear(4, 4) for _ in range(5)]
    for _ in range(2):
        for model in models:
            torch.testing.assert_close(compiled(model, x), model(x))
    # Past the limit a module is compiled when it comes for the second time.
    assert [entry.hits for entry in compiled.entries] == [2, 2, 1, 1, 1]
    assert not function_of(compiled).refusals
    for batch in (3, 4, 5):
        compiled(models[0], torch.randn(batch, 4))
    assert not function_of(compiled).refused


def test_modules_that_come_once_count_though_they_are_not_collected():
    compiled: Any = lampwork.compile(lambda m, x: m(x), options={"recompile_limit": 4})
    before = lampwork.stats()["regions"]
    for _ in range(20):
        model = nn.Linear(4, 4)
        torch.testing.assert_close(compiled(model, x), model(x))
    assert lampwork.stats()["regions"] - before == 4


def test_a_decorated_method_serves_all_instances():
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.step = 0

        @lampwork.compile
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.step += 1
            return self.layer(x) * self.step

    instances = [Layer() for _ in range(20)]
    for step in (1, 2):
        for instance in instances:
            torch.testing.assert_close(instance(x), instance.layer(x) * step)
    before = stats()["compiled_calls"]
    for instance in instances:
        instance(x)
    assert stats()["compiled_calls"] - before == 20
    refs = [weakref.ref(instance) for instance in instances]
    del instances, instance
    assert all(gone(*refs))


def test_modules_that_come_once_are_not_compiled_for_ever():
    compiled: Any = lampwork.compile(lambda m, x: m(x), options={"recompile_limit": 4})
    for _ in range(8):
        compiled(nn.Linear(4, 4), x)
        gc.collect()
    assert len(compiled.entries) == 0
    before = stats()["compiled_calls"]
    compiled(nn.Linear(4, 4), x)
    assert stats()["compiled_calls"] == before
    model = nn.Linear(4, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(model, x), model(x))
    assert compiled.entries[0].hits == 2


def test_a_replaced_module_may_go():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = lampwork.compile(model)
    compiled(x)
    refs = weakref.ref(model[0]), weakref.ref(model[0].weight)
    model[0] = nn.Linear(4, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert gone(*refs) == [True, True]


def test_a_replaced_parameter_may_go():
    model = nn.Linear(4, 4)
    compiled = lampwork.compile(model)
    compiled(x)
    found = weakref.ref(model.weight)
    model.weight = nn.Parameter(torch.randn(4, 4))
    torch.testing.assert_close(compiled(x), model(x))
    assert gone(found) == [True]


def test_modules_that_take_turns_keep_their_versions():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.Sequential(first, nn.ReLU())
    compiled = lampwork.compile(model)
    for _ in range(4):
        for each in (first, second):
            model[0] = each
            torch.testing.assert_close(compiled(x), model(x))
    assert [entry.hits for entry in compiled.entries] == [4, 4]


def test_an_owner_is_copied_and_saved_without_its_versions():
    compiled: Any = lampwork.compile(lambda m, x: m(x))
    model = nn.Linear(4, 4)
    attributes = dict(vars(model))
    want = compiled(model, x)
    assert vars(model) == attributes and list(model.state_dict()) == ["weight", "bias"]
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        torch.testing.assert_close(compiled(other, x), want)
    assert len(compiled.entries) == 3


@lampwork.compile
def doubled(t: torch.Tensor) -> torch.Tensor:
    return t * 2


def test_a_compiled_function_is_copied_and_pickled_as_functions_are():
    assert copy.copy(doubled) is copy.deepcopy(doubled) is pickle.loads(pickle.dumps(doubled)) is doubled
    model = nn.Linear(4, 4)
    model.act = doubled
    twin = copy.deepcopy(model)
    assert twin.act is doubled and twin.weight is not model.weight
    torch.testing.assert_close(twin.act(x), x * 2)
    with pytest.raises(pickle.PicklingError, match="doubled"):
        pickle.dumps(lampwork.compile(doubled.__wrapped__))


def test_a_call_that_raises_is_captured_once():
    captured = 0

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x + 1
        if n < 0:
            raise ValueError(f"negative: {n}")
        return y

    compiled = lampwork.compile(fn)
    before = stats()["misses"]
    for _ in range(5):
        with pytest.raises(ValueError, match="negative: -1"):
            compiled(x, -1)
    assert stats()["misses"] - before == 1
    torch.testing.assert_close(compiled(x, 3), fn(x, 3))
    assert len(compiled.entries) == 1
    assert captured == 0


def test_calls_that_stop_raising_are_captured_again():
    broken = [True]

    def fn(x: torch.Tensor) -> torch.Tensor:
        if broken[0]:
            raise KeyError("broken")
        return x * 2

    compiled = lampwork.compile(fn)
    for _ in range(3):
        with pytest.raises(KeyError):
            compiled(x)
    broken[0] = False
    torch.testing.assert_close(compiled(x), x * 2)
    assert len(compiled.entries) == 1


def test_many_ways_to_raise_are_bounded():
    def fn(x: torch.Tensor, name: str) -> torch.Tensor:
        raise LookupError(name)

    compiled = lampwork.compile(fn)
    for number in range(40):
        with pytest.raises(LookupError, match=str(number)):
            compiled(x, str(number))
    assert len(compiled.raw_entries) <= 4


@pytest.mark.parametrize("kind", ["plain", "breaking", "raising", "state"])
def test_calls_leave_nothing_behind(kind):
    class Holder:
        h = torch.zeros(2, 4)

    holder = Holder()
    holder.h = torch.zeros(2, 4)

    def plain(x: torch.Tensor) -> Any:
        return x * 2, [x + 1], {"a": x.sum()}

    def breaking(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum().item() > 1e9 else y - 1

    def raising(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(x + 1)

    def state(x: torch.Tensor) -> torch.Tensor:
        holder.h = holder.h * 0.5 + x
        return holder.h

    fn = {"plain": plain, "breaking": breaking, "raising": raising, "state": state}[kind]
    compiled: Any = lampwork.compile(fn)

    def calls(count: int) -> None:
        for _ in range(count):
            try:
                compiled(x)
            except ValueError:
                pass

    with torch.no_grad():
        calls(30)
        gc.collect()
        before = len(gc.get_objects())
        calls(300)
        gc.collect()
    assert len(gc.get_objects()) - before < 20


_LAST = """
import torch, lampwork
f = lampwork.compile(lambda x: x.sum() * 2)
class Last:
    def __del__(self):
        print(f(torch.ones(3)).item())
last = Last()
last.itself = last
print(f(torch.ones(2)).item())
"""


def test_nothing_is_compiled_while_the_process_ends():
    done = subprocess.run([sys.executable, "-c", _LAST], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4.0\n6.0\n", "")
