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


def _fixed(name: str, known: Any) -> ArtifactWeightsError:
    if known is None:
        return ArtifactWeightsError(
            f"a loaded artifact has the weights and modules of its file: {name} cannot be added, as its programs would "
            "not use it",
            fix="change the model, then export it again; or put the loaded one into a module of yours",
        )
    return ArtifactWeightsError(
        f"{name} of a loaded artifact cannot be another one, or be taken away: its programs read this one",
        fix="copy into weights, under torch.no_grad(): weight.copy_(value), or load_state_dict; or "
        "load(path, weights=...)",
    )


class _Table(dict[str, Any]):
    """Weights or modules by name, which stay the same: whatever reaches past a module's own methods for them
    (`functional_call`, parametrizations, `register_buffer`) is refused too."""

    def __setitem__(self, name: str, value: Any) -> None:
        known = self.get(name)
        if value is not known or name not in self:
            raise _fixed(name, known)

    def __delitem__(self, name: str) -> None:
        raise _fixed(name, self[name])

    def update(self, *args: Any, **kwargs: Any) -> None:
        for name, value in dict[str, Any](*args, **kwargs).items():
            self[name] = value

    def __ior__(self, other: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.update(other)
        return self

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if name in self or not default:
            del self[name]
        return default[0]

    def popitem(self) -> Any:
        for name in self:
            del self[name]
        raise KeyError("there is none")

    def clear(self) -> None:
        for name in self:
            del self[name]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies of modules are modules like others, which no programs read.
        return dict, (dict(self),)


class _Holder(nn.Module):
    """A module that has weights, and modules that have some. Programs are bound to the tensors, so what is in them may
    change, and they may not be exchanged: once it is built, its tables of them do not change."""

    def __setattr__(self, name: str, value: Any) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            if (known := self.__dict__.get(table, {}).get(name)) is not None and value is not known:
                raise _fixed(name, known)
        super().__setattr__(name, value)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        if assign:
            raise ArtifactWeightsError(
                "the weights of a loaded artifact cannot be other tensors: its programs read the ones that are there",
                fix="load_state_dict(..., assign=False), which copies into them",
            )
        return super().load_state_dict(state_dict, strict)

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
        for module in self.modules():
            for table in ("_parameters", "_buffers", "_modules"):
                module.__dict__[table] = _Table(module.__dict__[table])
        self.training = any(entry.training for entry in manifest.entries.values())
        for module in self.modules():
            module.training = self.training

    def serve(self, entries: Mapping[str, LoadedEntry], main: str) -> None:
        """What it can be called for."""
        self.__dict__.update(entries=MappingProxyType(dict(entries)), _main=entries[main])

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
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
