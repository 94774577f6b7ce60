"""The fuzzer of state that a region writes and then reads.

    python tests/fuzz/written_state.py -n 200             # 200 programs
    python tests/fuzz/written_state.py --seed 17 -n 1     # one of them
    python tests/fuzz/written_state.py --file failing.py  # a program that was printed

A capture holds writes back until the region ends, and answers later reads from what it holds. So a *place* that has two
names must be one place for it, too: an attribute and an item of a `__dict__`, a buffer and an item of `_buffers`, an
attribute of a class and of its instance, a tensor and its view, one object as argument, global and item of a list.
`written_places.py` and `written_objects.py` list the places, how each is written and read, and the names;
`written_grammar.py` makes programs.

Each program runs eager and compiled, three calls or more. Compared are the result, exceptions with their tracebacks,
output and warnings, and after each call all state of the program, with what is shared with whom. A call in a state that
another began in captures nothing anew. A finding is shrunk to a smaller program that differs likewise.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from program_fuzz import Fuzzer, main  # noqa: E402
from written_grammar import grown  # noqa: E402
from written_sides import WrittenSide  # noqa: E402

FUZZER = Fuzzer(grown, WrittenSide, __doc__)

if __name__ == "__main__":
    sys.exit(main(FUZZER))
