"""Operators of torch.library for the conformance programs: registered once, whoever loads those."""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("lampwork_conformance", "DEF")


@torch.library.custom_op("lampwork_conformance::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("lampwork_conformance::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("lampwork_conformance::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


@scaled.register_fake
def _(x, factor=2.0):
    return torch.empty_like(x)


def _keep(ctx, inputs, output):
    ctx.factor = inputs[1]


def _scaled_backward(ctx, grad):
    return grad * ctx.factor * 5, None


scaled.register_autograd(_scaled_backward, setup_context=_keep)


@torch.library.custom_op("lampwork_conformance::increment", mutates_args={"x"})
def increment(x: torch.Tensor, by: int) -> None:
    x.add_(by)


@torch.library.custom_op("lampwork_conformance::fill_both", mutates_args={"x", "y"})
def fill_both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.fill_(1)
    y.fill_(2)
    return x + y


@fill_both.register_fake
def _(x, y):
    return torch.empty_like(x)


@torch.library.custom_op("lampwork_conformance::pieces", mutates_args=())
def pieces(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(n)]


@pieces.register_fake
def _(x, n):
    return [torch.empty_like(part) for part in x.chunk(n)]


@torch.library.custom_op("lampwork_conformance::moments", mutates_args=())
def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.mean(-1), x.var(-1)


@moments.register_fake
def _(x):
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


@torch.library.custom_op("lampwork_conformance::where_positive", mutates_args=())
def where_positive(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).nonzero()


@where_positive.register_fake
def _(x):
    return x.new_empty([torch.library.get_ctx().new_dynamic_size(), x.dim()], dtype=torch.int64)


@torch.library.custom_op("lampwork_conformance::optional_bias", mutates_args=())
def optional_bias(x: torch.Tensor, bias: torch.Tensor | None, flags: list[int]) -> torch.Tensor:
    return x * sum(flags) + (0 if bias is None else bias)


@optional_bias.register_fake
def _(x, bias, flags):
    return torch.empty_like(x)


@torch.library.custom_op("lampwork_conformance::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 5:
        raise ValueError("five rows are too many")
    return x.clone()


@picky.register_fake
def _(x):
    return torch.empty_like(x)


LIBRARY.define("times(Tensor x, float factor) -> Tensor")
LIBRARY.impl("times", lambda x, factor: x * factor, "CPU")
torch.library.register_fake("lampwork_conformance::times", lambda x, factor: torch.empty_like(x), lib=LIBRARY)
LIBRARY.define("composed(Tensor x, float factor) -> Tensor")
LIBRARY.impl("composed", lambda x, factor: (x * factor).sin(), "CompositeImplicitAutograd")
LIBRARY.define("row(Tensor(a) x, int i) -> Tensor(a)")
LIBRARY.impl("row", lambda x, i: x[i], "CompositeExplicitAutograd")
LIBRARY.define("accumulate(Tensor(a!) x, Tensor y) -> Tensor(a!)")
LIBRARY.impl("accumulate", lambda x, y: x.add_(y), "CompositeExplicitAutograd")
