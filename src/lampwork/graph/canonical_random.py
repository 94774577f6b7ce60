"""Operators that draw random numbers, recorded as arithmetic on the words of a counter: numerics="fast".

before: %y = dropout(%x, 0.1, True)

after:  %key = random_key()                     # from torch's generator
        %words = random_words(%key, ...)        # Philox: computed, not drawn
        %y = %x * (le(%words, 0.9 * 2**32 - 2**31 - 1) * (1 / 0.9))

Each operator has a key, and each element words of its own, so numbers depend on neither threads nor fusion, and
backward computes them again from the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.graph.random_words import random_key, random_words
from lampwork.graph.recorded import call_specs
from lampwork.graph.shapes import infer
from lampwork.graph.shapes_common import dense, preserved_strides
from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.standard import math

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]

_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.float64: 53}
"""Of uniform numbers: as many as lie evenly below 1."""


@record
class _Source:
    """The words of one operator, whose result is of `spec`."""

    spec: TensorSpec
    key: Any

    def words(self, part: int = 0) -> Any:
        """int32, each as often as any other."""
        return random_words(self.key, list(self.spec.shape), list(self.spec.strides), part)

    def bits(self, count: int, offset: float = 0.0) -> Any:
        """(n + offset) / 2**count for a number n of so many bits, in float64 for more than 32, else in float32."""
        if count <= 32:
            number = aten.bitwise_and.Scalar(self.words(), (1 << count) - 1).to(torch.float32)
        else:
            upper = aten.bitwise_and.Scalar(self.words(), (1 << count - 32) - 1).to(torch.float64)
            number = upper * 2.0**32 + (self.words(1).to(torch.float64) + 2.0**31)
        return (number + offset if offset else number) * 2.0**-count

    def inside(self) -> Any:
        """Uniform numbers of (0, 1), whose logarithms are finite and not 0."""
        return self.bits(52 if self.spec.dtype is torch.float64 else 23, 0.5)

    def chosen(self, p: float) -> Any:
        """bool, true with probability p, to 2**-32."""
        below = round(p * 2.0**32) - 2**31
        if below == -(2**31):
            return aten.lt.Scalar(self.words(), below)
        return aten.le.Scalar(self.words(), below - 1)

    def rounded(self, value: Any) -> Call:
        """The operator that ends with this value, in the dtype of the result."""
        return aten._to_copy.default, (value,), {"dtype": self.spec.dtype}


def counted(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call of `op` as one that draws nothing, with what it depends on recorded; as it is where there is none."""
    rule = _RULES.get(op)
    if rule is None or kwargs.get("generator") is not None or kwargs.get("pin_memory"):
        return op, args, kwargs
    spec = infer(op, tuple(call_specs(args)), call_specs(kwargs))
    given = {parameter.name: parameter.default_value for parameter in op._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    if not isinstance(spec, TensorSpec) or spec.dtype not in _BITS or spec.device.type != "cpu":
        return op, args, kwargs
    with rec.again():
        return rule(spec, given) or (op, args, kwargs)


def _are_numbers(*values: Any) -> bool:
    """Whether they are numbers, and not open ones."""
    return all(type(value) in (float, int) and math.isfinite(value) for value in values)


def _has_gradient(given: Mapping[str, Any]) -> bool:
    """Whether a tensor that is filled requires grad, and so what fills it."""
    return pristine.is_grad_enabled() and given["self"].requires_grad


def _source(spec: TensorSpec) -> _Source:
    return _Source(replace(spec, strides=preserved_strides(spec)), random_key())


def _uniform(spec: TensorSpec, given: Mapping[str, Any]) -> Call:
    source = _source(spec)
    return source.rounded(source.bits(_BITS[spec.dtype]))


def _uniform_between(spec: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    low, high = given["from"], given["to"]
    if not _are_numbers(low, high) or low > high or _has_gradient(given):
        return None
    source = _source(spec)
    unit = source.bits(_BITS[spec.dtype])
    if (low, high) == (0, 1):
        return source.rounded(unit)
    value = (unit * (high - low) + low).to(spec.dtype)
    return aten.where.ScalarSelf, (aten.ge.Scalar(value, high), low, value), {}


def _standard_normal(source: _Source) -> Any:
    """Box and Muller's transformation of two uniform numbers to one."""
    wide = source.spec.dtype is torch.float64
    angle = source.words(2).to(torch.float64 if wide else torch.float32) * (math.pi * 2.0**-31)
    return aten.sqrt.default(aten.log.default(source.inside()) * -2.0) * aten.cos.default(angle)


def _normal(spec: TensorSpec, given: Mapping[str, Any]) -> Call:
    source = _source(spec)
    return source.rounded(_standard_normal(source))


def _normal_around(spec: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    mean, std = given["mean"], given["std"]
    if not _are_numbers(mean, std) or std < 0 or _has_gradient(given):
        return None
    source = _source(spec)
    return source.rounded(_standard_normal(source) * std + mean)


def _exponential(spec: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    rate = given["lambd"]
    if not _are_numbers(rate) or rate <= 0 or _has_gradient(given):
        return None
    source = _source(spec)
    return source.rounded(aten.log.default(source.inside()) * (-1.0 / rate))


def _bernoulli(spec: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    p = given["p"]
    if not _are_numbers(p) or not 0 <= p <= 1 or _has_gradient(given):
        return None
    source = _source(spec)
    return source.rounded(source.chosen(p))


def _dropped(noise: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    """The tensor times noise, which is 0 or 1 / (1 - p) in its dtype."""
    p, x = given["p"], given["input"]
    if not _are_numbers(p) or not 0 < p < 1:
        return None
    factor = _source(noise).chosen(1 - p).to(noise.dtype) * (1 / (1 - p))
    return aten.mul.Tensor, (x, factor), {}


def _dropout(spec: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    return _dropped(_spec_of(given["input"]), given)


def _feature_dropout(spec: TensorSpec, given: Mapping[str, Any]) -> Call | None:
    """Whole channels are dropped: the noise has sizes of 1 behind them."""
    shape = (*spec.shape[:2], *(1 for _ in spec.shape[2:]))
    return _dropped(dense(shape, spec.dtype, spec.device), given)


def _spec_of(tensor: Tensor) -> TensorSpec:
    return call_specs([tensor])[0]


_RULES: Mapping[Any, Callable[[TensorSpec, Mapping[str, Any]], Call | None]] = {
    aten.dropout.default: _dropout,
    aten.feature_dropout.default: _feature_dropout,
    aten.bernoulli.p: _bernoulli,
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.uniform.default: _uniform_between,
    aten.randn.default: _normal,
    aten.randn_like.default: _normal,
    aten.normal_functional.default: _normal_around,
    aten.exponential.default: _exponential,
}
