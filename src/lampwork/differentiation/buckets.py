"""Where the backward of a region is cut for a wrapper that reduces gradients in buckets while backward still runs.

DistributedDataParallel sums the gradients of a bucket over all processes as soon as the last of them is there. A region
that gave all of its gradients at its end would leave it no backward to do so behind. So the region is cut
(`segments.cut`) wherever the gradients that are complete fill a bucket, and each piece has a backward of its own.

before: a = x @ u; b = relu(a); y = b @ v                  one segment: gradients of u and v come together
after:  segment 0: b from (x, u)   segment 1: y from (b, v)    v's gradient is there before u's is begun
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.differentiation.segments import requires_grad, returned_roots
from lampwork.graph.spec import TensorSpec
from lampwork.records import record

FIRST_BYTES = 1 << 20
"""torch's reducer keeps its first bucket small, to begin early."""

MOST_CROSSING = 4
"""Each value that crosses a cut is an autograd node: a place that more values cross is no good one."""


@record
class Buckets:
    """How many bytes of gradients the first bucket holds, and each of the others."""

    first: int
    others: int


@record
class Place:
    """A place in a graph, in front of a node. `crossing`: the differentiable values computed before it that are used
    behind. `bytes`: of the gradients of weights that are complete once backward has come here from the next place."""

    crossing: tuple[fx.Node, ...]
    bytes: int


def active_buckets() -> Buckets | None:
    """Those of the DistributedDataParallel whose forward is running, if any."""
    wrapper: Any = getattr(_DistributedDataParallel, "_active_ddp_module", None)
    if wrapper is None:
        return None
    return Buckets(min(FIRST_BYTES, wrapper.bucket_bytes_cap), wrapper.bucket_bytes_cap)


_DistributedDataParallel: Any = cast(Any, torch.nn.parallel).DistributedDataParallel


def bucket_cuts(graph: fx.Graph, buckets: Buckets) -> frozenset[fx.Node]:
    """The nodes at which to cut a functional graph whose specs say what requires grad: for each bucket those of the
    place that fewest values cross, of the places between a full bucket and two full ones."""
    places = _places(graph)
    left = sum(place.bytes for place in places)
    cuts: set[fx.Node] = set()
    candidates: list[tuple[Place, int]] = []
    filled, bucket = 0, buckets.first
    for place in places:
        filled, left = filled + place.bytes, left - place.bytes
        suits = left and _may_be_cut(place)
        if suits and filled >= bucket:
            candidates.append((place, filled))
        if candidates and (filled >= 2 * bucket or not left):
            best, behind = min(candidates, key=lambda candidate: len(candidate[0].crossing))
            cuts.update(best.crossing)
            filled, bucket = filled - behind, buckets.others
            candidates = [(place, filled)] if suits and filled >= bucket else []
    return frozenset(cuts)


def _may_be_cut(place: Place) -> bool:
    """Not between an operator of several results and these."""
    tensors = all(isinstance(node.meta["val"], TensorSpec) for node in place.crossing)
    return tensors and 0 < len(place.crossing) <= MOST_CROSSING


def _places(graph: fx.Graph) -> Sequence[Place]:
    """All places, in the order in which backward comes to them."""
    roots = frozenset(returned_roots(graph))
    crossing: dict[fx.Node, None] = {}
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    first_use: dict[fx.Node, fx.Node] = {}
    for node in reversed(graph.nodes):
        if node not in crossing and node not in roots:
            continue
        crossing.pop(node, None)
        for used in filter(requires_grad, node.all_input_nodes):
            if used.op == "call_function":
                crossing[used] = None
            elif used.meta.get("bound"):
                first_use[used] = node
        found[node] = tuple(crossing)
    ready = dict.fromkeys(found, 0)
    for weight, node in first_use.items():
        spec: TensorSpec = weight.meta["val"]
        ready[node] += spec.numel * spec.dtype.itemsize
    return [Place(values, ready[node]) for node, values in found.items()]
