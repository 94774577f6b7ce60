"""torch.utils.checkpoint: eager runs the function again for its gradients, which the compiler need not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.utils.checkpoint import noop_context_fn

from lampwork import pristine
from lampwork.capture.model.errors import Break
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_NAME = "torch.utils.checkpoint.checkpoint()"


def call_checkpoint(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """checkpoint(function, *args): the function's result; the compiler chooses what to keep.

    Raises:
        Break: LW105: the function writes to what is outside, which eager's second run does again; or to memory of its
            own, which autograd may have saved and would not miss under a checkpoint's hooks; or it draws numbers that
            eager's second run draws again; or the call asks for something that shows, or that eager warns of or
            refuses.
    """
    named = {name: interp.force(value) for name, value in kwargs.items()}
    reentrant = named.pop("use_reentrant", None)
    contexts = named.pop("context_fn", noop_context_fn)
    check = named.pop("determinism_check", "default")
    plain = (
        contexts is noop_context_fn and named.pop("debug", False) is False and check in ("default", "none")
    )
    redraws = not named.pop("preserve_rng_state", True)
    named.pop("early_stop", None)
    if not args or not isinstance(reentrant, bool) or not plain or (reentrant and named):
        raise Break("LW105", f"{_NAME} with such options")
    function, *values = (interp.force(arg) for arg in args)
    if not pristine.is_grad_enabled():
        return interp.call(function, values, named)
    if reentrant and not any(type(value) is TraceTensor and value.requires_grad for value in values):
        raise Break("LW105", f"{_NAME}, reentrant, of tensors that need no gradient")
    before, drawn, started = _Written(interp), interp.recorder.draws, len(interp.recorder.started)
    result = interp.call(function, values, named)
    if len(interp.recorder.started) != started:
        raise Break("LW105", f"{_NAME} of a function that communicates, which eager's second run does again")
    if before.is_more_now():
        raise Break("LW105", f"{_NAME} of a function that writes to what is outside, or in place")
    if redraws and interp.recorder.draws != drawn:
        raise Break("LW105", f"{_NAME}, without preserve_rng_state, of a function that draws random numbers")
    return result


class _Written:
    """What a region has written to outside objects and to memory so far."""

    def __init__(self, interp: Interpreter) -> None:
        self._interp = interp
        self._count = self._counted()
        self._items = {key: _items(shadow.copy) for key, shadow in interp.environment.shadows.of_copy.items()}

    def is_more_now(self) -> bool:
        """Whether anything was written since this was made."""
        if self._counted() != self._count:
            return True
        for key, shadow in self._interp.environment.shadows.of_copy.items():
            known = self._items.get(key)
            old = _items(shadow.before) if known is None else known
            new = _items(shadow.copy)
            if len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True)):
                return True
        return False

    def _counted(self) -> tuple[int, int, int]:
        return self._interp.effects.writes, len(self._interp.effects.calls), self._interp.recorder.writes


def _items(container: Any) -> Sequence[Any]:
    """What a container holds, in order."""
    if isinstance(container, dict):
        table = cast("dict[Any, Any]", container)
        return [*table.keys(), *table.values()]
    return list(container)
