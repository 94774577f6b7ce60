"""Artifacts written by hand: what exported models seldom have, and what is wrong in one place alone."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.codegen.llvm.jit import Jit

JSON = dict[str, Any]

_LOOP = """
define i64 @{name}(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
entry:
{loads}
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %latch ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
{body}
  br label %latch
latch:
  %next = add i64 %i, 1
  br label %head
done:
  ret i64 0
bad:
  ret i64 1
}}
"""


def _kernel(name: str, buffers: int, body: str) -> str:
    """A loop over [begin, end) with %i, the buffers %b0, %b1, ... and the size %n."""
    loads = [
        f"  %p{k} = getelementptr ptr, ptr %buffers, i64 {k}\n  %b{k} = load ptr, ptr %p{k}"
        for k in range(buffers)
    ]
    return _LOOP.format(name=name, loads="\n".join(loads), body=body)


def _binary(name: str, operation: str, right: str = "%i") -> str:
    """out[i] = a[i] operation b[right]."""
    body = f"""
  %qa = getelementptr float, ptr %b0, i64 %i
  %a = load float, ptr %qa
  %qb = getelementptr float, ptr %b1, i64 {right}
  %b = load float, ptr %qb
  %c = {operation} float %a, %b
  %qc = getelementptr float, ptr %b2, i64 %i
  store float %c, ptr %qc"""
    if right != "%i":
        body = f"  {right} = urem i64 %i, 4\n" + body
    return _kernel(name, 3, body)


_STEP = """
  %qa = getelementptr float, ptr %b0, i64 %i
  %a = load float, ptr %qa
  %c = fadd float %a, {by}
  %qc = getelementptr float, ptr %b1, i64 %i
  store float %c, ptr %qc"""

_GATHER = """
  %qi = getelementptr i64, ptr %b1, i64 %i
  %at = load i64, ptr %qi
  %fine = icmp ult i64 %at, 4
  br i1 %fine, label %take, label %bad
take:
  %qa = getelementptr float, ptr %b0, i64 %at
  %a = load float, ptr %qa
  %qc = getelementptr float, ptr %b2, i64 %i
  store float %a, ptr %qc"""

_FILL = """
  %n = load i64, ptr %sizes
  %f = sitofp i64 %n to float
  %qc = getelementptr float, ptr %b0, i64 %i
  store float %f, ptr %qc"""

_SINE = """
  %qa = getelementptr double, ptr %b0, i64 %i
  %a = load double, ptr %qa
  %c = call double @sin(double %a)
  %qc = getelementptr double, ptr %b1, i64 %i
  store double %c, ptr %qc"""

KERNELS = "\n".join(
    [
        "declare double @sin(double)",
        _binary("add_row", "fadd", "%row"),
        _binary("multiply", "fmul"),
        _binary("add", "fadd"),
        _kernel("up", 2, _STEP.format(by="1.0")),
        _kernel("down", 2, _STEP.format(by="-1.0")),
        _kernel("gather", 3, _GATHER),
        _kernel("fill", 1, _FILL),
        _kernel("sine", 2, _SINE),
    ]
)


def value(kind: str, shape: Any = (), strides: Any = None, dtype: str = "float32", **more: Any) -> JSON:
    if strides is None:
        strides = [4, 1] if len(shape) == 2 else [1] * len(shape)
    return {"kind": kind, "dtype": dtype, "shape": list(shape), "strides": list(strides), "offset": 0, **more}


def kernel(name: str, buffers: list[int], extent: Any, **more: Any) -> JSON:
    made = {"kernel": [0, name], "buffers": buffers, "sizes": [], "extent": extent, "work": 1, "chunk": 8}
    return {**made, "name": name, "outside": [], **more}


def layout(values: list[JSON], steps: list[JSON], outputs: list[int], **more: Any) -> JSON:
    kinds = [each["kind"] for each in values]
    made = {
        "values": values,
        "memory": [],
        "steps": steps,
        "outputs": outputs,
        "n_inputs": kinds.count("input"),
    }
    made |= {"n_bound": kinds.count("bound"), "keys": [], "scalars": [], "constants": None, "undo": []}
    return {**made, "name": "", "labels": [], "device": "cpu", **more}


def tensed(name: str, shape: Any, strides: Any = None, dtype: str = "float32") -> JSON:
    made = value("", shape, strides, dtype)
    return {"name": name, "dtype": dtype, "shape": made["shape"], "strides": made["strides"]}


def entry(inputs: list[JSON], outputs: list[JSON], **more: Any) -> JSON:
    arguments = {"args": [{"input": n} for n in range(len(inputs))], "kwargs": {}}
    result = {"tuple": [{"output": n} for n in range(len(outputs))]}
    made = {"inputs": inputs, "arguments": arguments, "symbols": [], "conditions": [], "weights": []}
    return {**made, "outputs": outputs, "result": result, "writes": [], "graph": "", **more}


S0 = [[1, ["s0"]]]
FOUR_S0 = [[4, ["s0"]]]
NUMBERED: JSON = {"name": "s0", "hint": 4, "min": 2, "max": 64, "input": 0, "dim": 0, "kind": "size"}


def entries() -> dict[str, tuple[JSON, JSON]]:
    """Each by name: what the manifest says of it, and its layout."""
    found: dict[str, tuple[JSON, JSON]] = {}
    # (x + 2 * row)**2, through the arena; its first column is a view of it.
    constants = layout(
        [value("input", [4], position=0), value("fresh", [4])], [kernel("add", [0, 0, 1], 4)], [1]
    )
    found["affine"] = (
        entry(
            [tensed("x", [S0, 4])],
            [tensed("square", [S0, 4]), tensed("column", [S0], [4])],
            symbols=[NUMBERED],
            conditions=[{"op": "==", "index": [[1, [["%", S0, 2]]]], "text": "s0 % 2 == 0"}],
            weights=[0],
            result={
                "dict": [
                    ["square", {"output": 0}],
                    ["column", {"output": 1}],
                    ["twice", {"number": [[2, ["s0"]]]}],
                ]
            },
        ),
        layout(
            [
                value("input", [S0, 4], position=0),
                value("bound", [4], position=0),
                value("constant", [4], position=0),
                value("arena", [S0, 4]),
                value("fresh", [S0, 4]),
                value("view", [S0], [4], base=4),
            ],
            [kernel("add_row", [0, 2, 3], FOUR_S0), kernel("multiply", [3, 3, 4], FOUR_S0)],
            [4, 5],
            keys=["s0"],
            memory=[[True, 3], [False, 3]],
            constants=constants,
        ),
    )
    copies = {"aten": "aten::copy_.default", "kwargs": [], "outs": [], "name": "write back to an input"}
    # count += 1, a weight.
    found["count"] = (
        entry([], [tensed("count", [1])], weights=[1], writes=[[0, 0]]),
        layout(
            [value("bound", [1], position=0), value("fresh", [1])],
            [kernel("up", [0, 1], 1), {**copies, "args": [{"ref": 0}, {"ref": 1}]}],
            [1],
        ),
    )
    # y += 1, then table[index], which takes y + 1 back if it fails.
    found["gather"] = (
        entry(
            [tensed("y", [4]), tensed("index", [2], dtype="int64")],
            [tensed("taken", [2])],
            weights=[0],
        ),
        layout(
            [
                value("input", [4], position=0),
                value("input", [2], dtype="int64", position=1),
                value("bound", [4], position=0),
                value("fresh", [2]),
            ],
            [kernel("up", [0, 0], 4, outside=[0]), kernel("gather", [2, 1, 3], 2)],
            [3],
            undo=[[0, kernel("down", [0, 0], 4, outside=[0])]],
        ),
    )
    # x += 1, then x, and two elements of it.
    found["viewed"] = (
        entry(
            [tensed("x", [3, 4])],
            [tensed("part", [2], [4]), tensed("x", [3, 4]), tensed("x.new", [3, 4])],
            writes=[[0, 2]],
            views=[[0, 0]],
            result={"tuple": [{"output": 0}, {"output": 1}]},
        ),
        layout(
            [
                value("input", [3, 4], position=0),
                value("fresh", [3, 4]),
                value("view", [2], [4], base=1, offset=5),
            ],
            [kernel("up", [0, 1], 12), {**copies, "args": [{"ref": 0}, {"ref": 1}]}],
            [2, 0, 1],
        ),
    )
    # x + x, on the heap, then + 1.
    found["heap"] = (
        entry([tensed("x", [4])], [tensed("more", [4])]),
        layout(
            [value("input", [4], position=0), value("heap", [4]), value("fresh", [4])],
            [{"take": [1]}, kernel("add", [0, 0, 1], 4), kernel("up", [1, 2], 4), {"release": [1]}],
            [2],
        ),
    )
    relu = {"aten": "aten::relu.default", "args": [{"ref": 0}], "kwargs": [], "outs": [1], "name": ""}
    found["relu"] = (
        entry([tensed("x", [4])], [tensed("positive", [4])]),
        layout([value("input", [4], position=0), value("aten", [4])], [relu], [1]),
    )
    # A tensor of six numbers that a call gives.
    number = {"name": "n", "hint": 3, "min": 0, "max": None, "argument": "n"}
    found["numbers"] = (
        entry([], [tensed("filled", [6])], symbols=[number]),
        layout(
            [value("fresh", [6])], [kernel("fill", [0], 6, sizes=[[[1, ["n"]]]])], [0], scalars=[[[1, ["n"]]]]
        ),
    )
    found["sine"] = (
        entry([tensed("x", [3], dtype="float64")], [tensed("sine", [3], dtype="float64")]),
        layout(
            [value("input", [3], dtype="float64", position=0), value("fresh", [3], dtype="float64")],
            [kernel("sine", [0, 1], 3)],
            [1],
        ),
    )
    # The input as it came, and a constant part of a weight.
    found["through"] = (
        entry([tensed("x", [4])], [tensed("same", [4]), tensed("row", [2])], weights=[0]),
        layout(
            [
                value("input", [4], position=0),
                value("bound", [4], position=0),
                value("view", [2], base=1, offset=2),
            ],
            [],
            [0, 2],
        ),
    )
    return found


WEIGHTS: Mapping[str, torch.Tensor] = {
    "row": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "count": torch.tensor([5.0]),
}


def object_code() -> bytes:
    return Jit(describe("sse4")).object_code(KERNELS)


_STORED = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file with its tensors in this order."""
    header: JSON = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": _STORED[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_lamp(path: Path, code: bytes, machine: str = "x86_64", change: Any = None) -> Path:
    """An artifact of all of these entries. `change`: called with the manifest and the programs, to spoil them."""
    programs: JSON = {"modules": ["lampwork.code.plain.0"], "entries": {}}
    manifest: JSON = {
        "format": "lampwork",
        "version": 1,
        "name": "by hand",
        "weights": [
            {
                "name": name,
                "tensor": name,
                "dtype": "float32",
                "shape": list(tensor.shape),
                "strides": list(tensor.stride()),
                "kind": "buffer",
            }
            for name, tensor in WEIGHTS.items()
        ],
        "entries": {},
        "targets": [
            {
                "name": "plain",
                "machine": machine,
                "isa": "sse4",
                "needs": [],
                "programs": "lampwork.programs.plain",
                "code": ["lampwork.code.plain.0"],
                "calls": {},
            }
        ],
    }
    for name, (about, made) in entries().items():
        manifest["entries"][name], programs["entries"][name] = about, made
    sections = {"lampwork.code.plain.0": code}
    if change is not None:
        change(manifest, programs)
    sections["lampwork.programs.plain"] = json.dumps(programs).encode()
    manifest.setdefault(
        "sections",
        {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in sections.items()
        },
    )
    tensors = {**WEIGHTS}
    tensors |= {name: torch.frombuffer(bytearray(c), dtype=torch.uint8) for name, c in sections.items()}
    write(path, tensors, {"format": "lampwork", "manifest": json.dumps(manifest)})
    return path
