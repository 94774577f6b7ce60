"""The weights of a `.lamp` file: those of the model under the names of its state dict, then what its entries read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork import pristine
from lampwork.artifacts import manifest as m
from lampwork.errors import ExportError
from lampwork.exports.pieces import Piece


@dataclass(slots=True)
class Weights:
    """`tensors`: by the names that they have in the file; tied weights are one there."""

    found: list[m.Weight] = field(default_factory=list[m.Weight])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    _all: list[Tensor] = field(default_factory=list[Tensor])
    _by_id: dict[int, int] = field(default_factory=dict[int, int])
    _by_memory: dict[Any, str] = field(default_factory=dict[Any, str])

    @staticmethod
    def of_model(root: nn.Module | None) -> Weights:
        """
        Raises:
            ExportError: a weight is one that no file can have.
        """
        made = Weights()
        if root is None:
            return made
        saved = frozenset(root.state_dict(keep_vars=True))
        for kind, named in (
            ("parameter", root.named_parameters(remove_duplicate=False)),
            ("buffer", root.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in named:
                made._add(name, tensor, cast(m.WeightKind, kind), name in saved)
        return made

    def numbers(self, piece: Piece) -> tuple[int, ...]:
        """The number of each weight of a piece; those that are new are added.

        Raises:
            ExportError: one is such as no file can have.
        """
        found: list[int] = []
        for name, tensor in zip(piece.weights, piece.tensors, strict=True):
            number = self._by_id.get(id(tensor))
            if number is None:
                number = self._add(self._free(name), tensor, "constant", False)
            found.append(number)
        return tuple(found)

    def check_apart(self) -> None:
        """In the file each weight has memory of its own, but for those that are one: what is loaded into one, or
        written to it, would not be seen in another that lies in it.

        Raises:
            ExportError: two weights share some of their memory.
        """
        spans = sorted(
            (
                (tensor.data_ptr(), tensor.data_ptr() + _bytes(tensor), number)
                for number, tensor in enumerate(self._all)
                if tensor.numel()
            )
        )
        open_: list[tuple[int, int]] = []
        for begin, end, number in spans:
            open_ = [each for each in open_ if each[0] > begin]
            for _, other in open_:
                one, two = sorted((number, other))
                weight, behind = self.found[one], self.found[two]
                if (
                    weight.tensor != behind.tensor
                    and not weight.kind == behind.kind == "constant"
                    and _share(self._all[one], self._all[two])
                ):
                    raise ExportError(
                        f"{behind.name} lies in the memory of {weight.name}, and a file has them apart: what is loaded "
                        "into one would not be seen in the other",
                        fix=f"compute it from {weight.name} in forward, or make it a clone()",
                    )
            open_.append((end, number))

    def _free(self, name: str) -> str:
        """A name that is no other's, and neither on the way to another nor behind one."""
        known = {weight.name for weight in self.found}
        inner = {each[:end] for each in known for end in range(len(each)) if each[end] == "."}
        made, number = name, 1
        while made in known or made in inner or any(made.startswith(f"{each}.") for each in known):
            made, number = f"{name.replace('.', '_')}_{number}", number + 1
        return made

    def _add(self, name: str, tensor: Tensor, kind: m.WeightKind, persistent: bool) -> int:
        _check(name, tensor)
        memory = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        held = self._by_memory.setdefault(memory, name) if tensor.numel() else name
        if held == name:
            self.tensors[name] = tensor
        number = len(self.found)
        self.found.append(
            m.Weight(name, held, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), kind, persistent)
        )
        self._all.append(tensor)
        self._by_id.setdefault(id(tensor), number)
        return number


def _check(name: str, tensor: Tensor) -> None:
    if not m.is_weight_name(name):
        raise ExportError(f"no file can have a weight of the name {name!r}", fix="rename it")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise ExportError(
            f"{name} is on {tensor.device} ({tensor.layout}); artifacts are of models on the CPU, of dense tensors",
            fix="model.cpu() before the export",
        )
    if not m.is_layout(tensor.shape, tensor.stride()):
        raise ExportError(
            f"{name} lies in memory with the strides {tensor.stride()}, as no file can have it",
            fix="make it contiguous() before the export",
        )


def _bytes(tensor: Tensor) -> int:
    """From its first element to the end of its last."""
    return m.extent(tensor.shape, tensor.stride()) * tensor.itemsize


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have an element in one place."""
    first = min(one.data_ptr(), other.data_ptr())
    end = max(one.data_ptr() + _bytes(one), other.data_ptr() + _bytes(other))
    taken = pristine.zeros(end - first, dtype=torch.bool)
    places: list[Tensor] = []
    for tensor in (one, other):
        size = tensor.itemsize
        shape = (n if stride else 1 for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        strides = (*(stride * size for stride in tensor.stride()), 1)
        places.append(taken.as_strided((*shape, size), strides, tensor.data_ptr() - first))
    places[0].fill_(True)
    return bool(places[1].any())
