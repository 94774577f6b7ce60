"""Arguments whose content native code holds: numbers and arrays of numpy, buffers, slices, patterns, partials, …"""

from __future__ import annotations

import array
import datetime
import decimal
import fractions
import functools
import operator
import re
import types

import numpy as np
import torch
from harness import program


def with_values(make, *values):
    """Inputs of the first calls, and of the changed one."""
    first, changed = values
    return {
        "inputs": lambda: (torch.arange(3.0), make(first)),
        "again": lambda: (torch.arange(3.0), make(changed)),
    }


@program(**with_values(np.float32, 2, 3))
def number_of_numpy(x, n):
    return x * n


@program(**with_values(np.float64, 2.5, 3.5))
def number_of_numpy_converted(x, n):
    return x * float(n), x + int(n), x + 1 if n > 3 else x - 1


@program(**with_values(np.int64, 1, 2))
def index_of_numpy(x, i):
    return x[i]


@program(**with_values(np.array, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), breaks=1)
def array_as_a_tensor(x, a):
    return x * torch.from_numpy(a)


@program(**with_values(np.array, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), breaks=1)
def array_item(x, a):
    return x * float(a[0])


@program(**with_values(np.array, [0, 1], [2, 1]), breaks=1)
def array_as_an_index(x, a):
    return x[a]


@program(**with_values(lambda n: {"a": np.full(3, float(n))}, 1, 2), breaks=2)
def array_in_a_dict(x, d):
    return x * torch.as_tensor(d["a"])


TABLE = np.array([1.0, 2.0, 3.0])


@program(lambda: (torch.arange(3.0),), breaks=6, stable=False)
def array_of_the_module(x):
    TABLE[0] += 1
    return x * float(TABLE[0])


@program(lambda: (torch.arange(3.0),), breaks=3)
def tensor_through_numpy(x):
    return torch.from_numpy(np.sin(x.numpy())) + 1


@program(**with_values(lambda n: bytearray(np.full(3, n, np.float32).tobytes()), 1, 2), breaks=1)
def buffer_as_a_tensor(x, b):
    return x + torch.frombuffer(b, dtype=torch.float32)


@program(**with_values(lambda n: array.array("f", [n]), 1, 2), breaks=1)
def array_of_python(x, a):
    return x * a[0]


@program(**with_values(lambda n: slice(0, n), 1, 2))
def slice_as_argument(x, s):
    return x[s] * s.stop


@program(**with_values(lambda n: functools.partial(torch.add, other=n), 1, 2))
def partial_as_argument(x, f):
    return f(x) + f.keywords["other"]


@program(**with_values(lambda n: functools.partial(torch.mul, torch.ones(3) * n), 1, 2))
def partial_of_a_tensor_as_argument(x, f):
    return f(x)


@program(**with_values(operator.itemgetter, 0, 1), stable=False)
def getter_as_argument(x, f):
    return x + f([1, 2])


@program(**with_values(re.compile, "a", "b"))
def pattern_as_argument(x, p):
    return x + 1 if p.match("a") else x - 1


@program(**with_values(decimal.Decimal, 1, 2))
def decimal_as_argument(x, d):
    return x * float(d), x + 1 if d > 1 else x - 1


@program(**with_values(lambda n: fractions.Fraction(1, n), 2, 3))
def fraction_as_argument(x, f):
    return x * float(f)


@program(**with_values(lambda n: datetime.date(n, 1, 1), 2000, 2001))
def date_as_argument(x, d):
    return x * d.year


@program(**with_values(lambda n: types.MappingProxyType({"a": n}), 1, 2), breaks=1)
def proxy_as_argument(x, d):
    return x * d["a"]


@program(**with_values(lambda n: {"a": n}.values(), 1, 2), breaks=1)
def dict_view_as_argument(x, values):
    return x * sum(values)


@program(**with_values(lambda n: [list[int], list[float]][n], 0, 1))
def generic_alias_as_argument(x, kind):
    return x + 1 if kind == list[int] else x - 1


class Length(float):
    pass


@program(**with_values(Length, 1.5, 2.5))
def subclass_of_float_as_argument(x, length):
    return x * length


class Word(str):
    pass


@program(**with_values(Word, "a", "abc"))
def subclass_of_str_as_argument(x, word):
    return x * len(word), x + 1 if word == "a" else x - 1


class Kinds(set):
    pass


@program(**with_values(lambda n: Kinds([n]), 1, 2))
def subclass_of_set_as_argument(x, kinds):
    return x + 1 if 1 in kinds else x - 1


@program(**with_values(torch.Generator().manual_seed, 1, 2), breaks=1)
def generator_as_argument(x, g):
    return x + torch.rand(3, generator=g)
