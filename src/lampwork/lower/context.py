"""`Context`: what a rule works with. It collects definitions and gives buffers their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import torch

from lampwork.graph.devices import CPU
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.loops.ir.definitions import reads_of
from lampwork.loops.ir.expr import definition_exprs, requires
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import (
    Attention,
    Buffer,
    Definition,
    DType,
    Expr,
    Extern,
    Gemm,
    Load,
    Map,
    Opaque,
    Reduce,
    ReduceOp,
    View,
)
from lampwork.lower import exprs
from lampwork.lower.arrays import AXES, Array, as_view, axes_of, indices_of, whole
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.lower.registry import NotExpressible
from lampwork.records import record

PRODUCTS: frozenset[DType] = frozenset(("f32", "f64"))
VARIED_PRODUCTS: frozenset[DType] = frozenset(("f32", "f16", "bf16"))
"""Of the products that may have a variant where there are no templates otherwise."""
CALLED = "ATen"
"""The variant of a node that stays a call of ATen."""
NO_VARIANTS: Mapping[str, str] = MappingProxyType({})


@record
class Narrow:
    """A matrix of float32 [N, K] as `source` (int8, of the same strides) times `scale` ([N, 1]; None: 1)."""

    source: Array
    scale: Array | None = None


@record
class InBf16:
    """Which products of float32 round their operands to bfloat16, and add in float32."""

    products: bool = False
    convolutions: bool = False


IN_FLOAT32 = InBf16()


class Context:
    """The state of lowering one graph: the definitions so far, and the node at hand (`name`, `spec`).

    products: the dtypes that a matrix product may become a Gemm in. tiled_scores: scores of a head from which attention
    becomes an Attention. variants: of the templates that nodes become, by node. in_bf16: which products of float32 are
    computed in bfloat16. device: what the definitions run on, calls of ATen aside. templates: whether there are any for
    it, and a definition may refuse some of its data. atomics: the dtypes that it sums in memory. grouped: as
    `products`, of groups of rows. standalone: no rule chooses a call of ATen that it could do without.
    """

    def __init__(
        self,
        products: frozenset[DType] = PRODUCTS,
        tiled_scores: int = 0,
        variants: Mapping[str, str] = NO_VARIANTS,
        in_bf16: InBf16 = IN_FLOAT32,
        device: torch.device = CPU,
        templates: bool = True,
        atomics: frozenset[DType] = frozenset(),
        grouped: frozenset[DType] = PRODUCTS,
        standalone: bool = False,
    ) -> None:
        self.device = device
        self.atomics = atomics
        self.grouped = grouped
        self.templates = templates
        self.standalone = standalone
        self.elsewhere: dict[str, torch.device] = {}
        """The buffers that are on another device, which calls of ATen alone can read."""
        self.numbers: dict[str, bool | int | float] = {}
        """By the buffer of a tensor on another device that is one number, or of a copy of it: that."""
        self.moved: set[str] = set()
        """The buffers of numbers that are on the CPU, copied to the device: eager's kernels take some otherwise."""
        self._here: dict[View, Array] = {}
        self.in_bf16 = in_bf16
        self.products = products
        self.variants = variants
        self.tiled_scores = tiled_scores
        self.main: list[Definition] = []
        self.constant: list[Definition] = []
        self.bound: set[str] = set()
        """Buffers of bound placeholders."""
        self.fixed: set[str] = set()
        """Buffers that depend on bound tensors only: those themselves, and what the constant part computes."""
        self.narrow: dict[str, Narrow] = {}
        """By the buffer of a fixed matrix in float32 that was made of an int8 one: that, for products to read."""
        self.name: str = ""
        self.val: TensorSpec | tuple[TensorSpec | None, ...] | None = None
        self.wanted: frozenset[int] = frozenset()
        self.random = False
        self.raises = True
        self.started: dict[str, tuple[Any, ...]] = {}
        """By the name of a node that starts a collective, what it is given."""
        self.made_for: dict[str, str] = {}
        """By the name of a buffer, that of the node that it was made for."""
        self._target: list[Definition] = self.main
        self._names: dict[str, int] = {}

    # --- the node at hand ---------------------------------------------------------------------------------------------

    def enter(
        self,
        name: str,
        val: TensorSpec | tuple[TensorSpec | None, ...] | None,
        *,
        constant: bool,
        wanted: frozenset[int] = frozenset(),
        random: bool = False,
        raises: bool = True,
    ) -> None:
        """Turn to a node. `wanted`: of a node of several results, those that are read. `random`: it draws numbers, or
        communicates. `raises`: it raises for some data."""
        self.name = name
        self.val = val
        self.wanted = wanted
        self.random = random
        self.raises = raises
        self.called_because = ""
        self._target = self.constant if constant else self.main

    @property
    def spec(self) -> TensorSpec:
        """The spec of the node's only result."""
        if not isinstance(self.val, TensorSpec):
            raise TypeError(f"{self.name} has no single result")
        return self.val

    @property
    def first(self) -> TensorSpec:
        """The spec of the node's first result."""
        spec = self.val[0] if isinstance(self.val, tuple) else self.val
        if spec is None:
            raise TypeError(f"{self.name} has no result")
        return spec

    @property
    def dtype(self) -> DType:
        """The node's dtype."""
        return LOOP_DTYPES[self.spec.dtype]

    @property
    def variant(self) -> str:
        """What was chosen for the node by measurement; "": nothing."""
        return self.variants.get(self.name, "")

    @property
    def in_constant_part(self) -> bool:
        return self._target is self.constant

    # --- definitions --------------------------------------------------------------------------------------------------

    def emit(self, definition: Definition) -> None:
        if not isinstance(definition, Extern):
            self._check_runs(definition)
        if self.variant and isinstance(definition, Gemm | Attention):
            definition = replace(definition, variant=self.variant)
        self._target.append(definition)

    def _check_runs(self, definition: Definition) -> None:
        """Raises NotExpressible for loops that the device cannot run."""
        if self.elsewhere and not self.elsewhere.keys().isdisjoint(reads_of(definition)):
            raise NotExpressible("operands on another device")
        if not self.templates and any(map(requires, definition_exprs(definition))):
            raise NotExpressible("data that may be refused, which calls of ATen report")

    def or_eager(self, value: Expr, condition: Expr) -> Expr:
        """`value`, where eager is to make the result instead unless `condition` holds: where loops cannot refuse data,
        it is `value` all the same."""
        return exprs.require(value, condition) if self.templates else value

    def unique(self, name: str) -> str:
        count = self._names.get(name)
        if count is None:
            self._names[name] = 1
            self.made_for[name] = self.name
            return name
        self._names[name] = count + 1
        return self.unique(f"{name}_{count}")

    def buffer(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        strides: tuple[int, ...] | None = None,
        hint: str = "",
    ) -> Array:
        """A new buffer, contiguous unless `strides` are given, named for the node and `hint`."""
        if strides is None or any(
            stride == 0 and size > 1 for stride, size in zip(strides, shape, strict=True)
        ):
            strides = contiguous_strides(shape)
        name = self.unique(f"{self.name}_{hint}" if hint else self.name)
        if self.in_constant_part:
            self.fixed.add(name)
        return whole(Buffer(name, dtype, indices_of(shape), indices_of(strides)), shape, strides)

    def opaque(self, hint: str = "") -> Array:
        """A tensor that only torch can read."""
        name = self.unique(f"{self.name}_{hint}" if hint else self.name)
        if self.in_constant_part:
            self.fixed.add(name)
        return Array(Opaque(name), (), (), None)

    def nothing(self) -> Array:
        """In place of a result that is not wanted."""
        return Array(Buffer(f"{self.name}_unused", "u8", (), ()), (), (), ())

    def map(
        self,
        shape: tuple[int, ...],
        value: Expr,
        strides: tuple[int, ...] | None = None,
        hint: str = "",
        *,
        reads: Sequence[Array] = (),
    ) -> Array:
        """A new buffer holding `value` at every point (i0, i1, …) of `shape`.

        `reads`: the arrays that value loads, where all may be fixed: then the buffer is computed in the constant part,
        unless it depends on symbols.
        """
        if 0 in shape:
            value = exprs.const(0, value.dtype)
        target = self._target
        is_fixed = reads and all(array.buffer.name in self.fixed for array in reads)
        if is_fixed and all(type(size) is int for size in (*shape, *(strides or ()))):
            has_symbols = any(index.symbols() for index in value.indices())
            self._target = target if has_symbols else self.constant
        out = self.buffer(shape, value.dtype, strides, hint)
        self.emit(Map(out.buffer, axes_of(shape), out.index, value))
        self._target = target
        return out

    def result(self, value: Expr) -> Array:
        """The node's result: `value`, converted to its dtype, at every point of its shape, in its strides."""
        spec = self.spec
        return self.map(spec.shape, exprs.cast(value, LOOP_DTYPES[spec.dtype]), spec.strides)

    def reduce(
        self,
        op: ReduceOp,
        shape: tuple[int, ...],
        dims: Sequence[int],
        value: Expr,
        dtype: DType,
        *,
        finish: Expr | None = None,
        hint: str = "",
        strides: tuple[int, ...] | None = None,
    ) -> Array:
        """Reduce `value`, an expression over (i0, i1, …) of `shape`, over `dims` (not negative, sorted). The result
        has the remaining dimensions only; see `keep` for the others."""
        axes = axes_of(shape)
        reduced = set(dims)
        kept = [dim for dim in range(len(shape)) if dim not in reduced]
        out = self.buffer(tuple(shape[dim] for dim in kept), dtype, strides, hint)
        self.emit(
            Reduce(
                out.buffer,
                tuple(axes[dim] for dim in kept),
                tuple(axes[dim] for dim in dims),
                tuple(AXES[dim] for dim in kept),
                op,
                value,
                finish,
            )
        )
        return out

    def call_once(
        self, target: str, args: tuple[object, ...], shape: tuple[int, ...], dtype: DType, hint: str
    ) -> Array:
        """The contiguous result of an operator on fixed arrays (as Views), computed in the constant part."""
        before, self._target = self._target, self.constant
        out = self.buffer(shape, dtype, hint=hint)
        self.emit(Extern((out.buffer,), target, args, origin=self.name, raises=False))
        self._target = before
        return out

    # --- arrays in another form ---------------------------------------------------------------------------------------

    def materialise(
        self, array: Array, hint: str = "contiguous", strides: tuple[int, ...] | None = None
    ) -> Array:
        """A copy in a buffer of its own, contiguous unless `strides` are given. A copy of constant data is constant,
        unless it is on another device."""
        if array.buffer.name in self.elsewhere:
            return self._cloned(array, hint, strides)
        return self.map(array.shape, Load(array.buffer, array.index), strides, hint, reads=[array])

    def copied(self, array: Array, strides: tuple[int, ...], hint: str) -> Array:
        """A copy that each call makes in a buffer of its own."""
        if array.buffer.name in self.elsewhere:
            return self._cloned(array, hint, strides)
        return self.map(array.shape, Load(array.buffer, array.index), strides, hint)

    def _cloned(self, array: Array, hint: str, strides: tuple[int, ...] | None) -> Array:
        out = self.buffer(array.shape, array.dtype, strides, hint)
        self.elsewhere[out.buffer.name] = self.elsewhere[array.buffer.name]
        view = as_view(array)
        self.emit(Extern((out.buffer,), "aten::clone.default", (view,), origin=self.name, raises=False))
        return out

    def here(self, array: Array) -> Array:
        """A number that is on another device, on that of the definitions. Of constant data it is constant."""
        view = as_view(array)
        if (known := self._here.get(view)) is not None:
            return known
        before, self._target = (
            self._target,
            self.constant if array.buffer.name in self.fixed else self._target,
        )
        out = self.buffer((), array.dtype, hint="here")
        named = (("device", self.device),)
        self.emit(
            Extern((out.buffer,), "aten::_to_copy.default", (view,), named, origin=self.name, raises=False)
        )
        self._target = before
        self._here[view] = out
        self.moved.add(out.buffer.name)
        return out

    def narrowed(self, array: Array) -> Array:
        """A copy in bfloat16 in the same order, dense; of constant data it is constant."""
        if "bf16" not in self.products:
            raise NotExpressible("a product of float32 that is asked for in bfloat16")
        strides = dense_strides(array.shape, array.strides)
        value = exprs.cast(Load(array.buffer, array.index), "bf16")
        return self.map(array.shape, value, strides, "bf16", reads=[array])

    def strided(self, array: Array) -> Array:
        """The array in a form that has strides: itself where possible."""
        return array if array.strides is not None or array.is_opaque else self.materialise(array)


def dense_strides(shape: tuple[int, ...], strides: Sequence[int] | None) -> tuple[int, ...] | None:
    """Strides of a dense tensor whose dimensions lie in the order that `strides` have, if they are numbers; None:
    row-major."""
    if strides is None or not all(type(size) is int for size in (*shape, *strides)):
        return None
    found, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim)):
        found[dim] = step
        step *= max(shape[dim], 1)
    return tuple(found)


def keep(array: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """A reduction's result, put back into the rank of `shape` with the reduced `dims` of size 1."""
    reduced = set(dims)
    if not reduced:
        return array
    index: list[Index] = []
    strides: list[int] = []
    sizes: list[int] = []
    own = iter(array.strides or ())
    step = 1
    for dim in range(len(shape)):
        if dim in reduced:
            sizes.append(1)
            strides.append(0)
        else:
            index.append(AXES[dim])
            sizes.append(shape[dim])
            strides.append(next(own))
    for dim in reversed(range(len(shape))):
        if dim in reduced:
            strides[dim] = step
        else:
            step = strides[dim] * sizes[dim]
    return Array(array.buffer, tuple(sizes), tuple(index), tuple(strides), array.offset)


def count(shape: Sequence[int], dims: Sequence[int]) -> int:
    """How many elements one reduction over `dims` takes in."""
    return prod(shape[dim] for dim in dims)
