"""Backends that need packages of their own: known by name, loaded late, missed with a word on what to install."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

import lampwork
from lampwork.backends import optional
from lampwork.backends.registry import Registry
from lampwork.errors import OptionError


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name == "openvino" else real(name, *rest)

    monkeypatch.setattr(optional.importlib.util, "find_spec", find)
    registry = Registry()
    assert "openvino" not in registry.names()
    with pytest.raises(OptionError, match="needs openvino.*\n.*pip install lampwork\\[openvino\\]"):
        registry.get("openvino")


def test_an_unknown_name_is_no_optional_backend() -> None:
    with pytest.raises(OptionError, match="did you mean 'inductor'"):
        lampwork.compile(lambda x: x, backend="inductr")


def test_importing_lampwork_imports_none_of_them() -> None:
    code = (
        "import sys, lampwork; lampwork.list_backends();"
        "print([m for m in ('onnx', 'onnxruntime', 'openvino', 'torch._inductor') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
