"""Compiled and Entry: dispatch, recipes, failures, and how the callable behaves as a Python object."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from children import failure
from runtime_programs import Kernels, args_region, lerp_program, make_region, tensor_guard, value

from lampwork.capture.model.region import Arg, Attr, DictItem, Guard, Known, Kwarg, Recipe, Step
from lampwork.errors import RuntimeFailure
from lampwork.runtime import Compiled, Executable, make_entry, stats
from lampwork.runtime.program import CallAten, CallKernel, Program, Ref


def missing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return ("miss", len(args), tuple(kwargs))


def lerp_entry(kernels: Kernels, n: int, **options: Any) -> Any:
    like = [torch.empty(n) for _ in range(3)]
    return make_entry(args_region(*like), Executable(lerp_program(kernels, like[0])), **options)


def test_entries_are_tried_and_the_last_hit_comes_first(kernels: Kernels) -> None:
    compiled = Compiled(missing)
    entries = [lerp_entry(kernels, n) for n in (10, 20, 30)]
    for entry in entries:
        compiled.add_entry(entry)
    assert compiled.raw_entries == tuple(entries)
    before = stats()
    for n in (10, 20, 30, 10, 10):
        a, b, w = (torch.randn(n) for _ in range(3))
        torch.testing.assert_close(compiled(a, b, w), torch.lerp(a, b, w))
    assert [entry.hits for entry in entries] == [3, 1, 1]
    assert compiled(torch.ones(40), torch.ones(40), torch.ones(40)) == ("miss", 3, ())
    assert compiled(torch.ones(10), torch.ones(10), w=torch.ones(10)) == ("miss", 2, ("w",))
    after = stats()
    assert after["calls"] - before["calls"] == 7
    assert after["compiled_calls"] - before["compiled_calls"] == 5
    assert after["misses"] - before["misses"] == 2
    compiled.remove_entry(entries[1])
    assert compiled(*(torch.ones(20) for _ in range(3))) == ("miss", 3, ())
    with pytest.raises(ValueError):
        compiled.remove_entry(entries[1])
    compiled.clear()
    assert compiled.raw_entries == ()
    with pytest.raises(TypeError, match="add_entry expects"):
        compiled.add_entry(5)  # type: ignore[arg-type]


def test_errors_of_on_miss_come_through() -> None:
    def fail(args: Any, kwargs: Any) -> Any:
        raise LookupError("no version")

    with pytest.raises(LookupError, match="no version"):
        Compiled(fail)(1)
    with pytest.raises(TypeError, match="on_miss must be callable"):
        Compiled(5)  # type: ignore[arg-type]


def test_recipe_builds_the_result_and_replays_effects(kernels: Kernels) -> None:
    x = torch.randn(16)
    values = (value("input", x, position=0), value("fresh", x), value("fresh", x))
    calls = (
        CallKernel(kernels["double"], (0, 1), extent=16),
        CallKernel(kernels["double"], (1, 2), extent=16),
    )
    program = Executable(Program(values, calls, (1, 2, 0), 1, 0, 0))
    log: list[Any] = []
    steps = (
        Step("output", 0),
        Step("output", 1),
        Step("output", 2),
        Step("source", DictItem(Kwarg("options"), "scale")),
        Step("const", "name"),
        Step("tuple", args=(0, 0, 2)),
        Step("list", args=(1, 3)),
        Step("dict", args=(4, 5, 3, 6)),
        Step("const", operator.setitem),
        Step("source", Kwarg("options")),
        Step("const", "scale"),
        Step("const", 9),
        Step("call", args=(8, 9, 10, 11)),
        Step("const", log.append),
        Step("call", args=(13, 7)),
    )
    guards = (tensor_guard(Arg(0), x), Guard(Kwarg("options"), "type", dict))
    region = make_region((Arg(0),), guards, n_args=1, kwarg_names=("options",), recipe=Recipe(steps, 7))
    compiled = Compiled(missing)
    compiled.add_entry(make_entry(region, program))
    options = {"scale": 4}
    result = compiled(x, options=options)
    assert list(result) == ["name", 4]
    first, again, same = result["name"]
    assert first is again and same is x
    torch.testing.assert_close(first, 2 * x)
    torch.testing.assert_close(result[4][0], 4 * x)
    assert result[4][1] == 4 and options == {"scale": 9} and log == [result]


def test_region_without_tensor_work() -> None:
    region = make_region(
        (), (Guard(Arg(0), "equals", 3),), n_args=1, recipe=Recipe((Step("source", Arg(0)),), 0)
    )
    compiled = Compiled(missing)
    compiled.add_entry(make_entry(region, None))
    assert compiled(3) == 3 and compiled(4) == ("miss", 1, ())


def test_inputs_from_objects(kernels: Kernels) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.x = torch.randn(8)  # type: ignore[attr-defined]
    values = (value("input", holder.x, position=0), value("fresh", holder.x))
    program = Executable(Program(values, (CallKernel(kernels["double"], (0, 1), extent=8),), (1,), 1, 0, 0))
    source = Attr(Known(holder, "holder"), "x")
    compiled = Compiled(missing)
    compiled.add_entry(
        make_entry(make_region((source,), (tensor_guard(source, holder.x),), n_args=0), program)
    )
    torch.testing.assert_close(compiled(), 2 * holder.x)
    holder.x = torch.randn(8)
    torch.testing.assert_close(compiled(), 2 * holder.x)
    holder.x = None
    assert compiled() == ("miss", 0, ())
    del holder.x
    assert compiled() == ("miss", 0, ())


def test_input_that_is_no_tensor_is_a_miss(kernels: Kernels) -> None:
    x = torch.randn(8)
    values = (value("input", x, position=0), value("fresh", x))
    program = Executable(Program(values, (CallKernel(kernels["double"], (0, 1), extent=8),), (1,), 1, 0, 0))
    compiled = Compiled(missing)
    compiled.add_entry(make_entry(make_region((Arg(0),), (), n_args=1), program))
    torch.testing.assert_close(compiled(x), 2 * x)
    assert compiled(5) == ("miss", 1, ())


def test_python_callable_as_program_gets_inputs_then_bound() -> None:
    weight = torch.randn(4, requires_grad=True)
    seen: list[Any] = []

    def program(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        seen.append(tensors)
        return (tensors[0] * tensors[1],)

    x = torch.randn(4)
    compiled = Compiled(missing)
    compiled.add_entry(make_entry(args_region(x, bound=(weight,)), program))
    out = compiled(x)
    assert out.requires_grad and seen[0][0] is x and seen[0][1] is weight
    weight.requires_grad_(False)
    assert compiled(x) == ("miss", 1, ())
    weight.requires_grad_(True)
    assert compiled(x) is not None
    weight.data = torch.randn(5)
    assert compiled(x) == ("miss", 1, ())


def test_bound_tensor_that_no_longer_fits_is_a_miss(kernels: Kernels) -> None:
    x, p = torch.randn(8), torch.nn.Parameter(torch.randn(8))
    values = (value("input", x, position=0), value("bound", p, position=0), value("fresh", x))
    program = Program(values, (CallKernel(kernels["add"], (0, 1, 2), extent=8),), (2,), 1, 1, 0)
    compiled = Compiled(missing)
    entry = make_entry(args_region(x, bound=(p,)), Executable(program, (p,)))
    compiled.add_entry(entry)
    torch.testing.assert_close(compiled(x), (x + p).detach())
    p.data = torch.randn(8)
    torch.testing.assert_close(compiled(x), (x + p).detach())
    p.requires_grad_(False)
    assert compiled(x) == ("miss", 1, ())
    p.requires_grad_(True)
    p.data = torch.randn(9)
    assert compiled(x) == ("miss", 1, ())
    assert entry.explain((x,), {}) == "a bound tensor changed its shape, strides, dtype or requires_grad"
    with pytest.raises(ValueError, match="made with 1 bound tensors, the region has 0"):
        make_entry(args_region(x), Executable(program, (p,)))


def failing_entry(
    kernels: Kernels, calls: tuple[Any, ...], on_failure: Any, recipe: Recipe | None = None
) -> Any:
    x = torch.empty(4)
    values = (value("input", x, position=0), value("fresh", x))
    program = Executable(Program(values, calls, (1,), 1, 0, 0))
    return make_entry(args_region(x, recipe=recipe), program, on_failure=on_failure)


def test_failure_is_rerun_unless_something_was_written(kernels: Kernels) -> None:
    fail = CallKernel(kernels["fail"], (0, 1), name="gather")
    write = CallAten("aten::zero_", (Ref(0),))
    calls: list[Any] = []

    def on_failure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append((args, kwargs))
        raise IndexError("index 9 is out of bounds")

    x = torch.ones(4)
    compiled = Compiled(missing)
    compiled.add_entry(failing_entry(kernels, (fail,), on_failure))
    with pytest.raises(IndexError, match="index 9"):
        compiled(x)
    assert calls == [((x,), {})]

    compiled.clear()
    compiled.add_entry(failing_entry(kernels, (write, fail), on_failure))
    with pytest.raises(RuntimeFailure, match="kernel 'gather' reported a failure"):
        compiled(x)
    assert len(calls) == 1 and x.sum() == 0

    compiled.clear()
    compiled.add_entry(failing_entry(kernels, (fail,), None))
    with pytest.raises(RuntimeFailure, match="gather"):
        compiled(x)

    def broken_effect() -> None:
        raise KeyError("effect")

    recipe = Recipe((Step("const", broken_effect), Step("call", args=(0,))), 1)
    compiled.clear()
    compiled.add_entry(failing_entry(kernels, (), on_failure, recipe))
    with pytest.raises(KeyError, match="effect"):
        compiled(x)
    assert len(calls) == 1, "effects must not be replayed twice"


def test_entry_runs_by_itself(kernels: Kernels) -> None:
    entry = lerp_entry(kernels, 8, on_failure=lambda args, kwargs: "eager")
    a, b, w = (torch.randn(8) for _ in range(3))
    torch.testing.assert_close(entry.run((a, b, w), {}), torch.lerp(a, b, w))
    assert entry.run((a, b), {}) == "eager"
    with pytest.raises(RuntimeFailure, match="does not match"):
        lerp_entry(kernels, 8).run((a, b), {})


def test_entry_of_wrong_form_is_refused(kernels: Kernels) -> None:
    x = torch.empty(8)
    program = Executable(lerp_program(kernels, x))
    with pytest.raises(ValueError, match="takes 3 inputs, the region has 1"):
        make_entry(args_region(x), program)
    with pytest.raises(ValueError, match="an output that the program does not have"):
        make_entry(args_region(x, x, x, recipe=Recipe((Step("output", 1),), 0)), program)
    with pytest.raises(ValueError, match="does not precede"):
        make_entry(args_region(x, x, x, recipe=Recipe((Step("tuple", args=(0,)),), 0)), program)
    with pytest.raises(ValueError, match="not one of its steps"):
        make_entry(args_region(x, x, x, recipe=Recipe((), 0)), program)
    with pytest.raises(TypeError, match="must be a lampwork._C.Executable"):
        make_entry(args_region(x), 5)  # type: ignore[arg-type]


def test_compiled_as_a_python_object() -> None:
    compiled = Compiled(missing)
    compiled.__name__ = "f"
    compiled.__doc__ = "Doc."
    assert (
        compiled.__name__ == "f"
        and compiled.__doc__ == "Doc."
        and repr(compiled) == "<lampwork compiled function f>"
    )
    assert callable(compiled) and compiled.on_miss is missing

    class Owner:
        method = compiled

    owner = Owner()
    assert owner.method.__self__ is owner and owner.method.__func__ is compiled, "binds as a function does"
    compiled.binds = False
    assert owner.method is compiled
    for action in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot pickle or deepcopy what lampwork compiled"):
            action(compiled)
    reference = weakref.ref(compiled)
    del compiled, owner, Owner
    gc.collect()
    assert reference() is None


def test_cycles_are_collected(kernels: Kernels) -> None:
    class Owner:
        def on_miss(self, args: Any, kwargs: Any) -> Any:
            return None

    owner = Owner()
    owner.compiled = Compiled(owner.on_miss)  # type: ignore[attr-defined]
    x = torch.empty(4)
    table = {"owner": owner}
    region = make_region(
        (), (Guard(Known(owner, "owner"), "is", owner),), n_args=0, recipe=Recipe((Step("const", owner),), 0)
    )
    region.slow_guards = (Guard(DictItem(Known(table, "t"), "owner"), "is", owner),)
    region.versioned = (table,)
    entry = make_entry(region, None, on_failure=owner.on_miss)
    owner.compiled.add_entry(entry)  # type: ignore[attr-defined]
    owner.compiled.add_entry(lerp_entry(kernels, 4, on_failure=owner.on_miss))  # type: ignore[attr-defined]
    assert owner.compiled() is owner  # type: ignore[attr-defined]
    reference = weakref.ref(owner)
    del owner, entry, region, table, x
    gc.collect()
    assert reference() is None


def test_entries_may_go_while_they_run() -> None:
    compiled = Compiled(missing)

    def program(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        compiled.clear()
        gc.collect()
        return [tensors[0] + 1]

    x = torch.ones(4)
    compiled.add_entry(make_entry(args_region(x), program))
    assert torch.equal(compiled(x), x + 1)
    assert compiled(x) == ("miss", 1, ())


def test_many_threads_call_one_function(kernels: Kernels) -> None:
    compiled = Compiled(missing)
    sizes = (100, 20_000)
    for n in sizes:
        compiled.add_entry(lerp_entry(kernels, n))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(150):
            n = sizes[(i + seed) % 2]
            a, b, w = (torch.randn(n, generator=generator) for _ in range(3))
            if (compiled(a, b, w) - torch.lerp(a, b, w)).abs().max() > 1e-4:
                wrong.append((seed, i))
            if seed == 0 and i % 10 == 0:
                compiled.add_entry(lerp_entry(kernels, 30 + i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forked_child_runs_compiled_code(kernels: Kernels) -> None:
    compiled = Compiled(missing)
    compiled.add_entry(lerp_entry(kernels, 20_000))
    a, b, w = (torch.randn(20_000) for _ in range(3))
    expected = compiled(a, b, w)
    assert not failure([("run", lambda: "" if torch.equal(compiled(a, b, w), expected) else "other values")])
