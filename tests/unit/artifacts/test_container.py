"""The file of an artifact: what is written is read, by other readers too, and nothing of a damaged one is used."""

from __future__ import annotations

import json
import os
import struct

import pytest
import torch
from safetensors import safe_open

from lampwork.artifacts.container import DTYPES, open_container, read_container, write_container
from lampwork.errors import ArtifactError, ExportError

SECTION = "lampwork.graph.forward"


def weights():
    made = {
        "bool": torch.tensor([True, False, True]),
        "f32": torch.randn(16, 4),
        "empty": torch.empty(0, 3),
        "one": torch.tensor(2.5),
        "half": torch.randn(5).half(),
        "bf16": torch.randn(3, 3).bfloat16(),
        "turned": torch.randn(4, 6).t(),
    }
    return made


def written(tmp_path, tensors=None, sections=None, metadata=None):
    path = tmp_path / "a.lamp"
    sections = {SECTION: b"hello"} if sections is None else sections
    write_container(path, weights() if tensors is None else tensors, sections, metadata or {"format": "x"})
    return path


def test_what_is_written_is_read(tmp_path):
    made = weights()
    found = open_container(written(tmp_path, made))
    assert set(found.weights) == set(made)
    for name, tensor in made.items():
        assert torch.equal(found.tensor(name), tensor)
    assert found.section(SECTION) == b"hello"
    assert found.metadata == {"format": "x"}


def test_other_readers_see_the_weights(tmp_path):
    made = weights()
    with safe_open(written(tmp_path, made), "pt") as file:
        assert set(file.keys()) == {*made, SECTION}
        for name, tensor in made.items():
            assert torch.equal(file.get_tensor(name), tensor)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_each_dtype(tmp_path, dtype):
    tensor = torch.ones(3, 2).to(dtype)
    found = open_container(written(tmp_path, {"w": tensor})).tensor("w")
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_a_dtype_that_no_file_can_have(tmp_path):
    with pytest.raises(ExportError, match=r"w is of torch\.complex128, which a \.lamp file cannot have"):
        written(tmp_path, {"w": torch.ones(2, dtype=torch.complex128)})
    assert not list(tmp_path.iterdir())


def test_weights_lie_at_multiples_of_64_where_their_bytes_are_such(tmp_path):
    path = written(tmp_path, {"odd": torch.randn(3), "a": torch.randn(32), "b": torch.randn(16)})
    found = open_container(path)
    assert found.start % 64 == 0
    assert [found.spans[name].begin % 64 for name in ("a", "b")] == [0, 0]


def test_each_tensor_has_a_memory_of_its_own_which_is_this_process_s(tmp_path):
    path = written(tmp_path)
    before = path.read_bytes()
    found = open_container(path)
    tensor = found.tensor("f32")
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    tensor.zero_()
    assert not found.tensor("f32").any()
    assert path.read_bytes() == before


def test_tensors_outlive_the_container(tmp_path):
    tensor = open_container(written(tmp_path)).tensor("f32")
    os.unlink(tmp_path / "a.lamp")
    assert tensor.sum().isfinite()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = written(tmp_path)
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(ExportError, match="the artifact cannot be written"):
        patch.setattr("lampwork.artifacts.container.pieces", _full)
        written(tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _full(tensor):
    raise OSError(28, "No space left on device")


def test_no_file(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read: No such file or directory"):
        open_container(tmp_path / "b.lamp")
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        open_container(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_file_of_a_few_bytes(tmp_path, count):
    (tmp_path / "a.lamp").write_bytes(b"x" * count)
    with pytest.raises(ArtifactError, match=f"it has {count} bytes, expected at least 8"):
        open_container(tmp_path / "a.lamp")


def test_a_file_that_was_cut_off(tmp_path):
    data = written(tmp_path).read_bytes()
    for end in {*range(8, 60), *range(60, len(data), 97), len(data) - 1}:
        with pytest.raises(ArtifactError, match="is damaged, or no artifact"):
            read_container("a", data[:end])
    with pytest.raises(ArtifactError, match="bytes of data, expected"):
        read_container("a", data + b"\0")


def file(header, data=b"", count=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if count is None else count) + text + data


def span(begin=0, end=4, dtype="U8", shape=(4,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (file({}, count=2**63), "its header has 9223372036854775808 bytes, expected 2 to 2"),
        (file({}, count=3), "its header has 3 bytes, expected 2 to 2"),
        (file(b"{]"), "its header is no JSON"),
        (file(b"\xff\xfe"), "its header is no JSON"),
        (file(b"[" * 100_000), "its header is no JSON"),
        (file([]), "its header is no object"),
        (file(b'{"a": 1, "a": 2}'), "has the key 'a' twice"),
        (file(b'{"a": NaN}'), "has the number NaN"),
        (file({"__metadata__": {"a": 1}}), "its __metadata__ has other things than texts"),
        (file({"__metadata__": []}), "its __metadata__ has other things than texts"),
        (file({"": span()}), "has a name of 0 characters"),
        (file({"a\0b": span()}), "none that is 0"),
        (file({"a" * 2000: span()}), "has a name of 2000 characters"),
        (file({"a": 3}), "has not just a dtype, a shape and data_offsets"),
        (file({"a": {**span(), "more": 1}}), "has not just a dtype, a shape and data_offsets"),
        (file({"a": span(dtype="F31")}), "has the dtype 'F31', expected one of F64, F32"),
        (file({"a": span(dtype=["F32"])}), "has the dtype"),
        (file({"a": span(shape=(-4,))}), "expected a list of numbers"),
        (file({"a": span(shape=(4.0,))}), "expected a list of numbers"),
        (file({"a": span(shape=(True, 4))}), "expected a list of numbers"),
        (file({"a": span(shape=[1] * 65)}), "expected a list of numbers"),
        (file({"a": span(shape=(2**40, 2**40))}), "has more elements than there is memory"),
        (file({"a": span(-4, 0)}), "expected two numbers in order"),
        (file({"a": span(4, 0)}), "expected two numbers in order"),
        (file({"a": span(0, 2**64)}), "expected two numbers in order"),
        (file({"a": span(0, 8)}), "has 8 bytes, expected 4 for its dtype and shape"),
        (file({"a": span()}), "it has 0 bytes of data, expected 4"),
        (file({"a": span(4, 8)}, b"12345678"), "begins at byte 4, expected 0"),
        (file({"a": span(), "b": span(2, 6)}, b"123456"), "begins at byte 2, expected 4"),
        (file({"a": span(), "b": span(8, 12)}, b"123456789012"), "begins at byte 8, expected 4"),
    ],
)
def test_a_header_that_says_what_is_not_so(content, said):
    with pytest.raises(ArtifactError) as raised:
        read_container("a", content)
    assert said in str(raised.value)
    assert raised.value.code == "LW360"


def test_weights_of_another_writer_that_lie_anywhere():
    content = file(
        {"a": span(0, 3, shape=(3,)), "w": span(3, 11, "F32", (2,))}, b"abc" + struct.pack("<ff", 1, 2)
    )
    assert read_container("a", bytearray(content)).tensor("w").tolist() == [1, 2]
