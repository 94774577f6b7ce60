"""`lampwork.minify(fn, args)` and `lampwork minify script.py`: a small script that fails as a large model does."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lampwork import pristine
from lampwork.api import (
    arguments_of,
    check_keywords,
    check_model,
    compile,
    function_of,
    make_function,
    original_of,
)
from lampwork.display import Block, Folded, Shown
from lampwork.errors import MinifyError, OptionError, text_of
from lampwork.graph.printing import quoted
from lampwork.minifying.case import Case
from lampwork.minifying.noting import Noted, keywords_of, noting
from lampwork.minifying.reduce import Reduction, Say
from lampwork.minifying.script import plugins, script_of
from lampwork.plugins.registry import registry
from lampwork.records import record
from lampwork.testing.failing import Check, Failure, Kind, NoProgram, failure
from lampwork.written import write_whole

_KINDS: Mapping[str, tuple[Kind, ...]] = {
    "any": ("wrong", "crash"),
    "wrong": ("wrong",),
    "crash": ("crash",),
    "slow": ("slow",),
}
CHECKS = tuple(_KINDS)


@record
class Minified(Shown):
    """A small program that fails as a large one did.

    `script`: its source, which exits with 1 as long as it fails. `failure`: how. `name`: the function and region that
    it was cut out of. `operators`, `before`: how many it has, and how many that had. `tried`: programs. `alone`:
    whether the script fails in a process of its own; if not, `needs` is what may be missing there: rewrites and passes
    that only this process registers, and statements that register them and could not be run.
    """

    script: str
    failure: Failure
    name: str
    operators: int
    before: int
    tried: int
    alone: bool
    needs: tuple[str, ...] = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the script to a file.

        Raises:
            OptionError: it cannot be written there.
        """
        write_whole(path, self.script, "the script", OptionError)

    def _brief(self) -> str:
        return f"{quoted(self.name)}: {self.operators} of {self.before} operators, {self.failure}"

    def _blocks(self) -> Iterable[Block]:
        yield self.summary()
        yield Folded("script", self.script)

    def summary(self) -> str:
        """What it is, without the script."""
        size = f"{self.operators} of {self.before} operators, {self.tried} programs tried"
        text = f"{quoted(self.name)}, {size}: {self.failure}"
        if self.alone:
            return text
        needs = f", such as what registers {', '.join(self.needs)}" if self.needs else ""
        return f"{text}\nthe script fails in this process only: it needs something of it{needs}; see imports"

    def __str__(self) -> str:
        return f"{self.summary()}\n\n{self.script}"


def minify(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    check: str = "any",
    slow: float = 2.0,
    seconds: float = 300.0,
    timeout: float = 60.0,
    imports: str | Sequence[str] = (),
    say: Say | None = None,
    **keywords: Any,
) -> Minified:
    """Find a small part of a model that fails like the whole once it is compiled, as a script.

    The model runs once in eager PyTorch, which gives the graphs of its regions and their tensors. Each graph is then
    compiled alone, in a forked child with one thread, and compared with eager; the first that fails is made smaller:
    fewer operators, smaller tensors, plainer numbers, fewer options, as long as it fails in the same way.

    Args:
        fn: a function or module. Of what is compiled already, the original, with the keywords that it was compiled
            with.
        inputs: the arguments of a call: a tensor, a tuple of arguments, a dict of keyword arguments.
        check: what to look for: "wrong" results, "crash" (a signal, an exception, no end, a failure of the compiler
            after which eager takes over), "slow", or "any" of the first two.
        slow: for "slow": so many times as long as eager.
        seconds: after which what is found so far is given.
        timeout: seconds that one program may take to compile and run.
        imports: the modules, or the one, that register the rewrites and passes that it needs, for the script. Those
            that this process has imported are found by themselves.
        say: is told of each step.
        keywords: of `lampwork.compile`.

    Raises:
        OptionError: an unknown check or keyword, a time or factor that is none, a model that cannot be called, a module
            in `imports` that cannot be imported.
        MinifyError: no graph fails, or not each time, or none can be tried.
        Exception: the model raises it in eager PyTorch.
    """
    check_model(fn, "minify")
    made = check_of(check, slow, timeout, seconds)
    original = original_of(fn)
    if original is not fn:
        owner = function_of(fn)
        keywords = {**keywords_of(owner, owner.dynamic), **keywords}
    with noting() as noted:
        compiled = make_function(original, check_keywords(**keywords), quiet=True).compiled
        args, kwargs = arguments_of(inputs)
        compiled(*args, **kwargs)
    return minify_noted(noted, made, seconds, imports, say or _nothing)


def _nothing(text: str) -> None:
    del text


def check_of(check: str, slow: float, timeout: float, seconds: float) -> Check:
    """What is looked for, checked.

    Raises:
        OptionError: an unknown check, a time or a factor that is none.
    """
    if check not in CHECKS:
        raise OptionError(f"check is {check!r}", fix=f"give one of {', '.join(CHECKS)}")
    for name, value, least in (("slow", slow, 1.0), ("timeout", timeout, 0.0), ("seconds", seconds, 0.0)):
        if type(value) not in (int, float) or not value > least:
            raise OptionError(f"{name} is {value!r}, expected a number above {least:g}", fix="leave it out")
    return Check(_KINDS[check], slow, seconds=timeout)


def minify_noted(
    noted: Noted, check: Check, seconds: float, imports: str | Sequence[str], say: Say
) -> Minified:
    """The smallest program of the first graph that fails.

    Raises:
        MinifyError: no graph fails, or not each time, or none can be tried.
        OptionError: a module cannot be imported.
    """
    deadline = time.monotonic() + seconds
    imports = [imports] if isinstance(imports, str) else list(imports)
    for module in imports:
        _import(module)
    _load()
    case, first = _failing(noted, check, say)
    state = Reduction(case, first, check, deadline, say)
    state.run()
    found = plugins()
    found = replace(found, modules=tuple(dict.fromkeys((*imports, *found.modules))))
    script = script_of(state.case, state.failure, check, state.texts, found)
    alone = _fails_alone(script, state.failure, check)
    needs = () if alone else (*found.nowhere, *found.statements)
    return Minified(script, state.failure, case.name, state.case.nodes, case.nodes, state.tried, alone, needs)


def _import(module: Any) -> None:
    """
    Raises:
        OptionError: it cannot be imported.
    """
    try:
        importlib.import_module(module)
    except (
        ImportError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:  # it may be no name of a module either
        raise OptionError(
            f"imports names {module!r}, which cannot be imported: {text_of(error)}",
            fix="give the full names of modules as a list, and have their folder in sys.path",
        ) from error


def _load() -> None:
    """Load what compiling needs, once for all children; not where that fails already."""
    options = {"passes": ",".join(f"-{item.name}" for item in registry().all())}
    x = pristine.ones(2).requires_grad_()
    with pristine.enable_grad():
        if failure(_loss, [x], options=options) is None:
            compile(_loss, options=options)(x).backward()


def _loss(x: Tensor) -> Tensor:
    return x.sin().sum()


def _failing(noted: Noted, check: Check, say: Say) -> tuple[Case, Failure]:
    """The first graph that fails, and how."""
    left = [f"{name} cannot be tried, as {why}" for name, why in noted.left.items()]
    for case in noted.cases:
        try:
            seen = case.failure(check)
        except NoProgram as error:
            left.append(f"{case.name} fails in eager PyTorch too: {error}")
            continue
        say(f"{case.name}, {case.nodes} operators: {seen or 'right'}")
        if seen is None:
            continue
        if (again := case.failure(check)) != seen:
            raise MinifyError(
                f"{case.name} does not fail the same way each time: {seen}, then {again or 'right'}",
                fix="seed what is random; look for it with check= of one kind, or a larger slow=",
            )
        return case, seen
    if not noted.cases and not left:
        raise MinifyError(
            "nothing was compiled to a graph", fix="see lampwork.explain for why, and call what is compiled"
        )
    tried = _none_of(len(noted.cases))
    raise MinifyError(
        "; ".join([tried, *left]),
        fix="if the whole fails, it is not in one graph alone: look at guards, at what is written to arguments and at "
        'threads (torch.set_num_threads(1)), or try check="slow"',
    )


def _none_of(count: int) -> str:
    if not count:
        return "no graph can be tried"
    return "the one graph there is does not fail" if count == 1 else f"none of {count} graphs fails"


def _fails_alone(script: str, failure: Failure, check: Check) -> bool:
    """Whether it fails in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="lampwork-minify-") as folder:
        path = Path(folder) / "minified.py"
        path.write_text(script, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, str(path)],
                capture_output=True,
                text=True,
                timeout=2 * check.seconds + 60,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    same = done.stdout.startswith(f"{failure.kind}: ") and failure.what in done.stdout
    return done.returncode == 1 and same
