"""A graph as text: `format_graph` for people, `to_python` for running it without Lampwork."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec


def format_graph(graph: fx.Graph) -> str:
    """One line a node; equal graphs print equally.

    %x: float32[8, 16] = input
    %w: float32[4, 16] = bound
    %linear: float32[8, 4] = aten.linear.default(%x, %w)  # model.py:12
    return (%linear,)
    """
    lines: list[str] = []
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"return {format_value(node.args[0])}")
            continue
        head = f"%{node.name}: {_format_spec(node.meta.get('val'))} = "
        if node.op == "placeholder":
            line = head + ("bound" if node.meta.get("bound") else "input")
        else:
            line = f"{head}{target_name(node.target)}({_format_arguments(node, format_value)})"
        lines.append(line + _format_notes(node))
    return "\n".join(lines) + "\n"


def target_name(target: Any) -> str:
    """`aten.add.Tensor` for an operator, `getitem` for Python functions."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else str(target.__name__)


def format_value(value: Any) -> str:
    """An argument: nodes as %name, containers by their items, dtypes and the like without `torch.`."""
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, tuple):
        items = [format_value(item) for item in cast("tuple[Any, ...]", value)]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, list):
        return f"[{', '.join(format_value(item) for item in cast('list[Any]', value))}]"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    return repr(value)


def _format_arguments(node: fx.Node, show: Callable[[Any], str]) -> str:
    positional = [show(value) for value in node.args]
    return ", ".join(positional + [f"{name}={show(value)}" for name, value in node.kwargs.items()])


def _format_spec(val: Any) -> str:
    if val is None:
        return "?"
    if isinstance(val, TensorSpec):
        return str(val)
    return f"({', '.join(_format_spec(spec) for spec in val)})"


def _format_notes(node: fx.Node) -> str:
    """Flags that change what passes may do, then the user's line."""
    notes = [name for name in ("random", "effect", "constant", "opaque") if node.meta.get(name)]
    location = node.meta.get("location")
    if location is not None:
        notes.append(f"{quoted(PurePath(location.file).name)}:{location.line}")
    return f"  # {', '.join(notes)}" if notes else ""


def to_python(graph: fx.Graph) -> str:
    """Runnable Python source: `def forward(placeholders...)` that calls the ATen operators and returns the outputs.

    The source needs nothing but torch.
    """
    names = [_identifier(node.name) for node in graph.nodes if node.op == "placeholder"]
    lines = [
        "import torch",
        "from torch import device",
        "",
        "aten = torch.ops.aten",
        "nan, inf = float('nan'), float('inf')",
        "",
        "",
        f"def forward({', '.join(names)}):",
    ]
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"    return {_python_value(node.args[0])}")
        elif node.op == "call_function":
            arguments = _python_arguments(node)
            spec = _format_spec(node.meta.get("val"))
            target = node.target
            if isinstance(target, torch._ops.OpOverload):
                call = f"{_python_operator(target)}({arguments})"
            else:
                call = f"{_python_value(node.args[0])}[{_python_value(node.args[1])}]"
            lines.append(f"    {_identifier(node.name)} = {call}  # {spec}{_location(node)}")
    return "\n".join(lines) + "\n"


def _python_operator(target: torch._ops.OpOverload) -> str:
    """`aten.add.Tensor`; `getattr(aten.random, 'from')` where a part of the name is a word of Python's."""
    first, *names = str(target).split(".")
    found = first if first == "aten" else f"torch.ops.{first}"
    for name in names:
        found = f"getattr({found}, {name!r})" if keyword.iskeyword(name) else f"{found}.{name}"
    return found


def _python_arguments(node: fx.Node) -> str:
    given = [_python_value(value) for value in node.args]
    named = {name: _python_value(value) for name, value in node.kwargs.items()}
    given += [f"{name}={value}" for name, value in named.items() if not keyword.iskeyword(name)]
    given += [f"**{{{name!r}: {value}}}" for name, value in named.items() if keyword.iskeyword(name)]
    return ", ".join(given)


def _location(node: fx.Node) -> str:
    location = node.meta.get("location")
    return "" if location is None else f"  {quoted(PurePath(location.file).name)}:{location.line}"


def quoted(text: str) -> str:
    """Text of the user for a comment or a docstring of Python source, which it can neither end nor leave: one line,
    escaped as in a string with double quotes."""
    return "".join(map(_escaped, text))


def _escaped(letter: str) -> str:
    if letter in '\\"':
        return f"\\{letter}"
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def _identifier(name: str) -> str:
    """Node names may shadow what the source itself uses."""
    return f"{name}_" if name in ("torch", "aten", "device", "nan", "inf", "forward") else name


def _python_value(value: Any) -> str:
    if isinstance(value, fx.Node):
        return _identifier(value.name)
    if isinstance(value, tuple):
        items = [_python_value(item) for item in cast("tuple[Any, ...]", value)]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, list):
        return f"[{', '.join(_python_value(item) for item in cast('list[Any]', value))}]"
    return repr(value)
