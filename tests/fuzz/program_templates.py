"""What random programs are made of. A template keeps to one line, however long; `$` separates lines of its own.

`<t>`, `<i>`: a tensor or int in scope; `<T>`, `<I>`: a name to bind one to; `<te>`, `<ie>`: an expression; `<v>`: a
fresh name; `<E>`: an exception class; `<h>`, `<g>`, `<m>`, `<a>`, `<y>`: a function, generator function, manager,
coroutine function or asynchronous generator function of the program; `<block>`: more
statements; `<loop>` in a loop, `<handler>` in a handler, `<deep>`, `<deephandler>` one level further in.

A letter and `|` before a template say where it may stand: y| in a generator, a| where one can await, l| in a loop,
h| in a handler, r| where a value may be returned.
"""
# ruff: noqa: E501

from __future__ import annotations

EXCEPTIONS = [
    "KeyError",
    "ValueError",
    "Odd",
    "Deep",
    "ZeroDivisionError",
    "IndexError",
    "RuntimeError",
    "StopIteration",
    "Exception",
    "(KeyError, Odd)",
    "Halt",
    "BaseException",
    "ArithmeticError",
    "(Deep, RuntimeError)",
    "TypeError",
    "AssertionError",
]

EXPRESSIONS_T = """
<t> + <t>
<t> * <i>
<t> - <i>
torch.relu(<t> - <i>)
<h>(<t>, <i>, s)
<h>(<t>, <ie>, s)
<h>(<te>, <i>, s)
apart(<t>, <i>, s)
s.t + <t>
s(<t>, <i>)
LAYER(<t>, <i>)
TABLE["t"] * <i>
torch.where(<t> > <i>, <t>, <t> + 1)
<t> if <t>.sum() > <i> else <t> * 2
next(iter([<t>]))
sum(list(<g>(<t>, <i>, s)), <t>)
[*<g>(<t>, <i>, s), <t>][-1]
next(<g>(<t>, <i>, s), <t>)
(lambda u, k=<i>: u + k)(<t>)
sum((u * <i> for u in [<t>, <t>]), <t>)
functools.reduce(lambda u, w: u + w, [<t>, <t>])
functools.partial(<h>, n=<i>, s=s)(<t>)
torch.stack([<t>, <t>]).sum(0)
<t>.detach().clone()
s.kept if isinstance(s.kept, torch.Tensor) else <t>
in_threads(lambda: <h>(<t>, <i>, State()))[0]
in_pool(lambda: <h>(<t>, <i>, State()), lambda: <t> * 2)[1]
down(<t>, <i>, s)
<t>.view(<i>, 2)
<t> @ torch.ones(<i>, 2)
max([<t>, <t>], key=lambda u: s.raising(2))
a|await <a>(<t>, <i>, s)
a|await waits(<t>, <i>, s)
a|(await asyncio.gather(<a>(<t>, <i>, s), waits(<t>, <i>, s)))[1]
a|[u async for u in <y>(<t>, <i>, s)][-1]
a|sum([u async for u in streams(<t>, <i>, s)], <t>)
a|await asyncio.wait_for(<a>(<t>, <i>, s), 9)
a|await asyncio.to_thread(<h>, <t>, <i>, State())
""".strip().splitlines()

EXPRESSIONS_I = """
<i>
<i>
(<i> + <i>) % 7
len(s.items)
s.n
s.read
<t>.shape[0]
int(<t>.sum().item()) % 7
int(<t>.sum() > <i>)
s.raising(<i>)
1 // (<i> - 2)
s.items[<i>]
TABLE["k"]
LAYER.calls
VAR.get()
getattr(LOCAL, "k", 3)
LEVEL
s.table.get("a", 2) % 7
s.table[<i>]
len(s.log) % 5
int(sys.exc_info()[0] is not None)
sum(1 for _ in s.items)
len([k for k in s.items if k > <i>])
max(<i>, 1, key=lambda q: -q)
int(torch.is_grad_enabled())
int(s.error is None)
""".strip().splitlines()

STATEMENTS = """
<T> = <te>
<T> = <te>
<T> = <te>
<T> = <te>
<I> = <ie>
<I> = <ie>
<T>, <I> = <te>, <ie>
s.log.append(<i>)
s.log.append(<t>)
s.log.append((<i>, <te>))
s.n = <i>
s.n += <i>
s.t = <te>
s.t = s.t * 0.5 + <t>
s.kept = <t>
s.items.append(<i>)
<I> = s.items.pop()
s.table[<i>] = <i>
del s.table[<i>]
LOCAL.k = <i>
VAR.set(<i>)
LAYER.calls = <i>
TABLE["k"] = <i>
global LEVEL; LEVEL = <i>
print(<i>, <t>.shape)
print(<t>.sum().item())
<T> = <t>.clone(); <T>.mul_(<i>)
<T> = <t>.clone(); <T>[<i>] = <i>
x.add_(<i>)
raise <E>(<i>)
raise Odd(<i>, s)
raise Deep(<i>) from Odd(<i>)
raise KeyError(<i>) from None
raise ExceptionGroup("g", [KeyError(<i>), Odd(<i>)])
if <i> > 3: raise Odd(<i>, <t>)
if <t>.sum() > <i>: raise KeyError(<i>)
assert <i> < 3, f"<i>: {<i>}"
s.error = Odd(<i>)
if s.error is not None: raise s.error
if s.error is not None: raise Deep(2) from s.error
s.log.append(outcome(lambda: <h>(<t>, <i>, s)))
s.log.append(outcome(lambda: s.raising(<i>)))
s.log.append(outcome(lambda: endless(<i>)))
s.log.append(traceback.format_exc().splitlines()[-1])
s.log.append(sys.exc_info()[1])
s.log.append(len(traceback.extract_stack()) > 3)
s.log.append(inspect.currentframe().f_code.co_name)
s.log.append(sorted(locals()))
s.log.append(in_threads(lambda: <h>(<t>, <i>, State()), lambda: s.raising(<i>)))
s.log.append(in_pool(lambda: <h>(<t>, <i>, State())))
s.log.append(in_child(lambda: <h>(<t>, <i>, s)))
s.gen = <g>(<t>, <i>, s)
s.gen = (u + <i> for u in [<t>, <t>, <t>])
s.gen = iter([<t>, <t>])
s.gen = <g>(<t>, <i>, s); s.log.append(next(s.gen, None))
if s.gen is not None: s.log.append(next(s.gen, None))
if s.gen is not None: <T> = next(s.gen, <t>)
if s.gen is not None: s.log.extend(s.gen)
if hasattr(s.gen, "throw"): s.log.append(outcome(lambda: s.gen.throw(KeyError(<i>))))
if hasattr(s.gen, "send"): s.log.append(outcome(lambda: s.gen.send(<i>)))
if hasattr(s.gen, "close"): s.gen.close(); s.log.append(inspect.getgeneratorstate(s.gen))
<v> = <g>(<t>, <i>, s); next(<v>); s.log.append(<v>.send(<i>)); <v>.close()
<v> = <g>(<t>, <i>, s); s.log.append(list(zip(<v>, range(2)))); s.log.append(next(<v>, "end"))
stepped(<g>(<t>, <i>, s), s, ("send", None), ("throw", KeyError(<i>)), ("send", None))
stepped(<g>(<t>, <i>, s), s, ("send", None), ("send", <i>), ("close", None), ("send", None))
<v> = Dies(s, <i>)
<v> = Dies(s, <i>); del <v>; s.log.append("after")
<v> = Dies(s, <i>); <v> = None
Dies(s, <i>); s.log.append("dropped")
s.kept = Dies(s, <i>)
<v> = Odd(<i>); s.log.append(weakref.ref(<v>)() is <v>)
<v> = State(); weakref.finalize(<v>, s.log.append, "final"); del <v>; s.log.append("after final")
gc.collect()
signal.raise_signal(signal.SIGUSR1)
warnings.warn("careful <i>")
for <v> in s.items: s.log.append(<v>)
s.table.setdefault("list", []).append(<i>)
s.items[:] = [<i>, <i>]
s.items.sort(key=lambda q: s.raising(2) - q)
h|raise
h|raise
h|raise Deep(<i>) from error
h|raise Odd(<i>)
h|raise error
h|raise error.__cause__ or Deep(1)
h|raise type(error)(<i>)
h|error.add_note("note <i>"); raise
h|error.add_note("kept")
h|s.error = error
h|s.log.append(error)
h|s.log.append(lines_of(error.__traceback__))
h|s.log.append((type(error.__context__).__name__, str(error.__cause__)))
h|s.log.append(traceback.format_exc())
h|s.log.append(sys.exc_info()[1] is error)
h|s.log.append("".join(traceback.format_exception(error)).splitlines()[-1])
h|raise error.with_traceback(None)
h|<T> = <te>
h|s.log.append((str(error), <i>))
l|break
l|continue
l|if <i> > 2: break
l|if <t>.sum() > <i>: continue
y|yield <t>
y|yield <te>
y|yield <i>
y|<v> = yield <t>; s.log.append(<v>)
y|<v> = yield <i>; s.log.append(("sent", <v>))
f|yield from <g>(<t>, <i>, s)
f|<v> = yield from <g>(<t>, <i>, s); s.log.append(<v>)
f|yield from [<t>, <i>]
f|yield from (u * 2 for u in [<t>])
f|return <t>
r|return <te>
r|return <t>, <i>
r|if <i> > 3: return <t>
r|if <t>.sum() > <i>: return <t> * 2
a|await asyncio.sleep(0)
a|<T> = await <a>(<t>, <i>, s)
a|s.log.append(await asyncio.gather(<a>(<t>, <i>, s), waits(<t>, 5, s), return_exceptions=True))
a|<v> = asyncio.create_task(<a>(<t>, <i>, s)); <T> = await <v>
a|<v> = asyncio.create_task(<a>(<t>, <i>, s)); await asyncio.sleep(0); <v>.cancel(); s.log.append((await asyncio.gather(<v>, return_exceptions=True)))
a|await astepped(<y>(<t>, <i>, s), s, ("asend", None), ("athrow", KeyError(<i>)), ("aclose", None))
a|await astepped(<y>(<t>, <i>, s), s, ("asend", None), ("asend", <i>), ("aclose", None))
a|await asyncio.wait_for(asyncio.sleep(9), 0.001)
a|<v> = <a>(<t>, <i>, s); <v>.close()
""".strip().splitlines()

BLOCKS = """
if <ie> > <i>:$<block>
if <t>.sum() > <i>:$<block>$else:$<block>
if <ie> > <i>:$<block>$else:$<block>
for <I> in range(<i> % 3):$<loop>
for <I> in range(3):$<loop>
for <v>, <T> in enumerate([<t>, <t>]):$<loop>
for <T> in <g>(<t>, <i>, s):$<loop>
for <v> in list(s.items)[:3]:$<loop>$else:$<block>
for <v> in range(2):$    try:$<deep>$    except <E> as error:$<deephandler>$    finally:$        s.log.append("finally")
for <v> in range(2):$    with Guard(s, <E>):$<deep>
while s.n < 3:$    s.n += 1$<loop>
try:$<block>$except <E> as error:$<handler>
try:$<block>$except <E> as error:$<handler>
try:$<block>$    s.raising(<i>)$except <E> as error:$<handler>
try:$<block>$except <E> as error:$<handler>$except <E> as error:$<handler>$else:$<block>
try:$<block>$finally:$<block>
try:$<block>$except <E> as error:$<handler>$finally:$<block>
try:$<block>$except <E> as error:$<handler>$else:$<block>$finally:$<block>
try:$    try:$<deep>$    finally:$<deep>$except <E> as error:$<handler>
try:$    raise Odd(<i>)$except Odd as error:$    try:$<deephandler>$    except <E> as error:$<deephandler>
try:$<block>$    raise ExceptionGroup("g", [KeyError(<i>), Odd(<i>)])$except* KeyError as error:$    s.log.append(error)$except* Odd as error:$    s.log.append(error.exceptions[0])
try:$<block>$except* KeyError as error:$    s.log.append(error)
try:$<block>$except* (KeyError, Odd) as error:$    raise
try:$    <T> = <te>$except <E> as error:$<handler>
with <m>(<i>, s) as <I>:$<block>
with <m>(<i>, s), Guard(s, <E>):$<block>
with scope(<i>, s):$<block>
with Guard(s):$<block>
with Guard(s, <E>) as <v>:$<block>
with FailsOnExit(s):$<block>
with contextlib.suppress(<E>):$<block>
with contextlib.suppress(<E>), torch.no_grad():$<block>
with contextlib.ExitStack() as <v>:$    <v>.callback(s.log.append, <i>)$    <v>.enter_context(<m>(<i>, s))$<block>
with contextlib.ExitStack() as <v>:$    <v>.push(lambda kind, error, trace: bool(s.log.append(kind and kind.__name__)) or <i> > 2)$<block>
with torch.no_grad():$<block>
with torch.autocast("cpu", torch.bfloat16):$    s.log.append(torch.is_autocast_enabled("cpu"))$<block>
with LOCK:$<block>
with warnings.catch_warnings():$    warnings.simplefilter("error")$<block>
with contextlib.redirect_stdout(io.StringIO()) as <v>:$<block>
with contextlib.closing(<g>(<t>, <i>, s)) as <v>:$<block>
def <v>(u, k=<i>):$    nonlocal count; count += k$    if k > 4: raise Odd(k)$    return u * k + <t>$<T> = <v>(<t>)
def <v>():$    try:$        s.log.append((yield <t>))$    finally:$        s.log.append("inner")$s.gen = <v>(); s.log.append(next(s.gen))
match <i>, s.items:$    case 0 | 1, [first, *_]:$        s.log.append(first)$    case q, _ if q > 2:$<deep>
class <v>(Odd):$    def __str__(self): return super().__str__() + " here"$try:$    raise <v>(<i>)$except Odd as error:$<handler>
a|async for <T> in <y>(<t>, <i>, s):$<loop>
a|async for <T> in streams(<t>, <i>, s):$<loop>$else:$<block>
a|async with Guard(s, <E>) as <v>:$<block>
a|async with ascope(<i>, s) as <I>:$<block>
a|async with asyncio.timeout(9):$<block>
a|try:$    async with asyncio.TaskGroup() as <v>:$        <v>.create_task(<a>(<t>, <i>, s))$        <v>.create_task(waits(<t>, <i>, s))$except* Odd as error:$    s.log.append(error)
a|try:$<block>$except asyncio.CancelledError as error:$<handler>
""".strip().splitlines()

# How the program is called. `f` is what is compiled; `s` its state, `call(label, thunk)` logs what a call gives.
CALLS = """
call(lambda: f(T(<k>), <k>, s))
call(lambda: f(T(<k>), <k>, s))
call(lambda: f(T(<k>), <k>, s))
s.n = <k>; call(lambda: f(T(<k>), <k>, s))
s.items = [<k>]; call(lambda: f(T(<k>), <k>, s))
s.error = None; call(lambda: f(T(<k>), <k>, s))
s.gen = None; call(lambda: f(T(<k>), <k>, s))
s = State(<k>); watch(s); call(lambda: f(T(<k>), <k>, s))
TABLE["k"] = <k>; call(lambda: f(T(<k>), <k>, s))
LAYER.weight.data.mul_(2); call(lambda: f(T(<k>), <k>, s))
for k in range(5): call(lambda: f(T(k), k, s))
call(lambda: in_threads(lambda: f(T(<k>), <k>, s)))
call(lambda: in_threads(*[lambda k=k: f(T(k), k, State(k)) for k in range(3)]))
call(lambda: in_pool(*[lambda k=k: f(T(k), k, State(k)) for k in range(4)]))
call(lambda: beside(lambda: f(T(1), 1, State()), lambda: f(T(2), 2, State())))
call(lambda: in_child(lambda: f(T(<k>), <k>, s)))
call(lambda: beside(lambda: f(T(1), 1, State()), lambda: in_child(lambda: f(T(2), 2, State()))))
with hooked(sys.settrace): call(lambda: f(T(<k>), <k>, s))
with hooked(sys.setprofile): call(lambda: f(T(<k>), <k>, s))
with recursion_limit(<k> * 40 + 60): call(lambda: f(T(<k>), <k>, s))
with on_signal(lambda *_: s.log.append("signal")): call(lambda: f(T(<k>), <k>, s))
with on_signal(lambda *_: s.raising(<k>)): call(lambda: f(T(<k>), <k>, s))
with torch.no_grad(): call(lambda: f(T(<k>), <k>, s))
with contextlib.suppress(KeyError), Guard(s, Odd): f(T(<k>), <k>, s)
call(lambda: contextvars.copy_context().run(f, T(<k>), <k>, s))
call(lambda: f(T(<k>), <k>, s), again=lambda: f(T(<k>), <k>, s))
call(lambda: f(T(<k>), "text", s))
call(lambda: f(T(<k>)))
try: raise Odd(7)$except Odd: call(lambda: f(T(<k>), <k>, s))
gc.collect()
warnings.simplefilter("error"); call(lambda: f(T(<k>), <k>, s)); warnings.simplefilter("always")
call(lambda: [f(T(k), k, s) for k in (1, 1, 2)])
""".strip().splitlines()

GENERATOR_CALLS = """
call(lambda: list(f(T(<k>), <k>, s)))
call(lambda: stepped(f(T(<k>), <k>, s), s, ("send", None), ("send", <k>), ("send", <k>)))
call(lambda: stepped(f(T(<k>), <k>, s), s, ("send", None), ("throw", KeyError(<k>)), ("send", None)))
call(lambda: stepped(f(T(<k>), <k>, s), s, ("send", None), ("throw", Odd(<k>)), ("close", None)))
call(lambda: stepped(f(T(<k>), <k>, s), s, ("send", None), ("close", None), ("send", None)))
call(lambda: stepped(f(T(<k>), <k>, s), s, ("throw", KeyError(<k>))))
s.gen = f(T(<k>), <k>, s); call(lambda: next(s.gen))
if s.gen is not None: call(lambda: list(s.gen))
call(lambda: in_threads(*[lambda k=k: list(f(T(k), k, State(k))) for k in range(3)]))
call(lambda: in_child(lambda: list(f(T(<k>), <k>, s))))
g = f(T(<k>), <k>, s); call(lambda: next(g, None)); s.n = <k>; call(lambda: next(g, None)); del g
call(lambda: [*zip(f(T(<k>), <k>, s), f(T(<k>), <k>, s))])
""".strip().splitlines()

COROUTINE_CALLS = """
call(lambda: asyncio.run(f(T(<k>), <k>, s)))
call(lambda: asyncio.run(f(T(<k>), <k>, s)))
call(lambda: asyncio.run(gathered([f(T(k), k, s) for k in range(2)])))
call(lambda: asyncio.run(cancelled(f(T(<k>), <k>, s))))
call(lambda: in_threads(*[lambda k=k: asyncio.run(f(T(k), k, State(k))) for k in range(2)]))
call(lambda: in_child(lambda: asyncio.run(f(T(<k>), <k>, s))))
call(lambda: f(T(<k>), <k>, s).close())
call(lambda: f(T(<k>), <k>, s).send(None))
call(lambda: f(T(<k>), <k>, s).throw(KeyError(<k>)))
s.n = <k>; call(lambda: asyncio.run(f(T(<k>), <k>, s)))
""".strip().splitlines()

ASYNC_GENERATOR_CALLS = """
call(lambda: asyncio.run(listed(f(T(<k>), <k>, s))))
call(lambda: asyncio.run(listed(f(T(<k>), <k>, s))))
call(lambda: asyncio.run(astepped(f(T(<k>), <k>, s), s, ("asend", None), ("athrow", KeyError(<k>)), ("aclose", None))))
call(lambda: asyncio.run(astepped(f(T(<k>), <k>, s), s, ("asend", None), ("asend", <k>), ("aclose", None))))
s.n = <k>; call(lambda: asyncio.run(listed(f(T(<k>), <k>, s))))
""".strip().splitlines()

# How `f` comes from the function that is to be compiled.
WRAPPINGS = """
f = c(root)
f = c(root)
f = c(root)
f = c(root, options={"recompile_limit": 2})
f = c(functools.partial(root))
f = c(lambda x, n=1, s=s: root(x, n, s))
f = c(types.MethodType(lambda self, x, n=1, s=s: root(x, n, s), s))
f = functools.wraps(root)(lambda *args: c(root)(*args))
class Host:$    forward = c(root)$    def __init__(self): self.k = 1$f = lambda x, n=1, s=s: Host.forward(x, n, s)
class Host:$    def __init__(self): self.k = 1$    @c$    def run(self, x, n=1, s=s): self.k += 1; return root(x, n, s)$host = Host(); f = host.run
class Net(torch.nn.Module):$    def forward(self, x, n=1, s=s): return root(LAYER(x, 1), n, s)$f = c(Net())
f = c(root, dynamic=True)
f = c(root, dynamic=False)
h1_plain, helper_plain = helper, c(helper); globals()["helper"] = helper_plain; f = c(root)
""".strip().splitlines()
