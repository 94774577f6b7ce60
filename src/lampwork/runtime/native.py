"""Plans by which csrc/trained.cpp runs a region that is trained, where no Python is needed on the way of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from lampwork import _C, pristine
from lampwork.differentiation.segments import Segment
from lampwork.differentiation.split import Given
from lampwork.graph.concrete import spec_at
from lampwork.graph.interpret import compute
from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.runtime import nodes
from lampwork.runtime.tape import Rerun, Tape, below_autocast
from lampwork.runtime.trained import CompiledBackward, Native, Run, Trained, Training


@record
class Backward:
    """The backward of a segment. `tangents`: for each result a tensor that looks as its gradient, or None, and whether
    the gradient may be one number for all elements. The others: as in `CompiledBackward`."""

    program: _C.Executable
    inputs: tuple[Given, ...]
    tangents: tuple[tuple[Tensor | None, bool], ...]
    needed: tuple[bool, ...]
    gradients: tuple[int, ...]


@record
class Stretch:
    """A segment. `results`: numbers of the program's outputs, or tensors of the shape of what nobody can reach.
    `sources`: numbers of the region's tensors and, counted on from those, of results of segments. `saved`: numbers of
    the saved tensors that its backward takes, be it one program or not. `saves`: whether eager refuses to run it twice
    once it is freed. `is_composite`: as `segments.Segment` has it."""

    name: str
    results: tuple[int | Tensor, ...]
    sources: tuple[int, ...]
    saved: tuple[int, ...]
    saves: bool
    is_composite: bool
    backward: Backward | None


@record
class Plan:
    """How a call of a region is run.

    `forward` takes those of the region's tensors that are `given`, and gives its results, others that it needs,
    `n_results` together, then what is saved. `bound`: the last of the tensors, the same on each call. `random`: whether
    random numbers are drawn. `keeping`, `holding`: a byte for each tensor, as `nodes.keep` and `nodes.hold` take them.
    `leaves`: numbers of the inputs that may be leaves. `watched`: outputs whose versions are noted. `roots`: outputs
    whose memory is, and, counted down from -1, tensors that were written whose memory is. `fresh_versions`: outputs and
    the versions they start with. `unnoticed`: tensors that are written and keep their versions. `apart`: a byte for
    each result: 0 as it is, 1 detached if it is a view, 2 detached.
    `values`: for each result the result of a segment that it is, or -1.
    `make_tape`: makes a call's tape, from which backward goes on in Python.
    """

    forward: Run
    given: tuple[int, ...]
    bound: tuple[Tensor, ...]
    n_inputs: int
    n_results: int
    random: bool
    keeping: bytes
    holding: bytes
    leaves: tuple[int, ...]
    watched: tuple[int, ...]
    roots: tuple[int, ...]
    fresh_versions: tuple[tuple[int, int], ...]
    unnoticed: tuple[int, ...]
    apart: bytes
    values: tuple[int, ...]
    segments: tuple[Stretch, ...]
    make_tape: TapeMaker


def native(plan: Plan) -> Native:
    """What runs a plan."""
    return _C.Trained(plan)


@record
class Viewed:
    """What runs a plan some of whose results are views that autograd makes of others, or of inputs.

    `plan` gives the region's results, then the values of `bases`. `placeholders`: those that `views` are made of, and
    their numbers. `views`: in the order in which they are made. `results`: (number, view) of those that are returned.
    `written`: numbers of the results that the program itself makes as views. `symbols`: the values of those that the
    graph has.
    """

    plan: Native
    n_results: int
    bases: tuple[fx.Node, ...]
    placeholders: tuple[tuple[fx.Node, int], ...]
    views: tuple[fx.Node, ...]
    results: tuple[tuple[int, fx.Node], ...]
    written: tuple[int, ...]
    symbols: Mapping[str, int] | None = None

    def __call__(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """The region's results; None as `Native` has it."""
        made = self.plan(tensors)
        if made is None:
            return None
        values: dict[fx.Node, Any] = dict(zip(self.bases, made[self.n_results :], strict=True))
        values.update((node, tensors[number]) for node, number in self.placeholders)
        results = made[: self.n_results]
        with below_autocast():
            for view in self.views:
                values[view] = compute(view, values, self.symbols)
        for number, view in self.results:
            results[number] = values[view]
        for number in self.written:
            if results[number]._is_view():
                nodes.allow_writes(results[number])
        return results


def stretches(
    rerun: Rerun, trained: Trained, numbers: dict[fx.Node, int], symbols: Mapping[str, int] | None
) -> tuple[tuple[Stretch, ...], dict[fx.Node, int]] | None:
    """The segments, and the numbers of their results among all results of segments; None if one of them is
    differentiated by a view, or forward is not one program of our own. `numbers`: of the outputs. `symbols`: the values
    of those that the graph has."""
    if not isinstance(trained.program, _C.Executable):
        return None
    place = {node: number for number, node in enumerate(rerun.placeholders)}
    values: dict[fx.Node, int] = {}
    found: list[Stretch] = []
    for item in rerun.segments.order:
        if not isinstance(item, Segment):
            continue
        if item.number != len(found) or any(s not in place and s not in values for s in item.sources):
            return None
        sources = tuple(
            place[source] if source in place else len(place) + values[source] for source in item.sources
        )
        results = tuple(
            numbers[node] if node in numbers else _stand_in(node.meta["val"], symbols)
            for node in item.results
        )
        values.update(zip(item.results, range(len(values), len(values) + len(item.results)), strict=True))
        assert rerun.savings is not None
        saves = item.number not in rerun.savings.again
        lost = any(saved.lost for saved in rerun.savings.saved.get(item.number, ()))
        compiled = trained.backwards.get(item.number)
        taken = () if compiled is None else tuple(sorted(compiled.saved))
        backward = None if lost else _backward(compiled)
        found.append(Stretch(item.name, results, sources, taken, saves, item.is_composite, backward))
    return tuple(found), values


def _backward(compiled: CompiledBackward | None) -> Backward | None:
    """None where it is not one program of our own."""
    program = None if compiled is None else compiled.program.result()
    if compiled is None or not isinstance(program, _C.Executable):
        return None
    asked = compiled.asked
    likes = (None if spec is None else _like(spec) for spec in asked.tangents)
    tangents = tuple(zip(likes, asked.expanded, strict=True))
    return Backward(program, compiled.inputs, tangents, asked.needed, compiled.gradients)


def _like(spec: TensorSpec) -> Tensor:
    return pristine.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=torch.device("meta"))


def _stand_in(spec: TensorSpec, symbols: Mapping[str, int] | None) -> Tensor:
    spec = spec if symbols is None else spec_at(spec, symbols)
    return pristine.empty((), dtype=spec.dtype, device=spec.device).expand(spec.shape)


@record
class TapeMaker:
    """Makes the tape of a call that a `Plan` ran. `copied`: as `Tape` has it. `roots`: owners of the memory of the
    plan's `roots`. `symbols`: the values of those that the graph has."""

    rerun: Rerun
    training: Training
    trained: Trained
    copied: frozenset[int]
    roots: tuple[fx.Node, ...]
    symbols: Mapping[str, int] | None = None

    def __call__(
        self,
        kept: list[Tensor],
        before: Any,
        versions: Any,
        state: Tensor | None,
        leaves: dict[int, Tensor],
        saved: Sequence[Tensor | None],
        tensors: list[Tensor],
        held: Any,
        done: Sequence[int],
    ) -> Tape:
        """tensors: the plan's `roots`; held: what was held of them; done: numbers of segments. The others: as `Tape`
        has them."""
        symbols, trained = self.symbols, self.trained
        tape = Tape(self.rerun, kept, self.copied, before, versions, state, symbols, leaves, trained, saved)
        if self.training.foreseen:
            tape.watch = self.training.watch
        tape.go_on(self.roots, tensors, held, done)
        return tape
