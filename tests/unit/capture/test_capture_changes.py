"""What changes between two calls is seen by the second, wherever the first has read it."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import inspect
import string
import types
from typing import Generic, Protocol, TypeVar, runtime_checkable

import pytest
import torch
import torch.utils.checkpoint
from changes_check import check_change_is_seen
from torch import nn

import lampwork

X = torch.arange(6.0).reshape(2, 3)
T = TypeVar("T")


def slot_deleted_of_a_descriptors_class():
    class Kept:
        def __get__(self, obj, owner=None):
            return 2.0

        def __set__(self, obj, value):
            raise AssertionError

    class Holder:
        k = Kept()

    holder = Holder()
    holder.__dict__["k"] = 5.0

    def change():
        del Kept.__set__

    return lambda x: x * holder.k, change


def half_of_a_data_descriptor_deleted():
    class Kept:
        def __set__(self, obj, value):
            raise AssertionError

        def __delete__(self, obj):
            pass

    class Holder:
        k = Kept()

    def f(x):
        try:
            del Holder().k
        except AttributeError as error:
            return x + len(str(error))
        return x

    def change():
        del Kept.__delete__

    return f, change


def dictionary_replaced_under_a_descriptor():
    class Kept:
        def __get__(self, obj, owner=None):
            return obj.__dict__["_k"]

        def __set__(self, obj, value):
            obj.__dict__["_k"] = value

    class Holder:
        k = Kept()

    holder = Holder()
    holder.k = 2.0

    def change():
        holder.__dict__ = {"_k": 5.0}

    return lambda x: x * holder.k, change


def getattr_of_modules_patched():
    model = nn.Linear(3, 3).requires_grad_(False)

    kind = type("Own", (nn.Linear,), {})
    model.__class__ = kind

    def change():
        kind.__getattr__ = lambda self, name: nn.Module.__getattr__(self, name) + 1

    return lambda x: model.weight * x.sum() + model(x).sum(), change


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = x.mean(0)
        return x - self.mean


def getattr_of_a_module_that_replaces_a_buffer():
    kind = type("Own", (Replacing,), {})

    def change():
        kind.__getattr__ = lambda self, name: nn.Module.__getattr__(self, name) + 1

    return kind(), change


def register_buffer_of_a_module_that_replaces_a_buffer():
    kind = type("Own", (Replacing,), {})

    def register(self, name, tensor, persistent=True):
        nn.Module.register_buffer(self, name, tensor + 1, persistent)

    def change():
        kind.register_buffer = register

    return kind(), change


def table_of_hooks_replaced():
    model = nn.Linear(3, 3).requires_grad_(False)

    def change():
        model._forward_hooks = collections.OrderedDict({1: lambda module, args, out: out + 1})

    return model, change


def constructor_of_a_slice_of_modules():
    model = nn.ModuleList([nn.ReLU(), nn.Tanh(), nn.Sigmoid()])

    def change():
        nn.ModuleList.extend = lambda self, modules: append(self, reversed(list(modules)))

    append = nn.ModuleList.extend
    return lambda x: model[1:][0](x), change


def call_of_operators_patched():
    call = torch._ops.OpOverloadPacket.__call__

    def change():
        torch._ops.OpOverloadPacket.__call__ = lambda self, *args, **kwargs: call(self, *args, **kwargs) + 1

    return lambda x: torch.ops.aten.relu(x), change


def call_of_a_refused_module_patched():
    class Refused(nn.Module):
        def forward(self, x):
            return torch.tensor(len(list(locals()))) + x

    model = Refused()

    def change():
        Refused._call_impl = lambda self, x: x - 100

    return model, change


def value_of_a_member_of_an_enumeration():
    class Bits(enum.Flag):
        ONE = 1
        TWO = 2

    def change():
        Bits.TWO._value_ = 1

    return lambda x: x + 1 if (Bits.ONE | Bits.TWO) is Bits.ONE else x, change


def getter_of_an_enumeration():
    class Kind(enum.Enum):
        A = 1.0

        @enum.property
        def scale(self):
            return self.value * 2

    def change():
        Kind.__dict__["scale"].fget = lambda self: self.value * 3

    return lambda x: x * Kind.A.scale, change


def code_of_a_function_that_breaks():
    def f(x):
        print(end="")
        return x + 1

    def g(x):
        print(end="")
        return x + 2

    def change():
        f.__code__ = g.__code__

    return f, change


def slots_of_a_cached_property():
    class Holder:
        @functools.cached_property
        def k(self):
            return 2.0

    def change():
        Holder.__dict__["k"].func = lambda self: 5.0

    return lambda x: x * Holder().k, change


def equality_of_keys():
    class Key:
        same = True

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self.same

    def change():
        Key.same = False

    return lambda x: x + len({Key(): 1, Key(): 2}), change


def constructor_of_a_generic_class():
    class Box(Generic[T]):
        def __init__(self):
            self.k = 2.0

    def change():
        def other(self):
            self.k = 5.0

        Box.__init__ = other

    return lambda x: x * Box[int]().k, change


def constructor_that_takes_arguments_deleted():
    class Point:
        def __init__(self, k):
            self.k = k

    def make(x):
        try:
            return x * Point(2.0).k
        except TypeError:
            return x - 1

    def change():
        del Point.__init__

    return make, change


def accessor_without_a_setter_replaced():
    class Disc:
        @property
        def area(self):
            return 2.0

    def f(x):
        try:
            Disc().area = 3
        except AttributeError as error:
            return x + len(str(error))

    def change():
        Disc.area = property(lambda self: 3.0)

    return f, change


def names_of_a_class_pattern():
    class Point:
        __match_args__ = ("a",)
        a, b = 1.0, 2.0

    point = Point()

    def f(x):
        match point:
            case Point(k):
                return x * k

    def change():
        Point.__match_args__ = ("b",)

    return f, change


def class_of_a_module():
    module = types.ModuleType("made_here")
    module.k = 2.0

    class WithProperty(types.ModuleType):
        k = property(lambda self: 5.0)

    def change():
        module.__class__ = WithProperty

    return lambda x: x * module.k, change


def signature_that_is_looked_at():
    def g(a, b=1):
        pass

    def f(x):
        return x * sum(
            p.default is not inspect.Parameter.empty for p in inspect.signature(g).parameters.values()
        )

    def change():
        g.__defaults__ = (1, 2)

    return f, change


def call_added_to_a_class():
    class Plain:
        pass

    plain = Plain()

    def change():
        Plain.__call__ = lambda self: None

    return lambda x: x + 1 if callable(plain) else x, change


def number_that_native_code_asks_for():
    class Count:
        n = 2

        def __index__(self):
            return self.n

    count = Count()

    def change():
        Count.n = 3

    return lambda x: x.reshape(count, -1).sum(0)[:2] * len(range(count)), change


def bounds_of_a_slice():
    class Bound:
        n = 1

        def __index__(self):
            return self.n

    bound = Bound()

    def change():
        Bound.n = 2

    return lambda x: x[:, :bound].sum() + x[:, bound], change


def items_that_torch_reads():
    class Items:
        k = 1.0

        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i > 2:
                raise IndexError
            return self.k

    items = Items()

    def change():
        Items.k = 2.0

    return lambda x: x * torch.tensor(items), change


def namespaces_that_are_compared():
    left, right = types.SimpleNamespace(k=1), types.SimpleNamespace(k=1)

    def change():
        left.k = 2

    return lambda x: x + (left == right), change


def template_of_a_text():
    template = string.Template("$a")

    def change():
        template.template = "$a$a"

    return lambda x: x * len(template.substitute(a="xx")), change


def item_that_a_metaclass_makes():
    class Meta(type):
        def __getitem__(cls, k):
            return functools.partial(cls.apply, k=k)

    class Items(metaclass=Meta):
        @classmethod
        def apply(cls, x, k):
            return x * k

    def change():
        Items.apply = classmethod(lambda cls, x, k: x - k)

    return lambda x: Items[3](x), change


def item_that_a_class_makes():
    class Items:
        scale = 2.0

        def __class_getitem__(cls, k):
            return k * cls.scale

    def change():
        Items.scale = 5.0

    return lambda x: x * Items[3], change


# What some of the changes replace for everyone.
PATCHED = [
    (nn.ModuleList, "extend"),
    (torch._ops.OpOverloadPacket, "__call__"),
]
CHANGES = [
    item_that_a_metaclass_makes,
    item_that_a_class_makes,
    bounds_of_a_slice,
    items_that_torch_reads,
    namespaces_that_are_compared,
    template_of_a_text,
    names_of_a_class_pattern,
    class_of_a_module,
    signature_that_is_looked_at,
    call_added_to_a_class,
    number_that_native_code_asks_for,
    slot_deleted_of_a_descriptors_class,
    half_of_a_data_descriptor_deleted,
    dictionary_replaced_under_a_descriptor,
    getattr_of_modules_patched,
    getattr_of_a_module_that_replaces_a_buffer,
    register_buffer_of_a_module_that_replaces_a_buffer,
    table_of_hooks_replaced,
    constructor_of_a_slice_of_modules,
    call_of_operators_patched,
    call_of_a_refused_module_patched,
    value_of_a_member_of_an_enumeration,
    getter_of_an_enumeration,
    code_of_a_function_that_breaks,
    slots_of_a_cached_property,
    equality_of_keys,
    constructor_of_a_generic_class,
    constructor_that_takes_arguments_deleted,
    accessor_without_a_setter_replaced,
]


@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_change_is_seen(make, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    for owner, name in PATCHED:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back in the end
    check_change_is_seen(make, X)


def test_calls_that_raise_are_forgotten_with_the_versions(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    model = nn.Linear(3, 3).requires_grad_(False)
    compiled = lampwork.compile(lambda x: model(x))
    for width in range(4, 12):
        with pytest.raises(RuntimeError):
            compiled(torch.ones(2, width))
        model.weight = nn.Parameter(model.weight.detach().clone(), requires_grad=False)
        torch.testing.assert_close(compiled(X), model(X))


def test_reflected_operator_comes_first_where_it_is_overridden():
    class Left:
        def __add__(self, other):
            return "left"

        def __radd__(self, other):
            return "reflected"

    class Inherits(Left):
        pass

    class Overrides(Left):
        def __radd__(self, other):
            return "overridden"

    def f(x):
        return x + 1, Left() + Left(), Left() + Inherits(), Left() + Overrides()

    assert lampwork.compile(f)(X)[1:] == f(X)[1:] == ("left", "left", "overridden")


def test_fused_attention_refuses_what_eager_refuses():
    model = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.randn(1, 3, 4)
    compiled = lampwork.compile(lambda x: model(x, x, x)[0])
    with torch.no_grad():
        compiled(x)
        model.embed_dim = -5
        with pytest.raises(RuntimeError, match="embed_dim -5"):
            compiled(x)


def test_each_class_registered_with_an_abstract_one_is_seen():
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class First:
        pass

    class Second:
        pass

    objects = First(), Second()

    def f(x):
        return x + isinstance(objects[0], Abstract) + isinstance(objects[1], Abstract)

    compiled = lampwork.compile(f)
    torch.testing.assert_close(compiled(X), X)
    for count, kind in enumerate((First, Second), 1):
        Abstract.register(kind)
        torch.testing.assert_close(compiled(X), X + count)


def test_a_global_hook_reaches_modules_made_inside():
    fn = lambda x: nn.ReLU()(x)  # noqa: E731
    compiled = lampwork.compile(fn)
    torch.testing.assert_close(compiled(X), fn(X))
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 3)
    try:
        torch.testing.assert_close(compiled(X), X + 3)
    finally:
        handle.remove()
    torch.testing.assert_close(compiled(X), X)


def test_objects_that_were_two_may_be_one_later():
    class Plain:
        pass

    def fn(x, items):
        return x * items.index(items[1]), items.count(items[0]), items == [items[1], items[1]]

    compiled = lampwork.compile(fn)
    one, other = Plain(), Plain()
    for items in ([one, other], [one, one], [other, one]):
        for _ in range(2):
            expected, got = fn(X, items), compiled(X, items)
            torch.testing.assert_close(got[0], expected[0])
            assert got[1:] == expected[1:]


def test_a_tied_weight_that_became_state_may_be_untied_later():
    """A weight that was replaced is an input; where it is the same as another that is none, that is guarded too."""

    def run(compiled: bool):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
        table, head = model[0], model[1]
        tied = head.weight = table.weight
        fn, grads = lampwork.compile(model) if compiled else model, []
        for weight in (tied, nn.Parameter(tied.detach() + 1), tied, nn.Parameter(tied.detach().clone())):
            table.weight = weight
            model.zero_grad()
            fn(torch.tensor([1, 5, 5])).sin().sum().backward()
            grads += [table.weight.grad.clone(), head.weight.grad.clone()]
        return grads

    torch.testing.assert_close(run(True), run(False))


def test_a_checkpointed_function_that_writes_in_place_is_eagers():
    """Under a checkpoint's hooks autograd does not miss what was written over."""

    def checkpointed(x):
        def inner(x):
            y = torch.sigmoid(x)
            return y.mul_(2) * 3

        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    grads = []
    for fn in (checkpointed, lampwork.compile(checkpointed)):
        x = X.clone().requires_grad_()
        fn(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_members_of_an_outside_set_of_a_subclass():
    class Without(set):
        def __contains__(self, member):
            return not super().__contains__(member)

    members = Without([1, 2])
    compiled = lampwork.compile(lambda x: x + (1 in members) + 10 * (3 in members) + len(members))
    for change in (lambda: None, lambda: members.add(3), lambda: members.remove(1)):
        change()
        expected = X + (1 in members) + 10 * (3 in members) + len(members)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), expected)


def test_a_replaced_function_of_torch_is_called_once_by_the_program_and_not_by_the_compiler(monkeypatch):
    full = torch.full
    compiled = lampwork.compile(lambda x: x * torch.full((3,), 2.0))
    torch.testing.assert_close(compiled(X), X * 2)
    monkeypatch.setattr(torch, "full", lambda *args, **kwargs: full(*args, **kwargs) * 1.5)
    torch.testing.assert_close(compiled(X), X * 3)


def test_a_replaced_call_of_modules_calls_the_hooks_of_one_that_raises(monkeypatch):
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.failing = Failing()

        def forward(self, x):
            try:
                return self.failing(x)
            except ValueError:
                return x + 1

    called = []
    model = Outer()
    model.failing.register_forward_hook(lambda *given: called.append(given), always_call=True)
    own = nn.Module._call_impl
    same = types.FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    monkeypatch.setattr(nn.Module, "_call_impl", same)
    compiled = lampwork.compile(model)
    for count in (1, 2, 3):
        torch.testing.assert_close(compiled(X), X + 1)
        assert len(called) == count


def test_a_class_that_is_no_longer_a_protocol_to_test_with():
    @runtime_checkable
    class Quacks(Protocol):
        def quack(self): ...

    compiled = lampwork.compile(lambda x: x + isinstance(x, Quacks) + isinstance(Quacks, type))
    torch.testing.assert_close(compiled(X), X + 1)
    duck = types.SimpleNamespace(quack=None)
    tested = lampwork.compile(lambda x: x + isinstance(duck, Quacks))
    torch.testing.assert_close(tested(X), X)
    Quacks._is_runtime_protocol = False
    with pytest.raises(TypeError, match="runtime_checkable"):
        tested(X)


def test_what_a_table_of_a_module_refuses_is_refused_where_the_program_sets_it():
    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.inner = nn.Identity()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            refused = []
            for name, value in (("weight", x), ("inner", x), ("mean", 3.0), ("weight", self.inner)):
                try:
                    setattr(self, name, value)
                except TypeError as error:
                    refused.append(str(error))
            return refused, x * self.weight

    expected, got = Refusing()(X), lampwork.compile(Refusing())(X)
    assert len(got[0]) == 4 and got[0] == expected[0]
    torch.testing.assert_close(got[1], expected[1])


def test_a_buffer_that_the_region_set_is_found_by_the_getattr_of_modules():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean = x.mean(0)
            return nn.Module.__getattr__(self, "mean") * 2

    compiled = lampwork.compile(Direct())
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), x.mean(0) * 2)


def test_a_hook_on_the_registration_of_buffers_is_seen():
    model = Replacing()
    compiled = lampwork.compile(model)
    torch.testing.assert_close(compiled(X), X - X.mean(0))
    handle = nn.modules.module.register_module_buffer_registration_hook(lambda module, name, value: value + 1)
    try:
        torch.testing.assert_close(compiled(X), X - X.mean(0) - 1)
    finally:
        handle.remove()
    torch.testing.assert_close(compiled(X), X - X.mean(0))


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_a_context_manager_asks_what_the_program_put_in_place_of_torch(monkeypatch):
    @torch.autocast("cpu")
    def product(x):
        return x @ x.T

    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(lambda x: product(x).float())
    compiled(X)
    enabled = torch.is_autocast_enabled
    # What autocast finds when it is entered it puts back when it is left.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    try:
        torch.testing.assert_close(compiled(X), (X @ X.T).bfloat16().float())
        assert enabled("cpu")
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_what_stands_for_an_argument_has_not_the_last_word():
    """Eager's linear takes a bias of another dtype for some layouts only, which a probe does not have."""
    weight, bias = torch.randn(3, 3), torch.randn(3, dtype=torch.float64)

    def fn(x):
        return nn.functional.linear(x.transpose(0, 1), weight, bias) * 2

    x = torch.randn(2, 5, 3)
    compiled = lampwork.compile(fn, options={"strict": True})
    torch.testing.assert_close(compiled(x), fn(x))
