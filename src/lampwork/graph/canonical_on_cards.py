"""Operators that draw from a CUDA device's generator, recorded as arithmetic on the words that eager draws there.

before: %y = dropout(%x, 0.1, True)

after:  %state = philox_state(4, cuda:0)     # seed and offset, which moves on as eager moves it
        %words = philox_words(%state, ...)   # computed where they are read, in backward again
        %y = %x * (le(%words ^ -2**31, ...) * (1 / 0.9))

Operators that follow each other take their places in the generator's stream at once: the first state moves on by the
sum.

Numbers are eager's, bit for bit. What is not sure to be: normal and exponential numbers (of CUDA's own functions),
multinomial, probabilities in a tensor, tensors that ATen fills in pieces, memory of unknown alignment and open sizes,
is a call of ATen. So is a family of operators that does otherwise on the device at hand (`card_trial`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import getitem
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from lampwork import pristine
from lampwork.graph import card_trial
from lampwork.graph.card_random import (
    VECTOR_BYTES,
    Card,
    Stream,
    card_of,
    dropping,
    filling,
    rounded,
    words_below,
)
from lampwork.graph.overlap import start_of
from lampwork.graph.random_words import philox_state, philox_words
from lampwork.graph.recorded import call_specs
from lampwork.graph.shapes import infer
from lampwork.graph.shapes_common import dense, preserved_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import TraceTensor
from lampwork.records import record
from lampwork.standard import math

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
Words = Callable[[int], Any]
"""The int32 words of all elements, by the part: 0, or 1 for the other half of a number of 64 bits."""

TAKEN = frozenset({"dropout", "bernoulli", "uniform", "randint"})
"""The families of operators that are recorded as arithmetic; others are calls of ATen. To take one back, delete it."""

_WORD = 2**32 - 1
_SIGN = 2**31
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INTS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


@record
class Asked:
    """A call: the spec of its result, its arguments by name, the device, and `place`, which gives the address of a
    tensor modulo VECTOR_BYTES (None: not known)."""

    spec: TensorSpec
    given: Mapping[str, Any]
    card: Card
    place: Callable[[Any], int | None]

    @property
    def has_gradient(self) -> bool:
        """Whether a tensor that is filled requires grad, and so what fills it."""
        filled = self.given.get("self")
        return filled is not None and pristine.is_grad_enabled() and filled.requires_grad


@record
class Drawing:
    """Words for a tensor of `shape` and `strides`, and the call that ends what is made of them."""

    stream: Stream
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    finish: Callable[[Words], Call]

    def words(self, state: Any, ahead: int = 0) -> Words:
        """state: what philox_state gives. ahead: how far others moved it on since."""
        stream = self.stream

        def of_part(part: int) -> Any:
            place = (list(stream.order), ahead, stream.threads, stream.width, stream.words, part)
            return philox_words(state, list(self.shape), list(self.strides), *place)

        return of_part


def counted(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call of `op` as one that draws nothing, with what it depends on recorded; as it is where there is none."""
    family, rule = RULES.get(op, ("", None))
    if rule is None or family not in TAKEN or kwargs.get("generator") is not None or kwargs.get("pin_memory"):
        return op, args, kwargs
    spec = infer(op, tuple(call_specs(args)), call_specs(kwargs))
    if not isinstance(spec, TensorSpec) or spec.device.type != "cuda":
        return op, args, kwargs
    device = rec.places.of(spec.device)
    if not card_trial.agrees(device.index, family, spec.dtype, proposed):
        return op, args, kwargs
    with rec.again():
        drawing = proposed(op, args, kwargs, spec, card_of(device.index), lambda tensor: _place(rec, tensor))
        if drawing is None:
            return op, args, kwargs
        return drawing.finish(drawing.words(*_taken(rec, device, drawing.stream.increment)))


@dataclass(slots=True)
class Taken:
    """state: the last that was asked for on a device. increment: how far it moves on. last: a node up to which nothing
    else can have drawn."""

    state: TraceTensor
    increment: int
    last: fx.Node


def _taken(rec: Recorder, device: torch.device, increment: int) -> tuple[TraceTensor, int]:
    """A state, and how far ahead of it the next numbers are."""
    taken = rec.taken.get(device)
    if taken is None or not _draws_nothing_since(taken):
        state = philox_state(increment, device)
        rec.taken[device] = Taken(state, increment, state.node)
        return state, 0
    ahead, taken.increment = taken.increment, taken.increment + increment
    taken.state.base.node.args = (taken.increment, device)
    rec.draws += 1
    return taken.state, ahead


def _draws_nothing_since(taken: Taken) -> bool:
    """Whether all that was recorded behind a state is known, and draws nothing."""
    if taken.state.base.inference is not pristine.is_inference_mode_enabled():
        return False
    node, meta = taken.last.next, ("random", "effect", "opaque")
    while node.op != "root":
        target = node.target
        known = target is getitem or getattr(target, "namespace", None) in ("aten", "prims", "lampwork")
        if node.op == "call_function" and (not known or any(node.meta.get(name) for name in meta)):
            return False
        taken.last, node = node, node.next
    return True


def proposed(
    op: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    spec: TensorSpec,
    card: Card,
    place: Callable[[Any], int | None],
) -> Drawing | None:
    """What the call draws, whose result is of `spec`; None where that is not sure. The rest as in `Asked`."""
    parameters = op._schema.arguments
    given = {parameter.name: parameter.default_value for parameter in parameters}
    given |= dict(zip((parameter.name for parameter in parameters), args, strict=False)) | dict(kwargs)
    return RULES[op][1](Asked(spec, given, card, place))


def _place(rec: Recorder, tensor: Any) -> int | None:
    """The address of a tensor, modulo VECTOR_BYTES. Torch's allocator gives memory that begins at multiples of far more
    bytes. Where a tensor from outside lies is looked at on each call."""
    traced: TraceTensor = tensor if isinstance(tensor, TraceTensor) else rec.lift(tensor)
    base = traced.base
    if base.source == "fresh":
        return start_of(traced) % VECTOR_BYTES if _begins_its_memory(base.made) else None
    if base.source != "input" or rec.address_of is None:
        return None
    outside = next(each for each in (*rec.inputs, *rec.bound) if each.base is base)
    place = rec.address_of(outside.tensor, VECTOR_BYTES)
    return None if place is None else (place + start_of(traced)) % VECTOR_BYTES


def _begins_its_memory(made: fx.Node) -> bool:
    """Whether what an operator gives begins where its memory does. Results behind a first one may share its memory, and
    what operators from outside of torch give is anything."""
    if made.target is getitem and made.args[1] == 0:
        made = cast(fx.Node, made.args[0])
    target = made.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "lampwork")


# --- numbers of words -------------------------------------------------------------------------------------------------


def _whole(word: Any) -> Any:
    """int64, 0 to 2**32 - 1."""
    return aten.bitwise_and.Scalar(word.to(torch.int64), _WORD)


def _uniform(words: Words, dtype: torch.dtype) -> Any:
    """Of (0, 1], as curand makes them: float64 of two words for float64, else float32. The products are exact."""
    if dtype is torch.float64:
        number = aten.bitwise_xor.Tensor(_whole(words(0)), _whole(words(1)) * 2**21)
        return number.to(torch.float64) * 2.0**-53 + 2.0**-54
    return _whole(words(0)).to(torch.float32) * 2.0**-32 + 2.0**-33


def _chosen(words: Words, p: float) -> Any:
    """bool: whether the uniform number of float32 is below p, without computing it."""
    below = words_below(p)
    flipped = aten.bitwise_xor.Scalar(words(0), -_SIGN)
    return aten.le.Scalar(flipped, below - 1 - _SIGN) if below else aten.lt.Scalar(flipped, -_SIGN)


def _are_numbers(*values: Any) -> bool:
    """Whether they are numbers, and not open ones."""
    return all(type(value) in (float, int) and math.isfinite(value) for value in values)


# --- operators --------------------------------------------------------------------------------------------------------


def _filled(asked: Asked, finish: Callable[[Words], Call], words: int) -> Drawing | None:
    stream = filling(asked.card, asked.spec, words)
    if stream is None or asked.has_gradient:
        return None
    return Drawing(stream, asked.spec.shape, asked.spec.strides, finish)


def _rand(asked: Asked) -> Drawing | None:
    return _between(asked, 0.0, 1.0)


def _uniform_between(asked: Asked) -> Drawing | None:
    low, high = asked.given["from"], asked.given["to"]
    return _between(asked, low, high) if _are_numbers(low, high) and low <= high else None


def _between(asked: Asked, low: float, high: float) -> Drawing | None:
    """number * width + low, where rounding it once is rounding it twice; what reaches the end is the start."""
    dtype = asked.spec.dtype
    if dtype not in _FLOATS:
        return None
    if dtype is not torch.float64:
        low, high = rounded(low), rounded(high)
    width = high - low if dtype is torch.float64 else rounded(high - low)
    if (low, high) != (0, 1) and (
        dtype not in (torch.float32, torch.float64)
        or not math.isfinite(width)
        or (low != 0 and math.frexp(width)[0] != 0.5)
    ):
        return None

    def finish(words: Words) -> Call:
        number = _uniform(words, dtype)
        value = number if (low, high) == (0, 1) else number * width + low
        value = value if value.dtype is dtype else value.to(dtype)
        return aten.where.ScalarSelf, (aten.eq.Scalar(value, high), low, value), {}

    return _filled(asked, finish, 2 if dtype is torch.float64 else 1)


def _bernoulli(asked: Asked) -> Drawing | None:
    p, dtype = asked.given["p"], asked.spec.dtype
    if (
        not _are_numbers(p)
        or not 0 <= p <= 1
        or not (dtype in _FLOATS or dtype in _INTS or dtype is torch.bool)
    ):
        return None
    wide = dtype is torch.float64

    def finish(words: Words) -> Call:
        chosen = aten.lt.Scalar(_uniform(words, dtype), p) if wide else _chosen(words, rounded(p))
        return aten._to_copy.default, (chosen,), {"dtype": dtype}

    return _filled(asked, finish, 2 if wide else 1)


def _dropout(asked: Asked) -> Drawing | None:
    """One kernel in eager, which computes in float32 for half types, and divides by the rounded probability in forward
    alone."""
    x, p, dtype = asked.given["input"], asked.given["p"], asked.spec.dtype
    if not _are_numbers(p) or not 0 < p < 1 or dtype not in _FLOATS:
        return None
    is_wide = dtype is torch.float64
    kept = 1 - p if is_wide else rounded(1 - p)
    scale = 1 / kept if is_wide else rounded(1 / kept)
    backward = 1 / (1 - p) if is_wide else rounded(1 / (1 - p))
    if not kept or (scale != backward and pristine.is_grad_enabled() and x.requires_grad):
        return None
    (of,) = call_specs([x])
    stream = dropping(asked.card, of, asked.place(x))
    if stream is None:
        return None
    inside = torch.float64 if is_wide else torch.float32

    def finish(words: Words) -> Call:
        factor = _chosen(words, kept).to(inside) * scale
        if dtype is inside:
            return aten.mul.Tensor, (x, factor), {}
        return aten._to_copy.default, (x.to(inside) * factor,), {"dtype": dtype}

    return Drawing(stream, of.shape, preserved_strides(of), finish)


def _feature_dropout(asked: Asked) -> Drawing | None:
    """Eager's composition: noise of whole channels by `bernoulli_`, divided in its dtype."""
    x, p, dtype = asked.given["input"], asked.given["p"], asked.spec.dtype
    if not _are_numbers(p) or not 0 < p < 1 or dtype not in _FLOATS or len(asked.spec.shape) < 2:
        return None
    is_wide = dtype is torch.float64
    shape = (*asked.spec.shape[:2], *(1 for _ in asked.spec.shape[2:]))
    noise = dense(shape, dtype, asked.spec.device)
    stream = filling(asked.card, noise, 2 if is_wide else 1)
    if stream is None or not rounded(1 - p):
        return None
    scale = 1 / (1 - p) if is_wide else rounded(1 / rounded(1 - p))

    def finish(words: Words) -> Call:
        chosen = aten.lt.Scalar(_uniform(words, dtype), 1 - p) if is_wide else _chosen(words, rounded(1 - p))
        return aten.mul.Tensor, (x, chosen.to(dtype) * scale), {}

    return Drawing(stream, shape, noise.strides, finish)


_MOST_IN_A_WORD = 2**28
"""From so many whole numbers on ATen takes them from 64 bits."""


def _whole_numbers(low: str | int, high: str) -> Callable[[Asked], Drawing | None]:
    """low, or the name of the argument that it is; the name of the argument that is the first number above."""

    def rule(asked: Asked) -> Drawing | None:
        given, dtype = asked.given, asked.spec.dtype
        least = given[low] if isinstance(low, str) else low
        above = given[high]
        if type(least) is not int or type(above) is not int or dtype not in _INTS:
            return None
        limits = torch.iinfo(dtype)
        if not 0 < above - least < _MOST_IN_A_WORD or least < limits.min or above - 1 > limits.max:
            return None

        def finish(words: Words) -> Call:
            number = aten.remainder.Scalar(_whole(words(0)), above - least)
            number = number + least if least else number
            return aten._to_copy.default, (number,), {"dtype": dtype}

        return _filled(asked, finish, 1)

    return rule


Rule = Callable[[Asked], Drawing | None]

RULES: Mapping[Any, tuple[str, Rule]] = MappingProxyType(
    {
        aten.dropout.default: ("dropout", _dropout),
        aten.feature_dropout.default: ("bernoulli", _feature_dropout),
        aten.bernoulli.p: ("bernoulli", _bernoulli),
        aten.rand.default: ("uniform", _rand),
        aten.rand_like.default: ("uniform", _rand),
        aten.uniform.default: ("uniform", _uniform_between),
        aten.randint.default: ("randint", _whole_numbers(0, "high")),
        aten.randint.low: ("randint", _whole_numbers("low", "high")),
        aten.randint_like.default: ("randint", _whole_numbers(0, "high")),
        aten.randint_like.low_dtype: ("randint", _whole_numbers("low", "high")),
        aten.random.to: ("randint", _whole_numbers(0, "to")),
        getattr(aten.random, "from"): ("randint", _whole_numbers("from", "to")),
    }
)
"""Operator → its family, and the rule that says what it draws."""
