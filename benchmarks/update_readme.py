"""Write the tables of one or more bench.json files into README.md, between its bench markers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lampwork.bench.__main__ import format_tables
from lampwork.bench.measure import Result

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    machine = documents[0]["machine"]
    results = [Result(**r) for document in documents for r in document["results"]]
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    where = f"Measured on {machine['cpu']}, torch {machine['torch']}, Python {machine['python']}."
    README.write_text(f"{head}{BEGIN}\n{where}\n\n{format_tables(results)}\n{END}{tail}")


if __name__ == "__main__":
    main()
