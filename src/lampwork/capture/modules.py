"""Calling an nn.Module: what `module(*args, **kwargs)` does, with its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.modules import module as torch_module

from lampwork.capture import torch_calls
from lampwork.capture.attributes import load_attr
from lampwork.capture.breaks import Break
from lampwork.capture.region import DictItem, Known

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_STATE = cast(Any, torch_module)
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_GLOBAL_BACKWARD = ("_global_backward_hooks", "_global_backward_pre_hooks")
_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OWN_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


def call_with_hooks(module: Any, args: Any, kwargs: Any) -> Any:
    """`module(*args, **kwargs)` where there are forward hooks. Interpreted, never run as it stands."""
    for hook_id, hook in (
        *_STATE._global_forward_pre_hooks.items(),
        *module._forward_pre_hooks.items(),
    ):
        if hook_id in module._forward_pre_hooks_with_kwargs:
            both = hook(module, args, kwargs)
            if both is not None:
                args, kwargs = both
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for hook_id, hook in (*_STATE._global_forward_hooks.items(), *module._forward_hooks.items()):
        if (
            hook_id in module._forward_hooks_with_kwargs
            or hook_id in _STATE._global_forward_hooks_with_kwargs
        ):
            changed = hook(module, args, kwargs, result)
        else:
            changed = hook(module, args, result)
        if changed is not None:
            result = changed
    return result


def has_hooks(interp: Interpreter, module: torch.nn.Module) -> bool:
    """Whether forward hooks are to run for this module; that there are none is guarded.

    Raises:
        Break: LW112 for backward hooks.
    """
    table = module.__dict__
    entry = interp.outside.entry(module)
    if entry is None:
        return False  # made in the region, where no hook can be registered
    label = entry.name
    for hooks in _OWN_BACKWARD:
        if table[hooks] and torch.is_grad_enabled():
            raise Break("LW112", label)
    for hooks in _GLOBAL_BACKWARD:
        if vars(_STATE)[hooks] and torch.is_grad_enabled():
            raise Break("LW112", label)
    backward = torch.is_grad_enabled()
    for hooks in (*_OWN_HOOKS, *_OWN_BACKWARD) if backward else _OWN_HOOKS:
        held = table[hooks]
        source = Known(held, f"{label}.{hooks}")
        interp.guards.version(held, source.name)
        interp.guards.add(source, "keys", tuple(held), slow=True)
    # The way to the global tables needs a version, too: a dict without one would be looked at on every call.
    interp.guards.version(vars(_STATE), "torch.nn.modules.module")
    for hooks in (*_GLOBAL_HOOKS, *_GLOBAL_BACKWARD) if backward else _GLOBAL_HOOKS:
        held = vars(_STATE)[hooks]
        source = DictItem(Known(vars(_STATE), "torch.nn.modules.module"), hooks)
        interp.guards.version(held, hooks)
        interp.guards.add(source, "keys", tuple(held), slow=True)
    return any(table[hooks] for hooks in _OWN_HOOKS) or any(vars(_STATE)[hooks] for hooks in _GLOBAL_HOOKS)


def call_module(interp: Interpreter, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """module(*args, **kwargs) in the region."""
    compiled = module.__dict__.get("_lampwork_original")
    if compiled is not None:
        module = interp.outside.known(compiled, type(compiled).__name__)
    if torch_calls.is_disabled(module):
        raise Break("LW113", torch_calls.described_mark(module))
    if (
        isinstance(module, torch.nn.TransformerEncoder)
        and not module.training
        and not torch.is_grad_enabled()
    ):
        padding = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
        if interp.force(padding) is not None and getattr(module, "use_nested_tensor", False):
            raise Break("LW106", "nn.TransformerEncoder makes a nested tensor of a padded batch")
    if isinstance(module, torch.jit.ScriptModule):
        raise Break("LW103", f"the TorchScript module {type(module).__name__}")
    if has_hooks(interp, module):
        forced = {key: interp.force(value) for key, value in kwargs.items()}
        given = [module, tuple([interp.force(a) for a in args]), forced]
        try:
            return interp.call_python(cast(Any, call_with_hooks), given, {})
        except Exception as error:
            if module._forward_hooks_always_called or _STATE._global_forward_hooks_always_called:
                raise Break(
                    "LW111", f"{type(module).__name__} raises, and has hooks to be called then"
                ) from error
            raise
    return interp.call(load_attr(interp, module, "forward"), args, kwargs)
