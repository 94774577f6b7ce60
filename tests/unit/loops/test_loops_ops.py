"""The meaning of every operation, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lampwork.loops.ir.ops import OPS

SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, 1e30, -7.25]
FLOATS = np.concatenate([np.random.default_rng(0).standard_normal(60) * 3, SPECIALS]).astype(np.float32)
INTS = np.array([0, 1, -1, 2, -2, 7, -7, 100, -128, 127, 5, -3], dtype=np.int64)

UNARY = {
    "unrounded": torch.clone,
    "reciprocal": torch.reciprocal,
    "not": torch.logical_not,
    "round": torch.round,
    "sign": torch.sign,
    "softplus": torch.nn.functional.softplus,
    "ndtr": lambda x: (torch.special.erfc(-x.double() * 0.5**0.5) / 2).float(),
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "rem": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "fmax": torch.fmax,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
}
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
INTEGER_ONLY = ("bitnot", "and", "or", "xor", "shl", "shr")


def same(got, expected, tolerance=2e-6, *, signs=True):
    got, expected = np.asarray(got), expected.numpy()
    assert got.dtype == expected.dtype
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-37)
    if not signs:
        return
    zero = (got == 0) & (expected == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


NOT_OF_FLOATS = ("cast", "bitnot", "from_bits")


@pytest.mark.parametrize("name", [n for n, o in OPS.items() if o.arity == 1 and n not in NOT_OF_FLOATS])
def test_unary(name):
    function = UNARY.get(name) or getattr(torch, name, None) or getattr(torch.special, name)
    with np.errstate(all="ignore"):
        got = OPS[name].reference(FLOATS)
    same(got, function(torch.from_numpy(FLOATS)), 2e-5 if name in ("tan", "sinh", "cosh") else 4e-6)


@pytest.mark.parametrize("name", [*BINARY, *COMPARE])
def test_binary_floats(name):
    if name in INTEGER_ONLY:
        pytest.skip("for integers")
    a, b = np.meshgrid(FLOATS, FLOATS)
    a, b = a.ravel().copy(), b.ravel().copy()
    if name in ("rem", "fmod"):
        # torch's vector code loses all digits of enormous quotients; C's fmod, which is meant here, does not.
        modest = ~((np.abs(a) > 1e20) | ((np.abs(b) < 1e-20) & (b != 0)))
        a, b = a[modest], b[modest]
    function = BINARY.get(name) or getattr(torch, name)
    with np.errstate(all="ignore"):
        got = OPS[name].reference(a, b)
    # Which of 0.0 and -0.0 is smaller depends on the lane in torch itself.
    same(got, function(torch.from_numpy(a), torch.from_numpy(b)), 1e-5, signs=name not in ("fmin", "fmax"))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
@pytest.mark.parametrize("name", [*BINARY, *COMPARE, "bitnot", "neg", "abs", "sign"])
def test_integers(name, dtype):
    if name in ("div", "atan2", "hypot", "copysign"):
        pytest.skip("for floats")
    a, b = np.meshgrid(INTS.astype(dtype), INTS.astype(dtype))
    a, b = a.ravel().copy(), b.ravel().copy()
    if name in ("floordiv", "truncdiv", "rem", "fmod"):
        b[b == 0] = 3
        overflow = (a == np.iinfo(dtype).min) & (b == -1)
        b[overflow] = 3
    if name in ("shl", "shr"):
        b = np.abs(b) % (a.itemsize * 8)
    if name == "pow":
        b = np.clip(b, -3, 5)
    with np.errstate(all="ignore"):
        if OPS[name].arity == 1:
            unary = {"bitnot": torch.bitwise_not, "neg": torch.neg, "abs": torch.abs, "sign": torch.sign}
            got, expected = OPS[name].reference(a), unary[name](torch.from_numpy(a))
        else:
            function = BINARY.get(name) or getattr(torch, name)
            expected = None
            if name == "pow":
                # torch refuses a tensor of negative exponents only for scalars; compare elementwise powers.
                expected = torch.pow(torch.from_numpy(a), torch.from_numpy(b))
            got = OPS[name].reference(a, b)
            if expected is None:
                expected = function(torch.from_numpy(a), torch.from_numpy(b))
    same(got, expected)


def test_where_and_fma():
    condition = FLOATS > 0
    np.testing.assert_array_equal(
        OPS["where"].reference(condition, FLOATS, -FLOATS), np.where(condition, FLOATS, -FLOATS)
    )
    a = np.float32([1 + 2**-12])
    got = OPS["fma"].reference(a, a, np.float32([-1]))
    assert got.dtype == np.float32 and got[0] == np.float32(float(a[0]) ** 2 - 1)


def test_require():
    np.testing.assert_array_equal(OPS["require"].reference(FLOATS, np.ones_like(FLOATS, np.bool_)), FLOATS)
    with pytest.raises(ArithmeticError, match="requires"):
        OPS["require"].reference(FLOATS, FLOATS < 1)


def test_from_bits():
    values = FLOATS.astype(np.float64)
    np.testing.assert_array_equal(OPS["from_bits"].reference(values.view(np.int64)), values)


def test_every_operation_is_described():
    for name, info in OPS.items():
        assert info.doc and info.arity in (1, 2, 3) and info.cost > 0 or name == "unrounded", name
    assert OPS["unrounded"].cost == 0 and OPS["unrounded"].doc, "it computes nothing"
    with pytest.raises(TypeError):
        OPS["new"] = OPS["add"]
