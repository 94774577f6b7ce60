"""Plain Python in the region: every construct gives eager's result, without a break."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
from typing import Any, NamedTuple

import pytest
import torch
from capture_reference import Reference, check

X = torch.arange(6.0).reshape(2, 3)


def plain(fn, *calls, regions=1):
    return check(fn, *(calls or [(X,)]), regions=regions, breaks=[])


def test_arithmetic_and_constants():
    plain(lambda x: -x + 2 * x / 3 - x**2 // 1.5 + (~x.bool()) % 2)


def test_locals_and_branches_on_python_values():
    def f(x, flag, scale=2.0):
        if flag and scale > 1:
            x = x * scale
        elif not flag:
            x = x - 1
        return x

    plain(f, (X, True), (X, False), (X, True, 0.5), regions=3)


def test_keyword_arguments_and_star_args():
    def g(a, /, b, *rest, c=3, **named):
        return a + b + sum(rest) + c + named["d"]

    def f(x, *args, **kwargs):
        return g(x, *args, 5, c=7, **kwargs)

    plain(f, ((X, 1.0, 2.0), {"d": 4.0}))


def test_defaults_and_keyword_only_defaults():
    def f(x):
        def g(a, b=2, *, c=x.shape[0]):
            return a * b + c

        return g(x), g(x, 3), g(x, c=1)

    plain(f)


def test_closures_and_nonlocal():
    def f(x):
        count = 0

        def bump(y):
            nonlocal count
            count += 1
            return y + count

        return bump(bump(x)), count, (lambda: count)()

    plain(f)


def test_closure_from_outside_is_guarded():
    factor = 2.0

    def f(x):
        return x * factor

    reference = plain(f)
    factor = 3.0
    torch.testing.assert_close(reference(X), X * 3.0)
    assert len(reference.regions) == 2


GLOBAL = 4


def test_global_is_guarded():
    def f(x):
        return x * GLOBAL

    global GLOBAL
    reference = plain(f)
    GLOBAL = 5
    torch.testing.assert_close(reference(X), X * 5)
    GLOBAL = 4


def test_comprehensions_and_generators():
    def f(x):
        rows = [x[i] for i in range(x.shape[0])]
        table = {i: r * i for i, r in enumerate(rows)}
        total = sum(r.sum() for r in rows)

        def twice(items):
            for item in items:
                yield item
                yield item * 2

        return rows, table, total, list(twice(rows)), {len(r) for r in rows}

    plain(f)


def test_yield_from_and_send():
    def inner():
        got = yield 1
        return got * 10

    def outer():
        value = yield from inner()
        yield value

    def f(x):
        g = outer()
        first = next(g)
        second = g.send(4)
        return x + first + second

    plain(f)


def test_containers_and_methods():
    def f(x):
        items = [x, x + 1]
        items.append(x * 2)
        items.extend(reversed(items[:1]))
        items.insert(0, items.pop())
        table = {"a": items, **{"b": 1}}
        table.update(c=2)
        table.setdefault("d", []).append(x)
        a, *middle, z = items
        return table, a, middle, z, tuple(items), [1, 2] + [3], "b" in table, len(items)

    plain(f)


def test_strings():
    plain(
        lambda x: (
            f"{x.shape[0]:>4}|{x.dtype!r}|{tuple(x.shape)}",
            "a-b".split("-"),
            "%d" % x.dim(),
            ",".join("ab"),
        )
    )


def test_sorted_map_filter_reduce_with_python_functions():
    def f(x):
        order = sorted([3, 1, 2], key=lambda v: -v)
        parts = list(map(lambda i: x[0] * i, order))
        kept = list(filter(lambda i: i > 1, order))
        total = functools.reduce(lambda a, b: a + b, parts)
        return (
            order,
            parts,
            kept,
            total,
            max(order, key=lambda v: v % 3),
            any(i > 2 for i in order),
            all(map(bool, order)),
        )

    plain(f)


def test_zip_enumerate_itertools_operator():
    def f(x):
        pairs = list(zip(range(3), "abc"))
        chained = list(itertools.chain([1], (2, 3)))
        return (
            pairs,
            chained,
            [i * y for i, y in enumerate(x)],
            operator.add(1, 2),
            math.sqrt(4.0),
            operator.itemgetter(1)(pairs),
        )

    plain(f)


def test_exceptions_raised_and_caught():
    class Mine(ValueError):
        pass

    def thrower(x):
        if x.dim() == 2:
            raise Mine("two")
        return x

    def f(x):
        trace = []
        try:
            thrower(x)
        except KeyError:
            trace.append("no")
        except Mine as error:
            trace.append(str(error))
        else:
            trace.append("else")
        finally:
            trace.append("finally")
        try:
            {}["missing"]
        except KeyError as error:
            trace.append(error.args[0])
        try:
            try:
                raise TypeError("a")
            except TypeError as error:
                raise RuntimeError("b") from error
        except RuntimeError as error:
            trace.append(type(error.__cause__).__name__)
        return x + 1, trace

    # classes of local scope are compared by identity in guards
    plain(f)


def test_exception_that_escapes_is_eagers():
    def f(x):
        return x @ x

    def g(x):
        raise ValueError(f"bad {x.shape}")

    assert not check(f, (X,)).regions
    assert not check(g, (X,)).regions


def test_reraise_and_bare_raise():
    def f(x):
        try:
            try:
                raise ValueError("v")
            except ValueError:
                raise
        except ValueError as error:
            return x * 2, str(error)

    plain(f)


def test_context_manager_of_the_program():
    class Manager:
        def __init__(self):
            self.events = []

        def __enter__(self):
            self.events.append("enter")
            return self

        def __exit__(self, kind, error, trace):
            self.events.append(kind.__name__ if kind else "exit")
            return kind is KeyError

    def f(x):
        with Manager() as m:
            y = x + 1
        with m:
            raise KeyError("swallowed")
        return y, m.events

    plain(f)


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: Any = None
    extra: list = dataclasses.field(default_factory=list)

    @property
    def total(self):
        return self.left + self.right

    def __add__(self, other):
        return Pair(self.left + other.left, self.right + other.right)

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return (self.left, self.right)[i]

    def __eq__(self, other):
        return self is other


class Point(NamedTuple):
    x: torch.Tensor
    y: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_dataclass_inside_and_out():
    def f(x):
        p = Pair(x, x * 2)
        q = p + p
        q.extra.append(len(p))
        return p, q, q.total, q[1], bool(q), dataclasses.replace(p, right=x)

    plain(f)


def test_dataclass_as_argument():
    plain(lambda p: p.total * len(p.extra), (Pair(X, X + 1, [1, 2]),), (Pair(X, X + 1, [1]),), regions=2)


def test_namedtuple_and_enum():
    def f(p, color):
        if color is Color.RED:
            return Point(p.x + 1, p.y)
        return p._replace(y=p.y + 1), color.value, Color("red").name

    plain(f, (Point(X, 3), Color.RED), (Point(X, 3), Color.BLUE), regions=2)


def test_inheritance_super_classmethod_staticmethod_property():
    class Base:
        scale = 2

        def __init__(self, k):
            self.k = k

        def run(self, x):
            return x * self.k

        @classmethod
        def make(cls, k):
            return cls(k + cls.scale)

        @staticmethod
        def shift(x):
            return x + 1

        @property
        def double(self):
            return self.k * 2

    class Child(Base):
        scale = 3

        def __init__(self, k):
            super().__init__(k)
            self.name = "child"

        def run(self, x):
            return super().run(x) + self.shift(x) * self.double

        def __call__(self, x):
            return self.run(x)

        def __getattr__(self, name):
            if name.startswith("dyn_"):
                return len(name)
            raise AttributeError(name)

    def f(x):
        c = Child.make(1)
        return (
            c(x) * c.dyn_abc,
            hasattr(c, "nothing"),
            getattr(c, "nothing", 7),
            isinstance(c, Base),
            type(c) is Child,
        )

    plain(f)


def test_operator_overloading_and_comparison():
    class V:
        def __init__(self, v):
            self.v = v

        def __radd__(self, other):
            return other + self.v

        def __lt__(self, other):
            return self.v < other.v

        def __contains__(self, item):
            return item == self.v

        def __iter__(self):
            return iter([self.v, self.v + 1])

        def __neg__(self):
            return V(-self.v)

        def __iadd__(self, other):
            self.v += other
            return self

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self.v == other.v

    def f(x):
        a, b = V(1), V(2)
        a += 5
        return x + 1 + a.v, 3 + a, a < b, 6 in a, list(a), (-a).v, a == b, a != b, sorted([b, V(0)])[0].v

    plain(f)


def test_tensor_properties_answer_as_eager():
    def f(x):
        return (
            x.shape, x.size(), x.size(0), x.dim(), x.dtype, x.device, x.numel(), x.ndim, x.is_contiguous(),
            x.stride(), len(x), x.T.shape, x.requires_grad, type(x) is torch.Tensor, isinstance(x, torch.Tensor),
            isinstance(x, torch.nn.Parameter), torch.is_tensor(x), x.is_floating_point(), torch.is_grad_enabled(),
            isinstance(x, (int, torch.Tensor)), x.itemsize, x.layout, x.is_cuda, x is x, x is not None, callable(x),
        )  # fmt: skip

    plain(f)


def test_is_none_does_not_lift():
    reference = plain(lambda x, mask: x if mask is None else x * mask, (X, None), (X, X), regions=2)
    assert len(reference.regions[0].inputs) <= 1


def test_pass_through_needs_no_guard():
    def f(x, extra):
        return x + 1, extra

    reference = plain(f, (X, 3), (X, "text"), (X, [1, 2]), regions=1)
    assert len(reference.regions[0].guards) == 1


def test_outputs_keep_identity():
    def f(x, items):
        y = x + 1
        return y, y, items, [y, items], x

    reference = Reference(f)
    items = [1]
    for _ in range(2):
        a, b, same_items, (c, d), x = reference(X, items)
        assert a is b and b is c and same_items is items and d is items and x is X


def test_returned_closure_and_partial_and_bound_method():
    def f(x):
        y = x * 2

        def add(z):
            return z + y

        return add, functools.partial(add, x), Pair(x, y).__getitem__

    reference = Reference(f)
    for _ in range(2):
        add, part, method = reference(X)
        torch.testing.assert_close(add(X), X * 3)
        torch.testing.assert_close(part(), X * 3)
        torch.testing.assert_close(method(1), X * 2)


def test_match_statement():
    def f(x, what):
        match what:
            case {"k": v, **rest}:
                return x * v, rest
            case [a, b, *more]:
                return x + a + b, more
            case Point(x=p, y=3):
                return p * 2
            case str() as text:
                return x, text
            case _:
                return x

    plain(f, (X, {"k": 2, "j": 1}), (X, [1, 2, 3]), (X, Point(X, 3)), (X, "s"), (X, 1.5), regions=5)


def test_while_for_else_continue_break():
    def f(x):
        n = 0
        while n < 5:
            n += 1
            if n == 2:
                continue
            if n == 4:
                break
            x = x + n
        for i in range(3):
            x = x * (i + 1)
        else:
            x = x - 1
        return x, n

    plain(f)


def test_walrus_slices_chained_comparison_conditional():
    def f(x, n):
        if (m := n + 1) > 2 and 0 < m < 10:
            x = x[..., :2][::1, 1:]
        return x if m else None, x[None], x[:, 0], slice(1, 2)

    plain(f, (X, 3))


def test_collections():
    def f(x):
        d = collections.OrderedDict(a=x)
        d["b"] = x + 1
        d.move_to_end("a")
        dd = collections.defaultdict(list)
        dd["k"].append(x)
        counter = collections.Counter("aab")
        return d, dict(dd), counter["a"], list(d.items())

    plain(f)


def test_isinstance_union_and_issubclass():
    plain(lambda x: (isinstance(x, int | torch.Tensor), issubclass(bool, int), isinstance(2, (str, int))))


def test_lru_cache_and_decorators():
    def twice(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs) * 2

        return wrapper

    @functools.lru_cache
    def table(n):
        return tuple(range(n))

    @twice
    def g(x, k=1):
        return x + k

    plain(lambda x: g(x, k=2))
    check(lambda x: x + len(table(3)), (X,), breaks=["LW103"])


def test_inner_import():
    def f(x):
        import math as m

        from torch.nn import functional as F

        return F.relu(x - m.floor(2.5))

    plain(f)


def test_assert_and_del():
    def f(x):
        assert x.dim() == 2, "no"
        y = {"a": 1, "b": x}
        del y["a"]
        z = x
        del z
        return y

    plain(f)


def test_self_referencing_object_is_rebuilt():
    class Node:
        pass

    def f(x):
        n = Node()
        n.value = x + 1
        n.me = n
        return n

    reference = Reference(f)
    for _ in range(2):
        node = reference(X)
        assert node.me is node
        torch.testing.assert_close(node.value, X + 1)


@pytest.mark.parametrize("value", [0.0, -0.0, float("nan"), 1, True, 1.0])
def test_constants_are_guarded_by_type_and_sign(value):
    reference = Reference(lambda x, v: x * v)
    reference(X, 0.0)
    reference(X, value)
    expected = 1 if value == 0.0 and math.copysign(1, value) > 0 else 2
    assert len(reference.regions) == expected


def test_generators_that_are_thrown_into_and_closed():
    @contextlib.contextmanager
    def scope(log):
        log.append("in")
        try:
            yield len(log)
        except KeyError as error:
            log.append(error.args[0])
        finally:
            log.append("out")

    def counter(log):
        try:
            while True:
                yield 1
        finally:
            log.append("closed")

    def f(x):
        log = []
        with scope(log) as n:
            x = x + n
        with scope(log):
            raise KeyError("k")
        g = counter(log)
        next(g)
        g.close()
        try:
            with scope(log):
                raise ValueError("v")
        except ValueError:
            log.append("seen")
        return x, log

    plain(f)


def test_stop_iteration_value_and_exhausted_generators():
    def g():
        yield 1
        return 5

    def f(x):
        it = g()
        values = [next(it), next(it, None), next(it, "done")]
        try:
            next(it)
        except StopIteration as stop:
            values.append(stop.value)
        return x + 1, values

    plain(f)
