"""Whether a CUDA device draws what is said here that it draws: asked once for each family of operators and dtype.

torch's kernels may change from version to version, and with them which element has which number. So before a family is
used for the first time in a process, some tensors are drawn by eager, from a generator that nobody else has, and by the
rules. Where an element or the generator's offset differs, the family is left to ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import torch

from lampwork import logs, pristine
from lampwork.graph.card_random import BLOCK, VECTOR_BYTES, Card, card_of
from lampwork.graph.recorded import call_specs
from lampwork.locks import new_lock

aten = torch.ops.aten

Propose = Callable[..., Any]
"""`canonical_on_cards.proposed`."""

_SEED = 0x9E37_79B9_7F4A_7C15

_CALLS: Mapping[str, tuple[Any, tuple[Any, ...]]] = MappingProxyType(
    {
        "dropout": (aten.dropout.default, (0.3, True)),
        "bernoulli": (aten.bernoulli.p, (0.3,)),
        "uniform": (aten.uniform.default, (0.0, 1.0)),
        "randint": (getattr(aten.random, "from"), (3, 96)),
    }
)
"""Family → an operator of it, and what follows its first argument."""

_found: dict[tuple[int, str, torch.dtype], bool] = {}
_lock = new_lock()


def agrees(index: int, family: str, dtype: torch.dtype, propose: Propose) -> bool:
    """Whether what is proposed for a family is what the device `index` draws. False while its stream is being recorded,
    as nothing can be tried then."""
    key = index, family, dtype
    with _lock:
        found = _found.get(key)
        if found is None:
            if not torch.ops.lampwork.has_philox_state() or _is_recording():
                return False
            found = _found[key] = _tried(index, family, dtype, propose)
    return found


def _is_recording() -> bool:
    return bool(cast(Any, torch)._C._cuda_isCurrentStreamCapturing())


def _tried(index: int, family: str, dtype: torch.dtype, propose: Propose) -> bool:
    device, card = torch.device("cuda", index), card_of(index)
    with torch._C._DisableTorchDispatch(), pristine.no_grad():  # pyright: ignore
        generator = torch._C.Generator(device)
        generator.manual_seed(_SEED)
        agreed = all(same(card, device, generator, family, dtype, count, propose) for count in counts(card))
    if not agreed and logs.enabled("graph"):
        logs.emit("graph", f"{family} of {dtype} is left to ATen: {device} draws other numbers")
    return agreed


def counts(card: Card) -> tuple[int, ...]:
    """Sizes for each way of drawing, so that threads take several turns, and some of them one less than others."""
    full = card.processors * (card.threads // BLOCK) * BLOCK
    return 3, 1000, 5 * full + 1, 2 * full + 6, 8 * full + 24


def same(
    card: Card,
    device: torch.device,
    generator: Any,
    family: str,
    dtype: torch.dtype,
    count: int,
    propose: Propose,
    draw: Callable[..., Any] | None = None,
) -> bool:
    """Whether so many elements are drawn alike, and the generator moves on alike. draw: in place of eager's."""
    op, more = _CALLS[family]
    x = pristine.ones(count, dtype=dtype, device=device)
    (spec,) = call_specs([x])
    before = generator.get_offset()
    drawing = propose(op, (x, *more), {}, spec, card, lambda _: x.data_ptr() % VECTOR_BYTES)
    if drawing is None:
        return False
    seed = generator.initial_seed()
    state = pristine.tensor([seed - 2**64 if seed >= 2**63 else seed, before], device=device)
    last, args, kwargs = drawing.finish(drawing.words(state))
    theirs = (draw or _drawn)(family, op, x, more, generator)
    moved = generator.get_offset() - before == drawing.stream.increment
    return moved and pristine.equal(last(*args, **kwargs), theirs)


def _drawn(family: str, op: Any, x: Any, more: tuple[Any, ...], generator: Any) -> Any:
    if family == "dropout":
        # The same kernel, of the generator that it is given.
        return aten._fused_dropout.default(x, 1 - more[0], generator=generator)[0]
    return op(x, *more, generator=generator)
