"""The content hash: what changes it, and what does not."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import lampwork
from lampwork.plugins.fingerprint import content_hash

PLUGIN = """
    import math
    from torch import Tensor, relu

    FACTOR = 2.0

    def helper(x):
        return x * FACTOR

    def unused(x):
        return x

    class Mine:
        name = "mine"
        options = {"a": 1, "b": {"x", "y", "z"}}

        def pattern(x: Tensor):
            return relu(relu(x))

        def replacement(x):
            return relu(helper(x) / math.sqrt(4))

        @staticmethod
        def inner():
            return [lambda y, k=3: y + k]
"""


def load(path: Path, text: str, name: str = "content_plugin") -> Any:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hash_of(path: Path, text: str, name: str = "content_plugin") -> str:
    return content_hash(load(path, text, name).Mine)


def test_moving_and_spacing_a_file_changes_nothing(tmp_path: Path) -> None:
    first = hash_of(tmp_path / "a.py", PLUGIN)
    assert hash_of(tmp_path / "a.py", PLUGIN) == first
    assert hash_of(tmp_path / "b" / "other.py", PLUGIN, "another_name") == first
    spaced = PLUGIN.replace("    def helper", "    # a comment\n\n\n    def helper")
    assert hash_of(tmp_path / "c.py", spaced) == first


@pytest.mark.parametrize(
    "old, new",
    [
        ("relu(relu(x))", "relu(-x)"),  # the body
        ("x * FACTOR", "x + FACTOR"),  # of a helper
        ("FACTOR = 2.0", "FACTOR = 3.0"),  # a global of the helper
        ("FACTOR = 2.0", "FACTOR = 2"),  # equal in Python
        ("x: Tensor", "x: float"),  # an annotation
        ('"a": 1', '"a": 7'),  # a class attribute
        ("k=3", "k=4"),  # a default of a nested function
        ("y + k", "y - k"),  # its body
        ("math.sqrt", "math.exp"),
    ],
)
def test_an_edit_changes_it(tmp_path: Path, old: str, new: str) -> None:
    assert old in PLUGIN
    assert hash_of(tmp_path / "a.py", PLUGIN) != hash_of(tmp_path / "b.py", PLUGIN.replace(old, new))


def test_what_is_not_reached_does_not_count(tmp_path: Path) -> None:
    edited = PLUGIN.replace("def unused(x):\n        return x", "def unused(x):\n        return -x")
    assert edited != PLUGIN
    assert hash_of(tmp_path / "a.py", PLUGIN) == hash_of(tmp_path / "b.py", edited)


def test_helpers_in_other_files_of_the_author_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = "import content_helpers\ndef Mine(x):\n    return content_helpers.half(x)\n"
    found = set()
    for body in ("x / 2", "x * 0.5", "x / 2"):
        helpers = load(
            tmp_path / "content_helpers.py", f"def half(x):\n    return {body}\n", "content_helpers"
        )
        monkeypatch.setitem(sys.modules, "content_helpers", helpers)
        found.add(hash_of(tmp_path / "user.py", user))
    assert len(found) == 2


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    here = hash_of(tmp_path / "stable.py", PLUGIN)
    program = f"""
        import sys, importlib.util
        spec = importlib.util.spec_from_file_location("elsewhere", {str(tmp_path / "stable.py")!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from lampwork.plugins.fingerprint import content_hash
        print(content_hash(module.Mine))
    """
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            timeout=120,
        )
        assert done.stdout.strip() == here


def test_closures_and_defaults_count() -> None:
    def make(factor, weight):
        def replace(x, shift=weight):
            return x * factor + shift

        return replace

    one = torch.ones(2)
    assert content_hash(make(2, one)) == content_hash(make(2, torch.ones(2)))
    assert content_hash(make(2, one)) != content_hash(make(3, one))
    assert content_hash(make(2, one)) != content_hash(make(2, 2 * one))
    assert content_hash(functools.partial(make, 1)) != content_hash(functools.partial(make, 2))


def test_instances_count_with_their_state() -> None:
    @dataclass
    class Options:
        level: int = 1

    class Backend:
        name = "one"

        def __init__(self, level: int) -> None:
            self.options = Options(level)
            self.lock = threading.Lock()
            self.me = self

        def compile(self, graph: Any) -> Any:
            return [n for n in graph if n.target in {"add", "mul", "relu", "neg"}]

    assert content_hash(Backend(1)) == content_hash(Backend(1))
    assert content_hash(Backend(1)) != content_hash(Backend(2))
    changed = Backend(1)
    changed.options.level = 5
    assert content_hash(changed) == content_hash(Backend(5))


def test_slots_count() -> None:
    @dataclass(frozen=True, slots=True)
    class Options:
        level: int

    assert content_hash(Options(1)) == content_hash(Options(1)) != content_hash(Options(2))


def test_a_state_that_cannot_be_seen_counts_as_itself() -> None:
    one, other = torch.Generator(), torch.Generator()
    assert content_hash([one]) == content_hash([one]) != content_hash([other])


def test_numbers_of_different_kinds_differ() -> None:
    found = {content_hash(v) for v in (1, 1.0, True, "1", (1,), [1], {1}, {1: 1}, None, 0.0, -0.0)}
    assert len(found) == 11


def test_the_framework_and_its_backends_count_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from lampwork.backends.registry import get_backend

    first = content_hash(get_backend("native"))
    assert first == content_hash(get_backend("native")) != content_hash(get_backend("eager"))
    monkeypatch.setattr(lampwork, "__version__", "0.0.0")
    assert content_hash(get_backend("native")) != first


def test_structures_without_end_end() -> None:
    """They count as equal to nothing, so that nothing made for one is taken for another."""
    chain: Any = None
    for _ in range(5000):
        chain = [chain]
    assert content_hash(chain) != content_hash(chain)


def test_handles_count_as_what_they_stand_for() -> None:
    one = lampwork.rewrite("relu(relu(x))", "relu(x)", name="content_one")
    before = content_hash(lambda: one.disable())
    one.disable()
    assert content_hash(lambda: one.disable()) == before
    one.unregister()
    other = lampwork.rewrite("relu(relu(x))", "abs(relu(x))", name="content_one")
    one, first = other, one
    assert content_hash(lambda: one.disable()) != before
    other.unregister()
    assert first.hash != other.hash


def test_an_installed_plug_in_counts_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lampwork.plugins import fingerprint as content

    monkeypatch.setattr(content, "_INSTALLED", (str(tmp_path),))
    hashes = set()
    for body in ("relu(relu(x))", "relu(-x)"):
        text = PLUGIN.replace("relu(relu(x))", body)
        module = load(tmp_path / "installed_plugin.py", text, "installed_plugin")
        monkeypatch.setitem(sys.modules, "installed_plugin", module)
        hashes.add(content_hash(("rewrite", "mine", module.Mine)))
        content._is_installed.cache_clear()
        assert content._is_installed("installed_plugin")
        content._is_installed.cache_clear()
    assert len(hashes) == 2
