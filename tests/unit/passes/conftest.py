from __future__ import annotations

import sys
from pathlib import Path

# The helpers for graphs are shared with the rewrite tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "rewrite"))
