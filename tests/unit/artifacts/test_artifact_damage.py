"""Files that are damaged, foreign, or made to do harm: each is an error of ours that says what is wrong."""

from __future__ import annotations

import json
import random
import struct

import pytest
import torch
from artifact_models import Small
from damaged_files import mutated
from torch.export import Dim

import lampwork
from lampwork.artifacts import loading
from lampwork.artifacts.container import read_container
from lampwork.codegen.llvm.targets import TargetFacts
from lampwork.errors import ArtifactError, ArtifactTargetError, ArtifactVersionError, LampworkError

MUTATIONS = 500


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "m.lamp"
    lampwork.export(
        Small().eval(),
        (torch.randn(4, 8),),
        dynamic_shapes=({0: Dim("n", max=64)},),
        path=path,
        targets="host",
    )
    return path.read_bytes()


def parts(content):
    """The header and the manifest of a file, and its data."""
    (count,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + count])
    return header, json.loads(header["__metadata__"]["manifest"]), content[8 + count :]


def joined(header, manifest, data):
    header["__metadata__"]["manifest"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def load(tmp_path, content, trust=True):
    (tmp_path / "m.lamp").write_bytes(content)
    return lampwork.load(tmp_path / "m.lamp", trust=trust)


def changed(content, change):
    header, manifest, data = parts(content)
    change(manifest)
    return joined(header, manifest, data)


def test_a_file_that_is_written_again_is_as_good(tmp_path, content):
    assert load(tmp_path, joined(*parts(content)))(torch.ones(2, 8))["rows"] == 2


def put(*path):
    """A change of a manifest: the last of `path` is put where the others lead."""

    def change(manifest):
        *way, key, value = path
        for each in way:
            manifest = manifest[each]
        manifest[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("format", "other"), "format is 'other', expected one of lampwork"),
        (put("version", "1"), "version is '1', expected a whole number"),
        (put("weights", {}), "weights is {}, expected a list"),
        (put("weights", 0, "name", "a..b"), "expected a module path"),
        (put("weights", 0, "name", ""), "expected a module path"),
        (put("weights", 0, "name", "lampwork.code"), "expected a module path"),
        (put("weights", 0, "name", "scale"), "expected weights of different names"),
        (put("weights", 0, "name", "scale.inner"), "expected no weight on the way to 'scale.inner'"),
        (put("weights", 0, "tensor", "nothing"), "expected the name of a tensor in the file"),
        (put("weights", 0, "tensor", "lampwork.graph.forward"), "expected the name of a tensor in the file"),
        (put("weights", 0, "dtype", "float31"), "expected a dtype of torch"),
        (put("weights", 0, "dtype", "nn"), "expected a dtype of torch"),
        (put("weights", 0, "shape", [8, 9]), "expected float32 of shape [8, 8]"),
        (put("weights", 0, "strides", [1000000, 1]), "places near to one another"),
        (put("weights", 0, "strides", [1, 1]), "places near to one another"),
        (put("weights", 0, "strides", [-8, 1]), "expected a number from 0"),
        (put("weights", 0, "kind", "code"), "expected one of parameter, buffer, constant"),
        (put("weights", 0, "persistent", 1), "expected true or false"),
        (put("entries", {}), "expected entries by name"),
        (put("entries", "forward", "weights", 0, 99), "weights[0] is 99, expected a number from 0 to"),
        (put("entries", "forward", "weights", 0, -1), "weights[0] is -1, expected a number from 0 to"),
        (put("entries", "forward", "graph", "lampwork.graph.other"), "expected the name of a section"),
        (put("entries", "forward", "inputs", 0, "shape", [["s0"]]), "shape[0]"),
        (
            put("entries", "forward", "inputs", 0, "shape", [[[1, ["s9"]]], 8]),
            "expected s9 among the symbols",
        ),
        (put("entries", "forward", "symbols", 0, "input", 5), "expected a number from 0 to 0"),
        (put("entries", "forward", "symbols", 0, "dim", 2), "expected a number from 0 to 1"),
        (put("entries", "forward", "arguments", "args", [{"input": 1}]), "expected a number from 0 to 0"),
        (put("entries", "forward", "arguments", "args", [{"const": 1}]), "expected each input to be passed"),
        (put("entries", "forward", "arguments", "args", [{"code": 1}]), "expected input, number, const"),
        (put("entries", "forward", "arguments", "names", []), "expected 1 names"),
        (put("entries", "forward", "result", {"output": 9}), "expected a number from 0 to 2"),
        (
            put("entries", "forward", "result", {"object": "a b", "form": "object", "fields": []}),
            "a name that Python",
        ),
        (
            put(
                "entries",
                "forward",
                "result",
                {"object": "A", "form": "object", "fields": [["__class__", {}]]},
            ),
            "expected input, number",
        ),
        (put("entries", "forward", "writes", [[99, 0]]), "expected a number from 0 to"),
        (put("entries", "forward", "views", [[0, 0]]), "expected an output, and what is written"),
        (put("entries", "forward", "otherwise", ["forward"]), "expected names of entries"),
        (put("entries", "forward", "otherwise", ["forward.9"]), "expected names of entries"),
        (put("targets", 0, "programs", "lampwork.x"), "expected the name of a section"),
        (put("targets", 0, "calls", {}), "expected those of forward"),
        (put("sections", {}), "it does not know the section"),
        (put("sections", "lampwork.graph.forward", "bytes", 3), "the bytes of lampwork.graph.forward"),
        (put("sections", "lampwork.other", {"sha256": "", "bytes": 0}), "the file has no section"),
    ],
)
def test_a_manifest_that_says_what_is_not_so(tmp_path, content, change, said):
    with pytest.raises(ArtifactError) as raised:
        load(tmp_path, changed(content, change))
    if "__class__" not in str(change.__closure__[0].cell_contents):
        assert said in str(raised.value)
    assert raised.value.code == "LW360"


def test_other_kinds_of_files(tmp_path, content):
    header, manifest, data = parts(content)
    plain = {name: span for name, span in header.items() if not name.startswith("lampwork.")}
    plain.pop("__metadata__")
    data = data[: max(span["data_offsets"][1] for span in plain.values())]
    text = json.dumps(plain).encode()
    with pytest.raises(
        ArtifactError, match="is no artifact of Lampwork: a safetensors file of weights\n  fix: give"
    ):
        load(tmp_path, struct.pack("<Q", len(text)) + text + data)
    for other in (b"PK\3\4" + bytes(100), b"\x80\2}q\0." * 9, b"\0" * 64, b"{}" * 40):
        with pytest.raises(ArtifactError, match="is damaged, or no artifact"):
            load(tmp_path, other)


def test_a_later_version(tmp_path, content):
    def later(manifest):
        manifest.update(version=2, lampwork="9.1")

    with pytest.raises(ArtifactVersionError, match="is of version 2 of the format") as raised:
        load(tmp_path, changed(content, later))
    assert "install Lampwork 9.1 or later" in raised.value.fix and raised.value.code == "LW361"


def test_another_machine(tmp_path, content):
    def foreign(manifest):
        manifest["targets"][0].update(name="riscv", machine="riscv64")

    with pytest.raises(
        ArtifactTargetError, match="has no code for this machine:\n    riscv: it is for riscv64"
    ):
        load(tmp_path, changed(content, foreign))
    with pytest.raises(ArtifactTargetError, match="has no code for this machine"):
        load(tmp_path, changed(content, put("targets", [])))
    needs = changed(content, put("targets", 0, "needs", ["avx9000"]))
    with pytest.raises(ArtifactTargetError, match="this CPU lacks avx9000") as raised:
        load(tmp_path, needs)
    assert raised.value.code == "LW362"
    assert load(tmp_path, needs, trust=False)(torch.ones(2, 8))["rows"] == 2  # compiled here


def test_the_best_target_is_taken(monkeypatch, tmp_path, content):
    offered: list[tuple[TargetFacts, ...]] = []
    real = loading.pick
    monkeypatch.setattr(loading, "pick", lambda found: (offered.append(tuple(found)), real(found))[1])
    assert load(tmp_path, content).target.endswith("the best one that this machine runs")
    assert [each.name for each in offered[0]] == [each["name"] for each in parts(content)[1]["targets"]]


@pytest.mark.parametrize("kind", ["programs", "code", "graph"])
def test_sections_are_those_that_were_written(tmp_path, content, kind):
    header, manifest, data = parts(content)
    name = next(name for name in header if name.startswith(f"lampwork.{kind}."))
    begin = header[name]["data_offsets"][0]
    data = data[: begin + 5] + bytes([data[begin + 5] ^ 1]) + data[begin + 6 :]
    with pytest.raises(ArtifactError, match=f"section lampwork.{kind}.* has the sha256"):
        load(tmp_path, joined(header, manifest, data), trust=kind != "graph")


def test_random_damage_is_an_error_or_harmless(content):
    """Reads, never runs: what is wrong with code alone its digest finds."""
    random_numbers = random.Random(14)
    errors = 0
    for number in range(MUTATIONS):
        found = mutated(content, random_numbers)
        try:
            container = read_container("a", bytearray(found))
            loading.read_manifest(container)
        except LampworkError:
            errors += 1
        except Exception as error:
            raise AssertionError(f"mutation {number}") from error
    assert errors > MUTATIONS // 2
