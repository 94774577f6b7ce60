"""Machine code of a file is run if the caller trusts it, or if one of the caller's keys signed it."""

from __future__ import annotations

import ast
import base64
import json
import os
import pickle
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork import cli
from lampwork.artifacts import programs
from lampwork.artifacts.container import METADATA, open_container
from lampwork.artifacts.trust import generate_key, key_id, sign, verified, verify
from lampwork.errors import ArtifactError, ArtifactTargetError, ArtifactTrustError, InstallError, OptionError

pytest.importorskip("cryptography", reason="signatures need cryptography")

SOURCE = Path(lampwork.__file__).parent
LOADING = sys.modules["lampwork.artifacts.loading"]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two keys, `a.lamp` and `b.lamp` signed by the first, and `bare.lamp`, which is not signed."""
    folder = tmp_path_factory.mktemp("signed")
    for name in ("mine", "other"):
        generate_key(folder / f"{name}.pem")
    for seed, name in enumerate(("a", "b")):
        lampwork.export(model(seed), (X,), path=folder / f"{name}.lamp")
        shutil.copy(folder / f"{name}.lamp", folder / f"bare_{name}.lamp")
        sign(folder / f"{name}.lamp", folder / "mine.pem")
    shutil.copy(folder / "bare_a.lamp", folder / "bare.lamp")
    return folder


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, as JSON, and its data."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def written(path: Path, header: dict[str, Any], data: bytes) -> Path:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def changed(kept: Path, tmp_path: Path, change: Callable[[dict[str, str]], Any]) -> Path:
    """`a.lamp` with other metadata in its header."""
    header, data = header_of(kept / "a.lamp")
    change(header[METADATA])
    return written(tmp_path / "changed.lamp", header, data)


@pytest.fixture
def no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: Any) -> Any:
        raise AssertionError("it was compiled")

    monkeypatch.setattr(LOADING, "compiled", compiled)


@pytest.fixture
def no_linking(monkeypatch: pytest.MonkeyPatch) -> None:
    def linked(*_: Any) -> Any:
        raise AssertionError("its machine code was mapped")

    monkeypatch.setattr(LOADING, "linked", linked)
    monkeypatch.setattr(programs, "Linked", linked)


# --- what is run ------------------------------------------------------------------------------------------------------


def test_a_key_that_signed_it_has_its_code_run(kept: Path, no_compiling: None) -> None:
    for key in (kept / "mine.pub.pem", str(kept / "mine.pub.pem"), (kept / "mine.pub.pem").read_bytes()):
        loaded = lampwork.load(kept / "a.lamp", key=key)
        torch.testing.assert_close(loaded(X), model(0)(X).detach())
    several = lampwork.load(kept / "b.lamp", key=[kept / "other.pub.pem", kept / "mine.pub.pem"])
    torch.testing.assert_close(several(X), model(1)(X).detach())
    assert several.signer == verify(kept / "b.lamp", kept / "mine.pub.pem") and len(several.signer) == 16


def test_trust_has_its_code_run_signed_or_not(kept: Path, no_compiling: None) -> None:
    for name in ("a", "bare"):
        loaded = lampwork.load(kept / f"{name}.lamp", trust=True)
        torch.testing.assert_close(loaded(X), model(0)(X).detach())
        assert loaded.signer == ""


def test_else_it_is_compiled_here_and_no_code_is_mapped(kept: Path, no_linking: None) -> None:
    for name in ("a", "bare"):  # a signature alone says nothing: anybody can sign
        torch.testing.assert_close(lampwork.load(kept / f"{name}.lamp")(X), model(0)(X).detach())


def test_a_public_key_may_be_its_32_bytes(kept: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    raw: Any = load_pem_public_key((kept / "mine.pub.pem").read_bytes())
    assert verify(kept / "a.lamp", raw.public_bytes_raw()) == key_id(raw.public_bytes_raw())


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(path: Path, key: Any, *, trust: bool = False) -> str:
    """The message with which it is refused, whatever else is said."""
    with pytest.raises(ArtifactTrustError) as caught:
        lampwork.load(path, key=key, trust=trust)
    assert caught.value.code == "LW365" and caught.value.fix
    return caught.value.cause.removeprefix(f"{path}: ")


def test_unsigned(kept: Path, no_linking: None) -> None:
    mine = verify(kept / "a.lamp", kept / "mine.pub.pem")
    said = refused(kept / "bare.lamp", kept / "mine.pub.pem", trust=True)
    assert said == f"expected a signature by {mine}; came no signature", "trust does not outdo a key"


def test_another_key(kept: Path, no_linking: None) -> None:
    mine = verify(kept / "a.lamp", kept / "mine.pub.pem")
    said = refused(kept / "a.lamp", kept / "other.pub.pem")
    assert said.startswith("expected a signature by ") and said.endswith(f"; came one by {mine!r}")
    assert said.split()[4].rstrip(";") != mine


def test_another_key_under_the_name_of_the_right_one(kept: Path, tmp_path: Path, no_linking: None) -> None:
    sign(kept / "a.lamp", kept / "other.pem", tmp_path / "other.lamp")
    mine = header_of(kept / "a.lamp")[0][METADATA]["signer"]
    header, data = header_of(tmp_path / "other.lamp")
    header[METADATA]["signer"] = mine
    path = written(tmp_path / "forged.lamp", header, data)
    assert refused(path, kept / "mine.pub.pem").startswith(
        f"expected the bytes that {mine} signed; came others"
    )


def test_the_signature_of_another_file(kept: Path, tmp_path: Path, no_linking: None) -> None:
    other = header_of(kept / "b.lamp")[0][METADATA]["signature"]
    path = changed(kept, tmp_path, lambda metadata: metadata.update(signature=other))
    assert "has the signature of another file" in refused(path, kept / "mine.pub.pem")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "AAAA",
        "A" * 87,
        "A" * 88,
        "A" * 89,
        "é" * 88,
        "A" * 85 + '"==',
        "AAAA" * 1000,
    ],
    ids=["empty", "short", "87", "88", "89", "accents", "quotes", "long"],
)
def test_truncated_and_other_signatures(kept: Path, tmp_path: Path, wrong: str, no_linking: None) -> None:
    path = changed(kept, tmp_path, lambda metadata: metadata.update(signature=wrong))
    assert f"came {len(wrong)} characters" in refused(path, kept / "mine.pub.pem")


def test_each_bit_counts(kept: Path, tmp_path: Path, no_linking: None) -> None:
    """Of the header, of weights, of code: what is changed is found, by whatever check comes first."""
    content = bytearray((kept / "a.lamp").read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    path = tmp_path / "flipped.lamp"
    text = bytes(content)
    signature = text.index(b'"signature":"') + 13
    places = {*range(0, 8), *range(8, len(content), 211), length + 8, len(content) - 1, 8 + length - 1}
    found: dict[type, int] = {}
    for at in sorted(places):
        content[at] ^= 1
        path.write_bytes(content)
        content[at] ^= 1
        with pytest.raises(ArtifactError) as caught:
            verify(path, kept / "mine.pub.pem")
        found[caught.type] = found.get(caught.type, 0) + 1
    assert found[ArtifactTrustError] > len(places) // 2
    for at in range(signature, signature + 86, 7):  # another letter of base64
        content[at] ^= 1 if chr(content[at] ^ 1).isalnum() else 0
        path.write_bytes(content)
        if bytes(content) != text:
            assert refused(path, kept / "mine.pub.pem")
        content[at] = text[at]


def test_what_comes_behind_the_data_is_no_part_of_a_file(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "longer.lamp"
    path.write_bytes((kept / "a.lamp").read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match="bytes of data, expected"):
        verify(path, kept / "mine.pub.pem")


def test_keys_that_come_twice(kept: Path, tmp_path: Path) -> None:
    content = (kept / "a.lamp").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    text = content[8 : 8 + length].replace(b'"signer":"', b'"manifest":"{}","signer":"')
    text = text.rstrip(b" ")
    text += b" " * (-(8 + len(text)) % 64)
    path = tmp_path / "twice.lamp"
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    with pytest.raises(ArtifactError, match="has the key 'manifest' twice"):
        verify(path, kept / "mine.pub.pem")


def test_a_signature_at_two_places(kept: Path, tmp_path: Path) -> None:
    """Which of them is left out of what is signed must not be a matter of opinion."""
    signature = header_of(kept / "a.lamp")[0][METADATA]["signature"]
    path = changed(kept, tmp_path, lambda metadata: metadata.update({'x"signature': signature}))
    assert "at one place of the header" in refused(path, kept / "mine.pub.pem")
    path = changed(kept, tmp_path, lambda metadata: metadata.pop("signature"))
    bare = tmp_path / "decoy.lamp"
    header, data = header_of(path)
    written(bare, {**header, METADATA: {**header[METADATA], 'x"signature': "A" * 88}}, data)
    with pytest.raises(ArtifactError, match='"signature" stands in its header in other places'):
        sign(bare, kept / "mine.pem")


# --- a file that changes while it is loaded ---------------------------------------------------------------------------


def test_code_is_what_was_verified_whatever_becomes_of_the_file(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "moving.lamp"
    shutil.copy(kept / "a.lamp", path)
    container = open_container(path)
    begin = container.start + min(
        span.begin for name, span in container.spans.items() if name.startswith("lampwork.")
    )
    found = verified(container, kept / "mine.pub.pem").container
    names = [name for name in found.spans if name.startswith("lampwork.")]
    before = {name: found.section(name) for name in names}
    with open(path, "r+b") as file:  # in place: the pages that are mapped change
        file.seek(begin)
        file.write(b"\xcc" * (path.stat().st_size - begin))
    assert all(set(container.section(name)) == {0xCC} for name in names), "these pages have changed"
    assert {name: found.section(name) for name in names} == before


def test_a_file_that_changes_between_its_header_and_its_signature(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "moving.lamp"
    shutil.copy(kept / "a.lamp", path)
    container = open_container(path)
    with open(path, "r+b") as file:
        file.seek(container.start)
        file.write(b"\x01")
    with pytest.raises(ArtifactTrustError, match="came others"):
        verified(container, kept / "mine.pub.pem")


# --- signing ----------------------------------------------------------------------------------------------------------


def test_signing_keeps_the_file_and_replaces_a_signature(kept: Path, tmp_path: Path) -> None:
    bare, signed = open_container(kept / "bare.lamp"), open_container(kept / "a.lamp")
    assert bytes(bare.data) == bytes(signed.data) and signed.start % 64 == 0
    assert dict(signed.metadata).keys() - dict(bare.metadata).keys() == {"signature", "signer"}
    assert len(base64.b64decode(signed.metadata["signature"])) == 64
    out = tmp_path / "again.lamp"
    name = sign(kept / "a.lamp", kept / "other.pem", out)
    assert verify(out, [kept / "other.pub.pem"]) == name
    back = tmp_path / "back.lamp"
    sign(out, kept / "mine.pem", back)
    assert back.read_bytes() == (kept / "a.lamp").read_bytes(), "the same signature each time"
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(back, "pt") as opened:
        assert "0.weight" in opened.keys()


def test_what_is_signed_is_checked_before(kept: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ArtifactError, match="a safetensors file of weights"):
        sign(tmp_path / "weights.safetensors", kept / "mine.pem")


def test_files_larger_than_a_piece(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lampwork.artifacts.trust._PIECE", 128)
    out = tmp_path / "pieces.lamp"
    sign(kept / "a.lamp", kept / "mine.pem", out)
    verify(out, kept / "mine.pub.pem")
    content = bytearray(out.read_bytes())
    weights = open_container(out).start
    content[weights : weights + 128], content[weights + 128 : weights + 256] = (
        content[weights + 128 : weights + 256],
        content[weights : weights + 128],
    )
    out.write_bytes(content)
    with pytest.raises(ArtifactTrustError):
        verify(out, kept / "mine.pub.pem")


# --- keys -------------------------------------------------------------------------------------------------------------


def test_keys_are_files_of_their_owner_and_are_not_replaced(tmp_path: Path) -> None:
    private, public, name = generate_key(tmp_path / "release.pem")
    assert public.name == "release.pub.pem" and len(name) == 16
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    for there in (private, public):
        other = public if there is private else private
        other.unlink()
        with pytest.raises(OptionError, match="is there already"):
            generate_key(tmp_path / "release.pem")
        assert not other.exists()
        shutil.copy(there, other)
    with pytest.raises(OptionError, match="cannot be written: No such file"):
        generate_key(tmp_path / "nowhere" / "release.pem")


def test_wrong_keys(kept: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    elliptic = ec.generate_private_key(ec.SECP256R1())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    closed = ed25519.Ed25519PrivateKey.generate().private_bytes(
        pem, form, serialization.BestAvailableEncryption(b"secret")
    )
    public = elliptic.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    commented = (kept / "mine.pub.pem").read_text().replace("KEY-----\n", "KEY-----\nComment: x\n\n", 1)
    wrong: list[tuple[Any, str]] = [
        (kept / "mine.pem", "expected a public key; came a private one"),
        (kept / "no.pem", "cannot be read: No such file"),
        (kept, "cannot be read: Is a directory"),
        (b"x" * 31, "expected a public Ed25519 key in PEM; came something else"),
        (kept / "a.lamp", "expected a public Ed25519 key in PEM; came something else"),
        (public, "expected a public Ed25519 key; came ECPublicKey"),
        (commented, "expected a public Ed25519 key in PEM; came one with header lines"),
        (7, "key is a int, expected the path"),
        ([], "key is an empty list"),
        ("a\0b", "cannot be read"),
    ]
    for key, match in wrong:
        with pytest.raises(OptionError, match=match):
            lampwork.load(kept / "a.lamp", key=key)
    unsigning: list[tuple[Any, str]] = [
        (kept / "mine.pub.pem", "expected a private Ed25519 key in PEM"),
        (closed, "without a passphrase"),
        (
            elliptic.private_bytes(pem, form, serialization.NoEncryption()),
            "expected a private Ed25519 key; came ECPrivateKey",
        ),
    ]
    for key, match in unsigning:
        with pytest.raises(OptionError, match=match):
            sign(kept / "bare.lamp", key, tmp_path / "out.lamp")
    assert not (tmp_path / "out.lamp").exists()
    with pytest.raises(OptionError, match="trust is 'yes', expected True or False"):
        lampwork.load(kept / "a.lamp", trust="yes")  # type: ignore[arg-type]


def test_without_cryptography_it_says_what_to_install(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(
        InstallError, match="expected the package cryptography, which is needed for signatures"
    ):
        lampwork.load(kept / "a.lamp", key=kept / "mine.pub.pem")
    lampwork.load(kept / "a.lamp", trust=True)


# --- the commands -----------------------------------------------------------------------------------------------------


def test_commands(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, public, out = (str(tmp_path / name) for name in ("k.pem", "k.pub.pem", "out.lamp"))
    assert cli.main(["keygen", key]) == 0
    name = capsys.readouterr().out.split()[1].rstrip(":")
    assert cli.main(["sign", str(kept / "bare.lamp"), "--key", key, "-o", out]) == 0
    assert cli.main(["verify", out, "--key", str(kept / "mine.pub.pem"), "--key", public]) == 0
    assert capsys.readouterr().out == f"{out}: signed by {name}\n{out}: signed by {name}, unchanged since\n"
    assert cli.main(["verify", out, "--key", str(kept / "mine.pub.pem")]) == 1
    assert f"came one by {name!r}" in capsys.readouterr().err
    assert cli.main(["keygen", key]) == 1


# --- other machines and versions --------------------------------------------------------------------------------------


def test_code_of_another_machine_alone(tmp_path: Path, kept: Path) -> None:
    path = tmp_path / "arm.lamp"
    lampwork.export(model(0), (X,), path=path, targets=["aarch64"])
    sign(path, kept / "mine.pem")
    with pytest.raises(ArtifactTargetError, match="has no code for this machine") as caught:
        lampwork.load(path, key=kept / "mine.pub.pem")
    assert caught.value.code == "LW362" and caught.value.fix
    torch.testing.assert_close(lampwork.load(path)(X), model(0)(X).detach())


def test_a_later_version(tmp_path: Path, kept: Path) -> None:
    header, data = header_of(kept / "bare.lamp")
    manifest = json.loads(header[METADATA]["manifest"])
    header[METADATA]["manifest"] = json.dumps({**manifest, "version": 99}, separators=(",", ":"))
    path = written(tmp_path / "later.lamp", header, data)
    with pytest.raises(ArtifactError, match="is of version 99 of the format") as caught:
        sign(path, kept / "mine.pem")
    assert caught.value.code == "LW361" and "install Lampwork" in caught.value.fix


# --- no pickle --------------------------------------------------------------------------------------------------------

FORBIDDEN = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "copyreg"}


def test_nothing_that_reads_files_knows_pickle() -> None:
    files = [path for room in ("artifacts", "serial", "cache") for path in (SOURCE / room).rglob("*.py")]
    assert len(files) > 10
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names):
                    named = {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module)):
                    named = {module.split(".")[0], *(alias.name for alias in node.names)}
                case ast.Attribute(value=ast.Name(id="torch"), attr=("load" | "save") as attribute):
                    named = {f"torch.{attribute}"}
                case ast.Call(func=ast.Name(id=("eval" | "exec" | "__import__") as function)):
                    named = {function}
                case _:
                    continue
            found = named & {*FORBIDDEN, "torch.load", "torch.save", "eval", "exec", "__import__"}
            assert not found, f"{path}:{getattr(node, 'lineno', 0)}: {found}"


def test_loading_unpickles_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler", "_load", "_loads"):
        monkeypatch.setattr(pickle, name, poisoned)
    monkeypatch.setattr(torch, "load", poisoned)
    torch.testing.assert_close(
        lampwork.load(kept / "a.lamp", key=kept / "mine.pub.pem")(X), model(0)(X).detach()
    )
    torch.testing.assert_close(lampwork.load(kept / "a.lamp")(X), model(0)(X).detach())


def test_a_server_process_needs_no_compiler_to_load_it(kept: Path) -> None:
    code = """
import sys
for name in ("llvmlite", "bytecode"):
    sys.modules[name] = None  # as if they were not installed
import torch, lampwork
loaded = lampwork.load(sys.argv[1], key=sys.argv[2])
print(loaded(torch.zeros(3, 4)).shape, loaded.signer)
"""
    command = [sys.executable, "-c", code, str(kept / "a.lamp"), str(kept / "mine.pub.pem")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": "/nowhere"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("]) ")[0] == "torch.Size([3, 2"
