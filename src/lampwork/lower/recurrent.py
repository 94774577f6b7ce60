"""Recurrent layers: lstm, gru, rnn_tanh, rnn_relu become products and `Recurrence`s.

    before:  y, h, c = lstm(x, (h0, c0), weights, …)
    after:   for each layer:  g = x @ w_ih.T + (b_ih + b_hh)          one product for all steps
                              y, memory = Recurrence(g, w_hh, h0, c0)
             h: the last step of each y;  c: what each memory holds

A layer of two directions is one product and one Recurrence over stacked weights. Of a packed sequence the product is
that of the elements there are, and the Recurrence takes from the batch sizes which of them a step has; these are data,
so they are checked when a kernel runs. With dropout in training the operator draws random numbers, and never comes
here: it is a call of ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lampwork.graph.spec import TensorSpec
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import GATES, Axis, CellKind, DType, Expr, Load, Local, Recurrence
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.dtypes import LOOP_DTYPES, compute_dtype
from lampwork.lower.matmul import gemm, merges
from lampwork.lower.packed_sequences import PackedSequence, packed_sequence
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import expand_to, permute, swap
from lampwork.records import record

rules = Registry()

_ALIGNMENT = 16
"""Units that a row of memory is padded to: a multiple of the lanes of every target."""
_MOST_PIECES = 16
"""Layers and directions up to which the last states are put together by one chain of choices."""

_D, _T, _B, _S, _N, _U, _K = (Index.var(name) for name in ("d", "t", "b", "s", "n", "u", "k"))


@record
class Weights:
    """Of one layer, with a leading dimension of the directions where there are two."""

    input: Array
    state: Array
    bias: Array | None
    late: Array | None
    project: Array | None


@record
class Network:
    """What is the same in all layers. `sequence`: whether the steps come before the batch in `input` and the result."""

    kind: CellKind
    layers: int
    directions: int
    units: int
    size: int
    steps: int
    batch: int
    sequence: bool
    packed: PackedSequence | None = None

    @property
    def point(self) -> tuple[Index, ...]:
        """Where the elements of the batch lie at a step of what has steps first."""
        return (_T, _B) if self.packed is None else (_S,)

    def outer(self, x: Array) -> tuple[int, ...]:
        """The sizes of `point`."""
        return (self.steps, self.batch) if self.packed is None else (x.shape[0],)


@rules.lowers("lstm.input")
def lstm(
    ctx: Context,
    x: Array,
    hx: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Sequence[Array]:
    return _network(ctx, "lstm", x, hx[0], hx[1], params, has_biases, num_layers, bidirectional, batch_first)


def _single(kind: CellKind) -> None:
    """The rule of a network without cells."""
    name = "gru" if kind == "gru" else f"rnn_{kind}"

    @rules.lowers(f"{name}.input")
    def rule(
        ctx: Context,
        x: Array,
        hx: Array,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Sequence[Array]:
        return _network(ctx, kind, x, hx, None, params, has_biases, num_layers, bidirectional, batch_first)

    @rules.lowers(f"{name}.data")
    def packed(
        ctx: Context,
        x: Array,
        batch_sizes: Array,
        hx: Array,
        params: Sequence[Array],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Sequence[Array]:
        return _network(ctx, kind, x, hx, None, params, has_biases, num_layers, bidirectional, batch_sizes)


for _kind in ("gru", "tanh", "relu"):
    _single(_kind)


@rules.lowers("lstm.data")
def packed_lstm(
    ctx: Context,
    x: Array,
    batch_sizes: Array,
    hx: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Sequence[Array]:
    return _network(ctx, "lstm", x, hx[0], hx[1], params, has_biases, num_layers, bidirectional, batch_sizes)


def _network(
    ctx: Context,
    kind: CellKind,
    x: Array,
    hx: Array,
    cx: Array | None,
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    order: bool | Array,
) -> Sequence[Array]:
    """order: whether the batch comes first, or the batch sizes of a packed sequence."""
    arrays = [x, hx, *([] if cx is None else [cx]), *params]
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) != 1 or not dtypes <= ctx.products:
        raise NotExpressible(f"a recurrent layer of {', '.join(sorted(dtypes))}")
    if any(0 in array.shape for array in arrays):
        raise NotExpressible("a recurrent layer without elements")
    directions = 2 if bidirectional else 1
    if num_layers * directions > _MOST_PIECES:
        raise NotExpressible(f"{num_layers} recurrent layers")
    per = len(params) // (num_layers * directions)
    units = params[1].shape[0] // GATES[kind]
    if isinstance(order, Array):
        steps, batch, sequence = order.shape[0], hx.shape[1], True
        packed = packed_sequence(ctx, order, x.shape[0], batch)
    else:
        steps, batch, sequence = x.shape[order], x.shape[1 - order], not order
        packed = None
    network = Network(kind, num_layers, directions, units, hx.shape[-1], steps, batch, sequence, packed)
    if any(type(size) is not int for size in (units, network.size)):
        raise NotExpressible("recurrent layers of a size that is open")
    hx, cx = _states(ctx, hx), None if cx is None else _states(ctx, cx)
    states: list[Array] = []
    cells: list[Array] = []
    for layer in range(num_layers):
        own = params[layer * directions * per : (layer + 1) * directions * per]
        weights = _weights(
            ctx, network, [own[n * per : (n + 1) * per] for n in range(directions)], has_biases
        )
        is_last = layer == num_layers - 1
        x, memory = _layer(ctx, network, layer, x, hx, cx, weights, is_last=is_last)
        for direction in range(directions):
            states.append(_last_state(network, x, direction, is_sequence=not is_last or network.sequence))
            cells.append(_cell(network, memory, direction))
    results = [x, _stacked(ctx, states, 1), *([] if cx is None else [_stacked(ctx, cells, 2)])]
    return tuple(results)


def _states(ctx: Context, array: Array) -> Array:
    """The array with its last dimension contiguous, as it is computed with."""
    strides, dtype = array.strides, compute_dtype(array.dtype)
    if array.dtype == dtype and strides is not None and strides[-1] == 1:
        return array
    return ctx.map(array.shape, e.cast(Load(array.buffer, array.index), dtype), hint="states", reads=[array])


# --- weights ----------------------------------------------------------------------------------------------------------


def _weights(ctx: Context, network: Network, params: Sequence[Sequence[Array]], has_biases: bool) -> Weights:
    """The weights of a layer; `params`: of each direction, as torch orders them."""
    project = [own[-1] for own in params] if len(params[0]) % 2 else None
    bias = late = None
    if has_biases:
        first, second = (_side_by_side(ctx, [own[n] for own in params]) for n in (2, 3))
        bias, late = _biases(ctx, network, first, second)
    return Weights(
        _side_by_side(ctx, [own[0] for own in params]),
        _side_by_side(ctx, [own[1] for own in params]),
        bias,
        late,
        None if project is None else _side_by_side(ctx, project),
    )


def _side_by_side(ctx: Context, arrays: Sequence[Array]) -> Array:
    """One array as it is, two stacked."""
    if len(arrays) == 1:
        return ctx.strided(arrays[0])
    first, second = arrays
    point = AXES[1 : first.rank + 1]
    condition = e.test("eq", e.index_value(AXES[0]), e.const(0, "i64"))
    value = e.where(condition, at(first, point), at(second, point))
    return ctx.map((2, *first.shape), value, hint="weights", reads=arrays)


def _biases(ctx: Context, network: Network, first: Array, second: Array) -> tuple[Array, Array | None]:
    """(what is added to the product with the input, what a gru adds to the last gate of the product with the state).

    The bias of the state can be added to the input's but for that gate, which `reset` is multiplied by.
    """
    column = AXES[first.rank - 1]
    early = network.units * 2
    mask = e.inside(column, None, early) if network.kind == "gru" else None
    dtype = compute_dtype(first.dtype)
    own, other = at(first, AXES[: first.rank]), at(second, AXES[: first.rank], mask)
    value = e.add(e.cast(own, dtype), e.cast(other, dtype))
    bias = ctx.map(first.shape, value, hint="bias", reads=[first, second])
    if network.kind != "gru":
        return bias, None
    shape = (*first.shape[:-1], network.units)
    late = e.cast(at(second, [*AXES[: first.rank - 1], column + early]), dtype)
    return bias, ctx.map(shape, late, hint="late", reads=[second])


# --- one layer --------------------------------------------------------------------------------------------------------


def _layer(
    ctx: Context,
    network: Network,
    layer: int,
    x: Array,
    hx: Array,
    cx: Array | None,
    weights: Weights,
    *,
    is_last: bool,
) -> tuple[Array, Array]:
    """(the states of all steps, memory)."""
    directions, units, size = network.directions, network.units, network.size
    gates = GATES[network.kind]
    is_sequence = layer > 0 or network.sequence
    product, product_is_sequence = _input_product(ctx, network, x, weights, is_sequence=is_sequence)
    width = directions * size
    packed = network.packed
    if is_last:
        spec = cast(tuple[TensorSpec, ...], ctx.val)[0]
        out = ctx.buffer(spec.shape, x.dtype, spec.strides, "0")
    else:
        out = ctx.buffer((*network.outer(x), width), x.dtype, None, f"layer{layer}")
    place = network.point if not is_last or network.sequence else (_B, _T)
    memory = memory_of(
        ctx,
        network.kind,
        directions,
        network.batch,
        max(units, size),
        compute_dtype(x.dtype),
        has_projection=weights.project is not None,
    )
    stacked = (_D,) if directions > 1 else ()
    first = _D + layer * directions
    steps = network.point if product_is_sequence else (_B, _T)
    ctx.emit(
        Recurrence(
            network.kind,
            out.buffer,
            memory.buffer,
            Axis("d", as_index(directions)),
            Axis("t", as_index(network.steps)),
            Axis("b", as_index(network.batch)),
            Axis("n", as_index(gates * units)),
            Axis("u", as_index(units)),
            Axis("k", as_index(size)),
            at(product, (*stacked, *steps, _N)),
            at(weights.state, (*stacked, _N, _K)),
            at(hx, (first, _B, _K)),
            None if cx is None else at(cx, (first, _B, _U)),
            None if weights.late is None else at(weights.late, (*stacked, _U)),
            None if weights.project is None else at(weights.project, (*stacked, _K, _U)),
            (*place, _D * size + _K),
            s=None if packed is None else Axis("s", as_index(packed.total)),
            count=None if packed is None else at(packed.count, (_T,)),
            start=None if packed is None else at(packed.start, (_T,)),
        )
    )
    return out, memory


def _input_product(
    ctx: Context, network: Network, x: Array, weights: Weights, *, is_sequence: bool
) -> tuple[Array, bool]:
    """(x @ w.T + bias of shape (directions if there are two, outer…, gates * units), whether steps come first)."""
    dims = x.rank - 1
    if not merges(x, dims) and dims == 1:
        x = ctx.materialise(x, "rows")
    if not merges(x, dims):
        turned = permute(x, (1, 0, 2))
        if merges(turned, 2):
            x, is_sequence = turned, not is_sequence
        else:
            x = ctx.materialise(x, "rows")
    rows = x.shape[:dims]
    columns = weights.input.shape[-2]
    several = network.directions > 1
    batch = (network.directions,) if several else ()
    acc = Local("acc", compute_dtype(x.dtype))
    value: Expr = acc
    if weights.bias is not None:
        point = (Index.var("b0"), Index.var("n")) if several else (Index.var("n"),)
        value = e.add(acc, at(weights.bias, point))
    product = gemm(
        ctx,
        expand_to(x, (*batch, *x.shape)) if several else x,
        swap(weights.input, -2, -1),
        (*batch, *rows, columns),
        batch=batch,
        rows=rows,
        epilogue=value,
        hint="gates",
        dtype=acc.dtype,
    )
    return product, is_sequence


def memory_of(
    ctx: Context,
    kind: CellKind,
    directions: int,
    batch: int,
    units: int,
    dtype: DType,
    *,
    has_projection: bool = False,
) -> Array:
    """Where a Recurrence keeps its states. Rows are a bit longer than their parts, so that those of a power of two do
    not fall on the same lines of the cache."""
    parts = (3 if kind == "lstm" else 2) + has_projection
    padded = -(-units // _ALIGNMENT) * _ALIGNMENT
    row = parts * padded + _ALIGNMENT
    return ctx.buffer((directions, batch, parts, padded), dtype, (batch * row, row, padded, 1), "memory")


# --- the last states --------------------------------------------------------------------------------------------------


def _last_state(network: Network, out: Array, direction: int, *, is_sequence: bool) -> Array:
    """The state after the last step of a direction: (batch, size)."""
    if network.packed is not None and direction == 0:
        row = Index.indirect(at(network.packed.last, (AXES[0],)), network.packed.total)
        return Array(out.buffer, (network.batch, network.size), (row, AXES[1]), None)
    if network.packed is not None:
        index = (AXES[0], AXES[1] + network.size)
        return Array(out.buffer, (network.batch, network.size), index, None)
    step = as_index(0 if direction else network.steps - 1)
    column = AXES[1] + direction * network.size
    point = (step, AXES[0], column) if is_sequence else (AXES[0], step, column)
    index = at(out, point).index
    return Array(out.buffer, (network.batch, network.size), index, None)


def _cell(network: Network, memory: Array, direction: int) -> Array:
    """The cell after the last step of a direction: (batch, units)."""
    index = at(memory, (as_index(direction), AXES[0], as_index(2), AXES[1])).index
    return Array(memory.buffer, (network.batch, network.units), index, None)


def _stacked(ctx: Context, pieces: Sequence[Array], result: int) -> Array:
    """The pieces, one for each layer and direction, as a result of the node."""
    if result not in ctx.wanted:
        return ctx.nothing()
    spec = cast(tuple[TensorSpec, ...], ctx.val)[result]
    number = AXES[0]
    value: Load | Expr | None = None
    for n, piece in reversed(list(enumerate(pieces))):
        here = e.test("eq", e.index_value(number), e.const(n, "i64"))
        load = at(piece, AXES[1:3], here if len(pieces) > 1 else None)
        value = load if value is None else e.where(here, load, value)
    assert value is not None
    return ctx.map(spec.shape, e.cast(value, LOOP_DTYPES[spec.dtype]), spec.strides, str(result))
