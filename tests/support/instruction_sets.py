"""The instruction sets that code is generated for, with those that this CPU has not skipped."""

from __future__ import annotations

import pytest

from lampwork.codegen.llvm.isa.x86 import host_flags, widest

NAMES = ("sse4", "avx2", "avx512")
HERE = NAMES[: NAMES.index(widest(host_flags())) + 1]
INSTRUCTION_SETS = [
    pytest.param(name, marks=pytest.mark.skipif(name not in HERE, reason=f"this CPU has no {name}"))
    for name in reversed(NAMES)
]
