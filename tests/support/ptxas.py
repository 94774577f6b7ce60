"""NVIDIA's assembler of PTX, where there is one: `ptxas` makes the machine code of a card, and needs none.

It is in the wheel `nvidia-cuda-nvcc-cu12`, which the dev dependencies name, in that of triton, and in CUDA itself.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

NONE = "no ptxas: set LAMPWORK_PTXAS to one, or install nvidia-cuda-nvcc-cu12"


@dataclass(frozen=True)
class Assembled:
    """What ptxas says of a kernel: registers of a thread, bytes that it spills, bytes of static shared memory, and what
    it remarks on products of warpgroups, such as that it makes them wait for each other."""

    registers: int
    spills: int
    shared: int
    remarks: tuple[str, ...] = ()


@cache
def find() -> str | None:
    """The path of ptxas: LAMPWORK_PTXAS, one on PATH, or one in a wheel."""
    given = os.environ.get("LAMPWORK_PTXAS") or shutil.which("ptxas")
    if given is not None:
        return given
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "triton"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "ptxas":
                return os.fspath(file.locate())
    return None


def required() -> str:
    """The path of ptxas; skips the test where there is none."""
    path = find()
    if path is None:
        pytest.skip(NONE)
    return path


@cache
def supported() -> frozenset[int]:
    """The compute capabilities that this ptxas makes code for; an older one does not know newer cards, nor a newer one
    cards that are out of support."""
    text = subprocess.run([required(), "--help"], capture_output=True, text=True, check=True).stdout
    return frozenset(map(int, re.findall(r"'sm_(\d+)'", text)))


def assemble(text: str, capability: int) -> Assembled:
    """Assembles PTX for a compute capability. Raises AssertionError with what ptxas says if it refuses."""
    own = "a" if f".target sm_{capability}a" in text else ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(text)
        command = [
            required(),
            "-v",
            f"-arch=sm_{capability}{own}",
            str(source),
            "-o",
            f"{folder}/kernel.cubin",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{said}\n{text}"

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, said)))

    return Assembled(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes smem"),
        tuple(re.findall(r"\(C75\d\d\).*", said)),
    )
