"""The battery for backends."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

import lampwork.records
from lampwork.api import compile, function_of
from lampwork.backends.callable import CallableBackend
from lampwork.backends.protocol import Backend, Compiled, CompileOptions
from lampwork.config import using
from lampwork.errors import OptionError
from lampwork.graph.copying import copy_graph
from lampwork.graph.hashing import structural_hash
from lampwork.graph.nested import leaves
from lampwork.plugins.fingerprint import content_hash
from lampwork.records import record
from lampwork.standard import functools
from lampwork.testing.alone import Alone, operators_alone
from lampwork.testing.compare import bits_difference, difference, exact_result
from lampwork.testing.programs import (
    Program,
    blocks,
    edge_programs,
    network,
    randn,
    sharing_programs,
    standard_programs,
)
from lampwork.testing.report import Failed, Report, conclude, run_checks
from lampwork.verdict import No, Verdict, as_verdict


@dataclass(slots=True)
class Watched:
    """A backend with an eye on it: what it was asked, what it compiled, and what it changed."""

    inner: Backend
    refuse: Callable[[fx.Node], bool] | None = None
    name: Any = ""  # of an instance, where the protocol's is of the class
    supported: int = 0
    compiled: list[str] = field(default_factory=list[str])
    graphs: list[fx.Graph] = field(default_factory=list[fx.Graph])
    faults: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.name = f"{self.inner.name}-watched"

    def __getattr__(self, name: str) -> Any:
        # The optional attributes of the protocol are those of the backend itself.
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return functools.partial(self._clusters, found) if name == "clusters" and callable(found) else found

    def _clusters(self, clusters: Callable[[fx.Graph], Any], graph: fx.Graph) -> Any:
        key = structural_hash(graph)
        groups = [tuple(group) for group in clusters(graph)]
        if structural_hash(graph) != key:
            self.faults.append("clusters() changed the graph")
        return groups

    def supports(self, node: fx.Node) -> Verdict:
        before = _picture(node)
        answer: Any = self.inner.supports(node)
        verdict = as_verdict(answer, "not supported")
        if verdict is None:
            self.faults.append(f"supports({node.name}) gave {answer!r}, neither Yes() nor No(reason)")
            return No("no verdict")
        if isinstance(verdict, No) and not verdict.reason:
            self.faults.append(f"supports({node.name}) gave No without a reason")
        if bool(self.inner.supports(node)) is not bool(verdict):
            self.faults.append(f"supports({node.name}) says yes one time and no another")
        if _picture(node) != before:
            self.faults.append(f"supports({node.name}) changed the node")
        if verdict and self.refuse is not None and self.refuse(node):
            return No("refused by the battery")
        self.supported += bool(verdict)
        return verdict

    def compile(self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions) -> Compiled:
        key = structural_hash(graph)
        self.compiled.append(key)
        self.graphs.append(copy_graph(graph))
        made = self.inner.compile(graph, example_inputs, options)
        if structural_hash(graph) != key:
            self.faults.append("compile() changed the graph that it was given")
        return made


def _picture(node: fx.Node) -> tuple[Any, ...]:
    return (node.target, repr(node.args), repr(node.kwargs), sorted(map(str, node.meta)))


@record
class Battery:
    """What the checks work with."""

    backend: Backend
    programs: tuple[Program, ...]
    known: list[tuple[Alone, ...]] = field(default_factory=list[tuple[Alone, ...]])

    @property
    def alone(self) -> tuple[Alone, ...]:
        """Each operator that it takes in a program, alone. Not for backends whose results Lampwork itself vouches for:
        the tests of Lampwork try all of their operators."""
        if not self.known:
            trusted = getattr(self.backend, "trusted", False)
            seen = () if trusted else [self.run(program, calls=1) for program in self.programs]
            self.known.append(operators_alone([graph for watched in seen for graph in watched.graphs]))
        return self.known[0]

    def run(
        self, program: Program, watched: Watched | None = None, calls: int = 2, rest: str = "eager"
    ) -> Watched:
        """Run a program compiled with the backend, and with `rest` for what it does not take, several times; each call
        must do what eager does."""
        watched = watched or Watched(self.backend)
        with _strict():
            compiled = compile(program.fn, backend=[cast(Backend, watched), rest])
            for _ in range(calls):
                self.call(program, compiled)
        if watched.faults:
            raise Failed(f"{program.name}: {watched.faults[0]}")
        return watched

    def call(self, program: Program, compiled: Callable[..., Any]) -> Any:
        given, ours, reference = program.inputs(), program.inputs(), program.inputs()
        with torch.no_grad():
            eager = program.fn(*given)
            before = _settings()
            try:
                got = compiled(*ours)
            finally:
                left = _restored(before)
        if left:
            raise Failed(f"{program.name}: the call left {left}")
        text = difference(got, eager, exact_result(program.fn, reference))
        if program.exact and not text:
            text = bits_difference(got, eager)
        if text:
            raise Failed(f"{program.name}: {text}")
        text = difference(ours, given)
        if text:
            raise Failed(f"{program.name}: the arguments after the call: {text}")
        return got


def _settings() -> dict[str, Any]:
    """What torch is told, in this thread or at all."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "the default dtype": torch.get_default_dtype(),
    }


def _restored(before: dict[str, Any]) -> str:
    """The settings that differ from those of before; they are put back."""
    now = _settings()
    changed = [f"{name} at {now[name]}, not {before[name]}" for name in before if now[name] != before[name]]
    if changed:
        torch.set_grad_enabled(before["grad mode"])
        torch.set_num_threads(before["the number of threads"])
        torch.set_default_dtype(before["the default dtype"])
    return ", ".join(changed)


@contextlib.contextmanager
def _strict() -> Generator[None]:
    """Faults are raised, and state that a program leaves behind is put back."""
    state = torch.get_rng_state()
    try:
        with using(strict=True), warnings.catch_warnings():
            warnings.simplefilter("error", category=RuntimeWarning)
            yield
    finally:
        torch.set_rng_state(state)


def check_backend(
    backend: Any,
    *,
    programs: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]] = (),
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    raises: bool = True,
) -> Report:
    """Run the public battery of checks on a backend.

    Args:
        backend: a Backend, its class, or a function with torch's signature `(gm, example_inputs) -> callable`.
        programs: functions or modules that the backend is made for, each with the inputs of a call. They run in
            addition to the standard programs, and are required if the backend takes no part of those.
        only: names of checks; no others run.
        skip: names of checks that the backend is not meant to pass.
        raises: if False, the report is returned even if checks failed.

    Each check compiles programs with this backend alone (operators it does not take run in eager PyTorch) and compares
    the results with eager and with double precision; docs/testing.md lists the checks, `BACKEND_PROMISES` what each
    holds a backend to.

    Raises:
        ConformanceError: checks failed; its `report` has all checks.
        OptionError: `backend` is not a backend.
    """
    made = _instance(backend)
    own = tuple(
        Program(getattr(fn, "__name__", type(fn).__name__), fn, _fresh(args)) for fn, args in programs
    )
    battery = Battery(made, (*own, *standard_programs()))
    checks = _CHECKS | {name: _edges(edge) for name, edge in edge_programs().items()}
    checks["special numbers"] = _special_numbers
    return conclude(Report(f"backend {made.name}", run_checks(checks, battery, only, skip)), raises)


def _instance(backend: Any) -> Backend:
    made: Any = backend() if isinstance(backend, type) else backend
    if isinstance(made, Backend):
        return made
    if callable(made):
        return cast(Backend, CallableBackend(made))
    raise OptionError(
        f"{backend!r} is no backend", fix="give it a name, supports(node) and compile(graph, inputs, options)"
    )


def _fresh(args: tuple[Any, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: copy.deepcopy(args)


def _protocol(battery: Battery) -> str:
    """A name, verdicts with reasons that do not change their mind, and a graph left as it was."""
    watched = [battery.run(program, calls=1) for program in battery.programs]
    taken = sum(w.supported for w in watched)
    if not taken and not any(w.compiled for w in watched):
        raise Failed("it takes no node of any program: pass programs=[(fn, inputs), ...] that it is made for")
    return f"{taken} verdicts were yes"


def _answers(battery: Battery) -> str:
    """Eager's results, within rounding, on every program."""
    for program in battery.programs:
        battery.run(program)
    return f"{len(battery.programs)} programs"


def _partitions(battery: Battery) -> str:
    """Right whichever of the nodes it takes: parts come in all shapes."""
    count = 0
    cases = [*((program, "eager") for program in battery.programs)]
    for program, rest in (*cases, *((program, "native") for program in sharing_programs())):
        for seed in range(4):
            chooser = random.Random(seed)
            chosen: dict[str, bool] = {}

            def refuse(
                node: fx.Node, chooser: random.Random = chooser, chosen: dict[str, bool] = chosen
            ) -> bool:
                return chosen.setdefault(node.name, chooser.random() < 0.5)

            battery.run(program, Watched(battery.backend, refuse), calls=1, rest=rest)
            count += 1
    return f"{count} partitions"


def _weights(battery: Battery) -> str:
    """Weights written in place, replaced, and trained between calls are seen by the next call."""
    module = network()
    program = Program("network", module, lambda: (randn(4, 8),))
    with _strict():
        compiled = compile(module, backend=battery.backend)
        battery.call(program, compiled)
        first = cast(nn.Linear, module.first)
        with torch.no_grad():
            first.weight.mul_(-0.5)
        battery.call(program, compiled)
        first.bias = nn.Parameter(randn(16, seed=7))
        battery.call(program, compiled)
        module.load_state_dict({k: v + 0.25 for k, v in module.state_dict().items()})
        battery.call(program, compiled)
    return "in place, replaced, loaded"


def _sizes(battery: Battery) -> str:
    """Other sizes on later calls."""
    module, sizes = network(), (4, 1, 7, 4, 12, 0)
    with _strict():
        compiled = compile(module, backend=battery.backend)
        for size in sizes:
            battery.call(Program(f"{size} rows", module, _rows(size)), compiled)
        module = network()
        compiled = compile(module, backend=battery.backend, dynamic=True)
        for size in sizes:
            battery.call(Program(f"{size} rows, dynamic=True", module, _rows(size)), compiled)
    return ", ".join(map(str, sizes))


def _rows(size: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (randn(size, 8),)


def _fresh_results(battery: Battery) -> str:
    """A result is the caller's: later calls do not write to it, and writing to it changes no later call."""
    for program in battery.programs:
        with _strict():
            compiled = compile(program.fn, backend=battery.backend)
            for _ in range(3):  # the first runs of a part are checked on copies
                battery.call(program, compiled)
            first = [*leaves(battery.call(program, compiled), Tensor)]
            copies = [t.clone() for t in first]
            for _ in range(3):  # buffers may take turns
                battery.call(Program(f"{program.name}, other numbers", program.fn, _other(program)), compiled)
            text = difference(first, copies)
            if text:
                raise Failed(f"{program.name}: a later call changed an earlier result: {text}")
            for t in first:
                t.zero_()
            battery.call(program, compiled)
    return f"{len(battery.programs)} programs"


def _other(program: Program) -> Callable[[], tuple[Any, ...]]:
    """Inputs of the same kinds, with other numbers in the floating ones."""
    return lambda: tuple(
        t + 1 if isinstance(t, Tensor) and t.is_floating_point() else t for t in program.inputs()
    )


def _one_object(battery: Battery) -> str:
    """All programs are compiled before the first of them runs again."""
    with _strict():
        made = [(program, compile(program.fn, backend=battery.backend)) for program in battery.programs]
        for _ in range(3):  # the first compiles, the first two are checked on copies
            for program, compiled in made:
                battery.call(program, compiled)
    return f"{len(made)} programs"


def _threads(battery: Battery) -> str:
    """Eight threads compile and call one model at once, each with numbers of its own; then they call it while each is
    made to wait at any line of the backend's functions."""
    module = network()

    def program(number: int) -> Program:
        return Program(f"network in thread {number}", module, lambda: (randn(4, 8, seed=number),))

    with _strict():
        compiled = compile(module, backend=battery.backend)
        gate = threading.Barrier(8)

        def work(number: int, waits: bool) -> None:
            gate.wait(timeout=60)
            with _waiting_at_lines(number) if waits else contextlib.nullcontext():
                for _ in range(5):
                    battery.call(program(number), compiled)

        for waits in (False, True):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(work, range(8), (waits,) * 8))
    return "8 threads, 10 calls each"


@contextlib.contextmanager
def _waiting_at_lines(seed: int) -> Generator[None]:
    """This thread waits for the others at some lines of Python, but not of torch, Lampwork or the standard library."""
    chooser = random.Random(seed)

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            return None if frame.f_code.co_filename.startswith(_NOT_ITS_OWN) else trace
        if event == "line" and chooser.random() < 0.5:
            time.sleep(0.0002)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


_NOT_ITS_OWN = (
    *(str(Path(module.__file__ or "").parent) for module in (torch, lampwork.records, threading)),
    "<",
)


def _cache_keys(battery: Battery) -> str:
    """Equal parts are compiled once; those that differ in a literal, a shape, a dtype or the order of operands are not
    confused: of each operator that it takes, two calls that differ in nothing else."""
    if content_hash(battery.backend) != content_hash(battery.backend):
        raise Failed("its content hash is not the same twice")
    only_linear = Watched(
        battery.backend, refuse=lambda node: node.target is not torch.ops.aten.linear.default
    )
    watched = battery.run(Program("equal layers", blocks(6), lambda: (randn(4, 8),)), only_linear, calls=1)
    doubled = [key for key in watched.compiled if watched.compiled.count(key) > 1]
    # Weights built in make parts differ; the backends of the tree share kernels themselves.
    own = any(getattr(battery.backend, flag, False) for flag in ("bakes_weights", "trusted"))
    if doubled and not own:
        raise Failed(f"a part was compiled {watched.compiled.count(doubled[0])} times")
    for alone in battery.alone:
        for program in alone.with_other_literals():
            battery.run(alone.program, calls=1)
            battery.run(program, calls=1)
        for program in alone.with_operands_exchanged():
            battery.run(program, calls=1)
    for factor in (2.0, 3.0, 2):
        for dtype in (torch.float32, torch.float64):
            for shape in ((4, 8), (8, 4), (8,)):
                battery.run(
                    Program(
                        f"{factor} * {dtype} {shape}",
                        lambda x, f=factor: torch.relu(x * f) + x,
                        lambda s=shape, d=dtype: (randn(*s, dtype=d),),
                    ),
                    calls=1,
                )
    return f"{len(watched.compiled)} compiled for 6 equal linear layers"


def _gradients(battery: Battery) -> str:
    """Where gradients are asked for they are eager's."""
    module = network()
    x, y = randn(4, 8).requires_grad_(), randn(4, 8).requires_grad_()
    with _strict():
        compiled = compile(module, backend=battery.backend)
        module(x).square().sum().backward()
        wanted = [cast(Tensor, p.grad).clone() for p in module.parameters()]
        for _ in range(3):  # what is trained may be compiled after a first backward
            module.zero_grad()
            y.grad = None
            compiled(y).square().sum().backward()
            text = difference([y.grad, *(p.grad for p in module.parameters())], [x.grad, *wanted])
            if text:
                raise Failed(text)
    return f"of {len(wanted) + 1} tensors"


def _no_fallback(battery: Battery) -> str:
    """Nothing ran eager for a fault of the backend."""
    for program in battery.programs:
        with _strict():
            compiled = compile(program.fn, backend=battery.backend)
            battery.call(program, compiled)
        if function_of(compiled).refusals:
            raise Failed(f"{program.name}: {function_of(compiled).refusals[0]}")
    return ""


def _special_numbers(battery: Battery) -> str:
    """In a program, and in each operator alone."""
    count = 0
    for program in edge_programs()["special numbers"]:
        battery.run(program)
    for alone in battery.alone:
        for program in alone.with_special_numbers():
            battery.run(program, calls=1)
            count += 1
    return f"{count} calls of {len(battery.alone)} operators"


def _edges(programs: tuple[Program, ...]) -> Callable[[Battery], str]:
    def check(battery: Battery) -> str:
        for program in programs:
            battery.run(program)
        return ", ".join(p.name for p in programs)

    return check


_CHECKS: dict[str, Callable[[Battery], str]] = {
    "protocol": _protocol,
    "right answers": _answers,
    "no fallback": _no_fallback,
    "partition legality": _partitions,
    "changed weights": _weights,
    "dynamic shapes": _sizes,
    "results are fresh": _fresh_results,
    "one object": _one_object,
    "threads": _threads,
    "cache keys": _cache_keys,
    "gradients": _gradients,
}
