"""Operators one by one against eager.

    python benchmarks/operators.py [NAME ...] [--threads 1] [--only-slower]

A name stands for all cases that begin with it. Eager and compiled calls take turns; printed are the best
microseconds of each and the median ratio over the turns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lampwork

ROUNDS = 11
SAMPLE_SECONDS = 0.004

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    image = torch.randn(2, 32, 56, 56)
    odd = torch.randn(2, 24, 37, 41)
    last = image.contiguous(memory_format=torch.channels_last)
    rows = torch.randn(512, 768)
    tokens = torch.randn(4, 128, 256)
    volume = torch.randn(1, 8, 12, 14, 16)
    signal = torch.randn(4, 64, 1000)
    few = torch.randint(0, 512, (256,))
    wide = torch.randint(0, 768, (512, 64))
    labels = torch.randint(0, 768, (512,))
    numbers = torch.randint(-100, 100, (512, 768))
    weight = torch.randn(32)
    grid = torch.rand(2, 56, 56, 2) * 2.2 - 1.1
    mask = rows > 0
    found: dict[str, Case] = {
        "group_norm": (lambda x, w: F.group_norm(x, 8, w, w), (image, weight)),
        "group_norm odd": (lambda x: F.group_norm(x, 3), (odd,)),
        "group_norm channels_last": (lambda x, w: F.group_norm(x, 8, w, w), (last, weight)),
        "instance_norm": (lambda x: F.instance_norm(x), (image,)),
        "batch_norm": (lambda x, w: F.batch_norm(x, w, w.abs() + 1, w, w), (image, weight)),
        "batch_norm channels_last": (lambda x, w: F.batch_norm(x, w, w.abs() + 1, w, w), (last, weight)),
        "layer_norm": (lambda x: F.layer_norm(x, (768,)), (rows,)),
        "rms_norm": (lambda x: F.rms_norm(x, (768,)), (rows,)),
        "softmax": (lambda x: x.softmax(-1), (rows,)),
        "softmax dim 0": (lambda x: x.softmax(0), (rows,)),
        "softmax dim 1 of 3": (lambda x: x.softmax(1), (tokens,)),
        "log_softmax": (lambda x: x.log_softmax(-1), (rows,)),
        "logsumexp": (lambda x: x.logsumexp(-1), (rows,)),
        "logsumexp dim 0": (lambda x: x.logsumexp(0), (rows,)),
        "sum": (lambda x: x.sum(), (rows,)),
        "sum dim 0": (lambda x: x.sum(0), (rows,)),
        "sum dim 1": (lambda x: x.sum(1), (rows,)),
        "sum dims 0, 2, 3": (lambda x: x.sum((0, 2, 3)), (image,)),
        "mean dims 2, 3": (lambda x: x.mean((2, 3)), (image,)),
        "mean dims 2, 3 channels_last": (lambda x: x.mean((2, 3)), (last,)),
        "var": (lambda x: x.var(-1), (rows,)),
        "var dim 0": (lambda x: x.var(0), (rows,)),
        "std all": (lambda x: x.std(), (rows,)),
        "norm": (lambda x: x.norm(dim=-1), (rows,)),
        "norm dim 0": (lambda x: x.norm(dim=0), (rows,)),
        "norm 3": (lambda x: x.norm(3.0, dim=-1), (rows,)),
        "normalize": (lambda x: F.normalize(x, dim=-1), (rows,)),
        "max dim": (lambda x: x.max(-1), (rows,)),
        "max dim 0": (lambda x: x.max(0), (rows,)),
        "argmax": (lambda x: x.argmax(-1), (rows,)),
        "argmax dim 0": (lambda x: x.argmax(0), (rows,)),
        "argmax of integers": (lambda x: x.argmax(-1), (numbers,)),
        "amax all": (lambda x: x.amax(), (rows,)),
        "any": (lambda x: x.any(-1), (mask,)),
        "all": (lambda x: x.all(), (mask,)),
        "sum of bool": (lambda x: x.sum(-1), (mask,)),
        "sum of int64": (lambda x: x.sum(-1), (numbers,)),
        "prod": (lambda x: x.prod(-1), (rows,)),
        "cumsum": (lambda x: x.cumsum(-1), (rows,)),
        "cumsum dim 0": (lambda x: x.cumsum(0), (rows,)),
        "cumsum dim 1 of 3": (lambda x: x.cumsum(1), (tokens,)),
        "cumsum of int64": (lambda x: x.cumsum(-1), (numbers,)),
        "cumsum of bool": (lambda x: x.cumsum(-1), (mask,)),
        "cumprod": (lambda x: x.cumprod(-1), (rows,)),
        "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (image,)),
        "max_pool2d channels_last": (lambda x: F.max_pool2d(x, 3, 2, 1), (last,)),
        "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (image,)),
        "avg_pool2d 3": (lambda x: F.avg_pool2d(x, 3, 1, 1), (image,)),
        "avg_pool1d": (lambda x: F.avg_pool1d(x, 5), (signal,)),
        "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (volume,)),
        "adaptive_avg_pool2d 1": (lambda x: F.adaptive_avg_pool2d(x, 1), (image,)),
        "adaptive_avg_pool2d 7": (lambda x: F.adaptive_avg_pool2d(x, 7), (image,)),
        "adaptive_avg_pool2d uneven": (lambda x: F.adaptive_avg_pool2d(x, 6), (odd,)),
        "adaptive_avg_pool1d uneven": (lambda x: F.adaptive_avg_pool1d(x, 7), (signal,)),
        "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 7), (image,)),
        "adaptive_max_pool2d uneven": (lambda x: F.adaptive_max_pool2d(x, 6), (odd,)),
        "upsample nearest": (lambda x: F.interpolate(x, scale_factor=2), (image,)),
        "upsample nearest channels_last": (lambda x: F.interpolate(x, scale_factor=2), (last,)),
        "upsample nearest size": (lambda x: F.interpolate(x, size=(75, 90)), (odd,)),
        "upsample nearest-exact": (lambda x: F.interpolate(x, size=(75, 90), mode="nearest-exact"), (odd,)),
        "upsample nearest 1d": (lambda x: F.interpolate(x, scale_factor=2), (signal,)),
        "upsample nearest 3d": (lambda x: F.interpolate(x, scale_factor=2), (volume,)),
        "upsample bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (image,)),
        "upsample bilinear channels_last": (
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            (last,),
        ),
        "upsample bilinear corners": (
            lambda x: F.interpolate(x, size=(75, 90), mode="bilinear", align_corners=True),
            (odd,),
        ),
        "upsample bilinear down": (lambda x: F.interpolate(x, size=(19, 20), mode="bilinear"), (odd,)),
        "upsample linear 1d": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), (signal,)),
        "upsample trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (volume,)),
        "upsample bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (image,)),
        "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (image, grid)),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (image,)),
        "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (image,)),
        "channel_shuffle": (lambda x: F.channel_shuffle(x, 4), (image,)),
        "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), (image,)),
        "pad reflect": (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), (image,)),
        "pad replicate": (lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"), (image,)),
        "pad reflect 1d": (lambda x: F.pad(x, (200, 200), mode="reflect"), (signal,)),
        "pad circular": (lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"), (image,)),
        "unfold (im2col)": (lambda x: F.unfold(x, 3, padding=1), (image,)),
        "unfold patches": (lambda x: F.unfold(x, 8, stride=8), (image,)),
        "cat": (lambda x, y: torch.cat([x, y], 1), (image, image)),
        "cat last": (lambda x: torch.cat([x, x[..., :64]], -1), (rows,)),
        "cat 3 odd": (lambda x: torch.cat([x[:, 1:], x[:, :3], x], -1), (rows,)),
        "stack": (lambda x, y: torch.stack([x, y], -1), (rows, rows)),
        "transpose copy": (lambda x: x.t().contiguous(), (rows,)),
        "permute copy 0 2 3 1": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (image,)),
        "permute copy 0 3 1 2": (lambda x: x.permute(0, 3, 1, 2).contiguous(), (torch.randn(2, 56, 56, 32),)),
        "permute copy heads": (
            lambda x: x.view(4, 128, 8, 32).transpose(1, 2).contiguous(),
            (tokens,),
        ),
        "slice copy": (lambda x: x[:, ::2].contiguous(), (rows,)),
        "flip": (lambda x: x.flip(-1), (rows,)),
        "flip dim 0": (lambda x: x.flip(0), (rows,)),
        "roll": (lambda x: x.roll((3, 3), (2, 3)), (image,)),
        "roll last": (lambda x: x.roll(5, -1), (rows,)),
        "repeat": (lambda x: x.repeat(2, 3), (rows,)),
        "repeat_interleave": (lambda x: x.repeat_interleave(4, 1), (tokens,)),
        "repeat_interleave last": (lambda x: x.repeat_interleave(2, -1), (tokens,)),
        "tril": (lambda x: x.tril(), (rows,)),
        "embedding": (lambda i, w: F.embedding(i, w), (few, rows)),
        "index_select": (lambda x, i: x.index_select(0, i), (rows, few)),
        "index_select last": (lambda x, i: x.index_select(1, i), (rows, few)),
        "index": (lambda x, i: x[i], (rows, few)),
        "index two": (lambda x, i, j: x[i, j], (rows, few, few)),
        "index mask": (lambda x, m: torch.where(m, x, 0.0), (rows, mask)),
        "gather": (lambda x, i: x.gather(1, i), (rows, wide)),
        "gather dim 0": (lambda x, i: x.gather(0, i[:64]), (rows, few.expand(64, 256).contiguous())),
        "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), (rows, wide)),
        "scatter value": (lambda x, i: torch.zeros_like(x).scatter(1, i, 1.0), (rows, wide)),
        "scatter_add": (lambda x, i: torch.zeros_like(x).scatter_add(1, i, x[:, :64]), (rows, wide)),
        "index_add": (lambda x, i: torch.zeros_like(x).index_add(0, i, x[:256]), (rows, few)),
        "index_put": (lambda x, i: x.index_put((i,), x[:256]), (rows, few)),
        "one_hot": (lambda i: F.one_hot(i, 768), (few,)),
        "one_hot float": (lambda i: F.one_hot(i, 768).float(), (few,)),
        "topk": (lambda x: x.topk(5), (rows,)),
        "sort": (lambda x: x.sort(), (rows,)),
        "cross_entropy": (lambda x, y: F.cross_entropy(x, y), (rows, labels)),
        "nll_loss": (lambda x, y: F.nll_loss(x, y), (rows, labels)),
        "mse_loss": (lambda x, y: F.mse_loss(x, y), (rows, rows + 1)),
        "bce with logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y), (rows, mask.float())),
        "bce": (lambda x, y: F.binary_cross_entropy(x, y), (rows.sigmoid(), mask.float())),
        "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), (rows, rows.softmax(-1))),
        "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y), (rows, rows + 1)),
        "pairwise_distance": (lambda x, y: F.pairwise_distance(x, y), (rows, rows + 1)),
        "cdist": (lambda x: torch.cdist(x[:128], x[128:256]), (rows,)),
        "bucketize": (lambda x: torch.bucketize(x, torch.linspace(-2, 2, 64)), (rows,)),
        "searchsorted": (lambda x: torch.searchsorted(torch.linspace(-2, 2, 64), x), (rows,)),
        "complex rotary": (_rotary, (tokens.view(4, 128, 8, 32), torch.randn(128, 16))),
        "to bfloat16": (lambda x: x.bfloat16(), (rows,)),
        "to float16": (lambda x: x.half(), (rows,)),
        "from bfloat16": (lambda x: x.float(), (rows.bfloat16(),)),
        "from float16": (lambda x: x.float(), (rows.half(),)),
        "float to int64": (lambda x: x.long(), (rows,)),
        "int64 to float": (lambda x: x.float(), (numbers,)),
        "bool to float": (lambda x: x.float(), (mask,)),
        "float to uint8": (lambda x: (x.clamp(-1, 1) * 127.5 + 127.5).to(torch.uint8), (rows,)),
        "compare": (lambda x: x > 0.5, (rows,)),
        "logical": (lambda x, y: (x & ~y) | (x ^ y), (mask, rows > 1)),
        "int64 add": (lambda x: x + 3, (numbers,)),
        "int64 mul": (lambda x: x * x, (numbers,)),
        "int64 floor divide": (lambda x: x // 7, (numbers,)),
        "int64 remainder": (lambda x: x % 7, (numbers,)),
        "int32 remainder": (lambda x: x % 7, (numbers.int(),)),
        "int64 floor divide tensor": (lambda x, y: x // y, (numbers, numbers.abs() + 1)),
        "int64 shift": (lambda x: x >> 2, (numbers,)),
        "int64 pow": (lambda x: x**2, (numbers,)),
        "bfloat16 add": (lambda x: x + x, (rows.bfloat16(),)),
        "bfloat16 gelu": (lambda x: F.gelu(x), (rows.bfloat16(),)),
        "bfloat16 softmax": (lambda x: x.softmax(-1), (rows.bfloat16(),)),
        "bfloat16 layer_norm": (lambda x: F.layer_norm(x, (768,)), (rows.bfloat16(),)),
        "float16 mul": (lambda x: x * x, (rows.half(),)),
        "float64 exp": (lambda x: x.exp(), (rows.double(),)),
        "float64 tanh": (lambda x: x.tanh(), (rows.double(),)),
        "float64 sin": (lambda x: x.sin(), (rows.double(),)),
        "float64 gelu": (lambda x: F.gelu(x), (rows.double(),)),
        "float64 log": (lambda x: x.abs().log(), (rows.double(),)),
        "float64 pow": (lambda x: x.abs() ** 1.7, (rows.double(),)),
        "clamp": (lambda x: x.clamp(-1, 1), (rows,)),
        "where": (lambda x, m: torch.where(m, x, -x), (rows, mask)),
        "masked_fill": (lambda x, m: x.masked_fill(m, -math.inf), (rows, mask)),
        "broadcast add": (lambda x, y: x[:, :, None] + y[None, None, :64], (rows[:64, :64], rows[0])),
        "outer": (lambda x, y: x[:, None] * y[None, :], (rows[:, 0].contiguous(), rows[0])),
        "arange": (lambda x: torch.arange(4096) + x, (numbers[0, 0],)),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (rows, rows + 1)),
        "addcmul": (lambda x, y: torch.addcmul(x, x, y), (rows, rows + 1)),
        "dropout": (lambda x: F.dropout(x, 0.1), (rows,)),
        "erfinv": (lambda x: x.clamp(-0.9, 0.9).erfinv(), (rows,)),
        "lgamma": (lambda x: x.lgamma(), (rows,)),
        "sinc": (lambda x: x.sinc(), (rows,)),
        "nansum": (lambda x: x.nansum(-1), (rows,)),
        "count_nonzero": (lambda x: x.count_nonzero(-1), (mask,)),
        "local_response_norm": (lambda x: F.local_response_norm(x, 5), (image,)),
        "trace of a product": (lambda x: torch.einsum("ij,ij->i", x, x), (rows,)),
    }
    return found


def _rotary(x: Tensor, angles: Tensor) -> Tensor:
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None, :]).flatten(3)


def seconds(fn: Callable[..., Any], inputs: tuple[Tensor, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn(*inputs)
    return (time.perf_counter() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-slower", action="store_true", help="print what is slower than eager")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        for name, (fn, inputs) in cases().items():
            if options.names and not name.startswith(tuple(options.names)):
                continue
            compiled = lampwork.compile(fn)
            pair = (fn, compiled)
            for each in pair:
                seconds(each, inputs, 4)
            calls = [max(1, math.ceil(SAMPLE_SECONDS / seconds(each, inputs, 2))) for each in pair]
            rounds = [
                [seconds(each, inputs, n) for each, n in zip(pair, calls, strict=True)] for _ in range(ROUNDS)
            ]
            ratio = statistics.median(a / b for a, b in rounds)
            if options.only_slower and ratio >= 0.97:
                continue
            best = [min(column) * 1e6 for column in zip(*rounds, strict=True)]
            print(
                f"{name:32} eager {best[0]:9.1f} us   compiled {best[1]:9.1f} us   {ratio:6.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
