"""Targets by name: what they need, which one a machine takes, and code that is made for other machines than this."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace

import graphkit
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lampwork.backends.native.compile_for import CompiledFor, compile_for
from lampwork.codegen.llvm.isa import amx, x86
from lampwork.codegen.llvm.isa.x86 import host_flags, host_isa
from lampwork.codegen.llvm.targets import (
    TARGETS,
    Host,
    TargetFacts,
    facts,
    named_target,
    pick,
    this_host,
)
from lampwork.errors import CodegenError, OptionError
from lampwork.runtime import Executable
from lampwork.runtime.layout import KernelStep
from lampwork.runtime.program import CallAten, CallKernel
from lampwork.serial import Linked, Modules, layout_from_json, layout_to_json

V2, V3, V4 = (frozenset(TARGETS[f"x86-64-v{level}"].needs) for level in (2, 3, 4))
SAPPHIRE = V4 | amx.FLAGS
ALL = tuple(TARGETS.values())
EM_X86_64, EM_AARCH64 = 62, 183


def _runs_not(target: TargetFacts) -> bool:
    return pick([target]).chosen is None


def compiled(
    fn: Callable[..., object], *inputs: Tensor, to: str, bound: tuple[Tensor, ...] = (), **how: bool
) -> CompiledFor:
    return compile_for(graphkit.record(fn, *inputs, bound=bound), named_target(to), **how)


def codes(found: CompiledFor) -> list[bytes]:
    steps = [*found.layout.steps, *(found.layout.constants.instructions if found.layout.constants else ())]
    kernels = [step for step in steps if isinstance(step, KernelStep | CallKernel)]
    return [kernel.code.owner.object_code for kernel in kernels]


def machine_of(code: bytes) -> int:
    return int.from_bytes(code[18:20], "little")


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_targets() -> None:
    assert {name: named_target(name).name for name in TARGETS} == {name: name for name in TARGETS}
    assert all(named_target(name) is named_target(name) for name in TARGETS)
    assert named_target("host").name == facts("host").name in TARGETS


def test_a_wrong_name_is_told_the_nearest() -> None:
    with pytest.raises(OptionError) as caught:
        named_target("x86-64-v5")
    assert str(caught.value) == (
        "[LW001] there is no target 'x86-64-v5'\n"
        "  fix: did you mean 'x86-64-v4'? the targets are host, x86-64-v4+amx, x86-64-v4+bf16, x86-64-v4+vnni, "
        "x86-64-v4, x86-64-v3, x86-64-v2, aarch64+dotprod, aarch64"
    )


@pytest.mark.parametrize("name", ["", "X86-64-V4", "avx512", 4, None, ["x86-64-v4"]])
def test_what_is_no_name(name: object) -> None:
    with pytest.raises(OptionError, match="there is no target"):
        facts(name)  # pyright: ignore[reportArgumentType]


def test_levels_need_what_is_below_them() -> None:
    assert V2 < V3 < V4
    for name in ("x86-64-v4+vnni", "x86-64-v4+bf16", "x86-64-v4+amx"):
        assert set(TARGETS[name].needs) > V4
    assert all(len(set(each.needs)) == len(each.needs) for each in ALL)


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        (Host("x86_64", SAPPHIRE), "x86-64-v4+amx"),
        (
            Host("x86_64", SAPPHIRE, {"amx_tile": "the kernel refuses the tile registers: no"}),
            "x86-64-v4+bf16",
        ),
        (Host("x86_64", V4 | {"avx512_vnni"}), "x86-64-v4+vnni"),
        (Host("x86_64", V4 | {"avx512_bf16"}), "x86-64-v4"),
        (Host("x86_64", V4 - {"avx512cd"}), "x86-64-v3"),
        (Host("x86_64", V3), "x86-64-v3"),
        (Host("x86_64", V3 - {"fma"}), "x86-64-v2"),
        (Host("aarch64", frozenset({"fp", "asimd", "asimddp", "sve"})), "aarch64+dotprod"),
        (Host("aarch64", frozenset({"fp", "asimd"})), "aarch64"),
    ],
)
def test_the_best_that_a_machine_has(host: Host, wanted: str) -> None:
    choice = pick(ALL, host)
    assert choice.chosen == TARGETS[wanted] and not choice.fix
    assert choice.reasons[wanted] == "the best one that this machine runs"
    assert choice.reasons.keys() == TARGETS.keys()


def test_why_not() -> None:
    host = Host(
        "x86_64", SAPPHIRE - {"avx512_bf16"}, {"amx_tile": "the kernel refuses the tile registers: no"}
    )
    reasons = pick(ALL, host).reasons
    assert reasons["x86-64-v4+amx"] == "this CPU lacks avx512_bf16"
    assert reasons["aarch64"] == "it is for aarch64, and this machine is x86_64"
    assert reasons["x86-64-v3"] == "this machine runs it, and x86-64-v4+vnni is better"
    refused = pick(ALL, replace(host, flags=SAPPHIRE)).reasons
    assert refused["x86-64-v4+amx"] == "the kernel refuses the tile registers: no"


@pytest.mark.parametrize(
    ("host", "fix"),
    [
        (Host("x86_64", V3), 'export it again with targets=["x86-64-v3", ...], which this machine runs'),
        (
            Host("x86_64", frozenset({"sse2"})),
            "use another machine: no target runs on this one, whose CPU is x86_64",
        ),
        (Host("", frozenset()), "use another machine: no target runs on this one, whose CPU is unknown"),
    ],
)
def test_none_runs(host: Host, fix: str) -> None:
    choice = pick([TARGETS["aarch64"], TARGETS["x86-64-v4"]], host)
    assert choice.chosen is None and choice.fix == fix
    assert pick([], host).chosen is None


def test_targets_of_a_later_version() -> None:
    """A file may offer some that are not known here: their flags decide."""
    later = TargetFacts("x86-64-v4+fp16", "x86_64", "avx512", (*sorted(V4), "avx512_fp16"))
    assert pick([later, *ALL], Host("x86_64", V4)).chosen == TARGETS["x86-64-v4"]
    assert pick([later, *ALL], Host("x86_64", V4 | {"avx512_fp16"})).chosen == later


def test_this_machine_runs_what_is_picked_for_it() -> None:
    best = {"amx": "amx", "avx512": "avx512", "avx2": "avx2", "sse4": "sse4"}[host_isa("").name]
    assert facts("host").isa == best
    assert set(facts("host").needs) <= this_host().flags == host_flags()


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_code_of_every_target(name: str) -> None:
    found = compiled(
        lambda x, w: F.layer_norm(F.gelu(x @ w), (24,)),
        torch.randn(9, 16),
        to=name,
        bound=(torch.randn(16, 24),),
    )
    machine = EM_AARCH64 if name.startswith("aarch64") else EM_X86_64
    assert {machine_of(code) for code in codes(found)} == {machine}
    assert not found.calls and found.layout.constants is not None
    step = found.layout.steps[0]
    assert isinstance(step, CallKernel)
    with pytest.raises(CodegenError, match="was made to be kept, not to run in this process"):
        _ = step.code.address


def text_of(name: str, fn: Callable[..., object], *given: Tensor) -> str:
    """The assembly of the templates that a function's product is made by, and of its kernels."""
    target = named_target(name)
    generator = target.generate(target)
    graph = graphkit.record(fn, given[0], bound=given[1:])
    from lampwork.backends.native.compile import compile_open
    from lampwork.transforms.pipeline import run_passes

    run_passes(graph)
    generated = compile_open(graph, (), target)[0].generated
    assert generated is not None
    texts = [*(each.text for each in generated.templates), *generator.texts(generated.kernels)]
    return "\n".join(map(generator.assembly, texts))


def _bytes(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


@pytest.mark.parametrize(
    ("name", "dtype", "has", "lacks"),
    [
        ("x86-64-v4+amx", torch.bfloat16, "tdpbf16ps", ""),
        ("x86-64-v4+bf16", torch.bfloat16, "vdpbf16ps", "tdpbf16ps"),
        ("x86-64-v4+vnni", torch.float32, "zmm", "vdpbf16ps"),
        ("x86-64-v4", torch.bfloat16, "zmm", "vdpbf16ps"),
        ("x86-64-v3", torch.float32, "vfmadd", "zmm"),
        ("x86-64-v2", torch.float32, "mulps", "ymm"),
        ("aarch64", torch.float32, "fmla", "xmm"),
    ],
)
def test_instructions(name: str, dtype: torch.dtype, has: str, lacks: str) -> None:
    text = text_of(name, F.linear, torch.randn(64, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype))
    assert has in text
    assert not lacks or lacks not in text


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("x86-64-v4+vnni", "vpdpbusd", "tdpb"),
        ("x86-64-v4", "vpmaddwd", "vpdpbusd"),
        ("aarch64+dotprod", "sdot", "xmm"),
        ("aarch64", "mla", "sdot"),
    ],
)
def test_instructions_for_bytes(name: str, has: str, lacks: str) -> None:
    product = torch.ops.aten._int_mm
    text = text_of(name, lambda x, w: product(x, w.t()), _bytes(64, 64), _bytes(64, 64))
    assert has in text and lacks not in text


def _small_network(x: Tensor, w: Tensor, taps: Tensor) -> Tensor:
    y = F.conv2d(F.linear(x, w), taps, padding=1).relu()
    return F.scaled_dot_product_attention(y, y, y).softmax(-1)


@pytest.mark.parametrize("name", [name for name, each in TARGETS.items() if not _runs_not(each)])
def test_code_that_this_machine_runs(name: str) -> None:
    """Saved and linked again, it gives eager's results."""
    x, w, taps = (torch.randn(*shape) / 3 for shape in ((2, 8, 9, 9), (9, 9), (16, 8, 3, 3)))
    found = compiled(_small_network, x, to=name, bound=(w, taps), standalone=True)
    modules = Modules()
    saved = layout_to_json(found.layout, modules)
    layout = layout_from_json(saved, Linked(modules.contents))
    results = Executable(layout.place({}), [w, taps]).run([x])
    torch.testing.assert_close(results[0], _small_network(x, w, taps), rtol=1e-4, atol=1e-6)


def test_nothing_is_asked_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for AVX-512 is made on an Arm as well."""

    def asked(*given: object) -> None:
        raise AssertionError("this machine was asked")

    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for name in ("host_flags", "host_isa", "host_target"):
        monkeypatch.setattr(x86, name, asked)
    for dtype in (torch.float32, torch.bfloat16):
        x, w, taps = (torch.randn(*shape, dtype=dtype) for shape in ((2, 8, 9, 9), (9, 9), (16, 8, 3, 3)))
        found = compiled(_small_network, x, to="x86-64-v4", bound=(w, taps), standalone=True)
        assert {machine_of(code) for code in codes(found)} == {EM_X86_64}


def test_the_graph_is_left_as_it_is() -> None:
    graph = graphkit.record(
        lambda x, w: F.linear(x, w).relu() * 1, torch.randn(2, 8), bound=[torch.randn(8, 8)]
    )
    before = graphkit.structure(graph)
    first = compile_for(graph, named_target("aarch64"))
    assert graphkit.structure(graph) == before
    assert codes(compile_for(graph, named_target("aarch64"))) == codes(first)


# --- standalone code --------------------------------------------------------------------------------------------------


def _folded(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w * scale.rsqrt() + torch.arange(8.0))


def test_constants_are_calls_unless_code_stands_alone() -> None:
    given = (torch.randn(5, 8), torch.randn(8, 8), torch.rand(8))
    called = compiled(_folded, given[0], to="x86-64-v3", bound=given[1:])
    why = "it is computed once for a set of weights, where compiling it would take longer"
    assert called.calls == dict.fromkeys(
        ["aten::add.Tensor", "aten::arange.default", "aten::mul.Tensor", "aten::rsqrt.default"], why
    )
    alone = compiled(_folded, given[0], to="x86-64-v3", bound=given[1:], standalone=True)
    assert alone.calls == {}


def test_calls_that_are_left_have_a_reason() -> None:
    found = compiled(torch.linalg.inv, torch.randn(4, 4), to="x86-64-v3", standalone=True)
    assert found.calls == {"aten::linalg_inv.default": "there is no rule that makes it a loop"}


def test_what_is_written_back_is_no_call() -> None:
    """The runtime without torch copies it, of whatever dtype; of what torch alone knows the form of it cannot."""
    for function in (lambda x: x + 1, lambda x: torch.full_like(x, 3), lambda x: x[:1].expand(4)):
        graph = graphkit.record(function, torch.randn(4))
        found = compile_for(graph, named_target("aarch64"), mutations=[(0, 0)])
        assert [step.op for step in found.layout.steps if isinstance(step, CallAten)] == [
            "aten::copy_.default"
        ]
        assert found.calls == {}
    graph = graphkit.record(lambda x: x.conj_physical(), torch.randn(4, dtype=torch.complex64))
    found = compile_for(graph, named_target("aarch64"), mutations=[(0, 0)])
    assert set(found.calls) == {"aten::_conj_physical.default"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 3, 12])
def test_convolutions_of_other_machines_are_none_of_onednn(dtype: torch.dtype, groups: int) -> None:
    """What oneDNN has code for is known of this processor alone."""
    x, w = torch.randn(1, 12, 9, 9, dtype=dtype), torch.randn(12, 12 // groups, 3, 3, dtype=dtype)
    for standalone in (False, True):
        found = compiled(
            lambda x, w: F.conv2d(x, w, groups=groups), x, to="x86-64-v4", bound=(w,), standalone=standalone
        )
        assert not any("mkldnn" in op for op in found.calls), found.calls
        assert not (standalone and found.calls), found.calls
