"""Tensors as Python source."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch
from torch import Tensor

from lampwork.graph.spec import contiguous_strides
from lampwork.minifying.case import extent

_LITERAL = 64
"""Numbers that are written out one by one, at most."""


def simpler(tensor: Tensor, seed: int) -> list[str]:
    """Sources of tensors like this one, with simpler numbers; the simplest first."""
    count, kind = extent(tensor), str(tensor.dtype)
    flats = [
        f"torch.zeros({count}, dtype={kind})",
        f"torch.ones({count}, dtype={kind})",
        f"torch.arange({count}).remainder(2).to({kind})",
        f"torch.arange({count}).remainder(7).sub(3).to({kind})",
        f"torch.randn({count}, generator=torch.Generator().manual_seed({seed})).to({kind})",
    ]
    return [_shaped(flat, tensor) for flat in flats]


def literal(tensor: Tensor) -> str:
    """Source of the very tensor, bit for bit."""
    flat = tensor.detach().as_strided((extent(tensor),), (1,)).clone()
    plain = not flat.is_complex() and flat.dtype not in _ODD
    if flat.numel() <= _LITERAL and plain and not bool(flat.isnan().any()):
        return _shaped(f"torch.tensor({flat.tolist()}, dtype={tensor.dtype})", tensor)
    data = base64.b85encode(zlib.compress(flat.view(torch.uint8).numpy().tobytes(), 9)).decode()
    return _shaped(f"torch.frombuffer(unpacked({data!r}), dtype={tensor.dtype}).clone()", tensor)


_ODD = (torch.float8_e4m3fn, torch.float8_e5m2)


def _shaped(flat: str, tensor: Tensor) -> str:
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    dense = strides == contiguous_strides(shape)
    text = f"{flat}.reshape({shape})" if dense else f"{flat}.as_strided({shape}, {strides})"
    text = flat if dense and len(shape) == 1 else text
    return f"{text}.requires_grad_()" if tensor.requires_grad else text


def evaluated(text: str) -> Tensor:
    """The tensor of a source."""
    names: dict[str, Any] = {"torch": torch, "inf": float("inf"), "unpacked": unpacked}
    return eval(text, names)


def unpacked(text: str) -> bytearray:
    """The bytes that `literal` packed."""
    return bytearray(zlib.decompress(base64.b85decode(text)))
