"""Random programs of what kernels of cards do in ways of their own: reductions of odd lengths and strides, several of
one tensor, columns, scans, scatters and gathers with repeated indices, padding, pooling, norms, losses, mixed dtypes.

A program is text, grown line by line: a line stays if eager takes it and its results are finite. So whatever torch has
can stand in a template here, without rules for its shapes.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lampwork
from lampwork.testing.compare import difference

FLOATS = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8)
SIZES = (1, 1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 64, 65, 100, 129)
LONG = (255, 257, 513, 1000, 1025, 2049, 4097, 10007)
MOST = 12_000  # elements of a tensor
LONG_ROW = 40_000
LARGEST = 1e3  # of a result
ORDINARY = 0.25  # what results may be the difference of


def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int, layout: str, device: str = "cpu") -> Tensor:
    """A tensor of multiples of 1/16, so that sums of some and comparisons are exact."""
    rng = torch.Generator().manual_seed(seed)

    def numbers(*sizes: int) -> Tensor:
        if dtype is torch.bool:
            found = torch.rand(sizes, generator=rng, device="cpu") < 0.6
        elif dtype.is_floating_point:
            found = (torch.randn(sizes, generator=rng, device="cpu") * 16).round().div(16)
        else:
            found = torch.randint(0 if dtype is torch.uint8 else -9, 10, sizes, generator=rng, device="cpu")
        return found.to(device, dtype)

    if layout == "turned" and shape:
        return numbers(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "stepped" and shape:
        return numbers(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "expanded" and shape:
        return numbers(1, *shape[1:]).expand(shape)
    if layout == "behind":
        count = int(torch.Size(shape).numel())
        return numbers(count + 1)[1:].view(shape)
    if layout == "part" and shape:
        return numbers(*shape[:-1], shape[-1] + 3)[..., 1:-2]
    return numbers(*shape)


LAYOUTS = ("dense", "dense", "turned", "stepped", "expanded", "behind", "part")


@dataclass
class Given:
    """An input: `leading`: whether its first dimension is the one whose size may change from call to call."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    layout: str
    leading: bool = False

    def tensor(self, rows: int | None = None, device: str = "cpu") -> Tensor:
        shape = self.shape if rows is None or not self.leading else (rows, *self.shape[1:])
        return make(shape, self.dtype, self.seed, self.layout, device)


@dataclass
class CardProgram:
    """`seed` decides all of it. `rows`: of inputs whose first size may change. `trains`: whether gradients by the
    inputs of floats are results too."""

    seed: int
    lines: list[str] = field(default_factory=list[str])
    inputs: list[Given] = field(default_factory=list[Given])
    outputs: list[str] = field(default_factory=list[str])
    trains: bool = False
    rows: int = 1

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.values: dict[str, Any] = {}
        self.exact: set[str] = set()  # whose values are no results of rounding
        self.trains = self.rng.random() < 0.4
        self.rows = self.rng.choice(SIZES)
        self._input(shape=(self.rows, 3))
        for _ in range(self.rng.randint(1, 3)):
            with contextlib.suppress(LookupError):
                self._input()
        count = 0
        wanted = self.rng.randint(2, 7)
        while len(self.lines) < wanted and count < 120:
            count += 1
            self._line()
        names = [n for n in self.values if n.startswith("v")]
        ends = [n for n in names if not _reads(self.lines, n)]
        self.outputs = [*dict.fromkeys([*ends, *self.rng.sample(names, min(len(names), 1))])]

    # --- making -----------------------------------------------------------------------------------------------------

    def _input(self, dtype: torch.dtype | None = None, shape: tuple[int, ...] | None = None) -> str:
        rng = self.rng
        if dtype is None:
            dtype = rng.choice(FLOATS) if rng.random() < 0.8 else rng.choice((*INTS, torch.bool))
        leading = not self.inputs or (shape is None and rng.random() < 0.5)
        if shape is None:
            shape = self._shape()
            if leading:
                shape = (self.rows, *shape[1:]) if shape else (self.rows,)
        if int(torch.Size(shape).numel()) > LONG_ROW:
            raise LookupError("too many elements")
        name = f"x{len(self.inputs)}"
        given = Given(name, shape, dtype, rng.randrange(1 << 30), rng.choice(LAYOUTS), leading)
        self.inputs.append(given)
        self.values[name] = given.tensor()
        self.exact.add(name)
        return name

    def _shape(self) -> tuple[int, ...]:
        rng = self.rng
        if rng.random() < 0.07:
            return rng.choice(((1, LONG_ROW), (2, 16384), (3, 9001), (LONG_ROW,), (1, 1, 20000), (20011, 1)))
        rank = rng.choice((1, 2, 2, 2, 3, 3, 4))
        sizes = [rng.choice(SIZES) for _ in range(rank)]
        if rng.random() < 0.3:
            sizes[rng.randrange(rank)] = rng.choice(LONG)
        if rng.random() < 0.03:
            sizes[rng.randrange(rank)] = 0
        while int(torch.Size(sizes).numel()) > MOST:
            place = max(range(rank), key=lambda i: sizes[i] if rng.random() < 0.8 else 0)
            sizes[place] = max(1, sizes[place] // 3)
        return tuple(sizes)

    def _line(self) -> None:
        rng = self.rng
        name = f"v{len(self.lines)}"
        groups, weights = zip(*_TEMPLATES.items(), strict=True)
        group = rng.choices(groups, [w for w, _ in weights])[0]
        text = rng.choice(_TEMPLATES[group][1])
        chosen = dict(self.values)
        try:
            line = self._filled(text, chosen)
        except LookupError:
            return
        scope = self._scope()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(f"{name} = {line}", scope)  # noqa: S102
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            return
        value = scope[name]
        if not isinstance(value, Tensor) or value.numel() > 3 * LONG_ROW or not _is_good(value):
            return
        self.lines.append(f"{name} = {line}")
        self.values[name] = value
        moves = group in ("views", "joins") and "sum(" not in line
        if moves and all(part in self.exact for part in _names(line)):
            self.exact.add(name)

    def _scope(self) -> dict[str, Any]:
        return {**{n: v.clone() for n, v in self.values.items()}, "torch": torch, "F": F}

    def _filled(self, text: str, values: dict[str, Tensor]) -> str:
        """$f: a tensor of floats, $e: of exact numbers, $a: any, $i: of integers, $m: of bool, $s: with the shape of
        the first; $d, $D: a dimension, or several, of the first; $n, $k: numbers; $t, $h: dtypes, the latter of floats;
        $p: an order of dimensions; $P: how much to pad; $z, $l: the size along $d, and the last; $b: yes or no; $I:
        places along $d, of the first's shape; $J: some in one dimension, $U: each once; $w, $W: as long as the last
        dimension, and the second."""
        rng, first, dim = self.rng, "", 0
        out = ""
        i = 0
        while i < len(text):
            if text[i] != "$":
                out += text[i]
                i += 1
                continue
            kind = text[i + 1]
            i += 2
            if kind in "feaim":
                found = [
                    n for n, v in values.items() if _is_kind(kind, v) and (kind != "e" or n in self.exact)
                ]
                if not found:
                    raise LookupError(kind)
                # Later ones are likelier.
                picked = found[-1 - min(int(rng.expovariate(0.5)), len(found) - 1)]
                if not first:
                    first = picked
                    dim = rng.randrange(max(values[first].dim(), 1))
                out += picked
                continue
            x = values[first]
            shape = tuple(x.shape)
            if kind == "s":
                found = [n for n, v in values.items() if tuple(v.shape) == shape and v.is_floating_point()]
                out += rng.choice(found)
            elif kind == "d":
                out += str(dim - (len(shape) if rng.random() < 0.3 and shape else 0))
            elif kind == "D":
                many = rng.sample(range(len(shape)), rng.randint(1, max(len(shape), 1))) if shape else [0]
                out += str(tuple(many))
            elif kind == "n":
                out += str(rng.choice((1, 2, 3, 4, 5, 7)))
            elif kind == "k":
                out += str(rng.choice((0.5, -1.25, 2, 3, -1, 0.1)))
            elif kind == "z":
                out += str(shape[dim] if shape else 1)
            elif kind == "l":
                out += str(shape[-1] if shape else 1)
            elif kind == "b":
                out += rng.choice(("True", "False"))
            elif kind in "IJUwW":
                out += self._auxiliary(kind, shape, dim, x.dtype)
            elif kind == "p":
                order = list(range(len(shape)))
                rng.shuffle(order)
                out += str(tuple(order))
            elif kind == "t":
                out += str(rng.choice((*FLOATS, torch.int32, torch.int64, torch.bool, torch.int8)))
            elif kind == "h":
                out += str(rng.choice(FLOATS))
            elif kind == "P":
                out += str([rng.choice((0, 1, 2, 3)) for _ in range(2 * rng.randint(1, max(1, len(shape))))])
            else:
                raise AssertionError(kind)
        return out

    def _auxiliary(self, kind: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> str:
        """An expression of inputs or numbers that has a range."""
        rng = self.rng
        end = shape[dim] if shape else 1
        if end == 0:
            raise LookupError(kind)
        if kind == "w":
            return self._input(dtype, (shape[-1],) if shape else (1,))
        if kind == "W":
            return self._input(dtype, (shape[1],) if len(shape) > 1 else (1,))
        if kind == "I":
            name = self._input(torch.int64, shape)
            return f"({name} % {end})"
        if kind == "J":
            name = self._input(rng.choice((torch.int64, torch.int32)), (rng.choice((1, 2, 5, 33, end)),))
            return f"({name} % {end})" if rng.random() < 0.9 else f"({name} % {end} - {end})"
        steps = [k for k in (1, 3, 5, 7, 11) if _gcd(k, end) == 1]
        return f"((torch.arange({end}) * {rng.choice(steps)} + {rng.randrange(end)}) % {end})"

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        given = ", ".join(each.name for each in self.inputs)
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def program({given}):\n{body}    return {', '.join(self.outputs)},\n"

    def function(self, *, exact: bool = False) -> Callable[..., Any]:
        """exact: with float64 wherever the program names a dtype of floats."""
        source = self.source
        if exact:
            source = re.sub(r"torch\.(float32|float16|bfloat16)\b", "torch.float64", source)
            source = source.replace(".float()", ".double()")
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(source, f"card_program_{self.seed}", "exec"), scope)  # noqa: S102
        return scope["program"]

    def tensors(self, rows: int | None = None, device: str = "cpu") -> list[Tensor]:
        return [each.tensor(rows, device) for each in self.inputs]


Program = Callable[..., Sequence[Tensor]]


def with_gradients(program: Program) -> Program:
    """The program, and the gradients of its results by its inputs of floats, where it has some."""

    def run(*inputs: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        results = program(*leaves)
        ends = [y for y in results if y.requires_grad]
        by = [x for x in leaves if x.requires_grad]
        if not ends or not by:
            return list(results)
        given = [torch.linspace(-1, 1, y.numel(), dtype=torch.float64).to(y).view(y.shape) for y in ends]
        gradients = torch.autograd.grad(ends, by, given, allow_unused=True)
        return [*(y.detach() for y in results), *(g for g in gradients if g is not None)]

    return run


def check(seed: int, device: str = "cpu") -> None:
    """A program, compiled by the backend at hand, gives what eager gives, and gradients where it trains. Where its
    sizes are open it is called with three; not on a card, where an index that is out of range for some is the end."""
    program = CardProgram(seed)
    fn, rng = program.function(), Random(seed)
    is_open = seed % 4 == 0 and any(given.leading for given in program.inputs)
    compiled = lampwork.compile(fn, dynamic=True if is_open else None)
    calls = (None, rng.choice((0, 1, 2, 3, 37)), rng.choice((5, 64, 129)))
    for rows in calls[: 3 if is_open and device == "cpu" else 1]:
        sides: list[Program] = [compiled, fn, program.function(exact=True)]
        with warnings.catch_warnings(), contextlib.nullcontext() if device == "cpu" else torch.device(device):
            warnings.simplefilter("ignore")
            inputs = program.tensors(rows, device)
            trained = _trained(sides, inputs) if program.trains else sides
            try:
                want = list(trained[1](*inputs))
            except (RuntimeError, IndexError, ValueError):
                # No program for so many rows, or nothing that torch has for the device.
                assert rows is not None or device != "cpu"
                continue
            got = list(trained[0](*inputs))
            text = _difference(got, want, trained[2], inputs, strides=not program.trains)
        assert not text, f"seed {seed}, {rows} rows: {text}\n{program.source}{program.inputs}"


def _trained(sides: list[Program], inputs: list[Tensor]) -> list[Program]:
    """With gradients, if eager has them."""
    trained = [with_gradients(side) for side in sides]
    try:
        trained[1](*inputs)
    except (RuntimeError, IndexError, ValueError):
        return sides
    return trained


def _difference(
    got: list[Tensor], want: list[Tensor], exact: Program, inputs: list[Tensor], *, strides: bool
) -> str:
    """How the results differ, more than roundings of the inputs and those of eager explain."""
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    try:
        truth = list(exact(*wide))
    except (RuntimeError, TypeError):
        truth = None
    text = difference(got, want, truth, strides=strides)
    if "error" not in text or truth is None or len(truth) != len(got):
        return text
    apart = [0.0] * len(got)
    for turn in range(4):
        moved = list(exact(*(_moved(x, y, turn) for x, y in zip(wide, inputs, strict=True))))
        apart = [max(d, _rms(a, b)) for d, a, b in zip(apart, moved, truth, strict=True)]
    for number, (mine, other, right) in enumerate(zip(got, want, truth, strict=True)):
        if not mine.is_floating_point():
            continue
        roundings = (64 if mine.itemsize == 2 else 16) * torch.finfo(mine.dtype).eps
        allowed = 2 * _rms(other, right) + roundings * max(_rms(right), ORDINARY) + 16 * apart[number]
        if _rms(mine, right) > allowed:
            return f"result {number}: error {_rms(mine, right):.3g}, allowed {allowed:.3g} ({text})"
    return ""


def _moved(wide: Tensor, given: Tensor, turn: int) -> Tensor:
    if not given.is_floating_point():
        return given
    rng = torch.Generator().manual_seed(turn)
    by = torch.rand(given.shape, generator=rng, dtype=torch.float64, device="cpu") * 2 - 1
    return wide * (1 + by.to(wide.device) * torch.finfo(torch.float32).eps)


def _rms(one: Tensor, other: Tensor | float = 0.0) -> float:
    apart = one.double() - (other.double() if isinstance(other, Tensor) else other)
    apart = apart[apart.isfinite()]
    return float(apart.square().mean().sqrt()) if apart.numel() else 0.0


def _gcd(a: int, b: int) -> int:
    return a if b == 0 else _gcd(b, a % b)


def _names(line: str) -> list[str]:
    return re.findall(r"\b[vx]\d+\b", line)


def _reads(lines: list[str], name: str) -> bool:
    return any(name in _names(line.partition(" = ")[2]) for line in lines)


def _is_kind(kind: str, value: Tensor) -> bool:
    dtype = value.dtype
    if kind == "a":
        return True
    if kind == "m":
        return dtype is torch.bool
    if kind == "i":
        return not dtype.is_floating_point and dtype is not torch.bool
    return dtype.is_floating_point and dtype.itemsize > 1


def _is_good(value: Tensor) -> bool:
    if not value.is_floating_point() or not value.numel():
        return True
    if value.dtype.itemsize == 1:
        value = value.float()
    return bool(value.isfinite().all()) and float(value.abs().max()) < LARGEST


_TEMPLATES: dict[str, tuple[float, list[str]]] = {
    "pointwise": (
        3,
        """
        $f.sin()|$f.tanh()|torch.sigmoid($f)|$f.clamp(-4, 4).exp()|F.gelu($f)|F.silu($f)|F.softplus($f)
        $f.erf()
        F.gelu($f, approximate="tanh")|$f.abs().sqrt()|($f.abs() + 1).rsqrt()|$f.abs().log1p()
        1 / ($f.abs() + 1)
        $f.relu()|$f * $k|$f + $k|$f - $f|$f * $f|torch.maximum($f, $f)|torch.minimum($f, $f)
        $f / ($f.abs() + 2)
        torch.where($m, $f, $f)|$f.masked_fill($m, $k)|torch.where($e > 0, $f, $k)|$f * $m|$f + $i|$i * $k
        $i // $n|$i % $n|$i * $i|$i - $n|($i & 7) << 2|$i >> 1|$e > 0.25|$e.floor()|$e == $e|$e.sign()
        $e.round()
        torch.atan2($f, $f.abs() + 1)|F.hardswish($f)|F.elu($f)|F.leaky_relu($f, 0.1)|torch.lerp($f, $s, 0.25)
        torch.addcmul($f, $s, $s, value=0.5)|$f.pow(2)|($f.abs() + 0.5).pow(1.5)|torch.logaddexp($f, $f)
        torch.nan_to_num($f)|$f.cos() + $f.sin()|$i.bitwise_not()|$f.expm1().clamp(-9, 9)|F.mish($f)
        """.replace("\n", "|").split("|"),
    ),
    "casts": (
        1.2,
        """
        $f.to($h)|$a.to($h)|$f.to($h)|$e.to(torch.int32)|$i.to($h)|$m.to($h)|$e.to(torch.bool)|$i.to($t)
        $e.to(torch.float8_e4m3fn).to(torch.float32)|$e.to(torch.float8_e5m2).to(torch.bfloat16)
        $e.to(torch.float8_e4m3fn).to(torch.float16) * 2|$e.clamp(-9, 9).to(torch.float8_e5m2).float()
        """.replace("\n", "|").split("|"),
    ),
    "reductions": (
        5,
        """
        $f.sum($d)|$f.sum($D)|$f.sum()|$f.mean($d, keepdim=$b)|$f.mean()|$f.amax($d)|$f.amin($D, keepdim=$b)
        $f.var($d)|$f.var($D, correction=0)|$f.std($d, keepdim=True)|torch.var_mean($f, $d)[0]|$f.var()
        torch.std_mean($f, $d, correction=0)[1]|$f.logsumexp($d)|$f.norm(2, $d)|$f.norm(1, $D)
        $f.tanh().prod($d)
        $e.argmax($d)|$e.argmin($d)|$m.any($d)|$m.all($d)|$m.sum($d)|$i.sum($d)|$i.amax($d)|$i.sum()
        $e.argmax()
        $f - $f.mean($d, keepdim=True)|$f.sum($d, dtype=torch.float32)|$f.sum($d) + $f.amax($d)
        $f / ($f.abs().sum($d, keepdim=True) + 1)|($f - $f.amax($d, keepdim=True)).exp().sum($d)
        $f.sum($d, keepdim=True) * $f + $f.mean($d, keepdim=True)|torch.aminmax($f, dim=$d)[0]|$e.max($d)[1]
        $e.max($d)[0]|$e.min($d)[1]|$f.median()|$e.nansum($d)|torch.count_nonzero($e, $d)|$i.prod($d)
        $i.any($d)
        ($f * $s).sum($d)|$f.square().sum($d).sqrt()|torch.stack([$f.sum($d), $f.amax($d), $f.amin($d)])
        $f.amax($d) - $f.amin($d)|$f.sum($d).sum()|F.normalize($f, dim=$d)|torch.linalg.vector_norm($f, 3, $d)
        torch.dist($f, $s)|F.cosine_similarity($f, $s, dim=$d)|torch.var_mean($f, $D, keepdim=True)[1] + $f
        $m.to(torch.float32).mean($d)|$f.mean($D) * 2 + $f.sum($D)
        """.replace("\n", "|").split("|"),
    ),
    "softmax": (
        2,
        """
        $f.softmax($d)|$f.log_softmax($d)|F.softmin($f, $d)|F.softmax($f, $d, dtype=torch.float32)
        $f.masked_fill($m, -1e4).softmax($d)|($f * 0.3).softmax($d) * $f|$f.softmax($d).sum($D)
        F.softmax($f.masked_fill($e > 0, float("-inf")), $d).nan_to_num()
        """.replace("\n", "|").split("|"),
    ),
    "scans": (
        1.5,
        """
        $f.cumsum($d) / $z|$f.tanh().cumprod($d)|$e.cummax($d)[0]|$e.cummin($d)[1]|$i.cumsum($d)|$m.cumsum($d)
        $f.logcumsumexp($d)|torch.diff($f, dim=$d)|$f.flip($d).cumsum($d) / $z
        ($f / $z).cumsum($d, dtype=torch.float32)
        """.replace("\n", "|").split("|"),
    ),
    "norms": (
        1.5,
        """
        F.layer_norm($f, ($l,))|F.layer_norm($f, ($l,), $w, $w)|F.rms_norm($f, ($l,), $w)
        F.rms_norm($f, ($l,))
        F.batch_norm($f, None, None, $W, $W, training=True)|F.group_norm($f, $n)|F.instance_norm($f)
        F.batch_norm($f, $W, $W.abs() + 1)|F.local_response_norm($f, $n)|F.layer_norm($f + $s, ($l,)) * $s
        """.replace("\n", "|").split("|"),
    ),
    "losses": (
        1,
        """
        F.mse_loss($f, $s)|F.smooth_l1_loss($f, $s, reduction="none")
        F.binary_cross_entropy_with_logits($f, $s.sigmoid())
        F.kl_div($f.log_softmax($d), ($s * 0.5).cos().softmax($d), reduction="batchmean")
        F.huber_loss($f, $s)|F.l1_loss($f, $s)
        F.cross_entropy($f, $s.softmax(1))|F.hinge_embedding_loss($f, ($s * 0 + 1))
        F.cross_entropy($f.flatten(0, -2), torch.arange($f.flatten(0, -2).shape[0]) % $l)
        F.nll_loss($f.log_softmax(-1).flatten(0, -2), torch.arange($f.flatten(0, -2).shape[0]) % $l, reduction="none")
        """.replace("\n", "|").split("|"),
    ),
    "pools": (
        1,
        """
        F.max_pool1d($f, $n, stride=$n)|F.max_pool2d($f, $n, padding=0, ceil_mode=$b)
        F.avg_pool2d($f, $n, stride=$n)
        F.avg_pool1d($f, $n, ceil_mode=$b, count_include_pad=$b)|F.adaptive_avg_pool2d($f, ($n, $n))
        F.max_pool2d($f, 3, 2, 1)
        F.avg_pool2d($f, 3, 2, 1, count_include_pad=False)|F.lp_pool1d($f, 2, $n)
        F.adaptive_max_pool1d($f, $n)
        F.interpolate($f, scale_factor=2)|F.interpolate($f, scale_factor=1.5, mode="bilinear")
        F.unfold($f, $n)
        F.interpolate($f, size=($n, 9), mode="nearest-exact")|F.pixel_shuffle($f, 2)|F.pixel_unshuffle($f, 2)
        F.adaptive_avg_pool1d($f, $n)|F.interpolate($f, size=$n, mode="linear", align_corners=$b)
        F.max_pool1d($f, 2, 1, 1)
        """.replace("\n", "|").split("|"),
    ),
    "views": (
        3,
        """
        $a.transpose($d, -1)|$a.permute($p)|$a.flip($d)|$a.roll($n, $d)|$a[..., ::2]|$a[1:]|$a[..., 1:]
        $a.unsqueeze($d)
        $a.flatten()|$a.reshape(-1)|$a.narrow($d, 0, 1)|$a.select($d, 0)|$a.diagonal()|$a.unfold($d, 2, 1)
        $a.t()
        $a.reshape(-1, $l)|$a.reshape($z, -1)|$a.squeeze()|$a.expand(3, *$a.shape)|$a.chunk(2, $d)[-1]
        $a.contiguous()
        $a.transpose(0, $d).reshape(-1)|$a.flip(0).t()|$a[:, None]|$a.movedim(0, -1)
        $a.swapaxes(0, -1).contiguous()
        $a.tril()|$a.triu(1)|$a.unflatten($d, (-1, 2))|$a[..., -1]|$a[::3]|$a.split(2, $d)[0]|$a.clone()
        """.replace("\n", "|").split("|"),
    ),
    "joins": (
        2,
        """
        torch.cat([$a, $a], $d)|torch.cat([$f, $f * 2, $f], $d)|torch.stack([$f, $s], $d)|F.pad($f, $P)
        F.pad($a, $P, value=$n)
        F.pad($f, [1, 2], mode="reflect")|F.pad($f, [2, 1], mode="replicate")
        F.pad($f, [1, 1, 1, 0], mode="circular")
        $a.repeat($n, *([1] * $a.dim()))|$a.repeat_interleave($n, $d)|$a.tile(2)
        torch.cat([$f.sum($d, keepdim=True), $f], $d)
        torch.cat([$f.flip($d), $f.cumsum($d) / $z], $d)|F.pad($f, [-1, 2])|torch.hstack([$a, $a])
        torch.cat([$f[:1], $f.relu(), $f[1:]], 0)|torch.cat([$a.flatten(), $a.flatten()])
        F.pad($f, [0, 0, $n, $n])
        """.replace("\n", "|").split("|"),
    ),
    "gathers": (
        2.5,
        """
        $f.gather($d, $I)|$f.index_select($d, $J)|torch.take_along_dim($f, $I, $d)|$f[($i % $z).long()]
        $a.index_select($d, $J)
        F.embedding($J, $f)|$f.gather($d, $I).sum($d)|F.one_hot($I, $z).to(torch.float32)
        $f.index_select($d, $J).softmax($d)
        $f.index_select($d, $J).sum($D)|$f.take($I)|$f[:, $J]|$f[$J, $J]|$f[..., $J] + 1
        $f.gather($d, $I.flip($d)) * $s
        torch.searchsorted($e.sort($d)[0], $e)|torch.bucketize($e, torch.arange(-3., 3., 0.5))
        $f.select($d, -1)
        $f[$J].cumsum(0) / 9|$f.index_select($d, $J).mean($d)|F.embedding($I, $f)
        """.replace("\n", "|").split("|"),
    ),
    "scatters": (
        2.5,
        """
        $f.scatter_add($d, $I, $s)|$f.index_add($d, $J, $f.index_select($d, $J))
        torch.zeros_like($f).index_add($d, $U, $f)
        $f.scatter_reduce($d, $I, $s, "amax")|$f.scatter_reduce($d, $I, $s, "sum", include_self=False)
        $f.scatter_reduce($d, $I, $s, "amin", include_self=False)|$f.scatter_reduce($d, $I, $s, "mean")
        $f.tanh().scatter_reduce($d, $I, $s.tanh(), "prod")|$f.index_copy($d, $U, $s)
        $f.index_fill($d, $J, $k)
        $f.index_put((($U),), $s) if $d == 0 else $f
        torch.zeros_like($f).index_put(($J,), $f[$J], accumulate=True)
        $i.scatter_add($d, $I, $i)|$f.index_reduce($d, $J, $f.index_select($d, $J), "amax")
        $f.index_add($d, $J, $f.index_select($d, $J), alpha=-0.5)
        $f.scatter($d, $I, 0.5)|torch.zeros_like($f).scatter_add($d, $I, $f.tanh()).sum($d)
        $f.slice_scatter($s, $d)
        $f.select_scatter($f.select($d, 0), $d, -1)|$f.masked_scatter($m, $s)
        $f.scatter_reduce($d, $I, $s, "amax").sum($D)
        torch.bincount(($i % 7).long().flatten(), minlength=7)
        $f.index_put(($J, $J), torch.tensor(0.5, dtype=$f.dtype))
        $f.diagonal_scatter($f.diagonal() * 2)|$i.scatter_reduce($d, $I, $i, "amin")
        """.replace("\n", "|").split("|"),
    ),
}
_TEMPLATES = {
    group: (weight, [text.strip() for text in texts if text.strip()])
    for group, (weight, texts) in _TEMPLATES.items()
}
