"""Objects end when they end in eager: generators that stand in a `try`, and what a capture has read."""

from __future__ import annotations

import contextlib
import gc
import traceback
import warnings
import weakref

import pytest
import torch

import lampwork

X = torch.ones(2)


def counting(x, log):
    try:
        for i in range(3):
            yield x + i
    finally:
        log.append("end")


def picky(x):
    try:
        yield x
    except (KeyError, ValueError) as error:
        yield x * len(str(error))


def leaves_a_loop(x, log):
    for _ in counting(x, log):
        break
    log.append("after")
    return x * 2


def takes_one(x, log):
    made = counting(x, log)
    first = next(made)
    del made
    log.append("after")
    return first


def returns_from_a_loop_that_breaks(x, log):
    for t in counting(x, log):
        print(end="")
        if len(log) < 5:
            return t
    return x


def uses_up_a_loop_that_breaks(x, log):
    for t in counting(x, log):
        print(end="")
        x = x + t
    log.append("after")
    return x


def leaves_one_without_effects(x, log):
    return next(picky(x)) * 2


@pytest.mark.parametrize(
    ("fn", "refusals"),
    [
        (leaves_a_loop, ["LW121"]),
        (takes_one, ["LW121"]),
        (returns_from_a_loop_that_breaks, ["LW121"]),
        (uses_up_a_loop_that_breaks, []),
        (leaves_one_without_effects, []),
    ],
)
def test_generators_end_where_eager_ends_them(fn, refusals) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lampwork.LampworkWarning)
        compiled = lampwork.compile(fn, options={"strict": False})
        for _ in range(3):
            mine, theirs = [], []
            assert torch.equal(compiled(X, mine), fn(X, theirs))
            assert mine == theirs
    assert [record.code for record in compiled.on_miss.__self__.refusals] == refusals


class Holder:
    pass


def replaces(x, holder):
    holder.kept = Holder()
    holder.kept.of = x * 2
    return holder.kept.of


def test_what_a_capture_read_dies_with_its_last_reference() -> None:
    compiled, holder, before = lampwork.compile(replaces), Holder(), Holder()
    holder.kept, died = before, []
    weakref.finalize(before, died.append, 1)
    del before
    gc.disable()
    try:
        compiled(X, holder)
    finally:
        gc.enable()
    assert died == [1]


def filters(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = x + 1
    return y * 2


def test_filters_of_warnings_are_the_programs() -> None:
    compiled = lampwork.compile(filters)
    before = list(warnings.filters)
    for _ in range(2):
        assert torch.equal(compiled(X), filters(X))
    assert list(warnings.filters) == before


def raises_after(x, k):
    print(end="")
    if k:
        raise KeyError(k)
    return x


def test_tracebacks_hold_no_frames_of_ours() -> None:
    """Also of calls that are known to raise, and of the rest of a function that runs in plain Python."""
    compiled = lampwork.compile(raises_after, options={"strict": False, "recompile_limit": 1})
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lampwork.LampworkWarning)
        for k in (0, 1, 1, 1, "text", "other"):
            try:
                compiled(X, k)
            except KeyError as error:
                seen.append([frame.name for frame in traceback.extract_tb(error.__traceback__)][1:])
    assert len(seen) == 5
    assert all(set(names) == {"raises_after"} for names in seen)


def calls_back(x, then):
    return then(x) * 2


def test_functions_that_are_made_and_passed_on_are_not_compiled_one_by_one() -> None:
    compiled, counts = lampwork.compile(calls_back), []
    for k in range(4):

        def then(x, k=k):
            print(end="")
            return x + k

        assert torch.equal(compiled(X, then), calls_back(X, then))
        names = [function.name for function in compiled.on_miss.__self__.tree()]
        counts.append(sum("then" in name for name in names))
    assert counts == [0, 0, 0, 0]


class Given:
    pass


def breaks(x, given):
    print(end="")
    return x + 1


def breaks_in_a_loop(x, given):
    for _ in range(3):
        print(end="")
        x = x + 1
    return x


def raises(x, given):
    raise ValueError("always")


def raises_for_its_shape(x, given):
    return x.view(-1, 3) + 1


def handles(x, given):
    try:
        raise KeyError(given)
    except KeyError:
        return x + 1


def asks_for_data(x, given):
    return x.tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, given: x + 1,
        breaks,
        breaks_in_a_loop,
        raises,
        raises_for_its_shape,
        handles,
        asks_for_data,
    ],
)
def test_a_call_that_compiles_keeps_nothing(function) -> None:
    """Not even until the garbage is collected."""
    compiled = lampwork.compile(function)
    given, x = Given(), torch.ones(4)
    gone = [weakref.ref(given), weakref.ref(x)]
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError, RuntimeError):
            compiled(x, given)
        del given, x
        assert [ref() for ref in gone] == [None] * len(gone)
    finally:
        gc.enable()
