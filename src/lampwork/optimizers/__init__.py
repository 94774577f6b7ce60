"""Optimizer steps: one kernel updates all parameters, reading and writing each tensor once.

    step = lampwork.compile(optimizer.step)         # torch's own optimizers: `steps.py`

    def lion(param, grad, average, *, lr, beta1, beta2):            # anybody's: `update.py`
        param.add_((average * beta1 + grad * (1 - beta1)).sign(), alpha=-lr)
        average.lerp_(grad, 1 - beta2)

    lampwork.optimizers.update(lion, params, grads, averages, lr=1e-3, beta1=0.9, beta2=0.99)

A *rule* is a function that updates one parameter by operators of torch, such as torch's own `_single_tensor_adam` given
lists of one tensor. On every step it is run once for all parameters with the same step count, on operands that compute
nothing (`trace.py`): what is left is the sequence of operators, by which the kernel is found, and the numbers that it
takes as arguments. So a learning rate or step count that changes compiles nothing, and the formulas are the rule's by
construction. A sequence that is new is recorded, lowered and compiled as any graph of pointwise operators is, for
tensors of any length (`kernel.py`). csrc/rows.cpp runs the kernel over the table of all tensors, in threads.
"""

from __future__ import annotations

from lampwork.optimizers.update import update

__all__ = ["update"]
