"""What a template gives, and the frame around every template's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.templates.ints import Int, div, evaluate, mod, text_of
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Buffer
from lampwork.records import record


@record
class GemmCode:
    """A generated kernel, of the ABI of `Kernel`.

    text: the LLVM module. params, sizes: what the caller passes, in order. extent: the number of parallel work items,
    each of `work` operations; `chunk` operations are worth a thread. scratch: bytes of stack that a call uses.
    """

    name: str
    text: str
    params: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    extent: Index
    work: Index
    chunk: int
    scratch: int = 0


def load_params(
    b: Builder, params: Sequence[Buffer], indices: Sequence[Index]
) -> tuple[dict[str, str], tuple[str, ...], dict[str, Int]]:
    """The pointer of each param by name, the symbols in `indices` and in the params, and an environment of them."""
    pointers: dict[str, str] = {}
    for position, buffer in enumerate(params):
        pointers[buffer.name] = _argument(b, "%buffers", position, "ptr")
    symbols: set[str] = set()
    for index in indices:
        symbols |= index.symbols()
    for buffer in params:
        for index in (*buffer.shape, *buffer.strides):
            symbols |= index.symbols()
    names = tuple(sorted(symbols))
    env: dict[str, Int] = {}
    for position, name in enumerate(names):
        env[name] = Value(_argument(b, "%sizes", position, "i64"), "i64")
    return pointers, names, env


def _argument(b: Builder, array: str, position: int, type_: str) -> str:
    place = b.emit(f"getelementptr i64, ptr {array}, i64 {position}", "i64", 1).text
    return b.emit(f"load {type_}, ptr {place}, align 8", "i64", 1, pure=False).text


def decode_batch(
    b: Builder, batch: Sequence[Axis], item: Int, inner: Int, env: dict[str, Int]
) -> dict[str, Int]:
    """The batch variables of work item `item`, where `inner` items make one batch element, the last axis fastest."""
    rest = div(b, item, inner) if batch else 0
    found: dict[str, Int] = {}
    for position, axis in enumerate(reversed(batch)):
        extent = evaluate(b, axis.extent, env)
        outermost = position == len(batch) - 1
        found[axis.name] = rest if outermost else mod(b, rest, extent)
        rest = rest if outermost else div(b, rest, extent)
    return found


class Stack:
    """Arrays on the stack of a function. `bytes`: of all of them."""

    def __init__(self, b: Builder) -> None:
        self._b, self.bytes = b, 0

    def array(self, hint: str, elements: int, element: str, size: int) -> str:
        """The address of so many elements of LLVM's type `element`, of `size` bytes each; it begins a cache line."""
        name = self._b.name(hint)
        self._b.line(f"{name} = alloca [{elements} x {element}], align 64")
        self.bytes += elements * size
        return name


def outline(
    b: Builder,
    name: str,
    pointers: Mapping[str, str],
    integers: Mapping[str, Int],
    body: Callable[[Builder, dict[str, str], dict[str, Int]], None],
) -> None:
    """Call a function `name` of the same module, which `body` writes, over the given pointers and integers.

    body(builder, pointers, integers) sees the same names; integers that are known stay known. Nothing that it computes
    is kept in registers across the rest of the caller, which is what it is for.
    """
    inner = Builder(b.module, b.target)
    inside: dict[str, Int] = dict(integers)
    arguments: list[str] = []
    parameters: list[str] = []
    addresses: dict[str, str] = {}
    for key, pointer in pointers.items():
        addresses[key] = inner.name("p")
        parameters.append(f"ptr {addresses[key]}")
        arguments.append(f"ptr {pointer}")
    for key, value in integers.items():
        if isinstance(value, Value):
            inside[key] = Value(inner.name("i"), "i64")
            parameters.append(f"i64 {text_of(inside[key])}")
            arguments.append(f"i64 {value.text}")
    body(inner, addresses, inside)
    b.module.functions.append(
        f"define internal void @{name}({', '.join(parameters)}) {_attributes(b)} {{\n{inner.body()}\n  ret void\n}}"
    )
    b.line(f"call void @{name}({', '.join(arguments)})")


def define(
    b: Builder,
    name: str,
    pointers: Sequence[str],
    integers: Sequence[str],
    body: Callable[[Builder, dict[str, str], dict[str, Int]], None],
) -> None:
    """Add a function `name` to the module: of pointers and then integers, as `body` sees them under these names."""
    inner = Builder(b.module, b.target)
    addresses = {key: inner.name("p") for key in pointers}
    values: dict[str, Int] = {key: Value(inner.name("i"), "i64") for key in integers}
    parameters = [f"ptr {address}" for address in addresses.values()]
    parameters += [f"i64 {text_of(value)}" for value in values.values()]
    body(inner, addresses, values)
    b.module.functions.append(
        f"define internal void @{name}({', '.join(parameters)}) {_attributes(b)} {{\n{inner.body()}\n  ret void\n}}"
    )


def _attributes(b: Builder) -> str:
    bits = b.target.vector_bytes * 8
    return f'nounwind "prefer-vector-width"="{bits}"' if bits else "nounwind"


def function(b: Builder, name: str, error: str | None = None) -> str:
    """The module, with a function `name` added whose body is what `b` wrote.

    error: the address of an i64 that it returns (1: an index taken from data was out of range); None returns 0.
    """
    status = "0" if error is None else b.emit(f"load i64, ptr {error}", "i64", 1, pure=False).text
    text = (
        f"define i64 @{name}(ptr noalias readonly %buffers, ptr noalias readonly %sizes, i64 %begin, i64 %end) "
        f"{_attributes(b)} {{\n{b.body()}\n  ret i64 {status}\n}}"
    )
    b.module.functions.append(text)
    return b.module.text
