"""Write the figures of a kernels.json (`python -m lampwork.bench kernels --json FILE`) between the kernels markers of
docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pages import BENCHMARKS, put

from lampwork.bench.kernels.command import Kernel, format_tables
from lampwork.bench.machine import where
from lampwork.inspect.machine.limits import Limits


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    limits = [Limits(**x) for x in document["limits"]]
    kernels = [Kernel(**k) for k in document["kernels"]]
    put(BENCHMARKS, "kernels", f"{where(document['machine'])}\n\n{format_tables(limits, kernels)}")


if __name__ == "__main__":
    main()
