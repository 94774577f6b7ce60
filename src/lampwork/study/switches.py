"""What the study switches off, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from torch import nn

from lampwork import pristine
from lampwork.api import compile
from lampwork.backends.native.compile import NativeBackend
from lampwork.codegen.llvm.isa.x86 import host_isa, host_target
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.records import record
from lampwork.standard import functools

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})

NEVER = 1 << 62


@record
class OtherMachine:
    """Describes this machine with other numbers, so that code is generated as for one that has them."""

    fields: Mapping[str, Any]

    def __call__(self, config: Config) -> Target:
        return replace(host_target(config), **self.fields)


@record
class Switch:
    """An optimization that can be done without.

    without: what is done in its place, to complete "without it, ...". options: of `compile`, that switch it off.
    target: fields of the description of the machine that do. threads: the number that calls run with; 0: the study's.
    everywhere: it changes the code of every network, or how it runs, also where the program looks the same.
    """

    name: str
    without: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    target: Mapping[str, Any] = field(default_factory=dict[str, Any])
    threads: int = 0
    everywhere: bool = False

    def compile(self, model: nn.Module, **keywords: Any) -> Any:
        """The model compiled without it."""
        if self.target:
            keywords = {**keywords, "backend": NativeBackend(OtherMachine(self.target))}
        return compile(model, options=dict(self.options), **keywords)

    def runs(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What to call: `compiled` with as many threads as the switch has."""
        return compiled if not self.threads else with_threads(compiled, self.threads)


def with_threads(fn: Callable[..., Any], threads: int) -> Callable[..., Any]:
    """`fn` with so many threads, and as many as there were before after it."""

    def call(*args: Any) -> Any:
        before = pristine.get_num_threads()
        pristine.set_num_threads(threads)
        try:
            return fn(*args)
        finally:
            pristine.set_num_threads(before)

    return call


@functools.cache
def switches() -> Mapping[str, Switch]:
    """All of them, by name, in the order of the page.

    Raises:
        CodegenError: no code is generated for this machine.
    """
    narrower = "sse4" if host_isa("").name == "avx2" else "avx2"
    found = (
        Switch(
            "fusion",
            "each value that kernels make is written to memory, by a kernel of its own",
            {"fusion": False},
        ),
        Switch(
            "rewrites",
            "no operator is exchanged for cheaper ones, and batch norms are not folded into convolutions",
            {"passes": "-algebra,-library,-fold-batch-norm,-common-subexpressions"},
        ),
        Switch(
            "constants",
            "what depends on weights alone is computed in every call",
            {"passes": "-split-constants,-constant-folding"},
        ),
        Switch(
            "packing",
            "products read weights as they lie",
            target={"packed_bytes": 0},
        ),
        Switch(
            "channels-last",
            "convolutions stay in the order of the model, and are those of ATen",
            {"passes": "-choose-layouts,-channels-last-convolution,-prepack-convolution,-widen-convolution"},
        ),
        Switch(
            "merged-linears",
            "linear layers of one input stay apart",
            {"passes": "-merge-linears"},
        ),
        Switch(
            "attention",
            "attention is two products around a softmax",
            target={"tiled_scores": NEVER},
        ),
        Switch(
            "products",
            "products are calls of ATen",
            target={"products": frozenset[str]()},
        ),
        Switch(
            "arena",
            "no two values of a call share memory",
            {"arena": False},
        ),
        Switch(
            "threads",
            "calls run on one thread",
            threads=1,
        ),
        Switch(
            "wide-vectors",
            f"code is generated for {narrower}",
            {"isa": narrower},
            everywhere=True,
        ),
        Switch(
            "exact-rounding",
            "products and sums may be rounded once, and convolutions of 3 x 3 use minimal filtering",
            {"numerics": "fast"},
            everywhere=True,
        ),
    )
    return MappingProxyType({each.name: each for each in found})
