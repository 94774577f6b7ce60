"""compile() as function and decorator, on functions and modules; torch.compile(backend=...); autograd; errors."""

from __future__ import annotations

import asyncio
import copy
import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

import lampwork
from lampwork.errors import GraphBreakError, OptionError


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.scale = 2.0

    def forward(self, x):
        return self.fc(x) * self.scale


# --- compile() --------------------------------------------------------------------------------------------------------


def test_decorator_with_and_without_arguments():
    @lampwork.compile
    def f(x):
        return x * 2

    @lampwork.compile(fullgraph=True)
    def g(x):
        return x + 1

    x = torch.randn(5)
    assert torch.equal(f(x), x * 2) and torch.equal(g(x), x + 1)
    assert f.__name__ == "f" and f.__wrapped__ is not None


def test_decorated_method_binds_self():
    class Doubler:
        factor = 2

        @lampwork.compile
        def run(self, x):
            return x * self.factor

    x = torch.randn(3)
    assert torch.equal(Doubler().run(x), x * 2)


@pytest.mark.parametrize(
    "keywords, part",
    [
        (dict(options={"strikt": True}), "did you mean 'strict'"),
        (dict(options={"strict": 1}), "takes True or False"),
        (dict(mode="max-autotun"), "did you mean 'max-autotune'"),
        (dict(backend="nativ"), "native"),
    ],
)
def test_unknown_options_name_the_known_ones(keywords, part):
    with pytest.raises(OptionError, match=part):
        lampwork.compile(lambda x: x, **keywords)


def test_disable_returns_the_function_itself():
    def f(x):
        return x

    assert lampwork.compile(f, disable=True) is f


# --- modules ----------------------------------------------------------------------------------------------------------


def test_a_compiled_module_is_the_module():
    model = Affine()
    compiled = lampwork.compile(model)
    assert isinstance(compiled, nn.Module)
    assert compiled.fc is model.fc and compiled.scale == 2.0
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert compiled.train(False) is compiled and not model.training
    compiled.scale = 3.0
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        compiled.scale = 5.0
        torch.testing.assert_close(compiled(x), model(x))
        compiled.double()
        torch.testing.assert_close(compiled(x.double()), model(x.double()))


def test_a_compiled_module_inside_another():
    inner = Affine()
    outer = nn.Sequential(lampwork.compile(inner), nn.ReLU())
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(outer(x), torch.relu(inner(x)))
        torch.testing.assert_close(lampwork.compile(outer)(x), torch.relu(inner(x)))
    assert list(outer.state_dict()) == ["0.fc.weight", "0.fc.bias"]


def test_hooks_run():
    model = Affine()
    compiled = lampwork.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        handle = model.register_forward_hook(lambda m, args, out: out + 1)
        torch.testing.assert_close(compiled(x), model(x))
        handle.remove()
        torch.testing.assert_close(compiled(x), model(x))


# --- autograd ---------------------------------------------------------------------------------------------------------


def test_backward_is_exactly_eagers():
    model, twin = nn.Sequential(Affine(), nn.Tanh(), nn.Linear(3, 2)), None
    twin = copy.deepcopy(model)
    compiled = lampwork.compile(model)
    x = torch.randn(5, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    lampwork.reset_stats()
    out, want = compiled(x), twin(y)
    torch.testing.assert_close(out, want)
    assert out.requires_grad and lampwork.stats()["compiled_calls"] == 1
    out.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_training_loop_converges_as_eager():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    twin = copy.deepcopy(model)
    compiled = lampwork.compile(model)
    data = torch.randn(16, 4)
    for net, call in ((model, compiled), (twin, twin)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (call(data) - 1).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_detach_and_no_grad_inside_stop_gradients():
    def f(x, w):
        with torch.no_grad():
            scale = (x * w).sum()
        return x * w * scale + (x * w).detach() * w

    compiled = lampwork.compile(f)
    x, w = (torch.randn(4, requires_grad=True) for _ in range(2))
    want = torch.autograd.grad(f(x, w).sum(), (x, w))
    got = torch.autograd.grad(compiled(x, w).sum(), (x, w))
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_double_backward():
    def f(x):
        return (x.sin() * x).sum()

    x = torch.randn(5, requires_grad=True)
    compiled = lampwork.compile(f)
    (g,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), x)
    (h,) = torch.autograd.grad(f(x), x, create_graph=True)
    (hh,) = torch.autograd.grad(h.sum(), x)
    torch.testing.assert_close(g, h)
    torch.testing.assert_close(gg, hh)


# --- torch.compile ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_backend_of_torch_compile():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    lampwork.reset_stats()
    compiled = torch.compile(model, backend="lampwork")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert lampwork.stats()["compiled_calls"] == 1
    out = compiled(x.requires_grad_())
    torch.testing.assert_close(
        torch.autograd.grad(out.sum(), x)[0], torch.autograd.grad(model(x).sum(), x)[0]
    )


@pytest.mark.slow
def test_torch_compile_hands_on_its_mode_and_options():
    def f(x):
        return torch.relu(x) + 1

    x = torch.randn(4)
    compiled = torch.compile(f, backend="lampwork", options={"strict": True})
    assert torch.equal(compiled(x), f(x))
    with pytest.raises(Exception, match="did you mean 'strict'"):
        torch.compile(f, backend="lampwork", options={"strikt": True})(torch.randn(5))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(f, backend="lampwork", mode="max-autotune")(x), f(x))


# --- graph breaks -----------------------------------------------------------------------------------------------------


def test_print_breaks_and_prints_once_per_call(capsys):
    def f(x):
        y = x * 2
        print("shape", tuple(y.shape))
        return y + 1

    compiled = lampwork.compile(f)
    x = torch.randn(4)
    lampwork.reset_stats()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert capsys.readouterr().out == "shape (4,)\n" * 3
    stats = lampwork.stats()
    assert stats["breaks"] == 1 and stats["partial_calls"] == 3 and stats["regions"] == 2, stats


def test_branch_on_data():
    def f1(x, y):
        x = torch.sin(x)
        x = torch.matmul(x, y)
        if x.sum() < 0:
            return -y
        return y

    compiled = lampwork.compile(f1)
    x, y = torch.rand(3, 4), torch.rand(4, 2)
    assert torch.equal(compiled(x, y), y)
    assert torch.equal(compiled(-x, y), -y)
    assert torch.equal(compiled(x, y), y)


def test_fullgraph_names_the_line():
    def f(x):
        y = x * 2
        print(y.shape)
        return y

    with pytest.raises(GraphBreakError) as caught:
        lampwork.compile(f, fullgraph=True)(torch.randn(3))
    line = f.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}" in str(caught.value) and "print" in str(caught.value)


# --- bad input --------------------------------------------------------------------------------------------------------

BAD = [
    ("text",),
    (None,),
    (torch.randn(2, 5),),
    (torch.zeros(2, 4, dtype=torch.int64),),
    (torch.randn(2, 4, device="meta"),),
    (),
    (torch.randn(2, 4), torch.randn(1)),
]


@pytest.mark.parametrize("args", BAD, ids=lambda a: "-".join(type(v).__name__ for v in a) or "none")
def test_bad_input_raises_as_eager(args):
    model = Affine()
    compiled = lampwork.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        try:
            want, failure = model(*args), None
        except Exception as error:  # noqa: BLE001  (whatever eager raises)
            failure = error
        if failure is None:
            assert compiled(*args).device == want.device
        else:
            with pytest.raises(type(failure)) as caught:
                compiled(*args)
            assert str(caught.value) == str(failure)
        torch.testing.assert_close(compiled(x), model(x))


def test_exception_inside_the_model_has_the_users_frame():
    def f(x, n):
        y = x * 2
        if n > 3:
            raise ValueError(f"n is {n}")
        return y

    compiled = lampwork.compile(f)
    with pytest.raises(ValueError, match="n is 5") as caught:
        compiled(torch.randn(3), 5)
    assert any(entry.path == __file__ or str(entry.path) == __file__ for entry in caught.traceback)
    assert torch.equal(compiled(torch.ones(3), 2), torch.full((3,), 2.0))


def test_index_out_of_range_raises_as_eager():
    table = nn.Embedding(10, 4)
    compiled = lampwork.compile(table)
    with torch.no_grad():
        compiled(torch.tensor([1, 2]))
        with pytest.raises(IndexError) as caught:
            compiled(torch.tensor([1, 10]))
        with pytest.raises(IndexError) as expected:
            table(torch.tensor([1, 10]))
    assert str(caught.value) == str(expected.value)


def test_what_cannot_be_captured_runs_with_one_warning(monkeypatch):
    monkeypatch.setenv("LAMPWORK_STRICT", "0")

    async def f(x):
        return x + 1

    compiled = lampwork.compile(f)
    lampwork.reset_stats()
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(asyncio.run(compiled(x)), asyncio.run(compiled(x)))
    ours = [w for w in caught if issubclass(w.category, lampwork.LampworkWarning)]
    assert len(ours) == 1 and "[LW1" in str(ours[0].message) and __file__ in str(ours[0].message)
    assert lampwork.stats()["eager_calls"] == 2


# --- process-wide promises --------------------------------------------------------------------------------------------


def run_python(text: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    text = """
import sys, time, torch
before = set(sys.modules)
import lampwork
names = {"torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "llvmlite", "transformers"}
heavy = names & (set(sys.modules) - before)
assert not heavy, heavy
"""
    run_python(text)


def test_compiling_alexnet_imports_no_heavy_torch():
    text = """
import sys, torch, lampwork
from lampwork.bench.models import load
w = load("alexnet")
with torch.no_grad(): lampwork.compile(w.fn)(*w.inputs)
heavy = {"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules)
assert not heavy, heavy
assert lampwork.stats()["compiled_calls"] == 1
"""
    run_python(text)


def test_no_compiler_is_needed_at_run_time(tmp_path):
    text = """
import shutil, torch, lampwork
assert not any(shutil.which(name) for name in ("gcc", "g++", "cc", "c++", "clang", "ld", "as"))
f = lampwork.compile(lambda x, w: torch.softmax(x @ w, -1))
x, w = torch.randn(8, 16), torch.randn(16, 16)
torch.testing.assert_close(f(x, w), torch.softmax(x @ w, -1))
assert lampwork.stats()["compiled_calls"] == 1
"""
    run_python(text, PATH=str(tmp_path), LAMPWORK_STRICT="1")


def test_many_threads_compile_and_call_one_function():
    lampwork.reset_stats()
    compiled = lampwork.compile(lambda x: torch.softmax(x * 2, -1) + x)
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(seed % 3 + 2, 5, generator=generator)
            if not torch.allclose(compiled(x), torch.softmax(x * 2, -1) + x, atol=1e-6):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert lampwork.stats()["eager_calls"] == 0


def test_outputs_are_fresh():
    f = lampwork.compile(lambda x: x + 1)
    a = f(torch.zeros(4))
    b = f(torch.ones(4))
    assert a.data_ptr() != b.data_ptr() and torch.equal(a, torch.ones(4))


def test_module_guards_rest_on_dict_versions():
    compiled = lampwork.compile(nn.Sequential(Affine(), nn.ReLU(), nn.BatchNorm1d(3)).eval())
    x = torch.randn(2, 4)
    for mode in (torch.no_grad(), torch.enable_grad()):
        with mode:
            for _ in range(5):
                compiled(x)
    assert [entry.full_checks for entry in compiled._lampwork_compiled.raw_entries] == [1, 1]


@pytest.mark.slow
def test_modules_are_made_inside_a_region_after_dynamo_was_used():
    text = """
import torch, lampwork
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
def f(x, y):
    return torch.nn.CrossEntropyLoss()(x, y)
x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
torch.testing.assert_close(lampwork.compile(f, fullgraph=True)(x, y), f(x, y))
"""
    run_python(text, LAMPWORK_STRICT="1")
