"""Bound tensors and what is computed from them: never stale, never computed twice for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from runtime_programs import Kernels, value

from lampwork.errors import RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, CallKernel, Program, Ref, Value

N = 64


def bound_program(kernels: Kernels, bound: list[torch.Tensor]) -> Executable:
    """x + double(p) + q, where double(p) is a constant; p, q = bound."""
    like = torch.empty(N)
    constants = Program(
        (value("input", like, position=0), value("fresh", like)),
        (CallKernel(kernels["double"], (0, 1), extent=N),),
        (1,),
        2,
        0,
        0,
    )
    values = (
        value("input", like, position=0),
        value("constant", like, position=0),
        value("bound", like, position=1),
        value("arena", like),
        value("fresh", like),
    )
    calls = (
        CallKernel(kernels["add"], (0, 1, 3), extent=N),
        CallKernel(kernels["add"], (3, 2, 4), extent=N),
    )
    return Executable(Program(values, calls, (4,), 1, 2, N * 4, constants), bound)


def data_assign(p: torch.Tensor) -> None:
    p.data = torch.randn(N)


def data_mul(p: torch.Tensor) -> None:
    p.data.mul_(2)


def data_copy(p: torch.Tensor) -> None:
    p.data.copy_(torch.randn(N))


def numpy_write(p: torch.Tensor) -> None:
    p.detach().numpy()[:] = 3


def in_place(p: torch.Tensor) -> None:
    with torch.no_grad():
        p[3] = 7


def set_storage(p: torch.Tensor) -> None:
    with torch.no_grad():
        p.set_(torch.randn(N))


def optimizer_step(p: torch.Tensor) -> None:
    p.grad = torch.ones(N)
    torch.optim.SGD([p], lr=0.1).step()
    p.grad = None


@pytest.mark.parametrize(
    "change", [data_assign, data_mul, data_copy, numpy_write, in_place, set_storage, optimizer_step]
)
def test_every_change_of_a_parameter_is_seen(
    kernels: Kernels, change: Callable[[torch.Tensor], None]
) -> None:
    p, q = (torch.nn.Parameter(torch.randn(N)) for _ in range(2))
    run = bound_program(kernels, [p, q])
    x = torch.randn(N)
    for _ in range(3):
        torch.testing.assert_close(run.run([x])[0], (x + 2 * p + q).detach())
    assert run.stats["constant_refreshes"] == 0
    change(p)
    for _ in range(3):
        torch.testing.assert_close(run.run([x])[0], (x + 2 * p + q).detach())
    assert run.stats["constant_refreshes"] == 1
    change(q)
    torch.testing.assert_close(run.run([x])[0], (x + 2 * p + q).detach())
    assert run.stats["constant_refreshes"] == 1, "q feeds no constant"


def test_load_state_dict_is_seen(kernels: Kernels) -> None:
    module = torch.nn.Module()
    module.p, module.q = (torch.nn.Parameter(torch.randn(N)) for _ in range(2))
    run = bound_program(kernels, [module.p, module.q])
    x = torch.randn(N)
    run.run([x])
    module.load_state_dict({"p": torch.ones(N), "q": torch.zeros(N)})
    torch.testing.assert_close(run.run([x])[0], x + 2)


def test_inference_tensors_have_no_version_but_are_watched(kernels: Kernels) -> None:
    with torch.inference_mode():
        p, q = torch.randn(N), torch.randn(N)
        run = bound_program(kernels, [p, q])
        x = torch.randn(N)
        torch.testing.assert_close(run.run([x])[0], x + 2 * p + q)
        p.mul_(3)
        torch.testing.assert_close(run.run([x])[0], x + 2 * p + q)
    # Constants computed in inference mode serve calls outside of it.
    torch.testing.assert_close(run.run([x])[0], x + 2 * p + q)


def test_bound_tensor_of_other_shape_does_not_fit(kernels: Kernels) -> None:
    p, q = torch.randn(N), torch.randn(N)
    run = bound_program(kernels, [p, q])
    x = torch.randn(N)
    run.run([x])
    p.data = torch.randn(N + 1)
    with pytest.raises(RuntimeFailure, match="a bound tensor changed its shape"):
        run.run([x])
    p.data = torch.randn(N, dtype=torch.float64)
    with pytest.raises(RuntimeFailure):
        run.run([x])
    p.data = torch.randn(2 * N)[::2]
    with pytest.raises(RuntimeFailure):
        run.run([x])
    p.data = torch.ones(N)
    torch.testing.assert_close(run.run([x])[0], x + 2 + q)


def test_running_calls_that_write_to_a_bound_tensor(kernels: Kernels) -> None:
    """A counter, as BatchNorm's: copy_ into a bound tensor that feeds no constant refreshes nothing."""
    like = torch.empty(N)
    p, q = torch.zeros(N), torch.zeros(N)
    constants = Program((value("input", like, position=0),), (), (0,), 2, 0, 0)
    values = (
        value("input", like, position=0),
        value("constant", like, position=0),
        value("bound", like, position=1),
        value("arena", like),
    )
    calls = (CallKernel(kernels["add"], (0, 2, 3), extent=N), CallAten("aten::copy_", (Ref(2), Ref(3))))
    run = Executable(Program(values, calls, (), 1, 2, N * 4, constants), [p, q])
    for _ in range(4):
        run.run([torch.ones(N)])
    assert torch.equal(q, torch.full((N,), 4.0))
    assert run.stats["constant_refreshes"] == 0


def test_constants_that_leave_are_copies(kernels: Kernels) -> None:
    like = torch.empty(N)
    p = torch.ones(N)
    constants = Program(
        (value("input", like, position=0), value("fresh", like)),
        (CallKernel(kernels["double"], (0, 1), extent=N),),
        (1,),
        1,
        0,
        0,
    )
    values = (
        value("constant", like, position=0),
        value("bound", like, position=0),
        Value("aten", torch.float32, (8, 8), (8, 1)),
    )
    calls = (CallAten("aten::view", (Ref(0), [8, 8]), outs=(2,)),)
    run = Executable(Program(values, calls, (0, 1, 2), 0, 1, 0, constants), [p])
    for _ in range(2):
        constant, bound, view = run.run([])
        assert bound is p
        assert torch.equal(constant, torch.full((N,), 2.0)) and torch.equal(view, torch.full((8, 8), 2.0))
        constant.zero_()
        view.zero_()


def test_opaque_constants() -> None:
    """A weight packed by oneDNN has neither strides nor a data pointer that we may look at."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    weight, x = torch.randn(16, 32), torch.randn(8, 32)
    constants = Program(
        (value("input", weight, position=0), Value("aten")),
        (CallAten("mkldnn::_reorder_linear_weight", (Ref(0), 8), outs=(1,)),),
        (1,),
        1,
        0,
        0,
    )
    values = (
        value("input", x, position=0),
        Value("constant", position=0),
        Value("aten", torch.float32, (8, 16), (16, 1)),
    )
    calls = (CallAten("mkldnn::_linear_pointwise", (Ref(0), Ref(1), None, "none", [], ""), outs=(2,)),)
    run = Executable(Program(values, calls, (2,), 1, 1, 0, constants), [weight])
    torch.testing.assert_close(run.run([x])[0], torch.nn.functional.linear(x, weight))
    weight.mul_(2)
    torch.testing.assert_close(run.run([x])[0], torch.nn.functional.linear(x, weight))
