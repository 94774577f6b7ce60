"""Tensors that are not plain: complex, sparse, nested, masked, quantized, subclasses; and modes that see all."""

from __future__ import annotations

import warnings

import torch
import torch.nn as nn
from harness import program
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# What warns on its first use in a process.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.eye(2).to_sparse_csr()
    torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (1, 1))
    torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8)


def plain():
    return (torch.randn(2, 3),)


def complex_numbers():
    return (torch.randn(3, 4, dtype=torch.complex64),)


def complex_with_grad():
    return (torch.randn(3, 4, dtype=torch.complex64, requires_grad=True),)


# --- complex ----------------------------------------------------------------------------------------------------------


@program(complex_numbers)
def complex_arithmetic(x):
    return x * 2 + 1j, x.abs(), x.angle(), x @ x.T, x.exp(), x.mean(), x == x


@program(complex_numbers)
def complex_parts(x):
    return x.real * 2, x.imag + 1, torch.complex(x.imag, x.real), torch.polar(x.abs(), x.angle())


@program(complex_numbers)
def complex_conjugates(x):
    y = x.conj()
    return y, y.is_conj(), y * x, y[1:], y.resolve_conj(), x.conj_physical()


@program(complex_numbers)
def complex_conjugate_of_an_intermediate(x):
    y = x * 2
    return y.conj(), y.mH @ y, y.conj().conj() + 1


@program(complex_numbers)
def complex_write_is_seen_through_the_conjugate(x):
    y = x.conj()
    x.mul_(2j)
    return y, y + 1


@program(complex_numbers)
def complex_write_through_the_conjugate(x):
    y = x * 1
    y.conj().mul_(2j)
    return y


@program(complex_numbers, breaks=1)
def complex_imaginary_part_of_a_conjugate(x):
    return x.conj().imag


@program(lambda: (torch.randn(3, 4, dtype=torch.complex64).conj(),), breaks=1)
def complex_conjugate_as_argument(x):
    return x * 2


@program(lambda: (torch.randn(3, 4, dtype=torch.complex64).conj().imag,), breaks=1)
def lazily_negated_argument(x):
    return x * 2


@program(complex_with_grad, backward=True)
def complex_gradients(x):
    return (x * x.conj()).real, (x * 2j).abs(), torch.view_as_real(x).sum()


@program(plain)
def fourier_transforms(x):
    y = torch.fft.rfft(x, n=6)
    return torch.fft.irfft(y * y.conj(), n=6), torch.fft.fft(x).real, torch.fft.fftshift(torch.fft.fftfreq(4))


def rotary():
    return torch.randn(2, 4, 8, requires_grad=True), torch.randn(4, 4)


@program(rotary, backward=True)
def rotary_embedding_by_complex_numbers(x, angles):
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(2, 4, 4, 2))
    return torch.view_as_real(pairs * turn).flatten(2)


# --- sparse, nested, masked, quantized --------------------------------------------------------------------------------


@program(lambda: (torch.eye(3).to_sparse(), torch.randn(3, 2)), breaks=1)
def sparse_argument(a, x):
    return (a @ x) * 2


@program(lambda: (torch.eye(3).to_sparse_csr(), torch.randn(3, 2)), breaks=1)
def sparse_rows_argument(a, x):
    return a @ x + 1


@program(plain, breaks=3)
def sparse_in_the_middle(x):
    y = (x * (x > 0)).to_sparse()
    return y.to_dense() * 2


@program(plain, breaks=2)
def sparse_built(x):
    y = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (2, 2))
    return y @ x


class Propagation(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("edges", torch.eye(4).to_sparse())

    def forward(self, x):
        return torch.relu(torch.sparse.mm(self.edges, self.layer(x)))


@program(lambda: (torch.randn(4, 3),), factory=True, breaks=2)
def sparse_buffer():
    return Propagation()


@program(lambda: (torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]), torch.ones(2)), breaks=3)
def nested_argument(x, y):
    return (x * 2).to_padded_tensor(0.0), y + 1


@program(lambda: (torch.randn(5, 3), torch.tensor([0, 2, 5])), breaks=4)
def jagged_in_the_middle(values, offsets):
    rows = torch.nested.nested_tensor_from_jagged(values, offsets)
    return (rows * 2).values() + 1


@program(lambda: (torch.randn(2, 3), torch.randn(4, 3)), breaks=3)
def nested_in_the_middle(a, b):
    return torch.nested.nested_tensor([a, b]).to_padded_tensor(0.0) * 2


@program(plain, breaks=3)
def quantized_in_the_middle(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1


@program(lambda: (torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),), breaks=2)
def quantized_argument(x):
    return x.dequantize() * 2


@program(plain)
def fake_quantization(x):
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


# --- subclasses -------------------------------------------------------------------------------------------------------


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in ("mul", "add", "sin"):
            print("calls", func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Named(torch.Tensor):
    pass


class Wrapped(torch.Tensor):
    """A tensor around another, by __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        print("dispatches", func.__name__)
        plain = [a.inner if isinstance(a, Wrapped) else a for a in args]
        return func(*plain, **(kwargs or {}))


@program(lambda: (torch.ones(2, 3).as_subclass(Logged),), breaks=3)
def subclass_with_torch_function(x):
    return (x * 2).as_subclass(torch.Tensor)


@program(lambda: (torch.ones(2, 3).as_subclass(Named), torch.ones(3)), breaks=4)
def subclass_without_behaviour(x, y):
    z = y + 1
    return (x * z).as_subclass(torch.Tensor), type(x).__name__


@program(lambda: (Wrapped(torch.ones(2, 3)), torch.ones(3)), breaks=1)
def subclass_with_torch_dispatch(x, y):
    return x * 2, y + 1


@program(plain, breaks=2)
def subclass_made_inside(x):
    y = x.as_subclass(Named)
    return type(y).__name__, x + 1


class Weight(nn.Parameter):
    pass


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Weight(torch.ones(3))

    def forward(self, x):
        return x * self.weight


@program(plain, factory=True, breaks=2)
def subclass_of_parameter():
    return OwnParameter()


@program(plain)
def types_of_tensors(x):
    return type(x) is torch.Tensor, isinstance(x, torch.Tensor), isinstance(x, nn.Parameter), x.is_sparse


# --- modes ------------------------------------------------------------------------------------------------------------


class SeesFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print("function", getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))


class SeesOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print("operator", func)
        return func(*args, **(kwargs or {}))


@program(plain, within=SeesFunctions, regions=0)
def function_mode_outside(x):
    return torch.sin(x * 2)


@program(plain, within=SeesOperators, regions=0)
def dispatch_mode_outside(x):
    return torch.sin(x * 2)


@program(plain, breaks=2)
def function_mode_inside(x):
    y = x + 1
    with SeesFunctions():
        return torch.sin(y)


@program(plain, breaks=1)
def dispatch_mode_inside(x):
    y = x + 1
    with SeesOperators():
        z = torch.sin(y)
    return z * 2


@program(plain, within=lambda: torch.utils.flop_counter.FlopCounterMode(display=False), regions=0)
def flop_counter_outside(x):
    return x @ x.T
