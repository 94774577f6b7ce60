"""Programs of `torch.export`, to be captured: as a module of flat arguments and results, and how a call nests these."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, cast

from torch.fx.graph import CodeGen
from torch.utils._pytree import tree_leaves, tree_unflatten

from lampwork.artifacts.trees import Constant, Made, Mapped, Sequenced, Tree
from lampwork.capture.model.region import Arg
from lampwork.errors import ExportError
from lampwork.exports.naming import input_names
from lampwork.records import record


@record(eq=False)
class Nesting:
    """How a call of a program passes its flat arguments, and gives its flat results. `names`: of positional ones."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    results: Any

    @property
    def leaves(self) -> list[Any]:
        """The flat arguments."""
        return tree_leaves((self.args, self.kwargs))

    @staticmethod
    def is_leaf(value: Any) -> bool:
        """Whether a flat argument is all of a value."""
        found = tree_leaves(value)
        return len(found) == 1 and found[0] is value

    def result(self, trees: Sequence[Tree]) -> Tree:
        """What a call returns of these.

        Raises:
            ExportError: it is of a class that no file can have.
        """
        return _as_tree(tree_unflatten(list(trees), self.results))


def program_of(model: Any) -> Any:
    """A program of torch.export; None if it is something else. Who has one has imported that."""
    known: Any = sys.modules.get("torch.export")
    return model if known is not None and isinstance(model, known.ExportedProgram) else None


def flat_program(program: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Nesting]:
    """A module of the flat arguments of a call, which returns a tuple of flat results; and how they nest."""
    module = program.module(check_guards=False)
    nesting = Nesting(
        tuple(args),
        dict(kwargs),
        input_names([Arg(number) for number in range(len(args))], module),
        program.call_spec.out_spec,
    )
    module._forward_pre_hooks.clear()  # they compare what is passed with the example
    module._forward_pre_hooks_with_kwargs.clear()
    module.graph.set_codegen(CodeGen())
    module.recompile()
    return module, nesting


def _as_tree(value: Any) -> Tree:
    if isinstance(value, Tree):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = cast("tuple[str, ...]", cast(Any, value)._fields)
        items = zip(names, map(_as_tree, cast("tuple[Any, ...]", value)), strict=True)
        return Made(type(value).__name__, "namedtuple", tuple(items))
    if isinstance(value, (list, tuple)):
        items = tuple(map(_as_tree, cast("Sequence[Any]", value)))
        return Sequenced("list" if isinstance(value, list) else "tuple", items)
    if dataclasses.is_dataclass(value):
        fields = ((each.name, _as_tree(getattr(value, each.name))) for each in dataclasses.fields(value))
        return Made(type(value).__name__, "object", tuple(fields))
    if isinstance(value, dict):
        return Mapped(tuple((key, _as_tree(item)) for key, item in cast("dict[Any, Any]", value).items()))
    if value is None or isinstance(value, (bool, int, float, str)):
        return Constant(value)
    raise ExportError(
        f"the program returns a {type(value).__name__}, which no file can have",
        fix="return tensors in containers",
    )
