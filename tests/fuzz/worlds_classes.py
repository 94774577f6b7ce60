"""Worlds whose state lies in classes: hierarchies, descriptors, operators, metaclasses, enums, slots, dataclasses."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import typing

import torch
from harness import program

X = torch.tensor([0.5, -1.5, 2.0])


def inputs():
    return (X.clone(),)


class Base:
    gain = 2.0
    names = ("a", "b")

    def scale(self, x):
        return x * self.gain

    def shift(self, x):
        return x + 1

    @property
    def size(self):
        return len(self.names)

    @staticmethod
    def halve(x):
        return x * 0.5

    @classmethod
    def make(cls, k):
        made = cls()
        made.k = k
        return made


class Middle(Base):
    bias = 0.25

    def shift(self, x):
        return super().shift(x) + self.bias


class Leaf(Middle):
    def run(self, x):
        return self.halve(self.shift(self.scale(x))) + self.size


@program(inputs, factory=True)
def hierarchy():
    leaf = Leaf()

    def f(x):
        return leaf.run(x)

    return f


@program(inputs)
def hierarchy_made_inside(x):
    return Leaf().run(x), Leaf.make(3.0).k + x


@program(lambda: (X.clone(), Leaf()))
def hierarchy_as_argument(x, leaf):
    return leaf.run(x) + Leaf.gain


class Vector:
    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return Vector(self.v + other.v)

    def __mul__(self, k):
        return Vector(self.v * k)

    def __radd__(self, other):
        return Vector(self.v + other)

    def __getitem__(self, i):
        return self.v[i]

    def __len__(self):
        return 3

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return 1

    def __bool__(self):
        return True

    def __contains__(self, item):
        return item == 1

    def __iter__(self):
        return iter([1.0, 2.0])


@program(inputs, factory=True)
def operators():
    one = Vector(torch.ones(3))

    def f(x):
        v = (Vector(x) + one) * 2.0
        total = sum(one)
        return v.v + len(v) + total, v[0], x if v == one else -x, x if 1 in v else x + 9, x * 2 if one else x

    return f


class Checked:
    def __init__(self, default):
        self.default, self.reads = default, 0

    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return obj.__dict__.get(self.slot, self.default)

    def __set__(self, obj, value):
        obj.__dict__[self.slot] = value


class Plain:
    def __init__(self, k):
        self.k = k

    def __get__(self, obj, owner=None):
        return self.k


class Described:
    width = Checked(2.0)
    height = Checked(3.0)
    depth = Plain(4.0)


@program(inputs, factory=True)
def descriptors():
    d = Described()
    d.height = 5.0

    def f(x):
        return x * d.width + d.height, x + d.depth

    return f


@program(inputs)
def descriptors_made_inside(x):
    d = Described()
    d.width = 7.0
    return x * d.width + d.height + d.depth


class Fallback:
    known = 2.0

    def __init__(self):
        self.table = {"a": 1.0, "b": 2.0}

    def __getattr__(self, name):
        try:
            return self.table[name]
        except KeyError:
            raise AttributeError(name) from None


@program(inputs, factory=True)
def getattr_fallback():
    o = Fallback()

    def f(x):
        return x * o.a + o.known, getattr(o, "b", 5.0), getattr(o, "c", 5.0), hasattr(o, "d")

    return f


class Meta(type):
    ratio = 2.0

    @property
    def doubled(cls):
        return cls.base * cls.ratio

    def __getattr__(cls, name):
        if name == "lazy":
            return cls.base + 1
        raise AttributeError(name)

    def __len__(cls):
        return 4


class WithMeta(metaclass=Meta):
    base = 3.0


@program(inputs)
def metaclass(x):
    return x * WithMeta.doubled, x + WithMeta.lazy, x - len(WithMeta), x * WithMeta.ratio


class Color(enum.Enum):
    RED = 1.0
    BLUE = 2.0

    @property
    def twice(self):
        return self.value * 2


class Stateful(enum.Enum):
    A = "a"
    B = "b"

    def __init__(self, label):
        self.label, self.gain = label, 2.0


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Bits(enum.Flag):
    ONE = enum.auto()
    TWO = enum.auto()


CURRENT = Color.RED
MODE = Stateful.A


@program(lambda: (X.clone(), Color.BLUE, Level.HIGH))
def enums(x, color, level):
    x = x * CURRENT.value + color.twice + level
    if MODE is Stateful.A:
        x = x * MODE.gain
    return x, Bits.ONE | Bits.TWO, color is Color.RED, len(Color), level > Level.LOW


class Slotted:
    __slots__ = ("k", "w")

    def __init__(self, k, w):
        self.k, self.w = k, w


@program(inputs, factory=True)
def slots():
    s = Slotted(2.0, torch.ones(3))

    def f(x):
        return x * s.k + s.w

    return f


@dataclasses.dataclass
class Config:
    hidden: int = 4
    scale: float = 2.0
    name: str = "gelu"
    layers: list = dataclasses.field(default_factory=lambda: [1, 2])

    def total(self):
        return self.hidden * self.scale


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float = 1.5
    inner: Config = dataclasses.field(default_factory=Config)


class Pair(typing.NamedTuple):
    a: float
    b: list


Point = collections.namedtuple("Point", "x y")


@program(inputs, factory=True)
def configs():
    config, frozen, pair, point = Config(), Frozen(), Pair(1.0, [2.0]), Point(3.0, {"z": 4.0})

    def f(x):
        x = x * config.total() + frozen.k + len(config.layers)
        if config.name == "gelu":
            x = torch.nn.functional.gelu(x)
        return x + pair.a + pair.b[0], x * point.x + point.y["z"] + frozen.inner.hidden

    return f


@program(lambda: (X.clone(), Config(), Pair(1.0, [2.0]), Slotted(2.0, 3.0)))
def configs_as_arguments(x, config, pair, slotted):
    return x * config.scale + config.hidden + pair.b[0] + slotted.k, dataclasses.replace(
        config, hidden=2
    ).total()


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    def described(self):
        return self.area() + 1


class Square(Shape):
    def __init__(self, s):
        self.s = s

    def area(self):
        return self.s * self.s


class Other:
    pass


Shape.register(Other)
OTHER = Other()


@program(inputs, factory=True)
def abstract_classes():
    square = Square(3.0)

    def f(x):
        y = x * square.described()
        return (y if isinstance(OTHER, Shape) else -y), isinstance(square, Square), issubclass(Other, Shape)

    return f


class Counted:
    made = 0
    instances = []

    def __new__(cls, *args):
        cls.made += 1
        return super().__new__(cls)

    def __init__(self, k):
        self.k = k
        Counted.instances.append(k)


@program(inputs)
def class_that_counts(x):
    c = Counted(2.0)
    return x * c.k + Counted.made, len(Counted.instances)


class Nested:
    class Inner:
        k = 2.0

        @classmethod
        def get(cls):
            return cls.k

    inner = Inner()


@program(inputs)
def nested_classes(x):
    return x * Nested.Inner.get() + Nested.inner.k, vars(Nested.Inner)["k"] + x


class Mixin:
    def process(self, x):
        return super().process(x) * 2


class Root:
    def process(self, x):
        return x + 1


class Joined(Mixin, Root):
    pass


@program(inputs, factory=True)
def mixins():
    j = Joined()

    def f(x):
        return j.process(x), isinstance(j, Root), type(j).__mro__[1] is Mixin

    return f


class Context:
    depth = 0

    def __init__(self, k):
        self.k = k

    def __enter__(self):
        Context.depth += 1
        return self.k

    def __exit__(self, *exc):
        Context.depth -= 1
        return False


@program(inputs, factory=True)
def contexts():
    manager = Context(2.0)

    def f(x):
        with manager as k:
            x = x * k + Context.depth
        return x

    return f
