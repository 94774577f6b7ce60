"""A call that fails within its region leaves what eager leaves: the random numbers that come next, and versions."""

from __future__ import annotations

import contextlib

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


WEIGHT = torch.ones(3, 2, requires_grad=True)


def handled(x, i, log):
    try:
        return F.embedding(i, WEIGHT).sum()
    except IndexError as error:
        return str(error)


def cleaned_up(x, i, log):
    log.append("begun")
    try:
        return WEIGHT[i] * 2
    finally:
        log.append("done")


def raised_anew(x, i, log):
    try:
        return F.nll_loss(WEIGHT.log_softmax(-1), i.expand(3))
    except IndexError as error:
        raise KeyError("no such class") from error


def written_before(x, i, log):
    x.add_(1)
    with contextlib.suppress(IndexError, RuntimeError):
        log.append(WEIGHT[i].sum().item())
    return x * 2


def written_twice(x, i, log):
    try:
        x.add_(1)
        y = WEIGHT.gather(0, i[:, None]) * 2
        x.mul_(2)
    except RuntimeError:
        return x * 3
    return y


@pytest.mark.parametrize(
    "program", [handled, cleaned_up, raised_anew, written_before, written_twice], ids=lambda p: p.__name__
)
@pytest.mark.parametrize("hooks", [False, True])
def test_the_program_handles_what_an_operator_raises(program, hooks):
    """In a small graph under autograd, whose operators eager runs one by one, as in any other."""

    def look(run):
        found = []
        for index in (torch.tensor([1]), torch.tensor([5]), torch.tensor([0])):
            x, log = torch.ones(2), []
            packed = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
            with packed if hooks else contextlib.nullcontext():
                try:
                    result = run(x, index, log)
                except (IndexError, KeyError, RuntimeError) as error:
                    result = repr(error), repr(error.__cause__)
            value = result.tolist() if isinstance(result, torch.Tensor) else result
            found.append((value, x.tolist(), x._version, log))
        return found

    assert look(lampwork.compile(program)) == look(program)


def test_what_a_hook_on_saved_tensors_raises_is_the_programs():
    packed = []

    def pack(tensor):
        packed.append(1)
        raise ValueError("full")

    compiled = lampwork.compile(lambda x: (x * WEIGHT).exp())
    compiled(torch.ones(2))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), pytest.raises(ValueError, match="full"):
        compiled(torch.ones(2))
    assert len(packed) == 1
