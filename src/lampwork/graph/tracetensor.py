"""`TraceTensor`: a tensor that has shape, strides, dtype and device but no data, and stands for a node of a graph.

Aliasing is kept in a table of our own. A `Storage` is a piece of memory of the recorded program; its present content
is a node. A tensor is its storage seen through a chain of `ViewStep`s; a write through one alias moves the storage on
to a new node, and every other alias reads its view again from there when it is next used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import fx

from lampwork import pristine
from lampwork.errors import DataDependentError, UnsupportedOpError
from lampwork.graph.known import ask, known_value
from lampwork.graph.opinfo import op_info
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symnode import symints
from lampwork.records import record


@record
class ViewStep:
    """One view of a chain: `op(tensor, *args, **kwargs)`, with the spec of what it gives. `own_version`: it is `.data`,
    a detached alias with a version counter of its own, so that writes through it go unnoticed. `in_place`: the tensor
    itself became what the step gives, and is the base of the views that follow. `unsafe`: it is a piece that
    `unsafe_split` gives, whose version autograd counts apart."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: TensorSpec
    own_version: bool = False
    in_place: bool = False
    unsafe: bool = False


@dataclass(slots=True, eq=False)
class Storage:
    """Memory of the recorded program.

    `node` is its present content, of the layout `spec`; `stamp` is never reused, so that an alias whose stamp differs
    knows that its own node is out of date. `source` is "fresh" for memory that the region allocates, "input" for
    memory of a tensor from outside, "constant" for a literal that lives in the graph and must not be handed out.
    `origin` is the placeholder of an input or constant; `born` the first stamp; `made` the first content; `inference`
    tells whether its tensors are inference tensors; `versions` counts the writes that eager notes in the version of its
    tensors.

    `differentiated`: a differentiable operator has read it, and may have saved it. `unnoticed`: it was written, and no
    version shows it. `strays`: the steps of detached aliases to which values were written that require grad: these
    aliases have gradients that the memory has not. `sealed`: a tensor of it was detached in place, while autograd knows
    its other aliases as before. `pending`: a collective is still writing it.
    """

    node: fx.Node
    spec: TensorSpec
    stamp: int
    source: str = "fresh"
    origin: fx.Node | None = None
    requires_grad: bool = False
    inference: bool = field(default_factory=pristine.is_inference_mode_enabled)
    versions: int = 0
    differentiated: bool = False
    unnoticed: bool = False
    strays: tuple[ViewStep, ...] = ()
    sealed: bool = False
    pending: bool = False
    born: int = field(init=False)
    made: fx.Node = field(init=False)

    def __post_init__(self) -> None:
        self.born = self.stamp
        self.made = self.node

    @property
    def written(self) -> bool:
        """Whether something was written since the memory came to be."""
        return self.stamp != self.born


def _no_data(name: str) -> Any:
    def refuse(self: TraceTensor, *args: Any, **kwargs: Any) -> NoReturn:
        raise DataDependentError(
            f"Tensor.{name}() needs the data of a tensor, which exists only at run time",
            fix="keep the value a tensor, or move this line out of the compiled function",
        )

    refuse.__name__ = name
    return refuse


def _needs_value(name: str) -> Any:
    """A method that needs data, unless the tensor is known while recording."""
    refuse = _no_data(name)

    def answer(self: TraceTensor, *args: Any, **kwargs: Any) -> Any:
        known = self.known
        return refuse(self) if known is None else ask(known, name, *args, **kwargs)

    answer.__name__ = name
    return answer


class TraceTensor(torch.Tensor):
    """A tensor of the region being recorded. `spec` says what is known of it. `is_whole`: eager does not call it a
    view, whatever the chain. `is_piece`: it is a view of which one operator gave several, or a view of
    such a one, which autograd forbids to write to. `is_cut`: it is a view that a no_grad block took of what requires
    grad. Eager has it require grad as a leaf of its own, which no graph knows: outside of the block it is not recorded.
    `seen_versions`: how many versions its memory had when it came to be.

    Shape, strides, dtype, device, `requires_grad` and `is_contiguous` answer as in eager. Whatever needs data raises
    `DataDependentError`.
    """

    spec: TensorSpec
    node: fx.Node
    stamp: int
    base: Storage
    chain: tuple[ViewStep, ...]
    is_whole: bool
    is_piece: bool
    is_cut: bool
    seen_versions: int

    # Operators reach the recorder through __torch_dispatch__ of its mode; __torch_function__ would only cost time.
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl  # pyright: ignore

    @classmethod
    def __torch_dispatch__(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise UnsupportedOpError(f"{func} was called on a tensor of a region that is not being recorded")

    # --- what needs data ------------------------------------------------------------------------------------------

    item: ClassVar[Any] = _needs_value("item")
    tolist: ClassVar[Any] = _needs_value("tolist")
    numpy: ClassVar[Any] = _no_data("numpy")
    data_ptr: ClassVar[Any] = _no_data("data_ptr")
    const_data_ptr: ClassVar[Any] = _no_data("const_data_ptr")
    storage: ClassVar[Any] = _no_data("storage")
    untyped_storage: ClassVar[Any] = _no_data("untyped_storage")
    storage_offset: ClassVar[Any] = _no_data("storage_offset")
    apply_: ClassVar[Any] = _no_data("apply_")
    map_: ClassVar[Any] = _no_data("map_")
    map2_: ClassVar[Any] = _no_data("map2_")
    __array__: ClassVar[Any] = _no_data("__array__")
    __dlpack__: ClassVar[Any] = _no_data("__dlpack__")
    __bool__: ClassVar[Any] = _needs_value("__bool__")
    __int__: ClassVar[Any] = _needs_value("__int__")
    __float__: ClassVar[Any] = _needs_value("__float__")
    __complex__: ClassVar[Any] = _needs_value("__complex__")
    __index__: ClassVar[Any] = _needs_value("__index__")
    __contains__: ClassVar[Any] = _no_data("__contains__")
    __reduce_ex__: ClassVar[Any] = _no_data("__reduce_ex__")
    __format__: ClassVar[Any] = _no_data("__format__")
    __str__: ClassVar[Any] = _no_data("__str__")
    __repr__: ClassVar[Any] = _no_data("__repr__")

    @property
    def known(self) -> torch.Tensor | None:
        """The value, if it depends on literals only."""
        return known_value(self.node) if self.stamp == self.base.stamp else None

    # --- what autograd would know ---------------------------------------------------------------------------------

    @property
    def is_stray(self) -> bool:
        """Whether it has a gradient that its memory has not, as the detached alias that was written to."""
        return any(step is stray for stray in self.base.strays for step in self.chain)

    @property
    def requires_grad(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.is_stray:
            return True
        if self.spec.requires_grad or self.is_cut or not self.base.requires_grad:
            return self.spec.requires_grad or self.is_cut
        # Something that requires grad was written to the memory since; only detached aliases do not show it.
        return all(op_info(step.op).differentiable for step in self.chain)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, mode: bool = True) -> torch.Tensor:
        """Nothing to do if the flag already stands so; else the change cannot be part of a graph."""
        if mode != self.requires_grad:
            raise UnsupportedOpError(f"requires_grad_({mode}) changes a leaf inside the region")
        return self

    def is_inference(self) -> bool:
        """Whether it was made in inference mode, which no guard looks at."""
        if self.base.source == "input":
            raise UnsupportedOpError("is_inference() of a tensor from outside")
        return self.base.inference

    def _is_view(self) -> bool:
        """Whether autograd would know it as a view. Of a tensor from outside no guard looks at that, and in inference
        mode nobody does."""
        if self.base.source != "fresh" or self.base.inference or pristine.is_inference_mode_enabled():
            raise UnsupportedOpError("_is_view() of a tensor from outside, or in inference mode")
        return not self.is_whole

    def is_conj(self) -> bool:
        """Whether eager would hold the conjugate of this tensor, to be resolved when it is used."""
        return _count(self.chain, torch.ops.aten._conj_physical.default) % 2 == 1

    def is_neg(self) -> bool:
        return _count(self.chain, torch.ops.aten.neg.default) % 2 == 1

    @property
    def is_leaf(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        made = getattr(self, "_is_param", False)
        return (
            not self.requires_grad or self.is_cut or made or (self.base.source == "input" and not self.chain)
        )

    @property
    def grad_fn(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.is_leaf:
            return None
        raise UnsupportedOpError("grad_fn is read inside the region")

    @property
    def grad(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self.requires_grad:
            return None
        raise UnsupportedOpError("grad is read inside the region")

    @grad.setter
    def grad(self, value: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise UnsupportedOpError("grad is set inside the region")

    @property
    def data(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.ops.aten.data.default(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise UnsupportedOpError("data is set inside the region, which gives the tensor other memory")

    @property
    def _version(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise UnsupportedOpError("_version is read inside the region")

    def retain_grad(self) -> None:
        raise UnsupportedOpError("retain_grad() is called inside the region")

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if self.requires_grad:
            raise UnsupportedOpError("a tensor that requires grad is deep-copied inside the region")
        known = memo.get(id(self))
        if known is None:
            known = memo[id(self)] = self.clone()
        return known

    def backward(self, *args: Any, **kwargs: Any) -> NoReturn:  # pyright: ignore
        raise UnsupportedOpError("backward() is called inside the region")

    def register_hook(self, *args: Any, **kwargs: Any) -> NoReturn:  # pyright: ignore
        raise UnsupportedOpError("a gradient hook is registered inside the region")


# What Python calls it in the texts of its errors.
TraceTensor.__name__ = torch.Tensor.__name__


def shares_version(tensor: TraceTensor) -> bool:
    """Whether the tensor counts the writes to its memory in one version with the others, as `.data` does not."""
    return not any(step.own_version for step in tensor.chain)


def _count(chain: tuple[ViewStep, ...], op: Any) -> int:
    return sum(step.op is op for step in chain)


def make_trace_tensor(
    spec: TensorSpec, node: fx.Node, storage: Storage, chain: tuple[ViewStep, ...]
) -> TraceTensor:
    """A tensor with the present content of `storage` seen through `chain`, which `node` computes."""
    tensor = torch.Tensor._make_wrapper_subclass(  # pyright: ignore
        TraceTensor,
        symints(spec.shape),
        strides=symints(spec.strides),
        dtype=spec.dtype,
        device=spec.device,
    )
    tensor.spec = spec
    tensor.node = node
    tensor.base = storage
    tensor.stamp = storage.stamp
    tensor.chain = chain
    tensor.is_whole = not chain or chain[-1].op is torch.ops.aten.detach.default
    tensor.is_piece = tensor.is_cut = False
    tensor.seen_versions = storage.versions
    return tensor
