"""What special methods return is held to what native code takes of them."""

from __future__ import annotations

import pytest
import torch

import lampwork

X = torch.ones(2)


class Wrong:
    """Each method gives what its caller refuses."""

    def __str__(self):
        return 5

    def __repr__(self):
        return None

    def __format__(self, spec):
        return 3

    def __bytes__(self):
        return "text"

    def __complex__(self):
        return 1

    def __len__(self):
        return -1

    def __hash__(self):
        return "number"

    def __iter__(self):
        return 3


WRONG = Wrong()
PROGRAMS = {
    "str": lambda x: (x, str(WRONG)),
    "repr": lambda x: (x, repr(WRONG)),
    "format": lambda x: (x, f"{WRONG}"),
    "bytes": lambda x: (x, bytes(WRONG)),
    "complex": lambda x: (x, complex(WRONG)),
    "truth": lambda x: x + 1 if WRONG else x,
    "not": lambda x: x * (not WRONG),
    "len": lambda x: x * len(WRONG),
    "hash": lambda x: (x, hash(WRONG)),
    "iter": lambda x: (x, list(iter(WRONG))),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_what_native_code_refuses_is_refused(name, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    program = PROGRAMS[name]
    with pytest.raises((TypeError, ValueError)) as expected:
        program(X)
    compiled = lampwork.compile(program)
    for _ in range(2):
        with pytest.raises(expected.type) as got:
            compiled(X)
        assert str(got.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_an_exception_that_leaves_shows_as_much_as_in_eager(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")

    def program(x):
        try:
            raise SystemExit(4)
        finally:
            x = x + 1

    for function in (program, lampwork.compile(program)):
        with pytest.raises(SystemExit) as raised:
            function(X)
        assert not raised.value.__suppress_context__
