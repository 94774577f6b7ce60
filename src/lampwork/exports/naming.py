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
    Recipe,
    Region,
    Result,
    Slot,
    Source,
)


def identifier(text: str, otherwise: str) -> str:
    """A name that Python takes, as near to the text as there is."""
    name = re.sub(r"\W+", "_", text).strip("_")
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


def input_names(region: Region, original: Callable[..., Any]) -> tuple[str, ...]:
    """For each input of a region a name that Python takes."""
    parameters = _parameters(original)
    names = (identifier(_source_name(source, parameters), "input") for source in region.inputs)
    return unique(names)


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
        case Kwarg(name) | Known(_, name):
            return name
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


def output_names(recipe: Recipe, returned: Sequence[int]) -> dict[int, str]:
    """For each output of a region's program that is returned the key or attribute under which the result has it, else
    its number."""
    found: dict[int, str] = {}
    steps = recipe.steps
    for step in steps:
        for place, number in enumerate(step.args):
            if steps[number].kind != "output":
                continue
            before = steps[step.args[place - 1]] if place else None
            is_key = step.kind == "call" or (step.kind == "dict" and place % 2)
            if before is not None and is_key and before.kind == "const" and isinstance(before.payload, str):
                found.setdefault(steps[number].payload, identifier(before.payload, "output"))
    only = "output" if len(returned) == 1 else ""
    names = unique(found.get(number) or only or f"output_{number}" for number in returned)
    return dict(zip(returned, names, strict=True))


_PLAIN = (int, float, bool, str, type(None))
"""What may stand among results beside tensors."""


def is_rebuilt(region: Region) -> bool:
    """Whether a region's result is tensors, inputs and numbers in plain containers, and nothing goes on after it."""
    steps = region.recipe.steps
    work, seen = [region.recipe.result], set[int]()
    while work:
        number = work.pop()
        if number in seen:
            continue
        seen.add(number)
        step = steps[number]
        if step.kind == "call" or (step.kind == "source" and step.payload not in region.inputs):
            return False
        if step.kind == "const" and type(step.payload) not in _PLAIN:
            return False
        work.extend(step.args)
    return not region.breaks


def rebuilt(
    recipe: Recipe, outputs: Sequence[Any], inputs: Mapping[Source, Any], sizes: Callable[[Any], Any]
) -> Any:
    """The result that a recipe makes, where `is_rebuilt`."""

    def made(number: int) -> Any:
        step = recipe.steps[number]
        items = [made(item) for item in step.args]
        match step.kind:
            case "output":
                return outputs[step.payload]
            case "source":
                return inputs[step.payload]
            case "symbol":
                return sizes(step.payload)
            case "tuple":
                return tuple(items)
            case "list":
                return items
            case "dict":
                return dict(zip(items[::2], items[1::2], strict=True))
            case _:
                return step.payload

    return made(recipe.result)


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
