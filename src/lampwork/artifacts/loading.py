"""`lampwork.load(path)`: a `.lamp` file as a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork import logs, pristine
from lampwork.artifacts.calls import LoadedEntry
from lampwork.artifacts.container import Container, open_container
from lampwork.artifacts.manifest import (
    Manifest,
    Prepacked,
    Weight,
    extent,
    is_entry_name,
    read_manifest,
    short,
)
from lampwork.artifacts.model import LoadedModel
from lampwork.artifacts.plain import is_dense, is_lazy
from lampwork.artifacts.programs import Runner, compiled, linked
from lampwork.artifacts.trust import Key, verified
from lampwork.checks import nearest
from lampwork.codegen.llvm.targets import TargetFacts, pick
from lampwork.errors import ArtifactError, ArtifactTargetError, ArtifactWeightsError, OptionError
from lampwork.garbage import without_collections
from lampwork.standard import functools


@without_collections()
def load(
    path: str | os.PathLike[str],
    *,
    trust: bool = False,
    key: Key | Sequence[Key] | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Tensor] | None = None,
    entry: str | None = None,
    threads: int | None = None,
) -> LoadedModel:
    """A model that `export` wrote to a `.lamp` file, without its source.

    Args:
        trust: run the machine code in the file. Who made it can have it do anything, so say so only of files whose
            origin you know. Else the programs are compiled here, from the graphs in the file, which takes as long as
            the first call of a compiled model.
        key: a public key, or several: the path of a PEM file, its content, or the 32 bytes of an Ed25519 key. The file
            must be signed by one of them (`lampwork sign`), and its machine code is run.
        weights: others than the file's: the path of a safetensors file, or tensors by name.
        entry: the one that a call of the model is; the first, if it is left out.
        threads: how many threads PyTorch uses, in all of this process.

    Raises:
        ArtifactTrustError: it is not signed by one of the keys, or was changed since.
        ArtifactError: the file cannot be read, is damaged, of a later version, or has no code for this machine; or the
            weights are not those that it was exported with.
        OptionError: an argument is wrong.
    """
    if type(cast(object, trust)) is not bool:
        raise OptionError(f"trust is {trust!r}, expected True or False", fix="pass keys as key=")
    if not isinstance(cast(object, path), (str, os.PathLike)):
        raise OptionError(
            f"path is a {type(path).__name__}, expected the path of a .lamp file", fix="load('model.lamp')"
        )
    container = open_container(path)
    signer = ""
    if key is not None:
        # First of all: what is parsed from here on is what was signed.
        found = verified(container, key)
        container, signer = found.container, found.signer
    manifest = read_manifest(container)
    main = _entry(manifest, entry)
    with pristine.inference_mode(False):  # weights may be written to wherever the model is used
        tensors = _tensors(container, manifest, weights)
    if threads is not None:
        if type(cast(object, threads)) is not int or threads < 1:
            raise OptionError(f"threads is {threads!r}, expected a number of 1 or more", fix="threads=1")
        pristine.set_num_threads(threads)
    if trust or signer:
        code, reason = _pick(container, manifest)
        sources = linked(container, manifest, code)
    else:
        reason = "compiled here, as the code of the file is not trusted"
        logs.emit(
            "artifacts", f"{container.path}: its programs are {reason}: load(path, key=...) or trust=True"
        )
        sources = compiled(container, manifest)
    model = LoadedModel(manifest, tensors, container.path, reason, signer)

    @functools.cache
    def prepacked(number: int) -> Tensor:
        return _prepacked(container, manifest.prepacked[number])

    entries: dict[str, LoadedEntry] = {}
    for name, spec in reversed(tuple(manifest.entries.items())):
        described = [manifest.weights[number] for number in spec.weights]
        bound = [tensors[weight.name] for weight in described]
        others = tuple(entries[other] for other in spec.otherwise)
        source = sources[name]
        shared = None
        if source.prepacked is not None and weights is None:
            shared = source.prepacked.over(bound, [prepacked(number) for number in source.prepacked.tensors])
        known = {(each.op, each.index) for each in spec.conditions}
        further = [each for each in source.conditions if (each.op, each.index) not in known]
        spec = replace(spec, conditions=(*spec.conditions, *further))
        entries[name] = LoadedEntry(
            name.partition(".")[0], spec, Runner(source, bound, described, shared), others
        )
    model.serve({name: entries[name] for name in _names(manifest)}, main)
    return model


def _entry(manifest: Manifest, given: Any) -> str:
    names = _names(manifest)
    if given is None:
        return names[0]
    if given not in names:
        raise OptionError(f"there is no entry {given!r}", fix=nearest(str(given), names, "the entries are"))
    return given


def _names(manifest: Manifest) -> tuple[str, ...]:
    """The entries that can be called."""
    return tuple(filter(is_entry_name, manifest.entries))


def _pick(container: Container, manifest: Manifest) -> tuple[Any, str]:
    """The code for this machine, and why.

    Raises:
        ArtifactTargetError: there is none.
    """
    offered = [
        TargetFacts(each.name, each.machine, cast(Any, each.isa), each.needs) for each in manifest.targets
    ]
    choice = pick(offered)
    if choice.chosen is None:
        said = "\n".join(f"    {name}: {reason}" for name, reason in choice.reasons.items())
        raise ArtifactTargetError(
            f"{container.path} has no code for this machine" + (f":\n{said}" if said else ""),
            fix=choice.fix
            or "export it with targets= for this machine, or leave trust out, which compiles it",
        )
    name = choice.chosen.name
    return next(each for each in manifest.targets if each.name == name), f"{name}: {choice.reasons[name]}"


# --- weights ----------------------------------------------------------------------------------------------------------


def _tensors(container: Container, manifest: Manifest, given: Any) -> dict[str, Tensor]:
    """The tensor of each weight, by name. Tied weights are one, as far as they are of one kind."""
    others = {} if given is None else _others(given, manifest)
    stored: dict[str, Tensor] = dict(others)
    made: dict[tuple[str, str], Tensor] = {}
    found: dict[str, Tensor] = {}
    for weight in manifest.weights:
        key = (weight.tensor, weight.kind)
        if key not in made:
            if weight.tensor not in stored:
                stored[weight.tensor] = container.tensor(weight.tensor)
            made[key] = _as_kind(_laid_out(stored[weight.tensor], weight), weight)
        found[weight.name] = made[key]
    return found


def _prepacked(container: Container, about: Prepacked) -> Tensor:
    flat = container.tensor(about.tensor)
    used = extent(about.shape, about.strides) * about.dtype.itemsize
    return flat[:used].view(about.dtype).as_strided(about.shape, about.strides)


def _as_kind(tensor: Tensor, weight: Weight) -> Tensor:
    return nn.Parameter(tensor, requires_grad=False) if weight.kind == "parameter" else tensor


def _laid_out(tensor: Tensor, weight: Weight) -> Tensor:
    """The tensor as programs expect it in memory: itself, or a copy."""
    if tensor.stride() == weight.strides and not is_lazy(tensor):
        return tensor
    memory = pristine.empty(extent(weight.shape, weight.strides), dtype=weight.dtype)
    made = memory.as_strided(weight.shape, weight.strides)
    target = made
    for dim, stride in enumerate(weight.strides):
        if stride == 0 and weight.shape[dim] > 1:  # what is the same all along the dimension is written once
            target, tensor = target.narrow(dim, 0, 1), tensor.narrow(dim, 0, 1)
    target.copy_(tensor)
    return made


def _others(given: Any, manifest: Manifest) -> dict[str, Tensor]:
    """The weights that a user gives instead, by the name of the tensor in the file.

    Raises:
        ArtifactWeightsError: one is missing, unknown, or of another shape or dtype.
    """
    where, tensors = _read(given)
    for name in tensors:
        if not isinstance(cast(object, name), str):
            raise ArtifactWeightsError(
                f"{where} has a key of type {type(name).__name__}, expected the names of weights",
                fix="weights=model.state_dict()",
            )
    known = {weight.name: weight for weight in manifest.weights if weight.kind != "constant"}
    unknown = [name for name in tensors if name not in known]
    missing = {
        weight.tensor: weight.name
        for weight in known.values()
        if weight.persistent
        and not any(other.tensor == weight.tensor and name in tensors for name, other in known.items())
    }
    if unknown or missing:
        parts = [
            *([f"without {_few(list(missing.values()))}"] if missing else []),
            *([f"with {_few(unknown)}, which the model does not have"] if unknown else []),
        ]
        raise ArtifactWeightsError(
            f"{where} has other weights than the artifact: {' and '.join(parts)}",
            fix="pass the state dict of a model of the same class and sizes",
        )
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        weight = known[name]
        if not isinstance(cast(object, tensor), Tensor):
            raise ArtifactWeightsError(
                f"{where} has a {type(tensor).__name__} for {name}, expected a tensor", fix="pass tensors"
            )
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            raise ArtifactWeightsError(
                f"{name} in {where} is no dense tensor ({tensor.layout})", fix="pass its to_dense()"
            )
        came = (tensor.dtype, tuple(tensor.shape), tensor.device.type)
        if came != (weight.dtype, weight.shape, "cpu"):
            raise ArtifactWeightsError(
                f"{name} in {where} is {short(tensor.dtype)} of shape {list(tensor.shape)} on {tensor.device}, "
                f"expected {short(weight.dtype)} of shape {list(weight.shape)} on cpu",
                fix="convert it, or export a model of that kind",
            )
        if not is_dense(tensor):
            raise ArtifactWeightsError(
                f"{name} in {where} is a {type(tensor).__name__} without elements in memory on the CPU, which "
                "programs read",
                fix="pass plain tensors that hold the values",
            )
        tensor = tensor.detach().as_subclass(Tensor)
        before = found.setdefault(weight.tensor, tensor)
        if not tensor.is_set_to(before) and not pristine.equal(before, tensor):
            raise ArtifactWeightsError(
                f"{name} in {where} is not {weight.tensor}, and the artifact has them as one",
                fix="export a model in which they are apart",
            )
    return found


def _read(given: Any) -> tuple[str, Mapping[str, Tensor]]:
    if isinstance(given, Mapping):
        return "weights", cast("Mapping[str, Tensor]", given)
    if not isinstance(given, (str, os.PathLike)):
        raise OptionError(
            f"weights is a {type(given).__name__}, expected the path of a safetensors file or tensors by name",
            fix="weights=model.state_dict()",
        )
    try:
        container = open_container(cast("str", given))
    except ArtifactError as error:
        raise ArtifactWeightsError(
            f"{given} is no safetensors file of weights: {error.cause}",
            fix="write one with safetensors.torch.save_file, or pass a state dict",
        ) from error
    return container.path, {name: container.tensor(name) for name in container.weights}


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
