"""Write the tables of a bench.json into README.md, between its bench markers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lampwork.bench.__main__ import format_tables
from lampwork.bench.measure import Result

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    machine = document["machine"]
    results = [Result(**r) for r in document["results"]]
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    where = f"Measured on {machine['cpu']}, torch {machine['torch']}, Python {machine['python']}."
    README.write_text(f"{head}{BEGIN}\n{where}\n\n{format_tables(results)}\n{END}{tail}")


if __name__ == "__main__":
    main()
