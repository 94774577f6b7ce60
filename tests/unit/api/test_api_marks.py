"""disable(): functions and modules that are left to plain Python."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import lampwork
from lampwork.errors import CaptureError, GraphBreakError, OptionError

X = torch.arange(6.0).reshape(2, 3)
SEEN: list[bool] = []


def look(x):
    """Look."""
    SEEN.append(type(x) is torch.Tensor and x.tolist() is not None)
    return x + 1


@lampwork.disable
def marked(x):
    return look(x)


@lampwork.disable(reason="it is shy", recursive=False)
def shy(x):
    return look(x)


class Head(nn.Module):
    def forward(self, x):
        return look(x)


class Model(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x):
        return self.head(x * 2) * 3


@pytest.mark.parametrize("inner", [marked, shy, lampwork.disable(look), lampwork.disable(Head().forward)])
def test_a_call_of_it_is_a_break(inner):
    lampwork.reset_stats()
    SEEN.clear()
    compiled = lampwork.compile(lambda x: inner(x * 2) * 3)
    for _ in range(2):
        assert torch.equal(compiled(X), (X * 2 + 1) * 3)
    stats = lampwork.stats()
    assert (stats["breaks"], stats["regions"], stats["partial_calls"]) == (1, 2, 2), stats
    assert SEEN == [True, True]
    (record,) = compiled.entries[0].breaks
    assert record.code == "LW113"


def test_the_reason_is_in_the_record():
    with pytest.raises(GraphBreakError, match="it is shy"):
        lampwork.compile(lambda x: shy(x), fullgraph=True)(X)


def test_modules_are_marked_themselves():
    head = Head()
    assert lampwork.disable(head) is head
    assert torch.equal(pickle.loads(pickle.dumps(head))(X), X + 1)
    lampwork.reset_stats()
    compiled = lampwork.compile(Model(head))
    assert torch.equal(compiled(X), (X * 2 + 1) * 3)
    assert lampwork.stats()["breaks"] == 1 and compiled.entries[0].breaks[0].code == "LW113"

    @lampwork.disable
    class Own(Head):
        pass

    assert isinstance(Own, type)
    assert lampwork.compile(Model(Own()))(X).equal((X * 2 + 1) * 3)
    assert not getattr(Head(), "_torchdynamo_disable", False)


def test_as_the_function_that_is_compiled(monkeypatch):
    with pytest.raises(CaptureError) as caught:
        lampwork.compile(marked)(X)
    assert caught.value.code == "LW113"
    monkeypatch.setenv("LAMPWORK_STRICT", "0")
    for fn in (marked, lampwork.disable(Head())):
        compiled = lampwork.compile(fn)
        with pytest.warns(lampwork.LampworkWarning, match="LW113"):
            assert torch.equal(compiled(X), X + 1)


def test_wrappers_and_members():
    assert marked.__name__ == "marked" and lampwork.disable(look).__doc__ == "Look."
    assert lampwork.disable(look).__wrapped__ is look and not hasattr(look, "_torchdynamo_disable")

    class Holder:
        @lampwork.disable
        def method(self, x):
            return x, self

        @lampwork.disable
        @staticmethod
        def static(x):
            return x

        @lampwork.disable(reason="-")
        @classmethod
        def of_class(cls, x):
            return x, cls

    holder = Holder()
    assert holder.method(1) == (1, holder) and Holder.static(2) == 2 and holder.of_class(3) == (3, Holder)


@pytest.mark.parametrize("bad, kind", [(3, "int"), (dict, "a class"), ("text", "str")])
def test_what_cannot_be_disabled(bad, kind):
    with pytest.raises(OptionError) as caught:
        lampwork.disable(bad)
    assert caught.value.cause == f"disable() takes a function or a module, got {kind}"


@pytest.mark.slow
def test_torch_compile_leaves_it_alone_too():
    text = """
import sys, torch, lampwork
def look(x):
    return x.sin().cos()
outer, inner = lampwork.disable(look), lampwork.disable(lambda x: look(x), recursive=False)
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
for fn, expected in ((outer, [["mul"], ["add"]]), (inner, [["mul"], ["sin", "cos"], ["add"]])):
    graphs = []
    def backend(gm, inputs):
        graphs.append([n.name for n in gm.graph.nodes if n.op.startswith("call")])
        return gm
    x = torch.ones(3)
    assert torch.equal(torch.compile(lambda x: fn(x * 2) + 1, backend=backend)(x), look(x * 2) + 1)
    assert graphs == expected, graphs
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
