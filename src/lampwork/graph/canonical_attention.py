"""torch.nn's fused inference operators for attention, and attention's masks, recorded as what they stand for.

Eager uses the fused operators as a fast path; whole, they would hide their products from every rewrite and kernel of
ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lampwork.errors import UnsupportedOpError
from lampwork.graph.compiled_masks import COMPILED_ONLY, is_for_compiling
from lampwork.graph.shapes_common import ShapeError
from lampwork.standard import math

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

aten = torch.ops.aten


def _given(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call gives to the parameters of the operator's schema, defaults included."""
    parameters = op._schema.arguments
    defaults = {parameter.name: parameter.default_value for parameter in parameters}
    return defaults | dict(zip(defaults, args, strict=False)) | kwargs


def _attention(
    q: Any, k: Any, v: Any, width: int, heads: int, weight: Any, bias: Any, out_weight: Any, out_bias: Any
) -> tuple[Any, Any, Any, Any]:
    """Projected and split into [batch, heads, length, size]: query, key, value; and the closing projection.

    Raises:
        ShapeError: the fused operators refuse these shapes.
    """
    if any(x.dim() != 3 for x in (q, k, v)):
        raise ShapeError("fused attention takes [batch, length, width]")
    batch = q.shape[0]
    if q.shape[2] != width or not q.shape == k.shape == v.shape or width % heads != 0:
        raise ShapeError(f"fused attention of width {width} with {heads} heads takes other shapes")
    if tuple(weight.shape) != (3 * width, width) or tuple(bias.shape) != (3 * width,):
        raise ShapeError(f"fused attention of width {width} takes another projection")
    if q is k and k is v:
        parts = aten.linear.default(q, weight, bias).chunk(3, -1)
    else:
        rows, offsets = weight.chunk(3), bias.chunk(3)
        parts = [aten.linear.default(x, w, b) for x, w, b in zip((q, k, v), rows, offsets, strict=True)]
    split = [x.view(batch, x.shape[1], heads, width // heads).transpose(1, 2) for x in parts]

    def project(x: Any) -> Any:
        return aten.linear.default(x.transpose(1, 2).reshape(batch, -1, width), out_weight, out_bias)

    return split[0], split[1], split[2], project


def attention(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: scaled_dot_product_attention(q, k, v, mask of bool)

    after:  scaled_dot_product_attention(q, k, v, where(mask, 0, -inf)), as eager computes it: what is added to a nan or
            an infinity leaves nan. A mask of bool in a graph selects, and comes from masked_fill and where only.
    """
    given = _given(op, args, kwargs)
    if rec.counted and given["dropout_p"] and given["query"].device.type == "cpu":
        with rec.again():
            return _with_dropout(**given)
    mask = given["attn_mask"]
    if mask is None or mask.dtype is not torch.bool:
        return rec.record(op, args, kwargs)
    with rec.again():
        added = aten.where.Scalar(mask, 0.0, -math.inf)
        result = op(**(given | {"attn_mask": added.to(given["query"].dtype)}))
    if is_for_compiling(added.node.args[0]):
        result.node.meta[COMPILED_ONLY] = True
    return result


_LENGTHS = (4, 5)
"""The places of the lengths of queries and keys among the results of attention's kernels that give them."""


def attention_with_lengths(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The flash kernel, or cuDNN's: of their results, tensors otherwise, two are numbers, known as sizes are."""
    given = _given(op, args, kwargs)
    if given["dropout_p"]:
        raise UnsupportedOpError(f"{op} with dropout")
    results = list(rec.record(op, args, kwargs))
    for place, tensor in zip(_LENGTHS, (given["query"], given["key"]), strict=True):
        results[place] = tensor.shape[2]
    return tuple(results)


def _with_dropout(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, **options: Any) -> Any:
    """Eager's own composition, whose dropout is recorded as any other."""
    math_attention = aten._scaled_dot_product_attention_math.default
    composed = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore
    return math_attention._op_dk(composed, query, key, value, attn_mask, dropout_p, **options)[0]


def native_multi_head_attention(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: out, weights = _native_multi_head_attention(q, k, v, ...)

    after:  linear, chunk, view, transpose, scaled_dot_product_attention (or softmax, if weights are wanted or there is
            a mask: a row without any place to look at is NaN in the fused operator, and 0 in the attention), linear
    """
    given = _given(op, args, kwargs)
    with rec.again():
        q, k, v, project = _attention(
            given["query"],
            given["key"],
            given["value"],
            given["embed_dim"],
            given["num_head"],
            given["qkv_weight"],
            given["qkv_bias"],
            given["proj_weight"],
            given["proj_bias"],
        )
        mask = given["mask"]
        if not given["need_weights"] and mask is None:
            return project(aten.scaled_dot_product_attention.default(q, k, v)), None
        scores = (q / q.shape[-1] ** 0.5) @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(_mask_of_scores(mask, given["mask_type"]), float("-inf"))
        weights = scores.softmax(-1)
        if not given["need_weights"]:
            return project(weights @ v), None
        shown = weights.mean(1) if given["average_attn_weights"] else weights
        return project(weights @ v), shown


def _mask_of_scores(mask: Any, kind: int | None) -> Any:
    """A mask of [length, length] (kind 0), [batch, length] (1) or [batch, heads, length, length] (2) as one that
    broadcasts to the last. Whatever is not zero is masked out."""
    mask = mask.to(torch.bool)
    if kind == 1:
        return mask[:, None, None, :]
    return mask


def transformer_encoder_layer(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: _transformer_encoder_layer_fwd(x, ...)

    after:  attention, residual, layer_norm, linear, gelu or relu, linear, residual, layer_norm
    """
    given = _given(op, args, kwargs)
    if given["mask"] is not None:
        return rec.record(op, args, kwargs)
    x = given["src"]
    width, eps, first = given["embed_dim"], given["eps"], given["norm_first"]

    def norm(x: Any, number: int) -> Any:
        weight, bias = given[f"norm_weight_{number}"], given[f"norm_bias_{number}"]
        return aten.layer_norm.default(x, [width], weight, bias, eps)

    with rec.again():
        y = norm(x, 1) if first else x
        q, k, v, project = _attention(
            y,
            y,
            y,
            width,
            given["num_heads"],
            given["qkv_weight"],
            given["qkv_bias"],
            given["proj_weight"],
            given["proj_bias"],
        )
        x = x + project(aten.scaled_dot_product_attention.default(q, k, v))
        x = x if first else norm(x, 1)
        y = norm(x, 2) if first else x
        y = aten.linear.default(y, given["ffn_weight_1"], given["ffn_bias_1"])
        # The products of CUDA's library that end in an activation know this form only.
        form = "tanh" if y.device.type == "cuda" else "none"
        y = aten.gelu.default(y, approximate=form) if given["use_gelu"] else aten.relu.default(y)
        x = x + aten.linear.default(y, given["ffn_weight_2"], given["ffn_bias_2"])
        return x if first else norm(x, 2)
