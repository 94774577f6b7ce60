"""Operators as torch's core ATen operators compute them, on torch's own samples."""

from __future__ import annotations

import pytest
import torch
from opinfo_samples import database, full_name, samples

import lampwork
from lampwork.backends.core_aten import is_core
from lampwork.backends.reachable import reachable_operators
from lampwork.graph.interpret import run_graph
from lampwork.graph.verify import verify
from lampwork.testing.compare import difference, exact_result


class Core:
    """Takes core operators only, and notes what it is asked about."""

    name = "core"
    decompose = "core"
    reachable = frozenset(each.operator for each in reachable_operators())

    def supports(self, node):
        if getattr(node.target, "namespace", "") == "aten":
            assert node.target in self.reachable, node.target
        return is_core(node.target)

    def compile(self, graph, example_inputs, options):
        verify(graph)
        return lambda *tensors: run_graph(graph, tensors)


SAMPLED = (
    "addcmul addr clamp_min cov diff dist einsum kron lerp logit logsumexp masked_fill matmul mv "
    "nn.functional.batch_norm nn.functional.binary_cross_entropy nn.functional.conv1d "
    "nn.functional.conv_transpose2d nn.functional.cross_entropy nn.functional.embedding "
    "nn.functional.celu nn.functional.glu nn.functional.group_norm nn.functional.hardswish nn.functional.huber_loss "
    "nn.functional.instance_norm nn.functional.interpolate.bilinear nn.functional.layer_norm nn.functional.linear "
    "nn.functional.mish nn.functional.nll_loss nn.functional.pixel_shuffle nn.functional.rms_norm "
    "nn.functional.scaled_dot_product_attention nn.functional.silu nn.functional.softplus "
    "nn.functional.interpolate.nearest "
    "norm nan_to_num renorm roll sinc softmax special.entr stack std std_mean take_along_dim tensor_split trace tril "
    "unbind var var_mean vstack xlogy where"
).split()


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_of_torch(name) -> None:
    found = [op for op in database() if full_name(op) == name]
    assert found, f"torch has no samples of {name}"
    for op in found:
        for sample in samples(op, torch.float32, 2):

            def fn(*args, sample=sample):
                return sample.fn(*args, **sample.kwargs)

            if not any(isinstance(arg, torch.Tensor) for arg in sample.args):
                continue
            torch.manual_seed(0)
            compiled = lampwork.compile(fn, backend=[Core(), "native"])
            with torch.no_grad():
                got = compiled(*sample.args)
                torch.manual_seed(0)
                want = fn(*sample.args)
            assert not difference(got, want, exact_result(fn, sample.args)), sample.name
