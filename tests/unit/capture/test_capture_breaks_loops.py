"""Graph breaks in loops: each iteration goes on in the same resume functions."""

from __future__ import annotations

import pytest
import torch
from break_check import check_breaks

X = torch.arange(6.0).reshape(2, 3)


def for_range(x):
    for i in range(4):
        x = x + i
        print(i)
        x = x * 2
    return x


def for_range_first(x):
    for i in range(3):
        print(i)
        x = x + i
    return x * 2


def for_range_last(x):
    total = x * 0
    for i in range(3):
        total = total + x * i
        print(total.shape)
    return total


def for_list(x, items):
    for item in items:
        x = x + item
        print(x.shape)
    return x


def for_list_that_grows(x, items):
    for item in items:
        x = x + item
        print(item)
        if len(items) < 5:
            items.append(item + 1)
    return x, items


def for_list_that_shrinks(x, items):
    for item in items:
        x = x + item
        print(item)
        items.pop()
    return x


def for_dict(x, table):
    for key, value in table.items():
        x = x * value
        print(key)
    return x


def for_dict_keys(x, table):
    out = x
    for key in table:
        out = out + table[key]
        print(key)
    return out


def for_dict_values(x, table):
    for value in table.values():
        x = x + value
        print("v")
    return x


def dict_changes_in_loop(x, table):
    for key in table:
        x = x + 1
        print(key)
        table[key + "_"] = 1
    return x


def for_enumerate(x, items):
    for i, item in enumerate(items, 3):
        x = x + item * i
        print(i, item)
    return x


def for_zip(x, a, b):
    for left, right in zip(a, b):
        x = x + left * right
        print(left)
    return x


def for_reversed(x, items):
    for item in reversed(items):
        x = x * item
        print(item)
    return x


def for_tensor(x):
    out = []
    for row in x:
        out.append(row * 2)
        print(row.shape)
    return torch.stack(out)


def for_string(x):
    for letter in "abc":
        print(letter)
        x = x + ord(letter)
    return x


def for_map(x, items):
    for item in map(lambda v: v + 1, items):
        print(item)
        x = x * item
    return x


def nested(x):
    for i in range(2):
        for j in range(3):
            x = x + i * j
            print(i, j)
        x = x * 2
    return x


def break_statement(x):
    for i in range(10):
        x = x + 1
        print(i)
        if i == 3:
            break
    else:
        x = x * 100
    return x


def loop_else(x):
    for i in range(2):
        print(i)
        x = x + i
    else:
        x = x * 100
    return x


def continue_statement(x):
    for i in range(4):
        if i % 2:
            continue
        x = x + i
        print(i)
    return x


def return_in_loop(x):
    for i in range(5):
        x = x + i
        print(i)
        if i == 2:
            return x * 10
    return x


def while_counter(x):
    n = 0
    while n < 4:
        x = x + n
        print(n)
        n += 1
    return x


def while_tensor(x):
    while x.sum() < 100:
        x = x * 2
    return x


def while_tensor_with_count(x):
    steps = 0
    while x.abs().max() < 50:
        x = x + x.mean()
        steps = steps + 1
    return x, steps


def while_true(x):
    while True:
        x = x * 2
        if x.sum() > 50:
            break
    return x


def while_item(x):
    while x.sum().item() < 40:
        x = x + 1
    else:
        x = x - 0.5
    return x


def if_tensor_in_loop(x):
    for i in range(5):
        if x.sum() > 20:
            x = x - i
        else:
            x = x + i * 2
    return x


def break_only_once(x):
    for i in range(6):
        if i == 2:
            print("two")
        x = x + i
    return x


def item_accumulates(x):
    total = 0.0
    for row in x:
        total += row.sum().item()
    return total, x * total


def list_grows(x):
    out = []
    for i in range(3):
        out.append(x + i)
        print(len(out))
    return out


def tuple_grows(x):
    states = ()
    for i in range(3):
        states = states + (x,)
        x = x * 2
        print(len(states))
    return states


def callee_breaks(x):
    def step(y, k):
        z = y + k
        print("step")
        return z * 2

    for i in range(3):
        x = step(x, i) - 1
    return x


def comprehension_breaks(x):
    def loud(v, i):
        print(i)
        return v + i

    return [loud(x, i) * 2 for i in range(3)]


def dict_comprehension_breaks(x):
    return {i: x + x.sum().item() for i in range(3)}


def set_comprehension_breaks(x):
    return sorted({int(x[0, i]) for i in range(3)})


def nested_comprehension(x):
    return [[x[i, j].item() * 2 for j in range(3)] for i in range(2)]


def comprehension_over_tensor(x):
    scale = x.sum()
    return [(row * scale).tolist() for row in x]


def iterator_passed_in_and_used_after(x, items):
    it = iter(items)
    first = next(it)
    x = x * first
    print(first)
    for item in it:
        x = x + item
        if item == 3:
            break
    print(list(it))
    return x


def two_names_for_one_iterator(x, items):
    it = iter(items)
    for item in it:
        print(item)
        x = x + item + next(it)
    return x


def mutated_tensor(x):
    for i in range(3):
        x += i
        print(x.sum() > 0)
        x[0] *= 2
    return x


def attribute_counter(x, box):
    for i in range(3):
        box.count += 1
        x = x + box.count
        print(box.count)
    return x


class Box:
    def __init__(self):
        self.count = 0


PROGRAMS = [
    (for_range, (X,)),
    (for_range_first, (X,)),
    (for_range_last, (X,)),
    (for_list, (X, [1, 2, 3])),
    (for_list, (X, [X, X + 1])),
    (for_list_that_grows, (X, [1, 2])),
    (for_list_that_shrinks, (X, [1, 2, 3, 4])),
    (for_dict, (X, {"a": 1, "b": 2})),
    (for_dict_keys, (X, {"a": X, "b": 2})),
    (for_dict_values, (X, {"a": X, "b": 2})),
    (dict_changes_in_loop, (X, {"a": 1, "b": 2})),
    (for_enumerate, (X, [1, 2, 3])),
    (for_enumerate, (X, (X, X))),
    (for_zip, (X, [1, 2, 3], (4, 5))),
    (for_reversed, (X, [1, 2, 3])),
    (for_tensor, (X,)),
    (for_string, (X,)),
    (for_map, (X, [1, 2])),
    (nested, (X,)),
    (break_statement, (X,)),
    (loop_else, (X,)),
    (continue_statement, (X,)),
    (return_in_loop, (X,)),
    (while_counter, (X,)),
    (while_tensor, (X,)),
    (while_tensor_with_count, (X,)),
    (while_true, (X,)),
    (while_item, (X,)),
    (if_tensor_in_loop, (X,)),
    (break_only_once, (X,)),
    (item_accumulates, (X,)),
    (list_grows, (X,)),
    (tuple_grows, (X,)),
    (callee_breaks, (X,)),
    (comprehension_breaks, (X,)),
    (dict_comprehension_breaks, (X,)),
    (set_comprehension_breaks, (X,)),
    (nested_comprehension, (X,)),
    (comprehension_over_tensor, (X,)),
    (iterator_passed_in_and_used_after, (X, [1, 2, 3, 4, 5])),
    (two_names_for_one_iterator, (X, [1, 2, 3, 4])),
    (mutated_tensor, (X,)),
    (attribute_counter, (X, Box())),
]


@pytest.mark.parametrize(
    ("fn", "args"), PROGRAMS, ids=[f"{fn.__name__}-{i}" for i, (fn, _) in enumerate(PROGRAMS)]
)
def test_loops(fn, args):
    check_breaks(fn, args)
