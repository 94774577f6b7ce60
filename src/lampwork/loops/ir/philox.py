"""Philox4x32-10 in numpy: what the operation `philox` means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORDS = 4
WORD = 0xFFFFFFFF

Array = NDArray[Any]


def philox(key: Array, element: Array, part: Array) -> Array:
    """int32: word `element % 4` of the counter (element // 4, part) under a key. All int64; the key's lower half comes
    first."""
    key, element, part = (np.asarray(x).astype(np.uint64) for x in np.broadcast_arrays(key, element, part))
    mask, half = np.uint64(WORD), np.uint64(32)
    counter = element >> np.uint64(2)
    c0, c1, c2, c3 = counter & mask, counter >> half, part & mask, part >> half
    k0, k1 = key & mask, key >> half
    for _ in range(ROUNDS):
        p0, p1 = (c * np.uint64(by) for c, by in zip((c0, c2), MULTIPLIERS, strict=True))
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & mask, (p0 >> half) ^ c3 ^ k1, p0 & mask
        k0, k1 = ((k + np.uint64(step)) & mask for k, step in zip((k0, k1), STEPS, strict=True))
    which = (element & np.uint64(WORDS - 1)).astype(np.int64)
    return np.asarray(np.choose(which, [c0, c1, c2, c3])).astype(np.uint32).view(np.int32)
