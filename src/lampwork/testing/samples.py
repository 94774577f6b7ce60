"""Graphs that a rewrite should fire on, made from its own pattern or recorded from programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.errors import LampworkError
from lampwork.graph.copying import copy_graph
from lampwork.graph.printing import to_python
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.driver import Rewriter, Rule
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.term import Call, Term, Var
from lampwork.rewriting.language.traverse import children
from lampwork.testing.programs import randn
from lampwork.transforms.pipeline import default_passes, run_passes

# Every size the same, so that what is multiplied fits; then mixed ranks, for what is broadcast.
_SHAPES: tuple[tuple[int, ...], ...] = ((8, 8), (2, 3, 8, 8), (2, 8, 8), (8,), (1, 8, 1, 8), ())
_NUMBERS: tuple[Any, ...] = (0.5, 2, 3.0, 0, 1, 1e-5, -1.0)
_TENSOR: Any = object()
_ANYTHING: tuple[Any, ...] = (
    _TENSOR,
    -1,
    0,
    1,
    2,
    None,
    [-1],
    [8],
    [0, 1],
    [1, 0],
    [64],
    0.5,
    True,
    torch.float64,
)
_DTYPES = {"int": torch.int64, "bool": torch.bool}
_ATTEMPTS = 1000
_WANTED = 6


@record
class Sample:
    """A graph as it stands where rewrites run, and what its placeholders are to be given."""

    name: str
    graph: fx.Graph

    def inputs(self, seed: int = 0, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Fresh tensors; floating ones of `dtype`, if it is given."""
        made: list[Tensor] = []
        for number, node in enumerate(n for n in self.graph.nodes if n.op == "placeholder"):
            spec = cast(TensorSpec, node.meta["val"])
            kind = dtype if dtype is not None and spec.dtype.is_floating_point else spec.dtype
            values = randn(*spec.shape, seed=seed + number, dtype=kind)
            if not (kind.is_floating_point or kind.is_complex or kind is torch.bool):
                values = values.abs() % 4  # they may be indices
            made.append(torch.empty_strided(spec.shape, spec.strides, dtype=kind).copy_(values))
        return made

    def function(self) -> Callable[..., Any]:
        """The graph as a Python function of its placeholders."""
        space: dict[str, Any] = {}
        exec(compile(to_python(self.graph), f"<sample {self.name}>", "exec"), space)
        return cast("Callable[..., Any]", space["forward"])


def recorded(name: str, fn: Callable[..., Any], args: Sequence[Any]) -> Sample:
    """The graph of a program, its tensors as inputs, brought to where rewrites run."""
    with torch.no_grad(), Recorder() as recorder:
        given = [recorder.input(a, f"x{i}") if isinstance(a, Tensor) else a for i, a in enumerate(args)]
        result = fn(*given)
    results = list(result) if isinstance(result, tuple | list) else [result]
    return _canonical(name, recorder.finish(results).graph)


def _canonical(name: str, graph: fx.Graph) -> Sample:
    before = list(itertools.takewhile(lambda p: p.name != "rewrites", default_passes()))
    run_passes(graph, passes=before)
    return Sample(name, graph)


def samples_of(rule: Rule) -> list[Sample]:
    """A few graphs of the pattern itself, of different shapes, on which the rule fires."""
    rewriter, found = Rewriter([rule]), dict[str, Sample]()
    for sample in itertools.islice(_instances(rule), _ATTEMPTS):
        if sample.name in found:
            continue
        ctx = PassContext()
        rewriter.run(copy_graph(sample.graph), ctx)
        if ctx.hits[rule.name] or ctx.faults:  # it fires, even if what it makes is wrong
            found[sample.name] = sample
            if len(found) == _WANTED:
                break
    return list(found.values())


def _instances(rule: Rule) -> Iterator[Sample]:
    for roots in itertools.islice(itertools.product(*(variants(root) for root in rule.roots)), 16):
        variables = list({v.name: v for root in roots for v in _variables(root)}.values())
        for values in _assignments(variables):
            name = ", ".join(str(v.shape) if isinstance(v, TensorSpec) else repr(v) for v in values)
            for inside in (False, True):
                graph = _graph_of(roots, variables, values, inside)
                if graph is not None:
                    try:
                        yield _canonical(f"{name}, inside a graph" if inside else name, graph)
                    except LampworkError:
                        continue


def _assignments(variables: Sequence[Var]) -> Iterator[tuple[Any, ...]]:
    """Values for the variables: first all tensors alike, then some of another rank, then other things than tensors."""
    pools = [
        _NUMBERS if v.kind == "number" else _ANYTHING if v.kind == "any" else (_TENSOR,) for v in variables
    ]
    for kinds in itertools.islice(itertools.product(*pools), 400):
        places = [i for i, value in enumerate(kinds) if value is _TENSOR]
        for sizes in _sizes_of(len(places)):
            values = list(kinds)
            for place, shape in zip(places, sizes, strict=True):
                values[place] = _spec(variables[place], shape)
            yield tuple(values)


def _sizes_of(count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    for shape in _SHAPES:
        yield (shape,) * count
    for base in _SHAPES[:3]:
        for others in (1, 2, 3):
            for places in itertools.combinations(range(count), others):
                for other in ((8,), (8, 8)):
                    if other != base:
                        yield tuple(other if i in places else base for i in range(count))


def _spec(variable: Var, shape: tuple[int, ...]) -> TensorSpec:
    """What the predicates of a variable ask for, as near to `shape` as they allow."""
    if variable.sizes is not None:
        fixed = [size for size in variable.sizes if size is not Ellipsis]
        shape = tuple(size if isinstance(size, int) else 8 for size in fixed)
    elif variable.rank is not None and len(shape) != variable.rank:
        shape = (8,) * (variable.rank - 2) + (8, 8) if variable.rank > 1 else (8,) * variable.rank
    dtype = _DTYPES.get(variable.kind, torch.float32)
    if variable.dtypes and dtype not in variable.dtypes:
        dtype = variable.dtypes[0]
    return TensorSpec(shape, contiguous_strides(shape), dtype, torch.device("cpu"))


def _graph_of(
    roots: Sequence[Term], variables: Sequence[Var], values: Sequence[Any], inside: bool
) -> fx.Graph | None:
    """The pattern as a graph, with placeholders for its tensors, or with something before and behind them if it is to
    stand inside a graph; None if some operator takes no such arguments."""
    graph = fx.Graph()
    nodes: dict[str, Any] = {}
    for bound in (False, True):
        for variable, value in zip(variables, values, strict=True):
            if not isinstance(value, TensorSpec):
                nodes[variable.name] = value
            elif (variable.kind in ("const", "constant")) is bound:
                node = graph.placeholder(variable.name)
                node.meta = {"val": value, "bound": bound}
                nodes[variable.name] = node
    output = graph.output(())
    editor = PassContext().editor(graph, output)
    if inside:
        for variable in variables:
            node = nodes[variable.name]
            if isinstance(node, fx.Node) and not node.meta["bound"]:
                nodes[variable.name] = _around(editor, node)
    try:
        built = [editor.build(root, nodes) for root in roots]
    except (LampworkError, RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return None
    if not all(isinstance(b, fx.Node) and isinstance(b.meta.get("val"), TensorSpec) for b in built):
        return None
    if inside:
        built = [_around(editor, node) for node in built]
    output.args = (tuple(built),)
    return graph


def _around(editor: Editor, node: fx.Node) -> fx.Node:
    """The node behind an operator that keeps infinities and signs."""
    dtype = cast(TensorSpec, node.meta["val"]).dtype
    if dtype.is_floating_point:
        return editor.call(torch.ops.aten.add.Tensor, node, 0.25)
    return editor.call(torch.ops.aten.bitwise_not.default, node)


def _variables(term: Any) -> Iterator[Var]:
    if isinstance(term, Var):
        yield term
    for below in children(term):
        yield from _variables(below)


def variants(term: Any) -> Iterator[Any]:
    """The terms of variables, literals and calls only that a pattern stands for."""
    return _variants(term, itertools.count())


def _variants(term: Any, numbers: Iterator[int]) -> Iterator[Any]:
    if isinstance(term, Var):
        yield term if term.name else replace(term, name=f"unnamed_{next(numbers)}")
    elif isinstance(term, list | tuple):
        items = [list(_variants(t, numbers)) for t in cast("Sequence[Any]", term)]
        yield from map(list, itertools.product(*items))
    elif isinstance(term, Call):
        options = {t: list(_variants(list(args), numbers)) for t, args in term.values.items()}
        for number in range(max(len(o) for o in options.values())):
            yield Call(term.name, {t: tuple(o[min(number, len(o) - 1)]) for t, o in options.items()})
    elif isinstance(term, Term):
        yield from term.variants(lambda t: _variants(t, numbers))
    else:
        yield term
