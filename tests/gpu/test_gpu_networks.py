"""Networks on the GPU: right, and compiled in one region."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import transformers
from torch import nn

import gpu
import lampwork
from lampwork.bench.networks import BasicBlock, MobileNetV3, ResNet
from lampwork.bench.workloads.transformers import Output
from lampwork.bench.workloads.workload import keep_alive
from lampwork.testing.compare import difference, exact_result

gpu.require()

TINY = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96)


@functools.cache
def network(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A network on the device in eval mode, with inputs of batch 4."""
    torch.manual_seed(0)
    ids, image = torch.randint(0, 99, (4, 17)), torch.randn(4, 3, 64, 64)
    if name == "mlp":
        layers = (
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.LayerNorm(128),
            nn.Linear(128, 33),
            nn.GELU(),
            nn.Linear(33, 10),
        )
        made = nn.Sequential(*layers), (torch.randn(4, 64),)
    elif name == "resnet18":
        made = keep_alive(ResNet((2, 2, 2, 2), block=BasicBlock, classes=10)), (image,)
    elif name == "resnet50":
        made = keep_alive(ResNet(classes=10)), (image,)
    elif name == "mobilenet":
        made = keep_alive(MobileNetV3(classes=10)), (image,)
    elif name == "bert":
        model = transformers.BertModel(transformers.BertConfig(vocab_size=99, **TINY))
        made = Output(model, "last_hidden_state"), (ids,)
    elif name == "gpt2":
        config = transformers.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4, use_cache=False)
        made = Output(transformers.GPT2LMHeadModel(config), "logits"), (ids,)
    elif name == "llama":
        config = transformers.LlamaConfig(vocab_size=99, num_key_value_heads=2, use_cache=False, **TINY)
        made = Output(transformers.LlamaForCausalLM(config), "logits"), (ids,)
    elif name == "vit":
        config = transformers.ViTConfig(image_size=64, patch_size=8, **TINY)
        made = Output(transformers.ViTModel(config, add_pooling_layer=False), "last_hidden_state"), (image,)
    elif name == "lstm":
        made = nn.LSTM(24, 32, num_layers=2, batch_first=True), (torch.randn(4, 7, 24),)
    else:
        raise KeyError(name)
    return gpu.on_device(made[0].eval()), gpu.on_device(made[1])


NETWORKS = ("mlp", "resnet18", "bert", "gpt2", "llama", "vit", "resnet50", "mobilenet", "lstm")


def in_dtype(name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model, inputs = network(name)
    if dtype is torch.float32:
        return model, inputs
    return copy.deepcopy(model).to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_network_on_gpu(name: str, dtype: torch.dtype) -> None:
    model, inputs = in_dtype(name, dtype)
    compiled = lampwork.compile(model)
    lampwork.reset_stats()
    with torch.no_grad():
        for _ in range(2):
            gpu.assert_near(model, compiled(*inputs), inputs)
    gpu.assert_compiled(compiled, 2, kernels=0 if name == "lstm" else 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert", "llama", "vit"])
def test_network_under_autocast_on_gpu(name: str, dtype: torch.dtype) -> None:
    if gpu.DEVICE == "cpu" and dtype is torch.float16:
        pytest.skip("autocast to float16 warns on the CPU")
    model, inputs = network(name)
    compiled = lampwork.compile(model)
    exact = exact_result(model, inputs)
    lampwork.reset_stats()
    with torch.no_grad(), torch.autocast(gpu.DEVICE, dtype):
        for _ in range(2):
            text = difference(compiled(*inputs), model(*inputs), exact)
            assert not text, text
    gpu.assert_compiled(compiled, 2)


@pytest.mark.parametrize("name", NETWORKS[:6])
def test_batches_of_any_size_on_gpu(name: str) -> None:
    model, inputs = network(name)
    compiled = lampwork.compile(model)
    lampwork.reset_stats()
    sizes = (4, 3, 2, 1, 3, 4)
    with torch.no_grad():
        for size in sizes:
            part = tuple(x[:size] for x in inputs)
            gpu.assert_near(model, compiled(*part), part)
    gpu.assert_compiled(compiled, len(sizes))
    assert lampwork.stats()["regions"] <= 3, lampwork.stats()  # fixed, open, and of size one


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_sequences_of_any_length_on_gpu(name: str) -> None:
    model, (ids,) = network(name)
    compiled = lampwork.compile(model)
    lampwork.reset_stats()
    with torch.no_grad():
        for length in (17, 9, 12, 2, 17):
            gpu.assert_near(model, compiled(ids[:, :length]), (ids[:, :length],))
    gpu.assert_compiled(compiled, 5)
    assert lampwork.stats()["regions"] <= 3, lampwork.stats()


def test_weights_written_between_calls_on_gpu() -> None:
    model, inputs = in_dtype("mlp", torch.float64)
    compiled = lampwork.compile(model)
    with torch.no_grad():
        first = compiled(*inputs)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        second = compiled(*inputs)
        gpu.assert_near(model, second, inputs)
    assert not torch.equal(first, second)


def test_channels_last_on_gpu() -> None:
    model, (image,) = in_dtype("resnet18", torch.float32)
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    last = image.contiguous(memory_format=torch.channels_last)
    compiled = lampwork.compile(model)
    lampwork.reset_stats()
    with torch.no_grad():
        gpu.assert_near(model, compiled(last), (last,))
    gpu.assert_compiled(compiled)


def test_behind_the_front_door_of_torch_on_gpu() -> None:
    model, inputs = network("bert")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="lampwork")
    lampwork.reset_stats()
    with torch.no_grad():
        gpu.assert_near(model, compiled(*inputs), inputs)
    assert lampwork.stats()["backend_compiles"] + lampwork.stats()["backend_cache_hits"] >= 1, (
        lampwork.stats()
    )
