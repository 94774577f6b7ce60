from __future__ import annotations

import pytest

from lampwork.codegen.llvm.isa.x86 import host_flags, widest


@pytest.fixture(params=["avx512", "avx2", "sse4", "scalar"])
def isa(request: pytest.FixtureRequest) -> str:
    names = ["scalar", "sse4", "avx2", "avx512"]
    if names.index(request.param) > names.index(widest(host_flags())):
        pytest.skip(f"this CPU has no {request.param}")
    return request.param
