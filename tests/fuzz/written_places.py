"""The places that random programs write to and read, by kind of what holds them.

A template keeps to one line; `$` separates lines of its own. `@` is the object, reached by one of its names; `@2`
another object of its kind, or the same; `<n>` the name of an attribute, `<k>` a key; `<v>` a value of any sort, `<i>` a
small number, `<x>` a tensor, `<r>` what another place holds, `<f>` a fresh name.
"""
# ruff: noqa: E501

from __future__ import annotations

from written_objects import CLASS, MODULE, ODD, PARTS, PLAIN, Kind, lines

LIST = Kind(
    ["[1, 2, 3]", "[T(1), 2]", "[[1], [2]]", "collections.deque([1, 2, 3], 4)", "Row([1, 2])", "[]"],
    ["@2.append(@)", "@[0] = @2"],
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
@[0]()
@[0](<i>)
@[2]()
@[0].__closure__[0].cell_contents = <v>
del @[1].__closure__[0].cell_contents
@[0].__defaults__ = (<i>,)
"""),
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
next(@)
next(@, None)
for <f> in itertools.islice(@, 2): y = y + num(<f>)
@.close()
@.send(<i>)
@.throw(KeyError("thrown"))
"""),
    lines("""
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
    lines("""
@2.data = @
@2.data = @[:1]
@2.data = @.t()
@2.v = @
@.v = @.view(-1)
@2.data = @.view(-1)[1:3]
"""),
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
    lines("""
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
