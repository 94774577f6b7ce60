"""Whose machine code is run: signatures of artifacts, by Ed25519.

A file is signed by 64 bytes over this message, which is made of the bytes that a loader reads:

    "lampwork artifact signature 1" and a zero byte
    sha256 of the first 8 bytes (the header's length) and the header, whose signature is 88 letters A
    digest of the weights: all data before the first section
    digest of the sections: the rest, with all code, programs and graphs
    where the digest of data is the sha256 of the sha256s of its pieces of 16 MiB

The header holds names, dtypes, shapes and places of all tensors, the manifest, and who signed. All of it is signed but
the 88 characters of the signature, which are base64's, so that exchanging them makes no other JSON: what was parsed is
what was signed, and nothing is written as JSON a second time to be compared.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lampwork.artifacts.container import ALIGNMENT, METADATA, SECTION, Container, open_container, open_plain
from lampwork.artifacts.manifest import read_manifest
from lampwork.errors import ArtifactTrustError, ExportError, OptionError, text_of
from lampwork.installed import needed
from lampwork.records import record
from lampwork.standard import struct
from lampwork.written import write_with

if TYPE_CHECKING:
    pass

Key = str | os.PathLike[str] | bytes
"""The path of a PEM file, its content (a text or bytes), or the 32 bytes of a public key."""

SIGNATURE, SIGNER = "signature", "signer"
"""What a signature adds to the metadata of the header: itself, and the id of its key."""

_PREFIX = b"lampwork artifact signature 1\0"
_LENGTH = 88  # of 64 bytes in base64
_BLANK = "A" * _LENGTH
_SHAPE = re.compile(r"[A-Za-z0-9+/]{86}==")
_PIECE = 1 << 24
_BEGIN = "-----BEGIN "
_HEADERS = re.compile(rb"(?s)-----BEGIN PUBLIC KEY-----(?:(?!-----).)*:")
_LARGEST_KEY = 1 << 16
_MOST_THREADS = 8


@record
class Verified:
    """A file whose signature holds. `container`: with the sections as they were verified, copies that no other process
    can write to. `signer`: the id of the key."""

    container: Container
    signer: str


def key_id(public: bytes) -> str:
    """What a public key of 32 bytes is called: the first 16 hex digits of its sha256."""
    return hashlib.sha256(public).hexdigest()[:16]


# --- signing ----------------------------------------------------------------------------------------------------------


def generate_key(path: str | os.PathLike[str]) -> tuple[Path, Path, str]:
    """A new pair of keys: `path`, readable by its owner alone, and beside it the public one, whose name ends in
    `.pub.pem`. Gives both paths and the id.

    Raises:
        OptionError: they cannot be written, or are there already.
    """
    private_path = Path(path)
    public_path = private_path.with_name(private_path.name.removesuffix(".pem") + ".pub.pem")
    there = next((path for path in (private_path, public_path) if os.path.lexists(path)), None)
    if there is not None:
        raise OptionError(
            f"the key {str(there)!r} is there already, and is not replaced",
            fix="give the path of a file that is not there yet",
        )
    library, encoding = _library()
    private = library.Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        encoding.Encoding.PEM, encoding.PrivateFormat.PKCS8, encoding.NoEncryption()
    )
    public = private.public_key().public_bytes(
        encoding.Encoding.PEM, encoding.PublicFormat.SubjectPublicKeyInfo
    )
    for target, content, mode in ((private_path, secret, 0o600), (public_path, public, 0o644)):
        try:
            handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise OptionError(
                f"the key {str(target)!r} cannot be written: {error.strerror}",
                fix="give the path of a file in a folder that can be written to",
            ) from error
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return private_path, public_path, key_id(private.public_key().public_bytes_raw())


def sign(path: str | os.PathLike[str], key: Key, output: str | os.PathLike[str] | None = None) -> str:
    """Sign an artifact, and write it to `output`, or in its place; a signature that it has is replaced.

    Args:
        key: the private key: the path of a PEM file, or its content.

    Returns:
        The id of the key.

    Raises:
        ArtifactError: the file is no artifact, or is damaged.
        OptionError: the key is none.
        ExportError: the result cannot be written.
    """
    private = _private(key)
    signer = key_id(private.public_key().public_bytes_raw())
    container = open_container(path)
    read_manifest(container)  # what is no artifact is not signed
    header = json.loads(container.header)
    kept = {name: text for name, text in container.metadata.items() if name not in (SIGNATURE, SIGNER)}
    header[METADATA] = {**kept, SIGNER: signer, SIGNATURE: _BLANK}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    place = _place(text, _BLANK)
    if place is None:
        raise container.damaged('"signature" stands in its header in other places, too')

    def write(target: Path) -> None:
        with open(target, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            digests: list[bytes] = []
            for begin, end in _regions(container):
                found = hashlib.sha256()
                # What is signed is what was written, whatever becomes of the file that it is read from.
                for piece in map(bytes, _pieces(container, begin, end)):
                    file.write(piece)
                    found.update(hashlib.sha256(piece).digest())
                digests.append(found.digest())
            file.seek(8 + place)
            file.write(base64.b64encode(private.sign(_message(text, digests))))

    write_with(path if output is None else output, write, "the signed artifact", ExportError)
    return signer


# --- verifying --------------------------------------------------------------------------------------------------------


def verify(path: str | os.PathLike[str], key: Key | Sequence[Key]) -> str:
    """The id of the key that signed an artifact, one of `key`.

    Raises:
        ArtifactError: the file is damaged, is not signed, or not by these keys, or was changed since.
        OptionError: a key is none.
    """
    found = verified(open_container(path), key)
    read_manifest(found.container)
    return found.signer


def verified(container: Container, key: Key | Sequence[Key]) -> Verified:
    """Check the signature of a file that is mapped.

    Raises:
        ArtifactTrustError: it has none, or not by one of these keys, or was changed since.
        OptionError: a key is none.
    """
    keys = _publics(key)
    expected = f"a signature by {' or '.join(keys)}"
    signer, signature = container.metadata.get(SIGNER), container.metadata.get(SIGNATURE)
    if signature is None or signer is None:
        raise ArtifactTrustError(
            f"{container.path}: expected {expected}; came no signature",
            fix=f"lampwork sign {container.path} --key KEY.pem; or leave key= out: its programs are compiled here, and "
            "its machine code is not run",
        )
    place = _place(container.header, signature) if _SHAPE.fullmatch(signature) else None
    if place is None:
        raise ArtifactTrustError(
            f"{container.path}: expected {expected}, {_LENGTH} characters of base64 at one place of the header; "
            f"came {len(signature)} characters: {signature[:100]!r}",
            fix="sign the file again, or fetch it again from where it was signed",
        )
    if signer not in keys:
        raise ArtifactTrustError(
            f"{container.path}: expected {expected}; came one by {signer[:100]!r}",
            fix="pass the public key of whoever signs your artifacts, or have them sign this one",
        )
    weights, (begin, end) = _regions(container)
    sections = container.data[begin:end].tobytes()
    header = bytearray(container.header)
    header[place : place + _LENGTH] = _BLANK.encode()
    digests = [_digest(list(_pieces(container, *weights))), _digest(_cut(memoryview(sections)))]
    if not _holds(keys[signer], signature, _message(bytes(header), digests)):
        raise ArtifactTrustError(
            f"{container.path}: expected the bytes that {signer} signed; came others: the file was changed after it "
            "was signed, or has the signature of another file",
            fix="fetch it again from where it was signed; do not load it",
        )
    return Verified(replace(container, kept=(begin, sections)), signer)


def _holds(public: Any, signature: str, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        found = base64.b64decode(signature, validate=True)
        if base64.b64encode(found).decode() != signature:  # 4 bits of the last letter are of no byte
            return False
        public.verify(found, message)
    except InvalidSignature:
        return False
    return True


# --- what is signed ---------------------------------------------------------------------------------------------------


def _message(header: bytes, digests: Sequence[bytes]) -> bytes:
    """`header`: with the signature blank; `digests`: of the weights and of the sections."""
    return _PREFIX + hashlib.sha256(struct.pack("<Q", len(header)) + header).digest() + b"".join(digests)


def _place(header: bytes, signature: str) -> int | None:
    """Where the signature begins in the header; None unless it is at one place."""
    before = f'"{SIGNATURE}":"'.encode()
    whole = before + signature.encode() + b'"'
    return header.index(whole) + len(before) if header.count(whole) == header.count(before) == 1 else None


def _regions(container: Container) -> tuple[tuple[int, int], tuple[int, int]]:
    """Which bytes of the data are weights, and which are sections.

    Raises:
        ArtifactError: a weight comes after a section.
    """
    sections = [span for name, span in container.spans.items() if name.startswith(SECTION)]
    size = container.nbytes - container.start
    begin = min((span.begin for span in sections), default=size)
    for name in container.weights:
        if container.spans[name].end > begin:
            raise container.damaged(f"tensor {name[:80]!r} comes after a section, where no signature has it")
    return (0, begin), (begin, size)


def _pieces(container: Container, begin: int, end: int) -> Iterator[memoryview]:
    return _cut(container.data[begin:end])


def _cut(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


def _digest(pieces: Any) -> bytes:
    """Of pieces, in several threads: it is sha256 that verifying waits for."""
    found = hashlib.sha256()
    with ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0)))) as threads:
        for part in threads.map(lambda piece: hashlib.sha256(piece).digest(), pieces):
            found.update(part)
    return found.digest()


# --- keys -------------------------------------------------------------------------------------------------------------


def _library() -> tuple[Any, Any]:
    """Keys and their files, of `cryptography`."""
    purpose = "for signatures"
    keys = needed("cryptography.hazmat.primitives.asymmetric.ed25519", purpose)
    return keys, needed("cryptography.hazmat.primitives.serialization", purpose)


def _private(key: Any) -> Any:
    ed25519, serialization = _library()
    content, where = _content(key)
    try:
        found = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
        raise OptionError(
            f"{where}: expected a private Ed25519 key in PEM, without a passphrase; came something else: "
            f"{text_of(error)}",
            fix="lampwork keygen release.pem makes one",
        ) from error
    if not isinstance(found, ed25519.Ed25519PrivateKey):
        raise _another(where, "private", found)
    return found


def _publics(key: Any) -> dict[str, Any]:
    """Public keys by their ids."""
    given: list[Any] = list(cast("Sequence[Any]", key)) if isinstance(key, (list, tuple)) else [key]
    if not given:
        raise OptionError(
            "key is an empty list, expected at least one public key", fix='key="release.pub.pem"'
        )
    found = [_public(each) for each in given]
    return {key_id(each.public_bytes_raw()): each for each in found}


def _public(key: Any) -> Any:
    ed25519, serialization = _library()
    content, where = _content(key)
    if len(content) == 32 and isinstance(key, bytes):
        return ed25519.Ed25519PublicKey.from_public_bytes(content)
    if b"PRIVATE KEY" in content:
        raise OptionError(
            f"{where}: expected a public key; came a private one, which whoever signs keeps",
            fix="pass the file that ends in .pub.pem",
        )
    if _HEADERS.search(content):  # the runtime without Python takes none either
        raise OptionError(
            f"{where}: expected a public Ed25519 key in PEM; came one with header lines",
            fix="take out the lines between its first one and the empty one",
        )
    try:
        found = serialization.load_pem_public_key(content)
    except ValueError as error:
        raise OptionError(
            f"{where}: expected a public Ed25519 key in PEM; came something else: {text_of(error)}",
            fix="pass the file that lampwork keygen wrote beside the private key, which ends in .pub.pem",
        ) from error
    if not isinstance(found, ed25519.Ed25519PublicKey):
        raise _another(where, "public", found)
    return found


def _content(key: Any) -> tuple[bytes, str]:
    """The bytes of a key, and what to call it."""
    if isinstance(key, bytes):
        return key, "key"
    if not isinstance(key, (str, os.PathLike)):
        raise OptionError(
            f"key is a {type(key).__name__}, expected the path of a PEM file, bytes, or a list of these",
            fix='key="release.pub.pem"',
        )
    if isinstance(key, str) and _BEGIN in key:
        return key.encode("utf-8", "surrogatepass"), "key"
    path = os.fspath(cast("str", key))
    try:
        with open(open_plain(path), "rb") as file:
            content = file.read(_LARGEST_KEY + 1)
        if len(content) > _LARGEST_KEY:
            raise ValueError(f"it has more than {_LARGEST_KEY} bytes, which no key has")
        return content, path
    except (OSError, ValueError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or text_of(error)
        raise OptionError(
            f"the key {path!r} cannot be read: {cause}", fix="give the path of a PEM file"
        ) from error


def _another(where: str, kind: str, found: Any) -> OptionError:
    return OptionError(
        f"{where}: expected a {kind} Ed25519 key; came {type(found).__name__}",
        fix="lampwork keygen makes one",
    )
