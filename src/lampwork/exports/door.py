"""`lampwork.export(model, path)`: what was compiled, written for another tool."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

from torch import Tensor, nn

from lampwork.api import arguments_of, check_keywords, check_model, function_of, make_function, original_of
from lampwork.backends.eager import EagerBackend
from lampwork.capture.model.evaluate import holds
from lampwork.capture.model.region import Known, root_of
from lampwork.checks import nearest
from lampwork.compiled.entries import Entry
from lampwork.compiled.function import Function
from lampwork.compiled.module import CompiledModule
from lampwork.compiled.pipeline import build_entry
from lampwork.display import Shown
from lampwork.errors import ExportError, OptionError, text_of
from lampwork.inspect.profile.watch import UNSEEN, Times, Watch
from lampwork.records import record
from lampwork.runtime import Compiled
from lampwork.written import HINT, write_whole, write_with

FORMATS = {
    ".pt2": "pt2",
    ".lamp": "lamp",
    ".onnx": "onnx",
    ".json": "model-explorer",
    ".dot": "dot",
    "": "tlparse",
}
"""Suffix -> format; a folder has none."""


@record
class Exported(Shown):
    """What `export` wrote. `regions`: of what, by name. `inputs`, `outputs`: their names, of a program that can be run.
    `files`: `path` and what was written beside it. `notes`: what one has to know before one uses it."""

    path: Path
    format: str
    regions: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def _brief(self) -> str:
        return f"{self.path.name}: {self.format}, {', '.join(self.regions)}"

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.format} of {', '.join(self.regions)}"]
        if self.inputs or self.outputs:
            lines.append(f"  ({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})")
        lines += [f"  also {file}" for file in self.files if file != self.path]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@overload
def export(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Any = None,
    /,
    *,
    dynamic_shapes: Any = None,
    region: int | str | None = None,
    module: str = "",
    format: str | None = None,
    targets: str | Sequence[str] | None = None,
    entries: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    require: str | None = None,
    prepack: bool | None = None,
) -> Exported: ...
@overload
def export(
    model: Any,
    args: tuple[Any, ...] | list[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | os.PathLike[str],
    inputs: Any = None,
    dynamic_shapes: Any = None,
    region: int | str | None = None,
    module: str = "",
    format: str | None = None,
    targets: str | Sequence[str] | None = None,
    entries: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    require: str | None = None,
    prepack: bool | None = None,
) -> Exported: ...
def export(
    model: Any,
    args: Any = None,
    kwargs: Any = None,
    *,
    path: Any = None,
    inputs: Any = None,
    dynamic_shapes: Any = None,
    region: int | str | None = None,
    module: str = "",
    format: str | None = None,
    targets: str | Sequence[str] | None = None,
    entries: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    require: str | None = None,
    prepack: bool | None = None,
) -> Exported:
    """Write a model as a file that runs elsewhere, or what Lampwork compiled in a format that other tools read.

    It is called as `export(model, path, inputs)`, or as `export(model, args, kwargs, path=path)`.

    | suffix | format | what reads it |
    |---|---|---|
    | `.lamp` | `lamp` | `lampwork.load`, and C++: machine code, weights and graphs of a model |
    | `.pt2` | `pt2` | `torch.export.load`: a program of one region |
    | `.onnx` | `onnx` | ONNX Runtime, Netron: a model of one region |
    | `.json` | `model-explorer` | Model Explorer: the graphs, with modules as layers and kernels in colour |
    | `.dot` | `dot` | Graphviz: the same as a drawing |
    | a folder | `tlparse` | `tlparse`: a page of what was compiled, as torch's structured trace |

    Args:
        model: what `compile` returned; or a function or module, which is captured (for `.pt2` and `.onnx`) or compiled
            (for the others) for the call with `inputs`.
        path: the file, or the folder of a trace. A file that is there is replaced.
        inputs: the arguments of a call: a tuple or list of them, a mapping of keyword arguments, or a single argument.
            The call is made, once: of a compiled `model` the regions that served it are exported, with how long their
            kernels took. Left out: all that is compiled.
        region: which one, where there are several: its number, in the order of `explain`, or its name.
        module: the path of a module, such as "encoder.layer.3.attention": only what it computes. What comes from
            elsewhere is an input, what is used elsewhere is an output.
        format: one of those above, where the suffix does not say.
        dynamic_shapes: of `.lamp`: the sizes of the arguments that are left open, as `torch.export.export` takes them;
            a size that is marked (`mark_dynamic`) is open too.
        targets: of `.lamp`: the machines that code is made for, by name ("x86-64-v3", "aarch64", "host"). Left out:
            this one, and its kind with less.
        entries: of `.lamp`: several calls of the model by name, instead of one: `(args, kwargs, dynamic_shapes)`, of
            which the last ones may be left out, or such a tuple with a method of the model before them.
        metadata: of `.lamp`: what `load` gives back as `metadata`: anything that JSON can have.
        require: of `.lamp`: "standalone": an error if a program calls operators of PyTorch, without which it runs.
        prepack: of `.lamp`: True: what programs compute of weights alone (packed and folded weights) is in the file
            too, for each target that runs here, so that a first call need not compute it. The file is larger by it.

    Raises:
        OptionError: an argument is wrong.
        ExportError: there is nothing to export, the format cannot have it, a package is missing, or the path cannot be
            written to.
        Exception: the model raised it.
    """
    path, call = _call_of(args, kwargs, path, inputs)
    chosen = format_of(path, format)
    if chosen != "tlparse":
        check_folder(path)
    of_artifacts = {
        "dynamic_shapes": dynamic_shapes,
        "targets": targets,
        "entries": entries,
        "metadata": metadata,
        "require": require,
        "prepack": prepack,
    }
    if chosen == "lamp":
        if region is not None or module:
            raise OptionError(
                "region and module are of other formats: a .lamp file is of whole calls",
                fix="leave them out, or pass the module itself as the model",
            )
        return _artifact(model, Path(path), call, of_artifacts)
    for name, given in of_artifacts.items():
        if given is not None:
            raise OptionError(f"{name} is of .lamp files, and this is {chosen}", fix=f"leave {name} out")
    served = call is not None
    regions, times = _compiled(model, call, kernels=chosen not in PROGRAMS)
    return write(regions, chosen, Path(path), region, module, times, served=served)


def _call_of(args: Any, kwargs: Any, path: Any, inputs: Any) -> tuple[Any, Arguments | None]:
    """The path, and the arguments of the call, of either form of `export`.

    Raises:
        OptionError: they are of neither.
    """
    if path is None and args is not None and not isinstance(args, (tuple, list, Tensor)):
        path, args, kwargs, inputs = args, None, None, inputs if kwargs is None else kwargs
    if path is None:
        raise OptionError(
            "path is None, expected the path of a file",
            fix="write export(model, args, kwargs, path='model.lamp')",
        )
    if inputs is not None:
        if args is not None or kwargs is not None:
            raise OptionError("export() takes inputs, or args and kwargs", fix="leave inputs out")
        return path, arguments_of(inputs)
    if args is None and kwargs is None:
        return path, None
    if args is not None and not isinstance(args, (tuple, list)):
        raise OptionError(
            f"args is a {type(args).__name__}, expected a tuple of arguments", fix="write (x,) for one"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(
            f"kwargs is a {type(kwargs).__name__}, expected a dict of arguments", fix="write {'mask': mask}"
        )
    return path, (tuple(cast("Sequence[Any]", args or ())), dict(cast("Mapping[str, Any]", kwargs or {})))


def _artifact(model: Any, path: Path, call: Arguments | None, given: Mapping[str, Any]) -> Exported:
    from lampwork.exports.lamp import Wanted, calls_of, export_artifact

    calls = calls_of(model, call, given["dynamic_shapes"], given["entries"])
    wanted = Wanted(given["targets"], given["metadata"], given["require"], given["prepack"] or False)
    inputs, outputs, notes = export_artifact(path, model, calls, wanted)
    return Exported(path, "lamp", tuple(calls), inputs, outputs, (path,), notes)


def write(
    regions: Sequence[Place],
    format: str,
    path: Path,
    region: int | str | None,
    module: str,
    times: Times,
    *,
    served: bool = False,
) -> Exported:
    """Write one of the regions, or all, where the format can have several. `served`: a call that was just made.

    Raises:
        ExportError: as for `export`.
    """
    found = _selected(regions, region, module)
    if format in PROGRAMS:
        chosen = _only(found, regions, served=served)
        return _program(format, path, chosen, module, () if served else _changes(chosen))
    return _drawing(format, path, found, module, times)


@record(eq=False)
class Place:
    """A region, and the function that it is of."""

    entry: Entry
    function: Function


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a call: by position and by name."""

PROGRAMS = ("pt2", "onnx")
"""Formats of one region that can be run."""


def format_of(path: str | os.PathLike[str], given: str | None) -> str:
    """The format that a path says, or the one that is `given`.

    Raises:
        OptionError: there is no such format, or the path says none.
    """
    text = _text_of(path)
    names = tuple(FORMATS.values())
    if given is not None:
        if given not in names:
            raise OptionError(f"there is no format {given!r}", fix=nearest(given, names, "the formats are"))
        return given
    name, is_folder = Path(text).name, os.path.isdir(text)
    if name in FORMATS and not is_folder:
        raise OptionError(f"{text!r} is a suffix without a name", fix=f"name the file: model{name}")
    suffix = Path(name).suffix
    if is_folder and FORMATS.get(suffix) in (None, "tlparse"):
        return "tlparse"
    if is_folder:
        raise OptionError(
            f"{text!r} is a folder, and {suffix} says that it is a file",
            fix="name a file in it; or pass format='tlparse', which is written to a folder",
        )
    if suffix not in FORMATS:
        known = ", ".join(f"{s} ({name})" for s, name in FORMATS.items() if s)
        raise OptionError(
            f"{text!r} does not say which format: there is none for {suffix}",
            fix=f"name the file {known}; or pass format=, one of {', '.join(names)}",
        )
    return FORMATS[suffix]


def _text_of(path: object) -> str:
    """
    Raises:
        OptionError: it is no path, or names nothing.
    """
    found = path if isinstance(path, str) else os.fspath(path) if isinstance(path, os.PathLike) else None
    if not isinstance(found, str) or not found:
        raise OptionError(f"path is {path!r}, expected the path of a file", fix="such as 'model.pt2'")
    return found


def check_folder(path: str | os.PathLike[str]) -> None:
    """Before a program runs for what cannot be written.

    Raises:
        ExportError: the folder of `path` is not there, or no file can be called like this.
    """
    folder = Path(path).absolute().parent
    if not os.path.isdir(folder):
        raise ExportError(
            f"{path} cannot be written: there is no folder {folder}", fix="make the folder first"
        )
    try:
        os.lstat(path)
    except FileNotFoundError:
        return  # as it mostly is
    except (OSError, ValueError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or text_of(error)
        raise ExportError(f"{str(path)!r} cannot be written: {cause}", fix=HINT) from error


def _compiled(model: Any, inputs: Arguments | None, *, kernels: bool) -> tuple[list[Place], Times]:
    """The regions to choose from, in the order of `explain`, and the times of the call."""
    if isinstance(model, (Compiled, CompiledModule)):
        function = function_of(model)
        if inputs is None:
            found = places(function)
            if not found:
                raise ExportError(
                    f"{function.name} is not compiled yet",
                    fix="call it once, or pass the arguments of a call: export(model, path, inputs)",
                )
            return found, UNSEEN
        before = {id(place.entry): place.entry.hits for place in places(function)}
        times = _call(function, inputs)
        return [p for p in places(function) if p.entry.hits > before.get(id(p.entry), 0)], times
    check_model(model, "export")
    if inputs is None:
        raise OptionError(
            "export() needs a call of what is not compiled yet",
            fix="pass the arguments of a call: export(model, path, inputs)",
        )
    keywords = check_keywords(options={"strict": False})
    function = make_function(original_of(model), keywords, quiet=True)
    if not kernels:
        function.build = lambda region, owner, stages: build_entry(region, owner, stages, (EagerBackend(),))
    times = _call(function, inputs)
    return places(function), times


def _call(function: Function, inputs: Arguments) -> Times:
    args, kwargs = inputs
    with Watch() as watch:
        function.compiled(*args, **kwargs)
    return watch.times()


def places(*roots: Function) -> list[Place]:
    """All regions of functions and of what they go on in, in the order of `explain`."""
    functions = {id(each): each for root in roots for each in root.tree()}.values()
    owners = {id(entry): each for each in functions for entry in each.entries}
    found: dict[int, Place] = {}
    for each in functions:
        for entry in each.entries:
            for part in entry.regions:
                found.setdefault(id(part), Place(part, owners.get(id(part), each)))
    return list(found.values())


def _selected(regions: Sequence[Place], region: int | str | None, module: str) -> list[Place]:
    """Those that the arguments name, of which one has operators at least."""
    if region is not None:
        if isinstance(region, int) and not isinstance(region, bool) and 0 <= region < len(regions):
            return [regions[region]]
        named = [place for place in regions if place.entry.name == region]
        if named:
            return named
        raise ExportError(
            f"there is no region {region!r}", fix=f"the regions are\n{_listed(regions, regions)}"
        )
    found = [place for place in regions if _has_operators(place.entry)]
    if not found:
        raise ExportError(
            "there is no region with operators: nothing was compiled that computes tensors",
            fix="lampwork.explain(model)(*args) says why; the graph breaks and refusals are among its reasons",
        )
    if module:
        from lampwork.exports.pieces import modules_in, within

        known = tuple(
            dict.fromkeys(m for place in found for m in modules_in(cast(Any, place.entry.stages.aten)))
        )
        if not any(within(each, module) for each in known):
            fix = (
                nearest(module, known, "the modules are")
                if known
                else "there are no modules in it: leave `module` out"
            )
            raise ExportError(f"there is no module {module!r} in what was compiled", fix=fix)
        found = [
            p for p in found if any(within(m, module) for m in modules_in(cast(Any, p.entry.stages.aten)))
        ]
    return found


def _has_operators(entry: Entry) -> bool:
    return bool(entry.operators)


def _only(found: Sequence[Place], regions: Sequence[Place], *, served: bool) -> Place:
    """The one region; of several the one whose weights the model still has.

    Raises:
        ExportError: there are several, or its weights were replaced.
    """
    kept = list(found) if served else [place for place in found if _replaced(place) is None]
    if len(kept) == 1:
        return kept[0]
    if len(found) > 1:
        raise ExportError(
            f"there are {len(found)} regions, and this format is of one",
            fix=f"pass region=, the number or name of one:\n{_listed(found, regions)}",
        )
    raise ExportError(
        f"{found[0].entry.name} was compiled with another {_replaced(found[0])} than there is now",
        fix="pass the arguments of a call, which compiles it for this one: export(model, path, inputs)",
    )


def _replaced(place: Place) -> str | None:
    """The name of a weight or module that is another object now than the region was compiled for."""
    region = place.entry.region
    for guard in (*region.guards, *region.slow_guards):
        if guard.kind != "is" or not isinstance(guard.expected, (Tensor, nn.Module)):
            continue
        if isinstance(root_of(guard.source), Known) and not holds(guard, (), {}):
            names = dict(zip(map(id, region.bound), region.bound_names, strict=True))
            return names.get(id(guard.expected), type(guard.expected).__name__)
    return None


def _changes(place: Place) -> tuple[str, ...]:
    """What to say if a call of now would not run the region: `training` is another, or a number that it was made
    for."""
    region = place.entry.region
    kinds = ("is", "equals", "type")
    known = (
        guard
        for guard in (*region.guards, *region.slow_guards)
        if guard.kind in kinds and isinstance(root_of(guard.source), Known)
    )
    if all(holds(guard, (), {}) for guard in known):
        return ()
    return ("the model changed since: it is the one that was called, and a call would compile it again",)


def _listed(found: Sequence[Place], regions: Sequence[Place]) -> str:
    numbers = {id(place): number for number, place in enumerate(regions)}
    return "\n".join(f"    {numbers[id(place)]}: {place.entry._brief()}" for place in found)


_SAVE = {"pt2": "lampwork.exports.program", "onnx": "lampwork.exports.onnx_model"}
_DRAW = {"model-explorer": "lampwork.exports.model_explorer", "dot": "lampwork.exports.dot"}
"""Modules that are loaded when they are needed: each brings a library with it, or a part of torch."""


def _program(format: str, path: Path, place: Place, module: str, also: Sequence[str]) -> Exported:
    _needs(format)
    from lampwork.exports.pieces import flat, piece_of

    piece = piece_of(place.entry, place.function.original, module)
    if format == "onnx":
        piece = flat(piece)
    save: Any = importlib.import_module(_SAVE[format]).save
    notes, beside = write_with(path, lambda target: save(piece, target, path), "the export", ExportError)
    outputs = piece.returned if format == "pt2" else piece.outputs
    return Exported(
        path, format, (piece.name,), piece.inputs, outputs, (path, *beside), (*piece.notes, *also, *notes)
    )


def _needs(format: str) -> None:
    if format == "onnx" and importlib.util.find_spec("onnx") is None:
        raise ExportError("to write .onnx needs the package onnx, not installed here", fix="pip install onnx")


def _drawing(format: str, path: Path, found: Sequence[Place], module: str, times: Times) -> Exported:
    names = tuple(place.entry.name for place in found)
    if format == "tlparse":
        from lampwork.exports.trace import save_trace

        return Exported(path, format, names, files=(save_trace(found, path),))
    from lampwork.exports.drawing import drawings

    drawn = [
        each for place in found for each in drawings(place.entry, place.function.original, module, times)
    ]
    texts: Mapping[Path, str] = importlib.import_module(_DRAW[format]).texts(drawn, path)
    for file, text in texts.items():
        write_whole(file, text, "the export", ExportError)
    return Exported(path, format, tuple(each.name for each in drawn), files=tuple(texts))
