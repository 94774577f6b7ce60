"""Random class hierarchies whose attributes are descriptors of many kinds, with overrides that ask `super()` for what
they override. As text, so that one program can be built twice: what it counts and keeps is its own."""

from __future__ import annotations

import functools
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

PRELUDE = """
class Reader:
    def __init__(self, value):
        self.value = value

    def __get__(self, obj, owner=None):
        return self.value


class Special(property):
    def __get__(self, obj, owner=None):
        return self if obj is None else self.fget(obj) + 100
"""

# What gives a method of a tensor, a method without arguments that gives a number, and a number. `{k}` is a number.
METHODS = (
    "{n} = lambda self, x: x * {k}",
    "{n} = compiled(lambda self, x: x * {k})",
    "{n} = functools.partialmethod(lambda self, a, x: x * a, {k})",
    "{n} = staticmethod(lambda x: x + {k})",
    "{n} = staticmethod(compiled(lambda x: x + {k}))",
    "{n} = classmethod(lambda cls, x: x * cls.scale + {k})",
    "{n} = classmethod(compiled(lambda cls, x: x * cls.scale + {k}))",
    "{n} = Reader(lambda x: x - {k})",
    "{n} = torch.neg",
)
NUMBERS = (
    "{n} = lambda self: {k}",
    "{n} = functools.lru_cache(lambda self: {k})",
    "{n} = functools.partialmethod(lambda self, a: a, {k})",
    "{n} = classmethod(lambda cls: cls.scale + {k})",
    "{n} = classmethod(functools.lru_cache(lambda cls: cls.scale + {k}))",
    "{n} = staticmethod(lambda: {k})",
    "{n} = Reader(lambda: {k})",
    "{n} = int",
)
VALUES = (
    "{n} = {k}",
    "{n} = property(lambda self: {k})",
    "{n} = property(functools.partial(lambda a, self: a, {k}))",
    "{n} = functools.cached_property(lambda self: {k})",
    "{n} = Reader({k})",
    "{n} = Special(lambda self: {k})",
    "{n} = staticmethod({k})",
    *(("{n} = classmethod(property(lambda cls: cls.scale + {k}))",) if sys.version_info < (3, 13) else ()),
)
OVERRIDES = {
    "m": (
        "def {n}(self, x): return super().{n}(x) + {k}",
        "@compiled\n    def {n}(self, x): return super().{n}(x) + {k}",
        "@classmethod\n    def {n}(cls, x): return super().{n}(x) + {k}",
    ),
    "n": (
        "def {n}(self): return super().{n}() + {k}",
        "@functools.lru_cache\n    def {n}(self): return super().{n}() + {k}",
        "@classmethod\n    def {n}(cls): return super().{n}() + {k}",
    ),
    "v": (
        "@property\n    def {n}(self): return super().{n} + {k}",
        "@functools.cached_property\n    def {n}(self): return super().{n} + {k}",
        "@Special\n    def {n}(self): return super().{n} + {k}",
    ),
}
KINDS = {"m": METHODS, "n": NUMBERS, "v": VALUES}
NAMES = ("m1", "m2", "n1", "n2", "v1", "v2", "slot")


@dataclass
class Program:
    """Classes, the last of which has an object made of it, and what is read of that object."""

    classes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    bases: dict[str, list[str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        reads = "\n".join(f"    out.append(attempt(lambda: {read}))" for read in self.reads)
        last = list(self.bases)[-1]
        made = f"def make():\n    o = {last}()\n    C0.slot.__set__(o, 0.5)\n    return o"
        run = f"def run(o, x):\n    out = []\n{reads}\n    return out, sorted(vars(o))"
        return "\n\n".join((PRELUDE, *self.classes, made, run))

    def build(self, compiled: Any) -> dict[str, Any]:
        """The names that the program defines, its methods compiled by `compiled`."""
        names = {"functools": functools, "torch": torch, "compiled": compiled, "attempt": attempt}
        exec(compile(self.text, "<super program>", "exec"), names)
        return names


def attempt(read: Any) -> Any:
    """What a read gives, or the name of its error."""
    try:
        return read()
    except (AttributeError, TypeError, NameError) as error:
        return type(error).__name__


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    program = Program()
    for number in range(rng.randint(3, 4)):
        earlier = list(program.bases)
        program.bases[f"C{number}"] = rng.sample(earlier, min(len(earlier), rng.choice((1, 1, 2))))
        # The later one first: it may inherit from the other.
        parents = sorted(program.bases[f"C{number}"], reverse=True)
        body = [f"scale = {number + 1}"]
        body += ['__slots__ = ("slot", "__dict__")'] if number == 0 else []
        for name in NAMES:
            kind = "v" if name == "slot" else name[0]
            if (number == 0 and name == "slot") or (number and rng.random() < 0.4):
                continue
            is_override = number and rng.random() < 0.5
            form = rng.choice((OVERRIDES if is_override else KINDS)[kind])
            body.append(form.format(n=name, k=rng.randint(2, 9)))
        head = f"class C{number}({', '.join(parents)}):" if parents else f"class C{number}:"
        program.classes.append(head + "".join(f"\n    {line}" for line in body))
    for name in rng.sample(NAMES, len(NAMES)):
        number = rng.randrange(1, len(program.bases))
        for form in rng.sample(("o.{n}", "super({c}, o).{n}", "super({c}, type(o)).{n}", "type(o).{n}"), 2):
            read = form.format(n=name, c=f"C{number}")
            calls = {"m": f"{read}(x)", "n": f"{read}() * x"}
            program.reads.append(calls.get(name[0], f"{read} * x"))
    return program
