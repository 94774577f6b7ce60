"""Strides of pointwise results where the operands' dtypes differ: TensorIterator casts before it looks at strides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch

from lampwork.graph import shapes_pointwise as rules
from lampwork.graph.spec import TensorSpec

DTYPES = (torch.float32, torch.float64, torch.int32)
PAIRS = {
    "add": (rules.binary, torch.add),
    "div": (rules.binary_float, torch.div),
    "eq": (rules.compare, torch.eq),
    "where": (
        lambda a, b: rules.where(TensorSpec.of(torch.ones(3, 4, dtype=torch.bool)), a, b),
        lambda a, b: torch.where(torch.ones(3, 4, dtype=torch.bool), a, b),
    ),
    "addcmul": (lambda a, b: rules.ternary(a, b, b), lambda a, b: torch.addcmul(a, b, b)),
}


def views(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    yield torch.ones(4, 3, dtype=dtype).T
    yield torch.ones(3, 4, dtype=dtype)
    yield torch.ones(3, 1, dtype=dtype).expand(3, 4)
    yield torch.ones(1, 4, dtype=dtype).expand(3, 4)
    yield torch.ones(4, 6, dtype=dtype)[:, ::2].T
    yield torch.ones(4, dtype=dtype)
    yield torch.ones((), dtype=dtype)


@pytest.mark.parametrize("name", PAIRS)
def test_strides_are_torchs(name: str) -> None:
    rule, function = PAIRS[name]
    for first, second in product(DTYPES, DTYPES):
        for a, b in product(views(first), views(second)):
            try:
                expected = function(a, b)
            except RuntimeError:
                continue
            found = rule(TensorSpec.of(a), TensorSpec.of(b))
            assert (found.shape, found.strides, found.dtype) == (
                expected.shape,
                expected.stride(),
                expected.dtype,
            ), (first, a.stride(), second, b.stride())


LAYOUTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5, 1, 5), (1, 5, 0)),
    ((3, 4), (1, 0)),
    ((3, 4), (1, 3)),
    ((2, 3, 4), (12, 1, 3)),
    ((2, 3, 4, 5), (0, 1, 15, 3)),
    ((0, 3, 4), (1, 0, 3)),
    ((3, 1, 4), (0, 7, 9)),
    ((1, 3), (9, 1)),
)
OF_ALL_KINDS = (torch.bool, torch.int64, torch.float16, torch.float32, torch.float64, torch.complex64)


def _argument(rng: random.Random, argument: Any, x: torch.Tensor, first: bool) -> Any:
    kind = str(argument.type)
    if "Tensor" in kind:
        dtype = rng.choice((x.dtype, x.dtype, torch.float32, torch.int64, torch.bool))
        dtype = torch.bool if argument.name in ("condition", "mask") else dtype
        same = (tuple(x.shape), x.stride())
        shape, strides = same if first else rng.choice((same, same, (x.shape[-1:], (1,)), ((), ())))
        return torch.ones(500, dtype=dtype).as_strided(shape, strides)
    choices: dict[str, tuple[Any, ...]] = {
        "number": (1, 1.5, True),
        "Optional[number]": (1, 1.5, True),
        "float": (0.5,),
        "Optional[str]": (None, "floor"),
        "bool": (True,),
        "int": (1,),
    }
    return rng.choice(choices.get(kind, (None,)))


def _calls(op: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    rng = random.Random(str(op))
    for (shape, strides), dtype in product(LAYOUTS, OF_ALL_KINDS):
        x = torch.ones(500, dtype=dtype).as_strided(shape, strides)
        for _ in range(3):
            args: list[Any] = []
            kwargs: dict[str, Any] = {}
            for argument in op._schema.arguments:
                is_tensor = "Tensor" in str(argument.type)
                if argument.has_default_value() and not (is_tensor and rng.random() < 0.6):
                    continue
                value = _argument(rng, argument, x, not args)
                if argument.kwarg_only:
                    kwargs[argument.name] = value
                else:
                    args.append(value)
            yield args, kwargs


def _spec(value: Any) -> Any:
    return TensorSpec.of(value) if isinstance(value, torch.Tensor) else value


def test_every_rule_gives_torchs_strides() -> None:
    wrong: dict[str, str] = {}
    for op, rule in rules.RULES.items():
        for args, kwargs in _calls(op):
            try:
                expected = op(*args, **kwargs)
            except (RuntimeError, TypeError):
                continue
            if not isinstance(expected, torch.Tensor):
                continue
            given = [_spec(arg) for arg in args], {key: _spec(value) for key, value in kwargs.items()}
            found = rule(*given[0], **given[1])
            want = TensorSpec.of(expected)
            if (found.shape, found.strides, found.dtype) != (want.shape, want.strides, want.dtype):
                wrong[str(op)] = f"{given}: {found} {found.strides}, expected {want} {want.strides}"
    assert not wrong, wrong
