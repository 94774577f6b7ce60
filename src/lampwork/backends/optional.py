"""Backends that need additional packages: known by name, loaded on first use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from lampwork.errors import OptionError
from lampwork.records import record


@record
class Optional:
    """`needs`: the packages, which `pip install lampwork[<extra>]` brings; no extra for what comes with torch."""

    module: str
    kind: str
    needs: tuple[str, ...] = ()


OPTIONAL = {
    "inductor": Optional("lampwork.backends.inductor", "InductorBackend"),
    "onnxruntime": Optional("lampwork.backends.onnxruntime", "OnnxRuntimeBackend", ("onnx", "onnxruntime")),
    "openvino": Optional("lampwork.backends.openvino", "OpenVinoBackend", ("onnx", "openvino")),
}


def missing(name: str) -> tuple[str, ...]:
    """The packages that the backend of this name needs and that are not installed."""
    return tuple(p for p in OPTIONAL[name].needs if importlib.util.find_spec(p) is None)


def load_optional(name: str) -> Any:
    """The backend called `name`, or None if there is no such optional backend.

    Raises:
        OptionError: it needs a package that is not installed.
    """
    found = OPTIONAL.get(name)
    if found is None:
        return None
    absent = missing(name)
    if absent:
        raise OptionError(
            f"backend {name!r} needs {' and '.join(absent)}, not installed here",
            fix=f"pip install lampwork[{name}]",
        )
    return getattr(importlib.import_module(found.module), found.kind)()
