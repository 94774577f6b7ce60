"""What compiling a graph asks of its symbols, which is asked again of those of each equal graph that gets its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lampwork.errors import SerialError
from lampwork.graph.symbols import Condition, Scope, SymbolicFloat, SymbolicInt, bits_of_float, held
from lampwork.loops.ir.symbols import evaluate
from lampwork.records import record
from lampwork.serial.indices import symbol_from_json
from lampwork.serial.specs import (
    condition_from_json,
    condition_to_json,
    symbolic_from_json,
    symbolic_to_json,
)
from lampwork.serial.values import each, expected, items, mapping


@record
class Demands:
    """What was asked of symbols while a graph was compiled: conditions, and floats that Python computes of them."""

    conditions: tuple[Condition, ...]
    derived: Mapping[str, SymbolicFloat]

    @staticmethod
    def since(before: Asked, scope: Scope) -> Demands:
        """What was asked of a scope since then."""
        derived = {
            name: number for name, number in scope.derived.items() if before.derived.get(name) is not number
        }
        return Demands(tuple(scope.conditions[before.conditions :]), derived)

    def hold_for(self, scope: Scope) -> bool:
        """Whether the conditions hold on the call that the symbols of `scope` were made for."""
        return all(condition.holds(scope.hints) for condition in self.conditions)

    def make_of(self, scope: Scope) -> None:
        """Ask the same of the symbols of an equal graph."""
        for condition in self.conditions:
            scope.require(condition.op, condition.index)
        for name, number in self.derived.items():
            made = _in_scope(number, scope)
            (derived,) = scope.derive(made.args[0] if made.function is held else made).symbols()
            # Floats are named in the order in which they are met, which is the same for equal graphs.
            assert derived == name, f"{derived} is called {name}"
            scope.derived[name] = made
            scope.hints[name] = bits_of_float(made.hint)


@record
class Asked:
    """What a scope was asked at some time: the number of conditions, and the floats."""

    conditions: int
    derived: Mapping[str, SymbolicFloat]

    @staticmethod
    def of(scope: Scope) -> Asked:
        return Asked(len(scope.conditions), dict(scope.derived))


def _in_scope(number: Any, scope: Scope) -> Any:
    """The same number, of the symbols of another scope."""
    if isinstance(number, SymbolicInt):
        return SymbolicInt(scope, number.index, evaluate(number.index, scope.hints))
    if isinstance(number, SymbolicFloat):
        args = tuple(_in_scope(arg, scope) for arg in number.args)
        return SymbolicFloat(scope, number.function, args, number.evaluate(scope.hints))
    return number


def demands_to_json(demands: Demands) -> dict[str, Any]:
    return {
        "conditions": [condition_to_json(condition) for condition in demands.conditions],
        "derived": [[name, symbolic_to_json(number)] for name, number in demands.derived.items()],
    }


def demands_from_json(value: Any, scope: Scope) -> Demands:
    """What was asked, of the symbols of this scope.

    Raises:
        SerialError: it is damaged, or about other symbols.
    """
    found = mapping(value, frozenset({"conditions", "derived"}))
    conditions = each("conditions", found["conditions"], lambda item: condition_from_json(item, scope.hints))
    derived: dict[str, SymbolicFloat] = {}
    for pair in items(found["derived"]):
        name, number = items(pair, 2)
        made = symbolic_from_json(number, scope)
        if not isinstance(made, SymbolicFloat):
            raise expected("a float that depends on symbols", number)
        derived[symbol_from_json(name)] = made
    _check_names(derived, scope)
    return Demands(conditions, derived)


def _check_names(derived: Mapping[str, SymbolicFloat], scope: Scope) -> None:
    """New floats have the names that this scope would give them."""
    new = [name for name in derived if name not in scope.derived]
    if new != [f"f{len(scope.derived) + n}" for n in range(len(new))]:
        raise SerialError(f"floats beyond the {len(scope.derived)} that there are were expected, not {new}")
