"""Attention that is written out becomes scaled_dot_product_attention.

A row of scores without a single open place is where the two differ: written out it is nan (places closed with -inf) or
the mean of the values (closed with a finite number), fused it is 0. Such rows are given eager's answer by themselves,
unless the graph shows that there are none.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.graph.symbols import same_size, same_sizes
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.combinators.either import either
from lampwork.rewriting.language.combinators.through import through
from lampwork.rewriting.language.functions import F
from lampwork.rewriting.language.term import Leaf
from lampwork.rewriting.library.masks import Mask, build_mask, is_causal, placed, supported
from lampwork.rewriting.library.ranges import spec
from lampwork.rewriting.library.repeated_kv import RepeatedKV, repeat_kv, repeated_kv
from lampwork.rewriting.library.scores import Scores, read_scores, reshape_source
from lampwork.rewriting.matching.match import Match
from lampwork.rewriting.views import is_lossless
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)
_PRODUCTS = (aten.matmul.default, aten.bmm.default, aten.mm.default)


@record
class _Plan:
    """`batch`: the dimensions that query, key and value are brought to. `shared`: the heads of key and value that
    several heads of the query read, where they do."""

    scores: Scores
    value: fx.Node
    batch: tuple[int, ...]
    shape: tuple[int, int]
    shared: tuple[RepeatedKV, RepeatedKV] | None


class WrittenOutAttention(Rewrite):
    """Query and key may be scaled, before or after the product, the scores masked by sums, masked_fill or where, the
    softmax computed in float32. Heads may be a dimension, folded into the batch, or come from einsum.

    before:  %t = permute(%k, [0, 1, 3, 2]), %p = matmul(%q, %t), %s = div(%p, 8.0), %m = add(%s, %mask),
             %w = softmax(%m, 3), %y = matmul(%w, %v)
    after:   %y = scaled_dot_product_attention(%q, %k, %v, %mask)
    """

    def pattern(self, x: Tensor, dim: Any, dtype: Any, value: Tensor):
        weights = aten.softmax.int(x, dim, dtype)
        return through(either(aten._to_copy.default(weights, ...), weights)) @ value

    def check(self, match: Match) -> Verdict:
        plan = _plan(match)
        return plan if isinstance(plan, No) else Yes()

    def replacement(self, match: Match, editor: Editor) -> fx.Node:
        plan = _plan(match)
        assert isinstance(plan, _Plan), plan
        return _build(plan, match.root, editor)


class AttentionOfRepeatedHeads(Rewrite):
    """Key and value heads are read by several query heads, and not copied for each.

    before:  %k2 = repeat_interleave(%k, 4, 1), %v2 = repeat_interleave(%v, 4, 1),
             %y = scaled_dot_product_attention(%q, %k2, %v2)
    after:   %y = scaled_dot_product_attention(%q, %k, %v, enable_gqa=True)
    """

    def pattern(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: Any, causal: Any, scale: Any
    ):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale)

    def check(self, match: Match) -> Verdict:
        key, value = repeated_kv(match["key"]), repeated_kv(match["value"])
        shape = match.spec("query").shape
        if key is None or value is None or key.times != value.times or len(shape) != 4:
            return No("key and value heads are not repeated alike")
        if not same_sizes(shape[:2], match.spec("key").shape[:2]):
            return No("key or value are shared by some of the batch")
        dtype = match.spec("query").dtype
        if dtype not in (torch.float32, torch.float64) or match["dropout"] != 0:
            return No(f"heads of {dtype} are repeated for the fused kernel")
        return Yes()

    def replacement(self, match: Match, query: Tensor, mask: Any, causal: bool, scale: Any):
        key, value = (Leaf(cast(RepeatedKV, repeated_kv(match[name])).base) for name in ("key", "value"))
        return F.scaled_dot_product_attention(
            query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=True
        )


def _plan(match: Match) -> _Plan | No:
    root, x, value = match.root, cast(fx.Node, match["x"]), cast(fx.Node, match["value"])
    if root.target not in _PRODUCTS or root.args[1] is not value:
        return No(f"{root.name} is no product of weights and values")
    rank = len(spec(x).shape)
    if rank < 2 or match["dim"] % rank != rank - 1:
        return No("the softmax is not over the last dimension")
    passed = _passed(root, x)
    if isinstance(passed, No):
        return passed
    scores = read_scores(x)
    if isinstance(scores, No):
        return scores
    if not math.isfinite(scores.scale):
        return No(f"the scores are scaled by {scores.scale}")
    shape = cast("tuple[int, int]", spec(x).shape[-2:])
    weights = cast(fx.Node, root.args[0])
    if len(spec(weights).shape) < 2 or not same_sizes(spec(weights).shape[-2:], shape):
        return No(f"{weights.name} splits or merges rows of weights")
    verdict = _alone({root, *passed, *scores.inside}, root)
    if verdict:
        verdict = _dtypes(scores, spec(value).dtype, spec(x).dtype)
    if isinstance(verdict, No):
        return verdict
    batch = _batch(root, scores, spec(x).shape[:-2])
    if isinstance(batch, No):
        return batch
    verdict = supported(scores, batch, spec(value).dtype)
    if isinstance(verdict, No):
        return verdict
    shared = _shared(root, scores, value, batch)
    if isinstance(shared, No):
        return shared
    plan = _Plan(scores, value, batch, shape, shared)
    skipped = _skips(plan) and is_causal(scores.choices, shape)
    if spec(value).dtype in _HALVES and scores.choices and not skipped:
        return No("the fused kernel adds its mask, so that nan in a closed place would spread")
    return plan


def _passed(root: fx.Node, x: fx.Node) -> tuple[fx.Node, ...] | No:
    """The nodes from the weights that `root` reads down to the softmax of `x`, which keep their order and values."""
    passed: list[fx.Node] = []
    node = cast(fx.Node, root.args[0])
    while True:
        node, between = reshape_source(node)
        passed += [*between, node]
        if not is_lossless(spec(root).dtype, spec(node).dtype):
            return No(f"{node.name} rounds the weights")
        if node.target is not aten._to_copy.default:
            break
        node = cast(fx.Node, node.args[0])
    if node.target is not aten.softmax.int or node.args[0] is not x:
        return No(f"{root.name} does not read the weights as the softmax gives them")
    return tuple(passed)


def _alone(inside: set[fx.Node], root: fx.Node) -> Verdict:
    """Yes if scores and weights are read by this attention only."""
    for node in inside - {root}:
        for user in node.users:
            if user not in inside:
                return No(f"{node.name} is also read by {user.name}")
    return Yes()


def _dtypes(scores: Scores, value: torch.dtype, softmax: torch.dtype) -> Verdict:
    dtypes = {spec(scores.query).dtype, spec(scores.key).dtype, softmax, value}
    if len(dtypes) > 1:
        return No(f"query, key, scores and value are of several dtypes: {sorted(map(str, dtypes))}")
    if value not in (torch.float32, torch.float64, *_HALVES):
        return No(f"attention of {value}")
    return Yes()


def _batch(root: fx.Node, scores: Scores, softmax: tuple[int, ...]) -> tuple[int, ...] | No:
    """The batch dimensions in which all masks can be expressed: the most finely split ones."""
    kinds = [tuple(spec(root).shape[:-2]), softmax, scores.product_batch]
    kinds += [part.batch for part in (*scores.factors, *scores.addends, *scores.choices)]
    finest = max(kinds, key=len)
    if any(len(kind) == len(finest) and not same_sizes(kind, finest) for kind in kinds):
        return No("the batch is split in several ways")
    return finest


def _shared(
    root: fx.Node, scores: Scores, value: fx.Node, batch: tuple[int, ...]
) -> tuple[RepeatedKV, RepeatedKV] | No | None:
    """The shared heads of key and value; No where the operands broadcast in another way."""
    query, key = spec(scores.query).shape[:-2], spec(scores.key).shape[:-2]
    if not same_sizes(query, scores.product_batch):
        return No("the query is shared by some of the batch")
    if len(batch) == 2 and same_sizes(query, batch) and not scores.turned:
        ours, theirs = _heads(scores.key, batch), _heads(value, batch)
        if ours and theirs and ours.times == theirs.times:
            return ours, theirs
    if not same_sizes(key, query) or not same_sizes(spec(value).shape[:-2], spec(root).shape[:-2]):
        return No("key or value are shared by some of the batch")
    return None


def _heads(node: fx.Node, batch: tuple[int, ...]) -> RepeatedKV | None:
    shape = spec(node).shape
    if len(shape) == 4 and same_size(shape[0], batch[0]) and same_size(shape[1], 1) and type(batch[1]) is int:
        return RepeatedKV(node, batch[1]) if batch[1] > 1 else None
    return repeated_kv(node)


# --- what stands in its place -----------------------------------------------------------------------------------------


def _build(plan: _Plan, root: fx.Node, editor: Editor) -> fx.Node:
    scores, batch, (rows, columns) = plan.scores, plan.batch, plan.shape
    query, key, value = scores.query, scores.key, plan.value
    mask = build_mask(editor, scores, batch, plan.shape, _skips(plan))
    if scores.turned:
        last = len(spec(key).shape) - 1
        key = editor.call(aten.permute.default, key, [*range(last - 1), last, last - 1])
    if plan.shared is not None:
        key, value = (heads.base for heads in plan.shared)
    else:
        key = editor.reshape(key, (*batch, columns, spec(key).shape[-1]))
        value = editor.reshape(value, (*batch, columns, spec(value).shape[-1]))
    query = editor.reshape(query, (*batch, rows, spec(query).shape[-1]))
    for factor in scores.factors:
        query = editor.call(aten.mul.Tensor, query, placed(editor, factor.node, factor, batch))
    scale = _scale(scores.scale, spec(query).shape[-1])
    target = aten.scaled_dot_product_attention.default
    values = (query, key, value, mask.node, 0.0, mask.causal, scale, plan.shared is not None)
    args, kwargs = schema.unbind(target, values)
    out = editor.call(target, *args, **kwargs)
    if mask.rows is not None:
        out = _closed_rows(editor, out, mask, mask.rows, value, plan.shared)
    return editor.reshape(out, spec(root).shape)


def _skips(plan: _Plan) -> bool:
    """Whether causal attention of these operands leaves out later columns: torch's fused kernel does, and takes four
    dimensions, of which the last is dense and as long for all."""
    if len(plan.batch) != 2 or plan.scores.turned:
        return False
    operands = [spec(node) for node in (plan.scores.query, plan.scores.key, plan.value)]
    return all(
        same_size(operand.shape[-1], operands[0].shape[-1]) and operand.strides[-1] == 1
        for operand in operands
    )


def _scale(scale: float, size: int) -> float | None:
    """None where it is what attention takes by itself."""
    usual = type(size) is int and size > 0 and math.isclose(scale, 1 / math.sqrt(size), rel_tol=1e-15)
    return None if usual else scale


def _closed_rows(
    editor: Editor,
    out: fx.Node,
    mask: Mask,
    rows: fx.Node,
    value: fx.Node,
    shared: tuple[RepeatedKV, RepeatedKV] | None,
) -> fx.Node:
    """`out` with eager's answer in rows without an open place."""
    if not mask.mean:
        return editor.call(aten.where.ScalarOther, rows, out, math.nan)
    mean = editor.call(aten.mean.dim, value, [len(spec(value).shape) - 2], True)
    if shared is not None:
        mean = repeat_kv(editor, mean, shared[1].times)
    return editor.call(aten.where.self, rows, out, mean)


def attention_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return (as_rule(WrittenOutAttention()), as_rule(AttentionOfRepeatedHeads()))
