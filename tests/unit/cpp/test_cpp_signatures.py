"""Files that Python signed are loaded in C++ by the key alone, and no others are."""

from __future__ import annotations

import base64
import ctypes
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpp_runtime import BUILDS, CppError, Runtime, built

import lampwork
from lampwork import cli
from lampwork.artifacts import generate_key, sign, verify
from lampwork.errors import ArtifactError

pytest.importorskip("cryptography")

pytestmark = BUILDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs of keys, and an artifact that is signed and one that is not."""
    folder = tmp_path_factory.mktemp("signed")
    generate_key(folder / "release.pem")
    generate_key(folder / "other.pem")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).eval()
    lampwork.export(
        model, (torch.randn(2, 8),), path=folder / "bare.lamp", targets=["host"], require="standalone"
    )
    sign(folder / "bare.lamp", folder / "release.pem", folder / "signed.lamp")
    return folder


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Runtime:
    runtime = Runtime(built(targets=["lampwork_runtime"]) / "liblampwork_runtime.so")
    try:
        runtime.load(folder / "signed.lamp", keys=[folder / "release.pub.pem"])
    except CppError as error:
        if "built without OpenSSL" in error.message:
            pytest.skip("checking signatures needs OpenSSL's headers when the library is built")
        raise
    return runtime


def runs(runtime: Runtime, path: Path, *keys: Path | str, trust: bool = False) -> str:
    """The id of the key that signed a file, whose code computes."""
    model = runtime.load(path, trust=trust, keys=keys)
    x = torch.randn(2, 8)
    assert torch.equal(model.run(x)[0], lampwork.load(path, trust=True)(x))
    return model.signer


def test_a_key_is_enough(runtime: Runtime, folder: Path) -> None:
    """It may be one of several, a path or its content."""
    path, key, other = folder / "signed.lamp", folder / "release.pub.pem", folder / "other.pub.pem"
    signer = verify(path, key)
    assert runs(runtime, path, key) == runs(runtime, path, other, key) == signer
    assert (
        runs(runtime, path, key.read_text())
        == runs(runtime, path, key.read_text().replace("\n", "\r\n"))
        == signer
    )
    assert runs(runtime, path, trust=True) == ""


def test_what_the_command_signed(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.lamp"
    path.write_bytes((folder / "bare.lamp").read_bytes())
    key = str(tmp_path / "k.pem")
    assert cli.main(["keygen", key]) == 0 and cli.main(["sign", str(path), "--key", key]) == 0
    assert (
        runs(runtime, path, tmp_path / "k.pub.pem") == lampwork.load(path, key=tmp_path / "k.pub.pem").signer
    )


def _header(content: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def _with_header(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        header, data = _header(content)
        header = change(header).rstrip(b" ")
        header += b" " * (-(8 + len(header)) % 64)
        return struct.pack("<Q", len(header)) + header + data

    return changed


def _signature(header: bytes) -> bytes:
    found = re.search(rb'"signature":"([^"]*)"', header)
    assert found is not None
    return found[1]


def _flipped(at: int) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        data = bytearray(content)
        data[at] ^= 1
        return bytes(data)

    return flip


def _same_bytes_otherwise(header: bytes) -> bytes:
    """The last letter of base64 with bits that are of no byte."""
    signature = _signature(header)
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = signature[:85] + letters[letters.index(signature[85:86]) + 1 :][:1] + b"=="
    assert base64.b64decode(other) == base64.b64decode(signature)
    return header.replace(signature, other)


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a byte of a section": (_flipped(-1), "LW_TRUST: .*came others: the file was changed"),
    "a byte of a weight": (
        lambda content: _flipped(8 + len(_header(content)[0]))(content),
        "LW_TRUST: .*came others: the file was changed",
    ),
    "spaces in the header": (
        _with_header(lambda header: header + b" " * 64 + b"\n"),
        "LW_TRUST: .*came others",
    ),
    "no signature": (
        _with_header(lambda header: re.sub(rb',"signature":"[^"]*"', b"", header)),
        "LW_TRUST: .*expected a signature by .*; came no signature. Sign it: lampwork sign",
    ),
    "two signatures": (
        _with_header(lambda header: re.sub(rb'(,"signature":"[^"]*")', rb"\1\1", header)),
        "LW_FORMAT: .*damaged",
    ),
    "another of the same name": (
        _with_header(
            lambda header: header.replace(b'"signature":"', b'"signature":"' + b'","more":{"signature":"', 1)
        ),
        "LW_FORMAT: .*damaged",
    ),
    "a signature that is none": (
        _with_header(lambda header: header.replace(_signature(header), b"never")),
        "LW_TRUST: .*88 characters of base64 at one place of the header; came 5 characters: 'never'",
    ),
    "another signature": (
        _with_header(lambda header: header.replace(_signature(header), b"A" * 86 + b"==")),
        "LW_TRUST: .*came others",
    ),
    "bits of no byte": (
        _with_header(_same_bytes_otherwise),
        "LW_TRUST: .*one place of the header; came 88 characters",
    ),
    "spelled with an escape": (
        _with_header(lambda header: header.replace(b'"signature":', b'"signatur\\u0065":')),
        "LW_TRUST: .*at one place of the header",
    ),
    "another signer": (
        _with_header(lambda header: re.sub(rb'"signer":"[^"]*"', b'"signer":"0123456789abcdef"', header)),
        "LW_TRUST: .*expected a signature by .*; came one by '0123456789abcdef'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_refused(runtime: Runtime, folder: Path, tmp_path: Path, change: str) -> None:
    """Whether it is trusted or not, and as in Python."""
    spoil, message = CHANGES[change]
    path = tmp_path / "changed.lamp"
    path.write_bytes(spoil((folder / "signed.lamp").read_bytes()))
    for trust in (False, True):
        with pytest.raises(CppError, match=message):
            runtime.load(path, trust=trust, keys=[folder / "release.pub.pem"])
    with pytest.raises(ArtifactError):
        verify(path, folder / "release.pub.pem")


def test_each_byte_counts(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    content, path = (folder / "signed.lamp").read_bytes(), tmp_path / "changed.lamp"
    for at in range(0, len(content), 97):
        path.write_bytes(_flipped(at)(content))
        with pytest.raises(CppError, match=r"LW_(TRUST|FORMAT|VERSION)"):
            runtime.load(path, keys=[folder / "release.pub.pem"])


def test_another_key(runtime: Runtime, folder: Path) -> None:
    other, release = folder / "other.pub.pem", verify(folder / "signed.lamp", folder / "release.pub.pem")
    with pytest.raises(
        CppError, match=f"LW_TRUST: .*came one by '{release}'. Give the public key of whoever signs"
    ):
        runtime.load(folder / "signed.lamp", keys=[other])
    with pytest.raises(CppError, match=r"LW_TRUST: .*came no signature"):
        runtime.load(folder / "bare.lamp", keys=[other])
    with pytest.raises(CppError, match=r"LW_TRUST: .*Give `keys`, if the file is signed"):
        runtime.load(folder / "signed.lamp", trust=False)


def test_a_weight_behind_a_section(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    """Where a signature would count it among the sections."""
    content = (folder / "signed.lamp").read_bytes()
    header, data = _header(content)
    more = b'{"late":{"dtype":"U8","shape":[3],"data_offsets":[%d,%d]},' % (len(data), len(data) + 3)
    path = tmp_path / "late.lamp"
    path.write_bytes(_with_header(lambda _: more + header[1:])(content) + b"abc")
    with pytest.raises(CppError, match=r"LW_FORMAT: .*the tensor 'late' comes after a section"):
        runtime.load(path, keys=[folder / "release.pub.pem"])


def test_keys_that_are_none(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    path, pem = folder / "signed.lamp", (folder / "release.pub.pem").read_text()
    (tmp_path / "large").write_bytes(b"a" * 70000)
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    another = curve.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for key, message in (
        (folder / "release.pem", "LW_ARGUMENT: the key '.*expected a public key; came a private one"),
        (
            tmp_path / "there_is_none",
            "LW_FILE: the key '.*cannot be read: .*No such file.* Give the path",
        ),
        (tmp_path, "LW_FILE: the key '.*cannot be read: .*is no file"),
        (tmp_path / "large", "LW_ARGUMENT: the key '.*more than 65536 bytes"),
        (path, "LW_ARGUMENT: the key '.*expected a public Ed25519 key in PEM; came something else"),
        (another, "LW_ARGUMENT: the key: expected a public Ed25519 key in PEM; came another kind of key"),
        (
            pem.replace("MC", "MD"),
            "LW_ARGUMENT: the key: expected .*; came another kind of key. Give the file that",
        ),
        (pem[:60], "LW_ARGUMENT: the key: expected .*; came something else"),
        (
            pem.replace("KEY-----\n", "KEY-----\nComment: x\n\n", 1),
            "LW_ARGUMENT: the key: expected .*; came one with header lines. Take out the lines between",
        ),
    ):
        with pytest.raises(CppError, match=message):
            runtime.load(path, keys=[key])


def test_keys_that_are_null(runtime: Runtime, folder: Path) -> None:
    options, handle = runtime.lib.lw_default_options(), ctypes.c_void_p()
    for keys, count in (((ctypes.c_char_p * 1)(None), 1), ((ctypes.c_char_p * 1)(b"k"), 0), (None, 1)):
        options.keys, options.n_keys = keys, count
        path = str(folder / "signed.lamp").encode()
        with pytest.raises(CppError, match=r"LW_ARGUMENT: .*key"):
            runtime.check(runtime.lib.lw_load(path, ctypes.byref(options), ctypes.byref(handle)))
