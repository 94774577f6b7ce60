"""Programs of many kinds, and what the native backend is given and gives for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork.backends.native.compile import NativeBackend
from lampwork.graph.printing import format_graph
from lampwork.runtime.layout import Layout
from lampwork.serial import graph_to_json


def layout_of(compiled: Any) -> Layout:
    layout = compiled.layout
    assert isinstance(layout, Layout)
    return layout


class Seen:
    """The graphs that the native backend compiled, as JSON and as they are, and what it made of each."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.written: list[Any] = []
        self.texts: list[str] = []
        self.compiled: list[Any] = []

    @property
    def layouts(self) -> list[Layout]:
        return [layout_of(each) for each in self.compiled]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What the native backend compiles during a test."""
    found = Seen()
    compile_part = NativeBackend.compile

    def compile_and_note(self: Any, graph: Any, examples: Any, options: Any) -> Any:
        found.written.append(graph_to_json(graph))
        found.graphs.append(graph)
        found.texts.append(format_graph(graph))
        made = compile_part(self, graph, examples, options)
        found.compiled.append(made)
        return made

    monkeypatch.setattr(NativeBackend, "compile", compile_and_note)
    return found


class Net(nn.Module):
    """A convolution, a norm with statistics that are written, products, attention, and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.embed, self.linear = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        images = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        words = self.linear(self.embed(ids))
        mixed = nn.functional.scaled_dot_product_attention(words, images, images)
        return mixed.softmax(-1), images.mean()


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y)
    x[1:, ::2] = y[1:, ::2]
    return x.cumsum(0) / (y.abs() + float("inf"))


def scaled(x: Tensor, factor: float, count: int) -> Tensor:
    return (x * (factor / 2.5) + count).sum(0, keepdim=True).expand(count, -1)


def sorted_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.sort(-1, descending=True)
    return values.to(torch.bfloat16), torch.linalg.inv(x[:4, :4] + 9 * torch.eye(4)) + places[:4, :4]


def complexes(x: Tensor) -> Tensor:
    return torch.fft.fft(x).abs() + torch.complex(x, -x).real


def windows(x: Tensor) -> Tensor:
    return x.unfold(0, 3, 2).amax(-1)[..., : x.shape[1] // 2] + torch.arange(x.shape[1] // 2)


def random(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5) + torch.rand_like(x)


STATIC: Sequence[tuple[Callable[..., Any], Sequence[Any]]] = (
    (written, (torch.ones(4, 6), torch.ones(4, 6))),
    (sorted_rows, (torch.randn(5, 7),)),
    (complexes, (torch.randn(4, 8),)),
    (random, (torch.randn(8, 8),)),
    (windows, (torch.randn(9, 8),)),
)
DYNAMIC: Sequence[tuple[Callable[..., Any], Sequence[Any]]] = (
    (windows, (torch.randn(9, 8),)),
    (scaled, (torch.randn(5, 7), 1.5, 3)),
    (written, (torch.ones(4, 6), torch.ones(4, 6))),
    (lambda x, y: (x @ y).reshape(-1, 2) + x.shape[0], (torch.randn(6, 4), torch.randn(4, 8))),
)


def compile_all(dynamic: bool = False) -> None:
    """Compile programs of all kinds, and a training step."""
    for program, args in DYNAMIC if dynamic else STATIC:
        lampwork.compile(program, dynamic=dynamic)(*[a.clone() if isinstance(a, Tensor) else a for a in args])
    net = lampwork.compile(Net(), dynamic=dynamic)
    images, ids = torch.randn(2, 3, 8, 8), torch.randint(0, 11, (2, 5))
    for _ in range(2):
        mixed, mean = net(images, ids)
        (mixed.square().sum() + mean).backward()
    with torch.no_grad():
        net.eval()(images, ids)


__all__ = ["DYNAMIC", "STATIC", "Net", "Seen", "compile_all", "layout_of", "seen"]
