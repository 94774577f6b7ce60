"""Putting a module in the slots of another, with what belongs to the place, and taking it out again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lampwork.errors import OptionError
from lampwork.swapping.replacement import device_and_dtype, has_state
from lampwork.swapping.sites import Site, Slot

# The tables of a module's hooks; handles hold them by reference, so they go over as the objects they are.
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@dataclass(slots=True)
class Installed:
    """A module in the place of another. `put` and `take_out` may alternate as often as one likes."""

    site: Site
    new: nn.Module
    flags: list[tuple[nn.Module, str, Any]] = field(default_factory=list[tuple[nn.Module, str, Any]])

    @property
    def old(self) -> nn.Module:
        return self.site.module

    def put(self) -> None:
        """The new module into all slots of the old one."""
        for slot in self.site.slots:
            _write(slot, self.new, self.old)
        self._stop_fast_paths()

    def take_out(self) -> None:
        """The old module into its slots again; it is in the mode that the new one was put into since.

        Raises:
            OptionError: another module stands there now.
        """
        for slot in self.site.slots:
            if slot.parent._modules.get(slot.name) is not self.new:
                raise OptionError(
                    f"{self.site.name!r} was swapped again since", fix="undo the later swap first"
                )
        for slot in self.site.slots:
            _write(slot, self.old, self.new)
        if self.old.training is not self.new.training:
            self.old.train(self.new.training)
        for module, name, value in self.flags:
            setattr(module, name, value)
        self.flags.clear()

    def _stop_fast_paths(self) -> None:
        """torch's encoder layers have a path that reads their submodules' weights and calls none of them."""
        for owner in self.site.owners.values():
            if isinstance(owner, nn.TransformerEncoderLayer):
                self._set(owner, "activation_relu_or_gelu", 0)
            elif isinstance(owner, nn.TransformerEncoder):
                self._set(owner, "use_nested_tensor", False)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        before = getattr(module, name, None)
        if before != value:
            self.flags.append((module, name, before))
            setattr(module, name, value)


def _write(slot: Slot, new: nn.Module, expected: nn.Module) -> None:
    if slot.parent._modules.get(slot.name) is expected:
        slot.parent._modules[slot.name] = new


def install(site: Site, new: nn.Module, *, fits: bool) -> Installed:
    """`new` in the place of the site's module, in its mode, with its hooks and, if it `fits`, its device and dtype.

    Modules inside `new` that lie inside the old module too keep what they have.
    """
    carry(site, new, fits=fits)
    installed = Installed(site, new)
    installed.put()
    return installed


def carry(site: Site, new: nn.Module, *, fits: bool) -> None:
    """Mode, hooks and, if it `fits`, device and dtype of the site's module to `new`."""
    old = site.module
    kept = {id(module) for module in old.modules()}
    for module in new.modules():
        if id(module) not in kept:
            module.training = old.training
    if fits and has_state(new):
        where = device_and_dtype(old)
        for owner in reversed(site.owners.values()):
            where = device_and_dtype(owner) if where is None else where
        if where is not None:
            new.to(device=where[0], dtype=where[1])
    if has_hooks(old) and not any(module is old for module in new.modules()):
        _carry_hooks(old, new)


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks are registered that belong to the place and would go over to another module there."""
    tables = (getattr(module, name) for name in _HOOKS)
    return any(_belongs_to_place(hook, module) for table in tables for hook in table.values())


def _carry_hooks(old: nn.Module, new: nn.Module) -> None:
    for name in _HOOKS:
        theirs, own = getattr(old, name), getattr(new, name)
        moving = all(_belongs_to_place(hook, old) for hook in theirs.values())
        if not own and moving:
            object.__setattr__(new, name, theirs)
        else:
            own.update({key: hook for key, hook in theirs.items() if _belongs_to_place(hook, old)})
    if old._is_full_backward_hook is not None:
        new._is_full_backward_hook = old._is_full_backward_hook


def _belongs_to_place(hook: Any, module: nn.Module) -> bool:
    """A hook of torch that computes the module's weights (weight norm, pruning), or a method of the module itself, is
    the module's."""
    if getattr(hook, "__self__", None) is module:
        return False
    return not str(type(hook).__module__).startswith("torch.nn.utils")


def take_all_out(installed: list[Installed]) -> None:
    """Put every old module back, the last one first, and forget those that are.

    Raises:
        OptionError: a module has been swapped since; it and those before it stay as they are.
    """
    while installed:
        installed[-1].take_out()
        installed.pop()
