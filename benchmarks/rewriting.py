"""The rewrite driver: 1,000 patterns on graphs of 5,000 nodes, of several kinds, and the passes on BERT-base.

    python benchmarks/rewriting.py [--patterns 1000] [--nodes 5000] [--repeat 5] [--json FILE]

Printed per kind, in processor time: how long it takes to make the rules, to index their patterns, and to run them to a
fixed point (the median, and the first run on a fresh index), and how many matched and fired. The graph is copied
before each run; the copy is not timed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

import lampwork
from lampwork.graph.copying import copy_graph
from lampwork.graph.record import Recorder
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter, Rule, rule
from lampwork.rewriting.matching.match import Match
from lampwork.transforms.pipeline import default_passes
from lampwork.verdict import No, Verdict

UNARY = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "relu", "neg", "abs", "sqrt")
BINARY = ("add", "mul", "sub", "maximum", "minimum")


@dataclass(frozen=True, slots=True)
class Row:
    """Times in milliseconds; `matched`: patterns found, whether they fired or were refused."""

    population: str
    patterns: int
    nodes: int
    make_ms: float
    index_ms: float
    first_ms: float
    run_ms: float
    matched: int
    fired: int


def never(_: Match) -> Verdict:
    return No("only matching is measured")


def record(program: Callable[[torch.Tensor], torch.Tensor]) -> fx.Graph:
    x = torch.rand(2, 2)
    with torch.no_grad(), Recorder() as recorder:
        result = program(recorder.input(x, "x"))
    return recorder.finish([result]).graph


def random_program(rng: random.Random, nodes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Random operators, each on some of the twenty results before it."""

    def program(x: torch.Tensor) -> torch.Tensor:
        pool = [x]
        for _ in range(nodes):
            op = rng.choice(UNARY + BINARY)
            args = [rng.choice(pool[-20:]) for _ in range(1 if op in UNARY else 2)]
            pool.append(getattr(torch, op)(*args))
        return pool[-1]

    return program


def random_term(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice("xyz")
    if rng.random() < 0.5:
        return f"{rng.choice(UNARY)}({random_term(rng, depth - 1)})"
    return f"{rng.choice(BINARY)}({random_term(rng, depth - 1)}, {random_term(rng, depth - 1)})"


def distinct(make: Callable[[], str], count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[make()] = None
    return list(found)


def some_variable(text: str) -> str:
    return next(v for v in "xyz" if any(f"{before}{v}" in text for before in ("(", ", ")))


def refused(texts: list[str]) -> list[Rule]:
    return [rule(text, some_variable(text), check=never) for text in texts]


def populations(count: int, nodes: int) -> dict[str, tuple[Callable[[], list[Rule]], fx.Graph]]:
    """Name -> how to make the rules, and the graph."""
    rng = random.Random(1)
    anything = record(random_program(rng, nodes))

    def scaled(x: torch.Tensor) -> torch.Tensor:
        for i in range(nodes):
            x = x * float(i % (2 * count))
        return x

    def pairs(x: torch.Tensor) -> torch.Tensor:
        for i in range(nodes // 2):
            x = torch.neg(torch.neg(x)) if i % 2 else torch.relu(torch.relu(x))
        return x

    def chain(length: int, last: str) -> str:
        text = "x"
        for _ in range(length):
            text = f"{rng.choice(UNARY)}({text})"
        return f"{last}({text})"

    prefix = "mul(exp(x), add(sin(x), cos(y)))"
    depth2 = distinct(lambda: random_term(rng, 2), count)
    depth5 = distinct(lambda: random_term(rng, 5), count)
    one_root = distinct(lambda: f"add({random_term(rng, 2)}, {random_term(rng, 1)})", count)
    chains = distinct(lambda: chain(4, "exp"), count)
    shared = distinct(lambda: f"maximum({prefix}, {random_term(rng, 2)})", count)
    literals = [f"mul(x, {float(i)})" for i in range(count)]

    def fire() -> list[Rule]:
        others = refused(distinct(lambda: random_term(rng, 4), count - 2))
        return [rule("neg(neg(x))", "x"), rule("relu(relu(x))", "relu(x)"), *others]

    return {
        "random, depth 2": (lambda: refused(depth2), anything),
        "random, depth 5": (lambda: refused(depth5), anything),
        "one root op": (lambda: refused(one_root), anything),
        "chains below one root": (lambda: refused(chains), anything),
        "one shared prefix": (lambda: refused(shared), anything),
        "literals": (lambda: refused(literals), record(scaled)),
        "two of them fire everywhere": (fire, record(pairs)),
    }


def measure(name: str, make: Callable[[], list[Rule]], graph: fx.Graph, repeat: int) -> Row:
    start = time.process_time()
    rules = make()
    made = time.process_time()
    rewriter = Rewriter(rules)
    indexed = time.process_time()
    times: list[float] = []
    ctx = PassContext()
    for _ in range(repeat):
        copy, ctx = copy_graph(graph), PassContext()
        begin = time.process_time()
        rewriter.run(copy, ctx)
        times.append((time.process_time() - begin) * 1e3)
    return Row(
        population=name,
        patterns=len(rules),
        nodes=len(graph.nodes),
        make_ms=(made - start) * 1e3,
        index_ms=(indexed - made) * 1e3,
        first_ms=times[0],
        run_ms=statistics.median(times),
        matched=ctx.hits.total() + ctx.refusals.total(),
        fired=ctx.hits.total(),
    )


def bert() -> fx.Graph:
    """The recorded graph of BERT-base, 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).eval()
    with torch.no_grad():
        compiled: Any = lampwork.compile(model, backend="eager")
        compiled(torch.randint(0, 30000, (1, 128)))
    return compiled.stages.aten


def passes_of(graph: fx.Graph, repeat: int) -> dict[str, dict[str, float]]:
    """Pass -> milliseconds of its first run and the median of the others (sums, for passes that run twice)."""
    runs: list[dict[str, float]] = []
    for _ in range(repeat + 1):
        sums: dict[str, float] = {}
        copy, ctx = copy_graph(graph), PassContext()
        for step in default_passes():
            start = time.process_time()
            step.run(copy, ctx)
            sums[step.name] = sums.get(step.name, 0.0) + (time.process_time() - start) * 1e3
        runs.append(sums)
    rest = runs[1:]
    return {
        name: {"first_ms": runs[0][name], "ms": statistics.median(r[name] for r in rest)} for name in runs[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--patterns", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-bert", action="store_true", help="leave out the passes on BERT-base")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"torch": torch.__version__}
    if not options.no_bert:
        report["bert_passes"] = passes_of(bert(), options.repeat)
    print(f"{'patterns':30} {'make':>9} {'index':>9} {'first':>9} {'run':>9}   matched  fired")
    rows: list[Row] = []
    for name, (make, graph) in populations(options.patterns, options.nodes).items():
        row = measure(name, make, graph, options.repeat)
        rows.append(row)
        times = " ".join(f"{t:6.1f} ms" for t in (row.make_ms, row.index_ms, row.first_ms, row.run_ms))
        print(f"{row.patterns} {name:25} {times}   {row.matched:7} {row.fired:6}")
    report["populations"] = [asdict(r) for r in rows]
    if "bert_passes" in report:
        print(f"\n{'pass on BERT-base':30} {'first':>9} {'later':>9}")
        for name, t in report["bert_passes"].items():
            print(f"{name:30} {t['first_ms']:6.2f} ms {t['ms']:6.2f} ms")
        total = {k: sum(t[k] for t in report["bert_passes"].values()) for k in ("first_ms", "ms")}
        print(f"{'all':30} {total['first_ms']:6.2f} ms {total['ms']:6.2f} ms")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
