"""What leaves a part: which tensors the runtime computes, and how the results are made of them.

A result that is a view in eager stays one: the view is taken by PyTorch, of what the runtime computed or of the input
itself. A result whose strides are not row-major is computed in the order in which eager lays it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import view_base
from lampwork.standard import operator


@record
class Slot:
    """A value of the boundary, by number."""

    number: int


@record
class Step:
    """`target(*args, **kwargs)` gives the value `result`; values among the arguments are slots."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: int


@record
class Boundary:
    """`roots`: the nodes that the runtime computes. Values: the inputs, the bound tensors, the roots, then those of
    `steps`; `outputs` are numbers of values. `layouts`: for each root the (shape, strides) to give it, or None where
    it is row-major."""

    roots: tuple[fx.Node, ...]
    bound: tuple[Tensor, ...]
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]] | None, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """The results are the roots, in order, as they come."""
        return not self.steps and not any(self.layouts) and len(self.outputs) == len(self.roots)

    def results(self, inputs: Sequence[Tensor], roots: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, of the part's inputs and what the runtime computed."""
        laid = [
            root if layout is None else root.as_strided(*layout)
            for root, layout in zip(roots, self.layouts, strict=True)
        ]
        values: list[Any] = [*inputs, *self.bound, *laid]
        values.extend([None] * len(self.steps))
        for step in self.steps:
            args = [_filled(arg, values) for arg in step.args]
            values[step.result] = step.target(
                *args, **{k: _filled(v, values) for k, v in step.kwargs.items()}
            )
        return [values[number] for number in self.outputs]


def _filled(value: Any, values: Sequence[Any]) -> Any:
    return values[value.number] if isinstance(value, Slot) else value


def plan_boundary(graph: fx.Graph, bound: Sequence[Tensor]) -> Boundary:
    """The boundary of a graph whose inputs come before its bound placeholders."""
    output = next(iter(reversed(graph.nodes)))
    results = cast("tuple[fx.Node, ...]", output.args[0])
    roots: dict[fx.Node, None] = {}
    views: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> None:
        if node.op == "placeholder" or node in views:
            return
        if _is_view(node):
            visit(cast(fx.Node, node.args[0]))
            views[node] = None
        else:
            roots[node] = None

    for node in results:
        visit(node)
    numbers = {node: i for i, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    for node in (*roots, *views):
        numbers[node] = len(numbers)
    steps = tuple(
        Step(
            node.target,
            tuple(Slot(numbers[a]) if isinstance(a, fx.Node) else a for a in node.args),
            {k: Slot(numbers[a]) if isinstance(a, fx.Node) else a for k, a in node.kwargs.items()},
            numbers[node],
        )
        for node in views
    )
    layouts = tuple(_layout(node.meta["val"]) for node in roots)
    return Boundary(tuple(roots), tuple(bound), layouts, steps, tuple(numbers[n] for n in results))


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(cast(fx.Node, node.args[0]))
    return view_base(node) is not None


def _layout(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if spec.is_contiguous and not any(size == 1 for size in spec.shape):
        return None
    row_major = True
    step = 1
    for size, stride in zip(reversed(spec.shape), reversed(spec.strides), strict=True):
        row_major = row_major and stride == step
        step *= size
    return None if row_major else (tuple(spec.shape), tuple(spec.strides))


def dense_order(spec: TensorSpec) -> list[int]:
    """The dimensions from the outermost in memory to the innermost, of a result that covers its memory once."""
    strides = [int(hint_of(stride)) for stride in spec.strides]
    sizes = [int(hint_of(size)) for size in spec.shape]
    if spec.numel and _row_major(sizes, strides):
        return list(range(len(sizes)))
    return sorted(range(len(sizes)), key=lambda d: (-strides[d], -sizes[d], d))


def _row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
