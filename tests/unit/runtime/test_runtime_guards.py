"""Guards: each kind has a call that passes and calls that do not."""

from __future__ import annotations

import collections
import gc
import math
import types
from typing import Any

import pytest
import torch
from runtime_programs import make_region, tensor_guard

from lampwork.capture.model.region import (
    Arg,
    Attr,
    CellContents,
    ClassAttr,
    DictItem,
    FunctionState,
    GlobalState,
    Guard,
    InstanceDict,
    Item,
    Known,
    Kwarg,
    Recipe,
    Result,
    Slot,
    Source,
    Step,
)
from lampwork.runtime import Compiled, Entry, make_entry

HIT = Recipe((Step("const", "hit"),), 0)


def entry_of(*guards: Guard, n_args: int = 1, **options: Any) -> Entry:
    slow = options.pop("slow_guards", ())
    versioned = options.pop("versioned", ())
    region = make_region((), guards, n_args=n_args, recipe=HIT, **options)
    region.slow_guards, region.versioned = tuple(slow), tuple(versioned)
    return make_entry(region, None)


def passes(guard: Guard, *args: Any) -> bool:
    entry = entry_of(guard, n_args=len(args))
    compiled = Compiled(lambda args, kwargs: "miss")
    compiled.add_entry(entry)
    hit = compiled(*args) == "hit"
    assert entry.explain(args, {}) is (None if hit else guard)
    assert entry.matches(args, {}) is hit
    assert compiled.match(args, {}) is (entry if hit else None)
    return hit


class Thing:
    def __init__(self) -> None:
        self.size = 3


class Liar:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare me")

    __hash__ = None  # type: ignore[assignment]


class Picky:
    @property
    def value(self) -> int:
        raise RuntimeError("broken property")


A = Arg(0)
NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "expected", "good", "bad"),
    [
        ("type", int, [1], [True, 1.0, None]),
        ("is", None, [None], [0, False]),
        ("equals", 1, [1], [2, 1.0, True, "1", None]),
        ("equals", 2**80, [2**80], [2**80 + 1]),
        ("equals", True, [True], [1, False]),
        ("equals", 0.0, [0.0], [-0.0, 0, 1e-300]),
        ("equals", -0.0, [-0.0], [0.0]),
        ("equals", NAN, [NAN, float("nan")], [-NAN, 0.0, math.inf]),
        ("equals", 1 + 2j, [1 + 2j], [1 - 2j]),
        ("equals", complex(0.0, -0.0), [complex(0.0, -0.0)], [0j]),
        ("equals", "relu", ["re" + "lu"], ["gelu", b"relu"]),
        ("equals", b"x", [b"x"], ["x"]),
        ("equals", torch.float32, [torch.float32], [torch.float64]),
        ("equals", torch.device("cpu"), [torch.device("cpu")], [torch.device("meta")]),
        ("equals", torch.Size([2, 3]), [torch.Size([2, 3])], [(2, 3), torch.Size([3, 2])]),
        ("equals", (1, 2.0, (NAN,)), [(1, 2.0, (NAN,))], [(1, 2, (NAN,)), (1, 2.0), [1, 2.0, (NAN,)]]),
        ("equals", slice(1, None, 2), [slice(1, None, 2)], [slice(1, 2, 2), slice(1.0, None, 2)]),
        ("equals", {"a": 1}, [{"a": 1}], [{"a": True}, {"b": 1}, {}]),
        ("equals", frozenset({1, 2}), [frozenset({2, 1})], [frozenset({1})]),
        ("equals", ..., [...], [None]),
        ("equals", 3, [3], [Liar()]),
        ("len", 2, [(1, 2), [1, 2], {1: 1, 2: 2}, collections.OrderedDict.fromkeys("ab")], [(), [1], {}, 5]),
        (
            "keys",
            ("a", "b"),
            [{"a": 1, "b": 2}],
            [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, "ab"],
        ),
        ("missing_key", "a", [{}, {"b": 1}], [{"a": 1}, 5]),
        ("missing_attr", "shape", [1, "x"], [torch.ones(1)]),
        ("missing_attr", "value", [1], [Picky()]),
        ("predicate", lambda x: x > 2, [3], [2, None, "x"]),
    ],
)
def test_guard_on_an_argument(kind: Any, expected: Any, good: list[Any], bad: list[Any]) -> None:
    guard = Guard(A, kind, expected)
    for value in good:
        assert passes(guard, value), value
    for value in bad:
        assert not passes(guard, value), value


def test_keys_in_the_order_of_an_ordered_dict() -> None:
    table = collections.OrderedDict(a=1, b=2)
    assert passes(Guard(A, "keys", ("a", "b")), table)
    table.move_to_end("a")
    assert not passes(Guard(A, "keys", ("a", "b")), table)
    assert passes(Guard(A, "keys", ("b", "a")), table)


def test_tensor_guard() -> None:
    x = torch.randn(4, 6)
    guard = tensor_guard(A, x)
    assert passes(guard, torch.randn(4, 6))
    assert passes(guard, torch.randn(8, 6)[2:6])
    with torch.inference_mode():
        inference = torch.randn(4, 6)
    assert passes(guard, inference)
    others = [
        torch.nn.Parameter(x),
        x.double(),
        x.to(torch.bfloat16),
        torch.randn(4, 5),
        torch.randn(4),
        torch.randn(6, 4).t(),
        x.clone().requires_grad_(),
        (x.clone().requires_grad_() * 2),
        x.to("meta"),
        x.to_sparse(),
        torch.complex(x, x).conj().imag,
        torch.nn.Buffer(x),
        None,
        5,
        object(),
    ]
    for other in others:
        if type(other) is torch.Tensor and torch.is_tensor(other) and other.layout == torch.strided:
            same = other.dtype == x.dtype and other.shape == x.shape and other.stride() == x.stride()
            if same and not other.requires_grad and other.device == x.device and not other.is_neg():
                continue
        assert not passes(guard, other), other
    conj = torch.complex(x, x)
    assert not passes(tensor_guard(A, conj), conj.conj())
    any_rows = Guard(
        A, "tensor", type(guard.expected)(torch.Tensor, x.dtype, x.device, (None, 6), (6, 1), False)
    )
    assert passes(any_rows, torch.randn(9, 6)) and not passes(any_rows, torch.randn(9, 5))
    with_grad = tensor_guard(A, x.clone().requires_grad_())
    assert passes(with_grad, x.clone().requires_grad_()) and not passes(with_grad, x)


def test_guards_on_identity_and_overlap_of_tensors() -> None:
    x, y = torch.randn(4), torch.randn(4)
    assert passes(Guard(A, "same", Arg(1)), x, x) and not passes(Guard(A, "same", Arg(1)), x, y)
    assert passes(Guard(A, "distinct", Arg(1)), x, y) and not passes(Guard(A, "distinct", Arg(1)), x, x)
    whole = torch.randn(8)
    apart = Guard(A, "storage_distinct", Arg(1))
    assert passes(apart, x, y) and passes(apart, whole[:4], whole[4:]) and passes(apart, whole[4:], whole[:4])
    assert not passes(apart, whole[:5], whole[4:]) and not passes(apart, whole, whole)
    alias = torch.from_numpy(whole.numpy())
    assert not passes(apart, whole, alias)
    assert passes(apart, torch.randn(0), torch.randn(0))


class Slotted:
    __slots__ = ("held",)

    def __init__(self, *held: Any) -> None:
        for self.held in held:
            pass


HELD = Slotted.held  # pyright: ignore


def make_cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (Attr(A, "size"), type("T", (), {"size": 3})(), type("T", (), {"size": 4})()),
        (Attr(A, "size"), Thing(), object()),
        (Attr(A, "value"), type("T", (), {"value": 3})(), Picky()),
        (DictItem(A, "k"), {"k": 3}, {"k": 4}),
        (DictItem(A, "k"), {"k": 3}, {}),
        (DictItem(A, (1, 2)), {(1, 2): 3}, [3]),
        (Item(A, 1), [0, 3], [3, 0]),
        (Item(A, -1), (0, 3), ()),
        (Item(A, 1), (0, 3), {1: 3}),
        (CellContents(A), make_cell(3), make_cell(4)),
        (CellContents(A), make_cell(3), 5),
        (Slot(A, HELD), Slotted(3), Slotted(4)),
        (Slot(A, HELD), Slotted(3), Slotted()),
        (Slot(A, HELD), Slotted(3), Thing()),
        (DictItem(InstanceDict(A), "size"), Thing(), type("T", (), {"size": 3})()),
        (DictItem(InstanceDict(A), "size"), Thing(), 5),
        (Item(DictItem(A, "a"), 0), {"a": [3]}, {"a": []}),
    ],
)
def test_sources(source: Source, good: Any, bad: Any) -> None:
    guard = Guard(source, "equals", 3)
    assert passes(guard, good)
    assert not passes(guard, bad)


def test_empty_cell_does_not_match() -> None:
    def outer() -> Any:
        def inner() -> int:
            return later

        cell = inner.__closure__[0]  # type: ignore[index]
        if cell is None:
            later = 1
        return cell

    assert not passes(Guard(CellContents(A), "is", None), outer())


def test_keyword_arguments_by_name_and_shape_of_the_call() -> None:
    entry = entry_of(
        Guard(A, "equals", 1),
        Guard(Kwarg("b"), "equals", 2),
        Guard(Kwarg("a"), "equals", 3),
        kwarg_names=("a", "b"),
    )
    compiled = Compiled(lambda args, kwargs: (args, kwargs))
    compiled.add_entry(entry)
    assert compiled(1, a=3, b=2) == "hit"
    assert compiled(1, **{"a": 3, "b": 2}) == "hit"
    assert compiled(1, a=2, b=3) == ((1,), {"a": 2, "b": 3})
    assert compiled(1, b=2, a=3) == ((1,), {"b": 2, "a": 3})
    assert compiled(1, 3, b=2) == ((1, 3), {"b": 2})
    assert compiled(1, a=3) == ((1,), {"a": 3})
    assert compiled() == ((), {})
    text = entry.explain((1,), {"a": 3})
    assert (
        text
        == "call of another shape: expected 1 positional arguments and keywords ('a', 'b'), got 1 and ('a',)"
    )


def test_global_state() -> None:
    entry = entry_of(n_args=0)
    assert entry.explain((), {}) is None
    with torch.no_grad():
        assert entry.explain((), {}) == "global state: grad_enabled differs"
    with torch.inference_mode():
        assert not entry.matches((), {})
        assert entry_of(n_args=0).matches((), {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert entry.explain((), {}) == "global state: autocast_cpu differs"
        under = entry_of(n_args=0)
        assert under.matches((), {})
    with torch.autocast("cpu", dtype=torch.float16):
        assert under.explain((), {}) == "global state: autocast_dtype differs"
    torch.set_default_dtype(torch.float64)
    try:
        assert entry.explain((), {}) == "global state: default_dtype differs"
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert entry.explain((), {}) == "global state: deterministic differs"
    finally:
        torch.use_deterministic_algorithms(False)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert entry.explain((), {}) == "global state: dispatch_modes differs"
    with torch.device("meta"):
        assert entry.explain((), {}) == "global state: function_modes differs"
    assert entry.matches((), {})
    GlobalState.now()


# --- slow guards ------------------------------------------------------------------------------------------------------


def module_entry(module: torch.nn.Module) -> Entry:
    table, parameters = module.__dict__, module._parameters
    source = DictItem(Known(parameters, "m._parameters"), "weight")
    return entry_of(
        n_args=0,
        slow_guards=(
            Guard(DictItem(Known(table, "m"), "training"), "equals", True),
            Guard(Known(table, "m"), "missing_key", "forward"),
            Guard(source, "is", module.weight),
            Guard(Known(parameters, "m._parameters"), "keys", ("weight", "bias")),
            Guard(Known(module, "m"), "type", type(module)),
            tensor_guard(Known(module.weight, "w"), module.weight),
        ),
        versioned=(table, parameters),
    )


def test_slow_guards_run_only_when_a_dict_moved() -> None:
    module = torch.nn.Linear(2, 3)
    entry = module_entry(module)
    assert entry.full_checks == 1
    for _ in range(3):
        assert entry.matches((), {})
    module.counter = 0
    for _ in range(3):
        module.counter += 1
        assert entry.matches((), {})
    assert entry.full_checks == 1, "what moved was not what the guards look at"
    module.eval()
    assert not entry.matches((), {})
    guard = entry.explain((), {})
    assert isinstance(guard, Guard) and guard.kind == "equals"
    module.train()
    assert entry.matches((), {})
    module.forward = lambda x: x
    assert not entry.matches((), {})
    del module.forward
    assert entry.matches((), {})
    weight = module.weight
    module.weight = torch.nn.Parameter(weight.detach().clone())
    assert not entry.matches((), {})
    module.weight = weight
    assert entry.matches((), {})
    module.register_parameter("extra", None)
    assert not entry.matches((), {})


def test_slow_guards_see_a_new_class() -> None:
    module = torch.nn.Linear(2, 3)
    entry = module_entry(module)
    assert entry.matches((), {})
    module.__class__ = type("Other", (torch.nn.Linear,), {})
    assert not entry.matches((), {})
    module.__class__ = torch.nn.Linear
    assert entry.matches((), {})


def test_slow_guards_through_instance_dicts_and_cells() -> None:
    thing, cell = Thing(), make_cell("relu")
    entry = entry_of(
        n_args=0,
        slow_guards=(
            Guard(DictItem(InstanceDict(Known(thing, "t")), "size"), "equals", 3),
            Guard(CellContents(Known(cell, "c")), "equals", "relu"),
        ),
        versioned=(thing.__dict__,),
    )
    assert entry.matches((), {})
    cell.cell_contents = "gelu"
    assert not entry.matches((), {})
    cell.cell_contents = "relu"
    assert entry.matches((), {})
    thing.__dict__ = {"size": 4}
    assert not entry.matches((), {})
    thing.__dict__ = {"size": 3}
    assert entry.matches((), {})
    # The new dict is not one of the versioned ones: it is looked at on each call.
    thing.size = 5
    assert not entry.matches((), {})


@pytest.mark.parametrize("kind", ["is", "equals"])
def test_slow_guards_on_slots(kind: Any) -> None:
    name, slotted = "a name", Slotted("a name")
    entry = entry_of(n_args=0, slow_guards=(Guard(Slot(Known(slotted, "s"), HELD), kind, name),))
    for held, passes in (
        (name, True),
        ("another", False),
        ("".join(("a ", "name")), kind == "equals"),
        (name, True),
    ):
        slotted.held = held
        assert entry.matches((), {}) == passes
    del slotted.held
    assert not entry.matches((), {})


def test_what_is_no_slot_is_refused() -> None:
    for descriptor in (Thing.__dict__["__dict__"], types.FunctionType.__closure__, len):
        with pytest.raises(ValueError, match="no descriptor of a slot"):
            entry_of(Guard(Slot(A, descriptor), "is", None))


def test_asking_for_a_missing_attribute_makes_no_namespace() -> None:
    """Most tensors are given to a call and dropped without one; making it would cost more than the guards."""
    entry = entry_of(Guard(InstanceDict(A), "missing_key", "size"))
    tensor = torch.ones(2)
    assert entry.matches((tensor,), {})
    assert not any(isinstance(held, dict) for held in gc.get_referents(tensor))
    tensor.size = 3  # pyright: ignore
    assert not entry.matches((tensor,), {})
    del tensor.size
    assert entry.matches((tensor,), {})


def test_slow_guards_look_at_what_is_watched_only() -> None:
    table = {"config": types.SimpleNamespace(act="relu")}
    for source in (Attr(DictItem(Known(table, "table"), "config"), "act"), Result(Known(dict, "dict"))):
        with pytest.raises(ValueError, match="a slow guard looks at what nothing watches"):
            entry_of(n_args=0, slow_guards=(Guard(source, "equals", "relu"),), versioned=(table,))
    with pytest.raises(ValueError, match="a slow guard looks at what nothing watches"):
        entry_of(n_args=0, slow_guards=(Guard(Known(torch.ones(3), "t"), "missing_attr", "tag"),))


def test_slow_guards_on_what_nothing_watches_are_looked_at_on_each_call() -> None:
    items, seen = [1, 2], [True]
    for guard, change in (
        (Guard(Item(Known(items, "items"), 0), "equals", 1), lambda: items.__setitem__(0, 5)),
        (Guard(Known(seen, "seen"), "predicate", lambda seen: seen[0]), lambda: seen.__setitem__(0, False)),
    ):
        entry = entry_of(n_args=0, slow_guards=(guard,))
        assert entry.matches((), {})
        change()
        assert not entry.matches((), {})


def test_classes_are_watched_with_their_bases() -> None:
    class Base:
        act = "relu"

    class Config(Base):
        pass

    known = Known(Config, "Config")
    entry = entry_of(
        n_args=0,
        slow_guards=(
            Guard(known, "mro", Config.__mro__),
            Guard(known, "class_attr", ClassAttr("act", "relu")),
            Guard(known, "class_attr", ClassAttr("other", None, missing=True)),
        ),
    )
    assert entry.matches((), {})
    Config.unrelated = 1
    assert entry.matches((), {})
    Config.act = "gelu"
    assert not entry.matches((), {})
    del Config.act
    assert entry.matches((), {})
    Base.other = 1
    assert not entry.matches((), {})
    del Base.other
    Config.__bases__ = (type("Other", (), {"act": "relu"}),)
    assert not entry.matches((), {})


def test_functions_are_watched_by_code_and_defaults() -> None:
    def f(x: int = 1, *, k: int = 2) -> int:
        return x + k

    def other(x: int = 1, *, k: int = 2) -> int:
        return x - k

    before = FunctionState.of(f)
    entry = entry_of(n_args=0, slow_guards=(Guard(Known(f, "f"), "function", before),))
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        old = getattr(f, name)
        setattr(f, name, getattr(other, name) if name == "__code__" else None)
        assert not entry.matches((), {})
        setattr(f, name, old)
        assert entry.matches((), {})


def test_the_state_behind_a_getter_is_asked_on_every_call() -> None:
    state = [1]
    entry = entry_of(Guard(Result(Known(lambda: state[0], "state")), "equals", 1), n_args=0)
    assert entry.matches((), {})
    state[0] = 2
    assert not entry.matches((), {})


def test_entry_whose_slow_guards_do_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="a guard does not hold when its entry is made"):
        entry_of(n_args=0, slow_guards=(Guard(Known(1, "one"), "equals", 2),))
    with pytest.raises(ValueError, match="a slow guard looks at an argument"):
        entry_of(n_args=1, slow_guards=(Guard(A, "equals", 2),))
    with pytest.raises(ValueError, match="unknown guard kind 'almost'"):
        entry_of(Guard(A, "almost", 2))  # type: ignore[arg-type]
