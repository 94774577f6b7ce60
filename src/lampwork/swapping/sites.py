"""The places of a model's modules: each module once, with all its names and all the slots that hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from lampwork.compiled.module import CompiledModule
from lampwork.records import record


@record
class Slot:
    """The entry `name` in the table of submodules of `parent`."""

    parent: nn.Module
    name: str


@dataclass(slots=True)
class Site:
    """One module of a model. A module that is shared has several names, and a slot for each parent that holds it.

    `owners`: the modules it lies in, directly or not, by their ids; `paths`: for each name, those on its way.
    """

    module: nn.Module
    names: list[str] = field(default_factory=list[str])
    slots: list[Slot] = field(default_factory=list[Slot])
    owners: dict[int, nn.Module] = field(default_factory=dict[int, nn.Module])
    paths: list[frozenset[int]] = field(default_factory=list[frozenset[int]])

    @property
    def name(self) -> str:
        return self.names[0]


def root_of(model: nn.Module) -> nn.Module:
    """What was compiled, by `lampwork.compile` or `torch.compile`; any other module as it is."""
    while True:
        if isinstance(model, CompiledModule):
            model = model._lampwork_original
        elif (inner := model._modules.get("_orig_mod")) is not None:
            model = inner
        else:
            return model


def class_of(module: nn.Module) -> type[nn.Module]:
    """The class as its author wrote it: without what compiling or parametrizing makes of it."""
    module = root_of(module)
    kind: Any = parametrize.type_before_parametrizations(module)
    return kind


def sites_of(model: nn.Module) -> list[Site]:
    """All modules below `model`, inner ones before those that hold them. The root itself is not among them."""
    found: dict[int, Site] = {}
    order: list[Site] = []

    def visit(parent: nn.Module, prefix: str, path: dict[int, nn.Module]) -> None:
        for name, child in list(root_of(parent)._modules.items()):
            if child is None or id(child) in path:  # a module that holds itself has no end of names
                continue
            site = found.get(id(child))
            first = site is None
            if site is None:
                site = found[id(child)] = Site(child)
            slot = Slot(root_of(parent), name)
            if slot not in site.slots:
                site.slots.append(slot)
            site.names.append(prefix + name)
            site.owners |= path
            site.paths.append(frozenset(path))
            visit(child, f"{prefix}{name}.", path | {id(child): child})
            if first:
                order.append(site)

    model = root_of(model)
    visit(model, "", {id(model): model})
    return order


def unregistered(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(where, module) for those in plain lists, tuples and dicts of attributes, which torch counts as no submodules."""
    for prefix, module in root_of(model).named_modules():
        for name, value in list(vars(root_of(module)).items()):
            if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
                continue
            items: Any = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                if isinstance(item, nn.Module):
                    yield f"{prefix + '.' if prefix else ''}{name}[{key!r}]", item
