"""A `Program`: what a compiled graph is at run time. Plain data, no code but functions; the C++ interpreter runs it.

Values are numbered. A value is one of

    input      a tensor given with the call (position in Program inputs)
    bound      a parameter or buffer, the same object on every call
    constant   computed from bound values by the *constant program*, again when one of them changed
    arena      a piece of the one block of memory that each running call holds
    heap       memory of its own from a `Take` to a `Release`, which programs of training steps share
    fresh      allocated for each call (results that leave the region)
    aten       produced by an ATen call, owned by it (released after its last use)
    view       another value seen through shape, strides and offset

Instructions run in order, without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from lampwork.codegen.target import DeviceFunction, HostFunction
from lampwork.graph.nested import leaves
from lampwork.records import record
from lampwork.runtime.steps import StepFacts

if TYPE_CHECKING:
    from lampwork.runtime.layout import Layout

ValueKind = Literal["input", "bound", "constant", "arena", "heap", "fresh", "aten", "view"]
CPU = torch.device("cpu")


@record
class Value:
    """`offset`: bytes into the arena of its device (64-aligned, on a card 256-aligned) for arena values, elements into
    `base`'s first element for views. `device`: where it lies; a view lies where its base does."""

    kind: ValueKind
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    base: int = -1
    position: int = -1  # input, bound, constant: its number among its kind
    device: torch.device = CPU

    def at(self, kind: ValueKind, offset: int) -> Value:
        """The same at another place."""
        return Value(
            kind, self.dtype, self.shape, self.strides, offset, self.base, self.position, self.device
        )

    @property
    def nbytes(self) -> int:
        """Bytes from the first to past the last element; 0 where they are known to torch alone."""
        if self.dtype is None or 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


@record
class Scalar:
    """A number given with each call: its place among the `n_scalars` of the program. `is_float`: as an argument of
    CallAten it is the float64 with the bits of that int64."""

    place: int
    is_float: bool = False


@record
class Launch:
    """How a kernel of a card is launched: by min(ceil(extent / per_block), (2**31 - 1) // cluster) clusters of blocks,
    which stride over the extent. `block`: threads along x and y. `shared`: bytes of a block's dynamic shared memory.

    cluster: blocks of a cluster, all of which work on the same iterations; 1: each block is on its own.
    counters: words of four bytes that the blocks count in. The kernel finds them zero and leaves them zero."""

    block: tuple[int, int]
    per_block: int
    shared: int = 0
    cluster: int = 1
    counters: int = 0


@record
class CallKernel:
    """code(buffers, sizes, begin, end) over [0, extent), in chunks of at least `grain` by at::parallel_for; with a
    `launch`, code(*buffers, *sizes, extent) queued on the current stream of the program's device; one that has
    counters takes their address as well, last.

    outside: those of its buffers that lie in an input or bound tensor's memory and are written to."""

    code: HostFunction | DeviceFunction
    buffers: tuple[int, ...]
    sizes: tuple[int | Scalar, ...] = ()
    extent: int = 1
    grain: int = 1
    name: str = ""
    outside: tuple[int, ...] = ()
    launch: Launch | None = None


@record
class Ref:
    """Inside the arguments of CallAten: the value of this number."""

    value: int


@record
class CallAten:
    """outs = op(*args, **kwargs) through the dispatcher. args may nest lists/tuples; tensors appear as `Ref`, numbers
    given with the call (not inside of lists) as `Scalar`."""

    op: str  # "aten::add.Tensor"; the default overload is written "aten::relu.default"
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    outs: tuple[int, ...] = ()
    name: str = ""


@record
class Release:
    """Drop the tensors of these `aten`, `heap` or `fresh` values, or of inputs, where the caller gave them away: their
    last use has passed."""

    values: tuple[int, ...]


@record
class Take:
    """Take memory for these `heap` or `fresh` values. Other fresh values have theirs from the start."""

    values: tuple[int, ...]


Instruction = CallKernel | CallAten | Release | Take


def used_by(instruction: Instruction) -> Iterator[int]:
    """The numbers of the values that a call is given, results of kernels among them."""
    if isinstance(instruction, CallKernel):
        yield from instruction.buffers
    elif isinstance(instruction, CallAten):
        given = (instruction.args, tuple(value for _, value in instruction.kwargs))
        yield from (ref.value for ref in leaves(given, Ref))


@record
class Program:
    """`outputs` are value numbers. `constants` is the program that computes the constant values (its inputs are the
    bound tensors, its outputs the constants, in order), None if there are none. `device`: the one that kernels are
    launched on, and that memory outside of the CPU's is taken from; None: the CPU alone."""

    values: tuple[Value, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]
    n_inputs: int
    n_bound: int
    arena_bytes: int
    constants: Program | None = None
    n_scalars: int = 0
    undo: tuple[tuple[int, CallKernel], ...] = ()
    """(instruction number, kernel): a call that fails in that instruction or later runs the kernels, last one first,
    which leaves the inputs as they were."""
    device: torch.device | None = None
    """The one accelerator that its kernels run on; None: the CPU alone."""
    device_arena_bytes: int = 0
    name: str = ""
    """Of what it computes, for profilers."""
    labels: tuple[tuple[tuple[int, str], ...], ...] = ()
    """Of each call, those that the user put around what it computes, outermost first, each with the number of the time
    that he did; () if there are none at all."""
    facts: Callable[[], Sequence[StepFacts]] | None = field(default=None, compare=False, repr=False)
    """Makes the facts of its calls, in order, when somebody looks; None: nothing is known of them."""
    family: object = field(default=None, compare=False, repr=False)
    """The same in all programs that compute one graph, whatever the sizes and wherever its memory lies."""
    layout: Layout | None = field(default=None, compare=False, repr=False)
    """What it was placed of; None: not known."""

    def steps(self) -> tuple[StepFacts, ...]:
        """What each call among the instructions computes; () where nothing is known of them."""
        if self.facts is None:
            return ()
        calls = [
            (at, each) for at, each in enumerate(self.instructions) if isinstance(each, CallKernel | CallAten)
        ]
        return tuple(
            replace(fact, index=at, name=call.name)
            for (at, call), fact in zip(calls, self.facts(), strict=True)
        )
