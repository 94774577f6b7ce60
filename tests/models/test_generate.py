"""`generate()` of compiled decoders: the same tokens as eager's, one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import lampwork
from lampwork.bench.architectures import ARCHITECTURES, build, inputs_of

pytest.importorskip("transformers")

GENERATING = [name for name, architecture in ARCHITECTURES.items() if architecture.generates]
GREEDY: dict[str, Any] = dict(do_sample=False, max_new_tokens=4, min_new_tokens=4, pad_token_id=0)
WITHOUT = ("mask", "decoder tokens")  # generate() makes these itself


@pytest.mark.parametrize("name", GENERATING)
def test_generate(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, twin = build(architecture), build(architecture)
    prompt = inputs_of(architecture, WITHOUT)
    want = twin.generate(**copy.deepcopy(prompt), **GREEDY)
    model.forward = lampwork.compile(model.forward)
    lampwork.reset_stats()
    got = model.generate(**copy.deepcopy(prompt), **GREEDY)
    assert torch.equal(got, want)
    stats = lampwork.stats()
    assert stats["compiled_calls"] + stats["partial_calls"] == GREEDY["max_new_tokens"], stats
    assert stats["eager_calls"] == 0, stats


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_generate_of_a_compiled_module(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = build(architecture)
    prompt = inputs_of(architecture, WITHOUT)
    want = model.generate(**copy.deepcopy(prompt), **GREEDY)
    got = lampwork.compile(model).generate(**copy.deepcopy(prompt), **GREEDY)
    assert torch.equal(got, want)


def test_decoding_with_a_cache() -> None:
    model = build(ARCHITECTURES["gpt2"])
    compiled = lampwork.compile(model)
    tokens = torch.randint(3, 99, (1, 5))
    with torch.no_grad():
        want = model(tokens).logits
        first = compiled(tokens[:, :4], use_cache=True)
        second = compiled(tokens[:, 4:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(first.logits, want[:, :4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second.logits, want[:, 4:], rtol=1e-4, atol=1e-5)
