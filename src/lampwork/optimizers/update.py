"""`update`: a rule for one parameter, applied to many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lampwork import _C, config, logs, pristine
from lampwork.capture.state.contexts import surroundings
from lampwork.codegen.llvm.isa.x86 import host_target
from lampwork.codegen.target import Target
from lampwork.compiled.stance import current_stance
from lampwork.errors import LampworkError
from lampwork.locks import new_lock
from lampwork.optimizers.kernel import RowKernel, compile_rule
from lampwork.optimizers.tape import value_of
from lampwork.optimizers.trace import Operand, Recipe, Trace, Untraceable
from lampwork.standard import functools

GRADIENTS = 1
"""The column of gradients, which rows may share and whose layout need not be the parameter's."""

_MOST_KERNELS = 8  # of one sequence of calls: each holds for some numbers only

Columns = tuple[list[Any], ...]
"""Parameters, gradients and states, a row for each parameter. A column may be empty; a state may be None: the rule is
given None for it, and makes it."""

Rule = Callable[[list[list[Any]], float], None]
"""Updates one row, given as columns of one tensor, whose step count was so much. It may exchange what is None."""


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
        self._refused: dict[Any, str] = {}
        self._lock = new_lock()

    @property
    def compiled(self) -> int:
        """How many kernels it has."""
        return sum(map(len, self._kernels.values()))

    def run(self, rule: Rule, columns: Columns, steps: list[Tensor]) -> bool:
        """Apply a rule to all rows and add one to the step counts, or do nothing and give False."""
        if current_stance() == "force_eager" or surroundings() == "foreign":
            return False
        gradients = columns[GRADIENTS] if len(columns) > GRADIENTS else []
        groups = _C.group_rows(columns, steps, 1 << GRADIENTS)
        if groups is None and gradients:
            columns = _with_gradients_in_order(columns)
            groups = _C.group_rows(columns, steps, 1 << GRADIENTS)
        if groups is None:
            logs.emit(
                "breaks", "an optimizer's step runs eager: a tensor is not dense floats, or overlaps another"
            )
            return False
        ready: list[tuple[RowKernel, tuple[float | None, ...], tuple[int, ...], list[int]]] = []
        for dtypes, step, rows in groups:
            try:
                kernel, numbers, made = self.kernel_for(rule, columns, dtypes, step)
            except (Untraceable, TypeError) as error:
                logs.emit("breaks", f"an optimizer's step runs eager: {error}")
                return False
            ready.append((kernel, kernel.given(numbers), made, rows))
        for kernel, arguments, made, rows in ready:
            for column in made:
                for row in rows:
                    columns[column][row] = _like(columns[0][row], columns[0][row].dtype)
            _C.run_rows(kernel.code.address, columns, kernel.columns, steps, rows, arguments, kernel.written)
            if gradients and kernel.written >> GRADIENTS & 1:
                _write_back(gradients, columns[GRADIENTS], rows)
        return True

    def kernel_for(
        self, rule: Rule, columns: Columns, dtypes: str, step: float
    ) -> tuple[RowKernel, list[Any], tuple[int, ...]]:
        """The kernel of a rule for rows of these dtypes and this step count; its numbers; the columns that it makes.

        Raises:
            Untraceable, TypeError: there is none.
        """
        recipe, given, numbers = _traced(rule, columns, dtypes, step)
        if recipe.results and dtypes[GRADIENTS] != dtypes[0]:
            raise Untraceable("a state is made of gradients of another dtype than the parameter's")
        kernel = self._kernel(recipe, given, dtypes, [value_of(number) for number in numbers])
        if not kernel.written and not recipe.results:
            raise Untraceable("its rule writes nothing")
        return kernel, numbers, tuple(column for column, _ in recipe.results)

    def _kernel(self, recipe: Recipe, given: tuple[int, ...], dtypes: str, numbers: list[float]) -> RowKernel:
        """The kernel of a recipe for these numbers.

        Raises:
            Untraceable: it has none.
        """
        key = (recipe, given, dtypes)
        for kernel in self._kernels.get(key, ()):
            if kernel.serves(numbers):
                return kernel
        with self._lock:
            known = self._kernels.setdefault(key, [])
            if len(known) >= _MOST_KERNELS:
                self._refused[key] = "its numbers change its formula on each call"
            if key in self._refused:
                raise Untraceable(self._refused[key])
            try:
                kernel = compile_rule(recipe, given, dtypes, numbers, self._target)
            except (LampworkError, RuntimeError, TypeError) as error:
                if config.current().strict:
                    raise
                self._refused[key] = str(error)
                raise Untraceable(str(error)) from error
            known.append(kernel)
            return kernel


def _traced(
    rule: Rule, columns: Columns, dtypes: str, step: float
) -> tuple[Recipe, tuple[int, ...], list[Any]]:
    """What a rule does to rows of these dtypes and this step count; the columns of its operands; its numbers."""
    trace = Trace()
    given = tuple(column for column, letter in enumerate(dtypes) if letter != "-")
    operands = {column: trace.operand() for column in given}
    cells: list[list[Any]] = [[operands.get(place)] if column else [] for place, column in enumerate(columns)]
    rule(cells, step)
    results: list[tuple[int, str]] = []
    for place, cell in enumerate(cells):
        if cell and place not in operands and isinstance(cell[0], Operand):
            results.append((place, cell[0].name))
    return Recipe(tuple(trace.calls), tuple(results)), given, trace.numbers


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
