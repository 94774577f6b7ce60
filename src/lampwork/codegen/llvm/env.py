"""`Env`: what names stand for where code is emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from lampwork.codegen.llvm.builder import Value
from lampwork.loops.ir.bounds import Facts
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis
from lampwork.records import record


@record
class VectorAxis:
    """The loop variable that runs along the lanes: lane l stands at variable + l.

    `mask`, if any, is false in the lanes past the end of the loop: nothing is read, written or checked there.
    `aligned`: the variable is a multiple of this at lane 0.
    """

    name: str
    lanes: int
    mask: Value | None = None
    aligned: int = 1


@record
class Env:
    """What names stand for where an expression is emitted.

    `indices`: loop variables (i64; the vector variable's is its value in lane 0). `sizes`: symbolic sizes (i64).
    `locals`: names bound by Let and ReduceLoop. `bases`: the address of each buffer, by name. `extents` and `facts`:
    what is known of the loop variables (see bounds.py).
    """

    indices: Mapping[str, Value] = field(default_factory=dict[str, Value])
    sizes: Mapping[str, Value] = field(default_factory=dict[str, Value])
    locals: Mapping[str, Value] = field(default_factory=dict[str, Value])
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    vector: VectorAxis | None = None
    extents: Mapping[str, Index] = field(default_factory=dict[str, Index])
    facts: Facts = ()

    @property
    def lanes(self) -> int:
        return 1 if self.vector is None else self.vector.lanes

    def starts_at_multiple(self, index: Index, number: int) -> bool:
        """Whether an index that lanes count up is a multiple of `number` in lane 0."""
        if self.vector is None or self.vector.aligned % number:
            return False
        return all(scale % number == 0 for _, scale in index.without(self.vector.name).terms)

    def with_index(self, name: str, value: Value) -> Env:
        return replace(self, indices={**self.indices, name: value})

    def in_loop(self, axis: Axis, *facts: Index) -> Env:
        """Inside the loop over `axis`, whose body runs only where `facts` are at least 0."""
        extents = {**self.extents, axis.name: axis.extent}
        return replace(self, extents=extents, facts=(*self.facts, *facts) if facts else self.facts)

    def with_local(self, name: str, value: Value) -> Env:
        return replace(self, locals={**self.locals, name: value})
