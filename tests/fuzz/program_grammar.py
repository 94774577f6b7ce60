"""Random programs of breaks, exceptions, generators, coroutines, managers, threads, forks and limits, each from a seed.

A program has a few functions, a root that may use them, and `main(c, call, watch)`, which compiles the root by `c` and
calls it with state changed between the calls. The rest of what it uses is defined in `program_world.py`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace

import program_templates as templates

DEPTH = 4
_LEAVES = ("raise", "return", "break", "continue")
# What writes to what threads share.
_SHARED = (
    "LAYER.calls =",
    'TABLE["k"] =',
    "LEVEL =",
    "print(",
    "warnings.",
    "redirect_stdout",
    "simplefilter",
    "loud(",
    "signal",
)
_PLACE = re.compile(r"<(te|ie|t|i|T|I|v|E|h|g|m|a|y)>")
_CONDITION = re.compile(r"([a-z])\|(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of function: how it begins, and the letters of what may stand in it."""

    head: str
    letters: str


KINDS = {
    "h": Kind("def {name}(x, n=1, s=None):", "r"),
    "g": Kind("def {name}(x, n=1, s=None):", "yfr"),
    "a": Kind("async def {name}(x, n=1, s=None):", "ar"),
    "y": Kind("async def {name}(x, n=1, s=None):", "ay"),
    "m": Kind("@contextlib.contextmanager$def {name}(n, s):", ""),
}
KNOWN = {
    "h": ["helper", "loud", "apart", "down"],
    "g": ["steps"],
    "m": ["scope"],
    "a": ["waits"],
    "y": ["streams"],
}
DRIVEN = {
    "h": templates.CALLS,
    "g": templates.GENERATOR_CALLS,
    "a": templates.COROUTINE_CALLS,
    "y": templates.ASYNC_GENERATOR_CALLS,
}


@dataclass(slots=True)
class Scope:
    """Where a statement is to stand: the names in scope, and the letters of what may stand there."""

    tensors: list[str]
    ints: list[str]
    letters: str

    def inner(self, more: str = "") -> Scope:
        return replace(self, tensors=[*self.tensors], ints=[*self.ints], letters=self.letters + more)


@dataclass(slots=True)
class Grower:
    """Grows programs. `functions`: the names of the program's functions so far, by kind."""

    random: random.Random
    functions: dict[str, list[str]] = field(default_factory=lambda: {k: [*v] for k, v in KNOWN.items()})
    lines: list[str] = field(default_factory=list[str])
    fresh: int = 0

    def fill(self, template: str, scope: Scope) -> str:
        """A template with its places filled, left to right; names are bound only after the whole."""
        bound: dict[str, str] = {}

        def place(match: re.Match[str]) -> str:
            kind = match.group(1)
            if kind in ("t", "i"):
                names = scope.tensors if kind == "t" else scope.ints
                if kind == "i" and self.random.random() < 0.3:
                    return str(self.random.randrange(5))
                return self.random.choice(names[-4:])
            if kind in ("te", "ie"):
                table = templates.EXPRESSIONS_T if kind == "te" else templates.EXPRESSIONS_I
                return self.fill(self.choice(table, scope), scope)
            if kind in ("T", "I", "v"):
                if kind not in bound:
                    bound[kind] = self.name(kind, scope)
                return bound[kind]
            if kind == "E":
                return self.random.choice(templates.EXCEPTIONS)
            names = self.functions[kind]
            return names[-1] if self.random.random() < 0.5 else self.random.choice(names)

        text = _PLACE.sub(place, template)
        scope.tensors += [bound["T"]] if "T" in bound and bound["T"] not in scope.tensors else []
        scope.ints += [bound["I"]] if "I" in bound and bound["I"] not in scope.ints else []
        return text

    def name(self, kind: str, scope: Scope) -> str:
        known = {"T": scope.tensors, "I": scope.ints}.get(kind, [])
        if self.random.random() < 0.4 and len(known) > 1:
            return self.random.choice(known[1:])
        self.fresh += 1
        return f"{kind.lower()}{self.fresh}"

    def choice(self, table: list[str], scope: Scope) -> str:
        while True:
            template = self.random.choice(table)
            match = _CONDITION.fullmatch(template)
            if match is None:
                return template
            # What is special here is what the program is about.
            if match.group(1) in scope.letters:
                return match.group(2)

    def special(self, table: list[str], scope: Scope) -> str:
        """A template that may stand only in places such as this one."""
        fitting = [t.partition("|")[2] for t in table if _CONDITION.fullmatch(t) and t[0] in scope.letters]
        return self.random.choice(fitting) if fitting else self.choice(table, scope)

    def statement(self, scope: Scope, depth: int) -> None:
        pick = self.special if self.random.random() < 0.35 else self.choice
        if depth < DEPTH and self.random.random() < 0.4:
            self.block(pick(templates.BLOCKS, scope), scope, depth)
            return
        text = self.fill(pick(templates.STATEMENTS, scope), scope)
        if text.startswith(_LEAVES) and self.random.random() < 0.7:
            text = f"if {self.fill('<i>', scope)} > {self.random.randrange(4)}: {text}"
        self.lines.append("    " * depth + text)

    def block(self, template: str, scope: Scope, depth: int) -> None:
        """A compound statement. What it binds stays in it."""
        inner = scope.inner()
        for line in self.fill(template, inner).split("$"):
            match = re.fullmatch(r"( *)<(deep)?(block|loop|handler)?>", line)
            if match is None:
                self.lines.append("    " * depth + line)
                continue
            more = {"loop": "l", "handler": "h"}.get(match.group(3), "")
            body = inner.inner(more)
            below = depth + (2 if match.group(2) else 1)
            for _ in range(self.random.choice((1, 1, 2, 2, 3))):
                self.statement(body, below)

    def body(self, scope: Scope, count: int) -> None:
        for _ in range(count):
            self.statement(scope, 1)

    def function(self, kind: str, name: str, count: int) -> None:
        for line in KINDS[kind].head.format(name=name).split("$"):
            self.lines.append(line)
        start = len(self.lines)
        self.lines += ["    s = s or State()", "    count = 0"]
        scope = Scope(["s.t"] if kind == "m" else ["x"], ["n"], KINDS[kind].letters)
        if kind == "m":
            self.body(scope, 1)
            self.lines.append("    try:")
            self.lines.append("        yield n")
            self.lines.append(f"    except {self.random.choice(templates.EXCEPTIONS)} as error:")
            self.statement(scope.inner("h"), 2)
            self.lines.append("    finally:")
            self.statement(scope.inner(), 2)
        else:
            self.body(scope, count)
        if kind in ("g", "y"):
            self.lines.append(f"    yield {scope.tensors[-1]}")
        if kind in ("h", "g", "a"):
            self.lines.append(f"    return {self.random.choice(scope.tensors)}")
        if any("global LEVEL" in line for line in self.lines[start:]):
            self.lines[start:] = [line.replace("global LEVEL; ", "") for line in self.lines[start:]]
            self.lines.insert(start, "    global LEVEL")
        self.functions[kind].append(name)

    def main(self, kind: str) -> None:
        self.lines += ["def main(c, call, watch):", "    s = State()", "    watch(s)"]
        wrappings = templates.WRAPPINGS if kind == "h" else templates.WRAPPINGS[:4]
        table = DRIVEN[kind]
        chosen = [self.random.choice(wrappings)]
        chosen += [self.random.choice(table) for _ in range(self.random.randint(2, 5))]
        for template in chosen:
            for line in template.split("$"):
                filled = re.sub("<k>", lambda _: str(self.random.randrange(6)), line)
                self.lines.append("    " + filled)


def grown(seed: int) -> str:
    """The program of a seed."""
    grower = Grower(random.Random(seed))
    for number in range(grower.random.randint(1, 3)):
        kind = grower.random.choice("hhggmay")
        grower.function(kind, f"{kind}{number}", grower.random.randint(1, 4))
    kind = grower.random.choice("hhhhhhggay")
    grower.function(kind, "root", grower.random.randint(2, 6))
    if any(word in line for line in grower.lines for word in _SHARED):
        grower.lines.insert(0, "ORDERED = True")
    grower.main(kind)
    return "\n".join(grower.lines) + "\n"
