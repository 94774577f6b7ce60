"""Objects that random programs write to and read: instances, classes, modules and their parts.

See `written_places.py`.
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


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


ATTRIBUTE_WRITES = lines("""
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
ATTRIBUTE_READS = lines("""
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
METHOD_WRITES = lines("""
@.put(<v>)
@.put(<v>, "<n>")
@.bump()
type(@).put(@, <v>, "<n>")
@.put = <r>
type(@).bump = lambda self: self.put(<i>)
del type(@).get
""")
METHOD_READS = lines("""
@.get("<n>")
@.get()
@.bump()
type(@).get(@, "<n>")
functools.partial(@.get, "<n>")()
list(map(@.get, ["v", "w"]))
@.get.__self__ is @2
""")
DICT_WRITES = lines("""
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
DICT_READS = lines("""
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
    lines("""
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
    lines("""
@2.__dict__ = @.__dict__
@2.v = @
@2.v = @.v = [1]
"""),
    ATTRIBUTE_WRITES + METHOD_WRITES + DICT_WRITES,
    ATTRIBUTE_READS + METHOD_READS + DICT_READS,
)
ODD = Kind(
    lines("""
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
    lines("""
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
    lines("""
type("Made", (Base,), {"w": 3})
type("Made", (Derived,), {"v": 5})
Base
Derived
"""),
    lines("""
@2.w = @
@.v = @2
"""),
    lines("""
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
    lines("""
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
_MODULE_WRITES = lines("""
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
_MODULE_READS = lines("""
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
    lines("""
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
        *lines("""
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
        *lines("""
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
    lines("""
@2.layers[0] = @.layers[1]
@.layers[0] = @.layers[1]
@2.layers = @.layers
@2.chain = @.chain
@.params[0] = @.params[1]
@.named["a"] = @.layers[0]
"""),
    lines("""
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
    lines("""
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
