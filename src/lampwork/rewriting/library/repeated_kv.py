"""Key and value heads of an attention that are repeated for the query heads that share them."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

from lampwork.graph.symbols import same_sizes
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.library.ranges import spec

aten = torch.ops.aten


@record
class RepeatedKV:
    """Heads that are `base`'s, each repeated `times` times."""

    base: fx.Node
    times: int


def repeated_kv(node: fx.Node) -> RepeatedKV | None:
    """What [batch, heads * n, length, size] repeats, as `repeat_kv` of transformers or repeat_interleave write it.

    before:  %u = unsqueeze(%x, 2), %e = expand(%u, [b, h, n, l, d]), %c = clone(%e), %y = view(%c, [b, h * n, l, d])
    after:   RepeatedKV(%x, n)
    """
    if node.op != "call_function" or len(spec(node).shape) != 4:
        return None
    if node.target is aten.repeat_interleave.self_int:
        x, times, dim, _ = schema.bound_args(node)
        same = isinstance(times, int) and dim is not None and dim % 4 == 1
        return RepeatedKV(x, times) if same and len(spec(x).shape) == 4 else None
    if node.target is not aten.view.default:
        return None
    repeated = cast(fx.Node, node.args[0])
    if repeated.target is aten.clone.default:
        repeated = cast(fx.Node, repeated.args[0])
    if repeated.target is not aten.expand.default:
        return None
    unsqueezed = cast(fx.Node, repeated.args[0])
    if unsqueezed.target is not aten.unsqueeze.default or unsqueezed.args[1] != 2:
        return None
    base = cast(fx.Node, unsqueezed.args[0])
    shape, whole = spec(base).shape, spec(repeated).shape
    times = whole[2]
    if type(times) is not int or len(shape) != 4:
        return None
    kept = same_sizes((*whole[:2], *whole[3:]), shape)
    merged = same_sizes(spec(node).shape, (shape[0], shape[1] * times, *shape[2:]))
    return RepeatedKV(base, times) if kept and merged else None


def repeat_kv(editor: Editor, node: fx.Node, times: int) -> fx.Node:
    """Each head of [batch, heads, rows, columns] `times` times."""
    batch, heads, *rest = spec(node).shape
    many = editor.call(aten.unsqueeze.default, node, 2)
    many = editor.call(aten.expand.default, many, [batch, heads, times, *rest])
    return editor.reshape(many, [batch, heads * times, *rest])
