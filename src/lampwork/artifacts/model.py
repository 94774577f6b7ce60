"""A model from a file: a module with its weights, whose calls run the file's programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor, nn

from lampwork import pristine
from lampwork.artifacts.calls import LoadedEntry
from lampwork.artifacts.manifest import Manifest, Weight, short
from lampwork.errors import ArtifactWeightsError, warn


class _Holder(nn.Module):
    """A module that has weights, and modules that have some. Programs are bound to the tensors, so what is in them may
    change, and they may not be exchanged."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__.get("_parameters", {}).get(name)
        known = self.__dict__.get("_buffers", {}).get(name) if known is None else known
        if known is not None and value is not known:
            raise ArtifactWeightsError(
                f"the weight {name} of a loaded artifact cannot be another tensor: its programs read this one",
                fix="copy into it, under torch.no_grad(): weight.copy_(value); or load_state_dict(..., assign=False)",
            )
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`to`, `half`, `cuda` and their like: weights stay what they are, so only what changes nothing is done."""
        tensors = (*self.parameters(recurse), *self.buffers(recurse))
        for tensor in tensors:
            with pristine.no_grad():
                made = fn(tensor)
            if (made.dtype, made.device, made.shape) != (tensor.dtype, tensor.device, tensor.shape):
                raise ArtifactWeightsError(
                    f"a loaded artifact is for {short(tensor.dtype)} weights on {tensor.device}, and cannot "
                    f"be made one for {short(made.dtype)} on {made.device}",
                    fix="convert the model, then export it again",
                )
        return self


class LoadedModel(_Holder):
    """What `lampwork.load` gives. It is called as the exported model was, and computes as that did at its export:
    `eval()` and `train()` change nothing. Results require no grad.

    Its weights are in `state_dict()` under their names, over the pages of the file: they are read when they are used,
    and shared by all processes that have the file open until one writes to them. `load_state_dict` takes others.

    entries: what can be called, by name; a call of the model is one of the first, or of the one that `load` named.
    metadata: what the export was given.
    manifest: all that the file says of itself.
    target: which of the file's code is used, and why.
    signer: the id of the key whose signature was checked; "" if none was.
    """

    entries: Mapping[str, LoadedEntry]
    metadata: Mapping[str, Any]
    manifest: Manifest
    target: str
    signer: str

    def __init__(
        self, manifest: Manifest, tensors: Mapping[str, Tensor], path: str, target: str, signer: str = ""
    ) -> None:
        super().__init__()
        self.__dict__.update(
            manifest=manifest,
            metadata=MappingProxyType(dict(manifest.metadata)),
            entries=MappingProxyType({}),
            target=target,
            signer=signer,
            _path=path,
            _main=None,
        )
        for weight in manifest.weights:
            if weight.kind != "constant":
                _place(self, weight, tensors[weight.name])
        self.training = any(entry.training for entry in manifest.entries.values())
        for module in self.modules():
            module.training = self.training

    def serve(self, entries: Mapping[str, LoadedEntry], main: str) -> None:
        """What it can be called for."""
        self.__dict__.update(entries=MappingProxyType(dict(entries)), _main=entries[main])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See LoadedEntry."""
        return self.__dict__["_main"](*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        main: LoadedEntry | None = self.__dict__.get("_main")
        if main is not None and mode != main.spec.training:
            computed, asked = ("training", "eval") if main.spec.training else ("eval", "training")
            warn(
                f"{self._path} was exported in {computed} mode and computes so: {asked} mode changes nothing"
            )
        return super().train(mode)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"what was loaded from {self._path} is not copied or pickled: load the file there")

    def __repr__(self) -> str:
        entries = ", ".join(map(repr, self.entries.values()))
        return f"LoadedModel({self.manifest.name} from {self._path}, {entries}, {self.target})"


def _place(root: nn.Module, weight: Weight, tensor: Tensor) -> None:
    """Put a weight where its name says. A name that the class uses itself is a weight nevertheless."""
    *parents, last = weight.name.split(".")
    module = root
    for part in parents:
        inner = module._modules.get(part)
        if inner is None:
            inner = module._modules[part] = _Holder()
        module = inner
    if weight.kind == "parameter":
        module._parameters[last] = tensor  # pyright: ignore[reportArgumentType]
    else:
        module._buffers[last] = tensor
        if not weight.persistent:
            module._non_persistent_buffers_set.add(last)
