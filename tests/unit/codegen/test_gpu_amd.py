"""Code for AMD cards: LLVM makes assembly and an object of every kernel, which say what a wave of it needs."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace

import grid_cases as cases
import pytest
from grids import grids_of, kernels_of
from test_gpu_ptx import BY_DTYPE, WIDE, operations

from lampwork.codegen.gpu.amd import amd_generator, describe_amd, emit_amd, exp2, in_spaces
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import WARP, Grid
from lampwork.loops.ir.kernel import is_finished_by_last
from lampwork.loops.schedule.grid import on_grid

ARCHITECTURES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32, "gfx1201": 32}  # lanes of a wave
SIMPLE = 96  # vector registers of a thread
CASES = cases.FAMILIES | BY_DTYPE | WIDE | {"losses": cases.losses}


def assembly_of(grid: Grid, architecture: str) -> str:
    of = amd_generator(describe_amd(architecture))
    return of.jit.emit(of.emit(grid, "lw_kernel"), 0, verify=True, assembly=True).decode()


def object_of(grid: Grid, architecture: str) -> bytes:
    of = amd_generator(describe_amd(architecture))
    return of.jit.emit(of.emit(grid, "lw_kernel"), 0, verify=True)


def said(text: str, name: str) -> int:
    """A number of the metadata that the runtime launches a kernel by."""
    (found,) = re.findall(rf"^    \.{name}: +(\d+)$", text, re.MULTILINE)
    return int(found)


@dataclass
class Elf:
    """kind: 1 relocatable. machine: 224 for AMD. symbols: defined and undefined ones of a name, without locals."""

    kind: int
    machine: int
    defined: set[str]
    undefined: set[str]


def elf_of(data: bytes) -> Elf:
    assert data[:5] == b"\x7fELF\x02"
    kind, machine = struct.unpack_from("<HH", data, 16)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * n) for n in range(count)]
    (symbols,) = (each for each in sections if each[1] == 2)
    names = sections[symbols[6]][4]
    found = Elf(kind, machine, set(), set())
    for start in range(symbols[4], symbols[4] + symbols[5], 24):
        name, info, _, section = struct.unpack_from("<IBBH", data, start)
        text = data[names + name : data.index(b"\0", names + name)].decode()
        if text and info >> 4:
            (found.defined if section else found.undefined).add(text)
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_llvm_takes_it(name: str, architecture: str) -> None:
    for grid in grids_of(CASES[name]()):
        text = assembly_of(grid, architecture)
        assert f'"amdgcn-amd-amdhsa--{architecture}"' in text
        assert 0 < said(text, "vgpr_count") <= SIMPLE and 0 < said(text, "sgpr_count") <= 108
        assert said(text, "vgpr_spill_count") == said(text, "sgpr_spill_count") == 0
        assert said(text, "private_segment_fixed_size") == 0
        assert said(text, "max_flat_workgroup_size") == grid.threads * grid.groups
        assert said(text, "wavefront_size") == ARCHITECTURES[architecture]
        fixed = said(text, "group_segment_fixed_size")
        assert fixed + grid.shared_bytes <= 64 << 10
        assert not re.findall(r"\tflat_\w+", text)  # it is known which memory an address is of
        assert ("s_barrier" in text) == _waits(grid, architecture)


def _waits(grid: Grid, architecture: str) -> bool:
    """Whether waves have others to wait for: LLVM leaves out the barriers of a group that is one."""
    ir = amd_generator(describe_amd(architecture)).emit(grid, "lw_kernel")
    threads = grid.threads * (grid.groups if is_finished_by_last(grid.kernel) else 1)
    return "call void @llvm.amdgcn.s.barrier()" in ir and threads > ARCHITECTURES[architecture]


@pytest.mark.parametrize(
    ("threads", "scope", "barrier"), [(32, "wavefront", "wave.barrier"), (64, "workgroup", "s.barrier")]
)
def test_what_is_written_before_a_barrier_is_seen_after_it(threads: int, scope: str, barrier: str) -> None:
    (grid,) = grids_of(cases.mirrored())
    grid = replace(grid, threads=threads, groups=128 // threads if threads <= WARP else 1)
    lines = emit_amd(grid, describe_amd("gfx942"), "lw_kernel").splitlines()
    waits = [n for n, line in enumerate(lines) if "barrier()" in line and not line.startswith("declare")]
    assert waits
    for n in waits:
        assert lines[n].strip() == f"call void @llvm.amdgcn.{barrier}()"
        assert lines[n - 1].strip() == f'fence syncscope("{scope}") release'
        assert lines[n + 1].strip() == f'fence syncscope("{scope}") acquire'


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_objects_need_nothing(architecture: str) -> None:
    """The kernel and its descriptor are all that an object defines, and it asks for no symbol of others."""
    for make in cases.FAMILIES.values():
        for each in kernels_of(make(), describe_amd(architecture)):
            grid = on_grid(each)
            found = elf_of(object_of(grid, architecture))
            assert (found.kind, found.machine) == (1, 224)
            assert found.defined == {"lw_kernel", "lw_kernel.kd"} and not found.undefined


def test_arguments_are_all_visible() -> None:
    """8 bytes each in the order of the module's docstring, and none that a runtime would have to know of."""
    (grid,) = grids_of(cases.normed_rows())
    text = assembly_of(grid, "gfx942")
    listed = re.findall(r"\.name: +(\w+)\n +\.offset: +(\d+)\n +\.size: +8\n", text)
    names = [name for name, _ in listed]
    assert names[-4:] == ["s0", "s1", "extent", "workgroups"] and set(names[:-4]) == {"b0", "b1"}
    assert [int(offset) for _, offset in listed] == [8 * n for n in range(len(listed))]
    assert said(text, "kernarg_segment_size") == 8 * len(listed) and "hidden_" not in text


def test_numbers_are_ieee() -> None:
    """Subnormal numbers stay, and roundings are to the nearest."""
    text = assembly_of(grids_of(cases.flat())[0], "gfx90a")
    for line in ("float_denorm_mode_32 3", "float_denorm_mode_16_64 3", "float_round_mode_32 0"):
        assert f".amdhsa_{line}" in text


@pytest.mark.parametrize("dtype", [*cases.FLOATS, "i64", "i32", "u8"])
@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1201"])
def test_operations_need_no_library_of_amd(dtype: str, architecture: str) -> None:
    for each in operations(dtype):
        grid = on_grid(each)
        assert not elf_of(object_of(grid, architecture)).undefined
        text = assembly_of(grid, architecture)
        assert not re.findall(r"s_swappc|\tflat_\w+", text) and said(text, "vgpr_spill_count") == 0


def test_an_index_out_of_range_traps() -> None:
    (grid,) = grids_of(cases.gather())
    assert "s_trap 2" in assembly_of(grid, "gfx942")
    (grid,) = grids_of(cases.flat())
    assert "s_trap" not in assembly_of(grid, "gfx942")


def test_lanes_of_a_wave() -> None:
    """Numbers of lanes are of the whole wave: 64 where it has as many."""
    (grid,) = grids_of(cases.softmax())
    assert "v_mbcnt_hi" in assembly_of(grid, "gfx90a") and "v_mbcnt_hi" not in assembly_of(grid, "gfx1100")


def test_pointers_keep_their_memory() -> None:
    """Through elements of elements, and those of other origins stay as they are."""
    before = """@table = internal unnamed_addr constant [2 x i64] [i64 1, i64 2], align 8
  %p = addrspacecast ptr addrspace(3) @shared to ptr
  %q = getelementptr i8, ptr %p, i64 4
  %r = getelementptr float, ptr %q, i64 %i
  store float %x, ptr %r, align 4
  %t = getelementptr i64, ptr @table, i64 %i
  %u = load i64, ptr %other"""
    assert (
        in_spaces(before)
        == """@table = internal unnamed_addr addrspace(4) constant [2 x i64] [i64 1, i64 2], align 8
  %q = getelementptr i8, ptr addrspace(3) @shared, i64 4
  %r = getelementptr float, ptr addrspace(3) %q, i64 %i
  store float %x, ptr addrspace(3) %r, align 4
  %t = getelementptr i64, ptr addrspace(4) @table, i64 %i
  %u = load i64, ptr %other"""
    )


def test_rooms_on_the_stack_are_in_its_space() -> None:
    b = Builder(Module(), describe_amd("gfx942"))
    room = b.alloca("[4 x i32]", 16)
    b.line(f"store i32 1, ptr {room}")
    assert "alloca [4 x i32], align 16, addrspace(5)" in b.body()
    assert "addrspacecast ptr addrspace(5) %own2 to ptr" in b.body()


def test_powers_by_one_instruction() -> None:
    (grid,) = grids_of(cases.softmax())
    assert "v_exp_f32" in assembly_of(grid, "gfx1100")
    b = Builder(Module(), describe_amd("gfx942"))
    assert exp2(b, Value("%x", "f32", 4)).lanes == 4 and b.body().count("@llvm.amdgcn.exp2.f32") == 4


def test_other_architectures_are_refused() -> None:
    with pytest.raises(
        CodegenError, match="no target is known for gfx1030: there are gfx90a, gfx942, gfx1100"
    ):
        describe_amd("gfx1030")


def test_kernels_can_only_be_looked_at() -> None:
    of = amd_generator(describe_amd("gfx942"))
    kernels = kernels_of(cases.flat())
    (text,) = of.texts(kernels)
    assert "amdgpu_kernel" in text and "s_endpgm" in of.assembly(text)
    with pytest.raises(CodegenError, match="nothing runs kernels of gfx942 here"):
        of.compile(kernels, ())
