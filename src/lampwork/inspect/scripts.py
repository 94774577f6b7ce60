"""Scripts that run inside of a command, as `python script.py arguments` would run them."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from lampwork.inspect.bisect import check_script

INTERRUPTED = 130


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a script to its end in this process, and give its exit status. What it raises is printed as Python prints it,
    without our frames. A child that the script forked ends with it, and does nothing that was to come after.

    Raises:
        OptionError: there is no such file.
    """
    check_script(script)
    process = os.getpid()
    status = _run(script, arguments)
    if os.getpid() != process:
        raise SystemExit(status)
    return status


def _run(script: str, arguments: Sequence[str]) -> int:
    before = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
        return 0
    except SystemExit as end:
        return _status(end)
    except KeyboardInterrupt:
        traceback.print_exc()
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001  (the boundary to the script: Python would print it and exit)
        _print(error, os.path.abspath(script))
        return 1
    finally:
        sys.argv, sys.path[:] = before


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)
    return 1


def _print(error: BaseException, script: str) -> None:
    """The traceback from the script's first frame on; all of it if there is none, as for a syntax error."""
    trace = error.__traceback__
    while trace is not None and os.path.abspath(trace.tb_frame.f_code.co_filename) != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
