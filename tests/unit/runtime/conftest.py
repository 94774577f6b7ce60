from __future__ import annotations

import pytest
from runtime_programs import Kernels, compile_kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return compile_kernels()
