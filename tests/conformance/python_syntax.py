"""Syntax: walrus, match, star unpacking, del, chained comparisons, conditional expressions, classes of patterns."""

from __future__ import annotations

import dataclasses
import enum

import torch
from harness import program

X = torch.arange(3.0)


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass
class Scale:
    k: int


@dataclasses.dataclass
class Shift:
    by: float
    sign: int = 1


class Loose:
    __match_args__ = ("left", "right")

    def __init__(self, left, right):
        self.left, self.right = left, right


@program(lambda: (X, [1, 2, 3]), again=lambda: (X, []))
def walrus(x, items):
    if (n := len(items)) > 2:
        x = x * n
    big = [m for v in items if (m := v * 2) > 2]
    return x + n, big


@program(lambda: (X, [5, 3, 0, 2]))
def walrus_in_while(x, items):
    while (v := items.pop(0)) != 0:
        x = x + v
    return x, v, items


@program(lambda: (X, Scale(3)), again=lambda: (X, Shift(2.0)))
def match_class(x, op):
    match op:
        case Scale(k=k) if k > 10:
            return x * 100
        case Scale(k):
            return x * k
        case Shift(by, sign=-1):
            return x - by
        case Shift(by=by):
            return x + by
        case _:
            return None


@program(lambda: (X, {"op": "mul", "k": 2, "z": 1}), again=lambda: (X, {"op": "add", "k": 2}))
def match_mapping(x, spec):
    match spec:
        case {"op": "mul", "k": int(k), **rest}:
            return x * k, rest
        case {"op": "add" | "plus" as name, "k": k}:
            return x + k, name
        case {}:
            return x, None


@program(lambda: (X, [1, 2, 3, 4]), again=lambda: (X, ("p", [5, 6])))
def match_sequence(x, value):
    match value:
        case []:
            return x
        case (name, [a, b]):
            return x + a + b, name
        case [first, *middle, last]:
            return x * first + len(middle), last


@program(lambda: (X, ("p", [5, 6])))
def match_nested(x, value):
    match value:
        case ("p", [a, b]) if a > b:
            return x * a
        case (str() as name, [int(a), (int() | float()) as b]):
            return x + a + b, name
    return None


@program(lambda: (X, 404), again=lambda: (X, 500))
def match_values(x, status):
    match status:
        case 200 | 201:
            return x
        case 404:
            return x * -1
        case int(n) if n >= 500:
            return x + n
        case None | True | False:
            return None


@program(lambda: (X, Kind.A), again=lambda: (X, Kind.B))
def match_enum(x, kind):
    match kind:
        case Kind.A:
            return x + 1
        case Kind.B:
            return x + 2


@program(lambda: (X, Loose(1, X)), again=lambda: (X, Loose(3, 2)))
def match_args(x, value):
    match value:
        case Loose(1, right):
            return right * 2
        case Loose(left, right=r):
            return x * left * r


@program(lambda: (X,))
def match_tensor(x):
    match x:
        case torch.Tensor(shape=(3,), dtype=torch.float32):
            return x * 3
        case _:
            return x


@program(lambda: (X,))
def match_falls_through(x):
    result = "nothing"
    match (1, 2):
        case (2, y):
            result = y
        case (a, b) if a > b:
            result = a
    return x, result


@program(lambda: (torch.arange(6.0).reshape(2, 3), (1, (2, [3, 4]))))
def star_unpacking(x, value):
    a, (b, [c, *d]) = value
    *rows, last = x
    (e,), [f] = (1,), [2]
    g = h = x * a
    return rows, last, b + c + e + f, d, g is h


@program(lambda: (X, 1, 2))
def swapping(x, a, b):
    a, b = b, a
    c, d, e = b, x, a
    d, c = c, d
    return x * a, (a, b, d, e), c


@program(lambda: (X,))
def deleting(x):
    y, items, table = x + 1, [1, 2, 3], {"a": 1, "b": 2}
    del items[1], table["a"]
    z = y * 2
    del y
    try:
        return y
    except NameError as error:
        return z, items, table, str(error)


@program(lambda: (X, 5), again=lambda: (X, 15))
def chained_comparison(x, n):
    if 1 < n <= 10 != 3:
        x = x * n
    return x, 0 <= n < 20 > 5, (n == 5) is True


@program(lambda: (X, 0), again=lambda: (X, 3))
def boolean_operators(x, n):
    a = n or 10
    b = n and 20
    c = not n or (n and None)
    return x * a, b, c, (n or "") and "yes"


@program(lambda: (X, None), again=lambda: (X, 2))
def conditional_expression(x, n):
    k = 1 if n is None else n * 2
    return (x if k > 1 else -x) * k


@program(lambda: (X,))
def augmented_assignment(x):
    y = x
    y = y + 1
    items, k, s = [1], 7, "a"
    alias = items
    items += [2]
    k //= 2
    k **= 3
    k %= 20
    k <<= 2
    k |= 1
    k ^= 5
    s *= 3
    return y, items is alias, k, s


@program(lambda: (X,))
def in_place_on_own_tensor(x):
    y = x + 1
    z = y
    y += 1
    y *= 2
    y[0] = 7
    return y, z is y, z


@program(lambda: (X + 1,))
def in_place_on_argument(x):
    x += 1
    x[1:] *= 2
    return x, x.sum()


@program(lambda: (X, 3, 4), again=lambda: (X, 7, 2))
def arithmetic(x, a, b):
    return (
        x * (a + b),
        a / b,
        a // b,
        a % b,
        a**b,
        -a,
        ~a,
        a & b,
        a | b,
        a ^ b,
        a << b,
        a >> 1,
        divmod(a, b),
        abs(-a),
        round(a / b, 2),
        +a,
    )


@program(lambda: (X, 2.5), again=lambda: (X, -0.0))
def floats(x, f):
    return x * f, f // 1, f % 1, int(f), round(f), f.is_integer(), f == 2.5, float("inf") > f


@program(lambda: (X, 1 + 2j))
def complex_numbers(x, c):
    return x * c.real, c.conjugate(), abs(c), c * 1j, complex(1, 2) == c


@program(lambda: (X,))
def integers(x):
    return (
        x * 0xFF,
        1_000,
        0b101,
        int("ff", 16),
        (5).bit_length(),
        int.from_bytes(b"\x01\x02", "big"),
        True + 1,
    )


@program(lambda: (torch.arange(24.0).reshape(2, 3, 4),))
def slices_and_ellipsis(x):
    s = slice(None, None, 2)
    return x[..., 0], x[:, s], x[None].shape, x[1, :, 1:3], x[-1, ..., -1], s.stop, [1, 2, 3][s]


@program(lambda: (X, 4), again=lambda: (X, 2))
def range_objects(x, n):
    r = range(1, n * 2, 2)
    return x * len(r), list(r), r[-1], 3 in r, r.index(3), sum(r), r == range(1, n * 2, 2)


@program(lambda: (X,))
def lambda_tricks(x):
    f = lambda *a, k=2, **kw: sum(a) * k + len(kw)  # noqa: E731
    return f(x, x, k=3, z=1), (lambda: x)(), [g(2) for g in (lambda v: v + 1, lambda v: v * v)]


@program(lambda: (X,))
def imports_inside(x):
    import math
    from collections import OrderedDict

    from torch.nn import functional as F  # noqa: N812

    return F.relu(x) * math.pi, OrderedDict(a=1), math.sqrt(4)


@program(lambda: (X, 3), again=lambda: (X, 30))
def early_returns(x, n):
    if n > 20:
        return x
    for i in range(n):
        if i == 2:
            return x * i, "in loop"
    return None


@program(lambda: (X,))
def shadowed_builtins(x):
    sum = len([1, 2])  # noqa: A001
    list = (x, sum)  # noqa: A001
    return list


@program(lambda: (X,))
def identity_and_none(x):
    y = x
    z = x + 0
    nothing = None
    return y is x, z is x, nothing is None, x is not None, type(x) is torch.Tensor, Ellipsis is ...


@program(lambda: (X, X), again=lambda: (X, X + 1))
def same_argument_twice(a, b):
    return a + b if a is b else a - b


@program(lambda: (X,))
def argument_returned(x):
    return x, [x], {"x": x, "view": x[1:]}


@program()
def no_arguments():
    return torch.ones(2) + 1


@program(lambda: (X,), kwargs=lambda: {"k": 2, "flag": True})
def keyword_arguments(x, *, k, flag=False, other=None):
    return x * k if flag else x, other


@program(lambda: (X, 1, 2, 3), kwargs=lambda: {"a": X, "b": 5})
def collected_arguments(*args, **kwargs):
    return sum(args), kwargs["a"] * kwargs["b"], len(args), sorted(kwargs)


@program(lambda: (3,), again=lambda: (4,))
def no_tensors(n):
    return [i * n for i in range(n)], n**2
