"""What a call passes, as a tree of the inputs of what was captured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from lampwork.artifacts.trees import PLAIN, Constant, Leaf, Made, Mapped, Sequenced, Tree, Unused
from lampwork.capture.model.region import (
    Arg,
    Attr,
    DictItem,
    InstanceDict,
    Item,
    Kwarg,
    Region,
    Slot,
    Source,
    root_of,
)
from lampwork.errors import ExportError
from lampwork.exports.torch_program import Nesting


@dataclass(slots=True)
class Arguments:
    """Reads the arguments of the call that a region was captured of. `sources`: where each input comes from."""

    region: Region
    sources: Sequence[Source]
    inputs: dict[int, int] = field(default_factory=dict[int, int])
    beneath: dict[Source, dict[str, Source]] = field(default_factory=dict[Source, dict[str, Source]])

    def __post_init__(self) -> None:
        guards = (*self.region.guards, *self.region.slow_guards)
        for source in (*self.sources, *(guard.source for guard in guards)):
            self._note(source)

    def _note(self, source: Source) -> None:
        """What was read of objects, by attribute."""
        while not isinstance(source, Arg | Kwarg) and isinstance(root_of(source), Arg | Kwarg):
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

    def tree(self, source: Source, value: Any, where: str) -> Tree:
        """
        Raises:
            ExportError: a value is of a class that no file can have.
        """
        if isinstance(value, Tensor):
            return self._tensor(source, value)
        if isinstance(value, PLAIN):
            return Constant(value)
        if type(value) in (list, tuple):
            items = cast("Sequence[Any]", value)
            inner = (
                self.tree(Item(source, number), item, f"{where}[{number}]")
                for number, item in enumerate(items)
            )
            return Sequenced("list" if isinstance(value, list) else "tuple", tuple(inner))
        if type(value) is dict:
            pairs: list[tuple[Any, Tree]] = []
            for key, item in cast("dict[Any, Any]", value).items():
                if not isinstance(key, PLAIN):
                    raise ExportError(
                        f"{where} has a key of type {type(key).__name__}, which no file can have",
                        fix="use texts as keys",
                    )
                pairs.append((key, self.tree(DictItem(source, key), item, f"{where}[{key!r}]")))
            return Mapped(tuple(pairs))
        return self._object(source, value, where)

    def _tensor(self, source: Source, value: Tensor) -> Tree:
        if source in self.sources:
            return Leaf(self.inputs.setdefault(id(value), self.sources.index(source)))
        number = self.inputs.get(id(value))
        return Unused() if number is None else Leaf(number)

    def _object(self, source: Source, value: Any, where: str) -> Tree:
        """What was read of an object, whatever its class."""
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
        return Made(type(value).__name__, "object", tuple(fields)) if fields else Unused()


def argument_trees(
    region: Region,
    sources: Sequence[Source],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    nesting: Nesting | None = None,
) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
    """What a call passes by position and by keyword; `nesting`: of these arguments.

    Raises:
        ExportError: it passes what no file can have, or not all inputs are among it.
    """
    reading = Arguments(region, sources)
    if nesting is not None:
        for number, leaf in enumerate(nesting.leaves):
            if Arg(number) in sources:
                reading.inputs[id(leaf)] = sources.index(Arg(number))
        reading.sources = ()
        args, kwargs = nesting.args, nesting.kwargs
    positional = tuple(
        reading.tree(Arg(number), value, f"argument {number}") for number, value in enumerate(args)
    )
    named = {name: reading.tree(Kwarg(name), value, name) for name, value in kwargs.items()}
    missing = set(range(len(sources))) - set(reading.inputs.values())
    for number in sorted(missing):
        root = root_of(sources[number])
        raise ExportError(
            f"the model reads a tensor of {root._brief()} that lies in an object of no plain kind",
            fix="pass tensors in lists, tuples, dicts and objects with attributes",
        )
    return positional, named
