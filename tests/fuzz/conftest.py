"""The fuzzers' programs are declared as those of conformance are."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "conformance"))
