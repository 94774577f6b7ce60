"""`torch.profiler.record_function`: names around operators, which nodes keep (`Origin.labels`), so that a profiler sees
them around the kernels that compute these nodes."""

from __future__ import annotations

import contextlib
from typing import Any

from torch.autograd.profiler import record_function

from lampwork.capture.semantics.attributes import load_attr


class Label:
    """What `record_function(name)` gives in a captured program. Where a region ends inside of it, plain Python leaves
    it, which does nothing: who was to see it has seen the region."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Label:
        return self

    def __exit__(self, *raised: object) -> None:
        return None


def call_record_function(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`record_function(name, args=None)`. A name that is none is eager's to refuse, when it is entered."""
    name = interp.force(args[0] if args else kwargs.get("name"))
    return Label(name) if isinstance(name, str) else contextlib.nullcontext()


def enter_label(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = load_attr(interp, args[0], "name")
    if isinstance(name, str):
        interp.whereabouts.open_label(name)
    return args[0]


def leave_label(interp: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Leaves the innermost label of that name; none is open where the region began inside of it."""
    name = load_attr(interp, args[0], "name")
    if isinstance(name, str):
        interp.whereabouts.close_label(name)


HANDLERS: dict[Any, Any] = {
    record_function: call_record_function,
    record_function.__enter__: enter_label,
    record_function.__exit__: leave_label,
    Label.__enter__: enter_label,
    Label.__exit__: leave_label,
}
