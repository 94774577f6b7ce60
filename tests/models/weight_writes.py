"""Ways to write to a tensor's memory, and models whose weights lie in memory of all kinds.

A channel is a function of (tensor, where, value, keep): it writes `value` to `tensor[where]`. `keep` is a dict that
lives as long as the model: what a channel puts there (an array, a capsule's consumer) is alive between calls.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

Where = tuple[Any, ...]
Keep = dict[Any, Any]
Channel = Callable[[Tensor, Where, float, Keep], None]


def kept(keep: Keep, kind: str, tensor: Tensor, make: Callable[[], Any]) -> Any:
    """What `make` gave for this memory before, else now."""
    key = (kind, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
    if key not in keep:
        keep[key] = make()
    return keep[key]


def no_grad(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    with torch.no_grad():
        t[where] = value


def in_inference_mode(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    with torch.inference_mode():
        t[where] = value


def data(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    t.data[where] = value


def data_add(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    t.data[where] += value


def data_whole(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    delta = torch.zeros_like(t)
    delta[where] = value
    t.data += delta


def data_kept(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    kept(keep, "data", t, lambda: t.data)[where] = value


def detach(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    t.detach()[where] = value


def numpy(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    t.detach().numpy()[where] = value


def numpy_kept(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    kept(keep, "numpy", t, lambda: t.detach().numpy())[where] = value


def numpy_round_trip(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    torch.from_numpy(t.detach().numpy())[where] = value


def dlpack(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    torch.from_dlpack(t.detach())[where] = value


def dlpack_kept(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    kept(keep, "dlpack", t, lambda: torch.from_dlpack(t.detach()))[where] = value


def storage(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    _write_bytes(t.untyped_storage(), t, where, value)


def storage_kept(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    held = kept(keep, "storage", t, t.untyped_storage)
    _write_bytes(held, t, where, value)


def storage_slice(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    at = _first_byte(t, where)
    part = kept(keep, "slice", t, lambda: t.untyped_storage()[0 : t.untyped_storage().nbytes()])
    for i, byte in enumerate(struct.pack("f", value)):
        part[at + i] = byte


def storage_copy(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    copy = t.untyped_storage().clone()
    _write_bytes(copy, t, where, value)
    t.untyped_storage().copy_(copy)


def alias_by_set(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    alias = torch.empty(0)
    alias.set_(t.detach())
    alias[where] = value


def lazy_clone(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    clone = t.detach()._lazy_clone()
    clone.add_(1)
    t.data[where] = value


def address(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    start = t.data_ptr() - 4 * t.storage_offset()
    ctypes.memmove(start + _first_byte(t, where), struct.pack("f", value), 4)


def in_a_thread(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    thread = threading.Thread(target=data, args=(t, where, value, keep))
    thread.start()
    thread.join()


def foreach(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    delta = torch.zeros_like(t)
    delta[where] = value
    torch._foreach_add_([t.data], [delta])


def foreach_no_grad(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    delta = torch.zeros_like(t)
    delta[where] = value
    with torch.no_grad():
        torch._foreach_add_([t], [delta])


def lerp(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    target = t.detach().clone()
    target[where] = value
    t.data.lerp_(target, 0.75)


def assign_data(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    new = t.detach().clone()
    new[where] = value
    t.data = new


def set_(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    new = t.detach().clone()
    new[where] = value
    with torch.no_grad():
        t.set_(new)


def swap(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    if weakref.getweakrefs(t):  # nn.LSTM has some; swap_tensors refuses
        return assign_data(t, where, value, keep)
    new = t.detach().clone()
    new[where] = value
    torch.utils.swap_tensors(t, nn.Parameter(new, t.requires_grad) if isinstance(t, nn.Parameter) else new)


def optimizer_step(t: Tensor, where: Where, value: float, keep: Keep, **options: Any) -> None:
    if not t.is_leaf or not t.requires_grad:
        return no_grad(t, where, value, keep)
    t.grad = torch.zeros_like(t)
    t.grad[where] = value
    torch.optim.SGD([t], lr=0.5, **options).step()
    t.grad = None


def fused_optimizer(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    optimizer_step(t, where, value, keep, fused=True)


def foreach_optimizer(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    optimizer_step(t, where, value, keep, foreach=True)


def resize_storage(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    new = t.detach().clone()
    new[where] = value
    size = t.untyped_storage().nbytes()
    if not t.untyped_storage().resizable():  # once NumPy has seen it
        return assign_data(t, where, value, keep)
    t.untyped_storage().resize_(0)
    t.untyped_storage().resize_(size)
    t.data.copy_(new)


def in_a_child(t: Tensor, where: Where, value: float, keep: Keep) -> None:
    """From another process, which sees the same memory if it is shared, and else changes nothing here."""
    pid = os.fork()
    if pid == 0:
        t.detach().numpy()[where] = value
        os._exit(0)
    os.waitpid(pid, 0)


def _first_byte(t: Tensor, where: Where) -> int:
    part = t.detach()[where]
    return part.storage_offset() * 4


def _write_bytes(into: Any, t: Tensor, where: Where, value: float) -> None:
    at = _first_byte(t, where)
    for i, byte in enumerate(struct.pack("f", value)):
        into[at + i] = byte


# For memory that torch allocated, or else everywhere.
OWN_MEMORY: tuple[Channel, ...] = (lazy_clone, resize_storage)
EVERYWHERE: tuple[Channel, ...] = (
    no_grad,
    in_inference_mode,
    data,
    data_add,
    data_whole,
    data_kept,
    detach,
    numpy,
    numpy_kept,
    numpy_round_trip,
    dlpack,
    dlpack_kept,
    storage,
    storage_kept,
    storage_slice,
    storage_copy,
    alias_by_set,
    address,
    in_a_thread,
    foreach,
    foreach_no_grad,
    lerp,
    assign_data,
    set_,
    swap,
    optimizer_step,
    fused_optimizer,
    foreach_optimizer,
)


def somewhere(rng: Random, tensor: Tensor) -> Where:
    """An element, mostly; or a row, a column, a diagonal, a half, all."""
    if tensor.dim() == 0:
        return ()
    element = tuple(rng.randrange(size) for size in tensor.shape)
    if tensor.dim() == 1:
        return rng.choice((element, element, (slice(rng.randrange(tensor.shape[0]), None),)))
    square = list(range(min(tensor.shape[:2])))
    return rng.choice(
        (
            element,
            element,
            element,
            element[:1],
            (slice(None), element[1]),
            (square, square),
            (slice(tensor.shape[0] // 2, None),),
            (slice(None),),
        )
    )


# --- models ------------------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """Convolution, batch norm, a matrix product: all three are folded or packed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.silu(self.bn(self.conv(x))).mean((2, 3)))


class Tied(nn.Module):
    """One weight is an embedding's, and the last product's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x))))


class Derived(nn.Module):
    """What depends on weights alone is computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(16, 16) * 0.3)
        self.right = nn.Parameter(torch.randn(16, 16) * 0.3)
        self.register_buffer("scale", torch.rand(16) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.left @ self.right.t()) * self.scale.exp() + self.left.sum()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def models(rng: Random) -> tuple[nn.Module, Tensor]:
    """A small model in eval mode, and an input."""
    rows = rng.choice((1, 3, 40))
    return rng.choice(
        (
            lambda: (Pixels().eval(), torch.randn(min(rows, 4), 3, 7, 7)),
            lambda: (Tied().eval(), torch.randint(0, 40, (rows, 5))),
            lambda: (Derived().eval(), torch.randn(rows, 16)),
            lambda: (Recurrent().eval(), torch.randn(min(rows, 3), 4, 12)),
            lambda: (
                nn.Sequential(
                    nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 40), nn.LayerNorm(40, eps=1.0)
                ).eval(),
                torch.randn(rows, 24),
            ),
        )
    )()


def floats(model: nn.Module) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [t for t in tensors if t.dtype == torch.float32]


def _as_they_are(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    return OWN_MEMORY


def _views_of_one_buffer(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    flat = torch.cat([t.detach().flatten() for t in floats(model)])
    at = 0
    for t in floats(model):
        t.data = flat[at : at + t.numel()].view_as(t)
        at += t.numel()

    def through_the_buffer(t: Tensor, where: Where, value: float, keep: Keep) -> None:
        if t.untyped_storage()._cdata == flat.untyped_storage()._cdata:
            flat[_first_byte(t, where) // 4] = value

    return (through_the_buffer,)


def _from_numpy(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    arrays: dict[int, np.ndarray[Any, Any]] = {}
    for t in floats(model):
        array = t.detach().numpy().copy()
        t.data = torch.from_numpy(array)
        arrays[t.data_ptr()] = array

    def through_the_array(t: Tensor, where: Where, value: float, keep: Keep) -> None:
        if t.data_ptr() in arrays:
            arrays[t.data_ptr()][where] = value

    return (through_the_array,)


def _mapped_files(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    maps: dict[int, Any] = {}
    for t in floats(model):
        with tempfile.NamedTemporaryFile() as file:
            mapped = np.memmap(file.name, np.float32, "w+", shape=tuple(t.shape))
        mapped[...] = t.detach().numpy()
        t.data = torch.from_numpy(mapped)
        maps[t.data_ptr()] = mapped

    def through_the_map(t: Tensor, where: Where, value: float, keep: Keep) -> None:
        if t.data_ptr() in maps:
            maps[t.data_ptr()][where] = value

    return (through_the_map,)


def _shared_memory(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    model.share_memory()
    return (in_a_child,)


def _safetensors(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    """Slices of a mapped file; for each tensor another one over the same memory."""
    others: dict[int, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.safetensors")
        save_file({str(i): t.detach().contiguous() for i, t in enumerate(floats(model))}, path)
        with safe_open(path, "pt") as file:
            for i, t in enumerate(floats(model)):
                t.data = file.get_tensor(str(i))
                if i % 2:
                    others[t.data_ptr()] = file.get_tensor(str(i))

    def through_the_other(t: Tensor, where: Where, value: float, keep: Keep) -> None:
        if t.data_ptr() in others:
            others[t.data_ptr()][where] = value

    return (through_the_other,)


def _results(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    import lampwork

    with torch.no_grad():
        for t in floats(model):
            t.data = lampwork.compile(lambda x: x + 0.25)(t.detach())
    return ()  # torch clones lazily only what its own allocator gave


def _aliases_from_before(model: nn.Module, keep: Keep) -> tuple[Channel, ...]:
    for t in floats(model):
        kept(keep, "numpy", t, lambda t=t: t.detach().numpy())
        kept(keep, "dlpack", t, lambda t=t: torch.from_dlpack(t.detach()))
        kept(keep, "storage", t, t.untyped_storage)
    return ()


MEMORY: tuple[Callable[[nn.Module, Keep], tuple[Channel, ...]], ...] = (
    _as_they_are,
    _as_they_are,
    _as_they_are,
    _views_of_one_buffer,
    _from_numpy,
    _mapped_files,
    _shared_memory,
    _safetensors,
    _results,
    _aliases_from_before,
)
