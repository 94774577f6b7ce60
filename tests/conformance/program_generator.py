"""Random programs over the Python that models use: classes, containers, closures, generators, handlers, patterns.

A template keeps to one line, however long.
"""
# ruff: noqa: E501

from __future__ import annotations

import random
import re

PRELUDE = """
import collections, contextlib, copy, dataclasses, enum, functools, itertools, operator
import torch
from harness import program

LEVEL = 1
NOTES = []

class Mode(enum.Enum):
    ADD = 1
    MUL = 2
    def apply(self, t, k):
        return t + k if self is Mode.ADD else t * k

class Point:
    __slots__ = ("x", "k")
    def __init__(self, x, k):
        self.x, self.k = x, k
    def __eq__(self, other):
        return isinstance(other, Point) and self.k == other.k
    def __lt__(self, other):
        return self.k < other.k
    def __hash__(self):
        return self.k
    def __add__(self, other):
        return Point(self.x + other.x, self.k + other.k) if isinstance(other, Point) else NotImplemented
    def __repr__(self):
        return f"P{self.k}"

@dataclasses.dataclass
class Config:
    k: int = 2
    names: list = dataclasses.field(default_factory=list)

Pair = collections.namedtuple("Pair", "left right")

class Box:
    shared = 3
    def __init__(self, value, k):
        self.value = value
        self.k = k
        self.log = []
        self.peer = None
    @property
    def doubled(self):
        self.log.append("read")
        return self.value * 2
    @doubled.setter
    def doubled(self, value):
        self.value = value
    def __getattr__(self, name):
        if name.startswith("d"):
            return len(name)
        raise AttributeError(name)
    def __len__(self):
        return len(self.log)
    def __call__(self, t, k=1):
        self.k = (self.k + k) % 7
        return t + self.k
    def __iter__(self):
        yield self.value
        yield self.value + self.k
    def __contains__(self, k):
        return k == self.k
    def __getitem__(self, k):
        if k > 3:
            raise IndexError(k)
        return self.value + k

class Child(Box):
    def __call__(self, t, k=2):
        return super().__call__(t, k) * 2

def twice(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs) * 2
    return wrapper

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 0.5))
        self.register_buffer("seen", torch.zeros(2))
        self.calls, self.cache, self.last = 0, {}, None
    def forward(self, t, k=1):
        self.calls = (self.calls + 1) % 3
        self.last = t * self.weight
        return self.cache.get(k, self.last) + k

KNOWN = Box(torch.full((2, 2), 2.0), 2)
TABLE = {"a": 1, "t": torch.ones(2, 2)}
LAYER = Layer()

@twice
def helper(t, k=1, *rest, j=2, **named):
    return t * k - j + sum(rest) + len(named)

def steps(t, n):
    got = 0
    for i in range(n):
        got = (yield t + i + got) or 0
    return n

@contextlib.contextmanager
def noted(log, k):
    log.append(("in", k))
    try:
        yield k + 1
    except KeyError as error:
        log.append(str(error))
    finally:
        log.append("out")
"""

# `<t>`, `<i>`: a tensor or int in scope; `<T>`, `<I>`: a name to bind one to; `<v>`: a fresh name; `<block>`: more.
EXPRESSIONS_T = """
<t> + <t>
<t> * <i>
torch.relu(<t> - <i>)
helper(<t>, <i>)
helper(<t>, <i>, 1, j=<i>, z=0)
box(<t>, k=<i>)
box.value + <t>
box.doubled
<t> if <i> > 2 else <t>
[u * 2 for u in (<t>, <t>)][-1]
Mode(<i> % 2 + 1).apply(<t>, <i>)
sum(steps(<t>, 2))
functools.reduce(operator.add, [<t>, <t>])
functools.partial(helper, <t>, j=<i>)()
(lambda u, k=<i>: u + k)(<t>)
Pair(<t>, <i>).left
(Point(<t>, <i>) + Point(<t>, 1)).x
copy.copy(Config(<i>)).k * <t>
torch.stack(list(box)).sum(0)
max([<t>, <t>], key=lambda u: <i>)
dict(a=<t>, b=<t>)["a"]
next(steps(<t>, 1))
sorted([Point(<t>, <i>), Point(<t>, 3)])[0].x
operator.attrgetter("value")(box) * 2
<t>.reshape(-1).view(2, 2).t().t()
box[<i> % 3]
getattr(<t>, "add")(1)
KNOWN(<t>)
KNOWN.value + <t>
TABLE["t"] * <i>
LAYER(<t>, <i>).detach()
LAYER.seen + <t>
table["items"][-1] * <t> if table.get("items") else <t>
(box.peer or box).value + 1
sum(map(lambda u: u + <i>, filter(lambda u: True, [<t>, <t>])))
list({<i>: <t>, 9: <t>}.values())[0]
[*box, <t>][<i> % 3]
torch.cat([u for u in (<t>, <t>)])[:2]
(u := <t> + 1) * u
<t>.new_full((2, 2), <i>)
collections.ChainMap({"k": <t>}, table)["k"]
(yielded := [u for u in steps(<t>, <i> % 3 + 1)])[-1]
""".strip().splitlines()

EXPRESSIONS_I = """
<i>
(<i> + <i>) % 7
len(items)
<t>.shape[0]
int(<i> > 1)
table.get("a", 3) % 7
sum(v for v in items if isinstance(v, int)) % 7
box.k
len(box)
box.shared
len(f"{<i>}-{len(items):>3}")
getattr(box, "depth", 2)
Point(<t>, <i>).k
sum(1 for _ in zip(items, "abc"))
max(<i>, 2, key=lambda q: -q)
list(itertools.accumulate([1, <i>]))[-1] % 7
[<i>, 5].index(5)
len({*items} | {<i>})
LEVEL
int(box.__class__.__name__ == "Child")
(lambda *a, **k: len(a) + len(k))(<i>, z=<i>)
(<i> and 3) or 4
len(copy.deepcopy(table))
KNOWN.k
TABLE["a"]
LAYER.calls
len(table.get("items", ()))
table["items"] is items and 1 or 0
int(box.peer is box)
sorted([<i>, 3, <i>], key=lambda q: (q % 3, q))[0]
dict(zip("ab", (<i>, <i>)))["b"]
divmod(<i>, 3)[1] + abs(-<i>) % 3
min((<i>, "b"), (<i>, "a"))[0]
(str(<i>) + "%03d" % <i>).count("0")
[p.k for p in sorted({Point(<t>, <i>), Point(<t>, 2)})][0]
{Point(<t>, 1): 4}.get(Point(<t>, <i>), 2)
hasattr(box, "extra") + hasattr(box, "depth")
""".strip().splitlines()

STATEMENTS = """
<T> = <te>
<T> = <te>
<T> = <te>
<I> = <ie>
<I> = <ie>
<T>, <I> = <te>, <ie>
items.append(<i>)
items.extend([<i>, <i>])
items.insert(0, <i>)
items[:1] = [<i>, <i>]
items.sort(key=lambda q: -q)
items.reverse()
<I> = items.pop() if items else <i>
table["a"] = <i>
table[<i>] = <te>
table.setdefault("n", []).append(<i>)
table.pop("a", None)
table.update(b=<i>)
table["c"] = table.get("c", 0) + 1
box.value = <te>
box.k = <i>
box.k += 1
box.extra = <i>
box.doubled = <te>
box.log.append(<i>)
box.__dict__["direct"] = <i>
setattr(box, "named", <i>)
deq.append(<i>)
deq.appendleft(<i>)
<I> = deq.popleft() if deq else 1
counts[<i>] += 1
point.k = <i>
point.x = <te>
global LEVEL; LEVEL = <i>
NOTES.append(<i>)
Box.shared = <i>
count_up(<i>)
log.append(f"{<i>:>3} {items} {point}")
log.append("%s %r" % (<i>, point))
log.append((point == Point(<t>, <i>), point in [Point(<t>, 2)], <i> in box))
*<v>, <I> = [1, 2, <i>]
a_<v>, (b_<v>, *c_<v>) = <i>, (<t>, 1, 2); log.append(c_<v>)
config.names += [<i>]
config = dataclasses.replace(config, k=<i>)
<T> = [u for j, u in enumerate([<t>, <t>]) if j <= <i>][-1]
<v> = steps(<t>, 3); next(<v>); <T> = <v>.send(<i>)
if (<v> := <i>) > 2: <T> = <t> * <v>
<T> = <t> + 0; <T> += <i>
<T> = <t>.clone(); <T>[0] = <i>
<T> = <t>.clone(); <T>.mul_(2)
x.add_(<i>)
assert <i> < 6, f"got {<i>}"
KNOWN.k = <i>
KNOWN.value = <te>
KNOWN.log.append(<i>)
TABLE["a"] = <i>
TABLE["t"] = <te>
TABLE.pop("t", None); TABLE["t"] = <t>
LAYER.cache[<i>] = <t>
LAYER.seen.add_(1)
LAYER.seen = LAYER.seen + 1
LAYER.extra = <i>
table["items"] = items
table["items"] = [<i>]
box.peer = box
box.log = items
box.table = table
items[:] = [<i>]
items = items + [<i>]
items += [<i>]
table = dict(table, z=<i>)
del table["a"]; table["a"] = <i>
del box.k; box.k = <i>
box.__class__
vars(box)["k"] = <i>
point, other_point = Point(<t>, <i>), point; log.append(other_point)
log.append([type(q).__name__ for q in (items, table, box, point, <t>)])
log.append((items == [<i>], table.keys() & {"a", "b"}, items < [<i>]))
log.append(copy.deepcopy({k: v for k, v in table.items() if k != "t" and isinstance(v, int)}))
log.append(next((q for q in items if q > <i>), None))
log.append(any(q == <i> for q in items) or all(items))
raise_if(<i>, log)
print(<i>, <t>.shape)
<I> = int(<t>.sum().item()) % 7
""".strip().splitlines()

BLOCKS = """
if <ie> > <i>:@<block>
if <ie> > <i>:@<block>@else:@<block>
for <I> in range(<i> % 3):@<block>
for <v>, <T> in enumerate([<t>, <t>]):@<block>
for <v> in list(table):@<block>
while count_up(0) < <i>:@<block>
try:@<block>@    raise_if(<i>, log)@except (KeyError, ValueError) as error:@    log.append(repr(error))@<block>
try:@<block>@    raise_if(<i>, log)@except KeyError as error:@    log.append(str(error))@else:@<block>@finally:@<block>
with noted(log, <i>) as <I>:@<block>
with noted(log, <i>):@<block>@    raise_if(<i>, log)
with contextlib.suppress(ValueError, KeyError):@<block>@    raise_if(<i>, log)
with torch.no_grad():@<block>
match (<i>, items):@    case (0 | 1, [first, *rest]):@        log.append(rest)@    case (q, []) if q > 2:@        log.append(q)@    case (_, list() as found):@        log.append(len(found))
match [table, config, Pair(<t>, <i>)][<i> % 3]:@    case {"a": q, **rest}:@        log.append(q)@    case Config(k=q, names=[]):@        log.append(("config", q))@    case Pair(right=q):@        log.append(q)
def <v>(u, k=<i>):@    nonlocal count; count += k; return u * k + <t>@<T> = <v>(<t>)
def <v>(n_):@    got = yield from steps(<t>, n_)@    yield <t> * got@<T> = list(<v>(<i> % 3))[-1]
""".strip().splitlines()

# What the arguments have in common.
SHARING = (
    "pass",
    "pass",
    "table['items'] = items",
    "box.log = items",
    "box.peer = box",
    "box.value = x",
    "if n > 2: box.log = items",
    "if n > 2: table['t'] = x + 0",
    "if n > 2: items.append(5)",
)
WITH_DATA = ("print(", ".item()")


class Generator:
    """Grows the body of a program from a seed. `breaks`: also with statements that break the graph."""

    def __init__(self, seed: int, *, breaks: bool) -> None:
        self.random = random.Random(seed)
        self.statements = [s for s in STATEMENTS if breaks or not any(word in s for word in WITH_DATA)]
        self.lines: list[str] = []
        self.tensors, self.ints = ["x"], ["n"]
        self.fresh = 0

    def fill(self, template: str, depth: int) -> str:
        """A template with its places filled, left to right; names are bound only after the whole."""
        bound: dict[str, list[str]] = {"T": [], "I": []}
        fresh: dict[str, str] = {}

        def place(match: re.Match[str]) -> str:
            kind = match.group(1)
            if kind in ("t", "i"):
                return self.random.choice(self.tensors if kind == "t" else self.ints)
            if kind in ("te", "ie"):
                options = EXPRESSIONS_T if kind == "te" else EXPRESSIONS_I
                return self.fill(self.random.choice(options), depth)
            if kind in ("T", "I"):
                if not bound[kind]:
                    bound[kind].append(self.name(kind))
                return bound[kind][0]
            if "v" not in fresh:
                self.fresh += 1
                fresh["v"] = f"v{self.fresh}"
            return fresh["v"]

        text = re.sub(r"<(te|ie|t|i|T|I|v)>", place, template)
        self.tensors += bound["T"]
        self.ints += bound["I"]
        return text

    def name(self, kind: str) -> str:
        known = self.tensors if kind == "T" else self.ints
        if self.random.random() < 0.4 and len(known) > 1:
            return self.random.choice(known[1:])
        self.fresh += 1
        return f"{kind.lower()}{self.fresh}"

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def statement(self, depth: int) -> None:
        if depth < 4 and self.random.random() < 0.35:
            self.block(self.random.choice(BLOCKS), depth)
        else:
            text = self.fill(self.random.choice(self.statements), depth)
            self.emit(depth, text)

    def block(self, template: str, depth: int) -> None:
        """A compound statement: `@` separates its lines, and `<block>` is a body whose names stay in it."""
        known = list(self.tensors), list(self.ints)
        head, *lines = template.split("@")
        filled = self.fill("@".join([head, *lines]), depth)
        for line in filled.split("@"):
            if line.strip() != "<block>":
                self.emit(depth, line)
                continue
            inner = list(self.tensors), list(self.ints)
            for _ in range(self.random.randint(1, 2)):
                self.statement(depth + 1)
            self.tensors, self.ints = inner
        bound_after = template.startswith("def")
        if not bound_after:
            self.tensors, self.ints = known

    def source(self) -> str:
        """A whole file with one program, `f`."""
        for _ in range(self.random.randint(5, 12)):
            self.statement(1)
        tensors = ", ".join(dict.fromkeys(self.tensors))
        ints = ", ".join(dict.fromkeys(self.ints))
        if any(line.strip().startswith("global LEVEL") for line in self.lines):
            self.lines = [line.replace("global LEVEL; ", "") for line in self.lines]
            self.lines.insert(0, "    global LEVEL")
        return PRELUDE + (
            "\n@program(lambda: inputs(Box, 1.0, 2), again=lambda: inputs(Child, -1.0, 4))\n"
            "def f(x, n, items, table, box, deq, counts, point):\n"
            + "\n".join(line for line in self.lines if line.startswith("    global"))
            + "\n    log, count, config = [], 0, Config()\n"
            "    def count_up(k):\n"
            "        nonlocal count\n"
            "        count += k + 1\n"
            "        return count\n"
            "    def raise_if(k, log):\n"
            "        log.append(k)\n"
            "        if k > 3:\n"
            "            raise KeyError(k)\n"
            "        if k == 1:\n"
            "            raise ValueError(f'{k}')\n"
            + "\n".join(line for line in self.lines if not line.startswith("    global"))
            + f"\n    return {{'t': [{tensors}], 'i': ({ints},)}}, log, count, config, point\n"
            "\ndef inputs(kind, value, n):\n"
            "    x = torch.full((2, 2), value)\n"
            "    table = {'a': n, 't': x}\n"
            "    counts = collections.Counter('ab')\n"
            "    deq = collections.deque([n], maxlen=3)\n"
            "    items, box = [n, 1], kind(x + 1, n)\n"
            f"    {self.random.choice(SHARING)}\n"
            "    return x, n, items, table, box, deq, counts, Point(x, n)\n"
        )
