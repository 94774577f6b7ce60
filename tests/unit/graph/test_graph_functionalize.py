"""Writes, views and aliases: what eager shows after a program, the recorded graph shows too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recording import check, record

from lampwork.errors import UnsupportedOpError
from lampwork.graph.record import Recorder
from lampwork.graph.shapes_common import ShapeError

X = torch.arange(32.0).reshape(4, 8)


def add_to_input(x: torch.Tensor) -> Any:
    x += 1
    return x * 2


def write_column(x: torch.Tensor) -> Any:
    x[:, 0] = 1
    x[1] += x[0]
    return x, x[2:], x.t()


def write_view_of_input(x: torch.Tensor) -> Any:
    y = x[1:3]
    y.mul_(2)
    return y


def write_fresh(x: torch.Tensor) -> Any:
    y = torch.zeros(4, 8)
    y[1:3] = x[1:3]
    v = y.view(-1)
    v[::2].sub_(3)
    return v, y, y.chunk(2, 1)


def write_alias_then_read_other(x: torch.Tensor) -> Any:
    y = x.clone()
    a, b = y[0], y.t()[:, 0]
    a.add_(5)
    c = b * 2
    b.zero_()
    return a, b, c, y


def write_transposed(x: torch.Tensor) -> Any:
    y = x.t().clone()
    y.copy_(x.t())
    z = y.t()
    z[0] = 7
    return y, z.reshape(-1)


def write_diagonal(x: torch.Tensor) -> Any:
    x.diagonal().fill_(9)
    x.diagonal(1).add_(1)
    return x.sum()


def write_unsqueezed(x: torch.Tensor) -> Any:
    x.unsqueeze(0).unsqueeze(-1).squeeze(0)[1:2].neg_()
    return x + 0


def write_view_shape(x: torch.Tensor) -> Any:
    x.view(2, 2, 8)[1].permute(1, 0)[2:4].mul_(3)
    return x.view(-1)[5:7]


def write_as_strided(x: torch.Tensor) -> Any:
    y = x.clone()
    y.as_strided((2, 2), (1, 3), 4).fill_(2)
    return y


def write_other_dtype(x: torch.Tensor) -> Any:
    y = x.to(torch.int32)
    y.add_(2)
    y.clamp_(0, 3)
    y[0] = 2.9
    return y, y.gt_(2)


def write_out(x: torch.Tensor) -> Any:
    out = torch.empty(4, 8)
    torch.add(x, x, out=out)
    values, places = torch.empty(4), torch.empty(4, dtype=torch.int64)
    torch.max(out, 1, out=(values, places))
    torch.mul(x, 2, out=out[0:4])
    return out, values, places


def write_out_into_input(x: torch.Tensor) -> Any:
    torch.exp(x * 0, out=x)
    return x


def write_foreach(x: torch.Tensor) -> Any:
    tensors = [x + 1, x[0] + 2, x]
    torch._foreach_add_(tensors, 1)
    torch._foreach_mul_(tensors, [2.0, 3.0, 4.0])
    return tensors, torch._foreach_neg(tensors)


def write_masked(x: torch.Tensor) -> Any:
    x[x > 7] = 0
    x.masked_fill_(x < 2, -1.0)
    row_mask = x[:, 0] < 0
    x[row_mask] = 4.0
    return x.clone()


def write_indexed(x: torch.Tensor) -> Any:
    rows = torch.tensor([0, 2])
    x[rows] = 1.0
    x[:, rows] += 2
    x.index_add_(0, rows, x[:2].clone())
    x.scatter_(1, torch.tensor([[0], [1], [2], [3]]), 5.0)
    x.index_fill_(1, rows, 3.0)
    return x


def write_expanded_copy(x: torch.Tensor) -> Any:
    y = x[:1].expand(4, 8).clone()
    y[1] = x[0]
    return y


def split_and_write(x: torch.Tensor) -> Any:
    a, b = x.split(4, 1)
    for part in x.unbind(0)[:2]:
        part.add_(1)
    a.sub_(b)
    return a, b


def swap_in_place(x: torch.Tensor) -> Any:
    first = x[0].clone()
    x[0] = x[1]
    x[1] = first
    return x[:2]


def return_input(x: torch.Tensor) -> Any:
    return x, x.view(8, 4), x.detach(), x.contiguous(), x.to(torch.float32), x.reshape(-1)


def data_attribute(x: torch.Tensor) -> Any:
    x.data.add_(1)
    return x.data


def self_assignment(x: torch.Tensor) -> Any:
    x.copy_(x)
    x[:] = x * 2
    x[...] = x.flip(0)
    return x


def literal(x: torch.Tensor) -> Any:
    c = torch.tensor([1.0, 2.0, 3.0])
    d = torch.tensor([4.0, 5.0])
    d[0] = 9
    return c, c[1:], d, x[:, :3] + c, torch.tensor(3.5)


def literal_mutated_view(x: torch.Tensor) -> Any:
    c = torch.tensor([1.0, 2.0, 3.0])
    v = c[1:]
    v += 1
    return c, v


def set_data_by_slices(x: torch.Tensor) -> Any:
    y = x.new_zeros(4, 16)
    y[:, ::2] = x
    y[:, 1::2] = -x
    y[0, 0] += 10
    y[..., -1] = x[:, 0]
    return y


def reshape_in_place(x: torch.Tensor) -> Any:
    y = x + 1
    y.unsqueeze_(0).transpose_(0, 1)
    shape = y.shape
    z = y[:, 0]
    y.squeeze_(1).t_()
    y[0] = 5
    assert shape == (4, 1, 8) and y.shape == (8, 4)
    return y, z


def as_strided_of_views(x: torch.Tensor) -> Any:
    y = x * 2
    y[1:].as_strided((2, 2), (8, 1)).fill_(1)
    y.t()[3].as_strided((3,), (1,)).fill_(2)
    y.diagonal(2)[1:].as_strided((1,), (1,)).fill_(3)
    y.as_strided((2,), (5,), 7).fill_(4)
    return y


def quantiles(x: torch.Tensor) -> Any:
    return (
        torch.quantile(x, 0.3, 1),
        torch.nn.functional.one_hot(x[0].long(), 8),
        torch.linalg.inv(x[:, :4] + 9 * torch.eye(4)),
    )


def complex_views(x: torch.Tensor) -> Any:
    z = torch.view_as_complex(x.view(4, 4, 2).clone())
    torch.view_as_real(z)[..., 0].fill_(1.0)
    return torch.view_as_real(z), z.abs()


def other_dtype_view(x: torch.Tensor) -> Any:
    y = x.clone()
    y.view(torch.int32)[0].zero_()
    return y


def dropout_eval(x: torch.Tensor) -> Any:
    y = torch.nn.functional.dropout(x, 0.5, training=False)
    y += 1
    return y


PROGRAMS: list[Callable[..., Any]] = [
    add_to_input, write_column, write_view_of_input, write_fresh, write_alias_then_read_other, write_transposed,
    write_diagonal, write_unsqueezed, write_view_shape, write_as_strided, write_other_dtype, write_out,
    write_out_into_input, write_foreach, write_masked, write_indexed, write_expanded_copy, split_and_write,
    swap_in_place, return_input, data_attribute, self_assignment, literal, literal_mutated_view, set_data_by_slices,
    reshape_in_place, as_strided_of_views, quantiles, complex_views, other_dtype_view, dropout_eval,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_program_as_in_eager(program: Callable[..., Any]) -> None:
    check(program, X.clone())


LAYOUT_PROGRAMS = [
    add_to_input, write_column, write_view_of_input, write_alias_then_read_other, write_diagonal, write_masked,
    write_unsqueezed, split_and_write, swap_in_place, self_assignment, set_data_by_slices,
]  # fmt: skip


@pytest.mark.parametrize("program", LAYOUT_PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", ["transposed", "gaps", "offset"])
def test_program_on_other_layouts(program: Callable[..., Any], layout: str) -> None:
    x = {
        "transposed": torch.randn(8, 4).t(),
        "gaps": torch.randn(4, 16)[:, ::2],
        "offset": torch.randn(5, 9)[1:, 1:],
    }[layout]
    check(program, x, tolerance=1e-6)


def test_mutations_name_the_written_inputs() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        z[0].add_(x[0])
        return y + z

    recorded = check(program, X.clone(), X.clone(), X.clone())
    assert recorded.mutations == ((2, 1),)


def test_an_unwritten_alias_of_an_input_is_a_view_of_its_placeholder() -> None:
    recorded, _ = record(lambda x: (x[1:], x), [X])
    output = next(reversed(recorded.graph.nodes)).args[0]
    assert output[0].target is torch.ops.aten.slice.Tensor and output[0].args[0].op == "placeholder"
    assert output[1].op == "placeholder"
    assert recorded.mutations == ()


def test_a_write_to_one_of_two_inputs_that_share_memory_is_refused() -> None:
    base = X.clone()
    part = base[1:]
    with Recorder() as rec, pytest.raises(UnsupportedOpError, match="x shares memory with y"):
        x, y = rec.input(base, "x"), rec.input(part, "y")
        x.add_(y[0])


def test_an_alias_met_after_the_write_is_refused() -> None:
    base = X.clone()
    part = base[1:]
    with Recorder() as rec, pytest.raises(UnsupportedOpError, match="shares memory"):
        x = rec.input(base, "x")
        x.add_(1)
        x.mul_(part[0])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: setattr(x, "data", x + 1),
        lambda x: setattr(x, "grad", x),
        lambda x: x._version,
        lambda x: x.to_sparse(),
        lambda x: x.expand(3, 4, 8).add_(1),
        lambda x: x.resize_(2, 2),
        lambda x: x.unsqueeze_(0),  # the input's own shape
        lambda x: x[1:].as_strided((2,), (1,)),
        lambda x: x.set_(x),
        lambda x: x.unfold(1, 3, 1).add_(1),
        lambda x: torch.add(x, x, out=torch.empty(3)),
        lambda x: x.requires_grad_(),
        lambda x: torch.cat([x, x], out=x),
    ],
)
def test_what_has_no_functional_form_is_refused(program: Callable[..., Any]) -> None:
    with Recorder() as rec, pytest.raises(UnsupportedOpError):
        program(rec.input(X, "x"))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.add_(torch.ones(2, 4, 8)),
        lambda x: x.int().add_(1.5),
        lambda x: torch.complex(x, x, out=torch.empty(4, 8, dtype=torch.complex128)),
        lambda x: x.half().fill_(1e9),
    ],
)
def test_writes_that_eager_refuses_are_refused(program: Callable[..., Any]) -> None:
    with Recorder() as rec, pytest.raises(ShapeError):
        program(rec.input(X, "x"))


# --- random programs -------------------------------------------------------------------------------------------------


def random_view(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    kind = rng.randrange(9)
    rank = x.dim()
    if rank == 0:
        return x.unsqueeze(0)
    dim = rng.randrange(rank)
    size = x.shape[dim]
    if kind == 0:
        return x.transpose(dim, rng.randrange(rank))
    if kind == 1 and size > 1:
        start = rng.randrange(size - 1)
        return x[(slice(None),) * dim + (slice(start, rng.randint(start + 1, size), rng.choice([1, 1, 2])),)]
    if kind == 2 and rank > 1:
        return x.select(dim, rng.randrange(-size, size))
    if kind == 3 and rank < 4:
        return x.unsqueeze(rng.randrange(rank + 1))
    if kind == 4:
        return x.squeeze()
    if kind == 5 and rank > 1:
        return x.flatten() if x.is_contiguous() else x.diagonal()
    if kind == 6 and size % 2 == 0:
        return x.unflatten(dim, (2, size // 2))
    if kind == 7:
        return x.detach()
    if kind == 8:
        return rng.choice(x.chunk(2, dim))
    return x


def random_program(seed: int, fresh: bool) -> Callable[..., Any]:
    """Views, reads and writes at random on a few names, the same for every run of one seed."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        rng = random.Random(seed)
        names = [x, y, x * 2] if not fresh else [x + 1, y * 3]
        results: list[torch.Tensor] = []
        for _ in range(rng.randint(4, 12)):
            one = rng.choice(names)
            action = rng.randrange(8)
            if action < 3:
                names.append(random_view(rng, one))
            elif action == 3:
                one.add_(rng.randint(1, 4))
            elif action == 4:
                one.mul_(one.sum() * 0.01 + 1)
            elif action == 5:
                other = rng.choice(names)
                if other.numel() == one.numel():
                    one.copy_(other.clone().reshape(one.shape))
                else:
                    one.fill_(rng.randint(0, 9))
            elif action == 6:
                results.append(one + 1)
            else:
                one.relu_()
        return [*results, *rng.sample(names, min(3, len(names)))]

    return program


@pytest.mark.parametrize("block", range(10))
def test_random_programs(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        layout = random.Random(-seed).randrange(3)
        x = [torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(4, 12)[:, ::2]][layout]
        try:
            check(random_program(seed, fresh=seed % 2 == 0), x, torch.randn(3, 4))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
