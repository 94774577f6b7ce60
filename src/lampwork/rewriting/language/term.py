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
from lampwork.rewriting.matching.values import same_value
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

    def __repr__(self) -> str:
        return str(self)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(func, OpOverload | OpOverloadPacket):
            return call(func, *args, **(kwargs or {}))
        functional = getattr(func, "__module__", "") == torch.nn.functional.__name__
        given, rest = without_rest(str(func.__name__), args, kwargs or {})
        name, args, kwargs = adapt(
            str(func.__name__), given, kwargs or {}, functional=functional, rest=bool(rest)
        )
        return call(name, *args, *rest, **kwargs)

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
            f"{self} has no value to branch on: a rewrite does not know what is in tensors",
            fix="write one rewrite for each branch, or use either(...) in the pattern",
        )

    def __iter__(self) -> Iterator[Any]:
        raise PassError(
            f"{self} cannot be iterated over: how many parts it has is not known here",
            fix="take its parts by index, such as parts[0] and parts[1]",
        )

    def __getitem__(self, index: Any) -> Any:
        return _indexed(self, index)


def fits_all(term: Any) -> bool:
    """Whether a term, or a plain value, says nothing that a pattern could look for."""
    return not isinstance(term, Term) or term.fits_all()


@record(eq=False, repr=False)
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


@record(eq=False, repr=False)
class Lit(Term):
    """A literal. A number equals numbers of any kind but bool, and tensors filled with it; 0 is not -0.0."""

    value: Any

    def plan(self, planner: Planner) -> MatchPlan:
        return LitPlan(self.value)

    def __str__(self) -> str:
        return repr(self.value)


@record(eq=False, repr=False)
class Leaf(Term):
    """In a replacement: a node of the graph."""

    node: fx.Node

    def plan(self, planner: Planner) -> MatchPlan:
        return LitPlan(self.node)

    def __str__(self) -> str:
        return self.node.name

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


@record(eq=False, repr=False)
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


@record(eq=False, repr=False)
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


@record(eq=False, repr=False)
class Rest(Term):
    """The arguments of a call that the pattern does not give, as its last argument. In a replacement, `given` has them
    by the names of their parameters, and a call with it last takes those that it does not give itself."""

    name: str
    given: Mapping[str, Any] | None = None

    def names(self) -> Iterable[str]:
        return (self.name,)

    def __getitem__(self, index: Any) -> Any:
        given: Mapping[str, Any] = self.given or {}
        if self.given is None or index not in given:
            has = f"it has {', '.join(given)}" if given else "only a check and a replacement can read it"
            raise PassError(f"the rest of the arguments {self} has no {index!r}", fix=has)
        return given[index]

    def __str__(self) -> str:
        return f"...{self.name.removeprefix('...')}"


@record(eq=False, repr=False)
class RestArgument(Term):
    """One argument of a call among its rest."""

    rest: Rest
    parameter: schema.Parameter

    def plan(self, planner: Planner) -> MatchPlan:
        key = ("rest", self.rest.name, self.parameter.name)

        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            if key in search.bindings:
                return rest if same_value(search.bindings[key], value) else FAILED
            search.bind(key, value)
            return rest

        return StepPlan(step, f"{self.parameter.name} as before in {self.rest}")

    def names(self) -> Iterable[str]:
        return (self.rest.name,)

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        default = self.parameter.default
        yield self if default is schema.MISSING else Lit(default)

    def __str__(self) -> str:
        return str(self.rest)


def _spec_in(search: Search, variable: Any) -> TensorSpec | None:
    """The spec of what a variable stands for, as far as the search knows it."""
    return schema.spec_of(search.bindings.get(variable.name)) if isinstance(variable, Var) else None


@record(eq=False, repr=False)
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
        if operator.getitem in self.values:
            source, index = self.values[operator.getitem]
            return f"{source}[{index}]"
        target, row = _likely(self)
        return f"{self.name}({', '.join(_arguments(target, row))})"

    def __iter__(self) -> Iterator[Any]:
        found = parts_of_call(self)
        return Term.__iter__(self) if found is None else iter(found)


PARTING = ("chunk", "split", "unbind")
"""Ops whose results are parts of a tensor, which graphs have as slices of it."""


def results(term: Call) -> int:
    """How many tensors an op gives: 0 for a list of them."""
    if operator.getitem in term.values:
        return 1
    returns = schema.schema_of(_likely(term)[0]).returns
    return 0 if len(returns) == 1 and str(returns[0].type).startswith("List") else len(returns)


def parts_of_call(term: Call) -> tuple[Call, ...] | None:
    """The results of an op with several, or the parts of a `chunk` or `split`, each as a term; None for one result, and
    where it is not known how many there are."""
    count = results(term)
    if count == 0:
        count = _length(term)
    elif count == 1:
        return None
    if count is None:
        return None
    return tuple(Call("getitem", {operator.getitem: (term, i)}) for i in range(count))


def _length(term: Call) -> int | None:
    """How many parts a `chunk`, `split` or `unbind` gives, where its arguments say so."""
    _, row = _likely(term)
    given = [v.value if isinstance(v, Lit) else v for v in row]
    sizes: Any = given[1] if len(given) > 2 else None
    if isinstance(sizes, list | tuple) and "split" in term.name:
        return len(cast("Sequence[Any]", sizes)) + (term.name == "tensor_split")
    known = isinstance(given[0], Leaf) and isinstance(given[-1], int)
    size: Any = given[0].shape[given[-1]] if known else None
    if term.name == "unbind":
        return size if type(size) is int else None
    if type(sizes) is not int or sizes < 1 or term.name not in PARTING:
        return None
    if type(size) is int:
        step = max(1, -(-size // sizes)) if term.name == "chunk" else sizes
        return max(1, -(-size // step))
    return sizes if term.name == "chunk" else None


def _likely(term: Call) -> tuple[Any, tuple[Any, ...]]:
    """The overload that a call means, as far as its arguments tell, and its row."""
    return next((item for item in term.values.items() if _takes(*item)), next(iter(term.values.items())))


def _arguments(target: Any, row: Sequence[Any]) -> Iterator[str]:
    """The arguments of a call as its author wrote them: without defaults, what is left open as `...`."""
    rest, by_name = "", False
    for parameter, value in zip(schema.signature(target).parameters, row, strict=True):
        if value is Ellipsis or isinstance(value, RestArgument):
            rest = "..." if value is Ellipsis else str(value)
            continue
        plain = value.value if isinstance(value, Lit) else value
        if schema.same_literal(plain, parameter.default):
            by_name = True
            continue
        by_name = by_name or parameter.keyword_only or bool(rest)
        yield f"{parameter.name}={_shown(value)}" if by_name else _shown(value)
    if rest:
        yield rest


def _takes(target: Any, row: Sequence[Any]) -> bool:
    """Whether no number stands for a tensor."""
    parameters = schema.signature(target).parameters
    plain = (v.value if isinstance(v, Lit) else v for v in row)
    return not any(
        p.accepts == "tensor" and isinstance(v, int | float) for p, v in zip(parameters, plain, strict=True)
    )


def _indexed(term: Term, index: Any) -> Any:
    """`x[i]`: a result of an op with several, or else a part of a tensor."""
    if isinstance(term, Call) and isinstance(index, int) and results(term) != 1:
        count = len(parts_of_call(term) or ())
        if (count and not -count <= index < count) or (index < 0 and not count):
            has = f"has {count} results" if count else "has some number of results"
            raise PassError(f"{term} {has}, so there is no [{index}] here", fix="the first one is [0]")
        index = index % count if count else index
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
    args, rest = without_rest(target, args, kwargs)
    if isinstance(target, str) and "." not in target:
        target, args, kwargs = adapt(target, args, kwargs, rest=bool(rest))
    if args and args[-1] is Ellipsis:
        args, rest = args[:-1], (...,)
    op = op_called(target) if isinstance(target, str) else target
    candidates: tuple[Any, ...] = (op,) if isinstance(op, OpOverload) else schema.overloads(op)
    values: dict[Any, tuple[Any, ...]] = {}
    for overload in candidates:
        if rest:
            missing = len(schema.signature(overload).parameters) - len(args) - len(kwargs)
            if missing < 0:
                continue
            bound = _bind_with_rest(overload, args, kwargs, rest[0])
        else:
            bound = schema.bind(overload, args, kwargs)
        if bound is not None:
            values[overload] = bound
    if not values:
        named = (f"{k}={_shown(v)}" for k, v in kwargs.items())
        shown = ", ".join([*map(_shown, args), *named, *map(_shown, rest)])
        name = op if isinstance(op, OpOverload | OpOverloadPacket) else target
        raise PassError(f"no overload of {name} takes the arguments ({shown})", fix=_takes_text(candidates))
    return Call(schema.packet_name(candidates[0]), values, "named" if isinstance(op, OpOverload) else "any")


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, cast('Sequence[Any]', value)))}]"
    return "..." if value is Ellipsis else str(value) if isinstance(value, Term) else repr(value)


def _takes_text(candidates: Sequence[Any]) -> str:
    """What the overloads of an op take."""
    texts = (f"({', '.join(map(_parameter_text, schema.signature(c).parameters))})" for c in candidates)
    return f"it takes {' or '.join(dict.fromkeys(texts))}" if candidates else ""


def _parameter_text(parameter: schema.Parameter) -> str:
    return parameter.name if parameter.default is schema.MISSING else f"{parameter.name}={parameter.default}"


def without_rest(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments of a call before the rest of them, and that rest, if it has one.

    Raises:
        PassError: the rest is not the last argument.
    """
    rest = args[-1:] if args and isinstance(args[-1], Rest) else ()
    given = tuple(args[: len(args) - len(rest)])
    wrong = next((v for v in (*given, *kwargs.values()) if isinstance(v, Rest)), None)
    if wrong is None:
        return given, tuple(rest if not rest or rest[0].name else (...,))
    name = target if isinstance(target, str) else schema.packet_name(target)
    raise PassError(
        f"the rest of the arguments, {wrong}, is not the last one of {name}",
        fix=f"put it last; torch.ops.aten.{name}(x, rest) also takes it where torch's own function does not",
    )


def _bind_with_rest(
    overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], rest: Any
) -> tuple[Any, ...] | None:
    parameters = schema.signature(overload).parameters
    if any(all(p.name != name for p in parameters) for name in kwargs):
        return None
    values: list[Any] = list(args)
    for p in parameters[len(args) :]:
        left = rest if rest is Ellipsis else RestArgument(rest, p)
        values.append(kwargs.get(p.name, left))
    return tuple(values)
