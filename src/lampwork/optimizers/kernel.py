"""The kernel of a rule: its calls, recorded as a graph and lowered, become one loop over tensors of any length.

calls   mul_(%0, NUMBER); add_(%0, %1, alpha=NUMBER)
kernel  for i in parallel-vector n:
            mul = c0[i] * f32(f0)
            add = mul + c1[i] * f32(f1)
            c0[i] = add
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.codegen.target import DeviceRows, HostFunction, Target
from lampwork.config import current
from lampwork.errors import LoweringError
from lampwork.graph.record import Recorder
from lampwork.graph.symbols import Condition, SymbolicFloat, bits_of_float, float_of_bits, held
from lampwork.graph.symnode import to_torch
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import make_kernel
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    DType,
    Expr,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Map,
    Stmt,
    Store,
)
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.ir.verify import verify_kernel
from lampwork.lower.lowering import Lowered, lower_graph
from lampwork.optimizers.trace import NUMBER, Recipe
from lampwork.records import record

if TYPE_CHECKING:
    from lampwork import _C

DTYPES: Mapping[str, torch.dtype] = {
    "f": torch.float32,
    "d": torch.float64,
    "h": torch.float16,
    "b": torch.bfloat16,
}
"""By the letters with which csrc/rows.cpp tells them."""

_ELEMENTS = 64  # of the tensors that a rule is recorded with: any number that is none of a broadcast
_LENGTH = "n"
_AXIS = "i"


@record
class RowKernel:
    """A compiled rule.

    columns: those that it reads or writes, in the order of its buffers. written: a bit for each column written to.
    excluded: pairs of the place of one of the rule's numbers and what it must not be, such as a factor of 1, for which
    there is other code. conditions: what else must hold of the numbers. arguments: what its sizes are: None for the
    length of a row, the place of a number, or one computed of them. names: the numbers, in the last two.
    """

    code: HostFunction | DeviceRows
    columns: tuple[int, ...]
    written: int
    excluded: tuple[tuple[int, float], ...]
    conditions: tuple[Condition, ...]
    arguments: tuple[int | SymbolicFloat | None, ...]
    names: tuple[str, ...]

    def serves(self, numbers: Sequence[float]) -> bool:
        """Whether it is the rule's for these numbers."""
        for place, value in self.excluded:
            if numbers[place] == value:
                return False
        if not self.conditions and not self.is_held:
            return True
        values = self._values(numbers)
        if not all(condition.holds(values) for condition in self.conditions):
            return False
        try:
            self.given(numbers)
        except OverflowError:
            return False
        return True

    @property
    def launched(self) -> int | tuple[_C.DeviceKernel, int, int]:
        """The code as csrc/rows.cpp takes it."""
        code = self.code
        return (code.kernel, code.threads, code.tile) if isinstance(code, DeviceRows) else code.address

    @property
    def is_held(self) -> bool:
        """Whether it is not for all numbers that are computed of those given."""
        return any(
            isinstance(argument, SymbolicFloat) and argument.function is held for argument in self.arguments
        )

    def given(self, numbers: Sequence[float]) -> tuple[float | None, ...]:
        """The arguments for these numbers of the rule, in the order of the kernel's sizes."""
        values: dict[str, int] = {}
        found: list[float | None] = []
        for argument in self.arguments:
            if isinstance(argument, SymbolicFloat):
                values = values or self._values(numbers)
                found.append(argument.evaluate(values))
            else:
                found.append(None if argument is None else numbers[argument])
        return tuple(found)

    def _values(self, numbers: Sequence[float]) -> dict[str, int]:
        return {name: bits_of_float(value) for name, value in zip(self.names, numbers, strict=True)}


def compile_rule(
    recipe: Recipe,
    columns: Sequence[int],
    dtypes: str,
    numbers: Sequence[float],
    target: Target,
    flag: int | None = None,
) -> RowKernel:
    """The kernel of a recipe, for rows of any length.

    Args:
        columns: of each operand that the rule is given, the column that it stands for; those of scalars come last.
        dtypes: a letter for each column (csrc/rows.cpp), a capital one for scalars: tensors of one element.
        numbers: those of the first call.
        flag: a column of scalars; a kernel of a card does nothing where these are not 0.

    Raises:
        LampworkError: the calls cannot be recorded, or have no code.
    """
    rows = [
        pristine.empty(
            () if dtypes[column].isupper() else (_ELEMENTS,),
            dtype=DTYPES[dtypes[column].lower()],
            device="cpu",
        )
        for column in columns
    ]
    with pristine.no_grad(), Recorder() as recorder:
        symbols = [recorder.scope.float_symbol(number) for number in numbers]
        given = [recorder.input(row, f"c{column}") for row, column in zip(rows, columns, strict=True)]
        values = _replay(recipe, given, symbols)
        recorded = recorder.finish([values[name] for _, name in recipe.results])
    made = zip((column for column, _ in recipe.results), recorded.outputs, strict=True)
    stores = [*((columns[number], output) for number, output in recorded.mutations), *made]
    kernel = _kernel(lower_graph(recorded.graph), columns, stores)
    if flag is not None:
        kernel = replace(kernel, params=(*kernel.params, _buffer(flag, "f32", is_scalar=True)))
    numbering = {name: place for place, name in enumerate(map(_symbol, symbols))}
    derived = recorder.scope.derived
    excluded, conditions = _sorted(recorder.scope.conditions, numbering)
    return RowKernel(
        target.generate(target).compile_rows(kernel, None if flag is None else kernel.params[-1].name),
        tuple(int(buffer.name[1:]) for buffer in kernel.params),
        sum(1 << column for column, _ in stores),
        excluded,
        conditions,
        tuple(None if size == _LENGTH else _argument(derived[size], numbering) for size in kernel.sizes),
        tuple(numbering),
    )


def _replay(recipe: Recipe, given: Sequence[Any], numbers: Sequence[SymbolicFloat]) -> dict[str, Any]:
    """Run the calls on tensors that record; gives the tensors by the names of the operands."""
    operands = len(given) - recipe.scalars
    values: dict[str, Any] = {f"%{place}": tensor for place, tensor in enumerate(given[:operands])}
    values |= {f"${place}": tensor for place, tensor in enumerate(given[operands:])}
    waiting = iter(to_torch(list(numbers)))

    def value_of(code: Any) -> Any:
        if code == NUMBER:
            return next(waiting)
        return values[code] if isinstance(code, str) else code

    for name, args, kwargs in recipe.calls:
        function = getattr(torch, name[6:]) if name.startswith("torch.") else getattr(Tensor, name)
        positional = [value_of(arg) for arg in args]
        result = function(*positional, **{key: value_of(arg) for key, arg in kwargs})
        if not name.endswith("_") and not any(key == "out" for key, _ in kwargs):
            values[f"%{len(values) - recipe.scalars}"] = result
    return values


def _kernel(lowered: Lowered, columns: Sequence[int], stores: Sequence[tuple[int, int]]) -> Kernel:
    """One loop: a name for what each operator computes, then all stores, since rows are written where they are read.
    What is computed of scalars alone has no name: it is computed before the loop.

    stores: (column, output of the graph) pairs.
    """
    found: dict[str, Expr] = {}
    params: dict[int, Buffer] = {}
    for column, buffer in zip(columns, lowered.placeholders, strict=True):
        if buffer is not None:
            is_scalar = not buffer.shape
            params[column] = _buffer(column, buffer.dtype, is_scalar=is_scalar)
            found[buffer.name] = Load(params[column], (Index.const(0) if is_scalar else Index.var(_AXIS),))
    body: list[Stmt] = []
    for definition in lowered.definitions:
        if not isinstance(definition, Map) or len(definition.axes) > 1:
            raise LoweringError("an update is made of pointwise operators only")
        name = definition.out.name
        value = rewrite(definition.value, {Load: lambda load: found[load.buffer.name]})
        if not definition.axes:
            found[name] = value
            continue
        body.append(Let(name, value))
        found[name] = Local(name, definition.out.dtype)
    for column, output in stores:
        buffer = lowered.outputs[output].buffer
        if not buffer.shape:
            raise LoweringError("an update writes to scalars")
        row = params.get(column) or _buffer(column, buffer.dtype)
        body.append(Store(row, (Index.var(_AXIS),), found[buffer.name]))
    loop = Loop(Axis(_AXIS, Index.sym(_LENGTH)), "parallel-vector", tuple(body))
    kernel = make_kernel("update", [loop], ())
    if current().verify:
        verify_kernel(kernel)
    return kernel


def _buffer(column: int, dtype: DType, *, is_scalar: bool = False) -> Buffer:
    return Buffer(
        f"c{column}", dtype, (Index.const(1) if is_scalar else Index.sym(_LENGTH),), (Index.const(1),)
    )


def _symbol(number: SymbolicFloat) -> str:
    """The name of the symbol that a float of the scope is."""
    (name,) = number.symbols()
    return name


def _sorted(
    conditions: Sequence[Condition], places: Mapping[str, int]
) -> tuple[tuple[tuple[int, float], ...], tuple[Condition, ...]]:
    """Conditions that exclude one number, as its place and itself, and all others."""
    excluded: list[tuple[int, float]] = []
    others: list[Condition] = []
    for condition in conditions:
        name = "".join(condition.index.symbols())
        value = float_of_bits(-condition.index.constant)
        alone = name in places and condition.index == Index.sym(name) + condition.index.constant
        # Zeros differ in their bits, and nan differs from itself.
        if condition.op == "!=" and alone and value != 0 and value == value:
            excluded.append((places[name], value))
        else:
            others.append(condition)
    return tuple(excluded), tuple(others)


def _argument(number: SymbolicFloat, places: Mapping[str, int]) -> int | SymbolicFloat:
    """The place of a number that the rule gives as it is, or how it is computed."""
    return places[_symbol(number)] if number.function is float_of_bits else number
