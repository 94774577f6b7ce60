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
# Under AddressSanitizer and UndefinedBehaviorSanitizer, see `make sanitize`. No vptr checks: torch exports no type
# information for its hidden classes.
SANITIZE = os.environ.get("LAMPWORK_BUILD_SANITIZE") == "1"
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer"] if SANITIZE else []
OPTIMIZE = ["-O1", "-g1"] if SANITIZE else ["-O0", "-g"] if DEBUG else ["-O2", "-g0"]

setup(
    ext_modules=[
        CppExtension(
            "lampwork._C",
            SOURCES,
            depends=HEADERS,
            extra_compile_args=[
                "-std=c++20",
                *OPTIMIZE,
                *CHECKS,
                "-fvisibility=hidden",
                "-fno-plt",  # a call of CPython or torch is one jump: there are dozens on the way of a call
                "-fopenmp",
                "-Wall",
                "-Wno-maybe-uninitialized",
            ],
            extra_link_args=["-fopenmp", *CHECKS] if DEBUG or SANITIZE else ["-fopenmp", "-s"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
