"""Where graphs are cut: at operators that do work, where little crosses; and lines through measured copies."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lampwork.placement.measuring import fit
from lampwork.placement.pieces import MOST, Piece, cut
from lampwork.placement.place import _owners, _seen
from lampwork.rewriting.schema import packet_name

CPU = torch.device("cpu")


def pieces_of(model: object, *args: Tensor, most: int = MOST) -> list[Piece]:
    with torch.no_grad():
        seen, _ = _seen(model, args, {})  # type: ignore[arg-type]
    pieces = cut(seen.graph, _owners(model, seen.weights), CPU, most)
    calls = [n for n in seen.graph.nodes if n.op == "call_function" and not n.meta.get("constant")]
    assert sorted(n.name for piece in pieces for n in piece.nodes) == sorted(n.name for n in calls)
    owner = {node: number for number, piece in enumerate(pieces) for node in piece.nodes}
    for node, number in owner.items():
        assert all(owner.get(needed, 0) <= number for needed in node.all_input_nodes)
    return pieces


def ops(piece: Piece) -> list[str]:
    return [packet_name(node.target) for node in piece.nodes]


def test_a_piece_begins_at_what_does_work_and_ends_with_what_is_fused_to_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)).eval()
    pieces = pieces_of(model, torch.randn(4, 8))
    assert [piece.name for piece in pieces] == ["0 to 2", "3"]
    assert [ops(piece) for piece in pieces] == [["linear", "gelu", "layer_norm"], ["linear", "softmax"]]


def test_names_are_those_of_modules_else_of_operators() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    names = [p.name for p in pieces_of(nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 3, 16))]
    assert "layers.0 (self_attn.out_proj to norm1)" in names
    pieces = pieces_of(
        lambda x, y: torch.tanh(x @ y).exp().sqrt().sort().values, torch.randn(4, 4), torch.randn(4, 4)
    )
    assert [piece.name for piece in pieces] == ["matmul, tanh, exp and 1 more", "sort"]


def test_results_of_one_call_stay_together() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        values, places = (x @ w).max(1)
        return (values * x) @ w + places

    first, second = pieces_of(fn, torch.randn(4, 4), torch.randn(4, 4))
    assert ops(first) == ["matmul", "max", "getitem", "getitem", "mul"] and ops(second) == ["matmul", "add"]


def test_what_depends_on_no_input_is_made_where_it_is_used() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.LSTM(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros(1, 1, 4, dtype=x.dtype)
            return self.b(self.a(x), (state, state))[0]

    first, second = pieces_of(Net().eval(), torch.randn(3, 1, 4))
    assert ops(first) == ["linear"] and ops(second) == ["full", "lstm", "getitem"]


def test_of_many_places_the_narrow_ones_stay() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.mid, self.down = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.relu(self.mid(F.relu(self.up(x)))))

    model, x = nn.Sequential(*[Block() for _ in range(5)]).eval(), torch.randn(2, 4)
    assert len(pieces_of(model, x)) == 15
    five = pieces_of(model, x, most=5)
    assert [piece.name for piece in five] == [f"{i} (up to down)" for i in range(5)]
    assert len(pieces_of(model, x, most=3)) == 3
    assert [piece.name for piece in pieces_of(model, x, most=1)] == ["0.up to 4.down"]


def test_pieces_that_must_stay_say_why() -> None:
    x = torch.randn(4, 4)
    assert [p.pinned for p in pieces_of(lambda x: x @ x + torch.rand(4), x)] == [
        "rand draws from the generator of cpu"
    ]
    assert [p.pinned for p in pieces_of(lambda x: x @ x, x)] == [""]


@pytest.mark.parametrize("seed", range(5))
def test_a_line_through_its_own_points_is_found(seed: int) -> None:
    rng = random.Random(seed)
    latency, per_byte = rng.random() * 1e-4, rng.random() * 1e-9
    link = fit([(size, latency + per_byte * size) for size in (1 << 12, 1 << 18, 1 << 22)])
    assert link.latency == pytest.approx(latency, rel=1e-6) and link.per_byte == pytest.approx(
        per_byte, rel=1e-6
    )
    assert link.seconds(1000) == pytest.approx(latency + per_byte * 1000)


def test_no_copy_takes_less_than_no_time() -> None:
    for points in ([(1, 3.0), (1000, 2.0), (2000, 1.0)], [(1, 1e-9), (1000, 1.0), (2000, 5.0)]):
        link = fit(points)
        assert link.latency >= 0 and link.per_byte >= 0 and link.seconds(500) > 0
