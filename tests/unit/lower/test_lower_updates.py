"""What is put or added at places from data by kernels of a card: lowered, fused, and run on the emulated card and the
simulated one, against eager and double precision."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from lower_harness import externs, record
from scalar_target import native_on
from simulated import simulating_target
from torch import Tensor

import lampwork
from lampwork.codegen.gpu.nvidia import describe, emulated
from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.nodes import Definition, Extern, Map
from lampwork.loops.ir.verify import verify_definitions
from lampwork.lower.lowering import lower_graph
from lampwork.lower.table import rules_for
from lampwork.lower.updates import rules as update_rules

T = torch.tensor
GENERATOR = torch.Generator().manual_seed(3)
ROWS = T([3, 0, 3, 6, 3, 1])


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


X, SOURCE = numbers(7, 5), numbers(6, 5)
PLACES = torch.randint(0, 7, (6, 5), generator=GENERATOR)
COLUMNS = torch.randint(0, 5, (7, 4), generator=GENERATOR)

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
SUMS: dict[str, Case] = {
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (X, ROWS, SOURCE)),
    "index_add of columns": (lambda x, i, s: x.index_add(-1, i, s), (X, T([4, 4, 0]), numbers(7, 3))),
    "index_add in the middle": (
        lambda x, i, s: x.index_add(1, i, s),
        (numbers(2, 3, 4), T([2, 2, 0, 2]), numbers(2, 4, 4)),
    ),
    "index_add of numbers": (lambda x, i, s: x.index_add(0, i, s), (X[:, 0], ROWS, SOURCE[:, 0])),
    "index_add by int32": (lambda x, i, s: x.index_add(0, i.int(), s), (X, ROWS, SOURCE)),
    "a factor": (lambda x, i, s: x.index_add(0, i, s, alpha=3), (X, ROWS, SOURCE)),
    "transposed": (lambda x, i, s: x.t().index_add(1, i, s.t()), (X, ROWS, SOURCE)),
    "to zeros": (lambda i, s: torch.zeros(9, 5, dtype=s.dtype).index_add_(0, i, s), (ROWS, SOURCE)),
    "of what is computed": (lambda x, i, s: (x * 2).index_add(0, i // 2, s * 3) + 1, (X, ROWS, SOURCE)),
    "of what is read again": (lambda x, i, s: again(x * 2, i, s), (X, ROWS, SOURCE)),
    "twice": (lambda x, i, s: x.index_add(0, i, s).index_add(0, i + 0, s * 2), (X, ROWS, SOURCE)),
    "beside": (lambda x, i, s: (x.index_add(0, i, s), x.index_add(0, i - 0, s)), (X, ROWS, SOURCE)),
    "in a concatenation": (
        lambda x, i, s: torch.cat([x.index_add(0, i, s), s * 2, x * 3]),
        (X, ROWS, SOURCE),
    ),
    "of a concatenation": (
        lambda x, i, s: torch.cat([x, s * 2]).index_add(0, i, s),
        (X, ROWS, SOURCE),
    ),
    "through views": (lambda x, i, s: viewed((x * 2).index_add(0, i, s)), (X, ROWS, SOURCE)),
    "of extrema": (lambda x, i, s: (x - x.amax(0)).index_add(0, i, s - s.amax(1, True)), (X, ROWS, SOURCE)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (X, PLACES, SOURCE)),
    "scatter_add of fewer": (lambda x, i, s: x.scatter_add(0, i, s), (X, PLACES[:3, :4], SOURCE)),
    "scatter_add along rows": (lambda x, i, s: x.scatter_add(1, i, s), (X, COLUMNS, numbers(7, 4))),
    "scatter_add of rows": (lambda x, i, s: x.scatter_add(0, i[:, None].expand_as(s), s), (X, ROWS, SOURCE)),
    "sums": (lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), (X, PLACES, SOURCE)),
    "sums alone": (lambda x, i, s: x.scatter_reduce(0, i, s, "sum", include_self=False), (X, PLACES, SOURCE)),
    "by its old name": (lambda x, i, s: x.scatter(0, i, s, reduce="add"), (X, PLACES, SOURCE)),
    "numbers by their old name": (lambda x, i: x.scatter(0, i, 2, reduce="add"), (X, PLACES)),
}
OTHERS: dict[str, Case] = {
    "products": (lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), (X, PLACES, SOURCE)),
    "products alone": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "prod", include_self=False),
        (X, PLACES, SOURCE),
    ),
    "maxima": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), (X, PLACES, SOURCE)),
    "minima": (lambda x, i, s: x.scatter_reduce(0, i, s, "amin"), (X, PLACES, SOURCE)),
    "maxima alone": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "amax", include_self=False),
        (X, PLACES, SOURCE),
    ),
    "maxima of rows": (lambda x, i, s: x.index_reduce(0, i, s, "amax"), (X, ROWS, SOURCE)),
    "minima of rows alone": (
        lambda x, i, s: x.index_reduce(0, i, s, "amin", include_self=False),
        (X, ROWS, SOURCE),
    ),
    "a value": (lambda x, i: x.scatter(1, i, 2.5), (X, COLUMNS)),
    "one hot": (lambda i: torch.zeros(7, 5).scatter_(1, i, 1), (COLUMNS[:, :1],)),
    "elements": (lambda x, i, s: x.scatter(0, i, s), (X, torch.randperm(7)[:6, None].expand(6, 5), SOURCE)),
    "rows": (lambda x, i, s: x.index_copy(0, i, s), (X, T([6, 0, 3]), SOURCE[:3])),
    "assignment": (lambda x, i, s: assigned(x, i, s), (X, T([1, -3]), SOURCE[:2])),
    "places": (
        lambda x, i, j, s: x.index_put((i[:, None], j), s),
        (X, T([1, 3]), T([0, -1]), T(2.0)),
    ),
    "places between": (
        lambda x, i, s: assigned(x, (slice(None), i), s),
        (numbers(2, 7, 3), T([5, 0]), numbers(2, 2, 3)),
    ),
}
BOTH = SUMS | OTHERS
ATEN: dict[str, Case] = {
    "sums in an order": (lambda x, i, s: x.index_put((i,), s, accumulate=True), (X, ROWS, SOURCE)),
    "a mean": (lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), (X, PLACES, SOURCE)),
    "bytes": (lambda x, i, s: x.index_add(0, i, s), (X.byte(), ROWS, SOURCE.byte())),
    "nothing": (lambda x, i, s: x.index_add(0, i, s), (X, ROWS[:0], SOURCE[:0])),
}


def viewed(x: Tensor) -> tuple[Tensor, ...]:
    return x[1], x.t(), x[:, 2:]


def again(x: Tensor, i: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.index_add(0, i, s) + x


def assigned(x: Tensor, i: Any, s: Tensor) -> Tensor:
    x = x + 1
    x[i] = s
    return x


def cast(given: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    scale = 1 if dtype.is_floating_point else 9
    return [(each * scale).to(dtype) if each.is_floating_point() else each.clone() for each in given]


def close(found: Any, want: Any, exact: Any) -> None:
    """As near to double precision as eager, or nearly."""
    for ours, theirs, right in zip(*map(flat, (found, want, exact)), strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        assert torch.equal(ours.isnan(), theirs.isnan())
        error = (theirs.double() - right).abs().nan_to_num(0, 0, 0).max()
        slack = 4 * torch.finfo(ours.dtype).eps * (1 + right.abs().nan_to_num(0, 0, 0).max())
        off = (ours.double() - right).abs().nan_to_num(0, 0, 0).max()
        assert off <= error + slack, (off, error)


def flat(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def definitions_of(fn: Callable[..., Any], *inputs: Tensor) -> list[Definition]:
    graph = record(fn, inputs).graph
    graph.eliminate_dead_code()
    lowered = lower_graph(graph, templates=False, atomics=emulated().atomics)
    verify_definitions([*lowered.constant, *lowered.definitions])
    return lowered.definitions


def updates(definitions: list[Definition]) -> list[Map]:
    return [each for each in definitions if isinstance(each, Map) and each.combine]


@pytest.mark.parametrize("name", BOTH)
def test_who_is_called(name: str) -> None:
    fn, inputs = BOTH[name]
    found = definitions_of(fn, *inputs)
    assert updates(found) and not any(isinstance(each, Extern) for each in found), found


@pytest.mark.parametrize("name", ATEN)
def test_what_stays_atens(name: str) -> None:
    fn, inputs = ATEN[name]
    graph = record(fn, inputs).graph
    lowered = lower_graph(graph, templates=False, atomics=emulated().atomics)
    assert not updates(lowered.definitions) and externs(lowered)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]
)
@pytest.mark.parametrize("name", BOTH)
def test_on_the_emulated_card(name: str, dtype: torch.dtype) -> None:
    fn, inputs = BOTH[name]
    given = cast(inputs, dtype)
    with native_on(emulated()), lampwork.config.using(verify=True):
        found = lampwork.compile(fn, options={"strict": True})(*[each.clone() for each in given])
    exact = fn(*[each.double() if each.is_floating_point() else each.clone() for each in given])
    close(found, fn(*[each.clone() for each in given]), exact)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", BOTH)
def test_on_the_simulated_card(name: str) -> None:
    fn, inputs = BOTH[name]
    with native_on(simulating_target()):
        found = lampwork.compile(fn, options={"strict": True})(*[each.clone() for each in inputs])
    exact = fn(*[each.double() if each.is_floating_point() else each.clone() for each in inputs])
    close(found, fn(*[each.clone() for each in inputs]), exact)


@pytest.mark.parametrize("name", [*SUMS, *(each for each in OTHERS if each != "one hot")])
def test_numbers_that_are_none(name: str) -> None:
    fn, inputs = BOTH[name]
    for number in (float("nan"), float("inf"), -0.0):
        given = [
            each.masked_fill(torch.rand(each.shape, generator=GENERATOR) < 0.4, number)
            if each.is_floating_point()
            else each
            for each in inputs
        ]
        with native_on(emulated()):
            found = lampwork.compile(fn)(*[each.clone() for each in given])
        close(found, fn(*given), fn(*[each.double() if each.is_floating_point() else each for each in given]))


@pytest.mark.parametrize(
    "name", ["index_add", "scatter_add along rows", "maxima", "a value", "places", "twice"]
)
def test_open_sizes(name: str) -> None:
    fn, inputs = BOTH[name]
    with native_on(emulated()):
        compiled = lampwork.compile(fn, dynamic=True, options={"strict": True})
        for _ in range(2):
            close(
                compiled(*inputs),
                fn(*inputs),
                fn(*[x.double() if x.is_floating_point() else x for x in inputs]),
            )


@pytest.mark.parametrize("bad", [99, -99])
@pytest.mark.parametrize("name", ["index_add", "scatter_add", "maxima", "a value", "assignment"])
def test_out_of_range(name: str, bad: int) -> None:
    """The emulated card says so, and eager raises; a card asserts."""
    fn, inputs = BOTH[name]
    given = [each.clone() for each in inputs]
    given[1].view(-1)[-1] = bad
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        fn(*[each.clone() for each in given])
    with native_on(emulated()), pytest.raises(type(wanted.value)) as raised:
        lampwork.compile(fn)(*given)
    assert str(raised.value) == str(wanted.value)


def test_a_result_that_nobody_reads_is_checked() -> None:
    def fn(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        x.index_add(0, i, s)
        return x + 1

    with native_on(emulated()), pytest.raises((IndexError, RuntimeError)):
        lampwork.compile(fn)(X, T([1, 99, 0, 0, 0, 0]), SOURCE)


@pytest.mark.parametrize("name", ["index_add_", "scatter_add_"])
def test_inputs_that_are_written(name: str) -> None:
    i = ROWS if name == "index_add_" else PLACES

    def fn(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        getattr(x, name)(0, i, s)
        return x * 2

    ours, theirs = X.clone(), X.clone()
    with native_on(emulated()):
        found = lampwork.compile(fn, options={"strict": True})(ours, i, SOURCE)
    torch.testing.assert_close(found, fn(theirs, i, SOURCE))
    torch.testing.assert_close(ours, theirs)


# --- what fuses -------------------------------------------------------------------------------------------------------


def groups_of(fn: Callable[..., Any], *inputs: Tensor) -> list[tuple[str, ...]]:
    found = definitions_of(fn, *inputs)
    outputs = frozenset({found[-1].out.name}) if isinstance(found[-1], Map) else frozenset[str]()
    groups, _ = fuse(found, outputs, emulated())
    return [tuple(out.name for out in group.outs) for group in groups]


def test_what_is_computed_fuses_into_it() -> None:
    """Values, places and what is updated: two kernels."""
    groups = groups_of(lambda x, i, s: (x * 2).index_add(0, i + 1, s.sigmoid() * 3), X, ROWS - 1, SOURCE)
    assert groups == [("index_add_base",), ("index_add",)]


def test_zeros_are_written_once() -> None:
    found = definitions_of(lambda i, s: torch.zeros(9, 5).index_add(0, i, s), ROWS, SOURCE)
    groups, _ = fuse(found, frozenset({"index_add"}), emulated())
    assert [group.definitions[0].out.name for group in groups] == ["index_add_base", "index_add"]


def test_nothing_reads_it_before_it_is_done() -> None:
    groups = groups_of(lambda x, i, s: (x.index_add(0, i, s) + x) * s.sum(), X, ROWS, SOURCE)
    order = [name for group in groups for name in group]
    assert order.index("index_add_base") < order.index("index_add") < order.index("mul")


# --- deterministic mode -----------------------------------------------------------------------------------------------


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_mode_is_eagers() -> None:
    fn, inputs = SUMS["index_add"]
    with deterministic():
        graph = record(fn, inputs).graph
        assert externs(lower_graph(graph, templates=False, atomics=emulated().atomics)) == [
            "aten::index_add.default"
        ]


def test_the_mode_is_looked_at_on_each_call() -> None:
    fn, inputs = SUMS["index_add"]
    with native_on(emulated()):
        compiled = lampwork.compile(fn)
        compiled(*inputs)
        with deterministic():
            compiled(*inputs)
        assert len(compiled.entries) == 2
        compiled(*inputs)
        assert len(compiled.entries) == 2


@pytest.mark.parametrize("first", [False, True])
def test_backward_looks_at_the_mode(first: bool) -> None:
    """The gradient of a gather is a scatter: what was compiled in one mode does not run in the other."""
    source = SOURCE.clone().requires_grad_()

    def fn(x: Tensor, i: Tensor) -> Tensor:
        return x.gather(0, i).square().sum()

    with native_on(emulated()):
        compiled = lampwork.compile(fn)
        torch.use_deterministic_algorithms(first)
        try:
            for _ in range(4):
                torch.autograd.grad(compiled(source, PLACES % 6), source)
            before = lampwork.stats()["compiled_backwards"]
            assert before > 0
            value = compiled(source, PLACES % 6)
            torch.use_deterministic_algorithms(not first)
            (found,) = torch.autograd.grad(value, source)
            assert lampwork.stats()["compiled_backwards"] == before
        finally:
            torch.use_deterministic_algorithms(False)
    (want,) = torch.autograd.grad(fn(source, PLACES % 6), source)
    torch.testing.assert_close(found, want)


def test_gradients() -> None:
    """Of gathers, selections and sums at places."""
    source = SOURCE.clone().requires_grad_()

    def fn(x: Tensor, i: Tensor, r: Tensor) -> Tensor:
        y = x.gather(0, i) * x.index_select(0, r)
        return torch.zeros(9, 5).index_add(0, r, y).square().sum()

    with native_on(emulated()):
        compiled = lampwork.compile(fn)
        for _ in range(3):
            (found,) = torch.autograd.grad(compiled(source, PLACES % 6, ROWS % 6), source)
    (want,) = torch.autograd.grad(fn(source, PLACES % 6, ROWS % 6), source)
    torch.testing.assert_close(found, want)


def test_cards_have_the_instructions() -> None:
    assert "bf16" in describe(90).atomics and "bf16" not in describe(80).atomics
    assert {"f32", "f64", "f16", "i32", "i64"} <= describe(70).atomics


def test_who_has_rules_for_them() -> None:
    """Devices whose kernels update memory; CPUs have operators of the runtime."""
    card, cpu = torch.device("cuda", 0), torch.device("cpu")
    for name, rule in update_rules.rules.items():
        assert rules_for(card, templates=False, updates=True)[name] is rule
        assert rules_for(cpu, templates=False, updates=True)[name] is rule
        assert name not in rules_for(card, templates=False)
        assert rules_for(cpu, templates=True).get(name) is not rule


# --- random programs --------------------------------------------------------------------------------------------------

Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def written(u: Tensor, i: Tensor, v: Tensor) -> Tensor:
    """Updates in place of what the program has made."""
    made = u * 1
    made.index_add_(0, i, v[:6])
    return made.mul_(0.5)


def replaced(u: Tensor, i: Tensor, v: Tensor) -> Tensor:
    made = u.clone()
    made[i[:1]] = v[0]
    return made


STEPS: dict[str, Step] = {
    "rows": lambda u, v, i, j: u.index_add(0, i, v[:6]),
    "elements": lambda u, v, i, j: u.scatter_add(1, j, v),
    "maxima": lambda u, v, i, j: u.scatter_reduce(0, j, v, "amax"),
    "a value": lambda u, v, i, j: u.scatter(0, j, 1.5),
    "a row": lambda u, v, i, j: replaced(u, i, v),
    "in place": lambda u, v, i, j: written(u, i, v),
    "points": lambda u, v, i, j: (u * v).tanh() + v * 2,
    "sums": lambda u, v, i, j: u - v.sum(0),
    "parts": lambda u, v, i, j: torch.cat([u[:3], v[:4]]),
    "columns": lambda u, v, i, j: u.t().contiguous().t(),
}


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "10"))))
def test_random_programs_fuzz(seed: int) -> None:
    """Values that are updated, and read before, after and beside it."""
    pick = random.Random(seed)
    chosen = [(pick.choice(list(STEPS)), pick.random(), pick.random()) for _ in range(pick.randint(2, 6))]

    def fn(x: Tensor, s: Tensor, i: Tensor, j: Tensor) -> list[Tensor]:
        made = [x, s]
        for name, first, second in chosen:
            u, v = (made[int(each * len(made))] for each in (first, second))
            made.append(STEPS[name](u, v, i, j))
        return made[2:][-3:]

    x, s = (numbers(7, 5).double() for _ in range(2))
    i, j = (torch.randint(0, below, shape, generator=GENERATOR) for below, shape in ((7, (6,)), (5, (7, 5))))
    before = x.clone(), s.clone()
    with native_on(emulated()), lampwork.config.using(verify=True):
        found = lampwork.compile(fn, options={"strict": True})(x, s, i, j)
    for ours, theirs in zip(found, fn(x, s, i, j), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
        assert ours.stride() == theirs.stride(), chosen
    assert torch.equal(x, before[0]) and torch.equal(s, before[1])
