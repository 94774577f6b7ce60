"""An operator in C++ of one's own, put into models by a rewrite of five lines.

python examples/cpp_operator/add_div.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.cpp_extension import load

import lampwork


def build(folder: str | Path | None = None) -> None:
    """Compile `add_div.cpp` and register its operator, `mine::add_div`.

    Args:
        folder: where the library lies, and is found the next time; torch's own folder for extensions if None.

    Raises:
        RuntimeError: there is no C++ compiler, or it failed.
    """
    load(
        name="lampwork_example_add_div",
        sources=[str(Path(__file__).with_name("add_div.cpp"))],
        extra_cflags=["-O3", "-march=native"],
        build_directory=None if folder is None else str(folder),
        is_python_module=False,
    )


def fuse_add_div() -> Any:
    """before:  %a = add(%x, %y), %b = div(%a, 3.0)
    after:   %b = mine.add_div(%x, %y, 3.0)"""

    def add_div(x: Tensor, y: Tensor, c: float) -> Tensor:
        return (x + y) / c

    return lampwork.rewrite(add_div, lambda x, y, c: torch.ops.mine.add_div(x, y, c))


def model(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax((x + y) / 3.0, dim=-1)


if __name__ == "__main__":
    build()
    fused = fuse_add_div()
    compiled = lampwork.compile(model)
    x, y = torch.randn(256, 256), torch.randn(256, 256)
    print("same answer:", torch.allclose(compiled(x, y), model(x, y)))
    print("hits:", fused.hits)
    print(compiled.stages.partition)
