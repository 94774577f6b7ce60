"""Which number of a CUDA generator each element of a tensor has, as torch's kernels draw them.

They draw by Philox4x32-10: a thread has a stream of 32-bit words of its own, whose number is the thread's, and the
generator says where in all streams the next kernel begins. A kernel has as many threads as there are elements, in
blocks of 256, but no more than the card runs at once. What is here follows ATen's headers and kernels:

* What fills tensors (`distribution_elementwise_grid_stride_kernel`): a word a turn, of numbers of 64 bits two, for the
  element that the thread's number leads to, and at the next turn for that which is as many elements further as there
  are threads. Elements are counted in the order of memory.
* Dropout of elements apart (`fused_dropout_kernel`): the same, counted in the order of rows.
* Dropout of 2, 4 or 8 elements side by side in memory (`fused_dropout_kernel_vec`): four words a turn, eight for eight.

Source: ATen/native/cuda/DistributionTemplates.h, Dropout.cu.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import torch

from lampwork.graph.shapes_common import is_dense
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.records import record
from lampwork.standard import functools

BLOCK = 256
"""Threads of a block."""
CALL = 4
"""Words that a call of curand takes from a stream."""
VECTOR_BYTES = 16
"""What a thread of dropout reads at once, at most."""
_MOST_BYTES = 2**31 - 1
"""What 32-bit indices reach. ATen draws for larger tensors in pieces."""


@record
class Card:
    """processors: multiprocessors. threads: that each of them runs at once."""

    processors: int
    threads: int

    def threads_for(self, count: int) -> int:
        """How many threads draw `count` numbers."""
        return BLOCK * min(self.processors * (self.threads // BLOCK), -(-count // BLOCK))


@functools.cache
def card_of(index: int) -> Card:
    """The CUDA device of this number."""
    found = cast(Any, torch).cuda.get_device_properties(index)
    return Card(found.multi_processor_count, found.max_threads_per_multi_processor)


@record
class Stream:
    """Where the words of elements are: element e = width * q + i is the i-th of turn q // threads of the thread
    q % threads, whose stream has `words` words for a turn.

    order: the strides that number the elements. increment: how far the generator moves on.
    """

    order: tuple[int, ...]
    threads: int
    width: int
    words: int
    increment: int


def is_drawn_at_once(spec: TensorSpec) -> bool:
    """Whether one kernel of torch fills the tensor, of a size that is known, and some size."""
    if any(type(size) is not int for size in (*spec.shape, *spec.strides)):
        return False
    return 0 < spec.nbytes <= _MOST_BYTES


def filling(card: Card, spec: TensorSpec, words: int = 1) -> Stream | None:
    """Of an operator that fills a tensor with numbers of so many words; None for memory with gaps."""
    if not is_drawn_at_once(spec) or not is_dense(spec):
        return None
    threads = card.threads_for(spec.numel)
    return Stream(spec.strides, threads, 1, words, _increment(spec.numel, threads * CALL // words))


def dropping(card: Card, spec: TensorSpec, place: int | None) -> Stream | None:
    """Of dropout of a tensor whose address is `place`, modulo VECTOR_BYTES; None if that is needed and not known."""
    if not is_drawn_at_once(spec):
        return None
    count, width = spec.numel, VECTOR_BYTES // spec.dtype.itemsize
    if not is_dense(spec) or count % 2:
        width = 1
    elif place is None:
        return None
    while width > 1 and (place or 0) % (width * spec.dtype.itemsize):
        width //= 2
    while count % width:
        width //= 2
    threads = card.threads_for(count)
    increment = _increment(count, threads * CALL)
    if width == 1:
        return Stream(contiguous_strides(spec.shape), threads, 1, 1, increment)
    return Stream(spec.strides, threads, width, max(width, CALL), increment)


def _increment(count: int, at_once: int) -> int:
    return ((count - 1) // at_once + 1) * CALL


# --- curand's uniform numbers of (0, 1] -------------------------------------------------------------------------------


def rounded(number: float) -> float:
    """The nearest float32."""
    return ctypes.c_float(number).value


def uniform(word: int) -> float:
    """The float32 that curand makes of a word: word * 2**-32 + 2**-33, rounded twice."""
    return rounded(rounded(word) * 2.0**-32 + 2.0**-33)


@functools.lru_cache(maxsize=1024)
def words_below(p: float) -> int:
    """How many words have a uniform number below p. They are the first ones, as `uniform` never falls."""
    return _first(lambda word: uniform(word) >= p)


def _first(holds: Callable[[int], bool]) -> int:
    low, high = 0, 2**32
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
