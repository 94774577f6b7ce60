"""What the steps of a program compute, for people and tools that look at it: plain data, made when asked for."""

from __future__ import annotations

from typing import Literal

from lampwork.errors import Location
from lampwork.records import record

StepKind = Literal["kernel", "gemm", "conv", "attention", "pack", "recurrence", "aten"]


@record
class StepFacts:
    """One call of a program: a kernel, a template's function (product, convolution, attention, recurrent layer, or the
    packing of an operand), or an operator of ATen.

    index: of the instruction. nodes: the names of the nodes of the optimized graph that it computes; what is cheap
    may be computed by several steps. Views compute nothing.
    bytes_read, bytes_written: of distinct elements of operands and results, each once, however often it is touched.
    flops: what the nodes need: two for each multiplication with an addition of products, convolutions, attention and
    recurrent layers, in the padding and under masks too, and one for each pointwise operation; 0 where that is not
    known. dtype: what it computes in, as torch names it; "" where that is not known.
    lines, modules: of the user's program that the nodes come from, each once, in the order of the nodes; a module is
    the dotted path by which the model has it, "" for the model itself.
    why: of a call of ATen, why it is no kernel of ours; "" where it is one, or where ATen's is the better one.
    """

    index: int
    name: str
    kind: StepKind
    nodes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    flops: int
    dtype: str = ""
    lines: tuple[Location, ...] = ()
    modules: tuple[str, ...] = ()
    why: str = ""
