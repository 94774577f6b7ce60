"""What is called while an operator is being recorded: the recorder's mode again, and autocast's share."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from functools import cache
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lampwork import pristine
from lampwork.graph.opinfo import OF_NO_PRODUCTS, is_composite

_C = cast(Any, torch._C)

# Not composite, and yet their kernels call products; a test finds those of torch's database that are missing here.
_MADE_OF_PRODUCTS = frozenset(
    {
        "linalg_pinv",
        "_trilinear",
        "_transformer_encoder_layer_fwd",
        "affine_grid_generator",
        "_euclidean_dist",
    }
)


class Again(contextlib.AbstractContextManager[None]):
    """Re-enters a mode without the guards of its own `__enter__`, which are still in force."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self._mode)

    def __exit__(self, *exc: Any) -> None:
        TorchDispatchMode.__exit__(self._mode, *exc)


_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""Devices with autocast -> its dispatch key."""


CAST = tuple(_KEYS)
"""The types of devices whose autocast is followed."""


def devices_cast() -> tuple[str, ...]:
    """The types of devices that autocast is on for."""
    return tuple(kind for kind in CAST if pristine.is_autocast_enabled(kind))


@cache
def is_cast(op: Any, kind: str = "cpu") -> bool:
    """Whether autocast has a say on an operator as a whole: it casts its arguments, and what it calls is left alone."""
    return _C._dispatch_has_kernel_for_dispatch_key(op.name(), _KEYS[kind])


@cache
def may_be_cast_inside(op: Any) -> bool:
    """Whether autocast may cast what an operator calls, but not its own arguments, on some device: as a whole it is
    another one."""
    if op._opname in OF_NO_PRODUCTS or all(is_cast(op, kind) for kind in _KEYS):
        return False
    return is_composite(op) or op._opname in _MADE_OF_PRODUCTS


class Autocast:
    """Where autocast is on, asked in a mode, where all dispatch keys above it are excluded, autocast's among them."""

    def __init__(self) -> None:
        self._inside: list[tuple[str, ...]] = []

    @property
    def is_composing(self) -> bool:
        """Whether what is being recorded is called by a composite operator, not by the program."""
        return bool(self._inside)

    def casts_inside(self, op: Any) -> bool:
        """Whether it may cast what an operator that is being recorded calls, but not its own arguments."""
        return any(not is_cast(op, kind) for kind in self._kinds())

    def _kinds(self) -> tuple[str, ...]:
        """The types of devices that it is on for, for the operator that is being recorded."""
        if self._inside:
            return self._inside[-1]
        with _C._RestorePythonTLSSnapshot():
            return devices_cast()

    @contextlib.contextmanager
    def inside(self, op: Any) -> Generator[None]:
        """For what a composite operator calls: `einsum` is no matter of autocast, the `bmm` that it calls is."""
        kinds = tuple(kind for kind in self._kinds() if not is_cast(op, kind))
        self._inside.append(kinds)
        try:
            with contextlib.ExitStack() as stack:
                if kinds:
                    excluded = _C._dispatch_tls_local_exclude_set()
                    for kind in kinds:
                        excluded = excluded.remove(getattr(_C.DispatchKey, _KEYS[kind]))
                    stack.enter_context(
                        _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded)
                    )
                yield
        finally:
            self._inside.pop()
