"""The terms patterns and replacements are made of: variables, literals and calls of ATen ops.

A term is also a stand-in for a tensor: operators, `torch.*` functions, `torch.nn.functional.*`, `torch.ops.aten.*`,
tensor methods and indexing applied to it give a `Call` of the ATen op of the same name, so that a pattern can be
written as plain PyTorch code. `combinators/` has the terms that stand for one of several things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.display import Shown
from lampwork.errors import PassError
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.language.names import adapt, op_called
from lampwork.rewriting.matching.match_plan import (
    ANYTHING,
    FAILED,
    Goals,
    LitPlan,
    MatchPlan,
    StepPlan,
    VarPlan,
    suits,
)
from lampwork.standard import functools, operator

if TYPE_CHECKING:
    from lampwork.rewriting.matching.match import Search
    from lampwork.rewriting.matching.planner import Planner

Kind = Literal["tensor", "int", "float", "bool", "const", "number", "constant", "any"]
KINDS: tuple[Kind, ...] = ("tensor", "int", "float", "bool", "const", "number", "constant", "any")


class Term(Shown):
    """Base of all terms. What there is besides variables, literals and calls is a *combinator*: a class in a file of
    its own in `combinators/`, which says by these methods all that there is to know of it."""

    __slots__ = ()

    depth: ClassVar[int] = 0
    """How many ops it may add to what is below it."""

    def children(self) -> Sequence[Any]:
        """The terms directly below, and lists of them."""
        return ()

    def plan(self, planner: Planner) -> MatchPlan:
        """What the matcher does where a value must be this term."""
        raise NotImplementedError

    def alternatives(self) -> Sequence[Any] | None:
        """Terms one of which every value that matches is, for the automaton; None if there is no telling."""
        return None

    def fits_all(self) -> bool:
        """Whether it says nothing of a value, so that no pattern can be it."""
        return not self.children() or any(fits_all(t) for t in self.children())

    def names(self) -> Iterable[str]:
        """What a match knows by name: variables, paths, counts and sizes."""
        return ()

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Terms of variables, literals and calls only that it stands for; `of` gives those of the terms below."""
        yield self

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(func, OpOverload | OpOverloadPacket):
            return call(func, *args, **(kwargs or {}))
        functional = getattr(func, "__module__", "") == torch.nn.functional.__name__
        name, args, kwargs = adapt(str(func.__name__), args, kwargs or {}, functional=functional)
        return call(name, *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: call(name, self, *args, **kwargs)

    @property
    def T(self) -> Call:
        return call("numpy_T", self)

    @property
    def mT(self) -> Call:
        return call("mT", self)

    @property
    def shape(self) -> Any:
        return Sizes(self)

    def size(self, dim: int | None = None) -> Any:
        return Sizes(self) if dim is None else Size(self, dim)

    def __add__(self, other: Any) -> Call:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Call:
        return call("add", self, other)

    def __sub__(self, other: Any) -> Call:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Call:
        return call("rsub", self, other)

    def __mul__(self, other: Any) -> Call:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Call:
        return call("mul", self, other)

    def __truediv__(self, other: Any) -> Call:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Call:
        # As torch.Tensor has it.
        inverse = call("reciprocal", self)
        return inverse if other == 1 else call("mul", inverse, other)

    def __floordiv__(self, other: Any) -> Call:
        return call("floor_divide", self, other)

    def __mod__(self, other: Any) -> Call:
        return call("remainder", self, other)

    def __matmul__(self, other: Any) -> Call:
        return call("matmul", self, other)

    def __pow__(self, other: Any) -> Call:
        return call("pow", self, other)

    def __rpow__(self, other: Any) -> Call:
        return call("pow", other, self)

    def __neg__(self) -> Call:
        return call("neg", self)

    def __abs__(self) -> Call:
        return call("abs", self)

    def __lt__(self, other: Any) -> Call:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Call:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Call:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Call:
        return call("ge", self, other)

    def __and__(self, other: Any) -> Call:
        return call("bitwise_and", self, other)

    def __or__(self, other: Any) -> Call:
        return call("bitwise_or", self, other)

    def __xor__(self, other: Any) -> Call:
        return call("bitwise_xor", self, other)

    def __invert__(self) -> Call:
        return call("bitwise_not", self)

    def __bool__(self) -> bool:
        raise PassError(
            "a pattern has no values to branch on",
            fix="write one pattern for each branch, or use either(...)",
        )

    def __iter__(self) -> Iterator[Any]:
        raise PassError("a tensor of a pattern cannot be iterated over", fix="take its parts by index")

    def __getitem__(self, index: Any) -> Any:
        return _indexed(self, index)


def fits_all(term: Any) -> bool:
    """Whether a term, or a plain value, says nothing that a pattern could look for."""
    return not isinstance(term, Term) or term.fits_all()


@record(eq=False)
class Var(Term):
    """A value to be matched; used twice it must be the same value. Without a name it stands for anything of its kind.

    tensor  a tensor                  int, float, bool  a tensor with such a dtype
    const   a tensor that depends on bound tensors and literals only
    number  a Python number           constant          a const or a number
    any     whatever stands there: a list, a dtype, None, a tensor

    `dtypes`, `rank` and `sizes` narrow a tensor; an item of `sizes` is a size, None for any, or a name for a size that
    is the same wherever the pattern has that name; `...` as the first item stands for any leading ones. `where` is a
    predicate, called with the TensorSpec of a tensor and with any other value itself.
    """

    name: str
    kind: Kind = "tensor"
    dtypes: tuple[torch.dtype, ...] = ()
    rank: int | None = None
    sizes: tuple[Any, ...] | None = None
    where: Callable[[Any], Any] | None = None

    def plan(self, planner: Planner) -> MatchPlan:
        plain = self.kind == "any" and not (self.dtypes or self.rank is not None or self.where)
        if plain and not self.name and self.sizes is None:
            return ANYTHING
        return VarPlan(self, None if plain else functools.partial(suits, self))

    def names(self) -> Iterable[str]:
        return (self.name, *(s for s in self.sizes or () if isinstance(s, str)))

    def __str__(self) -> str:
        return self.name or "_"


@record(eq=False)
class Lit(Term):
    """A literal. A number equals numbers of any kind but bool, and tensors filled with it; 0 is not -0.0."""

    value: Any

    def plan(self, planner: Planner) -> MatchPlan:
        return LitPlan(self.value)

    def __str__(self) -> str:
        return repr(self.value)


@record(eq=False)
class Leaf(Term):
    """In a replacement: a node of the graph."""

    node: fx.Node

    def plan(self, planner: Planner) -> MatchPlan:
        return LitPlan(self.node)

    @property
    def spec(self) -> TensorSpec:
        return cast(TensorSpec, self.node.meta["val"])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @property
    def dtype(self) -> torch.dtype:
        return self.spec.dtype

    @property
    def device(self) -> torch.device:
        return self.spec.device

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)


@record(eq=False)
class Size(Term):
    """In a pattern: `x.size(dim)`, the size of a variable, wherever a number stands."""

    of: Term
    dim: int

    def children(self) -> Sequence[Any]:
        return (self.of,)

    def plan(self, planner: Planner) -> MatchPlan:
        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            spec = _spec_in(search, self.of)
            if spec is None or isinstance(value, fx.Node):
                return FAILED
            known = -len(spec.shape) <= self.dim < len(spec.shape)
            return rest if known and same_size(spec.shape[self.dim], value) else FAILED

        return StepPlan(step, f"the size of {self.of}")

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        yield Lit(8)

    def __str__(self) -> str:
        return f"{self.of}.shape[{self.dim}]"

    def _unknown(self, other: Any = None) -> Any:
        raise PassError(
            "a pattern does not know sizes, so it cannot compute with them",
            fix="let a parameter c=number() stand for the number",
        )

    __float__ = __int__ = __index__ = __pow__ = __rpow__ = __neg__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __floordiv__ = __mod__ = (
        _unknown
    )


@record(eq=False)
class Sizes(Term):
    """In a pattern: `x.shape` of a variable."""

    of: Term

    def children(self) -> Sequence[Any]:
        return (self.of,)

    def plan(self, planner: Planner) -> MatchPlan:
        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            spec = _spec_in(search, self.of)
            if spec is None or not isinstance(value, list | tuple):
                return FAILED
            items = cast("list[Any]", value)
            fits = len(items) == len(spec.shape) and all(map(same_size, spec.shape, items))
            return rest if fits else FAILED

        return StepPlan(step, f"the shape of {self.of}")

    def __str__(self) -> str:
        return f"{self.of}.shape"

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            raise PassError("a pattern takes sizes one by one, as x.shape[0]")
        return Size(self.of, index)


def _spec_in(search: Search, variable: Any) -> TensorSpec | None:
    """The spec of what a variable stands for, as far as the search knows it."""
    return schema.spec_of(search.bindings.get(variable.name)) if isinstance(variable, Var) else None


@record(eq=False)
class Call(Term):
    """An op applied to terms (or to lists of terms, or plain values).

    `values` has, for each overload the call may mean, one entry per parameter. An Ellipsis among them stands for
    anything. `form` says which other spellings match: "any" where the author named an op, "named" an overload of one,
    "final" for one that matches as it stands (see `spellings`).
    """

    name: str
    values: Mapping[Any, tuple[Any, ...]]
    form: Literal["any", "named", "final"] = "any"

    depth: ClassVar[int] = 1

    def children(self) -> Sequence[Any]:
        return next(iter(self.values.values()))

    def plan(self, planner: Planner) -> MatchPlan:
        return planner.call(self)

    def fits_all(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.name}(...)"

    def __iter__(self) -> Iterator[Any]:
        count = results(self)
        if count < 2:
            return Term.__iter__(self)
        return iter([Call("getitem", {operator.getitem: (self, i)}) for i in range(count)])


def results(term: Call) -> int:
    """How many tensors an op gives: 0 for a list of them."""
    if operator.getitem in term.values:
        return 1
    target = next((t for t, row in term.values.items() if _takes(t, row)), next(iter(term.values)))
    returns = schema.schema_of(target).returns
    return 0 if len(returns) == 1 and str(returns[0].type).startswith("List") else len(returns)


def _takes(target: Any, row: Sequence[Any]) -> bool:
    """Whether no number stands for a tensor."""
    parameters = schema.signature(target).parameters
    return not any(
        p.accepts == "tensor" and isinstance(v, int | float) for p, v in zip(parameters, row, strict=True)
    )


def _indexed(term: Term, index: Any) -> Any:
    """`x[i]`: a result of an op with several, or else a part of a tensor."""
    if isinstance(term, Call) and isinstance(index, int) and results(term) != 1:
        return Call("getitem", {operator.getitem: (term, index)})
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, Term) for i in items):
        raise PassError("a pattern cannot index with tensors", fix="call torch.ops.aten.index.Tensor")
    rest = items.index(...) if ... in items else len(items)
    found: Any = term
    dim = 0
    for item in items[:rest]:
        found, dim = _part(found, item, dim)
    # Behind an ellipsis dimensions count from the back, so the last one comes first.
    dim = -1
    for item in reversed(items[rest + 1 :]):
        found, dim = _part_from_back(found, item, dim)
    return found


def _part(term: Any, item: Any, dim: int) -> tuple[Any, int]:
    if item is None:
        return call("unsqueeze", term, dim), dim + 1
    if isinstance(item, int):
        return call("select.int", term, dim, item), dim
    return _sliced(term, item, dim), dim + 1


def _part_from_back(term: Any, item: Any, dim: int) -> tuple[Any, int]:
    if item is None:
        return call("unsqueeze", term, dim), dim - 1
    if isinstance(item, int):
        return call("select.int", term, dim, item), dim
    return _sliced(term, item, dim), dim - 1


def _sliced(term: Any, item: Any, dim: int) -> Any:
    if not isinstance(item, slice):
        raise PassError(f"a pattern cannot index with {item!r}")
    if item == slice(None):
        return term
    step = 1 if item.step is None else item.step
    return call("slice.Tensor", term, dim, item.start, item.stop, step)


def call(target: Any, *args: Any, **kwargs: Any) -> Call:
    """A call of an op: an overload, a packet (any of its overloads), a name, or operator.getitem.

    Raises:
        PassError: there is no such op, or none of its overloads takes these arguments.
    """
    if target is operator.getitem or target == "getitem":
        return Call("getitem", {operator.getitem: tuple(args)})
    if isinstance(target, str) and "." not in target:
        target, args, kwargs = adapt(target, args, kwargs)
    op = op_called(target) if isinstance(target, str) else target
    candidates: tuple[Any, ...] = (op,) if isinstance(op, OpOverload) else schema.overloads(op)
    rest = bool(args) and args[-1] is Ellipsis
    values: dict[Any, tuple[Any, ...]] = {}
    for overload in candidates:
        if rest:
            missing = len(schema.signature(overload).parameters) - (len(args) - 1) - len(kwargs)
            if missing < 0:
                continue
            bound = _bind_with_rest(overload, args[:-1], kwargs)
        else:
            bound = schema.bind(overload, args, kwargs)
        if bound is not None:
            values[overload] = bound
    if not values:
        shown = ", ".join([*map(_shown, args), *(f"{k}={_shown(v)}" for k, v in kwargs.items())])
        name = op if isinstance(op, OpOverload | OpOverloadPacket) else target
        raise PassError(f"no overload of {name} takes the arguments ({shown})")
    return Call(schema.packet_name(candidates[0]), values, "named" if isinstance(op, OpOverload) else "any")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Term) else repr(value)


def _bind_with_rest(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    parameters = schema.signature(overload).parameters
    if any(all(p.name != name for p in parameters) for name in kwargs):
        return None
    values: list[Any] = list(args)
    values.extend(kwargs.get(p.name, Ellipsis) for p in parameters[len(args) :])
    return tuple(values)
