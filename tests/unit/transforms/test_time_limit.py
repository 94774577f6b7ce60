"""What is interrupted is interrupted once, and leaves the interpreter as it was."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lampwork.plugins.time_limit import TimeIsUp, time_limit


def test_code_that_does_not_end_is_ended() -> None:
    for _ in range(3):
        with pytest.raises(TimeIsUp), time_limit(0.05):
            while True:
                time.sleep(0.001)
    time.sleep(0.01)  # nothing arrives later


def test_what_ends_just_in_time_is_not_interrupted_later() -> None:
    for _ in range(20):
        try:
            with time_limit(0.002):
                time.sleep(0.002)
        except TimeIsUp:
            pass
        sum(range(2000))


TRACED = """
import sys, threading, time
from lampwork.plugins.time_limit import TimeIsUp, time_limit
try:
    with time_limit(0.02):
        while True:
            time.sleep(0.001)
except TimeIsUp:
    pass
done = threading.Event()
def called():
    return 1
def traced():
    sys.settrace(lambda *event: None)
    called()
    sys.settrace(None)
    done.set()
threading.Thread(target=traced, daemon=True).start()
print("done" if done.wait(20) else "hangs", flush=True)
import os
os._exit(0)
"""


def test_threads_that_are_traced_go_on_after_it() -> None:
    found = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=200)
    assert found.stdout == "done\n", found.stderr
