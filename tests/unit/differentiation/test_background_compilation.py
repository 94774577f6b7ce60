"""Backward's machine code is compiled while forward runs: the same results, the same errors, forks and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.codegen.llvm import jit
from lampwork.codegen.llvm.generator import llvm_generator
from lampwork.codegen.llvm.jit import Jit, Pending
from lampwork.compiled import training
from lampwork.errors import CodegenError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40)
        self.norm = nn.LayerNorm(40)
        self.last = nn.Linear(40, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x)))).square().mean()


class Gate:
    """Holds back the modules of backwards until it opens: as if threads were at them all the time."""

    def __init__(self) -> None:
        self.held: list[tuple[Pending, Jit]] = []
        self.is_open = self.fails = self.is_backward = False
        self._take = jit.workers.take

    def take(self, pending: Pending, compiler: Jit) -> bool:
        """In the place of that of the workers."""
        if not self.is_backward:
            return self._take(pending, compiler)
        self.held.append((pending, compiler))
        if self.is_open:
            self.open()
        return True

    def open(self) -> None:
        self.is_open = True
        for pending, compiler in self.held:
            if self.fails:
                pending._error = CodegenError("the test has it fail")
                pending.ended.set()
            elif not self._take(pending, compiler):
                pending.run(0)
        self.held.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    lampwork.reset_stats()
    slots = type("Slots", (), {"locks": tuple(threading.RLock() for _ in range(2))})
    monkeypatch.setattr(jit, "slots", slots)
    llvm_generator.cache_clear()  # which would know the kernels of other tests
    gate = Gate()
    start = training._backward

    def backward(*args: Any) -> Any:
        gate.is_backward = True
        try:
            return start(*args)
        finally:
            gate.is_backward = False

    monkeypatch.setattr(training, "_backward", backward)
    monkeypatch.setattr(jit.workers, "take", gate.take)
    yield gate
    gate.open()
    jit.workers.join()


def made(seed: int) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(seed)
    return Net(), torch.randn(7 + seed, 12)


def exact(net: Net, x: torch.Tensor) -> list[torch.Tensor]:
    """The loss and its gradients in float64."""
    wide = Net().double()
    wide.load_state_dict({name: value.double() for name, value in net.state_dict().items()})
    loss = wide(x.double())
    return [loss, *torch.autograd.grad(loss, list(wide.parameters()))]


def assert_right(
    loss: torch.Tensor, net: Net, x: torch.Tensor, expected: list[torch.Tensor] | None = None
) -> None:
    found = [loss, *(parameter.grad for parameter in net.parameters())]
    for value, wide in zip(found, expected or exact(net, x), strict=True):
        assert value is not None
        torch.testing.assert_close(value.double(), wide, rtol=1e-5, atol=1e-6)


def backwards() -> dict[str, int]:
    return {name: int(lampwork.stats()[name]) for name in ("compiled_backwards", "eager_backwards")}


def test_forward_does_not_wait_for_backward(gate: Gate) -> None:
    net, x = made(0)
    loss = lampwork.compile(net, options={"strict": True})(x)
    torch.testing.assert_close(loss.double(), exact(net, x)[0], rtol=1e-5, atol=1e-6)
    assert gate.held
    gate.open()
    loss.backward()
    assert_right(loss, net, x)
    assert backwards() == {"compiled_backwards": 1, "eager_backwards": 0}


def test_forwards_alone_wait_with_the_second(gate: Gate) -> None:
    net, x = made(1)
    compiled = lampwork.compile(net, options={"strict": True})
    compiled(x)
    threading.Timer(0.1, gate.open).start()
    loss = compiled(x)
    loss.backward()
    assert_right(loss, net, x)
    assert backwards() == {"compiled_backwards": 1, "eager_backwards": 0}


def test_of_two_losses_one_is_differentiated(gate: Gate) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin().sum(), (x * x).exp().mean()

    gate.open()
    compiled = lampwork.compile(both, options={"strict": True})
    for _ in range(3):
        x = torch.linspace(-1, 1, 9, requires_grad=True)
        (slope,) = torch.autograd.grad(compiled(x)[1], x)
        wide = x.detach().double().requires_grad_()
        (expected,) = torch.autograd.grad(both(wide)[1], wide)
        torch.testing.assert_close(slope.double(), expected, rtol=1e-5, atol=1e-7)


def test_where_llvm_fails_eager_differentiates_with_a_record(gate: Gate) -> None:
    net, x = made(2)
    gate.fails = True
    gate.open()
    compiled = lampwork.compile(net, options={"strict": False})
    for _ in range(3):
        net.zero_grad()
        loss = compiled(x)
        loss.backward()
        assert_right(loss, net, x)
    assert backwards() == {"compiled_backwards": 0, "eager_backwards": 3}
    (record,) = lampwork.explain(compiled).function.records
    assert "the test has it fail; backward runs forward again, in eager" in record.cause


def test_where_llvm_fails_strict_raises(gate: Gate) -> None:
    net, x = made(3)
    gate.fails = True
    loss = lampwork.compile(net, options={"strict": True})(x)
    gate.open()
    with pytest.raises(CodegenError, match="the test has it fail"):
        loss.backward()


def test_a_forked_child_compiles_what_its_parent_has_started(gate: Gate) -> None:
    net, x = made(4)
    expected = exact(net, x)  # before the fork, which eager's own threads may not outlive
    loss = lampwork.compile(net, options={"strict": True})(x)
    child = os.fork()
    if child == 0:
        status = 1
        gate.open()
        try:
            loss.backward()
            assert_right(loss, net, x, expected)
            status = 0 if backwards()["compiled_backwards"] else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    gate.open()
    loss.backward()
    assert_right(loss, net, x)


def test_who_waits_can_be_interrupted(gate: Gate) -> None:
    net, x = made(5)
    compiled = lampwork.compile(net, options={"strict": True})
    loss = compiled(x)
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where the tests run in the background
    try:
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
    finally:
        signal.signal(signal.SIGINT, before)
    gate.open()
    net.zero_grad()
    loss = compiled(x)
    loss.backward()
    assert_right(loss, net, x)


def test_threads_that_train_at_once(gate: Gate) -> None:
    failures: list[Exception] = []

    def train(seed: int) -> None:
        try:
            net, x = made(seed)
            compiled = lampwork.compile(net, options={"strict": True})
            for _ in range(3):
                net.zero_grad()
                loss = compiled(x)
                loss.backward()
                assert_right(loss, net, x)
        except Exception as error:  # noqa: BLE001  (shown by the thread that waits)
            failures.append(error)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(6, 10)]
    gate.open()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_stages_do_not_depend_on_when_it_is_compiled(gate: Gate) -> None:
    texts: list[str] = []
    for is_open in (False, True):
        lampwork.reset_stats()
        llvm_generator.cache_clear()
        net, x = made(0)
        gate.is_open = is_open
        compiled = lampwork.compile(net)
        loss = compiled(x)
        stages = compiled.stages
        texts.append(
            "\n".join(stages.text(stage) for stage in stages if stage != "passes")
        )  # which shows times
        gate.open()
        loss.backward()
    assert texts[0] == texts[1]


def test_a_process_may_end_before_it_is_compiled() -> None:
    program = (
        "import torch, lampwork\n"
        "net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8 + i, 9 + i), torch.nn.GELU())"
        " for i in range(9)])\n"
        "loss = lampwork.compile(lambda x: net(x).square().mean(), options={'strict': True})(torch.randn(5, 8))\n"
        "print(loss.item() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
