"""Mutations of a world: another value in a slot, or an edit of the object that is there."""

from __future__ import annotations

import abc
import builtins
import collections
import contextvars
import enum
import functools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from places import MISSING, Place, from_library
from variants import nudge, other_function, variants

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Edit:
    """One mutation: `do` applies it and returns what undoes it."""

    path: str
    kind: str
    label: str
    owner: Any
    do: Callable[[], Undo]

    @property
    def name(self) -> str:
        return f"{self.path} | {self.label}"


def edits_of(places: list[Place]) -> list[Edit]:
    """All mutations of a world, in the order of its walk."""
    found: list[Edit] = []
    edited: dict[int, Any] = {}
    for place in places:
        value = place.value()
        if value is MISSING:
            continue
        if place.put is not None:
            for label, make in variants(value).items():
                found.append(
                    Edit(place.path, place.kind, label, place.owner, functools.partial(_replace, place, make))
                )
        # A member of an enum cannot even be printed if it is not complete.
        if (
            place.drop is not None
            and place.kind in ("attribute of an object", "class attribute", "item of a dict")
            and not isinstance(place.owner, enum.Enum)
        ):
            found.append(
                Edit(place.path, place.kind, "deleted", place.owner, functools.partial(_delete, place))
            )
        if place.kind == "builtin shadowed" and callable(value):
            found.append(_builtin_edit(place))
        if id(value) not in edited:
            edited[id(value)] = value
            found += _in_place(place, value)
    return found


def _replace(place: Place, make: Callable[[Any], Any]) -> Undo:
    old = place.get()
    place.put(make(old))
    if place.kind == "builtin shadowed":
        return place.drop
    return lambda: place.put(old)


def _delete(place: Place) -> Undo:
    old = place.get()
    place.drop()
    return lambda: place.put(old)


def _builtin_edit(place: Place) -> Edit:
    """The entry of builtins itself, in force for calls from the program's file only: everything else needs it too."""
    name, scope = place.path.rsplit("[", 1)[1][:-1], place.owner["__name__"]

    def do() -> Undo:
        old = getattr(builtins, name)

        def patched(*args: Any, **kwargs: Any) -> Any:
            result = old(*args, **kwargs)
            return nudge(result) if sys._getframe(1).f_globals.get("__name__") == scope else result

        setattr(builtins, name, patched)
        return lambda: setattr(builtins, name, old)

    return Edit(place.path, "builtin", "patched", builtins, do)


def _in_place(place: Place, value: Any) -> list[Edit]:
    actions: dict[str, Callable[[], Undo]] = {}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        actions = _tensor_edits(value)
    elif isinstance(value, (list, collections.deque)):
        actions = _list_edits(value)
    elif isinstance(value, dict) and "globals" not in place.path:
        actions = _dict_edits(value, hooks="hooks" in place.path.rsplit(".", 1)[-1])
    elif isinstance(value, set):
        actions = {"item added": lambda: _call(value.add, 77, lambda: value.discard(77))}
        if value:
            first = min(value, key=repr)
            actions["item removed"] = lambda: _call(value.remove, first, lambda: value.add(first))
    elif isinstance(value, functools._lru_cache_wrapper):
        actions = {"cache cleared": lambda: (value.cache_clear(), lambda: None)[1]}
    elif isinstance(value, contextvars.ContextVar):
        actions = _variable_edits(value)
    elif isinstance(value, functools.partial):
        actions = _partial_edits(value)
    elif isinstance(value, type) and place.kind != "class attribute" and value.__module__ != "builtins":
        actions = _class_edits(value)
    elif isinstance(value, torch.nn.Module):
        actions = _module_edits(value)
    elif hasattr(value, "registry") and hasattr(value, "register") and hasattr(value, "dispatch"):
        actions = {
            "implementation for tensors": lambda: (
                value.register(torch.Tensor, lambda x, *a: nudge(x)),
                lambda: None,
            )[1]
        }
    elif hasattr(value, "__dict__") and type(value).__module__.startswith(("conformance", "worlds")):
        actions = _object_edits(value)
    return [
        Edit(place.path, f"in place: {type(value).__name__}", label, value, do)
        for label, do in actions.items()
    ]


def _call(f: Callable[..., Any], argument: Any, undo: Undo) -> Undo:
    f(argument)
    return undo


def _tensor_edits(t: torch.Tensor) -> dict[str, Callable[[], Undo]]:
    if t.layout is not torch.strided or t.is_inference() or not t.numel() or t.is_quantized:
        return {}

    def edited(edit: Callable[[], None]) -> Callable[[], Undo]:
        def do() -> Undo:
            saved = t.detach().clone()
            edit()

            def undo() -> None:
                if t.shape == saved.shape:
                    t.data.copy_(saved)
                else:
                    t.data = saved

            return undo

        return do

    def under_no_grad() -> None:
        with torch.no_grad():
            t.add_(1) if t.dtype != torch.bool else t.logical_not_()

    def element() -> None:
        flat = t.data.reshape(-1) if t.is_contiguous() else t.data
        flat[-1] = 1 - flat[-1] if t.dtype != torch.bool else ~flat[-1]

    def numpy() -> None:
        a = t.detach().numpy()
        a[...] = 1 - a if a.dtype != bool else ~a

    def pointer() -> None:
        t.data = t.detach().clone().mul(3) if t.dtype != torch.bool else ~t.detach()

    made = {
        "in place": edited(under_no_grad),
        "one element through data": edited(element),
        "new data": edited(pointer),
    }
    if t.dtype not in (torch.bfloat16,) and not t.is_conj() and not t.is_neg():
        made["through numpy"] = edited(numpy)
    return made


def _restored(owner: Any, edit: Callable[[], Any]) -> Callable[[], Undo]:
    """An edit of a list, deque or dict, undone by putting back its content."""

    def do() -> Undo:
        saved = dict(owner) if isinstance(owner, dict) else list(owner)
        edit()

        def undo() -> None:
            owner.clear()
            owner.update(saved) if isinstance(owner, dict) else owner.extend(saved)

        return undo

    return do


def _list_edits(value: Any) -> dict[str, Callable[[], Undo]]:
    made = {}
    if value:
        made["appended"] = _restored(value, lambda: value.append(value[-1]))
        made["popped"] = _restored(value, lambda: value.pop())
    if len(value) > 1:
        made["rotated"] = _restored(
            value, lambda: value.append(value.popleft() if hasattr(value, "popleft") else value.pop(0))
        )
    return made


def _dict_edits(value: Any, *, hooks: bool) -> dict[str, Callable[[], Undo]]:
    if hooks:
        made = {"hook added": _restored(value, lambda: value.__setitem__(991, _hook))}
    else:
        made = {}
        if value:
            last = list(value)[-1]
            key = "added" if isinstance(last, str) else 991 if isinstance(last, int) else "added"
            made["key added"] = _restored(value, lambda: value.__setitem__(key, value[last]))
            made["key removed"] = _restored(value, lambda: value.pop(last))
    if len(value) > 1:
        made["first key to the end"] = _restored(value, lambda: _to_the_end(value))
    return made


def _to_the_end(d: Any) -> None:
    if isinstance(d, collections.OrderedDict):
        d.move_to_end(next(iter(d)))
    else:
        key = next(iter(d))
        d[key] = d.pop(key)


def _hook(module: Any, args: Any, *rest: Any) -> Any:
    return nudge(rest[-1]) if rest else None


def _partial_edits(p: functools.partial[Any]) -> dict[str, Callable[[], Undo]]:
    def do() -> Undo:
        saved = p.__reduce__()[2]
        p.__setstate__((other_function(p.func), *saved[1:]))
        return lambda: p.__setstate__(saved)

    return {"state set": do}


def _variable_edits(variable: contextvars.ContextVar[Any]) -> dict[str, Callable[[], Undo]]:
    value = variable.get()

    def do(make: Callable[[Any], Any]) -> Undo:
        token = variable.set(make(value))
        return lambda: variable.reset(token)

    return {f"set, {label}": functools.partial(do, make) for label, make in variants(value).items()}


def _class_edits(cls: type) -> dict[str, Callable[[], Undo]]:
    """Attributes and methods that a class inherits, put on the class itself."""
    made: dict[str, Callable[[], Undo]] = {}
    if isinstance(cls, abc.ABCMeta) and not from_library_class(cls):
        made["a float registered as one"] = lambda: (cls.register(float), lambda: None)[1]
    if from_library_class(cls):
        return made
    for base in cls.__mro__[1:-1]:
        for name, held in vars(base).items():
            if (
                name in vars(cls)
                or name in made
                or name.startswith("__")
                and name not in ("__call__", "__getattr__", "__len__")
            ):
                continue
            if isinstance(held, types.FunctionType) and (
                name in ("forward", "__call__") or not from_library(held.__code__)
            ):
                made[name] = functools.partial(_add, cls, name, other_function(held))
            elif type(held) in (int, float, str, bool):
                made[name] = functools.partial(_add, cls, name, nudge(held))
    return {name if " " in name else f"{name} put on the subclass": do for name, do in made.items()}


def from_library_class(cls: type) -> bool:
    return not cls.__module__.startswith(("conformance", "worlds"))


def _add(cls: type, name: str, held: Any) -> Undo:
    setattr(cls, name, held)
    return lambda: delattr(cls, name)


def _on_instance(obj: Any, name: str, held: Any) -> Undo:
    object.__getattribute__(obj, "__dict__")[name] = held
    return lambda: object.__getattribute__(obj, "__dict__").pop(name, None)


def _object_edits(value: Any) -> dict[str, Callable[[], Undo]]:
    """Methods put on the instance, and its whole dictionary replaced."""
    made: dict[str, Callable[[], Undo]] = {}
    held = object.__getattribute__(value, "__dict__")
    for base in type(value).__mro__[:-1]:
        for name, f in vars(base).items():
            if (
                isinstance(f, types.FunctionType)
                and not name.startswith("__")
                and name not in held
                and not from_library(f.__code__)
            ):
                made[f"{name} put on the instance"] = functools.partial(
                    _on_instance, value, name, other_function(types.MethodType(f, value))
                )
    for name, item in held.items():
        for make in list(variants(item, 1).values())[:1]:
            made[f"__dict__ replaced, other {name}"] = functools.partial(_other_dict, value, name, make)
            break
    return dict(list(made.items())[:8])


def _other_dict(value: Any, name: str, make: Any) -> Undo:
    saved = value.__dict__
    value.__dict__ = {k: make(v) if k == name else v for k, v in saved.items()}

    def undo() -> None:
        value.__dict__ = saved

    return undo


def _module_edits(m: torch.nn.Module) -> dict[str, Callable[[], Undo]]:
    def hook() -> Undo:
        torch.utils.hooks.RemovableHandle.next_id = 5000  # keys of hooks are compared too
        return m.register_forward_hook(_hook).remove

    def pre_hook() -> Undo:
        torch.utils.hooks.RemovableHandle.next_id = 6000
        return m.register_forward_pre_hook(lambda module, args: tuple(nudge(a) for a in args)).remove

    def flip() -> Undo:
        was = m.training
        m.train(not was)
        return lambda: m.train(was) and None

    def frozen() -> Undo:
        was = [p.requires_grad for p in m.parameters()]
        m.requires_grad_(False)

        def undo() -> None:
            for p, flag in zip(m.parameters(), was):
                p.requires_grad_(flag)

        return undo

    made = {"forward hook": hook, "forward pre-hook": pre_hook, "train or eval": flip}
    made["forward on the instance"] = functools.partial(_on_instance, m, "forward", other_function(m.forward))
    if any(True for _ in m.parameters()):
        made["frozen"] = frozen
    return made
