"""Backward's machine code is compiled while forward runs: the same results, the same errors, forks and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import lampwork
from lampwork.codegen.llvm import jit
from lampwork.codegen.llvm.generator import llvm_generator
from lampwork.codegen.llvm.jit import Pending
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
    """Holds back the modules of backwards until it is `open`."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.held: list[Pending] = []
        self.fails = False
        self.is_backward = False


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    lampwork.reset()
    jit_slots = type("Slots", (), {"locks": tuple(threading.RLock() for _ in range(2))})
    monkeypatch.setattr(jit, "slots", jit_slots)
    llvm_generator.cache_clear()
    gate = Gate()
    start, run = training._backward, Pending.run

    def backward(*args: object) -> object:
        gate.is_backward = True
        try:
            return start(*args)  # type: ignore[arg-type]
        finally:
            gate.is_backward = False

    def make(self: Pending, *args: object) -> None:
        init(self, *args)  # type: ignore[arg-type]
        if gate.is_backward:
            gate.held.append(self)

    def wait(self: Pending, slot: int) -> None:
        if self in gate.held:
            gate.open.wait()
            if gate.fails:
                self._error = CodegenError("the test has it fail")
                self.ended.set()
                return
        run(self, slot)

    init = Pending.__init__
    monkeypatch.setattr(training, "_backward", backward)
    monkeypatch.setattr(Pending, "__init__", make)
    monkeypatch.setattr(Pending, "run", wait)
    yield gate
    gate.open.set()
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


def assert_right(loss: torch.Tensor, net: Net, x: torch.Tensor) -> None:
    found = [loss, *(parameter.grad for parameter in net.parameters())]
    for value, wide in zip(found, exact(net, x), strict=True):
        assert value is not None
        torch.testing.assert_close(value.double(), wide, rtol=1e-5, atol=1e-6)


def backwards() -> dict[str, int]:
    return {name: int(lampwork.stats()[name]) for name in ("compiled_backwards", "eager_backwards")}


def test_forward_does_not_wait_for_backward(gate: Gate) -> None:
    net, x = made(0)
    loss = lampwork.compile(net, options={"strict": True})(x)
    torch.testing.assert_close(loss.double(), exact(net, x)[0], rtol=1e-5, atol=1e-6)
    assert gate.held and not any(pending.ended.is_set() for pending in gate.held)
    gate.open.set()
    loss.backward()
    assert_right(loss, net, x)
    assert backwards() == {"compiled_backwards": 1, "eager_backwards": 0}


def test_forwards_alone_wait_with_the_second(gate: Gate) -> None:
    net, x = made(1)
    compiled = lampwork.compile(net, options={"strict": True})
    compiled(x)
    threading.Timer(0.1, gate.open.set).start()
    loss = compiled(x)
    loss.backward()
    assert_right(loss, net, x)
    assert backwards() == {"compiled_backwards": 1, "eager_backwards": 0}


def test_of_two_losses_one_is_differentiated(gate: Gate) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin().sum(), (x * x).exp().mean()

    gate.open.set()
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
    gate.open.set()
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
    gate.open.set()
    with pytest.raises(CodegenError, match="the test has it fail"):
        loss.backward()


def test_a_forked_child_compiles_what_its_parent_has_started(gate: Gate) -> None:
    net, x = made(4)
    loss = lampwork.compile(net, options={"strict": True})(x)
    child = os.fork()
    if child == 0:
        status = 1
        gate.open.set()
        try:
            loss.backward()
            assert_right(loss, net, x)
            status = 0 if backwards()["compiled_backwards"] else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    gate.open.set()
    loss.backward()
    assert_right(loss, net, x)


def test_who_waits_can_be_interrupted(gate: Gate) -> None:
    net, x = made(5)
    compiled = lampwork.compile(net, options={"strict": True})
    loss = compiled(x)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    gate.open.set()
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
    gate.open.set()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_stages_do_not_depend_on_when_it_is_compiled(gate: Gate) -> None:
    texts: list[str] = []
    for is_open in (False, True):
        lampwork.reset()
        net, x = made(0)
        gate.open = threading.Event()
        if is_open:
            gate.open.set()
        compiled = lampwork.compile(net)
        loss = compiled(x)
        stages = compiled.stages
        texts.append(
            "\n".join(stages.text(stage) for stage in stages if stage != "passes")
        )  # which shows times
        gate.open.set()
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
