"""`lampwork::random_key` and `lampwork::random_words` (csrc/counter_random.cpp): random numbers that are computed.

    random_key() -> key
    random_words(key, size, stride, part) -> words

key int64 []: drawn from torch's generator. words int32 [size]: of element e, in row-major order whatever the strides
are, word e % 4 of the Philox4x32-10 counter (e // 4, part). `part` numbers the words that one element takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from lampwork.graph.spec import TensorSpec

random_key: Any = torch.ops.lampwork.random_key.default
random_words: Any = torch.ops.lampwork.random_words.default


def _key() -> TensorSpec:
    return TensorSpec((), (), torch.int64, torch.device("cpu"))


def _words(key: TensorSpec, size: Sequence[int], stride: Sequence[int], part: int) -> TensorSpec:
    return TensorSpec(tuple(size), tuple(stride), torch.int32, key.device)


RULES: Mapping[Any, Callable[..., TensorSpec]] = MappingProxyType({random_key: _key, random_words: _words})
"""Their shapes."""
