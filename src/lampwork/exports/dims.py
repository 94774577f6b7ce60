"""`dynamic_shapes` of an export, as torch.export spells them: which sizes of what a call passes are left open.

{"x": {0: Dim("batch", max=64)}}        by name, then by dimension
({0: Dim.AUTO}, None)                   by position
({0: 2*half}, {0: half})                Dims that are computed of another one, which need not be there
{"xs": [{0: batch}, (batch, 8)]}        as what is passed is nested; a tuple has one for each dimension
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lampwork.capture.model.evaluate import find
from lampwork.capture.model.region import Region
from lampwork.capture.state.dynamic import MARKS
from lampwork.checks import nearest
from lampwork.errors import ExportError, OptionError
from lampwork.graph.symbols import Condition
from lampwork.loops.ir.polynomial import FloorDiv, Index, Mod, Sym
from lampwork.loops.ir.symbols import replace_symbols
from lampwork.records import record
from lampwork.standard import math

_EXAMPLE = "for example dynamic_shapes={'x': {0: torch.export.Dim('batch')}}"


@record(eq=False)
class Open:
    """A size that is left open. `where`: in words. `dim`: its dimension. `name`: of a Dim; equal ones are one size.
    `low`, `high`: what the user says it is at least and at most. `must`: an error where it cannot be open.
    `times`, `plus`, `root`: of a Dim that is computed of another one."""

    tensor: Tensor
    dim: int
    where: str
    name: str = ""
    low: int | None = None
    high: int | None = None
    must: bool = True
    times: int = 1
    plus: int = 0
    root: str = ""

    @property
    def base(self) -> str:
        """The name of the Dim that it is `times * base + plus` of; "" if it is no Dim."""
        return self.root or self.name


def open_sizes(
    given: Any, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Open, ...]:
    """What `dynamic_shapes` says of the arguments of a call. `names`: of positional arguments.

    Raises:
        OptionError: it is not of the form of the arguments, or says what is not so of them.
    """
    if given is None:
        return ()
    found: list[Open] = []
    if isinstance(given, Mapping):
        passed = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, spec in cast("Mapping[Any, Any]", given).items():
            if name not in passed:
                raise OptionError(
                    f"dynamic_shapes names {name!r}, which the call does not pass",
                    fix=nearest(str(name), tuple(passed), "it passes") if passed else _EXAMPLE,
                )
            found.extend(_of(spec, passed[name], str(name)))
    elif isinstance(given, (tuple, list)):
        specs = cast("Sequence[Any]", given)
        passed = [*zip(names, args, strict=False), *kwargs.items()]
        if len(specs) != len(passed):
            raise OptionError(
                f"dynamic_shapes has {len(specs)} items, and the call passes {len(passed)} arguments",
                fix="have an item for each, None for one that has no open sizes; or a dict by name",
            )
        for (name, value), spec in zip(passed, specs, strict=True):
            found.extend(_of(spec, value, name))
    else:
        raise OptionError(f"dynamic_shapes is {given!r}, expected a dict or a tuple", fix=_EXAMPLE)
    _check_related(found)
    return tuple(found)


def _check_related(sizes: Sequence[Open]) -> None:
    """That the example's sizes are what their Dims say of one another."""
    known: dict[str, tuple[int, Open]] = {}
    for each in sizes:
        if not each.name:
            continue
        size = each.tensor.shape[each.dim]
        value, rest = divmod(size - each.plus, each.times)
        if rest:
            raise OptionError(
                f"{each.where} is {size}, which is {each.name} for no number {each.root}",
                fix="pass an example that is, or another Dim",
            )
        first, other = known.setdefault(each.base, (value, each))
        if first != value:
            raise OptionError(
                f"{each.where} is {size}, and {each.name} is {each.times * first + each.plus}, as {each.base} is "
                f"{first} by {other.where}",
                fix="pass an example whose sizes are what the Dims say, or Dims of other names",
            )


def _of(spec: Any, value: Any, where: str) -> Iterator[Open]:
    if spec is None:
        return
    if isinstance(value, Tensor):
        yield from _of_tensor(spec, value, where)
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        items = cast("Mapping[Any, Any]", value)
        for key, inner in cast("Mapping[Any, Any]", spec).items():
            if key not in items:
                raise OptionError(
                    f"dynamic_shapes names {where}[{key!r}], which the call does not pass", fix=_EXAMPLE
                )
            yield from _of(inner, items[key], f"{where}[{key!r}]")
    elif isinstance(value, (tuple, list)) and isinstance(spec, (tuple, list)):
        items, specs = cast("Sequence[Any]", value), cast("Sequence[Any]", spec)
        if len(specs) != len(items):
            raise OptionError(
                f"dynamic_shapes has {len(specs)} items for {where}, which has {len(items)}", fix=_EXAMPLE
            )
        for number, (item, inner) in enumerate(zip(items, specs, strict=True)):
            yield from _of(inner, item, f"{where}[{number}]")
    else:
        raise OptionError(
            f"dynamic_shapes has {spec!r} for {where}, which is a {type(value).__name__}",
            fix="name sizes of tensors only, nested as what is passed is",
        )


def _of_tensor(spec: Any, tensor: Tensor, where: str) -> Iterator[Open]:
    if isinstance(spec, Mapping):
        pairs = list(cast("Mapping[Any, Any]", spec).items())
    elif isinstance(spec, (tuple, list)):
        pairs = list(enumerate(cast("Sequence[Any]", spec)))
        if len(pairs) != tensor.dim():
            raise OptionError(
                f"dynamic_shapes has {len(pairs)} items for {where}, which has {tensor.dim()} dimensions",
                fix="have one for each dimension, or a dict by dimension",
            )
    else:
        raise OptionError(f"dynamic_shapes has {spec!r} for the tensor {where}", fix=_EXAMPLE)
    for dim, each in pairs:
        if type(dim) is not int or not -tensor.dim() <= dim < tensor.dim():
            raise OptionError(
                f"dynamic_shapes names dimension {dim!r} of {where}, which has {tensor.dim()}",
                fix="count dimensions from 0",
            )
        at = dim % tensor.dim()
        place = f"dimension {at} of {where}"
        size = tensor.shape[at]
        if each is None:
            continue
        if type(each) is int:
            if each != size:
                raise OptionError(
                    f"dynamic_shapes says that {place} is {each}, and it is {size}",
                    fix="pass a tensor of that size, or leave it out",
                )
            continue
        found = _open(each, tensor, at, place)
        if found is None:
            continue
        if (found.low is not None and size < found.low) or (found.high is not None and size > found.high):
            raise OptionError(
                f"{place} is {size}, outside of {found.low or 0} to {found.high}, which {found.name or 'it'} is "
                "to be",
                fix="pass an example within the range",
            )
        if size < 2:
            raise OptionError(
                f"{place} is {size} in the example, which says nothing of other sizes",
                fix="pass an example whose open sizes are 2 or more; the artifact takes 1 as well",
            )
        yield found


def _open(given: Any, tensor: Tensor, dim: int, where: str) -> Open | None:
    """What a Dim of torch.export says. Its module is not imported: who has a Dim has done so."""
    known = sys.modules.get("torch.export.dynamic_shapes")
    dims: Any = () if known is None else (known.Dim,)
    hints: Any = () if known is None else (getattr(known, "_DimHint", ()),)
    if isinstance(given, dims):
        try:
            name, low, high = given.__name__, *_bounds(given)
        except AssertionError as error:  # torch's, of one that is computed
            raise OptionError(f"dynamic_shapes has {given!r} for {where}: {error}", fix="give it") from error
        root: Any = getattr(given, "root", None)
        if root is None or not hasattr(root, "__name__"):
            return Open(tensor, dim, where, name, low, high)
        function: Any = given.fn  # pyright: ignore[reportUnknownMemberType]
        plus = int(function(0))
        return Open(
            tensor, dim, where, name, low, high, True, int(function(1)) - plus, plus, str(root.__name__)
        )
    if hints and isinstance(given, hints):
        kind = given.type.name
        if kind == "STATIC":
            return None
        return Open(tensor, dim, where, "", *_bounds(given), must=kind == "DYNAMIC")
    raise OptionError(
        f"dynamic_shapes has {given!r} for {where}",
        fix="give a torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, a number or None",
    )


def _bounds(given: Any) -> tuple[int | None, int | None]:
    low, high = given.min, given.max
    return (low if type(low) is int and low > 0 else None, high if type(high) is int else None)


def program_sizes(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Open, ...]:
    """The sizes that a program of torch.export leaves open, of the arguments of its example."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = program.graph_signature.user_inputs
    passed = tree_leaves((tuple(args), dict(kwargs)))
    ranges = {str(symbol): bounds for symbol, bounds in program.range_constraints.items()}
    found: list[Open] = []
    for name, tensor in zip(names, passed, strict=False):
        value = values.get(name)
        if not isinstance(tensor, Tensor) or not isinstance(value, Tensor):
            continue
        for dim, size in enumerate(value.shape):
            if type(size) is int or tensor.shape[dim] < 2:
                continue
            bounds = ranges.get(str(size))
            low, high = (None, None) if bounds is None else (_whole(bounds.lower), _whole(bounds.upper))
            where = f"dimension {dim} of {name}"
            name, times, plus, root = _affine(size)
            # A bound of 2 is that of torch's own tracing.
            low = None if low is None or low <= 2 else low
            found.append(Open(tensor, dim, where, name, low, high, bool(name), times, plus, root))
    return tuple(found)


def _affine(size: Any) -> tuple[str, int, int, str]:
    """Name, factor, summand and root of a size of a program: `2*s0 + 1`, 2, 1, `s0`. No name if it is none such."""
    expression = size.node.expr
    name = str(expression)
    if name.isidentifier():
        return name, 1, 0, ""
    match tuple(expression.free_symbols):
        case (symbol,):
            plus = expression.subs(symbol, 0)
            times = expression.subs(symbol, 1) - plus
            if expression - times * symbol - plus == 0 and str(times).isdigit():
                return name, int(times), int(plus), str(symbol)
        case _:
            pass
    return "", 1, 0, ""


def _whole(bound: Any) -> int | None:
    text = str(bound)
    return int(text) if text.isdigit() else None


@contextmanager
def opened(sizes: Sequence[Open]) -> Generator[None]:
    """The tensors are captured with these sizes open."""
    before: dict[int, tuple[Tensor, Any]] = {}
    try:
        for each in sizes:
            known = getattr(each.tensor, MARKS, None)
            before.setdefault(id(each.tensor), (each.tensor, known))
            setattr(each.tensor, MARKS, {**(known or {}), each.dim: (each.low, each.high)})
        yield
    finally:
        for tensor, known in before.values():
            if known is None:
                delattr(tensor, MARKS)
            else:
                setattr(tensor, MARKS, known)


def relations(
    region: Region, sizes: Sequence[Open], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Condition, ...]:
    """What the user says of the sizes that are open: equal Dims are equal, and those that are computed of one another
    are what they say."""
    symbols = {
        (id(find(symbol.source, args, kwargs)), symbol.dim): symbol.name
        for symbol in region.symbols
        if symbol.kind == "size"
    }
    dims: dict[str, list[tuple[Open, str]]] = {}
    for each in sizes:
        symbol = symbols.get((id(each.tensor), each.dim))
        if symbol is not None and each.name:
            dims.setdefault(each.base, []).append((each, symbol))
    found: list[Condition] = []
    for members in dims.values():
        # The size that says most of the Dim that all are computed of.
        first, name = min(members, key=lambda member: member[0].times)
        base = Index.sym(name) - first.plus
        if first.times > 1:
            found.append(Condition("==", base % first.times))
        for each, symbol in members:
            if symbol != name:
                common = math.gcd(each.times, first.times)
                mine = (Index.sym(symbol) - each.plus) * (first.times // common)
                found.append(Condition("==", mine - base * (each.times // common)))
    return tuple(dict.fromkeys(found))


def without_implied(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Conditions without those that follow from others before them, as far as that is plain to see.

    before: 8*s2 == 8*s6, s6 == s2, s2 == s9, s6 == s9
    after:  s2 == s6, s2 == s9
    """
    found: dict[tuple[str, Index], Condition] = {}
    equal: dict[str, frozenset[str]] = {}
    for condition in map(_simplest, conditions):
        match [condition.op, *condition.index.terms]:
            case ["==", ((Sym(one),), 1 | -1 as sign), ((Sym(other),), opposite)] if sign == -opposite:
                if other in equal.get(one, ()):
                    continue
                both = equal.get(one, frozenset((one,))) | equal.get(other, frozenset((other,)))
                equal.update(dict.fromkeys(both, both))
            case _:
                pass
        found.setdefault((condition.op, condition.index), condition)
    return tuple(found.values())


def _simplest(condition: Condition) -> Condition:
    terms = condition.index.terms
    if condition.op not in ("==", "!=") or not terms:
        return condition
    factor = math.gcd(*(number for _, number in terms)) * (1 if terms[-1][1] > 0 else -1)
    return replace(condition, index=Index(tuple((atoms, number // factor) for atoms, number in terms)))


def check_open(
    conditions: Sequence[Condition],
    region: Region,
    sizes: Sequence[Open],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    served: Set[tuple[int, int, int]],
) -> None:
    """That sizes are open as far as the user said. `served`: (id of a tensor, dimension, size) that others serve.

    Raises:
        ExportError: a size cannot be open as far as the user said.
    """
    at = {(id(each.tensor), each.dim): each for each in sizes if each.must}
    for symbol in region.symbols:
        wanted = (
            at.get((id(find(symbol.source, args, kwargs)), symbol.dim)) if symbol.kind == "size" else None
        )
        if wanted is None:
            continue
        for condition in conditions:
            problem = _closes(condition, symbol.name, wanted, served)
            if problem:
                form = _form(condition, symbol.name, wanted)
                fix = (
                    f"give it as {form}, which says what the model needs, or pass Dim.AUTO"
                    if form
                    else "write that line without the number, open the sizes of other inputs that meet this one "
                    "there, give the Dim other bounds, or pass Dim.AUTO to have what is possible"
                )
                raise ExportError(
                    f"{wanted.where} cannot be left open as {wanted.name or 'asked'}: {problem} ({condition})",
                    fix=fix,
                    location=condition.line,
                )


def _form(condition: Condition, name: str, wanted: Open) -> str:
    """The computed Dim whose sizes are those that a condition on remainders allows; "" if there is none."""
    if condition.op != "==":
        return ""
    size = wanted.tensor.shape[wanted.dim]
    for atom in condition.index.atoms():
        times = atom.b.as_int() if isinstance(atom, FloorDiv | Mod) else None
        if times is None or not _always(condition, name, times, size % times):
            continue
        plus = size % times
        bounds = [
            f", {key}={each}"
            for key, bound in (("min", wanted.low), ("max", wanted.high))
            if bound is not None and (each := (bound - plus + (times - 1) * (key == "min")) // times) > 1
        ]
        return f"{times}*Dim({wanted.base or 'n'!r}{''.join(bounds)}){f' + {plus}' * (plus > 0)}"
    return ""


def _always(condition: Condition, name: str, times: int, plus: int) -> bool:
    """Whether a condition on one symbol holds for all sizes of a form."""
    index = replace_symbols(condition.index, {name: Index.sym(name) * times + plus})
    return index.is_const and Condition(condition.op, index).holds({})


def _closes(condition: Condition, name: str, wanted: Open, served: Set[tuple[int, int, int]]) -> str:
    """What a condition on this symbol alone takes away of what the user wanted."""
    if condition.index.symbols() != frozenset((name,)):
        return ""
    if condition.op == "==":
        always = _always(condition, name, wanted.times, wanted.plus)
        return (
            ""
            if always
            else "the model needs one number here"
            if not _form(condition, name, wanted)
            else ("the model takes some sizes alone here")
        )
    low, high = max(2, wanted.low or 2), wanted.high
    low += (wanted.plus - low) % wanted.times
    while (id(wanted.tensor), wanted.dim, low) in served:
        low += wanted.times
    while high is not None and (id(wanted.tensor), wanted.dim, high) in served:
        high -= wanted.times
    if wanted.low is not None and not condition.holds({name: low}):
        return f"it is no {low}"
    if high is not None and not condition.holds({name: high}):
        return f"it is no {high}"
    return ""
