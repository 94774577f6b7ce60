"""Whether a network learns what it learns in eager: losses of many steps, from the same weights, data and seed.

    python benchmarks/long_training.py [bert resnet50 ...] [--steps 300] [--rate 1e-3]

The architectures of `python -m lampwork.bench train`, dropout on, small enough that hundreds of steps with AdamW take
seconds; each step has a batch of its own. Three copies learn: compiled, in eager, and in eager in float64. Printed are
the first and the last loss, the root mean square distance of all losses from float64's, and whether the generator of
random numbers stands where eager has left it (bit for bit: as many numbers were drawn, in the same way).

The rule is that of the tests: compiled is at most three times as far from float64 as eager is, plus 1e-6 of the losses'
size. Training is chaotic: both are far from float64 once rounding has grown. Exits with 1 if one breaks the rule.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import lampwork
from lampwork.bench.networks import AlexNet, MobileNetV3, ResNet
from lampwork.bench.training.networks import NETWORKS, Maker, images, text, vit

_HEADS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SMALL: dict[str, Maker] = {
    "bert": text("BertForMaskedLM", "BertConfig", 500, 4, 32, **_HEADS),
    "gpt2": text(
        "GPT2LMHeadModel", "GPT2Config", 500, 2, 32, n_embd=64, n_layer=2, n_head=4, use_cache=False
    ),
    "vit_s": vit(4, 64, patch_size=16, **_HEADS),
    "llama": text(
        "LlamaForCausalLM", "LlamaConfig", 500, 2, 32, **_HEADS, num_key_value_heads=2, use_cache=False
    ),
    "resnet50": images(ResNet, 4, 48),
    "mobilenet_v3": images(MobileNetV3, 8, 48),
    "alexnet": images(AlexNet, 8, 72),
    "mlp": NETWORKS["mlp"],
    "lstm": NETWORKS["lstm"],
}


def batches(inputs: tuple[Tensor, ...], steps: int) -> Iterator[tuple[Tensor, ...]]:
    """Inputs like those given, other ones for each step."""
    draws = torch.Generator().manual_seed(2)
    for _ in range(steps):
        yield tuple(
            torch.randn(x.shape, generator=draws)
            if x.is_floating_point()
            else x.flatten()[torch.randperm(x.numel(), generator=draws)].view(x.shape)
            for x in inputs
        )


def learn(
    loss: Callable[..., Tensor], net: torch.nn.Module, inputs: tuple[Tensor, ...], steps: int, rate: float
) -> Tensor:
    """float64[steps]: the losses."""
    dtype = next(net.parameters()).dtype
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    torch.manual_seed(1)
    losses: list[float] = []
    for batch in batches(inputs, steps):
        optimizer.zero_grad()
        value = loss(*(x.to(dtype) if x.is_floating_point() else x for x in batch))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return torch.tensor(losses, dtype=torch.float64)


def measured(name: str, steps: int, rate: float) -> bool:
    """Print a row; whether it keeps the rule."""
    torch.manual_seed(0)
    net, inputs = SMALL[name]()
    assert isinstance(net, torch.nn.Module)
    eager_net, exact_net = copy.deepcopy(net), copy.deepcopy(net).double()
    exact = learn(exact_net, exact_net, inputs, steps, rate)
    eager = learn(eager_net, eager_net, inputs, steps, rate)
    generator = torch.get_rng_state()
    before = lampwork.stats()["eager_backwards"]
    ours = learn(lampwork.compile(net), net, inputs, steps, rate)
    in_eager = int(lampwork.stats()["eager_backwards"] - before)
    same = torch.equal(generator, torch.get_rng_state())
    error, noise = ((x - exact).square().mean().sqrt().item() for x in (ours, eager))
    scale = exact.square().mean().sqrt().item()
    fits = same and error <= 3 * noise + 1e-6 * scale
    print(
        f"| {name} | {ours[0]:.6f} | {ours[-1]:.6f} | {eager[-1]:.6f} | {error:.1e} | {noise:.1e} "
        f"| {'same' if same else 'differs'} | {in_eager} |{'' if fits else ' WRONG'}",
        flush=True,
    )
    return fits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=list(SMALL))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=1e-3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network | first loss | last loss | eager's last | error | eager's error | generator | eager backwards |"
    )
    print("|---|---|---|---|---|---|---|---|")
    kept = [measured(name, given.steps, given.rate) for name in given.networks]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
