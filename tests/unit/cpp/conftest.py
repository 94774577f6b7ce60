"""The runtime without Python, built once for all of these tests."""

from __future__ import annotations

import pytest
from cpp_runtime import Runtime, built


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return Runtime(built(targets=["lampwork_runtime"]) / "liblampwork_runtime.so")
