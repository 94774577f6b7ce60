"""Fusion: from definitions, one a buffer, to groups, one a kernel.

    drop        what no output needs
    inline      a Map into the one Map that reads it
    epilogue    a Map that reads a Gemm into the Gemm's value and store index
    attention   two Gemms around a softmax into one Attention
    inline      Maps into reductions, epilogues and scans; what costs nothing into everybody
    by row      reductions of whole tensors that read what is made of their rows
    group       producers and consumers over the same rows (softmax, layer norm), and Maps over the same points
    ends        of a card: what all rows of a group together give (the mean of a loss) into it

Every step taken or not is a `Decision` with its reason (log topic "loops").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.loops.fusion.fold_attention import Accepts, fold_attentions
from lampwork.loops.fusion.fuse_epilogue import fold_epilogues
from lampwork.loops.fusion.fuse_group import form_groups
from lampwork.loops.fusion.fuse_inline import drop_units, drop_unused, inline_everywhere, inline_into_maps
from lampwork.loops.fusion.group import Decision, Group
from lampwork.loops.fusion.join_ends import join_ends
from lampwork.loops.fusion.split_sums import split_sums
from lampwork.loops.fusion.work import Work
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Definition
from lampwork.loops.ir.symbols import NO_HINTS

__all__ = ["Decision", "Group", "apart", "fuse"]


def fuse(
    definitions: Sequence[Definition],
    outputs: frozenset[str],
    machine: Machine,
    hints: Mapping[str, int] = NO_HINTS,
    attends: Accepts | None = None,
) -> tuple[list[Group], list[Decision]]:
    """Groups of definitions, in an order in which they can run, and the decisions that led there.

    before: m = max x; e = exp(x - m); s = sum e; y = e / s      (four kernels)
    after:  one group over the rows of x, with e private

    Args:
        outputs: the names of the buffers that must exist afterwards. What none of them needs is dropped, except
            Externs that write to their arguments or draw random numbers.
        machine: what the groups will run on.
        hints: likely values of symbols, to choose by.
        attends: which attentions are worth a template; None: none is made of products.
    """
    work = Work(definitions, outputs, machine, hints)
    drop_unused(work)
    drop_units(work)
    inline_into_maps(work)
    fold_epilogues(work)
    if attends is not None:
        fold_attentions(work, attends)
    inline_everywhere(work)
    work = split_sums(work)
    groups = form_groups(work)
    if machine.processors:
        groups = join_ends(groups, outputs, work.decisions)
    return groups, work.decisions


def apart(
    definitions: Sequence[Definition], outputs: frozenset[str], machine: Machine
) -> tuple[list[Group], list[Decision]]:
    """Groups of one definition each, as if nothing could be fused; what no output needs is dropped.

    before: m = max x; e = exp(x - m); s = sum e; y = e / s
    after:  four groups
    """
    work = Work(definitions, outputs, machine)
    drop_unused(work)
    drop_units(work)
    return form_groups(work, joins=False), work.decisions
