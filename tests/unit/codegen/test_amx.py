"""Which CPUs and kernels have AMX, and what is said where they do not."""

from __future__ import annotations

import pytest

from lampwork import config
from lampwork.codegen.llvm.isa import amx, x86
from lampwork.errors import OptionError


@pytest.fixture
def intel(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A CPU with AMX whose kernel allows it."""
    monkeypatch.setattr(x86, "host_flags", lambda: frozenset((*x86._AVX512, *amx.FLAGS, "avx512_fp16")))
    monkeypatch.setattr(amx, "refusal", lambda: "")
    monkeypatch.setattr(amx, "_reported", [])
    return monkeypatch


def test_it_is_found(intel: pytest.MonkeyPatch) -> None:
    for target in (x86.host_isa(""), x86.host_isa("amx")):
        assert target.name == "amx" and [unit.dtype for unit in target.units] == ["bf16", "i8"]
        assert target.unit("bf16") and target.unit("i8") and not target.unit("f16") and not target.unit("f32")
        assert target.products == {"f32", "f64", "bf16", "f16", "i8"}


@pytest.mark.parametrize("name", ["avx512", "avx2", "sse4"])
def test_narrower_sets_leave_it_out(intel: pytest.MonkeyPatch, name: str) -> None:
    assert x86.host_isa(name).name == name and not x86.host_isa(name).units


def test_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(x86, "host_flags", lambda: frozenset((*x86._AVX512, "avx512_bf16")))
    assert x86.host_isa("").name == "avx512"
    with pytest.raises(OptionError, match=r"isa=amx was asked for, but this CPU has only avx512"):
        x86.host_isa("amx")


def test_a_kernel_that_refuses(intel: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    intel.setattr(amx, "refusal", lambda: "Operation not supported")
    with config.using(logs="llvm"):
        found = x86.host_isa(""), x86.host_isa("")
    assert {target.name for target in found} == {"avx512"}
    # What it does without: dot products of vectors.
    assert found[0].steps("bf16") == 2 and found[0].steps("i8") == 4 and "bf16" in found[0].products
    assert capsys.readouterr().err == (
        "[llvm] AMX: the kernel refuses the tile registers (Operation not supported), so products of bfloat16 and "
        'int8 are made of AVX-512\'s dot products; isa="avx512" (LAMPWORK_ISA) asks for these in the first place\n'
    )
    message = r"isa=amx was asked for, but the kernel refuses the tile registers: Operation not supported"
    with pytest.raises(OptionError, match=message) as raised:
        x86.host_isa("amx")
    assert "set LAMPWORK_ISA to avx512 or narrower" in str(raised.value)


def test_this_process_asks_once() -> None:
    """Whatever the answer is here, it stays."""
    assert amx.refusal() == amx.refusal() and amx.refusal.cache_info().misses == 1
