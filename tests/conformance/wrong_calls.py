"""Random wrong calls of operators, run eager and compiled: samples of torch's own, with arguments changed at random.

    LAMPWORK_FUZZ=1000 python -m pytest tests/conformance/test_wrong_calls.py

A call is known by its seed, which gives the operator, the sample, what is changed in it, and how it is compiled: with
sizes fixed or open, first or after the sample itself. Calls run in forked children, so a crash is one call's result.
"""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import opinfo_samples
import refused_calls
import torch
from refused_calls import Call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lampwork.graph.shapes import own_rule
from lampwork.lower.table import RULES

DTYPES = (*refused_calls.DTYPES, torch.float32, torch.float32)
SAMPLES = 6
# What writes beyond its memory in eager need not crash the first time.
REPEATS = 100

# Results differ from run to run, or are whatever the memory held.
_UNREPEATABLE = refused_calls.UNINITIALIZED | {
    "nn.functional.multi_head_attention_forward",
    "resize_",
    "resize_as_",
    # An interpolation mode that is none leaves the result as the memory was; `grid_sample` takes names.
    "grid_sampler_2d",
    "grid_sampler_3d",
    # Eager reads and writes past the ends of short weights and statistics; `batch_norm` checks them.
    "_batch_norm_with_update",
    "_native_batch_norm_legit",
    "native_batch_norm",
    # Eager writes past the end for fewer pivots than matrices; `linalg.lu` has none.
    "lu_unpack",
}


class _Seen(TorchDispatchMode):
    """Whether an operator met has a rule of ours."""

    own = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.own = self.own or own_rule(func) is not None or func.name() in RULES
        return func(*args, **(kwargs or {}))


@cache
def operators() -> tuple[Any, ...]:
    """The operators of torch's database that run through a shape rule or a lowering rule."""
    found: list[Any] = []
    for op in opinfo_samples.database():
        sample = next(opinfo_samples.samples(op, torch.float32, 1), None)
        if sample is None or sample.operator in _UNREPEATABLE:
            continue
        with torch._C._AutoDispatchBelowAutograd(), _Seen() as seen:
            refused_calls.run(sample.fn, *opinfo_samples._copied((sample.args, sample.kwargs)))
        if seen.own:
            found.append(op)
    return tuple(found)


@cache
def _samples(place: int) -> list[opinfo_samples.Sample]:
    return list(opinfo_samples.samples(operators()[place], torch.float32, SAMPLES))


def call(seed: int) -> tuple[Call, bool]:
    """The wrong call of a seed, and whether sizes stay open."""
    rng = random.Random(seed)
    sample = rng.choice(_samples(rng.randrange(len(operators()))))
    leaves, structure = pytree.tree_flatten((sample.args, dict(sample.kwargs)))
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(leaves)) if leaves else 0
        if leaves:
            leaves[at], what = change(rng, leaves[at])
            done.append(f"leaf {at}: {what}")
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    if rng.random() < 0.15:
        args, kwargs, what = _rearranged(rng, args, kwargs)
        done.append(what)
    after = rng.random() < 0.4
    dynamic = rng.random() < 0.4
    name = f"seed {seed}: {sample.name} with {'; '.join(done)}{', after the sample' * after}{', dynamic' * dynamic}"
    return Call(name, sample.fn, args, kwargs, (sample.args, sample.kwargs) if after else None), dynamic


# --- changes ----------------------------------------------------------------------------------------------------------


def change(rng: random.Random, value: Any) -> tuple[Any, str]:
    """An argument in place of `value`, and what was done to it."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value, "nothing"
        for _ in range(5):
            name, change = rng.choice(_TENSORS)
            try:
                return change(rng, value.detach()), name
            except (RuntimeError, IndexError, ValueError):
                continue
        return value, "nothing"
    if isinstance(value, bool):
        new: Any = rng.choice((not value, int(value), None))
    elif isinstance(value, int):
        new = rng.choice(
            (value + 1, value - 1, -value, 0, 1, -1, 7, 2**31, -(2**63), 2**40, True, float(value), None)
        )
    elif isinstance(value, float):
        new = rng.choice((0.0, -1.0, -value, 1e30, 1e300, -1e300, float("nan"), float("inf"), 3, True, None))
    elif isinstance(value, torch.dtype):
        new = rng.choice(DTYPES)
    elif isinstance(value, str):
        new = rng.choice(("no such mode", "", "mean", "none"))
    elif value is None:
        new = rng.choice((0, 1, -1, 2.5, True))
    else:
        return value, "nothing"
    return new, f"{value!r} -> {new!r}"


def _resized(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    if size <= x.shape[dim]:
        return x.narrow(dim, 0, size).clone()
    extra = x.new_zeros((*x.shape[:dim], size - x.shape[dim], *x.shape[dim + 1 :]))
    return torch.cat([x, extra], dim)


def _off_by(change: Callable[[int], int]) -> Callable[[random.Random, torch.Tensor], torch.Tensor]:
    def changed(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
        dim = rng.randrange(x.dim())
        return _resized(x, dim, max(change(x.shape[dim]), 0))

    return changed


def _values(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    flat = x.view(-1)
    at = rng.randrange(len(flat))
    if x.is_floating_point():
        flat[at] = rng.choice((0.0, -1.0, 1e30, -1e30, float("nan"), float("inf"), -float("inf")))
    elif x.dtype is not torch.bool:
        flat[at] = rng.choice((0, -1, 1, 100, -100))
    return x


_TENSORS: Sequence[tuple[str, Callable[[random.Random, torch.Tensor], torch.Tensor]]] = (
    ("one more", _off_by(lambda n: n + 1)),
    ("one less", _off_by(lambda n: n - 1)),
    ("empty", _off_by(lambda n: 0)),
    ("single", _off_by(lambda n: 1)),
    ("twice", _off_by(lambda n: 2 * n)),
    ("unsqueeze", lambda rng, x: x.unsqueeze(rng.randint(0, x.dim()))),
    ("first", lambda rng, x: x.select(rng.randrange(x.dim()), 0)),
    ("flat", lambda rng, x: x.reshape(-1)),
    ("0-d", lambda rng, x: x.reshape(-1)[0]),
    ("new leading", lambda rng, x: x.expand(2, *x.shape)),
    *[("dtype", lambda rng, x: x.to(rng.choice(DTYPES)))] * 5,
    ("transposed", lambda rng, x: x.transpose(0, -1)),
    ("strides", lambda rng, x: x.transpose(0, -1).contiguous().transpose(0, -1)),
    ("gaps", lambda rng, x: torch.stack([x, x], -1)[..., 0]),
    (
        "expanded",
        lambda rng, x: x.narrow(rng.randrange(x.dim()), 0, 1).expand(x.shape) if x.numel() else x,
    ),
    ("channels last", lambda rng, x: x.to(memory_format=torch.channels_last)),
    *[("values", _values)] * 2,
    ("list", lambda rng, x: x.tolist()),
    ("None", lambda rng, x: None),
)


def _rearranged(rng: random.Random, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, str]:
    kind = rng.randrange(6)
    if kind == 0 and args:
        return args[:-1], kwargs, "the last argument left out"
    if kind == 1:
        return (*args, rng.choice((0, 1, -1, None, True))), kwargs, "one argument more"
    if kind == 2:
        return args, {**kwargs, "no_such_argument": 1}, "an unknown argument"
    if kind == 3 and len(args) > 1:
        return (args[1], args[0], *args[2:]), kwargs, "arguments swapped"
    if kind == 4:
        return args, {**kwargs, "dim": rng.choice((0, -1, 5, -6, (0, 0), (), None))}, "dim="
    lists = [i for i, a in enumerate(args) if isinstance(a, (tuple, list)) and a]
    if lists:
        at = rng.choice(lists)
        value = list(args[at])
        new = rng.choice((value[:-1], [*value, value[-1]], [], value[0], value * 2))
        return (*args[:at], new, *args[at + 1 :]), kwargs, f"argument {at} -> {new!r:.60}"
    return args, kwargs, "nothing"


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    detail: str


def difference(seed: int) -> Found | None:
    """What is wrong with the compiled call of a seed."""
    made, dynamic = call(seed)
    detail = refused_calls.difference(made, dynamic)
    return None if detail is None else Found(made.name, detail)


def _eagerly(seed: int) -> None:
    made, _ = call(seed)
    for _ in range(REPEATS):
        args, kwargs = opinfo_samples._copied((made.args, made.kwargs))
        refused_calls.run(made.fn, args, kwargs)


def fuzz(seeds: Sequence[int], batch: int = 500, patience: int = 10) -> Iterator[Found]:
    """Run the calls of the seeds in children; what is wrong, crashes and calls that do not end included, unless eager's
    do the same. What all children need is made here: samples, and modules that the first compilation imports."""
    refused_calls.difference(Call("warm", torch.neg, (torch.ones(2),), {}), False)
    for seed in seeds:
        _samples(random.Random(seed).randrange(len(operators())))
    yield from in_children(seeds, batch, patience, difference, _eagerly, lambda seed: call(seed)[0].name)


def in_children(
    seeds: Sequence[int],
    batch: int,
    patience: int,
    check: Callable[[int], Found | None],
    eagerly: Callable[[int], None],
    name: Callable[[int], str],
) -> Iterator[Found]:
    """What `check` finds for the seeds, run in children in batches. A seed whose child crashes, or says nothing for
    `patience` seconds, is found too, unless `eagerly` does the same."""
    at = 0
    while at < len(seeds):
        batched = seeds[at : at + batch]
        done = 0
        for line in _child(batched, patience, check):
            if line == "done":
                done += 1
            elif line:
                found, _, detail = line.partition("\x1f")
                yield Found(found, detail)
        at += done
        if done < len(batched):
            if "done" in _child(seeds[at : at + 1], patience, eagerly):
                yield Found(name(seeds[at]), "the process crashed or did not end")
            at += 1


def _child(seeds: Sequence[int], patience: int, check: Callable[[int], Found | None]) -> Iterator[str]:
    """Lines of a forked child: "done" after each call, before it what is wrong."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            faulthandler.disable()
            torch.set_num_threads(1)  # OpenMP's threads do not live on in a child
            os.close(reads)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # What asks for much memory is refused.
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (2 << 30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            with os.fdopen(writes, "w", buffering=1) as out:
                for seed in seeds:
                    try:
                        found = check(seed)
                    except Exception as error:  # noqa: BLE001  (reported as a finding)
                        found = Found(f"seed {seed}", f"the test itself failed: {error!r}")
                    if found is not None:
                        print(f"{found.name}\x1f{found.detail}".replace("\n", " "), file=out)
                    print("done", file=out)
        finally:
            os._exit(0)
    os.close(writes)
    until = time.monotonic() + patience
    with os.fdopen(reads) as lines:
        while True:
            ready, _, _ = select.select([lines], [], [], max(until - time.monotonic(), 0))
            if not ready:
                break
            line = lines.readline()
            if not line:
                break
            until = time.monotonic() + patience
            yield line.strip()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
