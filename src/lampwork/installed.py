"""What has to be installed: an extension that fits this Python and this torch, and packages of others.

The system's loader names neither torch nor Python where they differ from those that the extension was built for
("undefined symbol"), or loads it all the same, as structures may have changed where no name did.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from lampwork.errors import InstallError

BUILT = ".torch"
"""Ends the name of the file beside the extension that says which torch it was built with; setup.py writes it."""


def check_extension(folder: Path, torch: str) -> None:
    """Raise InstallError unless `folder` has an extension for this Python that was built with `torch`, a version, up to
    its last number. One that does not say what it was built with is taken."""
    there = next((path for end in EXTENSION_SUFFIXES if (path := folder / f"_C{end}").is_file()), None)
    if there is None:
        others = sorted(path.name for path in folder.glob("_C.*") if path.suffix in (".so", ".pyd"))
        came = f"that of {', '.join(others)}" if others else "none"
        raise InstallError(
            f"expected Lampwork's extension for this Python, _C{EXTENSION_SUFFIXES[0]}; came {came}",
            fix="install a wheel for this Python; in a clone, run `make setup` with it",
        )
    note = there.with_suffix(BUILT)
    built = note.read_text().strip() if note.is_file() else torch
    if _minor(built) != _minor(torch):
        wanted = _minor(built)
        raise InstallError(
            f"expected torch {wanted}, which Lampwork's extension was built with; came torch {torch}",
            fix=f'pip install "torch=={wanted}.*", or build Lampwork with torch {torch}: '
            "pip wheel --no-build-isolation --no-deps .",
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def needed(name: str, purpose: str) -> ModuleType:
    """A module of another package; where it is not installed, one that raises InstallError when it is used."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # what the package itself lacks
            raise
        return _Missing(name, purpose)


class _Missing(ModuleType):
    """Stands for a module that is not installed."""

    def __init__(self, name: str, purpose: str) -> None:
        super().__init__(name)
        self._purpose = purpose

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):  # what Python itself asks of modules
            raise AttributeError(attribute)
        raise missing(self.__name__, self._purpose)


def missing(name: str, purpose: str) -> InstallError:
    """The error for a package that is not there."""
    package = name.partition(".")[0]
    return InstallError(
        f"expected the package {package}, which is needed {purpose}; it is not installed",
        fix=f"pip install {package}",
    )
