"""A model as a `.lamp` file: what it computes for each call that it was exported for, compiled for several machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from lampwork import pristine
from lampwork.api import check_keywords, check_model, function_of, make_function, original_of
from lampwork.artifacts import manifest as m
from lampwork.artifacts.container import SECTION, digest, open_container, write_container
from lampwork.artifacts.trees import (
    Constant,
    Kept,
    Leaf,
    Made,
    Mapped,
    Number,
    Sequenced,
    Tree,
    is_constant,
)
from lampwork.backends.native.compile_for import compile_for
from lampwork.capture.model.evaluate import find
from lampwork.capture.model.region import Arg, Kwarg, Region, Source, TensorGuard, root_of
from lampwork.capture.state.dynamic import strides_of
from lampwork.codegen.llvm.targets import TARGETS, facts, named_target
from lampwork.compiled.module import CompiledModule
from lampwork.compiled.whole import captured_whole
from lampwork.config import Config
from lampwork.errors import ArtifactError, CaptureError, ExportError, OptionError, text_of
from lampwork.exports import results
from lampwork.exports.apart import Asked, Sizes, groups_of, sizes_apart
from lampwork.exports.arguments import argument_trees
from lampwork.exports.copies import copies, copies_without_torch
from lampwork.exports.dims import (
    Open,
    check_open,
    open_sizes,
    opened,
    program_sizes,
    relations,
    without_implied,
)
from lampwork.exports.naming import collected_names, input_names, keyword_names
from lampwork.exports.pieces import Piece, piece_of_graph
from lampwork.exports.prepacked import Prepacked
from lampwork.exports.stored import check_stores
from lampwork.exports.torch_program import Nesting, flat_program, program_of
from lampwork.exports.weights import Weights
from lampwork.graph.concrete import scope_of
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Condition, Scope, SymbolicInt, hint_of
from lampwork.loops.ir.polynomial import Index, as_index
from lampwork.loops.ir.symbols import replace_symbols
from lampwork.records import record
from lampwork.runtime import Compiled
from lampwork.serial import Modules, graph_to_json, layout_to_json, to_text
from lampwork.standard import itertools

_MOST_APART = 16
"""How many programs are made for sizes that are apart, at most."""

_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
"""What code is made for beside this machine's own, where nobody says."""


@record(eq=False)
class Call:
    """One entry: `function` is called with these arguments. `nesting`: how a program of torch.export passes them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None
    nesting: Nesting | None = None


def calls_of(
    model: Any, call: tuple[tuple[Any, ...], dict[str, Any]] | None, dynamic_shapes: Any, entries: Any
) -> dict[str, Call]:
    """The calls that a model is exported for, by the names of their entries.

    Raises:
        OptionError: there is none, or one is not of the form of one.
    """
    program = program_of(model)
    if entries is not None:
        if call is not None or dynamic_shapes is not None:
            raise OptionError(
                "entries says all calls, so args, kwargs and dynamic_shapes stand beside nothing",
                fix="move them into entries={'forward': (args, kwargs, dynamic_shapes), ...}",
            )
        if not isinstance(entries, Mapping) or not entries:
            raise OptionError(
                f"entries is {str(entries)[:80]}, expected a dict of calls by name",
                fix="entries={'prefill': (args, kwargs), 'decode': (args, kwargs)}",
            )
        return {str(name): _entry_call(model, name, each) for name, each in cast("Any", entries).items()}
    if program is not None:
        example: Any = (program.example_inputs or (None, None)) if call is None else call
        args, kwargs = example
        if args is None:
            raise OptionError(
                "the exported program has no example inputs", fix="pass the arguments of a call: args, kwargs"
            )
        module, nesting = flat_program(program, args, dict(kwargs))
        if dynamic_shapes is None:
            sizes = program_sizes(program, args, kwargs)
        else:
            sizes = open_sizes(dynamic_shapes, nesting.names, args, kwargs)
        return {"forward": Call(module, tuple(nesting.leaves), {}, sizes, nesting)}
    check_model(model, "export")
    if call is None:
        raise OptionError(
            "an artifact is made of a call",
            fix="pass its arguments: export(model, args, kwargs, path='model.lamp')",
        )
    return {"forward": Call(model, *call, dynamic_shapes)}


def _entry_call(model: Any, name: Any, given: Any) -> Call:
    items = list(cast("Sequence[Any]", given)) if isinstance(given, (tuple, list)) else [given]
    function = model
    if items and callable(items[0]) and not isinstance(items[0], Tensor):
        function = items.pop(0)
    check_model(function, "export")
    fix = f"entries={{{name!r}: (args, kwargs, dynamic_shapes)}}, args a tuple and kwargs a dict"
    if not 1 <= len(items) <= 3 or not isinstance(items[0], (tuple, list)):
        raise OptionError(f"entry {name!r} is no tuple of args, kwargs and dynamic_shapes", fix=fix)
    args, kwargs, sizes = (*items, *[None] * (3 - len(items)))
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(f"the kwargs of entry {name!r} are a {type(kwargs).__name__}", fix=fix)
    return Call(function, tuple(cast("Sequence[Any]", args)), dict(cast("Any", kwargs) or {}), sizes)


@record(eq=False)
class Wanted:
    """The keywords of an export to `.lamp`, as they were given."""

    targets: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    require: str | None = None
    prepack: bool = False


@record(eq=False)
class _Captured:
    """An entry, captured. `said`: conditions that the user names."""

    piece: Piece
    region: Region
    sizes: tuple[Open, ...]
    said: tuple[Condition, ...]
    call: Call
    config: Config
    names: tuple[str, ...]
    ordered: tuple[str, ...]
    training: bool
    otherwise: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    served: set[tuple[int, int, int]] = field(default_factory=set[tuple[int, int, int]])
    """(id of a tensor, dimension, size): what entries beside this one are for."""

    @property
    def strides(self) -> dict[str, Index]:
        """The symbols that are strides, as the sizes give them: a call's inputs are laid out so."""
        found: dict[str, Index] = {}
        for number, source in enumerate(self.piece.sources):
            dims = {
                symbol.dim: symbol.name
                for symbol in self.region.symbols
                if symbol.kind == "stride" and symbol.source == source
            }
            if dims:
                tensor = find(source, self.call.args, self.call.kwargs)
                made = strides_of(tensor, self.piece.placeholders[number].meta["val"].shape)
                found.update((name, as_index(made[dim])) for dim, name in dims.items())
        return found

    @property
    def apart(self) -> list[list[Sizes]]:
        """For each group of open sizes what this entry leaves out, and another one may serve."""
        args, kwargs = self.call.args, self.call.kwargs
        names = {
            (id(find(symbol.source, args, kwargs)), symbol.dim): symbol.name
            for symbol in self.region.symbols
            if symbol.kind == "size"
        }
        equal = (scope_of(self.piece.graph) or Scope()).equal
        open_now = [(each, names.get((id(each.tensor), each.dim))) for each in self.sizes]
        groups = groups_of((each, _index(name, equal)) for each, name in open_now if name is not None)
        highest: dict[Index, int] = {}
        excluded: dict[Index, list[int]] = {}
        for condition in self.region.conditions:
            bound = _bound(replace(condition, op=">="))
            if bound is None or condition.op not in (">=", "!="):
                continue
            index = _index(bound[0], equal)
            if condition.op == "!=":
                excluded.setdefault(index, []).append(bound[2])
            elif bound[1] is None:
                highest[index] = min(bound[2], highest.get(index, bound[2]))
        return [sizes_apart(group, Asked(highest, excluded)) for group in groups]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All there are by now: compiling adds to them."""
        found = (*self.region.conditions, *self.said)
        return tuple({(each.op, each.index): each for each in reversed(found)}.values())[::-1]


def export_artifact(
    path: Path, model: Any, calls: Mapping[str, Call], wanted: Wanted
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Write the file; gives the names of inputs and outputs of the first entry, and notes.

    Raises:
        OptionError: a keyword is wrong.
        ExportError: an entry is no single region, has what no file can have, or cannot be open as far as it was to be.
    """
    metadata = _metadata(wanted.metadata)
    if wanted.require not in (None, "standalone"):
        raise OptionError(
            f"require is {wanted.require!r}, expected None or 'standalone'", fix="require='standalone'"
        )
    if type(cast(object, wanted.prepack)) is not bool:
        raise OptionError(f"prepack is {wanted.prepack!r}, expected True or False", fix="prepack=True")
    for name in calls:
        if not m.is_entry_name(name):
            raise OptionError(
                f"{name!r} is no name for an entry", fix="give one that Python takes, without _ in front"
            )
    names = _targets(wanted.targets)
    root = _root(model, calls)
    captured: dict[str, _Captured] = {}
    for name, call in calls.items():
        captured[name] = whole = _capture(name, call)
        captured.update(_apart(name, whole))
    weights = Weights.of_model(root)
    bound = {name: weights.numbers(each.piece) for name, each in captured.items()}
    weights.check_apart()
    sections: dict[str, bytes] = {}
    prepacked = Prepacked() if wanted.prepack else None
    targets = tuple(_compile(name, captured, sections, wanted, prepacked) for name in names)
    entries: dict[str, m.Entry] = {}
    for name, each in captured.items():
        if m.is_entry_name(name):
            call = each.call
            check_open(each.conditions, each.region, each.sizes, call.args, call.kwargs, each.served)
        graph = f"{SECTION}graph.{name}"
        sections[graph] = to_text(graph_to_json(each.piece.graph))
        entries[name] = _entry(each, bound[name], graph)
    made = m.Manifest(
        _name(model),
        tuple(weights.found),
        # Who exports for Python need not hear of C++, and who looks into the file may.
        {
            name: replace(
                entry,
                notes=(
                    *entry.notes,
                    *copies_without_torch(captured[name].piece, bool(_result(captured[name].piece.whole)[1])),
                ),
            )
            for name, entry in entries.items()
        },
        targets,
        {name: m.Section(digest(data), len(data)) for name, data in sections.items()},
        metadata,
        made=m.now(),
        prepacked=() if prepacked is None else tuple(prepacked.found),
    )
    tensors = weights.tensors if prepacked is None else {**weights.tensors, **prepacked.tensors}
    texts = {"format": m.FORMAT, m.MANIFEST: m.manifest_to_text(made)}
    write_container(path, tensors, sections, texts, _check_written)
    first = next(iter(captured.values())).piece
    entries = {name: entry for name, entry in entries.items() if m.is_entry_name(name)}
    notes = dict.fromkeys(
        f"{name}: {note}" if len(entries) > 1 else note
        for name, entry in entries.items()
        for note in entry.notes
    )
    further = () if prepacked is None else prepacked.notes
    return first.inputs, first.returned, (*notes, *further)


def _check_written(path: Path) -> None:
    """What was written is what can be loaded.

    Raises:
        ExportError: it is not.
    """
    try:
        m.read_manifest(open_container(path))
    except ArtifactError as error:
        raise ExportError(
            f"a file that says all this of the model could not be loaded: {error.cause.partition(': ')[2]}",
            fix="simplify what is named there; if you find nothing unusual about it, please report this",
        ) from error


def _metadata(given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(key, str) for key in cast("Mapping[Any, Any]", given)
    ):
        raise OptionError(
            f"metadata is {str(given)[:80]}, expected a dict by texts", fix="metadata={'author': 'me'}"
        )
    found = dict(cast("Mapping[str, Any]", given))
    try:
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"metadata has what JSON cannot have: {text_of(error)}",
            fix="give texts, numbers, lists and dicts",
        ) from error
    return found


def _targets(given: Any) -> tuple[str, ...]:
    """The names of targets, best first."""
    ranks = {name: number for number, name in enumerate(TARGETS)}
    if given is None:
        host = facts("host")
        below = (each for each in _LEVELS if ranks[each] > ranks[host.name])
        return (host.name, *(each for each in below if TARGETS[each].machine == host.machine))
    if not isinstance(given, (str, tuple, list)):
        raise OptionError(
            f"targets is a {type(given).__name__}, expected names of targets",
            fix="targets=['x86-64-v3', 'aarch64']",
        )
    names = (given,) if isinstance(given, str) else tuple(cast("Sequence[Any]", given))
    if not names:
        raise OptionError("targets names none", fix="leave it out for this machine's")
    return tuple(sorted({facts(name).name for name in names}, key=ranks.__getitem__))


def _root(model: Any, calls: Mapping[str, Call]) -> nn.Module | None:
    if program_of(model) is not None:
        return cast(nn.Module, next(iter(calls.values())).function)
    original = original_of(model)
    if isinstance(original, MethodType):
        original = original.__self__
    return original if isinstance(original, nn.Module) else None


def _name(model: Any) -> str:
    original = original_of(model)
    kind = original if hasattr(original, "__name__") else type(original)
    return str(getattr(kind, "__name__", "model"))


# --- capturing --------------------------------------------------------------------------------------------------------


def _capture(name: str, call: Call) -> _Captured:
    keywords = check_keywords(fullgraph=True, options={"strict": True})
    if isinstance(call.function, Compiled | CompiledModule):
        compiled = function_of(call.function)
        keywords = replace(keywords, config=replace(compiled.config, strict=True))
    original = original_of(call.function)
    function = make_function(original, keywords, quiet=True)
    named = input_names([Arg(number) for number in range(len(call.args))], original)
    sizes = call.dynamic_shapes
    if not (isinstance(sizes, tuple) and all(isinstance(each, Open) for each in cast("tuple[Any]", sizes))):
        sizes = open_sizes(sizes, named, call.args, call.kwargs)
    if "self" in call.kwargs:
        raise ExportError(
            f"{name} takes self=, which a call of the loaded module cannot pass by name",
            fix="give the parameter another name",
        )
    call, sizes = _contiguous(call, sizes)
    try:
        with pristine.no_grad(), opened(sizes):
            region = captured_whole(function, call.args, call.kwargs)
    except CaptureError as error:
        raise ExportError(
            f"{name} cannot be exported whole: [{error.code}] {error.cause}",
            fix=error.fix or "lampwork.explain(model)(*args) shows where it breaks",
            location=error.location,
        ) from error
    graph = region.graph
    if graph is None:
        raise ExportError(
            f"{name} computes no tensors, so there is nothing to export", fix="export what computes something"
        )
    _check_symbols(name, region)
    notes = check_stores(name, region)
    piece = piece_of_graph(name, region, graph, original, _passed(region, graph, call), keeps=True)
    owner = original.__self__ if isinstance(original, MethodType) else original
    return _Captured(
        piece,
        region,
        sizes,
        relations(region, sizes, call.args, call.kwargs),
        call,
        function.config,
        keyword_names(len(call.args), original) if call.nesting is None else call.nesting.names,
        collected_names(call.kwargs, original),
        isinstance(owner, nn.Module) and owner.training,
        notes=list(notes),
    )


def _contiguous(call: Call, sizes: tuple[Open, ...]) -> tuple[Call, tuple[Open, ...]]:
    """The call with copies of tensors whose elements lie in one another's place (`expand`): what calls pass is laid out
    as the example is, and no other tensor can be laid out so."""
    made: dict[int, Tensor] = {}

    def note(value: Any) -> None:
        if (
            type(value) is Tensor
            and value.layout == torch.strided
            and m.overlaps(value.shape, value.stride())
        ):
            made[id(value)] = value.detach().contiguous().requires_grad_(value.requires_grad)
        elif isinstance(value, (list, tuple)):
            for each in cast("Sequence[Any]", value):
                note(each)
        elif isinstance(value, Mapping):
            for each in cast("Mapping[Any, Any]", value).values():
                note(each)

    note((call.args, call.kwargs))
    if not made:
        return call, sizes
    sizes = tuple(replace(each, tensor=made.get(id(each.tensor), each.tensor)) for each in sizes)
    return replace(call, args=_with(call.args, made), kwargs=_with(call.kwargs, made)), sizes


def _apart(name: str, whole: _Captured) -> dict[str, _Captured]:
    """The same call with open sizes fixed at numbers that a program for all sizes leaves out: 1, which broadcasts, and
    the largest, if the model asks whether a size is smaller. One for each of the sizes, and for several together."""
    tries = [((), *sizes) for sizes in whole.apart]
    found: dict[str, _Captured] = {}
    for chosen in itertools.islice(itertools.product(*tries), _MOST_APART):
        fixed = [pair for sizes in chosen for pair in sizes]
        if not fixed:
            continue
        made: dict[int, Tensor] = {}
        for each, size in fixed:
            made[id(each.tensor)] = _sized(made.get(id(each.tensor), each.tensor), each.dim, size)
        args, kwargs = _with(whole.call.args, made), _with(whole.call.kwargs, made)
        closed = {(id(each.tensor), each.dim) for each, _ in fixed}
        rest = tuple(
            replace(each, tensor=made.get(id(each.tensor), each.tensor))
            for each in whole.sizes
            if (id(each.tensor), each.dim) not in closed
        )
        key = f"{name}.{len(found) + 1}"
        try:
            found[key] = _capture(name, Call(whole.call.function, args, kwargs, rest, whole.call.nesting))
        except Exception as error:
            for each, size in fixed:
                if each.must and size in (each.low, each.high):
                    raise ExportError(
                        f"{each.where} cannot be {size}, as {each.name or 'its Dim'} says: {text_of(error)}",
                        fix="give the Dim other bounds",
                    ) from error
            said = " and ".join(f"{each.where} {size}" for each, size in fixed)
            whole.notes.append(f"it does not take {said}: {text_of(error).splitlines()[0]}")
            continue
        whole.otherwise.append(key)
        for each, size in fixed:
            whole.served.add((id(each.tensor), each.dim, size))
    return found


def _sized(tensor: Tensor, dim: int, size: int) -> Tensor:
    """A tensor like another one, of another size, with its first part all along."""
    first = tensor.detach().narrow(dim, 0, 1)
    return first.clone() if size == 1 else first.repeat_interleave(size, dim)


def _with(value: Any, tensors: Mapping[int, Tensor]) -> Any:
    """A value with tensors in its containers exchanged."""
    if isinstance(value, Tensor):
        return tensors.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(_with(each, tensors) for each in value)
    if type(value) is dict:
        items = cast("dict[Any, Any]", value).items()
        return {key: _with(each, tensors) for key, each in items}
    return value


def _check_symbols(name: str, region: Region) -> None:
    for symbol in region.symbols:
        if symbol.kind not in ("size", "stride") or not isinstance(root_of(symbol.source), Arg | Kwarg):
            raise ExportError(
                f"{name} has a number that differs between calls and is no size of an argument: {symbol}",
                fix="pass it as a tensor",
            )


def _check_floats(name: str, captured: _Captured) -> None:
    """After compiling, which is what reads floats that Python computes of open sizes."""
    scope = scope_of(captured.piece.graph)
    if scope is not None and scope.derived:
        numbers = ", ".join(map(repr, scope.derived.values()))
        raise ExportError(
            f"{name} reads a float that Python computes of open sizes, which no file can have: {numbers}",
            fix="compute it with tensors, or leave the size fixed",
        )


def _passed(region: Region, graph: fx.Graph, call: Call) -> dict[Source, TensorSpec]:
    """The tensors of a call that the graph does not compute with, but that were looked at."""
    scope = scope_of(graph) or Scope()
    symbols = {(symbol.source, symbol.kind, symbol.dim): symbol for symbol in region.symbols}
    found: dict[Source, TensorSpec] = {}
    for guard in region.guards:
        source, expected = guard.source, guard.expected
        if (
            guard.kind != "tensor"
            or source in region.inputs
            or not isinstance(root_of(source), Arg | Kwarg)
            or not isinstance(expected, TensorGuard)
        ):
            continue
        tensor = find(source, call.args, call.kwargs)

        def number(kind: str, dim: int, value: int, source: Source = source) -> Any:
            symbol = symbols.get((source, cast(Any, kind), dim))
            if symbol is None:
                return value
            scope.hints.setdefault(symbol.name, symbol.hint)
            return SymbolicInt(scope, Index.sym(symbol.name), symbol.hint)

        shape = tuple(number("size", dim, size) for dim, size in enumerate(tensor.shape))
        strides = strides_of(tensor, shape)
        strides = tuple(number("stride", dim, stride) for dim, stride in enumerate(strides))
        found[source] = TensorSpec(shape, strides, expected.dtype, expected.device)
    return found


# --- compiling --------------------------------------------------------------------------------------------------------


def _compile(
    name: str,
    captured: Mapping[str, _Captured],
    sections: dict[str, bytes],
    wanted: Wanted,
    prepacked: Prepacked | None,
) -> m.Code:
    """The programs of all entries for one target: they share their modules of code."""
    target, known = named_target(name), facts(name)
    modules = Modules()
    layouts: dict[str, Any] = {}
    calls: dict[str, tuple[str, ...]] = {}
    kept: dict[str, Any] = {}
    packs = prepacked is not None and prepacked.runs(name)
    for entry, each in captured.items():
        made = compile_for(
            each.piece.graph,
            target,
            mutations=each.piece.writes,
            views=each.piece.views,
            options=each.config,
            standalone=wanted.require == "standalone",
            name=entry,
        )
        _check_floats(entry, each)
        if made.calls and wanted.require == "standalone":
            said = "\n".join(f"    {call}: {why}" for call, why in made.calls.items())
            raise ExportError(
                f"{entry} is not standalone on {name}: its program calls ATen operators\n{said}",
                fix="export without require=, for machines with PyTorch; or leave these operators out of the model",
            )
        layouts[entry] = layout_to_json(made.layout, modules)
        calls[entry] = tuple(made.calls)
        if prepacked is not None and packs:
            found = prepacked.add(made.layout, layouts[entry], each.piece.tensors, modules)
            if found is not None:
                kept[entry] = found
    code: list[str] = []
    for number, content in enumerate(modules.contents):
        code.append(f"{SECTION}code.{name}.{number}")
        sections[code[-1]] = content
    programs = f"{SECTION}programs.{name}"
    content = {"modules": code, "entries": layouts}
    sections[programs] = to_text({**content, "prepacked": kept} if kept else content)
    used = sorted({number for found in kept.values() for number in found["tensors"]})
    return m.Code(
        name, known.machine, known.isa, tuple(known.needs), programs, tuple(code), calls, tuple(used)
    )


# --- the manifest -----------------------------------------------------------------------------------------------------


def _entry(captured: _Captured, weights: tuple[int, ...], graph: str) -> m.Entry:
    piece, region, call = captured.piece, captured.region, captured.call
    result, kept = _result(piece.whole)
    args, kwargs = argument_trees(region, piece.sources, call.args, call.kwargs, call.nesting, kept)
    if call.nesting is not None:
        assert isinstance(result, Sequenced)
        result = call.nesting.result(result.items)
    symbols, conditions = _symbols(captured)
    placeholders = piece.placeholders[: len(piece.inputs)]
    for name, node in zip(piece.inputs, placeholders, strict=True):
        spec = cast(TensorSpec, node.meta["val"])
        if m.overlaps(tuple(map(hint_of, spec.shape)), tuple(map(hint_of, spec.strides))):
            raise ExportError(
                f"{name} has elements in one another's place, and calls pass tensors that lie so",
                fix="pass its contiguous()",
            )
    return m.Entry(
        tuple(
            _tensed(name, node, captured.strides)
            for name, node in zip(piece.inputs, placeholders, strict=True)
        ),
        args,
        kwargs,
        symbols,
        conditions,
        weights,
        tuple(
            _tensed(name, node, captured.strides)
            for name, node in zip(piece.outputs, piece.results, strict=True)
        ),
        result,
        piece.writes,
        graph,
        captured.names,
        captured.training,
        tuple(captured.otherwise),
        (
            *captured.notes,
            *(note for note in piece.notes if not note.startswith(_OF_OTHER_FORMATS)),
            *copies(piece),
        ),
        piece.views,
        captured.ordered,
    )


_OF_OTHER_FORMATS = ("the result is tensors by name", "nothing is returned, so it returns what is written")
"""Notes on results as formats without containers have them."""


def _tensed(name: str, node: fx.Node, known: Mapping[str, Index]) -> m.Tensed:
    spec = cast(TensorSpec, node.meta["val"])
    shape, strides = (
        tuple(replace_symbols(as_index(each), known) for each in found)
        for found in (spec.shape, spec.strides)
    )
    return m.Tensed(name, spec.dtype, shape, strides)


def _symbols(captured: _Captured) -> tuple[tuple[m.Symbol, ...], tuple[Condition, ...]]:
    """The sizes that are open, with their ranges, and the conditions that are no ranges."""
    at = {source: number for number, source in enumerate(captured.piece.sources)}
    lows: dict[str, int] = {symbol.name: 2 for symbol in captured.region.symbols}
    highs: dict[str, int] = {}
    others: list[Condition] = []
    for condition in captured.conditions:
        bound = _bound(condition)
        if bound is None:
            others.append(condition)
        elif bound[1] is None:
            highs[bound[0]] = min(highs.get(bound[0], bound[2]), bound[2])
        else:
            lows[bound[0]] = max(lows[bound[0]], bound[2])
    found: list[m.Symbol] = []
    strides = captured.strides
    for symbol in captured.region.symbols:
        low = lows[symbol.name]
        while Condition("!=", Index.sym(symbol.name) - low) in [Condition(c.op, c.index) for c in others]:
            low += 1
        found.append(
            m.Symbol(
                symbol.name,
                symbol.hint,
                low,
                highs.get(symbol.name),
                at[symbol.source],
                symbol.dim,
                strides.get(symbol.name),
            )
        )
    found.sort(key=lambda each: each.index is not None)
    others = [replace(each, index=replace_symbols(each.index, strides)) for each in others]
    return tuple(found), without_implied(
        each for each in others if not (each.index.is_const and each.holds({}))
    )


def _index(name: str, equal: Mapping[str, Index]) -> Index:
    return replace_symbols(Index.sym(name), equal)


def _bound(condition: Condition) -> tuple[str, bool | None, int] | None:
    """(symbol, True, its lowest value) or (symbol, None, its highest), if the condition says no more."""
    names = condition.index.symbols()
    if condition.op != ">=" or len(names) != 1:
        return None
    (name,) = names
    rest = condition.index - condition.index.constant
    if rest == Index.sym(name):
        return name, True, -condition.index.constant
    if rest == -Index.sym(name):
        return name, None, condition.index.constant
    return None


def _result(whole: Any) -> tuple[Tree, dict[Source, int]]:
    """What a piece returns, as a file has it; and the numbers of the arguments that are in it as they were passed."""
    kept: dict[Source, int] = {}

    def made(tree: Any) -> Tree:
        match tree:
            case results.Leaf():
                return Leaf(tree.number)
            case results.Number():
                return Number(tree.index)
            case results.Passed():
                return Kept(kept.setdefault(tree.source, len(kept)))
            case results.Made():
                fields = tuple((key, made(item)) for key, item in tree.fields)
                if tree.form == "dict":
                    return Mapped(fields)
                if tree.form == "size":
                    return Sequenced("size", tuple(item for _, item in fields))
                return Made(tree.name, tree.form, tuple((str(key), item) for key, item in fields))
            case dict():
                pairs = cast("dict[Any, Any]", tree).items()
                return Mapped(tuple((key, made(item)) for key, item in pairs))
            case list() | tuple():
                items = tuple(map(made, cast("Sequence[Any]", tree)))
                return Sequenced("list" if isinstance(tree, list) else "tuple", items)
            case _:
                if not is_constant(tree):
                    raise ExportError(
                        f"the result has {repr(tree)[:60]} in it, which no file can have",
                        fix="return a tensor",
                    )
                return Constant(tree)

    return made(whole), kept
