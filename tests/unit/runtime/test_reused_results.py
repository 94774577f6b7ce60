"""mode="reduce-overhead": results in the memory of earlier ones, which no caller can tell from new tensors."""

from __future__ import annotations

import random
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork


def quick(fn: Any, **keywords: Any) -> Any:
    return lampwork.compile(fn, mode="reduce-overhead", **keywords)


def scaled(x: Tensor) -> Tensor:
    return x * 2 + 1


def pair(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    y = x * 3
    return y + 1, {"y": y, "part": y[1:], "again": y}


def large() -> Tensor:
    return torch.randn(300, 100)  # more than what malloc serves


def small() -> Tensor:
    return torch.randn(5, 4)


@pytest.mark.parametrize("make", [small, large])
def test_memory_is_used_again(make: Any) -> None:
    fast = quick(scaled)
    x = make()
    places: set[int] = set()
    y = fast(x)
    for step in range(20):
        x = make()
        y = fast(x)
        assert torch.equal(y, scaled(x)), step
        places.add(y.data_ptr())
    assert len(places) == 2


@pytest.mark.parametrize("make", [small, large])
def test_what_the_caller_keeps_stays(make: Any) -> None:
    fast = quick(scaled)
    inputs = [make() for _ in range(12)]
    results = [fast(x) for x in inputs]
    assert len({id(y) for y in results}) == len({y.data_ptr() for y in results}) == 12
    for x, y in zip(inputs, results, strict=True):
        assert torch.equal(y, scaled(x))


def test_a_result_that_is_the_next_argument() -> None:
    fast = quick(scaled)
    x, eager = torch.randn(6, 3), torch.zeros(0)
    eager = x.clone()
    for _ in range(10):
        x, eager = fast(x), scaled(eager)
        assert torch.equal(x, eager)


# Each is done to a result, which is then dropped but for what it gives; what that is must not change any more.
TOUCHES = {
    "nothing": lambda y: None,
    "a view": lambda y: y[1:],
    "a detached one": lambda y: y.detach(),
    "data": lambda y: y.data,
    "an array": lambda y: y.numpy(),
    "a capsule": lambda y: torch.utils.dlpack.to_dlpack(y),
    "a storage": lambda y: y.untyped_storage(),
    "a list": lambda y: [y],
    "a dict": lambda y: {y: 1},
    "an attribute": lambda y: setattr(y, "mine", 1),
    "a cycle": lambda y: setattr(y, "me", y),
    "a weak reference": lambda y: weakref.ref(y),
    "gradients": lambda y: (y.requires_grad_(), None)[1],
    "a derived one": lambda y: y.requires_grad_() * 2,
    "a write": lambda y: (y.add_(1), None)[1],
    "another size": lambda y: (y.resize_(2), None)[1],
    "a larger size": lambda y: (y.resize_(700), None)[1],
    "no memory": lambda y: (y.untyped_storage().resize_(0), None)[1],
    "transposed": lambda y: (y.t_(), None)[1],
    "another memory": lambda y: (y.set_(torch.zeros(2)), None)[1],
    "other data": lambda y: (setattr(y, "data", torch.zeros(5, 4)), None)[1],
    "a hook": lambda y: (y.requires_grad_().register_hook(lambda g: g * 2), None)[1],
    "shared": lambda y: y.share_memory_(),
    "a parameter": lambda y: nn.Parameter(y),
    "negated": lambda y: torch._neg_view(y),
    "a class": lambda y: (setattr(y, "__class__", nn.Parameter), None)[1],
}


def content(kept: Any) -> Any:
    if isinstance(kept, list):
        return [each.clone() for each in kept]
    if isinstance(kept, dict):
        return [each.clone() for each in kept]
    if isinstance(kept, torch.UntypedStorage):
        return bytes(kept)
    if isinstance(kept, Tensor):
        return kept.detach().clone()
    return kept.copy() if hasattr(kept, "copy") else None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return bool((a == b).all()) if hasattr(a, "all") else a == b


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_result_that_was_touched(touch: str) -> None:
    fast = quick(scaled)
    kept: list[tuple[Any, Any]] = []
    for step in range(8):
        x = small()
        y = fast(x)
        assert torch.equal(y, scaled(x)), step
        assert type(y) is Tensor and y._version == 0 and not y.requires_grad and y.grad_fn is None
        assert y.is_contiguous() and y.storage_offset() == 0 and not vars(y) and not y.is_shared()
        assert y.untyped_storage().nbytes() == 80 and y.grad is None
        thing = TOUCHES[touch](y)
        kept.append((thing, content(thing)))
        del y
    for thing, before in kept:
        if isinstance(thing, dict):
            thing = list(thing)
        if before is not None:
            assert same(bytes(thing) if isinstance(thing, torch.UntypedStorage) else thing, before)
    if touch == "a capsule":
        x = [torch.utils.dlpack.from_dlpack(thing) for thing, _ in kept]
        assert len({each.data_ptr() for each in x}) == 8


def test_several_results_and_views_of_them() -> None:
    fast = quick(pair)
    kept = []
    for step in range(10):
        x = small()
        got, want = fast(x), pair(x)
        for a, b in ((got[0], want[0]), (got[1]["y"], want[1]["y"]), (got[1]["part"], want[1]["part"])):
            assert torch.equal(a, b)
        assert got[1]["again"] is got[1]["y"]
        assert got[1]["part"]._base is not None or not got[1]["part"]._is_view()
        if step % 3 == 0:
            kept.append((got[1]["part"], want[1]["part"]))
        del got
    assert all(torch.equal(a, b) for a, b in kept)


def test_sizes_that_stay_open() -> None:
    fast = quick(scaled, dynamic=True)
    kept = []
    for step in range(30):
        x = torch.randn(2 + step % 5, 3)
        y = fast(x)
        assert torch.equal(y, scaled(x))
        if step % 4 == 0:
            kept.append((y, scaled(x)))
    assert all(torch.equal(a, b) for a, b in kept)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.last = torch.zeros(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.last * 0.5 + x
        self.seen.append(self.last + 1)
        return self.last


def test_results_that_the_program_stores() -> None:
    ours, eager = Keeps(), Keeps()
    fast = quick(ours)
    for _ in range(8):
        x = small()
        assert torch.equal(fast(x), eager(x))
    assert all(torch.equal(a, b) for a, b in zip(ours.seen, eager.seen, strict=True))
    assert len({each.data_ptr() for each in ours.seen}) == 8


def broken(x: Tensor) -> Tensor:
    first = scaled(x)
    print("", end="")
    second = scaled(first)
    print("", end="")
    return first + second


def test_regions_around_graph_breaks() -> None:
    fast = quick(broken)
    for _ in range(5):
        x = small()
        assert torch.equal(fast(x), broken(x))


def test_modes_of_gradients() -> None:
    model = nn.Linear(4, 3)
    fast = quick(model)
    for _ in range(3):
        for within in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with within():
                x = small()
                y = fast(x)
                torch.testing.assert_close(y, model(x))
                assert y.requires_grad == (within is torch.enable_grad)
                assert y.is_inference() == (within is torch.inference_mode)
                if y.requires_grad:
                    y.sum().backward()
                    model.zero_grad()


def test_a_call_that_fails_lends_nothing_twice() -> None:
    def pick(table: Tensor, index: Tensor) -> Tensor:
        return table[index] * 2

    fast = quick(pick)
    table, good, bad = torch.randn(9, 4), torch.tensor([1, 2]), torch.tensor([1, 99])
    kept = []
    for _ in range(6):
        kept.append(fast(table, good))
        with pytest.raises(IndexError):
            fast(table, bad)
    assert len({each.data_ptr() for each in kept}) == 6
    assert all(torch.equal(each, table[good] * 2) for each in kept)


@pytest.mark.parametrize("size", [(5, 4), (200, 200)])
def test_many_threads(size: tuple[int, ...]) -> None:
    fast = quick(scaled)
    fast(torch.randn(size))
    faults: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        held: list[tuple[Tensor, Tensor]] = []
        for step in range(150):
            x = torch.randn(size, generator=generator)
            held.append((fast(x), scaled(x)))
            if step % 7 == 0:
                held = held[-3:]
            if not all(torch.equal(a, b) for a, b in held[-10:]):
                faults.append(f"thread {seed}, step {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize("seed", range(10))
def test_random_lives_of_results_fuzz(seed: int) -> None:
    """Results are kept, dropped, viewed, written and fed back at random; all that is held stays what it was."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    fast = quick(pair)
    held: list[tuple[Tensor, Tensor]] = []
    x = small()
    for step in range(80):
        got, want = fast(x), pair(x)
        flat = [(got[0], want[0]), *((got[1][name], want[1][name]) for name in want[1])]
        for _ in range(rng.randrange(4)):
            a, b = rng.choice(flat)
            how = rng.randrange(5)
            if how == 0:
                held.append((a, b.clone()))
            elif how == 1:
                held.append((a[:2], b[:2].clone()))
            elif how == 2:
                held.append((a.detach(), b.clone()))
            elif how == 3:
                held.append((torch.from_numpy(a.numpy()), b.clone()))
            else:
                a.mul_(1)
        x = got[0] if rng.random() < 0.3 else small()
        x = x.clamp(-9, 9) if rng.random() < 0.5 else x / (1 + x.abs().max())
        a = b = None
        del got, want, flat
        while len(held) > 12 or (held and rng.random() < 0.3):
            held.pop(rng.randrange(len(held)))
        for number, (a, b) in enumerate(held):
            assert torch.equal(a, b), (step, number)
        a = b = None
