"""What is trained: networks with a loss behind them, and small functions that are differentiated by their inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lampwork.bench.networks import AlexNet, MobileNetV3, ResNet
from lampwork.bench.workloads.recurrent import Lstm
from lampwork.bench.workloads.small import ResidualLayerNorm, mlp
from lampwork.records import record

Loss = Callable[..., Tensor]


@record
class Training:
    """`loss(*inputs)` is a scalar that depends on `parameters`.

    `loss` is a module in training mode whose parameters an optimizer moves, or a function; then `parameters` are those
    of the inputs that are differentiated by, and no optimizer is part of a step.
    """

    name: str
    loss: Loss
    inputs: tuple[Tensor, ...]

    @property
    def parameters(self) -> list[Tensor]:
        if isinstance(self.loss, nn.Module):
            return list(self.loss.parameters())
        return [x for x in self.inputs if x.requires_grad]


class Classified(nn.Module):
    """The cross entropy of a network's scores."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), labels)


class Compared(nn.Module):
    """The mean square of the difference between a network's output and a target."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *tensors: Tensor) -> Tensor:
        *inputs, target = tensors
        return F.mse_loss(self.net(*inputs), target)


class Labelled(nn.Module):
    """The loss that a model of `transformers` computes from labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return cast(Tensor, self.model(x, labels=labels).loss)


class Forces(nn.Module):
    """The mean square error of forces, the negative gradient of an energy by the places of particles: float32[N, D],
    float32[N, D]."""

    def __init__(self, energy: nn.Module) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, places: Tensor, target: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(places).sum(), places, create_graph=True)
        return F.mse_loss(-slope, target)


class Penalized(nn.Module):
    """The loss of a critic of real and made samples, float32[N, D] each, with a penalty on gradients between them."""

    def __init__(self, critic: nn.Module) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, real: Tensor, made: Tensor, share: Tensor) -> Tensor:
        between = torch.lerp(real, made, share).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return self.critic(made).mean() - self.critic(real).mean() + 10 * penalty


Maker = Callable[[], tuple[Loss, tuple[Tensor, ...]]]


def _transformer(model: str, config: str, **fields: Any) -> nn.Module:
    library: Any = importlib.import_module("transformers")
    return Labelled(getattr(library, model)(getattr(library, config)(**fields)))


def text(model: str, config: str, vocabulary: int, batch: int, length: int, **fields: Any) -> Maker:
    """Each token has a label: int64[batch, length], twice."""

    def make() -> tuple[Loss, tuple[Tensor, ...]]:
        x, labels = (torch.randint(0, vocabulary, (batch, length)) for _ in range(2))
        return _transformer(model, config, vocab_size=vocabulary, **fields).train(), (x, labels)

    return make


def vit(batch: int, size: int, **fields: Any) -> Maker:
    def make() -> tuple[Loss, tuple[Tensor, ...]]:
        # The model writes its kind of problem to the config, in its first call, where it is not given.
        kind: dict[str, Any] = {"num_labels": 1000, "problem_type": "single_label_classification"}
        net = _transformer("ViTForImageClassification", "ViTConfig", image_size=size, **kind, **fields)
        return net.train(), (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))

    return make


def images(make_net: Callable[[], nn.Module], batch: int, size: int = 224) -> Maker:
    def make() -> tuple[Loss, tuple[Tensor, ...]]:
        net = Classified(make_net()).train()
        return net, (torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)))

    return make


def _mlp() -> tuple[Loss, tuple[Tensor, ...]]:
    return Classified(mlp()).train(), (torch.randn(8, 64), torch.randint(0, 10, (8,)))


def _lstm() -> tuple[Loss, tuple[Tensor, ...]]:
    return Compared(Lstm()).train(), (torch.randn(4, 64, 256), torch.randn(4, 64, 256))


def _layer_norm() -> tuple[Loss, tuple[Tensor, ...]]:
    return Compared(ResidualLayerNorm(768)).train(), tuple(torch.randn(512, 768) for _ in range(3))


def _scalar(width: int, hidden: int, activation: nn.Module) -> nn.Module:
    """A number for each row."""
    return nn.Sequential(
        nn.Linear(width, hidden), activation, nn.Linear(hidden, hidden), activation, nn.Linear(hidden, 1)
    )


def _forces() -> tuple[Loss, tuple[Tensor, ...]]:
    return Forces(_scalar(48, 256, nn.SiLU())).train(), (torch.randn(128, 48), torch.randn(128, 48))


def _gradient_penalty() -> tuple[Loss, tuple[Tensor, ...]]:
    critic = Penalized(_scalar(128, 256, nn.LeakyReLU(0.2))).train()
    return critic, (torch.randn(64, 128), torch.randn(64, 128), torch.rand(64, 1))


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, label_smoothing=0.1)


def _huber(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(torch.tanh(x), y)


def _contrastive(x: Tensor, y: Tensor) -> Tensor:
    """The loss of CLIP: float32[N, D], float32[N, D]."""
    scores = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() / 0.07
    labels = torch.arange(scores.shape[0])
    return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2


def _gelu(x: Tensor, y: Tensor) -> Tensor:
    return (F.gelu(x * 2 + y) * torch.sigmoid(y) + x).square().mean()


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()


def _function(loss: Loss, *shapes: Sequence[int], labels: tuple[int, int] | None = None) -> Maker:
    """Inputs of these shapes that are differentiated by; `labels`: (how many, of how many classes)."""

    def make() -> tuple[Loss, tuple[Tensor, ...]]:
        inputs = [torch.randn(*shape).requires_grad_() for shape in shapes]
        if labels is not None:
            inputs.append(torch.randint(0, labels[1], labels[:1]))
        return loss, tuple(inputs)

    return make


NETWORKS: dict[str, Maker] = {
    "bert": text("BertForMaskedLM", "BertConfig", 30522, 4, 128),
    "gpt2": text("GPT2LMHeadModel", "GPT2Config", 50257, 2, 256, use_cache=False),
    "vit_s": vit(
        8, 224, hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536
    ),
    "llama": text(
        "LlamaForCausalLM",
        "LlamaConfig",
        32000,
        2,
        256,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    ),
    "resnet50": images(ResNet, 4),
    "mobilenet_v3": images(MobileNetV3, 8),
    "alexnet": images(AlexNet, 32),
    "mlp": _mlp,
    "lstm": _lstm,
    "residual_layer_norm": _layer_norm,
    "forces": _forces,
    "gradient_penalty": _gradient_penalty,
    "cross_entropy": _function(_cross_entropy, (256, 1000), labels=(256, 1000)),
    "huber": _function(_huber, (64, 256), (64, 256)),
    "contrastive": _function(_contrastive, (128, 256), (128, 256)),
    "gelu_chain": _function(_gelu, (512, 512), (512, 512)),
    "attention": _function(_attention, *[(1, 8, 128, 64)] * 3),
}


def load(name: str, seed: int = 0) -> Training:
    """Build what is trained under this name, with random weights and inputs from `seed`.

    Raises:
        KeyError: there is no such name.
    """
    torch.manual_seed(seed)
    return Training(name, *NETWORKS[name]())
