"""What a schedule, a template or a pass has to know of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lampwork.codegen.llvm.types import compute_bits, product_dtype
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import ZERO, Index
from lampwork.loops.ir.nodes import Attention, Buffer, Definition, DType, Kernel, Template
from lampwork.loops.ir.winograd import TRANSFORMS
from lampwork.records import record

if TYPE_CHECKING:
    from lampwork import _C


class TileShape(NamedTuple):
    """A GEMM's tile: so many vectors of columns, and the most rows that leave registers for what they are made of.
    `cost`: the time of one multiply-add in it, against the best tile."""

    vectors: int
    rows: int
    cost: float = 1.0


@record
class Dot:
    """An instruction that multiplies `steps` neighbours along k, and adds the products to a number of 32 bits: those of
    a half type to a float32, those of int8 to an int32.

    emit: called with (builder, sums, left, right): vectors of as many 32-bit lanes each, `left` and `right` with
        `steps` numbers in a lane; gives the new sums.
    narrow: emits such sums rounded to `dtype`, called with (builder, sums), where there is an instruction that agrees
        with `emit` on subnormal numbers; gives None for a number of lanes that it does not have.
    factor: what the numbers are by then; None: `dtype`. Other ones are widened on the way.
    offset: added to each number on the left before; 128 makes an uint8 of an int8. The sums begin at -offset times the
        sums of B's columns then.
    """

    dtype: DType
    steps: int
    emit: Callable[[Any, Any, Any, Any], Any]
    narrow: Callable[[Any, Any], Any] | None = None
    factor: DType | None = None
    offset: int = 0


class TileCode(Protocol):
    """Emits the instructions of a unit with tile registers into one function.

    A tile is up to 16 rows of up to 64 bytes; rows and bytes of each register are what `configure` says. Strides are in
    bytes, integers are Python ints or i64 values.
    """

    def configure(self, shapes: Sequence[tuple[Any, int]]) -> None:
        """Give registers 0, 1, ... so many rows (1 to 16) of so many bytes each. All of them become zero."""
        ...

    def zero(self, tile: int) -> None:
        """All numbers of a register become zero."""
        ...

    def load(self, tile: int, pointer: str, stride: Any) -> None:
        """A register from memory: row r at pointer + r * stride."""
        ...

    def store(self, tile: int, pointer: str, stride: Any) -> None:
        """A register to memory."""
        ...

    def dot(self, sums: int, left: int, right: int) -> None:
        """sums[m, n] += the sum over j of left[m, j] * right[j, n], of words of several neighbours along k each."""
        ...

    def release(self) -> None:
        """Leave the registers as a function that does not know of them expects them: not in use."""
        ...


@record
class TileUnit:
    """A unit that multiplies whole tiles of two matrices in registers of its own: AMX.

    It shares the panels of B with the target's `Dot` of the same dtype and steps, which serves products of few rows.

    dtype: the operands'; sums are of 32 bits, as those of a `Dot`. steps: the neighbours along k in a word.
    code: what emits its instructions, given the builder of a function.
    """

    dtype: DType
    steps: int
    code: Callable[[Any], TileCode]


@record
class Target:
    """A machine that code is generated for, and what makes the code.

    Whoever schedules, picks a tile or decides on a rewrite asks here. A comparison with `name`, or a number of some
    machine anywhere else, is a field that is missing here. Targets are compared by value: equal ones share their
    compiled kernels.

    name: for people, and for the option `isa`.
    cpu, features: what the code generator is asked for; the cpu "native" is the one this runs on, with all it has.
    generate: makes the `CodeGenerator` of a target: the same one for equal targets.
    triple: LLVM's name of the machine; "" for this one. Code of a target with a triple is made and not loaded into this
        process, so it may be of a machine that this one is not.

    vector_bytes: of a vector register; 0 where there are none.
    registers: how many vector registers there are.
    cache_line: bytes that memory is fetched and prefetched by.
    ahead_bytes: how far before the load of a long row that is reduced the line is fetched, in buffers of at least
        `ahead_from` bytes: the hardware's own prefetch stays nearer, and starts again on each page. 0: it is not.
    stream_bytes: memory that a kernel touches from which its results go past the caches: they would be pushed out of
        the shared one before anything reads them, and a line that is written whole need not be fetched before.
    stream_fence: the intrinsic of LLVM's that orders such stores before what other threads read; "": there are no such
        stores.
    private_bytes: the largest buffer between the phases of a kernel that stays in a core's own cache.
    tile_side: of the tiles of scratch that transposed copies go through; 0: they do not.
    scratch_bytes: of a kernel's scratch, at most, which then has to be of a known size; None: any.
    stack_space: the address space that LLVM has the stack in.

    has_libm: code may call the C library, for the elementary functions that there is no code of our own for.
    has_fma: a product and a sum are one instruction, with one rounding.
    has_masks: loads and stores under a mask are as cheap as plain ones.
    has_f16c: float16 is converted by an instruction.
    multiplies_words: both halves of a product of 32-bit numbers are one instruction of 32-bit registers.
    has_maximum: the larger of two float32, or NaN if either is, is an instruction, and the smaller.
    has_bf16c: float32 is rounded to bfloat16 by an instruction, subnormal numbers too.
    halves: the half types with instructions for sums, products and larger ones of two numbers at a time.
    scale: emits x * 2**n of float32 vectors as one instruction, called with (builder, x, n); gives None for a number of
        lanes that it does not have. None: by integer arithmetic.
    exp2: emits 2**x of float32 as one instruction, called with (builder, x): within some two ulp for |x| <= 1/2, and
        within 2^-21 of itself beyond, infinity and 0 included. None: by a polynomial, as softplus is computed anyway,
        which would lose too much.
    divide: emits the quotient of float32 numbers to 2 ulp, called with (builder, a, b, tiny) as `Builder.quotient` is.
    is_subnormal: emits as one instruction which float32 numbers are subnormal, called with (builder, x); gives None for
        a number of lanes that it does not have.
    contract: any product and the sum that it goes into may be rounded once (numerics="fast").

    products: the dtypes that matrix products have templates for; those of others are ATen calls.
    dots: dot product instructions, one a dtype. Products of half types without one are computed in float32, of
        operands that are widened on the way; those of int8 need one.
    units: units with tile registers, one a dtype, for products that `dots` has an instruction for too.
    unit_rows: from so many rows of A such a unit is faster. unit_words: words along k of a panel of B that stays in the
        first-level cache while tiles of A pass by. unit_bytes: of rows of A that are copied, so that tiles can be read
        of them: they stay in the second-level cache, and are on the stack.
    tiles: those of a product, best first.
    few_rows: up to this many rows of A a product takes the time of its call and of reading B once: B stays as it lies.
    direct_rows: up to this many, B that lies in rows is read as it lies, on each pass over the rows of A again; with
        more it pays to copy a panel into scratch first, where it is one stream. A quarter as many where rows of B are
        a multiple of alias_bytes apart, and so in the same places of the caches.
    turned_tiles: those of a product that reads a constant B as it lies, and rows of A as lanes (turned.py): so many
        vectors of rows of A, and of columns of B `rows`. Without any, B is in panels.
    turned_rows: of A, at most: with more its panels leave the second-level cache.
    turned_columns: of a work item of such a product, and the least that it is worth it for.
    turned_half: the cost of a tile of half a vector, as those of `tiles`.
    turned_work: what packing a number of A costs, and what turning a sum, in multiply-adds.
    turned_loss: the part of a product's time that it is worth to have no copy of B.
    repacked_rows: what rearranging a panel of B at each call costs, in rows of A.
    dot_columns: columns of a work item of a product that is computed as dot products.
    sum_block: the longest chain of sums in one accumulator of a product. Longer ones are cut into blocks whose sums are
        added: rounding errors grow with the length of a chain, and so stay what they are in MKL's blocked GEMM. A block
        of a panel (48 x 192 floats) also fits the first-level cache.
    exact_block: the same for integers in panels, which are exact: it limits only the rows of A that wait in scratch.
    conv_rows: rows of a convolution's work item, at most: the pixels that they read stay in a core's own cache while
        one panel of weights after another passes over them.
    winograd: how many outputs at a time, in each dimension, minimal filtering of convolutions may compute; it rounds
        more (numerics="fast"). winograd_bytes: of transformed inputs and products of a work item, which should stay in
        the second-level cache, and are on the stack. winograd_tiles: of a work item, at most: each item reads all
        weights. weight_cost: what reading one of them costs, in multiplications.
    depthwise_lines, depthwise_columns: of a depthwise convolution's work item: the lines that it reads at several taps
        stay in the first-level cache, and neighbouring columns fill cache lines.
    gradient_bytes: of the sums of a work item of a convolution's weight gradient, which stay in the second-level cache,
        and are on the stack.
    packed_bytes: the largest constant B that is kept in panels. A copy of a larger one (a large vocabulary's embedding)
        costs more memory than it wins time: it is read once a call either way.
    edge_rows: for so many rows of A it counts how many columns of a product are past its last whole panel: fewer are
        computed as dot products, and of more these edges are too small a part.
    long_axis: elements from which an axis is long enough for vectors; along shorter ones they gain less, in proportion.
    least_items: iterations of a parallel loop below which threads have nothing to do.
    few_items: iterations of a parallel loop that are enough for the threads where more of them would cost something.
    many_items: iterations of a parallel loop above which more of them are of no use.
    kernel_work, thread_work, pack_work: operations that are worth a thread that waits for work, some 2 microseconds of
        them: in kernels made of loops, in products and other templates, and where B is rearranged.
    tiled_scores: scores of a head from which causal attention is a template of its own, and other attention with half
        as many more: fewer are faster as two products around a softmax.
    attention_few: up to this many queries attention takes the time of reading keys and values, as they lie.
    attention_few_keys: keys of a block of such, at most.
    attention_strip: queries of attention whose scores with a block of keys exist at a time, at most.
    attention_rows: queries that share the panels of a block of keys, at most. attention_keys: keys of a block, at most.
    attention_items: work items of attention that are enough for the threads.
    attention_bytes: of a block of keys and values in panels, and of the queries and results of a work item: both should
        stay in the second-level cache, and are on the stack.
    reorder_work: multiplications and additions of a product that take as long as putting one byte of a tensor into
        another order.
    bf16_work: multiplications from which a linear layer in bfloat16 counts as faster than one in float32; None where
        the processor has no instructions for bfloat16.
    convolved_last: the dtypes whose convolutions by ATen are products of whole tiles, with the channels as the
        innermost dimension; float32 only as TF32.
    product_tiles: how many tiles of a product by ATen are computed at a time. merged_bytes: of the weights, at most, of
        linear layers that become one: a second copy of larger ones costs more memory than calls are worth.
    atomics: the dtypes whose sums with memory, and of integers the larger and the smaller, are an instruction each that
        no other thread is seen in the middle of; of a half type on two neighbours. With any, kernels may combine values
        with elements in any order.
    neighbour_sums: those of which that is so of 16 bytes of neighbours at a time, each sum one of its own.
    processors: multiprocessors of a card; 0: threads that share nothing but memory. cluster: blocks of a card that may
        be one group of threads, at most; 1: it has no clusters.
    templates: whether there are any: without them products, convolutions, attention and recurrent layers are calls of
        ATen, and so is what refuses some of its data.
    standalone: templates and loops take all that they can, also where a call of ATen would be faster.
    """

    name: str
    cpu: str
    generate: Callable[[Target], CodeGenerator]
    vector_bytes: int
    registers: int
    features: str = ""
    triple: str = ""
    cache_line: int = 64
    ahead_bytes: int = 4096
    ahead_from: int = 1 << 20
    private_bytes: int = 1 << 16
    tile_side: int = 0
    scratch_bytes: int | None = None
    stack_space: int = 0
    stream_bytes: int = 1 << 25
    stream_fence: str = ""
    has_libm: bool = True
    has_fma: bool = False
    has_masks: bool = False
    has_f16c: bool = False
    has_bf16c: bool = False
    multiplies_words: bool = False
    has_maximum: bool = False
    halves: frozenset[DType] = frozenset()
    scale: Callable[[Any, Any, Any], Any] | None = None
    exp2: Callable[[Any, Any], Any] | None = None
    divide: Callable[[Any, Any, Any, bool], Any] | None = None
    is_subnormal: Callable[[Any, Any], Any] | None = None
    contract: bool = False
    products: frozenset[DType] = frozenset()
    dots: tuple[Dot, ...] = ()
    units: tuple[TileUnit, ...] = ()
    unit_rows: int = 8
    unit_words: int = 256
    unit_bytes: int = 512 << 10
    tiles: tuple[TileShape, ...] = ()
    few_rows: int = 4
    direct_rows: int = 256
    alias_bytes: int = 4096
    turned_tiles: tuple[TileShape, ...] = ()
    turned_rows: int = 256
    turned_columns: int = 96
    turned_half: float = 1.2
    turned_work: int = 9
    turned_loss: float = 0.03
    repacked_rows: int = 17
    dot_columns: int = 64
    sum_block: int = 192
    exact_block: int = 4096
    conv_rows: int = 512
    winograd: tuple[int, ...] = ()
    winograd_bytes: int = 768 << 10
    winograd_tiles: int = 32
    weight_cost: int = 6
    depthwise_lines: int = 8
    depthwise_columns: int = 64
    gradient_bytes: int = 160 << 10
    packed_bytes: int = 100 << 20
    edge_rows: range = range(8, 129)
    long_axis: int = 16
    least_items: int = 4
    few_items: int = 16
    many_items: int = 64
    kernel_work: int = 1 << 14
    thread_work: int = 1 << 18
    pack_work: int = 1 << 16
    tiled_scores: int = 1 << 14
    attention_few: int = 8
    attention_few_keys: int = 1024
    attention_strip: int = 96
    attention_rows: int = 512
    attention_keys: int = 384
    attention_items: int = 8
    attention_bytes: int = 1 << 18
    reorder_work: int = 12
    bf16_work: int | None = None
    convolved_last: frozenset[DType] = frozenset()
    product_tiles: int = 0
    merged_bytes: int = 16 << 20
    atomics: frozenset[DType] = frozenset()
    neighbour_sums: frozenset[DType] = frozenset()
    processors: int = 0
    cluster: int = 1
    templates: bool = True
    standalone: bool = False

    def alone(self) -> Target:
        """The same machine for code that there is no torch beside."""
        return replace(self, standalone=True)

    def relaxed(self) -> Target:
        """The same machine where fewer roundings and larger ones are allowed: numerics="fast"."""
        return replace(self, contract=True, winograd=self.winograd or tuple(TRANSFORMS))

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector, 1 or more; f16 and bf16 are computed in f32, and count as such."""
        return max(1, self.vector_bytes * 8 // max(compute_bits(dtype), 8))

    def fills(self, blocks: int) -> bool:
        """Whether so many blocks of equal work keep the multiprocessors of a card busy."""
        return True

    def pieces(self, results: int, *, along: bool) -> int:
        """Into how many pieces a reduction with so few results is cut, each with results of its own. `along`: one that
        reads memory along what it reduces."""
        return self.many_items

    def sum_lanes(self, dtype: DType) -> int:
        """Sums of a product of `dtype` in one vector."""
        return self.lanes(product_dtype(dtype))

    def dot(self, dtype: DType) -> Dot | None:
        """The dot product instruction of a half type or of int8, if there is one."""
        return next((dot for dot in self.dots if dot.dtype == dtype), None)

    def unit(self, dtype: DType) -> TileUnit | None:
        """The unit with tile registers for products of `dtype`, if there is one that reads the panels of `dot`."""
        dot = self.dot(dtype)
        if dot is None or dot.factor is not None:
            return None
        return next((unit for unit in self.units if unit.dtype == dtype and unit.steps == dot.steps), None)

    @property
    def grouped(self) -> frozenset[DType]:
        """The dtypes that products of groups of rows have a template for that is faster than calls of ATen: tile
        registers are not used there."""
        return frozenset(dtype for dtype in self.products if self.unit(dtype) is None)

    def steps(self, dtype: DType) -> int:
        """The numbers along k that products of `dtype` take at a time."""
        dot = self.dot(dtype)
        return 1 if dot is None else dot.steps

    def panel(self, dtype: DType) -> int:
        """Columns of the widest panel that a product of `dtype` computes at a time; 0 without templates."""
        vectors = 2 if self.unit(dtype) is not None else self.tiles[0].vectors
        return vectors * self.sum_lanes(dtype) if dtype in self.products else 0


@record
class MachineFunction:
    """A function in memory, of the ABI of `Kernel`. `owner` keeps the memory that `address` points into, where it has
    this `name`."""

    address: int
    owner: Any = field(repr=False, compare=False)
    name: str = field(default="", compare=False)


@record
class ForeignFunction:
    """A function of the ABI of `Kernel` for a machine that this process does not run on, by its name in the object code
    of `owner`. To ask it for its address raises CodegenError."""

    name: str
    owner: Any = field(repr=False, compare=False)

    @property
    def address(self) -> int:
        raise CodegenError(
            f"{self.name} is machine code that was made to be kept, not to run in this process",
            fix="save the program, and load it where it is to run",
        )


class Compiling(Protocol):
    """Machine code that threads may still be at work on."""

    def result(self) -> Any:
        """What keeps the code in memory, with its `addresses` by name. Raises CodegenError."""
        ...


@record
class PendingFunction:
    """A MachineFunction of the code that is `pending`. Asking for it waits, and raises CodegenError if it failed."""

    name: str
    pending: Compiling = field(repr=False)

    @property
    def address(self) -> int:
        return self.pending.result().addresses[self.name]

    @property
    def owner(self) -> Any:
        return self.pending.result()


HostFunction = MachineFunction | PendingFunction | ForeignFunction


@record
class DeviceFunction:
    """A kernel of a card, and how it is launched: lampwork.runtime.program.Launch, with a size that may be open.

    kernel: its image, which is loaded when a program for a device is made.
    block: threads of a block along x and y.
    per_block: iterations of the parallel loop that a cluster of blocks takes in one stride over the grid.
    shared: bytes of shared memory that a block is given, beside what the image itself asks for.
    cluster: blocks of a cluster. counters: words that the blocks count in.
    """

    kernel: _C.DeviceKernel = field(repr=False)
    block: tuple[int, int]
    per_block: int
    shared: Index
    cluster: int = 1
    counters: Index = ZERO

    @property
    def owner(self) -> _C.DeviceKernel:
        """What must live as long as something may launch it."""
        return self.kernel


@record
class DeviceRows:
    """A kernel of a card over the rows of a table of tensors (codegen/gpu/rows.py), launched by csrc/device_rows.cpp.

    threads: of a block. tile: elements of a row that a block takes.
    """

    kernel: _C.DeviceKernel = field(repr=False)
    threads: int
    tile: int


@record
class CompiledTemplate:
    """The function of a definition that is a `Template`.

    params, sizes: what it is called with, in order. extent: the range of its work items, each of `work` operations;
    `chunk` operations are worth a thread. text: what it was compiled from.
    """

    code: HostFunction | DeviceFunction
    params: tuple[Buffer, ...]
    sizes: tuple[Index, ...]
    extent: Index
    work: Index
    chunk: int
    text: str = field(repr=False)


class CodeGenerator(Protocol):
    """Machine code for one target. It remembers what it made: equal kernels are compiled once. Safe to use from many
    threads."""

    def prepare(self) -> None:
        """Load in the background what `compile` will need soon."""
        ...

    def compile_kernels(self, kernels: Sequence[Kernel]) -> Mapping[str, HostFunction]:
        """The function of every kernel, by name.

        Raises:
            CodegenError: there is no rule for something in a kernel.
        """
        ...

    def compile(
        self,
        kernels: Iterable[Kernel],
        templates: Sequence[Template],
        hints: Mapping[str, int],
        waits: bool = True,
    ) -> tuple[Mapping[str, HostFunction | DeviceFunction], list[CompiledTemplate]]:
        """The function of every kernel, by name, and those of definitions. `kernels` are made as they are taken: that
        is best done while threads compile the templates. `hints`: likely values of symbols, to choose tiles by.
        `waits`: no function is a PendingFunction.

        Raises:
            CodegenError: there is no rule for something in a kernel, or the templates do not support a definition.
        """
        ...

    def compile_rows(self, kernel: Kernel, flag: str | None = None) -> HostFunction | DeviceRows:
        """The function of a kernel whose parallel loop runs over a row of a table of tensors. Buffers of known size
        have one element. flag: such a buffer, of float32: where it is not 0, a kernel of a card does nothing.

        Raises:
            CodegenError: as `compile_kernels`.
        """
        ...

    def attends(self, attention: Attention) -> bool:
        """Whether there is a template for an attention, which is faster than two products around a softmax."""
        ...

    def prepack(
        self,
        main: Sequence[Definition],
        constant: Sequence[Definition],
        fixed: frozenset[str],
        hints: Mapping[str, int],
    ) -> tuple[list[Definition], list[Definition]]:
        """Both with the constant operands of products in the order that the templates want, where that pays: it is made
        in the constant part, and read in the main one. `fixed`: the buffers with the same data on every call. `hints`
        as in `compile`."""
        ...

    def texts(self, kernels: Sequence[Kernel]) -> list[str]:
        """What kernels are compiled from, once for equal ones, for people."""
        ...

    def assembly(self, text: str) -> str:
        """The assembly of such a text, for people."""
        ...
