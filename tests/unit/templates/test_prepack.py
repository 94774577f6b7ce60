"""Packing constant operands once, and compiling equal templates once."""

from __future__ import annotations

from dataclasses import replace

import torch
from gemm_support import axes_of, c, caller, check, isa_named, plain_gemm, v

from lampwork.codegen.llvm.isa.x86 import describe, host_flags, host_isa, widest
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.templates.choose import choose_config, choose_panel, choose_vectors
from lampwork.codegen.llvm.templates.compile import TemplateCompiler
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.prepack import prepack
from lampwork.codegen.target import Dot
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Buffer, Definition, Gemm, Load, Local, Map, PackB
from lampwork.loops.reference.evaluate import evaluate_definitions

# With B in panels whatever its size: what is read as it lies has tests of its own.
ISA = replace(isa_named(widest(host_flags())), turned_rows=0)
AVX512 = replace(describe("avx512"), turned_rows=0)


def linear(name: str, weight: str, m: int = 16, n: int = 100, k: int = 40) -> Gemm:
    a, b, out = torch.empty(m, k), torch.empty(n, k).t(), torch.empty(m, n)
    gemm = plain_gemm(a, b, out)
    return replace(
        gemm,
        out=replace(gemm.out, name=name),
        a=Load(replace(gemm.a.buffer, name=f"{name}.x"), gemm.a.index),
        b=Load(replace(gemm.b.buffer, name=weight), gemm.b.index),
    )


def test_a_constant_operand_is_packed() -> None:
    main, constant = prepack([linear("y", "w")], [], frozenset({"w"}), AVX512)
    [pack] = constant
    [gemm] = main
    assert isinstance(pack, PackB) and isinstance(gemm, Gemm)
    assert pack.b.buffer.name == "w"
    assert gemm.packed == pack.out.columns
    assert gemm.b.buffer == pack.out
    assert pack.out.shape == (c(-(-100 // pack.out.columns)), c(40), c(pack.out.columns))


def test_a_varying_operand_is_left_alone() -> None:
    gemm = linear("y", "w")
    main, constant = prepack([gemm], [], frozenset({"y.x"}), AVX512)
    assert main == [gemm]
    assert constant == []


def test_a_shared_weight_is_packed_once() -> None:
    main, constant = prepack(
        [linear("y", "w"), linear("z", "w"), linear("u", "w2")], [], frozenset({"w", "w2"}), AVX512
    )
    assert len(constant) == 2
    first, second, third = main
    assert isinstance(first, Gemm) and isinstance(second, Gemm) and isinstance(third, Gemm)
    assert first.b.buffer == second.b.buffer
    assert third.b.buffer != first.b.buffer


def test_few_rows_read_the_weight_as_it_lies() -> None:
    gemm = linear("y", "w", m=1)
    assert prepack([gemm], [], frozenset({"w"}), AVX512) == ([gemm], [])


def test_few_rows_of_a_dot_product_instruction_are_packed_in_its_steps() -> None:
    target = replace(AVX512, dots=(Dot("bf16", 2, lambda b, sums, left, right: sums, lambda b, sums: None),))
    for k, words in ((40, 20), (41, 21)):
        a, b = torch.empty(1, k, dtype=torch.bfloat16), torch.empty(100, k, dtype=torch.bfloat16).t()
        gemm = plain_gemm(a, b, torch.empty(1, 100, dtype=torch.bfloat16))
        _, [pack] = prepack([gemm], [], frozenset({"b"}), target)
        assert isinstance(pack, PackB) and pack.out.steps == 2
        assert pack.out.shape[1:] == (c(words), c(2 * pack.out.columns))
        assert prepack([gemm], [], frozenset({"b"}), AVX512) == ([gemm], [])


def test_few_rows_of_a_weight_in_rows_are_packed() -> None:
    gemm = plain_gemm(torch.empty(1, 40), torch.empty(40, 100), torch.empty(1, 100))
    _, constant = prepack([gemm], [], frozenset({"b"}), AVX512)
    assert len(constant) == 1


def test_what_is_no_gemm_is_kept_in_order() -> None:
    one = Index.const(1)
    copy = Map(
        Buffer("t", "f32", (c(4),), (one,)),
        axes_of(("i", 4)),
        (v("i"),),
        Load(Buffer("s", "f32", (c(4),), (one,)), (v("i"),)),
    )
    before: list[Definition] = [copy]
    main, constant = prepack([copy, linear("y", "w")], before, frozenset({"w"}), AVX512)
    assert main[0] is copy
    assert constant[0] is copy and len(constant) == 2


def test_a_batch_of_constant_matrices() -> None:
    gemm = plain_gemm(torch.empty(3, 16, 40), torch.empty(3, 40, 100), torch.empty(3, 16, 100))
    _, [pack] = prepack([gemm], [], frozenset({"b"}), AVX512)
    assert isinstance(pack, PackB)
    assert pack.out.shape[0] == c(3)


def test_a_matrix_that_only_some_batch_axes_share_is_left_alone() -> None:
    gemm = plain_gemm(
        torch.empty(2, 3, 16, 40),
        torch.empty(2, 1, 40, 100).expand(2, 3, 40, 100),
        torch.empty(2, 3, 16, 100),
    )
    by_first = Load(gemm.b.buffer, (gemm.b.index[0], Index.const(0), *gemm.b.index[2:]))
    gemm = replace(gemm, b=by_first)
    assert prepack([gemm], [], frozenset({"b"}), AVX512) == ([gemm], [])


def test_prepacked_definitions_mean_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    a, w = torch.randn(16, 40, generator=generator), torch.randn(100, 40, generator=generator)
    gemm = linear("y", "w")
    main, constant = prepack([gemm], [], frozenset({"w"}), ISA)
    arrays = evaluate_definitions([*constant, *main], {"y.x": a.numpy(), "w": w.t().numpy()})
    exact = (a.double() @ w.double().t()).numpy()
    assert abs(arrays["y"] - exact).max() < 1e-4
    [pack], [packed_gemm] = constant, main
    assert isinstance(pack, PackB) and isinstance(packed_gemm, Gemm)
    packed = torch.empty([s.as_int() or 0 for s in pack.out.shape])
    run, _ = caller(emit_pack(pack, "p", ISA), ISA, {"w": w, pack.out.name: packed})
    run()
    assert (packed.numpy() == arrays[pack.out.name]).all()
    out = torch.empty(16, 100)
    run, _ = caller(emit_gemm(packed_gemm, "f", ISA), ISA, {"y.x": a, pack.out.name: packed, "y": out})
    run()
    check(out, a, w.t())


def test_tiles_fit_the_registers() -> None:
    for name, registers in (("avx512", 32), ("avx2", 16), ("sse4", 16)):
        isa = describe(name)  # type: ignore[arg-type]
        for m in (1, 3, 5, 8, 17, 128, None):
            for n in (1, 16, 48, 64, 100, 1000, None):
                panel = choose_panel(m, n, isa, runs_along_k=False)
                config = choose_config(m, n, 64, panel, 0, isa)
                assert config.rows * config.vectors + config.vectors + 1 <= registers
                assert config.vectors * isa.lanes("f32") == panel
                assert m is None or config.rows <= m


def test_panels_of_common_sizes() -> None:
    """48 columns where they divide N, 64 for a head, one vector for a few columns."""
    assert [choose_vectors(n, AVX512) * 16 for n in (768, 3072, 64, 128, 10)] == [48, 48, 64, 64, 16]
    assert choose_vectors(768, describe("avx2")) * 8 == 16


def test_equal_templates_are_compiled_once() -> None:
    compiler = TemplateCompiler(Jit(host_isa()))
    first, second = linear("y", "w"), linear("z", "w2")
    other = replace(linear("u", "w"), value=Local("acc", "f32"), m=replace(first.m, extent=c(8)))
    one, two, three = (compiler.compile(each) for each in (first, second, other))
    assert one.code == two.code != three.code
    assert [b.name for b in one.params] == ["y.x", "w", "y"]
    assert [b.name for b in two.params] == ["z.x", "w2", "z"]
