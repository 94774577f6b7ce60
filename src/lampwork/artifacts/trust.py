"""Whether the machine code of a file is run."""

from __future__ import annotations

from lampwork.artifacts.container import Container
from lampwork.artifacts.manifest import Manifest


def trusted(container: Container, manifest: Manifest, trust: bool) -> bool:
    """Whether the code of a file may be mapped: the caller says so. Else its programs are compiled from its graphs."""
    del container, manifest
    return trust
