"""Objects from outside whose content native code holds: no attribute or item guard sees it, and native code that the
region runs would read it once and for all."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import operator
import re
import sysconfig
import types
import weakref
from typing import Any, Literal

import torch

Treatment = Literal["plain", "equals", "is", "opaque"]

# Immutable, with a native == that tells all that can be seen of them.
_VALUES: tuple[Any, ...] = (
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    re.Pattern,
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    types.GenericAlias,
    types.UnionType,
)
# Immutable, but equal only to themselves.
_THEMSELVES = (
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
    weakref.ref,
    property,
    staticmethod,
    classmethod,
    type(functools.lru_cache(lambda: None)),
)
# What the interpreter reads piece by piece, or knows otherwise.
_READ: tuple[type, ...] = (
    list,
    tuple,
    dict,
    types.SimpleNamespace,
    types.CellType,
    types.MethodType,
    types.MethodWrapperType,
    functools.partial,
    BaseException,
    torch.Tensor,
    torch.Generator,
)
_COPIED = (set, frozenset, collections.deque)
# Where code of Python, torch and other installed packages lies.
_PLACES = ("<frozen ", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
# How the names of marks on functions begin: those of torch.compiler, torch._dynamo, torch.jit and of Lampwork.
_MARKS = ("_dynamo", "_is_torch", "_lampwork", "_torch", "__script", "__torch")
_DUNDERS = (
    "__getitem__",
    "__iter__",
    "__len__",
    "__contains__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__eq__",
    "__lt__",
    "__add__",
    "__mul__",
    "__array__",
    "__buffer__",
)


def is_of_library(code: types.CodeType) -> bool:
    """Whether code belongs to Python or to an installed package."""
    return code.co_filename.startswith(_PLACES)


def is_one_of_many(function: types.FunctionType) -> bool:
    """Whether all functions with the code of this one may be taken for it.

    The functions of libraries are told apart: what runs natively, and what it does there, goes by the function. So are
    those with a mark, which says how one function is to be treated.
    """
    home = function.__globals__.get("__name__", "")
    return (
        not is_of_library(function.__code__)
        and not (type(home) is str and home.partition(".")[0] == "lampwork")
        and not any(name.startswith(_MARKS) for name in function.__dict__)
    )


@functools.cache
def treatment(kind: type) -> Treatment:
    """How an outside object of this type is to be guarded: "plain" by what is read of it, "equals" by its value, "is"
    by its identity; an "opaque" one cannot be guarded at all."""
    if (
        kind in _COPIED
        or issubclass(kind, _READ)
        or kind.__module__.partition(".")[0] in ("torch", "lampwork")
    ):
        return "plain"
    if issubclass(kind, _VALUES) or _is_numpy_scalar(kind):
        return "equals"
    if issubclass(kind, _THEMSELVES):
        return "is"
    if hasattr(kind, "__next__"):
        return "plain"  # Iterators are looked after where they are used.
    return "opaque" if any(_is_native(kind, name) for name in _DUNDERS) else "plain"


def is_mutable(kind: type) -> bool:
    """Whether objects of a type hold data that may change under the same identity."""
    return (
        kind in (bytearray, memoryview)
        or (kind.__module__, kind.__name__) == ("array", "array")
        or (kind.__module__ == "numpy" and hasattr(kind, "__array__") and not _is_numpy_scalar(kind))
    )


def _is_numpy_scalar(kind: type) -> bool:
    return any(base.__module__ == "numpy" and base.__name__ in ("generic", "dtype") for base in kind.__mro__)


def _is_native(kind: type, name: str) -> bool:
    found: Any = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return (
        found is not None
        and found is not vars(object).get(name)
        and not isinstance(found, types.FunctionType)
    )
