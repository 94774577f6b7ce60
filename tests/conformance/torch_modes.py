"""Gradient, inference and autocast modes: as contexts and decorators, inside, around and across the program."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from harness import program


def plain():
    return (torch.randn(2, 3),)


def wanting_grad():
    return (torch.randn(2, 3, requires_grad=True),)


def product():
    return torch.randn(2, 3), torch.randn(3, 4)


def product_with_grad():
    return torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)


@program(wanting_grad, backward=True)
def no_grad_context(x):
    with torch.no_grad():
        y = x * 2
    return y + x


@program(wanting_grad, backward=True)
def enable_grad_within_no_grad(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    return y + z


@program(wanting_grad, backward=True)
def set_grad_enabled_contexts(x):
    with torch.set_grad_enabled(False):
        y = x * 2
    with torch.set_grad_enabled(True):
        z = x * 2
    return y, z


@program(lambda: (torch.randn(2, 3, requires_grad=True), False), again=lambda: (*wanting_grad(), True))
def set_grad_enabled_by_argument(x, wanted):
    with torch.set_grad_enabled(wanted):
        return x * 2


@program(wanting_grad)
def set_grad_enabled_calls(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, y.requires_grad, x * 3


@torch.no_grad()
def doubled_without_grad(x):
    return x * 2


@torch.no_grad
def tripled_without_grad(x):
    return x * 3


@program(wanting_grad, backward=True)
def no_grad_decorators_of_callees(x):
    return doubled_without_grad(x) + tripled_without_grad(x) + x


@program(product_with_grad)
@torch.no_grad()
def no_grad_decorator_of_the_program(x, w):
    return x @ w


@program(wanting_grad, backward=True)
def grad_mode_is_asked(x):
    with torch.no_grad():
        inner = torch.is_grad_enabled()
        y = x * (2 if inner else 3)
    return y, inner, torch.is_grad_enabled()


@program(wanting_grad, backward=True)
def detach_and_requires_grad_flags(x):
    y = x.detach()
    return y.requires_grad, (x * y).requires_grad, x * y, x.is_leaf, y.is_leaf


@program(wanting_grad, within=torch.no_grad)
def no_grad_outside(x):
    return x * 2, torch.is_grad_enabled()


@program(wanting_grad, within=torch.no_grad, breaks=1)
def enable_grad_within_no_grad_outside(x):
    with torch.enable_grad():
        return x * 3


@program(plain, within=torch.inference_mode)
def inference_mode_outside(x):
    return x * 2, torch.is_inference_mode_enabled()


@program(plain)
@torch.inference_mode()
def inference_mode_decorator_of_the_program(x):
    y = x * 2
    return y, y[0], x[1]


@torch.inference_mode()
def doubled_for_inference(x):
    return x * 2


@program(plain)
def inference_mode_decorator_of_a_callee(x):
    y = doubled_for_inference(x)
    return y, y.is_inference(), x + 1


@program(plain)
def inference_mode_context(x):
    with torch.inference_mode():
        y = x * 3
        z = y.view(3, 2)
    return y + 1, y.is_inference(), z


@program(plain)
def inference_mode_off(x):
    with torch.inference_mode(False):
        return x * 2


@program(product)
def autocast_context(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ w.T
    return y, z


@torch.autocast("cpu", dtype=torch.bfloat16)
def product_in_bfloat16(x, w):
    return x @ w


@program(product)
def autocast_decorator_of_a_callee(x, w):
    return product_in_bfloat16(x, w), x @ w


@program(product)
def autocast_decorator_twice(x, w):
    y = product_in_bfloat16(x, w)
    return product_in_bfloat16(y.float(), w.T), torch.is_autocast_enabled("cpu")


@program(product)
@torch.autocast("cpu")
def autocast_decorator_of_the_program(x, w):
    return x @ w


@program(product, within=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
def autocast_outside(x, w):
    return x @ w, F.softmax(x @ w, -1), torch.get_autocast_dtype("cpu")


@program(product_with_grad, backward=True)
def autocast_and_gradients(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.softmax(F.linear(x, w.T), -1)


@program(product, breaks=1)
def autocast_across_a_break(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        print("between", torch.is_autocast_enabled("cpu"))
        return y, y @ w.T


@program(product_with_grad, breaks=2, backward=True)  # print; what follows no_grad is differentiated
def no_grad_across_a_break(x, w):
    with torch.no_grad():
        y = x @ w
        print("between", torch.is_grad_enabled())
        y = y + 1
    return y + x @ w


@program(product, breaks=2)  # print; inference mode is left
def inference_mode_across_a_break(x, w):
    with torch.inference_mode():
        y = x @ w
        print("between", torch.is_inference_mode_enabled())
        y = y + 1
    return y, x @ w


@program(plain)
def exception_leaves_no_grad(x):
    try:
        with torch.no_grad():
            raise ValueError("inside")
    except ValueError as error:
        return x + len(str(error)), torch.is_grad_enabled()


@program(plain, breaks=1)
def seed_is_set(x):
    torch.manual_seed(3)
    return x + torch.rand(3), torch.randn(2)


@program(plain, breaks=3)
def generator_of_the_program(x):
    generator = torch.Generator().manual_seed(5)
    return x + torch.rand(3, generator=generator)


GENERATOR = torch.Generator()


@program(plain, breaks=2)
def generator_from_outside(x):
    GENERATOR.manual_seed(7)
    return x + torch.rand(3, generator=GENERATOR)


@program(plain, breaks=2)
def random_state_is_put_back(x):
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return x + first, torch.rand(3)


@program(plain)
def draws_of_many_kinds(x):
    y = x + torch.rand_like(x) + torch.randn(2, 3) + torch.randint(0, 3, (2, 3))
    return y, torch.randperm(4), torch.bernoulli(x.sigmoid()), torch.multinomial(x.softmax(-1), 2)


@program(plain)
def draws_in_place(x):
    y = torch.empty(3).uniform_(-1, 1)
    return x + y, torch.empty(4).normal_(), torch.zeros(3).bernoulli_(0.5)


@program(wanting_grad, backward=True)
def dropout_and_its_gradient(x):
    return F.dropout(x, 0.5) + F.dropout(x, 0.3, training=False)


@program(plain, breaks=2)
def default_dtype_is_changed(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(3), torch.zeros(1).dtype
    finally:
        torch.set_default_dtype(torch.float32)


@program(plain, within=lambda: torch.device("cpu"))
def device_context_outside(x):
    return x + torch.zeros(3)


@program(plain, within=lambda: torch.device("cpu"))
def device_context_outside_of_a_layer(x):
    return F.gelu(x) + torch.arange(3), torch.get_default_device()


@program(lambda: (3,), within=lambda: torch.device("meta"), regions=0)
def meta_device_outside(n):
    return torch.zeros(n).device, torch.zeros(n).shape


@program(plain, breaks=2)
def device_context_inside(x):
    with torch.device("cpu"):
        return x + torch.zeros(3)


@program(plain)
def deterministic_algorithms_are_asked(x):
    return x * (2 if torch.are_deterministic_algorithms_enabled() else 3)
