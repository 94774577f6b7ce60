"""GELU by cheaper functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from lampwork import pristine
from lampwork.approximation.statistics import Statistics
from lampwork.records import record
from lampwork.swapping.sites import class_of

_SPELLINGS = 3e-2  # by tanh GELU is 5e-4 off at most, by sigmoid 2e-2
_EXACT = 1e-6


def is_gelu(module: nn.Module, tolerance: float) -> bool:
    """Whether the module is a GELU: it is named so, has no parameters or parts, and computes it at sampled points.

    The name keeps other modules from being called; the points keep GEGLU and other functions with the name out.
    """
    if "gelu" not in class_of(module).__name__.lower():
        return False
    if any(True for _ in module.parameters()) or any(True for _ in module.children()):
        return False
    points = pristine.linspace(-6.0, 6.0, 97)
    try:
        with pristine.no_grad():
            values: Any = module.forward(points)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False  # it takes other arguments than one tensor
    if not isinstance(values, Tensor) or values.shape != points.shape:
        return False
    return bool((values - F.gelu(points)).abs().max() <= tolerance)


@record
class Activation:
    """Replace GELUs, of torch or of `transformers`, in any spelling within `tolerance` of the exact one.

    before:  x * Phi(x)
    after:   what `make` returns
    """

    name: str
    make: Callable[[], nn.Module]
    tolerance: float
    calibrated: bool = False

    def applies(self, name: str, module: nn.Module) -> bool:
        return is_gelu(module, self.tolerance)

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module:
        return self.make()


gelu_to_relu = Activation("gelu-to-relu", nn.ReLU, _SPELLINGS)
"""before: x * Phi(x), after: max(x, 0). At most 0.17 apart."""

gelu_to_tanh = Activation("gelu-to-tanh", lambda: nn.GELU(approximate="tanh"), _EXACT)
"""before: x * Phi(x), after: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))). At most 5e-4 apart. GELUs that
are computed by an approximation already are left alone."""
