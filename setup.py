"""Builds the C++ runtime `lampwork._C` against the torch that is installed. Everything else is in pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").glob("*.cpp"))
HEADERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").glob("*.h"))
DEBUG = os.environ.get("LAMPWORK_BUILD_DEBUG") == "1"

setup(
    ext_modules=[
        CppExtension(
            "lampwork._C",
            SOURCES,
            depends=HEADERS,
            extra_compile_args=[
                "-std=c++20",
                "-O0" if DEBUG else "-O2",
                "-g" if DEBUG else "-g0",
                "-fvisibility=hidden",
                "-fopenmp",
                "-Wall",
                "-Wno-maybe-uninitialized",
            ],
            extra_link_args=["-fopenmp"] if DEBUG else ["-fopenmp", "-s"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
