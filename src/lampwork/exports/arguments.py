"""What a call passes, as a tree of the inputs of what was captured of it.

What a region asks of its arguments stands in its guards. The tree of an argument carries what they say of it: each
guard is taken by the part of a tree that has it checked in a call, and one that none takes is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from lampwork.artifacts.trees import (
    PLAIN,
    Constant,
    Kept,
    Leaf,
    Made,
    Mapped,
    Sequenced,
    Tree,
    Unused,
    is_constant,
    leaves_of,
    said_of,
)
from lampwork.capture.model.region import (
    Arg,
    Attr,
    DictItem,
    Guard,
    InstanceDict,
    Item,
    Kwarg,
    Region,
    Slot,
    Source,
    root_of,
)
from lampwork.capture.state.lifting import BeginsAt, LiesAt
from lampwork.errors import ExportError
from lampwork.exports.torch_program import Nesting


def is_passed(source: Any) -> bool:
    """Whether something is a source of what a call passes."""
    return isinstance(source, Source) and isinstance(root_of(source), Arg | Kwarg)


def same_as(region: Region, sources: Iterable[Source]) -> dict[Source, Source]:
    """The sources that were one object with one of `sources` in the call, and have to be in others."""
    found = {source: source for source in sources}
    pairs = [
        (guard.source, guard.expected)
        for guard in region.guards
        if guard.kind == "same" and is_passed(guard.source) and is_passed(guard.expected)
    ]
    for _ in pairs:
        for one, other in (*pairs, *((other, one) for one, other in pairs)):
            if one in found:
                found.setdefault(other, found[one])
    return found


@dataclass(slots=True)
class Arguments:
    """Reads the arguments of the call that a region was captured of.

    `sources`: where each input comes from. `kept`: what is returned as it was passed. `flat`: where the arguments are
    nested, and the region has them flat, the numbers of those to come. `asked`: guards that no tree has taken.
    """

    region: Region
    sources: Sequence[Source]
    kept: Mapping[Source, int]
    flat: Iterator[int] | None = None
    inputs: dict[Source, int] = field(init=False)
    asked: dict[Source, list[Guard]] = field(default_factory=dict[Source, list[Guard]])
    beneath: dict[Source, dict[str, Source]] = field(default_factory=dict[Source, dict[str, Source]])
    reached: set[Source] = field(default_factory=set[Source])
    settled: set[Source] = field(default_factory=set[Source])
    places: dict[Source, str] = field(default_factory=dict[Source, str])

    def __post_init__(self) -> None:
        numbers = {source: number for number, source in enumerate(self.sources)}
        same = same_as(self.region, self.sources)
        self.inputs = {source: numbers[other] for source, other in same.items()}
        for guard in (*self.region.guards, *self.region.slow_guards):
            passed = [source for source in (guard.source, guard.expected) if is_passed(source)]
            if passed:
                self.asked.setdefault(passed[0], []).append(guard)
            for source in passed:
                self._note(source)
        for source in self.sources:
            self._note(source)

    def _note(self, source: Source) -> None:
        """What was read of objects, by attribute."""
        self.reached.add(source)
        while not isinstance(source, Arg | Kwarg):
            base: Any = source.base  # pyright: ignore[reportAttributeAccessIssue]
            name = None
            if isinstance(source, Attr):
                name = source.name
            elif isinstance(source, Slot):
                name = source.descriptor.__name__
            elif isinstance(source, DictItem) and isinstance(source.base, InstanceDict):
                name, base = source.key, source.base.base
            if isinstance(name, str):
                self.beneath.setdefault(base, {})[name] = source
            source = base
            self.reached.add(source)

    def _take(self, source: Source, *kinds: str) -> None:
        """A tree has what guards of these kinds say."""
        if source in self.asked:
            self.asked[source] = [guard for guard in self.asked[source] if guard.kind not in kinds]

    def tree(self, source: Source, value: Any, where: str) -> Tree:
        """
        Raises:
            ExportError: a value is of a class that no file can have.
        """
        if self.flat is not None and Nesting.is_leaf(value):
            source = Arg(next(self.flat))
        self.places[source] = where
        if source not in self.kept:
            return self._tree(source, value, where)
        inner = self._tree(source, value, where) if source in self.reached else Unused()
        return Kept(self.kept[source], inner)

    def _tree(self, source: Source, value: Any, where: str) -> Tree:
        kind = type(value)
        if isinstance(value, Tensor):
            return self._tensor(source, value, where)
        if kind in PLAIN and is_constant(value):
            self.settled.add(source)
            return Constant(value)
        said = said_of(value)
        if said is not None:
            self.settled.add(source)
            return said if source in self.reached or kind in PLAIN else Unused()
        if kind in (list, tuple):
            self._take(source, "type", "len")
            items = self._items(source, cast("Sequence[Any]", value), where)
            return Sequenced(kind.__name__, items)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            self._take(source, "type", "len")
            names = cast("tuple[str, ...]", cast(Any, kind)._fields)
            items = self._items(source, cast("Sequence[Any]", value), where)
            return Made(kind.__name__, "namedtuple", tuple(zip(names, items, strict=True)))
        if isinstance(value, dict):
            return self._dict(source, cast("dict[Any, Any]", value), where)
        return self._object(source, value, where)

    def _items(self, source: Source, items: Sequence[Any], where: str) -> tuple[Tree, ...]:
        return tuple(
            self.tree(Item(source, number), item, f"{where}[{number}]") for number, item in enumerate(items)
        )

    def _dict(self, source: Source, value: dict[Any, Any], where: str) -> Tree:
        self._take(source, "type", "len", "keys", "missing_key")
        pairs: list[tuple[Any, Tree]] = []
        for key, item in value.items():
            if not is_constant(key):
                raise ExportError(
                    f"{where} has a key of type {type(key).__name__}, which no file can have",
                    fix="use texts as keys",
                )
            pairs.append((key, self.tree(DictItem(source, key), item, f"{where}[{key!r}]")))
        return Mapped(tuple(pairs), type(value).__name__, *self._fields(source, value, where))

    def _tensor(self, source: Source, value: Tensor, where: str) -> Tree:
        if source not in self.reached:
            return Unused()
        number = self.inputs.get(source)
        fields, absent = self._fields(source, value, where)
        asks_class = any(guard.kind == "type" for guard in self.asked.get(source, ()))
        self._take(source, "type")
        if number is None:
            return Made(type(value).__name__, "object", fields, absent)
        kind = type(value).__name__ if asks_class else ""
        self._take(source, "tensor")
        self._take_pairs(source)
        return Leaf(number, fields, absent, kind)

    def _take_pairs(self, source: Source) -> None:
        """Inputs of one number are checked to be one tensor. That those which are written lie apart from others is
        checked in each call, and no call passes what the exported model has."""
        written = {place for place, _ in self.region.mutations}
        known = {other for place, other in enumerate(self.region.inputs) if place in written}

        def is_checked(guard: Guard) -> bool:
            one, other = guard.source, guard.expected
            if guard.kind == "same":
                return one in self.inputs and self.inputs[one] == self.inputs.get(other)
            if guard.kind in ("distinct", "storage_distinct"):
                return not (is_passed(one) and is_passed(other)) or (
                    other in self.inputs and bool(known & {one, other})
                )
            # Where a view of another dtype may begin is what eager asks: programs read memory wherever it begins.
            return isinstance(guard.expected, BeginsAt | LiesAt)

        self.asked[source] = [guard for guard in self.asked.get(source, ()) if not is_checked(guard)]

    def _object(self, source: Source, value: Any, where: str) -> Tree:
        """What was read of an object: its class, by name, and attributes."""
        if source not in self.reached:
            return Unused()
        self._take(source, "type")
        fields, absent = self._fields(source, value, where)
        return Made(type(value).__name__, "object", fields, absent)

    def _fields(
        self, source: Source, value: Any, where: str
    ) -> tuple[tuple[tuple[str, Tree], ...], tuple[str, ...]]:
        """The attributes that were read, and those that were found to be missing."""
        fields: list[tuple[str, Tree]] = []
        for name, inner in self.beneath.get(source, {}).items():
            if not hasattr(value, name):
                continue
            found = getattr(value, name)
            if callable(found) and not isinstance(found, Tensor):
                continue
            tree = self.tree(inner, found, f"{where}.{name}")
            if name.startswith("__") or name in ("_name", "_fields"):
                raise ExportError(
                    f"the model reads {where}.{name}, which no file can have", fix="pass what it is made of"
                )
            fields.append((name, tree))
        held = InstanceDict(source)
        guards = self.asked.get(held, ())
        absent = dict.fromkeys(guard.expected for guard in guards if guard.kind == "missing_key")
        self._take(held, "missing_key")
        return tuple(fields), tuple(name for name in absent if isinstance(name, str))

    def check(self) -> None:
        """
        Raises:
            ExportError: a guard was taken by none: the file would be used for calls that it is not for.
        """
        for source, guards in self.asked.items():
            if guards and not any(base in self.settled for base in _with_bases(source)):
                raise ExportError(
                    f"what the model does depends on {self._place(source)}: {self._said(guards[0])}, and no file can "
                    "have calls checked for that",
                    fix="pass tensors, plain values, enums, containers and objects with attributes; what is the same "
                    "in all calls is for the model to have, as an attribute or in a closure",
                )

    def _place(self, source: Any) -> str:
        """Where something is passed, in words."""
        if source in self.places:
            return self.places[source]
        match source:
            case Attr(base, name):
                return f"{self._place(base)}.{name}"
            case Slot(base, descriptor):
                return f"{self._place(base)}.{descriptor.__name__}"
            case DictItem(InstanceDict(base), key):
                return f"{self._place(base)}.{key}"
            case DictItem(base, key) | Item(base, key):
                return f"{self._place(base)}[{key!r}]"
            case InstanceDict(base):
                return self._place(base)
            case _:
                return source._brief()

    def _said(self, guard: Guard) -> str:
        expected = guard.expected
        shown = expected.__name__ if isinstance(expected, type) else repr(expected)[:60]
        match guard.kind:
            case "is" if isinstance(expected, Tensor):
                return "it is a tensor of the model itself"
            case "is":
                return f"it is {shown}"
            case "equals":
                return f"it equals {shown}, a {type(expected).__name__}"
            case "same" | "distinct" | "storage_distinct":
                return f"whether it is one with {self._place(expected)}"
            case "missing_attr" | "missing_key":
                return f"it has no {shown}"
            case "tensor":
                return "a tensor that is no input"
            case _:
                return f"its {guard.kind}, {shown}"


def _with_bases(source: Source) -> Iterator[Source]:
    yield source
    while not isinstance(source, Arg | Kwarg):
        source = cast(Any, source).base
        yield source


def argument_trees(
    region: Region,
    sources: Sequence[Source],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    nesting: Nesting | None = None,
    kept: Mapping[Source, int] | None = None,
) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
    """What a call passes by position and by keyword; `nesting`: of these arguments. `kept`: what is returned as it was
    passed.

    Raises:
        ExportError: it passes what no file can have, or not all inputs are among it, or it asks of an argument what no
            tree has.
    """
    flat = None
    if nesting is not None:
        flat = iter(range(len(nesting.leaves)))
        args, kwargs = nesting.args, nesting.kwargs
    reading = Arguments(region, sources, kept or {}, flat)
    positional = tuple(
        reading.tree(Arg(number), value, f"argument {number}") for number, value in enumerate(args)
    )
    named = {name: reading.tree(Kwarg(name), value, name) for name, value in kwargs.items()}
    found = {leaf.number for tree in (*positional, *named.values()) for leaf in leaves_of(tree)}
    for number in sorted(set(range(len(sources))) - found):
        raise ExportError(
            f"the model reads a tensor of {root_of(sources[number])._brief()} that lies in an object of no plain kind",
            fix="pass tensors in lists, tuples, named tuples, dicts and objects with attributes",
        )
    reading.check()
    return positional, named
