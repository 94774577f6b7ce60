"""What a stranger's file may ask for, and what is passed in place of files and keys."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import test_sound as sound
import torch
from torch import nn

import lampwork
from lampwork import config, counters
from lampwork.artifacts.allowed import wrong_arguments
from lampwork.artifacts.container import open_container, read_container
from lampwork.artifacts.sound import Unsound, check_operator
from lampwork.artifacts.trust import generate_key, sign, verify
from lampwork.errors import (
    ArtifactCallError,
    ArtifactError,
    ArtifactTrustError,
    ArtifactVersionError,
    OptionError,
    SerialError,
)
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.polynomial import FloorDiv
from lampwork.loops.ir.symbols import NoDivisor, divisors, evaluate
from lampwork.partitioning import compiling
from lampwork.serial.specs import symbolic_from_json

kept = sound.kept
aten = torch.ops.aten


# --- operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operator",
    [
        "max_pool2d_with_indices_backward.default",
        "adaptive_max_pool2d_backward.default",
        "adaptive_max_pool3d_backward.default",
        "segment_reduce.default",
        "ctc_loss.Tensor",
        "nll_loss_backward.default",
        "_embedding_bag.default",
        "_upsample_bilinear2d_aa.default",
        "native_layer_norm_backward.default",
        "mkldnn_rnn_layer.default",
        "sparse_coo_tensor.indices",
        "resize.default",
        "empty_permuted.default",
    ],
)
def test_operators_that_believe_their_arguments(operator: str) -> None:
    name, _, overload = operator.partition(".")
    with pytest.raises(Unsound):
        check_operator(getattr(getattr(aten, name), overload))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.index.Tensor, (torch.ones(4), [torch.full((4,), 2**40)])),
        (aten.index_put.default, (torch.ones(4), [torch.full((4,), 2**40)], torch.ones(4))),
        (aten.index_copy.default, (torch.ones(4), 0, torch.full((4,), 2**40), torch.ones(4))),
        (aten.index_reduce.default, (torch.ones(4), 0, torch.full((4,), 2**40), torch.ones(4), "mean")),
        (aten.scatter.src, (torch.ones(4), 0, torch.full((4,), 2**40), torch.ones(4))),
        (aten.put.default, (torch.ones(4), torch.full((4,), 2**40), torch.ones(4))),
        (aten.take.default, (torch.ones(4), torch.full((4,), 2**40))),
        (aten.embedding.default, (torch.ones(4, 2), torch.full((4,), 2**40))),
        (aten.max_unpool2d.default, (torch.ones(1, 2, 2), torch.full((1, 2, 2), 2**40), [4, 4])),
        (aten.multi_margin_loss.default, (torch.ones(2, 3), torch.full((2,), 2**40))),
        (aten.multilabel_margin_loss_forward.default, (torch.ones(2, 3), torch.full((2, 3), 2**40), 1)),
        (aten.nll_loss_forward.default, (torch.ones(2, 3), torch.full((2,), 2**40), None, 1, -100)),
        (aten.linalg_lu_solve.default, (torch.eye(3), torch.full((3,), 2**30).int(), torch.ones(3, 1))),
        (aten.linalg_ldl_solve.default, (torch.eye(3), torch.full((3,), 2**30).int(), torch.ones(3, 1))),
        (aten.lu_unpack.default, (torch.eye(3), torch.full((3,), 2**30).int())),
    ],
    ids=str,
)
def test_operators_that_check_places_are_on_the_list(op: Any, args: Any) -> None:
    check_operator(op)
    with pytest.raises((IndexError, RuntimeError)):
        op(*args)


def test_arguments_that_kernels_believe() -> None:
    def spec(*shape: int) -> TensorSpec:
        return TensorSpec.of(torch.empty(shape))

    for scale, told in ((1e-30, True), (float("nan"), True), (2.0, False), (None, False)):
        args = (spec(1, 1, 4, 4), [8, 8], False, scale, scale)
        assert bool(wrong_arguments(aten.upsample_bilinear2d.default, args, {})) is told
    op = aten._weight_norm_interface.default
    assert not wrong_arguments(op, (spec(4, 3), spec(4, 1)), {})
    assert wrong_arguments(op, (spec(4000, 3), spec(1, 1)), {})


class Pooled(nn.Module):
    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.full((1, 1, 2, 2), 2**40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.new_ones(1, 1, 4, 4)
        return aten.max_pool2d_with_indices_backward.default(
            x, wide, [2, 2], [2, 2], [0, 0], [1, 1], False, self.places
        )


def test_a_file_that_writes_where_it_says(tmp_path: Path) -> None:
    lampwork.export(Pooled(), (torch.ones(1, 1, 2, 2),), path=tmp_path / "m.lamp")
    with pytest.raises(ArtifactTrustError, match="max_pool2d_with_indices_backward"):
        lampwork.load(tmp_path / "m.lamp")


class Memory(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.empty(3, 1000) + 0 * x.sum(), torch.empty(3, 1000, dtype=torch.complex64)


def test_memory_is_zeros(tmp_path: Path) -> None:
    x = torch.ones(3, 1000)
    lampwork.export(Memory(), (x,), path=tmp_path / "m.lamp")
    loaded = lampwork.load(tmp_path / "m.lamp")
    for _ in range(3):
        for dtype in (torch.float32, torch.complex64):
            full = [torch.full((3, 1000), 7.5, dtype=dtype) for _ in range(50)]
            del full
        assert not any(each.count_nonzero() for each in loaded(x))


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        ["operator.mod", {"s": "%0900000000000d"}, {"i": [[1, ["s0"]]]}],
        ["operator.mul", {"s": "a"}, {"i": [[1, ["s0"]]]}],
        ["builtins.pow", 3, {"i": [[1, ["s0"]]]}, None],
        ["operator.pow", 3, {"i": [[1, ["s0"]]]}],
        ["builtins.round", {"i": [[1, ["s0"]]]}, -(10**12)],
        ["builtins.float", {"s": "1e5"}],
    ],
)
def test_numbers_are_computed_of_numbers(number: Any) -> None:
    scope = Scope()
    scope.hints["s0"] = 10**12
    with pytest.raises(SerialError):
        symbolic_from_json({"x": number}, scope)


def test_divisors() -> None:
    s0 = Index.sym("s0")
    inner = Index.of_atom(FloorDiv(s0, s0 - 4))
    found = Index.of_atom(FloorDiv(s0, inner + 1))
    assert list(divisors(found)) == [s0 - 4, inner + 1]
    with pytest.raises(NoDivisor, match="s0 - 4 is 0"):
        evaluate(found, {"s0": 4})


def divided(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    """A condition on s0 // (s0 - 7)."""
    by: list[Any] = [[1, ["s0"]], [-7, []]]
    manifest["entries"]["forward"]["conditions"].append(
        {"op": "fits", "index": [[1, [["//", [[1, ["s0"]]], [by[1], by[0]]]]]]}
    )


@pytest.mark.parametrize("trust", [True, False])
def test_what_is_divided_by_is_above_0(kept: Path, tmp_path: Path, trust: bool) -> None:
    loaded = lampwork.load(sound.changed(kept, tmp_path, divided), trust=trust)
    loaded(torch.ones(9, 4), torch.ones(9, 4))
    with pytest.raises(ArtifactCallError, match="s0"):
        loaded(torch.ones(7, 4), torch.ones(7, 4))


def far(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    for one in (manifest["entries"]["forward"]["inputs"][0], graph["nodes"][0]["val"]):
        one["strides"] = [2**62, 1]


def test_strides_beyond_all_memory(kept: Path, tmp_path: Path) -> None:
    path = sound.changed(kept, tmp_path, far)
    with pytest.raises(ArtifactError):
        lampwork.load(path)(torch.ones(3, 4), torch.ones(3, 4))


# --- files and keys ---------------------------------------------------------------------------------------------------


def test_what_is_no_plain_file(tmp_path: Path, kept: Path) -> None:
    pytest.importorskip("cryptography")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ArtifactError, match="it is no plain file"):
        lampwork.load(pipe)
    with pytest.raises(ArtifactError, match="Is a directory"):
        lampwork.load(tmp_path)
    with pytest.raises(ArtifactError, match="it is no plain file"):
        lampwork.load(kept, trust=True, weights=pipe)
    for key in (pipe, "/dev/zero"):
        with pytest.raises(OptionError, match="it is no plain file"):
            lampwork.load(kept, key=key)
    with pytest.raises(ArtifactError, match="it is no plain file"):
        sign(pipe, generate_key(tmp_path / "k.pem")[0])
    (tmp_path / "large.pem").write_bytes(bytes(1 << 17))
    with pytest.raises(OptionError, match="more than 65536 bytes"):
        lampwork.load(kept, key=tmp_path / "large.pem")
    for path in (3, None):
        with pytest.raises(OptionError, match="expected the path of a .lamp file"):
            lampwork.load(path)  # type: ignore[arg-type]


def test_the_content_of_a_key_is_a_key(tmp_path: Path, kept: Path) -> None:
    pytest.importorskip("cryptography")
    private, public, name = generate_key(tmp_path / "k.pem")
    sign(kept, private.read_text(), tmp_path / "m.lamp")
    assert verify(tmp_path / "m.lamp", public.read_text()) == name
    assert verify(tmp_path / "m.lamp", public.read_bytes()) == name


def test_a_signature_is_one_text(tmp_path: Path, kept: Path) -> None:
    pytest.importorskip("cryptography")
    private, public, _ = generate_key(tmp_path / "k.pem")
    path = tmp_path / "m.lamp"
    sign(kept, private, path)
    text = open_container(path).metadata["signature"]
    same = [
        other
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        if base64.b64decode(other := text[:85] + letter + "==") == base64.b64decode(text)
    ]
    assert len(same) == 16
    content = path.read_bytes()
    for other in same:
        path.write_bytes(content.replace(text.encode(), other.encode()))
        if other == text:
            verify(path, public)
        else:
            with pytest.raises(ArtifactTrustError):
                verify(path, public)


def test_a_dtype_is_not_printed_whole() -> None:
    header = {"x": {"dtype": "a" * 10**6, "shape": [], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    with pytest.raises(ArtifactError) as caught:
        read_container("m.lamp", bytearray(len(text).to_bytes(8, "little") + text))
    assert len(str(caught.value)) < 1000


def unreadable(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    graph["scope"]["symbols"][0]["hint"] = -3


def of_another_version(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    unreadable(graph, manifest)
    manifest["lampwork"] = "99.0"


def test_what_is_damaged_is_not_called_another_version(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is damaged") as caught:
        lampwork.load(sound.changed(kept, tmp_path, unreadable))
    assert not isinstance(caught.value, ArtifactVersionError)
    with pytest.raises(ArtifactVersionError) as other:
        lampwork.load(sound.changed(kept, tmp_path, of_another_version))
    assert "99.0" in other.value.fix and "tampered" in other.value.fix


# --- the cache --------------------------------------------------------------------------------------------------------


def recorded_otherwise(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    """The same graph by its structure, which says something else of where results lie."""
    sound.node_of(graph, "aten::add.Tensor")["flags"] = ["whole"]


@pytest.mark.parametrize("memory", [True, False])
def test_a_program_of_a_file_is_no_other_graph_s(
    kept: Path, tmp_path: Path, memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in this process nor in the folder: only the same text has the same program."""
    counts: list[float] = []
    with config.using(cache=str(tmp_path / "cache")):
        for change in (recorded_otherwise, lambda graph, manifest: None, recorded_otherwise):
            if not memory:
                monkeypatch.setattr(compiling, "_cache", compiling._Cache())
            path = sound.changed(kept, tmp_path, change)
            before = counters.snapshot({}).get("backend_compiles", 0)
            lampwork.load(path)
            counts.append(counters.snapshot({}).get("backend_compiles", 0) - before)
    assert counts == [1, 1, 0]
