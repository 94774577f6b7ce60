"""`verify="numeric"`: each rewrite and each pass is run before and after on sample inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, cast
from zlib import crc32

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from lampwork import logs, pristine
from lampwork.errors import NumericError, NumericPassError
from lampwork.graph.nested import leaves
from lampwork.graph.spec import TensorSpec, with_sizes
from lampwork.graph.symbols import map_symbols
from lampwork.records import record
from lampwork.rewriting.language.rules import Rule
from lampwork.rewriting.matching.match import Match
from lampwork.standard import itertools

_LARGEST = 1 << 26
"""Elements of a sample input at most."""


_DRAWN = 65537
"""Different floats of a sample at most: a prime, so that no rows are equal."""

_DEEP = 10.0
"""Layers above a rewrite make more of its rounding: the tolerance for whole graphs is so much larger."""


@record
class Trial:
    """How samples are drawn: `scale` is the standard deviation of floats, `positive` makes them so."""

    seed: int
    scale: float
    positive: bool = False


# Variances and other arguments of roots and logarithms are positive.
_TRIALS = (Trial(0, 1.0), Trial(1, 8.0), Trial(2, 1.0, positive=True))


class Unverifiable(Exception):
    """Why something cannot be run on samples."""


@record
class Deviation:
    """How far results are from what they were. `largest`: absolute error."""

    what: str
    largest: float

    def __str__(self) -> str:
        return f"{self.what}, largest error {self.largest:.3g}"


@dataclass(slots=True)
class NumericCheck:
    """The checks of one compilation. `unverified` counts, by (name, reason), what could not be run. `approximated`: a
    rewrite with a tolerance has changed the graph since the last pass was checked."""

    unverified: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    checked: int = 0
    approximated: bool = False
    _baseline: list[tuple[Trial, _Outcome]] = field(default_factory=list[Any])
    _broken: str = ""

    def check_rewrite(self, rule: Rule, match: Match, old: Sequence[fx.Node], new: Sequence[fx.Node]) -> None:
        """Compare `old`, the results of a match, with what is to replace them.

        Inputs are samples for what the variables of the pattern stand for. Where these differ, or do not say all, more
        and more of what is above the match is computed too, as the variables may depend on each other.

        Raises:
            NumericError: the results differ beyond rounding, and beyond the rewrite's own tolerance.
        """
        found: Deviation | None = None
        why = ""
        for free in _cuts(match, old, new):
            try:
                found = _compare_nodes(old, new, free, rule.tolerance)
            except Unverifiable as error:
                why = str(error)
                continue
            if found is None:
                self.checked += 1
                return
        if found is None:
            self._skip(rule.name, why)
            return
        beyond = f", beyond its tolerance of {rule.tolerance:g}" if rule.tolerance else ""
        raise NumericError(
            f"rewrite {rule} at {match.root.name} changes results: {found}{beyond}",
            rewrites=(rule.name,),
            fix="correct the replacement, refuse such matches in check(), or, if it is an approximation on purpose, "
            "give the rewrite a tolerance=, the error it may make as a share of the results' size",
            location=match.root.meta.get("location"),
        )

    def start(self, graph: fx.Graph) -> None:
        """Note the results of the graph, on the samples for which they are finite: passes are to leave them so."""
        self._baseline = []
        try:
            outcomes = [(trial, _outcome(_results(graph), frozenset(), trial)) for trial in _TRIALS]
        except Unverifiable as why:
            self._broken = str(why)
            return
        self._baseline = [(trial, outcome) for trial, outcome in outcomes if _is_finite(outcome.values)]
        if not self._baseline:
            self._broken = "its results on samples are not finite"

    def check_pass(self, name: str, graph: fx.Graph) -> None:
        """Compare the results of the graph with those before all passes, or with those after the last pass in which a
        rewrite approximated on purpose: how far that may go is checked at each match, not what the rest of the graph
        makes of it.

        Raises:
            NumericPassError: they differ beyond tolerance.
        """
        if self.approximated:
            self.approximated = False
            self.start(graph)
            return
        if not self._baseline:
            self._skip(name, self._broken)
            return
        results = _results(graph)
        try:
            for trial, outcome in self._baseline:
                found = _deviation(outcome, _values(results, frozenset(), trial, wide=False), _DEEP)
                if found is not None:
                    raise NumericPassError(f"pass {name} changes results: {found}")
        except Unverifiable as why:
            self._skip(name, str(why))
            return
        self.checked += 1

    def _skip(self, name: str, why: str) -> None:
        if not self.unverified[name, why]:
            logs.emit("passes", f"{name}: not verified, {why}")
        self.unverified[name, why] += 1


def _results(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])


def _variables(match: Match) -> frozenset[fx.Node]:
    """The nodes that the variables of a pattern stand for."""
    return frozenset(leaves(tuple(match.values.values()), fx.Node)) - frozenset(match.nodes)


def _closed(old: Sequence[fx.Node], new: Sequence[fx.Node], free: frozenset[fx.Node]) -> bool:
    """Whether both sides depend on nothing but `free` nodes and literals, so that samples for these say all."""
    seen: set[fx.Node] = set()
    work = [*old, *new]
    while work:
        node = work.pop()
        if node in seen or node in free:
            continue
        if node.op == "placeholder":
            return False
        seen.add(node)
        work.extend(node.all_input_nodes)
    return True


def _cuts(match: Match, old: Sequence[fx.Node], new: Sequence[fx.Node]) -> Iterator[frozenset[fx.Node]]:
    """Nodes to draw samples for, nearer ones first; at last only the inputs of the graph."""
    free = _variables(match)
    if _closed(old, new, free):
        yield free
    for steps in (4, 16):
        yield _above((*old, *new), steps)
    yield frozenset()


def _above(nodes: Sequence[fx.Node], steps: int) -> frozenset[fx.Node]:
    """What is so many steps above the nodes, on the shortest way."""
    seen = set(nodes)
    level = list(nodes)
    for _ in range(steps):
        level = list(dict.fromkeys(i for n in level for i in n.all_input_nodes if i not in seen))
        seen.update(level)
    return frozenset(level)


def _compare_nodes(
    old: Sequence[fx.Node], new: Sequence[fx.Node], free: frozenset[fx.Node], tolerance: float
) -> Deviation | None:
    for trial in _TRIALS:
        outcome = _outcome(old, free, trial)
        found = _deviation(outcome, _values(new, free, trial, wide=False), tolerance=tolerance)
        if found is not None:
            return found
    return None


@record
class _Outcome:
    """What nodes give on samples, and in float64 where they can be run so."""

    values: tuple[Any, ...]
    exact: tuple[Any, ...] | None


def _outcome(nodes: Sequence[fx.Node], free: frozenset[fx.Node], trial: Trial) -> _Outcome:
    values = _values(nodes, free, trial, wide=False)
    try:
        exact = _values(nodes, free, trial, wide=True)
    except Unverifiable:
        exact = None  # an operator that takes no float64, or not beside what the graph makes in float32
    return _Outcome(values, exact)


def _values(
    nodes: Sequence[fx.Node], free: frozenset[fx.Node], trial: Trial, *, wide: bool
) -> tuple[Any, ...]:
    """The values of nodes, with samples for placeholders and `free` nodes; `wide` in float64.

    Raises:
        Unverifiable: something is random, has an effect, fails, or is too large.
    """
    order = _order(nodes, free)
    for ints in (2, 1):  # indices 0 and 1 are in range nearly everywhere, 0 everywhere
        values: dict[fx.Node, Any] = {}
        try:
            with pristine.no_grad():
                for node in order:
                    if node in free or node.op == "placeholder":
                        values[node] = _sample(node, trial, ints, wide)
                    else:
                        values[node] = _run(node, values)
            return tuple(values[n] for n in nodes)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            text = f"{type(error).__name__} on samples: {str(error).splitlines()[0] if str(error) else ''}"
            if ints == 1:
                raise Unverifiable(text) from error
    raise AssertionError("not reached")


def _order(nodes: Iterable[fx.Node], free: frozenset[fx.Node]) -> list[fx.Node]:
    """What must be computed for `nodes`, operands first."""
    done: dict[fx.Node, None] = {}
    work: list[tuple[fx.Node, bool]] = [(n, False) for n in nodes]
    while work:
        node, ready = work.pop()
        if node in done:
            continue
        if ready or node in free or node.op == "placeholder":
            done[node] = None
            continue
        if node.meta.get("random") or node.meta.get("effect"):
            raise Unverifiable(f"{node.name} is random or has an effect")
        work.append((node, True))
        work.extend((n, False) for n in reversed(node.all_input_nodes))
    return list(done)


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = map_arg(map_symbols(node.args, _hint), values.__getitem__)
    kwargs = map_arg(map_symbols(dict(node.kwargs), _hint), values.__getitem__)
    if node.target is getitem:
        return args[0][args[1]]
    return cast(Any, node.target)(*args, **kwargs)


def _hint(symbolic: Any) -> Any:
    return symbolic.hint


def _sample(node: fx.Node, trial: Trial, ints: int, wide: bool) -> Any:
    spec = with_sizes(node.meta["val"], _hint)
    if not isinstance(spec, TensorSpec):
        raise Unverifiable(f"{node.name} is no tensor")
    if spec.device.type != "cpu":
        raise Unverifiable(f"{node.name} is on {spec.device}")
    reach = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)) + 1
    if reach > _LARGEST or spec.numel > _LARGEST:
        raise Unverifiable(f"{node.name} is too large")
    if spec.numel == 0:
        return pristine.empty(
            spec.shape, dtype=torch.float64 if wide and spec.dtype.is_floating_point else spec.dtype
        )
    # By its name, which it keeps whatever happens around it.
    generator = torch.Generator().manual_seed(crc32(f"{trial.seed} {node.name}".encode()))
    if spec.dtype.is_floating_point:
        # Drawing takes longer than most that is computed with it: large tensors repeat.
        drawn = pristine.randn(min(reach, _DRAWN), generator=generator) * _scale(node, spec, trial)
        drawn = drawn.repeat(-(-reach // _DRAWN))[:reach] if reach > _DRAWN else drawn
        flat = (drawn.abs() if trial.positive else drawn).to(spec.dtype)
        flat = flat.double() if wide else flat
    elif spec.dtype.is_complex:
        flat = pristine.randn(reach, generator=generator, dtype=torch.complex64).to(spec.dtype)
    else:
        flat = pristine.randint(0, ints, (reach,), generator=generator).to(spec.dtype)
    return flat.as_strided(spec.shape, spec.strides)


def _scale(node: fx.Node, spec: TensorSpec, trial: Trial) -> float:
    """Weights are drawn as layers are initialized, so that deep networks stay in range."""
    if node.meta.get("bound") and len(spec.shape) > 1:
        return max(1, spec.numel // spec.shape[0]) ** -0.5
    return trial.scale


def _deviation(
    outcome: _Outcome, new: Sequence[Any], factor: float = 1.0, tolerance: float = 0.0
) -> Deviation | None:
    """The first result that is worse than before beyond `factor` times rounding, and `tolerance` times its size."""
    exact = outcome.exact or (None,) * len(new)
    for number, (was, now, truth) in enumerate(zip(outcome.values, new, exact, strict=True)):
        truths = [*leaves(truth, Tensor)] or itertools.repeat(None)
        parts = zip(leaves(was, Tensor), leaves(now, Tensor), truths, strict=False)
        for a, b, t in parts:
            found = _difference(a, b, t, factor, tolerance)
            if found is not None:
                what, largest = found
                return Deviation(f"result {number}: {what}" if len(new) > 1 else what, largest)
    return None


def _is_finite(values: Any) -> bool:
    return all(bool(pristine.isfinite(t).all()) for t in leaves(values, Tensor))


def _difference(
    was: Tensor, now: Tensor, truth: Tensor | None, factor: float, tolerance: float
) -> tuple[str, float] | None:
    """The rule of the framework's own tests: the error against float64 is at most twice what it was, plus a little."""
    if was.shape != now.shape or was.dtype != now.dtype:
        return f"{now.dtype} {tuple(now.shape)} in place of {was.dtype} {tuple(was.shape)}", float("inf")
    if was.numel() == 0:
        return None
    if not (was.dtype.is_floating_point or was.dtype.is_complex):
        differ = int((was != now).sum())
        if not differ:
            return None
        return f"{differ} of {was.numel()} elements differ", float((was.double() - now.double()).abs().max())
    eps = torch.finfo(was.dtype).eps
    precise = truth is not None and truth.shape == was.shape and truth.dtype is torch.float64
    if was.dtype.is_complex:
        was, now = pristine.view_as_real(was), pristine.view_as_real(now)
        precise = False
    want = truth if precise and truth is not None else was.double()
    finite = pristine.isfinite(was) & pristine.isfinite(want)
    # Where a sum overflowed before and no longer does, nothing is lost; the reverse is a loss.
    lost = int((finite & ~pristine.isfinite(now)).sum() + (pristine.isnan(want) != pristine.isnan(now)).sum())
    if lost:
        return f"{lost} of {was.numel()} elements are no longer finite, or no longer nan", float("inf")
    if not bool(finite.any()):
        return None
    error = (now.double() - want)[finite].abs()
    before = (was.double() - want)[finite].abs()
    scale = max(float(want[finite].square().mean().sqrt()), 1e-3)
    little = (8 if precise and was.dtype is not torch.float64 else 1000) * eps * scale
    spread = float(error.square().mean().sqrt())
    rounding = factor * (2 * float(before.square().mean().sqrt()) + little)
    if spread <= rounding + tolerance * scale:
        return None
    return f"error {spread:.3g} in numbers of size {scale:.3g}", float(error.max())
