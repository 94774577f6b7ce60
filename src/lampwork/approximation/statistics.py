"""Statistics of what goes into a module and comes out of it, by channels (the last axis), over calibration inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from lampwork import pristine
from lampwork.standard import math


class Statistics:
    """Moments of a module's first input x and its output y, one number a channel, in float64.

    `calls` is how often the module was called, `count` how many vectors (rows of the last axis, the channels) of x
    were seen, `input_peak` the largest magnitude in x, of all channels (NaN if one is). Where y has another shape
    than x, `covariance` is None. Calls with other things than floating point tensors are not counted.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.count = 0
        self.input_peak = 0.0
        self._x: Tensor | None = None
        self._y: Tensor | None = None
        self._xx: Tensor | None = None
        self._yy: Tensor | None = None
        self._xy: Tensor | None = None
        # Sums are of distances from the first mean seen, so that large means cost no digits.
        self._about: tuple[Tensor, Tensor] | None = None

    def add(self, x: Any, y: Any) -> None:
        """Take in one call."""
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.numel() or not x.dim():
            return
        if not x.is_floating_point() or not y.is_floating_point() or not y.dim():
            return
        xs, ys = (t.detach().double().reshape(-1, t.shape[-1]) for t in (x, y))
        if self._about is None:
            self._about = (xs.mean(0), ys.mean(0))
        xs, ys = xs - self._about[0], ys - self._about[1]
        self.calls += 1
        peak = float(x.detach().abs().max())
        self.input_peak = peak if math.isnan(peak) else max(self.input_peak, peak)
        self.count += len(xs)
        self._x, self._xx = _plus(self._x, xs.sum(0)), _plus(self._xx, xs.square().sum(0))
        self._y, self._yy = _plus(self._y, ys.sum(0)), _plus(self._yy, ys.square().sum(0))
        if xs.shape == ys.shape:
            self._xy = _plus(self._xy, (xs * ys).sum(0))

    @property
    def input_mean(self) -> Tensor:
        return self._mean(self._x, 0)

    @property
    def output_mean(self) -> Tensor:
        return self._mean(self._y, 1)

    @property
    def input_variance(self) -> Tensor:
        return self._variance(self._x, self._xx)

    @property
    def output_variance(self) -> Tensor:
        return self._variance(self._y, self._yy)

    @property
    def covariance(self) -> Tensor | None:
        if self._xy is None or self._x is None or self._y is None:
            return None
        return self._xy / self.count - (self._x / self.count) * (self._y / self.count)

    def _mean(self, total: Tensor | None, side: int) -> Tensor:
        if total is None or self._about is None:
            raise ValueError("no call was seen")
        return self._about[side] + total / self.count

    def _variance(self, total: Tensor | None, squares: Tensor | None) -> Tensor:
        if total is None or squares is None:
            raise ValueError("no call was seen")
        return (squares / self.count - (total / self.count).square()).clamp_min(0)


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


def collect(modules: Sequence[nn.Module], run: Callable[[], object]) -> list[Statistics]:
    """Statistics of the calls of each of the modules during `run`."""
    found = [Statistics() for _ in modules]

    def hook_of(statistics: Statistics) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            first = args[0] if args else next(iter(kwargs.values()), None)
            statistics.add(first, output)

        return hook

    handles = [
        module.register_forward_hook(hook_of(statistics), with_kwargs=True)
        for module, statistics in zip(modules, found, strict=True)
    ]
    try:
        with pristine.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return found
