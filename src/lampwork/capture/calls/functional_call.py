"""torch.func.functional_call in the region: the module reads the given tensors in place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import DictItem, Known
from lampwork.capture.semantics.attributes import has_attr, load_attr
from lampwork.capture.semantics.held_state import check_tables_are_original
from lampwork.capture.state.entries import Entry
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_NAMES = ("module", "parameter_and_buffer_dicts", "args", "kwargs", "tie_weights", "strict")
_TABLES = ("_parameters", "_buffers")
_WALKS = {
    name: getattr(nn.Module, name)
    for name in ("named_parameters", "named_buffers", "named_modules", "_named_members")
}


def call_functional(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """functional_call(module, tensors, args, kwargs): nothing outside is touched, so nothing need be put back.

    Raises:
        Break: LW111 for what would raise in eager, and where the module replaces one of the tensors.
    """
    given: dict[str, Any] = {"args": (), "kwargs": None, "tie_weights": True, "strict": False}
    given |= {
        name: interp.force(value) for name, value in (*zip(_NAMES, args, strict=False), *kwargs.items())
    }
    module, tensors = given["module"], _merged(given["parameter_and_buffer_dicts"])
    if not isinstance(module, nn.Module) or interp.environment.entry(module) is None:
        raise Break("LW111", "functional_call() of a module that the region made")
    if given["strict"]:
        raise Break("LW111", "functional_call(strict=True) checks all names of the module")
    for part in nn.Module.modules(module):
        check_tables_are_original(interp, part)
    if given["tie_weights"]:
        _guard_walks(interp, module)
        # Whether two names have one tensor is asked of all, also of those that stay, and that may be tied later.
        for name, _ in _named_tensors(module):
            _guarded(interp, module, name)
        tensors = _with_tied(module, tensors)
    places = [_place(interp, module, name) for name in tensors]
    if len({(id(table), name) for table, _, name in places}) < len(places):
        raise Break("LW111", "functional_call() of a module that has one of its parts under two names")
    before = [table[name] for table, _, name in places]
    for (table, owner, name), value in zip(places, tensors.values(), strict=True):
        table[name] = value
        interp.attributes.pop((id(owner), name), None)
    positional = list(given["args"]) if isinstance(given["args"], tuple) else [given["args"]]
    try:
        result = interp.call(module, positional, dict(given["kwargs"] or {}))
        for (table, owner, name), value in zip(places, tensors.values(), strict=True):
            if table.get(name) is not value or interp.effects.attribute(owner, name) is not None:
                raise Break("LW111", f"{name} is replaced inside functional_call()")
    finally:
        for (table, owner, name), value in zip(places, before, strict=True):
            table[name] = value
            interp.attributes.pop((id(owner), name), None)
    return result


def _merged(given: Any) -> dict[str, Any]:
    """One dict of several."""
    tables = [given] if isinstance(given, dict) else given
    if not isinstance(tables, (list, tuple)):
        raise Break("LW111", "functional_call() takes a dict or a sequence of them")
    merged: dict[str, Any] = {}
    for table in cast("list[Any]", tables):
        if not isinstance(table, dict) or merged.keys() & cast("dict[str, Any]", table).keys():
            raise Break("LW111", "functional_call() takes dicts without keys in common")
        merged |= cast("dict[str, Any]", table)
    if not all(type(name) is str and type(value) is TraceTensor for name, value in merged.items()):
        raise Break("LW111", "functional_call() takes dicts from names to tensors")
    return merged


def _with_tied(module: nn.Module, tensors: dict[str, Any]) -> dict[str, Any]:
    """`tensors`, and for those that the module has under several names, all of these."""
    names: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(module):
        names.setdefault(id(tensor), []).append(name)
    result = dict(tensors)
    for tied in names.values():
        wanted = [tensors[name] for name in tied if name in tensors]
        if len(tied) == 1 or not wanted:
            continue
        if any(value is not wanted[0] for value in wanted):
            raise Break("LW111", f"functional_call() gives different tensors for the tied {', '.join(tied)}")
        result |= dict.fromkeys(tied, wanted[0])
    return result


def _guard_walks(interp: Interpreter, module: nn.Module) -> None:
    """Tied tensors are found as eager finds them: by the methods of nn.Module, which the classes of all parts have."""
    for cls in (type(module), *{type(part) for part in nn.Module.modules(module)}):
        for name, own in _WALKS.items():
            if interp.lookup(cls, name)[0] is not own:
                raise Break("LW111", f"functional_call() of a {cls.__name__}, whose {name}() is its own")


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _place(interp: Interpreter, module: nn.Module, path: str) -> tuple[dict[str, Any], nn.Module, str]:
    """The region's copy of the table with the tensor at a dotted path, the module that has it, and its name there."""
    items, label, owner, name = _guarded(interp, module, path)
    return interp.environment.known(items, label), owner, name


def _guarded(interp: Interpreter, module: nn.Module, path: str) -> tuple[dict[str, Any], str, nn.Module, str]:
    """The table with the tensor at a dotted path, its label, the module that has it, and its name there. That the
    module holds what it holds now is guarded, since tied tensors were found by it."""
    *way, name = path.split(".")
    for step in way:
        part = load_attr(interp, module, step) if has_attr(interp, module, step) else None
        if not isinstance(part, nn.Module):
            raise Break("LW111", f"functional_call() is given {path}, which the module has not")
        module = part
    for kind in _TABLES:
        items = cast("dict[str, Any] | None", module.__dict__.get(kind))
        if items is None or name not in items:
            continue
        entry: Entry | None = interp.environment.entry(module)
        label = f"{entry.name if entry is not None else path}.{kind}"
        interp.guards.version(items, label)
        interp.guards.add(DictItem(Known(items, label), name), "is", items[name], slow=True)
        return items, label, module, name
    raise Break("LW111", f"functional_call() is given {path}, which the module has not")
