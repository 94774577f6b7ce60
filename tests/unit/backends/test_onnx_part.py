"""What a converted part hands back: views, strides, errors of eager, threads. For both runtimes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from onnx_parts import assert_same, compiled_part
from torch import Tensor

pytest.importorskip("onnx")


@pytest.fixture(params=["onnxruntime", "openvino"])
def backend(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    from lampwork.backends.registry import get_backend

    return get_backend(request.param)


def test_views_of_inputs_stay_views(backend: Any) -> None:
    x = torch.randn(3, 4)

    def fn(x: Tensor) -> list[Tensor]:
        return [x.t(), x[1:], x.relu(), x.view(2, 6)]

    got = compiled_part(backend, fn, [x])(x)
    assert_same(fn, got, x)
    assert got[0].data_ptr() == got[3].data_ptr() == x.data_ptr()
    assert got[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert got[2].data_ptr() != x.data_ptr()


def test_views_of_one_result_share_its_memory(backend: Any) -> None:
    x = torch.randn(3, 4)

    def fn(x: Tensor) -> list[Tensor]:
        y = x.relu()
        return [y, y.t(), *y.split(2, dim=1)]

    got = compiled_part(backend, fn, [x])(x)
    assert_same(fn, got, x)
    assert len({t.untyped_storage().data_ptr() for t in got}) == 1


def test_a_part_of_views_only(backend: Any) -> None:
    x = torch.randn(3, 4)
    got = compiled_part(backend, lambda x: x.t()[1:], [x])(x)
    assert torch.equal(got, x.t()[1:]) and got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_bound_tensors_leave_as_they_are(backend: Any) -> None:
    x, w = torch.randn(3), torch.randn(2, 3)
    got = compiled_part(backend, lambda x, w: [x + 1, w[1]], [x], [w])(x)
    assert got[1].untyped_storage().data_ptr() == w.untyped_storage().data_ptr()


def test_results_lie_as_in_eager(backend: Any) -> None:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3)

    def fn(x: Tensor, w: Tensor) -> list[Tensor]:
        y = F.conv2d(x, w)
        return [y, y.relu(), x.permute(1, 0, 2, 3) * 2]

    assert_same(fn, compiled_part(backend, fn, [image], [weight])(image), image, weight)


def test_attention_whose_heads_lie_side_by_side(backend: Any) -> None:
    query, key, value = (torch.randn(2, 4, 4, 8).transpose(1, 2) for _ in range(3))

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    run = compiled_part(backend, fn, [query, key, value])
    assert_same(fn, run(query, key, value), query, key, value)


def test_inputs_in_any_layout(backend: Any) -> None:
    x, y = torch.randn(4, 6).t(), torch.randn(1, 4).expand(6, 4)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        return x * y + 1

    assert_same(fn, compiled_part(backend, fn, [x, y])(x, y), x, y)


@pytest.mark.parametrize("wrong", [10, -1, 2**40])
def test_an_index_out_of_range_raises_as_in_eager(backend: Any, wrong: int) -> None:
    weight, ids = torch.randn(10, 4), torch.tensor([1, 2, 3])
    run = compiled_part(backend, lambda i, w: F.embedding(i, w) * 2, [ids], [weight])
    assert torch.equal(run(ids), weight[ids] * 2)
    with pytest.raises(IndexError, match="out of range"):
        run(torch.tensor([1, wrong, 3]))
    assert torch.equal(run(ids), weight[ids] * 2)


def test_results_are_not_overwritten_by_later_calls(backend: Any) -> None:
    x = torch.randn(4)
    run = compiled_part(backend, lambda x: x * 2, [x])
    first, second = run(x), run(x + 1)
    assert torch.equal(first, x * 2) and torch.equal(second, (x + 1) * 2)


def test_many_threads_call_one_part(backend: Any) -> None:
    w = torch.randn(16, 16)
    run = compiled_part(backend, lambda x, w: F.linear(x, w).relu(), [torch.randn(8, 16)], [w])
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        want = F.linear(x, w).relu()
        for _ in range(30):
            if not torch.allclose(run(x), want, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_number_of_threads_is_torchs(backend: Any) -> None:
    x = torch.randn(4)
    from onnx_parts import recorded

    from lampwork.backends.protocol import CompileOptions

    graph, _ = recorded(lambda x: x * 2, [x])
    part = backend.compile(graph, (), CompileOptions())
    before = torch.get_num_threads()
    try:
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            assert torch.equal(part(x)[0], x * 2)
        assert {1, 2} <= set(part.sessions)
    finally:
        torch.set_num_threads(before)
