"""`lampwork.minify` and `lampwork minify script.py`: what fails is cut out of large programs, and nothing else is."""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys
import time
from unittest import mock

import pytest
import torch
from torch import nn

import lampwork
from lampwork.cli import main
from lampwork.errors import MinifyError, OptionError
from lampwork.lower import table
from lampwork.minifying.case import cut, own, units
from lampwork.minifying.data import evaluated, literal, simpler
from lampwork.minifying.noting import noting
from lampwork.minifying.reduce import _candidates, _narrowed, _resized
from lampwork.plugins.registry import registry
from lampwork.testing import failure

SIZES = (8, 6)


def deep(x):
    """Some 25 operators with one erf in their middle."""
    for number in range(10):
        x = x + torch.tanh(x) * 0.01 if number % 2 else torch.relu(x) * 0.02 + x
        if number == 5:
            x = torch.erf(x) * 3.0
    return x


def small(x):
    return torch.erf(torch.tanh(x) + 1) * 3.0 - x


@pytest.fixture
def quick(monkeypatch):
    """The script is not run in a process of its own, which takes seconds."""
    monkeypatch.setattr("lampwork.minifying.command._fails_alone", lambda *given: True)


@pytest.fixture
def plugged():
    """Registers for the time of a test."""
    made = []
    yield made.append
    for each in made:
        each.unregister()


def sees(graph, name):
    return any(name in str(node.target) for node in graph.nodes)


def wrong_rewrite(plugged):
    plugged(lampwork.rewrite("mul(erf(x), 3.0)", "mul(erf(x), 3.01)", name="planted"))


def test_a_wrong_rewrite_is_cut_out(quick, plugged, tmp_path):
    wrong_rewrite(plugged)
    said = []
    found = lampwork.minify(deep, torch.randn(SIZES), say=said.append)
    assert found.failure.kind == "wrong" and found.before > 25
    assert found.operators == 2 and "aten.erf.default" in found.script and "tanh" not in found.script
    assert "float32[1, 1]" in found.script  # sizes too
    assert any("operators fail alone" in text for text in said)
    assert repr(found).count("\n") == 0 and found.script in str(found)
    found.save(tmp_path / "small.py")
    assert (tmp_path / "small.py").read_text() == found.script
    with pytest.raises(OptionError, match="cannot be written"):
        found.save(tmp_path / "none" / "small.py")


def test_weights_and_keywords_that_do_not_matter_go(quick, plugged):
    plugged(lampwork.rewrite("relu(x)", "abs(x)", name="planted"))
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64, 5),
    ]
    model = lampwork.compile(nn.Sequential(*layers), dynamic=False, options={"numerics": "fast"})
    found = lampwork.minify(model, torch.randn(2, 3, 6, 6))
    assert found.operators == 1 and "aten.relu.default" in found.script
    assert "bound = []" in found.script and "numerics" not in found.script and "dynamic" not in found.script


def test_the_part_behind_a_graph_break(quick, plugged):
    def broken(x):
        y = torch.cos(x)
        print("between")
        return small(y)

    wrong_rewrite(plugged)
    found = lampwork.minify(broken, torch.randn(SIZES))
    assert found.operators == 2 and "resume" in found.name


def test_a_wrong_gradient(quick):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Sigmoid())
    rule = table.RULES["aten::sigmoid_backward"]
    with mock.patch.dict(table.RULES, {"aten::tanh_backward": rule}):
        found = lampwork.minify(model, torch.randn(SIZES))
        assert found.operators == 1 and "aten.tanh.default" in found.script
        assert "requires_grad_()" in found.script and "gradient 0" in found.failure.text
        with pytest.raises(MinifyError), torch.no_grad():
            lampwork.minify(model, torch.randn(SIZES))


def test_a_crash_by_a_signal(quick, plugged):
    def crash(graph, ctx):
        if sees(graph, "erf"):
            os.kill(os.getpid(), signal.SIGSEGV)

    plugged(lampwork.register_pass(crash, name="crash"))
    found = lampwork.minify(small, torch.randn(SIZES))
    assert found.operators == 1 and found.failure.what == "SIGSEGV"
    with pytest.raises(MinifyError):
        lampwork.minify(small, torch.randn(SIZES), check="wrong")


def test_a_fault_of_a_plugin(quick, plugged):
    def fault(graph, ctx):
        if sees(graph, "tanh"):
            raise ValueError("no erf")

    plugged(lampwork.register_pass(fault, name="fault"))
    options = {"strict": False}
    found = lampwork.minify(small, torch.randn(SIZES), options=options)
    assert found.operators == 1 and found.failure.what in ("LW301", "PluginPassError")


def test_what_takes_too_long(quick):
    def slow(graph, inputs):
        def run(*given):
            time.sleep(0.02)
            return graph(*given)

        return run

    lampwork.register_backend("slow-in-test", slow)
    found = lampwork.minify(
        lambda x: torch.erf(x).sin(), torch.randn(SIZES), check="slow", backend="slow-in-test"
    )
    assert found.failure.kind == "slow" and found.operators == 1
    assert "backend='slow-in-test'" in found.script and "kinds=('slow',)" in found.script


def test_no_end():
    def hanging(graph, inputs):
        time.sleep(1000)

    assert (
        str(failure(torch.sin, [torch.ones(3)], backend=hanging, seconds=1.5))
        == "crash: no end in 1.5 seconds"
    )


def test_nothing_fails(quick):
    with pytest.raises(MinifyError, match=r"\[LW331\] the one graph there is does not fail"):
        lampwork.minify(small, torch.randn(SIZES))
    with pytest.raises(MinifyError, match="nothing was compiled to a graph"):
        lampwork.minify(lambda x: x, 3)


def test_a_failure_that_comes_and_goes(quick, plugged, tmp_path):
    seen = tmp_path / "seen"

    def flaky(graph, ctx):
        if not seen.exists():
            seen.touch()
            os.abort()

    plugged(lampwork.register_pass(flaky, name="flaky"))
    with pytest.raises(
        MinifyError, match="does not fail the same way each time: crash: .*SIGABRT, then right"
    ):
        lampwork.minify(small, torch.randn(SIZES))


@pytest.mark.parametrize(
    "given, says",
    [
        ({"check": "broken"}, "check is 'broken'"),
        ({"seconds": -1}, "seconds is -1"),
        ({"slow": 0.5}, "slow is 0.5"),
        ({"wide": True}, "no keyword 'wide'"),
    ],
)
def test_wrong_arguments(given, says):
    with pytest.raises(OptionError, match=says):
        lampwork.minify(small, torch.randn(SIZES), **given)


def test_a_model_that_raises_raises():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        lampwork.minify(lambda x: x @ x, torch.randn(2, 3))


def test_a_model_that_needs_a_backend_without_a_name(quick):
    with pytest.raises(MinifyError, match="a script cannot name the backend"):
        lampwork.minify(small, torch.randn(SIZES), backend=lambda graph, inputs: graph)


def test_failure_of_functions():
    x = torch.randn(4)
    assert failure(torch.sin, [x]) is None
    with pytest.raises(OptionError, match="without being compiled"):
        failure(lambda x: x.reshape(3), [x])
    with pytest.raises(OptionError, match="kinds is"):
        failure(torch.sin, [x], kinds=("odd",))


# --- parts ------------------------------------------------------------------------------------------------------------


def case_of(fn, *inputs):
    with noting() as noted:
        lampwork.compile(fn)(*inputs)
    return noted.cases[0]


def test_a_piece_computes_what_it_did_in_the_whole():
    case = case_of(lambda x: (torch.topk(x.t().expand(3, 6, 8), 2, 0).values * 2).sum(0), torch.randn(SIZES))
    values, calls = case.values(), units(case.graph)
    for first, last in itertools.combinations(range(len(calls) + 1), 2):
        piece = cut(case, calls[first:last], values)
        by_name = {node.name: value for node, value in values.items()}
        for node, value in piece.values().items():
            if isinstance(value, torch.Tensor):
                assert (
                    torch.equal(value, by_name[node.name]) and value.stride() == by_name[node.name].stride()
                )


def test_candidates_are_pieces_windows_and_rests():
    letters = [(each,) for each in "abcdefgh"]
    found = ["".join(part for (part,) in each) for each in _candidates(letters, 4)]
    assert found == ["ab", "cd", "ef", "gh", "bc", "de", "fg", "cdefgh", "abefgh", "abcdgh", "abcdef"]


TENSORS = [
    torch.randn(3, 4),
    torch.randn(4, 3).t(),
    torch.randn(3, 1).expand(3, 5),
    torch.randn(6)[::2],
    torch.tensor(float("nan")),
    torch.tensor([float("inf"), -0.0]),
    torch.randn(200, dtype=torch.bfloat16),
    torch.randint(0, 9, (3, 2)),
    torch.tensor([True, False]),
    torch.randn(2, dtype=torch.complex64),
    torch.empty(0, 3),
    torch.randn(2, requires_grad=True),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}{tuple(t.shape)}")
def test_tensors_as_source(tensor):
    same = evaluated(literal(tensor))
    assert same.stride() == tensor.stride() and same.requires_grad == tensor.requires_grad
    torch.testing.assert_close(same, tensor, rtol=0, atol=0, equal_nan=True)
    if tensor.dtype.is_floating_point:
        assert torch.equal(same.signbit(), tensor.signbit())
    for text in simpler(tensor, 0):
        made = evaluated(text)
        assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert own(tensor).stride() == tensor.stride()


def test_smaller_tensors_keep_the_order_of_their_memory():
    x = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    small = _narrowed(x, 3, 2)
    assert small.shape == (4, 2, 2) and torch.equal(small, x[:, :, :2]) and small.stride() == (1, 8, 4)
    wide = torch.arange(4.0).expand(3, 4)
    assert torch.equal(_narrowed(wide, 4, 2), wide[:, :2]) and _narrowed(wide, 3, 2).stride() == (0, 1)


def test_sizes_change_in_arguments_too():
    case = _resized(case_of(lambda x: x.reshape(2, 6).sum(1), torch.randn(3, 4)), 6, 2)
    assert "[2, 2]" in str(next(n for n in case.graph.nodes if "view" in str(n.target)).args)


# --- the command ------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch, lampwork

{rewrite}

def deep(x):
    for number in range(6):
        x = x + torch.tanh(x) * 0.01
    return torch.erf(x) * 3.0 + x

torch.manual_seed(0)
assert sys.argv[1:] == ["-n", "3"]
lampwork.compile(deep)(torch.randn(4, 4))
{end}
"""
REWRITE = 'lampwork.rewrite("mul(erf(x), 3.0)", "mul(erf(x), 3.01)", name="planted-in-script")'


@pytest.fixture
def script(tmp_path):
    def write(rewrite="", end=""):
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(rewrite=rewrite, end=end))
        return str(path)

    yield write
    for item in lampwork.rewrites():
        if item.name == "planted-in-script":
            registry().items[item.name].unregister()


def test_the_command_writes_a_script_that_fails(script, tmp_path, capsys):
    output = tmp_path / "small.py"
    status = main(["minify", "-o", str(output), script(REWRITE, "sys.exit(3)"), "-n", "3"])
    said = capsys.readouterr()
    assert status == 0 and "2 of " in said.out and "in this process only" not in said.out
    assert "exit status 3" in said.err
    text = output.read_text()
    assert REWRITE in text
    output.write_text(text.replace(REWRITE, ""))
    registry().items["planted-in-script"].unregister()
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(output), run_name="__main__")
    assert ended.value.code == 0 and "it does not fail" in capsys.readouterr().out


def test_the_command_says_that_nothing_fails(script, tmp_path, capsys):
    before = sys.argv, sys.path[:]
    assert main(["minify", "--quiet", "-o", str(tmp_path / "small.py"), script(), "-n", "3"]) == 2
    said = capsys.readouterr()
    assert "does not fail" in said.err and not said.out and not (tmp_path / "small.py").exists()
    assert main(["minify", str(tmp_path / "none.py")]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert (sys.argv, sys.path) == before
