"""What the template tests share: building definitions, compiling them, running them on tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm
import torch
from scalar_target import SCALAR_TILES

from lampwork.codegen.llvm.isa.x86 import describe, host_flags, host_isa, widest
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.types import product_dtype
from lampwork.codegen.target import Target
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, DType, Expr, Gemm, Load, Local, Panels

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.bool: "bool",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
}
_engines: list[object] = []


def v(name: str) -> Index:
    return Index.var(name)


def c(value: int) -> Index:
    return Index.const(value)


def buffer(name: str, tensor: torch.Tensor) -> Buffer:
    shape = tuple(as_index(s) for s in tensor.shape)
    strides = tuple(as_index(s) for s in tensor.stride())
    return Buffer(name, DTYPES[tensor.dtype], shape, strides)


def panels(name: str, tensor: torch.Tensor, steps: int = 1, offset: int = 0) -> Panels:
    """A tensor that holds B in panels, as many columns wide as its last dimension, over `steps`."""
    plain = buffer(name, tensor)
    return Panels(name, plain.dtype, plain.shape, plain.strides, tensor.shape[-1] // steps, steps, offset)


def axes_of(*sizes: tuple[str, int]) -> tuple[Axis, ...]:
    return tuple(Axis(name, c(size)) for name, size in sizes)


def compile_code(code: GemmCode, isa: Target):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(code.text)
    module.verify()
    target = llvm.Target.from_default_triple()
    cpu, features = isa.cpu, isa.features
    if isa.name.startswith(("avx512", "amx")):
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return kind(engine.get_function_address(code.name))


def caller(
    code: GemmCode, isa: Target, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int] | None = None
):
    """A function run(begin, end) over the tensors, and the extent."""
    function = compile_code(code, isa)
    pointers = (ctypes.c_void_p * len(code.params))(*(tensors[p.name].data_ptr() for p in code.params))
    values = (ctypes.c_int64 * max(1, len(code.sizes)))(*((sizes or {})[s] for s in code.sizes))
    mapping = sizes or {}
    extent = evaluate_index(code.extent, mapping)

    kept = dict(tensors)

    def run(begin: int = 0, end: int = extent) -> int:
        assert kept, "the pointers are those of these tensors"
        return function(
            ctypes.cast(pointers, ctypes.c_void_p), ctypes.cast(values, ctypes.c_void_p), begin, end
        )

    return run, extent


def evaluate_index(index: Index, sizes: Mapping[str, int]) -> int:
    total = 0
    for monomial, coefficient in index.terms:
        product = coefficient
        for atom in monomial:
            if hasattr(atom, "name"):
                product *= sizes[atom.name]
            else:
                a, b = evaluate_index(atom.a, sizes), evaluate_index(atom.b, sizes)
                product *= a // b if type(atom).__name__ == "FloorDiv" else a % b
        total += product
    return total


def plain_gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, value: Expr | None = None) -> Gemm:
    """out[..., m, n] = a[..., m, k] @ b[..., k, n], any strides, with equal batch shapes."""
    *batch_sizes, m, k = a.shape
    n = b.shape[-1]
    batch = axes_of(*((f"b{i}", size) for i, size in enumerate(batch_sizes)))
    names = tuple(v(axis.name) for axis in batch)
    dtype = DTYPES[a.dtype]
    return Gemm(
        buffer("out", out),
        batch,
        Axis("m", c(m)),
        Axis("n", c(n)),
        Axis("k", c(k)),
        Load(buffer("a", a), (*names, v("m"), v("k"))),
        Load(buffer("b", b), (*names, v("k"), v("n"))),
        (*names, v("m"), v("n")),
        Local("acc", product_dtype(dtype)) if value is None else value,
    )


def check(
    actual: torch.Tensor, a: torch.Tensor, b: torch.Tensor, expected: torch.Tensor | None = None
) -> None:
    """Within twice eager's own error against float64, plus a rounding or two."""
    exact = a.double() @ b.double() if expected is None else expected
    eager = (a @ b).double() if expected is None else expected
    error = (actual.double() - exact).abs().max().item()
    scale = torch.finfo(a.dtype).eps * max(exact.abs().max().item(), 1.0) * 4
    allowed = 2 * (eager - exact).abs().max().item() + scale
    assert error <= allowed, f"error {error}, allowed {allowed}"


ISAS: Sequence[str] = ("avx512", "avx2", "sse4", "scalar")
WIDTHS = ("scalar", "sse4", "avx2", "avx512")
PAIRS = "avx512 with dots"
"""This CPU's AVX-512 with its dot product instructions for half types (and int8, where it has both)."""


def isa_named(name: str) -> Target:
    if name == PAIRS:
        return host_isa("avx512")
    return SCALAR_TILES if name == "scalar" else describe(name)  # type: ignore[arg-type]


def available(name: str) -> bool:
    """Whether this CPU runs the code of `isa_named(name)`."""
    if name == PAIRS:
        return available("avx512") and len(isa_named(PAIRS).dots) > 1
    return WIDTHS.index(name) <= WIDTHS.index(widest(host_flags()))
