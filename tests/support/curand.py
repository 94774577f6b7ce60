"""What torch's CUDA kernels draw, thread after thread: their loops, and curand's functions, in numpy.

Written from ATen's DistributionTemplates.h and Dropout.cu, and from curand_kernel.h, curand_philox4x32_x.h and
curand_uniform.h: a thread is a row of arrays, and what it does at each turn stands here as it does there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@dataclass
class Device:
    processors: int
    threads: int

    def grid(self, numel: int) -> int:
        return min(self.processors * (self.threads // 256), (numel + 255) // 256)

    def counter_offset(self, numel: int, unroll: int) -> int:
        return ((numel - 1) // (256 * self.grid(numel) * unroll) + 1) * 4


class States:
    """curandStatePhilox4_32_10_t of all threads, after curand_init(seed, thread, offset)."""

    def __init__(self, seed: int, threads: int, offset: int) -> None:
        assert offset % 4 == 0
        self.key = seed & 0xFFFFFFFF, seed >> 32
        self.low = np.full(threads, offset // 4, np.uint64)
        self.high = np.arange(threads, dtype=np.uint64)

    def curand4(self) -> list[Array]:
        """uint32 words x, y, z, w of each thread."""
        c = [self.low & WORD, self.low >> HALF, self.high & WORD, self.high >> HALF]
        k0, k1 = self.key
        for _ in range(10):
            p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
            c = [
                (p1 >> HALF) ^ c[1] ^ np.uint64(k0),
                p1 & WORD,
                (p0 >> HALF) ^ c[3] ^ np.uint64(k1),
                p0 & WORD,
            ]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        self.low = self.low + np.uint64(1)
        return [word.astype(np.uint32) for word in c]

    def uniform4(self) -> list[Array]:
        scale, half = np.float32(2.0**-32), np.float32(2.0**-33)
        return [word.astype(np.float32) * scale + half for word in self.curand4()]

    def uniform2_double(self) -> list[Array]:
        x, y, z, w = (word.astype(np.uint64) for word in self.curand4())
        shift, scale, half = np.uint64(21), 2.0**-53, 2.0**-54
        return [(low ^ (high << shift)).astype(np.float64) * scale + half for low, high in ((x, y), (z, w))]


def grid_stride(
    device: Device, numel: int, seed: int, offset: int, draw: Callable[[States], list[Array]], dtype: type
) -> Array:
    """distribution_elementwise_grid_stride_kernel: what each element is transformed from."""
    threads = 256 * device.grid(numel)
    states, out = States(seed, threads, offset), np.zeros(numel, dtype)
    index = np.arange(threads)
    unroll = 2 if draw is States.uniform2_double else 4
    rounded = ((numel - 1) // (threads * unroll) + 1) * threads * unroll
    while index[0] < rounded:
        for number, drawn in enumerate(draw(states)):
            place = index + threads * number
            out[place[place < numel]] = drawn[place < numel]
        index = index + threads * unroll
    return out


def dropout_mask(
    device: Device, numel: int, vector: int, p: float, seed: int, offset: int, wide: bool
) -> Array:
    """fused_dropout_kernel (vector 1) and fused_dropout_kernel_vec: which elements are kept. p: of keeping."""
    kept = p if wide else np.float32(p)
    if vector == 1:
        return grid_stride(device, numel, seed, offset, States.uniform4, np.float32) < kept
    threads = 256 * device.grid(numel)
    states, out = States(seed, threads, offset), np.zeros(numel, np.bool_)
    index = np.arange(threads) * vector
    while index[0] < numel:
        drawn = [each for _ in range((vector + 3) // 4) for each in states.uniform4()]
        for number in range(vector):
            place = index + number
            out[place[index < numel]] = drawn[number][index < numel] < kept
        index = index + threads * vector
    return out


def vector_size(address: int, numel: int, itemsize: int, *, dense: bool = True) -> int:
    """get_vector_size of dropout."""
    vector = 1
    if dense:
        vector = next(size for size in (8, 4, 2, 1) if address % (size * itemsize) == 0)
        vector = min(16 // itemsize, vector)
    while vector > 1 and numel % vector:
        vector //= 2
    return vector
