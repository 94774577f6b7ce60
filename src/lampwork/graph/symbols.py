"""Integers that are left open: sizes and Python ints that may differ from call to call.

A `SymbolicInt` is concolic: it has a *hint*, its value on the call being captured, and an *index*, the polynomial over
symbols that gives its value on any call. Arithmetic gives further symbolic ints. A question with a yes or no (`n > 3`,
`a == b`) is answered for the hints; unless the answer is the same for all values, it becomes a `Condition` of the
`Scope`, and the region is right for every call on which the conditions hold. Whatever needs the number itself (`int()`,
`range()`, a list index) fixes it: the condition is that it equals its hint.

So every stage that does arithmetic on shapes is right with symbols as it stands, and at worst asks for more conditions
than it needs.

    scope = Scope()
    s = scope.symbol(8)             # s0
    if (s * 3) // 3 == s: ...       # no condition: always so
    if s > 4: ...                   # condition: s0 - 5 >= 0

symnode.py hands them to torch as `torch.SymInt`; `SymbolicInt.of(symint)` gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeGuard, cast

import torch

from lampwork.errors import Location
from lampwork.loops.ir.polynomial import FloorDiv, Index, Mod, Sym, as_index
from lampwork.loops.ir.symbols import evaluate, lower_bound, replace_symbols
from lampwork.records import record
from lampwork.standard import math, operator, struct

Relation = Literal["==", "!=", ">=", "fits"]

# Numbers computed in more steps than these are fixed: what is made of them would take too long to simplify, or, where
# each step uses the one before it twice, to compute.
_DEEPEST_DIVISION = 24
_MOST_DIVISIONS = 1000
_MOST_STEPS = 256
_LARGEST = 2**63 - 1  # of the ints that a call's values are read as; torch writes it for "to the end"

_Method = Callable[[Any, Any], Any]
_DIVISIONS = (operator.floordiv, operator.mod)

_FLOAT = "x"  # how the names of float symbols begin

_HOLDS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "fits": lambda value, _: -_LARGEST - 1 <= value <= _LARGEST,
}


@record
class Condition:
    """`index op 0` must hold, or `index` fit int64; the atoms of `index` are symbols by name. `line` is the user's line
    that needs it."""

    op: Relation
    index: Index
    line: Location | None = None

    def holds(self, values: Mapping[str, int]) -> bool:
        return _HOLDS[self.op](evaluate(self.index, values), 0)

    def __str__(self) -> str:
        """The condition as one writes it: `s0 >= 5`, not `s0 - 5 >= 0`. A float's bits are shown as the float."""
        if self.op == "fits":
            return f"{self.index} fits int64"
        name = "".join(self.index.symbols())
        if (
            name.startswith(_FLOAT)
            and self.op != ">="
            and self.index - self.index.constant == Index.sym(name)
        ):
            return f"{name} {self.op} {float_of_bits(-self.index.constant)!r}"
        left = Index(tuple(term for term in self.index.terms if term[0] and term[1] > 0))
        right = left - self.index
        if left.terms:
            return f"{left} {self.op} {right}"
        return f"{-self.index + self.index.constant} {'<=' if self.op == '>=' else self.op} {self.index.constant}"


class Scope:
    """The symbols of one region and the conditions on them.

    `where`, if set, says which line of the user's is at work. `tried`: the calls whose sizes `open_sizes.py` has
    confined. `numbers`: the symbols that are no sizes. Sizes are at least 2: 0 and 1 broadcast, so they are compiled
    for apart. Conditions go on being added while the region is compiled.
    """

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        self.lowest: dict[str, int] = {}
        self.numbers: set[str] = set()
        self.equal: dict[str, Index] = {}
        self.derived: dict[str, SymbolicFloat] = {}
        self.conditions: list[Condition] = []
        self.where: Callable[[], Location | None] | None = None
        self.tried: set[Any] = set()
        self._known: dict[tuple[str, Index], bool] = {}
        self._concerning: dict[str, list[Condition]] = {}
        self._solved_by: dict[str, set[str]] = {}  # the symbols whose solution in `equal` mentions this one
        self._sorted = 0
        self._names: dict[Any, str] = {}  # of derived floats, by their keys

    def symbol(self, hint: int, lowest: int | None = 2, prefix: str = "s") -> SymbolicInt:
        """A new symbol. `lowest`: a number it is never below, which the caller guards; None: not known.

        Symbols in indices count as at least 1, so one that may be less is conditioned when it becomes an index.
        """
        name = f"{prefix}{len(self.hints)}"
        self.hints[name] = hint
        if lowest is not None:
            self.lowest[name] = lowest
        else:
            self.numbers.add(name)
        return SymbolicInt(self, Index.sym(name), hint)

    def float_symbol(self, hint: float) -> SymbolicFloat:
        """A symbol for a float: the int with the same bits, so that a call's values are ints all."""
        return SymbolicFloat(self, float_of_bits, (self.symbol(bits_of_float(hint), None, _FLOAT),), hint)

    def derive(self, number: SymbolicFloat) -> Index:
        """A symbol for the bits of a float that Python computes before code runs that reads it; one for all floats that
        are computed alike."""
        key = number.key
        name = self._names.setdefault(key, f"f{len(self._names)}")
        if name not in self.derived:
            self.derived[name] = number
            self.hints[name] = bits_of_float(number.hint)
        return Index.sym(name)

    def hold(self, number: SymbolicFloat, limit: float = math.inf, excluded: float | None = None) -> None:
        """Leave to eager the calls on which a float that Python computes has a magnitude above a limit, or is this
        number. No index can say so, as it is no integer."""
        (name,) = self.derive(number).symbols()
        known = self.derived[name]
        others: frozenset[float] = frozenset()
        if known.function is held:
            known, before, others = known.args
            limit = min(limit, before)
        if excluded is not None:
            others |= {excluded}
        self.derived[name] = SymbolicFloat(self, held, (known, limit, others), number.hint)

    def decide(self, op: Relation, index: Index) -> bool:
        """Whether `index op 0` on this call; a condition unless it is so on every call."""
        index = self.canonical(index)
        value = index.as_int()
        if value is not None:
            return _HOLDS[op](value, 0)
        index, possible = _reduced(op, index)
        if not possible or (op != ">=" and abs(index.constant) > _LARGEST):
            return op == "!="
        known = self._known.get((op, index))
        if known is None:
            known = self._provable(op, index)
        if known is None:
            known = self._assume(op, index)
        return known

    def is_sure(self, op: Relation, index: Index) -> bool:
        """Whether `index op 0` is known on every call. Makes no condition."""
        index = self.canonical(index)
        value = index.as_int()
        if value is not None:
            return _HOLDS[op](value, 0)
        index, possible = _reduced(op, index)
        return (
            (self._known.get((op, index)) or self._provable(op, index) or False) if possible else op == "!="
        )

    def require(self, op: Relation, index: Index) -> None:
        """Note a condition that the caller has seen to hold."""
        self.conditions.append(Condition(op, index, self._line()))

    def conditions_on(self, name: str) -> Sequence[Condition]:
        """The conditions that a symbol occurs in."""
        for condition in self.conditions[self._sorted :]:
            for symbol in condition.index.symbols():
                self._concerning.setdefault(symbol, []).append(condition)
        self._sorted = len(self.conditions)
        return self._concerning.get(name, ())

    def canonical(self, index: Index) -> Index:
        """The index with symbols that are known to be equal to others replaced."""
        return replace_symbols(index, self.equal) if self.equal else index

    @property
    def state(self) -> Any:
        """Equal for scopes whose symbols were asked the same: code that is made for one and asks no more serves all."""
        asked = frozenset((condition.op, condition.index) for condition in self.conditions)
        return asked, tuple((name, number.how) for name, number in self.derived.items())

    def _provable(self, op: Relation, index: Index) -> bool | None:
        if op == ">=" and index.constant >= _LARGEST and len(index.terms) == 2:
            return True
        below, above = lower_bound(index, self.lowest), lower_bound(-index, self.lowest)
        if op == ">=":
            if below is not None and below >= 0:
                return True
            return False if above is not None and above > 0 else None
        if (below is not None and below > 0) or (above is not None and above > 0):
            return op == "!="
        return None

    def _assume(self, op: Relation, index: Index) -> bool:
        truth = _HOLDS[op](evaluate(index, self.hints), 0)
        if op == ">=" and truth and index.constant >= _LARGEST:
            # Whether a number is too large for int64 is asked of the number, which fits, not of what is left of it.
            self._add(Condition("fits", index - index.constant, self._line()))
            self._known[op, index] = True
            return True
        if op == ">=":
            self._add(Condition(">=", index if truth else -index - 1, self._line()))
        else:
            same = truth is (op == "==")
            self._add(Condition("==" if same else "!=", index, self._line()))
            self._known["==", index], self._known["!=", index] = same, not same
            if same:
                self._solve(index)
        self._known[op, index] = truth
        return truth

    def _add(self, condition: Condition) -> None:
        excess = condition.index.constant - _LARGEST
        if condition.op == ">=" and excess > 0:
            # Conditions are evaluated in int64. A smaller bound asks for more, and no size comes near it.
            condition = replace(condition, index=condition.index - excess)
        self.conditions.append(condition)
        if condition.op != ">=":
            return
        # s - c >= 0 raises the lowest value of s.
        monomials = [monomial for monomial, _ in condition.index.terms if monomial]
        if len(monomials) == 1 and len(monomials[0]) == 1 and isinstance(monomials[0][0], Sym):
            name = monomials[0][0].name
            coefficient = dict(condition.index.terms)[monomials[0]]
            if coefficient == 1:
                self.lowest[name] = max(
                    self.lowest.get(name, -condition.index.constant), -condition.index.constant
                )

    def _line(self) -> Location | None:
        return self.where() if self.where is not None else None

    def _solve(self, index: Index) -> None:
        """From index == 0, the youngest symbol that stands alone in it in terms of the others."""
        candidates = [
            (atoms[0].name, coefficient)
            for atoms, coefficient in index.terms
            if len(atoms) == 1 and isinstance(atoms[0], Sym) and coefficient in (1, -1)
        ]
        for name, coefficient in sorted(candidates, key=lambda item: -int(item[0][1:])):
            rest = index - Index.sym(name) * coefficient
            if name not in rest.symbols():
                solution = {name: rest * -coefficient}
                for old in self._solved_by.pop(name, ()):
                    self.put_equal(old, replace_symbols(self.equal[old], solution))
                self.put_equal(name, solution[name])
                self._known.clear()
                return

    def put_equal(self, name: str, solution: Index) -> None:
        self.equal[name] = solution
        for symbol in solution.symbols():
            self._solved_by.setdefault(symbol, set()).add(name)

    def fix_all(self) -> None:
        """Condition every symbol to equal its hint: what cannot be compiled for all values is compiled for these."""
        for name, hint in self.hints.items():
            if name not in self.derived:
                self.decide("==", Index.sym(name) - hint)

    def ensure_positive(self, index: Index) -> None:
        """Condition every symbol of `index` to be at least 1, as the loop language has it."""
        for name in index.symbols():
            if self.lowest.get(name, 0) < 1:
                self._add(Condition(">=", Index.sym(name) - 1, self._line()))
                self.lowest[name] = max(self.lowest.get(name, 1), 1)


def _reduced(op: Relation, index: Index) -> tuple[Index, bool]:
    """An equivalent index with small coefficients; whether the index can be 0 at all (for >=: always true)."""
    factor = math.gcd(*(coefficient for monomial, coefficient in index.terms if monomial))
    if op == ">=":
        return Index.from_terms((m, c // factor) for m, c in index.terms), True
    if index.constant % factor:
        return index, False
    if index.terms[-1][1] < 0:
        factor = -factor
    return Index.from_terms((m, c // factor) for m, c in index.terms), True


def _is_unwieldy(index: Index) -> bool:
    """Whether divisions are nested deeply, or many."""
    count = 0

    def visit(inner: Index, depth: int) -> bool:
        nonlocal count
        for monomial, _ in inner.terms:
            for atom in monomial:
                if isinstance(atom, FloorDiv | Mod):
                    count += 1
                    if depth > _DEEPEST_DIVISION or count > _MOST_DIVISIONS:
                        return True
                    if visit(atom.a, depth + 1) or visit(atom.b, depth + 1):
                        return True
        return False

    return visit(index, 1)


def _both_ways(function: Callable[[Any, Any], Any]) -> tuple[_Method, _Method]:
    """The operator of a class of numbers that computes `function`, and its reflection."""

    def forward(self: Any, other: Any) -> Any:
        return self._binary(other, function, False)

    def reflected(self: Any, other: Any) -> Any:
        return self._binary(other, function, True)

    return forward, reflected


def _compared(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """The comparison of a class of numbers that are fixed for it."""

    def compared(self: Any, other: Any) -> bool:
        return function(self.fix(), _fixed(other))

    return compared


def held(number: float, limit: float, excluded: frozenset[float]) -> float:
    """The number itself; see `Scope.hold`.

    Raises:
        OverflowError: it is above the limit, nan, or an excluded one.
    """
    if number in excluded or not (abs(number) <= limit or (limit == math.inf and number != number)):
        raise OverflowError(f"{number} is not what the code was made for")
    return number


class SymbolicInt:
    """An integer over the symbols of a scope. Behaves as an int in arithmetic and comparisons.

    Never a constant: arithmetic whose result is the same for all values of the symbols gives an int.
    """

    __slots__ = ("hint", "index", "scope")

    def __init__(self, scope: Scope, index: Index, hint: int) -> None:
        self.scope = scope
        self.index = index
        self.hint = hint

    @staticmethod
    def of(value: Any) -> Any:
        """A torch.SymInt as the symbolic int or int that it stands for; anything else as it is."""
        if isinstance(value, torch.SymInt):
            node = cast(Any, value.node)
            constant = node.index.as_int()
            return node if constant is None else constant
        return value

    def symbols(self) -> frozenset[str]:
        """The names of the symbols that it depends on."""
        return frozenset(self.index.symbols())

    def as_index(self) -> Index:
        """The index, with symbols that are at least 1."""
        index = self.scope.canonical(self.index)
        self.scope.ensure_positive(index)
        return index

    def as_scalar(self) -> Index:
        """The index of a number that is no size. It may be negative, as long as nothing in it is divided."""
        index = self.scope.canonical(self.index)
        return index if index.is_flat else self.as_index()

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number for these values of the symbols."""
        return evaluate(self.index, values)

    def fix(self) -> int:
        """The number itself: the region is for this value only."""
        self.scope.decide("==", self.index - self.hint)
        return self.hint

    __int__ = __index__ = fix

    def is_surely_nonnegative(self) -> bool:
        """Whether it is >= 0 for all values of the symbols. Makes no condition."""
        return self.scope.is_sure(">=", self.index)

    def __float__(self) -> float:
        return float(self.fix())

    def __bool__(self) -> bool:
        return self.scope.decide("!=", self.index)

    def __hash__(self) -> int:
        return hash((id(self.scope), self.index))

    def __repr__(self) -> str:
        return str(self.index)

    def __format__(self, spec: str) -> str:
        return format(str(self.index), spec)

    # --- comparisons --------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        index = self._index_of(other)
        if index is None:
            return isinstance(other, (float, SymbolicFloat)) and bool(cast(Any, self.fix()) == other)
        return self.scope.decide("==", self.index - index)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __ge__(self, other: Any) -> bool:
        index = self._index_of(other)
        return self.fix() >= other if index is None else self.scope.decide(">=", self.index - index)

    def __gt__(self, other: Any) -> bool:
        index = self._index_of(other)
        return self.fix() > other if index is None else self.scope.decide(">=", self.index - index - 1)

    def __le__(self, other: Any) -> bool:
        index = self._index_of(other)
        return self.fix() <= other if index is None else self.scope.decide(">=", index - self.index)

    def __lt__(self, other: Any) -> bool:
        index = self._index_of(other)
        return self.fix() < other if index is None else self.scope.decide(">=", index - self.index - 1)

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def _index_of(self, other: Any) -> Index | None:
        if isinstance(other, SymbolicInt):
            return other.index if other.scope is self.scope else None
        if isinstance(other, torch.SymInt):
            node = cast(Any, other.node)
            return node.index if isinstance(node, SymbolicInt) and node.scope is self.scope else None
        return as_index(int(other)) if isinstance(other, int) else None

    def _made(self, index: Index) -> Any:
        """A result: an int where it is the same for all values."""
        index = self.scope.canonical(index)
        value = index.as_int()
        if value is not None:
            return value
        hints = self.scope.hints
        if not index.is_flat and _is_unwieldy(index):
            for name in sorted(index.symbols()):
                self.scope.decide("==", Index.sym(name) - hints[name])
            return evaluate(index, hints)
        return SymbolicInt(self.scope, index, evaluate(index, hints))

    def _binary(self, other: Any, function: Callable[[Any, Any], Any], swapped: bool) -> Any:
        index = self._index_of(other)
        if index is None:
            if isinstance(other, float):
                return SymbolicFloat.apply(
                    self.scope, function, *((other, self) if swapped else (self, other))
                )
            if isinstance(other, complex):
                return function(other, self.fix()) if swapped else function(self.fix(), other)
            return NotImplemented
        a, b = (index, self.index) if swapped else (self.index, index)
        if function in _DIVISIONS and not self.scope.decide(">=", b - 1):
            # Negative divisors do not occur in indices.
            return function(self._made(a).__index__(), self._made(b).__index__())
        return self._made(function(a, b))

    __add__, __radd__ = _both_ways(operator.add)
    __sub__, __rsub__ = _both_ways(operator.sub)
    __floordiv__, __rfloordiv__ = _both_ways(operator.floordiv)
    __mod__, __rmod__ = _both_ways(operator.mod)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (tuple, list)):
            return cast(Any, other) * self.fix()
        return self._binary(other, operator.mul, False)

    def __rmul__(self, other: Any) -> Any:
        return self.__mul__(other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return _quotient(self.scope, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _quotient(self.scope, other, self)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and 0 < other <= 8:
            result = self.index
            for _ in range(other - 1):
                result = result * self.index
            return self._made(result)
        if isinstance(other, float):
            return SymbolicFloat.apply(self.scope, operator.pow, self, other)
        return self.fix() ** _fixed(other)

    def __rpow__(self, other: Any) -> Any:
        if isinstance(other, float):
            return SymbolicFloat.apply(self.scope, operator.pow, other, self)
        return _fixed(other) ** self.fix()

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << _fixed(other))

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << _fixed(other))

    def __and__(self, other: Any) -> Any:
        return self.fix() & _fixed(other)

    def __or__(self, other: Any) -> Any:
        return self.fix() | _fixed(other)

    def __xor__(self, other: Any) -> Any:
        return self.fix() ^ _fixed(other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __rlshift__(self, other: Any) -> Any:
        return _fixed(other) << self.fix()

    def __rrshift__(self, other: Any) -> Any:
        return _fixed(other) >> self.fix()

    def __invert__(self) -> Any:
        return -self - 1

    def __neg__(self) -> Any:
        return self._made(-self.index)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __round__(self, ndigits: int | None = None) -> Any:
        return self if ndigits is None or ndigits >= 0 else round(self.fix(), ndigits)

    def __trunc__(self) -> Any:
        return self

    __floor__ = __ceil__ = __trunc__


class SymbolicFloat:
    """A float that depends on symbols: `function(*args)`, computed by Python itself once the symbols have values.

    Behaves as a float in arithmetic. Its bits are an int, so code reads it as one more symbol (`as_scalar`). Any
    question about it fixes the symbols that it depends on.
    """

    __slots__ = ("_scalar", "args", "function", "hint", "scope", "steps")

    def __init__(
        self, scope: Scope, function: Callable[..., float], args: tuple[Any, ...], hint: float
    ) -> None:
        self.scope = scope
        self.function = function
        self.args = args
        self.hint = hint
        self.steps: int = 1 + sum(arg.steps for arg in args if isinstance(arg, SymbolicFloat))
        self._scalar: Index | None = None

    @staticmethod
    def apply(scope: Scope, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args), where some of the numbers are symbolic; fixed unless the result is a float in few steps."""
        hint = function(*[arg.hint if isinstance(arg, (SymbolicInt, SymbolicFloat)) else arg for arg in args])
        if type(hint) is float:
            made = SymbolicFloat(scope, function, args, hint)
            if made.steps <= _MOST_STEPS:
                return made
        return function(*[_fixed(arg) for arg in args])

    def evaluate(self, values: Mapping[str, int]) -> float:
        """The number for these values of the symbols.

        Raises:
            ArithmeticError, ValueError: the program would raise it too.
        """
        return self.function(
            *[
                arg.evaluate(values) if isinstance(arg, (SymbolicInt, SymbolicFloat)) else arg
                for arg in self.args
            ]
        )

    def symbols(self) -> frozenset[str]:
        """The names of the symbols that it depends on."""
        parts = [arg.symbols() for arg in self.args if isinstance(arg, (SymbolicInt, SymbolicFloat))]
        return frozenset[str]().union(*parts)

    def as_scalar(self) -> Index:
        """The symbol of its bits."""
        if self._scalar is None:
            self._scalar = self.scope.derive(self)
        return self._scalar

    def fix(self) -> float:
        """The number itself: the region is for this value only."""
        for arg in self.args:
            _fixed(arg)
        return self.hint

    __float__ = fix

    def __int__(self) -> int:
        return int(self.fix())

    __trunc__ = __int__

    def __bool__(self) -> bool:
        return bool(self.fix())

    @property
    def key(self) -> Any:
        """Equal for floats that are computed alike. Makes no condition."""
        return (id(self.scope), *self.how)

    @property
    def how(self) -> tuple[Any, ...]:
        """The same, of symbols with these names in any scope."""
        parts = [
            arg.how
            if isinstance(arg, SymbolicFloat)
            else arg.index
            if isinstance(arg, SymbolicInt)
            else repr(arg)
            for arg in self.args
        ]
        return (self.function, *parts)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        if self.function is float_of_bits:
            return f"float({self.args[0]})"
        return f"{self.function.__name__}({', '.join(map(repr, self.args))})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicFloat) and other.key == self.key:
            return self.hint == self.hint
        if type(other) is float or (type(other) is int and abs(other) < 2**53):
            if self.function is float_of_bits:
                return self._is_number(float(other))
            if self.scope.where is None and self.hint != other:
                # The program is captured: what is asked is which code serves the number.
                self.scope.hold(self, excluded=float(other))
                return False
        return self.fix() == _fixed(other)

    def _is_number(self, number: float) -> bool:
        """Whether a float symbol is this number: a condition on its bits, which leaves all other numbers open."""
        if number != number:
            return False
        bits = cast(SymbolicInt, self.args[0]).index
        wanted = (0.0, -0.0) if number == 0 else (number,)
        return any(self.scope.decide("==", bits - bits_of_float(each)) for each in wanted)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __lt__ = _compared(operator.lt)
    __le__ = _compared(operator.le)
    __gt__ = _compared(operator.gt)
    __ge__ = _compared(operator.ge)

    def _binary(self, other: Any, function: Callable[[Any, Any], Any], swapped: bool) -> Any:
        if isinstance(other, (int, float, SymbolicInt, SymbolicFloat)):
            return SymbolicFloat.apply(self.scope, function, *((other, self) if swapped else (self, other)))
        if isinstance(other, complex):
            return function(other, self.fix()) if swapped else function(self.fix(), other)
        return NotImplemented

    __add__, __radd__ = _both_ways(operator.add)
    __sub__, __rsub__ = _both_ways(operator.sub)
    __mul__, __rmul__ = _both_ways(operator.mul)
    __truediv__, __rtruediv__ = _both_ways(operator.truediv)
    __floordiv__, __rfloordiv__ = _both_ways(operator.floordiv)
    __mod__, __rmod__ = _both_ways(operator.mod)
    __pow__, __rpow__ = _both_ways(operator.pow)

    def __neg__(self) -> Any:
        return SymbolicFloat.apply(self.scope, operator.neg, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return SymbolicFloat.apply(self.scope, operator.abs, self)

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.fix(), ndigits)


Symbolic = SymbolicInt | SymbolicFloat


def bits_of_float(value: float) -> int:
    """The int64 with the bits of a float64."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def float_of_bits(bits: int) -> float:
    """The float64 with the bits of an int64."""
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def _quotient(scope: Scope, a: Any, b: Any) -> Any:
    """a / b of numbers of which at least one is symbolic."""
    a, b = SymbolicInt.of(a), SymbolicInt.of(b)
    if not all(isinstance(number, (int, float, SymbolicInt, SymbolicFloat)) for number in (a, b)):
        return _fixed(a) / _fixed(b) if isinstance(a, complex) or isinstance(b, complex) else NotImplemented
    return SymbolicFloat.apply(scope, operator.truediv, a, b)


def _fixed(value: Any) -> Any:
    value = SymbolicInt.of(value)
    return value.fix() if isinstance(value, (SymbolicInt, SymbolicFloat)) else value


# --- values with symbols inside ---------------------------------------------------------------------------------------


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a Python int (no bool) or a symbolic one."""
    return isinstance(value, (int, SymbolicInt)) and not isinstance(value, bool)


def same_sizes(left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether two shapes are equal for all values of their symbols. Asks nothing: no condition is made."""
    return len(left) == len(right) and all(same_size(a, b) for a, b in zip(left, right, strict=True))


def same_size(left: int, right: int) -> bool:
    """Whether two numbers are equal for all values of their symbols. Asks nothing: no condition is made."""
    if left is right:
        return True
    difference = left - right
    return not isinstance(difference, SymbolicInt) and difference == 0


def surely_at_most(left: int, right: int) -> bool:
    """Whether left <= right for all values of their symbols. Asks nothing: no condition is made."""
    difference = right - left
    if isinstance(difference, SymbolicInt):
        return difference.is_surely_nonnegative()
    return difference >= 0


def hint_of(value: int) -> int:
    """The number itself, of a symbolic int the one on the call being captured: to choose by, never to compute with."""
    return value.hint if isinstance(value, SymbolicInt) else value


def is_float(value: object) -> TypeGuard[float]:
    """Whether a value is a Python float or a symbolic one."""
    return isinstance(value, (float, SymbolicFloat))


def map_symbols(value: Any, replace: Callable[[Any], Any]) -> Any:
    """`value` with every symbolic number (`Symbolic`) in its lists, tuples, dicts and slices replaced."""
    kind = type(value)
    if isinstance(value, (SymbolicInt, SymbolicFloat)):
        return replace(value)
    if isinstance(value, (list, tuple)):
        items = [map_symbols(item, replace) for item in cast("list[Any]", value)]
        if all(new is old for new, old in zip(items, cast("list[Any]", value), strict=True)):
            return cast(Any, value)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: map_symbols(item, replace) for key, item in cast("dict[Any, Any]", value).items()}
    if kind is slice:
        return slice(*(map_symbols(part, replace) for part in (value.start, value.stop, value.step)))
    return value
