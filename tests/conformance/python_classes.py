"""Classes: instances made, read and written inside the region, and special methods."""

from __future__ import annotations

import abc
import functools
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from harness import program

T = TypeVar("T")
X = torch.arange(3.0)


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x = x
        self.y = y


class Point3(Point):
    __slots__ = ("z",)

    def __init__(self, x, y, z):
        super().__init__(x, y)
        self.z = z


@program(lambda: (X + 1,))
def slots_made_inside(x):
    p = Point(x, x + 1)
    p.y = p.y * 2
    return p.x + p.y


@program(lambda: (X + 1,))
def slots_returned(x):
    p = Point3(x, x + 1, 3)
    del p.z
    return p


@program(lambda: (Point(X + 1, 2),), again=lambda: (Point(X, 3),))
def slots_passed_in(p):
    return p.x * p.y


@program(lambda: (Point(X + 1, 2),), again=lambda: (Point(torch.zeros(4), 3),))
def slots_written_on_argument(p):
    p.x = p.x * p.y
    p.y += 1
    return p.x + p.y


class Base:
    scale = 2

    def __init__(self, offset=1):
        self.offset = offset

    def apply(self, x):
        return x * self.scale + self.offset

    @classmethod
    def make(cls, offset):
        return cls(offset)

    @staticmethod
    def shift(x, by):
        return x + by


class Derived(Base):
    scale = 3

    def apply(self, x):
        return super().apply(x) - 1


class Left(Base):
    def apply(self, x):
        return super().apply(x * 2)


class Right(Base):
    def apply(self, x):
        return super().apply(x + 1)


class Diamond(Left, Right):
    pass


@program(lambda: (X, 2), again=lambda: (X, 3))
def inheritance(x, n):
    return Derived(n).apply(x)


@program(lambda: (X,))
def diamond(x):
    return Diamond().apply(x), [c.__name__ for c in Diamond.__mro__]


@program(lambda: (X,))
def class_and_static_methods(x):
    d = Derived.make(4)
    return Derived.shift(d.apply(x), 1), d.shift(x, 2), type(d) is Derived


@program(lambda: (X, Derived(5)), again=lambda: (X, Base(5)))
def method_of_argument(x, model):
    return model.apply(x)


@program(lambda: (X, Derived()))
def bound_method_kept(x, model):
    f = model.apply
    return f(x) + f(x), f.__self__ is model, f.__name__


@program(lambda: (X, Base(1)))
def attribute_shadows_class(x, model):
    model.scale = 10
    return model.apply(x), Base.scale


@program(lambda: (X, Base(1)))
def attribute_deleted(x, model):
    model.extra = x * 2
    y = model.extra
    del model.extra
    return y, hasattr(model, "extra")


class Vector:
    def __init__(self, data):
        self.data = data

    def __add__(self, other):
        if not isinstance(other, Vector):
            return NotImplemented
        return Vector(self.data + other.data)

    def __radd__(self, other):
        return Vector(self.data + other)

    def __mul__(self, k):
        return Vector(self.data * k)

    __rmul__ = __mul__

    def __neg__(self):
        return Vector(-self.data)

    def __matmul__(self, other):
        return self.data @ other.data

    def __getitem__(self, i):
        return self.data[i]

    def __setitem__(self, i, value):
        self.data = self.data.clone()
        self.data[i] = value

    def __len__(self):
        return self.data.shape[0]

    def __iter__(self):
        return iter(self.data.unbind())

    def __contains__(self, item):
        return item < len(self)

    def __call__(self, x):
        return x + self.data

    def __bool__(self):
        return len(self) > 2

    def __eq__(self, other):
        return isinstance(other, Vector) and len(self) == len(other)

    def __hash__(self):
        return len(self)

    def __lt__(self, other):
        return len(self) < len(other)

    def __iadd__(self, other):
        self.data = self.data + other
        return self

    def __abs__(self):
        return Vector(self.data.abs())

    def __repr__(self):
        return f"Vector({len(self)})"

    def __index__(self):
        return 1

    def __round__(self, digits=0):
        return ("rounded", digits)

    def __reversed__(self):
        return iter(self.data.flip(0).unbind())

    def __divmod__(self, k):
        return Vector(self.data // k), Vector(self.data % k)

    def __missing__(self, key):
        return key


@program(lambda: (X, X + 1))
def arithmetic_methods(x, y):
    a, b = Vector(x), Vector(y)
    c = a + b * 2 + 3 * a
    c = 1 + -c
    c += 1
    return c.data, a @ b, abs(c).data


@program(lambda: (X,))
def not_implemented_is_a_type_error(x):
    try:
        Vector(x) + "text"
    except TypeError as error:
        return x, str(error)
    return None


@program(lambda: (X,))
def container_methods(x):
    v = Vector(x)
    v[1] = 5.0
    return v[1] + v[2], len(v), sum(v), 2 in v, [t + 1 for t in v], list(reversed(v))


@program(lambda: (X,))
def comparison_methods(x):
    a, b = Vector(x), Vector(x[:2])
    return a == b, a != b, a < b, a > b, bool(a), not b, sorted([a, b])[0].data, max(a, b).data


@program(lambda: (X,))
def hash_and_equality_in_dict(x):
    table = {Vector(x): 1}
    table[Vector(x + 1)] = 2
    return len(table), table[Vector(x)], Vector(x[:1]) in table, x + 1


@program(lambda: (X,))
def index_and_divmod(x):
    v = Vector(x)
    a, b = divmod(v, 2)
    return [10, 20, 30][v], a.data + b.data, round(v, 2), repr(v), str(v), f"{v}"


@program(lambda: (X, Vector(X)))
def callable_instance(x, v):
    return v(x) + v(x=x)


class Registry(type):
    names: ClassVar[list[str]] = []

    def __new__(mcs, name, bases, space):
        cls = super().__new__(mcs, name, bases, space)
        mcs.names.append(name)
        return cls

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__.lower()
        return made

    def __len__(cls):
        return 7

    @property
    def doubled(cls):
        return cls.factor * 2


class Registered(metaclass=Registry):
    factor = 4

    def __init__(self, x):
        self.x = x


@program(lambda: (X,))
def metaclass_call(x):
    made = Registered(x * 2)
    return made.x, made.tag, len(Registered), Registered.doubled, type(Registered).__name__


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...

    def twice(self, x):
        return self.run(self.run(x))


class Concrete(Abstract):
    def run(self, x):
        return x * 2


@program(lambda: (X,))
def abstract_base(x):
    c = Concrete()
    return c.twice(x), isinstance(c, Abstract), issubclass(Concrete, Abstract)


@program(lambda: (X,))
def abstract_base_cannot_be_made(x):
    try:
        Abstract()
    except TypeError as error:
        return x + 1, "abstract" in str(error)
    return None


class Stack(Generic[T]):
    def __init__(self):
        self.items: list[T] = []

    def push(self, item: T) -> Stack[T]:
        self.items.append(item)
        return self


@program(lambda: (X,))
def generic_class(x):
    s = Stack[torch.Tensor]()
    s.push(x).push(x + 1)
    return s.items[-1] * 2, len(s.items)


class HasRun(Protocol):
    def run(self, x): ...


class Singleton:
    _instance: ClassVar[object] = None

    def __new__(cls, value):
        made = super().__new__(cls)
        made.created = True
        return made

    def __init__(self, value):
        self.value = value


@program(lambda: (X,))
def own_new(x):
    s = Singleton(x)
    return s.value + 1, s.created


class Plugin:
    kinds: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, kind="none", **kwargs):
        super().__init_subclass__(**kwargs)
        Plugin.kinds[kind] = cls


class PluginA(Plugin, kind="a"):
    def run(self, x):
        return x + 1


class PluginB(Plugin, kind="b"):
    def run(self, x):
        return x * 10


@program(lambda: (X, "a"), again=lambda: (X, "b"))
def registry_of_subclasses(x, kind):
    return Plugin.kinds[kind]().run(x)


class Node:
    def __init__(self, value, parent=None):
        self.value = value
        self.parent = parent
        self.children = []
        if parent is not None:
            parent.children.append(self)


@program(lambda: (X,))
def tree_with_cycles(x):
    root = Node(x)
    Node(x + 1, root)
    Node(x + 2, root)
    total = sum(c.value for c in root.children)
    return root, total


@program(lambda: (Node(X),))
def tree_passed_in_grows(root):
    child = Node(root.value * 2, root)
    return child.parent is root, len(root.children), child.value


class Counted:
    made = 0

    def __init__(self, x):
        type(self).made += 1
        self.x = x


@program(lambda: (X,), stable=False)
def class_attribute_written(x):
    a = Counted(x)
    return a.x + Counted.made


@program(lambda: (X, Base(2)), again=lambda: (X, Derived(2)))
def type_and_isinstance(x, model):
    if type(model) is Base:
        x = x + 1
    if isinstance(model, (Derived, Diamond)):
        x = x * 2
    return x, type(model).__name__, model.__class__.__qualname__


@program(lambda: (X, Base(3)))
def getattr_setattr_by_name(x, model):
    setattr(model, "extra", getattr(model, "offset") + 1)
    value = getattr(model, "nothing", 10)
    delattr(model, "offset")
    return x * model.extra * value, hasattr(model, "offset"), getattr(Base, "scale")


@program(lambda: (X, Base(3)))
def vars_and_dict(x, model):
    table = dict(vars(model))
    model.__dict__["added"] = 5
    return x * table["offset"], model.added, sorted(model.__dict__)


@program(lambda: (X, Point(X, 2), [1], iter([1])))
def attributes_that_an_object_cannot_have(x, *objects):
    said = []
    for target in (*objects, range(3), len, int):
        for name in ("other", "__len__", "__next__"):
            try:
                setattr(target, name, 1)
            except (AttributeError, TypeError) as error:
                said.append(str(error))
    return x + len(said), said


class Named(property):
    """A property that does not do what properties do."""

    def __get__(self, obj, owner=None):
        return self if obj is None else self.fget(obj) + 100

    def __set__(self, obj, value):
        obj.kept = value

    def __delete__(self, obj):
        obj.kept = 0


class ByClass(classmethod):
    def __get__(self, obj, owner=None):
        return lambda x: x * (2 if obj is None else 3)


class Bound:
    __slots__ = ("held", "__dict__")
    named = Named(lambda self: self.kept)
    by_class = ByClass(lambda cls, x: x)
    scaled = classmethod(functools.partial(lambda factor, x: x * factor, 4))
    added = functools.partialmethod(lambda self, a, x: x + a, 5)
    counted = functools.lru_cache(lambda self: 6)
    only_here = 7

    def __init__(self, held=None):
        if held is not None:
            self.held = held

    @functools.cached_property
    def once(self):
        return self.only_here + 1

    @property
    def failing(self):
        raise AttributeError("failing")


class Rebound(Bound):
    """Hides all that it inherits."""

    named = by_class = scaled = added = counted = once = held = only_here = None

    def inherited(self, x):
        once = super().once
        return (
            super().by_class(x),
            super().scaled(x),
            super().added(x),
            super().counted() * x,
            once,
            super().once,
        )

    def of_slot(self):
        try:
            return super().held
        except AttributeError:
            return "nothing"


class Asked(Bound):
    """Has all that it is asked for."""

    def __getattr__(self, name):
        return f"no {name}"


@program(lambda: (X, Bound()))
def subclasses_of_properties_and_classmethods(x, bound):
    bound.named = 1
    first = bound.named
    del bound.named
    return (
        bound.by_class(x),
        Bound.by_class(x),
        bound.scaled(x),
        first,
        bound.named,
        type(Bound.named).__name__,
    )


@program(lambda: (X, Rebound()), again=lambda: (X + 1, Rebound()))
def super_finds_what_the_class_hides(x, bound):
    bound.only_here = 2
    return bound.inherited(x), bound.once, sorted(vars(bound))


@program(lambda: (X, set_by_slot(Rebound(), 3)), again=lambda: (X, set_by_slot(Rebound(), 4)))
def super_finds_a_slot_that_the_class_hides(x, bound):
    return x + bound.of_slot(), bound.held


@program(lambda: (X, Rebound()))
def super_finds_an_empty_slot(x, bound):
    return x + 1, bound.of_slot(), bound.held


def set_by_slot(bound, value):
    HELD.__set__(bound, value)
    return bound


HELD = vars(Bound)["held"]


@program(lambda: (X, Asked()), again=lambda: (X, Asked(1)))
def getattr_of_the_class_where_a_descriptor_finds_nothing(x, bound):
    return x + 1, bound.held, bound.failing, bound.nothing, bound.only_here


class Refused(ValueError):
    args = "hidden"

    def reasons(self):
        return super().args, self.args, super().__class__ is super


@program(lambda: (X,))
def super_of_an_exception(x):
    error = Refused(1, 2)
    return x + 1, error.reasons()


@program(lambda: (X, Refused(1, 2)), again=lambda: (X, Refused(3, 4)), breaks=2, regions=4)
def super_of_an_exception_passed_in(x, error):
    return x + 1, error.reasons()


@program(lambda: (X, Base(3)))
def attribute_deleted_that_the_class_has_too(x, model):
    model.scale = 5
    del model.scale
    said = "deleted"
    try:
        del model.scale
    except AttributeError:
        said = "only the class has it"
    return x * model.scale, said
