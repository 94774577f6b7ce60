"""Masks of attention that a program makes only while it is compiled, and does without in eager.

Eager transformers looks at its tensors: where a mask would close nothing but what comes later, it makes none, and calls
attention with `is_causal=True`. That needs data, so in a program that is compiled it makes the mask always.
"""

from __future__ import annotations

import linecache
import os

import torch
from torch import fx

from lampwork.graph.origin import Origin
from lampwork.standard import functools

aten = torch.ops.aten

COMPILED_ONLY = "compiled_only"
"""In the meta of attention: `create_causal_mask` of transformers makes its mask, for a model of transformers that lets
it choose whether there is one. Part of `structural_hash`, as passes go by it."""

_LIBRARY = os.path.join(os.sep, "transformers", "masking_utils.py")
_MAKER = "create_causal_mask"
"""Not its siblings: of a sliding window that is as long as the text eager makes a mask too, which is causal."""

_MODELS = os.path.join(os.sep, "transformers", "models", "")
_CHOICES = ("allow_is_causal_skip", "or_mask_function", "and_mask_function", "block_sequence_ids")
"""Arguments with which a model has eager make a mask too, whatever it closes."""

_WRAPPERS = os.path.join(os.sep, "transformers", "utils", "deprecation.py")
"""Stand between a model and what it calls of the library."""

_VIEWS = frozenset(
    {
        aten.alias.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.unsqueeze.default,
        aten.view.default,
    }
)


def is_for_compiling(mask: fx.Node) -> bool:
    """Whether eager would have called attention without this mask of bool, if all it closes is what comes later."""
    while mask.target in _VIEWS and not _is_made_by_library(mask):
        mask = mask.all_input_nodes[0]
    return _is_made_by_library(mask)


def _is_made_by_library(node: fx.Node) -> bool:
    origin: Origin | None = node.meta.get("origin")
    stack = () if origin is None else origin.stack
    inside = len(stack)
    while inside and stack[inside - 1].file.endswith(_LIBRARY):
        inside -= 1
    if inside == len(stack) or stack[inside].function != _MAKER:
        return False
    callers = [frame.file for frame in stack[:inside] if not frame.file.endswith(_WRAPPERS)]
    return bool(callers) and _MODELS in callers[-1] and _names_no_choice(callers[-1])


@functools.lru_cache(256)
def _names_no_choice(file: str) -> bool:
    """Whether the code in a file can be read, and names none of the arguments that ask for a mask."""
    text = "".join(linecache.getlines(file))
    return bool(text) and not any(choice in text for choice in _CHOICES)
