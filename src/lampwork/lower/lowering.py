"""`lower_graph`: an ATen graph becomes definitions of the loop language, node by node, by the table of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import torch
from torch import fx

from lampwork import logs
from lampwork.errors import LampworkError, LoweringError
from lampwork.graph.collectives import is_start, is_wait, started_by
from lampwork.graph.devices import CPU, is_on, kernel_device
from lampwork.graph.layouts import of_rows, operands, packed, reads_alike
from lampwork.graph.spec import TensorSpec
from lampwork.graph.totality import may_raise
from lampwork.loops.ir.nodes import FLOAT8, Buffer, Definition, DType, Opaque, View
from lampwork.lower import devices, extern, float8, narrow, pairs, random, views
from lampwork.lower.arrays import Array, as_view, indices_of, whole
from lampwork.lower.context import (
    CALLED,
    IN_FLOAT32,
    NO_VARIANTS,
    PRODUCTS,
    VARIED_PRODUCTS,
    Context,
    InBf16,
)
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.lower.registry import Lowering, NotExpressible, Rule
from lampwork.lower.table import PRODUCTS as VARIED
from lampwork.lower.table import rules_for
from lampwork.lower.writes import Undo, Writes, find_writes
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import storage_root, view_base
from lampwork.standard import operator

Values = dict[fx.Node, Lowering | pairs.Pairs]


@record
class Output:
    """One result of the graph: `buffer` as it is, or seen through `view` (whose buffer is the same)."""

    buffer: Buffer
    view: View | None = None


@record
class Lowered:
    """A graph in the loop language.

    `constant`: the definitions of nodes under `meta["constant"]`, which read bound placeholders and each other only;
    `definitions`: all others. Both in topological order; buffers of the former that the latter read are the constants.
    `placeholders`: one buffer per placeholder of the graph, None where nothing reads it.
    `undo`: what takes back the writes among the definitions, in their order.
    `device`: what the definitions run on. `elsewhere`: the buffers that are on another device.
    `made_for`: by the name of a buffer, that of the node that it was made for.
    """

    definitions: list[Definition]
    placeholders: list[Buffer | None]
    outputs: list[Output]
    constant: list[Definition]
    undo: list[Undo] = field(default_factory=list[Undo])
    device: torch.device = CPU
    elsewhere: dict[str, torch.device] = field(default_factory=dict[str, torch.device])
    made_for: dict[str, str] = field(default_factory=dict[str, str])


def lower_graph(
    graph: fx.Graph,
    products: frozenset[DType] = PRODUCTS,
    tiled_scores: int = 0,
    variants: Mapping[str, str] = NO_VARIANTS,
    in_bf16: InBf16 = IN_FLOAT32,
    mutations: Sequence[tuple[int, int]] = (),
    *,
    views: Sequence[tuple[int, int]] = (),
    templates: bool = True,
    atomics: frozenset[DType] = frozenset(),
    grouped: frozenset[DType] = PRODUCTS,
    standalone: bool = False,
) -> Lowered:
    """Lower a functional ATen graph (graph.verify says what that is; every tensor node has a spec in meta["val"]).

    products: the dtypes whose matrix products become Gemms; those of others are calls of ATen.
    tiled_scores: how many scores a head of attention has at least that becomes an Attention.
    variants: by the name of a node, the variant of the Gemm or Attention that it becomes; CALLED for a call of ATen.
        Without templates a product with one becomes a Gemm, and others are calls.
    in_bf16: which products of float32 are computed in bfloat16.
    mutations: (placeholder number, output number): that output is the placeholder's new content.
    views: (output number, placeholder number): the caller is to have that output as a view of the placeholder's new
        content, so it may lie in its memory.
    templates: whether there are any, for definitions that are no loops.
    atomics: the dtypes of which kernels combine values with memory in any order.
    grouped: the dtypes whose products of groups of rows become Gemms.
    standalone: whatever can be is a loop or a template, also where a call of ATen would be faster.

    Definitions are for one device (`kernel_device`); what reads or makes tensors on another one is a call of ATen.

    Raises LoweringError for a node that neither a rule nor a call of its operator can express.
    """
    device = kernel_device(graph)
    if variants and not templates:
        products = VARIED_PRODUCTS
    ctx = Context(products, tiled_scores, variants, in_bf16, device, templates, atomics, grouped, standalone)
    rules = rules_for(device, templates=templates, updates=bool(atomics))
    writes, written = find_writes(graph, mutations)
    on_pairs = pairs.find(graph) if device == CPU else frozenset[fx.Node]()
    shown = _shown_by_views(graph)
    values: Values = {}
    placeholders: list[Buffer | None] = []
    outputs: list[Output] = []
    for node in graph.nodes:
        if node.op == "call_function":
            lowered = _on_pairs(ctx, node, values) if node in on_pairs else None
            lowered = _lower_node(ctx, node, values, writes, rules) if lowered is None else lowered
            values[node] = _laid_out_as_told(ctx, node, lowered) if node in shown else lowered
        elif node.op == "placeholder":
            array = _placeholder(ctx, node)
            values[node] = array
            placeholders.append(array.buffer if node.users else None)
            is_ours = not array.is_opaque and array.buffer.name not in ctx.elsewhere
            if node in written and is_ours and array.dtype not in FLOAT8:
                writes.enter(array.buffer)
        elif node.op == "output":
            results = cast(tuple[Any, ...], node.args[0])
            contents = {output for _, output in mutations}
            seen_in = {number: _content(results, values, writes, mutations, place) for number, place in views}
            outputs = [
                _output(ctx, result, values, writes, seen_in.get(number), is_content=number in contents)
                for number, result in enumerate(results)
            ]
        else:
            raise LoweringError(f"{node.op} node {node.name} in a graph that should have none")
    lowered = Lowered(
        ctx.main, placeholders, outputs, ctx.constant, writes.undo, device, ctx.elsewhere, ctx.made_for
    )
    if logs.enabled("loops"):
        logs.emit(
            "loops",
            f"lowered {len(values)} nodes to {len(ctx.main)} definitions and {len(ctx.constant)} constant ones",
        )
    return lowered


def _shown_by_views(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes of whose memory a view leaves the graph: where that lies, and what shares it, shows."""
    output = graph.output_node()
    results = cast(tuple[Any, ...], output.args[0])[: output.meta.get("n_shown")]
    shown = (node for node in results if isinstance(node, fx.Node) and view_base(node) is not None)
    return frozenset(map(storage_root, shown))


def _laid_out_as_told(ctx: Context, node: fx.Node, value: Lowering | pairs.Pairs) -> Lowering | pairs.Pairs:
    """The value in a buffer of its own with the strides of its spec, so that all its views are views of that one."""
    spec = node.meta["val"]
    if not isinstance(value, Array) or value.is_opaque or not isinstance(spec, TensorSpec):
        return value
    is_all = value.offset == 0 and value.buffer.shape == indices_of(value.shape)
    if is_all and value.strides is not None and _same_strides(value.shape, value.strides, spec.strides):
        return value
    ctx.enter(node.name, spec, constant=False)
    return ctx.materialise(value, "shown", spec.strides)


def _on_pairs(ctx: Context, node: fx.Node, values: Values) -> Array | pairs.Pairs:
    """The value of a node that is computed on pairs of real numbers."""
    ctx.enter(node.name, node.meta["val"], constant=False)
    return pairs.lower(ctx, node, [values[arg] if isinstance(arg, fx.Node) else arg for arg in node.args])


def _placeholder(ctx: Context, node: fx.Node) -> Array:
    spec = node.meta["val"]
    ctx.enter(node.name, spec, constant=False)
    name = ctx.unique(node.name)
    if node.meta.get("bound"):
        ctx.bound.add(name)
        ctx.fixed.add(name)
    if isinstance(spec, TensorSpec) and spec.device != ctx.device:
        ctx.elsewhere[name] = spec.device
    if not isinstance(spec, TensorSpec) or spec.dtype not in LOOP_DTYPES or node.meta.get("opaque"):
        return Array(Opaque(name), (), (), None)
    buffer = Buffer(
        name,
        LOOP_DTYPES[spec.dtype],
        indices_of(spec.shape),
        indices_of(spec.strides),
    )
    return whole(buffer, spec.shape, spec.strides)


def _lower_node(
    ctx: Context, node: fx.Node, values: Values, writes: Writes, rules: Mapping[str, Rule]
) -> Lowering:
    target = node.target
    if target is operator.getitem:
        source = cast(tuple[Array, ...], values[cast(fx.Node, node.args[0])])
        return source[cast(int, node.args[1])]
    if not isinstance(target, torch._ops.OpOverload):
        raise LoweringError(
            f"{node.name} calls {target}, which is no ATen operator", location=node.meta.get("location")
        )
    val = node.meta.get("val")
    wanted = _wanted(node) if isinstance(val, tuple) else frozenset[int]()
    constant = bool(node.meta.get("constant"))
    random = bool(node.meta.get("random")) or is_start(target)
    ctx.enter(node.name, val, constant=constant, wanted=wanted, random=random, raises=may_raise(node))
    seen: list[bool] = []
    # What loops cannot hold, such as complex numbers, lies as ATen lays it out, by what it is given.
    if "operands" in node.meta or not _is_plain(node):
        values = _laid_out(ctx, node, values)
    args = [_value(ctx, arg, values, seen) for arg in node.args]
    kwargs = {key: _value(ctx, arg, values, seen) for key, arg in node.kwargs.items()} if node.kwargs else {}
    try:
        if node in writes.chain and True not in seen:
            written = writes.lower(ctx, node, args, kwargs)
            if written is not None:
                return written
        if True not in seen and _is_plain(node):
            # The constant part runs once per set of weights: ATen's ready kernels beat ours, which would have to be
            # compiled first. Views stay views, and cost nothing.
            here = is_on(val, ctx.device)
            viewed = not here or (node.meta.get("constant") and not ctx.standalone)
            rule = (views.rules.rules if viewed else rules).get(target.name())
            if rule is None and ctx.variant and not viewed:
                rule = VARIED.get(target.name())
            if rule is not None and ctx.variant != CALLED:
                given = devices.given(ctx, target, args, kwargs) if here else (args, kwargs)
                main, fixed = len(ctx.main), len(ctx.constant)
                try:
                    made = rule(ctx, *given[0], **given[1])
                    if not here:
                        devices.check_view(ctx, made, len(ctx.main) > main or len(ctx.constant) > fixed)
                    narrow.note(ctx, target, args, made)
                    return made
                except NotExpressible as reason:
                    del ctx.main[main:], ctx.constant[fixed:]
                    ctx.called_because = str(reason)
                    if logs.enabled("loops"):
                        logs.emit("loops", f"{node.name}: {target} is called through ATen: {reason}")
        if (
            target is torch.ops.aten.view_as_complex.default
            and ctx.device == CPU
            and isinstance(args[0], Array)
        ):
            return pairs.Pairs(args[0], ctx.spec).as_complex(ctx)
        if is_start(target):
            ctx.started[node.name] = (*args, *kwargs.values())
        elif is_wait(target):
            return extern.waited(ctx, args[0], ctx.started.get(started_by(node).name, ()))
        ctx.called_because = ctx.called_because or _why_called(ctx, node)
        made = extern.fallback(ctx, target, args, kwargs, opaque=bool(node.meta.get("opaque")))
        narrow.note(ctx, target, args, made)
        devices.note(ctx, node, made)
        return made
    except LampworkError as error:
        if error.location is None and node.meta.get("location") is not None:
            raise type(error)(error.cause, fix=error.fix, location=node.meta["location"]) from error
        raise


def _why_called(ctx: Context, node: fx.Node) -> str:
    """Why a node is a call of ATen, where no rule was asked or had an answer of its own."""
    if is_start(node.target) or is_wait(node.target):
        return "a collective"
    if not _is_plain(node):
        if node.meta.get("random") or node.meta.get("effect"):
            return "its random numbers or effects are ATen's own"
        return "loops cannot hold its result"
    if node.meta.get("constant"):
        return "it is computed once for a set of weights, where compiling it would take longer"
    if not is_on(node.meta["val"], ctx.device):
        return "it is on another device than most of its graph"
    return "there is no rule that makes it a loop"


def _wanted(node: fx.Node) -> frozenset[int]:
    """Which results of a node of several are read."""
    return frozenset(cast(int, user.args[1]) for user in node.users if user.target is operator.getitem)


def _is_plain(node: fx.Node) -> bool:
    """Whether the loop language can hold the results of the node, which is no effect, and random only where the rule
    draws as the node does."""
    meta = node.meta
    if meta.get("opaque") or meta.get("effect"):
        return False
    if meta.get("random") and cast(Any, node.target).name() not in random.rules.rules:
        return False
    val = meta.get("val")
    specs: tuple[Any, ...] = cast(tuple[Any, ...], val) if isinstance(val, tuple) else (val,)
    return all(spec is None or spec.dtype in LOOP_DTYPES for spec in specs) and float8.is_plain(node, specs)


def _laid_out(ctx: Context, node: fx.Node, values: Values) -> Values:
    """The values of the node's operands, each in memory as its spec says, for an operator that minds strides."""
    found: Values = {}
    for operand in operands(node):
        array, spec = values[operand], operand.meta["val"]
        if isinstance(array, Array) and isinstance(spec, TensorSpec) and not array.is_opaque:
            strides = array.strides
            if strides is None or not (
                reads_alike(node, replace(spec, strides=strides), spec)
                if of_rows(node)
                else _same_strides(array.shape, strides, spec.strides)
            ):
                array = ctx.materialise(array, strides=packed(spec).strides)
        found[operand] = array
    return found


def _value(ctx: Context, arg: Any, values: Values, opaque: list[bool]) -> Any:
    """The argument with arrays in place of nodes; `opaque` receives True for each opaque array among them."""
    if isinstance(arg, fx.Node):
        value = values[arg]
        if isinstance(value, pairs.Pairs):
            value = value.as_complex(ctx)
        if isinstance(value, Array) and value.is_opaque:
            opaque.append(True)
        return value
    if isinstance(arg, list):
        return [_value(ctx, item, values, opaque) for item in cast(list[Any], arg)]
    if isinstance(arg, tuple):
        return tuple(_value(ctx, item, values, opaque) for item in cast(tuple[Any, ...], arg))
    return arg


def _content(
    results: Sequence[object],
    values: Values,
    writes: Writes,
    mutations: Sequence[tuple[int, int]],
    place: int,
) -> Buffer | None:
    """The buffer of a placeholder's new content, if writes made it."""
    for written, output in mutations:
        node = results[output]
        array = values[node] if isinstance(node, fx.Node) else None
        if written == place and isinstance(array, Array) and not array.is_opaque and writes.is_whole(array):
            return array.buffer
    return None


def _output(
    ctx: Context,
    node: object,
    values: Values,
    writes: Writes,
    seen_in: Buffer | None,
    *,
    is_content: bool,
) -> Output:
    """`is_content`: the result is a placeholder's new content, which nobody gets to see but in that tensor. `seen_in`:
    the new content of the placeholder that the caller is to have the result as a view of."""
    if not isinstance(node, fx.Node):
        raise LoweringError(f"the graph returns {node!r}, which is no tensor")
    array = values[node]
    if isinstance(array, pairs.Pairs):
        array = array.as_complex(ctx)
    if not isinstance(array, Array):
        raise LoweringError(f"the graph returns {node.name}, which is a list of tensors")
    if array.is_opaque:
        return Output(array.buffer)
    if is_content and writes.is_whole(array):
        return Output(array.buffer)
    if array.buffer == seen_in and array.strides is not None:
        # Its strides are those of a view of the placeholder, which may have gaps that what is computed has not.
        return Output(array.buffer, as_view(array))
    spec = cast(TensorSpec, node.meta["val"])
    ctx.enter(node.name, spec, constant=False)
    computed = array.buffer.name in ctx.fixed and array.buffer.name not in ctx.bound
    # Neither a computed constant nor the memory of an input must leave the program: the caller may write to it.
    if (
        computed
        or writes.made(array.buffer)
        or array.strides is None
        or not _same_strides(array.shape, array.strides, spec.strides)
    ):
        array = _copied(ctx, array, spec.strides)
    buffer = array.buffer
    if (
        # A view that changes nothing is a tensor of its own all the same.
        view_base(node) is None
        and array.offset == 0
        and buffer.strides == indices_of(spec.strides)
        and buffer.shape == indices_of(array.shape)
    ):
        return Output(buffer)
    return Output(array.buffer, as_view(replace(array, strides=spec.strides)))


def _copied(ctx: Context, array: Array, strides: tuple[int, ...]) -> Array:
    """A copy that lies in memory of its own by these strides: elements that are one there are copied once."""
    once = tuple(1 if stride == 0 else size for size, stride in zip(array.shape, strides, strict=True))
    copy = views.expand_to(ctx.copied(replace(array, shape=once), strides, "result"), array.shape)
    if copy.strides is None or not _same_strides(array.shape, copy.strides, strides):
        raise LoweringError(f"a result with strides {strides} cannot be copied, only one with {copy.strides}")
    return copy


def _same_strides(shape: tuple[int, ...], have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Whether two layouts put every element at the same place; strides of single elements do not matter."""
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, have, want, strict=True))
