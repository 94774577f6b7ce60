"""Random programs that write state and read it within one region, each from a seed.

A program makes a few objects (`written_places.KINDS`), has for each some names by which it is reached
(`written_places.ALIASES`), a helper or two, `root(x, ...)`, a sequence of steps on the places of these objects, and
`main(c, call, watch)`, which compiles the root by `c` and calls it again and again, now and then with a write between.
A step writes to a place, reads one into the result, branches on one or loops over it, in a handler, a `finally`, a
helper, a comprehension, beside a graph break.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from written_places import ALIASES, KINDS, WEIGHTS

_PLACE = re.compile(r"@2|@|<(n|k|v|i|x|r|f)>")
_NAMES = ("v", "v", "v", "w", "w", "u")
_KEYS = ('"a"', '"a"', '"b"', '"z"', "0", "1")
_VALUES = (
    "<i>",
    "<i>",
    "<i>",
    "y",
    "T(<i>)",
    "[<i>]",
    "None",
    '"s"',
    "<r>",
    "<r>",
    '{"a": <i>}',
    "(1, <i>)",
    "lambda: <i>",
)
_TENSORS = ("x", "y", "x + <i>", "T(<i>)", "x * num(<r>)")
_ERRORS = (
    "Exception",
    "Exception",
    "AttributeError",
    "KeyError",
    "(AttributeError, TypeError)",
    "IndexError",
    "Problem",
)
_BREAKS = re.compile(r"print|apart|graph_break")
_GLOBALS = ("LEVEL", "FRESH", "KEPT", "num")
DEPTH = 4

READS = """
out.append(<R>)
out.append(<R>)
out.append(<R>)
y = y + num(<R>)
y = y + num(<R>)
<f> = <R>; out.append(<f>)
print(<R>)
out.append(apart(<R>))
out.append((<R>, <R>))
out.append(outcome(lambda: <R>))
out.append([<R> for _ in range(2)])
if <R>: y = y + 1
if num(<R>) is not None and small(<R>) > <i>: y = y * 2
y = y + 1 if small(<R>) > 1 else y - 1
for _ in range(small(<R>)): y = y + 1
assert small(<R>) < 3, "large"
out.append(helper(x, <R>))
out.append(<R> if small(<R>) else <R>)
out.append(next((<f> for <f> in [<R>, <R>] if <f> is not None), 0))
""".strip().splitlines()
BLOCKS = """
try:$    <block>$except <E> as error:$    out.append(str(error))
try:$    <block>$except <E> as error:$    out.append(str(error))
try:$    <block>$except <E> as error:$    <block>
try:$    <block>$finally:$    <block>
try:$    <block>$except <E>:$    <block>$else:$    <block>$finally:$    <block>
try:$    <block>$    raise Problem(<i>)$except Problem as error:$    <block>
if small(<R>) > 1:$    <block>$else:$    <block>
for i_<f> in range(2):$    <block>
for i_<f> in range(<i>):$    <block>
while small(<R>) and len(out) < 12:$    out.append(0)$    <block>
def <f>():$    <globals>$    nonlocal y$    <block>$<f>()
def <f>(x, out=out):$    <globals>$    y = x$    <block>$    return y$y = y + <f>(y)
def <f>():$    <globals>$    nonlocal y$    <block>$    yield y$for i_<f> in <f>(): out.append(i_<f>)
with contextlib.suppress(<E>):$    <block>
print("here")$<block>
lampwork.graph_break()$<block>
with torch.no_grad():$    <block>
""".strip().splitlines()


@dataclass(slots=True)
class Slot:
    """An object of the program: its kind, and the expressions that reach it."""

    kind: str
    name: str
    ways: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Grower:
    """Grows one program. `depth`: of reads within reads."""

    random: random.Random
    slots: list[Slot] = field(default_factory=list[Slot])
    lines: list[str] = field(default_factory=list[str])
    fresh: int = 0
    favourite: str = "v"
    """The attribute that most steps are about: what is written is to be what is read."""
    is_whole: bool = False
    """Whether no step is a graph break by itself: what is written is held back for longer."""
    is_helper: bool = False
    """Whether the helper grows, which does not call itself: eager itself cannot say how deep it gets."""
    local: bool = True
    """Whether the arguments of the root are in scope."""

    def way(self, slot: Slot) -> str:
        ways = slot.ways if self.local else [way for way in slot.ways if not way.startswith("q_")]
        return self.random.choice(ways)

    def fill(self, template: str, slot: Slot | None = None, depth: int = 0) -> str:
        slot = slot or self.random.choice(self.slots)
        bound = None

        def place(match: re.Match[str]) -> str:
            nonlocal bound
            if match.group(0) == "@":
                return self.way(slot)
            if match.group(0) == "@2":
                return self.way(self.random.choice([s for s in self.slots if s.kind == slot.kind]))
            sort = match.group(1)
            if sort == "i":
                return str(self.random.randrange(4))
            if sort == "n":
                return self.favourite if self.random.random() < 0.6 else self.random.choice(_NAMES)
            if sort == "k":
                return self.random.choice(_KEYS)
            if sort == "r":
                return self.read(depth + 1) if depth < 2 else "n"
            if sort == "f":
                self.fresh += bound is None
                bound = bound or f"f{self.fresh}"
                return bound
            return self.fill(self.random.choice(_VALUES if sort == "v" else _TENSORS), None, depth)

        return _PLACE.sub(place, template)

    def read(self, depth: int = 0) -> str:
        slot = self.random.choice(self.slots)
        return self.fill(self.random.choice(KINDS[slot.kind].reads), slot, depth)

    def write(self, slot: Slot | None = None) -> str:
        while True:
            slot = slot or self.random.choice(self.slots)
            text = self.fill(self.random.choice(KINDS[slot.kind].writes), slot)
            # What an augmented assignment rebinds is no call, and no global by its bare name.
            if not re.match(r".*\) [-+|&^]=|\w+ [-+|&^]=", text) or text.startswith("LEVEL"):
                return text

    def step(self, depth: int) -> None:
        """A statement: a write, a read, or a compound one of more steps."""
        pad, luck = "    " * depth, self.random.random()
        if luck < 0.25 and depth < DEPTH:
            self.block(depth)
        elif luck < 0.6:
            slot = self.random.choice(self.slots)
            text = self.write(slot)
            # What is refused is caught, most of the time: a program goes on.
            if self.random.random() < 0.7:
                self.lines += [f"{pad}try:", f"{pad}    {text}", f"{pad}except Exception as error:"]
                self.lines.append(f"{pad}    out.append(str(error))")
            else:
                self.lines.append(pad + text)
            if self.random.random() < 0.5:
                read = self.fill(self.random.choice(KINDS[slot.kind].reads), slot)
                self.lines.append(f"{pad}out.append(outcome(lambda: {read}))")
        else:
            text = self.sentence(
                self.random.choice(
                    [
                        r
                        for r in READS
                        if not (self.is_helper and "helper" in r or self.is_whole and _BREAKS.search(r))
                    ]
                )
            )
            if self.random.random() < 0.4:
                self.lines += [
                    f"{pad}try:",
                    f"{pad}    {text}",
                    f"{pad}except {self.random.choice(_ERRORS)} as error:",
                ]
                self.lines.append(f"{pad}    out.append(str(error))")
            else:
                self.lines.append(pad + text)

    def sentence(self, template: str) -> str:
        text = re.sub("<R>", lambda _: self.read(), template)
        text = text.replace("<E>", self.random.choice(_ERRORS))
        return self.fill(text)

    def block(self, depth: int) -> None:
        self.fresh += 1
        template = self.random.choice(
            [b for b in BLOCKS if not self.is_whole or not _BREAKS.search(b)]
        ).replace("<f>", f"f{self.fresh}")
        if "yield" in template and depth > 1:
            return self.step(depth)
        for line in template.split("$"):
            match = re.fullmatch(r"( *)<block>", line)
            if match is None:
                self.lines.append("    " * depth + self.sentence(line))
                continue
            for _ in range(self.random.choice((1, 1, 2))):
                self.step(depth + len(match.group(1)) // 4)

    def body(self, count: int) -> None:
        for _ in range(count):
            self.step(1)

    def define(self, header: str, count: int, begin: list[str], end: str) -> None:
        start = len(self.lines)
        self.lines += [header, "    <globals>", *begin]
        self.body(count)
        self.lines.append(end)
        own = _assigned(self.lines[start:])
        text = f"global {', '.join(own)}" if own else "pass"
        self.lines[start:] = [line.replace("<globals>", text) for line in self.lines[start:]]

    def objects(self) -> None:
        self.lines += ["KEPT = Plain()", "HOLD, BOX, TABLE = types.SimpleNamespace(), [], {}"]
        kinds = self.random.choices(
            list(WEIGHTS), list(WEIGHTS.values()), k=self.random.choice((1, 1, 1, 2, 2, 3))
        )
        for kind in kinds:
            for _ in range(self.random.choice((1, 2, 2))):
                self.object(kind)
        for kind in set(kinds) if len(set(kinds)) == 1 else sorted(set(kinds)):
            group = [slot for slot in self.slots if slot.kind == kind]
            if KINDS[kind].shared and len(group) > 1 and self.random.random() < 0.6:
                text = self.random.choice(KINDS[kind].shared)
                text = text.replace("@2", group[1].name).replace("@", group[0].name)
                self.lines += ["try:", f"    {text}", "except Exception:", "    pass"]

    def object(self, kind: str) -> None:
        slot = Slot(kind, f"{kind}{len(self.slots)}")
        made = self.random.choice(KINDS[kind].made)
        self.lines.append(
            f"{slot.name} = {self.fill(made, slot)}" if "<f>" in made else f"{slot.name} = {made}"
        )
        for setup, way in self.random.sample(ALIASES, 3):
            if setup:
                self.lines.append(re.sub(r"\bo\b|(?<=_)o\b", slot.name, setup))
            slot.ways.append(re.sub(r"\bo\b|(?<=_)o\b", slot.name, way))
        slot.ways.append(slot.name)
        self.slots.append(slot)

    def main(self) -> None:
        args = ", ".join(slot.name for slot in self.slots)
        self.local = False
        self.lines += [
            "def main(c, call, watch):",
            "    watch(globals())",
            "    f = c(root)",
            "    out, y, x = [], T(1), T(1)",
        ]
        self.lines.append("    for i in range(3):")
        self.lines.append(f"        call(lambda: f(T(1), {args}))")
        if self.random.random() < 0.6:
            text = self.write()
            self.lines += [
                "        try:",
                f"            {text}",
                "        except Exception:",
                "            pass",
            ]
        if self.random.random() < 0.3:
            self.lines.append(f"    call(lambda: f(T(2), {args}))")
        if self.random.random() < 0.3:
            self.lines.append(f"    call(lambda: f(T(1), {args}))")


def _assigned(lines: list[str]) -> list[str]:
    """The globals that lines assign or delete."""
    text = "\n".join(lines)
    return [n for n in _GLOBALS if re.search(rf"^\s*(del )?{n}( \+?=|$)|; {n} =", text, re.MULTILINE)]


def grown(seed: int) -> str:
    """The program of a seed."""
    grower = Grower(random.Random(seed))
    grower.favourite, grower.is_whole = grower.random.choice(_NAMES), grower.random.random() < 0.6
    grower.objects()
    grower.local, grower.is_helper = False, True
    grower.define(
        "def helper(x, n=1):", grower.random.choice((0, 1, 2)), ["    y, out = x, []"], "    return y, n, out"
    )
    grower.local, grower.is_helper = True, False
    args = ", ".join(f"q_{slot.name}" for slot in grower.slots)
    begin = ["    y, out, n = x, [], 1"]
    grower.define(f"def root(x, {args}):", grower.random.randint(3, 8), begin, "    return y, out")
    grower.main()
    return "\n".join(grower.lines) + "\n"
