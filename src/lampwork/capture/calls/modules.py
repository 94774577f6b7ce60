"""Calling an nn.Module: what `module(*args, **kwargs)` does, with its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.modules import module as torch_module

from lampwork import modes
from lampwork.capture.calls import torch_calls
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import DictItem, Known
from lampwork.capture.semantics.attribute_writes import guarded_hooks
from lampwork.capture.semantics.attributes import load_attr, table_source

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_STATE = cast(Any, torch_module)
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_GLOBAL_BACKWARD = ("_global_backward_hooks", "_global_backward_pre_hooks")
_OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OWN_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


# What nn.Module does when nobody has patched it.
_CALL = vars(torch.nn.Module).get("__call__")
_CALL_IMPL = vars(torch.nn.Module).get("_call_impl")


def calls_as_modules_do(interp: Interpreter, kind: type) -> bool:
    """Whether a call of a module of this class is its hooks and its `forward`, and nothing else."""
    return interp.lookup(kind, "__call__")[0] is _CALL and interp.lookup(kind, "_call_impl")[0] is _CALL_IMPL


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
    entry = interp.environment.entry(module)
    label = type(module).__name__ if entry is None else entry.name
    backward = modes.is_grad_enabled()
    # No hook can be registered in a region, so a module made in it has none of its own.
    table: dict[str, Any] = {} if entry is None else module.__dict__
    if backward and any(table.get(hooks) for hooks in _OWN_BACKWARD):
        raise Break("LW112", label)
    if backward and any(vars(_STATE)[hooks] for hooks in _GLOBAL_BACKWARD):
        raise Break("LW112", label)
    for hooks in (*_OWN_HOOKS, *_OWN_BACKWARD) if backward else _OWN_HOOKS:
        if entry is None:
            break
        held = table[hooks]
        place = DictItem(table_source(interp, entry, table), hooks)
        interp.guards.add(place, "is", held, slow=entry.known)
        source = Known(held, f"{label}.{hooks}")
        interp.guards.version(held, source.name)
        interp.guards.add(source, "keys", tuple(held), slow=True)
    over_all = [guarded_hooks(interp, hooks) for hooks in _GLOBAL_HOOKS]
    if backward:
        for hooks in _GLOBAL_BACKWARD:
            guarded_hooks(interp, hooks)
    return any(table.get(hooks) for hooks in _OWN_HOOKS) or any(over_all)


def call_module(interp: Interpreter, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """module(*args, **kwargs) in the region."""
    compiled = module.__dict__.get("_lampwork_original")
    if compiled is not None:
        module = load_attr(interp, module, "_lampwork_original")
    if torch_calls.is_disabled(module):
        raise Break("LW113", torch_calls.described_mark(module))
    if (
        isinstance(module, torch.nn.TransformerEncoder)
        and not module.training
        and not modes.is_grad_enabled()
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
