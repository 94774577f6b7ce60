"""Tasks of ranks: DTensors in compiled functions and modules, against eager DTensors and a whole network in float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import lampwork
from lampwork.errors import LoweringError

WIDTH, HEAD, ROWS, WORDS = 16, 4, 8, 10
STEPS = 3


class Mlp(nn.Module):
    def __init__(self, hidden: int = 2 * WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.first, self.last = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(torch.nn.functional.silu(self.up(self.last(x))))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.mlp, self.head = (
            nn.Embedding(WORDS, WIDTH),
            Mlp(),
            nn.Linear(WIDTH, WORDS, bias=False),
        )

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.mlp(self.words(words)))


MLP: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def _block(mesh: DeviceMesh) -> nn.Module:
    """Activations between the layers are DTensors that are sharded by sequence."""
    net = Block()
    plan: dict[str, Any] = {
        "first": SequenceParallel(),
        "last": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    whole = parallelize_module(net, mesh, plan)
    whole = parallelize_module(
        whole, mesh, PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
    )
    return parallelize_module(
        whole, mesh, PrepareModuleOutput(output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),))
    )


def _language(mesh: DeviceMesh) -> nn.Module:
    plan: dict[str, Any] = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        **{f"mlp.{name}": style for name, style in MLP.items()},
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(Language(), mesh, plan)


NETWORKS: dict[str, Callable[[DeviceMesh], nn.Module]] = {
    "columns and rows": lambda mesh: parallelize_module(Mlp(), mesh, MLP),
    "attention": lambda mesh: parallelize_module(
        Attention(), mesh, {**{name: ColwiseParallel() for name in "qkv"}, "o": RowwiseParallel()}
    ),
    "sequence": _block,
    "language": _language,
    "uneven": lambda mesh: parallelize_module(
        Mlp(7), mesh, {**MLP, "up": ColwiseParallel(use_local_output=False)}
    ),
}
WHOLE: dict[str, Callable[[], nn.Module]] = {
    "columns and rows": Mlp,
    "attention": Attention,
    "sequence": Block,
    "language": Language,
    "uneven": lambda: Mlp(7),
}


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _batch(name: str, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    if name == "language":
        return torch.randint(WORDS, (2, ROWS), generator=generator)
    return torch.randn(2, ROWS, WIDTH, generator=generator)


def started() -> int:
    """How many collectives this rank has started."""
    return cast(Any, dist.group.WORLD)._get_sequence_number_for_group()


def full(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def close(ours: Any, wanted: Any) -> None:
    torch.testing.assert_close(
        full(ours).double(), full(wanted).double(), rtol=1e-4, atol=1e-5, equal_nan=True
    )


def alike(ours: Any, theirs: Any) -> None:
    """The same numbers, sharded as eager's. What eager gives while it is still coming has come."""
    theirs = theirs.wait() if isinstance(theirs, AsyncCollectiveTensor) else theirs
    assert type(ours) is type(theirs)
    if isinstance(ours, DTensor):
        assert ours._spec == theirs._spec, (ours._spec, theirs._spec)
        assert ours.requires_grad == theirs.requires_grad
    close(ours, theirs)


def made(name: str, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """The network of DTensors, and the same one whole, in float64."""
    torch.manual_seed(seed)
    net = NETWORKS[name](mesh())
    torch.manual_seed(seed)
    return net, WHOLE[name]().double()


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def inferred(rank: int, name: str) -> None:
    net, whole = made(name)
    before = lampwork.stats()
    compiled = lampwork.compile(net)
    for step in range(STEPS):
        x = _batch(name, step)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                first = started()
                theirs = net(x)
                count = started() - first
                ours = compiled(x)
                assert started() - first == 2 * count
            alike(ours, theirs)
            close(ours, whole(_double(x)))
    after = lampwork.stats()
    assert after["breaks"] == before["breaks"] and after["eager_calls"] == before["eager_calls"]
    assert after["regions"] - before["regions"] == 2


def trained(rank: int, name: str, failing: bool = False) -> None:
    """Whole steps: results, gradients as eager's are sharded, weights after the steps; eager's collectives."""
    net, whole = made(name)
    twin = copy.deepcopy(net)
    before = lampwork.stats()
    compiled: Any = lampwork.compile(net)
    models: list[tuple[Any, nn.Module]] = [(compiled, net), (twin, twin), (whole, whole)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for _, model in models]
    for step in range(STEPS):
        found: list[Any] = []
        counts: list[int] = []
        for number, ((call, _), optimizer) in enumerate(zip(models, optimizers, strict=True)):
            x = _batch(name, step)
            first = started()
            given = _double(x) if number == 2 else x
            if given.is_floating_point():
                given = given.clone().requires_grad_()
            optimizer.zero_grad()
            result = call(given)
            (result.sum() / 100 if failing else result.square().mean()).backward()
            counts.append(started() - first)
            optimizer.step()
            found.append((result, given.grad))
        assert counts[0] == counts[1], counts
        for ours, theirs, wanted in zip(*found, strict=True):
            if ours is not None:
                alike(ours, theirs)
                close(ours, wanted)
        for ours, theirs, wanted in zip(*(model.parameters() for _, model in models), strict=True):
            alike(ours.grad, theirs.grad)
            close(ours.grad, wanted.grad)
            alike(ours, theirs)
    after = lampwork.stats()
    if not failing:
        breaks = 1 if name == "language" else 0  # a lookup in sharded rows
        assert after["breaks"] - before["breaks"] == breaks and after["eager_calls"] == before["eager_calls"]
        assert after["compiled_backwards"] - before["compiled_backwards"] == STEPS - 1, after


def foreseen(rank: int, name: str) -> None:
    """A function that returns a loss is compiled forward and backward before its first call."""
    net, whole = made(name)

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return net(x).square().mean()

    before = lampwork.stats()
    compiled: Any = lampwork.compile(loss)
    for step in range(STEPS):
        x = _batch(name, step)
        net.zero_grad()
        whole.zero_grad()
        compiled(net, x).backward()
        loss(whole, _double(x)).backward()
        for ours, wanted in zip(net.parameters(), whole.parameters(), strict=True):
            close(ours.grad, wanted.grad)
    after = lampwork.stats()
    assert after["breaks"] == before["breaks"] and after["eager_backwards"] == before["eager_backwards"]
    assert after["compiled_backwards"] - before["compiled_backwards"] == STEPS


def falls_back(rank: int, name: str) -> None:
    """Rank 1 compiles nothing, and runs in eager what the others have compiled: none waits for another."""
    broken = mock.patch(
        "lampwork.backends.native.compile.lower_graph", side_effect=LoweringError("injected on one rank")
    )
    with broken if rank == 1 else contextlib.nullcontext():
        trained(rank, name, failing=True)


# --- functions ----------------------------------------------------------------------------------------------------


def _sums(x: Any, y: Any) -> Any:
    return (x * 2 + y).sum(0), -x, x.mean() * 3


def _products(x: Any, y: Any) -> Any:
    return torch.softmax(x @ y.t(), -1), torch.nn.functional.linear(x, y)


def _shapes(x: Any, y: Any) -> Any:
    return x[:, 0], x.transpose(0, 1).contiguous(), torch.cat([x, y]), x.unsqueeze(0).expand(2, -1, -1)


def _moves(x: Any, y: Any) -> Any:
    there = x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)
    back = (
        (there + y).redistribute(placements=x.placements)
        if not any(p.is_partial() for p in x.placements)
        else there
    )
    return back.relu(), y.to_local().exp(), (x + y).full_tensor() * 2


def _asks(x: Any, y: Any) -> Any:
    size = x.shape[0] + x.ndim + (1 if isinstance(x, DTensor) and x.dtype is torch.float32 else 0)
    same = x.placements == y.placements and x.device_mesh == y.device_mesh
    parts = any(isinstance(place, Shard) and place.dim == 0 for place in x.placements)
    return x * size if same or (parts and x.requires_grad) else y * (size + len(x))


def _writes(x: Any, y: Any) -> Any:
    z = x * 1
    z += y.detach()
    if not x.requires_grad:
        x.mul_(2)
    return z.relu_(), x + 1


def _looks(x: Any, y: Any) -> Any:
    rows = [row * 2 for row in x.full_tensor()]
    y = y if x.full_tensor().sum() > 0 else -y
    return torch.stack(rows) if rows else y * 1, y


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sums": _sums,
    "products": _products,
    "shapes": _shapes,
    "moves": _moves,
    "asks": _asks,
    "writes": _writes,
    "looks": _looks,
}
PLACEMENTS: tuple[tuple[Any, Any], ...] = (
    (Replicate(), Replicate()),
    (Shard(0), Shard(0)),
    (Shard(1), Replicate()),
    (Shard(0), Shard(1)),
    (Partial(), Shard(0)),
)
SIZES = ((8, 4), (5, 3), (1, 2), (0, 3))
IN_TWO_DIMENSIONS: tuple[tuple[Any, Any], ...] = (
    ((Shard(0), Shard(1)), (Shard(0), Replicate())),
    ((Replicate(), Shard(0)), (Shard(1), Shard(0))),
    ((Partial(), Shard(1)), (Replicate(), Replicate())),
    ((Shard(0), Shard(0)), (Shard(0), Shard(0))),
)


def _placed(seed: int, size: tuple[int, ...], where: DeviceMesh, placements: Any, trains: bool) -> Any:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    partial = [place.is_partial() for place in placements]
    shown = [Replicate() if flag else place for place, flag in zip(placements, partial, strict=True)]
    made = distribute_tensor(values, where, shown)
    if any(partial):
        made = DTensor.from_local(made.to_local(), where, placements, shape=made.shape, stride=made.stride())
    return made.detach().requires_grad_(trains)


def _called(call: Any, given: list[Any]) -> tuple[list[Any], list[Any], int]:
    """What a function gives, the gradients of a sum of it, and how many collectives that took."""
    first = started()
    found = call(*given)
    results = [found] if isinstance(found, Tensor) else list(found)
    gradients: list[Any] = []
    if given[0].requires_grad:
        whole = [result.full_tensor() if isinstance(result, DTensor) else result for result in results]
        loss: Any = sum((tensor * tensor).sum() for tensor in whole if tensor.requires_grad)
        gradients = list(torch.autograd.grad(loss, given, allow_unused=True))
    return results, gradients, started() - first


def function(rank: int, name: str, in_two: bool = False) -> None:
    """Results are sharded as eager's, and so are gradients, for sizes that processes share unevenly too."""
    where = init_device_mesh("cpu", (2, dist.get_world_size() // 2)) if in_two else mesh()
    pairs = IN_TWO_DIMENSIONS if in_two else tuple(((x,), (y,)) for x, y in PLACEMENTS)
    call = FUNCTIONS[name]
    for number, pair in enumerate(pairs):
        compiled = lampwork.compile(call)
        for size in SIZES[: 1 if number and number + 1 < len(pairs) else None]:
            for trains in (False, True):
                outcomes: list[Any] = []
                for run in (call, compiled, compiled):
                    given = [_placed(i, size, where, places, trains) for i, places in enumerate(pair)]
                    try:
                        outcomes.append((*_called(run, given), given))
                    except (RuntimeError, IndexError) as error:
                        outcomes.append(type(error))
                for found in outcomes[1:]:
                    _agree(found, outcomes[0])


def _agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, type):
        assert found is wanted, (found, wanted)
        return
    assert found[2] == wanted[2], f"{found[2]} collectives, {wanted[2]} in eager"
    for part in (0, 1, 3):
        for ours, theirs in zip(found[part], wanted[part], strict=True):
            if theirs is None:
                assert ours is None
            else:
                alike(ours, theirs)


# --- other ways to train ------------------------------------------------------------------------------------------


def watched(rank: int, kind: str) -> None:
    """What else a backward may be asked for."""
    found: list[Any] = []
    for compiles in (False, True):
        net, _ = made("columns and rows")
        model: Any = lampwork.compile(net) if compiles else net
        heard: list[Any] = []
        x = _batch("", 0)
        for step in range(STEPS):
            x = _batch("", step).requires_grad_()
            first = started()
            if kind == "hooks":
                handle = cast(Any, net).up.weight.register_hook(
                    lambda grad, heard=heard: heard.append(grad) or grad * 2
                )
                model(x).square().mean().backward()
                handle.remove()
            elif kind == "twice":
                loss = model(x).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
            elif kind == "of gradients":
                (made_,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
                made_.square().sum().backward()
            elif kind == "of the input":
                heard += torch.autograd.grad(model(x).sum(), x)
            elif kind == "frozen":
                cast(Any, net).up.requires_grad_(step % 2 == 0)
                model(x).square().mean().backward()
            else:  # in eager, and without gradients, between
                with torch.no_grad():
                    heard.append(model(x))
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                    model(x).square().mean().backward()
            heard.append(torch.tensor(started() - first))
        found.append((heard, [p.grad for p in net.parameters()], [x.grad]))
    for ours, theirs in zip(*found, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            if other is None:
                assert mine is None
            else:
                alike(mine, other)


def optimized(rank: int, kind: str) -> None:
    """Optimizers of DTensors, compiled too, after clipped gradients: eager's weights."""
    found: list[Any] = []
    for compiles in (False, True):
        net, _ = made("sequence")
        model: Any = lampwork.compile(net) if compiles else net
        optimizer = (
            torch.optim.AdamW(net.parameters(), 1e-2, eps=1e-2, foreach=kind == "foreach")
            if kind != "SGD"
            else torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        )
        step: Any = lampwork.compile(optimizer.step) if compiles else optimizer.step
        norm: Any = None
        for number in range(STEPS):
            optimizer.zero_grad()
            model(_batch("", number)).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=False)
            step()
        found.append([norm, *net.parameters()])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


def versions(rank: int) -> None:
    """What a version was made for is looked at on each call."""

    def twins(x: Any, y: Any) -> Any:
        return x * 2 if x is y else x + y

    same: Any = lampwork.compile(twins)
    pair = [_placed(i, (4, 4), mesh(), (Shard(0),), False) for i in range(2)]
    for given in ((pair[0], pair[1]), (pair[0], pair[0]), (pair[1], pair[0])):
        alike(same(*given), twins(*given))
    net = nn.Linear(WIDTH, WIDTH)
    values = net.weight.detach().clone()
    where, compiled = mesh(), lampwork.compile(net)
    x = _batch("", 0)[0]
    for placement in (Shard(0), Replicate(), Shard(1), Shard(0)):
        net.weight = nn.Parameter(distribute_tensor(values, where, [placement]))
        net.bias = nn.Parameter(distribute_tensor(torch.zeros(WIDTH), where, [Replicate()]))
        given = distribute_tensor(x, where, [Replicate()])
        for trains in (True, False):
            net.requires_grad_(trains)
            for _ in range(2):
                alike(compiled(given), net(given))
        with torch.no_grad():
            cast(Any, net.weight).mul_(2)
            alike(compiled(given), net(given))
    local = cast(Any, net.weight)._local_tensor
    cast(Any, net.weight)._local_tensor = torch.zeros_like(local)
    close(compiled(given), torch.zeros(ROWS, WIDTH))


def breaks(rank: int) -> None:
    """What is a graph break: rules of dispatch and autocast, and a process that has no part of the mesh."""

    def loss(logits: Tensor, targets: Tensor) -> Any:
        return nn.functional.cross_entropy(logits * 1, targets)

    compiled: Any = lampwork.compile(loss)
    logits = distribute_tensor(
        torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), mesh(), [Shard(1)]
    )
    targets = torch.arange(6)
    for _ in range(2):
        with loss_parallel():
            given = logits.detach().requires_grad_()
            result: Any = compiled(given, targets)
            result.backward()
            wanted: Any = loss(again := logits.detach().requires_grad_(), targets)
            wanted.backward()
        alike(result, wanted)
        alike(given.grad, again.grad)
    net, _ = made("columns and rows")
    model: Any = lampwork.compile(net)
    x = _batch("", 0)
    for _ in range(2):
        with torch.no_grad():
            alike(model(x), net(x))
            with torch.autocast("cpu"):
                alike(model(x), net(x))


class Dropped(Mlp):
    """Masks of local tensors, or of DTensors."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        hidden: Any = nn.functional.dropout(self.up(x), 0.5)
        hidden = hidden.to_local() if self.whole else hidden
        return nn.functional.dropout(self.down(nn.functional.dropout(hidden, 0.2)), 0.1)


def drawn(rank: int, whole: bool) -> None:
    """Random numbers are eager's, and backward has the masks of forward."""
    found: list[Any] = []
    for compiles in (False, True):
        torch.manual_seed(0)
        plan: dict[str, Any] = {**MLP, "up": ColwiseParallel(use_local_output=not whole)}
        net = parallelize_module(Dropped(whole), mesh(), plan)
        model: Any = lampwork.compile(net) if compiles else net
        heard: list[Any] = []
        for step in range(STEPS):
            torch.manual_seed(step)
            with torch.no_grad():
                heard.append(model(_batch("", step)))
            result = model(_batch("", step))
            result.square().mean().backward()
            heard += [result, torch.rand(1)]
        found.append([*heard, *(p.grad for p in net.parameters() if p.grad is not None)])
    for ours, theirs in zip(*reversed(found), strict=True):
        alike(ours, theirs)


def sharded_too(rank: int) -> None:
    """`fully_shard` along one dimension of a mesh, tensor parallelism along the other."""
    where = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    found: list[Any] = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net = parallelize_module(Mlp(), where["tp"], MLP)
        fully_shard(net, mesh=where["dp"])
        model: Any = lampwork.compile(net) if compiles else net
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(_batch("", 10 * step + where["dp"].get_local_rank())).square().mean().backward()
            optimizer.step()
        found.append(list(net.parameters()))
    for ours, theirs in zip(*found, strict=True):
        alike(ours, theirs)


TASKS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    **{f"inferred: {name}": (inferred, (name,)) for name in NETWORKS},
    **{f"trained: {name}": (trained, (name,)) for name in NETWORKS},
    **{f"foreseen: {name}": (foreseen, (name,)) for name in ("sequence", "uneven")},
    **{f"function: {name}": (function, (name,)) for name in FUNCTIONS},
    **{f"falls back: {name}": (falls_back, (name,)) for name in ("sequence", "columns and rows")},
    **{
        f"watched: {kind}": (watched, (kind,))
        for kind in ("hooks", "twice", "of gradients", "of the input", "frozen", "in between")
    },
    **{f"optimized: {kind}": (optimized, (kind,)) for kind in ("SGD", "foreach", "single")},
    **{f"drawn: {'DTensors' if whole else 'local'}": (drawn, (whole,)) for whole in (False, True)},
    "versions": (versions, ()),
    "breaks": (breaks, ()),
}
ON_FOUR: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    **{name: TASKS[name] for name in ("inferred: uneven", "trained: sequence", "trained: uneven")},
    **{f"in two dimensions: {name}": (function, (name, True)) for name in ("sums", "products", "moves")},
    "sharded too": (sharded_too, ()),
}
