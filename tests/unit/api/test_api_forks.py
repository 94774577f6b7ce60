"""Forks while other threads compile and run: the child compiles and runs as if there had been none."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

import torch
from torch.utils.checkpoint import checkpoint

import lampwork
from lampwork import locks


def answer_of_child(work) -> bytes:
    """What `work()` gives in a forked child; b"late" after 60 seconds."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], 60)
    got = os.read(read, 1000) if ready else b"late"
    os.close(read)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return got


def compile_and_run() -> bytes:
    x = torch.ones(4)
    got = lampwork.compile(lambda x: torch.tanh(x) * 3 + 1)(x)
    return b"ok" if torch.allclose(got, torch.tanh(x) * 3 + 1) else b"wrong"


def test_forks_while_a_thread_compiles_and_runs():
    done = threading.Event()

    def work():
        running = lampwork.compile(lambda x: (x * 2).sum())
        number = 0
        while not done.is_set():
            number += 1
            running(torch.ones(1000))
            lampwork.compile(lambda x, n=number: torch.sigmoid(x) * n + 1)(torch.ones(number % 50 + 2))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            assert answer_of_child(compile_and_run) == b"ok"
            time.sleep(0.02)
    finally:
        done.set()
        thread.join()


def test_a_fork_while_a_thread_holds_every_lock():
    release, holding = threading.Event(), threading.Event()
    # Those under which a fork waits are held for moments only.
    held = [lock for lock in list(locks._all.locks) if lock not in locks._all.across]
    assert len(held) > 5

    def hold():
        for lock in held:
            lock.acquire()
        holding.set()
        release.wait()
        for lock in held:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    try:
        assert answer_of_child(compile_and_run) == b"ok"
    finally:
        release.set()
        thread.join()


def test_a_fork_leaves_the_forking_thread_its_locks():
    lock = locks.new_lock()

    def free() -> bytes:
        got = []
        thread = threading.Thread(target=lambda: got.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        lock.release()
        return b"%d" % got[0]

    with lock:
        assert answer_of_child(free) == b"0"


def test_what_hooks_raise_passes_through_once():
    """torch.utils.checkpoint ends its recomputation with an exception, raised where a tensor is saved."""
    calls = []

    def note(grad):
        calls.append("grad")
        return grad

    x = torch.randn(3, 4, requires_grad=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    checkpoint(model, x, use_reentrant=False).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    x.register_hook(note)
    compiled = lampwork.compile(model)
    for _ in range(2):
        checkpoint(compiled, x, use_reentrant=False).sum().backward()
        for p, grad in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, grad)
        model.zero_grad()
    assert calls == ["grad"] * 2


def test_an_error_of_a_hook_is_raised_as_it_is():
    seen = []

    def pack(tensor):
        seen.append(tensor.shape)
        raise KeyError("pack")

    w = torch.ones(3, requires_grad=True)
    compiled = lampwork.compile(lambda x: (x * w).sin())
    compiled(torch.ones(3))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        for count in (1, 2):
            try:
                compiled(torch.ones(3))
            except KeyError as error:
                assert error.args == ("pack",)
            assert len(seen) == count


def test_threads_may_fork_at_the_same_time() -> None:
    """Each gives back the locks that it took for its fork, and no other's."""
    failed: list[int] = []
    begin = threading.Barrier(6)

    def forks() -> None:
        begin.wait()
        for _ in range(25):
            child = os.fork()
            if not child:
                os._exit(0)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                failed.append(child)

    threads = [threading.Thread(target=forks, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for a lock that nobody holds"
    assert not failed
