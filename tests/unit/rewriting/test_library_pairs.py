"""Pairs of ops become ATen's one kernel for both, where that is asked for."""

from __future__ import annotations

import pytest
import torch
from graphkit import assert_equal, ops, run
from librarykit import prepared, rewritten

import lampwork
from lampwork.config import Config
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.fuse_pairs import FusePairs

X, Y, Z = (torch.randn(6, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))


def fused(fn, *inputs: torch.Tensor) -> list[str]:
    """The ops that are left; the results are eager's bit for bit."""
    graph = prepared(fn, inputs)
    FusePairs().run(graph, PassContext())
    verify(graph)
    result = fn(*inputs)
    assert_equal(run(graph, *inputs), list(result) if isinstance(result, tuple) else [result])
    return ops(graph)


def test_add_and_div() -> None:
    assert fused(lambda x, y, z: x + y / z, X, Y, Z) == ["addcdiv"]
    assert fused(lambda x, y, z: y / z + x, X, Y, Z) == ["addcdiv"]
    assert fused(lambda x, y, z: x + y / z, X, Y[:1], Z[:, :1]) == ["addcdiv"]
    assert fused(lambda x, y, z: x + y / z, X, Y, torch.zeros_like(Z)) == ["addcdiv"]


def test_add_and_mul_round_once() -> None:
    # The product is not rounded before it is added.
    graph, _ = rewritten(lambda x, y, z: x + y * z, [X, Y, Z], through=FusePairs())
    assert ops(graph) == ["addcmul"]
    graph, _ = rewritten(lambda x, y, z: z * y + x, [X, Y * 1e30, Z * 1e30], through=FusePairs())
    assert ops(graph) == ["addcmul"]


def test_add_and_relu_stay_two_for_the_sake_of_nan() -> None:
    x = torch.tensor([float("nan"), float("inf"), -0.0, 1.0])
    assert fused(lambda x, y: torch.relu(x + y), x, -x) == ["add", "relu"]
    assert not torch.ops.aten._add_relu.Tensor(x, x).isnan().any()  # why


STAYS = {
    "a scaled sum": lambda x, y: torch.add(x, y / x, alpha=2),
    "a quotient by a number": lambda x, y: x + y / 2,
    "a quotient that is read": lambda x, y: (lambda q: (x + q) * q)(x / y),
    "a difference": lambda x, y: x - x / y,
    "mixed dtypes": lambda x, y: x.double() + x / y,
    "integers": lambda x, y: x.int() + x.int() * y.int(),
    "half": lambda x, y: x.bfloat16() + x.bfloat16() / y.bfloat16(),
}


@pytest.mark.parametrize("twin", STAYS)
def test_what_only_looks_like_it_stays(twin: str) -> None:
    left = fused(STAYS[twin], X, Y)
    assert "addcdiv" not in left and "addcmul" not in left


def test_it_is_off_unless_asked_for() -> None:
    def program(x, y, z):
        return x + y / z

    for switches, expected in (("", "add"), ("+fuse-pairs", "addcdiv"), ("+fuse-pairs,-add_div", "add")):
        compiled = lampwork.compile(program, backend="eager", options={"passes": switches})
        assert torch.equal(compiled(X, Y, Z), program(X, Y, Z))
        assert f"aten.{expected}." in compiled.stages.text("optimized")
    assert Config().passes == ""
