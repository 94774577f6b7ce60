"""Attribute access: properties, descriptors, __getattr__ and its relatives."""

from __future__ import annotations

import functools
import types

import torch
from harness import program

X = torch.arange(3.0)


class Circle:
    def __init__(self, r):
        self._r = r
        self.reads = 0

    @property
    def r(self):
        self.reads += 1
        return self._r

    @r.setter
    def r(self, value):
        if isinstance(value, str):
            raise ValueError(f"not a radius: {value}")
        self._r = value

    @r.deleter
    def r(self):
        self._r = None

    @property
    def area(self):
        return self.r * self.r * 3


class Disc(Circle):
    @property
    def area(self):
        return super().area + 1


@program(lambda: (Circle(X),), again=lambda: (Circle(X + 1),))
def property_read_counts(c):
    return c.area, c.reads


@program(lambda: (Circle(X), X * 2))
def property_set_and_deleted(c, x):
    c.r = x
    y = c.r + 1
    del c.r
    return y, c.r is None


@program(lambda: (Circle(X),))
def property_setter_raises(c):
    try:
        c.r = "wide"
    except ValueError as error:
        return c.r, str(error)
    return None


@program(lambda: (X,))
def property_without_setter(x):
    try:
        Circle(x).area = 3
    except AttributeError as error:
        return x + 1, "area" in str(error)
    return None


@program(lambda: (X,))
def property_through_super(x):
    return Disc(x).area


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name)

    def __set__(self, obj, value):
        if isinstance(value, int) and value < 0:
            raise ValueError("negative")
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        setattr(obj, self.name, 0)


class Doubling:
    def __get__(self, obj, owner=None):
        return 2 if obj is None else obj.size * 2


class Shape:
    size = Positive()
    double = Doubling()

    def __init__(self, size):
        self.size = size


@program(lambda: (X,))
def data_descriptor(x):
    s = Shape(x)
    s.size = s.size + 1
    return s.size, vars(s)


@program(lambda: (Shape(X),))
def data_descriptor_on_argument(s):
    s.size = s.size * 2
    y = s.size
    del s.size
    return y, s.size


@program(lambda: (X,))
def data_descriptor_raises(x):
    try:
        Shape(-1)
    except ValueError as error:
        return x * 2, error.args
    return None


@program(lambda: (Shape(X),))
def plain_descriptor(s):
    before = s.double
    s.double = 5
    return before, s.double, Shape.double


@program(lambda: (X,))
def descriptor_through_class(x):
    return isinstance(Shape.size, Positive), Shape.size.name, x + 1


class Proxy:
    def __init__(self, target):
        object.__setattr__(self, "target", target)

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return getattr(object.__getattribute__(self, "target"), name)

    def __setattr__(self, name, value):
        setattr(self.target, name, value)

    def __delattr__(self, name):
        delattr(self.target, name)


@program(lambda: (X,))
def proxy(x):
    p = Proxy(Circle(x))
    p.extra = x + 1
    y = p.area + p.extra
    del p.extra
    return y, hasattr(p, "extra"), hasattr(p, "nothing"), getattr(p, "nope", 3)


@program(lambda: (Proxy(Circle(X)),))
def proxy_passed_in(p):
    p.r = p.r + 1
    return p.r


@program(lambda: (Proxy(Circle(X)),))
def proxy_raises(p):
    return p.nothing


class Recording:
    def __init__(self):
        self.log = []

    def __getattribute__(self, name):
        if name != "log":
            object.__getattribute__(self, "log").append(name)
        return super().__getattribute__(name)

    def run(self, x):
        return x + len(self.log)


@program(lambda: (X, Recording()), breaks=4)
def getattribute_records(x, r):
    return r.run(x), r.run(x)


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


@program(lambda: (X, Config(scale=2, bias=1)), again=lambda: (X, Config(scale=5, bias=1)))
def dict_with_attributes(x, config):
    return x * config.scale + config.bias, config.get("missing", 7), "scale" in config


@program(lambda: (X,))
def dict_with_attributes_made_inside(x):
    config = Config(a=x)
    config.b = x + 1
    return config.a + config["b"], sorted(config), hasattr(config, "c")


@program(lambda: (X, types.SimpleNamespace(k=3, inner=types.SimpleNamespace(z=1))))
def simple_namespace(x, space):
    space.k += space.inner.z
    space.inner.t = x * space.k
    return space.inner.t + 1


@program(lambda: (X,))
def simple_namespace_made_inside(x):
    space = types.SimpleNamespace(a=x, b=2)
    space.c = space.a * space.b
    return space


class Cached:
    def __init__(self, x):
        self.x = x
        self.calls = 0

    @functools.cached_property
    def total(self):
        self.calls += 1
        return self.x.sum()


@program(lambda: (X,))
def cached_property_made_inside(x):
    c = Cached(x)
    return c.total + c.total, c.calls


@program(lambda: (Cached(X),))
def cached_property_on_argument(c):
    return c.total + c.total, c.calls, "total" in c.__dict__


class Lazy:
    """Computes its weight the first time it is asked for."""

    def __init__(self):
        self._weight = None

    @property
    def weight(self):
        if self._weight is None:
            self._weight = torch.full((3,), 2.0)
        return self._weight


LAZY = Lazy()


@program(lambda: (X,), stable=False)
def lazily_made_weight(x):
    return x * LAZY.weight


class Units:
    __slots__ = {"value": "documented"}

    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        if name.endswith("s"):
            return self.value * len(name)
        raise AttributeError(f"no unit {name}")


@program(lambda: (Units(X),))
def getattr_with_slots(u):
    return u.metres + u.value


@program(lambda: (Units(X),))
def getattr_raises_its_own(u):
    try:
        return u.foot
    except AttributeError as error:
        return u.value, str(error)


class Bound:
    def __init__(self, f):
        self.f = f

    def __get__(self, obj, owner=None):
        return functools.partial(self.f, obj)


class Uses:
    def __init__(self, k):
        self.k = k

    @Bound
    def scale(self, x):
        return x * self.k


@program(lambda: (X,))
def descriptor_decorator(x):
    return Uses(3).scale(x) + Uses(k=2).scale(x=x)


@program(lambda: (X, Uses(4)))
def descriptor_decorator_on_argument(x, u):
    return u.scale(x)


def plus_one(self, x):
    return x + self.k + 1


@program(lambda: (X, Uses(4)))
def method_added_to_instance(x, u):
    u.run = types.MethodType(plus_one, u)
    return u.run(x)


class Weak:
    k = 2

    @property
    def missing(self):
        return self.not_there

    def __getattr__(self, name):
        return f"fallback for {name}"


@program(lambda: (X,))
def property_error_falls_back_to_getattr(x):
    w = Weak()
    return x * w.k, w.missing, w.other
