"""Random writes to caches against eager: results, what the caches hold, and which results share their memory."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from writes_support import arguments, copied, run, source

import lampwork

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "60"))


def _function(path: Path, seed: int) -> Any:
    file = path / f"writes_{seed}.py"
    file.write_text("import torch\n\n" + source(seed))
    spec = importlib.util.spec_from_file_location(f"writes_{seed}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_writes(seed: int, tmp_path: Path) -> None:
    function = _function(tmp_path, seed)
    compiled = lampwork.compile(function)
    for turn in range(3):
        values = arguments(seed)
        # The last turn's place is past the end: eager raises, after what it has done by then.
        values[3] += turn if turn < 2 else 20
        mine, theirs = copied(values), copied(values)
        kind, got = run(compiled, mine)
        expected_kind, expected = run(function, theirs)
        assert kind == expected_kind, source(seed)
        assert len(got) == len(expected)
        for have, want in zip(got, expected, strict=True):
            torch.testing.assert_close(have, want, msg=lambda text: f"{text}\n{source(seed)}")
            assert have.stride() == want.stride(), source(seed)
        for cache, other in zip(mine[:2], theirs[:2], strict=True):
            shares = [_shares(have, cache) for have in got[: len(got) - 5]]
            assert shares == [_shares(want, other) for want in expected[: len(expected) - 5]], source(seed)
            assert cache._version == other._version or kind


def _shares(tensor: torch.Tensor, cache: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
