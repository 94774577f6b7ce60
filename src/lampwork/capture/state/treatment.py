"""Objects from outside whose content native code holds: no attribute or item guard sees it, and native code that the
region runs would read it once and for all."""

from __future__ import annotations

import collections
import datetime
import decimal
import dis
import enum
import fractions
import re
import sysconfig
import types
import weakref
from pathlib import Path
from typing import Any, Literal, TypeGuard

import torch

from lampwork.capture.model.errors import Break
from lampwork.standard import functools, operator

Treatment = Literal["plain", "equals", "slots", "is", "opaque"]

# Guarded by what the class of C holds, whatever a subclass says of == and repr().
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
# Immutable, with a native == and a native repr() that tell together all that can be seen of them.
_VALUES: tuple[Any, ...] = (
    slice,
    re.Pattern,
    decimal.Decimal,
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
# Likewise, and known by what they are.
_FIXED = (
    type,
    enum.Enum,
    range,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.ModuleType,
    types.CodeType,
)
# What the interpreter reads piece by piece, or knows otherwise.
_READ: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    collections.deque,
    types.SimpleNamespace,
    types.CellType,
    types.MethodType,
    types.MethodWrapperType,
    functools.partial,
    BaseException,
    torch.Tensor,
    torch.Generator,
)
# Where code of Python, torch and other installed packages lies. torch may lie elsewhere: in the packages of the system,
# which a virtual environment can share, or where it was built.
_PLACES = (
    "<frozen ",
    sysconfig.get_path("stdlib"),
    f"{Path(torch.__file__).parent}/",
)
# A process has several folders of installed packages: its environment's, the user's, those of the Python below.
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/([^/.]+)")
# The compiler and what it is made of. Other packages are the program's: what their classes read is not guarded.
COMPILERS = frozenset(
    {
        "lampwork", "torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx", "bytecode", "llvmlite",
        "triton", "typing_extensions",
        # torch.einsum asks it, where it is installed, in which order to multiply: sizes are all that it reads.
        "opt_einsum",
    }
)  # fmt: skip
# How the names of marks on functions begin: those of torch.compiler, torch._dynamo, torch.jit and of Lampwork.
_MARKS = ("_dynamo", "_is_torch", "_lampwork", "_torch", "__script", "__torch")
_TELLING = ("__eq__", "__repr__")
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


_LOOKUP_NAMES = frozenset({"super", "object", "type", "str", "__getattribute__", "startswith", "endswith"})
_WRITING = frozenset(
    {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "STORE_GLOBAL", "DELETE_SUBSCR"}
)


def is_of_library(code: types.CodeType) -> bool:
    """Whether code belongs to Python or to an installed package."""
    return code.co_filename.startswith(_PLACES) or package_of(code.co_filename) is not None


@functools.lru_cache(maxsize=4096)
def package_of(file: str) -> str | None:
    """The package of a file, or the module that it is, where that is installed."""
    found = _INSTALLED.match(file)
    return None if found is None else found[1]


def is_one_of_many(function: types.FunctionType) -> bool:
    """Whether all functions with the code of this one may be taken for it.

    The functions of libraries are told apart: what runs natively, and what it does there, goes by the function. (None
    does that a function of an installed package makes.) So are those with a mark, which says how one function is to
    be treated.
    """
    home, code = function.__globals__.get("__name__", ""), function.__code__
    package = package_of(code.co_filename)
    made = package is not None and package not in COMPILERS and "<locals>" in code.co_qualname
    return (
        (made or not is_of_library(code))
        and not (type(home) is str and home.partition(".")[0] == "lampwork")
        and not any(name.startswith(_MARKS) for name in function.__dict__)
    )


@functools.cache
def treatment(kind: type) -> Treatment:
    """How an outside object of this type is to be guarded: "plain" by what is read of it, "equals" by its value,
    "slots" by the values in its `__slots__`, "is" by its identity; an "opaque" one cannot be guarded at all."""
    if issubclass(kind, _READ) or _is_of_the_compilers(kind):
        return "plain"
    if issubclass(kind, _NUMBERS_AND_TEXTS):
        return "equals"
    if issubclass(kind, _VALUES) or _is_numpy_scalar(kind):
        return (
            "opaque"
            if any(isinstance(_found(kind, name), types.FunctionType) for name in _TELLING)
            else "equals"
        )
    if issubclass(kind, fractions.Fraction):
        return "slots"  # Its methods run as they are, and its == is one of them.
    if issubclass(kind, _THEMSELVES):
        return "is"
    if issubclass(kind, weakref.ProxyTypes):
        return "opaque"  # All that is asked of one is asked of the object behind it.
    if hasattr(kind, "__next__"):
        return "plain"  # Iterators are looked after where they are used.
    return "opaque" if any(_is_native(kind, name) for name in _DUNDERS) else "plain"


def is_value(kind: type) -> bool:
    """Whether an outside object of this type is guarded by all that it is: native code may read it."""
    return treatment(kind) in ("equals", "slots")


def is_slot(found: Any) -> TypeGuard[types.MemberDescriptorType]:
    """Whether a class attribute is what `__slots__` makes. Classes of C have members too, of other kinds."""
    return isinstance(found, types.MemberDescriptorType) and "__slots__" in vars(found.__objclass__)


def slots_of(kind: type) -> list[types.MemberDescriptorType]:
    return [found for base in kind.__mro__ for found in vars(base).values() if is_slot(found)]


@functools.cache
def is_unchanging(kind: type) -> bool:
    """Whether native operators and protocols read nothing of an object of this type but what never changes."""
    if _is_of_the_compilers(kind) or issubclass(kind, _FIXED):
        return True
    if issubclass(kind, (*_NUMBERS_AND_TEXTS, *_VALUES, fractions.Fraction)) or _is_numpy_scalar(kind):
        return True  # The methods that a class of the program adds are no native code.
    return issubclass(kind, _THEMSELVES) and not issubclass(kind, weakref.ref)


def _is_of_the_compilers(kind: type) -> bool:
    """Whether a class is one of torch, or what Lampwork's C++ makes: compiled functions. Objects of its Python classes
    are treated as those of any program."""
    return kind.__module__.partition(".")[0] == "torch" or kind.__module__ == "lampwork._C"


def _is_numpy_scalar(kind: type) -> bool:
    return any(base.__module__ == "numpy" and base.__name__ in ("generic", "dtype") for base in kind.__mro__)


def _found(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _is_native(kind: type, name: str) -> bool:
    found = _found(kind, name)
    return (
        found is not None
        and found is not vars(object).get(name)
        and not isinstance(found, types.FunctionType)
    )


def check_readable(kind: type, name: str) -> None:
    """Merely to ask an object for its class runs the Python `__getattribute__` of that class.

    Raises:
        Break: LW111: that does more than to choose what `object.__getattribute__` is asked for.
    """
    method = kind.__getattribute__
    if type(method) is not types.FunctionType:
        return
    code = method.__code__
    writes = any(i.opname in _WRITING for i in dis.get_instructions(code))
    if writes or not _LOOKUP_NAMES.issuperset(code.co_names):
        raise Break("LW111", f"{name} is a {kind.__name__}, which defines __getattribute__")
