"""`update`: a rule for one parameter, applied to many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import _C, config, logs, pristine
from lampwork.capture.state.contexts import surroundings
from lampwork.codegen.gpu.nvidia import card_target
from lampwork.codegen.llvm.isa.x86 import host_target
from lampwork.codegen.target import Target
from lampwork.compiled.stance import current_stance
from lampwork.errors import LampworkError
from lampwork.locks import new_lock
from lampwork.optimizers.kernel import DTYPES, RowKernel, compile_rule
from lampwork.optimizers.tape import value_of
from lampwork.optimizers.trace import CPU, Operand, Recipe, Trace, Untraceable
from lampwork.records import record
from lampwork.standard import functools

GRADIENTS = 1
"""The column of gradients, which rows may share and whose layout need not be the parameter's."""

_torch = cast(Any, torch)
_MOST_KERNELS = 8  # of one sequence of calls: each holds for some numbers only

Columns = tuple[list[Any], ...]
"""Parameters, gradients and states, a row for each parameter. A column may be empty; a state may be None: the rule is
given None for it, and makes it."""

Rule = Callable[[list[list[Any]], Any], None]
"""Updates one row, given as columns of one tensor, whose step count was so much: a float, or a stand-in for one on the
device. It may exchange what is None."""


def update(
    rule: Callable[..., Any], params: Sequence[Tensor], *columns: Sequence[Tensor], **options: Any
) -> None:
    """Do `for row in zip(params, *columns): rule(*row, **options)`, in one pass over all tensors.

        def lion(param, grad, average, *, lr, beta1, beta2):
            param.add_((average * beta1 + grad * (1 - beta1)).sign(), alpha=-lr)
            average.lerp_(grad, 1 - beta2)

        lampwork.optimizers.update(lion, params, grads, averages, lr=1e-3, beta1=0.9, beta2=0.99)

    Call it where gradients are off, as an optimizer's step is. Options that are floats may change from call to call
    without a compilation.

    Args:
        rule: pointwise operators of torch on the tensors of one row, which are of one size. It is called with
            stand-ins, so it should do nothing else. A rule that needs more than that (a shape, a norm), or tensors that
            a kernel cannot take, such as sparse ones, are served by the loop above.
        params: what is updated; the next column is the gradients, which are read, and the others are states.
        options: passed on to the rule.

    Raises:
        ValueError: the columns differ in length.
    """
    table: Columns = (list(params), *map(list, columns))
    if any(len(column) != len(table[0]) for column in table):
        raise ValueError(f"columns must have one length, got {[len(column) for column in table]}")

    def on_row(cells: list[list[Any]], step: float) -> None:
        rule(*(cell[0] for cell in cells), **options)

    updater = _updater_under(config.current())
    if pristine.is_grad_enabled() or not table[0] or not updater.run(on_row, table, []):
        for row in zip(*table, strict=True):
            rule(*row, **options)


def counted_there(steps: Sequence[Any]) -> bool:
    """Whether step counts are on a device, where nobody reads them."""
    return bool(steps) and steps[0].device.type != "cpu"


@record
class Table:
    """What a kernel runs over.

    rows: the columns that the rule is given.
    all: these, and behind them columns of scalars: the step counts, where they are on a card, and a flag.
    steps: the step counts, where they are on the CPU.
    counts, flag: the places of such columns in `all`.
    gradients: those that were given, where `rows` has copies.
    """

    rows: Columns
    all: Columns
    steps: list[Tensor]
    counts: int | None
    flag: int | None
    gradients: list[Any] = field(default_factory=list[Any])

    @classmethod
    def of(cls, rows: Columns, steps: list[Tensor], found_inf: Tensor | None = None) -> Table:
        all_, counts, flag = rows, None, None
        if counted_there(steps):
            counts, all_, steps = len(all_), (*all_, steps), []
        if found_inf is not None:
            flag, all_ = len(all_), (*all_, [found_inf] * len(rows[0]))
        return cls(rows, all_, steps, counts, flag)

    def groups(self) -> list[tuple[str, float, int, list[int]]] | None:
        """The rows by dtypes, step count and card, or -1; None if no kernel may run over them."""
        scalars = sum(1 << place for place in range(len(self.rows), len(self.all)))
        return _C.group_rows(self.all, self.steps, 1 << GRADIENTS, scalars)

    def in_order(self) -> Table:
        """With copies in place of the gradients that are laid out otherwise than their parameters."""
        if len(self.rows) <= GRADIENTS or not self.rows[GRADIENTS]:
            return self
        rows = _with_gradients_in_order(self.rows)
        return replace(self, rows=rows, all=(*rows, *self.all[len(rows) :]), gradients=self.rows[GRADIENTS])


@record
class Compiled:
    """A kernel for some rows, and what it is given. made: the columns whose tensors it makes. scalars: tensors that the
    columns behind the table's consist of."""

    kernel: RowKernel
    numbers: list[Any]
    made: tuple[int, ...]
    scalars: tuple[Tensor, ...]

    def run(self, table: Table, rows: list[int]) -> None:
        kernel, params = self.kernel, table.rows[0]
        for column in self.made:
            for row in rows:
                table.rows[column][row] = _like(params[row], params[row].dtype)
                if table.flag is not None:
                    table.rows[column][row].zero_()  # the kernel may leave it
        columns = (*table.all, *([scalar] * len(params) for scalar in self.scalars))
        _C.run_rows(
            kernel.launched,
            columns,
            kernel.columns,
            table.steps,
            rows,
            kernel.given(self.numbers),
            kernel.written,
        )
        if table.gradients and kernel.written >> GRADIENTS & 1:
            _write_back(table.gradients, table.rows[GRADIENTS], rows)


@functools.cache
def _updater_under(options: config.Config) -> Updater:
    return updater_for(host_target(options))


@functools.cache
def updater_for(target: Target) -> Updater:
    """The updater of this process for a machine."""
    return Updater(target)


class Updater:
    """Compiles rules for one target, and remembers the kernels. Safe to use from many threads."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kernels: dict[Any, list[RowKernel]] = {}
        self._refused: dict[Any, Exception] = {}
        self._lock = new_lock()

    @property
    def compiled(self) -> int:
        """How many kernels it has."""
        return sum(map(len, self._kernels.values()))

    def _target_on(self, card: int) -> Target:
        return self._target if card < 0 else card_target(card, relaxed=self._target.contract)

    def run(self, rule: Rule, columns: Columns, steps: list[Tensor], found_inf: Tensor | None = None) -> bool:
        """Apply a rule to all rows and add one to the step counts, or do nothing and give False.

        found_inf: on the card of the rows, of one float32; where it is not 0 nothing changes, and nobody waits for it.
        """
        if current_stance() == "force_eager" or surroundings() == "foreign":
            return False
        table = Table.of(columns, steps, found_inf)
        groups = table.groups()
        if groups is None:
            table = table.in_order()
            groups = table.groups()
        if groups is None:
            logs.emit(
                "breaks", "an optimizer's step runs eager: a tensor is not dense floats, or overlaps another"
            )
            return False
        ready: list[tuple[Compiled, list[int]]] = []
        for dtypes, step, card, rows in groups:
            try:
                ready.append((self.compiled_for(rule, table, dtypes, step, card), rows))
            except (Untraceable, TypeError) as error:
                logs.emit("breaks", f"an optimizer's step runs eager: {error}")
                return False
        if table.counts is not None:
            _torch._foreach_add_(steps, 1)
        for compiled, rows in ready:
            compiled.run(table, rows)
        if table.counts is not None and found_inf is not None:
            _torch._foreach_sub_(steps, [found_inf] * len(steps))
        return True

    def compiled_for(self, rule: Rule, table: Table, dtypes: str, step: float, card: int) -> Compiled:
        """The kernel of a rule for rows of these dtypes and this step count, on the CPU (-1) or a card.

        Raises:
            Untraceable, TypeError: there is none.
        """
        recipe, given, trace = _traced(rule, table, dtypes, step, card)
        if recipe.results and dtypes[GRADIENTS] != dtypes[0]:
            raise Untraceable("a state is made of gradients of another dtype than the parameter's")
        first = len(table.all)
        dtypes += "".join(_letter(tensor) for tensor in trace.scalars)
        given = (*given, *range(first, len(dtypes)))
        numbers = [value_of(number) for number in trace.numbers]
        kernel = self._kernel(recipe, given, dtypes, numbers, card, table.flag)
        if not kernel.written and not recipe.results:
            raise Untraceable("its rule writes nothing")
        made = tuple(column for column, _ in recipe.results)
        return Compiled(kernel, trace.numbers, made, tuple(trace.scalars))

    def _kernel(
        self,
        recipe: Recipe,
        given: tuple[int, ...],
        dtypes: str,
        numbers: list[float],
        card: int,
        flag: int | None,
    ) -> RowKernel:
        """The kernel of a recipe for these numbers.

        Raises:
            Untraceable: it has none.
        """
        key = (recipe, given, dtypes, card, flag)
        for kernel in self._kernels.get(key, ()):
            if kernel.serves(numbers):
                return kernel
        with self._lock:
            known = self._kernels.setdefault(key, [])
            if len(known) >= _MOST_KERNELS:
                self._refused[key] = Untraceable("its numbers change its formula on each call")
            if key not in self._refused:
                try:
                    kernel = compile_rule(recipe, given, dtypes, numbers, self._target_on(card), flag)
                except (LampworkError, RuntimeError, TypeError) as error:
                    self._refused[key] = error.with_traceback(None)
                else:
                    known.append(kernel)
                    return kernel
            refused = self._refused[key]
            if config.current().strict:
                raise refused
            raise Untraceable(str(refused)) from refused


def _traced(
    rule: Rule, table: Table, dtypes: str, step: float, card: int
) -> tuple[Recipe, tuple[int, ...], Trace]:
    """What a rule does to rows of these dtypes and this step count; the columns of its operands; what it was given."""
    trace = Trace(CPU if card < 0 else torch.device("cuda", card))
    given = tuple(column for column, letter in enumerate(dtypes) if letter != "-" and column != table.flag)
    operands = {column: trace.count() if column == table.counts else trace.operand() for column in given}
    cells: list[list[Any]] = [
        [operands.get(place)] if column else [] for place, column in enumerate(table.rows)
    ]
    rule(cells, step if table.counts is None else operands[table.counts])
    results: list[tuple[int, str]] = []
    for place, cell in enumerate(cells):
        if cell and place not in operands and isinstance(cell[0], Operand):
            results.append((place, cell[0].name))
    return Recipe(tuple(trace.calls), tuple(results), len(trace.scalars)), given, trace


def _letter(scalar: Tensor) -> str:
    """As csrc/rows.cpp has it, of a scalar.

    Raises:
        Untraceable: a kernel does not take it.
    """
    for letter, dtype in DTYPES.items():
        if dtype is scalar.dtype:
            return letter.upper()
    raise Untraceable(f"an operator is given a tensor of {scalar.dtype}")


def _like(param: Tensor, dtype: torch.dtype) -> Tensor:
    """New memory, laid out as a parameter."""
    return pristine.empty_strided(param.shape, param.stride(), dtype=dtype, device=param.device)


def _write_back(gradients: Sequence[Any], copies: Sequence[Any], rows: Sequence[int]) -> None:
    """What was written to copies of gradients, to the gradients."""
    for row in rows:
        if copies[row] is not gradients[row]:
            gradients[row].copy_(copies[row])


def _with_gradients_in_order(columns: Columns) -> Columns:
    """The columns, with copies in place of the gradients that are laid out otherwise than their parameters."""
    gradients = [
        _like(param, grad.dtype).copy_(grad)
        if grad.layout is torch.strided and param.shape == grad.shape and param.stride() != grad.stride()
        else grad
        for param, grad in zip(columns[0], columns[GRADIENTS], strict=True)
    ]
    return (*columns[:GRADIENTS], gradients, *columns[GRADIENTS + 1 :])
