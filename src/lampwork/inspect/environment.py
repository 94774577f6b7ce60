"""`lampwork env`: what a bug report needs to know of where it happened, and whether Lampwork works there.

Nothing here raises: what cannot be found out says why. Of the environment only variables that Lampwork reads are shown,
and the home folder is written ~.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch

from lampwork import config, pristine
from lampwork.checks import Check, nearest
from lampwork.codegen.llvm.isa.x86 import host_flags, host_isa
from lampwork.display import Block, Folded, Shown, Table
from lampwork.display.units import bytes_text, time_text
from lampwork.errors import OptionError, text_of
from lampwork.folders import cache_folder
from lampwork.inspect.self_test import Trial, self_test
from lampwork.processor import processor
from lampwork.records import record
from lampwork.standard import itertools
from lampwork.version import __version__

PACKAGES = ("rich", "onnx", "onnxruntime", "openvino", "triton", "transformers")
"""That something of Lampwork uses where they are installed."""

MOST_FILES = 100_000
"""Of the cache folder, that are counted: it may be one that holds other things too."""

FEATURES = (
    *("sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    *("avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
)
"""Of a CPU: those that code is made for, and those that decide which."""


@record
class Entry(Shown):
    """A line: what it is about, what is so, and "" or what is wrong with it."""

    section: str
    name: str
    value: str
    problem: str = ""


@record
class Environment(Shown):
    """What there is, and what was tried. `ok`: whether all that was tried gave eager's results."""

    entries: tuple[Entry, ...]
    trials: tuple[Trial, ...]

    @property
    def ok(self) -> bool:
        return bool(self.trials) and all(not trial.failure for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        """The content of `to_json` as dicts, lists, strings and numbers."""
        sections: dict[str, dict[str, str]] = {}
        for each in self.entries:
            sections.setdefault(each.section, {})[each.name] = each.value
        problems = [
            {"section": e.section, "name": e.name, "what": e.problem} for e in self.entries if e.problem
        ]
        trials = [{"name": t.name, "seconds": t.seconds, "failure": t.failure} for t in self.trials]
        return {"format": 1, **sections, "problems": problems, "self-test": trials, "ok": self.ok}

    def to_json(self, *, indent: int | None = 2) -> str:
        """The same as data."""
        return json.dumps(self.to_dict(), indent=indent)

    def _brief(self) -> str:
        problems = sum(bool(each.problem) for each in self.entries)
        return f"{'OK' if self.ok else 'FAILED'}, {problems} problem{'' if problems == 1 else 's'}"

    def _blocks(self) -> Iterable[Block]:
        rows = ((each.section, each.name, _lined(each)) for each in self.entries)
        yield Table(("", "", ""), tuple(rows))
        tried = (
            (t.name, "FAILED" if t.failure else f"OK, first call {time_text(t.seconds)}") for t in self.trials
        )
        yield Table(("self-test", ""), tuple(tried))
        for trial in self.trials:
            if trial.failure:
                yield Folded(trial.name, trial.failure)

    def __str__(self) -> str:
        return format_environment(self)


def _lined(entry: Entry) -> str:
    return f"{entry.value}  ! {entry.problem}".strip() if entry.problem else entry.value


def format_environment(found: Environment) -> str:
    """Sections with a line for each entry, and what was tried; failures are told in full at the end."""
    width = max((len(entry.name) for entry in found.entries), default=0)
    lines: list[str] = []
    section = ""
    for entry in found.entries:
        if entry.section != section:
            section = entry.section
            lines += [*([""] if lines else []), section]
        lines.append(f"  {entry.name.ljust(width)}  {_lined(entry)}".rstrip())
    if found.trials:
        lines += ["", "self-test"]
    for trial in found.trials:
        if trial.failure:
            lines += [f"  {trial.name}: FAILED", *(f"    {line}" for line in trial.failure.splitlines())]
        else:
            lines.append(f"  {trial.name}: OK, first call {time_text(trial.seconds)}")
    return "\n".join(lines)


# --- what there is ----------------------------------------------------------------------------------------------------


def environment(environ: Mapping[str, str] = os.environ) -> Environment:
    """All that there is, and a self-test on the CPU, and on a CUDA device if there is one. Raises nothing."""
    entries = [
        *_guarded("versions", _versions),
        *_guarded("machine", _machine),
        *_guarded("GPU", _cards),
        *_guarded("cache", _cache),
        *_guarded("variables", lambda: _variables(environ)),
        *_guarded("packages", _packages),
        *_guarded("options", _options),
    ]
    devices = ["cpu"] + ["cuda"] * _has_card()
    trials = [trial for device in devices for trial in self_test(device)]
    hide = _hider()
    return Environment(
        tuple(Entry(e.section, e.name, hide(e.value), hide(e.problem)) for e in entries),
        tuple(Trial(t.name, t.seconds, hide(t.failure)) for t in trials),
    )


Line = tuple[str, str] | tuple[str, str, str]
Asked = tuple[str, Callable[[], str]]


def _guarded(section: str, find: Callable[[], Iterable[Line]]) -> Iterator[Entry]:
    """The lines of a section, up to what went wrong."""
    try:
        for line in find():
            yield Entry(section, *line)
    except Exception as error:  # noqa: BLE001  (drivers, file systems and packages of others: the report goes on)
        yield Entry(section, "not known", "", text_of(error))


def _asked(*questions: Asked) -> Iterator[Line]:
    """A line for each; what cannot be answered says why, and the next is asked."""
    for name, find in questions:
        try:
            yield name, find()
        except Exception as error:  # noqa: BLE001  (as above)
            yield name, "", f"not known: {text_of(error)}"


def _versions() -> Iterator[Line]:
    yield "lampwork", f"{__version__}, in {Path(__file__).parents[1]}"
    cuda, rocm = torch.version.cuda, getattr(torch.version, "hip", None)
    built = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "no GPU"
    yield "torch", f"{torch.__version__}, built for {built}"
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    yield from _asked(
        *((name, lambda name=name: importlib.metadata.version(name)) for name in ("llvmlite", "numpy"))
    )


def _machine() -> Iterator[Line]:
    yield from _asked(
        ("system", lambda: f"{_distribution()}{platform.platform()}"),
        ("CPU", processor),
        (
            "instructions",
            lambda: f"code is made for {host_isa().name}; the widest here is {host_isa('').name}",
        ),
        ("features", lambda: ", ".join(each for each in FEATURES if each in host_flags())),
        ("cores", _cores),
        ("threads", lambda: f"{pristine.get_num_threads()} of torch"),
        ("memory", _memory),
    )


def _distribution() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, "
    except (OSError, KeyError):  # which not every system has
        return ""


def _cores() -> str:
    here = f"{os.cpu_count()}, {len(os.sched_getaffinity(0))} for this process"
    limit = Path("/sys/fs/cgroup/cpu.max")
    if not limit.exists():
        return here
    quota, period = limit.read_text().split()
    return here if quota == "max" else f"{here}, limited to the time of {int(quota) / int(period):g}"


def _memory() -> str:
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    total, free = (bytes_text(int(sizes[name]) << 10) for name in ("MemTotal", "MemAvailable"))
    limit = Path("/sys/fs/cgroup/memory.max")
    bound = limit.read_text().strip() if limit.exists() else "max"
    return f"{total}, {free} available" + ("" if bound == "max" else f", limited to {bytes_text(int(bound))}")


def _has_card() -> bool:
    try:
        return torch.cuda.is_available()
    except Exception:  # noqa: BLE001  (a broken driver; `_cards` says what is wrong with it)
        return False


def _cards() -> Iterator[Line]:
    if not torch.cuda.is_available():
        yield "devices", "none that torch sees"
        return
    yield from _asked(("driver", _driver))
    for index in range(torch.cuda.device_count()):
        yield from _asked((f"cuda:{index}", lambda index=index: _card(index)))


def _driver() -> str:
    serves = cast(Any, torch._C)._cuda_getDriverVersion()
    file = Path("/proc/driver/nvidia/version")
    module = " ".join(file.read_text().partition("\n")[0].split()) if file.exists() else "version not known"
    return f"{module}; serves CUDA {serves // 1000}.{serves % 1000 // 10}"


def _card(index: int) -> str:
    found = cast(Any, torch.cuda).get_device_properties(index)
    return f"{found.name}, capability {found.major}.{found.minor}, {bytes_text(found.total_memory)}"


def _cache() -> Iterator[Line]:
    folder = cache_folder(config.current())
    if folder is None:
        yield "folder", "off: nothing is kept"
        return
    if not folder.exists():
        near = next(each for each in (folder, *folder.parents) if each.exists())
        lacking = "" if os.access(near, os.W_OK | os.X_OK) else f"{near} cannot be written to"
        yield "folder", f"{folder}, not there yet", lacking
        return
    yield "folder", str(folder), "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written to"
    files = list(itertools.islice((each for each in folder.rglob("*") if each.is_file()), MOST_FILES))
    size = bytes_text(sum(each.stat().st_size for each in files))
    more = " or more" if len(files) == MOST_FILES else ""
    yield "size", f"{size} in {len(files):,} file{'' if len(files) == 1 else 's'}{more}"


def _variables(environ: Mapping[str, str]) -> Iterator[Line]:
    checks = {f"{config.PREFIX}{name.upper()}": (name, check) for name, check in config.checks().items()}
    known = sorted({*checks, *config.OTHER_VARIABLES})
    names = sorted(name for name in environ if name.startswith(config.PREFIX))
    for name in names:
        if name in checks:
            yield name, repr(environ[name]), _wrong(*checks[name], environ[name])
        elif name in config.SECRETS:
            yield name, "set"
        elif name in config.OTHER_VARIABLES:
            yield name, repr(environ[name])
        else:  # which may be another's, and secret
            yield name, "", f"nothing reads it: {nearest(name, known, 'the variables are')}"
    if not names:
        yield "LAMPWORK_*", "none is set"


def _wrong(option: str, check: Check, text: str) -> str:
    try:
        check.read(option, text)
    except OptionError as error:
        return f"left out: {error.cause}; {error.fix}"
    return ""


def _packages() -> Iterator[Line]:
    yield from _asked(*((name, lambda name=name: _package(name)) for name in PACKAGES))


def _package(name: str) -> str:
    return "not installed" if importlib.util.find_spec(name) is None else importlib.metadata.version(name)


def _options() -> Iterator[Line]:
    """Those in force that are not as they are by default."""
    now = config.current()
    changed = [f for f in fields(now) if getattr(now, f.name) != f.default]
    for field in changed:
        yield field.name, repr(getattr(now, field.name))
    if not changed:
        yield "all", "as they are by default"


def _hider() -> Callable[[str], str]:
    """Writes ~ for the home folder."""
    try:
        home = str(Path.home())
    except (RuntimeError, OSError, KeyError):
        return lambda text: text
    if len(Path(home).parts) < 2:
        return lambda text: text
    pattern = re.compile(re.escape(home) + r"(?![\w.-])")
    return lambda text: pattern.sub("~", text)
