"""Random programs of breaks, exceptions, generators, coroutines, threads and forks do what they do in eager: few here,
many with LAMPWORK_FUZZ (`make fuzz`).

A failure prints its seed and the program, shrunk; `python tests/fuzz/program_fuzz.py --seed SEED -n 1` repeats it.
"""

from __future__ import annotations

import textwrap
import warnings

from program_grammar import grown
from program_shrink import shrunk
from program_sides import difference, run
from ran import none_differ


def test_random_programs() -> None:
    none_differ("program_fuzz.py", 20)


def test_a_fuzz_program_is_its_seeds() -> None:
    assert grown(7) == grown(7) != grown(8)
    for seed in range(200):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(grown(seed), "program", "exec")


def test_fuzz_sees_what_differs() -> None:
    """Results, the order of the log, and lines of tracebacks."""
    main = "def main(c, call, watch):\n    s = State()\n    watch(s)\n    call(lambda: f(T(1), s))\n"
    texts = [
        "def f(x, s):\n    s.log.append(1); s.log.append(2)\n    return x\n" + main,
        "def f(x, s):\n    s.log.append(2); s.log.append(1)\n    return x\n" + main,
        "def f(x, s):\n    s.log.append(1); s.log.append(2)\n    return x + 1\n" + main,
        "def f(x, s):\n    raise KeyError(1)\n" + main,
        "def f(x, s):\n\n    raise KeyError(1)\n" + main,
    ]
    told = [run(text, None) for text in texts]
    for i, one in enumerate(told):
        for j, other in enumerate(told):
            assert (difference(one, other) is None) == (i == j)


def test_fuzz_shrinks_to_the_statements_that_matter() -> None:
    text = textwrap.dedent(
        """
        def f(x):
            y = 1
            with a:
                for i in range(3):
                    if x:
                        bad(x)
                    other(y)
            return y

        def g():
            return 2
        """
    )
    assert shrunk(text, lambda smaller: "bad(x)" in smaller) == "def f(x):\n    bad(x)\n"
