"""Random differentiable functions, and the ways in which a program can ask for their gradients."""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

F = nn.functional
WIDTH = 6

Body = Callable[[Tensor], Tensor]


# --- functions --------------------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


class Sorted(torch.autograd.Function):
    """A result without a gradient beside one that has."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        ctx.set_materialize_grads(False)
        return values, places

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (places,) = ctx.saved_tensors
        grad = grads[0]
        return None if grad is None else torch.zeros_like(grad).scatter(-1, places, grad)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 2


class OfKept(torch.autograd.Function):
    """What backward needs is an attribute of the context, and tells what it does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.exp()
        return ctx.kept * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.kept


def in_place(x: Tensor, weight: Tensor) -> Tensor:
    y = x * 2
    y[:, 0] = x[:, 1]
    y[:, 1:3].mul_(y[:, 3:5].clone())
    return y.sin()


def overwritten(x: Tensor, weight: Tensor) -> Tensor:
    y = x.sin()
    return y.mul_(2).add_(x).relu_() * y


def without_gradients(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        top = x.amax(1, keepdim=True)
    powers = (x - top).exp()
    return powers / powers.sum(1, keepdim=True)


def with_gradients_again(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x.sin()
    return y * z


def a_gradient_inside(x: Tensor, weight: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad((z**3).sum(), z)
    return x * grad


def hooked(x: Tensor, weight: Tensor) -> Tensor:
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 2)
    return y * x


def checkpointed(x: Tensor, weight: Tensor) -> Tensor:
    return checkpoint(lambda z: (z @ weight).tanh(), x, use_reentrant=False) * x


def split(x: Tensor, weight: Tensor) -> Tensor:
    first, second = x.split(WIDTH // 2, 1)
    return torch.cat([first * second, second.sin()], 1)


STEPS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sin": lambda x, weight: x.sin() * x,
    "product": lambda x, weight: (x @ weight).tanh(),
    "log_softmax": lambda x, weight: F.log_softmax(x @ weight, -1),
    "layer_norm": lambda x, weight: F.layer_norm(x, (WIDTH,), weight[0], weight[1]),
    "gelu": lambda x, weight: F.gelu(x + weight[2]),
    "dropout": lambda x, weight: F.dropout(x, 0.3),
    "mean": lambda x, weight: x - x.mean(0),
    "sum": lambda x, weight: x.sum(1, keepdim=True) * x,
    "cumsum": lambda x, weight: x.cumsum(1),
    "take": lambda x, weight: x.gather(1, torch.arange(WIDTH, device=x.device).flip(0).expand_as(x)),
    "where": lambda x, weight: torch.where(x > 0, x, x * weight[3]),
    "view": lambda x, weight: x.reshape(-1, 2, WIDTH // 2).transpose(1, 2).flatten(1),
    "attention": lambda x, weight: F.scaled_dot_product_attention(x[None], (x @ weight)[None], x[None])[0],
    "detached": lambda x, weight: x * x.detach().abs(),
    "cube": lambda x, weight: Cube.apply(x),
    "sorted": lambda x, weight: Sorted.apply(x)[0],
    "dirty": lambda x, weight: InPlace.apply(x * 1),
    "kept": lambda x, weight: OfKept.apply(x.tanh()),
    "in_place": in_place,
    "overwritten": overwritten,
    "no_grad": without_gradients,
    "enable_grad": with_gradients_again,
    "grad": a_gradient_inside,
    "hook": hooked,
    "checkpoint": checkpointed,
    "split": split,
}  # fmt: skip


def body_of(rng: random.Random, weight: Tensor) -> tuple[str, Body]:
    """A function of a tensor [rows, 6] to one of the same shape, and the names of its steps."""
    names = rng.choices(list(STEPS), k=rng.choice([1, 2, 2, 3, 4]))
    steps = [STEPS[name] for name in names]
    residual = rng.random() < 0.4

    def body(x: Tensor) -> Tensor:
        y = x
        for step in steps:
            y = y + step(y, weight) if residual else step(y, weight)
        return y

    return (" + " if residual else " ").join(names), body


# --- uses -------------------------------------------------------------------------------------------------------------


def loss_of(y: Tensor) -> Tensor:
    return y.square().sum() + y.sum()


def backward(f: Body, x: Tensor, weight: Tensor) -> Any:
    loss = loss_of(f(x))
    loss.backward()
    return loss, x.grad, weight.grad


def accumulated(f: Body, x: Tensor, weight: Tensor) -> Any:
    for _ in range(2):
        loss_of(f(x)).backward()
    return x.grad, weight.grad


def retained(f: Body, x: Tensor, weight: Tensor) -> Any:
    loss = loss_of(f(x))
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, weight.grad


def twice_without_retaining(f: Body, x: Tensor, weight: Tensor) -> Any:
    loss = loss_of(f(x))
    loss.backward()
    loss.backward()
    return x.grad


def of_part(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    first = torch.autograd.grad(y[0].sum(), x, retain_graph=True)
    return first, torch.autograd.grad(y[-1:].sum(), [x, weight], allow_unused=True)


def of_weight_alone(f: Body, x: Tensor, weight: Tensor) -> Any:
    return torch.autograd.grad(loss_of(f(x.detach())), weight, allow_unused=True)


def frozen(f: Body, x: Tensor, weight: Tensor) -> Any:
    weight.requires_grad_(False)
    try:
        loss_of(f(x)).backward()
        return x.grad, weight.grad, f(x.detach())
    finally:
        weight.requires_grad_()


def of_gradient(f: Body, x: Tensor, weight: Tensor) -> Any:
    (grad,) = torch.autograd.grad(loss_of(f(x)), x, create_graph=True)
    if not grad.requires_grad:
        return grad
    return grad, torch.autograd.grad(grad.square().sum(), [x, weight], allow_unused=True)


def penalty(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (y.mean() + grad.square().mean()).backward()
    return x.grad, weight.grad


def of_intermediate(f: Body, x: Tensor, weight: Tensor) -> Any:
    z = x * 2
    z.retain_grad()
    y = f(z)
    y.retain_grad()
    loss_of(y).backward()
    return z.grad, y.grad, x.grad


def result_written(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    y.mul_(2)
    loss_of(y).backward()
    return x.grad


def part_of_result_written(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    y[0] = 0
    y.view(-1)[1:].mul_(3)
    loss_of(y).backward()
    return x.grad


def argument_written(f: Body, x: Tensor, weight: Tensor) -> Any:
    loss = loss_of(f(x))
    with torch.no_grad():
        x.mul_(2)
    loss.backward()
    return x.grad, weight.grad


def weight_written(f: Body, x: Tensor, weight: Tensor) -> Any:
    loss = loss_of(f(x))
    with torch.no_grad():
        weight.mul_(1.01)
    loss.backward()
    return x.grad, weight.grad


def gradient_given(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    y.backward(torch.arange(1.0, y.numel() + 1, dtype=y.dtype, device=y.device).view(y.shape[::-1]).t())
    return x.grad


def gradient_expanded(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    y.backward(y.new_ones(()).expand_as(y))
    return x.grad


def gradient_of_wrong_shape(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    y.backward(y.new_ones(1, 1, 1))
    return x.grad


def gradients_batched(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    given = torch.stack([torch.ones_like(y), y.detach()])
    return torch.autograd.grad(y, x, given, is_grads_batched=True)


def hook_of_result(f: Body, x: Tensor, weight: Tensor) -> Any:
    seen: list[Tensor] = []
    y = f(x)
    y.register_hook(lambda grad: grad * 2)
    x.register_hook(lambda grad: seen.append(grad.clone()))
    loss_of(y).backward()
    return seen, x.grad


def hook_that_raises(f: Body, x: Tensor, weight: Tensor) -> Any:
    def fails(grad: Tensor) -> Tensor:
        raise ArithmeticError("as asked")

    y = f(x)
    y.register_hook(fails)
    loss_of(y).backward()
    return x.grad


def in_other_layout(f: Body, x: Tensor, weight: Tensor) -> Any:
    other = x.detach().t().contiguous().t().requires_grad_()
    loss_of(f(other)).backward()
    return other.grad, None if other.grad is None else other.grad.stride()


def of_view(f: Body, x: Tensor, weight: Tensor) -> Any:
    base = torch.cat([x.detach(), x.detach()]).requires_grad_()
    loss_of(f(base[::2])).backward()
    return base.grad


def gradient_there(f: Body, x: Tensor, weight: Tensor) -> Any:
    there = torch.ones_like(x)
    x.grad = there
    loss_of(f(x)).backward()
    return x.grad, there, x.grad is there


def of_functional(f: Body, x: Tensor, weight: Tensor) -> Any:
    return torch.func.grad(lambda z: loss_of(f(z)))(x.detach())


def of_vjp(f: Body, x: Tensor, weight: Tensor) -> Any:
    y, pull = torch.func.vjp(f, x.detach())
    return y, pull(y)


def of_jacobian(f: Body, x: Tensor, weight: Tensor) -> Any:
    return torch.autograd.functional.jacobian(f, x.detach())


def of_dual(f: Body, x: Tensor, weight: Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x.detach(), torch.ones_like(x)))))


def in_autocast(f: Body, x: Tensor, weight: Tensor) -> Any:
    with torch.autocast(x.device.type, torch.bfloat16):
        y = f(x)
    loss_of(y).backward()
    return y.dtype, x.grad


def without(f: Body, x: Tensor, weight: Tensor) -> Any:
    with torch.no_grad():
        y = f(x)
    return y, y.requires_grad


def in_thread(f: Body, x: Tensor, weight: Tensor) -> Any:
    losses = [loss_of(f(x * scale)) for scale in (1, 2)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for loss in losses:
            pool.submit(loss.backward).result()
    return x.grad


def after_random_numbers(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    first = torch.rand(1)
    loss_of(y).backward()
    return first, torch.rand(1), x.grad


def facts(f: Body, x: Tensor, weight: Tensor) -> Any:
    y = f(x)
    return y.is_leaf, y.requires_grad, y.grad_fn is None, y.stride()


def checkpointed_outside(f: Body, x: Tensor, weight: Tensor) -> Any:
    loss_of(checkpoint(f, x, use_reentrant=False)).backward()
    return x.grad, weight.grad


USES: Mapping[str, Callable[[Body, Tensor, Tensor], Any]] = {
    use.__name__: use
    for use in (
        backward, accumulated, retained, twice_without_retaining, of_part, of_weight_alone, frozen,
        of_gradient, penalty, of_intermediate, result_written, part_of_result_written, argument_written,
        weight_written, gradient_given, gradient_expanded, gradient_of_wrong_shape, gradients_batched,
        hook_of_result, hook_that_raises, in_other_layout, of_view, gradient_there, of_functional, of_vjp,
        of_jacobian, of_dual, in_autocast, without, in_thread, after_random_numbers, facts,
        checkpointed_outside,
    )
}  # fmt: skip
