"""torch's global state as places: flags that captured code, or the compiler, may have read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mutate import Edit, Undo


def _flag(
    get: Callable[[], Any], put: Callable[[Any], Any], other: Callable[[Any], Any]
) -> Callable[[], Undo]:
    def do() -> Undo:
        was = get()
        put(other(was))
        return lambda: put(was)

    return do


def _autocast(value: bool) -> None:
    torch.set_autocast_enabled("cpu", value)
    # Compiled code casts a weight at each use, where eager may keep the first cast, and so sums gradients of half
    # precision; see docs/numerics.md.
    torch.set_autocast_cache_enabled(not value)
    torch.clear_autocast_cache()


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype != torch.float64 else torch.float32


def _meta() -> Undo:
    torch.set_default_device("meta")
    return lambda: torch.set_default_device(None)  # any device, also the first one, is a mode on every call


def _inference() -> Undo:
    mode = torch.inference_mode()
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


_FLAGS: dict[str, Callable[[], Undo]] = {
    "default dtype": _flag(torch.get_default_dtype, torch.set_default_dtype, _double),
    "grad mode": _flag(torch.is_grad_enabled, torch._C._set_grad_enabled, lambda v: not v),
    "autocast": _flag(lambda: torch.is_autocast_enabled("cpu"), _autocast, lambda v: not v),
    "autocast dtype": _flag(
        lambda: torch.get_autocast_dtype("cpu"),
        lambda v: torch.set_autocast_dtype("cpu", v),
        lambda v: torch.float16 if v == torch.bfloat16 else torch.bfloat16,
    ),
    "deterministic": _flag(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, lambda v: not v
    ),
    "matmul precision": _flag(
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        lambda v: "high" if v == "highest" else "highest",
    ),
    "mkldnn": _flag(
        lambda: torch.backends.mkldnn.enabled,
        lambda v: setattr(torch.backends.mkldnn, "enabled", v),
        lambda v: not v,
    ),
    "flash sdp": _flag(
        torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, lambda v: not v
    ),
    "math sdp": _flag(
        torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, lambda v: not v
    ),
    "anomaly mode": _flag(torch.is_anomaly_enabled, torch.set_anomaly_enabled, lambda v: not v),
    "inference mode": _inference,
    "default device": _meta,
    "fill uninitialized memory": _flag(
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        lambda v: setattr(torch.utils.deterministic, "fill_uninitialized_memory", v),
        lambda v: not v,
    ),
    "mha fast path": _flag(
        torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, lambda v: not v
    ),
    "global forward hook": lambda: torch.nn.modules.module.register_module_forward_hook(_global_hook).remove,
}


def _global_hook(module: Any, args: Any, out: Any) -> Any:
    return out + 1 if isinstance(out, torch.Tensor) and out.is_floating_point() else None


class _Shared:
    """The owner of all of torch's state: one for both worlds."""


_OWNER = _Shared()


def torch_edits() -> list[Edit]:
    return [Edit("torch", "torch's state", label, _OWNER, do) for label, do in _FLAGS.items()]
