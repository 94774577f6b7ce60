"""State of torch that the region changes for a while: grad mode, inference mode, autocast.

Capture enters and leaves these contexts for real, so that the operators in them behave; `restore` undoes what is left
when capture ends, however it ends.
"""

from __future__ import annotations

from typing import Any

import torch


class Contexts:
    """`made`: context managers of the region with how they were constructed; `entered`: those we are inside of;
    `modes`: the grad mode at which each was entered, which it puts back."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Any, type, tuple[Any, ...], dict[str, Any]]] = {}
        self.entered: list[Any] = []
        self.modes: dict[int, bool] = {}
        self.grad_enabled = torch.is_grad_enabled()
        self._autocast_cache = torch.is_autocast_cache_enabled()
        # The cache of weights cast under autocast would keep trace tensors beyond the capture.
        torch.set_autocast_cache_enabled(False)

    def enter(self, context: Any) -> Any:
        if not isinstance(context, torch.set_grad_enabled):
            self.modes[id(context)] = torch.is_grad_enabled()
        value = type(context).__enter__(context)
        self.entered.append(context)
        return value

    def leave(self, context: Any, *error: Any) -> Any:
        if context in self.entered:
            self.entered.remove(context)
        return type(context).__exit__(context, *error)

    def restore(self) -> None:
        """Leave what is still entered, innermost first, and put the grad mode back."""
        while self.entered:
            context = self.entered.pop()
            type(context).__exit__(context, None, None, None)
        torch.set_autocast_cache_enabled(self._autocast_cache)
        torch._C._set_grad_enabled(self.grad_enabled)
