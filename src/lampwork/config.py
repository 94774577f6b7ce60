"""Every option of Lampwork. Each is an argument of `lampwork.compile(options={...})`, an environment variable
`LAMPWORK_<NAME>` and a keyword of the context manager `lampwork.config.using(...)`. An argument overrides a context, a
context overrides the environment, and the environment overrides the default.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, cast, get_type_hints

from lampwork.display import Shown
from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.standard import functools


@record
class Config(Shown):
    """The options in force. Immutable: `dataclasses.replace` makes a changed copy."""

    strict: bool = False
    """Raise an error where Lampwork would otherwise warn and run eager: capture refusals and compiler failures."""

    verify: str = ""
    """"graph" (or True, 1): check graphs after every pass, loop code after every stage, and LLVM IR before it is
    compiled. "numeric": also compare results on sample inputs before and after each rewrite and each pass, and reject
    those that change results beyond tolerance."""

    passes: str = ""
    """Passes and rewrites to switch on or off: "-algebra,+mine". If a name occurs twice, the last one wins."""

    fuel: int = -1
    """Stop after this many rewrites, to bisect a miscompile; -1 means no limit. The option counts the rewrites of each
    compilation, LAMPWORK_FUEL those of the whole process."""

    pass_timeout: int = 60
    """Seconds that a registered pass, or all registered rewrites together, may take on one graph; 0 means no limit."""

    logs: str = ""
    """Comma-separated topics to print to stderr; `lampwork.logs.TOPICS` lists them. "all" means every topic."""

    dump: str = ""
    """A folder that receives every stage of each compiled region as a numbered text file."""

    isa: str = ""
    """Force a narrower instruction set than the host's: "amx" (AVX-512 and tile registers), "avx512",
    "avx2" or "sse4"; or "grid": schedule everything as for a GPU, and run that on the CPU."""

    numerics: str = "eager"
    """"eager": round where eager rounds. A product and a sum of different operators never become one fused
    multiply-add, and each result in a half type is rounded to that type. "fast": skip these roundings, within the same
    tolerance against float64, compute convolutions of 3 x 3 taps by Winograd's minimal filtering where it pays, and
    random numbers from a counter: others than eager's."""

    recompile_limit: int = 16
    """How many versions one function may have. After that, calls that none of them serves run eager."""

    backend_timeout: int = 600
    """Seconds that a backend other than Lampwork's own may take to compile one part of a graph; 0 means no limit."""

    mode: str = "default"
    """"default": tiles, blocks and layouts by a model of the machine. "max-autotune" (or
    "max-autotune-no-cudagraphs"): by measurement, once for each shape; the winners are kept in the folder `cache`.
    "reduce-overhead": a result is an earlier result again, once nothing refers to that any more, which saves making
    tensors. With "reduce-overhead" and "max-autotune" what runs on a CUDA device is replayed as CUDA graphs.
    `lampwork.compile(mode=...)` is the same."""

    tuning_seconds: float = 60.0
    """Seconds that `mode="max-autotune"` may measure for each graph; whatever is left then keeps the model's choice. 0:
    only winners of earlier measurements are used."""

    weights: str = "kept"
    """"kept": a packed copy of a weight comes beside the weight. "packed": the copy is the only one in memory. Weights
    that only their packed copies are read of move to a file without a name below `cache`, and are read from there
    where anything else asks for them; they stay the tensors that they are."""

    memory_budget: float = 1.0
    """What a training step may save for its backward, as a part, 0 to 1, of the bytes that it saves by default. With
    less, backward computes more again, products and attention too; gradients stay the same up to the order of sums."""

    cache: str = ""
    """The folder that keeps what one process found out for the next; "": lampwork in $XDG_CACHE_HOME, or in ~/.cache.
    "off": nothing is kept."""

    def __post_init__(self) -> None:
        # Booleans and their spellings stand for "graph" and "".
        if isinstance(cast(object, self.verify), (str, int)):
            object.__setattr__(self, "verify", _VERIFY.get(self.verify, self.verify))
        if self.verify not in ("", "graph", "numeric"):
            raise OptionError(
                f'option \'verify\' takes "", "graph" or "numeric", got {self.verify!r}',
                fix='pass "graph" to check graphs, "numeric" to check results too',
            )
        if self.numerics not in ("eager", "fast"):
            raise OptionError(
                f'option \'numerics\' takes "eager" or "fast", got {self.numerics!r}',
                fix='pass "eager" for eager\'s roundings, "fast" to let products and sums be rounded once',
            )
        if self.mode not in MODES:
            near = difflib.get_close_matches(str(self.mode), MODES, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"unknown mode {self.mode!r}", fix=f"{hint}the known modes are {', '.join(MODES)}"
            )
        if self.weights not in ("kept", "packed"):
            raise OptionError(
                f'option \'weights\' takes "kept" or "packed", got {self.weights!r}',
                fix='pass "packed" to keep weights in memory in the packed form alone',
            )
        for name in ("tuning_seconds", "memory_budget"):
            if type(getattr(self, name)) is int:
                object.__setattr__(self, name, float(getattr(self, name)))
        for name, expected in _types().items():
            value = getattr(self, name)
            if type(value) is not expected:
                raise OptionError(
                    f"option {name!r} takes {expected.__name__}, got {value!r} of type {type(value).__name__}",
                    fix=f"pass a value of type {expected.__name__}",
                )
        if not 0 <= self.tuning_seconds < float("inf"):
            raise OptionError(
                f"option 'tuning_seconds' takes a number of seconds, 0 or more, got {self.tuning_seconds!r}",
                fix="pass 0 to use only what was measured before",
            )
        if not 0 <= self.memory_budget <= 1:
            raise OptionError(
                f"option 'memory_budget' takes a number from 0 to 1, got {self.memory_budget!r}",
                fix="pass 1 to save what makes backward fastest, 0.5 to save half of that",
            )

    def _brief(self) -> str:
        """Options that are not as they are by default."""
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in changed)

    @property
    def tunes(self) -> bool:
        """Whether choices are made by measurement."""
        return self.mode.startswith("max-autotune")

    @property
    def captures_graphs(self) -> bool:
        """Whether what runs on a CUDA device is replayed as CUDA graphs."""
        return self.mode in ("reduce-overhead", "max-autotune")


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_VERIFY: dict[Any, str] = {True: "graph", False: "", "1": "graph", "0": ""}
_VERIFY.update(dict.fromkeys(("true", "yes", "on"), "graph") | dict.fromkeys(("false", "no", "off"), ""))


@functools.cache
def _types() -> Mapping[str, type]:
    return {k: v for k, v in get_type_hints(Config).items() if isinstance(v, type)}


@functools.cache
def option_names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Config))


def check_names(names: Mapping[str, object]) -> None:
    """Raise OptionError, which suggests the nearest known option, if `names` contains an unknown one."""
    known = option_names()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(
                f"unknown option {name!r}", fix=f"{hint}the known options are {', '.join(known)}"
            )


def _parse(name: str, text: str) -> Any:
    expected = _types()[name]
    if expected is bool:
        lowered = text.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("", "0", "false", "no", "off"):
            return False
    elif expected in (int, float):
        try:
            return expected(text)
        except ValueError:
            pass
    else:
        return text
    raise OptionError(
        f"environment variable LAMPWORK_{name.upper()}={text!r} is no {expected.__name__}",
        fix=f"set it to a value of type {expected.__name__}",
    )


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """The defaults, overridden by LAMPWORK_* variables."""
    return _from_texts(
        tuple(
            (name, environ[key]) for name in option_names() if (key := f"LAMPWORK_{name.upper()}") in environ
        )
    )


@functools.cache
def _from_texts(texts: tuple[tuple[str, str], ...]) -> Config:
    return Config(**{name: _parse(name, text) for name, text in texts})


_active: ContextVar[Config | None] = ContextVar("lampwork_config", default=None)


def current() -> Config:
    """The options in force in this context."""
    active = _active.get()
    return from_environment() if active is None else active


@contextlib.contextmanager
def using(**options: Any) -> Generator[Config]:
    """Override options for what is compiled inside the `with` block (in this thread or task).

    Raises:
        OptionError: an unknown option or a value of the wrong type.
    """
    check_names(options)
    changed = replace(current(), **options)
    token = _active.set(changed)
    try:
        yield changed
    finally:
        _active.reset(token)


def with_options(base: Config, options: Mapping[str, Any]) -> Config:
    """`base` with `options` on top, names and types checked."""
    check_names(options)
    return replace(base, **options)


@contextlib.contextmanager
def using_config(config: Config) -> Generator[Config]:
    """Make `config` the one in force inside the `with` block."""
    token = _active.set(config)
    try:
        yield config
    finally:
        _active.reset(token)
