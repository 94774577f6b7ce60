"""What a card, a driver or a process cannot do: compiled code says what eager says, and goes on where eager goes on.

Each program runs in a process of its own: what it does to the device is its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import gpu

gpu.require()

on_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="of cards alone")
pytestmark = on_gpu

HEAD = """
import os, types, torch, lampwork
def compiled(fn, **options):
    return lampwork.compile(fn, options={"strict": False, **options})
def said(fn, *args):
    try:
        fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "nothing"
def chain(x):
    return (x * 2 + 1).softmax(-1)
"""


def run(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert done.stdout.strip().endswith("done"), done.stdout
    return done.stdout


def test_a_card_that_is_too_old_is_eagers() -> None:
    run("""
        torch.cuda.init()
        old = types.SimpleNamespace(major=6, minor=1, multi_processor_count=20)
        torch.cuda.get_device_properties = lambda *args: old
        x = torch.randn(5, 33, device="cuda")
        torch.testing.assert_close(compiled(chain)(x), chain(x))
        assert lampwork.stats()["compiled_calls"] == 0
        text = said(lampwork.compile(lambda x: chain(x), options={"strict": True}), x)
        assert "compute capability 6.1 is too old: 7.0 is the least" in text, text
        step = torch.optim.AdamW([torch.nn.Parameter(torch.ones(5, device="cuda"))])
        step.param_groups[0]["params"][0].grad = torch.ones(5, device="cuda")
        lampwork.compile(step.step, options={"strict": False})()
        print("done")
    """)


def test_memory_that_is_out_in_the_middle() -> None:
    """What was written before is as in eager, and the next call works."""
    run("""
        def grown(x, rows):
            x.mul_(2)
            y = x.sigmoid()
            return (y.expand(rows, -1) + 1).cumsum(0) @ torch.ones(x.shape[0], 1, device="cuda")
        n = 1 << 16
        fn = compiled(grown)
        for rows in (3, 4):
            x = torch.ones(n, device="cuda")
            fn(x, rows)
        for each in (grown, fn, fn):
            x = torch.ones(n, device="cuda")
            assert said(each, x, 1 << 24).startswith("OutOfMemoryError"), each
            assert torch.equal(x, torch.full_like(x, 2)), (each, x)
        x = torch.ones(n, device="cuda")
        y = x.clone()
        torch.testing.assert_close(fn(x, 4), grown(y, 4))
        print("done")
    """)


def test_after_a_kernel_has_faulted_every_call_says_so() -> None:
    run("""
        table, rows = torch.randn(10, 4, device="cuda"), torch.tensor([1, 12], device="cuda")
        fn, other = compiled(lambda t, i: t[i] * 2), compiled(chain)
        other(table)
        torch.cuda.synchronize()
        fn(table, rows)
        assert "device-side assert" in said(torch.cuda.synchronize)
        text = said(other, table)
        assert "device-side assert" in text or "ASSERT" in text, text
        print("done", flush=True)
        os._exit(0)
    """)


def test_a_forked_child_is_told_what_eager_tells_it() -> None:
    run("""
        x = torch.randn(5, 33, device="cuda")
        fn = compiled(chain)
        fn(x)
        child = os.fork()
        if child == 0:
            eager, ours = said(chain, x), said(fn, x)
            new = said(compiled(lambda x: x + 3), x)
            right = "re-initialize CUDA in forked" in eager or "initialization error" in eager
            same = all("forked" in text or "initialization error" in text for text in (ours, new))
            here = torch.randn(5, 33)
            torch.testing.assert_close(compiled(lambda x: x * 2)(here), here * 2)  # the CPU goes on
            if not (right and same):
                print(eager, "|", ours, "|", new, flush=True)
            os._exit(0 if right and same else 1)
        assert os.waitpid(child, 0)[1] == 0
        torch.testing.assert_close(fn(x), chain(x))
        print("done")
    """)


def test_the_first_call_may_be_captured() -> None:
    run("""
        x = torch.randn(5, 33, device="cuda")
        chain(x)
        torch.cuda.synchronize()
        fn, graph = compiled(chain), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fn(x)
        x.copy_(torch.randn(5, 33))
        graph.replay()
        torch.testing.assert_close(y, chain(x))
        del fn
        graph.replay()  # its kernels stay
        torch.cuda.synchronize()
        print("done")
    """)


def test_a_process_that_sees_no_card_compiles_for_the_cpu() -> None:
    run(
        """
        assert not torch.cuda.is_available()
        x = torch.randn(5, 33)
        torch.testing.assert_close(lampwork.compile(chain)(x), chain(x))
        assert lampwork.stats()["compiled_calls"] == 1
        print("done")
        """,
        CUDA_VISIBLE_DEVICES="",
    )


def test_cards_that_differ() -> None:
    """Operands of two cards are eager's error; rows of an optimizer on two cards are two kernels."""
    run("""
        if torch.cuda.device_count() > 1:
            x, y = torch.ones(5, device="cuda:0"), torch.ones(5, device="cuda:1")
            def add(x, y):
                return x * 2 + y
            assert said(compiled(add), x, y) == said(add, x, y) != "nothing"
            sides = [[torch.nn.Parameter(t.clone()) for t in (x, y)] for _ in range(2)]
            steps = [torch.optim.AdamW(side) for side in sides]
            for param in (*sides[0], *sides[1]):
                param.grad = torch.ones_like(param)
            lampwork.compile(steps[0].step)()
            steps[1].step()
            torch.testing.assert_close(sides[0], sides[1])
        print("done")
    """)
