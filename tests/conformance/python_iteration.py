"""Iteration: generators, yield from, itertools, comprehensions and iterators passed in."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import itertools
import operator
import types

import torch
from harness import program

X = torch.arange(3.0)


def steps(x, n):
    for i in range(n):
        yield x + i


def chained(x):
    yield x
    count = yield from counted(x, 2)
    yield x * count
    yield from [x, x + 1]


def counted(x, n):
    for i in range(n):
        yield x * i
    return n


def averaging():
    total, n = 0, 0
    value = None
    while True:
        value = yield (total / n if n else value)
        if value is None:
            return
        total, n = total + value, n + 1


@program(lambda: (X, 3), again=lambda: (X, 2))
def generator(x, n):
    return sum(steps(x, n))


@program(lambda: (X,))
def yield_from(x):
    return list(chained(x))


@program(lambda: (X,))
def generator_send(x):
    g = averaging()
    next(g)
    return g.send(x), g.send(x + 2)


@program(lambda: (X,))
def generator_closed(x):
    log = []

    def g():
        try:
            yield x
            yield x + 1
        finally:
            log.append("closed")

    it = g()
    first = next(it)
    it.close()
    return first, log, list(it)


@program(lambda: (X,))
def generator_throw(x):
    def g():
        try:
            yield x
        except ValueError as error:
            yield x * len(str(error))

    it = g()
    next(it)
    return it.throw(ValueError("abc"))


@program(lambda: (X,))
def generator_return_value(x):
    it = counted(x, 1)
    next(it)
    try:
        next(it)
    except StopIteration as stop:
        return stop.value, x + 1
    return None


@program(lambda: (X,))
def generator_raises(x):
    def g():
        yield x
        raise KeyError("inside")

    found = []
    try:
        for item in g():
            found.append(item * 2)
    except KeyError as error:
        return found, str(error)
    return None


@program(lambda: (X,))
def stop_iteration_inside_generator(x):
    def g():
        yield next(iter([]))

    try:
        list(g())
    except RuntimeError as error:
        return x, str(error), type(error.__cause__).__name__
    return None


@program(lambda: (X,))
def generator_expression(x):
    g = (x * i for i in range(4) if i % 2)
    return next(g) + next(g), next(g, None)


@program(lambda: (X,))
def infinite_generator(x):
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    return sum(x * n for n in itertools.islice(naturals(), 4))


@program(lambda: (X,))
def recursive_generator(x):
    def walk(tree):
        if isinstance(tree, list):
            for branch in tree:
                yield from walk(branch)
        else:
            yield tree

    return list(walk([x, [x + 1, [x + 2]], []]))


@program(lambda: (X,))
def generator_stored_on_object(x):
    class_free = {"g": steps(x, 3)}
    first = next(class_free["g"])
    return first, list(class_free["g"])


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Pages:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, i):
        return self.items[i]

    def __len__(self):
        return len(self.items)


class Batches:
    def __init__(self, x, n):
        self.x, self.n = x, n

    def __iter__(self):
        for i in range(self.n):
            yield self.x * i


@program(lambda: (X,))
def own_iterator(x):
    return [x * n for n in Countdown(3)], list(Countdown(2)), max(Countdown(4)), 2 in Countdown(5)


@program(lambda: (X, Countdown(3)))
def own_iterator_passed_in(x, c):
    first = next(c)
    return x * first, sum(c), c.n


@program(lambda: (X,))
def iterated_by_getitem(x):
    p = Pages([x, x + 1, x + 2])
    return sum(p), list(reversed(p)), [a + b for a, b in zip(p, p, strict=True)], len(p)


@program(lambda: (Batches(X, 3),), again=lambda: (Batches(X, 2),))
def iterable_object(b):
    return sum(b) + sum(i * t for i, t in enumerate(b, 1))


@program(lambda: (X,))
def comprehensions(x):
    squares = {i: x * i for i in range(3)}
    names = {f"n{i % 2}" for i in range(4)}
    nested = [[x + i + j for j in range(2)] for i in range(2)]
    flat = [t for row in nested for t in row if t is not nested[0][0]]
    return squares, sorted(names), nested, len(flat)


@program(lambda: (X,))
def comprehension_scopes(x):
    i = 10
    y = [i for i in range(3)]
    return x + i, y, [(a, b) for a in range(2) for b in range(a)]


@program(lambda: (X,))
def zip_and_enumerate(x):
    pairs = list(zip([1, 2, 3], (x, x + 1), strict=False))
    total = sum(i * t for i, (_, t) in enumerate(pairs, start=1))
    return total, dict(enumerate("ab")), list(zip(*[(1, 2), (3, 4)], strict=True))


@program(lambda: (X,))
def zip_strict_raises(x):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return x, str(error)
    return None


@program(lambda: (X,))
def map_and_filter(x):
    tensors = list(map(lambda k: x * k, [1, 2, 3]))
    odd = list(filter(lambda k: k % 2, range(5)))
    return sum(map(operator.add, tensors, tensors)), odd, list(filter(None, [0, 1, "", "a"]))


@program(lambda: (X,))
def map_over_class_and_partial(x):
    made = list(map(Countdown, [1, 2]))
    scaled = list(map(functools.partial(torch.add, x), [1, 2]))
    return [m.n for m in made], scaled


@program(lambda: (X,))
def lazy_map_returned(x):
    return map(torch.neg, [x, x + 1]), zip([1, 2], [x, x], strict=True), iter([x, 1])


@program(lambda: (X,))
def itertools_chain_islice(x):
    both = list(itertools.chain([x], (x + 1,), steps(x, 2)))
    flat = list(itertools.chain.from_iterable([[1], [2, 3]]))
    return sum(both), flat, list(itertools.islice(range(10), 1, 8, 3))


@program(lambda: (X,))
def itertools_combinatorics(x):
    pairs = list(itertools.combinations([x, x + 1, x + 2], 2))
    grid = list(itertools.product(range(2), repeat=2))
    return sum(a * b for a, b in pairs), grid, len(list(itertools.permutations(range(3))))


@program(lambda: (X,))
def itertools_accumulate(x):
    return list(itertools.accumulate([x, x, x])), list(
        itertools.accumulate([1, 2, 3], lambda a, b: a * b, initial=2)
    )


@program(lambda: (X,))
def itertools_groupby(x):
    groups = {k: [v for v in g] for k, g in itertools.groupby([1, 3, 2, 4, 5], key=lambda v: v % 2)}
    return groups, x + len(groups)


@program(lambda: (X,))
def itertools_count_cycle_repeat(x):
    numbers = [x * n for n, _ in zip(itertools.count(2, 3), range(3), strict=False)]
    colours = [c for c, _ in zip(itertools.cycle("ab"), range(3), strict=False)]
    return numbers, colours, list(itertools.repeat(x, 2))


@program(lambda: (X,))
def itertools_selection(x):
    return (
        list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.starmap(torch.add, [(x, 1), (x, 2)])),
        list(itertools.zip_longest([1, 2], [3], fillvalue=0)),
        list(itertools.pairwise([1, 2, 3])),
        list(itertools.compress("abc", [1, 0, 1])),
    )


@program(lambda: (X,))
def itertools_tee(x):
    a, b = itertools.tee([1, 2, 3])
    return x * sum(a), list(b)


@program(lambda: (X, iter([1, 2, 3])), breaks=2)
def list_iterator_passed_in(x, it):
    first = next(it)
    return x * first, list(it)


@program(lambda: (X, (i for i in range(3))))
def generator_passed_through(x, g):
    return x + 1, g


@program(lambda: (X, (i + 1 for i in range(3))), breaks=1)
def generator_passed_in(x, g):
    y = x + 1
    items = list(g)
    return y * sum(items)


@program(lambda: (X, itertools.count(5)), breaks=2)
def count_passed_in(x, counter):
    a = next(counter)
    b = next(counter)
    return x * a + b


@program(lambda: (X, [1, 2, 3]), again=lambda: (X, [1]))
def loop_else(x, items):
    for item in items:
        if item == 2:
            x = x * 10
            break
        x = x + item
    else:
        x = -x
    return x


@program(lambda: (X, 4), again=lambda: (X, 0))
def while_with_continue(x, n):
    while n > 0:
        n -= 1
        if n % 2:
            continue
        x = x + n
    else:
        x = x * 2
    return x, n


@program(lambda: (X,))
def iter_with_sentinel(x):
    values = [3, 2, 1, 0, 5]
    return [x * v for v in iter(lambda: values.pop(0), 0)], values


@program(lambda: (X,))
def nested_loops_with_flags(x):
    found = None
    for i in range(3):
        for j in range(3):
            if i * j == 2:
                found = (i, j)
                break
        if found:
            break
    return x * i + j, found


@program(lambda: (torch.arange(6.0).reshape(3, 2),))
def iterate_over_tensor(x):
    rows = [row * i for i, row in enumerate(x)]
    a, *rest = x
    return sum(rows), a, len(rest), [t.shape for t in x.split(2)]


@program(lambda: (X, {"a": 1, "b": 2}))
def iterate_over_dict(x, table):
    total = sum(v for k, v in table.items() if k != "z")
    return x * total, list(table), [k for k in reversed(table)], sorted(table.values())


@program(lambda: (X,))
def any_all_short_circuit(x):
    seen = []

    def check(v):
        seen.append(v)
        return v > 1

    return x + 1, any(check(v) for v in [1, 2, 3]), all(check(v) for v in [2, 1, 3]), seen


@program(lambda: (X,))
def min_max_with_key(x):
    words = ["ccc", "a", "bb"]
    return (
        x * len(max(words, key=len)),
        min(words, key=lambda w: (len(w), w)),
        max([], default=7),
        min(3, 1, 2),
        sorted(words, key=len, reverse=True),
    )


@program(lambda: (X,))
def unpacking_in_for(x):
    out = []
    for name, (a, *rest) in {"p": (x, 1, 2), "q": (x + 1,)}.items():
        out.append((name, a, rest))
    return out


@program(lambda: (X, 2), again=lambda: (X, 3))
def generators_are_of_their_type(x, n):
    def double():
        got = yield x
        yield x * got

    made = double()
    first, second = next(made), made.send(n)
    kinds = isinstance(made, types.GeneratorType), isinstance(made, (list, collections.abc.Generator))
    return first, second, kinds, type(made).__name__, hasattr(made, "frame"), getattr(made, "started", 5)


@program(lambda: (X,), breaks=2)
def generator_is_asked_for_its_state(x):
    def double():
        yield x * 2

    made = double()
    asked = made.gi_running, made.gi_code.co_name, made.__name__
    return asked, next(made)


@program(lambda: (X,), breaks=2)
def generator_is_looked_at(x):
    def double():
        yield x * 2

    made = double()
    return inspect.isgenerator(made), inspect.getgeneratorstate(made), next(made)


@program(lambda: (X, 2), again=lambda: (X, 3))
def comprehension_over_the_name_of_a_cell(x, n):
    y = n
    before = lambda: y  # noqa: E731
    found = [y for y in range(3)]
    after = lambda: y  # noqa: E731
    y = y + 1
    return x * before(), after(), found
