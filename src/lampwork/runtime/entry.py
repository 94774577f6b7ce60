"""From a captured `Region` and its program to the C++ `Entry` that serves its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lampwork import _C
from lampwork.capture.region import DictItem, Guard, InstanceDict, Known, Region, Source

Wrap = Callable[[list[torch.Tensor], list[torch.Tensor]], Sequence[Any]]
OnFailure = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Runnable = _C.Program | Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

# Guards whose truth depends on nothing but which object a source gives.
_IDENTITY_KINDS: Final = frozenset({"type", "is"})
# Guards on the contents of a dict itself.
_DICT_KINDS: Final = frozenset({"len", "keys", "missing_key", "dict_version"})
_IMMUTABLE: Final = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)


def make_entry(
    region: Region,
    program: Runnable | None,
    *,
    wrap: Wrap | None = None,
    on_failure: OnFailure | None = None,
) -> _C.Entry:
    """An entry that serves the calls that `region` was captured for.

    Args:
        program: what computes the region's graph: a `_C.Program` made with `region.bound`, or any callable from the list
            of input tensors to the sequence of output tensors; None if the region has no graph.
        wrap: called as wrap(outputs, inputs) after the program; returns the outputs that the recipe uses.
        on_failure: called as on_failure(args, kwargs) if the program fails before anything outside was changed; its
            result is the call's result.

    Raises:
        ValueError: a guard on known objects does not hold now, or recipe and program do not fit together.
    """
    fast, slow, versioned = split_guards(region.guards)
    return _C.Entry(
        region.n_args,
        region.kwarg_names,
        region.guards,
        fast,
        slow,
        versioned,
        region.state,
        region.inputs,
        program,
        region.recipe,
        wrap,
        on_failure,
    )


def split_guards(guards: Sequence[Guard]) -> tuple[list[int], list[int], list[Source]]:
    """Numbers of the guards to check on every call, of those that the version tags of dicts vouch for, and those dicts.

    A guard is vouched for if the way from a known object to its value leads only through versioned dicts, instance
    dicts of objects found so, and it asks for an identity, a type, an immutable value or the keys of such a dict.
    """
    versioned = {guard.source for guard in guards if guard.kind == "dict_version"}
    stable: dict[Source, bool] = {}
    versioned = {source for source in versioned if _is_stable(source, versioned, stable)}
    stable.clear()
    fast: list[int] = []
    slow: list[int] = []
    for number, guard in enumerate(guards):
        (slow if _is_vouched_for(guard, versioned, stable) else fast).append(number)
    # In the order of the guards, so that the same region gives the same entry.
    ordered = dict.fromkeys(guard.source for guard in guards if guard.source in versioned)
    return fast, slow, list(ordered)


def _is_vouched_for(guard: Guard, versioned: set[Source], stable: dict[Source, bool]) -> bool:
    if not _is_stable(guard.source, versioned, stable):
        return False
    if guard.kind in _DICT_KINDS:
        return guard.source in versioned
    if guard.kind == "equals":
        return _is_immutable(guard.expected)
    if guard.kind in ("same", "distinct"):
        return _is_stable(guard.expected, versioned, stable)
    return guard.kind in _IDENTITY_KINDS


def _is_stable(source: Source, versioned: set[Source], stable: dict[Source, bool]) -> bool:
    known = stable.get(source)
    if known is not None:
        return known
    if isinstance(source, Known):
        answer = True
    elif isinstance(source, DictItem):
        answer = source.base in versioned and _is_stable(source.base, versioned, stable)
    elif isinstance(source, InstanceDict):
        answer = _is_stable(source.base, versioned, stable)
    else:
        answer = False
    stable[source] = answer
    return answer


def _is_immutable(value: object) -> bool:
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_is_immutable, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return type(value) in _IMMUTABLE
