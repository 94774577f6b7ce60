"""Where in its storage a tensor begins: eager takes pairs of numbers as complex ones at even places only."""

from __future__ import annotations

import pytest
import torch

import lampwork

MEMORY = torch.randn(64)
REFUSED = "storage_offset divisible by 2"


def given(offset: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return MEMORY.to(dtype)[offset : offset + 8]


PROGRAMS = {
    "a view": lambda x: torch.view_as_complex(x.view(4, 2)) * 2,
    "contiguous": lambda x: torch.view_as_complex(x.view(4, 2).contiguous()) * 2,
    "a conversion to the same type": lambda x: torch.view_as_complex(x.to(x.dtype).reshape(4, 2)).abs(),
    "from the second number on": lambda x: torch.view_as_complex(x[1:7].view(3, 2)).abs(),
    "from the second pair on": lambda x: torch.view_as_complex(x.view(4, 2)[1:]) + 1,
    "by strides": lambda x: torch.view_as_complex(x.as_strided((3, 2), (2, 1))) * 2,
    "read as other numbers": lambda x: (
        torch.view_as_complex(x.view(torch.int32).view(x.dtype).view(-1, 2)) * 2
    ),
    "after a write": lambda x: torch.view_as_complex(x.mul_(1).view(4, 2)) * 2,
    "own memory": lambda x: torch.view_as_complex((x * 2)[1:7].view(3, 2)) * 2,
    "own memory, from the third number on": lambda x: torch.view_as_complex((x * 2)[2:].view(3, 2)) * 2,
    "a copy": lambda x: torch.view_as_complex(x[1:7].view(3, 2).clone()) * 2,
    "twice": lambda x: torch.view_as_complex(x.view(4, 2)) * torch.view_as_complex(x.view(4, 2)[:1]),
}


def outcome(program, *args):
    try:
        return program(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_places_of_pairs(name, dynamic, dtype):
    program = PROGRAMS[name]
    for order in ((0, 2, 1, 3), (1, 0, 2)):
        compiled = lampwork.compile(program, dynamic=dynamic)
        for offset in order:
            got, want = outcome(compiled, given(offset, dtype)), outcome(program, given(offset, dtype))
            if isinstance(want, str):
                assert isinstance(got, str) and REFUSED in got and REFUSED in want
            else:
                torch.testing.assert_close(got, want)


def test_places_of_one_kind_share_a_version():
    lampwork.reset_stats()
    compiled = lampwork.compile(PROGRAMS["twice"])
    for offset in (0, 2, 8):
        compiled(given(offset))
    assert len(compiled.entries) == 1 and lampwork.stats()["compiled_calls"] == 3


def test_places_of_what_a_module_holds():
    class Rotation(torch.nn.Module):
        def __init__(self, offset):
            super().__init__()
            self.register_buffer("turns", given(offset))

        def forward(self, x):
            return torch.view_as_complex(self.turns.view(4, 2)) * x

    x = torch.randn(4)
    even = Rotation(2)
    assert torch.equal(lampwork.compile(even)(x), even(x))
    with pytest.raises(RuntimeError, match=REFUSED):
        lampwork.compile(Rotation(3))(x)


def test_a_buffer_that_moves_to_an_odd_place():
    holder = torch.nn.Module()
    holder.register_buffer("turns", given(2))
    compiled = lampwork.compile(lambda x: torch.view_as_complex(holder.turns.view(4, 2)) * x)
    x = torch.randn(4)
    assert torch.equal(compiled(x), torch.view_as_complex(holder.turns.view(4, 2)) * x)
    holder.turns.data = given(3)
    with pytest.raises(RuntimeError, match=REFUSED):
        compiled(x)


def test_places_under_autograd():
    """Backward is recorded for inputs that stand for others: their places are not looked at again."""

    def program(x):
        return torch.view_as_complex(x[1:7].view(3, 2)).abs().sum()

    leaf = MEMORY.clone().requires_grad_()
    compiled = lampwork.compile(program)
    for _ in range(2):
        found = torch.autograd.grad(compiled(leaf[1:9]), leaf)
        torch.testing.assert_close(found, torch.autograd.grad(program(leaf[1:9]), leaf))
    with pytest.raises(RuntimeError, match=REFUSED):
        compiled(leaf[2:10])
