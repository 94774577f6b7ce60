"""What was there before a capture is told from what it made: in children, beside other captures, in frozen programs."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time

from lampwork.capture.state import births
from lampwork.capture.state.births import Births, anything_frozen


class Thing:
    pass


def test_what_was_there_is_told_from_what_came() -> None:
    old = Thing()
    with Births() as births:
        assert not births.is_inside(old)
        assert births.is_inside(Thing())
    assert not anything_frozen()


def is_collected(thing: Thing) -> bool:
    """Whether the collector visits the object: what is frozen is in none of its generations."""
    return any(other is thing for other in gc.get_objects())


def test_a_program_that_froze_its_objects_keeps_them_so() -> None:
    old = Thing()
    gc.freeze()
    young = Thing()
    try:
        with Births() as births:
            assert not births.is_inside(old)
            assert not births.is_inside(young)
            assert births.is_inside(Thing())
        assert not is_collected(old)
        assert is_collected(young)
    finally:
        gc.unfreeze()


def test_nothing_takes_the_place_of_what_was_there_in_a_frozen_program() -> None:
    gc.freeze()
    try:
        old = [Thing() for _ in range(1000)]
        with Births() as births:
            old.clear()
            assert all(births.is_inside(Thing()) for _ in range(5))
    finally:
        gc.unfreeze()


def test_what_the_interpreter_freezes_is_not_the_program_s() -> None:
    """Whichever of them comes last: a capture, which thaws, or a full collection, which may freeze."""
    for _ in range(2):
        with Births():
            assert anything_frozen()
        assert not anything_frozen()
        gc.collect()
        assert not anything_frozen()


def test_captures_of_two_threads_take_turns() -> None:
    old, told, begun = Thing(), [], threading.Event()

    def other() -> None:
        begun.set()
        with Births() as births:
            told.append((births.is_inside(old), births.is_inside(Thing())))

    with Births() as births:
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        made = Thing()
        assert births.is_inside(made)
    thread.join()
    assert told == [(False, True)]


def test_a_child_goes_on_where_another_thread_was_capturing() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with Births():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        old = Thing()
        with Births() as births:
            right = not births.is_inside(old) and births.is_inside(Thing())
        os._exit(0 if right and not anything_frozen() else 1)
    leave.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_child_of_a_fork_between_two_captures_of_others() -> None:
    """A thread that has the lock and not the interpreter yet does not exist in the child."""
    interval = sys.getswitchinterval()
    telling = births._telling
    assert telling.begin()
    waiter = threading.Thread(target=lambda: telling.begin() and telling.end())
    waiter.start()
    time.sleep(0.2)
    try:
        sys.setswitchinterval(10)
        telling.end()
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:
            pass
        pid = os.fork()
        if pid == 0:
            began = telling.lock.acquire(timeout=1)
            os._exit(0 if began else 1)
    finally:
        sys.setswitchinterval(interval)
    waiter.join()
    assert os.waitpid(pid, 0)[1] == 0
