"""Write the figures of training.json files (`python -m lampwork.bench train --json FILE`) between the training markers
of docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pages import BENCHMARKS, put

from lampwork.bench.machine import where
from lampwork.bench.training.command import format_tables, read


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if any(document["machine"] != documents[0]["machine"] for document in documents):
        raise SystemExit("figures of several machines do not go into one table")
    rows = [row for document in documents for row in read(document)]
    put(BENCHMARKS, "training", f"{where(documents[0]['machine'])}\n\n{format_tables(rows)}")


if __name__ == "__main__":
    main()
