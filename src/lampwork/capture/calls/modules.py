"""Calling an nn.Module: what `module(*args, **kwargs)` does, with its hooks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.modules import module as torch_module

from lampwork import pristine
from lampwork.capture.calls import torch_calls
from lampwork.capture.model.errors import Break, ProgramRaised
from lampwork.capture.model.region import DictItem
from lampwork.capture.semantics.attribute_writes import guarded_hooks
from lampwork.capture.semantics.attributes import load_attr
from lampwork.capture.semantics.held_state import check_hooks_are_current, held_table, table_source

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


def call_with_hooks(module: Any, call: Any, called: Any) -> Any:
    """`module(*args, **kwargs)` where there are forward hooks. Interpreted, never run as it stands.

    `call`: [args, kwargs, result], as hooks change them. `called`: takes the hooks that were called, by id.
    """
    for hook_id, hook in (
        *_STATE._global_forward_pre_hooks.items(),
        *module._forward_pre_hooks.items(),
    ):
        if hook_id in module._forward_pre_hooks_with_kwargs:
            both = hook(module, call[0], call[1])
            if both is not None:
                if not isinstance(both, tuple) or len(cast(Any, both)) != 2:
                    raise RuntimeError(
                        "forward pre-hook must return None or a tuple "
                        f"of (new_args, new_kwargs), but got {both}."
                    )
                call[0], call[1] = both
        else:
            changed = hook(module, call[0])
            if changed is not None:
                call[0] = changed if isinstance(changed, tuple) else (changed,)
    call[2] = module.forward(*call[0], **call[1])
    for hook_id, hook in (*_STATE._global_forward_hooks.items(), *module._forward_hooks.items()):
        called.add(hook_id)
        if (
            hook_id in module._forward_hooks_with_kwargs
            or hook_id in _STATE._global_forward_hooks_with_kwargs
        ):
            changed = hook(module, call[0], call[1], call[2])
        else:
            changed = hook(module, call[0], call[2])
        if changed is not None:
            call[2] = changed
    return call[2]


def exception_comes() -> None:
    """Nothing, where it runs. Where it is interpreted the capture ends: eager runs a call that raises."""


def leave_to_eager(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> None:
    """What interprets `exception_comes`.

    Raises:
        ProgramRaised: the exception that is handled.
    """
    error = interp.handled()
    assert error is not None
    raise ProgramRaised(error, interp.user_location())


def call_with_certain_hooks(module: Any, call: Any, called: Any) -> Any:
    """As `call_with_hooks`, where some are to be called though an exception comes. Interpreted likewise."""
    try:
        return call_with_hooks(module, call, called)
    except Exception:
        exception_comes()
        for kind, hooks, certain in (
            ("global module", _STATE._global_forward_hooks, _STATE._global_forward_hooks_always_called),
            ("module", module._forward_hooks, module._forward_hooks_always_called),
        ):
            for hook_id, hook in hooks.items():
                if hook_id not in certain or hook_id in called:
                    continue
                try:
                    if kind == "module" and hook_id in module._forward_hooks_with_kwargs:
                        changed = hook(module, call[0], call[1], call[2])
                    else:
                        changed = hook(module, call[0], call[2])
                    if changed is not None:
                        call[2] = changed
                except Exception as error:  # noqa: BLE001 - as torch does
                    warnings.warn(
                        f"{kind} forward hook with ``always_call=True`` raised an exception "
                        f"that was silenced as another error was raised in forward: {error}",
                        stacklevel=2,
                    )
        raise


def has_hooks(interp: Interpreter, module: torch.nn.Module) -> bool:
    """Whether forward hooks are to run for this module; that there are none is guarded.

    Raises:
        Break: LW112 for backward hooks.
    """
    entry = interp.environment.entry(module)
    label = type(module).__name__ if entry is None else entry.name
    backward = pristine.is_grad_enabled()
    table: dict[str, Any] = module.__dict__
    if backward and (
        any(table.get(hooks) for hooks in _OWN_BACKWARD)
        or any(vars(_STATE)[hooks] for hooks in _GLOBAL_BACKWARD)
    ):
        raise Break("LW112", label)
    if entry is not None:
        source = table_source(interp, entry, table)
        for hooks in (*_OWN_HOOKS, *_OWN_BACKWARD) if backward else _OWN_HOOKS:
            if hooks not in table:
                raise Break("LW111", f"{label}, which has no {hooks}, is called")
            held = held_table(interp, entry, table, hooks)
            check_hooks_are_current(interp, held, f"{label}.{hooks}")
            place = guarded = DictItem(source, hooks)
            known = interp.guards.version(held, f"{label}.{hooks}")
            if not entry.known:
                # Which table it is is cheaper to look at on every call than what is in it.
                interp.guards.add(place, "is", held)
                guarded = known
            interp.guards.add(guarded, "keys", tuple(held), slow=True)
    over_all = [guarded_hooks(interp, hooks) for hooks in _GLOBAL_HOOKS]
    if backward:
        for hooks in _GLOBAL_BACKWARD:
            guarded_hooks(interp, hooks)
    return any(table.get(hooks) for hooks in _OWN_HOOKS) or any(over_all)


def hooked(
    interp: Interpreter, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """The function that is `module(*args, **kwargs)` where there are hooks, and its arguments."""
    given = tuple([interp.force(value) for value in args])
    named = {name: interp.force(value) for name, value in kwargs.items()}
    # A hook is in these tables as long as it is in the guarded ones.
    certain = module._forward_hooks_always_called or _STATE._global_forward_hooks_always_called
    function: Any = call_with_certain_hooks if certain else call_with_hooks
    return function, [module, [given, named, None], set[Any]()]


def _leave_distributed(interp: Interpreter, module: torch.nn.Module) -> None:
    """A module with DTensors for weights that cannot be captured runs in one piece with its hooks, which make DTensors
    of its arguments and plain tensors of its result. `fully_shard` has plain weights there in forward.

    Raises:
        Break: LW107 for such a module.
    """
    table = module.__dict__.get("_parameters") or {}
    name = next((name for name, value in table.items() if type(value).__name__ == "DTensor"), None)
    if name is not None and not hasattr(type(module), "set_reshard_after_forward"):
        weight = load_attr(interp, module, name)
        trains = weight.requires_grad and interp.recorder.tracks_gradients
        if (
            isinstance(module, torch.nn.Embedding)
            and trains
            and any(p.is_shard(0) for p in weight.placements)
        ):
            # Its gradient is a sum of parts, each as large as the whole, in place of a part of the rows.
            raise Break(
                "LW107", f"the weight of {type(module).__name__}, sharded by rows and trained (DTensor),"
            )


def call_module(interp: Interpreter, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """module(*args, **kwargs) in the region."""
    compiled = module.__dict__.get("_lampwork_original")
    if compiled is not None:
        module = load_attr(interp, module, "_lampwork_original")
    if torch_calls.is_disabled(module):
        raise Break("LW113", torch_calls.described_mark(module))
    _leave_distributed(interp, module)
    if (
        isinstance(module, torch.nn.TransformerEncoder)
        and not module.training
        and not pristine.is_grad_enabled()
    ):
        padding = args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")
        if interp.force(padding) is not None and getattr(module, "use_nested_tensor", False):
            raise Break("LW106", "nn.TransformerEncoder makes a nested tensor of a padded batch")
    if isinstance(module, torch.jit.ScriptModule):
        raise Break("LW103", f"the TorchScript module {type(module).__name__}")
    with_hooks = has_hooks(interp, module)
    before = interp.whereabouts.enter(module)
    try:
        if not with_hooks:
            return interp.call(load_attr(interp, module, "forward"), args, kwargs)
        return _call_hooked(interp, module, args, kwargs)
    finally:
        interp.whereabouts.within = before


def _call_hooked(
    interp: Interpreter, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    function, given = hooked(interp, module, args, kwargs)
    try:
        return interp.call_python(function, given, {})
    except Exception as error:
        if function is call_with_certain_hooks:
            raise Break(
                "LW111", f"{type(module).__name__} raises, and has hooks to be called then"
            ) from error
        raise
