"""The table from ATen operators to the rules that write them in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.records import record

Rule = Callable[..., Any]
"""(builder, call, *arguments) -> the ONNX name of the result, or a tuple of names."""


@record
class Rules:
    """Rules of one family of operators."""

    table: dict[OpOverload, Rule] = field(default_factory=dict[OpOverload, Rule])

    def converts(self, *names: str) -> Callable[[Rule], Rule]:
        """Declare a rule for operators, written "add.Tensor" (aten), "relu" (the overload "default"), "ns::op"."""

        def declare(rule: Rule) -> Rule:
            for name in names:
                self.table[overload(name)] = rule
            return rule

        return declare


def overload(name: str) -> OpOverload:
    """The operator that `name` writes."""
    namespace, _, rest = name.rpartition("::")
    packet_name, _, which = rest.partition(".")
    packet: OpOverloadPacket = getattr(getattr(torch.ops, namespace or "aten"), packet_name)
    return getattr(packet, which or "default")
