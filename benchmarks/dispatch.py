"""What a call of a compiled network costs besides the network: guards, the look at weights, dispatch.

    python benchmarks/dispatch.py [--layers 12] [--rounds 200]

The region of a BERT of narrow layers, which has as many parameters, modules and guards as one of full width, gets a
program that does nothing but give back its input. Printed are microseconds a call: the best and the median of the
rounds, in a warm cache, and after 256 MB of other memory were read, as they are between two calls of a large network.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig, BertModel

from lampwork.capture import CaptureOptions, capture
from lampwork.capture.model.region import Recipe, Region, Step
from lampwork.capture.state.dynamic import Dynamic
from lampwork.runtime import Compiled, Executable, make_entry
from lampwork.runtime.program import Program, Value

CALLS = 200


def region_of(layers: int, dynamic: bool | None) -> tuple[Region, torch.Tensor]:
    config = BertConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=12, vocab_size=100
    )
    model = BertModel(config).eval()
    ids = torch.randint(100, (2, 16))
    options = CaptureOptions(dynamic=Dynamic(dynamic))
    with torch.no_grad():
        return capture(model, (ids,), {}, options), ids


def idle_program(region: Region) -> Program:
    """All bound tensors feed the constants, as most weights do; the output is the first input."""
    bound = tuple(
        Value("input", t.dtype, tuple(t.shape), t.stride(), position=i) for i, t in enumerate(region.bound)
    )
    constants = Program(bound, (), tuple(range(len(bound))), len(bound), 0, 0)
    values = (Value("input", torch.int64, (1,), (1,), position=0),)
    return Program(values, (), (0,), len(region.inputs), len(region.bound), 0, constants)


def entry_of(region: Region) -> Any:
    """An entry with the region's guards, symbols and conditions around an idle program."""
    region.recipe = Recipe((Step("output", 0),), 0)
    program = idle_program(region)
    if not region.n_values:
        return make_entry(region, Executable(program, region.bound))
    first = Executable(program, region.bound)
    return make_entry(region, None, specialize=lambda values: Executable(program, share=first))


def measure(
    call: Callable[[torch.Tensor], Any], ids: torch.Tensor, rounds: int, other: torch.Tensor | None = None
) -> tuple[float, float]:
    """Best and median microseconds of a call. `other`: memory that is read before each call."""
    calls = CALLS if other is None else 1
    times: list[float] = []
    for _ in range(rounds):
        if other is not None:
            other.sum()
        start = time.perf_counter()
        for _ in range(calls):
            call(ids)
        times.append((time.perf_counter() - start) / calls * 1e6)
    return min(times), statistics.median(times)


def refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise AssertionError("the region does not match its own call")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print(f"{'':34}{'best us':>9}{'median':>9}{'cold':>9}{'median':>9}")
    other = torch.zeros(256 << 18)

    def show(name: str, call: Callable[[torch.Tensor], Any], ids: torch.Tensor) -> None:
        figures = (*measure(call, ids, options.rounds), *measure(call, ids, options.rounds // 4, other))
        print(f"{name:34}" + "".join(f"{figure:9.2f}" for figure in figures))

    for name, dynamic in (("sizes fixed", None), ("batch and sequence open", True)):
        region, ids = region_of(options.layers, dynamic)
        entry = entry_of(region)
        print(
            f"{len(region.bound)} bound tensors, {len(region.guards)} guards, {len(region.slow_guards)} slow guards "
            f"on {len(region.versioned)} dicts, {len(region.symbols)} symbols, {len(region.conditions)} conditions"
        )
        compiled = Compiled(refuse)
        compiled.add_entry(entry)
        with torch.no_grad():
            show(name, compiled, ids)
    show("a Python function", lambda ids: ids, torch.ones(2))


if __name__ == "__main__":
    main()
