"""What is left to compute of a program, where some of its values are known.

before:  %2 = aten::mul(%0, %1)     %3 = pack(%2)     %4 = aten::arange(16)     outputs %3, %4
after:   %4 = aten::arange(16)      outputs %4        where %3 is known
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lampwork.graph.nested import leaves
from lampwork.records import record
from lampwork.runtime.layout import AtenStep, KernelStep, Layout, Slot
from lampwork.runtime.program import CallAten, CallKernel, Instruction, Ref, Release, Take, Value

Step = Instruction | KernelStep | AtenStep


@record
class Rest:
    """`known`: numbers of the values that are taken as known, in the order of the further inputs of `layout`, which
    gives the other outputs; None if there are none. `places`: for each output of the whole its place in `known`, or -1:
    the next output of `layout`."""

    known: tuple[int, ...]
    places: tuple[int, ...]
    layout: Layout | None


def root_of(values: Sequence[Value | Slot], number: int) -> int:
    """The number of the value whose memory a value lies in."""
    while values[number].kind == "view":
        number = values[number].base
    return number


def rest_of(layout: Layout, known: Sequence[int]) -> Rest:
    """What is left of a program without symbols, bound values and constants. `known`: numbers of values that are no
    views, of which those are taken that the rest does not make anyhow."""
    given = dict.fromkeys(known)
    while True:
        needed, kept = _needed(layout, given)
        made = {
            root
            for at in kept
            if isinstance(layout.steps[at], CallKernel | KernelStep)
            for root in _operands(layout, layout.steps[at])
            if layout.values[root].kind in ("fresh", "heap") and root in given
        }
        if not made:
            break
        # A kernel of the rest may write to it, as it makes something else too.
        for number in made:
            del given[number]
    read = needed | {number for number in layout.outputs if number in given}
    numbers = tuple(number for number in given if number in read)
    place = {number: at for at, number in enumerate(numbers)}
    places = tuple(place.get(number, -1) for number in layout.outputs)
    outputs = tuple(number for number in layout.outputs if number not in place)
    if not outputs:
        return Rest(numbers, places, None)
    values = tuple(_value(layout, number, value, place, needed) for number, value in enumerate(layout.values))
    steps = tuple(
        step for at, each in enumerate(layout.steps) if (step := _step(each, at in kept, needed, place))
    )
    made_layout = replace(
        layout,
        values=values,
        memory=tuple(event for event in layout.memory if values[event[1]].kind == "arena"),
        steps=steps,
        outputs=outputs,
        n_inputs=layout.n_inputs + len(numbers),
        names={},
        work=(),
        labels=(),
        facts=None,
        counts={},
        family=object(),
    )
    return Rest(numbers, places, made_layout)


def _needed(layout: Layout, known: Mapping[int, None]) -> tuple[set[int], set[int]]:
    """The memory that the outputs which are not known are made of, and the numbers of the steps that make it."""
    needed = {root_of(layout.values, number) for number in layout.outputs if number not in known}
    kept: set[int] = set()
    for at in range(len(layout.steps) - 1, -1, -1):
        step = layout.steps[at]
        if isinstance(step, Release | Take):
            continue
        operands = _operands(layout, step)
        if isinstance(step, CallKernel | KernelStep):
            # Kernels write to memory of a program's own, never to what an operator made.
            makes = {
                number for number in operands if layout.values[number].kind in ("arena", "heap", "fresh")
            }
        else:
            makes = set(_call(step).outs) - {-1}
        if makes & (needed - known.keys()):
            kept.add(at)
            needed |= operands
    return needed, kept


def _call(step: CallAten | AtenStep) -> CallAten:
    return step.call if isinstance(step, AtenStep) else step


def _operands(layout: Layout, step: Step) -> set[int]:
    """The memory that a step is given, results of kernels among it."""
    if isinstance(step, CallKernel | KernelStep):
        found = set(step.buffers)
    elif isinstance(step, CallAten | AtenStep):
        call = _call(step)
        found = {ref.value for ref in leaves((call.args, [value for _, value in call.kwargs]), Ref)}
    else:
        found = set(step.values)
    return {root_of(layout.values, number) for number in found}


def _value(
    layout: Layout, number: int, value: Value | Slot, place: Mapping[int, int], needed: set[int]
) -> Value | Slot:
    if number in place:
        return replace(value, kind="input", position=layout.n_inputs + place[number])
    if value.kind in ("arena", "heap", "fresh") and number not in needed:
        return Value("aten")  # nothing makes it
    if value.kind == "view" and _is_gone(layout, number, place, needed):
        return Value("aten")
    return value


def _is_gone(layout: Layout, number: int, place: Mapping[int, int], needed: set[int]) -> bool:
    root = root_of(layout.values, number)
    return root not in needed and root not in place and layout.values[root].kind != "input"


def _step(step: Step, is_kept: bool, needed: set[int], place: Mapping[int, int]) -> Step | None:
    if isinstance(step, Release | Take):
        values = tuple(number for number in step.values if number in needed and number not in place)
        return replace(step, values=values) if values else None
    if not is_kept or isinstance(step, CallKernel | KernelStep):
        return step if is_kept else None
    outs = tuple(-1 if out in place else out for out in _call(step).outs)
    call = replace(_call(step), outs=outs)
    return replace(step, call=call) if isinstance(step, AtenStep) else call
