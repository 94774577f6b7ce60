"""Random programs for the rewrite fuzzers: plans that run on tensors, and so can be recorded.

A plan is made on real tensors, step by step; steps that torch refuses are left out. `exact` plans use operators whose
results do not depend on the order of memory, in all dtypes, on inputs with infinities, nan and zeros of both signs;
`smooth` ones compute in float64, with products, reductions and formulas, so that rounding stays far below any mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

F = torch.nn.functional

Step = tuple[Callable[..., Any], tuple[int, ...]]
"""(function, the values it is applied to)"""

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)
SHAPES = ((3, 4), (4,), (1, 4), (3, 1), (2, 3, 4), (), (4, 4), (2, 1, 4), (4, 3))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 3.0, 1e-3, 7.0, float("inf"), -float("inf"), float("nan"))


@dataclass(slots=True)
class Plan:
    """`inputs` and `weights` come first among the values; `outputs` are numbers of values."""

    inputs: list[Tensor]
    weights: list[Tensor]
    steps: list[Step] = field(default_factory=list[Step])
    outputs: list[int] = field(default_factory=list[int])

    def run(self, *tensors: Any) -> list[Any]:
        """The outputs, for tensors in the place of inputs and weights."""
        values = list(tensors)
        for function, numbers in self.steps:
            values.append(function(*(values[i] for i in numbers)))
        return [values[i] for i in self.outputs]


def special(rng: random.Random, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of numbers that are easily got wrong."""
    count = 1
    for size in shape:
        count *= size
    if dtype is torch.bool:
        return torch.tensor([rng.random() < 0.5 for _ in range(count)]).reshape(tuple(shape))
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -3
        numbers = [rng.choice((low, 0, 1, 2, 5, torch.iinfo(dtype).max)) for _ in range(count)]
        return torch.tensor(numbers, dtype=dtype).reshape(tuple(shape))
    return torch.tensor([rng.choice(SPECIAL) for _ in range(count)], dtype=dtype).reshape(tuple(shape))


# --- exact plans ----------------------------------------------------------------------------------------------------

_UNARY = (
    torch.neg,
    torch.abs,
    torch.sign,
    torch.floor,
    torch.ceil,
    torch.trunc,
    torch.square,
    torch.bitwise_not,
)
_UNARY_AFTER = (torch.logical_not, torch.relu, torch.clone)
_BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.div)
_LOGICAL = (torch.logical_and, torch.logical_or, torch.logical_xor, torch.bitwise_and, torch.bitwise_or)
_COMPARE = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)
_NUMBERS = (0, 1, -1, 2, 3, 8, 0.5, 1.0, -1.0, 0.0, -0.0, 2.0, 4.0, 0.25)


def exact_step(rng: random.Random, values: Sequence[Tensor]) -> Step:
    """A random operator of the exact kind."""
    a, b, c = (rng.randrange(len(values)) for _ in range(3))
    x = values[a]
    kind = rng.choice(
        ("unary", "unary", "binary", "binary", "number", "number", "view", "view", "cast", "other")
    )
    if kind == "unary":
        return rng.choice((*_UNARY, *_UNARY_AFTER)), (a,)
    if kind == "binary":
        return rng.choice((*_BINARY, *_BINARY, *_LOGICAL, *_COMPARE)), (a, b)
    if kind == "number":
        return _with_number(rng), (a,)
    if kind == "view":
        return _view(rng, x), (a,)
    if kind == "cast":
        dtype = rng.choice(DTYPES)
        return (lambda t: t.to(dtype)), (a,)
    return _other(rng, x, (a, b, c))


def _with_number(rng: random.Random) -> Callable[..., Any]:
    op, number = (
        rng.choice((*_BINARY[:3], *_BINARY[:3], torch.div, torch.pow, *_COMPARE)),
        rng.choice(_NUMBERS),
    )
    if op is torch.pow:
        # Powers that torch computes as products and roots.
        number = rng.choice((1, 2, 0.5, -1))
    if rng.random() < 0.25:
        return lambda t: op(t, torch.full((), number, dtype=t.dtype))
    if op in (torch.add, torch.mul) and rng.random() < 0.3:
        return lambda t: op(torch.full_like(t, number), t)
    return lambda t: op(t, number)


def _view(rng: random.Random, x: Tensor) -> Callable[..., Any]:
    rank = x.dim()
    choices: list[Callable[..., Any]] = [
        lambda t: t.unsqueeze(0),
        lambda t: t.squeeze(),
        lambda t: t.flatten(),
    ]
    choices += [lambda t: t.reshape(-1), lambda t: t.contiguous(), lambda t: t.expand(t.shape)]
    if rank:
        dims = list(range(rank))
        rng.shuffle(dims)
        dim, start = rng.randrange(rank), rng.randrange(2)
        choices += [
            lambda t: t.permute(dims),
            lambda t: t.permute(dims),
            lambda t: t.transpose(0, rank - 1),
            lambda t: t.unsqueeze(dim).squeeze(dim),
            lambda t: t.narrow(dim, start, max(t.shape[dim] - start, 0)),
            lambda t: t.select(dim, -1),
            lambda t: t.expand(2, *t.shape),
        ]
        shapes = [s for s in SHAPES if s and torch.Size(s).numel() == x.numel()]
        if shapes:
            shape = rng.choice(shapes)
            choices += [lambda t: t.reshape(shape), lambda t: t.view(shape)]
    return rng.choice(choices)


def _other(rng: random.Random, x: Tensor, numbers: tuple[int, int, int]) -> Step:
    a, b, c = numbers
    kind = rng.choice(
        ("where", "where not", "cat", "cat one", "fill", "amax", "ones", "zeros", "pad", "same")
    )
    if kind == "where":
        return (lambda t, u, v: torch.where(t > u, u, v)), (a, b, c)
    if kind == "where not":
        return (lambda t, u: torch.where(torch.logical_not(t == u), t, u)), (a, b)
    if kind == "cat":
        dim = rng.randrange(max(x.dim(), 1))
        return (lambda t, u: torch.cat([t, u], dim)), (a, b)
    if kind == "cat one":
        return (lambda t: torch.cat([t])), (a,)
    if kind == "fill":
        mask = rng.random() < 0.5
        return (lambda t: t.masked_fill(torch.full(t.shape, mask), 2)), (a,)
    if kind == "amax":
        dim = rng.randrange(max(x.dim(), 1))
        return (lambda t: t.amax(dim, keepdim=True)), (a,)
    if kind == "ones":
        return (lambda t: t * torch.ones_like(t)), (a,)
    if kind == "zeros":
        return (lambda t: t - torch.zeros_like(t)), (a,)
    if kind == "pad":
        return (lambda t: F.pad(t, [1, 1])), (a,)
    return rng.choice((torch.sub, torch.bitwise_xor, torch.maximum, torch.logical_and)), (a, a)


def exact_plan(rng: random.Random, length: int) -> Plan:
    """A plan of operators that give the same bits in any order of memory."""
    dtypes = [rng.choice(DTYPES) for _ in range(3)]
    plan = Plan([special(rng, rng.choice(SHAPES), d) for d in dtypes], [])
    return grow(rng, plan, length, exact_step)


# --- open sizes -----------------------------------------------------------------------------------------------------

_SIZED: tuple[Callable[[Any], Any], ...] = (
    lambda t: t.transpose(0, 1).transpose(0, 1),
    lambda t: t.transpose(0, 1).contiguous(),
    lambda t: t.flatten(0, 1),
    lambda t: t.reshape(t.shape[0], -1).view(t.shape),
    lambda t: t.view(t.shape[0] * t.shape[1], -1).view(t.shape),
    lambda t: t.view(t.shape),
    lambda t: t.unsqueeze(0).squeeze(0),
    lambda t: t.permute(2, 0, 1).permute(1, 2, 0),
    lambda t: t.expand(t.shape),
    lambda t: t.unsqueeze(0).expand(2, *t.shape).expand(2, *t.shape),
    lambda t: t[1:],
    lambda t: t[:, 1:][:, 1:],
    lambda t: t.narrow(1, 0, t.shape[1]),
    lambda t: t * torch.ones(t.shape, dtype=t.dtype),
    lambda t: torch.cat([t, t], 1),
    lambda t: torch.cat([t]),
    lambda t: F.pad(t, [1, 1]),
    lambda t: t.amax(-1, keepdim=True),
)


def sized_plan(rng: random.Random, sizes: tuple[int, int], length: int) -> Plan:
    """An exact plan whose inputs have the given sizes in their first dimensions, and steps that fit others as well."""
    dtype = rng.choice((torch.float32, torch.float64, torch.int64, torch.bfloat16))
    a, b = sizes
    plan = Plan([special(rng, shape, dtype) for shape in ((a, b, 8), (a, b, 8), (b, 8), (8,))], [])

    def step(rng: random.Random, values: Sequence[Tensor]) -> Step:
        first, second = rng.randrange(len(values)), rng.randrange(len(values))
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(_SIZED), (first,)
        if kind < 0.7:
            return _with_number(rng), (first,)
        if kind < 0.85:
            return rng.choice((*_UNARY[:6], torch.relu, torch.clone)), (first,)
        return rng.choice(_BINARY), (first, second)

    return grow(rng, plan, length, step)


# --- rewrites with equal sides --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tree:
    """An expression: a variable ("x"), or a function of trees. With the name "both", two results."""

    name: str
    function: Callable[..., Any] | None = None
    parts: tuple[Tree, ...] = ()

    def apply(self, values: dict[str, Any]) -> Any:
        """On tensors, or on the terms of a pattern. A part that stands in two places is computed once."""
        return self._apply(values, {})

    def _apply(self, values: dict[str, Any], known: dict[int, Any]) -> Any:
        if self.function is None:
            return values[self.name]
        if id(self) not in known:
            known[id(self)] = self.function(*(part._apply(values, known) for part in self.parts))
        return known[id(self)]

    def variables(self) -> list[str]:
        if self.function is None:
            return [self.name]
        return list(dict.fromkeys(v for part in self.parts for v in part.variables()))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parts))})" if self.parts else self.name


def _tree(function: Callable[..., Any], *parts: Tree) -> Tree:
    return Tree(function.__name__, function, parts)


def _random_tree(rng: random.Random, depth: int) -> Tree:
    if depth == 0:
        return Tree(rng.choice("xyz"))
    if rng.random() < 0.4:
        return _tree(
            rng.choice((torch.neg, torch.abs, torch.square, torch.sign)), _random_tree(rng, depth - 1)
        )
    function = rng.choice((torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum))
    return _tree(function, _random_tree(rng, depth - 1), _random_tree(rng, rng.randrange(depth)))


def _double_neg(rng: random.Random, t: Tree) -> Tree:
    return _tree(torch.neg, _tree(torch.neg, t))


def _turned(rng: random.Random, t: Tree) -> Tree:
    def turn(v: Any) -> Any:
        return torch.unsqueeze(v, 0)

    def back(v: Any) -> Any:
        return torch.squeeze(v, 0)

    return _tree(back, _tree(turn, t))


def _larger(rng: random.Random, t: Tree) -> Tree:
    return _tree(rng.choice((torch.maximum, torch.minimum)), t, t)


def _times_one(rng: random.Random, t: Tree) -> Tree:
    def times_one(v: Any) -> Any:
        return v * 1

    return _tree(times_one, t)


def _chosen(rng: random.Random, t: Tree) -> Tree:
    def chosen(a: Any, b: Any) -> Any:
        return torch.where(torch.eq(a, b), a, a)

    return _tree(chosen, t, _random_tree(rng, 1))


def _exchanged(rng: random.Random, t: Tree) -> Tree:
    """The operands of one op in the other order."""
    if t.function in (torch.add, torch.mul, torch.eq):
        return Tree(t.name, t.function, t.parts[::-1])
    return t


_WAYS = (_double_neg, _turned, _larger, _times_one, _chosen, _exchanged)


def exact_rule(rng: random.Random) -> tuple[Tree, Tree]:
    """Two expressions of the same numbers, as pattern and replacement."""
    plain = _random_tree(rng, rng.randrange(1, 4))
    other = plain
    for _ in range(rng.randrange(1, 3)):
        other = rng.choice(_WAYS)(rng, other)
    missing = set(other.variables()) - set(plain.variables())
    a, b = (other, plain) if missing or rng.random() < 0.85 else (plain, other)
    if a.function is None or not set(b.variables()) <= set(a.variables()):
        return exact_rule(rng)
    if rng.random() < 0.25:
        # Two results that have an operand in common.
        second = _random_tree(rng, 1)
        if set(second.variables()) & set(a.variables()):
            first, again = _tree(_double, second), _tree(torch.add, second, second)
            return Tree("both", _both, (a, first)), Tree("both", _both, (b, again))
    return a, b


def _double(v: Any) -> Any:
    return v * 2


def _both(a: Any, b: Any) -> Any:
    return a, b


def grow_around(rng: random.Random, trees: Sequence[Tree]) -> Plan:
    """A plan that holds the trees, on values of one dtype and on one another, among other operators."""
    dtype = rng.choice((torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16))
    shapes = [rng.choice(((3, 4), (1, 4), (4,))) for _ in range(3)]
    plan = Plan([special(rng, shape, dtype) for shape in shapes], [])
    values = list(plan.inputs)
    for _ in range(rng.randrange(3, 10)):
        if rng.random() < 0.3:
            add_step(plan, values, exact_step(rng, values))
            continue
        tree = rng.choice(trees)
        numbers = {name: rng.randrange(len(values)) for name in tree.variables()}
        for part in range(2 if tree.name == "both" else 1):
            add_step(plan, values, (_result(tree, tuple(numbers), part), tuple(numbers.values())))
    choose_outputs(rng, plan, values)
    return plan


def _result(tree: Tree, names: tuple[str, ...], part: int) -> Callable[..., Any]:
    def result(*tensors: Any) -> Any:
        found = tree.apply(dict(zip(names, tensors, strict=True)))
        return found[part] if tree.name == "both" else found

    return result


# --- smooth plans ---------------------------------------------------------------------------------------------------

WIDTH = 8


def smooth_plan(rng: random.Random, length: int, seed: int) -> Plan:
    """A plan in float64 of what networks are made of."""
    g = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    inputs = [numbers(2, 3, WIDTH), numbers(2, 3, WIDTH), numbers(3, WIDTH), numbers(2, 2, 3, 4)]
    weights = [
        numbers(WIDTH, WIDTH) / 3,
        numbers(WIDTH, WIDTH) / 3,
        numbers(WIDTH),
        numbers(WIDTH),
        numbers(12, WIDTH) / 3,
    ]
    return grow(rng, Plan(inputs, weights), length, smooth_step)


def smooth_step(rng: random.Random, values: Sequence[Tensor]) -> Step:
    """A random piece of a network: an operator, a layer, or a formula for one."""
    a, b, c = (rng.randrange(len(values)) for _ in range(3))
    if rng.random() < 0.4:
        return rng.choice(_FORMULAS)(rng), (a,)
    if rng.random() < 0.35:
        function, arity = rng.choice(_LAYERS)(rng)
        # The weights are those with the numbers 4 to 8.
        return function, (a, *(rng.randrange(4, 9) for _ in range(arity - 1)))
    kind = rng.choice(("unary", "binary", "binary", "number", "view", "view", "three"))
    if kind == "unary":
        return rng.choice((torch.tanh, torch.sigmoid, torch.relu, torch.erf, torch.neg, torch.sin)), (a,)
    if kind == "binary":
        return rng.choice((torch.add, torch.sub, torch.mul, torch.maximum)), (a, b)
    if kind == "number":
        number = rng.choice((0.5, 2.0, 1.0, 3.0, -1.0, 0.125, 1.7))
        return rng.choice(
            (lambda t: t * number, lambda t: t / number, lambda t: t + number, lambda t: number - t)
        ), (a,)
    if kind == "view":
        return _view(rng, values[a]), (a,)
    return _three(rng), (a, b, c)


def _three(rng: random.Random) -> Callable[..., Any]:
    """Attention, in several spellings."""
    scale = rng.choice((0.5, 2.0, 1.0, 8**-0.5))
    divide, causal, masked = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.3

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores / scale if divide else scores * scale
        if masked:
            scores = scores + torch.ones(scores.shape[-2:], dtype=scores.dtype).tril()
        if causal:
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(torch.logical_not(keep), float("-inf"))
        return torch.matmul(torch.softmax(scores, -1), v)

    def fused(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)

    return attention if rng.random() < 0.8 else fused


def _unary_formula(function: Callable[[Any], Any]) -> Callable[[random.Random], Callable[..., Any]]:
    return lambda rng: function


def _norm(rng: random.Random) -> Callable[..., Any]:
    eps = rng.choice((1e-5, 1e-6, 1e-3))

    def formula(t: Any) -> Any:
        centred = t - t.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)

    def by_var(t: Any) -> Any:
        return (t - t.mean(-1, keepdim=True)) * torch.rsqrt(t.var(-1, unbiased=False, keepdim=True) + eps)

    def rms(t: Any) -> Any:
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + eps)

    return rng.choice((formula, by_var, rms))


_FORMULAS: tuple[Callable[[random.Random], Callable[..., Any]], ...] = (
    _norm,
    _norm,
    _unary_formula(lambda t: 0.5 * t * (1.0 + torch.erf(t / 2.0**0.5))),
    _unary_formula(lambda t: t * 0.5 * (1.0 + torch.erf(t * 0.7071067811865476))),
    _unary_formula(lambda t: 0.5 * t * (1 + torch.tanh(0.7978845608028654 * (t + 0.044715 * t**3)))),
    _unary_formula(lambda t: t * torch.sigmoid(t)),
    _unary_formula(lambda t: t * torch.sigmoid(1.702 * t)),
    _unary_formula(
        lambda t: (
            torch.exp(t - t.amax(-1, keepdim=True))
            / torch.exp(t - t.amax(-1, keepdim=True)).sum(-1, keepdim=True)
        )
    ),
    _unary_formula(lambda t: torch.softmax(t, -1)),
    _unary_formula(lambda t: F.layer_norm(t, t.shape[-1:])),
    _unary_formula(lambda t: torch.relu(t + t)),
    _unary_formula(lambda t: torch.neg(torch.neg(t))),
    _unary_formula(lambda t: t.sum(-1, keepdim=True)),
    _unary_formula(lambda t: t.mean(0, keepdim=True)),
    _unary_formula(lambda t: torch.cat([-t[..., t.shape[-1] // 2 :], t[..., : t.shape[-1] // 2]], -1)),
    _unary_formula(lambda t: t.transpose(-1, -2).transpose(-1, -2)),
    _unary_formula(lambda t: t.reshape(t.shape[0], -1).reshape(t.shape)),
    _unary_formula(lambda t: t.float().double() if False else t.double()),
)


def _layer(rng: random.Random) -> tuple[Callable[..., Any], int]:
    scale = rng.choice((None, 2.0, 0.125, 3.0))
    divide = rng.random() < 0.5

    def linear(t: Any, w: Any, b: Any) -> Any:
        y = F.linear(t, w.view(-1, WIDTH), b.view(WIDTH))
        return y if scale is None else y / scale if divide else y * scale

    def scaled_first(t: Any, w: Any, b: Any) -> Any:
        return F.linear(t * (scale or 1.5), w.view(-1, WIDTH), b.view(WIDTH))

    def shifted(t: Any, w: Any, b: Any) -> Any:
        return F.linear(t, w) + b

    def multiplied(t: Any, w: Any, b: Any) -> Any:
        return torch.matmul(t, w.t()) * b

    return rng.choice((linear, linear, scaled_first, shifted, multiplied)), 3


def _three_layers(rng: random.Random) -> tuple[Callable[..., Any], int]:
    """Query, key and value of one input."""

    def merged(t: Any, w: Any, u: Any, v: Any) -> Any:
        q, k, w3 = F.linear(t, w), F.linear(t, u), F.linear(t, v)
        return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1), w3)

    return merged, 4


def _normed(rng: random.Random) -> tuple[Callable[..., Any], int]:
    return (lambda t, w, b: F.layer_norm(t, [WIDTH], w, b)), 3


_LAYERS = (_layer, _layer, _three_layers, _normed)


# --- common ---------------------------------------------------------------------------------------------------------

_LARGEST = 4096


def grow(
    rng: random.Random, plan: Plan, length: int, make: Callable[[random.Random, Sequence[Tensor]], Step]
) -> Plan:
    """Add steps and choose results: the last values, and a few others."""
    values = [*plan.inputs, *plan.weights]
    attempts = 0
    while len(plan.steps) < length and attempts < 20 * length:
        attempts += 1
        step = make(rng, values)
        add_step(plan, values, step)
    choose_outputs(rng, plan, values)
    return plan


def choose_outputs(rng: random.Random, plan: Plan, values: Sequence[Tensor]) -> None:
    """The last value and a few others, views of inputs and of one another among them."""
    made = range(len(plan.inputs) + len(plan.weights), len(values))
    chosen = {len(values) - 1} | {rng.choice(made) for _ in range(rng.randrange(4))} if made else {0}
    plan.outputs = sorted(chosen)


def add_step(plan: Plan, values: list[Tensor], step: Step) -> bool:
    """Run the step and note it; False if torch refuses it, or its result is of no use."""
    function, numbers = step
    try:
        result = function(*(values[i] for i in numbers))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    if not isinstance(result, Tensor) or result.numel() > _LARGEST or result.dim() > 5:
        return False
    if result.dtype.is_floating_point and result.dtype is torch.float64 and plan.weights:
        if not result.numel() or not bool(torch.isfinite(result).all()) or float(result.abs().max()) > 1e4:
            return False
    values.append(result)
    plan.steps.append(step)
    return True
