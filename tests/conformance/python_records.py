"""Enums, named tuples and dataclasses."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing
from typing import NamedTuple

import torch
from harness import program

X = torch.arange(3.0)


class Mode(enum.Enum):
    ADD = "add"
    MUL = "mul"

    def apply(self, x, k):
        return x + k if self is Mode.ADD else x * k

    @property
    def symbol(self):
        return {"add": "+", "mul": "*"}[self.value]

    @classmethod
    def parse(cls, text):
        return cls[text.upper()]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    C = enum.auto()


class Names(str, enum.Enum):
    RELU = "relu"
    TANH = "tanh"


@program(lambda: (X, Mode.ADD), again=lambda: (X, Mode.MUL))
def enum_argument(x, mode):
    return mode.apply(x, 3), mode, mode.name


@program(lambda: (X, "add"), again=lambda: (X, "mul"))
def enum_by_value_and_name(x, text):
    return Mode(text).apply(x, 2), Mode[text.upper()].symbol, Mode.parse(text) is Mode(text)


@program(lambda: (X,))
def enum_iteration(x):
    return [m.apply(x, 2) for m in Mode], len(Mode), Mode.ADD in Mode, list(Mode.__members__)


@program(lambda: (X, "pow"))
def enum_unknown_value(x, text):
    try:
        return Mode(text).apply(x, 2)
    except ValueError as error:
        return x, str(error)


@program(lambda: (X, Level.HIGH), again=lambda: (X, Level.LOW))
def int_enum(x, level):
    return x * level, level + 1, level > Level.LOW, max(Level), int(level)


@program(lambda: (X, Flags.A | Flags.C), again=lambda: (X, Flags.B))
def flags(x, f):
    if Flags.A in f:
        x = x + 1
    if f & Flags.B:
        x = x * 2
    return x, f | Flags.B, ~f


@program(lambda: (X, Names.RELU), again=lambda: (X, Names.TANH))
def string_enum(x, name):
    table = {Names.RELU: torch.relu, Names.TANH: torch.tanh}
    return table[name](x), name == "relu", name.value.upper()


@program(lambda: (X, Mode.ADD))
def enum_as_key(x, mode):
    table = {Mode.ADD: x + 1}
    return table[mode], Mode.MUL in table, hash(mode) == hash(Mode.ADD)


class Pair(NamedTuple):
    left: torch.Tensor
    right: int = 2

    def total(self):
        return self.left * self.right

    @property
    def swapped(self):
        return (self.right, self.left)


Triple = collections.namedtuple("Triple", "a b c", defaults=[0])


@program(lambda: (X,))
def named_tuple_returned(x):
    p = Pair(x + 1)
    return p, p.total(), p.swapped, p._fields


@program(lambda: (Pair(X, 3),), again=lambda: (Pair(X, 4),))
def named_tuple_argument(p):
    left, right = p
    return left * right, p[0] + p.left, p._replace(right=1), p._asdict(), p


@program(lambda: (X,))
def namedtuple_factory(x):
    t = Triple(x, b=2)
    t2 = Triple._make([x + 1, 3, 4])
    return t, t2.a + t.a, t + t2, t.index(x), t.c, isinstance(t, tuple)


@program(lambda: (Triple(X, [1], {"k": X}),))
def namedtuple_with_containers(t):
    t.b.append(2)
    t.c["new"] = t.a + 1
    return t.c["k"] * 2


@program(lambda: (X,))
def namedtuple_missing_argument(x):
    try:
        return Triple(x)
    except TypeError as error:
        return x, str(error)


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    layers: list = dataclasses.field(default_factory=list)
    name: str = "config"
    _hidden: int = dataclasses.field(default=3, repr=False, compare=False)

    def apply(self, x):
        return x * self.scale


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    k: int = 1

    def scaled(self):
        return self.x * self.k


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    k: int = 2


@dataclasses.dataclass
class Computed:
    x: torch.Tensor
    doubled: torch.Tensor = dataclasses.field(init=False)
    k: dataclasses.InitVar[int] = 2

    def __post_init__(self, k):
        self.doubled = self.x * k


@dataclasses.dataclass(order=True)
class Ordered:
    rank: int
    value: torch.Tensor = dataclasses.field(compare=False, default=None)


@dataclasses.dataclass
class Child(Config):
    extra: int = 1


@dataclasses.dataclass(kw_only=True)
class KeywordOnly:
    a: int
    b: torch.Tensor | None = None


@program(lambda: (X, Config()), again=lambda: (X, Config(scale=3.0)))
def dataclass_argument(x, config):
    config.layers.append(len(config.layers))
    return config.apply(x)


@program(lambda: (X,))
def dataclass_returned(x):
    c = Config(scale=1.5)
    c.layers += [x, x + 1]
    return c


@program(lambda: (X,))
def dataclass_frozen(x):
    f = Frozen(x, 3)
    g = dataclasses.replace(f, k=2)
    return f.scaled() + g.scaled(), g


@program(lambda: (X,))
def dataclass_frozen_cannot_be_set(x):
    f = Frozen(x)
    try:
        f.k = 3
    except dataclasses.FrozenInstanceError as error:
        return f.x * 2, str(error)
    return None


@program(lambda: (Frozen(X, 5),), again=lambda: (Frozen(X, 6),))
def dataclass_frozen_argument(f):
    return f.scaled()


@program(lambda: (X,))
def dataclass_with_slots(x):
    s = Slotted(x)
    s.k += 1
    return s, s.x * s.k


@program(lambda: (Slotted(X, 4),))
def dataclass_with_slots_argument(s):
    s.x = s.x * s.k
    return s.x + 1


@program(lambda: (X,))
def dataclass_post_init(x):
    c = Computed(x, k=3)
    return c.doubled, c


@program(lambda: (X,))
def dataclass_order_and_equality(x):
    a, b = Ordered(2, x), Ordered(1, x + 1)
    return min(a, b).value, a == Ordered(2), a < b, sorted([a, b])[0].rank


@program(lambda: (X, Child(scale=4.0)))
def dataclass_inherits(x, c):
    return c.apply(x) + c.extra, isinstance(c, Config), dataclasses.is_dataclass(c)


@program(lambda: (X,))
def dataclass_keyword_only(x):
    k = KeywordOnly(a=2, b=x)
    return k.b * k.a, k


@program(lambda: (X, Config()))
def dataclass_fields(x, config):
    names = [f.name for f in dataclasses.fields(config)]
    return x + len(names), names, dataclasses.fields(Child)[-1].default


@program(lambda: (X,))
def dataclass_asdict(x):
    return dataclasses.asdict(Config(scale=3.0, layers=[1, {"k": 2}])), x + 1


@program(lambda: (X,))
def dataclass_astuple(x):
    return dataclasses.astuple(Slotted(1, 2)), x + 1


@program(lambda: (X,))
def dataclass_repr(x):
    return repr(Config(layers=[1])), f"{Ordered(3)}", x + 1


class Options(typing.TypedDict, total=False):
    scale: float
    shift: int


@program(lambda: (X, Options(scale=2.0)), again=lambda: (X, Options(scale=2.0, shift=3)))
def typed_dict(x, options):
    return x * options["scale"] + options.get("shift", 1)


@program(lambda: (X,))
def dataclass_hash_in_set(x):
    keys = {Frozen(1, 2), Frozen(1, 2), Frozen(1, 3)}
    return x * len(keys), Frozen(1, 2) in keys


@program(lambda: (X, None), again=lambda: (X, Config(name="given")))
def optional_dataclass(x, config):
    config = config or Config(name="default")
    return config.apply(x), config.name


@program(lambda: (Config(layers=[X, X + 1]),))
def dataclass_nested_containers(config):
    total = sum(t.sum() for t in config.layers)
    config.layers[0] = total
    config.layers = [*config.layers, total]
    return total
