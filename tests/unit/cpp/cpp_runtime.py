"""The C interface of the runtime without Python, called from Python: builds it, and gives and takes torch's tensors."""

from __future__ import annotations

import ctypes
import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "cpp"
MISSING = ", ".join(tool for tool in ("cmake", "ninja", "g++") if shutil.which(tool) is None)
"""What building needs and this machine does not have."""

BUILDS = [
    pytest.mark.skipif(bool(MISSING), reason=f"building the C++ runtime needs {MISSING}"),
    pytest.mark.timeout(1200),  # the first test builds
]
"""The marks of a file of tests that use the build."""

DTYPES: list[torch.dtype] = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
]
"""In the order of `lw_dtype`, from 1 on."""


def built(folder: Path = BUILD, options: Sequence[str] = (), targets: Sequence[str] = ()) -> Path:
    """The folder of a build, brought up to date: one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = ["cmake", "-G", "Ninja", "-S", str(ROOT / "cpp"), "-B", str(folder), *options]
        configure.append("-DCMAKE_UNITY_BUILD=ON")  # half the time
        for command in (configure, ["ninja", "-C", str(folder), *targets]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("trust", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("target", ctypes.c_char_p),
        ("keys", ctypes.POINTER(ctypes.c_char_p)),
        ("n_keys", ctypes.c_size_t),
    ]


class Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    ]


class CppError(Exception):
    """A call that failed: the name of its status, and its message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Runtime:
    """The library."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.lw_default_options.restype = Options
        for name in (
            "error",
            "status_name",
            "manifest",
            "target",
            "target_reason",
            "signer",
            "entry_name",
            "dtype_name",
        ):
            getattr(self.lib, f"lw_{name}").restype = ctypes.c_char_p
        for name in ("entry_needs_aten", "number_name"):
            getattr(self.lib, f"lw_{name}").restype = ctypes.c_char_p
        for name in (
            "entry_count",
            "input_count",
            "output_count",
            "number_count",
            "result_count",
            "dtype_size",
        ):
            getattr(self.lib, f"lw_{name}").restype = ctypes.c_size_t

    def check(self, status: int) -> None:
        if status:
            raise CppError(self.lib.lw_status_name(status).decode(), self.lib.lw_error().decode())

    def load(
        self,
        path: Path | str,
        trust: bool = True,
        threads: int = 1,
        target: str | None = None,
        keys: Sequence[Path | str] = (),
    ) -> Model:
        options = self.lib.lw_default_options()
        options.trust, options.threads = int(trust), threads
        options.target = None if target is None else target.encode()
        if keys:
            options.keys = (ctypes.c_char_p * len(keys))(*(str(key).encode() for key in keys))
            options.n_keys = len(keys)
        handle = ctypes.c_void_p()
        self.check(self.lib.lw_load(str(path).encode(), ctypes.byref(options), ctypes.byref(handle)))
        return Model(self, handle)


class Model:
    def __init__(self, runtime: Runtime, handle: ctypes.c_void_p) -> None:
        self.runtime, self.lib, self.handle = runtime, runtime.lib, handle

    def __del__(self) -> None:
        self.lib.lw_free(self.handle)

    def entry(self, name: str) -> int:
        number = ctypes.c_size_t()
        self.runtime.check(self.lib.lw_find_entry(self.handle, name.encode(), ctypes.byref(number)))
        return number.value

    @property
    def target(self) -> str:
        return self.lib.lw_target(self.handle).decode()

    @property
    def reason(self) -> str:
        return self.lib.lw_target_reason(self.handle).decode()

    @property
    def signer(self) -> str:
        return self.lib.lw_signer(self.handle).decode()

    def needs_aten(self, entry: str = "forward") -> list[str]:
        return self.lib.lw_entry_needs_aten(self.handle, ctypes.c_size_t(self.entry(entry))).decode().split()

    def specs(self, entry: str, of: str) -> list[tuple[str, torch.dtype, list[int]]]:
        """Of `of` "input" or "output": names, dtypes, and sizes with -1 for those that differ between calls."""
        number = ctypes.c_size_t(self.entry(entry))
        found: list[tuple[str, torch.dtype, list[int]]] = []
        for i in range(getattr(self.lib, f"lw_{of}_count")(self.handle, number)):
            spec = Spec()
            call = getattr(self.lib, f"lw_{of}_spec")
            self.runtime.check(call(self.handle, number, ctypes.c_size_t(i), ctypes.byref(spec)))
            found.append((spec.name.decode(), DTYPES[spec.dtype - 1], list(spec.shape[: spec.ndim])))
        return found

    def set_weights(self, path: Path | str) -> None:
        self.runtime.check(self.lib.lw_set_weights(self.handle, str(path).encode()))

    def prepare(self, entry: str = "forward") -> None:
        self.runtime.check(self.lib.lw_prepare(self.handle, ctypes.c_size_t(self.entry(entry))))

    def run(
        self, *inputs: torch.Tensor | Tensor, entry: str = "forward", numbers: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """Copies of the results."""
        given, values = self._given(inputs), (ctypes.c_int64 * len(numbers))(*numbers)
        number, result = ctypes.c_size_t(self.entry(entry)), ctypes.c_void_p()
        counts = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(len(numbers))
        self.runtime.check(
            self.lib.lw_run(self.handle, number, given, counts[0], values, counts[1], ctypes.byref(result))
        )
        try:
            return [self._result(result, i) for i in range(self.lib.lw_result_count(result))]
        finally:
            self.lib.lw_result_free(result)

    def aliases(
        self, *inputs: torch.Tensor | Tensor, entry: str = "forward"
    ) -> list[tuple[int, int, list[int]] | None]:
        """Of each result the input that it lies in, its offset there and its strides, in elements, as the call says;
        None: it has memory of its own."""
        given, number, result = self._given(inputs), ctypes.c_size_t(self.entry(entry)), ctypes.c_void_p()
        counts = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(0)
        self.runtime.check(
            self.lib.lw_run(self.handle, number, given, counts[0], None, counts[1], ctypes.byref(result))
        )
        found: list[tuple[int, int, list[int]] | None] = []
        for at in range(self.lib.lw_result_count(result)):
            which, offset, tensor = ctypes.c_int64(), ctypes.c_int64(), Tensor()
            place = ctypes.c_size_t(at)
            self.runtime.check(
                self.lib.lw_result_alias(result, place, ctypes.byref(which), ctypes.byref(offset))
            )
            self.runtime.check(self.lib.lw_result_tensor(result, place, ctypes.byref(tensor)))
            if which.value < 0:
                assert all(tensor.data != each.data for each in given)
                found.append(None)
            else:
                size = DTYPES[tensor.dtype - 1].itemsize
                assert tensor.data == given[which.value].data + offset.value * size
                found.append((which.value, offset.value, list(tensor.strides[: tensor.ndim])))
        self.lib.lw_result_free(result)
        return found

    def run_into(
        self, *inputs: torch.Tensor | Tensor, into: Sequence[torch.Tensor | Tensor], entry: str = "forward"
    ) -> None:
        given, made, number = self._given(inputs), self._given(into), ctypes.c_size_t(self.entry(entry))
        counts = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(len(into))
        none = ctypes.c_size_t(0)
        self.runtime.check(
            self.lib.lw_run_into(self.handle, number, given, counts[0], None, none, made, counts[1])
        )

    def _given(self, tensors: Sequence[torch.Tensor | Tensor]) -> Any:
        return (Tensor * len(tensors))(
            *(each if isinstance(each, Tensor) else given(each) for each in tensors)
        )

    def _result(self, result: ctypes.c_void_p, number: int) -> torch.Tensor:
        found = Tensor()
        self.runtime.check(self.lib.lw_result_tensor(result, ctypes.c_size_t(number), ctypes.byref(found)))
        shape, strides = list(found.shape[: found.ndim]), list(found.strides[: found.ndim])
        dtype = DTYPES[found.dtype - 1]
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        memory = bytearray(ctypes.string_at(found.data, (last + 1) * dtype.itemsize))
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def given(
    tensor: torch.Tensor, shape: Sequence[int] | None = None, strides: Sequence[int] | None = None
) -> Tensor:
    """A tensor as the C interface takes it; the tensor has to stay. `shape` and `strides`: other ones, for what torch
    itself refuses."""
    sizes = tensor.shape if shape is None else shape
    steps = tensor.stride() if strides is None else strides
    numbers = ctypes.c_int64 * len(sizes)
    return Tensor(
        tensor.data_ptr(),
        DTYPES.index(tensor.dtype) + 1,
        len(sizes),
        numbers(*sizes),
        numbers(*steps),
    )
