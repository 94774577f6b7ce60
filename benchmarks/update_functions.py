"""Write the figures of functions.json files (`python -m lampwork.bench functions --json FILE`) between the functions
markers of docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pages import BENCHMARKS, put

from lampwork.bench.functions.command import Row, format_tables
from lampwork.bench.machine import where
from lampwork.inspect.machine.limits import Limits


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    rows = [Row(**{**r, "wrong": tuple(r["wrong"])}) for document in documents for r in document["rows"]]
    # Of several files of one machine, each with some of the functions, the limits of the first are printed.
    limits = {x["threads"]: Limits(**x) for document in reversed(documents) for x in document["limits"]}
    put(
        BENCHMARKS,
        "functions",
        f"{where(documents[0]['machine'])}\n\n{format_tables(list(limits.values()), rows)}",
    )


if __name__ == "__main__":
    main()
