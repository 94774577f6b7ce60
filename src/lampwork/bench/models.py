"""The benchmark's models: name -> callable and inputs. Weights are random but scaled so that activations stay alive
through the whole depth (a network whose output underflows to a constant would hide wrong answers)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lampwork.bench.networks import AlexNet, MobileNetV2, ResNet
from lampwork.records import record


@record
class Workload:
    """A callable (a function or a module in eval mode) with one set of positional inputs."""

    name: str
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]


def _keep_alive(model: nn.Module) -> nn.Module:
    """Kaiming weights, and batch-norm statistics as after training: running mean and variance of plausible size."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
    return model.eval()


def _image(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, 3, 224, 224),)


def _transformers() -> Any:
    return importlib.import_module("transformers")


def _tokens(vocabulary: int, length: int) -> tuple[Tensor]:
    return (torch.randint(0, vocabulary, (1, length)),)


class _Output(nn.Module):
    """Takes one tensor out of a transformers output, so that all compilers, exporters included, see a tensor."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, getattr(self.model(x), self.name))


def lerp(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return w * x + (1 - w) * y


def mse(x: Tensor, y: Tensor) -> Tensor:
    z = (x - y) ** 2
    return z.sum()


def triple_add(x: Tensor) -> Tensor:
    return x + x + x


def gelu_chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x * 2 + y) * torch.sigmoid(y) + x


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores * 0.125 + mask, dim=-1)


class ResidualLayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.norm(x + residual)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def bert(layers: int = 12) -> nn.Module:
    t = _transformers()
    return _Output(t.BertModel(t.BertConfig(num_hidden_layers=layers)), "last_hidden_state").eval()


def _gpt2() -> nn.Module:
    t = _transformers()
    return _Output(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), "logits").eval()


def _llama() -> nn.Module:
    t = _transformers()
    config = t.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return _Output(t.LlamaForCausalLM(config), "logits").eval()


def _vit() -> nn.Module:
    t = _transformers()
    config = t.ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    return _Output(t.ViTModel(config, add_pooling_layer=False), "last_hidden_state").eval()


WORKLOADS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "lerp": lambda: (lerp, (torch.randn(200), torch.randn(200), torch.rand(200))),
    "mse": lambda: (mse, (torch.randn(200), torch.randn(200))),
    "triple_add": lambda: (triple_add, (torch.rand(4, 4),)),
    "gelu_chain": lambda: (gelu_chain, (torch.randn(1024, 1024), torch.randn(1024, 1024))),
    "masked_softmax": lambda: (
        masked_softmax,
        (torch.randn(12, 256, 256), torch.zeros(256, 256).masked_fill(torch.rand(256, 256) < 0.2, -1e9)),
    ),
    "residual_layer_norm": lambda: (
        ResidualLayerNorm(768).eval(),
        (torch.randn(512, 768), torch.randn(512, 768)),
    ),
    "mlp": lambda: (_mlp().eval(), (torch.randn(8, 64),)),
    "alexnet": lambda: (_keep_alive(AlexNet()), _image(1)),
    "alexnet_32": lambda: (_keep_alive(AlexNet()), _image(32)),
    "resnet50": lambda: (_keep_alive(ResNet()), _image(1)),
    "mobilenet_v2": lambda: (_keep_alive(MobileNetV2()), _image(1)),
    "vit": lambda: (_vit(), _image(1)),
    "bert": lambda: (bert(), _tokens(30522, 128)),
    "gpt2": lambda: (_gpt2(), _tokens(50257, 128)),
    "llama": lambda: (_llama(), _tokens(32000, 128)),
    "lstm": lambda: (_Lstm().eval(), (torch.randn(4, 64, 256),)),
}


def load(name: str, seed: int = 0) -> Workload:
    """Build the workload `name` with random weights and inputs from `seed`.

    Raises:
        KeyError: no workload has this name.
    """
    torch.manual_seed(seed)
    fn, inputs = WORKLOADS[name]()
    return Workload(name, fn, inputs)
