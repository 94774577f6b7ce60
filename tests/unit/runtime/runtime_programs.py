"""Hand-made programs for the runtime tests: kernels written as LLVM IR, and builders of Program and Region data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import torch

from lampwork.capture.model.region import Arg, GlobalState, Guard, Recipe, Region, Source, Step, TensorGuard
from lampwork.codegen.target import MachineFunction
from lampwork.runtime.program import CallKernel, Program, Value

HEAD = "define i64 @{name}(i8** %buffers, i64* %sizes, i64 %begin, i64 %end) {{\n"


def pointer(number: int) -> str:
    """IR that names the number-th buffer %p<number>, a float*."""
    return (
        f"  %g{number} = getelementptr i8*, i8** %buffers, i64 {number}\n"
        f"  %q{number} = load i8*, i8** %g{number}\n"
        f"  %p{number} = bitcast i8* %q{number} to float*\n"
    )


def pointwise(name: str, n_inputs: int, body: str) -> str:
    """for i in [begin, end): out[i] = body(%x0, %x1, …): body ends by defining %result; out is the last buffer."""
    loads = "".join(
        f"  %a{i} = getelementptr float, float* %p{i}, i64 %i\n  %x{i} = load float, float* %a{i}\n"
        for i in range(n_inputs)
    )
    return (
        HEAD.format(name=name)
        + "".join(pointer(i) for i in range(n_inputs + 1))
        + "  br label %loop\nloop:\n  %i = phi i64 [%begin, %0], [%next, %loop]\n"
        + loads
        + body
        + f"  %o = getelementptr float, float* %p{n_inputs}, i64 %i\n  store float %result, float* %o\n"
        + "  %next = add i64 %i, 1\n  %more = icmp slt i64 %next, %end\n"
        + "  br i1 %more, label %loop, label %done\ndone:\n  ret i64 0\n}\n"
    )


LERP = pointwise(
    "lerp", 3, "  %d = fsub float %x1, %x0\n  %m = fmul float %x2, %d\n  %result = fadd float %x0, %m\n"
)
ADD = pointwise("add", 2, "  %result = fadd float %x0, %x1\n")
DOUBLE = pointwise("double", 1, "  %result = fmul float %x0, 2.0\n")
BEGIN = pointwise("begin", 0, "  %result = sitofp i64 %begin to float\n")
FAIL = HEAD.format(name="fail") + "  ret i64 1\n}\n"


@dataclass(frozen=True)
class Kernels:
    engine: Any

    def __getitem__(self, name: str) -> MachineFunction:
        return MachineFunction(self.engine.get_function_address(name), self.engine)


def compile_kernels() -> Kernels:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, jit=True)
    module = llvm.parse_assembly(LERP + ADD + DOUBLE + BEGIN + FAIL)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Kernels(engine)


def value(kind: Any, tensor: torch.Tensor, **fields: Any) -> Value:
    """A value with the metadata of `tensor`."""
    return Value(kind, tensor.dtype, tuple(tensor.shape), tensor.stride(), **fields)


def lerp_program(kernels: Kernels, like: torch.Tensor, grain: int = 1 << 30) -> Program:
    n = like.numel()
    values = (*(value("input", like, position=i) for i in range(3)), value("fresh", like))
    call = CallKernel(kernels["lerp"], (0, 1, 2, 3), extent=n, grain=grain, name="lerp")
    return Program(values, (call,), (3,), 3, 0, 0)


def tensor_guard(source: Source, tensor: torch.Tensor) -> Guard:
    return Guard(
        source,
        "tensor",
        TensorGuard(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tuple(tensor.shape),
            tensor.stride(),
            tensor.requires_grad,
        ),
    )


def make_region(
    inputs: tuple[Source, ...],
    guards: tuple[Guard, ...],
    *,
    n_args: int,
    kwarg_names: tuple[str, ...] = (),
    bound: tuple[torch.Tensor, ...] = (),
    recipe: Recipe | None = None,
    state: GlobalState | None = None,
) -> Region:
    return Region(
        graph=None,
        inputs=inputs,
        bound=bound,
        bound_names=tuple(f"bound{i}" for i in range(len(bound))),
        guards=guards,
        state=state or GlobalState.now(),
        recipe=recipe or Recipe((Step("output", 0),), 0),
        mutations=(),
        n_args=n_args,
        kwarg_names=kwarg_names,
    )


def args_region(*tensors: torch.Tensor, **options: Any) -> Region:
    """A region whose inputs are its positional arguments, each with a tensor guard."""
    sources = tuple(Arg(i) for i in range(len(tensors)))
    guards = tuple(tensor_guard(source, tensor) for source, tensor in zip(sources, tensors))
    return make_region(sources, guards + options.pop("guards", ()), n_args=len(tensors), **options)
