"""A piece as an ONNX model.

Where every operator has a rule of the backends' (`backends/onnx/`) and all sizes are numbers, those rules write it: its
nodes have module paths in their names. Otherwise torch's own exporter writes it, from the program of `torch.export`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, fx

from lampwork.backends.onnx.builder import IR_VERSION, OPSET, Builder, element_type
from lampwork.backends.onnx.convert import converted, supports, value_info
from lampwork.errors import ExportError, text_of
from lampwork.exports.compared import compare
from lampwork.exports.naming import unique
from lampwork.exports.onnx_graph import Prepared, prepared
from lampwork.exports.pieces import Piece, module_of, results_of
from lampwork.exports.program import exported_program
from lampwork.graph.concrete import symbol_names
from lampwork.rewriting.schema import packet_name
from lampwork.verdict import No
from lampwork.version import __version__
from lampwork.written import write_with

MOST_INSIDE = 1_500_000_000
"""Bytes of weights up to which they are in the file: a message of protobuf ends at 2 GB."""
LEAST_OUTSIDE = 1024
"""Bytes from which a weight goes to the file beside it, if there is one."""


def save(piece: Piece, target: Path, path: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Write a piece to `target`, to be moved to `path`; gives notes, and the files beside it.

    Raises:
        ExportError: an operator has no ONNX form, or torch's is wrong.
    """
    model, notes = onnx_model(piece)
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > MOST_INSIDE
    beside: tuple[Path, ...] = ()
    if large:
        # Written as a whole, and first: a model without its data would be of no use.
        file = target.with_name(f"{path.name}.data")
        write_with(file, lambda data: _move_out(model, file.name, data), "the export", ExportError)
        beside = (file,)
    target.write_bytes(model.SerializeToString())
    _check(piece, str(target) if large else model)
    return notes, beside


def _check(piece: Piece, model: onnx.ModelProto | str) -> None:
    """
    Args:
        model: its path, where it may be too large for one message.

    Raises:
        ExportError: onnx finds fault with it.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # of onnx's own, which share no class
        raise ExportError(
            f"onnx does not take the model of {piece.name}: {_innermost(error)}",
            fix="write .pt2, or export a module in it with `module=`",
        ) from error


def _move_out(model: onnx.ModelProto, name: str, file: Path) -> None:
    """Put the weights of a model into a file that stands beside it under `name`."""
    with file.open("wb") as data:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < LEAST_OUTSIDE:
                continue
            entries = {"location": name, "offset": data.tell(), "length": len(tensor.raw_data)}
            data.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))


def onnx_model(piece: Piece) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model of a piece with its weights, and notes.

    Raises:
        ExportError: an operator has no ONNX form.
    """
    found = prepared(piece)
    missing = _without_rule(found)
    opened = symbol_names(piece.graph) & piece.sizes.keys()
    if not missing and not opened:
        return _Conversion(piece, found).model(), ()
    why = _listed(missing)
    if importlib.util.find_spec("onnxscript") is None:
        if not missing:
            fixed = "sizes are those of the call: to leave them open needs the package onnxscript"
            return _Conversion(piece, found).model(), (fixed,)
        raise ExportError(
            f"Lampwork has no ONNX form of {why}",
            fix="pip install onnxscript: torch's exporter then writes them",
        )
    try:
        model, notes = _by_torch(piece)
    except Exception as error:
        said = f"torch.onnx.export says: {_innermost(error)}"
        if not missing:
            raise ExportError(
                f"the sizes of {piece.name} cannot be left open. {said}",
                fix="export what was compiled for fixed sizes: lampwork.compile(model, dynamic=False)",
            ) from error
        raise ExportError(
            f"{piece.name} has no ONNX form. Lampwork has none of {why}; {said}",
            fix="export a module without them with `module=`, or write .pt2",
        ) from error
    notes += compare(piece, model)
    reason = f"Lampwork has no ONNX form of {why}" if missing else "sizes are left open"
    return model, (f"written by torch.onnx.export, as {reason}", *notes)


def _without_rule(graph: Prepared) -> dict[str, str]:
    """The operators that no rule of ours writes -> why."""
    found: dict[str, str] = {}
    for node in graph.calls:
        verdict = supports(node)
        if isinstance(verdict, No):
            found.setdefault(packet_name(node.target), verdict.reason)
    return found


def _listed(missing: Mapping[str, str]) -> str:
    """`linear, relu (the dtype float16); sort (it has no rule)`."""
    names: dict[str, list[str]] = {}
    for name, reason in missing.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(each)} ({reason})" for reason, each in names.items())


def _innermost(error: BaseException) -> str:
    """The first line of what made an error of torch's exporter, which tells its steps."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(text_of(error).splitlines()), type(error).__name__)


def _by_torch(piece: Piece) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    program, notes = exported_program(piece, plain=True)
    names: Any = {"input_names": list(piece.inputs), "output_names": list(piece.outputs)}
    made: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    model = made.model_proto
    _rename_nodes(model)
    _rename_sizes(model)
    return model, notes


def _rename_nodes(model: onnx.ModelProto) -> None:
    """Put the module paths, which torch's exporter keeps aside, in the names of nodes."""
    for node in model.graph.node:
        found = next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "[]")
        scopes: list[str] = ast.literal_eval(found)
        module = scopes[-2] if len(scopes) > 1 else ""
        node.name = f"/{module.replace('.', '/')}/{node.op_type}" if module else f"/{node.op_type}"
    names = unique(node.name for node in model.graph.node)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name


def _rename_sizes(model: onnx.ModelProto) -> None:
    """Name open sizes after the input that has them, where torch numbers them."""
    names: dict[str, str] = {}
    for info in model.graph.input:
        for dim, size in enumerate(info.type.tensor_type.shape.dim):
            if size.dim_param:
                names.setdefault(size.dim_param, f"{info.name}_dim{dim}")
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in info.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), size.dim_param)


_GIVEN = ("input:", "output:", "weight:", "known:")
"""How names of what no rule makes begin while the model is made: no rule makes such names."""


@dataclass(slots=True)
class _Conversion:
    """Writes a graph by the rules of the backends."""

    piece: Piece
    prepared: Prepared
    names: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    values: dict[fx.Node, Tensor] = field(default_factory=dict[fx.Node, Tensor])
    weights: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def model(self) -> onnx.ModelProto:
        piece, graph = self.piece, self.prepared.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        inputs, bound = placeholders[: len(piece.inputs)], placeholders[len(piece.inputs) :]
        self.names.update({node: f"input:{name}" for node, name in zip(inputs, piece.inputs, strict=True)})
        self.names.update({node: f"weight:{name}" for node, name in zip(bound, piece.weights, strict=True)})
        self.values.update(zip(bound, (tensor.detach() for tensor in piece.tensors), strict=True))

        builder = Builder(self._name, self.values.get, checking=False)
        for node, value in self.prepared.known.items():
            self.names[node] = f"known:{node.name}"
            self.values[node] = value
        for node in self.prepared.calls:
            self._emit(node, builder)
        outputs = {
            f"output:{name}": node for name, node in zip(piece.outputs, results_of(graph), strict=True)
        }
        for name, node in outputs.items():
            builder.nodes.append(helper.make_node("Identity", [self._name(node)], [name], name="/Identity"))

        final = self._final_names(builder)
        large = [
            _initializer(final[name], value) for name, value in {**self.weights, **builder.baked}.items()
        ]
        made = helper.make_graph(
            builder.nodes,
            piece.name,
            [value_info(final[self.names[node]], node.meta["val"]) for node in inputs],
            [value_info(final[name], node.meta["val"]) for name, node in outputs.items()],
            [*builder.small, *large],
        )
        return helper.make_model(
            made,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="lampwork",
            producer_version=__version__,
        )

    def _name(self, node: fx.Node) -> str:
        name = self.names[node]
        if node in self.values:
            self.weights[name] = self.values[node]
        return name

    def _emit(self, node: fx.Node, builder: Builder) -> None:
        """Write one call, and say in its nodes where it comes from."""
        start = len(builder.nodes)
        results = converted(node, builder)
        for made in builder.nodes[start:]:
            _describe(made, node)
        if not isinstance(node.meta["val"], tuple):
            self.names[node] = results[0]
            return
        for user in node.users:
            self.names[user] = results[cast(int, user.args[1])]

    def _final_names(self, builder: Builder) -> Mapping[str, str]:
        """Put names in the model that are unique: of what goes in and out its own, of weights their module paths if
        nothing of that has them. Gives the name that each had before -> its name."""
        made = [name for node in builder.nodes for name in node.output if not name.startswith(_GIVEN)]
        inside = [*(tensor.name for tensor in builder.small), *builder.baked, *made]
        # Inputs and outputs first: callers pass them by name.
        given = (
            [f"input:{name}" for name in self.piece.inputs],
            [f"output:{name}" for name in self.piece.outputs],
        )
        order = [*given[0], *given[1], *self.weights, *inside]
        plain = (name.partition(":")[2] if name.startswith(_GIVEN) else name for name in order)
        final = dict(zip(order, unique(plain), strict=True))
        for tensor in builder.small:
            tensor.name = final[tensor.name]
        numbered = unique(node.name for node in builder.nodes)
        for node, name in zip(builder.nodes, numbered, strict=True):
            node.name = name
            for side in (node.input, node.output):
                for place, before in enumerate(side):
                    side[place] = final[before] if before else ""
        return final


def _describe(made: onnx.NodeProto, node: fx.Node) -> None:
    """The module path in the name, and the line of the program."""
    module = module_of(node) or ""
    made.name = f"/{module.replace('.', '/')}/{made.op_type}" if module else f"/{made.op_type}"
    entries = {"lampwork.operator": packet_name(node.target), "lampwork.module": module}
    location = node.meta.get("location")
    if location is not None:
        made.doc_string = str(location)
        entries["lampwork.line"] = location.line_text
    for key, value in entries.items():
        if value:
            made.metadata_props.add(key=key, value=value)


def _initializer(name: str, value: Tensor) -> onnx.TensorProto:
    dense = value.detach().cpu().contiguous()
    return TensorProto(
        name=name,
        data_type=element_type(dense.dtype),
        dims=dense.shape,
        raw_data=dense.numpy().tobytes(),
    )
