"""Tasks in forked children, which may crash, hang, or patch what everybody needs.

A child runs eager on one thread: OpenMP's threads do not live on in it, and a parallel region would wait for them for
ever. Compiled code makes its own threads anew.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import torch

RAISED = 3  # how a child exits whose task raised, which it told before


def _child(write: int, trace: IO[str], task: Any) -> None:
    """Run `task(send)` in this process, which ends here."""
    code = 0
    torch.set_num_threads(1)
    gc.freeze()  # what was there before is no leak of this process, and needs no search
    with os.fdopen(write, "w") as pipe:
        os.dup2(trace.fileno(), 2)
        faulthandler.enable(trace)

        def send(**message: Any) -> None:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()

        try:
            task(send)
        except BaseException as error:  # noqa: BLE001  (told to the parent)
            send(error="".join(traceback.format_exception(error)[-3:])[-1500:])
            code = RAISED
        os._exit(code)


def forked(task: Any, quiet_limit: float = 60.0) -> Iterator[dict[str, Any]]:
    """The messages that `task` sends from a forked child; a last one with `crash` if the child died or fell silent."""
    read, write = os.pipe()
    # Without a name: whatever a child does to its copy of this object, the file stays.
    with tempfile.TemporaryFile("w+") as trace:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _child(write, trace, task)
        os.close(write)
        rest, ended = b"", False
        try:
            while select.select([read], [], [], quiet_limit)[0]:
                chunk = os.read(read, 1 << 16)
                if not chunk:
                    ended = True
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        finally:  # also where nobody asks for more
            if not ended:
                os.kill(pid, signal.SIGKILL)
            os.close(read)
            _, status = os.waitpid(pid, 0)
        if not ended:
            yield {"crash": "silent"}
        elif os.WIFSIGNALED(status):
            trace.seek(0)
            yield {"crash": f"signal {os.WTERMSIG(status)}: {trace.read()[:1500]}"}
        elif os.WEXITSTATUS(status) not in (0, RAISED):
            yield {"crash": f"exit with {os.WEXITSTATUS(status)}"}


def failure(jobs: Sequence[tuple[str, Callable[[], str | None]]], quiet_limit: float = 60.0) -> str:
    """Run jobs in one child, one after the other, until one fails: what it returned, raised, or how it ended the child,
    after its name. "" if none did. Each job may take `quiet_limit` seconds."""

    def task(send: Any) -> None:
        for name, job in jobs:
            send(name=name)
            said = job()
            if said:
                send(said=said)
                return

    name = "no job"
    for message in forked(task, quiet_limit):
        if "name" in message:
            name = message["name"]
        else:
            return f"{name}: {next(iter(message.values()))}"
    return ""
