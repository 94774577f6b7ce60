"""Elementary functions over vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import REGISTER


def libm(b: Builder, name: str, *args: Value) -> Value:
    """The C library's function, called for each lane (`name` is the double's; f32 adds an f)."""
    dtype = args[0].dtype
    element = REGISTER[dtype]
    symbol = name + ("f" if dtype == "f32" else "")
    b.module.declare(symbol, f"declare {element} @{symbol}({', '.join([element] * len(args))}) #1")
    lanes = max(arg.lanes for arg in args)
    if lanes == 1:
        return b.emit(f"call {element} @{symbol}({', '.join(b.typed(a) for a in args)})", dtype, 1)
    wide = [b.widen(arg, lanes) for arg in args]
    result = f"poison"
    value = wide[0]
    for lane in range(lanes):
        items = [b.emit(f"extractelement {a.type} {a.text}, i64 {lane}", dtype, 1) for a in wide]
        one = b.emit(f"call {element} @{symbol}({', '.join(b.typed(a) for a in items)})", dtype, 1)
        value = b.emit(f"insertelement {wide[0].type} {result}, {b.typed(one)}, i64 {lane}", dtype, lanes)
        result = value.text
    return value


def pow_(b: Builder, x: Value, y: Value) -> Value:
    return libm(b, "pow", x, y)


def _libm_rule(name: str) -> Callable[..., Value]:
    def rule(b: Builder, *args: Value) -> Value:
        return libm(b, name, *args)

    return rule


FUNCTIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        name: _libm_rule(name)
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
            "erf erfc atan2 hypot"
        ).split()
    }
)
