"""The C++ runtime (csrc/)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.capture.region import GlobalState, Guard, Recipe, Source
from lampwork.runtime.program import Program as ProgramData

class Program:
    """An executable program with its bound tensors. Thread-safe."""

    def __init__(self, program: ProgramData, bound: Sequence[torch.Tensor] = ()) -> None: ...
    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
    @property
    def stats(self) -> dict[str, int]: ...
    @property
    def bound(self) -> tuple[torch.Tensor, ...]: ...

class Entry:
    """One compiled region; see lampwork.runtime.make_entry. `fast`, `slow`: numbers of guards."""

    def __init__(
        self,
        n_args: int,
        kwarg_names: tuple[str, ...],
        guards: tuple[Guard, ...],
        fast: Sequence[int],
        slow: Sequence[int],
        versioned: Sequence[Source],
        state: GlobalState | None,
        inputs: Sequence[Source],
        program: Program | Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None,
        recipe: Recipe,
        wrap: Callable[[list[torch.Tensor], list[torch.Tensor]], Sequence[Any]] | None = None,
        on_failure: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
    ) -> None: ...
    def explain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Guard | str | None: ...
    @property
    def hits(self) -> int: ...
    @property
    def full_checks(self) -> int: ...
    @property
    def guards(self) -> tuple[Guard, ...]: ...
    @property
    def program(self) -> Any: ...

class Compiled:
    """A callable that tries its entries in order and calls on_miss(args, kwargs) if none fits."""

    def __init__(self, on_miss: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def add_entry(self, entry: Entry) -> None: ...
    def remove_entry(self, entry: Entry) -> None: ...
    def clear(self) -> None: ...
    @property
    def entries(self) -> tuple[Entry, ...]: ...
    @property
    def on_miss(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]: ...

def stats() -> dict[str, int]: ...
