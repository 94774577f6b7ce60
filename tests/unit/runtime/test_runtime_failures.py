"""A call that fails within its region leaves what eager leaves: the random numbers that come next, and versions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lampwork

GOOD, BAD = torch.tensor([1, 2]), torch.tensor([1, 99])

PROGRAMS = {
    "index": lambda x, i: F.dropout(x, 0.5)[i],
    "gather": lambda x, i: F.dropout(x, 0.5).gather(0, i[:, None]),
    "loss": lambda x, i: F.cross_entropy(F.dropout(x, 0.5)[:2], i),
    "factors": lambda x, i: torch.linalg.cholesky(torch.rand(2, 2) * 0 - torch.eye(2) * (i[1] - 3)),
    "noise": lambda x, i: (torch.randn(3), F.one_hot(i, 4)),
    "writes": lambda x, i: (x.detach().add_(F.dropout(x.detach(), 0.1)).mul_(2), x[i]),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_generator_after_a_failure(program, gradients):
    def look(run):
        torch.manual_seed(3)
        found = []
        for index in (GOOD, BAD, GOOD, BAD, BAD):
            x = torch.ones(8, 8, requires_grad=gradients)
            try:
                found.append(run(x, index))
            except (IndexError, RuntimeError, ValueError) as error:
                found.append(type(error).__name__)
            found += [torch.rand(2), x._version]
        return found

    eager, compiled = look(program), look(lampwork.compile(program))
    for a, b in zip(
        torch.utils._pytree.tree_leaves(eager), torch.utils._pytree.tree_leaves(compiled), strict=True
    ):
        torch.testing.assert_close(a, b) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b
