"""The battery for rewrites: right ones pass, and each check catches what it is there for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork import No, Yes
from lampwork.errors import LampworkError
from lampwork.rewriting.apply.driver import rule
from lampwork.testing import ConformanceError, check_rewrite


class MulSigmoid:
    """before: mul(x, sigmoid(x)), after: silu(x)"""

    def pattern(x: Tensor):
        return x * torch.sigmoid(x)

    def replacement(x):
        return torch.nn.functional.silu(x)


class ScaleTheQuery:
    def pattern(q: Tensor, k: Tensor, c: float):
        return torch.matmul(q, k) * c

    def replacement(q, k, c):
        return torch.matmul(q * c, k)


def failures(rewrite: Any, **keywords: Any) -> dict[str, str]:
    return {c.name: c.detail for c in check_rewrite(rewrite, raises=False, **keywords).failed}


@pytest.mark.parametrize("rewrite", [MulSigmoid, rule("neg(neg(x))", "x"), rule("mul(x, 2)", "add(x, x)")])
def test_right_rewrites_pass(rewrite: Any) -> None:
    report = check_rewrite(rewrite)
    assert report.ok
    assert str(report).splitlines()[0].endswith(": 12 passed, 0 failed, 1 skipped")


def test_what_overflows_at_another_place_is_off_at_the_ends_of_the_range() -> None:
    assert list(failures(ScaleTheQuery)) == ["special numbers"]
    check_rewrite(ScaleTheQuery, skip=["special numbers"])


def test_a_handle_passes_too() -> None:
    handle = lampwork.rewrite(MulSigmoid, enabled=False)
    try:
        assert check_rewrite(handle).ok
    finally:
        handle.unregister()


def test_examples_and_negatives() -> None:
    def swish(x: Tensor) -> Tensor:
        return torch.sigmoid(x + 1) * (x + 1)

    def other(x: Tensor, y: Tensor) -> Tensor:
        return x * torch.sigmoid(y)

    x = torch.randn(4, 8)
    report = check_rewrite(MulSigmoid, examples=[(swish, (x,))], negatives=[(other, (x, x + 1))])
    assert [c.detail for c in report.checks[:2]] == ["swish", "other"]
    assert "it does not fire" in failures(MulSigmoid, examples=[(other, (x, x + 1))])["fires"]
    assert failures(MulSigmoid, negatives=[(swish, (x,))]) == {"negatives": "swish: it fires"}


def test_another_function() -> None:
    class Wrong(MulSigmoid):
        def replacement(x):
            return torch.relu(x)

    found = failures(Wrong)
    # Not "gradients": calls as small as these that are differentiated run eager's own operators.
    assert {"same results", "compiled", "layouts", "inner values"} <= set(found)
    with pytest.raises(
        ConformanceError, match=r"rewrite wrong fails the check 'same results': .* error 0\.2"
    ):
        check_rewrite(Wrong)


def test_another_shape() -> None:
    class Shorter(MulSigmoid):
        def replacement(x):
            return x[0]

    assert "shorter" in failures(Shorter)["fires"]


def test_a_pattern_that_nothing_fits() -> None:
    class Never(MulSigmoid):
        def check(match: Any):
            return No("never")

    found = failures(Never)
    assert found == {"fires": "no graph made of its pattern fits it: pass examples=[(fn, args), ...]"}


def test_infinities_that_get_lost() -> None:
    assert list(failures(rule("log(exp(x))", "x"))) == ["special numbers"]
    check_rewrite(rule("log(exp(x))", "x"), skip=["special numbers"])
    with pytest.raises(LampworkError, match="no check is called 'specials'"):
        check_rewrite(MulSigmoid, skip=["specials"])


def test_no_end() -> None:
    class Swap:
        def pattern(x: Tensor, y: Tensor):
            return torch.sub(x, y)

        def replacement(x, y):
            return torch.neg(torch.sub(y, x))

    assert failures(Swap)


def test_a_dtype_it_forgot() -> None:
    class OnlyFloat32(MulSigmoid):
        def replacement(x):
            return (x.double() * torch.sigmoid(x.double())).float()

    assert "same results" in failures(OnlyFloat32)


def test_a_condition_may_narrow_it() -> None:
    class OnlyFloat32(MulSigmoid):
        def replacement(x):
            return torch.nn.functional.silu(x)

        def check(match: Any):
            return Yes() if match.spec("x").dtype is torch.float32 else No("not float32")

    assert check_rewrite(OnlyFloat32).ok
