"""What a call passes and gets, as plain data: containers, with tensors, numbers and constants for leaves.

f(x, [y, z], scale=2.0)     args (Input 0, Sequence list (Input 1, Input 2)), kwargs {"scale": Constant 2.0}
return {"a": u, "n": len}   Mapping (("a", Output 0), ("n", Number s0))
"""

from __future__ import annotations

import collections
import enum
import keyword
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, cast

import torch

from lampwork.artifacts.checked import Place
from lampwork.errors import SerialError
from lampwork.loops.ir.polynomial import Index
from lampwork.records import record
from lampwork.serial.indices import index_to_json
from lampwork.serial.values import float_from_json, float_to_json
from lampwork.standard import functools, math

DEEPEST = 64
"""Of containers in one another."""


@record
class Leaf:
    """A tensor, by its number among the inputs, or among the outputs, of an entry. Of inputs, what was asked of them
    beside their form: `fields` are attributes, `absent` those that it may not have of its own, and `kind` is the name
    of its class, "" where nobody asked."""

    number: int
    fields: tuple[tuple[str, Tree], ...] = ()
    absent: tuple[str, ...] = ()
    kind: str = ""


@record
class Unused:
    """An argument that the model was not seen to read: anything may be passed."""


@record
class Number:
    """An int that the sizes of the inputs give."""

    index: Index


@record
class Constant:
    """None, a bool, an int, a float, a text, a dtype or a device."""

    value: Any


@record
class Said:
    """A value that is only compared: of a class of the name `kind`, with this text (`said_of`)."""

    kind: str
    text: str


@record
class Kept:
    """An argument that is returned as it was passed, whatever it is, if only it is as `tree` says; among results, the
    argument of that number."""

    number: int
    tree: Tree = field(default_factory=Unused)


@record
class Sequenced:
    """A list, a tuple or a torch.Size: `kind` is "list", "tuple" or "size"."""

    kind: str
    items: tuple[Tree, ...]


@record
class Mapped:
    """A dict, in order. `kind`: the name of its class; what is returned is a dict, whatever that is. `fields` and
    `absent`: attributes, where the class is one of the model's own."""

    items: tuple[tuple[Any, Tree], ...]
    kind: str = "dict"
    fields: tuple[tuple[str, Tree], ...] = ()
    absent: tuple[str, ...] = ()


@record
class Made:
    """An object of a class. `form`: "namedtuple", "dict" (a class of those), or "object", whose fields are attributes,
    and items by name too where it is a dict as well. Of what is passed, `absent`: attributes that it may not have of
    its own."""

    name: str
    form: str
    fields: tuple[tuple[str, Tree], ...]
    absent: tuple[str, ...] = ()


Tree = Leaf | Unused | Number | Constant | Said | Kept | Sequenced | Mapped | Made

FORMS = ("object", "namedtuple", "dict")
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""What may be a constant."""

_SAYABLE = (bytes, complex, types.EllipsisType, torch.memory_format, torch.layout, torch.Size, range, slice)
_LARGEST = 2**63


def parts_of(tree: Tree) -> Iterator[Tree]:
    """What a tree is directly made of."""
    match tree:
        case Sequenced():
            yield from tree.items
        case Mapped():
            yield from (item for _, item in (*tree.items, *tree.fields))
        case Made() | Leaf():
            yield from (item for _, item in tree.fields)
        case Kept():
            yield tree.tree
        case _:
            pass


def leaves_of(tree: Tree) -> Iterator[Leaf]:
    """The tensors of a tree, in order."""
    if isinstance(tree, Leaf):
        yield tree
    for part in parts_of(tree):
        yield from leaves_of(part)


def kept_of(tree: Tree) -> Iterator[int]:
    """The numbers of arguments that are returned."""
    if isinstance(tree, Kept):
        yield tree.number
    for part in parts_of(tree):
        yield from kept_of(part)


def is_equal(one: Any, other: Any) -> bool:
    """Whether two constants are the same value of one type: 1 is no True, nan is itself, and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (
            one != one and other != other
        )
    return one == other


def is_constant(value: Any) -> bool:
    """Whether a file can have a value as a constant: of a plain class itself, and as JSON can write it."""
    if type(value) is int:
        return -_LARGEST <= value < _LARGEST
    if type(value) is str:
        return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)
    return type(value) in PLAIN


def said_of(value: Any) -> Said | None:
    """A value as a text that equal ones of its class have, and no others; None: there is no such text."""
    kind = type(value)
    text: str | None = None
    if isinstance(value, enum.Enum):
        inner: Any = value.value
        text = f"{value.name} = {inner!r}" if type(inner) in PLAIN else f"{value.name}"
    elif kind in (set, frozenset):
        items = list(cast("frozenset[Any]", value))
        if all(type(each) in PLAIN for each in items):
            text = f"{{{', '.join(sorted(map(repr, items)))}}}"
    elif kind is slice:
        if all(type(each) in (int, type(None)) for each in (value.start, value.stop, value.step)):
            text = repr(value)
    elif (
        kind in _SAYABLE
        or kind in (int, str)
        or (kind.__module__ == "numpy" and any(each.__name__ == "generic" for each in kind.__mro__))
    ):
        text = repr(value).encode("ascii", "backslashreplace").decode()
    return None if text is None else Said(kind.__name__, text)


# --- results ----------------------------------------------------------------------------------------------------------


class Result:
    """What a model returned as an object of a class of its own, without that class: fields are attributes, and those
    that are not None items, by name or number, in the order of the class."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        vars(self).update(fields, _name=name, _fields=tuple(fields))
        self._name: str
        self._fields: tuple[str, ...]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            self._fields = (*self._fields, name)
        super().__setattr__(name, value)

    def keys(self) -> list[str]:
        return [name for name in self._fields if vars(self)[name] is not None]

    def values(self) -> list[Any]:
        return [vars(self)[name] for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return list(zip(self.keys(), self.values(), strict=True))

    def get(self, name: str, otherwise: Any = None) -> Any:
        found = vars(self).get(name) if name in self._fields else None
        return otherwise if found is None else found

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self:
                raise KeyError(key)
            return vars(self)[key]
        return self.to_tuple()[key]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{name}={value!r}' for name, value in self.items())})"


@functools.cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields, rename=True)  # pyright: ignore[reportUntypedNamedTuple]


def rebuilt(
    tree: Tree,
    tensors: Sequence[Any],
    number: Callable[[Index], int],
    kept: Mapping[int, Any] = MappingProxyType({}),
) -> Any:
    """What a tree stands for, with these tensors at its leaves. `kept`: arguments that are returned."""
    match tree:
        case Leaf():
            return tensors[tree.number]
        case Number():
            return number(tree.index)
        case Constant():
            return tree.value
        case Unused() | Said():
            return None
        case Kept():
            return kept[tree.number]
        case Sequenced():
            items = [rebuilt(each, tensors, number, kept) for each in tree.items]
            return (
                items if tree.kind == "list" else torch.Size(items) if tree.kind == "size" else tuple(items)
            )
        case Mapped():
            return {key: rebuilt(each, tensors, number, kept) for key, each in tree.items}
        case Made():
            fields = {name: rebuilt(each, tensors, number, kept) for name, each in tree.fields}
            if tree.form == "namedtuple":
                return _namedtuple(tree.name, tuple(fields))(*fields.values())
            return fields if tree.form == "dict" else Result(tree.name, fields)


# --- JSON -------------------------------------------------------------------------------------------------------------


def tree_to_json(tree: Tree, leaf: str) -> Any:
    """`leaf`: "input" or "output"."""
    each = functools.partial(tree_to_json, leaf=leaf)
    match tree:
        case Leaf():
            return {leaf: tree.number} | _asked(tree, each)
        case Unused():
            return {"unused": True}
        case Said():
            return {"said": tree.kind, "text": tree.text}
        case Kept():
            return {"kept": tree.number, "tree": each(tree.tree)}
        case Number():
            return {"number": index_to_json(tree.index)}
        case Constant():
            return {"const": constant_to_json(tree.value)}
        case Sequenced():
            return {tree.kind: [each(item) for item in tree.items]}
        case Mapped():
            items = [[constant_to_json(key), each(item)] for key, item in tree.items]
            return {"dict": items} | _asked(tree, each)
        case Made():
            return {"object": tree.name, "form": tree.form, "fields": []} | _asked(tree, each)


def _asked(tree: Leaf | Made | Mapped, each: Callable[[Tree], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if tree.fields:
        found["fields"] = [[name, each(item)] for name, item in tree.fields]
    if tree.absent:
        found["absent"] = list(tree.absent)
    if (isinstance(tree, Leaf) and tree.kind) or (isinstance(tree, Mapped) and tree.kind != "dict"):
        found["kind"] = tree.kind
    return found


def tree_from_json(place: Place, leaf: str, count: int, depth: int = 0) -> Tree:
    """`count`: how many tensors there are.

    Raises:
        ArtifactError: it is no such tree.
    """
    if depth > DEEPEST:
        raise place.wrong(f"at most {DEEPEST} containers in one another")
    found = place.object()
    kind = next(iter(found), "")
    each = functools.partial(tree_from_json, leaf=leaf, count=count, depth=depth + 1)
    inner = place[kind] if kind else place
    fields = _fields(place, each) if kind in (leaf, "object", "dict") else ()
    absent = tuple(item.text() for item in place["absent"]) if "absent" in found else ()
    if kind == leaf:
        asked = place["kind"].text() if "kind" in found else ""
        return Leaf(inner.number(below=count), fields, absent, asked)
    match kind:
        case "unused":
            return Unused()
        case "said":
            return Said(inner.text(), place["text"].text())
        case "kept":
            return Kept(inner.number(), each(place["tree"]))
        case "number":
            return Number(inner.index())
        case "const":
            return Constant(constant_from_json(Place(found["const"], inner.where, place.refusal)))
        case "list" | "tuple" | "size":
            items = tuple(each(item) for item in inner)
            if kind == "size" and not all(_is_number(item, leaf) for item in items):
                raise inner.wrong("whole numbers")
            return Sequenced(kind, items)
        case "dict":
            pairs = [_pair(item) for item in inner]
            items = tuple((constant_from_json(key), each(item)) for key, item in pairs)
            return Mapped(items, place["kind"].text() if "kind" in found else "dict", fields, absent)
        case "object":
            return Made(_name(inner), place["form"].one_of(*FORMS), fields, absent)
        case _:
            raise place.wrong(f"{leaf}, number, const, list, tuple, dict or object")


def _is_number(tree: Tree, leaf: str) -> bool:
    """Whether a `torch.Size` can have it: of an argument, also what the model does not look at."""
    if isinstance(tree, Constant):
        return type(tree.value) is int
    return isinstance(tree, Number) or (leaf == "input" and isinstance(tree, Unused))


def _fields(place: Place, each: Callable[[Place], Tree]) -> tuple[tuple[str, Tree], ...]:
    if not place["fields"].is_there:
        return ()
    fields = tuple((_name(key), each(item)) for key, item in map(_pair, place["fields"]))
    if len({name for name, _ in fields}) < len(fields):
        raise place.wrong("fields of different names")
    return fields


def _pair(place: Place) -> tuple[Place, Place]:
    items = list(place)
    if len(items) != 2:
        raise place.wrong("a key and a value")
    return items[0], items[1]


_SPECIAL = re.compile(r"__.*|_name|_fields")


def _name(place: Place) -> str:
    text = place.text()
    if not text.isidentifier() or keyword.iskeyword(text) or _SPECIAL.fullmatch(text):
        raise place.wrong("a name that Python takes")
    return text


def constant_to_json(value: Any) -> Any:
    """A constant (`PLAIN`)."""
    if isinstance(value, float):
        return float_to_json(value)
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    return value


def constant_from_json(place: Place) -> Any:
    """
    Raises:
        ArtifactError: it is no constant.
    """
    if not isinstance(place.value, dict):
        return place.plain()
    items = list(cast("dict[str, Any]", place.value))
    match items:
        case ["f"]:
            try:
                return float_from_json(place.value)
            except SerialError as error:
                raise place.wrong("a float") from error
        case ["dtype"]:
            return dtype_from_json(place["dtype"])
        case ["device"]:
            try:
                return torch.device(place["device"].text())
            except RuntimeError as error:
                raise place.wrong("a device") from error
        case _:
            raise place.wrong("a constant")


def dtype_from_json(place: Place) -> torch.dtype:
    found = getattr(torch, place.text(), None)
    if not isinstance(found, torch.dtype):
        raise place.wrong("a dtype of torch")
    return found


# --- calls ------------------------------------------------------------------------------------------------------------

Mismatch = Callable[[str, str, str], Exception]
"""Makes the error of where, what was expected, and what came."""


_SEQUENCES: Mapping[str, type] = {"list": list, "tuple": tuple, "size": torch.Size}


@record
class Reading:
    """What a call passes, put in order: `tensors` by input number, each with its place in words; `kept`: arguments that
    are returned, by number."""

    tensors: list[Any]
    places: list[str] = field(default_factory=list[str])
    wrong: Mismatch = field(default=lambda where, expected, came: ValueError(where))
    kept: dict[int, Any] = field(default_factory=dict[int, Any])

    def read(self, tree: Tree, value: Any, where: str) -> None:
        """
        Raises:
            ArtifactCallError: the value is not of the tree's form.
        """
        match tree:
            case Leaf():
                self._tensor(tree.number, value, where)
                if tree.kind and type(value).__name__ != tree.kind:
                    raise self.wrong(where, f"a {tree.kind}, as it was exported with", type(value).__name__)
                self._asked(tree, value, where)
            case Constant():
                if not is_equal(tree.value, value):
                    raise self.wrong(where, f"{tree.value!r}, as it was exported with", _shown(value))
            case Said():
                if type(value).__name__ != tree.kind or said_of(value) != tree:
                    raise self.wrong(
                        where, f"the {tree.kind} {tree.text}, as it was exported with", _shown(value)
                    )
            case Kept():
                self.read(tree.tree, value, where)
                self.kept[tree.number] = value
            case Sequenced():
                expected = _SEQUENCES[tree.kind]
                if type(value) is not expected or len(cast("Sequence[Any]", value)) != len(tree.items):
                    raise self.wrong(where, f"a {tree.kind} of {len(tree.items)}", _shown(value))
                for number, (item, each) in enumerate(zip(tree.items, cast("list[Any]", value), strict=True)):
                    self.read(item, each, f"{where}[{number}]")
            case Mapped():
                self._mapping(tree, value, where)
            case Made():
                if type(value).__name__ != tree.name:
                    raise self.wrong(where, f"an object of a class {tree.name}", _shown(value))
                names = tuple(name for name, _ in tree.fields)
                if tree.form == "namedtuple" and getattr(value, "_fields", None) != names:
                    raise self.wrong(where, f"a {tree.name} of {', '.join(names)}", _shown(value))
                self._asked(tree, value, where)
            case Unused() | Number():
                pass

    def _mapping(self, tree: Mapped, value: Any, where: str) -> None:
        """Its class and the order of its keys are what the model may have gone by."""
        keys = [key for key, _ in tree.items]
        given = cast("dict[Any, Any]", value)
        if (
            not isinstance(value, dict)
            or type(given).__name__ != tree.kind
            or len(given) != len(keys)
            or not all(map(is_equal, keys, given))
        ):
            order = " in this order" if isinstance(value, dict) and set(given) == set(keys) else ""
            raise self.wrong(where, f"a {tree.kind} with the keys {keys}{order}", _shown(value))
        for key, item in tree.items:
            self.read(item, dict.__getitem__(given, key), f"{where}[{key!r}]")
        self._asked(tree, value, where)

    def _asked(self, tree: Leaf | Made | Mapped, value: Any, where: str) -> None:
        for name in tree.absent:
            if name in getattr(value, "__dict__", ()):
                raise self.wrong(
                    where, f"an object without {name}, as it was exported with", "one that has it"
                )
        for name, item in tree.fields:
            try:
                found = getattr(value, name)
            except AttributeError as error:
                raise self.wrong(where, f"an object with {name}", _shown(value)) from error
            self.read(item, found, f"{where}.{name}")

    def _tensor(self, number: int, value: Any, where: str) -> None:
        if not isinstance(value, torch.Tensor):
            raise self.wrong(where, "a tensor", _shown(value))
        before = self.tensors[number]
        if before is not None and before is not value:
            raise self.wrong(where, f"the same tensor as {self.places[number]}", "another one")
        self.tensors[number], self.places[number] = value, where


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(cast('Sequence[Any]', value))}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {list(cast('Mapping[Any, Any]', value))}"[:120]
    return repr(value)[:80]
