"""What programs compute of weights alone, computed at the export: packed and folded weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.artifacts import manifest as m
from lampwork.artifacts.container import ALIGNMENT, PREPACKED, pieces
from lampwork.codegen.llvm.targets import facts, pick
from lampwork.runtime import Executable
from lampwork.runtime.layout import Layout
from lampwork.runtime.program import Program
from lampwork.runtime.rest import rest_of
from lampwork.serial import Linked, Modules, layout_from_json, layout_to_json

_BYTES = (torch.int8, torch.uint8)
"""Of quantized weights. Other integers may be indices, and are computed anew: what is computed from them is not to
depend on bytes that anybody could have put into the file."""


@dataclass(slots=True)
class Prepacked:
    """What a file has of it, for all targets. `tensors`: by the names that they have in the file, whole lines of bytes;
    equal ones are one. `left_out`: the targets whose code does not run here."""

    found: list[m.Prepacked] = field(default_factory=list[m.Prepacked])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    left_out: list[str] = field(default_factory=list[str])
    _numbers: dict[Any, int] = field(default_factory=dict[Any, int])

    def runs(self, target: str) -> bool:
        """Whether this machine runs the code of a target; it is noted if not."""
        runs = pick([facts(target)]).chosen is not None
        if not runs:
            self.left_out.append(target)
        return runs

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.left_out:
            return ()
        names = ", ".join(self.left_out)
        return (
            f"nothing is prepacked for {names}, whose code this machine does not run: first calls pack there",
        )

    def add(
        self, layout: Layout, json: Any, bound: Sequence[Tensor], modules: Modules
    ) -> dict[str, Any] | None:
        """What the constants of a program are for these weights, as the section of the programs has it; None if there
        is nothing to keep. `json`: the layout, as it is written."""
        if layout.constants is None:
            return None
        constants = cast(Layout, layout.constants.layout)
        read = layout_from_json(json, Linked(modules.contents))
        known = _known(cast(Program, read.constants), [tensor.detach() for tensor in bound])
        rest = rest_of(constants, tuple(known))
        if not rest.known:
            return None
        return {
            "tensors": [self._number(known[number]) for number in rest.known],
            "places": list(rest.places),
            "rest": None if rest.layout is None else layout_to_json(rest.layout, modules),
        }

    def _number(self, tensor: Tensor) -> int:
        memory = _memory(tensor)
        found = hashlib.sha256()
        for piece in pieces(memory):
            found.update(piece)
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        number = self._numbers.setdefault((tensor.dtype, shape, strides, found.digest()), len(self.found))
        if number == len(self.found):
            name = f"{PREPACKED}{number}"
            self.found.append(m.Prepacked(name, tensor.dtype, shape, strides))
            self.tensors[name] = memory
        return number


def _memory(tensor: Tensor) -> Tensor:
    """The bytes of a tensor as it lies in memory, with zeros between its elements and up to whole lines."""
    used = m.extent(tensor.shape, tensor.stride()) * tensor.itemsize
    memory = pristine.zeros(used + -used % ALIGNMENT, dtype=torch.uint8)
    memory[:used].view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return memory


def _known(program: Program, weights: list[Tensor]) -> dict[int, Tensor]:
    """The results of a program of constants that a file can have, by the numbers of their values."""
    with pristine.no_grad(), pristine.inference_mode(False):
        made = Executable(program).run(weights)
    taken = {tensor.untyped_storage().data_ptr() for tensor in weights}
    return {
        number: tensor
        for number, tensor in zip(program.outputs, made, strict=True)
        if program.values[number].kind in ("fresh", "aten") and _is_kept(tensor, taken)
    }


def _is_kept(tensor: Tensor, taken: set[int]) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    dtype = tensor.dtype
    return (
        (dtype.is_floating_point or dtype.is_complex or dtype in _BYTES)
        and tensor.numel() > 0
        and not (tensor.is_conj() or tensor.is_neg())
        and not m.overlaps(tensor.shape, tensor.stride())
        and tensor.untyped_storage().data_ptr() not in taken
    )
