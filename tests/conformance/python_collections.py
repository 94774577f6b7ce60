"""Containers: built-in ones and those of `collections`, made inside, passed in and written to."""

from __future__ import annotations

import collections
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

import torch
from harness import program

X = torch.arange(3.0)


@program(lambda: (X,))
def list_methods(x):
    items = [3, 1, 2]
    items.append(5)
    items.extend(range(2))
    items.insert(1, 9)
    items.remove(3)
    last = items.pop()
    items.sort(reverse=True)
    items.reverse()
    return x * sum(items), items, last, items.index(5), items.count(1), items[::2], items + [7], items * 2


@program(lambda: (X,))
def list_slices(x):
    items = [x, x + 1, x + 2, x + 3]
    items[1:3] = [x * 2]
    del items[0]
    items[:0] = [1, 2]
    items += (3,)
    copy = items[:]
    copy.clear()
    return items, copy, items[-1], items[::-1]


@program(lambda: (X,))
def list_errors(x):
    found, key = [], "a"
    for call in (
        lambda: [][0],
        lambda: [1].index(2),
        lambda: [].pop(),
        lambda: [1].remove(3),
        lambda: [1][key],
    ):
        try:
            call()
        except (IndexError, ValueError, TypeError) as error:
            found.append((type(error).__name__, str(error)))
    return x, found


@program(lambda: (X,))
def dict_methods(x):
    table = {"a": x, "b": 2}
    table.update(c=3, d=4)
    table.setdefault("e", []).append(x)
    popped = table.pop("b")
    missing = table.pop("zz", None)
    merged = table | {"f": 1}
    table |= {"g": 2}
    last = table.popitem()
    return (
        table,
        popped,
        missing,
        list(merged),
        last,
        table.get("nope", 5),
        "a" in table,
        dict.fromkeys("xy", 0),
    )


@program(lambda: (X,))
def dict_errors(x):
    found = []
    for call in (lambda: {}["k"], lambda: {}.pop("k"), lambda: {[]: 1}, lambda: {}.popitem()):
        try:
            call()
        except (KeyError, TypeError) as error:
            found.append((type(error).__name__, str(error)))
    return x, found


@program(lambda: (X,))
def dict_views(x):
    table = {"a": 1, "b": 2}
    keys, values, items = table.keys(), table.values(), table.items()
    table["c"] = 3
    return x * sum(values), list(keys), list(items), keys & {"a", "z"}, len(items), ("a", 1) in items


@program(lambda: (X,))
def dict_changed_while_iterating(x):
    table = {"a": 1}
    try:
        for key in table:
            table[key + "x"] = 2
    except RuntimeError as error:
        return x, str(error)
    return None


@program(lambda: (X,))
def set_methods(x):
    s = {1, 2, 3}
    s.add(4)
    s.discard(9)
    s |= {7}
    t = frozenset(s - {1})
    return x * len(s), sorted(s & t), s ^ {1, 99}, t.issubset(s), 3 in s, sorted(s.union([5]))


@program(lambda: (X,))
def tuples(x):
    t = (1, "a", x)
    a, c, b = t
    return t + (2,), t * 2, t.index("a"), t[1:], b + a, len(t), (1, 2) < (1, 3), t.count("a")


@program(lambda: (X,))
def tensors_in_containers(x):
    y = x + 1
    items = [x, y]
    table = {"x": x, "y": items}
    return table["y"][1] + table["x"], x in (x,), [t is y for t in items], items[0] is x


@program(lambda: (X,))
def tensors_as_keys(x):
    y = x + 1
    table = {x: 1, y: 2}
    return table[y] * x, y in table, len(table)


@program(lambda: (X, {"k": X}), again=lambda: (X, {"k": X, "other": 1}))
def dict_argument_written(x, table):
    table["new"] = table["k"] * 2
    table["count"] = table.get("count", 0) + 1
    table.pop("k")
    return x + table["new"]


@program(lambda: (X, [X, [1, 2]]))
def nested_argument_written(x, items):
    items[1].append(3)
    items[0] = x * 2
    items.append(items[1])
    del items[1][0]
    return items[-1] is items[1]


@program(lambda: (X, {1, 2}), again=lambda: (X, {5}))
def set_argument_written(x, s):
    s.add(len(s) + 10)
    s.discard(1)
    return x * len(s)


@program(lambda: (X, [3, 1, 2]))
def list_argument_sorted(x, items):
    items.sort(key=lambda v: -v)
    items.reverse()
    return x * items[0]


@program(lambda: (X, [1], [2]))
def two_lists(x, a, b):
    a.extend(b)
    b[:] = a
    return x + len(a), a is b, a == b


def same_list():
    items = [1]
    return X, items, items


@program(same_list, again=lambda: (X, [1], [1]))
def one_list_twice(x, a, b):
    a.append(2)
    return x * len(b), a is b


@program(lambda: (X, deque([1, 2], maxlen=3)))
def deque_argument(x, d):
    d.append(3)
    d.append(4)
    d.appendleft(0)
    return x * d[0], len(d), d.maxlen


@program(lambda: (X,))
def deque_made_inside(x):
    d = deque([x, x + 1], maxlen=2)
    d.append(x + 2)
    d.rotate(1)
    left = d.popleft()
    d.extend([1])
    return d, left, list(reversed(d)), len(d)


@program(lambda: (X, defaultdict(list, a=[1])))
def defaultdict_argument(x, table):
    table["a"].append(2)
    table["b"].append(x * 2)
    return x + len(table), table["b"][0]


@program(lambda: (X,))
def defaultdict_made_inside(x):
    counts, groups = defaultdict(int), defaultdict(lambda: [x])
    for word in "abca":
        counts[word] += 1
        groups[word].append(counts[word])
    return counts, len(groups["zz"]), dict(counts), groups["a"]


@program(lambda: (X, Counter("abca")))
def counter_argument(x, c):
    c["a"] += 1
    c.update("bb")
    return x * c["a"], c["missing"], c.most_common(1)


@program(lambda: (X,))
def counter_made_inside(x):
    c = Counter([1, 1, 2])
    d = c + Counter({2: 3})
    c.subtract([1])
    return x * sum(d.values()), c, d, sorted(d.elements()), d.total()


@program(lambda: (X, OrderedDict(a=1, b=X)))
def ordered_dict_argument(x, table):
    table["c"] = x + 1
    table.move_to_end("a")
    return table["b"] + table["c"], list(table)


@program(lambda: (X,))
def ordered_dict_made_inside(x):
    table = OrderedDict([("a", x), ("b", 2)])
    table.move_to_end("a")
    first = table.popitem(last=False)
    table["z"] = x * 2
    return table, first, list(reversed(table)), len(table)


@program(lambda: (X,))
def chain_map(x):
    c = ChainMap({"a": x}, {"a": 1, "b": 2})
    c["c"] = 3
    return c["a"] + c["b"], sorted(c), c.maps[0], c.get("zz", 4)


class Cache(dict):
    def __missing__(self, key):
        self[key] = made = [key] * 2
        return made


class Log(list):
    def add(self, item):
        self.append(item)
        return self


class Users(collections.UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)


@program(lambda: (X,))
def dict_subclass_made_inside(x):
    c = Cache(a=1)
    return c["b"], c, len(c), x + 1, isinstance(c, dict)


@program(lambda: (X,))
def list_subclass_made_inside(x):
    log = Log([1]).add(x).add(2)
    log.extra = 5
    return log, log[1] + log.extra, log + [1], len(log)


@program(lambda: (X, Cache(a=1)))
def dict_subclass_read(x, c):
    return x * c["a"], list(c.items()), c.get("z"), len(c), "a" in c


@program(lambda: (X, Log([1, 2])))
def list_subclass_read(x, log):
    return x * log[0], sum(log), [v + 1 for v in log], log[1:], len(log)


@program(lambda: (X,))
def user_dict_made_inside(x):
    u = Users()
    u["KEY"] = x
    u.update({"Other": 2})
    return u["key"] * u["other"], sorted(u.data), "key" in u


@program(lambda: (X, (1, [2, {"k": X}])), again=lambda: (X, (2, [2, {"k": X + 1}])))
def deep_structure(x, s):
    n, (m, inner) = s
    inner["k2"] = inner["k"] * n
    return inner["k2"] + m


@program(lambda: (X, {}), again=lambda: (X, {"cached": X * 5}))
def memo_dict(x, memo):
    if "cached" not in memo:
        memo["cached"] = x * 10
    return memo["cached"] + 1


@program(lambda: (X, {"layers": {}}))
def kv_cache(x, cache):
    for i in range(2):
        old = cache["layers"].get(i)
        cache["layers"][i] = x if old is None else torch.cat([old, x])
    return torch.cat(list(cache["layers"].values()))


@program(lambda: (X, [X, X + 1]))
def cache_grows(x, cache):
    cache[0] = torch.cat([cache[0], x])
    cache[1] = torch.cat([cache[1], x])
    return cache[0].sum() + cache[1].mean()


@program(lambda: (X, [None, None]), again=lambda: (X, [X, None]))
def optional_slots(x, slots):
    for i, slot in enumerate(slots):
        slots[i] = x * (i + 1) if slot is None else slot + x
    return slots


@program(lambda: (X, []), again=lambda: (X, [1, 2, 3]))
def truth_of_containers(x, items):
    return x + 1 if items else x - 1, not items, bool({}), bool((0,))


@program(lambda: (X, [1, 2]), again=lambda: (X, [2, 1]))
def comparing_containers(x, items):
    return (
        x * (items == [1, 2]),
        items != [1, 2],
        items < [2],
        {"a": items} == {"a": [1, 2]},
        (1, items) == (1, [1, 2]),
    )


@program(lambda: (X,))
def starred_displays(x):
    a, b = [x, 1], {"k": 2}
    return [*a, *a], (*a, 3), {**b, "j": x}, {*"ab", "c"} == {"a", "b", "c"}


@program(lambda: (X, [4, 5, 6]), again=lambda: (X, [7, 8, 9]))
def list_search(x, items):
    return (
        x * items.index(items[1]),
        5 in items,
        items.count(5),
        max(items),
        sum(items),
        any(v == 8 for v in items),
    )


@program(lambda: (X, {"b": 1, "a": 2}))
def dict_reordered(x, table):
    value = table.pop("b")
    table["b"] = value
    return x * value


@program(lambda: (X, [[X], []]))
def list_emptied(x, items):
    items[0].clear()
    items[1].extend([x, x * 2])
    items.insert(0, None)
    return len(items)


@program(lambda: ([X, X + 1],), again=lambda: ([X],))
def list_of_tensors(items):
    return torch.stack(items).sum(0), items[-1], len(items)
