"""The joint graph of a region: its operators, and those by which autograd differentiates them, as one functional graph.

before: y = (x @ w).relu()                   differentiated by w, y's gradient given
after:  placeholders x, w, tangent
        mm = aten.mm(x, w); relu = aten.relu(mm)
        threshold_backward = aten.threshold_backward(tangent, relu, 0)
        t = aten.t(x); mm_1 = aten.mm(t, threshold_backward)
        returns relu, mm_1

autograd itself runs, on tensors without data: what it would compute is what is recorded.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.differentiation import attention, products, sparse
from lampwork.differentiation.recurrent import FORMS
from lampwork.differentiation.saved import Probe, Savings
from lampwork.differentiation.segments import Segment, Segments, requires_grad
from lampwork.errors import CaptureError, UnsupportedOpError, text_of
from lampwork.graph import sparse_gradients
from lampwork.graph.collectives import arrived, is_start
from lampwork.graph.concrete import scope_of, spec_at
from lampwork.graph.devices import CPU
from lampwork.graph.distributed import distributing, release_masks
from lampwork.graph.interpret import compute_with, resolve
from lampwork.graph.islands import Island, as_leaf, has_islands
from lampwork.graph.origin import NOWHERE, Place, place_of
from lampwork.graph.reach import reached
from lampwork.graph.record import Recorder, below_views
from lampwork.graph.shapes_common import strides_in_order
from lampwork.graph.spec import TensorSpec, contiguous_strides, with_sizes
from lampwork.graph.symbols import hint_of
from lampwork.graph.symnode import to_torch
from lampwork.graph.tracetensor import TraceTensor
from lampwork.records import record


@record
class Asked:
    """What a backward of one segment is given and asked for. Sizes may be symbols.

    `tangents`: of each result of the segment the spec of its gradient, which is dense; None if there is none.
    `expanded`: whether eager was given one number for all of its elements, as `sum` does; it is laid out as the result.
    `needed`: which of its sources are differentiated by. `gradients`: the specs of what eager gave, None where only
    foresight tells (`foresight`).
    """

    tangents: tuple[TensorSpec | None, ...]
    expanded: tuple[bool, ...]
    needed: tuple[bool, ...]
    gradients: tuple[TensorSpec | None, ...] | None

    @staticmethod
    def of(
        results: Sequence[TensorSpec],
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
    ) -> Asked:
        """What a backward was asked for that gave `gradients`."""
        expanded = tuple(grad is not None and is_expanded(grad) for grad in grads)
        given = [
            None if grad is None else dense(result if one else TensorSpec.of(grad))
            for result, grad, one in zip(results, grads, expanded, strict=True)
        ]
        return Asked(
            tuple(given),
            expanded,
            tuple(needed),
            tuple(None if gradient is None else TensorSpec.of(gradient) for gradient in gradients),
        )

    def is_like(self, other: Asked) -> bool:
        """Whether the same program answers both."""
        return (self.tangents, self.expanded, self.needed) == (other.tangents, other.expanded, other.needed)

    def check(self, gradients: Sequence[fx.Node | None], numbers: Mapping[str, int] | None = None) -> None:
        """`numbers`: the values of the symbols on the call that this was asked on.

        Raises:
            UnsupportedOpError: these are not laid out as eager's gradients.
        """
        if self.gradients is None:
            return
        for want, node in zip(self.gradients, gradients, strict=True):
            if want is None and node is None:
                continue
            spec = None if node is None else node.meta["val"]
            if numbers is not None:
                spec = spec_at(spec, numbers)
            if want is None or spec is None or not _equal(spec, want):
                raise UnsupportedOpError(f"a gradient is recorded as {spec}, and is {want} in eager")

    def opened(self, results: Sequence[TensorSpec], numbers: Mapping[str, int]) -> Asked | None:
        """The same for all sizes, where it was asked for with these: gradients that are laid out as `results`, the
        segment's with symbols for their sizes, or along the same dimensions as here. None if it cannot be said."""
        tangents = tuple(
            None if asked is None else _opened(asked, result)
            for asked, result in zip(self.tangents, results, strict=True)
        )
        opened = replace(self, tangents=tangents, gradients=None)
        return opened if opened.at(numbers).tangents == self.tangents else None

    def at(self, numbers: Mapping[str, int]) -> Asked:
        """The same with these values of its symbols."""
        return replace(self, tangents=tuple(spec_at(spec, numbers) for spec in self.tangents))


def _opened(asked: TensorSpec, result: TensorSpec) -> TensorSpec:
    innermost_first = sorted(range(len(asked.shape)), key=lambda i: (asked.strides[i], -i))
    return replace(asked, shape=result.shape, strides=strides_in_order(result.shape, innermost_first))


def is_expanded(tensor: Tensor) -> bool:
    """Whether all elements are one number in memory, and there are several."""
    return tensor.numel() > 1 and not any(tensor.stride())


def _equal(spec: TensorSpec, want: TensorSpec) -> bool:
    """Whether two specs are the same but for strides that make no difference."""
    if spec.dtype is not want.dtype or spec.shape != want.shape:
        return False
    if want.device.type != "cpu":
        return True  # which order kernels of accelerators choose is not always foreseen, and parameters bring their own
    pairs = zip(spec.shape, spec.strides, want.strides, strict=True)
    return 0 in spec.shape or all(size == 1 or have == wanted for size, have, wanted in pairs)


def dense(spec: TensorSpec) -> TensorSpec:
    """The spec, with strides by which each element has a place of its own, and no place is empty."""
    order = sorted(range(len(spec.shape)), key=lambda i: (-spec.strides[i], i))
    size, strides = 1, dict[int, int]()
    for i in reversed(order):
        strides[i] = size
        size *= max(spec.shape[i], 1)
    moved = 0 in spec.strides or any(spec.strides[i] != strides[i] for i in order if spec.shape[i] > 1)
    dense = contiguous_strides(spec.shape) if moved else spec.strides
    return replace(spec, strides=dense, requires_grad=False)


@record
class Stretch:
    """The backward of one segment in a joint graph.

    `tangents`: the placeholders of the gradients that are given, in order. `gradients`: for each source of the segment
    the node of its gradient, None where none was asked for or there is none.
    """

    tangents: tuple[fx.Node, ...]
    gradients: tuple[fx.Node | None, ...]


@record
class Joint:
    """`placeholders`: those of the region. `results`: what the region returns. `stretches`: by number of segment.
    `savings`: what eager saves, if that was asked for and can be told. `started`: the collectives that backward starts,
    be it of forward's values alone: all processes start them there, whether they have it compiled or not."""

    graph: fx.Graph
    placeholders: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    stretches: Mapping[int, Stretch]
    savings: Savings | None = None
    started: tuple[fx.Node, ...] = ()

    def late(self, tangents: Iterable[fx.Node]) -> set[fx.Node]:
        """What depends on these gradients that are given, or is computed in backward for another reason."""
        return reached((*tangents, *self.started))


_next_function: Callable[[], int] = torch.autograd._get_sequence_nr  # pyright: ignore
"""The number of the function of autograd that this thread makes next."""


class JointRecorder(Recorder):
    """Records what comes below autograd, whose nodes are made and run as for real tensors.

    Specs of a joint graph never require grad: its programs run where gradients are off. An operator of backward comes
    from where the one does that it differentiates: autograd numbers its functions as they are made.
    """

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.where = self._differentiated
        self._place = NOWHERE
        self._places: list[Place] = []
        self._first: list[int] = []  # of each place, the number of the function of autograd that is made next
        if (scope := scope_of(graph)) is not None:
            self.scope = scope

    def __enter__(self) -> Recorder:
        super().__enter__()
        self._grad_outside = False
        return self

    def begin(self, node: fx.Node) -> None:
        """Say that what is recorded from here on computes this node."""
        self._place = place_of(node)
        self._first.append(_next_function())
        self._places.append(self._place)

    def _differentiated(self) -> Place:
        function: Any = torch._C._current_autograd_node()
        if function is None:
            return self._place
        number = bisect.bisect_right(self._first, function._sequence_nr())
        return self._places[number - 1] if number else self._place

    def _below(self) -> Sequence[Any]:
        return (below_views(),)

    def _plain_handler(self, func: Any) -> Callable[..., Any]:
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            raise UnsupportedOpError("a recurrent layer is differentiated from a workspace of oneDNN's")
        return super()._plain_handler(func)


def record_joint(
    graph: fx.Graph,
    segments: Segments,
    returned: Sequence[fx.Node],
    asked: Mapping[int, Asked],
    probe: Probe | None = None,
) -> Joint:
    """The joint graph of `graph` for the backwards that `asked` names by segment.

    `returned`: nodes of `graph` that the joint graph gives as its results. `probe`: looks at what autograd saves.

    Raises:
        UnsupportedOpError, DataDependentError: an operator of backward cannot be recorded.
    """
    recorder = JointRecorder(graph)
    traced = _inputs(recorder, graph)
    tangents = {
        number: tuple(
            None if spec is None else input_of(recorder, f"tangent_{number}_{i}", spec)
            for i, spec in enumerate(each.tangents)
        )
        for number, each in asked.items()
    }
    with recorder, _distributing(recorder, graph), pristine.enable_grad():
        run = _Run(recorder, graph, segments, traced, probe)
        of_forward = set(recorder.graph.nodes)
        gradients = {
            segment.number: run.gradients(segment, tangents[segment.number], asked[segment.number].needed)
            for segment in reversed(segments.segments)
            if segment.number in asked
        }
        savings = None if probe is None or run.reformed else probe.savings()
    if probe is not None and run.reformed and not recorder.scope.hints:
        savings = _savings_of_eager(graph, segments)
    results = [run.made[node] for node in returned]
    flat = [gradient for each in gradients.values() for gradient in each if gradient is not None]
    recorded = recorder.finish(cast("list[TraceTensor]", [*results, *flat]))
    sparse_gradients.seal(recorded.graph)
    nodes = [cast(fx.Node, node) for node in cast("tuple[Any, ...]", _output(recorded.graph).args[0])]
    rest = iter(nodes[len(results) :])
    stretches = {
        number: Stretch(
            tuple(tangent.node for tangent in tangents[number] if tangent is not None),
            tuple(None if gradient is None else next(rest) for gradient in each),
        )
        for number, each in gradients.items()
    }
    for number, stretch in stretches.items():
        asked[number].check(stretch.gradients)
    placeholders = tuple(tensor.node for tensor in traced)
    recorder.close()
    started = tuple(n for n in recorded.graph.nodes if n not in of_forward and is_start(n.target))
    return Joint(recorded.graph, placeholders, tuple(nodes[: len(results)]), stretches, savings, started)


def _inputs(recorder: Recorder, graph: fx.Graph) -> list[TraceTensor]:
    return [
        input_of(recorder, node.name, node.meta["val"], node.meta.get("bound", False))
        for node in graph.nodes
        if node.op == "placeholder"
    ]


def _savings_of_eager(graph: fx.Graph, segments: Segments) -> Savings | None:
    """What eager saves, read off a run in which no operator has another form than its own; None if there is none. Not
    for sizes that are open: what eager runs there, without a rule for its shape, would fix them."""
    recorder, probe = JointRecorder(graph), Probe(graph, segments)
    traced = _inputs(recorder, graph)
    try:
        with recorder, _distributing(recorder, graph), pristine.enable_grad():
            _Run(recorder, graph, segments, traced, probe, forms={})
            return probe.savings()
    except UnsupportedOpError:
        return None
    finally:
        recorder.close()


@contextlib.contextmanager
def _distributing(recorder: Recorder, graph: fx.Graph) -> Generator[None]:
    if not has_islands(graph):
        yield
        return
    try:
        with distributing(recorder):
            yield
    finally:
        release_masks()


Forms = Mapping[Any, Callable[..., Any]]


class _Run:
    """One run of a region under autograd, on tensors without data. `made`: what each node gives. `leaves`: what
    segments are differentiated by, in the place of the values that they start from. `reformed`: whether an operator was
    recorded in another form than eager's, one of `forms`, which saves other tensors."""

    def __init__(
        self,
        recorder: JointRecorder,
        graph: fx.Graph,
        segments: Segments,
        inputs: Sequence[TraceTensor],
        probe: Probe | None,
        forms: Forms | None = None,
    ) -> None:
        self.recorder = recorder
        self.forms = _FORMS if forms is None else forms
        self.made: dict[fx.Node, Any] = {}
        self.leaves: dict[fx.Node, Tensor] = {}
        self.reformed = False
        values: dict[fx.Node, Any] = {}
        given = iter(inputs)
        for node in graph.nodes:
            if node.op == "output":
                continue
            value = next(given) if node.op == "placeholder" else self._computed(node, values)
            self.made[node] = values[node] = value
            if node.op == "placeholder" and requires_grad(node):
                self.leaves[node] = as_leaf(value)
            if probe is not None:
                probe.note(node, value)
            if node in segments.cuts or (node in segments.views and requires_grad(node)):
                self.leaves[node] = values[node] = as_leaf(value.detach())
            if probe is not None and node in self.leaves:
                probe.leaf(node, self.leaves[node])

    def _computed(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        self.recorder.begin(node)
        if isinstance(node.target, Island):
            started = len(self.recorder.started)
            return [*node.target.values(resolve(node.args, values)), *arrived(self.recorder, started)]
        args, kwargs = to_torch((node.args, node.kwargs))
        if (form := self.forms.get(node.target)) is not None:
            value = form(*resolve(args, values), **resolve(kwargs, values))
            if value is not NotImplemented:
                self.reformed = True
                return value
        try:
            return compute_with(node, args, kwargs, values)
        except CaptureError:
            raise
        except RuntimeError as error:  # torch's C++ has not learned of symbols everywhere
            raise UnsupportedOpError(
                f"{node.target} raises {text_of(error).partition(chr(10))[0]}"
            ) from error

    def gradients(
        self, segment: Segment, tangents: Sequence[TraceTensor | None], needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradient of each source of the segment, None where there is none or none is needed."""
        pairs = [
            (self.made[node], tangent)
            for node, tangent in zip(segment.results, tangents, strict=True)
            if tangent is not None and requires_grad(node)
        ]
        wanted = [i for i, flag in enumerate(needed) if flag]
        gradients: list[Tensor | None] = [None] * len(needed)
        if pairs and wanted:
            try:
                # In this thread: what is recorded, and how, is not known to those that autograd has for each device.
                with torch.autograd.set_multithreading_enabled(False):
                    found = torch.autograd.grad(
                        [result for result, _ in pairs],
                        [self.leaves[segment.sources[i]] for i in wanted],
                        [tangent for _, tangent in pairs],
                        retain_graph=True,
                        allow_unused=True,
                    )
            except CaptureError:
                raise
            except RuntimeError as error:
                raise UnsupportedOpError(f"backward raises {error}") from error
            for i, gradient in zip(wanted, found, strict=True):
                gradients[i] = gradient
        return gradients


def dropout(x: TraceTensor, p: float, trains: bool) -> Any:
    """A dropout of memory that is not contiguous draws its mask in one operator, which looks at the layout when it
    runs: which element gets which number depends on the processor."""
    if not trains or not 0 < p < 1 or x.spec.is_contiguous:
        return NotImplemented
    return torch.ops.aten.native_dropout.default(x, p, True)[0]


_FORMS: Forms = {
    torch.ops.aten.dropout.default: dropout,
    torch.ops.aten.embedding.default: sparse.embedding,
    torch.ops.aten.scaled_dot_product_attention.default: attention.form,
    torch.ops.aten.prod.default: products.form,
    torch.ops.aten.prod.dim_int: products.form,
    **FORMS,
}
"""Operators that are recorded in another form than autograd gives them, unless the form is NotImplemented: some have no
gradients of their own."""


def input_of(recorder: Recorder, name: str, spec: TensorSpec, bound: bool = False) -> TraceTensor:
    spec = replace(spec, requires_grad=False)
    # On the CPU, where memory that nobody touches costs nothing, wherever the tensor will be.
    looks = with_sizes(spec, hint_of)
    stand_in = pristine.empty_strided(looks.shape, looks.strides, dtype=spec.dtype, device=CPU)
    return recorder.input(stand_in, name, bound, spec)


def _output(graph: fx.Graph) -> fx.Node:
    return next(n for n in reversed(graph.nodes) if n.op == "output")
