"""Graph breaks: what cannot be captured runs in plain Python, the rest is captured around it."""

from __future__ import annotations

import inspect
import logging
import pathlib
import random
import sys
import time

import pytest
import torch
import torch.nn as nn
from capture_reference import Reference, check, same

from lampwork.capture import FrameRefused, ProgramRaised, capture
from lampwork.capture.model.codes import CODES

X = torch.arange(6.0).reshape(2, 3)


def test_print():
    def f(x, scale):
        y = x * scale
        print("sum of", y.shape)
        return y - 1, scale

    reference = check(f, (X, 2.0), breaks=["LW104"])
    assert len(reference.regions) == 1
    record = reference.records[0]
    assert record.file == __file__
    assert record.function.endswith("test_print.<locals>.f")


def test_branch_on_data_takes_both_sides():
    def f(x):
        y = x * 2
        if y.sum() < 0:
            z = y - 1
        else:
            z = y + 1
        return z * 3

    check(f, (X,), (-X - 1,), breaks=["LW101"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + x.sum().item(),
        lambda x: x + float(x.sum()),
        lambda x: x * int(x[0, 1]),
        lambda x: x.tolist()[0][1] + x,
        lambda x: x[x > 2] + 1 if bool((x > 2).any()) else x,
        lambda x: x.numpy().sum() + x,
        lambda x: (x * 2, f"{x.sum():.2f}"),
        lambda x: x + 1 if x.sum() > 3 and x.mean() < 10 else x - 1,
        lambda x: x + 1 if not x.any() else x - 1,
        lambda x: [1, 2, 3][x[0, 2].long()] * x,
        lambda x: max(x[0].sum(), x[1].sum()) * x,
        lambda x: 1.0 in x and x + 1,
    ],
)
def test_needs_data(fn):
    reference = check(fn, (X,))
    assert reference.records or reference.refusals
    assert not reference.refusals


def test_break_inside_a_callee_compiles_the_callee():
    def inner(x, k):
        a = x + k
        print("inner")
        return a * 3

    def f(x):
        b = x - 1
        c = inner(b, 2) + b
        return c * 2

    reference = check(f, (X,), breaks=["LW104", "LW104"])
    assert any(child.fn is inner for child in reference.children.values())


def test_break_inside_a_module():
    class Chatty(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            y = self.linear(x)
            print("chatty")
            return y + x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = Chatty()
            self.b = nn.Linear(3, 2)

        def forward(self, x):
            return self.b(self.a(x) * 2)

    check(Outer(), (X,), breaks=["LW104", "LW104"])


def test_break_with_no_grad_open():
    def f(x):
        with torch.no_grad():
            y = x * 2
            print(torch.is_grad_enabled())
            z = y + 1
        print(torch.is_grad_enabled())
        return z, torch.is_grad_enabled()

    check(f, (X,), breaks=["LW104", "LW104"])
    assert torch.is_grad_enabled()


def test_break_in_try_and_finally():
    def f(x, fail):
        try:
            y = x + 1
            print("trying")
            if fail:
                raise ValueError("v")
            y = y * 2
        except ValueError as error:
            y = x - len(str(error))
        finally:
            x = x * 3
        return x, y

    check(f, (X, True), (X, False))


def test_break_with_closure_cells():
    def f(x):
        count = 1

        def bump():
            nonlocal count
            count += 1
            return count

        y = x * bump()
        print(count)
        y = y + bump()
        return y, count, bump()

    check(f, (X,), breaks=["LW104"])


def test_break_with_values_on_the_stack():
    def add(a, b, c=0):
        return a + b + c

    def f(x):
        return add(x * 2, x.sum().item(), c=[x + 1, print("p")][0])

    check(f, (X,), breaks=["LW102", "LW104"])


def test_break_keeps_effects_in_order():
    def f(x, items):
        items.append(1)
        print(len(items))
        items.append(2)
        print(items)
        return x + len(items)

    check(f, (X, []))


def test_several_breaks_and_recompiles():
    def f(x, n):
        y = x + n
        print(n)
        y = y * n
        print(n + 1)
        return y

    reference = check(f, (X, 1), (X, 2), (X[:1], 1))
    assert len(reference.regions) == 3


def test_break_in_a_loop_goes_on_in_the_loop():
    def f(x):
        for i in range(3):
            x = x + i
            print(i)
        return x

    check(f, (X,), breaks=["LW104"] * 3)


def test_break_after_a_loop_is_no_break_in_it():
    def f(x):
        for i in range(3):
            x = x + i
        print(x.shape)
        while x.dim() < 4:
            x = x[None]
        return x

    check(f, (X,), breaks=["LW104"])


def test_generators_are_refused():
    def f(x):
        yield x + 1

    with pytest.raises(FrameRefused) as info:
        capture(f, (X,), {})
    assert info.value.code == "LW133"


def test_native_functions_are_refused():
    with pytest.raises(FrameRefused) as info:
        capture(len, ([],), {})
    assert info.value.code == "LW132"


def test_program_errors_are_told_apart():
    def f(x):
        raise KeyError("k")

    with pytest.raises(ProgramRaised):
        capture(f, (X,), {})


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (lambda x: x + (time.time() > 0), "LW104"),
        (lambda x: x + random.random() * 0, "LW104"),
        (lambda x: (logging.getLogger("t").info("m"), x + 1)[1], "LW104"),
        (lambda x: (torch.manual_seed(0), x + 1)[1], "LW105"),
        (lambda x: (torch.set_default_dtype(torch.float32), x + 1)[1], "LW105"),
        (lambda x: (eval("1"), x + 1)[1], "LW103"),
        (lambda x: x[x > 1], "LW102"),
        (lambda x: torch.nonzero(x), "LW102"),
        (lambda x: torch.nn.functional.mse_loss(x, X[:1]), "LW120"),
        (lambda x: (sys.exc_info(), x + 1)[1], "LW104"),
        (lambda x: (sys.exception(), x + 1)[1], "LW104"),
    ],
)
def test_codes(fn, code):
    reference = check(fn, (X,), breaks=[code])
    assert reference.records[0].cause


def test_custom_autograd_function_breaks():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    reference = Reference(lambda x: Double.apply(x + 1) * 2)
    x = X.clone().requires_grad_()
    same(reference(x).detach(), (X + 1) * 4)
    assert [r.code for r in reference.records] == ["LW114"]


def test_disabled_function_breaks():
    @torch.compiler.disable
    def inner(x):
        return x * 2

    reference = check(lambda x: inner(x + 1) * 3, (X,), breaks=["LW113"])
    assert len(reference.regions) == 1


def test_backward_hooks_break():
    linear = nn.Linear(3, 3)
    linear.register_full_backward_hook(lambda *a: None)
    reference = Reference(lambda x: linear(x) * 2)
    same(reference(X).detach(), (linear(X) * 2).detach())
    assert reference.records[0].code == "LW112"


def test_class_defined_inside_breaks():
    def f(x):
        class Local:
            value = 2

        return x * Local.value

    check(f, (X,), breaks=["LW110"])


def test_the_table_of_codes_is_consistent():
    for code, entry in CODES.items():
        assert code == entry.code
        assert entry.title and entry.fix
        assert entry.cause.format(detail="x")


def test_every_code_is_given_somewhere():
    room = pathlib.Path(inspect.getfile(capture)).parent
    text = "".join(path.read_text() for path in room.rglob("*.py") if path.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []


def test_one_context_after_another_across_breaks():
    def f(x):
        with torch.no_grad():
            print(torch.is_grad_enabled())
        with torch.no_grad():
            print(torch.is_grad_enabled())
            with torch.enable_grad():
                print(torch.is_grad_enabled())
        with torch.set_grad_enabled(False):
            print(torch.is_grad_enabled())
        return x + 1, torch.is_grad_enabled()

    check(f, (X,), breaks=["LW104"] * 4)
    assert torch.is_grad_enabled()
