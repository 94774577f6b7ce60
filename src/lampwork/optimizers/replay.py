"""Steps that do what one before has done, without Python: csrc/replay.cpp runs them.

What a step of torch does depends on what it reads: attributes of the optimizer, groups, parameters, gradients and
states. csrc/reading.cpp reads all of it, on each call anew, and a call that reads the same, but for floats and the
numbers in tensors, does the same. What it does is found by running torch's own step for an optimizer whose floats are
Numbers: the arithmetic ends up on a `Tape`, each update of a group as kernels over numbered tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, optim

from lampwork import _C, pristine
from lampwork.optimizers.algorithm import Algorithm, rows_of, step_with
from lampwork.optimizers.kernel import RowKernel
from lampwork.optimizers.tape import Tape, Unrepeatable
from lampwork.optimizers.trace import Untraceable
from lampwork.optimizers.update import Table, Updater
from lampwork.records import record

_MOST = 4  # steps of one compiled function: of several optimizers, or with and without some of the gradients
_CLASSES = frozenset(each for each in vars(optim).values() if isinstance(each, type))

Float = tuple[int, str, int, float]
"""A hyperparameter: the number of its group, its key, its place if that is a tuple or else -1, its value."""


@record
class Unit:
    """A kernel over rows whose step count is one.

    device: the card that the rows are on, or -1.
    rows: for each column of the kernel the tensor, of those that were read. counts: the step counts, such tensors too.
    numbers: the instructions of the tape whose values the kernel's numbers are.
    """

    kernel: RowKernel
    device: int
    rows: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    numbers: tuple[int, ...]


class Replays:
    """The steps of one compiled function that can be done again, the last one first."""

    def __init__(self, algorithm: Algorithm, updater: Updater) -> None:
        self._algorithm = algorithm
        self._updater = updater
        self._known: list[_C.Replay] = []
        self._missed: _C.Replay | None = None  # the last step that was none of them
        self._repeated = 0

    def run(self, optimizer: optim.Optimizer) -> bool:
        """Do a step, or do nothing and give False."""
        for place, replay in enumerate(self._known):
            if replay.run(optimizer):
                if place:
                    self._known.insert(0, self._known.pop(place))
                return True
        return False

    def learn(self, optimizer: optim.Optimizer, step: Callable[..., Any]) -> Any:
        """Have torch's code do a step. One that it did before, and that changes nothing but numbers, is remembered."""
        read = _C.read_step(optimizer) if type(optimizer) in _CLASSES else None
        if read is None:
            return step(optimizer)
        is_repeated = self._missed is not None and self._missed.fits(optimizer)
        self._repeated = self._repeated + 1 if is_repeated else 0
        self._missed = read[0]
        result = step(optimizer)
        # What cannot be remembered is tried more and more seldom.
        if self._repeated.bit_count() == 1 and read[0].fits(optimizer):
            self._remember(optimizer, *read)
        return result

    def _remember(
        self, optimizer: optim.Optimizer, replay: _C.Replay, floats: list[Float], tensors: list[Tensor]
    ) -> None:
        tape = Tape()
        try:
            units = self._units(_with_numbers(optimizer, floats, tape), tape, tensors)
        except (Untraceable, Unrepeatable, TypeError, ArithmeticError):
            return
        replay.prepare(tape.instructions, units)
        self._known = [replay, *self._known[: _MOST - 1]]

    def _units(self, optimizer: Any, tape: Tape, tensors: Sequence[Tensor]) -> tuple[Unit, ...]:
        """What the next step of an optimizer does.

        Raises:
            Untraceable, Unrepeatable, TypeError, ArithmeticError: it cannot be said.
        """
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        if len(places) < len(tensors):
            raise Unrepeatable("a tensor stands in two places")
        units: list[Unit] = []

        def update(*columns: list[Any], **given: Any) -> None:
            if given.get("differentiable") or given.get("capturable"):
                raise Unrepeatable("the step is part of a graph")
            rule, rows, counts = rows_of(self._algorithm, columns, given)
            table = Table.of(rows, counts)
            groups = table.groups() if rows[0] else []
            if groups is None:
                raise Unrepeatable("no kernel runs over these tensors")
            if table.counts is not None:
                raise Unrepeatable("steps are counted on the device")
            for dtypes, count, card, members in groups:
                step: Any = tape.count(len(units), count)
                found = self._updater.compiled_for(rule, table, dtypes, step, card)
                if found.made or found.scalars:
                    raise Unrepeatable("a state is made, or a tensor of this step alone takes part")
                kernel = found.kernel
                units.append(
                    Unit(
                        kernel,
                        card,
                        tuple(tuple(place_of(rows[c][member]) for c in kernel.columns) for member in members),
                        tuple(place_of(counts[member]) for member in members) if counts else (),
                        tuple(tape.place_of(number) for number in found.numbers),
                    )
                )

        def place_of(tensor: Any) -> int:
            if id(tensor) not in places:
                raise Unrepeatable("a tensor is of this step alone")
            return places[id(tensor)]

        with pristine.no_grad():
            step_with(self._algorithm, update)(optimizer)
        return tuple(units)


def _with_numbers(optimizer: optim.Optimizer, floats: Sequence[Float], tape: Tape) -> Any:
    """An optimizer with the same parameters and states, whose float hyperparameters are Numbers of a tape."""
    groups: list[dict[str, Any]] = [dict(group) for group in optimizer.param_groups]
    for place, (group, key, item, value) in enumerate(floats):
        number = tape.float(place, value)
        if item < 0:
            groups[group][key] = number
        else:
            values = list(groups[group][key])
            values[item] = number
            groups[group][key] = tuple(values)
    twin: Any = object.__new__(type(optimizer))
    twin.__dict__.update({**vars(optimizer), "param_groups": groups})
    return twin
