"""Runs Programs with every buffer between two pages that no access survives, without the runtime in C++."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lampwork.runtime.program import CallAten, CallKernel, Program, Ref, Release, Value

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NOTHING = 0
_PAGE = mmap.PAGESIZE
_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.c_int64,
)


class KernelFailed(Exception):
    """A kernel met an index out of range."""


def guarded(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, *, front: bool) -> torch.Tensor:
    """Zeros that end where a page without access begins; `front`: that begin where one ends. Never freed."""
    span = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    nbytes = span * dtype.itemsize
    inner = max(-(-nbytes // _PAGE), 1) * _PAGE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _LIBC.mmap(None, inner + 2 * _PAGE, _NOTHING, flags, -1, 0) + _PAGE
    assert _LIBC.mprotect(start, inner, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    if span == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    place = start if front else start + inner - nbytes
    memory = (ctypes.c_char * nbytes).from_address(place)
    return torch.frombuffer(memory, dtype=dtype).as_strided(tuple(shape), tuple(strides))


def moved(tensor: torch.Tensor, *, front: bool) -> torch.Tensor:
    """The same content in guarded memory; opaque tensors stay where they are."""
    if tensor.layout is not torch.strided or tensor.is_mkldnn:
        return tensor
    copy = guarded(tensor.shape, tensor.stride(), tensor.dtype, front=front)
    return copy.copy_(tensor) if 0 not in tensor.stride() or tensor.numel() < 2 else _expanded(copy, tensor)


def _expanded(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    first = tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())
    copy[first].copy_(tensor[first])
    return copy


Shares = Callable[[int], Sequence[tuple[int, int]]]
"""The parts of a kernel's range, in the order in which they are run."""


def run(
    program: Program,
    inputs: Sequence[torch.Tensor],
    bound: Sequence[torch.Tensor],
    *,
    front: bool,
    shares: Shares = lambda extent: [(0, extent)],
) -> list[torch.Tensor]:
    """The program's outputs. `shares`: how threads would share the kernels of the main part.

    Raises:
        KernelFailed: a kernel reports that it cannot finish.
    """
    constants = [] if program.constants is None else run(program.constants, bound, (), front=front)
    given = {"input": inputs, "bound": bound, "constant": constants}
    tensors: dict[int, torch.Tensor] = {}
    for number, value in enumerate(program.values):
        if value.kind in given and value.position < len(given[value.kind]):
            tensors[number] = moved(given[value.kind][value.position], front=front)

    def tensor(number: int) -> torch.Tensor:
        if number not in tensors:
            tensors[number] = make(program.values[number])
        return tensors[number]

    def make(value: Value) -> torch.Tensor:
        if value.kind == "view":
            base = tensor(value.base)
            return base.as_strided(value.shape, value.strides, base.storage_offset() + value.offset)
        assert value.dtype is not None
        return guarded(value.shape, value.strides, value.dtype, front=front)

    def plain(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return tensor(argument.value)
        if isinstance(argument, list | tuple):
            return type(argument)(plain(item) for item in argument)
        return argument

    for step in program.instructions:
        if isinstance(step, Release) or (isinstance(step, CallKernel) and step.extent <= 0):
            continue
        if isinstance(step, CallKernel):
            buffers = (ctypes.c_void_p * len(step.buffers))(*(tensor(n).data_ptr() for n in step.buffers))
            sizes = (ctypes.c_int64 * max(len(step.sizes), 1))(*step.sizes)
            for begin, end in shares(step.extent):
                if _KERNEL(step.code.address)(buffers, sizes, begin, end):
                    raise KernelFailed(step.name)
            continue
        assert isinstance(step, CallAten)
        results = _call(step, plain)
        for number, result in zip(step.outs, results, strict=False):
            if number >= 0 and result is not None:
                tensors[number] = moved(_laid_out(result, program.values[number]), front=front)
    return [tensor(number) for number in program.outputs]


def _call(step: CallAten, plain: Any) -> Sequence[Any]:
    namespace, _, name = step.op.partition("::")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    result = operator(*plain(step.args), **{key: plain(value) for key, value in step.kwargs})
    return result if isinstance(result, tuple | list) else [result]


def _laid_out(result: torch.Tensor, value: Value) -> torch.Tensor:
    """An ATen result in the strides that the program says, as the runtime lays it out."""
    if value.dtype is None or result.stride() == tuple(value.strides):
        return result
    return torch.empty_strided(value.shape, value.strides, dtype=value.dtype).copy_(result)
