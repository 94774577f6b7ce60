"""Which ATen operators a backend may be asked about."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lampwork.backends.core_aten import decomposition_of, is_core
from lampwork.graph.opinfo import op_info
from lampwork.records import record

# Lists of tensors are recorded one by one; sparse, quantized, nested and dual tensors are not recorded.
_OF_OTHER_TENSORS = (
    *(
        "_foreach_",
        "_test_",
        "_foobar",
        "_fw_primal",
        "_make_dual",
        "_make_per_",
        "_nested_",
        "_padded_dense",
    ),
    *("_jagged", "_sparse_", "sparse_", "_to_sparse", "_spdiags", "_coalesced", "_values", "_indices"),
    *(
        "values",
        "indices",
        "crow_",
        "ccol_",
        "row_",
        "col_indices",
        "copy_sparse",
        "resize",
        "_resize",
        "set",
    ),
    *("quantize", "dequantize", "_empty_affine", "_empty_per_channel"),
)


@record
class ReachableOperator:
    """An operator that graphs can contain where backends are asked.

    `core`: torch counts it among core ATen. `decomposes`: `decompose = "core"` takes calls of it apart that draw no
    random numbers, where torch's decomposition takes their arguments.
    """

    operator: OpOverload
    core: bool
    decomposes: bool

    @property
    def name(self) -> str:
        """ "aten.add.Tensor"."""
        return str(self.operator)


def reachable_operators(device: str = "cpu") -> tuple[ReachableOperator, ...]:
    """All ATen operators that a backend may be asked about, by name, where tensors are on `device`.

    These are those of the installed torch that have a kernel for the device, compute tensors and write to none. What
    writes is made functional; composites that no pass and no backend wants whole are recorded as what they are
    composed of; what gives Python numbers, or sizes that depend on data, ends a graph. `operator.getitem` takes the
    results of operators of several. Operators of other libraries arrive as the program calls them.

    Loads torch's decompositions.
    """
    key = torch.device(device).type.upper()
    found: list[ReachableOperator] = []
    for name in torch._C._dispatch_get_all_op_names():  # pyright: ignore
        namespace, _, path = str(name).partition("::")
        operator = _overload(path) if namespace == "aten" else None
        if operator is not None and _is_recorded(operator, key):
            decomposes = decomposition_of(operator) is not None
            found.append(ReachableOperator(operator, is_core(operator), decomposes))
    return tuple(sorted(found, key=lambda each: each.name))


def _overload(path: str) -> OpOverload | None:
    packet, _, overload = path.partition(".")
    found: Any = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return found if isinstance(found, OpOverload) else None


def _is_recorded(operator: OpOverload, key: str) -> bool:
    returns = [str(each.type) for each in operator._schema.returns]
    return (
        op_info(operator).kind in ("pure", "view")
        and any("Tensor" in each for each in returns)
        and not operator._opname.startswith(_OF_OTHER_TENSORS)
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), key)  # pyright: ignore
    )
