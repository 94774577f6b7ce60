"""One pattern finds the attention, the activation or the norm of models that spell it in their own ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lampwork
from lampwork.graph.copying import copy_graph
from lampwork.patterns import constant, maybe, number, scaled, tensor, through
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import rule_of
from lampwork.rewriting.matching.match import Match, matches
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants

transformers = pytest.importorskip("transformers")
F = torch.nn.functional

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "attn_implementation": "eager",
}
GPT: dict[str, Any] = {
    "vocab_size": 100,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "attn_implementation": "eager",
    "bos_token_id": None,
    "eos_token_id": None,
}


def attention(q=tensor(rank=4), k=tensor(rank=4), v=tensor(rank=4), c=number(), mask=tensor(), bias=tensor()):
    scores = maybe(scaled, q @ k.transpose(-2, -1), c)
    scores = maybe(torch.add, maybe(torch.add, scores, bias), mask)
    return through(F.softmax(scores, dim=-1)) @ v


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def rms_norm(x=tensor(), w=constant(shape=("d",)), eps=number()):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps))


def found(pattern: Callable[..., Any], name: str, config: Any) -> list[Match]:
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        compiled = lampwork.compile(model)
        compiled(torch.randint(5, 90, (2, 8)))
    graph = copy_graph(compiled.stages.aten)
    for step in (SplitConstants(), Canonicalize(), RemoveNoops(), CommonSubexpressions()):
        step.run(graph, PassContext())
    terms = rule_of(pattern, lambda: None, name="probe").pattern
    first = (next(iter(matches(terms, n)), None) for n in graph.nodes if n.op == "call_function")
    return [match for match in first if match is not None]


def test_bert() -> None:
    layers = found(attention, "BertModel", transformers.BertConfig(**SMALL))
    assert len(layers) == 2 and not layers[0].has("mask")
    assert layers[0]["c"] == pytest.approx(1 / math.sqrt(8))


def test_gpt2() -> None:
    config = transformers.GPT2Config(**GPT)
    layers = found(attention, "GPT2Model", config)
    assert len(layers) == 2 and layers[0]["bias"] is not layers[0]["mask"]
    assert layers[0]["c"] == pytest.approx(1 / math.sqrt(8))
    assert len(found(gelu_new, "GPT2Model", config)) == 2


def test_llama() -> None:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    assert len(found(attention, "LlamaModel", config)) == 2
    norms = found(rms_norm, "LlamaModel", config)
    assert len(norms) == 5 and all(m.size("d") == 32 and m["eps"] == 1e-6 for m in norms)
