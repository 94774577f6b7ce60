"""Random differentiable programs, and random things that a caller does with what they return.

A program is the source of a function `f(x, z)` over weights `w`, `v`, `u` and a buffer `b`. A scenario is a list of
actions on its results; each notes what a caller can see: values, gradients, the order of hooks, errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

UNARY = (
    "torch.tanh({})", "{}.exp() * 0.1", "torch.sin({})", "{}.relu()", "{} + 1", "{} * 0.5", "-{}", "{}.square()",
    "torch.sigmoid({})", "{}.clone()", "F.gelu({})", "torch.softmax({}, -1)", "F.layer_norm({}, (4,), u, v)",
    "F.dropout({}, 0.5, True)",
)  # fmt: skip
BINARY = (
    "{} * {}", "{} + {}", "{} - {}", "torch.where({} > 0, {}, 1.0)", "{} @ w + {}", "torch.maximum({}, {})",
)  # fmt: skip
WITH_WEIGHTS = (
    "{} @ w", "F.linear({}, w, v)", "{} * u", "{} + v", "{} * b", "{} + b", "F.linear({}, w)", "{} * u.exp()",
    "F.linear({}, w * u, v)",
)  # fmt: skip
VIEWS = ("{}.t()", "{}.view(-1)", "{}[1:]", "{}[0]", "{}.view(2, 8)", "{}.detach()", "{}.t()[0]")
REDUCTIONS = ("{}.sum()", "{}.mean(0)", "{}.square().sum()", "{}.max(1).values", "torch.var_mean({}, 1)[0]")
SPLITS = ("torch.var_mean({}, 1, keepdim=True)", "{}.max(1, keepdim=True)", "{}.sort(-1)")
WRITES = (
    "{}.mul_(0.5)",
    "{}.add_(1.0)",
    "{}.relu_()",
    "{}[0] += 1",
    "{}.view(-1).mul_(2)",
    "{}[:, 1].sin_()",
)


def source(rng: random.Random) -> str:
    """The source of a function f(x, z) that returns a tuple of tensors."""
    names = ["x", "z"]
    lines: list[str] = []
    other: list[str] = []

    def add(text: str) -> str:
        name = f"t{len(names) + len(other)}"
        lines.append(f"{name} = {text}")
        return name

    if rng.random() < 0.2:
        lines.append(rng.choice(("b.mul_(0.5)", "b.add_(1)", "b.copy_(z.detach())")))
    for _ in range(rng.randint(2, 9)):
        kind = rng.random()
        arg = rng.choice(names[-4:])
        if kind < 0.35:
            names.append(add(rng.choice(WITH_WEIGHTS).format(arg)))
        elif kind < 0.65:
            names.append(add(rng.choice(UNARY).format(arg)))
        elif kind < 0.8:
            names.append(add(rng.choice(BINARY).format(arg, rng.choice(names))))
        elif kind < 0.87:
            first, second = add("None"), ""
            lines.pop()
            second = f"{first}b"
            lines.append(f"{first}, {second} = {rng.choice(SPLITS).format(arg)}")
            names.append(add(f"{arg} + {first}"))
            other += [first, second]
        elif kind < 0.93:
            names.append(add(rng.choice(("{0}.t().t()", "{0}.view(2, 8).view(4, 4)")).format(arg)))
        elif kind < 0.97:
            lines.append("with torch.no_grad():")
            name = f"t{len(names) + len(other)}"
            lines.append(f"    {name} = {arg} * 2")
            names.append(name)
        elif arg not in ("x", "z"):
            lines.append(rng.choice(WRITES).format(arg))
    returned = [names[-1]]
    for _ in range(rng.randint(0, 3)):
        arg = rng.choice(names[1:])
        form = rng.random()
        if form < 0.5:
            returned.append(arg)
        elif form < 0.75:
            returned.append(rng.choice(VIEWS).format(arg))
        elif other and form < 0.85:
            returned.append(rng.choice(other))
        else:
            returned.append(rng.choice(REDUCTIONS).format(arg))
    rng.shuffle(returned)
    body = "\n    ".join([*lines, f"return {', '.join(returned)},"])
    return f"def f(x, z):\n    {body}\n"


@dataclass(slots=True)
class World:
    """The tensors of one run of a scenario, and the log of what was seen."""

    tensors: dict[str, Tensor]
    log: list[tuple[str, Any]] = field(default_factory=list["tuple[str, Any]"])

    def see(self, label: str, value: Any) -> None:
        self.log.append((label, _snapshot(value)))

    def attempt(self, label: str, action: Callable[[], Any]) -> bool:
        """Note what an action gives; False if it raised."""
        try:
            self.see(label, action())
        except RuntimeError as error:
            self.log.append((label, f"RuntimeError: {str(error)[:70]}"))
            return False
        return True


def _snapshot(value: Any) -> Any:
    if isinstance(value, Tensor):
        view = value.requires_grad and value._is_view()
        flags = (value.requires_grad, value.is_leaf, value.grad_fn is None, view, value.stride())
        return (flags, value.detach().clone())
    if isinstance(value, (tuple, list)):
        return [_snapshot(item) for item in value]
    return value


def world(seed: int) -> World:
    """Weights, buffer and inputs; some need no grad."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tensors = {"w": torch.randn(4, 4) * 0.5, "v": torch.randn(4), "u": torch.rand(4) + 0.5}
    for tensor in tensors.values():
        tensor.requires_grad_(rng.random() < 0.8)
    tensors["b"] = torch.rand(4, 4)
    tensors["x"] = torch.randn(4, 4).requires_grad_(rng.random() < 0.5)
    tensors["z"] = torch.randn(4, 4)
    if rng.random() < 0.5:
        leaf = torch.randn(4, 4, requires_grad=True)
        tensors["leaf"] = leaf
        tensors["z"] = leaf * 1.5
    return World(tensors)


def play(seed: int, make: Callable[[str, dict[str, Any]], Callable[..., Any]], calls: int = 2) -> World:
    """Run scenario `seed`: `make(source, globals)` gives the function. The random choices are the same each time."""
    rng = random.Random(seed)
    here = world(seed)
    text = source(rng)
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **here.tensors}
    run = make(text, names)
    order: list[str] = []
    if rng.random() < 0.4:
        for name in ("w", "v", "u", "x", "leaf"):
            leaf = here.tensors.get(name)
            if leaf is not None and leaf.requires_grad:
                leaf.register_hook(lambda grad, name=name: order.append(name))
                leaf.register_post_accumulate_grad_hook(lambda leaf, name=name: order.append(name + "!"))
    scenario = list(_actions(rng))
    for number in range(calls):
        torch.manual_seed(seed + number)
        results = run(here.tensors["x"], here.tensors["z"])
        here.see("results", list(results))
        pending: list[Tensor] = [result for result in results if isinstance(result, Tensor)]
        for label, action in scenario:
            if not here.attempt(label, lambda action=action: action(here, pending)):
                return here  # gradients that were accumulated before an error are nobody's
        here.see("order", sorted(order))
        here.see("values", pending)
        here.see("grads", [t.grad for t in here.tensors.values() if t.is_leaf])
        here.see("next random", torch.rand(1))
        for tensor in here.tensors.values():
            if tensor.is_leaf:
                tensor.grad = None
        if "leaf" in here.tensors:
            here.tensors["z"] = here.tensors["leaf"] * 1.5
    return here


Action = Callable[[World, "list[Tensor]"], Any]


def _actions(rng: random.Random) -> Iterator[tuple[str, Action]]:
    for _ in range(rng.randint(1, 4)):
        make = rng.choice(
            (_hook, _retain, _write_result, _write_result, _write_outside, _grad, _grad, _double)
        )
        yield make(rng)
    yield _backward(rng)
    if rng.random() < 0.5:
        yield rng.choice((_backward, _grad, _write_outside))(rng)
        yield _backward(rng)


def _differentiable(results: list[Tensor]) -> list[Tensor]:
    return [result for result in results if result.requires_grad]


def _loss(results: list[Tensor], pick: int) -> Tensor:
    found = _differentiable(results)
    if pick % 3 == 0 or len(found) < 2:
        parts = [(result * result).sum() if pick % 2 else result.sum() for result in found]
        return torch.stack(parts).sum() if parts else results[0].sum()
    return found[pick % len(found)].sum()


def _hook(rng: random.Random) -> tuple[str, Action]:
    number, scale = rng.randrange(4), rng.choice((1.0, 2.0))

    def act(here: World, results: list[Tensor]) -> None:
        result = results[number % len(results)]
        if result._is_view() and result._version:
            return  # torch 2.13 may crash
        result.register_hook(lambda grad: [here.see(f"hook {number}", grad), grad * scale][1])

    return "hook", act


def _retain(rng: random.Random) -> tuple[str, Action]:
    number = rng.randrange(4)

    def act(here: World, results: list[Tensor]) -> None:
        result = results[number % len(results)]
        result.retain_grad()
        here.log.append(("retained", result.is_leaf))

    return "retain_grad", act


def _write_result(rng: random.Random) -> tuple[str, Action]:
    number, how = rng.randrange(4), rng.randrange(7)

    def act(here: World, results: list[Tensor]) -> Any:
        result = results[number % len(results)]
        if how == 0:
            return result.mul_(2)
        if how == 1:
            return result.relu_()
        if how == 2 and result.ndim:
            result[0] += 1
            return result
        if how == 3:
            return result.view(-1).mul_(3)
        if how == 5:
            return result.data.mul_(2)
        if how == 6:
            result.detach().numpy().fill(0.5)
            return result
        with torch.no_grad():
            return result.add_(1)

    return f"write result {how}", act


def _write_outside(rng: random.Random) -> tuple[str, Action]:
    name = rng.choice(("w", "v", "u", "b", "x", "z"))

    how = rng.randrange(6)

    def act(here: World, results: list[Tensor]) -> None:
        tensor = here.tensors[name]
        if how == 0:
            tensor.data.mul_(1.5)
        elif how == 1:
            tensor.detach().numpy()[0] = 0.75
        elif how == 2 and tensor.is_leaf:
            tensor.data = tensor.data * 0.5
        else:
            with torch.no_grad():
                tensor.mul_(1.5)

    return f"write {name}", act


def _grad(rng: random.Random) -> tuple[str, Action]:
    pick, keep = rng.randrange(12), rng.random() < 0.7
    names = rng.sample(("w", "v", "u", "x", "leaf", "z"), 2)
    which = rng.randrange(4)

    def act(here: World, results: list[Tensor]) -> Any:
        wanted = [t for name in names if (t := here.tensors.get(name)) is not None and t.requires_grad]
        chosen = results[which % len(results)]
        if chosen.requires_grad:
            wanted.append(chosen)
        return torch.autograd.grad(_loss(results, pick), wanted, retain_graph=keep, allow_unused=True)

    return "grad", act


def _double(rng: random.Random) -> tuple[str, Action]:
    pick = rng.randrange(12)
    first, second = rng.choice(("w", "x", "u", "v")), rng.choice(("w", "x", "leaf", "u"))

    def act(here: World, results: list[Tensor]) -> Any:
        a, b = here.tensors[first], here.tensors.get(second)
        if b is None or not (a.requires_grad and b.requires_grad):
            return None
        (slope,) = torch.autograd.grad(
            _loss(results, pick), [a], create_graph=True, allow_unused=True, materialize_grads=True
        )
        if not slope.requires_grad:
            return slope
        curves = torch.autograd.grad(slope.square().sum(), [b], allow_unused=True, retain_graph=True)
        return [slope, *curves]

    return "double", act


def _backward(rng: random.Random) -> tuple[str, Action]:
    pick, keep = rng.randrange(12), rng.random() < 0.4

    def act(here: World, results: list[Tensor]) -> None:
        _loss(results, pick).backward(retain_graph=keep)
        grads = [result.grad if result.is_leaf or result.retains_grad else None for result in results]
        here.see("grads of results", grads)

    return "backward", act


def difference(eager: Any, compiled: Any, path: str = "") -> str | None:
    """The first difference between two logs; numbers agree up to rounding."""
    if isinstance(eager, Tensor) and isinstance(compiled, Tensor):
        if eager.shape != compiled.shape or not torch.allclose(eager, compiled, 1e-4, 1e-5, equal_nan=True):
            return f"{path}: {eager} {compiled}"
        return None
    if isinstance(eager, (tuple, list)) and isinstance(compiled, (tuple, list)):
        for number, (a, b) in enumerate(zip(eager, compiled, strict=False)):
            label = a[0] if isinstance(a, tuple) and a and isinstance(a[0], str) else number
            found = difference(a, b, f"{path}/{label}")
            if found is not None:
                return found
        return None if len(eager) == len(compiled) else f"{path}: {len(eager)} and {len(compiled)} items"
    return None if eager == compiled else f"{path}: {eager!r} {compiled!r}"
