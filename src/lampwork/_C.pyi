"""The C++ runtime (csrc/)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.capture.region import GlobalState, Guard, Recipe, Source, Symbol
from lampwork.graph.symbols import Condition
from lampwork.runtime.program import Program as ProgramData

class Program:
    """An executable program with its bound tensors. Thread-safe.

    `share`: another program over the same bound tensors and with an equal `constants`, made for other sizes. The
    constants are computed once for all that share them, and they take turns in the memory for intermediate values.
    """

    def __init__(
        self, program: ProgramData, bound: Sequence[torch.Tensor] = (), share: Program | None = None
    ) -> None: ...
    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
    @property
    def stats(self) -> dict[str, int]: ...
    @property
    def bound(self) -> tuple[torch.Tensor, ...]: ...

class Entry:
    """One compiled region; see lampwork.runtime.make_entry."""

    def __init__(
        self,
        n_args: int,
        kwarg_names: tuple[str, ...],
        guards: tuple[Guard, ...],
        slow_guards: tuple[Guard, ...],
        versioned: Sequence[dict[Any, Any]],
        state: GlobalState | None,
        inputs: Sequence[Source],
        bound: tuple[torch.Tensor, ...],
        program: Program | Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None,
        recipe: Recipe,
        wrap: Callable[[list[torch.Tensor], list[torch.Tensor]], Sequence[Any]] | None = None,
        on_failure: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
        counter: int = 0,
        symbols: tuple[Symbol, ...] = (),
        conditions: tuple[Condition, ...] = (),
        n_values: int = 0,
        specialize: Callable[
            [tuple[int, ...]], Program | Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
        ]
        | None = None,
    ) -> None: ...
    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def matches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool: ...
    def explain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Guard | Condition | str | None: ...
    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int] | None: ...
    @property
    def hits(self) -> int: ...
    @property
    def full_checks(self) -> int: ...
    @property
    def guards(self) -> tuple[Guard, ...]: ...
    @property
    def program(self) -> Any: ...
    @property
    def specializations(self) -> tuple[tuple[tuple[int, ...], Any], ...]: ...
    @property
    def symbols(self) -> tuple[Symbol, ...]: ...
    @property
    def conditions(self) -> tuple[Condition, ...]: ...

class Compiled:
    """A callable that tries its entries in order and calls on_miss(args, kwargs) if none fits.

    `binds`: whether, as an attribute of a class, it becomes a bound method as functions do (the default).
    """

    binds: bool

    def __init__(self, on_miss: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def add_entry(self, entry: Entry) -> None: ...
    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None: ...
    def remove_entry(self, entry: Entry) -> None: ...
    def clear(self) -> None: ...
    @property
    def raw_entries(self) -> tuple[Entry, ...]: ...
    @property
    def on_miss(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]: ...

def stats() -> dict[str, int]: ...
def skip_entries(yes: bool) -> None: ...
def drive(
    pending: type[tuple[Any, ...]], continuation: Callable[..., tuple[Any, ...]], *args: Any
) -> Any: ...
