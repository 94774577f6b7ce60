"""Whether a graph from a file is one that could have been recorded.

What is compiled of it reads and writes memory by the sizes that it states, so none of them is believed: each is
inferred again from the inputs, and eager is asked as it is at capture. Its operators are functions of tensors, without
effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from lampwork.artifacts.allowed import MEMORY, is_allowed, wrong_arguments
from lampwork.artifacts.manifest import Entry, Symbol, Tensed, Weight
from lampwork.errors import LampworkError, text_of
from lampwork.graph.compiled_masks import COMPILED_ONLY
from lampwork.graph.concrete import scope_of
from lampwork.graph.probes import probe
from lampwork.graph.shapes import MINDS_VALUES, eager_takes, infer
from lampwork.graph.shapes_common import ShapeError
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Condition, Scope, SymbolicInt
from lampwork.loops.ir.polynomial import Index, as_index
from lampwork.loops.ir.symbols import divisors
from lampwork.standard import operator

_RECORDED = frozenset(
    {"val", "bound", "random", "operands", "overwrites", "lies_in", "new_versions", "whole", COMPILED_ONLY}
)
"""The meta that recording leaves, of all that a graph may have: the rest is of passes, which believe it."""


class Unsound(Exception):
    """Why a graph is refused: the end of a sentence. `operator`: one is not run for files that are not trusted."""

    def __init__(self, what: str, operator: str = "") -> None:
        super().__init__(what)
        self.operator = operator


def check_graph(graph: fx.Graph, entry: Entry, weights: Sequence[Weight]) -> None:
    """Check that a graph computes what its entry says, on memory that is there.

    Raises:
        Unsound: it does not, or may not.
    """
    scope = scope_of(graph)
    if scope is not None:
        _check_scope(scope, entry)
    given: list[Tensed | Weight] = [*entry.inputs, *(weights[number] for number in entry.weights)]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(given):
        raise Unsound(f"it has {len(placeholders)} inputs, expected {len(given)}")
    for number, (node, one) in enumerate(zip(placeholders, given, strict=True)):
        spec = node.meta["val"]
        expected = (one.dtype, _indices(one.shape), _indices(one.strides), "cpu")
        if (spec.dtype, _indices(spec.shape), _indices(spec.strides), spec.device.type) != expected:
            raise Unsound(f"input {node.name} is {spec}, expected {one.name} as the manifest has it")
        if bool(node.meta.get("bound")) != (number >= len(entry.inputs)):
            raise Unsound(f"input {node.name} is a weight in one of graph and manifest, and not in the other")
    for node in graph.nodes:
        if unknown := _stated(node) - _RECORDED:
            raise Unsound(f"{node.name} states {', '.join(sorted(unknown))}, which no recording does")
        if node.op == "call_function" and node.target is not operator.getitem:
            _check_call(node)
    results = cast("Sequence[fx.Node]", graph.output_node().args[0])
    if len(results) != len(entry.outputs):
        raise Unsound(f"it has {len(results)} outputs, expected {len(entry.outputs)}")
    for target, source in entry.writes:
        into, written = placeholders[target].meta["val"], results[source].meta["val"]
        if (into.dtype, into.shape) != (written.dtype, written.shape):
            raise Unsound(f"it writes {written} to {placeholders[target].name}, which is {into}")


def fill_memory(graph: fx.Graph) -> None:
    """Have what is memory alone be zeros: what lies in this process's memory is not a stranger's to return.

    Raises:
        Unsound: its elements lie so that zeros would lie elsewhere.
    """
    zeros = torch.ops.aten.zeros_like.default
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "_opname", "") not in MEMORY:
            continue
        val = infer(zeros, (node.meta["val"],))
        if _facts(val) != _facts(node.meta["val"]):
            raise Unsound(f"{node.name} is memory with gaps, {node.meta['val']}")
        with graph.inserting_after(node):
            made = graph.call_function(zeros, (node,))
        made.meta = {**node.meta, "val": val}
        node.replace_all_uses_with(made, delete_user_cb=lambda user, made=made: user is not made)


def _stated(node: fx.Node) -> set[str]:
    return {name for name, value in node.meta.items() if value is not None and value is not False}


def _check_scope(scope: Scope, entry: Entry) -> None:
    symbols = {symbol.name for symbol in entry.symbols}
    if scope.derived or not scope.hints.keys() <= symbols:
        strange = sorted({*scope.derived, *scope.hints} - symbols)
        raise Unsound(f"it has the symbols {strange}, which its inputs do not give")


def _check_call(node: fx.Node) -> None:
    op = cast(Any, node.target)
    check_operator(op)
    args = map_arg(node.args, lambda each: each.meta["val"])
    kwargs = cast("Mapping[str, Any]", map_arg(node.kwargs, lambda each: each.meta["val"]))
    try:
        if wrong := wrong_arguments(op, args, kwargs):
            raise Unsound(f"{node.name} = {op} cannot be: {wrong}")
        _check_taken(op, cast(Any, args), kwargs)
        found = infer(op, cast(Any, args), kwargs)
    except Unsound:
        raise
    except LampworkError as error:
        raise Unsound(f"{node.name} = {op} cannot be: {error.cause}") from error
    except (
        Exception
    ) as error:  # the arguments come from anywhere, and rules take those that a recorder has checked
        raise Unsound(f"{node.name} = {op} cannot be: {text_of(error)}") from error
    if _facts(found) != _facts(node.meta["val"]):
        raise Unsound(f"{node.name} = {op} states {node.meta['val']}, expected {found}")


def _check_taken(op: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Ask eager whether it takes a call, by a probe or by the call itself on zeros.

    Raises:
        ShapeError: it does not.
    """
    try:
        probe(op, args, kwargs)
    except ShapeError:
        # A probe's sizes are ranks, which an operator may calculate with otherwise (`x[2]` of three rows or more). One
        # that minds values refuses zeros of any shape: it runs as a call of ATen, which checks all there is to check.
        if op._opname not in MINDS_VALUES and not eager_takes(op, args, kwargs):
            raise


def check_operator(op: Any) -> None:
    """Raise Unsound unless an operator is a function of tensors that is on a list, without effects."""
    schema = op._schema
    computes = bool(schema.returns) and all("Tensor" in str(each.type) for each in schema.returns)
    if not is_allowed(op) or schema.is_mutable or not computes:
        raise Unsound(f"it has the operator {op}, which is not run for a file that is not trusted", str(op))


def _facts(val: Any) -> Any:
    """What memory has to be there for specs."""
    if isinstance(val, TensorSpec):
        return val.dtype, _indices(val.shape), _indices(val.strides), val.device
    return None if val is None else [_facts(each) for each in val]


def _indices(numbers: Sequence[Any]) -> tuple[Index, ...]:
    return tuple(map(as_index, numbers))


def divided_by(graph: fx.Graph, entry: Entry) -> tuple[Condition, ...]:
    """That whatever sizes are divided by, in the graph or in what the manifest says, is above 0: code that divides by 0
    ends the process."""
    found: dict[Index, None] = {}

    def note(value: Any) -> None:
        if isinstance(value, TensorSpec):
            note((value.shape, value.strides))
        elif isinstance(value, SymbolicInt):
            note(value.index)
        elif isinstance(value, Index):
            found.update(dict.fromkeys(divisors(value)))
        elif isinstance(value, Mapping):
            note(tuple(cast("Mapping[Any, Any]", value).values()))
        elif isinstance(value, slice):
            note((value.start, value.stop, value.step))
        elif isinstance(value, (tuple, list)):
            for each in cast("Sequence[Any]", value):
                note(each)

    for node in graph.nodes:
        note((node.meta.get("val"), node.args, dict(node.kwargs)))
    if (scope := scope_of(graph)) is not None:
        note([*scope.equal.values(), *(each.index for each in scope.conditions)])
    note([each.index for each in (*entry.symbols, *entry.conditions) if each.index is not None])
    note([(each.shape, each.strides) for each in entry.inputs])
    return tuple(Condition(">=", divisor - 1) for divisor in found)


def conditions_of(scope: Scope | None, symbols: Sequence[Symbol]) -> tuple[Condition, ...]:
    """What inference and compilation took for granted of sizes, and calls have to be held to, beside the ranges that
    the manifest states.

    Raises:
        Unsound: it concerns a symbol that the inputs do not give.
    """
    if scope is None:
        return ()
    lowest = [Condition(">=", Index.sym(name) - low) for name, low in scope.lowest.items()]
    equal = [Condition("==", Index.sym(name) - index) for name, index in scope.equal.items()]
    ranges = {symbol.name: (symbol.min, symbol.max) for symbol in symbols}
    found = dict.fromkeys(Condition(each.op, each.index) for each in (*lowest, *equal, *scope.conditions))
    strange = sorted({name for each in found for name in each.index.symbols()} - ranges.keys())
    if strange:
        raise Unsound(f"it has the symbols {strange}, which its inputs do not give")
    return tuple(each for each in found if not _is_said(each, ranges))


def _is_said(condition: Condition, ranges: Mapping[str, tuple[int, int | None]]) -> bool:
    """Whether it is one on a single symbol that the range of this symbol implies."""
    names = condition.index.symbols()
    if condition.op != ">=" or len(names) != 1:
        return False
    (name,) = names
    low, high = ranges[name]
    rest, constant = condition.index - condition.index.constant, condition.index.constant
    if rest == Index.sym(name):
        return low + constant >= 0
    return rest == -Index.sym(name) and high is not None and constant - high >= 0
