"""Random programs without tensors: whatever syntax compiles to instructions that differ between versions."""

from __future__ import annotations

import random

PRELUDE = """
COUNT = 0
class Base:
    bias = 1
    def __init__(self, value): self.value = value
    def get(self, k): return self.value + k * self.bias
    def __format__(self, spec): return f'<{self.value}:{spec}>'
class Box(Base):
    bias = 2
    def get(self, k): return super().get(k) + super().bias
    def __bool__(self): return self.value % 2 == 0
    def __eq__(self, other): return isinstance(other, Box) and self.value == other.value
class Loud:
    # What is done with it prints, which breaks the graph in the middle of the instruction.
    __match_args__ = ('low',)
    def __init__(self, value): self.value = value
    def say(self, what): print(what, self.value); return self.value
    def __bool__(self): return self.say('bool') % 2 == 1
    def __len__(self): return abs(self.say('len')) % 4
    def __add__(self, other): return self.say('add') + other
    def __radd__(self, other): return self.say('radd') - other
    def __neg__(self): return -self.say('neg')
    def __lt__(self, other): return self.say('lt') < other
    def __eq__(self, other): return self.say('eq') == other
    def __contains__(self, item): return self.say('contains') == item
    def __getitem__(self, key): return self.say('getitem') if key != slice(1, 2) else 5
    def __setitem__(self, key, value): self.say('setitem')
    def __delitem__(self, key): self.say('delitem')
    def __iter__(self): return iter([self.say('iter'), 2])
    def __call__(self, *a, k=1, **e): return self.say('call') + len(a) * k + len(e)
    def __format__(self, spec): return f'{self.say("format")}{spec}'
    def __str__(self): return f'{self.say("str")}'
    @property
    def low(self): return self.say('low') % 3
    @low.setter
    def low(self, value): self.value = self.say('set low') + value
class Quiet(Loud):
    @property
    def low(self): return super().low + 1
    def get(self, k): return super().say('get') + k
class Manager:
    def __init__(self, log): self.log = log
    def __enter__(self):
        self.log.append('in')
        return len(self.log)
    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else 'out')
        return kind is KeyError
def call(a, b=2, *c, d=3, **e): return a + b * d + len(c) - len(e)
def count(n):
    for i in range(n):
        got = yield i
        if got: yield got
def both(n):
    last = yield from count(n)
    yield -1 if last is None else last
def check(i):
    if i > 4: raise ValueError(f'{i} is too large')
    return i
"""


class Program:
    """Grows the source of `f(n, items)`: an int, and a list of ints and strings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 1
        self.names = ["n"]
        self.fresh = 0

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def new(self, letter: str) -> str:
        self.fresh += 1
        return f"{letter}{self.fresh}"

    def name(self) -> str:
        return self.random.choice(self.names)

    def test(self) -> str:
        a, b, c = self.int(), self.name(), self.name()
        return self.random.choice(
            [
                f"{a} > {b}",
                f"{b} < {a} <= {c}",
                f"not {a} % 2",
                f"Box({a})",
                f"not Box({b})",
                f"{a} in (1, 2, {b})",
                f"{b} is None",
                f"({a} or {b}) is not None and {c} > 1",
                f"Box({a}) == Box({b})",
                f"items and {a}",
                f"Loud({a})",
                f"not Loud({b}) and {c}",
                f"Loud({a}) < {b}",
                f"{b} == Loud({a})",
                f"{b} in Loud({c})",
                f"(Loud({a}) or {b}) is not None",
            ]
        )

    def int(self) -> str:
        a, b = self.name(), self.name()
        return self.random.choice(
            [
                a,
                str(self.random.randint(-3, 6)),
                f"({a} + {b}) % 7",
                f"-{a} * {b} % 5",
                f"len(items[{a} % 3:])",
                f"len(items[:{b} % 2])",
                f"call({a}, d={b})",
                f"call({a}, *[1, {b}], x=1, **{{'y': 2}})",
                f"Box({a}).get({b})",
                f"Base({a}).get(k={b})",
                f"sum(i * {a} % 3 for i in range(3))",
                f"sum([{a} + i for i in range(2) if i != {b}])",
                f"max({{i % 2: {a} for i in range(3)}})",
                f"len({{i % 2 for i in ({a}, {b})}})",
                f"(lambda v, w={a}: v - w)({b})",
                f"sum(g() for g in [lambda: i + {a} for i in range(2)])",
                f"len(f'{{{a}}}{{Box({b}):>4}}{{{a}!r:>3}}')",
                f"({a} if {a} > {b} else {b})",
                f"sum(both({a} % 3))",
                f"sum([x + y for x in (1, 2) for y in [{a}]])",
                f"Loud({a}) + {b}",
                f"({a} + Loud({b}) if Loud({a}) else -Loud({b}))",
                f"Loud({a})[{b}] + Loud({b})[1:2]",
                f"Loud({a})({b}, k={a})",
                f"Loud({a})(*[1, {b}], **{{'x': 1}})",
                f"Loud({a}).say(what={b})",
                f"Quiet({a}).low + Quiet({b}).get({a})",
                f"sum(Loud({a}))",
                f"sum([v + {a} for v in Loud({b})])",
                f"sum(g() for g in [lambda: v + {a} for v in Loud({b})])",
                f"len(f'{{Loud({a})}}{{Loud({b}):>4}}{{Loud({b})!s}}')",
                f"len(Loud({a}))",
            ]
        )

    def block(self, budget: int) -> None:
        known = list(self.names)
        self.depth += 1
        for _ in range(self.random.randint(1, 1 + budget)):
            self.statement(budget - 1)
        self.depth -= 1
        self.names = known

    def statement(self, budget: int) -> None:
        leaves = "set set set pair list store loud print closure global del match send".split()
        nests = ["if", "if", "for", "while", "try", "finally", "with"]
        kind = self.random.choice([*leaves, *(nests * 2 if budget > 0 else [])])
        getattr(self, f"do_{kind}")(budget)

    def do_set(self, budget: int) -> None:
        value, name = self.int(), self.new("i") if self.random.random() < 0.6 else self.name()
        self.emit(f"{name} = {value}")
        self.names.append(name)

    def do_pair(self, budget: int) -> None:
        a, b = self.new("i"), self.new("i")
        self.emit(f"{a}, *{b} = {self.int()}, {self.int()}, {self.int()}")
        self.emit(f"{b} = sum({b})")
        self.emit(f"{a}, {b} = {b}, {a}")
        self.names += [a, b]

    def do_list(self, budget: int) -> None:
        text = [
            "items.append({})",
            "items[0] = {}",
            "items[:1] = [{}]",
            "items += [{}]",
            "items.extend((1, {}))",
        ]
        self.emit(self.random.choice(text).format(self.int()))

    def do_store(self, budget: int) -> None:
        box, name = self.new("b"), self.new("i")
        self.emit(f"{box} = Box({self.int()})")
        self.emit(f"{box}.value += {self.int()}")
        self.emit(f"{name} = {box}.get({self.name()})")
        self.names.append(name)

    def do_loud(self, budget: int) -> None:
        loud, a, b = self.new("l"), self.new("i"), self.new("i")
        self.emit(f"{loud} = Loud({self.int()})")
        self.emit(f"{a}, {b} = {loud}")
        self.names += [a, b]
        texts = [
            "{0}[1] = {1}",
            "{0}[1:2] = {1}",
            "del {0}[{1}]",
            "{0}.low = {1}",
            "{0}.low += {1}",
            "items += {0}",
        ]
        self.emit(self.random.choice(texts).format(loud, self.int()))
        self.emit(f"match {loud}:")
        self.emit(f"    case Loud(0) | Loud(low=2): total += {self.int()}")
        self.emit(f"    case _: total -= {loud}.value")

    def do_print(self, budget: int) -> None:
        self.emit(f"print({self.int()}, {self.name()})")

    def do_closure(self, budget: int) -> None:
        function, name = self.new("c"), self.new("i")
        self.emit(f"def {function}(a: int, b={self.int()}, *, c={self.name()}) -> 'int':")
        self.emit(f"    nonlocal total; total += a; return total + b - c + {self.name()}")
        self.emit(f"{name} = {function}({self.int()}) + {function}(1, c=2)")
        self.names.append(name)

    def do_global(self, budget: int) -> None:
        self.emit("COUNT = COUNT + 1")
        self.emit("total += COUNT")

    def do_del(self, budget: int) -> None:
        name = self.new("i")
        self.emit(f"{name} = {self.int()}")
        self.emit(f"total -= {name}")
        self.emit(f"if {self.test()}: del {name}")
        self.emit(f"else: total += {name}")

    def do_match(self, budget: int) -> None:
        self.emit(f"match [{self.int()}, {{'k': {self.int()}}}, *items[:1]]:")
        for pattern in (
            "[0, *rest]",
            "[int(q), {'k': 1 | 2}, *_]",
            "[_, {'k': q, **rest}]",
            "[_, _, str(q)]",
            "_",
        ):
            self.emit(f"    case {pattern}: total += {self.random.randint(1, 9)}")

    def do_send(self, budget: int) -> None:
        it, name = self.new("g"), self.new("i")
        self.emit(f"{it} = both({self.int()} % 4)")
        self.emit(f"{name} = next({it}, 7)")
        self.emit(f"if {name} == 0: total += {it}.send({self.int()})")
        self.names.append(name)

    def do_if(self, budget: int) -> None:
        self.emit(f"if {self.test()}:")
        self.block(budget)
        if self.random.random() < 0.6:
            self.emit("else:")
            self.block(budget)

    def do_for(self, budget: int) -> None:
        name = self.new("i")
        self.emit(f"for {name} in {self.random.choice(['range(3)', 'count(2)', 'items[:2]', '[]'])}:")
        if self.random.random() < 0.4:
            self.emit(f"    if {self.test()}: {self.random.choice(['break', 'continue'])}")
        self.block(budget)
        if self.random.random() < 0.3:
            self.emit("else:")
            self.block(0)

    def do_while(self, budget: int) -> None:
        name = self.new("w")
        self.emit(f"{name} = 0")
        self.emit(f"while {name} < 2 and ({name} := {name} + 1):")
        self.block(budget)

    def do_try(self, budget: int) -> None:
        self.emit("try:")
        self.block(budget)
        self.emit("    " + self.random.choice([f"check({self.int()})", "raise KeyError('k')", "[][1]"]))
        self.emit("except (ValueError, KeyError) as error:")
        self.emit("    items.append(str(error))")
        self.block(0)
        self.emit("except IndexError:")
        self.block(0)

    def do_finally(self, budget: int) -> None:
        self.emit("try:")
        self.block(budget)
        if self.random.random() < 0.3:
            self.emit(f"    if {self.test()}: return total, {self.name()}")
        self.emit("finally:")
        self.block(0)

    def do_with(self, budget: int) -> None:
        name = self.new("i")
        self.emit(f"with Manager(items) as {name}, Manager(items):")
        self.block(budget)
        self.emit("    " + self.random.choice([f"check({self.int()})", "raise KeyError", "pass"]))

    def source(self) -> str:
        self.emit("global COUNT")
        self.emit("total = 0")
        for _ in range(self.random.randint(3, 6)):
            self.statement(2)
        self.emit(f"return total, items, COUNT, [{', '.join(dict.fromkeys(self.names))}]")
        return PRELUDE + "def f(n, items):\n" + "\n".join(self.lines) + "\n"
