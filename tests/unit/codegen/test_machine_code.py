"""Object code loaded into the process: what it reaches, what is refused, and that memory is given back."""

from __future__ import annotations

import ctypes
import gc
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lampwork import _C
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.llvm.jit import Jit

MODULE = """
@table = internal constant [3 x i64] [i64 5, i64 7, i64 11]
@calls = internal global i64 40
@zeros = internal global [1000 x i64] zeroinitializer
@both = internal constant [2 x ptr] [ptr @first, ptr @second]
@environ = external global ptr
declare i64 @labs(i64)
declare double @cos(double)

define i64 @first(i64 %x) {
  ret i64 %x
}
define i64 @second(i64 %x) {
  %place = getelementptr [3 x i64], ptr @table, i64 0, i64 %x
  %value = load i64, ptr %place
  ret i64 %value
}
define i64 @counted(i64 %x) {
  %before = load i64, ptr @calls
  %after = add i64 %before, 1
  store i64 %after, ptr @calls
  %zero = load i64, ptr getelementptr ([1000 x i64], ptr @zeros, i64 0, i64 999)
  %sum = add i64 %after, %zero
  ret i64 %sum
}
define i64 @chosen(i64 %x) {
  %place = getelementptr [2 x ptr], ptr @both, i64 0, i64 %x
  %function = load ptr, ptr %place
  %value = call i64 %function(i64 2)
  ret i64 %value
}
define i64 @outside(i64 %x) {
  %value = call i64 @labs(i64 %x)
  %more = call i64 @labs(i64 -1)
  %sum = add i64 %value, %more
  ret i64 %sum
}
define i64 @environment(i64 %x) {
  %value = load ptr, ptr @environ
  %number = ptrtoint ptr %value to i64
  ret i64 %number
}
define i64 @rounded(i64 %x) {
  %cosine = call double @cos(double 0.0)
  %value = fmul double %cosine, 2.5
  %number = fptosi double %value to i64
  ret i64 %number
}
"""
NAMES = ["first", "second", "counted", "chosen", "outside", "environment", "rounded"]


def _object_code() -> bytes:
    return Jit(host_isa()).object_code(MODULE)


def _call(code: _C.MachineCode, name: str, argument: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.functions[name])(argument)


def test_code_reaches_its_data_and_what_is_outside() -> None:
    code = _C.MachineCode(_object_code())
    assert sorted(code.functions) == sorted(NAMES)
    assert [_call(code, "second", i) for i in range(3)] == [5, 7, 11]
    assert [_call(code, "counted", 0) for _ in range(3)] == [41, 42, 43]
    assert (_call(code, "chosen", 0), _call(code, "chosen", 1)) == (2, 11)
    assert _call(code, "outside", -9) == 10
    assert _call(code, "environment", 0) == ctypes.c_int64.in_dll(ctypes.CDLL(None), "environ").value
    assert _call(code, "rounded", 0) == 2


def test_each_has_variables_of_its_own() -> None:
    object_code = _object_code()
    one, other = _C.MachineCode(object_code), _C.MachineCode(object_code)
    assert [_call(one, "counted", 0), _call(one, "counted", 0), _call(other, "counted", 0)] == [41, 42, 41]


def _mapped() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_memory_is_given_back() -> None:
    object_code = _object_code()
    before = _mapped()
    many = [_C.MachineCode(object_code) for _ in range(100)]
    assert _mapped() >= before + 100
    assert many[0].bytes >= 3 * 4096
    many.clear()
    gc.collect()
    assert _mapped() < before + 20


CROWDED = """
import ctypes, sys
from lampwork import _C

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def reserve(size):
    return libc.mmap(None, size, 0, 0x4022, -1, 0)  # nothing may touch it: private, anonymous, no swap

object_code = open(sys.argv[1], "rb").read()
large = reserve(8 << 30)
last = 0
for size in (1 << 30, 1 << 24, 1 << 18, 1 << 12):
    while (place := reserve(size)) > large:
        last = place
    libc.munmap(place, size)
for _ in range(10):
    libc.munmap(last, 4096)  # the one free page above
    code = _C.MachineCode(object_code)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.functions["second"])
    assert function(1) == 7
    while (place := reserve(4096)) > large:
        last = place
    libc.munmap(place, 4096)
"""


def test_sections_lie_together_where_memory_is_crowded(tmp_path: Path) -> None:
    """A single free page above a mapping of 8 GiB: sections mapped one by one would lie on both sides of it."""
    (tmp_path / "module.o").write_bytes(_object_code())
    subprocess.run([sys.executable, "-c", CROWDED, str(tmp_path / "module.o")], check=True, timeout=120)


@pytest.mark.parametrize("found", [b"", b"\x7fELF", b"no object code" * 100])
def test_what_is_no_object_code_is_refused(found: bytes) -> None:
    with pytest.raises(ValueError, match="cut off|no relocatable"):
        _C.MachineCode(found)


def test_what_is_cut_off_is_refused() -> None:
    object_code = _object_code()
    for length in range(0, len(object_code) - 1, 7):
        with pytest.raises(ValueError):
            _C.MachineCode(object_code[:length])


def test_what_is_damaged_is_loaded_or_refused() -> None:
    """Nothing of it is run. What is read and written while loading stays within the file and the block."""
    object_code = _object_code()
    chance = random.Random(7)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(object_code)
        for _ in range(chance.choice([1, 2, 8])):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
        try:
            _C.MachineCode(bytes(damaged))
        except ValueError:
            refused += 1
    assert 0 < refused < 3000


def test_a_missing_symbol_is_named() -> None:
    ir = "declare void @no_such_thing()\ndefine void @f() {\ncall void @no_such_thing()\nret void\n}"
    with pytest.raises(ValueError, match="this process has no 'no_such_thing'"):
        _C.MachineCode(Jit(host_isa()).object_code(ir))


def test_thread_local_variables_are_refused() -> None:
    ir = "@own = thread_local global i64 3\ndefine i64 @f() {\n%x = load i64, ptr @own\nret i64 %x\n}"
    with pytest.raises(ValueError, match="thread-local"):
        _C.MachineCode(Jit(host_isa()).object_code(ir))
