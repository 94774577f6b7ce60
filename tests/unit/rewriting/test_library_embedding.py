"""Sums of embeddings: constants among them are added first, and lookups, sums and norm are one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphkit import assert_same, record
from same_numbers import close
from torch import Tensor, nn

import lampwork
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.rewriting.library.embedding import embedding_rules
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.pipeline import run_passes
from lampwork.transforms.split_constants import SplitConstants


def prepared(fn: Any, *inputs: Tensor, bound: tuple[Tensor, ...]):
    graph = record(fn, *inputs, bound=bound)
    run_passes(graph, passes=(SplitConstants(), Canonicalize(), DeadCode()))
    return graph


def rewritten(fn: Any, *inputs: Tensor, bound: tuple[Tensor, ...]):
    graph, ctx = prepared(fn, *inputs, bound=bound), PassContext()
    Rewriter(embedding_rules()).run(graph, ctx)
    return graph, ctx


def tables() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(11, 8), torch.randn(6, 8), torch.randn(2, 8)


def tokens() -> Tensor:
    return torch.randint(0, 11, (2, 6))


def places(t: Tensor, p: Tensor) -> Tensor:
    return F.embedding(torch.arange(t.shape[1]), p)


def kinds(t: Tensor, k: Tensor) -> Tensor:
    return F.embedding(torch.zeros_like(t), k)


SUMS: dict[str, Any] = {
    "words first": lambda t, w, p, k: F.embedding(t, w) + places(t, p) + kinds(t, k),
    "words second": lambda t, w, p, k: places(t, p) + F.embedding(t, w) + kinds(t, k),
    "words within": lambda t, w, p, k: kinds(t, k) + (F.embedding(t, w) + places(t, p)),
}


@pytest.mark.parametrize("name", SUMS)
def test_constants_are_added_first(name: str) -> None:
    given, t = tables(), tokens()
    graph, ctx = rewritten(SUMS[name], t, bound=given)
    assert ctx.hits.total() == 1, ctx.refusals
    close(SUMS[name], graph, t, *given)


def test_graph() -> None:
    def before(t: Tensor, w: Tensor, p: Tensor, k: Tensor) -> Tensor:
        return F.embedding(t, w) + p + k

    def after(t: Tensor, w: Tensor, p: Tensor, k: Tensor) -> Tensor:
        return F.embedding(t, w) + (p + k)

    given = (torch.randn(11, 8), torch.randn(6, 8), torch.randn(2, 6, 8))
    assert_same(rewritten(before, tokens(), bound=given)[0], prepared(after, tokens(), bound=given))


TWINS: dict[str, Any] = {
    "kinds of the input": lambda t, w, p, k: F.embedding(t, w) + places(t, p) + F.embedding(t % 2, k),
    "no words": lambda t, w, p, k: w[:6].sin() * t[..., None] + p + p.cos(),
    "read between": lambda t, w, p, k: (lambda x: (x + kinds(t, k), x.exp()))(F.embedding(t, w) + p),
    "scaled": lambda t, w, p, k: torch.add(F.embedding(t, w) + p, p.cos(), alpha=2),
    "rows and columns": lambda t, w, p, k: F.embedding(t, w) + p[:, :1] + p[:1],
}


@pytest.mark.parametrize("name", TWINS)
def test_twin_stays(name: str) -> None:
    _, ctx = rewritten(TWINS[name], tokens(), bound=tables())
    assert not ctx.hits, ctx.hits


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Embedding(2, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, t: Tensor, kinds: Tensor) -> Tensor:
        return self.norm(self.words(t) + self.places(torch.arange(t.shape[1])) + self.kinds(kinds))


def test_lookups_sums_and_norm_are_one_kernel() -> None:
    model = Embeddings().eval()
    compiled = lampwork.compile(model)
    inputs = (tokens(), torch.randint(0, 2, (2, 6)))
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    main = compiled.stages.program.partition("constants:")[0]
    assert sum(line.startswith("kernel ") for line in main.splitlines()) == 1, main
