"""`lampwork.swap`: replace modules of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import nn

from lampwork.errors import OptionError
from lampwork.swapping.difference import Difference, compare, evaluating, run
from lampwork.swapping.install import Installed, has_hooks, install
from lampwork.swapping.keys import Key, Kind, choose, describe, key_of, why_unmatched
from lampwork.swapping.replacement import Replacement, replacement_of
from lampwork.swapping.report import Change, SwapReport, Unmatched
from lampwork.swapping.sites import Site, root_of, sites_of, unregistered


def swap(
    model: nn.Module, replacements: Mapping[Any, Any], *, check: Any = None, share: bool = False
) -> SwapReport:
    """Replace modules of a model, in place.

    before:  model.encoder.act = nn.GELU()
    after:   model.encoder.act = nn.ReLU(inplace=True)     swap(model, {nn.GELU: nn.ReLU(inplace=True)})

    A key selects modules. If several keys select the same module, the kind listed first wins; among keys of one kind,
    the one given first:

    * a module: that module;
    * a qualified name, "encoder.layer.0.act";
    * a glob, "encoder.layer.*.act": `*` matches within one part of a name, `**` any number of parts;
    * a predicate, `(name, module) -> bool`;
    * a class: modules of exactly this class, including parametrized and compiled ones, but not subclasses.

    A value says what replaces them:

    * a module: it replaces the first selected module itself. The others are replaced by the same module if it has
      neither parameters nor buffers, otherwise by copies, so that no weights are shared;
    * a class: an instance made without arguments, or from the old module if the class requires one argument;
    * a Python function `(old)` or `(name, old)`: a factory. It returns a module, a function of tensors, or `old` to
      keep it; the result may contain `old`;
    * a function of torch, or one with Tensor annotations: it is called instead of the module;
    * None: nn.Identity.

    A module that occurs in several places is replaced once, in all of them. New modules are not searched for modules to
    replace; modules that a new one wraps are replaced first. A new module takes over the mode and the hooks of the old
    one (except those of weight norm and pruning); a given module or class also takes over its device and dtype, while
    the result of a factory keeps its own.

    Args:
        model: a module, compiled or not. A compiled model uses the new modules from its next call on.
        replacements: the mapping of keys to values.
        check: inputs (a tensor, a tuple of arguments, a dict of keyword arguments) to run before and after, in
            evaluation mode; the report says how much each output changed.
        share: use a module given as a value itself in all places, with one set of weights.

    Raises:
        OptionError: a key or value is of no known kind, a key selects the root, or no key selects anything. The model
            is unchanged.
        Exception: a predicate, a factory or the model raised it. The model is unchanged.
    """
    # What one writes without types is looked at with care.
    if not isinstance(cast(object, model), nn.Module):
        raise OptionError(f"swap() takes a module, got {type(model).__name__}", fix="pass the model itself")
    if not isinstance(cast(object, replacements), Mapping) or not replacements:
        raise OptionError(
            f"swap() takes a mapping of keys to replacements, got {replacements!r}",
            fix="pass for example {nn.GELU: nn.ReLU()}",
        )
    root = root_of(model)
    _refuse_scripts(root)
    keys = [key_of(given) for given in replacements]
    values = dict(zip(map(id, keys), (replacement_of(v, share) for v in replacements.values()), strict=True))
    _refuse_root(root, keys)
    sites = sites_of(root)
    chosen = {id(site.module): key for site in sites if (key := choose(keys, site)) is not None}
    if not chosen:
        raise OptionError(
            f"no module of {type(root).__name__} is meant by {describe(keys, lambda k: why_unmatched(k, sites))}",
            fix="model.named_modules() lists the names and classes",
        )
    before = _outputs(root, check)
    installed: list[Installed] = []
    with ExitStack() as undo:
        undo.callback(_take_out, installed)
        decided = _install_all(sites, chosen, values, installed)
        differences = _differences(root, check, before)
        undo.pop_all()
    return _report(model, root, sites, keys, chosen, decided, differences, installed)


def _install_all(
    sites: Sequence[Site], chosen: dict[int, Key], values: dict[int, Replacement], installed: list[Installed]
) -> list[Change]:
    """Every chosen module swapped, inner ones first; `installed` gets them one by one."""
    changes: list[Change] = []
    gone = {id(site.module) for site in sites if _is_dropped(site.module, chosen, values)}
    for site in sites:
        key = chosen.get(id(site.module))
        if key is None or not any(gone.isdisjoint(path) for path in site.paths):
            continue
        value, old = values[id(key)], site.module
        try:
            new = value.make(site.name, old, has_hooks(old))
        except Exception as error:
            error.add_note(f"while lampwork.swap made the replacement of {site.name!r} for the key {key}")
            raise
        if new is not old:
            installed.append(install(site, new, fits=value.fits))
            changes.append(Change(tuple(site.names), old, new, str(key)))
    return changes


def _is_dropped(module: nn.Module, chosen: dict[int, Key], values: dict[int, Replacement]) -> bool:
    """Whether what replaces the module cannot hold it, so that what lies in it need not be swapped."""
    key = chosen.get(id(module))
    if key is None:
        return False
    value = values[id(key)]
    if isinstance(value.given, nn.Module):
        return all(inner is not module for inner in value.given.modules())
    return not value.wraps


def _take_out(installed: list[Installed]) -> None:
    while installed:
        installed.pop().take_out()


def _refuse_root(root: nn.Module, keys: Sequence[Key]) -> None:
    for key in keys:
        if key.kind in (Kind.INSTANCE, Kind.NAME, Kind.CLASS) and key.means("", root):
            raise OptionError(
                f"{key} means the model itself, which stands in no other module",
                fix="assign the replacement to your variable instead, or use a predicate, which is not asked about it",
            )


def _refuse_scripts(root: nn.Module) -> None:
    if any(isinstance(module, torch.jit.ScriptModule) for module in root.modules()):
        raise OptionError(
            "the modules of a TorchScript program cannot be swapped",
            fix="swap before torch.jit.script or trace",
        )


def _outputs(root: nn.Module, check: Any) -> Any:
    if check is None:
        return None
    with evaluating(root):
        return run(root, check)


def _differences(root: nn.Module, check: Any, before: Any) -> tuple[Difference, ...]:
    return () if check is None else compare(before, _outputs(root, check))


def _report(
    model: nn.Module,
    root: nn.Module,
    sites: Sequence[Site],
    keys: Sequence[Key],
    chosen: dict[int, Key],
    changes: list[Change],
    differences: tuple[Difference, ...],
    installed: list[Installed],
) -> SwapReport:
    # A factory may have dropped a module in which others were swapped before it.
    present = {id(root), *(id(root_of(module)) for module in root.modules())}
    reached = [any(id(slot.parent) in present for slot in item.site.slots) for item in installed]
    seen = tuple(change for change, there in zip(changes, reached, strict=True) if there)
    used = {id(key) for key in chosen.values()}
    unmatched = tuple(Unmatched(str(key), _why_unused(key, sites)) for key in keys if id(key) not in used)
    return SwapReport(model, seen, unmatched, differences, tuple(_notes(root, keys, seen)), installed)


def _why_unused(key: Key, sites: Sequence[Site]) -> str:
    if any(key.means(name, site.module) for site in sites for name in site.names):
        return "all modules that it means are taken by keys that come before it"
    return why_unmatched(key, sites)


def _notes(root: nn.Module, keys: Sequence[Key], changes: Sequence[Change]) -> list[str]:
    """What the keys mean and a swap does not reach."""
    swapped = {id(change.old): change for change in changes}
    inside = {id(module) for module in root.modules()}
    notes: list[str] = []
    for where, module in unregistered(root):
        meant = any(key.kind in (Kind.CLASS, Kind.INSTANCE) and key.means(where, module) for key in keys)
        if id(module) in swapped or (meant and id(module) not in inside):
            notes.append(
                f"{where} holds a {type(module).__name__} in a plain container, which is left as it is"
            )
    for owner in root.modules():
        if isinstance(owner, nn.MultiheadAttention) and any(c.new is owner.out_proj for c in changes):
            notes.append("nn.MultiheadAttention reads the weight and bias of its out_proj and never calls it")
    return notes
