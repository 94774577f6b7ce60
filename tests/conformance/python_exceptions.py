"""Exceptions raised, caught, chained and let out; try, finally and with."""

from __future__ import annotations

import contextlib
import warnings

import torch
from harness import program

X = torch.arange(3.0)


class AppError(Exception):
    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code

    def __str__(self):
        return f"{self.args[0]} ({self.code})"


class NotFound(AppError, KeyError):
    pass


@program(lambda: (X, 3), again=lambda: (X, -1))
def raised_and_caught(x, n):
    try:
        if n < 0:
            raise ValueError("negative")
        y = x * n
    except ValueError as error:
        y = x - 1
        message = str(error)
    else:
        message = "fine"
    finally:
        y = y + 1
    return y, message


@program(lambda: (X, 5), again=lambda: (X, 1))
def let_out(x, n):
    y = x + 1
    if n > 3:
        raise ValueError(f"{n} is too large")
    return y


@program(lambda: (X,))
def own_exception(x):
    try:
        raise NotFound("key", code=4)
    except KeyError as error:
        return x * error.code, str(error), repr(error), isinstance(error, AppError), error.args


@program(lambda: (X,))
def own_exception_let_out(x):
    raise AppError("stop", 7)


@program(lambda: (X,))
def chained_with_cause(x):
    try:
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return x + 1, type(error.__cause__).__name__, str(error.__cause__), error.__suppress_context__


@program(lambda: (X,))
def chained_let_out(x):
    try:
        int("no number")
    except ValueError as error:
        raise AppError("wrapped", 1) from error


@program(lambda: (X,))
def context_is_noted(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904
    except ValueError as error:
        return x * 2, type(error.__context__).__name__, error.__cause__


@program(lambda: (X,))
def from_none(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        return x, error.__cause__, error.__suppress_context__


@program(lambda: (X,))
def raised_again(x):
    log = []
    try:
        try:
            raise ValueError("a")
        except ValueError:
            log.append("inner")
            raise
    except ValueError as error:
        log.append(str(error))
    return x + len(log), log


@program(lambda: (X, 0), again=lambda: (X, "key"))
def several_handlers(x, key):
    for call in (lambda: 1 / key, lambda: {}[key], lambda: x.nothing):
        try:
            call()
        except ZeroDivisionError:
            x = x + 1
        except (KeyError, TypeError) as error:
            x = x * len(str(error))
        except AttributeError:
            x = -x
    return x


@program(lambda: (X,))
def finally_returns(x):
    def f():
        try:
            return x + 1
        finally:
            log.append("finally")

    log = []
    return f(), log


@program(lambda: (X,))
def finally_in_loop(x):
    log = []
    for i in range(3):
        try:
            if i == 1:
                continue
            x = x + i
        finally:
            log.append(i)
    return x, log


@program(lambda: (X,))
def exception_through_frames(x):
    def inner(k):
        if k == 0:
            raise LookupError("bottom")
        return inner(k - 1)

    try:
        inner(3)
    except LookupError as error:
        return x * 2, str(error)


@program(lambda: (X,))
def name_is_unbound_after_except(x):
    try:
        raise ValueError("gone")
    except ValueError as error:
        kept = error
    try:
        error  # noqa: B018
    except NameError as missing:
        return x, str(missing), kept.args


@program(lambda: (X,))
def unbound_local(x):
    try:
        if x.dim() > 5:
            y = 1
        return y
    except UnboundLocalError as error:
        return x + 1, str(error)


@program(lambda: (X,))
def asserts(x):
    assert x.dim() == 1, "one axis"
    try:
        assert x.shape[0] == 4, f"got {x.shape[0]}"
    except AssertionError as error:
        return x, str(error)


@program(lambda: (X,))
def assert_let_out(x):
    y = x * 2
    assert y.shape[0] == 7, ("wrong", y.shape)
    return y


@program(lambda: (X,), breaks=1)
def torch_error_caught(x):
    try:
        return x + torch.ones(4)
    except RuntimeError as error:
        return x * 2, "size" in str(error)


@program(lambda: (X,))
def torch_error_let_out(x):
    y = x * 2
    return y @ torch.ones(4, 4)


@program(lambda: (X,))
def native_errors(x):
    found, five = [], 5
    for call in (
        lambda: int("x"),
        lambda: 1 / 0,
        lambda: "a" + 1,
        lambda: len(5),
        lambda: None.thing,
        lambda: [1, 2][5],
        lambda: {}["k"],
        lambda: five(),
        lambda: next(iter([])),
        lambda: float("nope"),
        lambda: 1 < "a",
        lambda: -"a",
    ):
        try:
            call()
        except Exception as error:  # noqa: BLE001
            found.append((type(error).__name__, str(error)))
    return x + 1, found


@program(lambda: (X,))
def unpacking_errors(x):
    found = []
    for call in (lambda: unpack2([1]), lambda: unpack2([1, 2, 3]), lambda: unpack2(5), lambda: starred([])):
        try:
            call()
        except (ValueError, TypeError) as error:
            found.append(str(error))
    return x, found


def unpack2(items):
    a, b = items
    return a + b


def starred(items):
    first, *rest = items
    return first, rest


@program(lambda: (X,))
def raising_what_is_no_exception(x):
    try:
        raise 5
    except TypeError as error:
        return x, str(error)


@program(lambda: (X,))
def notes_on_exceptions(x):
    try:
        try:
            raise ValueError("base")
        except ValueError as error:
            error.add_note("while testing")
            raise
    except ValueError as error:
        return x, error.__notes__


class Manager:
    def __init__(self, log, swallow=()):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else "exit")
        return kind is not None and issubclass(kind, self.swallow)


@program(lambda: (X, []))
def with_statement(x, log):
    with Manager(log) as m:
        y = x * 2
        m.log.append("body")
    return y, m.log is log


@program(lambda: (X, []))
def with_swallows(x, log):
    y = x
    with Manager(log, (KeyError,)):
        y = x + 1
        {}["gone"]
        y = x + 2
    return y, log


@program(lambda: (X, []))
def with_lets_out(x, log):
    with Manager(log, (KeyError,)):
        raise ValueError("through")


@program(lambda: (X, []))
def nested_with(x, log):
    with Manager(log) as a, Manager(log, (ValueError,)) as b:
        log.append(a is not b)
        raise ValueError("inner")
    return x + len(log)


@program(lambda: (X, []))
def with_and_return(x, log):
    for i in range(3):
        with Manager(log):
            if i == 1:
                return x * i, log


@contextlib.contextmanager
def scaled(log, k):
    log.append("in")
    try:
        yield k * 2
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("out")


@program(lambda: (X,))
def contextmanager(x):
    log = []
    with scaled(log, 3) as k:
        y = x * k
    return y, log


@program(lambda: (X,))
def contextmanager_catches(x):
    log = []
    with scaled(log, 3):
        raise ValueError("caught")
    return x + 1, log


@program(lambda: (X,))
def contextmanager_as_decorator(x):
    log = []

    @scaled(log, 1)
    def f(y):
        return y + 1

    return f(x), f(x), log


@program(lambda: (X,))
def suppress(x):
    with contextlib.suppress(KeyError, ZeroDivisionError):
        x = x + 1
        1 / 0
        x = x + 10
    return x


@program(lambda: (X,))
def nullcontext_and_closing(x):
    class_log = []
    with contextlib.nullcontext(5) as k:
        x = x * k
    with contextlib.closing(Resource(class_log)) as r:
        x = x + r.value
    return x, class_log


class Resource:
    value = 3

    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


@program(lambda: (X,))
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(scaled(log, 1))
        b = stack.enter_context(Manager(log))
        stack.callback(log.append, "callback")
        y = x * a
    return y, log, b.log is log


@program(lambda: (X,), breaks=1)
def warning_given(x):
    y = x + 1
    warnings.warn("careful", UserWarning, stacklevel=1)
    return y * 2


@program(lambda: (X,))
def exception_object_returned(x):
    error = AppError("kept", 3)
    return error, x + 1


@program(lambda: (X, []))
def effects_before_an_exception(x, items):
    items.append(1)
    items.append(x + 1)
    raise RuntimeError("after effects")


@program(lambda: (X, {"n": 1}))
def effects_kept_when_caught(x, table):
    try:
        table["n"] += 1
        table["t"] = x * 2
        raise KeyError("late")
    except KeyError:
        table["caught"] = True
    return table["t"] + 1


def kept_error():
    return (X, KeyError("kept"))


@program(kept_error, breaks=1)
def note_added_to_an_outside_exception(x, error):
    y = x + 1
    error.add_note("seen")
    return y * 2


@program(kept_error, breaks=1, stable=False)
def outside_exception_raised_and_caught(x, error):
    y = x + 1
    try:
        raise error
    except KeyError as caught:
        return y * 2, caught is error, caught.__traceback__ is not None


@program(lambda: (X,))
def names_that_are_missing(x):
    def before():
        return later

    said = []
    for ask in (lambda: nowhere, before):  # noqa: F821
        try:
            ask()
        except NameError as error:
            said.append((str(error), error.name))
    later = x + 1
    return later, said


@program(lambda: (X, 1), breaks=1)
def line_of_a_traceback(x, n):
    try:
        raise KeyError(n)
    except KeyError as error:
        trace = error.__traceback__
        line = trace.tb_lineno - trace.tb_frame.f_code.co_firstlineno
    return x + n, line
