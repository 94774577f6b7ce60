"""Random numbers against eager: the same ones, and the generator left in the same state."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lampwork

X = torch.rand(3, 7, 41)
LAST = torch.rand(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
P = torch.rand(5, 300)

PROGRAMS = {
    "rand": lambda: torch.rand(5, 123),
    "rand f64": lambda: torch.rand(1301, dtype=torch.float64),
    "rand bf16": lambda: torch.rand(1301, dtype=torch.bfloat16),
    "rand_like": lambda: torch.rand_like(X) + X,
    "rand_like, other layout": lambda: torch.rand_like(LAST) + LAST,
    "uniform_": lambda: torch.empty(3000).uniform_(-1.7, 2.3) * 2,
    "uniform_ f64": lambda: torch.empty(3000, dtype=torch.float64).uniform_(-1.7, 2.3),
    "uniform_ of one number": lambda: torch.empty(30).uniform_(2.0, 2.0),
    "randn": lambda: torch.randn(20, 103),
    "randn few": lambda: torch.randn(15),
    "randn 16": lambda: torch.randn(16),
    "randn 17": lambda: torch.randn(17) * 2 + torch.randn(17),
    "randn f64": lambda: torch.randn(100, dtype=torch.float64),
    "randn_like": lambda: torch.randn_like(X) * 3,
    "normal_": lambda: torch.empty(700).normal_(2.0, 0.3),
    "randint": lambda: torch.randint(0, 64, (1000,)),
    "randint of one": lambda: torch.randint(5, 6, (100,)),
    "randint low": lambda: torch.randint(-7, 1000, (9, 9)) * 2,
    "randint large": lambda: torch.randint(0, 2**27 + 1001, (3000,)),
    "randint larger": lambda: torch.randint(-(2**40), 2**40, (3000,)),
    "randint i32": lambda: torch.randint(0, 64, (1000,), dtype=torch.int32),
    "randint_like": lambda: torch.randint_like(X.long(), 12) + torch.randint_like(X.long(), -5, 12),
    "exponential_": lambda: torch.empty(5000).exponential_(0.7),
    "exponential_ f64": lambda: torch.empty(500, dtype=torch.float64).exponential_(0.7),
    "gumbel": lambda: torch.empty_like(X).exponential_() + X,
    "bernoulli": lambda: torch.bernoulli(X),
    "bernoulli f64": lambda: torch.bernoulli(X.double()),
    "bernoulli transposed": lambda: torch.bernoulli(P.t()),
    "bernoulli expanded": lambda: torch.bernoulli(P[:1].expand(4, 300)),
    "bernoulli sliced": lambda: torch.bernoulli(P[:, 3:101]),
    "bernoulli of what is computed": lambda: torch.bernoulli(torch.sigmoid(P.reshape(300, 5).t())),
    "bernoulli p": lambda: torch.bernoulli(X, 0.2),
    "bernoulli always": lambda: torch.bernoulli(X, 1.0) + torch.bernoulli(X, 0.0),
    "bernoulli_ bool": lambda: torch.empty(500, dtype=torch.bool).bernoulli_(0.4),
    "dropout": lambda: F.dropout(X - 0.5, 0.1),
    "dropout bf16": lambda: F.dropout(X.bfloat16(), 0.1),
    "dropout f64": lambda: F.dropout(X.double(), 0.37),
    "dropout of all": lambda: F.dropout(X, 1.0),
    "dropout, other layout": lambda: F.dropout(LAST, 0.4),
    "dropout of nan and inf": lambda: F.dropout(X / torch.zeros(41).index_fill(0, torch.tensor(3), 1), 0.5),
    "dropout2d": lambda: F.dropout2d(torch.ones(3, 40, 3, 5), 0.3),
    "alpha_dropout": lambda: F.alpha_dropout(X, 0.3, True),
    "in order": lambda: (torch.rand(100), F.dropout(X, 0.5), torch.randn(40), torch.randint(0, 9, (7,))),
    "multinomial": lambda: torch.multinomial(P, 1),
    "multinomial of a row": lambda: torch.multinomial(P[0], 1),
    "multinomial of zeros": lambda: torch.multinomial(
        (P > 0.99).float() + F.one_hot(torch.tensor([7] * 5), 300), 1
    ),
    "multinomial of several": lambda: torch.multinomial(P, 3),
    "multinomial of a layout": lambda: torch.multinomial(P.t(), 1),
    "nothing": lambda: (torch.rand(0), torch.randn(3, 0), torch.randint(0, 5, (0, 2))),
}


def equal(a, b):
    if isinstance(a, tuple):
        return all(map(equal, a, b))
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


@pytest.mark.parametrize("name", PROGRAMS)
def test_stream(name):
    fn = PROGRAMS[name]
    compiled = lampwork.compile(fn, options={"strict": True})
    for seed in (1, 2):
        torch.manual_seed(seed)
        torch.rand(seed)
        expected, state = fn(), torch.get_rng_state()
        torch.manual_seed(seed)
        torch.rand(seed)
        found = compiled()
        assert equal(expected, found)
        assert torch.equal(state, torch.get_rng_state())


def test_many_blocks():
    def fn():
        return torch.rand(100_003), torch.randn(100_003), torch.empty(100_003).exponential_(2.0)

    torch.manual_seed(7)
    expected = fn()
    torch.manual_seed(7)
    assert equal(expected, lampwork.compile(fn)())


def test_open_sizes():
    compiled = lampwork.compile(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), dynamic=True)
    for size in (5, 1000, 3):
        x = torch.ones(size, 3)
        torch.manual_seed(size)
        expected = F.dropout(x, 0.5) + torch.rand_like(x)
        torch.manual_seed(size)
        assert torch.equal(expected, compiled(x))


def test_gradient_sees_the_same_numbers():
    def fn(x):
        return F.dropout(x.exp(), 0.5).sum()

    compiled = lampwork.compile(fn)
    gradients = []
    for run in (fn, compiled):
        x = X.clone().requires_grad_()
        torch.manual_seed(5)
        run(x).backward()
        gradients.append(x.grad)
    eager, ours = gradients
    assert torch.equal(eager == 0, ours == 0)
    torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.bernoulli(x + 1),
        lambda x: torch.bernoulli(x * float("nan")),
        lambda x: torch.multinomial(x[0] - 1, 1),
        lambda x: torch.multinomial(x[0] * 0, 1),
        lambda x: torch.multinomial(x[0] / 0, 1),
    ],
)
def test_what_raises(fn):
    with pytest.raises(RuntimeError) as eager:
        fn(X)
    with pytest.raises(RuntimeError) as compiled:
        lampwork.compile(fn)(X)
    assert str(eager.value) == str(compiled.value)
