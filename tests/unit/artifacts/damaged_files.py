"""Damages files of artifacts at random. As a program: `python damaged_files.py FILE [COUNT [SEED]]` reads COUNT."""

from __future__ import annotations

import json
import random
import struct
import sys
from typing import Any

NUMBERS = (-(2**63), -1, 0, 1, 2, 7, 255, 2**31, 2**32, 2**63 - 1, 2**64, 1e300, 0.5)
OTHERS = (None, True, "", "a", "../../a", "a\0", "lampwork.graph.forward", [], {}, [[]], [{}], {"input": 0})


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A file with some damage: blind, or in its header, or in what its manifest says."""
    way = rng.randrange(4)
    if way == 0:
        return _blind(content, rng)
    (count,) = struct.unpack_from("<Q", content)
    header: Any = json.loads(content[8 : 8 + count])
    if way == 1:
        header = _changed(header, rng)
    else:
        manifest: Any = json.loads(header["__metadata__"]["manifest"])
        for _ in range(rng.choice((1, 1, 1, 3))):
            manifest = _changed(manifest, rng)
        header["__metadata__"]["manifest"] = json.dumps(manifest)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + content[8 + count :]


def _blind(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    kind = rng.randrange(4)
    at = rng.randrange(min(len(data), 20_000))
    if kind == 0:
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(min(len(data), 20_000))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at : at + rng.choice((1, 8, 100))]
    else:
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 8, 100))))
    return bytes(data)


def _changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it exchanged, doubled or left out."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.08:
        return rng.choice((*NUMBERS, *OTHERS))
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    made: Any = dict(value) if isinstance(value, dict) else list(value)
    kind = rng.random()
    if kind < 0.06:
        del made[key]
    elif kind < 0.12 and isinstance(made, list):
        made.append(made[key])
    elif kind < 0.16 and isinstance(made, dict):
        made[rng.choice(("a", "forward", "__class__", "s0"))] = made[key]
    else:
        made[key] = _changed(made[key], rng)
    return made


def _main() -> None:
    import lampwork
    from lampwork.artifacts.container import read_container
    from lampwork.artifacts.manifest import read_manifest

    path, count, seed = sys.argv[1], int((sys.argv[2:] or [20_000])[0]), int((sys.argv[3:] or [0])[0])
    with open(path, "rb") as file:
        content = file.read()
    rng = random.Random(seed)
    errors = 0
    for number in range(count):
        found = mutated(content, rng)
        try:
            read_manifest(read_container(path, bytearray(found)))
        except lampwork.LampworkError:
            errors += 1
        except BaseException:
            print(f"mutation {number} of seed {seed}")
            raise
    print(f"{count} files, {errors} of them refused, no other error")


if __name__ == "__main__":
    _main()
