"""Random numbers that are computed: of a key of torch's generator (csrc/counter_random.cpp), and what a CUDA device's
own generator draws (csrc/card_random.cpp).

    random_key() -> key
    random_words(key, size, stride, part) -> words

key int64 []: drawn from torch's generator. words int32 [size]: of element e, in row-major order whatever the strides
are, word e % 4 of the Philox4x32-10 counter (e // 4, part). `part` numbers the words that one element takes.

    philox_state(increment, device) -> state
    philox_words(state, size, stride, order, ahead, threads, width, words, part) -> words

state int64 [2], on the device: the seed of its generator, and where in the stream of each thread the next words are; it
moves on by `increment`. words int32 [size]: of element e, the sum of its coordinates times `order`, as
`card_random.Stream` says; `ahead`: how many words of each stream others took since the state was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from lampwork.graph.spec import TensorSpec

random_key: Any = torch.ops.lampwork.random_key.default
random_words: Any = torch.ops.lampwork.random_words.default
philox_state: Any = torch.ops.lampwork.philox_state.default
philox_words: Any = torch.ops.lampwork.philox_words.default


def _key() -> TensorSpec:
    return TensorSpec((), (), torch.int64, torch.device("cpu"))


def _words(key: TensorSpec, size: Sequence[int], stride: Sequence[int], part: int) -> TensorSpec:
    return TensorSpec(tuple(size), tuple(stride), torch.int32, key.device)


def _state(increment: int, device: torch.device) -> TensorSpec:
    return TensorSpec((2,), (1,), torch.int64, device)


def _philox_words(state: TensorSpec, size: Sequence[int], stride: Sequence[int], *place: Any) -> TensorSpec:
    return _words(state, size, stride, 0)


RULES: Mapping[Any, Callable[..., TensorSpec]] = MappingProxyType(
    {random_key: _key, random_words: _words, philox_state: _state, philox_words: _philox_words}
)
"""Their shapes."""
