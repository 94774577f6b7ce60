"""Graph breaks where programs have them: print, data, logging, in loops, handlers, callees, methods and generators."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys

import torch
from harness import program

X = torch.arange(3.0)
LOGGER = logging.getLogger("conformance")


@program(lambda: (X,), breaks=1)
def prints(x):
    y = x + 1
    print("sum", y.shape)
    return y * 2


@program(lambda: (X,), breaks=1)
def prints_a_tensor(x):
    y = x + 1
    print(y)
    return y * 2


@program(lambda: (X, 2), again=lambda: (-X, 2), breaks=1)
def item_decides(x, n):
    if x.sum().item() > 1:
        return x * n
    return x - n


@program(lambda: (X,), again=lambda: (-X,), breaks=1)
def branch_on_tensor(x):
    if x.sum() > 1:
        y = x + 1
    else:
        y = x - 1
    return y * 2


@program(lambda: (X,), breaks=2)
def print_in_callee(x):
    def inner(y):
        y = y + 1
        print("inner", y.shape)
        return y * 2

    return inner(x) + 1


@program(lambda: (X,), breaks=3)
def print_in_loop(x):
    for i in range(3):
        x = x + i
        print("step", i)
    return x * 2


@program(lambda: (X + 1,), breaks=2)
def while_tensor(x):
    while x.sum() < 40:
        x = x * 2
    return x + 1


@program(lambda: (X,), breaks=1)
def print_in_try(x):
    try:
        y = x + 1
        print("trying")
        raise ValueError("after the break")
    except ValueError as error:
        return y, str(error)
    finally:
        x = x + 1


@program(lambda: (X,), breaks=2)
def print_in_handler(x):
    try:
        {}["missing"]
    except KeyError as error:
        print("handled", error)
        y = x * 2
    return y + 1


@program(lambda: (X,), breaks=1)
def print_in_finally(x):
    try:
        y = x + 1
    finally:
        print("finally")
    return y * 2


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else "exit")
        return kind is KeyError


@program(lambda: (X, []), breaks=1)
def print_in_with(x, log):
    with Manager(log):
        y = x + 1
        print("inside")
        y = y * 2
    return y, log


@program(lambda: (X,), breaks=1)
def print_under_no_grad(x):
    with torch.no_grad():
        y = x + 1
        print(torch.is_grad_enabled())
        y = y * 2
    return y, torch.is_grad_enabled()


class Noisy:
    def __init__(self):
        self.count = 0

    def run(self, x):
        self.count += 1
        print("run", self.count)
        return x + self.count


@program(lambda: (X, Noisy()), breaks=2)
def print_in_method(x, noisy):
    y = noisy.run(x * 2)
    return y - 1, noisy.count


class Base:
    def run(self, x):
        return x + 1


class Derived(Base):
    def run(self, x):
        print("derived")
        return super().run(x) * 2


@program(lambda: (X, Derived()), breaks=2)
def break_before_super(x, d):
    return d.run(x) + 1


@program(lambda: (X,), breaks=1, stable=False)
def writes_to_stderr(x):
    y = x + 1
    sys.stderr.write("note\n")
    return y * 2


@program(lambda: (X,), breaks=1)
def logs(x):
    y = x + 1
    LOGGER.error("value %s", "a")
    return y * 2


@program(lambda: (X,), breaks=1)
def tolist(x):
    y = x + 1
    values = y.tolist()
    return y * len(values), values


@program(lambda: (X,), breaks=1)
def nonzero_and_masks(x):
    y = x[x > 0]
    return y * 2


@program(lambda: (X,), breaks=1)
def assert_on_tensor(x):
    assert (x >= 0).all(), "negative"
    return x + 1


@program(lambda: (X - 5,), breaks=1)
def assert_on_tensor_fails(x):
    y = x * 2
    assert (y >= 0).all(), "negative"
    return y + 1


@program(lambda: (X,), breaks=1)
def effects_around_a_break(x):
    items, table = [1], {"k": x}
    items.append(2)
    print("items", items)
    items.append(3)
    table["k"] = table["k"] + len(items)
    return items, table


@program(lambda: (X, [1], {"k": 0}), breaks=1)
def argument_effects_around_a_break(x, items, table):
    items.append(x + 1)
    table["k"] += 1
    print(table["k"], len(items))
    items.append(x + 2)
    table["k"] += 1
    return x * table["k"]


@program(lambda: (X,), breaks=1, stable=False)
def closure_across_a_break(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    bump()
    print("count", count)
    bump()
    return x * count, bump


@program(lambda: (X,), breaks=1)
def comprehension_across_a_break(x):
    items = [x + i for i in range(3)]
    print(len(items))
    return [t * 2 for t in items]


@program(lambda: (X,), breaks=2)
def enumerate_with_break(x):
    out = []
    for i, t in enumerate([x, x + 1]):
        print(i)
        out.append(t * i)
    return out


@program(lambda: (X,), breaks=1)
def exception_after_a_break(x):
    y = x + 1
    print("before")
    raise RuntimeError(f"after {y.shape[0]}")


@program(lambda: (X,), breaks=1, stable=False)
def redirected_print(x):
    y = x + 1
    with contextlib.suppress(ValueError):
        print("to stderr", file=sys.stderr)
    return y * 2


@program(lambda: (X,), breaks=1, stable=False)
def unknown_builtin(x):
    y = x + 1
    code = compile("1 + 1", "text", "eval")
    return y * 2, code.co_filename


@program(lambda: (X,), breaks=1, stable=False)
def class_defined_inside(x):
    class Local:
        k = 3

        def run(self, y):
            return y * self.k

    return Local().run(x)


@program(lambda: (X,), breaks=3)
def method_that_takes_its_class_across_a_break(x):
    jobs = queue.SimpleQueue()
    jobs.put(x.shape[0])
    return jobs.get_nowait(), x * 2
