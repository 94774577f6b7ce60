"""Strings: formatting of all kinds, methods, regular expressions."""

from __future__ import annotations

import re
import string
import textwrap

import torch
from harness import program

X = torch.arange(3.0)


class Money:
    def __init__(self, amount):
        self.amount = amount

    def __format__(self, spec):
        return f"<{self.amount:{spec or 'd'}}>"

    def __str__(self):
        return f"{self.amount} coins"

    def __repr__(self):
        return f"Money({self.amount!r})"


class Plain:
    def __repr__(self):
        return "Plain()"


@program(lambda: (X, 3, 2.5), again=lambda: (X, 4, 1.25))
def f_strings(x, n, f):
    width = 8
    return x * n, f"{n:>{width}}|{f:.2f}|{n!r:^5}|{n=}|{'a' if n > 3 else 'b'}|{{}}|{n:,}|{n:08b}|{f:e}"


@program(lambda: (X, 3))
def format_method(x, n):
    return (
        x,
        "{} {} {0}".replace("{0}", "{}").format(n, "b", 1.5),
        "{a:>5}|{b!r}".format(a=n, b="q"),
        "{0[1]}".format([1, 2]),
    )


@program(lambda: (X, 3, "name"))
def percent_format(x, n, s):
    return x, "%d %s %5.1f %r %%" % (n, s, 2.25, s), "%(k)s-%(v)03d" % {"k": s, "v": n}, "%s" % (n,)


@program(lambda: (X, Money(5)), again=lambda: (X, Money(7)))
def own_formatting(x, m):
    return (
        x * m.amount,
        f"{m}",
        f"{m:04d}",
        f"{m!s}",
        f"{m!r}",
        str(m),
        repr(m),
        "{}|{:3d}".format(m, m),
        "%s %r" % (m, m),
    )


@program(lambda: (X, Money(5)))
def own_repr_in_containers(x, m):
    return x, str([m, Plain()]), repr({"k": (m,)}), f"{[m]}", "%s" % [m], f"{(m, 1)!r:>20}"


@program(lambda: (X,))
def tensor_facts_in_text(x):
    return (
        x + 1,
        f"{tuple(x.shape)} {x.dtype} {x.device} {x.dim()}",
        str(x.shape),
        repr(x.dtype),
        f"{x.shape[0]:03d}",
    )


@program(lambda: (X, " Some,Text "), again=lambda: (X, "other"))
def string_methods(x, s):
    return (
        x * len(s),
        s.strip().lower().split(","),
        s.upper().center(20, "*"),
        s.replace("e", "E").find("E"),
        s.startswith((" S", "o")),
        s.title().swapcase(),
        s.partition(","),
        "-".join(["a", s.strip()]),
        s.strip().zfill(12),
        s.isalpha(),
        s.encode().hex(),
        s[::-1],
        "T" in s,
        s * 2,
        sorted(s)[:3],
    )


@program(lambda: (X,))
def join_generator(x):
    return x, ", ".join(str(i) for i in range(3)), "".join(map(str, [1, 2])), " ".join(sorted({"b", "a"}))


@program(lambda: (X, "layer.12.weight"), again=lambda: (X, "bias"))
def regular_expressions(x, name):
    found = re.search(r"\.(\d+)\.", name)
    k = int(found.group(1)) if found else 1
    return x * k, re.sub(r"\d", "#", name), re.split(r"\.", name), [m.start() for m in re.finditer("e", name)]


PATTERN = re.compile(r"(?P<key>\w+)=(?P<value>\d+)")


@program(lambda: (X, "k=3"), again=lambda: (X, "none"))
def compiled_pattern(x, text):
    m = PATTERN.match(text)
    return x * int(m["value"]) if m else x, m.groupdict() if m else None


@program(lambda: (X,))
def templates_and_wrapping(x):
    return x, string.ascii_lowercase[:3], textwrap.dedent("  a\n  b")


@program(lambda: (X, b"abc"))
def bytes_and_bytearray(x, b):
    data = bytearray(b)
    data.append(100)
    return x * len(b), b.decode(), bytes(data), b[0], b"b" in b, bytes([1, 2])


@program(lambda: (X,))
def characters(x):
    return x, ord("a"), chr(98), hex(255), oct(8), bin(5), ascii("é"), "é".encode("utf-8"), "a" < "b"


@program(lambda: (X, 10), again=lambda: (X, 20))
def name_from_number(x, n):
    table = {f"block_{i}": i for i in range(3)}
    return x * table[f"block_{n % 3}"], [name for name in table if name.endswith("1")]


@program(lambda: (X,))
def string_building(x):
    text = ""
    for i in range(3):
        text += f"{i};"
    lines = text.rstrip(";").split(";")
    return (
        x * len(lines),
        text,
        """multi
line""".splitlines(),
    )


@program(lambda: (X,))
def exception_texts(x):
    errors = [ValueError("a", 1), KeyError("k"), RuntimeError(), OSError(2, "none"), ValueError(Money(2))]
    return x, [str(e) for e in errors], [repr(e) for e in errors]


@program(lambda: (X,))
def translate_and_casefold(x):
    table = str.maketrans("ab", "xy", "c")
    return (
        x,
        "abcab".translate(table),
        "GROß".casefold(),
        "a\tb".expandtabs(4),
        "x".ljust(3, "."),
        "abc".removeprefix("a"),
    )


@program(lambda: (X, 255))
def number_formats(x, n):
    return (
        x,
        format(n, "x"),
        format(n, "#b"),
        format(1234567.891, ",.1f"),
        format(0.5, ".0%"),
        f"{n:+}",
        f"{1e-7:g}",
    )
