"""Operators of torch.library that the tests of this folder share: registered once a process."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

LIBRARY = torch.library.Library("lw_custom", "DEF")
calls: list[str] = []
lock = threading.Lock()


@torch.library.custom_op("lw_custom::add_div", mutates_args=())
def add_div(x: Tensor, y: Tensor, c: float) -> Tensor:
    with lock:
        calls.append("add_div")
    return (x + y) / c


@add_div.register_fake
def _(x: Tensor, y: Tensor, c: float) -> Tensor:
    return torch.empty_like(x + y)


@torch.library.custom_op("lw_custom::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return x * 3


@torch.library.custom_op("lw_custom::both", mutates_args=())
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x.sum(-1)


@both.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1])


@torch.library.custom_op("lw_custom::multiples", mutates_args=())
def multiples(x: Tensor, n: int) -> list[Tensor]:
    return [x * i for i in range(n)]


@multiples.register_fake
def _(x: Tensor, n: int) -> list[Tensor]:
    return [torch.empty_like(x) for _ in range(n)]


@torch.library.custom_op("lw_custom::note", mutates_args=())
def note(x: Tensor) -> None:
    calls.append(f"note {float(x.sum()):.1f}")


@note.register_fake
def _(x: Tensor) -> None:
    return None


@torch.library.custom_op("lw_custom::increase", mutates_args=("x",))
def increase(x: Tensor, by: float) -> None:
    x.add_(by)


@torch.library.custom_op("lw_custom::pop", mutates_args=("x",))
def pop(x: Tensor) -> Tensor:
    last = x[-1].clone()
    x[-1] = 0
    return last


@pop.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x[-1])


@torch.library.custom_op("lw_custom::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0])


def _square_backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    return grad * 2 * ctx.saved_tensors[0]


square.register_autograd(_square_backward, setup_context=_keep)

LIBRARY.define("scale(Tensor x, Scalar factor) -> Tensor")
LIBRARY.impl("scale", lambda x, factor: x * factor, "CPU")
torch.library.register_fake("lw_custom::scale", lambda x, factor: torch.empty_like(x), lib=LIBRARY)
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda x: torch.relu(x) + 1, "CompositeImplicitAutograd")
