"""What a region gives back, read from its recipe: which tensors, in what order and containers, under which names.

before:  recipe: %0 = output 1, %1 = source x, %2 = const "a", %3 = dict(%2, %0), %4 = tuple(%3, %1, %0)
after:   tree ({"a": Leaf(0)}, Leaf(1), Leaf(2)), nodes (output 1, x, output 1), names ("a", "output_1", "output_2")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from lampwork.capture.breaks import recipe
from lampwork.capture.model.evaluate import find
from lampwork.capture.model.region import Known, Region, Source, TensorGuard, root_of
from lampwork.errors import ExportError
from lampwork.exports.naming import identifier, unique
from lampwork.graph.concrete import scope_of
from lampwork.graph.nested import leaves, replaced
from lampwork.graph.nodes import add_call
from lampwork.graph.origin import place_of
from lampwork.graph.shapes import infer
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.loops.ir.polynomial import Index
from lampwork.loops.ir.symbols import evaluate
from lampwork.records import record
from lampwork.standard import functools


@record
class Leaf:
    """A tensor of the result, by its number among the outputs of a piece."""

    number: int


@record
class Number:
    """An int of the result that the symbols give."""

    index: Index


@record
class Passed:
    """An argument, as it was passed, that nothing looked at."""

    source: Source


@record
class Made:
    """An object of a class of the program's own. `form`: "namedtuple", "size" (torch.Size), "dict" or "object".
    `fields`: its parts by name."""

    name: str
    form: str
    fields: tuple[tuple[Any, Any], ...]


@record(eq=False)
class Results:
    """`tree`: of `Leaf`s, `Number`s and plain objects in tuples, lists, dicts and `Made`s. `made`: the result is an
    object that only Python can make, or has one in it. `nodes`: its tensors in order, then `stored` of them that the
    region stores elsewhere."""

    tree: Any
    made: bool
    nodes: tuple[fx.Node, ...]
    names: tuple[str, ...]
    stored: int
    notes: tuple[str, ...]


_PLAIN = (int, float, bool, str, type(None))
"""What may stand among results beside tensors."""


def leaves_of(tree: Any) -> Iterator[Leaf]:
    yield from leaves(tree, Leaf)


def numbers_of(tree: Any, hints: Mapping[str, int]) -> Iterator[Any]:
    """The items of a result that are no tensors."""
    if isinstance(tree, Made):
        tree = [item for _, item in tree.fields]
    if isinstance(tree, dict):
        tree = list(cast("dict[Any, Any]", tree).values())
    if isinstance(tree, (tuple, list)):
        for item in cast("list[Any]", tree):
            yield from numbers_of(item, hints)
    elif isinstance(tree, Number):
        yield evaluate(tree.index, hints)
    elif tree is not None and not isinstance(tree, Leaf):
        yield tree


def symbols_of(tree: Any) -> frozenset[str]:
    """The symbols that numbers in a result depend on."""
    return frozenset(name for number in leaves(tree, Number) for name in number.index.symbols())


def rebuilt(tree: Any, tensors: Sequence[Any], number: Callable[[Index], Any]) -> Any:
    """A result with these tensors for its leaves."""
    match tree:
        case Leaf():
            return tensors[tree.number]
        case Number():
            return number(tree.index)
        case dict():
            items = cast("dict[Any, Any]", tree).items()
            return {key: rebuilt(item, tensors, number) for key, item in items}
        case tuple() | list():
            items = [rebuilt(item, tensors, number) for item in cast("list[Any]", tree)]
            return items if isinstance(tree, list) else tuple(items)
        case _:
            return tree


def passed_on(region: Region) -> dict[Source, TensorSpec]:
    """The tensors of a call that a region gives back, or stores, but does not compute with."""
    found: dict[Source, TensorSpec] = {}
    if region.breaks:
        return found
    seen = {guard.source: guard.expected for guard in region.guards if guard.kind == "tensor"}
    for step in region.recipe.steps:
        source = step.payload
        if step.kind != "source" or source in region.inputs or source not in seen:
            continue
        expected = cast(TensorGuard, seen[source])
        if None not in (*expected.sizes, *expected.strides):
            sizes, strides = cast(Any, (expected.sizes, expected.strides))
            found[source] = TensorSpec(
                sizes, strides, expected.dtype, expected.device, expected.requires_grad
            )
    return found


def read_results(
    region: Region,
    graph: fx.Graph,
    results: Sequence[fx.Node],
    inputs: Mapping[Source, fx.Node],
    weight: Callable[[Tensor, str], fx.Node],
    keeps: bool = False,
) -> Results:
    """The results of a region that ends in a return.

    Args:
        graph: gets the views that the recipe makes.
        results: what the graph gives.
        inputs: the placeholders of what a call gives.
        weight: the placeholder of a tensor that is the same in all calls.
        keeps: arguments that nothing looked at may be returned (`Passed`).

    Raises:
        ExportError: a result is no tensor of the graph, and nothing that can stand in a file.
    """
    reading = _Reading(region, graph, results, inputs, weight, keeps)
    tree = reading.item(region.recipe.result, ())
    shown = len(reading.nodes)
    reading.rest()
    names = reading.names(shown)
    notes = list(reading.notes)
    stored = len(reading.nodes) - shown
    if reading.made:
        notes.append("the result is tensors by name, as the object that the model returns is made by Python")
    return Results(tree, reading.made, tuple(reading.nodes), names, stored, tuple(dict.fromkeys(notes)))


@dataclass(slots=True)
class _Reading:
    """Walks a recipe from its result. `made`: an object in it is made by Python."""

    region: Region
    graph: fx.Graph
    results: Sequence[fx.Node]
    inputs: Mapping[Source, fx.Node]
    weight: Callable[[Tensor, str], fx.Node]
    keeps: bool = False
    nodes: list[fx.Node] = field(default_factory=list[fx.Node])
    paths: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    notes: list[str] = field(default_factory=list[str])
    made: bool = False
    read: set[int] = field(default_factory=set[int])
    views: dict[int, fx.Node] = field(default_factory=dict[int, fx.Node])
    entered: set[int] = field(default_factory=set[int])

    def item(self, number: int, path: tuple[Any, ...]) -> Any:
        """What a step gives, with a leaf for each tensor."""
        step = self.region.recipe.steps[number]
        self.read.add(number)
        match step.kind:
            case "output" | "source":
                return self._value(number, path)
            case "const":
                return self._constant(step.payload, path)
            case "symbol":
                return Number(step.payload)
            case "tuple" | "list":
                items = [self.item(each, (*path, place)) for place, each in enumerate(step.args)]
                return items if step.kind == "list" else tuple(items)
            case "dict":
                return self._dict(step.args, path)
            case "call":
                return self._call(number, path)

    def _leaf(self, node: fx.Node, path: tuple[Any, ...]) -> Leaf:
        self.nodes.append(node)
        self.paths.append(path)
        return Leaf(len(self.nodes) - 1)

    def _value(self, number: int, path: tuple[Any, ...]) -> Any:
        found = self._tensor(number, path)
        if isinstance(found, fx.Node):
            return self._leaf(found, path)
        return found if isinstance(found, Passed) else self._constant(found, path)

    def _tensor(self, number: int, path: tuple[Any, ...]) -> Any:
        """The node of a tensor, an argument that is kept, or an object that is none."""
        step = self.region.recipe.steps[number]
        if step.kind == "output":
            return self.results[step.payload]
        source = cast(Source, step.payload)
        if source in self.inputs:
            return self.inputs[source]
        if isinstance(root_of(source), Known):
            found = find(source, (), {})
            return self.weight(found, "constant") if isinstance(found, Tensor) else found
        if self.keeps:
            return Passed(source)
        kinds = [
            guard.expected for guard in self.region.guards if guard.kind == "type" and guard.source == source
        ]
        if kinds and not any(issubclass(kind, Tensor) for kind in kinds):
            self._left_out(f"{_place(path)}: an argument of type {kinds[0].__name__}")
            return None
        raise ExportError(
            f"{_place(path)} is an argument of {self.region.name} as it was passed, and capture did not look at it",
            fix="return what is computed, or export a module in it with `module=`",
        )

    def _constant(self, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, Tensor):
            return self._leaf(self.weight(value, "constant"), path)
        if type(value) in _PLAIN:
            return value
        if self.keeps and isinstance(value, (torch.dtype, torch.device)):
            return value
        if type(value) is torch.Size:
            return Made("Size", "size", tuple((f"item_{place}", size) for place, size in enumerate(value)))
        self._left_out(f"{_place(path)}: {type(value).__name__}")
        return None

    def _left_out(self, what: str) -> None:
        self.made = True
        self.notes.append(f"what is no tensor and no plain number is left out of the result: {what}")

    def _dict(self, args: Sequence[int], path: tuple[Any, ...]) -> dict[Any, Any]:
        steps = self.region.recipe.steps
        found: dict[Any, Any] = {}
        for key, item in zip(args[::2], args[1::2], strict=True):
            name = steps[key].payload if steps[key].kind == "const" else None
            if type(name) not in _PLAIN:
                raise ExportError(
                    f"{_place(path)} is a dict with a key that no file can have", fix="use texts as keys"
                )
            self.read.add(key)
            found[name] = self.item(item, (*path, name))
        return found

    def _call(self, number: int, path: tuple[Any, ...]) -> Any:
        """A view, or an object: its parts, in a list, are what it is made of and what is put into it later."""
        steps = self.region.recipe.steps
        step = steps[number]
        function = steps[step.args[0]].payload
        if _is_same(function):
            return self.item(step.args[1], path)
        if _operator(function) is not None:
            return self._leaf(self._view(number, path), path)
        if function is torch.Size:
            sizes = self.item(step.args[1], path)
            return Made("Size", "size", tuple((f"item_{place}", size) for place, size in enumerate(sizes)))
        self.made = True
        if number in self.entered:
            return None  # it is in itself
        kinds = [steps[arg].payload for arg in step.args if steps[arg].kind == "const"]
        kind = next((each for each in reversed(kinds) if isinstance(each, type)), None)
        if kind is None or not (function is kind or _named(function) == "__new__"):
            raise ExportError(
                f"{_place(path)} of {self.region.name} is what {_named(function)}() gives, which no file can have",
                fix="return the tensors that it is made of, or export a module in it with `module=`",
            )
        parts: dict[Any, Any] = {}
        fields = getattr(kind, "_fields", None) or getattr(kind, "__match_args__", ())

        def name_of(place: int) -> str:
            return str(fields[place]) if place < len(fields) else f"item_{place}"

        for argument in step.args[1:]:
            if steps[argument].kind == "tuple" and issubclass(kind, tuple):
                for place, each in enumerate(steps[argument].args):
                    key = fields[place] if place < len(fields) else place
                    parts[name_of(place)] = self.item(each, (*path, key))
                self.read.add(argument)
            elif not (steps[argument].kind == "const" and steps[argument].payload is kind):
                parts[name_of(len(parts))] = self.item(argument, path)
        self.entered.add(number)
        found = dict(
            pair
            for later in steps
            if later.kind == "call" and later.args[1:2] == (number,)
            for pair in self._put(later.args)
        )
        for key, item in found.items():
            name = f"item_{len(parts)}" if key is None else key
            parts[name] = self.item(item, path if key is None else (*path, key))
        self.entered.remove(number)
        is_dict = issubclass(kind, dict) and not hasattr(kind, "__dataclass_fields__")
        is_named = issubclass(kind, tuple) and bool(fields)  # PyTorch's own name theirs by position
        form = "namedtuple" if is_named else "dict" if is_dict else "object"
        return Made(kind.__name__, form, tuple(parts.items()))

    def _put(self, args: Sequence[int]) -> Iterator[tuple[Any, int]]:
        """What a call puts into an object, by key: an attribute of a dict may be an item of it too."""
        steps = self.region.recipe.steps
        function, _, *rest = args
        if len(rest) == 2 and steps[rest[0]].kind == "const":
            yield steps[rest[0]].payload, rest[1]
        elif steps[function].payload is recipe.set_state and steps[rest[0]].kind == "dict":
            pairs = steps[rest[0]].args
            for key, item in zip(pairs[::2], pairs[1::2], strict=True):
                yield steps[key].payload, item
        else:
            for each in rest:
                yield None, each

    def _view(self, number: int, path: tuple[Any, ...]) -> fx.Node:
        """A call of an operator, in the graph."""
        if number in self.views:
            return self.views[number]
        steps = self.region.recipe.steps
        function, *args = steps[number].args
        op = _operator(steps[function].payload)
        if op is None:
            raise ExportError(f"{_place(path)} is made by Python, which no file can have", fix="clone it")
        kwargs: Mapping[str, Any] = getattr(_inner(steps[function].payload), "keywords", {})
        given = tuple(self._argument(each, path) for each in args)
        specs = replaced(given, fx.Node, lambda node: node.meta["val"])
        node = next(each for each in given if isinstance(each, fx.Node))
        made = infer(op, specs, kwargs)
        if not isinstance(made, TensorSpec):
            raise ExportError(
                f"{_place(path)} is one of the views of {op}, which no file can have", fix="clone it"
            )
        last = next(iter(reversed(self.graph.nodes)))
        # Of an input nobody knows where it comes from: the view is one of what the model returns at its end.
        placed = next((each for each in (node, *reversed(self.graph.nodes)) if "origin" in each.meta), node)
        with self.graph.inserting_before(last):
            view = add_call(self.graph, op, given, kwargs, f"view_{number}", place_of(placed))
        view.meta["val"] = made
        self.views[number] = view
        return view

    def _argument(self, number: int, path: tuple[Any, ...]) -> Any:
        step = self.region.recipe.steps[number]
        self.read.add(number)
        match step.kind:
            case "output" | "source":
                found = self._tensor(number, path)
                if isinstance(found, Passed):
                    raise ExportError(
                        f"{_place(path)} is a view of an argument that capture did not look at",
                        fix="clone it",
                    )
                return found
            case "call" if _is_same(self.region.recipe.steps[step.args[0]].payload):
                return self._argument(step.args[1], path)
            case "call":
                return self._view(number, path)
            case "symbol":
                scope = scope_of(self.graph)
                if scope is None:
                    raise ExportError(
                        f"{_place(path)} is a view whose sizes the graph does not know", fix="clone it"
                    )
                return SymbolicInt(scope, step.payload, evaluate(step.payload, scope.hints))
            case "tuple" | "list":
                return [self._argument(each, path) for each in step.args]
            case _:
                found = step.payload
                return self.weight(found, "constant") if isinstance(found, Tensor) else found

    def rest(self) -> None:
        """What the region computes and stores elsewhere."""
        steps = self.region.recipe.steps
        used = {steps[number].payload for number in self.read if steps[number].kind == "output"}
        written = {number for _, number in self.region.mutations}
        keys = self._keys()
        for number, node in enumerate(self.results):
            if number not in used and number not in written:
                self._leaf(node, (keys[number],) if number in keys else ())

    def _keys(self) -> dict[int, str]:
        """Output -> the key or attribute that it is stored under."""
        steps = self.region.recipe.steps
        found: dict[int, str] = {}
        for step in steps:
            for place, number in enumerate(step.args):
                before = steps[step.args[place - 1]] if place else None
                if steps[number].kind == "output" and before is not None and isinstance(before.payload, str):
                    found.setdefault(steps[number].payload, before.payload)
        return found

    def names(self, shown: int) -> tuple[str, ...]:
        """From the first key or attribute on, else a number; "output" of the only one."""
        found: list[str] = []
        for number, path in enumerate(self.paths):
            start = next((place for place, part in enumerate(path) if isinstance(part, str)), None)
            text = "" if start is None else "_".join(map(str, path[start:]))
            otherwise = "output" if shown == 1 and number == 0 else f"output_{number}"
            found.append(identifier(text, otherwise))
        return unique(found)


def _is_same(function: Any) -> bool:
    """Whether a function of the recipe's own gives its first argument, to a file."""
    return getattr(function, "__module__", "") == recipe.__name__ and function.__name__ in _SAME


_SAME = ("_forbid_writes", "_make_parameter", "inference_copy")


def _inner(function: Any) -> Any:
    """Without the grad mode that the recipe calls it under."""
    if isinstance(function, functools.partial) and _named(cast(Any, function).func) == "_with_gradients":
        return cast(Any, function).args[0]
    return function


def _named(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _operator(function: Any) -> OpOverload | None:
    function = _inner(function)
    if isinstance(function, functools.partial):
        function = cast(Any, function).func
    return function if isinstance(function, OpOverload) else None


def _place(path: Sequence[Any]) -> str:
    return "the result" + "".join(f"[{part!r}]" for part in path)
