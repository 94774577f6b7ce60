"""Outputs of a compiled region stay differentiable: the forward runs compiled, and `backward()`, if it comes,
recomputes the region's ATen graph under autograd. So gradients are exactly eager's, for all inputs and parameters,
and a caller who merely forgot `torch.no_grad` still gets the compiled speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from lampwork.runtime.opaque import opaque

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class DifferentiableCall:
    """A compiled program with a recomputing backward.

    Args:
        program: the compiled forward: tensors (inputs, then bound) -> outputs. Writes to mutated inputs itself.
        reference: the same function as eager ATen, pure: it returns the outputs and writes nothing.
        differentiable: one flag per output: whether eager's result would require grad.
        mutated: numbers of the tensors that `program` writes to (none of which requires grad); their old values are
            kept for the recomputation.
        random: whether the graph draws random numbers; the generator's state is then kept and replayed.
        detached: numbers of the outputs that share memory with what requires grad and were cut off from it.
    """

    program: Run
    reference: Run
    differentiable: tuple[bool, ...]
    mutated: tuple[int, ...] = ()
    random: bool = False
    detached: tuple[int, ...] = ()

    @opaque
    def __call__(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
            return self._cut_off(self.program(tensors))
        state = torch.get_rng_state() if self.random else None
        kept = list(tensors)
        for number in self.mutated:
            kept[number] = tensors[number].detach().clone()
        with torch.no_grad():
            outputs = self._cut_off(self.program(tensors))
        wanted = [i for i, flag in enumerate(self.differentiable) if flag]
        if not wanted:
            return outputs
        attached = cast(
            "tuple[Tensor, ...]",
            _Recompute.apply(self, state, wanted, [outputs[i] for i in wanted], *kept),
        )
        result = list(outputs)
        for i, tensor in zip(wanted, attached, strict=True):
            result[i] = tensor
        return result

    def _cut_off(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self.detached:
            return outputs
        result = list(outputs)
        for i in self.detached:
            result[i] = result[i].detach()
        return result


class _Recompute(torch.autograd.Function):
    """Identity on the compiled outputs; its backward reruns `call.reference` on the saved tensors with autograd on."""

    @staticmethod
    def forward(
        ctx: Any,
        call: DifferentiableCall,
        state: Tensor | None,
        wanted: list[int],
        outputs: list[Tensor],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.state, ctx.wanted = call, state, wanted
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @opaque
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        call: DifferentiableCall = ctx.call
        create_graph = torch.is_grad_enabled()
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        tensors = [_stand_in(tensor, create_graph) for tensor in saved]
        generator_state = torch.get_rng_state() if ctx.state is not None else None
        try:
            if ctx.state is not None:
                torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                recomputed = call.reference(tensors)
        finally:
            if generator_state is not None:
                torch.set_rng_state(generator_state)
        pairs = [
            (recomputed[i], grad)
            for i, grad in zip(ctx.wanted, grads, strict=True)
            if grad is not None and recomputed[i].requires_grad
        ]
        needed = [i for i in range(len(tensors)) if ctx.needs_input_grad[4 + i]]
        found: Sequence[Tensor | None] = [None] * len(needed)
        if pairs and needed:
            found = torch.autograd.grad(
                [output for output, _ in pairs],
                [tensors[i] for i in needed],
                [grad for _, grad in pairs],
                create_graph=create_graph,
                allow_unused=True,
            )
        gradients: list[Tensor | None] = [None] * len(tensors)
        for i, gradient in zip(needed, found, strict=True):
            gradients[i] = gradient
        return (None, None, None, None, *gradients)


def _stand_in(tensor: Tensor, create_graph: bool) -> Tensor:
    """A saved tensor to differentiate by in its place.

    The tensor itself would do so wrongly: one that was computed from another would carry that one's share of the
    gradient as well, and its hooks would run here and once more where autograd hands the gradient on.
    """
    if not tensor.requires_grad:
        return tensor
    if create_graph:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()
