"""The masks of an attention that is written out, as scaled_dot_product_attention takes them, and what to do with rows
in which every place is closed."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.graph.symbols import same_size, same_sizes
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.library.ranges import literal_value, spec, value_range
from lampwork.rewriting.library.scores import Addend, Choice, Scores
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@record
class Mask:
    """`node`: None, or a mask that is added (floating point) or says which places are open (bool). `causal`: row i
    sees the first i + 1 columns. `rows`: None, or a tensor [..., rows, 1] that is false where no place of a row is
    open; such rows are to be nan, or (if `mean`) the mean of all values."""

    node: fx.Node | None = None
    causal: bool = False
    rows: fx.Node | None = None
    mean: bool = False


def closes(value: float, dtype: torch.dtype) -> bool:
    """Whether scores of `value` get a weight of 0 beside any other: it is so far below all scores that its exponential
    vanishes. Scores are taken not to be of that size themselves."""
    return value <= (-1e9 if dtype is not torch.float16 else torch.finfo(dtype).min / 2)


def supported(scores: Scores, batch: tuple[int, ...], dtype: torch.dtype) -> Verdict:
    """Whether the masks of `scores` can be one mask of an attention over `batch`."""
    values = {choice.value for choice in scores.choices}
    if len(values) > 1:
        return No("places are closed with different numbers")
    if values and not closes(min(values), dtype):
        return No(f"places are closed with {min(values)}, which is no mask in {dtype}")
    if not all(math.isfinite(addend.factor) for addend in scores.addends):
        return No("a mask is scaled by what is not finite")
    for part in (*scores.factors, *scores.addends, *scores.choices):
        shape = placed_shape(part, batch)
        if isinstance(shape, No):
            return shape
    return Yes()


def build_mask(
    editor: Editor, scores: Scores, batch: tuple[int, ...], shape: tuple[int, int], skips: bool
) -> Mask:
    """The mask of `scores` for operands with the batch dimensions `batch`. `shape`: (rows, columns). `skips`: whether
    causal attention leaves out later columns whatever is in them; else they are closed by adding -inf."""
    if scores.choices:
        return _closed(editor, scores.choices, batch, shape, skips)
    if scores.addends:
        return _added(editor, scores.addends, batch)
    return Mask()


# --- places that are closed by a choice -------------------------------------------------------------------------------


def _closed(
    editor: Editor, choices: tuple[Choice, ...], batch: tuple[int, ...], shape: tuple[int, int], skips: bool
) -> Mask:
    opened: fx.Node | None = None
    for choice in choices:
        node = choice.node if choice.open else _negated(editor, choice.node)
        part = placed(editor, node, choice, batch)
        opened = part if opened is None else editor.call(aten.bitwise_and.Tensor, opened, part)
    if opened is None:
        return Mask()
    known = literal_value(opened)
    if skips and known is not None and _is_causal(known, shape):
        return Mask(causal=True)
    if known is not None and bool(known.any(-1).all()):
        return Mask(opened)
    rows = editor.call(aten.any.dim, opened, len(spec(opened).shape) - 1, True)
    return Mask(opened, rows=rows, mean=math.isfinite(choices[0].value))


def _negated(editor: Editor, mask: fx.Node) -> fx.Node:
    """The places that are open where `mask` says which are closed, in few steps."""
    if mask.op == "call_function":
        name, args = schema.packet_name(mask.target), schema.bound_args(mask)
        if name in ("logical_not", "bitwise_not") and spec(args[0]).dtype is torch.bool:
            return args[0]
        if name == "eq" and not isinstance(args[1], fx.Node):
            return editor.call(aten.ne.Scalar, args[0], args[1])
    return editor.call(aten.logical_not.default, mask)


def is_causal(choices: tuple[Choice, ...], shape: tuple[int, int]) -> bool:
    """Whether the places that `choices` leave open are those on and below the diagonal of a square."""
    known = [literal_value(choice.node) for choice in choices]
    return len(known) == 1 and known[0] is not None and _is_causal(known[0] == choices[0].open, shape)


def _is_causal(opened: Tensor, shape: tuple[int, int]) -> bool:
    """Whether a mask is true on and below the diagonal of a square, for all of the batch."""
    rows, columns = shape
    if type(rows) is not int or rows != columns or opened.shape[-2:] != (rows, columns):
        return False
    return bool((opened == pristine.ones(rows, rows, dtype=torch.bool).tril()).all())


# --- numbers that are added -------------------------------------------------------------------------------------------


def _added(editor: Editor, addends: tuple[Addend, ...], batch: tuple[int, ...]) -> Mask:
    """Never causal attention, which may leave out columns: -inf that is added to nan leaves nan."""
    found: list[fx.Node] = []
    for addend in addends:
        node = placed(editor, addend.node, addend, batch)
        if addend.factor == -1.0:
            node = editor.call(aten.neg.default, node)
        elif addend.factor != 1.0:
            node = editor.call(aten.mul.Tensor, node, addend.factor)
        found.append(node)
    known = literal_value(found[0]) if len(found) == 1 else None
    if known is not None and not bool((known == -math.inf).all(-1).any()):
        return Mask(found[0])
    return _summed(editor, found)


def _summed(editor: Editor, masks: list[fx.Node]) -> Mask:
    """One mask of several; a row that is all -inf becomes nan, as softmax makes of it."""
    unknown = [i for i, node in enumerate(masks) if value_range(node)[0] == -math.inf]
    if len(unknown) == 1:
        masks[unknown[0]] = _poisoned(editor, masks[unknown[0]])
    total = masks[0]
    for node in masks[1:]:
        total = editor.call(aten.add.Tensor, total, node)
    return Mask(_poisoned(editor, total) if len(unknown) > 1 else total)


def _poisoned(editor: Editor, mask: fx.Node) -> fx.Node:
    last = len(spec(mask).shape) - 1
    highest = editor.call(aten.amax.default, mask, [last], True)
    closed = editor.call(aten.eq.Scalar, highest, -math.inf)
    return editor.call(aten.where.ScalarSelf, closed, math.nan, mask)


# --- shapes -----------------------------------------------------------------------------------------------------------


def placed_shape(part: Addend | Choice, target: tuple[int, ...]) -> tuple[int, ...] | No:
    """The shape in which a mask, which meets scores of the batch dimensions `part.batch`, meets those of `target`.

    It has two dimensions at least, and all of them where there are some of the batch: kernels take nothing else.
    """
    shape = spec(part.node).shape
    shape = (*(1 for _ in range(2 - len(shape))), *shape)
    lead, rest = shape[:-2], shape[-2:]
    if not lead:
        return rest
    lead = (*(1 for _ in range(len(part.batch) - len(lead))), *lead)
    if all(same_size(size, 1) for size in lead):
        return (*(1 for _ in target), *rest)
    if same_sizes(part.batch, target):
        return (*lead, *rest)
    groups = _split(part.batch, target)
    if groups is None:
        return No(f"{part.node.name} is shared by some of the batch")
    placed: list[int] = []
    for size, group in zip(lead, groups, strict=True):
        placed.extend((1,) * len(group) if same_size(size, 1) else group)
    return (*placed, *rest)


def _split(batch: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[int, ...]] | None:
    """For each dimension of `batch` those of `target` that it is split into."""
    groups: list[tuple[int, ...]] = []
    end = len(target)
    for number, size in reversed(list(enumerate(batch))):
        start = end - 1 if number else 0
        while start > number and not same_size(math.prod(target[start:end]), size):
            start -= 1
        if start < 0 or not same_size(math.prod(target[start:end]), size):
            return None
        groups.append(target[start:end])
        end = start
    return groups[::-1]


def placed(editor: Editor, node: fx.Node, part: Addend | Choice, target: tuple[int, ...]) -> fx.Node:
    """`node`, of the shape of `part`, in the shape `placed_shape(part, target)`."""
    shape = placed_shape(part, target)
    assert not isinstance(shape, No)
    return editor.reshape(node, shape)
