"""What results share with arguments and with each other: views, writes through them, inputs that are returned."""

from __future__ import annotations

import torch
from harness import program


def plain():
    return (torch.randn(4, 6),)


def wanting_grad():
    return (torch.randn(4, 6, requires_grad=True),)


@program(plain)
def views_of_an_argument(x):
    return x[1:], x.T, x.view(6, 4), x[:, 2], x.unsqueeze(0), x.expand(2, 4, 6), x.diagonal(), x[::2, 1::3]


@program(plain)
def pieces_of_an_argument(x):
    return x.chunk(2), x.split([1, 3]), x.unbind(1)[2], x.unfold(1, 2, 2), x.narrow(0, 1, 2), x.movedim(0, 1)


@program(plain)
def argument_itself(x):
    return x, x.contiguous(), x.to(torch.float32), x.view_as(x), x.detach(), x.data


@program(plain)
def views_that_reinterpret(x):
    return x.view(torch.int32), x.view(torch.int16)[1], x.view(torch.float64), x.view(torch.uint8).view(-1)


@program(plain)
def views_by_strides(x):
    return x.as_strided((3, 2), (1, 3)), torch.as_strided(x * 2, (2, 2), (1, 2), 1)


@program(plain, breaks=1)
def views_by_strides_and_offset(x):
    return x[1:].as_strided((2,), (1,))


@program(lambda: (torch.randn(8)[2:],), breaks=1)
def views_by_strides_before_the_argument(x):
    return x.as_strided((2,), (1,), 0)


@program(lambda: (torch.randn(8)[2:],), breaks=1)
def numbers_before_the_argument(x):
    return x.as_strided((2,), (1,), 0) * 2


@program(plain)
def views_as_complex_and_back(x):
    y = torch.view_as_complex(x.view(4, 3, 2))
    return y, torch.view_as_real(y), torch.view_as_real(y * 2)


@program(plain)
def results_that_share_memory(x):
    y = x * 2
    return y, y[1:], y.T, y.view(torch.int32)


@program(plain)
def write_to_an_argument(x):
    x.add_(1)
    x[0] = 5
    return x * 2


@program(plain)
def write_through_a_view(x):
    x[1:, ::2].mul_(3)
    x.T[0].zero_()
    return x.sum()


@program(plain)
def write_through_a_reinterpreting_view(x):
    y = x * 1
    y.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return y


@program(plain)
def view_sees_a_later_write(x):
    y = x.view(-1)
    x.mul_(2)
    return y, y[3:]


@program(lambda: (torch.ones(2, 3, requires_grad=True),), within=torch.no_grad)
def view_without_gradient_of_what_was_written(x):
    x.mul_(2)
    y = x.view(-1)
    return y, y[3:]


@program(lambda: (torch.zeros(4), torch.ones(4)))
def out_argument(x, y):
    torch.add(x, y, out=x)
    return torch.mul(x, 2, out=y)


@program(lambda: (torch.zeros(0), torch.ones(4)), breaks=1)
def out_argument_that_is_resized(x, y):
    return torch.add(y, y, out=x)


@program(plain)
def copies_and_fills(x):
    y = torch.empty(4, 6)
    y.copy_(x)
    y.fill_diagonal_(7)
    y.masked_fill_(y > 1, -1.0)
    y.index_fill_(0, torch.tensor([1]), 3)
    y.clamp_(min=-2)
    return y


@program(plain)
def scatters(x):
    index = torch.tensor([[0, 1, 2, 0, 1, 2]])
    x.scatter_(0, index, 9.0)
    x.scatter_add_(0, index, torch.ones(1, 6))
    x.index_add_(0, torch.tensor([3]), torch.ones(1, 6))
    x.index_copy_(1, torch.tensor([0]), torch.zeros(4, 1))
    return x.gather(0, index)


@program(plain)
def item_assignments(x):
    x[0, 1:3] = torch.tensor([1.0, 2.0])
    x[torch.tensor([1, 2]), torch.tensor([0, 5])] = 8
    x[x < -1] = 0
    x[..., -1] += 1
    return x.clone()


@program(wanting_grad, backward=True)
def in_place_on_an_intermediate(x):
    y = x * 2
    y.add_(1)
    y[0] = y[1] * 3
    return y.relu_()


@program(wanting_grad, backward=True)
def views_and_gradients(x):
    y = x[1:]
    return y * 2, y, x.T


@program(wanting_grad, backward=True)
def detached_view_and_gradients(x):
    return x.detach()[1:], x[1:].detach() * x[1:]


@program(wanting_grad, breaks=1)
def write_to_a_leaf_raises(x):
    try:
        x.add_(1)
    except RuntimeError as error:
        return str(error)[:30]
    return x


@program(lambda: (torch.randn(4, requires_grad=True) * 1,), breaks=1)
def write_to_an_argument_with_history(x):
    x.mul_(2)
    return x + 1


def overlapping():
    base = torch.randn(6)
    return base[:4], base[2:]


@program(overlapping, breaks=1)
def write_to_overlapping_arguments(x, y):
    x.add_(1)
    return y * 2


@program(lambda: (lambda t: (t, t))(torch.randn(3)), again=lambda: (torch.randn(3), torch.randn(3)))
def same_tensor_twice(x, y):
    x.add_(1)
    return x + y, x is y


@program(lambda: (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),))
def memory_formats(x):
    return x * 2, x.contiguous(), (x + 1).to(memory_format=torch.contiguous_format), x.permute(0, 2, 3, 1)


@program(lambda: (torch.randn(3, 1).expand(3, 4), torch.randn(4, 3).T))
def expanded_and_transposed_arguments(x, y):
    return x * 2, x + y, y.reshape(-1), torch.empty_like(y).stride()


@program(lambda: (torch.randn(0, 3), torch.tensor(2.0)))
def empty_and_scalar_tensors(x, y):
    return x * y, x.sum(), y.view(1), torch.cat([x, x]), x.amax(1)


@program(plain)
def shape_questions(x):
    return x.shape, x.size(0), x.stride(), x.numel(), x.dim(), x.is_contiguous(), x.T.is_contiguous(), len(x)


@program(plain, breaks=1)
def memory_is_swapped(x):
    y = x * 1
    y.set_(torch.ones(3))
    return y


@program(plain, breaks=1)
def data_is_assigned(x):
    x.data = torch.ones(2)
    return x + 1


@program(plain, breaks=1)
def tensor_is_resized(x):
    y = x * 1
    y.resize_(2, 3)
    return y + 1


@program(plain)
def shape_changed_in_place(x):
    y = x * 1
    y.unsqueeze_(0)
    y.t_() if y.dim() == 2 else y.transpose_(1, 2)
    return y


@program(lambda: (torch.randn(1, 6).expand(4, 6),), breaks=2)
def one_row_of_an_expanded_argument_is_written(x):
    x[0] = 5
    x[1].add_(1)
    return x * 2


@program(lambda: (2.0,), breaks=2)
def one_row_of_an_expanded_tensor_is_written(a):
    x = torch.zeros(1, 4).expand(3, 4)
    x[0] = a
    x[1].add_(1)
    return x * 2


@program(lambda: (torch.randn(5, 20),), breaks=1)
def normal_numbers_in_transposed_memory(x):
    return x.t().normal_(), torch.rand(1)


@program(lambda: (torch.randn(20, 2),), breaks=1)
def normal_numbers_in_a_column(x):
    x[:, 0].normal_()
    return x, torch.rand(1)


@program(lambda: (torch.randn(5, 20),), breaks=1)
def coins_in_transposed_memory(x):
    return x.t().bernoulli_(0.3), torch.rand(1)


@program(lambda: (torch.randn(6, 20),))
def numbers_drawn_into_rows(x):
    return x[2:].normal_(), x[0].bernoulli_(0.3), torch.rand(1)


def truths():
    return (torch.tensor([True, True, False, True]),)


@program(truths, breaks=1)
def writes_to_the_bytes_of_bools(x):
    v = x.view(torch.uint8)
    v.cumsum_(-1)
    return v, x.int(), ~x, x & x.flip(0), x.sum()


@program(truths, breaks=1)
def writes_to_the_bytes_of_bools_of_its_own(x):
    y = x.clone()
    y.view(torch.int8).mul_(2)
    return y.view(torch.uint8), y.float(), torch.where(y, 1, 2), y.logical_not(), y.any()


@program(lambda: (torch.tensor([0, 1, 2, 128, 255], dtype=torch.uint8),), breaks=1)
def writes_of_bools_to_a_part_of_bytes(x):
    x.view(torch.bool)[0] = True
    return x, x.view(torch.bool).int()
