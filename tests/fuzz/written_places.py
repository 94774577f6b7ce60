"""The places that random programs write to and read, by kind of what holds them.

A template keeps to one line; `$` separates lines of its own. `@` is the object, reached by one of its names; `@2`
another object of its kind, or the same; `<n>` the name of an attribute, `<k>` a key; `<v>` a value of any sort, `<i>` a
small number, `<x>` a tensor, `<r>` what another place holds, `<f>` a fresh name.
"""
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be made, in how many ways; what is then shared between two of a kind; and what is done with one."""

    made: list[str]
    shared: list[str]
    writes: list[str]
    reads: list[str]


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


ATTRIBUTE_WRITES = _lines("""
@.<n> = <v>
@.<n> = <v>
@.<n> = <v>
@.<n> = <r>
@.<n> += <i>
@.<n> = num(@2.<n>) + <i>
setattr(@, "<n>", <v>)
object.__setattr__(@, "<n>", <v>)
type(@).__setattr__(@, "<n>", <v>)
del @.<n>
delattr(@, "<n>")
object.__delattr__(@, "<n>")
@.<n>, @2.<n> = @2.<n>, <v>
@.<n>, @.<n> = <v>, <v>
for @.<n> in range(<i>): y = y + num(@2.<n>)
@.<n> = @.<n> if hasattr(@2, "<n>") else <v>
@.<n> = y
@.<n> = @2
type(@).v = <v>
type(@).<n> = <v>
del type(@).<n>
setattr(type(@), "<n>", <v>)
type(@).<n> = property(lambda self: 11)
type(@).__getattr__ = lambda self, name: 12
@.__class__ = type(@2)
with put_back(@, "<n>", <v>) as <f>: y = y + num(<f>) + num(@2.<n>)
""")
ATTRIBUTE_READS = _lines("""
@.<n>
@.<n>
@.<n>
getattr(@, "<n>")
getattr(@, "<n>", 0)
hasattr(@, "<n>")
operator.attrgetter("<n>")(@)
type(@).__getattribute__(@, "<n>")
object.__getattribute__(@, "<n>")
@.<n> is @2.<n>
@ is @2
getattr(type(@), "<n>", 0)
type(@).v
type(@).__name__
"<n>" in type(@).__dict__
copy.copy(@).<n>
getattr(copy.copy(@), "<n>", None) is @.<n>
isinstance(@.<n>, int)
[getattr(each, "<n>", None) for each in (@, @2)]
bool(@)
""")
METHOD_WRITES = _lines("""
@.put(<v>)
@.put(<v>, "<n>")
@.bump()
type(@).put(@, <v>, "<n>")
@.put = <r>
type(@).bump = lambda self: self.put(<i>)
del type(@).get
""")
METHOD_READS = _lines("""
@.get("<n>")
@.get()
@.bump()
type(@).get(@, "<n>")
functools.partial(@.get, "<n>")()
list(map(@.get, ["v", "w"]))
@.get.__self__ is @2
""")
DICT_WRITES = _lines("""
@.__dict__["<n>"] = <v>
vars(@)["<n>"] = <v>
@.__dict__.update({"<n>": <v>}, w=<i>)
@.__dict__ |= {"<n>": <v>}
@.__dict__.setdefault("<n>", <v>)
@.__dict__.pop("<n>", None)
del @.__dict__["<n>"]
@.__dict__.popitem()
@.__dict__ = {"<n>": <v>}
@.__dict__ = dict(@.__dict__)
@.__dict__ = @2.__dict__
@.__dict__.clear()
vars(@)["<n>"] = vars(@2).pop("<n>", 0)
<f> = vars(@); <f>["<n>"] = <v>
<f> = vars(@); @.<n> = <v>; y = y + num(<f>["<n>"])
<f> = @.__dict__; @.__dict__ = {}; <f>["<n>"] = <v>
""")
DICT_READS = _lines("""
@.__dict__["<n>"]
vars(@).get("<n>")
"<n>" in vars(@)
list(vars(@))
list(vars(@).items())
len(@.__dict__)
vars(@) is @2.__dict__
dict(vars(@))
[<f> for <f> in @.__dict__ if hasattr(@2, <f>)]
vars(@) == vars(@2)
sum(num(<f>) for <f> in vars(@).values())
""")

PLAIN = Kind(
    _lines("""
Plain()
Plain()
Sub()
Sub()
Propped()
Described()
Fallback()
Noting()
Asking()
types.SimpleNamespace(v=1, w=2)
"""),
    _lines("""
@2.__dict__ = @.__dict__
@2.v = @
@2.v = @.v = [1]
"""),
    ATTRIBUTE_WRITES + METHOD_WRITES + DICT_WRITES,
    ATTRIBUTE_READS + METHOD_READS + DICT_READS,
)
ODD = Kind(
    _lines("""
Slotted()
Mixed()
Data()
Tight()
Frozen()
Local()
Place("place")
Problem(1, 2)
Color.RED
functools.partial(function, k=1)
Row([1, 2])
Own(v=1, w=2)
T(2)
"""),
    _lines("""
@2.v = @.v
@2.w = @
@2.__dict__ = @.__dict__
"""),
    [*ATTRIBUTE_WRITES, *DICT_WRITES, "dataclasses.replace(@, v=<v>)", "@.args = (<v>,)", "@.__dict__ = @"],
    [
        *ATTRIBUTE_READS,
        *DICT_READS,
        "dataclasses.asdict(@)",
        "dataclasses.astuple(@)",
        "[f.name for f in dataclasses.fields(@)]",
        "@ == @2",
        "@.args",
        "str(@)",
        "dataclasses.replace(@, v=<v>).v",
        "list(@)",
    ],
)
CLASS = Kind(
    _lines("""
type("Made", (Base,), {"w": 3})
type("Made", (Derived,), {"v": 5})
Base
Derived
"""),
    _lines("""
@2.w = @
@.v = @2
"""),
    _lines("""
@.<n> = <v>
@.<n> = <v>
@.w = <v>
Base.w = <v>
Base.w = <v>
Meta.v = <v>
type(@).<n> = <v>
setattr(@, "<n>", <v>)
type.__setattr__(@, "<n>", <v>)
del @.<n>
type.__delattr__(@, "<n>")
@.p = <v>
@.held += <i>
@.put(<v>)
@().put(<v>)
Base.put(<v>)
@.read = lambda self: 5
Base.read = Derived.read
Base.read = lambda self: num(self.w)
@.fixed = staticmethod(lambda: <i>)
@.__getattr__ = lambda self, name: 4
@.w = property(lambda self: 8)
@.u = Kept()
Meta.p = 3
Meta.u = property(lambda cls: cls.held)
@.__bases__ = (Derived,)
@.__name__ = "Renamed"
del Meta.v
"""),
    _lines("""
@.<n>
@.<n>
@.w
@().<n>
@().w
Base.w
Derived.w
Meta.v
@.p
@.held
@.get()
@().read()
@.read(@())
@.fixed()
@().fixed()
@.__dict__.get("<n>")
vars(@).get("<n>", 0)
"<n>" in vars(@)
hasattr(@, "<n>")
hasattr(@(), "<n>")
getattr(@, "<n>", 0)
super(@, @()).read()
@ is @2
issubclass(@, @2)
@.__mro__[1].__name__
@.__name__
[<f>.__name__ for <f> in @.__mro__]
[num(vars(<f>).get("w")) for <f> in @.__mro__]
type(@).v
isinstance(@(), Base)
Color.RED.value
"""),
)
_MODULE_WRITES = _lines("""
@.v = <v>
@.v = <r>
@.<n> = <x>
@.b = <x>
@.b = None
@.b = Buffer(<x>)
del @.b
del @.v
@.b.add_(<i>)
@.b += <i>
@.b[0] = <i>
@.b.data = T(<i>)
@._buffers["b"] = <x>
@._buffers["b"] = @2.b
@._buffers.pop("b", None)
@._buffers["<n>"] = <x>
@._buffers = dict(@._buffers)
@._buffers = {"b": <x>}
@.__dict__["_buffers"] = {"b": T(<i>), "v": T(<i>)}
@.__dict__["b"] = <v>
@.__dict__["v"] = <v>
@.__dict__.pop("v", None)
vars(@)["<n>"] = <v>
object.__setattr__(@, "<n>", <v>)
nn.Module.__setattr__(@, "<n>", <v>)
setattr(@, "<n>", <v>)
@.register_buffer("b", <x>)
@.register_buffer("<n>", <x>)
@.register_buffer("<n>", <x>, persistent=False)
@.register_parameter("<n>", Parameter(T(<i>), requires_grad=False))
@._parameters["<n>"] = Parameter(T(<i>), requires_grad=False)
@._parameters = {}
@.train(<i> > 1)
@.eval()
@.training = <i> > 1
<f> = @.register_forward_hook(twice)
<f> = @.register_forward_pre_hook(plus)
<f> = @.register_forward_hook(noting); y = y + num(@2(x)); <f>.remove()
@._forward_hooks[7] = twice
@._forward_hooks.clear()
@._forward_hooks = collections.OrderedDict({7: twice})
@._forward_pre_hooks[8] = plus
@._forward_hooks.pop(7, None)
torch_module._global_forward_hooks[9] = twice
torch_module._global_forward_hooks.pop(9, None)
<f> = torch_module.register_module_forward_hook(twice); y = y + @2(x); <f>.remove()
@.forward = lambda x: x + <i>
@.__dict__.pop("forward", None)
type(@).forward = lambda self, x: x - <i>
type(@).__call__ = lambda self, x: x
@.requires_grad_(False)
@.zero_grad()
@.load_state_dict(@2.state_dict())
@.load_state_dict({k: v + 1 for k, v in @2.state_dict().items()})
@.to(torch.float32)
@.apply(lambda m: setattr(m, "u", <i>))
@.__dict__.update(<n>=<v>)
@.__dict__ = dict(@.__dict__)
@.__class__ = type(@2)
@._non_persistent_buffers_set.add("b")
for <f> in @.buffers(): <f>.add_(<i>)
for <f> in @.children(): <f>.u = <i>
for <f> in @.modules(): <f>.training = False
""")
_MODULE_READS = _lines("""
@(x)
@(x)
@(x)
@(<x>)
@.forward(x)
@.b
@.b
@.v
@.<n>
@.training
getattr(@, "<n>", 0)
hasattr(@, "<n>")
hasattr(@, "b")
"b" in @._buffers
list(@._buffers)
list(@._parameters)
list(@._modules)
list(@.__dict__)[-2:]
list(@._forward_hooks)
len(@._forward_pre_hooks)
[<f> for <f>, _ in @.named_modules()]
[<f> for <f>, _ in @.named_parameters()]
dict(@.named_buffers())
sum(p.sum() for p in @.parameters())
sum(b.sum() for b in @.buffers())
list(@.state_dict())
@.state_dict().get("b")
list(@.children())
len(list(@.modules()))
@.b is @2.b
@._buffers is @2._buffers
@.get_buffer("b")
@.__dict__.get("<n>")
vars(@).get("v")
"v" in vars(@)
copy.copy(@).v
copy.deepcopy(@)(x)
torch.func.functional_call(@, {"b": <x>}, (x,))
torch.func.functional_call(@, dict(@2.named_parameters()), (x,))
isinstance(@, nn.Module)
str(@).count("(")
len(torch_module._global_forward_hooks)
""")
MODULE = Kind(
    ["Net()", "Net()", "Scale()"],
    _lines("""
@2.b = @.b
@2._buffers = @._buffers
@2._modules = @._modules
@2._parameters = @._parameters
@2.__dict__ = @.__dict__
@2._forward_hooks = @._forward_hooks
@2.a = @.c
@2.a = @.a
@.a.weight = @.c.weight
@.a = @.c
@._forward_hooks[5] = noting
@.a.register_forward_hook(noting)
@.weight = @2.weight
@.a.b = @.b
"""),
    [
        *_MODULE_WRITES,
        *_lines("""
@.a = Scale(<i>)
@.a = @.c
@.a = @2.c
@.a, @.c = @.c, @.a
@.a = None
@.c = None
del @.a
@.a = <v>
@.v = Scale(<i>)
@._modules["a"] = @2.c
@._modules["a"] = Scale(<i>)
@._modules["<n>"] = @.a
@._modules.pop("a", None)
@._modules = dict(@._modules)
@._modules = {"a": @.c, "c": @.a}
@.__dict__["_modules"] = @2._modules
@.add_module("<n>", @.a)
@.add_module("<n>", Scale(<i>))
@.set_submodule("a", @.c)
@.a.weight = Parameter(T(<i>), requires_grad=False)
@.a.weight = @.c.weight
@.a.weight.data = T(<i>)
@.a.weight.data.add_(<i>)
@.a.weight.mul_(<i>)
@.a.weight = None
del @.a.weight
@.a._parameters["weight"] = @2.c.weight
@.a._parameters["weight"] = <x>
@.a._parameters = {"weight": @.c.weight}
@.a.v = <v>
@.a.b = <x>
@.a._forward_hooks[7] = twice
@.a.forward = lambda x: x
@.weight = <x>
@.weight = Parameter(T(<i>), requires_grad=False)
@.weight.add_(<i>)
"""),
    ],
    [
        *_MODULE_READS,
        *_lines("""
@.a(x)
@.a(x)
@.c(<x>)
@.a.weight
@.a.weight is @.c.weight
@.a is @.c
@.a is @2.a
@._modules.get("a")
"a" in @._modules
hasattr(@, "a")
@.get_submodule("a")(x)
@.get_parameter("a.weight")
@.a.v
@.a.b
@.weight
torch.func.functional_call(@, {"a.weight": T(<i>)}, (x,))
torch.func.functional_call(@, {"a.weight": T(<i>), "a.b": <x>}, (x,))
"""),
    ],
)
PARTS = Kind(
    ["Parts()"],
    _lines("""
@2.layers[0] = @.layers[1]
@.layers[0] = @.layers[1]
@2.layers = @.layers
@2.chain = @.chain
@.params[0] = @.params[1]
@.named["a"] = @.layers[0]
"""),
    _lines("""
@.layers[0] = Scale(<i>)
@.layers[0] = @.layers[1]
@.layers[0], @.layers[1] = @.layers[1], @.layers[0]
@.layers.append(Scale(<i>))
@.layers.append(@.layers[0])
@.layers.insert(0, @.layers[1])
@.layers.extend([@2.layers[0]])
@.layers += [Scale(<i>)]
del @.layers[0]
@.layers.pop(0)
@.layers = nn.ModuleList([@.layers[1]])
@.layers._modules["0"] = @.layers[1]
@.layers._modules.popitem()
@.layers[0].weight.data.add_(<i>)
@.chain[0] = Scale(<i>)
@.chain[1] = nn.Identity()
@.chain.append(@.layers[0])
del @.chain[1]
@.chain = nn.Sequential(*@.chain, nn.Identity())
@.named["a"] = @.named["b"]
@.named["z"] = Scale(<i>)
@.named.pop("a")
del @.named["b"]
@.named.update({"a": @.layers[0]})
@.named.clear()
@.params[0] = Parameter(T(<i>), requires_grad=False)
@.params.append(Parameter(T(<i>), requires_grad=False))
@.params.append(<v>)
@.params[0] = <x>
@.params[0].data.add_(<i>)
@.params[0].add_(<i>)
@.params.extend(@2.params)
@.table["a"] = Parameter(T(<i>), requires_grad=False)
@.table["b"] = <x>
del @.table["a"]
@.table.pop("a")
@.v = <v>
"""),
    _lines("""
@(x)
@(x)
@.chain(x)
@.layers[0](x)
@.layers[-1](x)
len(@.layers)
len(@.chain)
[layer(x) for layer in @.layers]
[num(p) for p in @.params]
len(@.params)
@.params[0]
@.named["a"](x)
list(@.named)
list(@.named.items())
"z" in @.named
sum(m(x) for m in @.named.values())
list(@.table)
@.table["a"]
dict(@.table)
@.table.get("b")
@.layers[0] is @.layers[1]
@.layers is @2.layers
[name for name, _ in @.named_parameters()]
[name for name, _ in @.named_children()]
@.chain[0](x)
@.layers[:1]
@.v
"""),
)
LIST = Kind(
    ["[1, 2, 3]", "[T(1), 2]", "[[1], [2]]", "collections.deque([1, 2, 3], 4)", "Row([1, 2])", "[]"],
    ["@2.append(@)", "@[0] = @2"],
    _lines("""
@.append(<v>)
@.append(<r>)
@.append(<i>)
@.extend([<v>, <i>])
@.insert(0, <v>)
@[0] = <v>
@[-1] = <r>
@[0], @[-1] = @[-1], @[0]
@[0] += <i>
@[1:] = [<v>]
@[:] = @2[:]
del @[0]
@.pop()
@.pop(0)
@.popleft()
@.appendleft(<v>)
@.rotate(1)
@.remove(<i>)
@.clear()
@.reverse()
@.sort(key=num)
@ += [<v>]
@.extend(@2)
@.append(@)
for <f> in @: y = y + num(<f>); @2[-1] = <i>
for <f> in list(@): @.append(<f>)
<f> = iter(@); next(<f>, 0); @.append(<v>); out.append(list(<f>))
<f> = @; <f>.append(<v>)
@.v = <v>
"""),
    _lines("""
@[0]
@[-1]
len(@)
list(@)
@ == @2
<i> in @
@.index(<i>)
@.count(<i>)
sum(map(num, @))
[num(<f>) for <f> in @]
list(reversed(@))
list(enumerate(@))
@.pop()
sorted(map(small, @))
[*@, *@2]
@ is @2
max(map(small, @), default=0)
bool(@)
@.copy()
@ + @2
@[0] is @2[0]
list(itertools.islice(@, 2))
next(iter(@), None)
@.v
"""),
)
DICT = Kind(
    _lines("""
{"a": 1, "b": 2}
{"a": T(1), 0: 2}
collections.OrderedDict(a=1, b=2)
collections.defaultdict(list, a=[1])
collections.defaultdict(lambda: LEVEL)
Missing(a=1)
Own(a=1)
collections.Counter(a=2)
{}
collections.ChainMap({"a": 1}, {"b": 2})
types.MappingProxyType({"a": 1})
"""),
    ['@2["a"] = @', '@2["a"] = @["a"]'],
    _lines("""
@[<k>] = <v>
@[<k>] = <v>
@[<k>] = <r>
@[<k>] += <i>
@[<k>].append(<v>)
del @[<k>]
@.pop(<k>, None)
@.popitem()
@.setdefault(<k>, <v>)
@.update({<k>: <v>})
@.update(a=<v>, b=<i>)
@ |= {<k>: <v>}
@.clear()
@.move_to_end(<k>)
@.move_to_end(<k>, last=False)
@.subtract(a=1)
@.default_factory = dict
@.default_factory = lambda: <i>
@[<k>] = @2.pop(<k>, 0)
for <f> in list(@): @[<f>] = num(@[<f>]) + <i>
for <f> in @: @2[<k>] = <i>
<f> = @.items(); @[<k>] = <v>; out.append(list(<f>))
<f> = iter(@); next(<f>, 0); @[<k>] = <v>; out.append(list(<f>))
@.__dict__ = @
@.v = <v>
"""),
    _lines("""
@[<k>]
@.get(<k>)
@.get(<k>, <i>)
<k> in @
len(@)
list(@)
list(@.items())
list(@.values())
sum(map(num, @.values()))
@ == @2
@ is @2
[num(<f>) for <f> in @.values()]
{**@, **@2}
@ | @2
dict(@)
next(iter(@), None)
list(reversed(@))
@.pop(<k>, None)
@.setdefault(<k>, <v>)
@.copy()
@.keys() & @2.keys() == set(@)
bool(@)
@.v
@.most_common(1)
"""),
)
SET = Kind(
    ["{1, 2}", "set()", "{1, 2, 3}"],
    ["@2.update(@)"],
    _lines("""
@.add(<i>)
@.add(<k>)
@.discard(<i>)
@.remove(<i>)
@.update({<i>, 5})
@ |= {<i>}
@ -= {<i>}
@ &= @2
@ ^= {1, <i>}
@.clear()
@.difference_update(@2)
"""),
    _lines("""
<i> in @
len(@)
sorted(map(str, @))
@ == @2
@ <= @2
@ | {<i>} == @2
sum(map(small, @))
bool(@)
@.copy()
@.isdisjoint(@2)
"""),
)
FUNCTION = Kind(
    ["function", "other_function", "(lambda x, k=1, *, n=2: x + k + n)"],
    ["@2.v = @.v = [1]", "@2.__defaults__ = @.__defaults__", "@2.__dict__ = @.__dict__"],
    _lines("""
@.<n> = <v>
@.<n> = <v>
del @.<n>
@.__dict__["<n>"] = <v>
@.__dict__ = {"<n>": <v>}
@.__defaults__ = (<i>,)
@.__defaults__ = (<r>,)
@.__defaults__ = None
@.__kwdefaults__ = {"n": <i>}
@.__kwdefaults__["n"] = <i>
@.__kwdefaults__ = None
@.__code__ = @2.__code__
@.__code__ = other_function.__code__
@.__name__ = "renamed"
@.__doc__ = "read"
setattr(@, "<n>", <v>)
functools.update_wrapper(@, @2)
"""),
    _lines("""
@(x)
@(x, <i>)
@(x, n=<i>)
@(<x>)
@.<n>
getattr(@, "<n>", 0)
hasattr(@, "<n>")
@.__dict__.get("<n>")
list(vars(@))
@.__defaults__
@.__kwdefaults__
@.__name__
@.__doc__
@ is @2
@.__code__ is @2.__code__
functools.partial(@, k=<i>)(x)
@.__get__(x)()
"""),
)
CELL = Kind(
    ["counter(1)", "counter(T(1))"],
    [],
    _lines("""
@[0]()
@[0](<i>)
@[2]()
@[0].__closure__[0].cell_contents = <v>
del @[1].__closure__[0].cell_contents
@[0].__defaults__ = (<i>,)
"""),
    _lines("""
@[1]()
@[1]()
@[0](<i>)
@[1].__closure__[0].cell_contents
@[1].__closure__[0] is @[0].__closure__[0]
@[0]() is @[1]()
"""),
)
GLOBAL = Kind(
    ["OTHER"],
    [],
    _lines("""
LEVEL = <v>
LEVEL += <i>
FRESH = <v>
del FRESH
del LEVEL
globals()["LEVEL"] = <v>
globals()["FRESH"] = <v>
globals().update(LEVEL=<v>)
globals().pop("FRESH", None)
sys.modules["program"].LEVEL = <v>
setattr(sys.modules["program"], "FRESH", <v>)
vars(sys.modules["program"])["LEVEL"] = <v>
@.LEVEL = <v>
@.<n> = <v>
del @.<n>
vars(@)["<n>"] = <v>
@.__dict__.pop("<n>", None)
@.__getattr__ = lambda name: 3
function.__globals__["LEVEL"] = <v>
num = small
__builtins__["FRESH"] = <i>
"""),
    _lines("""
LEVEL
LEVEL
FRESH
globals()["LEVEL"]
globals().get("FRESH", 0)
"FRESH" in globals()
sys.modules["program"].LEVEL
getattr(sys.modules["program"], "FRESH", 0)
@.LEVEL
@.<n>
getattr(@, "<n>", 0)
hasattr(@, "<n>")
vars(@).get("<n>")
list(vars(@))[5:]
(lambda: LEVEL)()
[LEVEL for _ in range(2)]
function.__globals__["LEVEL"]
eval("LEVEL")
"""),
)
CONTEXT = Kind(
    ["CONTEXT"],
    [],
    _lines("""
@.set(<v>)
@.set(<i>)
<f> = @.set(<v>); y = y + num(@.get()); @.reset(<f>)
contextvars.copy_context().run(@.set, <v>)
"""),
    [
        "@.get()",
        "@.get(3)",
        "contextvars.copy_context()[@]",
        "contextvars.copy_context().run(@.get)",
        "@.name",
    ],
)
ITERATOR = Kind(
    _lines("""
iter([1, 2, 3, 4, 5])
iter([T(1), T(2), T(3)])
iter({"a": 1, "b": 2})
itertools.count(1)
itertools.cycle([1, 2])
itertools.chain([1, 2], [3])
enumerate([4, 5, 6])
zip([1, 2, 3], [4, 5, 6])
map(num, [1, None, 3])
filter(None, [0, 1, 2])
reversed([1, 2, 3])
stepping(Plain())
stepping(Sub(), 6)
(num(<f>) for <f> in [1, 2, 3])
"""),
    [],
    _lines("""
next(@)
next(@, None)
for <f> in itertools.islice(@, 2): y = y + num(<f>)
@.close()
@.send(<i>)
@.throw(KeyError("thrown"))
"""),
    _lines("""
next(@)
next(@, None)
next(@, None)
list(itertools.islice(@, 2))
[next(@, 0), next(@2, 0)]
iter(@) is @2
list(zip(range(2), @))
dict(zip("ab", @))
"""),
)
CACHED = Kind(
    [
        "functools.lru_cache(lambda k: [LEVEL, k])",
        "functools.lru_cache(maxsize=1)(lambda k: num(k) + 1)",
        "functools.lru_cache(None)(small)",
    ],
    [],
    ["@(<i>)", "@(<k>)", "@.cache_clear()", "@(<i>).append(<v>)", "LEVEL = <i>", "@.v = <v>"],
    [
        "@(<i>)",
        "@(<k>)",
        "list(@.cache_info())",
        "@.__wrapped__(<i>)",
        "@(1) is @(1)",
        "@.v",
        "@.cache_info().hits",
    ],
)
TENSOR = Kind(
    [
        "T(1)",
        "T(2)",
        "torch.arange(4.0).reshape(2, 2)",
        "Parameter(T(1), requires_grad=False)",
        "T(3).long()",
    ],
    _lines("""
@2.data = @
@2.data = @[:1]
@2.data = @.t()
@2.v = @
@.v = @.view(-1)
@2.data = @.view(-1)[1:3]
"""),
    _lines("""
@.add_(<i>)
@.mul_(2)
@.zero_()
@.copy_(@2)
@.fill_(<i>)
@[0] = <i>
@[0, 0] += <i>
@[:, 0].add_(<i>)
@.view(-1)[1:3].mul_(2)
@.t()[0].fill_(<i>)
@.t().add_(@2)
@.diagonal().add_(<i>)
@.data.add_(<i>)
@.data = T(<i>)
@.data = @2
@.detach().add_(<i>)
@.flatten().add_(1)
@ += <i>
torch.add(@, 1, out=@2)
@.set_(T(<i>))
@.resize_(3)
@.transpose_(0, 1)
@.squeeze_(0)
@.unsqueeze_(0)
@.requires_grad_(<i> > 1)
@.requires_grad = False
@.<n> = <v>
@.grad = T(<i>)
@.grad = None
del @.<n>
@.__dict__["<n>"] = <v>
<f> = @[0]; @.add_(1); y = y + <f>
<f> = @.view(-1); <f>[0] = <i>; out.append(@.clone())
<f> = @.clone(); <f>.add_(<i>); @.copy_(<f>)
@.swap = @2
torch.utils.swap_tensors(@, @2)
@.index_fill_(0, torch.tensor([0]), <i>)
@.masked_fill_(@ > <i>, 0)
"""),
    _lines("""
@
@
@.clone()
@.sum()
@[0]
@.view(-1)
@.t()
@.data
@.shape
@.stride()
@.dim()
@.requires_grad
@.grad
@.<n>
hasattr(@, "<n>")
@.__dict__.get("<n>")
@ is @2
@ + @2
@.is_leaf
@._version > 0
@.detach()
@.is_contiguous()
@[0] + @2[0]
"""),
)
TRIO = Kind(
    ["[Trio(1, [2], T(3))]", "[Trio()]", '{0: Trio(u={"a": 1})}'],
    ["@2[0] = @[0]"],
    _lines("""
@[0] = @[0]._replace(<n>=<v>)
@[0] = Trio(<v>, <i>)
@[0].w.append(<v>)
@[0].u["a"] = <v>
@[0].<n> = <v>
@[0].u.add_(<i>)
@[0] = @[0]._replace(v=@2[0])
Trio._field_defaults["v"] = <i>
Trio.__new__.__defaults__ = (<i>, 2, 3)
"""),
    _lines("""
@[0].<n>
@[0]
@[0]._replace(<n>=<v>)
@[0]._asdict()
@[0] == @2[0]
@[0] is @2[0]
Trio()
list(@[0])
"""),
)
WEAK = Kind(
    [
        "weakref.ref(KEPT)",
        "weakref.WeakValueDictionary(a=KEPT)",
        "weakref.WeakKeyDictionary({KEPT: 1})",
        "weakref.proxy(KEPT)",
    ],
    [],
    _lines("""
@().v = <v>
KEPT.v = <v>
KEPT = Plain()
@["b"] = KEPT
@[KEPT] = <v>
@.w = <v>
@["a"].v = <v>
@.pop("a", None)
"""),
    [
        "@().v",
        "KEPT.v",
        "@() is KEPT",
        '@["a"].v',
        '@.get("a")',
        "len(@)",
        "@[KEPT]",
        "@.v",
        "KEPT in @",
        "list(@)",
    ],
)

KINDS: dict[str, Kind] = {
    "plain": PLAIN, "odd": ODD, "cls": CLASS, "net": MODULE, "parts": PARTS, "items": LIST, "table": DICT, "group": SET,
    "fn": FUNCTION, "cell": CELL, "space": GLOBAL, "context": CONTEXT, "it": ITERATOR, "cached": CACHED,
    "tensor": TENSOR, "trio": TRIO, "weak": WEAK,
}  # fmt: skip
# How often each is drawn: what has most ways to be written is drawn most.
WEIGHTS: dict[str, int] = {
    "plain": 12, "odd": 7, "cls": 7, "net": 14, "parts": 6, "items": 6, "table": 7, "group": 2, "fn": 5, "cell": 3,
    "space": 5, "context": 2, "it": 5, "cached": 2, "tensor": 6, "trio": 2, "weak": 2,
}  # fmt: skip

# Other names of an object `o`: what makes one, and the expression.
ALIASES: list[tuple[str, str]] = [
    ("", "o"),
    ("", "o"),
    ("", "q_o"),
    ("", "q_o"),
    ("HOLD.o = o", "HOLD.o"),
    ("HOLD.o = o", 'vars(HOLD)["o"]'),
    ("OTHER.o = o", "OTHER.o"),
    ("BOX.append(o); N_o = len(BOX) - 1", "BOX[N_o]"),
    ('TABLE["o"] = o', 'TABLE["o"]'),
    ("GET_o = (lambda held: lambda: held)(o)", "GET_o()"),
    ("def DEF_o(held=o): return held", "DEF_o()"),
    ("PART_o = functools.partial(lambda held: held, o)", "PART_o()"),
    ("PART_o = functools.partial(lambda held: held, o)", "PART_o.args[0]"),
    ("PAIR_o = (o, 1)", "PAIR_o[0]"),
    ("BOUND_o = types.MethodType(lambda self: self, o)", "BOUND_o()"),
    ("BOUND_o = types.MethodType(lambda self: self, o)", "BOUND_o.__self__"),
    ("class Holder_o: held = o", "Holder_o.held"),
    ("class Holder_o: held = o", "Holder_o().held"),
    ("", 'globals()["o"]'),
    ("CELL_o = types.CellType(o)", "CELL_o.cell_contents"),
    ("CTX_o = contextvars.ContextVar('CTX_o', default=o)", "CTX_o.get()"),
    ("", "(lambda: o)()"),
    ("", "[o][0]"),
]
