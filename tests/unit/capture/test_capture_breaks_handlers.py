"""Graph breaks in with blocks and in try, except and finally: exceptions go where they go in eager.

PYTEST_DONT_REWRITE: the texts of failed assertions would have addresses in them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings

import pytest
import torch
from break_check import check_breaks, outcome

import lampwork

X = torch.arange(6.0).reshape(2, 3)


def boom(message):
    raise ValueError(message)


class Fails:
    def __str__(self):
        raise KeyError("no text")


class Noisy:
    def __init__(self, swallow=False):
        self.swallow = swallow

    def __enter__(self):
        print("enter")
        return self

    def __exit__(self, kind, error, trace):
        print("exit", kind and kind.__name__, error, trace is not None)
        return self.swallow


class Quiet:
    def __init__(self):
        self.depth = 0

    def __enter__(self):
        self.depth += 1
        return self.depth

    def __exit__(self, *error):
        self.depth -= 1


@contextlib.contextmanager
def managed(name):
    print("in", name)
    try:
        yield name
    finally:
        print("out", name)


def instruction_raises(x):
    try:
        x = x + 1
        print(Fails())
        x = x * 2
    except KeyError as error:
        x = x - len(str(error))
    return x


def instruction_raises_past(x):
    try:
        x = x + 1
        print(Fails())
    except ValueError:
        x = x * 100
    return x


def rest_raises(x):
    try:
        print("a")
        x = x + 1
        raise ValueError("v")
    except ValueError as error:
        x = x - len(str(error))
    return x


def callee_raises(x):
    try:
        x = x + 1
        boom("callee")
    except ValueError as error:
        print(error)
        x = x * 3
    return x


def uncaught_after_break(x):
    print("a")
    y = x + 1
    boom("uncaught")
    return y


def uncaught_error_in_break(x):
    y = x + 1
    print(Fails())
    return y


def breaks_in_handler(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        print("handling", error)
        x = x + 1
        print("still", error)
    return x * 2


def current_exception(x):
    try:
        boom("v")
    except ValueError:
        kind, error, trace = sys.exc_info()
        print(kind.__name__, error, trace is not None)
        x = x + 1
        print(sys.exc_info()[0])
    print(sys.exc_info()[0])
    return x


def reraise_after_break(x):
    try:
        boom("again")
    except ValueError:
        print("seen")
        x = x + 1
        raise
    return x


def reraise_caught_outside(x):
    try:
        try:
            boom("again")
        except ValueError:
            print("seen")
            x = x + 1
            raise
    except ValueError as error:
        print("outer", error)
        x = x * 2
    return x


def raise_other_in_handler(x):
    try:
        boom("first")
    except ValueError as error:
        print("first")
        raise KeyError("second") from error


def implicit_context(x):
    try:
        try:
            boom("first")
        except ValueError:
            print("handling")
            print(Fails())
    except KeyError as error:
        print(type(error.__context__).__name__, error.__cause__)
        x = x + 1
    return x


def break_in_finally(x):
    try:
        x = x + 1
    finally:
        print("finally")
        x = x * 2
    return x


def break_in_finally_while_raising(x):
    try:
        x = x + 1
        boom("v")
    finally:
        print("finally", x.shape)
        x = x * 2
    return x


def return_in_finally(x):
    try:
        print(Fails())
    finally:
        print("finally")
        return x + 1  # noqa: B012


def try_else(x):
    try:
        print("try")
    except ValueError:
        x = x * 100
    else:
        print("else")
        x = x + 1
    finally:
        print("finally")
        x = x * 2
    return x


def try_in_loop(x):
    for i in range(4):
        try:
            if i % 2:
                boom(str(i))
            x = x + i
            print("even", i)
        except ValueError as error:
            print("odd", error)
            continue
        finally:
            x = x * 2
            print("done", i)
    return x


def nested_handlers(x):
    try:
        boom("one")
    except ValueError as one:
        print(one)
        try:
            boom("two")
        except ValueError as two:
            print(two, sys.exc_info()[1])
            x = x + 1
        print(sys.exc_info()[1])
        x = x + 2
    print(sys.exc_info()[1])
    return x


def handler_deletes_its_name(x):
    error = 3
    try:
        print(Fails())
    except KeyError:
        x = x + 1
        print("h")
    try:
        return x + error
    except UnboundLocalError:
        print("unbound")
        return x


def shapes_do_not_fit(x):
    try:
        y = x + torch.ones(5)
    except RuntimeError as error:
        print(error)
        y = x * 2
    return y


def shapes_do_not_fit_in_callee(x):
    def inner(y):
        z = y * 2
        return z @ y

    try:
        y = inner(x)
    except RuntimeError as error:
        y = x + len(str(error))
    return y


def fallback_of_a_conversion(x):
    try:
        scale = x.item()
    except (RuntimeError, ValueError):
        scale = 2.0
    return x * scale


def with_no_grad(x):
    with torch.no_grad():
        x = x * 2
        print(torch.is_grad_enabled())
        x = x + 1
    print(torch.is_grad_enabled())
    return x


def with_no_grad_raises(x):
    try:
        with torch.no_grad():
            x = x * 2
            print(Fails())
    except KeyError:
        x = x + torch.is_grad_enabled()
    return x, torch.is_grad_enabled()


def with_no_grad_rest_raises(x):
    try:
        with torch.no_grad():
            print("a")
            x = x * 2
            boom("v")
    except ValueError:
        x = x + 1
    return x, torch.is_grad_enabled()


def with_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        print(y.dtype)
        z = x @ x.T
    w = x @ x.T
    print(w.dtype)
    return y, z, w


def with_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        print(y.is_inference())
        z = y + 1
    return z.is_inference(), x + 1


def with_noisy(x):
    with Noisy():
        x = x + 1
        print("body")
        x = x * 2
    return x


def with_noisy_as(x):
    with Noisy() as manager:
        print(manager.swallow)
        x = x + 1
    return x


def with_noisy_raises(x):
    with Noisy():
        x = x + 1
        boom("body")
    return x


def with_noisy_swallows(x):
    with Noisy(swallow=True):
        x = x + 1
        print("body")
        boom("body")
    return x * 2


def with_quiet(x):
    manager = Quiet()
    with manager as depth:
        x = x + depth
        print(manager.depth)
        with manager as deeper:
            x = x * deeper
            print(manager.depth)
    return x, manager.depth


def with_quiet_from_outside(x, manager):
    with manager as depth:
        x = x + depth
        print(depth)
    return x


def with_two(x):
    with Noisy() as a, Noisy(True) as b:
        print(a.swallow, b.swallow)
        x = x + 1
        boom("inner")
    return x


def with_managed(x):
    with managed("m") as name:
        x = x + len(name)
        print("body")
        x = x * 2
    return x


def with_managed_raises(x):
    with managed("m"):
        x = x + 1
        boom("body")
    return x


def with_suppress(x):
    with contextlib.suppress(KeyError):
        x = x + 1
        print(Fails())
        x = x * 100
    return x * 2


def with_nullcontext(x):
    with contextlib.nullcontext(3) as n:
        print(n)
        x = x + n
    return x


def with_exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Noisy())
        stack.callback(print, "callback")
        x = x + 1
        print("body")
    return x


def with_in_loop(x):
    for i in range(3):
        with Noisy():
            x = x + i
            print(i)
            if i == 1:
                continue
            x = x * 2
    return x


def return_from_with(x):
    with Noisy():
        print("a")
        return x + 1


def return_from_try(x):
    try:
        print("a")
        return x + 1
    finally:
        print("b")


def warns(x):
    x = x + 1
    warnings.warn("careful", stacklevel=1)
    return x * 2


def warns_at_caller(x):
    def inner(y):
        z = y + 1
        warnings.warn("careful", stacklevel=2)
        return z * 2

    x = x + 1
    return inner(x) + 1


def logs(x):
    logger = logging.getLogger("breaks")
    x = x + 1
    logger.info("one %s", x.shape)
    x = x * 2
    logger.warning("two")
    return x


def logs_exception(x):
    logger = logging.getLogger("breaks")
    try:
        boom("v")
    except ValueError:
        logger.exception("failed")
        x = x + 1
    return x


def asserts_tensor(x):
    y = x + 1
    assert (y > 0).all()
    return y * 2


def asserts_tensor_fails(x):
    y = x + 1
    assert (y > 3).all(), "too small"
    return y * 2


def assert_in_with(x):
    with Noisy():
        assert x.sum() > 100, f"sum {x.sum().item()}"
    return x


PROGRAMS = [
    instruction_raises,
    instruction_raises_past,
    rest_raises,
    callee_raises,
    uncaught_after_break,
    uncaught_error_in_break,
    breaks_in_handler,
    current_exception,
    reraise_after_break,
    reraise_caught_outside,
    raise_other_in_handler,
    implicit_context,
    break_in_finally,
    break_in_finally_while_raising,
    return_in_finally,
    try_else,
    try_in_loop,
    nested_handlers,
    handler_deletes_its_name,
    shapes_do_not_fit,
    shapes_do_not_fit_in_callee,
    fallback_of_a_conversion,
    with_no_grad,
    with_no_grad_raises,
    with_no_grad_rest_raises,
    with_autocast,
    with_inference_mode,
    with_noisy,
    with_noisy_as,
    with_noisy_raises,
    with_noisy_swallows,
    with_quiet,
    with_two,
    with_managed,
    with_managed_raises,
    with_suppress,
    with_nullcontext,
    with_exit_stack,
    with_in_loop,
    return_from_with,
    return_from_try,
    warns,
    logs,
    logs_exception,
    asserts_tensor,
    asserts_tensor_fails,
    assert_in_with,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_handlers(fn):
    check_breaks(fn, (X,))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_warnings_name_the_line_of_the_caller():
    compiled = lampwork.compile(warns_at_caller)
    expected = outcome(warns_at_caller, (X,))
    outcome(compiled, (X,))
    assert outcome(compiled, (X,)).warned == expected.warned


def test_a_manager_from_outside():
    check_breaks(with_quiet_from_outside, (X, Quiet()))
