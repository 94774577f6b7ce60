"""Builds the C++ runtime `lampwork._C` against the torch that is installed. Everything else is in pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from setuptools import setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
# What is compiled together: torch's headers take most of the time of a file alone. No two files of a unit may have
# names in common in their unnamed namespaces.
UNITS = {
    "calls": "compiled entry specializations guards frames dict_version recipe results",
    "programs": "bindings module program execute checks collectives symbols profile",
    "memory": "blocks heap storages weight_files code_pages content fork_mutex holds machine_code",
    "training": "autograd trained rows norms device_rows reading",
    "numbers": "random counter_random card_random complex bags sorting",
    "cards": "replay device_kernel driver counters",
    "indices": "searching",
    "scatters": "scattering",
}
# Files of the runtime without Python (cpp/) that are compiled into the extension too, each with the file of csrc of its
# name.
SHARED = ["machine_code"]
HEADERS = sorted(
    str(path.relative_to(ROOT))
    for path in (*(ROOT / "csrc").glob("*.h"), *(ROOT / "cpp" / "src" / f"{name}.h" for name in SHARED))
)
DEBUG = os.environ.get("LAMPWORK_BUILD_DEBUG") == "1"
# Under AddressSanitizer and UndefinedBehaviorSanitizer, see `make sanitize`. No vptr checks: torch exports no type
# information for its hidden classes.
SANITIZE = os.environ.get("LAMPWORK_BUILD_SANITIZE") == "1"
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer"] if SANITIZE else []
OPTIMIZE = ["-O1", "-g1"] if SANITIZE else ["-O0", "-g"] if DEBUG else ["-O2", "-g0"]


def sources() -> list[str]:
    """One file for each unit, written to build/units, which includes the files of the unit."""
    named = sorted(name for unit in UNITS.values() for name in unit.split())
    there = sorted(path.stem for path in (ROOT / "csrc").glob("*.cpp"))
    if named != there:
        raise SystemExit(
            f"setup.py: each file of csrc belongs to one unit; {set(named) ^ set(there)} do not fit"
        )
    folder = ROOT / "build" / "units"
    folder.mkdir(parents=True, exist_ok=True)
    for unit, names in UNITS.items():
        shared = [name for name in names.split() if name in SHARED]
        text = "".join(
            [
                *(f'#include "../../cpp/src/{name}.cpp"\n' for name in shared),
                *(f'#include "../../csrc/{name}.cpp"\n' for name in names.split()),
            ]
        )
        path = folder / f"{unit}.cpp"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return [f"build/units/{unit}.cpp" for unit in UNITS]


class Build(BuildExtension):
    """Leaves a note beside the extension of which torch it was built with, for `lampwork.installed`.

    With LAMPWORK_BUILD_REUSE=1 a wheel takes the extension that lies in the tree for this Python, built before.
    """

    def run(self) -> None:
        if os.environ.get("LAMPWORK_BUILD_REUSE") == "1" and not self.inplace:
            self.reuse()
            return
        super().run()
        for extension in self.extensions:
            self.note(extension.name).write_text(f"{torch.__version__}\n")

    def note(self, extension: str) -> Path:
        return Path(self.get_ext_fullpath(extension)).with_suffix(".torch")

    def reuse(self) -> None:
        for extension in self.extensions:
            target = Path(self.get_ext_fullpath(extension.name))
            built = ROOT / "src" / self.get_ext_filename(extension.name)
            if not built.is_file():
                raise SystemExit(
                    f"setup.py: there is no {built} to reuse; build it with `build_ext --inplace`"
                )
            note = built.with_suffix(".torch")
            made_with = note.read_text() if note.is_file() else f"{torch.__version__}\n"
            if made_with.split(".")[:2] != torch.__version__.split(".")[:2]:
                raise SystemExit(
                    f"setup.py: {built} was built with torch {made_with.strip()}: build it again"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(built), str(target))
            self.note(extension.name).write_text(made_with)


class Sources(build_py):
    """Puts the headers of the C++ runtime into a wheel, as lampwork/include."""

    def run(self) -> None:
        super().run()
        headers = ROOT / "cpp" / "include"
        if headers.is_dir() and not self.editable_mode:
            for path in sorted(headers.rglob("*.h*")):
                target = Path(self.build_lib, "lampwork", "include", path.relative_to(headers))
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(path), str(target))


# torch keeps no binary interface between minor versions: the extension runs with the one that it was built with.
MINOR = ".".join(torch.__version__.split(".")[:2])

setup(
    install_requires=[f"torch=={MINOR}.*", "llvmlite>=0.45", "bytecode>=0.16", "numpy"],
    ext_modules=[
        CppExtension(
            "lampwork._C",
            sources(),
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
                "-Wno-subobject-linkage",  # files are compiled as parts of a unit
            ],
            extra_link_args=["-fopenmp", *CHECKS] if DEBUG or SANITIZE else ["-fopenmp", "-s"],
        )
    ],
    cmdclass={"build_ext": Build, "build_py": Sources},
)
