"""Whoever observes a compilation is told of each stage, in order."""

import pytest
import torch

from lampwork.api import check_keywords, make_function
from lampwork.backends.observer import NOBODY, Observer
from lampwork.compiled.pipeline import build_entry
from lampwork.compiled.stages import Stages

STAGES = ("captured", "recorded", "transformed", "partitioned", "compiled", "finished")


class Listener(Observer):
    def __init__(self):
        self.told = []

    def __getattribute__(self, name):
        if name not in STAGES:
            return super().__getattribute__(name)
        return lambda *what: self.told.append((name, what))


def compiled_under(observer, fn):
    keywords = check_keywords()
    function = make_function(fn, keywords)
    function.build = lambda region, owner, stages: build_entry(region, owner, observer, keywords.backends)
    return function.compiled


def test_every_stage_is_told_once_in_order():
    listener = Listener()
    x = torch.randn(4)
    torch.testing.assert_close(compiled_under(listener, lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert [name for name, _ in listener.told] == list(STAGES)
    texts, counts, _ = dict(listener.told)["compiled"]
    assert "kernel" in texts["kernels"]() and counts["kernel calls"] == 1


def test_a_region_without_tensors_has_only_ends():
    listener = Listener()
    assert compiled_under(listener, lambda x: x)(3) == 3
    assert [name for name, _ in listener.told] == ["captured", "finished"]


def test_nobody_has_to_look():
    x = torch.randn(4)
    torch.testing.assert_close(compiled_under(NOBODY, lambda x: x.cos())(x), x.cos())


def test_a_stage_that_does_not_exist():
    with pytest.raises(ValueError, match="wishes: no such stage; the stages are bytecode, guards"):
        Stages("f").compiled({"wishes": str}, {}, {})
