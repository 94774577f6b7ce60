"""One ATen graph as one ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import onnx
from onnx import TensorProto, helper
from torch import Tensor, fx

from lampwork.backends.onnx.boundary import Boundary, dense_order, plan_boundary
from lampwork.backends.onnx.builder import IR_VERSION, OPSET, Builder, NotConvertible, element_type
from lampwork.backends.onnx.call import Call, arguments
from lampwork.backends.onnx.table import rules
from lampwork.errors import BackendError
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.records import record
from lampwork.rewriting.schema import packet_name
from lampwork.standard import operator
from lampwork.verdict import No, Verdict, Yes


@record
class Converted:
    """`model` has an input for each placeholder number of `inputs`, in that order, and outputs for each of the
    boundary's roots, then one bool for each check. `baked`: the values of its large constants, by name, which are not
    in the model. `narrow`: placeholders whose integers must fit in 32 bits."""

    model: onnx.ModelProto
    baked: dict[str, Tensor]
    inputs: tuple[int, ...]
    outputs: tuple[str, ...]
    checks: int
    boundary: Boundary
    narrow: tuple[int, ...] = ()


def convert(graph: fx.Graph, bound: Sequence[Tensor], *, constants_as_inputs: bool = False) -> Converted:
    """Write a functional ATen graph with fixed sizes as an ONNX model, with the bound tensors as constants.

    before:  %x = input, %w = bound, %r = linear(%x, %w), %y = relu(%r)
    after:   y = Relu(Gemm(x, w, transB=1))                w in `baked`

    Args:
        graph: inputs come before bound placeholders.
        bound: a tensor for each bound placeholder.
        constants_as_inputs: declare the large constants as inputs of the model, else as external initializers.

    Raises:
        BackendError: a node has no ONNX form; `supports` would have said so.
    """
    return _Conversion(graph, bound).run(constants_as_inputs)


def supports(node: fx.Node) -> Verdict:
    """Whether `convert` takes the node."""
    if node.target is operator.getitem:
        return Yes()
    try:
        single_node(node)
    except NotConvertible as error:
        return No(str(error))
    return Yes()


def single_node(node: fx.Node) -> onnx.ModelProto:
    """A model of this one call, every operand an input.

    Raises:
        NotConvertible: it has no ONNX form.
    """
    inputs: dict[fx.Node, str] = {}

    def name_of(operand: fx.Node) -> str:
        _checked(operand.meta["val"])
        return inputs.setdefault(operand, f"input.{len(inputs)}")

    builder = Builder(name_of, lambda operand: None)
    results = converted(node, builder)
    specs = node.meta["val"] if isinstance(node.meta["val"], tuple) else (node.meta["val"],)
    outputs = [value_info(n, s) for n, s in zip(results, specs, strict=True)]
    declared = [value_info(name, operand.meta["val"]) for operand, name in inputs.items()]
    declared += [value_info(name, TensorSpec.of(value)) for name, value in builder.baked.items()]
    return _model(builder, declared, outputs)


def converted(node: fx.Node, builder: Builder) -> tuple[str, ...]:
    """Emit the nodes of one call; the names of its results.

    Raises:
        NotConvertible: it has no ONNX form.
    """
    rule = rules().get(cast(Any, node.target))
    if rule is None:
        raise NotConvertible("it has no rule")
    found = node.meta["val"]
    for spec in found if isinstance(found, tuple) else (found,):
        _checked(spec)
    for operand in node.all_input_nodes:
        if isinstance(operand.meta["val"], TensorSpec):
            _checked(operand.meta["val"])
    result = rule(builder, Call(node), *arguments(node, builder))
    return result if isinstance(result, tuple) else (result,)


def _checked(spec: Any) -> None:
    if not isinstance(spec, TensorSpec):
        raise NotConvertible("a result that is no tensor")
    element_type(spec.dtype)
    if spec.device.type != "cpu":
        raise NotConvertible(f"a tensor on {spec.device}")
    if any(hint_of(size) == 0 for size in spec.shape):
        raise NotConvertible("a tensor without elements")


def value_info(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    sizes = [int(hint_of(size)) for size in spec.shape]
    return helper.make_tensor_value_info(name, element_type(spec.dtype), sizes)


def _model(
    builder: Builder, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    made = helper.make_graph(builder.nodes, "part", inputs, outputs, builder.small)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


@dataclass(slots=True)
class _Conversion:
    graph: fx.Graph
    bound: Sequence[Tensor]
    names: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    inputs: dict[fx.Node, int] = field(default_factory=dict[fx.Node, int])
    used: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    values: dict[fx.Node, Tensor] = field(default_factory=dict[fx.Node, Tensor])
    builder: Builder = field(init=False)

    def run(self, constants_as_inputs: bool) -> Converted:
        self._number_placeholders()
        builder = Builder(self._name, self.values.get)
        self.builder = builder
        boundary = plan_boundary(self.graph, self.bound)
        for node in self._needed(boundary):
            try:
                self._emit(node, builder)
            except NotConvertible as error:
                raise BackendError(
                    f"{node.name} ({packet_name(node.target)}) has no ONNX form: {error}"
                ) from error
        outputs = [self._output(root, builder) for root in boundary.roots]
        declared = [value_info(name, node.meta["val"]) for node, name in self.used.items()]
        checks = list(dict.fromkeys(builder.checks))
        infos = [value_info(n, r.meta["val"]) for n, r in zip(outputs, boundary.roots, strict=True)]
        for info, root in zip(infos, boundary.roots, strict=True):
            order = dense_order(root.meta["val"])
            sizes = [root.meta["val"].shape[d] for d in order]
            info.CopyFrom(
                helper.make_tensor_value_info(info.name, element_type(root.meta["val"].dtype), sizes)
            )
        infos += [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in checks]
        model = _model(builder, declared, infos)
        _declare(model, builder.baked, constants_as_inputs)
        numbers = tuple(self.inputs[node] for node in self.used)
        return Converted(model, builder.baked, numbers, (*outputs, *checks), len(checks), boundary)

    def _number_placeholders(self) -> None:
        given = iter(self.bound)
        for number, node in enumerate(n for n in self.graph.nodes if n.op == "placeholder"):
            if node.meta.get("bound"):
                self.values[node] = next(given).detach()
            else:
                self.inputs[node] = number

    def _needed(self, boundary: Boundary) -> list[fx.Node]:
        """The calls that the roots depend on, in order."""
        seen: set[fx.Node] = set()
        work = list(boundary.roots)
        while work:
            node = work.pop()
            if node not in seen and node not in self.values:
                seen.add(node)
                work.extend(node.all_input_nodes)
        return [n for n in self.graph.nodes if n in seen and n.op == "call_function"]

    def _emit(self, node: fx.Node, builder: Builder) -> None:
        if node.target is operator.getitem:
            return  # its name is made with those of the call it reads
        results = converted(node, builder)
        if not isinstance(node.meta["val"], tuple):
            self.names[node] = results[0]
            return
        for user in node.users:
            if user.target is operator.getitem:
                self.names[user] = results[cast(int, user.args[1])]

    def _name(self, node: fx.Node) -> str:
        found = self.names.get(node)
        if found is None:
            if node in self.inputs:
                found = self.used[node] = f"input.{self.inputs[node]}"
            else:
                value = self.values.get(node)
                if value is None:
                    raise NotConvertible(f"{node.name} comes after what reads it")
                found = self.builder.tensor(value)
            self.names[node] = found
        return found

    def _output(self, root: fx.Node, builder: Builder) -> str:
        """A name of its own for what leaves the model, in the order in which eager lays it out in memory."""
        order = dense_order(root.meta["val"])
        name = self._name(root)
        if order != sorted(order):
            return builder.op("Transpose", name, perm=order)
        return builder.op("Identity", name)


def _declare(model: onnx.ModelProto, baked: dict[str, Tensor], as_inputs: bool) -> None:
    for name, value in baked.items():
        if as_inputs:
            model.graph.input.append(value_info(name, TensorSpec.of(value)))
            continue
        proto = model.graph.initializer.add()
        proto.name, proto.data_type = name, element_type(value.dtype)
        proto.dims.extend(value.shape)
        proto.data_location = TensorProto.EXTERNAL
        entry = proto.external_data.add()
        entry.key, entry.value = "location", "memory"
