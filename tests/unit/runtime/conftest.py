from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runtime_programs import Kernels, compile_kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return compile_kernels()
