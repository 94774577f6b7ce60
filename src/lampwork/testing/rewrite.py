"""The battery for rewrites."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from lampwork.api import compile
from lampwork.config import Config, using
from lampwork.errors import LampworkError
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.spec import TensorSpec
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.plugins.fingerprint import content_hash
from lampwork.plugins.registry import Registered
from lampwork.records import record
from lampwork.registration import rewrite as register
from lampwork.rewriting.apply.driver import Rewriter, Rule, as_rule
from lampwork.testing.compare import difference, exact_result
from lampwork.testing.report import Failed, Report, Skipped, conclude, run_checks
from lampwork.testing.samples import Sample, recorded, samples_of

Example = tuple[Callable[..., Any], tuple[Any, ...]]


@record
class Battery:
    """What the checks work with."""

    rule: Rule
    rewriter: Rewriter
    samples: tuple[Sample, ...]
    negatives: tuple[Sample, ...]

    def each(self) -> tuple[Sample, ...]:
        """The graphs in which it must fire."""
        if not self.samples:
            raise Skipped("there is no graph to try it on")
        return self.samples

    def rewritten(self, graph: fx.Graph) -> tuple[fx.Graph, int]:
        """A copy after the rewrite, and how often it fired; faults are raised."""
        ctx, copy = PassContext(Config(strict=True)), copy_graph(graph)
        self.rewriter.run(copy, ctx)
        verify(copy)
        return copy, ctx.hits[self.rule.name]

    def compare(self, sample: Sample, graph: fx.Graph, inputs: Callable[[], list[Tensor]], what: str) -> None:
        """Before and after give the same for these inputs."""
        after, _ = self.rewritten(graph)
        try:
            expected = run_graph(graph, inputs())
        except (RuntimeError, TypeError, NotImplementedError):
            return  # eager refuses such inputs, so there is nothing to be the same
        text = difference(
            _made(sample, after, inputs()),
            expected,
            _exact(graph, inputs()),
            tolerance=self.rule.tolerance,
        )
        if text:
            raise Failed(f"{sample.name}, {what}: {text}")


def check_rewrite(
    rewrite: Any,
    *,
    examples: Sequence[Example] = (),
    negatives: Sequence[Example] = (),
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    raises: bool = True,
) -> Report:
    """Run the public battery of checks on a rewrite.

    Args:
        rewrite: a class with pattern and replacement, an instance of one, or the result of `lampwork.rewrite`.
        examples: programs in which the rewrite must fire, each a function and its arguments. By default graphs are
            made from the pattern itself, with tensors of several shapes; if none of these fits, pass examples.
        negatives: programs in which the rewrite must not fire.
        only: names of checks; no others run.
        skip: names of checks that the rewrite is not meant to pass, such as "special numbers" for one that is wrong at
            infinity.
        raises: if False, the report is returned even if checks failed.

    Raises:
        ConformanceError: checks failed; its `report` has all checks.
        PassError: `rewrite` is not a rewrite, or its pattern is invalid.
    """
    rule = _rule(rewrite)
    made = [recorded(_name(fn), fn, args) for fn, args in examples] or samples_of(rule)
    refused = [recorded(_name(fn), fn, args) for fn, args in negatives]
    battery = Battery(rule, Rewriter([rule]), tuple(made), tuple(refused))
    report = Report(f"rewrite {rule.name}", run_checks(_CHECKS, battery, only, skip))
    return conclude(report, raises)


def _rule(rewrite: Any) -> Rule:
    if isinstance(rewrite, Registered):
        if rewrite.rule is None:
            raise LampworkError(f"{rewrite.name} is a {rewrite.kind}, not a rewrite")
        return rewrite.rule
    return as_rule(rewrite)


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _made(sample: Sample, graph: fx.Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results of a rewritten graph."""
    try:
        return run_graph(graph, inputs)
    except (RuntimeError, TypeError, IndexError, NotImplementedError) as error:
        raise Failed(f"{sample.name}: what it made cannot be run: {error}") from error


def _exact(graph: fx.Graph, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    return exact_result(lambda *tensors: run_graph(graph, tensors), inputs)


def _fires(battery: Battery) -> str:
    """It does something."""
    if not battery.samples:
        raise Failed("no graph made of its pattern fits it: pass examples=[(fn, args), ...]")
    for sample in battery.samples:
        if not battery.rewritten(sample.graph)[1]:
            raise Failed(f"{sample.name}: it does not fire")
    return "; ".join(s.name for s in battery.samples)


def _negatives(battery: Battery) -> str:
    """It leaves alone what it must."""
    if not battery.negatives:
        raise Skipped("no negatives were given")
    for sample in battery.negatives:
        if battery.rewritten(sample.graph)[1]:
            raise Failed(f"{sample.name}: it fires")
    return "; ".join(s.name for s in battery.negatives)


def _results(battery: Battery) -> str:
    """The same results, within rounding or its own tolerance, in every floating dtype that the operators take."""
    for sample in battery.each():
        battery.compare(sample, sample.graph, sample.inputs, "as recorded")
        for dtype in (torch.float64, torch.bfloat16):
            battery.compare(
                sample, _retyped(sample, dtype), lambda s=sample, d=dtype: s.inputs(dtype=d), str(dtype)
            )
    return f"{len(battery.samples)} graphs"


def _retyped(sample: Sample, dtype: torch.dtype) -> fx.Graph:
    """The sample recorded once more, for floating inputs of another dtype; as it is where that does not go."""
    try:
        return recorded(sample.name, sample.function(), sample.inputs(dtype=dtype)).graph
    except (LampworkError, RuntimeError, TypeError):
        return sample.graph


def _layouts(battery: Battery) -> str:
    """Inputs with other strides."""
    count = 0
    for sample in battery.each():
        turned = [t.mT.contiguous().mT if t.dim() > 1 else t for t in sample.inputs()]
        try:
            graph = recorded(sample.name, sample.function(), turned).graph
        except (LampworkError, RuntimeError):
            continue  # a view that such strides do not allow
        battery.compare(sample, graph, lambda turned=turned: [t.clone() for t in turned], "transposed inputs")
        count += 1
    if not count:
        raise Skipped("the programs fix their strides")
    return f"{count} graphs"


def _special(battery: Battery) -> str:
    """Nan, infinities, and numbers at the ends of the range come out as before."""
    for sample in battery.each():
        for value in (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 150.0, -150.0, 1e-40):

            def inputs(sample: Sample = sample, value: float = value) -> list[Tensor]:
                made = sample.inputs()
                for t in made:
                    if t.is_floating_point() and t.numel():
                        t.view(-1)[t.numel() // 2] = value
                return made

            battery.compare(sample, sample.graph, inputs, f"with {value}")
    return f"{len(battery.samples)} graphs"


def _inner(battery: Battery) -> str:
    """Values inside the pattern that others read, or that are results themselves, stay what they are."""
    for sample in battery.each():
        graph = copy_graph(sample.graph)
        output = next(n for n in graph.nodes if n.op == "output")
        results = list(output.args[0])
        inner = [
            n
            for n in graph.nodes
            if n.op == "call_function" and n not in results and isinstance(n.meta.get("val"), TensorSpec)
        ]
        output.args = ((*results, *inner),)
        battery.compare(sample, graph, sample.inputs, "inner values returned as well")
    return f"{len(battery.samples)} graphs"


def _aliasing(battery: Battery) -> str:
    """A result shares memory with an input, or with another result, exactly where it did."""
    for sample in battery.each():
        after, _ = battery.rewritten(sample.graph)
        first, second = sample.inputs(), sample.inputs()
        was = _shared(run_graph(sample.graph, first), first)
        now = _shared(_made(sample, after, second), second)
        if was != now:
            raise Failed(f"{sample.name}: shared memory was {was or 'none'} and is {now or 'none'}")
    return f"{len(battery.samples)} graphs"


def _shared(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[str]:
    named = [
        *((f"input {i}", t) for i, t in enumerate(inputs)),
        *((f"result {i}", t) for i, t in enumerate(results)),
    ]
    found: list[str] = []
    for number, (name, t) in enumerate(named):
        for other, u in named[:number]:
            if t.numel() and t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr():
                found.append(f"{name} with {other}")
    return found


def _ends(battery: Battery) -> str:
    """Applied to what it made it finds nothing more."""
    for sample in battery.each():
        graph, _ = battery.rewritten(sample.graph)
        again = battery.rewritten(graph)[1]
        if again:
            raise Failed(f"{sample.name}: it fires {again} times more on its own result")
    return ""


def _compiled(battery: Battery) -> str:
    """Registered and compiled, from capture to machine code, with eager's results."""
    handle = _registered(battery.rule)
    try:
        for sample in battery.each():
            fn = sample.function()
            with using(strict=True, verify=True), torch.no_grad():
                text = difference(
                    compile(fn)(*sample.inputs()),
                    fn(*sample.inputs()),
                    _exact(sample.graph, sample.inputs()),
                    tolerance=battery.rule.tolerance,
                )
            if text:
                raise Failed(f"{sample.name}: {text}")
    finally:
        handle.unregister()
    return f"{len(battery.samples)} programs"


def _registered(rule: Rule) -> Registered:
    return register(replace(rule, name=f"{rule.name} (under test)"))


def _sizes(battery: Battery) -> str:
    """Sizes that stay open, and calls with others."""
    handle, count = _registered(battery.rule), 0
    try:
        for sample in battery.each():
            fn = sample.function()
            with using(strict=True), torch.no_grad():
                compiled = compile(fn, dynamic=True)
                for factor in (1, 2, 3):
                    inputs = [
                        t.repeat(factor, *[1] * (t.dim() - 1)) if t.dim() > 1 else t for t in sample.inputs()
                    ]
                    try:
                        expected = fn(*[t.clone() for t in inputs])
                    except (RuntimeError, IndexError):
                        continue  # the program fixes its sizes
                    exact = exact_result(fn, inputs)
                    text = difference(compiled(*inputs), expected, exact, tolerance=battery.rule.tolerance)
                    count += 1
                    if text:
                        raise Failed(f"{sample.name}, {factor} times the rows: {text}")
    finally:
        handle.unregister()
    if not count:
        raise Skipped("the programs fix their sizes")
    return f"{count} calls"


def _gradients(battery: Battery) -> str:
    """Gradients are eager's."""
    handle, count = _registered(battery.rule), 0
    try:
        for sample in battery.each():
            fn = sample.function()
            wanted = _gradients_of(fn, sample.inputs())
            if wanted is None:
                continue  # nothing in it has a gradient
            with using(strict=True):
                got = _gradients_of(compile(fn), sample.inputs())
            exact = _gradients_of(fn, [t.double() if t.is_floating_point() else t for t in sample.inputs()])
            count += 1
            text = difference(got, wanted, exact, tolerance=battery.rule.tolerance)
            if text:
                raise Failed(f"{sample.name}: {text}")
    finally:
        handle.unregister()
    if not count:
        raise Skipped("nothing in the programs has a gradient")
    return f"{count} programs"


def _gradients_of(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """Of the sum of squares of the results, by the inputs that have some; None if none has or it cannot be run."""
    leaves = [_leaf(t) for t in inputs]
    try:
        _total(fn(*leaves)).backward()
    except LampworkError:
        raise
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return [t.grad for t in leaves if t.grad is not None]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def _total(results: Any) -> Tensor:
    found = results if isinstance(results, tuple | list) else (results,)
    return torch.stack([r.double().square().sum() for r in found if r.is_floating_point()]).sum()


def _threads(battery: Battery) -> str:
    """Eight threads rewrite at once."""
    gate = threading.Barrier(8)

    def work(_: int) -> list[int]:
        gate.wait(timeout=60)
        return [battery.rewritten(sample.graph)[1] for sample in battery.each()]

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(work, range(8)))
    if any(c != counts[0] for c in counts):
        raise Failed(f"it fired {sorted(set(map(tuple, counts)))} times in different threads")
    return "8 threads"


def _key(battery: Battery) -> str:
    """Its content hash, which goes into cache keys, is the same twice."""
    if content_hash(battery.rule) != content_hash(battery.rule):
        raise Failed("its content hash is not the same twice")
    return content_hash(battery.rule)[:12]


_CHECKS: dict[str, Callable[[Battery], str]] = {
    "fires": _fires,
    "negatives": _negatives,
    "same results": _results,
    "layouts": _layouts,
    "special numbers": _special,
    "inner values": _inner,
    "aliasing": _aliasing,
    "comes to an end": _ends,
    "compiled": _compiled,
    "dynamic shapes": _sizes,
    "gradients": _gradients,
    "threads": _threads,
    "cache keys": _key,
}
