"""Programs for the opcodes that all versions of CPython have."""

from __future__ import annotations

from opcode_case import Cases, case

# --- moving values ----------------------------------------------------------------------------------------------------

MOVES: Cases = {
    "CACHE": (case("def f(a): return a + 1", (1,), (2.5,)),),
    "EXTENDED_ARG": (
        case("def f(a):\n" + "".join(f"    a += {i}.5\n" for i in range(300)) + "    return a", (1,)),
        case(
            "def f(a, n):\n    while n:\n" + "        a += n * 2 - 1\n" * 80 + "        n -= 1\n    return a",
            (1, 3),
            (1, 0),
        ),
    ),
    "RESUME": (case("def f(): return 1", ()),),
    "NOP": (
        case("def f(a):\n    while True:\n        a += 1\n        if a > 5:\n            return a", (1,)),
    ),
    "POP_TOP": (case("def f(a):\n    len(a)\n    return a", ([1],)),),
    "PUSH_NULL": (
        case("def f(g, a): return g(a) if a else (lambda v: v + 1)(a)", (len, "abc"), (len, "")),
        case("def f(a):\n    def g(v): return v * 2\n    return g(g(a))", (3,)),
    ),
    "SWAP": (case("def f(a):\n    a[1] += 5\n    a[0], a[1] = a[1], a[0]\n    return a", ([1, 2],)),),
    "COPY": (
        case("def f(a, b, c): return a < b < c", (1, 2, 3), (1, 2, 2), (3, 2, 1)),
        case("def f(a):\n    b = c = a + 1\n    return b, c", (1,)),
        case("def f(a):\n    if (n := len(a)) > 1: return n\n    return -n", ("ab",), ("a",)),
    ),
    "LOAD_CONST": (case("def f(): return [None, 1.5, 'x', (1, 2), ..., b'y', 2j]", ()),),
    "LOAD_FAST": (case("def f(a, /, b, *c, d=4, **e): return [a, b, c, d, e]", (1, 2, 3), (1, 2)),),
    "STORE_FAST": (case("def f(a):\n    b = a\n    a = 7\n    return [b, a]", (1,)),),
    "DELETE_FAST": (
        case("def f(a):\n    b = a + 1\n    del a\n    return b", (1,)),
        case("def f(a):\n    if a:\n        del a\n    del a", (0,), (1,)),
    ),
    "LOAD_GLOBAL": (
        case("LIMIT = 3\ndef f(a): return min(a, LIMIT)", (2,), (9,)),
        case("def f(): return missing", ()),
    ),
    "STORE_GLOBAL": (
        case("COUNT = 0\ndef f(a):\n    global COUNT\n    COUNT += a\n    return COUNT", (1,), (5,)),
        case("def f(a):\n    global new\n    new = a\n    return new", (1,)),
    ),
    "LOAD_ASSERTION_ERROR": (case("def f(a):\n    assert a > 1, f'{a} is small'\n    return a", (2,), (0,)),),
    "MAKE_CELL": (case("def f(a):\n    b = 1\n    def g(): return a + b\n    b = 5\n    return g()", (1,)),),
    "LOAD_CLOSURE": (case("def f(a):\n    return [(lambda: a * i)() for i in range(3)]", (2,)),),
    "COPY_FREE_VARS": (case("def f(a):\n    return (lambda b: a + b)(3)", (2,)),),
    "LOAD_DEREF": (
        case("def make():\n    k = [4]\n    def f(a): return a * k[0]\n    return f\nf = make()", (2,)),
        case("def f(a):\n    def g(): return b\n    if a:\n        b = a\n    return g()", (2,), (0,)),
    ),
    "STORE_DEREF": (
        case(
            """
            def make():
                total = 0
                def f(a):
                    nonlocal total
                    total += a
                    return total
                return f
            f = make()
            """,
            (2,),
            (3,),
        ),
        case(
            "def f(a):\n    def g():\n        nonlocal a\n        a += 1\n    g()\n    g()\n    return a",
            (2,),
        ),
    ),
    "DELETE_DEREF": (
        case("def f(a):\n    def g(): return a\n    b = g()\n    del a\n    return b", (2,)),
        case("def f(a):\n    def g(): return a\n    del a\n    return g()", (2,)),
        case("def f(a):\n    def g(): return a\n    if a:\n        del a\n    del a", (0,), (1,)),
    ),
    "MAKE_FUNCTION": (
        case("def f(a):\n    def g(b): return b * 2\n    return g(a), g.__name__, g.__qualname__", (2,)),
        case(
            "def f(a):\n    def g(b=a, *, c=3): return b, c\n    return g(), g(1, c=2), g.__defaults__", (2,)
        ),
        case("def f(a):\n    def g(b: int) -> str: return b\n    return g(a), g.__annotations__", (2,)),
        case(
            "def f(a):\n    def g(b: 'x', c=a, *, d=a + 1) -> None: return a, b, c, d\n    return g(1)",
            (2,),
        ),
    ),
}

# --- operators --------------------------------------------------------------------------------------------------------

OPERATORS: Cases = {
    "UNARY_NEGATIVE": (case("def f(a): return -a", (2,), (-2.5,), ("x",)),),
    "UNARY_INVERT": (case("def f(a): return ~a", (2,), (1.5,)),),
    "UNARY_NOT": (
        case("def f(a):\n    b = not a\n    return b", (0,), ([1],), ("",)),
        case("class T:\n    def __bool__(self): return False\ndef f():\n    b = not T()\n    return b", ()),
    ),
    "BINARY_OP": (
        case(
            """
            def f(a, b):
                return [a + b, a - b, a * b, a / b, a // b, a % b, a ** b, a << b, a >> b, a & b, a | b, a ^ b]
            """,
            (7, 2),
            (7, 0),
            (7, "x"),
        ),
        case(
            """
            def f(a, b):
                a += b; a -= 1; a *= b; a //= 2; a **= 2; a %= 1000; a <<= 3; a >>= 1; a &= 255; a |= 3; a ^= b; a /= 2
                return a
            """,
            (7, 2),
        ),
        case("def f(a):\n    b = a\n    b += [3]\n    return a, b", ([1],), ((1,),)),
        case(
            """
            class M:
                def __matmul__(self, other): return 'matmul', other
                def __rsub__(self, other): return 'rsub', other
                def __iadd__(self, other): return 'iadd', other
            def f(a):
                m = M()
                n = m @ a, a - m
                m += a
                return m, n
            """,
            (1,),
        ),
    ),
    "COMPARE_OP": (
        case("def f(a, b): return [a < b, a <= b, a == b, a != b, a > b, a >= b]", (1, 2), (2, 2), (1, "x")),
        case("def f(a, b):\n    if a < b: return 1\n    return 2 if a == b else 3", (1, 2), (2, 2), (3, 2)),
        case(
            """
            class V:
                def __lt__(self, other): return []
                def __eq__(self, other): return 'yes'
            def f(a):
                if V() < a: return 1
                if V() == a: return 2, V() == a, V() != a
            """,
            (1,),
        ),
    ),
    "IS_OP": (
        case(
            "def f(a, b): return [a is b, a is not b, a is None, b is not None]", (1, 1), (None, 2), ([], [])
        ),
    ),
    "CONTAINS_OP": (
        case("def f(a, b): return [a in b, a not in b]", (1, [1]), (1, {}), ("a", "abc"), (1, 2)),
    ),
    "BINARY_SUBSCR": (
        case("def f(a, b): return a[b]", ([1, 2], 1), ({"k": 3}, "k"), ({"k": 3}, "j"), ([1], 4), (1, 1)),
    ),
    "STORE_SUBSCR": (case("def f(a, b):\n    a[b] = 5\n    return a", ([1, 2], 1), ({}, "k"), ([], 1)),),
    "DELETE_SUBSCR": (
        case("def f(a, b):\n    del a[b]\n    return a", ([1, 2], 1), ({"k": 1}, "k"), ({}, 1)),
    ),
    "LOAD_ATTR": (
        case(
            """
            class P:
                k = 1
                @property
                def double(self): return self.v * 2
                def __getattr__(self, name): return name + '?'
            def f(a):
                p = P()
                p.v = a
                return p.v, p.k, p.double, p.other
            """,
            (3,),
        ),
        case("def f(a): return a.nothing", (3,)),
        case("def f(a):\n    up = a.upper\n    return up().lower()", ("Ab",)),
    ),
    "STORE_ATTR": (
        case(
            """
            class P: pass
            KEPT = P()
            def f(a):
                KEPT.x = a
                p = P()
                p.y = KEPT.x
                return p.y
            """,
            (3,),
        ),
    ),
    "DELETE_ATTR": (
        case(
            "class P: pass\ndef f(a):\n    p = P()\n    p.x = a\n    del p.x\n    return hasattr(p, 'x')",
            (3,),
        ),
    ),
    "BUILD_TUPLE": (case("def f(a, b):\n    c = (a, b)\n    return c + ()", (1, 2)),),
    "BUILD_LIST": (case("def f(a, b):\n    c = [a, b]\n    return [c, []]", (1, [2])),),
    "BUILD_SET": (case("def f(a, b): return {a, b}", (1, 2), (1, 1), (1, [])),),
    "BUILD_MAP": (case("def f(a, b): return {a: b, b: a}", (1, 2), (1, 1), ([], 1)),),
    "BUILD_CONST_KEY_MAP": (case("def f(a, b): return {'x': a, 'y': b}", (1, 2)),),
    "BUILD_STRING": (case("def f(a, b): return f'{a} and {b}'", (1, "x")),),
    "BUILD_SLICE": (case("def f(a, n): return a[::n], a[1:5:n]", ("abcdefg", 2), ([1, 2, 3], 1)),),
    "LIST_APPEND": (case("def f(a): return [i * 2 for i in a if i]", ([1, 0, 2],), ([],)),),
    "SET_ADD": (case("def f(a): return {i % 2 for i in a}", ([1, 0, 2],)),),
    "MAP_ADD": (case("def f(a): return {i: i + 1 for i in a}", ([1, 0, 2],)),),
    "LIST_EXTEND": (case("def f(a): return [0, *a, 9]", ([1, 2],), ((3,),), ("ab",), (5,)),),
    "SET_UPDATE": (case("def f(a): return {0, *a}", ([1, 2],), ({3},), (5,)),),
    "DICT_UPDATE": (case("def f(a): return {'k': 1, **a, 'l': 2}", ({"k": 5},), ({},), ([1],)),),
    "DICT_MERGE": (
        case("def g(**k): return k\ndef f(a, b): return g(**a, **b)", ({"x": 1}, {"y": 2}), ({}, {})),
        case("def g(**k): return k\ndef f(a, b): return g(**a, **b)", ({"x": 1}, {"x": 2})),
    ),
    "UNPACK_SEQUENCE": (
        case("def f(a):\n    b, c = a\n    return c, b", ([1, 2],), ("xy",), ([1],), ([1, 2, 3],), (5,)),
    ),
    "UNPACK_EX": (
        case("def f(a):\n    b, *c, d = a\n    return b, c, d", ([1, 2],), ("wxyz",), ([1],), (5,)),
        case("def f(a):\n    *b, c = a\n    return b, c", ([1, 2, 3],), ([],)),
    ),
}

# --- control ----------------------------------------------------------------------------------------------------------

CONTROL: Cases = {
    "RETURN_VALUE": (case("def f(a): return a", (1,)),),
    "JUMP_FORWARD": (
        case(
            """
            def f(a):
                if a:
                    b = 1
                else:
                    b = 2
                b += b * b + a
                b += b * b + a
                b += b * b + a
                return b
            """,
            (1,),
            (0,),
        ),
    ),
    "JUMP_BACKWARD": (
        case("def f(a):\n    b = 0\n    for i in range(a):\n        b += i\n    return b", (0,), (5,)),
        case(
            "def f(a):\n    while a > 0:\n        a -= 2\n        if a == 3: continue\n    return a",
            (0,),
            (5,),
        ),
    ),
    "GET_ITER": (case("def f(a):\n    for i in a: return i", ([1],), ("",), (5,)),),
    "FOR_ITER": (
        case(
            """
            def f(a):
                b = []
                for i in a:
                    b.append(i)
                else:
                    b.append(0)
                return b
            """,
            ([1, 2],),
        ),
        case(
            """
            class It:
                def __init__(self, n): self.n = n
                def __iter__(self): return self
                def __next__(self):
                    if not self.n: raise StopIteration
                    self.n -= 1
                    return self.n
            def f(a): return [[x, y] for x in It(a) for y in It(x)]
            """,
            (3,),
        ),
    ),
    "CALL": (
        case("def g(a, b=2, *c): return a, b, c\ndef f(a): return g(a), g(a, 1), g(a, 1, 2, 3)", (1,)),
        case("class C:\n    def m(self, a): return a + 1\ndef f(a): return C().m(a)", (1,)),
        case("def f(a): return a()", (1,)),
        case("def f(a):\n    a.extend((1, print(2)))\n    return a", ([],), breaks=("LW104",)),
        case("KEPT = []\nkeep = KEPT.append\ndef f(a):\n    keep(a)\n    return len(KEPT)", (1,)),
        case("def g(a): return a\ndef f(a): return g(a, a)", (1,)),
    ),
    "CALL_FUNCTION_EX": (
        case(
            "def g(*a, **k): return a, k\ndef f(a, b): return g(*a, **b), g(*a), g(1, *a, x=2, **b)",
            ([1, 2], {"k": 3}),
        ),
        case(
            "class C:\n    def m(self, *a): return a\ndef f(a): return C().m(*a), (lambda *b: b)(*a)",
            ([1, 2],),
        ),
        case("def g(*a, **k): return a, k\ndef f(a): return g(*a)", (5,)),
    ),
    "RETURN_GENERATOR": (case("def g(a):\n    yield a\n    return 2\ndef f(a): return list(g(a))", (1,)),),
    "YIELD_VALUE": (
        case(
            """
            def g(a):
                got = yield a
                while got:
                    got = yield got * 2
            def f(a):
                it = g(a)
                return [next(it), it.send(3), it.send(4), next(it, 'end')]
            """,
            (1,),
        ),
        case("def f(a): return sum(i * i for i in range(a))", (4,)),
        case("def g(a):\n    while True: yield next(a)\ndef f(a): return list(g(iter(a)))", ([1],)),
    ),
    "GET_YIELD_FROM_ITER": (
        case("def g(a):\n    yield from a\ndef f(a): return list(g(a))", ([1, 2],), ("xy",), (5,)),
    ),
    "SEND": (
        case(
            """
            def inner(a):
                got = yield a
                return got + 1
            def outer(a):
                while True:
                    a = yield from inner(a)
            def f(a):
                it = outer(a)
                return [next(it), it.send(5), it.send(7)]
            """,
            (1,),
        ),
    ),
    "JUMP_BACKWARD_NO_INTERRUPT": (
        case("def g(a):\n    x = yield from a\n    return x\ndef f(a): return list(g(a))", ([1, 2, 3],)),
    ),
    "RAISE_VARARGS": (
        case("def f(a): raise ValueError(a)", (1,)),
        case("def f(a): raise KeyError", (1,)),
        case("def f(a): raise ValueError(a) from KeyError('k')", (1,)),
        case("def f(a): raise 5", (1,)),
        case("def f(a): raise", (1,)),
        case(
            """
            def f(a):
                try:
                    try:
                        raise ValueError(a)
                    except ValueError:
                        raise
                except Exception as error:
                    return str(error), type(error).__name__
            """,
            (1,),
        ),
        case(
            """
            def f(a):
                try:
                    raise ValueError(a) from KeyError('k')
                except ValueError as error:
                    return str(error.__cause__), error.__suppress_context__
            """,
            (1,),
        ),
    ),
    "PUSH_EXC_INFO": (
        case(
            """
            def f(a):
                try:
                    return 1 // a
                except ZeroDivisionError as e:
                    return str(e)
            """,
            (1,),
            (0,),
        ),
    ),
    "POP_EXCEPT": (
        case(
            """
            def f(a):
                out = []
                for i in a:
                    try:
                        out.append(10 // i)
                    except (ZeroDivisionError, TypeError):
                        out.append('bad')
                        continue
                    finally:
                        out.append(i)
                return out
            """,
            ([1, 0, "x"],),
        ),
    ),
    "CHECK_EXC_MATCH": (
        case(
            """
            def f(a):
                try:
                    return a[1]
                except (KeyError, IndexError):
                    return 'lookup'
                except TypeError as error:
                    return 'type', str(error)
            """,
            ([1],),
            ({},),
            (5,),
            ([1, 2],),
        ),
        case("def f(a):\n    try:\n        1 // a\n    except a:\n        return 1", (0,)),
        case("def f(a):\n    try:\n        1 // a\n    except (ValueError, 'no'):\n        return 1", (0,)),
    ),
    "RERAISE": (
        case("def f(a):\n    try:\n        1 // 0\n    finally:\n        a.append(1)", ([],)),
        case("def f(a):\n    try:\n        1 // 0\n    except KeyError:\n        a.append(1)", ([],)),
        case(
            """
            def f(a):
                try:
                    try:
                        a[5] = 1
                    finally:
                        a.append(1)
                except IndexError as error:
                    a.append(str(error))
                return a
            """,
            ([],),
        ),
    ),
    "BEFORE_WITH": (
        case(
            """
            class M:
                def __init__(self, log): self.log = log
                def __enter__(self): self.log.append('in'); return 5
                def __exit__(self, *error): self.log.append('out')
            def f(a):
                with M(a) as x, M(a):
                    a.append(x)
                return a
            """,
            ([],),
        ),
        case("def f(a):\n    with a:\n        return 1", (5,)),
    ),
    "WITH_EXCEPT_START": (
        case(
            """
            class M:
                def __init__(self, log): self.log = log
                def __enter__(self): return self
                def __exit__(self, kind, error, trace):
                    self.log.append((kind.__name__, str(error), trace is None))
                    return kind is KeyError
            def f(a):
                with M(a):
                    raise KeyError('k')
                with M(a):
                    1 // 0
            """,
            ([],),
        ),
    ),
    "IMPORT_NAME": (case("def f(a):\n    import math\n    return math.sqrt(a)", (4,)),),
    "IMPORT_FROM": (
        case("def f(a):\n    from os.path import basename as b, dirname\n    return b, dirname", (4,)),
        case("def f(a):\n    from math import nothing", (4,)),
    ),
    "LOAD_BUILD_CLASS": (
        case("def f(a):\n    class C:\n        v = 3\n    return C.v + a", (4,), breaks=("LW110",)),
    ),
    "GET_LEN": (
        case(
            """
            def f(a):
                match a:
                    case [x, y]: return x, y
                    case [x, *rest]: return rest
                return 0
            """,
            ([1, 2],),
            ((1, 2, 3),),
            ("ab",),
            (5,),
        ),
    ),
    "MATCH_SEQUENCE": (
        case(
            "def f(a):\n    match a:\n        case []: return 'empty'\n        case _: return a",
            ([],),
            ("",),
            ((),),
            (1,),
        ),
    ),
    "MATCH_MAPPING": (
        case(
            "def f(a):\n    match a:\n        case {}: return 'map'\n        case _: return a",
            ({},),
            ([],),
            ({"k": 1},),
        ),
    ),
    "MATCH_KEYS": (
        case(
            """
            def f(a):
                match a:
                    case {'k': v, 'l': [w]}: return v, w
                    case {'k': v, **rest}: return v, rest
                return 0
            """,
            ({"k": 1, "l": [2]},),
            ({"k": 1, "m": 3},),
            ({},),
        ),
    ),
    "MATCH_CLASS": (
        case(
            """
            class P:
                __match_args__ = ('x', 'y')
                def __init__(self, x, y): self.x, self.y = x, y
            def f(a):
                match a if a else P(1, 2):
                    case int(n): return 'int', n
                    case P(1, y=y): return 'P', y
                    case str() | bytes(): return 'text'
                    case float(real=r): return r
                return 0
            """,
            (5,),
            (0,),
            ("x",),
            (2.5,),
            ([1],),
        ),
        case("def f(a):\n    match a:\n        case int(x, y): return x", (1,)),
        case("class P: pass\ndef f(a):\n    match P():\n        case P(x): return x", (1,)),
        case(
            "class P: __match_args__ = ('x',)\ndef f(a):\n    match P():\n        case P(x, x=y): return x",
            (1,),
        ),
    ),
}

# --- refused ----------------------------------------------------------------------------------------------------------

_ASYNC = """
class Now:
    def __await__(self):
        yield 1
        return 5
class M:
    async def __aenter__(self): return await Now()
    async def __aexit__(self, *error): return False
class It:
    def __init__(self, n): self.n = n
    def __aiter__(self): return self
    async def __anext__(self):
        if not self.n: raise StopAsyncIteration
        self.n -= 1
        return self.n
async def numbers(n):
    for i in range(n):
        yield i
async def main(n):
    async with M() as m:
        total = [i async for i in It(n)] + [i async for i in numbers(n)]
    async for i in It(n):
        total.append(i)
    return total, m
def f(n):
    run = main(n)
    try:
        while True:
            run.send(None)
    except StopIteration as stop:
        return stop.value
"""
_CLASS = """
def f(a):
    class C:
        x: int = 3
        y = a
        z = x
        del x
    return C.y, C.z, hasattr(C, 'x'), C.__annotations__
"""
_EXCEPTION_GROUP = """
def f(a):
    try:
        raise ExceptionGroup('g', [ValueError(a), KeyError(a)])
    except* ValueError as group:
        a.append([str(e) for e in group.exceptions])
    except* KeyError:
        a.append('key')
    return a
"""
ASYNC = (case(_ASYNC, (2,), breaks=None),)
CLASS_BODY = (case(_CLASS, (2,), breaks=None),)
GROUPS = (case(_EXCEPTION_GROUP, ([],), breaks=None),)

REFUSED: Cases = {
    **dict.fromkeys(("GET_AITER", "GET_ANEXT", "GET_AWAITABLE", "END_ASYNC_FOR", "BEFORE_ASYNC_WITH"), ASYNC),
    **dict.fromkeys(("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "SETUP_ANNOTATIONS"), CLASS_BODY),
    "CHECK_EG_MATCH": GROUPS,
    "DELETE_GLOBAL": (
        case("def f(a):\n    global X\n    X = a\n    del X\n    return 'X' in globals()", (1,), breaks=None),
    ),
}

COMMON: Cases = {**MOVES, **OPERATORS, **CONTROL, **REFUSED}
