"""`Index`: integer polynomials over loop variables and symbolic sizes, the index expressions of the loop language.

A polynomial is a sorted tuple of terms; a term is a sorted tuple of *atoms* and an integer coefficient::

    64*i + j + 3   ->   ((), 3), ((Var i,), 64), ((Var j,), 1)

Atoms are loop variables, symbolic sizes, floor divisions, remainders, and indices taken from data. Equal polynomials
have equal terms, so equality is structural. Divisors are positive. Symbolic sizes are at least 1. `//` and `%` floor
as Python's do.

What holds for all integers is simplified as an expression is built: `(c*x + r) // c -> x + r // c`,
`(c*x + r) % c -> r % c`, common factors, nested divisions. What needs the ranges of the variables is done by `simplify`
(index.py): `(64*i + j) // 64 -> i` for j < 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import Any, Protocol, Self

from lampwork.records import record


class Data(Protocol):
    """An expression that an index is taken from, as far as the index looks into it."""

    def indices(self) -> list[Index]:
        """Every index in it, also in the data of others."""
        ...

    def map_indices(self, change: Callable[[Index], Index]) -> Any:
        """The expression with each index changed; an index comes with its data changed already."""
        ...


@record
class Var:
    """A loop variable."""

    name: str

    @property
    def key(self) -> tuple[int, str]:
        return (0, self.name)

    def __str__(self) -> str:
        return self.name


@record
class Sym:
    """A symbolic size, at least 1."""

    name: str

    @property
    def key(self) -> tuple[int, str]:
        return (1, self.name)

    def __str__(self) -> str:
        return self.name


@record
class FloorDiv:
    """a // b, for b > 0."""

    a: Index
    b: Index

    @property
    def key(self) -> tuple[int, str]:
        return (2, str(self))

    def __str__(self) -> str:
        return f"{_operand(self.a)}//{_operand(self.b)}"


@record
class Mod:
    """a % b, for b > 0, so in [0, b)."""

    a: Index
    b: Index

    @property
    def key(self) -> tuple[int, str]:
        return (3, str(self))

    def __str__(self) -> str:
        return f"{_operand(self.a)}%{_operand(self.b)}"


@record
class Indirect:
    """An index taken from data: `value` is an expression of integer dtype; it must lie in [0, size) (code checks)."""

    value: Any
    size: Index

    @property
    def key(self) -> tuple[int, str]:
        return (4, repr(self))

    def __str__(self) -> str:
        return f"at({self.value}, {self.size})"


Atom = Var | Sym | FloorDiv | Mod | Indirect
Monomial = tuple[Atom, ...]


class Index:
    """An immutable integer polynomial. Build with `const`, `var`, `sym`, `indirect` and the operators + - * // %."""

    __slots__ = ("_hash", "_text", "is_flat", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    is_flat: bool  # no //, % or Indirect inside: a plain polynomial, which needs no simplification

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """`terms` must be sorted by monomial, without zero coefficients; use the operators instead."""
        self.terms = terms
        self._hash: int | None = None  # of most that are made nobody asks for it
        self._text = ""
        flat = True
        for monomial, _ in terms:
            for atom in monomial:
                if atom.__class__ is not Var and atom.__class__ is not Sym:
                    flat = False
        self.is_flat = flat

    # --- making -------------------------------------------------------------------------------------------------------

    @staticmethod
    def const(value: int) -> Index:
        return Index((((), int(value)),)) if value else Index(())

    @staticmethod
    def var(name: str) -> Index:
        return Index((((Var(name),), 1),))

    @staticmethod
    def sym(name: str) -> Index:
        return Index((((Sym(name),), 1),))

    @staticmethod
    def indirect(value: Data, size: Index | int) -> Index:
        """The index that `value` (an integer expression) holds at run time; must lie in [0, size)."""
        return Index((((Indirect(value, as_index(size)),), 1),))

    @staticmethod
    def of_atom(atom: Atom) -> Index:
        return Index((((atom,), 1),))

    @staticmethod
    def from_terms(terms: Iterable[tuple[Monomial, int]]) -> Index:
        """The sum of coefficient * monomial, in any order, with repetitions."""
        sums: dict[Monomial, int] = {}
        for monomial, coefficient in terms:
            sums[monomial] = sums.get(monomial, 0) + coefficient
        return _from_sums(sums)

    # --- asking -------------------------------------------------------------------------------------------------------

    @property
    def is_const(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    def as_int(self) -> int | None:
        """The value of a constant, None for anything else."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @property
    def constant(self) -> int:
        """The constant term."""
        return self.terms[0][1] if self.terms and not self.terms[0][0] else 0

    def as_var(self) -> str | None:
        """The name, if this is exactly one loop variable."""
        if len(self.terms) == 1:
            monomial, coefficient = self.terms[0]
            if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Var):
                return monomial[0].name
        return None

    def as_atom(self) -> Atom | None:
        """The atom, if this is exactly one atom."""
        if len(self.terms) == 1:
            monomial, coefficient = self.terms[0]
            if coefficient == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def atoms(self) -> Iterable[Atom]:
        """Every atom of every term, not those nested in // % or Indirect."""
        for monomial, _ in self.terms:
            yield from monomial

    def variables(self) -> frozenset[str]:
        """All loop variables, also those inside // % and Indirect."""
        found: set[str] = set()
        for atom in self.atoms():
            if isinstance(atom, Var):
                found.add(atom.name)
            elif not isinstance(atom, Sym):
                found |= _variables_of(atom)
        return frozenset(found)

    def symbols(self) -> frozenset[str]:
        """All symbolic sizes, also those inside // % and Indirect."""
        found: set[str] = set()
        for atom in self.atoms():
            if isinstance(atom, Sym):
                found.add(atom.name)
            elif isinstance(atom, FloorDiv | Mod):
                found |= atom.a.symbols() | atom.b.symbols()
            elif isinstance(atom, Indirect):
                found |= atom.size.symbols().union(*(index.symbols() for index in atom.value.indices()))
        return frozenset(found)

    def indirects(self) -> tuple[Indirect, ...]:
        """Every Indirect atom, outermost ones only, in order of appearance."""
        if self.is_flat:
            return ()
        found: list[Indirect] = []
        for atom in self.atoms():
            if isinstance(atom, Indirect):
                found.append(atom)
            elif isinstance(atom, FloorDiv | Mod):
                found.extend(atom.a.indirects())
                found.extend(atom.b.indirects())
        return tuple(dict.fromkeys(found))

    def data(self) -> list[Any]:
        """The expressions that it is taken from."""
        return [indirect.value for indirect in self.indirects()]

    def coefficient(self, name: str) -> Index | None:
        """The factor of loop variable `name`; 0 if absent; None if not affine in it (squared, inside // % Indirect)."""
        var = Var(name)
        found: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms:
            count = 0
            for atom in monomial:
                if atom == var:
                    count += 1
                elif not isinstance(atom, Var | Sym) and name in _variables_of(atom):
                    return None
            if count > 1:
                return None
            if count:
                found.append((tuple(atom for atom in monomial if atom != var), coefficient))
        return Index.from_terms(found) if found else ZERO

    def without(self, name: str) -> Index:
        """The terms that do not contain loop variable `name`."""
        kept = tuple(
            (monomial, coefficient)
            for monomial, coefficient in self.terms
            if not any(
                atom.name == name if isinstance(atom, Var) else name in _variables_of(atom)
                for atom in monomial
            )
        )
        return self if len(kept) == len(self.terms) else Index(kept)

    # --- rewriting ----------------------------------------------------------------------------------------------------

    def substitute(self, mapping: Mapping[str, Index], *, inside_data: bool = True) -> Index:
        """Loop variables replaced, all at once, also inside // and %, and inside Indirect if `inside_data`."""

        def change(atom: Var | Sym | Indirect) -> Index | None:
            if isinstance(atom, Var):
                return mapping.get(atom.name)
            if not inside_data or isinstance(atom, Sym):
                return None
            value = atom.value.map_indices(lambda index: index.substitute(mapping, inside_data=False))
            size = atom.size.substitute(mapping)
            return None if value is atom.value and size is atom.size else Index.indirect(value, size)

        return self.map_atoms(change)

    def map_data(self, change: Callable[[Any], Any]) -> Index:
        """The index with each expression that it is taken from changed, also inside // and %."""

        def of_atom(atom: Var | Sym | Indirect) -> Index | None:
            if not isinstance(atom, Indirect):
                return None
            value = change(atom.value)
            return None if value is atom.value else Index.indirect(value, atom.size)

        return self.map_atoms(of_atom)

    def map_atoms(self, change: Callable[[Var | Sym | Indirect], Index | None]) -> Index:
        """The index with each atom, also those inside // and %, replaced by what `change` makes of it; None: it stays.

        An index in which all atoms stay is returned as it is.
        """
        plain: list[tuple[Monomial, int]] = []
        total: Index | None = None
        for monomial, coefficient in self.terms:
            factors: list[Index] | None = None
            for position, atom in enumerate(monomial):
                new = _map_quotient(atom, change) if isinstance(atom, FloorDiv | Mod) else change(atom)
                if new is not None and factors is None:
                    factors = [Index.of_atom(before) for before in monomial[:position]]
                if factors is not None:
                    factors.append(Index.of_atom(atom) if new is None else new)
            if factors is None:
                plain.append((monomial, coefficient))
                continue
            product = factors[0]
            for factor in factors[1:]:
                product = product * factor
            product = product * coefficient
            total = product if total is None else total + product
        if total is None:
            return self
        return total + Index(tuple(plain)) if plain else total

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def __add__(self, other: Index | int) -> Index:
        right = as_index(other)
        if not right.terms:
            return self
        if not self.terms:
            return right
        return self._plus(right, 1)

    __radd__ = __add__

    def _plus(self, right: Index, sign: int) -> Index:
        """self + sign * right; both have terms."""
        terms, others = self.terms, right.terms
        if not others[0][0] and len(others) == 1:
            # A constant comes first, so the order stays.
            if terms[0][0]:
                return Index((((), others[0][1] * sign), *terms))
            constant = terms[0][1] + others[0][1] * sign
            return Index((((), constant), *terms[1:]) if constant else terms[1:])
        sums = dict(terms)
        for monomial, coefficient in others:
            sums[monomial] = sums.get(monomial, 0) + coefficient * sign
        if len(sums) > len(terms):
            return _from_sums(sums)
        return Index(tuple([term for term in sums.items() if term[1]]))

    def __neg__(self) -> Index:
        return Index(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Index | int) -> Index:
        right = as_index(other)
        if not right.terms:
            return self
        if not self.terms:
            return -right
        return self._plus(right, -1)

    def __rsub__(self, other: int) -> Index:
        return as_index(other) + -self

    def __mul__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self._scaled(other)
        right = as_index(other)
        scale = right.as_int()
        if scale is not None:
            return self._scaled(scale)
        scale = self.as_int()
        if scale is not None:
            return right._scaled(scale)
        sums: dict[Monomial, int] = {}
        for left_monomial, left_coefficient in self.terms:
            for right_monomial, right_coefficient in right.terms:
                monomial = _sorted_monomial(left_monomial + right_monomial)
                sums[monomial] = sums.get(monomial, 0) + left_coefficient * right_coefficient
        return _from_sums(sums)

    __rmul__ = __mul__

    def _scaled(self, scale: int) -> Index:
        if scale == 1:
            return self
        if scale == 0 or not self.terms:
            return ZERO
        return Index(tuple((monomial, coefficient * scale) for monomial, coefficient in self.terms))

    def __floordiv__(self, other: Index | int) -> Index:
        divisor = as_index(other)
        value = divisor.as_int()
        if value is not None:
            return _floordiv_const(self, value)
        quotient, rest = _divide_terms(self, divisor)
        if not rest.terms:
            return quotient
        return quotient + Index.of_atom(FloorDiv(rest, divisor))

    def __rfloordiv__(self, other: int) -> Index:
        return as_index(other) // self

    def __mod__(self, other: Index | int) -> Index:
        divisor = as_index(other)
        value = divisor.as_int()
        if value is not None:
            return _mod_const(self, value)
        _, rest = _divide_terms(self, divisor)
        return Index.of_atom(Mod(rest, divisor)) if rest.terms else ZERO

    def __rmod__(self, other: int) -> Index:
        return as_index(other) % self

    # --- identity -----------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Index) or len(self.terms) != len(other.terms):
            return False
        mine, its = self._hash, other._hash
        return (mine is None or its is None or mine == its) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return (type(self), (self.terms,))

    def __str__(self) -> str:
        if not self._text:
            self._text = _format(self)
        return self._text

    def __repr__(self) -> str:
        return f"Index({self})"


ZERO = Index(())
ONE = Index((((), 1),))


class HasIndex(Protocol):
    """A number that knows itself as an index: graph.symbols.SymbolicInt."""

    def as_index(self) -> Index: ...


def as_index(value: Index | int | HasIndex) -> Index:
    """An int as a constant index; an Index unchanged."""
    if isinstance(value, Index):
        return value
    if isinstance(value, int):
        return Index((((), int(value)),)) if value else ZERO
    return value.as_index()


# --- helpers ----------------------------------------------------------------------------------------------------------


def _term_key(term: tuple[Monomial, int]) -> tuple[tuple[int, str], ...]:
    return tuple([atom.key for atom in term[0]])


def _from_sums(sums: Mapping[Monomial, int]) -> Index:
    terms = [term for term in sums.items() if term[1]]
    if len(terms) > 1:
        terms.sort(key=_term_key)
    return Index(tuple(terms))


def _sorted_monomial(atoms: Monomial) -> Monomial:
    return tuple(sorted(atoms, key=lambda atom: atom.key)) if len(atoms) > 1 else atoms


def _variables_of(atom: Atom) -> frozenset[str]:
    if isinstance(atom, Var):
        return frozenset((atom.name,))
    if isinstance(atom, Sym):
        return frozenset()
    if isinstance(atom, Indirect):
        return atom.size.variables().union(*(index.variables() for index in atom.value.indices()))
    return atom.a.variables() | atom.b.variables()


def _map_quotient(
    atom: FloorDiv | Mod, change: Callable[[Var | Sym | Indirect], Index | None]
) -> Index | None:
    """The quotient or remainder with its atoms replaced, None if they stay."""
    a, b = atom.a.map_atoms(change), atom.b.map_atoms(change)
    if a is atom.a and b is atom.b:
        return None
    return a // b if isinstance(atom, FloorDiv) else a % b


def _divide_terms(index: Index, divisor: Index) -> tuple[Index, Index]:
    """index = quotient * divisor + rest, moving whole terms into the quotient; divisor is not a constant."""
    if index == divisor:
        return ONE, ZERO
    if len(divisor.terms) != 1:
        return ZERO, index
    factors, scale = divisor.terms[0]
    quotient: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in index.terms:
        remaining = list(monomial)
        for atom in factors:
            if atom not in remaining:
                break
            remaining.remove(atom)
        else:
            if coefficient % scale == 0:
                quotient.append((tuple(remaining), coefficient // scale))
                continue
        rest.append((monomial, coefficient))
    return Index.from_terms(quotient), Index(tuple(rest))


def _split_const(index: Index, divisor: int) -> tuple[Index, Index, int]:
    """index = quotient * divisor + rest + constant, with 0 <= constant < divisor, no term of rest divisible."""
    whole, constant = divmod(index.constant, divisor)
    quotient: list[tuple[Monomial, int]] = [((), whole)] if whole else []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in index.terms:
        if not monomial:
            continue
        if coefficient % divisor == 0:
            quotient.append((monomial, coefficient // divisor))
        else:
            rest.append((monomial, coefficient))
    return Index(tuple(quotient)), Index(tuple(rest)), constant


def _require_positive(divisor: int) -> None:
    if divisor <= 0:
        raise ValueError(f"an index is divided by {divisor}; divisors must be positive")


def _floordiv_const(index: Index, divisor: int) -> Index:
    _require_positive(divisor)
    if divisor == 1:
        return index
    quotient, rest, constant = _split_const(index, divisor)
    if not rest.terms:
        return quotient
    # floor((g*x + r) / (g*c)) = floor((x + floor(r / g)) / c)
    factor = gcd(divisor, *(coefficient for _, coefficient in rest.terms))
    if factor > 1:
        rest = Index(tuple((monomial, coefficient // factor) for monomial, coefficient in rest.terms))
        return quotient + (rest + constant // factor) // (divisor // factor)
    inner = rest + constant
    atom = inner.as_atom()
    if isinstance(atom, FloorDiv):
        below = atom.b.as_int()
        if below is not None:  # (x // a) // b = x // (a*b)
            return quotient + _floordiv_const(atom.a, below * divisor)
    elif isinstance(atom, Mod):
        modulus = atom.b.as_int()
        if modulus is not None and modulus % divisor == 0:  # (x % (a*b)) // b = (x // b) % a
            return quotient + (atom.a // divisor) % (modulus // divisor)
    return quotient + Index.of_atom(FloorDiv(inner, Index.const(divisor)))


def _mod_const(index: Index, divisor: int) -> Index:
    _require_positive(divisor)
    if divisor == 1:
        return ZERO
    _, rest, constant = _split_const(index, divisor)
    if not rest.terms:
        return Index.const(constant)
    # (g*x + r) % (g*c) = g * ((x + r // g) % c) + r % g
    factor = gcd(divisor, *(coefficient for _, coefficient in rest.terms))
    if factor > 1:
        rest = Index(tuple((monomial, coefficient // factor) for monomial, coefficient in rest.terms))
        return _mod_const(rest + constant // factor, divisor // factor) * factor + constant % factor
    inner = rest + constant
    atom = inner.as_atom()
    if isinstance(atom, Mod):
        modulus = atom.b.as_int()
        if modulus is not None and modulus % divisor == 0:  # (x % (a*b)) % b = x % b
            return _mod_const(atom.a, divisor)
    return Index.of_atom(Mod(inner, Index.const(divisor)))


def _operand(index: Index) -> str:
    text = str(index)
    simple = len(index.terms) <= 1 and (index.is_const or isinstance(index.as_atom(), Var | Sym | Indirect))
    return text if simple else f"({text})"


def _format(index: Index) -> str:
    if not index.terms:
        return "0"
    parts: list[str] = []
    # The constant comes last, as people write it.
    ordered = [term for term in index.terms if term[0]] + [term for term in index.terms if not term[0]]
    for monomial, coefficient in ordered:
        factors = [
            _factor(atom) if len(monomial) > 1 or abs(coefficient) != 1 else str(atom) for atom in monomial
        ]
        if abs(coefficient) != 1 or not monomial:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        text = "*".join(factors)
        if not parts:
            parts.append(text if sign == "+" else f"-{text}")
        else:
            parts.append(f" {sign} {text}")
    return "".join(parts)


def _factor(atom: Atom) -> str:
    return f"({atom})" if isinstance(atom, FloorDiv | Mod) else str(atom)
