"""Tasks on several processes that form a process group over gloo, with a time limit: a rank that waits for ever for
another is a failure, not a test that hangs."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

_PRELOADED = ["lampwork.api", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]
"""What takes seconds to import, imported once for the ranks of all tests."""


def on_ranks(world: int, task: Callable[..., Any], *args: Any, limit_s: float = 120.0) -> list[Any]:
    """What `task(rank, *args)` returns on each of `world` ranks. `task` is a function of a module.

    Raises:
        ProcessRaisedException: a rank raised.
        TimeoutError: a rank is not ready after `limit_s` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.get_context("forkserver").set_forkserver_preload(_PRELOADED)
        started: Any = mp.start_processes(
            _rank, (world, task, args, folder), world, join=False, start_method="forkserver"
        )
        end = time.monotonic() + limit_s
        try:
            while not started.join(timeout=1.0):
                if time.monotonic() > end:
                    raise TimeoutError(f"{task.__name__} hangs on {world} ranks")
        finally:
            for process in started.processes:
                process.kill()
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world)]


def outcomes(
    rank: int, tasks: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], names: Sequence[str]
) -> dict[str, str]:
    """What went wrong on this rank in each of the named tasks, (function, arguments behind the rank), run one after the
    other; "" where nothing did."""
    found: dict[str, str] = {}
    for name in names:
        task, args = tasks[name]
        try:
            task(rank, *args)
            found[name] = ""
        except Exception as error:  # noqa: BLE001  (told to the test)
            found[name] = "".join(traceback.format_exception(error))
    return found


def _rank(rank: int, world: int, task: Callable[..., Any], args: tuple[Any, ...], folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timeout)
    try:
        torch.save(task(rank, *args), Path(folder, f"{rank}.pt"))
        dist.barrier()
    finally:
        dist.destroy_process_group()
