"""Lists that outlive a call and are appended to: not read for it, so that a longer list compiles nothing again."""

from typing import Any

import pytest
import torch

import lampwork

total: list[int] = []


def check(make: Any, calls: Any, versions: int | None = 1) -> None:
    """make() gives a function and what it writes to, calls() arguments: results and state are eager's."""
    seen: list[Any] = []
    for wrap in (lambda function: function, lampwork.compile):
        function, state = make()
        ready = wrap(function)
        seen.append((repr([ready(*args) for args in calls()]), repr(state)))
    assert seen[0] == seen[1]
    if versions is not None:
        assert len(ready.entries) == versions


def in_closure() -> Any:
    items: list[Any] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        items.append(y)
        items.append(len(y))
        return y + 1

    return function, items


def in_attribute() -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append((x.sum(), {"size": x.shape}))
            return x + 1

    net = Net()
    return net, net.seen


def in_hook() -> Any:
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid())
    features: list[Any] = []
    net[0].register_forward_hook(lambda module, args, result: features.append(result))
    return net, features


def in_global() -> Any:
    total.clear()

    def function(x: torch.Tensor) -> torch.Tensor:
        total.append(x.dim())
        return x.neg()

    return function, total


def by_bound_method() -> Any:
    items: list[Any] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        note = items.append
        note(1)
        note(x + 1)
        return x

    return function, items


@pytest.mark.parametrize("make", [in_closure, in_attribute, in_hook, in_global, by_bound_method])
def test_a_list_that_grows_is_one_version(make: Any) -> None:
    check(make, lambda: [(torch.arange(3.0) + n,) for n in range(20)])


def test_a_list_among_the_arguments() -> None:
    items: list[Any] = []

    @lampwork.compile
    def function(x: torch.Tensor, into: list[Any]) -> torch.Tensor:
        into.append(x.sum())
        return x + 1

    for n in range(20):
        function(torch.ones(2), items if n % 3 else [])
    assert len(items) == 13 and len(function.entries) == 1


def test_another_list_in_each_epoch() -> None:
    class Log:
        rows: list[Any]

    log = Log()

    @lampwork.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        log.rows.append(x * 2)
        return x + 1

    for _ in range(5):
        log.rows = []
        for n in range(3):
            function(torch.full((2,), float(n)))
        assert [float(row[0]) for row in log.rows] == [0, 2, 4]
    assert len(function.entries) == 1


def test_the_region_sees_what_it_appended() -> None:
    def make() -> Any:
        items: list[Any] = [5]

        def function(x: torch.Tensor) -> Any:
            items.append(x.dim())
            first = len(items)
            items.append(first)
            last = items.pop()
            items.append(last + 1)
            return first, items[-1], x + len(items)

        return function, items

    check(make, lambda: [(torch.ones(2),)] * 4, versions=None)


def test_the_same_list_by_two_names() -> None:
    """An argument that is the list which the function appends to, on a later call only."""
    items: list[Any] = []

    def function(x: torch.Tensor, other: list[Any]) -> Any:
        items.append(x.dim())
        other.append(0)
        return len(other), x + 1

    compiled = lampwork.compile(function)
    assert compiled(torch.ones(2), [])[0] == 1
    assert compiled(torch.ones(2), items)[0] == 3
    assert items == [1, 1, 0]


def test_order_where_two_names_are_one_list_that_nobody_reads() -> None:
    items: list[Any] = []

    def function(x: torch.Tensor, first: list[Any], second: list[Any]) -> Any:
        first.append(1)
        second.append(2)
        first.append(3)
        items.append(4)
        return x + 1

    compiled = lampwork.compile(function)
    compiled(torch.ones(2), [], [])
    one: list[Any] = []
    compiled(torch.ones(2), one, one)
    assert one == [1, 2, 3]
    items.clear()
    compiled(torch.ones(2), items, items)
    assert items == [1, 2, 3, 4]


def test_a_break_between_append_and_its_argument() -> None:
    def make() -> Any:
        items: list[Any] = []

        def function(x: torch.Tensor) -> torch.Tensor:
            items.append(0)
            items.append(x.sum().item())
            items.append(1)
            return x * 2

        return function, items

    before = lampwork.stats()["regions"]
    check(make, lambda: [(torch.full((2,), float(n)),) for n in range(20)])
    assert lampwork.stats()["regions"] - before <= 3


def test_an_error_after_an_append() -> None:
    items: list[Any] = []

    @lampwork.compile
    def function(x: torch.Tensor, fails: bool) -> torch.Tensor:
        items.append(x.dim())
        if fails:
            raise ValueError("as asked")
        return x + 1

    for _ in range(3):
        with pytest.raises(ValueError, match="as asked"):
            function(torch.ones(2), True)
    function(torch.ones(2), False)
    assert items == [1, 1, 1, 1]


def test_wrong_arguments_of_append() -> None:
    def make() -> Any:
        items: list[Any] = []

        def function(x: torch.Tensor) -> str:
            try:
                items.append()  # pyright: ignore
            except TypeError as error:
                return str(error)
            return ""

        return function, items

    check(make, lambda: [(torch.ones(2),)] * 3)


def test_lists_of_other_classes_are_read() -> None:
    class Loud(list[Any]):
        def append(self, item: Any) -> None:
            super().append((len(self), item))

    def make() -> Any:
        items = Loud()

        def function(x: torch.Tensor) -> torch.Tensor:
            items.append(x.dim())
            return x + 1

        return function, items

    check(make, lambda: [(torch.ones(2),)] * 3, versions=None)


def test_an_attribute_that_a_property_hides() -> None:
    class Hidden:
        def __init__(self) -> None:
            self.__dict__["rows"] = []

        @property
        def rows(self) -> list[Any]:
            return [len(self.__dict__["rows"])]

    hidden = Hidden()

    @lampwork.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        hidden.rows.append(3)
        return x + 1

    function(torch.ones(2))
    function(torch.ones(2))
    assert hidden.__dict__["rows"] == []
