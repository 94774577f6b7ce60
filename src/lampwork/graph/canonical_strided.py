"""as_strided looks at memory, not at the tensor: it is a view of the whole storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lampwork.errors import UnsupportedOpError
from lampwork.graph.functionalize import memory_span, offset_of
from lampwork.graph.tracetensor import TraceTensor, make_trace_tensor

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

aten = torch.ops.aten

_OTHER_ELEMENTS = frozenset(
    {
        aten._conj_physical.default,
        aten.neg.default,
        aten.view.dtype,
        aten.view_as_real.default,
        aten.view_as_complex.default,
    }
)
"""Views whose elements are not those of the memory."""


def as_strided(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TraceTensor:
    """before: as_strided(slice(x, 0, 2), [2], [1])    after: as_strided(x, [2], [1], 2)"""
    tensor = args[0] if isinstance(args[0], TraceTensor) else rec.lift(args[0])
    rest = args[1:]
    base = tensor.base
    if any(step.op in _OTHER_ELEMENTS for step in tensor.chain):
        raise UnsupportedOpError("as_strided of conjugates, negatives, or memory seen as another dtype")
    offset = rest[2] if len(rest) > 2 else kwargs.get("storage_offset")
    if base.source == "input" and offset is not None:
        raise UnsupportedOpError(
            "as_strided of an input from a place of its storage, which may lie before it"
        )
    _check_span(tensor, rest, kwargs)
    detached = [step.op is aten.detach.default for step in tensor.chain]
    if all(detached) and not (base.source == "input" and base.written):
        return rec.view(tensor, op, rest, kwargs)
    whole = make_trace_tensor(base.spec, base.node, base, ())
    if any(detached) or whole.requires_grad is not tensor.requires_grad:
        raise UnsupportedOpError("as_strided of a view that autograd tells from its memory")
    if base.source == "input" and not base.written and offset_of(base.spec, tensor.chain) == 0:
        # The view begins where the input does.
        return rec.view(whole, op, rest, kwargs)
    if base.source != "fresh":
        raise UnsupportedOpError("as_strided of a view of an input, or of a written input")
    if offset is None:
        offset = offset_of(base.spec, tensor.chain)
    return rec.view(whole, op, (*rest[:2], offset), {})


def _check_span(tensor: TraceTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Only the memory that the recorded tensor spans is known to be there: the storage may be longer, or not."""
    size, stride, *more = (*args, *(kwargs[name] for name in ("size", "stride") if name in kwargs))
    given = more[0] if more else kwargs.get("storage_offset")
    base = tensor.base
    try:
        start = offset_of(base.spec, tensor.chain) if given is None else given
    except UnsupportedOpError:
        raise UnsupportedOpError("as_strided of a view made by as_strided") from None
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if all(n != 0 for n in size) and (start < 0 or start + last >= memory_span(base.spec)):
        raise UnsupportedOpError("as_strided reaches beyond the tensor, where its storage may end")
