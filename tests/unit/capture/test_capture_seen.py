"""What a program can see of being compiled around breaks: its frames, its warnings, and the ends of its objects."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F

import lampwork

X = torch.arange(6.0).reshape(2, 3)


def locals_behind_a_break(x):
    k = x.shape[0]
    dead = k + 1
    print("break")
    return list(locals()), x * k


def the_own_frame(x):
    k = 3
    print("break")
    return inspect.currentframe().f_code.co_name, sorted(sys._getframe().f_locals), x * k


def formats_an_exception(x):
    try:
        raise ValueError("a")
    except ValueError:
        return traceback.format_exc().splitlines(), x + 1


def helper_formats(x):
    def text():
        return traceback.format_exc().splitlines()

    try:
        return x[7]
    except IndexError:
        return text()[-1], sys.exc_info()[0], x + 1


def reads_the_stack(x):
    return [f.function for f in inspect.stack()[:1]], x + 1


def in_an_exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: None)
        return x + 1


LOOKING = [
    locals_behind_a_break,
    the_own_frame,
    formats_an_exception,
    helper_formats,
    reads_the_stack,
    in_an_exit_stack,
]


@pytest.mark.parametrize("fn", LOOKING, ids=lambda fn: fn.__name__)
def test_frames_are_the_programs(fn, monkeypatch, capsys):
    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(fn)
    expected = fn(X)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lampwork.LampworkWarning)
            got = compiled(X)
        assert got[:-1] == expected[:-1] if isinstance(got, tuple) else torch.equal(got, expected)


def test_a_refused_function_lies_right_below_its_caller(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")

    def who(x):
        return sys._getframe(1).f_code.co_name, x

    compiled = lampwork.compile(who)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lampwork.LampworkWarning)
        for _ in range(2):
            assert compiled(X)[0] == "test_a_refused_function_lies_right_below_its_caller"


def wrong_loss(x):
    return F.mse_loss(x * 2, X[:1]) + 1


def grid(x):
    return torch.meshgrid(x[0], x[1])[0] * 2


@pytest.mark.parametrize("fn", [wrong_loss, grid])
@pytest.mark.parametrize("action", ["always", "error", "ignore"])
def test_warnings_come_on_each_call(fn, action):
    def heard(call):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action)
            try:
                result = call(X)
            except UserWarning as warning:
                result = str(warning)
        return result, [(w.category, str(w.message), w.filename, w.lineno) for w in found]

    compiled = lampwork.compile(fn)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for _ in range(3):
            (expected, eager), (got, ours) = heard(fn), heard(compiled)
            assert ours == eager
            assert torch.equal(got, expected) if isinstance(got, torch.Tensor) else got == expected
    finally:
        torch.set_warn_always(always)


def test_capture_leaves_the_machinery_of_warnings_alone():
    show, filters = warnings._showwarnmsg, list(warnings.filters)
    lampwork.compile(lambda x: x + 1)(X)
    assert warnings._showwarnmsg is show
    assert warnings.filters == filters
    assert not torch.is_warn_always_enabled()


ENDED: list[str] = []


class Ends:
    def __init__(self, x):
        self.x = x

    def __del__(self):
        ENDED.append("end")


class EndsToo(Ends):
    pass


def ends_in_between(x):
    made = EndsToo(x)
    y = made.x + 1
    del made
    ENDED.append("after")
    return y


def watches(x):
    made = torch.nn.Identity()
    reference = weakref.ref(made)
    before = reference() is made
    del made
    return before, reference() is None, x + 1


def test_objects_end_on_each_call(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(ends_in_between)
    with pytest.warns(lampwork.LampworkWarning, match="LW121"):
        compiled(X)
    assert ENDED == ["end", "after"]
    for _ in range(2):
        ENDED.clear()
        compiled(X)
        assert ENDED == ["end", "after"]


def test_weak_references_die_on_each_call(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(watches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lampwork.LampworkWarning)
        for _ in range(3):
            assert compiled(X)[:2] == (True, True)
