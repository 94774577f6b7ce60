"""What capture hands on: a `Region`, with its sources, guards and recipe. Plain data; `runtime` makes C++ of it.

A *source* says where a value came from at call time. A *guard* is a condition on a source. A *recipe* is the list of
steps that builds what the caller sees (the result, and effects on outside objects) from the program's outputs.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from lampwork import pristine
from lampwork.display import Shown
from lampwork.errors import Location
from lampwork.graph.islands import Placed, Sharding
from lampwork.graph.symbols import Condition, SymbolicFloat
from lampwork.records import record

# --- sources ----------------------------------------------------------------------------------------------------------


@record
class Arg(Shown):
    """The i-th positional argument of the call, as passed (before binding to parameters)."""

    index: int


@record
class Kwarg(Shown):
    """A keyword argument of the call, as passed."""

    name: str


@record(eq=False)
class Known(Shown):
    """An object that is the same on every call: the module, the function, a globals dict, a closure cell.
    Compared by identity of `value`."""

    value: Any
    name: str

    def _brief(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@record(eq=False)
class Unwritten(Known):
    """Where there is nothing: of a text that shows the data of a tensor. `value`: the graph break that looking into the
    text is. Nothing may be guarded there, and no recipe leads there."""


@record
class Attr(Shown):
    """getattr(base, name)."""

    base: Source
    name: str


@record
class Slot(Shown):
    """What base holds in an attribute that `__slots__` of its class made."""

    base: Source
    descriptor: types.MemberDescriptorType


@record
class DictItem(Shown):
    """dict.__getitem__(base, key): globals, instance dicts, module tables. key is compared by equality."""

    base: Source
    key: Any


@record
class Item(Shown):
    """base[key] for a list or tuple (integer key)."""

    base: Source
    key: int


@record
class CellContents(Shown):
    """cell.cell_contents of a closure cell."""

    base: Source


@record
class InstanceDict(Shown):
    """base.__dict__."""

    base: Source


@record
class Result(Shown):
    """base(): the state behind a function without arguments (a weak reference, a getter of the process's state)."""

    base: Source


Source = Arg | Kwarg | Known | Attr | Slot | DictItem | Item | CellContents | InstanceDict | Result


def root_of(source: Source) -> Arg | Kwarg | Known:
    """What a call gives, or the known object, that a source was reached from."""
    while not isinstance(source, (Arg, Kwarg, Known)):
        source = source.base
    return source


# --- guards -----------------------------------------------------------------------------------------------------------

GuardKind = Literal[
    "type",  # type(x) is expected
    "is",  # x is expected
    "equals",  # type(x) is type(expected) and x == expected  (int, float incl. nan and -0.0, str, bytes, dtype, ...)
    "len",  # len(x) == expected (list, tuple, dict and their subclasses)
    "keys",  # tuple(x) == expected, in order (dict)
    "missing_key",  # expected not in x (dict)
    "missing_attr",  # not hasattr(x, expected)
    "tensor",  # expected: TensorGuard
    "same",  # x is the object at the source `expected` (two names for one tensor)
    "distinct",  # x is not the object at the source `expected`
    "storage_distinct",  # tensors at x and at the source `expected` do not overlap in memory
    "mro",  # x.__mro__ is expected, item by item (a class)
    "class_attr",  # expected: ClassAttr, what the class x or one of its bases has under a name
    "function",  # expected: FunctionState of the Python function x
    "predicate",  # expected(x) is true; Python, slow, last resort
]


@record
class TensorGuard(Shown):
    """Exact type, dtype, device, sizes, strides, requires_grad; layout and dispatch keys as at capture.
    A None in sizes or strides is not compared."""

    type: type
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    requires_grad: bool


@record
class ClassAttr(Shown):
    """What a look-up of `name` along the MRO of a class finds, unbound; `missing`: nothing."""

    name: str
    found: Any
    missing: bool = False


@record
class FunctionState(Shown):
    """The slots of a Python function that say what a call of it does, beside its closure and globals."""

    code: types.CodeType
    defaults: tuple[Any, ...] | None
    kwdefaults: dict[str, Any] | None

    @staticmethod
    def of(function: types.FunctionType) -> FunctionState:
        return FunctionState(function.__code__, function.__defaults__, function.__kwdefaults__)


@record
class Guard(Shown):
    """`line` is the user's line that made the guard needed, for printing and recompile records."""

    source: Source
    kind: GuardKind
    expected: Any = None
    line: Location | None = None


@record
class Symbol(Shown):
    """A number that may differ from call to call: a size or stride of a tensor, a Python int (exactly `int`), or a
    Python float (exactly `float`), whose symbol is the int64 of the same bits.

    `negated`: the symbol stands for minus the value, so that what is negative has a positive symbol too.
    `hint`: the symbol's value on the call that was captured. `marked`: the user said that it differs.
    """

    name: str
    source: Source
    kind: Literal["size", "stride", "int", "float"]
    dim: int = -1
    negated: bool = False
    hint: int = 0
    marked: bool = False


@record
class GlobalState(Shown):
    """Process and thread state that every entry is guarded on. `backends`: whether torch may use its flash, memory
    efficient and math kernels of attention and oneDNN, whether deterministic mode only warns, whether autocast keeps
    cast weights, whether oneDNN may compute products and convolutions of float32 in bfloat16, and cuBLAS products of
    float32 in TF32."""

    grad_enabled: bool
    inference_mode: bool
    autocast_cpu: bool
    autocast_dtype: torch.dtype
    default_dtype: torch.dtype
    deterministic: bool
    backends: tuple[bool, ...] = (True, True, True, True, False, True, False, False, False)

    @staticmethod
    def now() -> GlobalState:
        return GlobalState(
            pristine.is_grad_enabled(),
            pristine.is_inference_mode_enabled(),
            pristine.is_autocast_enabled("cpu"),
            pristine.get_autocast_dtype("cpu"),
            pristine.get_default_dtype(),
            pristine.are_deterministic_algorithms_enabled(),
            (
                torch._C._get_flash_sdp_enabled(),
                torch._C._get_mem_efficient_sdp_enabled(),
                torch._C._get_math_sdp_enabled(),
                torch._C._get_mkldnn_enabled(),
                pristine.is_deterministic_algorithms_warn_only_enabled(),
                pristine.is_autocast_cache_enabled(),
                *(torch._C._get_fp32_precision_getter("mkldnn", op) == "bf16" for op in ("matmul", "conv")),
                torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32",
            ),
        )


# --- recipes ----------------------------------------------------------------------------------------------------------

StepKind = Literal[
    "output",  # payload: number of the program output (a tensor)
    "source",  # payload: Source, evaluated before any effect is replayed
    "symbol",  # payload: Index over the region's symbols; gives an int
    "const",  # payload: the object itself
    "tuple",  # args: steps of the items
    "list",
    "dict",  # args: key, value, key, value, ...
    "call",  # args[0] is the function, the rest its arguments; effects and rebuilt objects are calls
]


@record
class Step(Shown):
    """`args` are numbers of earlier steps."""

    kind: StepKind
    payload: Any = None
    args: tuple[int, ...] = ()


@record
class Recipe(Shown):
    """All steps run in order; the call returns the value of step `result`."""

    steps: tuple[Step, ...]
    result: int


# --- records ----------------------------------------------------------------------------------------------------------


@record
class Record(Shown):
    """One graph break, refusal or recompilation. Logs, warnings, explain and errors print this same record.

    `module`: the module whose `forward` ran on that line, such as `encoder.layer.3 (Linear)`; "" if that is what was
    compiled, or there is none. `values`: of a recompilation what a version needs and what the call has, where the two
    can be told apart."""

    code: str
    cause: str
    fix: str
    file: str
    line: int
    function: str = ""
    module: str = ""
    values: tuple[str, ...] = ()

    @property
    def location(self) -> Location:
        return Location(self.file, self.line, self.function, self.module)

    def __str__(self) -> str:
        inside = f", {self.module}" if self.module else ""
        text = f"[{self.code}] {self.file}:{self.line} in {self.function}{inside}: {self.cause}"
        return f"{text}\n  fix: {self.fix}" if self.fix else text


@dataclass(slots=True, weakref_slot=True, repr=False)
class Region(Shown):
    """One captured stretch of a function, from its start (or a resume point) to its return or its graph break.

    `graph`: functional ATen (see graph.verify); one placeholder per `inputs` source, then one per `bound` tensor, in
    that order; its output node returns a flat tuple: the program outputs that `recipe` and `mutations` use.
    `mutations`: (input number among all placeholders, output number): that output is copied into that placeholder's
    tensor after the region ran. `versions`: how many times eager moves on the version of each of these.
    `apart`: output numbers of what eager does not call a view. `pieces`: of views of which one operator gave several.
    `fresh_versions`: (output number, version) of those in memory of the region's own that it writes in place.
    `islands`: the calls on DTensors in `graph`. `dtensors`: numbers of the inputs that are DTensors, and trained, of
    which the graph has the local tensors, each with what takes how its gradient is sharded.
    `graph` is None if the region does no tensor work.
    `n_args`, `kwarg_names`: the shape of the call; an entry is only tried for calls of the same shape.
    `guards` are checked on every call. `slow_guards` look at known objects only, through the dicts of `versioned`:
    they are checked when the version tag of one of those dicts has moved, or (the `tensor` guards, on bound tensors)
    when a bound tensor's data pointer has. The version tag of each dict of `versioned` is guarded.
    `symbols`: the integers that the region leaves open; the first `n_values` of them are those that the graph depends
    on, the others occur in `conditions` only, which must hold for the region to be right. Compiling the graph may
    still add conditions. `derived`: floats that programs read as further symbols, by name, their bits as an int.
    """

    graph: fx.Graph | None
    inputs: tuple[Source, ...]
    bound: tuple[torch.Tensor, ...]
    bound_names: tuple[str, ...]
    guards: tuple[Guard, ...]
    state: GlobalState
    recipe: Recipe
    mutations: tuple[tuple[int, int], ...]
    n_args: int
    kwarg_names: tuple[str, ...]
    slow_guards: tuple[Guard, ...] = ()
    versioned: tuple[dict[Any, Any], ...] = ()
    breaks: tuple[Record, ...] = ()
    name: str = ""
    symbols: tuple[Symbol, ...] = ()
    conditions: Sequence[Condition] = ()
    n_values: int = 0
    derived: Mapping[str, SymbolicFloat] = field(default_factory=dict[str, SymbolicFloat])
    stats: dict[str, float] = field(default_factory=dict[str, float])
    versions: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    fresh_versions: tuple[tuple[int, int], ...] = ()
    islands: tuple[Placed, ...] = ()
    dtensors: tuple[tuple[int, Sharding | None], ...] = ()
