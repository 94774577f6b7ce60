"""Which calls of ATen a network on a card is best cut into: `python benchmarks/gpu_calls.py`, in some 10 seconds.

`products`: a linear layer with its bias beside the product alone, to whose result a generated kernel adds the bias at
no cost, for weights as `nn.Linear` has them (nt) and as GPT-2 has them (nn). A ratio above 1 says that the bias is
better left to what follows: the pass `bias-behind-product` does that for the dtypes in its `APART`.

`attention`: queries, keys and values apart, as three linear layers give them; packed, as one layer of all weights gives
them; each head in one piece, as a kernel could write them; and with masks: none, the flag for causal attention, and
masks of numbers that leave every place open, or those of causal attention (the pass `known-masks`). Times are
beside "apart".

`projections`: attention with what gives it queries, keys and values.

    python benchmarks/gpu_calls.py products
    python benchmarks/gpu_calls.py --device cpu --tiny          # tries the script
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from gpu_timing import Clock
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
PRODUCTS = (
    # rows, columns, depth: BERT-base of 8 x 128 and GPT-2 of 4 x 256 tokens, ViT-S of 32 images, small ones
    (1024, 768, 768),
    (1024, 2304, 768),
    (1024, 3072, 768),
    (1024, 768, 3072),
    (6304, 384, 384),
    (6304, 1152, 384),
    (6304, 1536, 384),
    (6304, 384, 1536),
    (4096, 1024, 1024),
    (128, 768, 768),
    (16, 3072, 768),
    (8, 256, 64),
)
ATTENTION = {"bert": (8, 12, 128, 64), "gpt2": (4, 12, 256, 64), "vit_s": (32, 6, 197, 64)}
SETS = 3  # of operands, which take turns


@dataclass(frozen=True)
class Timer:
    device: str

    def microseconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Of one call, on the device while the host is ahead: the median of some tries."""
        clock = Clock(self.device, samples=7)
        return clock.device_ms(lambda call: call(), [(call,) for call in calls], calls=3 * len(calls)) * 1e3


def products(timer: Timer, tiny: bool) -> Iterator[str]:
    yield f"{'products: with bias / alone / alone and a sum, us':58} with : alone"
    for dtype in ("f32", "bf16"):
        ratios: list[float] = []
        for rows, columns, depth in PRODUCTS[-1:] if tiny else PRODUCTS:
            for order in ("nt", "nn"):
                sets: list[tuple[Tensor, Tensor, Tensor]] = []
                for _ in range(SETS):
                    x = torch.randn(rows, depth, device=timer.device, dtype=DTYPES[dtype])
                    w = torch.randn(columns, depth, device=timer.device, dtype=DTYPES[dtype])
                    b = torch.randn(columns, device=timer.device, dtype=DTYPES[dtype])
                    sets.append((x, w.t() if order == "nt" else w.t().contiguous(), b))
                whole = timer.microseconds([partial(torch.addmm, b, x, w) for x, w, b in sets])
                alone = timer.microseconds([partial(torch.mm, x, w) for x, w, _ in sets])
                apart = timer.microseconds([partial(_with_sum, x, w, b) for x, w, b in sets])
                ratios.append(whole / alone)
                name = f"{dtype} {rows} x {columns} x {depth} {order}"
                yield f"  {name:32}{whole:9.1f} {alone:9.1f} {apart:9.1f}      {whole / alone:5.2f}"
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        yield f"  {dtype}: with bias takes {mean:.2f} times as long as alone, geometric mean"


def _with_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.mm(x, w).add_(b)


Operands = tuple[Tensor, Tensor, Tensor]


def layouts(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> dict[str, Operands]:
    """The same queries, keys and values, [batch, heads, length, size], as they may lie."""
    batch, heads, length, size = shape
    packed = torch.randn(batch, length, 3 * heads * size, device=device, dtype=dtype)
    views = [each.view(batch, length, heads, size).transpose(1, 2) for each in packed.chunk(3, -1)]
    apart = [each.contiguous().view(batch, length, heads, size) for each in packed.chunk(3, -1)]
    q, k, v = (each.transpose(1, 2) for each in apart)
    return {
        "apart": (q, k, v),
        "packed": (views[0], views[1], views[2]),
        "heads": (q.contiguous(), k.contiguous(), v.contiguous()),
    }


def attention(timer: Timer, tiny: bool) -> Iterator[str]:
    yield "attention, us, and times `apart`"
    for name, shape in ATTENTION.items():
        shape = (1, 2, 16, 8) if tiny else shape
        length = shape[2]
        for dtype in ("f32", "bf16"):
            closed = torch.full((length, length), -math.inf, device=timer.device, dtype=DTYPES[dtype]).triu(1)
            masks: dict[str, dict[str, object]] = {
                "apart, flag": {"is_causal": True},
                "apart, causal mask": {"attn_mask": closed.expand(shape[0], 1, length, length)},
                "apart, open mask": {
                    "attn_mask": torch.zeros_like(closed).expand(shape[0], 1, length, length)
                },
            }
            sets = [layouts(shape, DTYPES[dtype], timer.device) for _ in range(SETS)]
            cases: dict[str, tuple[str, dict[str, object]]] = {each: (each, {}) for each in sets[0]}
            cases |= {each: ("apart", given) for each, given in masks.items()}
            times: dict[str, float] = {}
            for case, (layout, given) in cases.items():
                calls = [partial(F.scaled_dot_product_attention, *each[layout], **given) for each in sets]
                times[case] = timer.microseconds(calls)
            told = ", ".join(
                f"{case} {each:.1f} ({each / times['apart']:.2f})" for case, each in times.items()
            )
            yield f"  {name} {dtype}: {told}"


@dataclass(frozen=True)
class Projection:
    """Attention with what gives it queries, keys and values, called with (x, weights of all, biases of all)."""

    shape: tuple[int, int, int, int]
    out: Tensor

    def three(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """Three layers."""
        parts = (F.linear(x, *each) for each in zip(w.chunk(3), b.chunk(3), strict=True))
        return F.scaled_dot_product_attention(*(self._split(each)[0] for each in parts))

    def one(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """One layer."""
        return F.scaled_dot_product_attention(*self._split(F.linear(x, w, b)))

    def alone(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """A product, and a kernel that adds the bias and writes each head in one piece."""
        _, heads, _, size = self.shape
        bias = b.view(3, 1, heads, 1, size)
        return F.scaled_dot_product_attention(*torch.add(self._split(F.linear(x, w)), bias, out=self.out))

    def _split(self, x: Tensor) -> Tensor:
        batch, heads, length, size = self.shape
        return x.view(batch, length, -1, heads, size).permute(2, 0, 3, 1, 4)


def projections(timer: Timer, tiny: bool) -> Iterator[str]:
    yield "queries, keys, values and attention over them, us: three layers / one layer / its product, and a kernel"
    for name, shape in ATTENTION.items():
        batch, heads, length, size = shape = (1, 2, 16, 8) if tiny else shape
        width = heads * size
        for dtype in ("f32", "bf16"):
            made = partial(torch.randn, device=timer.device, dtype=DTYPES[dtype])
            sets = [
                (made(batch, length, width), made(3 * width, width) / width**0.5, made(3 * width))
                for _ in range(SETS)
            ]
            ways = Projection(shape, made(3, *shape))
            for way in (ways.one, ways.alone):
                torch.testing.assert_close(way(*sets[0]), ways.three(*sets[0]), rtol=0.05, atol=0.05)
            times = [
                timer.microseconds([partial(way, *each) for each in sets])
                for way in (ways.three, ways.one, ways.alone)
            ]
            yield f"  {name} {dtype}: " + " / ".join(f"{each:.1f}" for each in times)


SECTIONS = {"products": products, "attention": attention, "projections": projections}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), help=", ".join(SECTIONS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small tensors, to try the script")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device")
    torch.manual_seed(0)
    began = time.perf_counter()
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, products of float32 {torch.get_float32_matmul_precision()}")
    with torch.no_grad():
        for section in options.sections:
            for line in SECTIONS[section](Timer(options.device), options.tiny):
                print(line, flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
