"""Marks of torch.compiler, torch.compile inside and around, builtins as programs, warnings and logs."""

from __future__ import annotations

import functools
import logging
import warnings

import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F
from harness import program

import lampwork


def plain():
    return (torch.randn(2, 3),)


def wanting_grad():
    return (torch.randn(2, 3, requires_grad=True),)


@program(plain)
def asks_whether_it_is_compiled(x):
    # What follows must be the same in both cases; what is asked must be known.
    asked = (torch.compiler.is_compiling(), torch._dynamo.is_compiling())
    return x + 1 if all(flag in (True, False) for flag in asked) else x


@program(plain)
def asks_whether_it_is_scripted(x):
    return x + 1 if torch.jit.is_scripting() or torch.jit.is_tracing() else x * 2


@program(plain)
def skips_a_check_while_compiling(x):
    if not torch.compiler.is_compiling() and x.isnan().any():
        raise ValueError("not a number")
    return x * 2


@torch.compiler.disable
def disabled(x):
    return x * 3


@program(plain, breaks=1)
def disabled_callee(x):
    return disabled(x + 1) * 2


@torch.compiler.disable(recursive=False)
def disabled_itself(x):
    return torch.relu(x)


@program(plain, breaks=1)
def disabled_callee_not_recursively(x):
    return disabled_itself(x + 1) * 2


class PartlyDisabled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    @torch.compiler.disable
    def inner(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.inner(torch.relu(x)) + 1


@program(wanting_grad, factory=True, backward=True, breaks=1)
def disabled_method():
    return PartlyDisabled()


@torch.compiler.allow_in_graph
def allowed(x):
    return torch.sin(x) * 2


@program(plain)
def allowed_callee(x):
    return allowed(x) + 1


CONSTANT = {"value": 3}


@torch.compiler.assume_constant_result
def constant_result():
    return CONSTANT["value"]


@torch.compiler.assume_constant_result
def constant_of_an_argument(n):
    return {"scale": n * 2.0}


@program(plain)
def constant_results(x):
    return x * constant_result() + constant_of_an_argument(4)["scale"]


@program(plain, breaks=1)
def graph_break_is_wanted(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


@program(plain, breaks=1)
def mark_static_inside(x):
    torch._dynamo.mark_static(x)
    return x * 2


@program(plain, breaks=1)
def compiler_is_reset(x):
    torch.compiler.reset()
    return x + 1


@torch.compile(backend="eager")
def compiled_by_torch(x):
    return x.sin() + 1


@program(plain)
def callee_compiled_by_torch(x):
    return compiled_by_torch(x) * 2


@program(wanting_grad, factory=True, backward=True)
def module_compiled_by_torch():
    layer = torch.compile(nn.Linear(3, 3), backend="eager")
    return lambda x: layer(x) * 2


@lampwork.compile
def compiled_by_us(x):
    return x.cos() + 1


@program(plain)
def callee_compiled_by_us(x):
    return compiled_by_us(x) * 2


class HoldsOurs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = lampwork.compile(nn.Linear(3, 3))

    def forward(self, x):
        return self.layer(x) * 2


@program(wanting_grad, factory=True, backward=True)
def module_compiled_by_us():
    return HoldsOurs()


@program(plain, factory=True)
def functional_of_torch():
    return F.gelu


@program(plain, factory=True)
def builtin_of_torch():
    return torch.relu


@program(plain, factory=True)
def method_of_tensors():
    return torch.Tensor.sin


@program(plain, factory=True)
def partial_of_a_builtin():
    return functools.partial(torch.add, alpha=2, other=1)


@program(plain, factory=True)
def bound_method_of_a_module():
    return nn.Linear(3, 4).forward


@program(plain, factory=True)
def sequential_of_functions():
    layers = [torch.relu, F.gelu, nn.Linear(3, 3), torch.Tensor.tanh, lambda x: x + 1]
    return lambda x: functools.reduce(lambda value, layer: layer(value), layers, x)


@program(plain, breaks=1, regions=2)
def warns(x):
    y = x + 1
    warnings.warn("careful", UserWarning, stacklevel=1)
    return y * 2


@program(plain, breaks=1)
def logs(x):
    y = x + 1
    logging.getLogger("conformance").warning("shape %s", y.shape)
    return y * 2


@program(plain, breaks=1)
def prints_a_tensor(x):
    y = x.sum(0) * 0
    print(y)
    return y + 1


@program(plain, within=lambda: torch.autograd.profiler.profile(use_kineto=False))
def records_a_function(x):
    with torch.autograd.profiler.record_function("mine"):
        y = x * 2
    return y + 1


@program(plain)
def checks_of_torch(x):
    torch._check(x.shape[0] == 2)
    torch._assert(x.dim() == 2, "two dimensions")
    return x * 2


@program(plain, regions=0)
def check_of_torch_fails(x):
    torch._check(x.shape[0] == 5, lambda: f"five rows, not {x.shape[0]}")
    return x * 2


@program(plain)
def numbers_of_types(x):
    return (
        x + torch.finfo(x.dtype).eps,
        torch.iinfo(torch.int8).max,
        torch.promote_types(x.dtype, torch.int64),
    )


@program(plain)
def defaults_of_torch(x):
    return x.to(torch.get_default_dtype()), torch.cuda.is_available()
