"""Names in what is exported: of inputs as the user's function calls them, of weights by their module paths, of results
by their keys."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lampwork.capture.model.region import (
    Arg,
    Attr,
    CellContents,
    DictItem,
    InstanceDict,
    Item,
    Known,
    Kwarg,
    Region,
    Result,
    Slot,
    Source,
)


def identifier(text: str, otherwise: str) -> str:
    """A name that Python takes, as near to the text as there is."""
    name = re.sub(r"\W+", "_", re.sub(r"^\W+|\W+$", "", text))
    if not name:
        return otherwise
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> tuple[str, ...]:
    """The names in order; what was there before, or is `taken`, gets a number."""
    seen = set(taken)
    found: list[str] = []
    for name in names:
        made, number = name, 1
        while made in seen:
            made, number = f"{name}_{number}", number + 1
        seen.add(made)
        found.append(made)
    return tuple(found)


def input_names(sources: Iterable[Source], original: Callable[..., Any]) -> tuple[str, ...]:
    """For each source of a call a name that Python takes, one that no other has."""
    return unique(source_names(sources, original))


def source_names(sources: Iterable[Source], original: Callable[..., Any]) -> tuple[str, ...]:
    """What the user's function calls what it is passed."""
    parameters = _parameters(original)
    return tuple(identifier(_source_name(source, parameters), "input") for source in sources)


def keyword_names(count: int, original: Callable[..., Any]) -> tuple[str, ...]:
    """Under which name each of the first arguments may be passed too; no name that Python takes, if under none."""
    parameters = _parameters(original)
    if not parameters:
        return source_names([Arg(number) for number in range(count)], original)
    named = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    first = sum(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in parameters)
    return tuple(
        named[number - first] if 0 <= number - first < len(named) else f"argument {number}"
        for number in range(count)
    )


def collected_names(kwargs: Iterable[str], original: Callable[..., Any]) -> tuple[str, ...]:
    """The keywords that the user's function gets as a dict, whose order it may go by."""
    called: Any = original.forward if isinstance(original, nn.Module) else original
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return tuple(kwargs)
    if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return ()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name in kwargs if name not in parameters or parameters[name].kind not in by_name)


def _parameters(original: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    """Of positional arguments, as a call passes them; () where that is not known."""
    called: Any = original.forward if isinstance(original, nn.Module) else original
    try:
        found = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return [parameter for parameter in found if parameter.kind in kinds]


def _source_name(source: Source, parameters: Sequence[inspect.Parameter]) -> str:
    match source:
        case Arg(index):
            for number, parameter in enumerate(parameters):
                if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                    return f"{parameter.name}_{index - number}"
                if number == index:
                    return parameter.name
            return f"arg_{index}"
        case Kwarg(name):
            return name
        case Known(_, name):
            return name.removesuffix(".__dict__")
        case Attr(base, key) | DictItem(base, key) | Item(base, key):
            return f"{_source_name(base, parameters)}_{key}"
        case Slot(base, descriptor):
            return f"{_source_name(base, parameters)}_{descriptor.__name__}"
        case CellContents(base) | InstanceDict(base) | Result(base):
            return _source_name(base, parameters)


def weight_names(region: Region, original: Callable[..., Any]) -> tuple[str, ...]:
    """For each bound tensor of a region the path under which a module has it: as in the state dict of what was
    compiled, if that has it."""
    known = _state(original) if isinstance(original, nn.Module) else {}
    names = (
        known.get(id(tensor)) or _path(name)
        for tensor, name in zip(region.bound, region.bound_names, strict=True)
    )
    return _apart(unique(names))


def _state(module: nn.Module) -> Mapping[int, str]:
    found: dict[int, str] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        found.setdefault(id(tensor), name)
    return found


def _path(name: str) -> str:
    """`self.layers[0].scale` as a path of identifiers: `layers.0.scale`."""
    parts = [part for part in re.split(r"\W+", name.removeprefix("self.")) if part]
    return ".".join(parts) or "constant"


def _apart(paths: tuple[str, ...]) -> tuple[str, ...]:
    """No path may go through another: `a` and `a.b` are `a_tensor` and `a.b`."""
    inner = {path[:end] for path in paths for end in range(len(path)) if path[end] == "."}
    return unique(f"{path}_tensor" if path in inner else path for path in paths)


def state_of(tensors: Iterable[tuple[str, Tensor]]) -> nn.Module:
    """A module that has the tensors at these paths, as parameters and buffers."""
    root = nn.Module()
    for path, tensor in tensors:
        *parents, last = path.split(".")
        module = root
        for part in parents:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part] or module
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(last, tensor)
        else:
            module.register_buffer(last, tensor)
    return root
