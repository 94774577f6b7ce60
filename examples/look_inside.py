"""Look inside: every stage of a softmax, from Python bytecode to machine code and the program that runs it."""

from __future__ import annotations

import torch

import lampwork


def softmax(x: torch.Tensor) -> torch.Tensor:
    top = x.max(dim=-1, keepdim=True).values
    weights = torch.exp(x - top)
    return weights / weights.sum(dim=-1, keepdim=True)


def main() -> None:
    compiled = lampwork.compile(softmax, fullgraph=True)
    x = torch.randn(64, 100)
    assert torch.allclose(compiled(x), torch.softmax(x, -1), atol=1e-6)
    print(compiled.stages)
    print("\n==== in short ====")
    print(compiled.stages.summary())
    print("\n==== explained ====")
    print(lampwork.explain(compiled)(x))


if __name__ == "__main__":
    main()
