"""Linear layers with fewer weights, or with shorter ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from lampwork.approximation.statistics import Statistics
from lampwork.backends.registry import get_backend
from lampwork.codegen.target import Target
from lampwork.config import current
from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.verdict import No, Verdict, Yes

if TYPE_CHECKING:
    from lampwork.backends.native.compile import NativeBackend  # loaded with the first compilation


def plain_linear(module: nn.Module) -> Verdict | bool:
    if parametrize.is_parametrized(module) and parametrize.type_before_parametrizations(module) is nn.Linear:
        return No("its weight is computed from other parameters")
    # A subclass may be one whose weights its owner reads without calling it, as the attention of torch does.
    return type(module) is nn.Linear or is_conv1d(module)


def is_conv1d(module: nn.Module) -> bool:
    """The linear layer of GPT-2 in `transformers`, whose weight is [in_features, out_features]."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def weights_of(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight [out_features, in_features] and bias, detached."""
    linear = cast(nn.Linear, module)
    weight, bias = linear.weight.detach(), cast("Tensor | None", linear.bias)
    return weight.t() if is_conv1d(module) else weight, None if bias is None else bias.detach()


class LowRankLinear(nn.Module):
    """x @ first.T @ second.T + bias: a linear layer whose weight is the product of two thin matrices.

    Shapes: first [rank, in_features], second [out_features, rank], bias [out_features] or None.
    """

    def __init__(self, first: Tensor, second: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.first = nn.Parameter(first)
        self.second = nn.Parameter(second)
        self.bias = None if bias is None else nn.Parameter(bias)

    @property
    def weight(self) -> Tensor:
        """The weight as a linear layer has it, [out_features, in_features]; computed at each look."""
        return self.second @ self.first

    @property
    def in_features(self) -> int:
        return self.first.shape[1]

    @property
    def out_features(self) -> int:
        return self.second.shape[0]

    @property
    def rank(self) -> int:
        return self.first.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.first), self.second, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}"


@record
class LowRank:
    """Replace the weight of linear layers by the nearest of lower rank, where that saves multiplications.

    before:  y = x @ W.T + b
    after:   y = (x @ A.T) @ B.T + b,  B @ A = the largest `rank` terms of the singular value decomposition of W

    rank: of all layers; if None, each has the smallest that keeps `energy` of the sum of squares of its weight.
    """

    energy: float = 0.99
    rank: int | None = None
    name: str = "low-rank"
    calibrated: ClassVar[bool] = False

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        return plain_linear(module)

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        weight, bias = weights_of(module)
        out_features, in_features = weight.shape
        limit = in_features * out_features / (in_features + out_features)
        if self.rank is not None and self.rank >= limit:
            return No(f"rank {self.rank} saves no multiplications of {in_features} x {out_features}")
        u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
        rank = self.rank if self.rank is not None else _rank_of(s, self.energy)
        if rank >= limit:
            return No(f"{self.energy:.4g} of the energy needs rank {rank}, which saves no multiplications")
        root = s[:rank].sqrt()
        new = LowRankLinear(
            (root[:, None] * v[:rank]).to(weight.dtype),
            (u[:, :rank] * root).to(weight.dtype),
            None if bias is None else bias.clone(),
        )
        return new.requires_grad_(module.get_parameter("weight").requires_grad)


def _rank_of(singular_values: Tensor, energy: float) -> int:
    squares = singular_values.square()
    return min(int((squares.cumsum(0) < energy * squares.sum()).sum()) + 1, len(squares))


def low_rank(energy: float = 0.99, *, rank: int | None = None) -> LowRank:
    """The rule LowRank.

    Raises:
        OptionError: energy outside (0, 1], or a rank below 1.
    """
    if not isinstance(cast(object, energy), (int, float)) or not 0 < energy <= 1:
        raise OptionError(f"energy is {energy!r}, expected a share in (0, 1]", fix="pass for example 0.99")
    if rank is not None and (not isinstance(cast(object, rank), int) or rank < 1):
        raise OptionError(f"rank is {rank!r}, expected at least 1", fix="leave it out to choose it by energy")
    return LowRank(energy, rank)


class HalfLinear(nn.Module):
    """A linear layer with weight and bias in bfloat16. The result has the dtype of x.

    computes_in: bfloat16: x is rounded too, and products are summed in float32 and rounded; float32: weights are
    widened, which saves memory only.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, computes_in: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.to(torch.bfloat16))
        self.bias = None if bias is None else nn.Parameter(bias.to(torch.bfloat16))
        self.computes_in = computes_in

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(self.computes_in)
        return F.linear(x.to(self.computes_in), self.weight.to(self.computes_in), bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.computes_in}"


@record
class Bf16Weights:
    """Keep the weights of linear layers in bfloat16: half the memory, three significant digits.

    before:  y = x @ W.T + b
    after:   y = float32(bfloat16(x) @ bfloat16(W).T + bfloat16(b))     with compute="bfloat16"
             y = x @ float32(bfloat16(W)).T + float32(bfloat16(b))      with compute="float32"

    compute: None: bfloat16 where it is the faster: on processors that have instructions for it, in layers with at least
    `Target.bf16_work` multiplications a call on the calibration inputs.
    """

    compute: Literal["bfloat16", "float32"] | None = None
    name: str = "bf16-weights"

    @property
    def calibrated(self) -> bool:
        """The number of multiplications is known from the calibration inputs only."""
        return self.compute is None

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        verdict = plain_linear(module)
        if not verdict:
            return verdict
        dtype = module.get_parameter("weight").dtype
        return Yes() if dtype in (torch.float32, torch.float64) else No(f"its weight is {dtype}")

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module:
        weight, bias = weights_of(module)
        compute = self.compute or _faster(weight, statistics)
        new = HalfLinear(weight.contiguous(), bias, getattr(torch, compute))
        return new.requires_grad_(module.get_parameter("weight").requires_grad)


def bf16_weights(compute: Literal["bfloat16", "float32"] | None = None) -> Bf16Weights:
    """The rule Bf16Weights.

    Raises:
        OptionError: another `compute`.
    """
    if compute not in (None, "bfloat16", "float32"):
        raise OptionError(f"compute is {compute!r}", fix='pass "bfloat16" or "float32"')
    return Bf16Weights(compute)


def _faster(weight: Tensor, statistics: Statistics | None) -> Literal["bfloat16", "float32"]:
    least = _target().bf16_work
    if least is None or statistics is None or not statistics.calls:
        return "float32"
    work = statistics.count / statistics.calls * weight.numel()
    return "bfloat16" if work >= least else "float32"


def _target() -> Target:
    return cast("NativeBackend", get_backend("native")).target(current())
