"""numerics="fast": random numbers are computed from a key and a counter, wherever and as often as they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scalar_target import native_on, target_named
from torch.utils.checkpoint import checkpoint

import lampwork
from lampwork.codegen.llvm.isa.x86 import host_flags, widest
from lampwork.loops.ir.philox import philox

FAST = {"numerics": "fast", "strict": True}
MANY = 1 << 17
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)


def fast(fn, **kwargs):
    return lampwork.compile(fn, options=FAST, **kwargs)


def seeded(fn, *args, seed=3):
    torch.manual_seed(seed)
    return fn(*args)


def kept(shape, p, seed=3):
    """Where the first dropout of p behind a seed keeps."""
    torch.manual_seed(seed)
    key = torch.ops.lampwork.random_key().numpy()
    words = philox(key, np.arange(int(np.prod(shape))).reshape(shape), np.int64(0)).astype(np.int64)
    return torch.from_numpy(words + 2**31 < round((1 - p) * 2**32))


# --- distributions ----------------------------------------------------------------------------------------------------


def check_uniform(x, cells=64):
    """Chi square of equal cells of [0, 1), within five deviations of what is expected."""
    x = x.double().flatten()
    assert 0 <= x.min() and x.max() <= 1
    counts = torch.histc(x, cells, 0, 1)
    chi = ((counts - x.numel() / cells) ** 2).sum() / (x.numel() / cells)
    assert abs(chi - (cells - 1)) < 5 * (2 * (cells - 1)) ** 0.5, chi


def check_independent(x, y):
    x, y = x.double().flatten(), y.double().flatten()
    correlation = torch.corrcoef(torch.stack([x, y]))[0, 1]
    assert abs(correlation) < 5 / x.numel() ** 0.5, correlation


def as_uniform(name, x):
    """What has this distribution, by its distribution function."""
    x = x.double()
    return {
        "rand": lambda: x,
        "uniform": lambda: (x + 1.7) / 4,
        "randn": lambda: torch.special.ndtr(x),
        "normal": lambda: torch.special.ndtr((x - 2) / 0.3),
        "exponential": lambda: -torch.expm1(-0.7 * x),
    }[name]()


FILLS = {
    "rand": lambda x: torch.rand_like(x),
    "uniform": lambda x: torch.empty_like(x).uniform_(-1.7, 2.3),
    "randn": lambda x: torch.randn_like(x),
    "normal": lambda x: torch.empty_like(x).normal_(2.0, 0.3),
    "exponential": lambda x: torch.empty_like(x).exponential_(0.7),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FILLS)
def test_distribution(name, dtype):
    compiled = fast(FILLS[name])
    x = seeded(compiled, torch.zeros(MANY, dtype=dtype))
    y = compiled(torch.zeros(MANY, dtype=dtype))
    assert x.dtype == dtype and x.isfinite().all()
    assert torch.equal(x, seeded(compiled, torch.zeros(MANY, dtype=dtype))), "the seed says what is drawn"
    if name == "rand":
        assert x.max() < 1
    if name == "uniform":
        assert x.min() >= -1.7 - 0.01 * (dtype in HALVES) and x.max() < 2.3 + 0.01 * (dtype in HALVES)
    if name == "exponential":
        assert x.min() > 0 or dtype in HALVES
    for values in (x, y):
        uniform = as_uniform(name, values)
        assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / MANY) ** 0.5 + 0.003 * (dtype in HALVES)
        assert abs(uniform.var() - 1 / 12) < 0.001 + 0.003 * (dtype in HALVES)
        if dtype not in HALVES:
            check_uniform(uniform)
        for lag in (1, 2, 3, 4, 16, 64):
            check_independent(values[lag:], values[:-lag])
    check_independent(x, y)


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0])
def test_bernoulli(p):
    chosen = seeded(fast(lambda x: torch.bernoulli(x, p)), torch.zeros(MANY))
    assert set(chosen.unique().tolist()) <= {0.0, 1.0}
    assert abs(chosen.mean() - p) <= 5 * (p * (1 - p) / MANY) ** 0.5
    flags = fast(lambda: torch.empty(99, dtype=torch.float64).bernoulli_(p))()
    assert flags.dtype == torch.float64


def test_operators_of_a_program_are_independent():
    drawn = seeded(
        fast(lambda x: (torch.rand_like(x), torch.rand_like(x), F.dropout(x, 0.5))), torch.ones(MANY)
    )
    for i in range(3):
        for j in range(i):
            check_independent(drawn[i], drawn[j])


def test_normal_parts_are_independent():
    """The radius and the angle of a normal number are of different words."""
    x = seeded(fast(lambda: torch.randn(MANY)))
    check_uniform(torch.special.ndtr(x.double()))
    assert abs((x.double() ** 4).mean() - 3) < 5 * (96 / MANY) ** 0.5


# --- what a result looks like -----------------------------------------------------------------------------------------

LAST = torch.rand(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
PROGRAMS = {
    "rand": lambda: torch.rand(5, 23),
    "rand bf16": lambda: torch.rand(31, dtype=torch.bfloat16),
    "rand_like": lambda: torch.rand_like(LAST),
    "randn": lambda: torch.randn(3, 3, dtype=torch.float64),
    "uniform_ of a part": lambda: torch.zeros(6, 8)[:, 1:5].uniform_(1, 2),
    "dropout": lambda: F.dropout(LAST, 0.4),
    "dropout of a transposed": lambda: F.dropout(LAST[0, 0].t(), 0.4),
    "dropout of an expanded": lambda: F.dropout(torch.ones(1, 5).expand(3, 5), 0.4),
    "dropout_": lambda: F.dropout(LAST * 2, 0.4, inplace=True),
    "dropout2d": lambda: F.dropout2d(LAST, 0.4),
    "dropout of all": lambda: F.dropout(LAST, 1.0),
    "dropout of none": lambda: F.dropout(LAST, 0.0),
    "dropout bf16": lambda: F.dropout(LAST.bfloat16(), 0.1),
    "one": lambda: (torch.rand(()), torch.randn(1), F.dropout(torch.ones(1), 0.5)),
    "nothing": lambda: (torch.rand(0), torch.randn(3, 0), F.dropout(torch.ones(0, 2), 0.5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_layouts(name):
    """Dtypes, shapes and strides are eager's; so are numbers where there is one answer."""
    got, expected = fast(PROGRAMS[name])(), PROGRAMS[name]()
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for a, b in pairs:
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    if name in ("dropout of all", "dropout of none"):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(7,), (33, 65), (3, 64, 5)])
def test_mask_is_that_of_the_counter(shape, dtype):
    x = torch.randn(shape).to(dtype)
    got = seeded(fast(lambda x: F.dropout(x, 0.3)), x)
    assert torch.equal(got, x * (kept(shape, 0.3).to(dtype) * (1 / 0.7)))


def test_nan_and_inf():
    x = torch.tensor([float("nan"), float("inf"), -0.0, 1.0]).repeat(64)
    got = seeded(fast(lambda x: F.dropout(x, 0.5)), x)
    expected = x * kept((256,), 0.5) * 2
    assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7)) and torch.equal(
        got.isnan(), expected.isnan()
    )


# --- one mask, wherever it is read ------------------------------------------------------------------------------------

CONSUMERS = {
    "alone": lambda x: F.dropout(x, 0.3),
    "chain": lambda x: (F.dropout(x.exp().log(), 0.3) + 1).relu() - 1,
    "transposed": lambda x: F.dropout(x, 0.3).t().contiguous().t(),
    "rows": lambda x: F.dropout(x, 0.3) + 0 * F.dropout(x, 0.3).sum(1, keepdim=True),
    "columns": lambda x: F.dropout(x, 0.3) + 0 * x.sum(0),
    "softmax": lambda x: F.dropout(torch.softmax(x * 0, 1) * x.shape[1], 0.3),
    "product": lambda x: F.dropout(x @ torch.eye(x.shape[1]), 0.3),
    "read twice": lambda x: torch.cat([y := F.dropout(x, 0.3), y])[: x.shape[0]],
}
ISAS = ["avx512", "avx2", "sse4", "scalar"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CONSUMERS)
@pytest.mark.parametrize("shape", [(9, 128), (5, 67)])
def test_fusion_and_vectors_make_no_difference(shape, name, isa):
    if [*reversed(ISAS)].index(isa) > [*reversed(ISAS)].index(widest(host_flags())):
        pytest.skip(f"this CPU has no {isa}")
    with native_on(target_named(isa)):
        got = seeded(fast(CONSUMERS[name]), torch.ones(shape))
    expected = kept(shape, 0.3)
    assert torch.equal(got > 0.5, expected)
    torch.testing.assert_close(got, expected / 0.7)


def test_threads_make_no_difference():
    programs = [
        lambda x: F.dropout(x, 0.3) * 2,
        lambda x: F.layer_norm(F.dropout(x, 0.3), (x.shape[1],)).sum(1),
    ]
    before = torch.get_num_threads()
    try:
        for fn in programs:
            found = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found.append(seeded(fast(fn), torch.ones(1001, 257)))
            assert torch.equal(*found)
    finally:
        torch.set_num_threads(before)


def test_open_sizes():
    compiled = fast(lambda x: F.dropout(x, 0.3) + 0 * torch.rand_like(x), dynamic=True)
    for size in (5, 1000, 3):
        got = seeded(compiled, torch.ones(size, 3), seed=size)
        assert torch.equal(got > 0, kept((size, 3), 0.3, seed=size))


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_gradient_is_the_mask(dtype):
    """Bit for bit, in eager's backward of a result as in the compiled one of a loss, which saves the key alone."""
    of_result = fast(lambda x: F.dropout(x, 0.3))
    of_loss = fast(lambda x: F.dropout(x, 0.3).sum())
    x = torch.ones(37, 65, dtype=dtype, requires_grad=True)
    for step in range(3):
        expected = kept((37, 65), 0.3, seed=step).to(dtype) * (1 / 0.7)
        out = seeded(of_result, x, seed=step)
        loss = seeded(of_loss, x, seed=step)
        assert torch.equal(out, expected)
        for result in (out.sum(), loss):
            assert torch.equal(torch.autograd.grad(result, x)[0], expected)
    assert "8 bytes in 1 tensors" in of_loss.stages.saved


def test_several_calls_before_one_backward():
    compiled = fast(lambda x: F.dropout(x, 0.5).sum())
    x = torch.ones(500, requires_grad=True)
    torch.manual_seed(0)
    losses = [compiled(x) for _ in range(3)]
    expected = sum(loss.detach() for loss in losses)
    sum(losses).backward()
    assert x.grad.sum() == expected and len(x.grad.unique()) > 2


def test_gradient_of_a_gradient_sees_the_same_mask():
    compiled = fast(lambda x: (F.dropout(x, 0.5) ** 2).sum())
    x = torch.ones(100, requires_grad=True)
    compiled(x).backward()
    loss = compiled(x)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert torch.equal(grad, second) and grad.sum() == 2 * loss


def test_graph_is_kept():
    compiled = fast(lambda x: F.dropout(x, 0.5).exp().sum())
    x = torch.ones(100, requires_grad=True)
    loss = compiled(x)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(inside, reentrant):
    def block(x):
        return F.dropout(x.exp(), 0.5)

    whole = fast(lambda x: checkpoint(block, x, use_reentrant=reentrant).sum())
    part = fast(block)
    run = whole if inside else lambda x: checkpoint(part, x, use_reentrant=reentrant).sum()
    for _ in range(3):
        x = torch.zeros(400, requires_grad=True)
        loss = run(x)
        loss.backward()
        assert x.grad.sum() == loss, "exp(0) is its own gradient"


def test_memory_budget():
    def fn(x, w):
        return F.dropout((F.dropout(x @ w, 0.5).relu() @ w).exp(), 0.5).sum()

    gradients = []
    for budget in (1.0, 0.0):
        compiled = lampwork.compile(fn, options={**FAST, "memory_budget": budget})
        x, w = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.eye(8).requires_grad_()
        seeded(compiled, x, w).backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)


def test_attention():
    """Against float64 with the mask of the counter."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 17, 8, requires_grad=True) for _ in range(3))
    compiled = fast(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = (wide[0] @ wide[1].mT * 8**-0.5).masked_fill(torch.ones(17, 17).triu(1).bool(), float("-inf"))
    expected = (scores.softmax(-1) * kept((2, 3, 17, 17), 0.2) / 0.8) @ wide[2]
    wanted = torch.autograd.grad(expected.square().sum(), wide)
    for _ in range(2):
        out = seeded(compiled, q, k, v)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
        found = torch.autograd.grad(out.square().sum(), (q, k, v))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


# --- the generator ----------------------------------------------------------------------------------------------------


def test_state_of_the_generator():
    compiled = fast(lambda x: F.dropout(x, 0.5))
    x = torch.ones(200)
    first = seeded(compiled, x)
    state = torch.get_rng_state()
    second, eager = compiled(x), torch.rand(3)
    torch.set_rng_state(state)
    assert torch.equal(second, compiled(x)) and torch.equal(eager, torch.rand(3))
    assert not torch.equal(first, second)
    with torch.random.fork_rng():
        compiled(x)
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        assert torch.equal(first, compiled(x))
    assert torch.equal(second, compiled(x))


def test_between_graph_breaks():
    """Keys are drawn in the program's order, so a break changes no number."""

    def fn(x, stop):
        y = F.dropout(x, 0.5)
        stop()
        return y + F.dropout(x, 0.25)

    broken = lampwork.compile(fn, options={"numerics": "fast"})
    whole = fast(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.25))
    x = torch.ones(300)
    for _ in range(2):
        assert torch.equal(seeded(broken, x, torch.compiler.disable(lambda: None)), seeded(whole, x))


OF_TORCH = {
    "generator": lambda: torch.rand(50, generator=torch.Generator().manual_seed(1)),
    "alpha_dropout": lambda: F.alpha_dropout(torch.ones(50), 0.3, True),
    "randint": lambda: torch.randint(0, 9, (50,)),
    "bernoulli of a tensor": lambda: torch.bernoulli(torch.linspace(0, 1, 50)),
    "multinomial": lambda: torch.multinomial(torch.ones(2, 50), 3),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_what_stays_torchs_stream(name):
    compiled = lampwork.compile(OF_TORCH[name], options={"numerics": "fast"})
    assert torch.equal(seeded(compiled), seeded(OF_TORCH[name]))


def test_default_numerics_draw_torchs_stream():
    x = torch.ones(300)
    assert torch.equal(seeded(lampwork.compile(lambda x: F.dropout(x, 0.5)), x), seeded(F.dropout, x))


def test_filling_what_requires_grad():
    """Its gradient is zero, as eager's."""
    x = torch.ones(50, requires_grad=True)
    compiled = fast(lambda x: (x * 2).uniform_() * x)
    out = compiled(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out.detach())
