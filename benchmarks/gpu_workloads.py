"""What `gpu.py` measures: functions bound by memory, functions bound by launches, networks, steps of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lampwork.bench.networks import MobileNetV3, ResNet
from lampwork.bench.training.networks import images, text
from lampwork.bench.workloads.small import ResidualLayerNorm, mlp
from lampwork.bench.workloads.transformers import Output
from lampwork.bench.workloads.workload import image, keep_alive, tokens

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

Call = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """`make(dtype)` gives inputs, on the default device. `moved(inputs, results)`: the bytes that must be read and
    written; by default all of both. `main`: whether peers are measured on it before others."""

    name: str
    fn: Callable[..., Any]
    make: Callable[[torch.dtype], Call]
    main: bool = True
    moved: Callable[[Call, tuple[Tensor, ...]], int] | None = None


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x * 2 + y) * torch.tanh(y) + x.relu()


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rows_read(inputs: Call, results: tuple[Tensor, ...]) -> int:
    """Of a gather: places, the rows that they name, and the result."""
    return inputs[1].nbytes + 2 * results[0].nbytes


def functions(elements: int) -> Iterator[Function]:
    """Functions of so many elements: flat, and as matrices from wide to tall."""

    def flat(count: int) -> Callable[[torch.dtype], Call]:
        return lambda dtype: tuple(torch.randn(elements, dtype=dtype) for _ in range(count))

    yield Function("chain", chain, flat(2))
    yield Function("gelu", F.gelu, flat(1))
    yield Function("sum of all", torch.sum, flat(1))
    side = int(elements**0.5)
    for rows in (side, 4 * side, elements // 64, 64):
        width, main = elements // rows, rows == side
        shape = f"{rows}x{width}"

        def of(*others: int, rows: int = rows, width: int = width) -> Callable[[torch.dtype], Call]:
            return lambda dtype: (
                torch.randn(rows, width, dtype=dtype),
                *(torch.randn(n, dtype=dtype) for n in others),
            )

        def labelled(dtype: torch.dtype, rows: int = rows, width: int = width) -> Call:
            return torch.randn(rows, width, dtype=dtype), torch.randint(0, width, (rows,))

        yield Function(f"softmax {shape}", lambda x: x.softmax(-1), of(), main)
        yield Function(f"log_softmax {shape}", lambda x: x.log_softmax(-1), of(), main)
        yield Function(f"layer_norm {shape}", layer_norm, of(width, width), main)
        yield Function(f"rms_norm {shape}", rms_norm, of(width), main)
        yield Function(f"cross_entropy {shape}", F.cross_entropy, labelled, main)
        yield Function(f"sum of rows {shape}", lambda x: x.sum(-1), of(), main)
        yield Function(f"sum of columns {shape}", lambda x: x.sum(0), of(), main)
        yield Function(f"mean and var {shape}", lambda x: (x.mean(-1), x.var(-1)), of(), main)

    def square(dtype: torch.dtype) -> Call:
        return (torch.randn(side, side, dtype=dtype),)

    def halves(dtype: torch.dtype) -> Call:
        return tuple(torch.randn(side // 2, side, dtype=dtype) for _ in range(2))

    def table(rows: int, width: int) -> Callable[[torch.dtype], Call]:
        return lambda dtype: (
            torch.randn(rows, width, dtype=dtype),
            torch.randint(0, rows, (elements // width,)),
        )

    def added(rows: int, width: int) -> Callable[[torch.dtype], Call]:
        count = elements // width
        return lambda dtype: (
            torch.randn(rows, width, dtype=dtype),
            torch.randint(0, rows, (count,)),
            torch.randn(count, width, dtype=dtype),
        )

    def placed(dtype: torch.dtype) -> Call:
        x, s = (torch.randn(side, side, dtype=dtype) for _ in range(2))
        return x, torch.randint(0, side, (side, side)), s

    yield Function("transpose", lambda x: x.t().contiguous(), square)
    yield Function("cat", lambda x, y: torch.cat([x, y], 1), halves)
    yield Function("gather rows of 64", lambda x, i: x[i], table(elements // 64, 64), moved=rows_read)
    yield Function("embedding of 768", lambda x, i: F.embedding(i, x), table(50257, 768), moved=rows_read)
    few = max(elements >> 8, 1)
    yield Function("index_add of rows of 64", lambda x, i, s: x.index_add(0, i, s), added(few, 64))
    yield Function("index_add of gelu", lambda x, i, s: x.index_add(0, i, F.gelu(s)), added(few, 64))
    yield Function("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), placed)
    yield Function("scatter_reduce amax", lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), placed)
    yield Function("gradient of a gather", gradient_of_gather, placed)


def gradient_of_gather(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    """What backward of `x.gather(0, i) * s` scatters."""
    return torch.zeros_like(x).scatter_add(0, i, s * 2)


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x @ w + h @ u + b).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def twenty(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(5):
        x = torch.sin(x * 1.01 + y).relu() - 0.5
    return x


def small() -> dict[str, tuple[Callable[..., Any], Call]]:
    """Where a call costs more than its arithmetic; on the CPU, to be moved."""
    weights = torch.randn(64, 256) / 8, torch.randn(64, 256) / 8, torch.randn(256)
    return {
        "one kernel of 1000": (lambda x, y: x * 2 + y, (torch.randn(1000), torch.randn(1000))),
        "20 pointwise of 1000": (twenty, (torch.randn(1000), torch.randn(1000))),
        "residual layer norm 64x768": (
            ResidualLayerNorm(768).eval(),
            (torch.randn(64, 768), torch.randn(64, 768)),
        ),
        "mlp of batch 8": (mlp(), (torch.randn(8, 64),)),
        "lstm cell of batch 4": (lstm_cell, (*(torch.randn(4, 64) for _ in range(3)), *weights)),
    }


def networks(tiny: bool) -> dict[str, Callable[[], tuple[nn.Module, Call]]]:
    """With random weights, in eval mode, on the CPU. tiny: few layers and small batches, to try the script."""
    t: Any = __import__("transformers")
    batch, layers = (2, 2) if tiny else (32, 12)
    llama = {
        "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": min(layers, 8),
        "num_attention_heads": 8, "num_key_value_heads": 4, "use_cache": False,
    }  # fmt: skip
    vit = {
        "hidden_size": 384,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
    }

    def bert() -> nn.Module:
        return Output(t.BertModel(t.BertConfig(num_hidden_layers=layers)), "last_hidden_state").eval()

    def gpt2() -> nn.Module:
        return Output(t.GPT2LMHeadModel(t.GPT2Config(n_layer=layers, use_cache=False)), "logits").eval()

    def resnet() -> nn.Module:
        return keep_alive(ResNet((1, 1, 1, 1)) if tiny else ResNet())

    return {
        "resnet50": lambda: (resnet(), image(batch)),
        "bert": lambda: (bert(), tokens(30522, 16 if tiny else 128, 2 if tiny else 8)),
        "gpt2": lambda: (gpt2(), tokens(50257, 16 if tiny else 256, 2 if tiny else 4)),
        "llama": lambda: (
            Output(t.LlamaForCausalLM(t.LlamaConfig(**llama)), "logits").eval(),
            tokens(32000, 16 if tiny else 256, 2 if tiny else 4),
        ),
        "vit_s": lambda: (
            Output(t.ViTModel(t.ViTConfig(**vit), add_pooling_layer=False), "last_hidden_state").eval(),
            image(batch),
        ),
        "mobilenet_v3": lambda: (keep_alive(MobileNetV3()), image(batch)),
    }


def trainings(tiny: bool) -> dict[str, Callable[[], tuple[Any, tuple[Tensor, ...]]]]:
    """Modules in training mode that compute a loss, with their inputs, on the CPU; without dropout, so that losses can
    be compared."""
    batch, length, layers = (2, 16, 2) if tiny else (8, 128, 12)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {
        "bert": text("BertForMaskedLM", "BertConfig", 30522, batch, length, num_hidden_layers=layers, **none),
        "resnet50": images((lambda: ResNet((1, 1, 1, 1))) if tiny else ResNet, 2 if tiny else 32),
    }
