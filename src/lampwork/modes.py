"""The state of torch's process and thread, by functions that were bound before any program ran.

A program may put others in their place (`mock.patch("torch.is_inference_mode_enabled")`): that changes what the program
is told, never what torch does. So the compiler asks here only, and a test holds the rest of the package to it.
"""

from __future__ import annotations

from torch import (
    are_deterministic_algorithms_enabled,
    get_autocast_dtype,
    get_default_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
    is_deterministic_algorithms_warn_only_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
)

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_autocast_dtype",
    "get_default_dtype",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
]
