"""Symbols: what is read, which conditions hold, what recipes make of them, and programs by their values."""

from __future__ import annotations

import gc
import math
import random
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from runtime_programs import Kernels, lerp_program, make_region

from lampwork.capture.model.printing import format_failure
from lampwork.capture.model.region import (
    Arg,
    Attr,
    Guard,
    Known,
    Recipe,
    Region,
    Source,
    Step,
    Symbol,
    TensorGuard,
)
from lampwork.graph.symbols import Condition
from lampwork.loops.ir.polynomial import Index, as_index
from lampwork.runtime import Compiled, Entry, Executable, make_entry, stats

S0, S1 = Index.sym("s0"), Index.sym("s1")
BIG = 2**62


def missing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return ("miss", len(args), tuple(kwargs))


def open_guard(source: Source, rank: int, dtype: torch.dtype = torch.float32) -> Guard:
    """A tensor of this rank and dtype, its sizes and strides left open."""
    nothing = (None,) * rank
    return Guard(
        source, "tensor", TensorGuard(torch.Tensor, dtype, torch.device("cpu"), nothing, nothing, False)
    )


def numbers(*values: Index | int) -> Recipe:
    """A recipe that returns a tuple of ints."""
    steps = tuple(Step("symbol", as_index(value)) for value in values)
    return Recipe((*steps, Step("tuple", args=tuple(range(len(steps))))), len(steps))


def int_region(
    *conditions: Condition, recipe: Recipe | None = None, symbols: int = 1, negated: bool = False
) -> Region:
    """A region of ints only: its arguments are s0, s1, …"""
    region = make_region((), (), n_args=symbols, recipe=recipe or numbers(S0))
    region.symbols = tuple(Symbol(f"s{i}", Arg(i), "int", negated=negated, hint=3) for i in range(symbols))
    region.conditions = conditions
    return region


def compiled_of(region: Region, **options: Any) -> tuple[Compiled, Entry]:
    entry = make_entry(region, None, **options)
    compiled = Compiled(missing)
    compiled.add_entry(entry)
    return compiled, entry


# --- reading ----------------------------------------------------------------------------------------------------------


class Int(int):
    pass


class Float(float):
    pass


@pytest.mark.parametrize(
    "value", [True, 1.0, "1", None, Int(3), 2**63, -(2**63) - 1, 10**40, torch.tensor(3)]
)
def test_an_int_symbol_is_exactly_an_int_of_64_bits(value: Any) -> None:
    compiled, entry = compiled_of(int_region())
    for good in (3, 0, -7, 2**63 - 1, -(2**63)):
        assert compiled(good) == (good,)
    assert compiled(value) == ("miss", 1, ())
    assert format_failure(entry.explain((value,), {})) == "s0 = args[0] cannot be read as an int of 64 bits"
    assert entry.values((value,), {}) is None
    assert entry.values((5,), {}) == {"s0": 5}
    assert entry.hits == 5


def test_negated_symbols() -> None:
    compiled, _ = compiled_of(int_region(Condition(">=", S0 - 2), negated=True, recipe=numbers(S0, -S0)))
    assert compiled(-5) == (5, -5)
    assert compiled(-1) == compiled(5) == compiled(-(2**63)) == ("miss", 1, ())


def size_region(kind: Any = "size", dim: int = 1, guards: tuple[Guard, ...] | None = None) -> Region:
    x = Arg(0)
    region = make_region((), (open_guard(x, 2),) if guards is None else guards, n_args=1, recipe=numbers(S0))
    region.symbols = (Symbol("s0", x, kind, dim, hint=4),)
    return region


def test_sizes_and_strides_are_read_from_tensors() -> None:
    sizes, _ = compiled_of(size_region())
    strides, _ = compiled_of(size_region("stride", 0))
    assert sizes(torch.ones(2, 5)) == (5,) and sizes(torch.ones(0, 0)) == (0,)
    assert strides(torch.ones(5, 2)[::3]) == (6,) and strides(torch.ones(1, 3).expand(4, 3)) == (0,)
    for wrong in (torch.ones(5), torch.ones(2, 5, 1), torch.ones(2, 5, dtype=torch.float64), 5, None):
        assert sizes(wrong) == ("miss", 1, ()), "rank and dtype are guarded as ever"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sizes_of_what_has_none_do_not_match() -> None:
    """Without a tensor guard in front: the reader itself is safe for every object."""
    compiled, entry = compiled_of(size_region(guards=()))
    strided, _ = compiled_of(size_region("stride", guards=()))

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (4, 6))  # type: ignore[attr-defined]

        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("guards must not compute")

    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for wrong in (3, None, "ab", torch.ones(5), nested, Wrapper()):
        assert compiled(wrong) == ("miss", 1, ())
    assert compiled(torch.nn.Parameter(torch.ones(4, 6))) == (6,)
    assert strided(torch.eye(3).to_sparse()) == ("miss", 1, ())
    assert format_failure(entry.explain((3,), {})) == "s0 = args[0].size(1) cannot be read"


def test_a_float_symbol_is_the_bits_of_exactly_a_float() -> None:
    region = make_region((), (), n_args=1, recipe=numbers(S0))
    region.symbols = (Symbol("s0", Arg(0), "float"),)
    compiled, entry = compiled_of(region)
    for value in (0.5, -0.0, 0.0, -1e300, math.inf, math.nan):
        assert compiled(value) == struct.unpack("q", struct.pack("d", value))
    assert compiled(-0.0) != compiled(0.0)
    for wrong in (1, True, "0.5", Float(0.5), torch.tensor(0.5), numpy.float64(0.5)):
        assert compiled(wrong) == ("miss", 1, ())
    assert format_failure(entry.explain((1,), {})) == "s0 = args[0] cannot be read"


def test_symbols_come_from_any_source() -> None:
    class Config:
        n = 3

    config = Config()
    region = make_region((), (), n_args=0, recipe=numbers(S0 * 2))
    region.symbols = (Symbol("s0", Attr(Known(config, "config"), "n"), "int"),)
    compiled, entry = compiled_of(region)
    assert compiled() == (6,)
    config.n = 50
    assert compiled() == (100,)
    config.n = "50"  # type: ignore[assignment]
    assert compiled() == ("miss", 0, ())
    assert entry.symbols == region.symbols


# --- conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "good", "bad"),
    [
        (Condition(">=", S0 - 5), [5, 9], [4, -5]),
        (Condition("==", S0 - 5), [5], [4, -5]),
        (Condition("!=", S0 - 5), [4, -5], [5]),
        (Condition("==", S0 % 8), [0, 8, -16], [1, -1]),
        (Condition(">=", (S0 + 7) // 8 - 2), [9, 100], [8, -9]),
        (Condition("==", S0 * S0 - 9), [3, -3], [2]),
        (Condition("==", S0 // 3 + 3), [-9, -7], [-6, -10, 3]),
        (Condition("==", S0 % 5 - 4), [4, -1, -6], [-4, 1]),
        (Condition(">=", as_index(0)), [1, -1], []),
        (Condition(">=", as_index(-1)), [], [1, -1]),
    ],
)
def test_conditions(condition: Condition, good: list[int], bad: list[int]) -> None:
    compiled, entry = compiled_of(int_region(condition))
    for value in good:
        assert compiled(value) == (value,) and condition.holds({"s0": value})
        assert entry.matches((value,), {}) and entry.explain((value,), {}) is None
    for value in bad:
        assert compiled(value) == ("miss", 1, ()) and not condition.holds({"s0": value})
        assert not entry.matches((value,), {}) and entry.explain((value,), {}) is condition
        assert entry.values((value,), {}) == {"s0": value}
    assert entry.conditions == (condition,)


@pytest.mark.parametrize(
    "condition",
    [
        Condition("!=", S0 * S1),  # 2**31 * 2**62
        Condition("!=", S1 * 4 + S0),
        Condition("!=", S0 + S1 + S1 + (BIG - 1)),
        Condition(">=", S0 // (S0 - S0 % 3 - 2**31 + 2)),  # the divisor is 0
        Condition(">=", S1 % (-S0)),
        Condition("==", S1 // (S1 - S1 // 2 - BIG)),
    ],
)
def test_overflow_and_divisors_that_are_not_positive_do_not_match(condition: Condition) -> None:
    compiled, entry = compiled_of(int_region(condition, symbols=2))
    assert compiled(2**31, BIG) == ("miss", 2, ())
    assert entry.explain((2**31, BIG), {}) is condition


def test_the_first_failing_condition_is_named_after_the_guards() -> None:
    conditions = (
        Condition(">=", S0 - 2, "line 1"),
        Condition("!=", S0 - S1, "line 2"),
        Condition(">=", 9 - S1),
    )
    region = int_region(*conditions, symbols=2)
    guard = Guard(Arg(1), "type", int)
    region.guards = (guard,)
    _, entry = compiled_of(region)
    assert entry.explain((1, True), {}) is guard
    assert entry.explain((1, 1), {}) is conditions[0]
    assert entry.explain((3, 3), {}) is conditions[1]
    assert entry.explain((3, 10), {}) is conditions[2]
    assert entry.explain((3, 4), {}) is None


def random_index(rng: random.Random, depth: int = 3) -> Index:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([S0, S1, as_index(rng.randint(-9, 9))])
    a, b = random_index(rng, depth - 1), random_index(rng, depth - 1)
    operation = rng.choice("+-*/%/%")
    if operation in "/%":
        divisor = as_index(rng.randint(1, 7)) if rng.random() < 0.6 else rng.choice([S0, S1])
        return a // divisor if operation == "/" else a % divisor
    return a + b if operation == "+" else a - b if operation == "-" else a * b


def test_random_indices_agree_with_python() -> None:
    rng = random.Random(20)
    for _ in range(300):
        index = random_index(rng)
        conditions = [Condition(op, index) for op in ("==", "!=", ">=")]
        entries = [make_entry(int_region(c, symbols=2, recipe=numbers(index)), None) for c in conditions]
        for _ in range(6):
            values = (rng.randint(1, 40), rng.randint(1, 40))
            for condition, entry in zip(conditions, entries, strict=True):
                holds = condition.holds({"s0": values[0], "s1": values[1]})
                assert entry.matches(values, {}) is holds, f"{condition} at {values}"
                if holds:
                    compiled = Compiled(missing)
                    compiled.add_entry(entry)
                    (result,) = compiled(*values)
                    assert Condition("==", index - result).holds({"s0": values[0], "s1": values[1]})


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_symbols_in_recipes_are_ints() -> None:
    compiled, _ = compiled_of(int_region(symbols=2, recipe=numbers(S0, S0 * S1 + 1, S0 // 2 - S1 % 3, 7)))
    result = compiled(5, 4)
    assert result == (5, 21, 1, 7) and all(type(item) is int for item in result)
    assert compiled(-5, 2**40) == (-5, -5 * 2**40 + 1, -4, 7)


def test_a_result_that_overflows_is_a_miss_before_anything_happened() -> None:
    log: list[int] = []
    steps = (
        Step("const", log.append),
        Step("const", 1),
        Step("call", args=(0, 1)),
        Step("symbol", S0 * S0),
    )
    compiled, entry = compiled_of(int_region(recipe=Recipe(steps, 3)))
    assert compiled(2**31) == 2**62 and log == [1]
    assert compiled(2**32) == ("miss", 1, ()) and log == [1]
    assert (
        entry.explain((2**32,), {})
        == "an int of the result leaves int64, or is divided by what is not positive"
    )


# --- programs by values -----------------------------------------------------------------------------------------------


def lerp_region(*conditions: Condition) -> Region:
    sources = tuple(Arg(i) for i in range(3))
    region = make_region(sources, tuple(open_guard(source, 1) for source in sources), n_args=3)
    sizes = tuple(Symbol(f"s{i}", source, "size", 0, hint=8) for i, source in enumerate(sources))
    strides = tuple(Symbol(f"s{i + 3}", source, "stride", 0, hint=1) for i, source in enumerate(sources))
    region.symbols = (*sizes, *strides)
    region.n_values = 1
    equal = tuple(Condition("==", S0 - Index.sym(f"s{i}")) for i in (1, 2))
    dense = tuple(Condition("==", Index.sym(f"s{i}") - 1) for i in (3, 4, 5))
    region.conditions = (Condition(">=", S0 - 2), *equal, *dense, *conditions)
    return region


def lerp_maker(kernels: Kernels, seen: list[tuple[int, ...]]) -> Callable[[tuple[int, ...]], Executable]:
    def specialize(values: tuple[int, ...]) -> Executable:
        seen.append(values)
        return Executable(lerp_program(kernels, torch.empty(values[0])))

    return specialize


def three(n: int, generator: torch.Generator | None = None) -> list[torch.Tensor]:
    return [torch.randn(n, generator=generator) for _ in range(3)]


def test_one_program_for_each_size_in_one_entry(kernels: Kernels) -> None:
    seen: list[tuple[int, ...]] = []
    compiled, entry = compiled_of(lerp_region(), specialize=lerp_maker(kernels, seen))
    before = stats()
    for n in (8, 8, 20, 8, 20, 3, 8):
        tensors = three(n)
        torch.testing.assert_close(compiled(*tensors), torch.lerp(*tensors))
    assert seen == [(8,), (20,), (3,)] and entry.hits == 7
    after = stats()
    assert after["specializations"] - before["specializations"] == 3
    assert after["compiled_calls"] - before["compiled_calls"] == 7 and after["misses"] == before["misses"]
    assert [values for values, _ in entry.specializations] == [(8,), (3,), (20,)]
    assert all(isinstance(program, Executable) for _, program in entry.specializations)
    assert entry.program is None

    assert compiled(*three(1)) == ("miss", 3, ())
    assert compiled(torch.ones(8), torch.ones(8), torch.ones(9)) == ("miss", 3, ())
    assert compiled(torch.ones(8), torch.ones(16)[::2], torch.ones(8)) == ("miss", 3, ())
    assert len(seen) == 3, "no program is made for a call that does not match"
    assert entry.matches(tuple(three(50)), {}) and len(seen) == 3, "matches makes none either"
    tensors = three(50)
    torch.testing.assert_close(entry.run(tuple(tensors), {}), torch.lerp(*tensors))
    assert seen[3:] == [(50,)]


def test_the_64_programs_used_last_are_kept(kernels: Kernels) -> None:
    seen: list[tuple[int, ...]] = []
    compiled, entry = compiled_of(lerp_region(), specialize=lerp_maker(kernels, seen))
    for n in range(2, 66):
        compiled(*three(n))
    compiled(*three(2))
    assert len(seen) == 64 == len(entry.specializations)
    compiled(*three(66))
    assert [values for values, _ in entry.specializations][:2] == [(66,), (2,)]
    assert len(entry.specializations) == 64
    compiled(*three(2))
    assert len(seen) == 65, "2 was used lately"
    compiled(*three(3))
    assert seen[-1] == (3,) and len(seen) == 66, "3 was not"


def test_callables_serve_values_too() -> None:
    weight = torch.randn(1)

    def specialize(values: tuple[int, ...]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        return lambda tensors: [tensors[0] * values[0] + tensors[3]]

    region = lerp_region()
    region.bound, region.bound_names = (weight,), ("weight",)
    compiled, entry = compiled_of(region, specialize=specialize)
    x, y, z = three(6)
    torch.testing.assert_close(compiled(x, y, z), x * 6 + weight)
    weight.data = torch.randn(2)
    assert compiled(x, y, z) == ("miss", 3, ()) and compiled(*three(7)) == ("miss", 3, ())
    assert entry.explain((x, y, z), {}) == "a bound tensor changed its shape, strides, dtype or requires_grad"
    assert not entry.matches((x, y, z), {})
    assert len(entry.specializations) == 1


def test_what_making_a_program_raises_is_raised_by_the_call(kernels: Kernels) -> None:
    answers: list[Any] = [
        LookupError("no plan"),
        KeyboardInterrupt(),
        None,
        5,
        Executable(lerp_program(kernels, torch.empty(4))),
    ]

    def specialize(values: tuple[int, ...]) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def on_failure(args: Any, kwargs: Any) -> Any:
        raise AssertionError("a failure to compile must not be hidden")

    compiled, _ = compiled_of(lerp_region(), specialize=specialize, on_failure=on_failure)
    tensors = three(4)
    with pytest.raises(LookupError, match="no plan"):
        compiled(*tensors)
    with pytest.raises(KeyboardInterrupt):
        compiled(*tensors)
    with pytest.raises(
        TypeError, match="specialize must return a lampwork._C.Executable or a callable, not None"
    ):
        compiled(*tensors)
    with pytest.raises(TypeError, match="program must be a lampwork._C.Executable, a callable or None"):
        compiled(*tensors)
    torch.testing.assert_close(compiled(*tensors), torch.lerp(*tensors))


def test_a_program_of_other_form_is_refused(kernels: Kernels) -> None:
    def specialize(values: tuple[int, ...]) -> Executable:
        return Executable(lerp_program(kernels, torch.empty(values[0])))

    region = lerp_region()
    region.recipe = Recipe((Step("output", 1),), 0)
    compiled, _ = compiled_of(region, specialize=specialize)
    with pytest.raises(ValueError, match="an output that the program does not have"):
        compiled(*three(4))
    region.n_values = 9
    with pytest.raises(ValueError, match="keys must be numbers of symbols"):
        make_entry(region, None, specialize=specialize)
    region.n_values = 1
    with pytest.raises(ValueError, match="either one program or makes one"):
        make_entry(region, specialize((4,)), specialize=specialize)
    with pytest.raises(TypeError, match="specialize must be callable"):
        make_entry(region, None, specialize=3)  # type: ignore[arg-type]


def test_a_program_for_all_values() -> None:
    """A region whose graph does not depend on its symbols has one program as ever."""
    region = lerp_region()
    region.recipe = Recipe((Step("output", 0), Step("symbol", S0), Step("tuple", args=(0, 1))), 2)
    region.n_values = 0
    entry = make_entry(region, lambda tensors: [tensors[0] + 1])
    compiled = Compiled(missing)
    compiled.add_entry(entry)
    for n in (5, 7):
        result, size = compiled(*three(n))
        assert size == n and result.shape == (n,)
    made: list[Any] = []

    def specialize(values: tuple[int, ...]) -> Any:
        made.append(values)
        return lambda tensors: [tensors[0] + 1]

    compiled, _ = compiled_of(region, specialize=specialize)
    assert compiled(*three(5))[1] == 5 and compiled(*three(7))[1] == 7 and made == [()]


def test_making_a_program_may_change_everything(kernels: Kernels) -> None:
    """While it is made other code runs: an argument may get another size, entries may go, sizes be asked for again."""
    tensors = three(8)
    made: list[tuple[int, ...]] = []
    compiled = Compiled(missing)

    def specialize(values: tuple[int, ...]) -> Executable:
        made.append(values)
        if values == (8,):
            for tensor in tensors:
                tensor.resize_(6)
            compiled.clear()
            gc.collect()
        return Executable(lerp_program(kernels, torch.empty(values[0])))

    compiled.add_entry(make_entry(lerp_region(), None, specialize=specialize))
    result = compiled(*tensors)
    assert made == [(8,), (6,)] and result.shape == (6,)
    torch.testing.assert_close(result, torch.lerp(*tensors))
    assert compiled(*tensors) == ("miss", 3, ())


def test_making_a_program_may_call_the_compiled_function(kernels: Kernels) -> None:
    made: list[tuple[int, ...]] = []
    compiled = Compiled(missing)

    def specialize(values: tuple[int, ...]) -> Executable:
        made.append(values)
        if len(made) == 1:
            compiled(*three(values[0]))
        return Executable(lerp_program(kernels, torch.empty(values[0])))

    entry = make_entry(lerp_region(), None, specialize=specialize)
    compiled.add_entry(entry)
    tensors = three(9)
    torch.testing.assert_close(compiled(*tensors), torch.lerp(*tensors))
    assert made == [(9,), (9,)] and len(entry.specializations) == 1


def test_a_program_that_is_dropped_while_it_runs(kernels: Kernels) -> None:
    compiled = Compiled(missing)
    depth: list[int] = []

    def specialize(values: tuple[int, ...]) -> Any:
        class Program:
            def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
                if values == (2,) and not depth:
                    depth.append(1)
                    for n in range(3, 80):
                        compiled(*three(n))
                    gc.collect()
                return [tensors[0] + len(values) + self.one]

            one = 1

        return Program()

    compiled.add_entry(make_entry(lerp_region(), None, specialize=specialize))
    x, y, z = three(2)
    torch.testing.assert_close(compiled(x, y, z), x + 2)


def test_many_threads_many_sizes(kernels: Kernels) -> None:
    seen: list[tuple[int, ...]] = []
    compiled, entry = compiled_of(lerp_region(), specialize=lerp_maker(kernels, seen))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        rng = random.Random(seed)
        for _ in range(200):
            n = rng.choice([5, 30_000, 40_000]) if rng.random() < 0.5 else rng.randint(2, 90)
            tensors = three(n, generator)
            if (compiled(*tensors) - torch.lerp(*tensors)).abs().max() > 1e-4:
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and entry.hits == 800
    values = [values for values, _ in entry.specializations]
    assert len(values) == len(set(values)) == 64


def test_references_of_symbols_are_collected(kernels: Kernels) -> None:
    class Owner:
        def specialize(self, values: tuple[int, ...]) -> Any:
            return lambda tensors: [tensors[0] + values[0], self][:1]

    owner = Owner()
    region = lerp_region()
    region.symbols = (*region.symbols, Symbol("s6", Attr(Known(owner, "owner"), "n"), "int"))
    region.conditions = (*region.conditions, Condition("==", Index.sym("s6") - 3))
    owner.n = 3  # type: ignore[attr-defined]
    owner.compiled, entry = compiled_of(region, specialize=owner.specialize)  # type: ignore[attr-defined]
    x, y, z = three(4)
    torch.testing.assert_close(owner.compiled(x, y, z), x + 4)  # type: ignore[attr-defined]
    assert len(entry.specializations) == 1
    reference = weakref.ref(owner)
    del owner, entry, region
    gc.collect()
    assert reference() is None


def test_symbols_of_wrong_form_are_refused() -> None:
    good = Symbol("s0", Arg(0), "int")
    cases: list[tuple[tuple[Any, ...], tuple[Any, ...], str]] = [
        ((good, good), (), "two symbols of one name"),
        ((Symbol("s0", Arg(0), "weight"),), (), "unknown symbol kind 'weight'"),  # type: ignore[arg-type]
        ((Symbol("s0", Arg(0), "size"),), (), "a symbol that is a size has no dimension"),
        ((good,), (Condition("==", S1),), "unknown symbol s1"),
        ((good,), (Condition("==", Index.var("i")),), "a Var inside"),
        ((good,), (Condition("<", S0),), "unknown relation '<'"),  # type: ignore[arg-type]
        ((good,), (Condition("==", S0 * 2**70),), "does not fit int64"),
    ]
    for symbols, conditions, message in cases:
        region = int_region()
        region.symbols, region.conditions = symbols, conditions
        with pytest.raises(ValueError, match=message):
            make_entry(region, None)


# --- many entries -----------------------------------------------------------------------------------------------------


def test_entries_that_take_turns_are_tried_first() -> None:
    order: list[int] = []

    def entry(number: int) -> Entry:
        def wanted(value: int) -> bool:
            order.append(number)
            return value == number

        region = make_region((), (Guard(Arg(0), "predicate", wanted),), n_args=1, recipe=numbers(number))
        return make_entry(region, None)

    compiled = Compiled(missing)
    entries = [entry(number) for number in range(16)]
    for item in entries:
        compiled.add_entry(item)
    assert compiled(3) == (3,) and order[0] == 15, "the newest is tried first"
    assert compiled(12) == (12,)
    order.clear()
    for _ in range(5):
        assert compiled(3) == (3,) and compiled(12) == (12,)
    assert len(order) == 20, "two that take turns cost two checks each"
    order.clear()
    assert compiled(99) == ("miss", 1, ()) and sorted(order) == list(range(16))
    assert compiled.raw_entries == tuple(entries), "their order to see is that of their making"
