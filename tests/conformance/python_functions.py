"""Functions: closures, decorators, defaults, nonlocal and global writes, functools, inspect."""

from __future__ import annotations

import functools
import inspect

import torch
from harness import program

X = torch.arange(3.0)
COUNT = 0
SETTINGS = {"scale": 2, "log": []}
LIMIT = 3


@program(lambda: (X,))
def closure(x):
    k = 2

    def inner(y):
        return y * k + x

    k = 5
    return inner(x)


@program(lambda: (X,))
def nonlocal_counter(x):
    total = 0

    def add(y):
        nonlocal total
        total += 1
        return y + total

    return add(x) + add(x), total


@program(lambda: (X, 3), again=lambda: (X, 4))
def function_returned(x, n):
    def scale(y, *, by=n):
        return y * by

    return scale, scale(x)


@program(lambda: (X,))
def closures_share_a_cell(x):
    value = x

    def get():
        return value

    def put(new):
        nonlocal value
        value = new

    put(get() + 1)
    return get, put, value


@program(lambda: (X,))
def late_binding_in_loop(x):
    functions = [lambda y: y * i for i in range(3)]
    fixed = [lambda y, i=i: y * i for i in range(3)]
    return sum(f(x) for f in functions), sum(f(x) for f in fixed)


@program(lambda: (X, 5), again=lambda: (X, 1))
def recursion(x, n):
    def down(y, k):
        return y if k == 0 else down(y * 2, k - 1)

    return down(x, n)


def is_even(x, n):
    return x if n == 0 else is_odd(x + 1, n - 1)


def is_odd(x, n):
    return x * -1 if n == 0 else is_even(x + 1, n - 1)


@program(lambda: (X, 4), again=lambda: (X, 3))
def mutual_recursion(x, n):
    return is_even(x, n)


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        """Of the wrapper."""
        return function(*args, **kwargs) + 1

    return wrapper


def repeated(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            for _ in range(times):
                x = function(x)
            return x

        return wrapper

    return decorate


class Tracing:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


@logged
@repeated(3)
def doubled(x):
    """Doubles."""
    return x * 2


@Tracing
def tripled(x):
    return x * 3


@program(lambda: (X,))
def decorated(x):
    return doubled(x), doubled.__name__, doubled.__doc__, doubled.__wrapped__.__wrapped__(x)


@program(lambda: (X,), stable=False)
def decorated_by_class(x):
    return tripled(x), tripled.calls, tripled.__name__


@program(lambda: (X,))
def decorated_inside(x):
    @logged
    def local(y, k=2):
        return y * k

    return local(x), local(x, k=3), local.__name__


def options(x, /, a, b=2, *rest, c, d=4, **named):
    return x * a + b + sum(rest) + c + d + sum(named.values())


@program(lambda: (X,))
def all_kinds_of_parameters(x):
    rest, named = [5, 6], {"e": 7}
    return options(x, 1, c=3), options(x, 1, 2, *rest, c=3, d=1, **named), options(x, *[1, 2], **{"c": 4})


@program(lambda: (X,))
def wrong_arguments(x):
    found = []
    for args, kwargs in (((x,), {}), ((x, 1), {}), ((x, 1), {"c": 1, "x": 2}), ((x, 1, 2), {"b": 2, "c": 1})):
        try:
            found.append(options(*args, **kwargs))
        except TypeError as error:
            found.append(str(error))
    return found


@program(lambda: (X,))
def argument_errors(x):
    def two(a, b):
        return a + b

    found = []
    for call in (lambda: two(), lambda: two(1, 2, 3), lambda: two(1, c=2), lambda: two(1, a=1)):
        try:
            call()
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


def remember(x, memo={}):  # noqa: B006
    if "first" not in memo:
        memo["first"] = 1
    memo["calls"] = memo.get("calls", 0) + 1
    return x * memo["first"]


@program(lambda: (X,), stable=False)
def mutable_default(x):
    return remember(x) + remember(x)


@program(lambda: (X,))
def mutable_default_inside(x):
    def collect(y, seen=[]):  # noqa: B006
        seen.append(y)
        return len(seen)

    return collect(x), collect(x + 1), collect(x, []), x * 2


@program(lambda: (X,), stable=False)
def global_counter(x):
    global COUNT
    COUNT += 1
    return x + COUNT


@program(lambda: (X,), stable=False)
def global_dict_written(x):
    SETTINGS["calls"] = SETTINGS.get("calls", 0) + 1
    SETTINGS["log"].append("called")
    return x * SETTINGS["scale"]


@program(lambda: (X,), stable=False)
def global_made_and_read(x):
    global MADE
    MADE = x + 1
    return MADE * LIMIT


@program(lambda: (X,))
def functools_partial(x):
    f = functools.partial(options, x, 1, c=2)
    g = functools.partial(f, d=0)
    return f(), g(), g.keywords, len(g.args)


@program(lambda: (X, functools.partial(torch.add, alpha=2)))
def partial_passed_in(x, f):
    return f(x, x), f.keywords["alpha"]


@program(lambda: (X,))
def partial_returned(x):
    return functools.partial(torch.mul, x + 1), x


@program(lambda: (X,))
def functools_reduce(x):
    return (
        functools.reduce(lambda a, b: a * b, [x, x + 1, x + 2]),
        functools.reduce(torch.add, [x, x], x),
        functools.reduce(max, [3, 1, 4]),
    )


@functools.lru_cache(maxsize=None)
def slow_table(n):
    return [i * i for i in range(n)]


@functools.cache
def slow_number(n):
    return n * 10


# What a cache counts and when it is filled is part of what a program does: each call of one runs in plain Python.
@program(lambda: (X, 3), again=lambda: (X, 4), breaks=2)
def lru_cache(x, n):
    return x * sum(slow_table(n)) + slow_number(n)


@functools.singledispatch
def describe(value):
    return "other"


@describe.register
def _(value: int):
    return f"int {value}"


@describe.register(list)
def _(value):
    return f"list of {len(value)}"


@program(lambda: (X, 3), again=lambda: (X, [1]))
def singledispatch(x, value):
    return x + 1, describe(value), describe("text")


class Ranked:
    def __init__(self, rank):
        self.rank = rank

    def __eq__(self, other):
        return self.rank == other.rank

    def __lt__(self, other):
        return self.rank < other.rank

    __hash__ = None


Ranked = functools.total_ordering(Ranked)


@program(lambda: (X,))
def total_ordering(x):
    a, b = Ranked(1), Ranked(2)
    return x * (a <= b), a >= b, a > b, [r.rank for r in sorted([b, a])]


@program(lambda: (X,))
def cmp_to_key(x):
    order = functools.cmp_to_key(lambda a, b: b - a)
    return x, sorted([3, 1, 2], key=order), max([3, 1, 2], key=order)


class Model:
    def __init__(self, k):
        self.k = k

    def run(self, x, power=1):
        return (x * self.k) ** power

    cube = functools.partialmethod(run, power=3)


@program(lambda: (X, Model(2)))
def partialmethod(x, model):
    return model.cube(x), Model(3).cube(x)


@program(lambda: (X,))
def signature(x):
    found = inspect.signature(options)
    names = list(found.parameters)
    kinds = [p.kind.name for p in found.parameters.values()]
    return x + len(names), names, kinds, found.parameters["b"].default, str(found)


@program(lambda: (X, Model(2)))
def signature_decides(x, model):
    accepted = inspect.signature(model.run).parameters
    kwargs = {k: v for k, v in {"power": 2, "other": 1}.items() if k in accepted}
    return model.run(x, **kwargs)


@program(lambda: (X,))
def signature_bind(x):
    bound = inspect.signature(options).bind(x, 1, c=2)
    bound.apply_defaults()
    return options(*bound.args, **bound.kwargs), sorted(bound.arguments)


@program(lambda: (X,))
def inspect_questions(x):
    return (
        x * 2,
        inspect.isfunction(options),
        inspect.ismethod(Model(1).run),
        inspect.isclass(Model),
        callable(Model),
        inspect.getdoc(doubled),
    )


@program(lambda: (X,))
def function_attributes(x):
    def f(y):
        return y * f.scale

    f.scale = 3
    f.notes = ["a"]
    return f(x), f.__name__, f.notes


def twice(x):
    return x * 2


def plus_two(x):
    return x + 2


@program(lambda: (X, twice), again=lambda: (X, plus_two))
def function_passed_in(x, f):
    return f(x) + f(f(x))


@program(lambda: (X, torch.relu), again=lambda: (X, torch.sigmoid))
def torch_function_passed_in(x, f):
    return f(x - 1)


@program(lambda: (X,))
def higher_order(x):
    def compose(*functions):
        return functools.reduce(lambda f, g: lambda y: g(f(y)), functions)

    return compose(torch.relu, lambda y: y + 1, torch.neg)(x)


def make_counter(start):
    count = start

    def step(x):
        nonlocal count
        count += 1
        return x + count

    return step


@program(lambda: (X,), factory=True, stable=False)
def counter_closure():
    return lambda x, step=make_counter(2): step(x)


@program(lambda: (X, "relu"), again=lambda: (X, "tanh"))
def dispatch_by_name(x, name):
    return getattr(torch, name)(x) + {"relu": 1, "tanh": 2}[name]


@program(lambda: (X,))
def annotations_and_docs(x):
    def f(a: int, b: str = "s") -> float:
        """Doc."""
        return a

    return f(x), f.__doc__, sorted(f.__annotations__), f.__defaults__


@program(lambda: (X,))
def conditional_definitions(x):
    if x.dim() == 1:

        def f(y):
            return y + 1

    else:

        def f(y):
            return y - 1

    return f(x)


@program(lambda: (X,))
def keyword_dict_is_fresh(x):
    def f(**kwargs):
        kwargs["a"] = 2
        return kwargs

    given = {"a": 1}
    return f(**given), given, x + 1


@program(lambda: (X, {"k": 1}))
def named_twice(x, options):
    said = []
    calls = (
        lambda: plus_two(**options, **options),
        lambda: Model(2).run(x, **options, **options),
        lambda: dict(**options, **options),
        lambda: [].sort(**options, **options),
        lambda: (lambda k: k)(k=1, **options),
        lambda: plus_two(*len(options)),
        lambda: plus_two(**len(options)),
    )
    for call in calls:
        try:
            call()
        except TypeError as error:
            said.append(str(error).partition(" at 0x")[0])
    return x * 2, said
