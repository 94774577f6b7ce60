"""Masks of attention on CUDA devices that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import CUDA, record_on, run_on_cpu
from graphkit import find, ops
from mask_library import program
from torch import Tensor, fx

import lampwork
from lampwork.backends.native.passes import known_masks
from lampwork.backends.native.passes.known_masks import KnownMasks
from lampwork.graph.compiled_masks import COMPILED_ONLY
from lampwork.graph.recorded import Recorded
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.split_constants import SplitConstants

NAME = KnownMasks.name
MAKE = torch.Generator().manual_seed(0)
LENGTH = 6
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def passed(
    mask: Callable[[Tensor], Tensor],
    dtype: torch.dtype = torch.float32,
    device: str = "cuda:0",
    compiled_only: bool = False,
    longer: int = 0,
    **given: Any,
) -> tuple[Recorded, PassContext]:
    """The graph of an attention with the mask that `mask` makes of the queries, after the pass; results are eager's.
    `compiled_only`: eager makes no such mask. `longer`: how many more keys than queries there are."""
    q = torch.randn(2, LENGTH, 3, 8, generator=MAKE).to(dtype)
    k, v = (torch.randn(2, LENGTH + longer, 3, 8, generator=MAKE).to(dtype) for _ in range(2))

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operands = [each.transpose(1, 2) for each in (q, k, v)]
        return F.scaled_dot_product_attention(*operands, attn_mask=mask(operands[0]), **given) * 2

    recorded = record_on(fn, [q, k, v], [device] * 3)
    for node in recorded.graph.nodes:
        if node.target is ATTENTION and compiled_only:
            node.meta[COMPILED_ONLY] = True
    ctx = PassContext()
    for step in (SplitConstants(), KnownMasks(), DeadCode(), SplitConstants()):
        step.run(recorded.graph, ctx)
        verify(recorded.graph)
    if not given.get("dropout_p"):
        (found,) = run_on_cpu(recorded, [q, k, v])
        near = 2e-2 if dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(found, fn(q, k, v), rtol=near, atol=1e-2, equal_nan=True)
    return recorded, ctx


def of_positions(q: Tensor) -> Tensor:
    """As libraries make it while they are compiled: for any length, of nothing but positions."""
    row = torch.arange(q.shape[2], device=q.device).view(1, 1, -1, 1)
    return (row >= 0).expand(q.shape[0], -1, -1, q.shape[2])


def numbers(q: Tensor) -> Tensor:
    return torch.where(of_positions(q), 0.0, -math.inf).to(q.dtype)


def filled(q: Tensor) -> Tensor:
    return torch.zeros(LENGTH, LENGTH, dtype=q.dtype, device=q.device).masked_fill(
        torch.logical_not(of_positions(q)), -1e9
    )


@pytest.mark.parametrize("mask", [of_positions, numbers, filled], ids=lambda each: each.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_open_masks_go(mask: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    recorded, ctx = passed(mask, dtype, scale=0.25)
    assert ctx.hits == {NAME: 1}
    left = ops(recorded.graph)
    assert "where" not in left and "arange" not in left
    attention = find(recorded.graph, "scaled_dot_product_attention")
    assert attention.args[3] is None and attention.kwargs["scale"] == 0.25


def test_a_mask_of_many_elements_is_known_by_what_it_is_made_of() -> None:
    q = torch.randn(1, 1, 1, 8)

    def fn(q: Tensor) -> Tensor:
        mask = torch.where(
            (torch.arange(3000, device=q.device) >= 0).expand(8, 1, 3000, 3000), 0.0, -math.inf
        )
        q = q.expand(8, 1, 3000, 8)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    graph, ctx = record_on(fn, [q]).graph, PassContext()
    KnownMasks().run(graph, ctx)
    assert ctx.hits == {NAME: 1}


def closed(q: Tensor) -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=q.device).tril()


def bias(q: Tensor) -> Tensor:
    return torch.full((LENGTH, LENGTH), 0.5, dtype=q.dtype, device=q.device)


def nan(q: Tensor) -> Tensor:
    return torch.full((LENGTH, LENGTH), math.nan, dtype=q.dtype, device=q.device)


def of_data(q: Tensor) -> Tensor:
    return (q.narrow(3, 0, LENGTH) > -1e6) & True


def all_closed_as_numbers(q: Tensor) -> Tensor:
    """Zeros that become false."""
    return torch.zeros(LENGTH, LENGTH, dtype=q.dtype, device=q.device).to(torch.bool)


def numbers_of_closed(q: Tensor) -> Tensor:
    return torch.where(closed(q), 0.0, -math.inf).to(q.dtype).expand(q.shape[0], 1, -1, -1)


def of_documents(q: Tensor) -> Tensor:
    """As libraries make it of positions that may begin again."""
    position = torch.arange(q.shape[2], device=q.device).expand(q.shape[0], -1)
    document = (position.diff(dim=-1, prepend=position.narrow(1, 0, 1) - 1) != 1).cumsum(-1)
    same = document.unsqueeze(2) == document.unsqueeze(1)
    return ((position.unsqueeze(1) <= position.unsqueeze(2)) & same).unsqueeze(1)


@pytest.mark.parametrize("mask", [closed, numbers_of_closed, of_documents], ids=lambda each: each.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_masks_that_eager_does_without_become_a_flag(
    mask: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    recorded, ctx = passed(mask, dtype, compiled_only=True)
    assert ctx.hits == {NAME: 1} and not {"where", "arange", "tril"} & {*ops(recorded.graph)}
    assert find(recorded.graph, "scaled_dot_product_attention").args[3:6] == (None, 0.0, True)
    assert not passed(mask, dtype)[1].hits


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The pass takes what is on this CPU for what is on a card. Gives what it did in each graph."""
    hits: list[dict[str, int]] = []
    run, of = KnownMasks.run, known_masks.spec

    def running(step: KnownMasks, graph: fx.Graph, ctx: PassContext) -> None:
        run(step, graph, ctx)
        hits.append({name: n for name, n in ctx.hits.items() if name == NAME})

    monkeypatch.setattr(KnownMasks, "run", running)
    monkeypatch.setattr(known_masks, "spec", lambda node: replace(of(node), device=CUDA))
    return hits


def operands(last: float) -> list[Tensor]:
    """Queries, keys and values; `last`: an element of the last key and the last value."""
    q, k, v = (torch.randn(1, 2, LENGTH, 8, generator=MAKE) for _ in range(3))
    k[..., LENGTH - 1, 0] = v[..., LENGTH - 1, 0] = last
    return [q, k, v]


def test_a_mask_that_the_library_makes_for_compiling_becomes_a_flag(
    on_card: list[dict[str, int]], tmp_path: Path
) -> None:
    fn, given = program(tmp_path, "create_causal_mask(q)"), operands(1.0)
    torch.testing.assert_close(lampwork.compile(fn)(*given), fn(*given))
    assert on_card == [{NAME: 1}]


@pytest.mark.parametrize(("name", "hits"), [("Llama", {NAME: 1}), ("Falcon", {})])
def test_models_of_the_library_itself(on_card: list[dict[str, int]], name: str, hits: dict[str, int]) -> None:
    """One that leaves it to transformers whether there is a mask, and one that insists on it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation="sdpa")
    net = getattr(transformers, f"{name}Model")(config).eval()
    given = {"input_ids": torch.arange(LENGTH)[None], "use_cache": False}
    with torch.no_grad():
        got, want = lampwork.compile(net)(**given), net(**given)
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state, rtol=1e-5, atol=1e-5)
    assert on_card == [hits]


OWN = "torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()"


@pytest.mark.parametrize(
    ("mask", "place"),
    [
        (f"{OWN} if torch.compiler.is_compiling() else {OWN}", "own.py"),
        ("create_causal_mask(q, allow_is_causal_skip=False)", "transformers/models/small.py"),
        ("create_causal_mask(q, False)  # its allow_is_causal_skip", "transformers/models/small.py"),
        ("create_causal_mask(q, False)", "own.py"),
        ("create_sliding_window_causal_mask(q)", "transformers/models/small.py"),
        ("wanted(q)", "transformers/models/small.py"),
        (f"{OWN} & wanted(q)", "transformers/models/small.py"),
    ],
)
def test_a_mask_that_eager_has_shows_nan(
    on_card: list[dict[str, int]], tmp_path: Path, mask: str, place: str
) -> None:
    fn, given = program(tmp_path, mask, place), operands(math.nan)
    want = fn(*given)
    assert want.isnan().all()
    torch.testing.assert_close(lampwork.compile(fn)(*given), want, equal_nan=True)
    assert on_card == [{}]


def test_equal_graphs_of_another_program_are_not_taken_for_it(
    on_card: list[dict[str, int]], tmp_path: Path
) -> None:
    given = operands(math.nan)
    compiled = [
        lampwork.compile(program(tmp_path / name, f"create_causal_mask(q{more})", place))
        for name, more, place in (("a", "", "transformers/models/small.py"), ("b", ", False", "own.py"))
    ]
    compiled[0](*given)
    assert compiled[1](*given).isnan().all()
    assert on_card == [{NAME: 1}, {}]


def shifted(q: Tensor) -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=q.device).tril(1)


def mildly_closed(q: Tensor) -> Tensor:
    return torch.where(closed(q), 0.0, -1e4).to(q.dtype)


def longer(q: Tensor) -> Tensor:
    return torch.ones(LENGTH, LENGTH + 2, dtype=torch.bool, device=q.device).tril()


OPEN = "a place may be closed"
LATER = "what comes later is closed, and nan there shows in eager"


@pytest.mark.parametrize(
    ("mask", "options", "why"),
    [
        (closed, {}, LATER),
        (
            closed,
            {"compiled_only": True, "scale": -1.0},
            "causal attention is another function of these sizes, or this scale",
        ),
        (
            closed,
            {"compiled_only": True, "dropout_p": 0.5},
            "it draws random numbers, which another kernel draws otherwise",
        ),
        (shifted, {"compiled_only": True}, OPEN),
        (mildly_closed, {"compiled_only": True}, OPEN),
        (longer, {"compiled_only": True, "longer": 2}, OPEN),
        (bias, {}, OPEN),
        (nan, {}, OPEN),
        (of_data, {}, OPEN),
        (all_closed_as_numbers, {}, OPEN),
        (of_positions, {"device": "cpu"}, ""),
        (of_positions, {"dropout_p": 0.5}, "it draws random numbers, which another kernel draws otherwise"),
    ],
)
def test_what_stays(mask: Callable[[Tensor], Tensor], options: dict[str, Any], why: str) -> None:
    recorded, ctx = passed(mask, **options)
    assert not ctx.hits
    assert [reason for _, reason in ctx.refusals] == ([why] if why else [])
    assert find(recorded.graph, "scaled_dot_product_attention").args[3] is not None


def test_foreign_attention_stays() -> None:
    q = torch.randn(1, 2, LENGTH, 8)
    graph = record_on(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=numbers(q)), [q]).graph
    ctx = PassContext(foreign=lambda node: True)
    KnownMasks().run(graph, ctx)
    assert not ctx.hits and [reason for _, reason in ctx.refusals] == ["a backend from outside takes it"]
