"""Tasks of ranks: collectives inside compiled functions, as nodes of their graphs, against eager in float64."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import data_parallel
import sharded
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import lampwork
from lampwork.backends.native.tuning.tune import forget
from lampwork.errors import LoweringError, RuntimeFailure
from lampwork.graph.collectives import is_start

ROWS = 3
Reduce = Callable[[Tensor], Tensor]


def _group() -> Any:
    return dist.group.WORLD


def _parts(x: Tensor) -> list[int]:
    """Sizes of the parts that go to each rank, of which all get as many rows."""
    return [x.shape[0] // dist.get_world_size()] * dist.get_world_size()


def _next_rank() -> list[int]:
    world = dist.get_world_size()
    return [(rank + 1) % world for rank in range(world)]


def _raw(x: Tensor) -> Tensor:
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", _group().group_name)
    other = x.sin()
    ops.wait_tensor(started)
    return started * other


FUNCTIONAL: dict[str, Reduce] = {
    "all_reduce": lambda x: collectives.all_reduce(x, "sum", _group()),
    "all_reduce in a mesh": lambda x: collectives.all_reduce(x, "sum", MESH[0]),
    "all_reduce along a dimension": lambda x: collectives.all_reduce(x, "sum", (MESH[0], 0)),
    "all_reduce_coalesced": lambda x: torch.cat(
        collectives.all_reduce_coalesced([x, x.cos()], "sum", _group())
    ),
    "all_gather_tensor": lambda x: collectives.all_gather_tensor(x, 0, _group()),
    "all_gather_tensor by columns": lambda x: collectives.all_gather_tensor(x, 1, _group()),
    "all_gather_tensor_autograd": lambda x: collectives.all_gather_tensor_autograd(x, 0, _group()),
    "all_gather coalesced": lambda x: torch.cat(
        collectives.all_gather_into_tensor_coalesced([x, x.cos()], _group())
    ),
    "reduce_scatter_tensor": lambda x: collectives.reduce_scatter_tensor(x, "sum", 0, _group()),
    "reduce_scatter_tensor_autograd": lambda x: collectives.reduce_scatter_tensor_autograd(
        x, "sum", 1, _group()
    ),
    "reduce_scatter coalesced": lambda x: torch.cat(
        collectives.reduce_scatter_tensor_coalesced([x, x.cos()], "sum", [0, 0], _group())
    ),
    "all_to_all_single": lambda x: collectives.all_to_all_single(x, None, None, _group()),
    "all_to_all_single_autograd": lambda x: collectives.all_to_all_single_autograd(
        x, _parts(x), _parts(x), _group()
    ),
    "permute_tensor": lambda x: collectives.permute_tensor(x.reshape(-1), _next_rank(), _group()),
    "wait_tensor": lambda x: collectives.wait_tensor(collectives.all_reduce(x, "sum", _group())),
    "operators": _raw,
}
"""Collectives that have gradients."""

MESH: list[Any] = []


def _written(write: Callable[[Tensor, Tensor], None], size: Callable[[int], int] = int) -> Reduce:
    def reduce(x: Tensor) -> Tensor:
        x = x.detach()
        y = x.clone() if size is int else x.new_empty(size(x.shape[0]), *x.shape[1:])
        write(y, x)
        return y * 2

    return reduce


def _gather(y: Tensor, x: Tensor) -> None:
    dist.all_gather(list(y.chunk(dist.get_world_size())), x)


WITHOUT_GRADIENTS: dict[str, Reduce] = {
    "max": lambda x: collectives.all_reduce(x.detach(), "max", _group()),
    "broadcast": lambda x: collectives.broadcast(x.detach(), 1, _group()),
    "written: all_reduce": _written(lambda y, x: dist.all_reduce(y)),
    "written: all_reduce by maximum": _written(lambda y, x: dist.all_reduce(y, dist.ReduceOp.MAX, _group())),
    "written: broadcast": _written(lambda y, x: dist.broadcast(y, 1)),
    "written: all_gather": _written(_gather, lambda rows: rows * dist.get_world_size()),
    "written: all_gather_into_tensor": _written(
        lambda y, x: dist.all_gather_into_tensor(y, x), lambda rows: rows * dist.get_world_size()
    ),
    "written: reduce_scatter_tensor": _written(
        lambda y, x: dist.reduce_scatter_tensor(y, x.clone()), lambda rows: rows // dist.get_world_size()
    ),
}


def _data(rank: int, step: int, rows: int = ROWS) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    world = dist.get_world_size()
    return torch.randn(rows * world, world * ROWS, generator=generator) / 8


def _started() -> int:
    """How many collectives this rank has started."""
    return _group()._get_sequence_number_for_group()


def _trained(call: Callable[..., Tensor], x: Tensor, *, as_loss: bool) -> tuple[list[Tensor], int]:
    """([result, gradient of x], how many collectives that took)."""
    before = _started()
    result = call(x)
    (gradient,) = torch.autograd.grad(result if as_loss else result.square().sum(), x)
    return [result.detach().double(), gradient.double()], _started() - before


def in_graph(rank: int, name: str, kind: str) -> None:
    """One region, forward and backward, that starts what eager starts. kind: it returns a "value" or a "loss", or the
    numbers of rows of its "sizes" differ."""
    _make_mesh()
    reduce = {**FUNCTIONAL, **WITHOUT_GRADIENTS}[name]

    def function(x: Tensor) -> Tensor:
        y = torch.relu(reduce(x * 2) + 1) * (1 + reduce(x + 1).exp().sum()) + (x * x).sum()
        return y.mean() if kind == "loss" else y

    compiled = lampwork.compile(function, options={"strict": True})
    before = lampwork.stats()
    for step, rows in enumerate((ROWS, 1, 2, 2, 2) if kind == "sizes" else (ROWS,) * 3):
        x = _data(rank, step, rows)
        wanted, count = _trained(function, x.double().requires_grad_(), as_loss=kind == "loss")
        found, ours = _trained(compiled, x.requires_grad_(), as_loss=kind == "loss")
        sharded.close(found, wanted)
        assert ours == count, f"{ours} collectives, {count} in eager"
    after = lampwork.stats()
    assert all(not entry.region.breaks for entry in compiled.entries), compiled.entries
    assert after["eager_calls"] == before["eager_calls"]
    assert after["compiled_backwards"] > before["compiled_backwards"]


def _make_mesh() -> None:
    if not MESH:
        MESH.append(sharded.mesh())


def in_order(rank: int) -> None:
    """Equal ones are not merged, those that nobody reads are started, and none overtakes another."""
    group = dist.group.WORLD

    def function(x: Tensor) -> tuple[Tensor, ...]:
        first = collectives.all_reduce(x, "sum", group)
        again = collectives.all_reduce(x, "sum", group)
        collectives.all_reduce(x * 3, "sum", group)
        late = collectives.all_gather_tensor(x * 5, 0, group)
        other = torch.softmax(x @ x.T, 0) @ x  # while they are on their way
        last = collectives.reduce_scatter_tensor(other, "max", 0, group)
        return last + 1, late.sin(), first + again, late

    compiled = lampwork.compile(function, options={"strict": True})
    x = _data(rank, 0)
    before = _started()
    wanted = function(x.double())
    count = _started() - before
    for _ in range(3):
        sharded.close([t.double() for t in compiled(x)], list(wanted))
    assert _started() - before == 4 * count == 20
    graph: Any = compiled.entries[0].region.graph
    names = [node.target._opname for node in graph.nodes if is_start(node.target)]
    assert names == ["all_reduce"] * 3 + ["all_gather_into_tensor", "reduce_scatter_tensor"]


def asked_again(rank: int) -> None:
    """What torch.distributed says of the process is no constant: groups come and go."""

    def function(x: Tensor) -> Tensor:
        return x * dist.get_world_size() + dist.get_rank() if dist.is_initialized() else x

    compiled = lampwork.compile(function, options={"strict": True})
    x = _data(rank, 0)
    member: Any = dist.distributed_c10d.GroupMember
    world, member.WORLD = member.WORLD, None
    try:
        assert torch.equal(compiled(x), x)
    finally:
        member.WORLD = world
    assert torch.equal(compiled(x), x * dist.get_world_size() + rank)


def backward_again(rank: int) -> None:
    """Whatever backward asks for (gradients of gradients, of some results, twice, after a write to a result), forward's
    collectives are not started again."""
    group = dist.group.WORLD

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = collectives.all_reduce(x.sin(), "sum", group)
        return y, collectives.all_gather_tensor((y * x).exp(), 0, group).square()

    def gradients(
        call: Callable[..., tuple[Tensor, Tensor]], x: Tensor, kind: str
    ) -> tuple[list[Tensor], int]:
        before = _started()
        first, last = call(x)
        if kind == "of gradients":
            (made,) = torch.autograd.grad(last.sum(), x, create_graph=True)
            found = torch.autograd.grad(made.square().sum(), x)
        elif kind == "twice":
            torch.autograd.grad(last.sum(), x, retain_graph=True)
            found = torch.autograd.grad(last.sum() + first.sum(), x)
        elif kind == "of a result":
            found = torch.autograd.grad(first.sum(), x)
        else:
            first.data.zero_()
            found = torch.autograd.grad(last.sum(), x)
        return [gradient.double() for gradient in found], _started() - before

    compiled = lampwork.compile(function, options={"strict": True})
    for step, kind in enumerate(2 * ("of a result", "twice", "of gradients", "written")):
        x = _data(rank, step)
        wanted, count = gradients(function, x.double().requires_grad_(), kind)
        found, ours = gradients(compiled, x.requires_grad_(), kind)
        if kind != "written":  # eager multiplies by what is written there
            sharded.close(found, wanted)
        assert ours == count, f"{kind}: {ours} collectives, {count} in eager"


def fails_behind(rank: int) -> None:
    """A call that fails behind a collective is not repeated in eager, which would start it again."""

    def function(x: Tensor, index: Tensor) -> Tensor:
        return collectives.all_reduce(x, "sum", dist.group.WORLD)[index] + 1

    compiled = lampwork.compile(function)
    x = _data(rank, 0)
    compiled(x, torch.tensor([1]))
    before = _started()
    try:
        compiled(x, torch.tensor([99]))
    except RuntimeFailure:
        assert _started() == before + 1
    else:
        raise AssertionError("an index out of range")


@lampwork.disable
def _pending(x: Tensor) -> Tensor:
    return collectives.all_reduce(x, "sum", dist.group.WORLD)


def waited_behind_a_break(rank: int) -> None:
    """What plain Python gives as a tensor that is still being written is a plain one for the rest of the function,
    unless that asks for such tensors itself."""

    def plain(x: Tensor) -> Tensor:
        return (_pending(x * 2) + 1).sin()

    def asking(x: Tensor) -> Tensor:
        pending: Any = _pending(x * 2)
        return (pending.trigger_wait() + 1).sin()

    before = lampwork.stats()
    compiled = lampwork.compile(plain)
    for step in range(2):
        x = _data(rank, step)
        wanted, _ = _trained(plain, x.double().requires_grad_(), as_loss=False)
        found, _ = _trained(compiled, x.requires_grad_(), as_loss=False)
        sharded.close(found, wanted)
    after = lampwork.stats()
    assert after["breaks"] == before["breaks"] + 1 and after["eager_calls"] == before["eager_calls"]
    with torch.no_grad():
        x = _data(rank, 0)
        sharded.close([lampwork.compile(asking)(x).double()], [plain(x.double())])


def _reducing(x: Tensor) -> Tensor:
    y = collectives.all_reduce(x.sin(), "sum", dist.group.WORLD)
    return (y * collectives.all_gather_tensor(x, 0, dist.group.WORLD)[: len(y)]).exp().mean()


def _broken(rank: int) -> Any:
    failing = mock.patch(
        "lampwork.backends.native.compile.lower_graph", side_effect=LoweringError("injected on one rank")
    )
    return failing if rank == 1 else contextlib.nullcontext()


def falls_back(rank: int, kind: str) -> None:
    """Rank 1 lowers nothing, and runs what the others have compiled in eager: none waits, all have the same numbers."""
    before = lampwork.stats()["compiled_backwards"]
    with _broken(rank):
        if kind == "function":
            compiled = lampwork.compile(_reducing)
            for step in range(3):
                x = _data(rank, step)
                wanted, count = _trained(_reducing, x.double().requires_grad_(), as_loss=True)
                found, ours = _trained(compiled, x.requires_grad_(), as_loss=True)
                sharded.close(found, wanted)
                assert ours == count
        elif kind == "fully_shard":
            net = sharded.network()
            fully_shard(net, mesh=sharded.mesh())
            model: Any = lampwork.compile(net)
            wanted = sharded.reference(range(dist.get_world_size()))
            sharded.close(sharded.train(model, net, rank), wanted)
        else:
            ours = data_parallel.trained(rank, "plain", torch.float32, "inside")
            data_parallel.close(ours, data_parallel.trained(rank, "plain", torch.float64, "nothing"))
    compiled_some = lampwork.stats()["compiled_backwards"] > before
    assert compiled_some == (rank != 1)


def ends_all(rank: int, kind: str) -> None:
    """The same where a rank may not fall back."""
    strict: Any = {"options": {"strict": True}}
    with _broken(rank):
        if kind == "function":
            lampwork.compile(_reducing, **strict)(_data(rank, 0))
            return
        net: Any = nn.Linear(4, 4)
        if kind == "fully_shard":
            fully_shard(net, mesh=sharded.mesh())
            net = lampwork.compile(net, **strict)
        else:
            net = DistributedDataParallel(lampwork.compile(net, **strict))
        net(torch.ones(4, 4)).sum().backward()
    dist.barrier()


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


class Block(nn.Module):
    """A transformer block, whose heads and units can be divided between ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        y = nn.functional.scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


WIDTH, HEAD = 32, 8


def tensor_parallel_block(rank: int) -> None:
    """Layers of DTensors and what is between them are one region, forward and backward."""
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net = Block()
    whole = copy.deepcopy(net).double()
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan.update({name: RowwiseParallel() for name in ("o", "down")})  # pyright: ignore
    parallelize_module(net, sharded.mesh(), plan)
    before = lampwork.stats()
    compiled = lampwork.compile(net)
    for _ in range(3):
        net.zero_grad()
        result = compiled(x)
        result.square().mean().backward()
    after = lampwork.stats()
    wanted = whole(x.double())
    wanted.square().mean().backward()
    sharded.close([result.detach()], [wanted.detach()])  # pyright: ignore[reportPossiblyUnboundVariable]
    grads = zip(net.parameters(), whole.parameters(), strict=True)
    for ours, theirs in grads:
        sharded.close([sharded.whole(cast(Tensor, ours.grad))], [cast(Tensor, theirs.grad)])
    assert after["breaks"] == before["breaks"] and after["regions"] - before["regions"] == 1, after
    assert after["recompiles"] == before["recompiles"] and after["eager_calls"] == before["eager_calls"]
    assert after["compiled_backwards"] - before["compiled_backwards"] == 2


def backward_reduces_values_of_forward(rank: int) -> None:
    """A collective of backward is started there, where a rank that runs in eager starts it, though it could be earlier:
    that of a norm of parts, which its gradient is divided by."""

    def norm(x: Tensor) -> Tensor:
        return x.norm()

    compiled = lampwork.compile(norm)
    mesh, whole = sharded.mesh(), torch.arange(1.0, 25.0).view(4, 6)
    for step in range(4):
        called = compiled if rank == 0 or step < 2 else norm
        x = distribute_tensor(whole + step, mesh, [Shard(1)]).requires_grad_()
        y = cast(Any, called(x)).full_tensor()
        between = y.detach().clone()
        dist.all_reduce(between)
        y.backward()
        wide = (whole + step).double()
        total = wide.norm()
        found = [y.detach(), between, sharded.whole(cast(Tensor, x.grad))]
        sharded.close(found, [total, total * dist.get_world_size(), wide / total])
    if rank == 0:
        assert "all_reduce" in str(compiled.stages.backward)
        assert "all_reduce" not in str(compiled.stages.forward)


def one_folder(rank: int) -> None:
    """Ranks that tune at the same time keep what they find in one folder."""
    found: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(found)
    layer = nn.Linear(32, 48)
    options: Any = {"cache": found[0], "tuning_seconds": 2.0, "strict": True}
    for _ in range(2):
        dist.barrier()
        compiled = lampwork.compile(layer, mode="max-autotune", options=options)
        with torch.no_grad():
            x = torch.randn(16, 32)
            sharded.close([compiled(x)], [layer(x).double()])
        forget()
    dist.barrier()
    entries = list(Path(found[0], "tuning").iterdir())
    assert entries and all(json.loads(entry.read_text())["variant"] is not None for entry in entries)


TASKS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    **{f"in graph: {name}": (in_graph, (name, "value")) for name in (*FUNCTIONAL, *WITHOUT_GRADIENTS)},
    **{f"as a loss: {name}": (in_graph, (name, "loss")) for name in ("all_reduce", "all_gather_tensor")},
    "of sizes that differ": (in_graph, ("reduce_scatter_tensor", "sizes")),
    "in order": (in_order, ()),
    "asked again": (asked_again, ()),
    "fails behind": (fails_behind, ()),
    "waited behind a break": (waited_behind_a_break, ()),
    "backward again": (backward_again, ()),
    "tensor parallel block": (tensor_parallel_block, ()),
    "backward reduces values of forward": (backward_reduces_values_of_forward, ()),
    "one folder": (one_folder, ()),
    **{f"falls back: {kind}": (falls_back, (kind,)) for kind in ("function", "fully_shard", "DDP")},
}
