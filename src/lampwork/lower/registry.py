"""The table operator -> rule, one small registry per op family, merged by table.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lampwork.lower.arrays import Array
from lampwork.lower.arrays import NotExpressible as NotExpressible

Lowering = Array | Sequence[Array]
Rule = Callable[..., Lowering]
"""rule(ctx, *args, **kwargs): the node's arguments, with arrays in place of nodes; gives the node's value(s)."""
AnyRule = TypeVar("AnyRule", bound=Rule)


class Registry:
    """Rules of one op family, filled by the decorator `lowers`."""

    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}

    def lowers(self, *operators: str) -> Callable[[AnyRule], AnyRule]:
        """Register a rule for operators given as "add.Tensor" or "relu" (default overload), with their namespace where
        it is not aten."""

        def register(rule: AnyRule) -> AnyRule:
            for operator in operators:
                self.add(operator, rule)
            return rule

        return register

    def add(self, operator: str, rule: Rule) -> None:
        name = operator if "::" in operator else f"aten::{operator}"
        if name in self.rules:
            raise ValueError(f"two rules for {name}")
        self.rules[name] = rule


def merge(*registries: Registry) -> Mapping[str, Rule]:
    """One table of all rules; an operator may have only one."""
    table: dict[str, Rule] = {}
    for registry in registries:
        twice = table.keys() & registry.rules.keys()
        if twice:
            raise ValueError(f"two rules for {sorted(twice)}")
        table.update(registry.rules)
    return table
