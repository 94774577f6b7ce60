"""Every option of Lampwork. Each is an argument of `lampwork.compile(options={...})`, an environment variable
`LAMPWORK_<NAME>` and a keyword of the context manager `lampwork.config.using(...)`. An argument overrides a context, a
context overrides the environment, and the environment overrides the default.

Each field declares its check (`lampwork.checks`), so that no value gets here unchecked: an argument and a context raise
OptionError where they are given, a variable of the environment is warned of once and left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

from lampwork.checks import Check, Flag, Folder, OneOf, Real, Several, Told, Url, Whole, nearest
from lampwork.display import Shown
from lampwork.errors import OptionError, warn
from lampwork.records import record
from lampwork.standard import functools

TOPICS = (
    "bytecode",
    "guards",
    "graph",
    "passes",
    "partition",
    "loops",
    "llvm",
    "ptx",
    "program",
    "tuning",
    "recompiles",
    "breaks",
    "progress",
    "cache",
)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
INSTRUCTION_SETS = ("amx", "avx512", "avx2", "sse4", "grid")

PASSES_TOLD = Told()
"""Which passes and rewrites there are: told by `lampwork.registration`."""
ISA_TOLD = Told()
"""What this CPU has: told by `lampwork.api`."""

_SPELLINGS: dict[Any, str] = dict.fromkeys((True, "1", "true", "yes", "on"), "graph")
_SPELLINGS.update(dict.fromkeys((False, "0", "false", "no", "off"), ""))


def _one_of(*names: str, fix: str, told: Told | None = None) -> OneOf:
    quoted = [f'"{name}"' for name in names]
    return OneOf(f"{', '.join(quoted[:-1])} or {quoted[-1]}", fix, told, names)


_VERIFY = OneOf(
    '"", "graph" or "numeric"',
    'pass "graph" to check graphs, "numeric" to check results too',
    names=("", "graph", "numeric"),
    spellings=MappingProxyType(_SPELLINGS),
)
_PASSES = Check(
    'switches as "-algebra,+mine"', 'write "+name" or "-name", with commas between them', PASSES_TOLD
)
_FUEL = Whole("a number of rewrites, or -1", "pass -1 for no limit, 0 for no rewrites", least=-1)
_SECONDS = Whole("a whole number of seconds, 0 or more", "pass 0 for no limit")
_LIMIT = Whole(
    "a number of versions, 1 or more",
    "pass 1 to compile once, a large number for no limit, `disable=True` to compile nothing",
    least=1,
)
_LOGS = Several("topics with commas between them", "the topics are", names=(*TOPICS, "all"))
_DUMP = Folder("a folder to write to", "name another folder")
_ISA = _one_of(*INSTRUCTION_SETS, "", fix='pass one of these, or "" for all that the CPU has', told=ISA_TOLD)
_NUMERICS = _one_of(
    "eager",
    "fast",
    fix='pass "eager" for eager\'s roundings, "fast" to let products and sums be rounded once',
)
_MODE = _one_of(*MODES, fix="pass one of these")
_TUNING = Real("a number of seconds, 0 or more", "pass 0 to use only what was measured before")
_WEIGHTS = _one_of("kept", "packed", fix='pass "packed" to keep weights in memory in the packed form alone')
_BUDGET = Real(
    "a number from 0 to 1", "pass 1 to save what makes backward fastest, 0.5 to save half of that", most=1
)
_BYTES = Whole("a number of bytes, 0 or more", "pass 2 * 2**30 for two GiB, 0 to add nothing")
_CACHE = Folder(
    'a folder, "" or "off"', 'name another folder, or pass "off"', words=("off",), written=False, mode=0o700
)
_REMOTE = Url('a URL such as "s3://bucket/folder", "redis://host:6379/0" or "file:///shared/folder"')


@record
class Config(Shown):
    """The options in force. Immutable: `dataclasses.replace` makes a changed copy."""

    strict: Annotated[bool, Flag()] = False
    """Raise an error where Lampwork would otherwise warn and run eager: capture refusals and compiler failures."""

    verify: Annotated[str, _VERIFY] = ""
    """"graph" (or True, 1): check graphs after every pass, loop code after every stage, and LLVM IR before it is
    compiled. "numeric": also compare results on sample inputs before and after each rewrite and each pass, and reject
    those that change results beyond tolerance."""

    passes: Annotated[str, _PASSES] = ""
    """Passes and rewrites to switch on or off: "-algebra,+mine". If a name occurs twice, the last one wins."""

    fuel: Annotated[int, _FUEL] = -1
    """Stop after this many rewrites, to bisect a miscompile; -1 means no limit. The option counts the rewrites of each
    compilation, LAMPWORK_FUEL those of the whole process."""

    pass_timeout: Annotated[int, _SECONDS] = 60
    """Seconds that a registered pass, or all registered rewrites together, may take on one graph; 0 means no limit."""

    logs: Annotated[str, _LOGS] = ""
    """Comma-separated topics to print to stderr; `lampwork.logs.TOPICS` lists them. "all" means every topic."""

    dump: Annotated[str, _DUMP] = ""
    """A folder that receives every stage of each compiled region as a numbered text file."""

    isa: Annotated[str, _ISA] = ""
    """Force a narrower instruction set than the host's: "amx" (AVX-512 and tile registers), "avx512",
    "avx2" or "sse4"; or "grid": schedule everything as for a GPU, and run that on the CPU."""

    numerics: Annotated[str, _NUMERICS] = "eager"
    """"eager": round where eager rounds. A product and a sum of different operators never become one fused
    multiply-add, and each result in a half type is rounded to that type. "fast": skip these roundings, within the same
    tolerance against float64, compute convolutions of 3 x 3 taps by Winograd's minimal filtering where it pays, and
    random numbers from a counter: others than eager's."""

    fusion: Annotated[bool, Flag()] = True
    """False: each buffer of a graph's loops is computed by a kernel of its own, and none by the product that it
    follows: to see what fusion is worth, or whether it is at fault."""

    arena: Annotated[bool, Flag()] = True
    """False: each intermediate value of a call has memory of its own, also where values that live at different times
    could share it: to see what that is worth, or whether it is at fault. (Training takes what it needs from a heap.)"""

    recompile_limit: Annotated[int, _LIMIT] = 16
    """How many versions one function may have. After that, calls that none of them serves run eager; with
    `fullgraph=True` they raise RecompileError."""

    error_on_recompile: Annotated[bool, Flag()] = False
    """Raise RecompileError where a function that has a compiled version would need another one."""

    backend_timeout: Annotated[int, _SECONDS] = 600
    """Seconds that a backend other than Lampwork's own may take to compile one part of a graph; 0 means no limit."""

    mode: Annotated[str, _MODE] = "default"
    """"default": tiles, blocks and layouts by a model of the machine. "max-autotune" (or
    "max-autotune-no-cudagraphs"): by measurement, once for each shape; the winners are kept in the folder `cache`.
    "reduce-overhead": a result is an earlier result again, once nothing refers to that any more, which saves making
    tensors. With "reduce-overhead" and "max-autotune" what runs on a CUDA device is replayed as CUDA graphs.
    `lampwork.compile(mode=...)` is the same."""

    tuning_seconds: Annotated[float, _TUNING] = 60.0
    """Seconds that `mode="max-autotune"` may measure for each graph; whatever is left then keeps the model's choice. 0:
    only winners of earlier measurements are used."""

    weights: Annotated[str, _WEIGHTS] = "kept"
    """"kept": a packed copy of a weight comes beside the weight. "packed": the copy is the only one in memory. Weights
    that only their packed copies are read of move to a file without a name below `cache`, and are read from there
    where anything else asks for them; they stay the tensors that they are."""

    memory_budget: Annotated[float, _BUDGET] = 1.0
    """What a training step may save for its backward, as a part, 0 to 1, of the bytes that it saves by default. With
    less, backward computes more again, products and attention too; gradients stay the same up to the order of sums."""

    cache: Annotated[str, _CACHE] = ""
    """The folder that keeps what one process found out for the next; "": lampwork in $XDG_CACHE_HOME, or in ~/.cache.
    "off": nothing is kept."""

    cache_bytes: Annotated[int, _BYTES] = 2 << 30
    """How many bytes of compiled programs the folder `cache` keeps (2 GiB); what was not used for longest makes
    room."""

    cache_remote: Annotated[str, _REMOTE] = ""
    """Where several machines share what the folder `cache` keeps: a URL that fsspec serves, or one of Redis; "":
    nowhere. It takes a secret, in LAMPWORK_CACHE_REMOTE_KEY."""

    def __post_init__(self) -> None:
        for name, check in checks().items():
            object.__setattr__(self, name, check.value(name, getattr(self, name)))

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


@functools.cache
def checks() -> Mapping[str, Check]:
    """The check of each option, as its field declares it.

    Raises:
        TypeError: a field declares none.
    """
    hints, found = get_type_hints(Config, include_extras=True), dict[str, Check]()
    for field in fields(Config):
        declared = [
            each for each in getattr(hints[field.name], "__metadata__", ()) if isinstance(each, Check)
        ]
        if len(declared) != 1:
            raise TypeError(f"the option {field.name} declares {len(declared)} checks, and needs one")
        found[field.name] = declared[0]
    return found


# An option without a check is a mistake of ours, found when this module is imported.
_DEFAULTS = Config()


def option_names() -> tuple[str, ...]:
    return tuple(checks())


_OF_TORCH = MappingProxyType(
    {
        "max_autotune": 'pass mode="max-autotune"',
        "triton.cudagraphs": 'pass mode="reduce-overhead"',
        "trace.enabled": 'pass options={"dump": folder}',
        "trace.graph_diagram": "print what lampwork.explain(fn)(*args) returns",
        "epilogue_fusion": "leave it out: what follows a product is part of its kernel",
        "shape_padding": "leave it out: kernels pad what they read",
        "fallback_random": "leave it out: random numbers are eager's",
        "guard_filter_fn": "leave it out: all guards are checked, on every call",
        "use_aoti": "leave it out: code is made in this process",
    }
)
"""What to do in place of options of torch.compile's own backend."""


def check_names(names: Mapping[str, object]) -> None:
    """Raise OptionError, which suggests the nearest known option, if `names` contains an unknown one."""
    known = option_names()
    for name in names:
        if name in _OF_TORCH:
            raise OptionError(f"option {name!r} is one of torch's own backend", fix=_OF_TORCH[name])
        if name not in known:
            raise OptionError(f"unknown option {name!r}", fix=nearest(name, known, "the known options are"))


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """The defaults, overridden by LAMPWORK_* variables. What an option does not take is warned of, once, and left out:
    a program does not fail for what it runs in."""
    return _with_texts(
        tuple((name, environ[key]) for name in option_names() if (key := PREFIX + name.upper()) in environ)
    )


PREFIX = "LAMPWORK_"

SECRET = "LAMPWORK_CACHE_REMOTE_KEY"
PASSWORD = "LAMPWORK_CACHE_REMOTE_PASSWORD"
SECRETS = frozenset({SECRET, PASSWORD})
"""Variables whose values are never shown."""

OTHER_VARIABLES = frozenset(
    {
        *SECRETS,
        "LAMPWORK_BUILD_DEBUG",
        "LAMPWORK_BUILD_SANITIZE",
        "LAMPWORK_CUDA_DRIVER",
        "LAMPWORK_FUEL_LOG",
        "LAMPWORK_FUZZ",
        "LAMPWORK_FUZZ_SEED",
        "LAMPWORK_PTXAS",
        "LAMPWORK_TEST_DEVICE",
    }
)
"""What else of the environment Lampwork, its build and its tests read."""


def _with_texts(texts: tuple[tuple[str, str], ...]) -> Config:
    found = {name: _read(name, text, checks()[name].is_told) for name, text in texts}
    return _made(tuple((name, value) for name, value in found.items() if value is not _UNREAD))


@functools.cache
def _made(values: tuple[tuple[str, Any], ...]) -> Config:
    return Config(**dict(values))


_UNREAD: Any = object()


@functools.cache
def _read(name: str, text: str, told: bool) -> Any:
    """The value that a variable has; `_UNREAD`, after a warning, where the option does not take it. `told`: whether
    all is known that the check asks for, which is so once Lampwork has been imported."""
    try:
        return checks()[name].read(name, text)
    except OptionError as error:
        warn(
            f"{PREFIX}{name.upper()}={text!r} is left out: {error.cause}\n  fix: {error.fix}\n"
            f"  until then {name} is {getattr(_DEFAULTS, name)!r}, as if the variable were not set"
        )
        return _UNREAD


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Warn of variables that are called like Lampwork's and that nothing reads, and of values that are left out."""
    from_environment(environ)
    known = {*OTHER_VARIABLES, *(PREFIX + name.upper() for name in option_names())}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            warn(
                f"nothing reads the environment variable {name}\n"
                f"  fix: {nearest(name, sorted(known), 'the variables are')}"
            )


_active: ContextVar[Config | None] = ContextVar("lampwork_config", default=None)


def current() -> Config:
    """The options in force in this context."""
    active = _active.get()
    return from_environment() if active is None else active


@contextlib.contextmanager
def using(**options: Any) -> Generator[Config]:
    """Override options for what is compiled inside the `with` block (in this thread or task).

    Raises:
        OptionError: an unknown option, or a value that it does not take.
    """
    changed = with_options(current(), options)
    token = _active.set(changed)
    try:
        yield changed
    finally:
        _active.reset(token)


def with_options(base: Config, options: Mapping[str, Any]) -> Config:
    """`base` with `options` on top.

    Raises:
        OptionError: an unknown option, or a value that it does not take, or that cannot be used here and now.
    """
    check_names(options)
    changed = replace(base, **options)
    for name in options:
        checks()[name].look(name, getattr(changed, name))
    return changed


@contextlib.contextmanager
def using_config(config: Config) -> Generator[Config]:
    """Make `config` the one in force inside the `with` block."""
    token = _active.set(config)
    try:
        yield config
    finally:
        _active.reset(token)
