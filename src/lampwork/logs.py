"""What Lampwork tells: `LAMPWORK_LOGS=graph,breaks` prints topics to stderr, `LAMPWORK_DUMP=folder` keeps every stage
as a numbered file. Both go through here, so that a stage writes its text once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lampwork import config
from lampwork.errors import OptionError

TOPICS = (
    "bytecode",
    "guards",
    "graph",
    "passes",
    "partition",
    "loops",
    "llvm",
    "program",
    "tuning",
    "recompiles",
    "breaks",
    "progress",
)


def topics() -> frozenset[str]:
    """The topics that are switched on now.

    Raises:
        OptionError: LAMPWORK_LOGS names an unknown topic.
    """
    names = {name.strip() for name in config.current().logs.split(",")} - {""}
    if "all" in names:
        return frozenset(TOPICS)
    unknown = sorted(names - set(TOPICS))
    if unknown:
        raise OptionError(
            f"unknown log topic {unknown[0]!r}", fix=f"the topics are {', '.join(TOPICS)} and all"
        )
    return frozenset(names)


def enabled(topic: str) -> bool:
    return bool(config.current().logs) and topic in topics()


def emit(topic: str, text: str) -> None:
    """Print `text` under `topic`, if the topic is on."""
    if enabled(topic):
        body = text.rstrip().replace("\n", f"\n[{topic}] ")
        # Names of files may hold what is no text, which a stream that took the place of stderr may refuse.
        line = f"[{topic}] {body}".encode(errors="backslashreplace").decode()
        print(line, file=sys.stderr)


def dump(region: str, number: int, stage: str, text: str) -> Path | None:
    """Write one stage of a region as `<dump>/<region>/<number>-<stage>.txt`; None if no dump folder is set.

    Raises:
        OptionError: nothing can be written there.
    """
    folder = config.current().dump
    if not folder:
        return None
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", region)
    path = Path(folder) / safe / f"{number:02d}-{stage}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip() + "\n")
    except (OSError, ValueError) as error:
        raise OptionError(
            f"option 'dump' takes a folder to write to, got {folder!r}: {error}", fix="name another folder"
        ) from error
    return path
