"""Optimizers on a card: the kernels that update parameters, run by the simulated card in place of one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ptxas
import pytest
import torch
from simulated import MODEL
from simulated_rows import SimulatedRows, bits
from torch import Tensor, nn, optim

from lampwork import _C
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.rows import TILE, emit_rows
from lampwork.loops.schedule.grid import on_grid
from lampwork.optimizers.algorithm import Algorithm, rows_of, step_with
from lampwork.optimizers.kernel import RowKernel
from lampwork.optimizers.update import Table, Updater

module: Any = sys.modules["lampwork.optimizers.update"]  # the package has the function of that name
LENGTHS = (8, TILE + 13, 1, 0, 33, 2 * TILE, 700)


class _Rows:
    """A generator whose kernels over rows are the simulated card's."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def compile_rows(self, kernel: Any, flag: str | None = None) -> SimulatedRows:
        return SimulatedRows(kernel, flag, replace(self.target, generate=MODEL.generate))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SimulatedRows]]:
    """Tensors of this CPU count as those of a card. The kernels that ran."""
    ran: list[SimulatedRows] = []

    def run_rows(
        kernel: Any, columns: Any, used: Any, steps: Any, rows: Any, numbers: Any, written: int
    ) -> None:
        ran.append(kernel)
        sizes = [0 if number is None else bits(number) for number in numbers]
        table = [[columns[column][row] for column in used] for row in rows]
        first = next(
            place for place, each in enumerate(kernel.kernel.params) if each.shape[0].as_int() is None
        )
        assert first == 0
        kernel.run(table, sizes)
        for row in rows:
            if steps:
                steps[row].add_(1)

    def groups(self: Table) -> Any:
        scalars = sum(1 << place for place in range(len(self.rows), len(self.all)))
        found = _C.group_rows(self.all, self.steps, 2, scalars)
        return found and [(dtypes, step, 0, rows) for dtypes, step, _, rows in found]

    monkeypatch.setattr(module, "counted_there", bool)
    monkeypatch.setattr("lampwork.optimizers.trace.lies_on", lambda device, tensor: True)
    monkeypatch.setattr(RowKernel, "launched", property(lambda self: self.code))
    monkeypatch.setattr(module._C, "run_rows", run_rows)
    monkeypatch.setattr(Table, "groups", groups)
    monkeypatch.setattr(module, "card_target", lambda index, *, relaxed: replace(MODEL, generate=_Rows))
    yield ran


def tensors(dtype: torch.dtype = torch.float32, lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    return [torch.randn(length).to(dtype) for length in lengths]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_a_rule_is_applied_to_each_row(card: list[SimulatedRows], dtype: torch.dtype, aligned: bool) -> None:
    def rule(cells: list[list[Any]], step: Any) -> None:
        cells[0][0].add_(cells[1][0], alpha=-0.25)

    if aligned:
        params = tensors(dtype)
    else:
        params = [torch.randn(length + 1).to(dtype)[1:] for length in LENGTHS]
    grads = tensors(dtype)
    want = [param - 0.25 * grad for param, grad in zip(params, grads, strict=True)]
    assert Updater(MODEL).run(rule, (params, grads), [])
    for param, wanted in zip(params, want, strict=True):
        torch.testing.assert_close(param, wanted, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=1e-6)
    assert len(card) == 1


def test_hundreds_of_rows_take_several_launches(card: list[SimulatedRows]) -> None:
    def rule(cells: list[list[Any]], step: Any) -> None:
        cells[0][0].sub_(cells[1][0])

    params, grads = tensors(lengths=(5,) * 300), tensors(lengths=(5,) * 300)
    want = [param - grad for param, grad in zip(params, grads, strict=True)]
    assert Updater(MODEL).run(rule, (params, grads), [])
    for param, wanted in zip(params, want, strict=True):
        assert torch.equal(param, wanted)
    assert card[0].launches == 3  # of 512 words, 4 a row


ADAM = Algorithm(optim.Adam, "adam", scales=True)
COUNTED: dict[str, tuple[Algorithm, type[optim.Optimizer], dict[str, Any]]] = {
    "adam": (ADAM, optim.Adam, {"weight_decay": 0.1}),
    "adamw": (ADAM, optim.AdamW, {"maximize": True}),
    "amsgrad": (ADAM, optim.AdamW, {"amsgrad": True}),
    "rmsprop": (Algorithm(optim.RMSprop, "rmsprop"), optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adamax": (Algorithm(optim.Adamax, "adamax"), optim.Adamax, {}),
    "adadelta": (Algorithm(optim.Adadelta, "adadelta"), optim.Adadelta, {"weight_decay": 0.1}),
}


class Twins:
    """Parameters that a step of torch's updates with its updater exchanged, and what eager makes of them."""

    def __init__(self, name: str, **options: Any) -> None:
        self.algorithm, cls, more = COUNTED[name]
        start = tensors()
        self.params, self.eagers = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
        made: Any = cls
        self.ours = made(self.params, lr=0.01, **more, **options)
        self.eager = made(self.eagers, lr=0.01, **more)

    def advance(self, **given: Any) -> None:
        """A step by the updater, as the one of a card whose counts nobody reads."""
        for param, eager in zip(self.params, self.eagers, strict=True):
            eager.grad = torch.randn_like(eager)
            param.grad = eager.grad * given.get("grad_scale", 1.0)

        def update(*columns: Any, **options: Any) -> None:
            rule, rows, counts = rows_of(self.algorithm, columns, {**options, **given, "capturable": True})
            assert counts and Updater(MODEL).run(rule, rows, counts, given.get("found_inf"))

        with torch.no_grad():
            step_with(self.algorithm, update)(self.ours)

    def check(self) -> None:
        for mine, theirs in zip(self.params, self.eagers, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(self.ours.state.values(), self.eager.state.values(), strict=True):
            assert mine.keys() == theirs.keys()
            for key, value in theirs.items():
                torch.testing.assert_close(mine[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", COUNTED)
def test_counts_on_the_card_are_read_there(card: list[SimulatedRows], name: str) -> None:
    twins = Twins(name)
    for _ in range(3):
        twins.advance()
        twins.eager.step()
    twins.check()
    assert len(card) == 3


def test_counts_and_rates_on_the_card_compile_nothing(card: list[SimulatedRows]) -> None:
    """A rate in a tensor, as schedulers of captured steps have it, is read by the kernel."""
    updater = Updater(MODEL)

    def rule_of(rate: Tensor) -> Any:
        def rule(cells: list[list[Any]], step: Any) -> None:
            step += 1
            cells[0][0].addcmul_(cells[1][0], rate / step)

        return rule

    params, grads, steps = tensors(), tensors(), [torch.zeros(()) for _ in LENGTHS]
    want = [param.clone() for param in params]
    for number, rate in enumerate((0.5, 0.25, 2.0), 1):
        assert updater.run(rule_of(torch.tensor(rate)), (params, grads), steps)
        want = [each + grad * (rate / number) for each, grad in zip(want, grads, strict=True)]
    for param, wanted in zip(params, want, strict=True):
        torch.testing.assert_close(param, wanted)
    assert updater.compiled == 1


def test_gradients_are_unscaled_by_a_tensor_of_the_card(card: list[SimulatedRows]) -> None:
    twins = Twins("adamw")
    for scale in (4.0, 16.0):
        twins.advance(grad_scale=torch.tensor(scale), found_inf=torch.tensor(0.0))
        for param, eager in zip(twins.params, twins.eagers, strict=True):
            torch.testing.assert_close(param.grad, eager.grad)  # as eager's kernel leaves them
        twins.eager.step()
    twins.check()


def test_nothing_changes_where_infinities_were_found(card: list[SimulatedRows]) -> None:
    twins = Twins("adamw")
    twins.advance()
    twins.eager.step()
    before = [param.detach().clone() for param in twins.params]
    twins.advance(grad_scale=torch.tensor(2.0), found_inf=torch.tensor(1.0))
    for param, was in zip(twins.params, before, strict=True):
        assert torch.equal(param, was)
    twins.check()  # the states, and the counts too


def test_momenta_that_are_made_are_zeros_where_infinities_were_found(card: list[SimulatedRows]) -> None:
    def rule(cells: list[list[Any]], step: Any) -> None:
        if cells[2][0] is None:
            cells[2][0] = cells[1][0].clone()

    params, grads = tensors(), tensors()
    for found, is_written in ((1.0, False), (0.0, True)):
        momenta: list[Any] = [None] * len(params)
        assert Updater(MODEL).run(rule, (params, grads, momenta), [], torch.tensor(found))
        for momentum, grad in zip(momenta, grads, strict=True):
            assert torch.equal(momentum, grad if is_written else torch.zeros_like(grad))


# --- code -------------------------------------------------------------------------------------------------------------


def ptx_of(capability: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The code of AdamW for a card."""
    found: list[str] = []
    generator = GpuGenerator(describe(capability))

    class Generator:
        def compile_rows(self, kernel: Any, flag: str | None = None) -> Any:
            text = emit_rows(on_grid(kernel), generator.target, "lw_kernel", flag)
            found.append(generator.jit.emit(text, 0, verify=True).decode())

    monkeypatch.setattr(
        module, "card_target", lambda index, *, relaxed: replace(MODEL, generate=lambda target: Generator())
    )
    options: dict[str, Any] = {
        "amsgrad": False,
        "has_complex": False,
        "beta1": 0.9,
        "beta2": 0.99,
        "lr": 0.1,
        "weight_decay": 0.1,
        "eps": 1e-8,
        "maximize": False,
        "capturable": False,
        "differentiable": False,
        "decoupled_weight_decay": True,
    }
    rows = [tensors(lengths=(8, 8)) for _ in range(4)]
    rule, columns, counts = rows_of(ADAM, (*rows, [], [torch.zeros(()) for _ in range(2)]), options)
    table = Table.of(columns, counts)
    ((dtypes, step, _, _),) = table.groups() or ()
    Updater(MODEL).compiled_for(rule, table, dtypes, step, 0)
    return found[0]


@pytest.mark.parametrize("capability", [70, 80, 90, 100])
def test_code_of_cards(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read where it lies, and rows are known to be global memory, by 16 bytes at a time."""
    text = ptx_of(capability, monkeypatch)
    assert re.search(r"\.param \.align 8 \.b8 \w+\[4096\]", text)
    assert ".local" not in text
    assert re.search(r"ld\.global\.v[24]", text) and re.search(r"st\.global\.v[24]", text)
    assert not re.search(r"\b(ld|st)\.[fbuv]\d", text), "generic addresses"
    if capability in ptxas.supported():
        found = ptxas.assemble(text, capability)
        assert found.spills == 0 and found.registers <= 64, found
