"""A matrix product and its epilogue as the source of a Triton kernel.

    before: y[m, n] = relu(acc + bias[n]), acc over 768 of x[m, k] * w[n, k]               the tile 64x128x64
    after:  def lwp1(p0, p1, p2, p3):
                ...
                acc = tl.dot(x, y, acc, input_precision="ieee")
                ...
                v0 = acc + tl.load(p3 + (n))
                tl.store(p0 + (m * 512 + n), v0, mask=inside)

The parameters are the buffers, then the symbols as int64: nothing else is open, so Triton sees every other number. The
code for buffers that begin at multiples of 16 bytes, and that for others, stand side by side, as in kernels of loops.
Values of half types are held in float32 and rounded where the expression says so. A product that is no part of the sum
is multiplied by an intrinsic that nobody contracts with a sum after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lampwork.errors import CodegenError
from lampwork.loops.ir.addresses import ITEM_BYTES, offset_of
from lampwork.loops.ir.bounds import elements_of, offset_in
from lampwork.loops.ir.grid import ALIGNED
from lampwork.loops.ir.index import ONE, ZERO, FloorDiv, Index, Mod
from lampwork.loops.ir.nodes import Buffer, Const, DType, Expr, Gemm, IndexValue, Load, Local, Op
from lampwork.loops.ir.polynomial import Atom, Sym, Var
from lampwork.records import record

GROUP = 8  # rows of tiles that share the columns of B in the second-level cache

POINTERS: Mapping[DType, str] = {
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*bf16",
    "i64": "*i64",
    "i32": "*i32",
    "i16": "*i16",
    "i8": "*i8",
    "u8": "*u8",
    "bool": "*i1",
}
_TYPES: Mapping[DType, str] = {
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "i16": "tl.int16",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "bool": "tl.int1",
}
_FLOATS = ("f32", "f16", "bf16")

# Of float32, which half types are computed in; {0}, {1}, {2} are the operands.
_FLOAT_OPS: Mapping[str, str] = {
    "neg": "{0} * -1.0",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to(tl.float32) - ({0} < 0).to(tl.float32)",
    "ceil": "libdevice.ceil({0})",
    "floor": "libdevice.floor({0})",
    "round": "libdevice.rint({0})",
    "trunc": "libdevice.trunc({0})",
    "sqrt": "tl.sqrt_rn({0})",
    "rsqrt": "libdevice.rsqrt({0})",
    "reciprocal": "tl.div_rn(1.0, {0})",
    "ndtr": "libdevice.normcdf({0})",
    "softplus": "libdevice.log1p(libdevice.exp(tl.abs({0}) * -1.0))"
    " + tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
    "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp({0} * -1.0))",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "libdevice.mul_rn({0}, {1})",
    "product": "{0} * {1}",
    "fma": "{0} * {1} + {2}",
    "div": "tl.div_rn({0}, {1})",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fmin": "tl.minimum({0}, {1})",
    "fmax": "tl.maximum({0}, {1})",
    "unrounded": "{0}",
    **{
        name: f"libdevice.{name}({{0}})"
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos"),
            *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc"),
        )
    },
    **{name: f"libdevice.{name}({{0}}, {{1}})" for name in ("pow", "atan2", "hypot", "copysign")},
}
_INTEGER_OPS: Mapping[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "minimum": "tl.minimum({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
}
_BOOL_OPS: Mapping[str, str] = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}
_TESTS: Mapping[str, str] = {
    "not": "{0} == 0",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "isfinite": 'tl.abs({0}) < float("inf")',
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}


@record
class Tile:
    """Of the product: so many rows and columns, and so much of the sum at a time, which are powers of two of 16 or
    more; and how many turns of it are on the way."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int


@record
class TritonText:
    """The source of a kernel, with the buffers and symbols that are its parameters, in order."""

    text: str
    params: tuple[Buffer, ...]
    symbols: tuple[str, ...]


def write_product(gemm: Gemm, tile: Tile, name: str, *, tf32: bool) -> TritonText:
    """The kernel of a product.

    Raises:
        CodegenError: something in it has no form here.
    """
    return _Writer(gemm, tile, tf32).write(name)


@dataclass(slots=True)
class _Writer:
    gemm: Gemm
    tile: Tile
    tf32: bool
    lines: list[str] = field(default_factory=list[str])
    params: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    symbols: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[Expr, str] = field(default_factory=dict[Expr, str])
    places: dict[str, str] = field(default_factory=dict[str, str])
    branches: bool = False
    """Whether `aligned` says in the kernel that all buffers begin at multiples of 16 bytes."""

    @property
    def shape(self) -> str:
        return f"({self.tile.rows}, {self.tile.columns})"

    def write(self, name: str) -> TritonText:
        gemm = self.gemm
        if gemm.a.buffer.dtype != gemm.b.buffer.dtype or gemm.a.buffer.dtype not in _FLOATS:
            raise CodegenError(f"a product of {gemm.a.buffer.dtype} and {gemm.b.buffer.dtype}")
        if gemm.a.mask is not None or gemm.b.mask is not None:
            raise CodegenError("a product of masked operands")
        buffers = [gemm.out, gemm.a.buffer, gemm.b.buffer, *(load.buffer for load in _loads(gemm.value))]
        for buffer in buffers:
            if buffer.dtype not in POINTERS:
                raise CodegenError(f"an operand of {buffer.dtype}")
            self.params.setdefault(buffer.name, buffer)
        self._tiles()
        self._sum()
        self._epilogue()
        # The symbols are known by now.
        parameters = [*(f"p{n}" for n in range(len(self.params))), *self.symbols.values()]
        head = [f"def {name}({', '.join(parameters)}):"]
        text = "\n".join([*head, *(f"    {line}" for line in self.lines)]) + "\n"
        return TritonText(text, tuple(self.params.values()), tuple(self.symbols))

    # --- where a block is ---------------------------------------------------------------------------------------------

    def _tiles(self) -> None:
        gemm, tile, put = self.gemm, self.tile, self.lines.append
        put("block = tl.program_id(0)")
        wide = "" if all(map(_is_short, self.params.values())) else ".to(tl.int64)"
        rows, columns = (
            self._tile_count(gemm.m.extent, tile.rows),
            self._tile_count(gemm.n.extent, tile.columns),
        )
        put(f"tiles_m, tiles_n = {rows}, {columns}")
        if gemm.batch:
            put("number = block // (tiles_m * tiles_n)")
            put("block = block % (tiles_m * tiles_n)")
        for axis in reversed(gemm.batch):
            extent = self.index(axis.extent)
            put(f"{axis.name} = (number % ({extent})){wide}")
            put(f"number = number // ({extent})")
            self.places[axis.name] = axis.name
        put(f"group = block // ({GROUP} * tiles_n)")
        put(f"size = tl.minimum(tiles_m - group * {GROUP}, {GROUP})")
        put(f"tile_m = group * {GROUP} + block % ({GROUP} * tiles_n) % size")
        put(f"tile_n = block % ({GROUP} * tiles_n) // size")
        put(f"m = (tile_m * {tile.rows} + tl.arange(0, {tile.rows})){wide}[:, None]")
        put(f"n = (tile_n * {tile.columns} + tl.arange(0, {tile.columns})){wide}[None, :]")
        put(f"first = tl.arange(0, {tile.depth}){wide}")
        self.places |= {gemm.m.name: "m", gemm.n.name: "n"}

    def _tile_count(self, extent: Index, size: int) -> str:
        return self.index((extent + (size - 1)) // size)

    def _is_whole(self, extent: Index, size: int) -> bool:
        number = extent.as_int()
        return number is not None and number % size == 0

    def _inside(self, names: Sequence[str]) -> str:
        """The mask of the rows ("m") and columns ("n") that there are; "": all are."""
        gemm, tile = self.gemm, self.tile
        sizes = {"m": (gemm.m.extent, tile.rows), "n": (gemm.n.extent, tile.columns)}
        parts = [
            f"({name} < {self.index(sizes[name][0])})" for name in names if not self._is_whole(*sizes[name])
        ]
        return " & ".join(parts)

    # --- the sum ------------------------------------------------------------------------------------------------------

    def _sum(self) -> None:
        gemm, put = self.gemm, self.lines.append
        axes = (*gemm.batch, gemm.m, gemm.n, gemm.k)
        extents = {axis.name: axis.extent for axis in axes}
        a, b = (offset_of(load, extents) for load in (gemm.a, gemm.b))
        steps: list[str] = []
        for offset in (a, b):
            step = offset.coefficient(gemm.k.name)
            if step is None or step.variables():
                raise CodegenError("an operand whose steps along the sum differ")
            steps.append(self.index(step * self.tile.depth))
        rest = self._tile_count(gemm.k.extent, self.tile.depth)
        places = self._operand(a, "[None, :]"), self._operand(b, "[:, None]")
        loads = self._load_text("m", "[None, :]"), self._load_text("n", "[:, None]")
        pointers = [
            f"p{self._number(load.buffer)} + ({place})"
            for load, place in zip((gemm.a, gemm.b), places, strict=True)
        ]
        precision = "tf32" if self.tf32 else "ieee"

        def turns(indent: str, case: str, first: Sequence[str], stages: str) -> None:
            # Names of its own: what both branches of an if assign, Triton hands on behind it.
            put(f"{indent}acc = tl.zeros({self.shape}, tl.float32)")
            put(f"{indent}{case}_a = {first[0]}")
            put(f"{indent}{case}_b = {first[1]}")
            put(f"{indent}for turn in tl.range(0, {rest}{stages}):")
            put(f"{indent}    x = {loads[0].format(f'{case}_a')}")
            put(f"{indent}    y = {loads[1].format(f'{case}_b')}")
            put(f'{indent}    acc = tl.dot(x, y, acc, input_precision="{precision}")')
            put(f"{indent}    {case}_a += {steps[0]}")
            put(f"{indent}    {case}_b += {steps[1]}")

        unit_a = _unit(a, gemm.a.buffer, (gemm.m.name, gemm.k.name))
        unit_b = _unit(b, gemm.b.buffer, (gemm.k.name, gemm.n.name))
        if unit_a is None or unit_b is None:
            turns("", "any", pointers, "")
            return
        together = " | ".join(f"p{number}.to(tl.int64)" for number in range(len(self.params)))
        put(f"aligned = (({together}) % {ALIGNED}) == 0")
        self.branches = True
        put("if aligned:")
        hinted = [_hinted(pointers[0], unit_a), _hinted(pointers[1], unit_b)]
        turns("    ", "aligned", hinted, "")
        put("else:")
        turns("    ", "any", pointers, ", num_stages=1")

    def _operand(self, offset: Index, along: str) -> str:
        """Where the first turn reads."""
        self.places[self.gemm.k.name] = f"first{along}"
        return self.index(offset)

    def _load_text(self, other: str, along: str) -> str:
        """A load of the address that is put for {}."""
        masks = [self._inside(other)]
        if not self._is_whole(self.gemm.k.extent, self.tile.depth):
            extent = self.index(self.gemm.k.extent)
            masks.append(f"(first{along} < {extent} - turn * {self.tile.depth})")
        mask = " & ".join(filter(None, masks))
        return f"tl.load({{}}, mask={mask}, other=0.0)" if mask else "tl.load({})"

    # --- the epilogue -------------------------------------------------------------------------------------------------

    def _epilogue(self) -> None:
        gemm = self.gemm
        self.places.pop(gemm.k.name)
        value = self._expr(gemm.value)
        offset = offset_in(gemm.out, gemm.index)
        place = self._broadcast(self.index(offset))
        inside = self._inside("mn")
        mask = f", mask={inside}" if inside else ""
        pointer, unit = f"p{self._number(gemm.out)} + {place}", self._unit(gemm.out, offset)
        self.lines.append(f"result = tl.broadcast_to({value}, {self.shape}).to({_TYPES[gemm.out.dtype]})")
        if unit is None:
            self.lines.append(f"tl.store({pointer}, result{mask})")
            return
        self.lines += [
            "if aligned:",
            f"    tl.store({_hinted(pointer, unit)}, result{mask})",
            "else:",
            f"    tl.store({pointer}, result{mask})",
        ]

    def _unit(self, buffer: Buffer, offset: Index) -> int | None:
        """As `_unit` for the rows and columns of the product, where there are branches for aligned buffers."""
        names = (self.gemm.m.name, self.gemm.n.name)
        return _unit(offset, buffer, names) if self.branches else None

    def _broadcast(self, text: str) -> str:
        return f"tl.broadcast_to({text} + tl.zeros((1, 1), tl.int32), {self.shape})"

    def _put(self, text: str) -> str:
        name = f"v{len(self.values)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _expr(self, expr: Expr) -> str:
        found = self.values.get(expr)
        if found is None:
            text = self._text(expr)
            found = self.values[expr] = self._put(text)
        return found

    def _text(self, expr: Expr) -> str:
        if isinstance(expr, Const):
            return f"tl.full((1, 1), {_literal(expr.value)}, {self._held(expr.dtype)})"
        if isinstance(expr, Local):
            return "acc"
        if isinstance(expr, IndexValue):
            index = self.index(expr.index)
            return f"(({index}) + tl.zeros((1, 1), tl.int32)).to({self._held(expr.dtype)})"
        if isinstance(expr, Load):
            return self._load(expr)
        args = [self._expr(arg) for arg in expr.args]
        return self._op(expr, args)

    def _load(self, load: Load) -> str:
        offset = offset_in(load.buffer, load.index)
        if offset.indirects():
            raise CodegenError("an epilogue that gathers")
        if load.dtype not in POINTERS:
            raise CodegenError(f"no loads of {load.dtype} for Triton")
        text, pointer = self.index(offset), f"p{self._number(load.buffer)}"
        widened = ".to(tl.float32)" if load.dtype in ("f16", "bf16") else ""
        names = [name for name in "mn" if any(self.places.get(v) == name for v in offset.variables())]
        if load.mask is not None:
            masks = [self._expr(load.mask), self._inside("mn")]
            mask = " & ".join(f"({each})" for each in masks if each)
            mask = f", mask=tl.broadcast_to({mask}, {self.shape}), other={_literal(load.other)}"
            return f"tl.load({pointer} + {self._broadcast(text)}{mask}){widened}"
        inside, unit = self._inside(names), self._unit(load.buffer, offset)
        mask, place = f", mask={inside}, other=0" if inside else "", f"{pointer} + ({text})"
        if unit is None:
            return f"tl.load({place}{mask}){widened}"
        name = f"l{len(self.lines)}"
        self.lines += [
            "if aligned:",
            f"    {name} = tl.load({_hinted(place, unit)}{mask})",
            "else:",
            f"    {name} = tl.load({place}{mask})",
        ]
        return f"{name}{widened}"

    def _op(self, op: Op, args: Sequence[str]) -> str:
        given = op.args[-1].dtype
        if op.name == "cast":
            return self._cast(args[0], given, op.dtype)
        if op.name == "where":
            return self._rounded(f"tl.where({', '.join(args)})", op.dtype)
        if op.dtype == "bool":
            table = _BOOL_OPS if given == "bool" and op.name in _BOOL_OPS else _TESTS
        else:
            table = _FLOAT_OPS if op.dtype in _FLOATS else _INTEGER_OPS
        form = table.get(op.name)
        if form is None or given not in _TYPES:
            raise CodegenError(f"no form of {op.name} of {op.dtype} for Triton")
        return self._rounded(form.format(*args), op.dtype)

    def _cast(self, value: str, given: DType, dtype: DType) -> str:
        if dtype == "bool":
            return value if given == "bool" else f"({value} != 0)"
        if dtype in _FLOATS:
            held = value if given in _FLOATS else f"{value}.to(tl.float32)"
            return self._rounded(held, dtype)
        if dtype not in _TYPES or given not in _TYPES:
            raise CodegenError(f"no conversion of {given} to {dtype} for Triton")
        return f"{value}.to({_TYPES[dtype]})"

    def _rounded(self, text: str, dtype: DType) -> str:
        return f"({text}).to({_TYPES[dtype]}).to(tl.float32)" if dtype in ("f16", "bf16") else text

    def _held(self, dtype: DType) -> str:
        """The type that values of a dtype are held in."""
        if dtype not in _TYPES:
            raise CodegenError(f"no values of {dtype} for Triton")
        return "tl.float32" if dtype in _FLOATS else _TYPES[dtype]

    # --- indices ------------------------------------------------------------------------------------------------------

    def _number(self, buffer: Buffer) -> int:
        return list(self.params).index(buffer.name)

    def index(self, index: Index) -> str:
        if index == ZERO:
            return "0"
        parts: list[str] = []
        for monomial, scale in index.terms:
            factors = [self._atom(atom) for atom in monomial]
            if scale != 1 or not factors:
                factors.append(str(scale))
            parts.append(" * ".join(factors))
        return " + ".join(parts)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Sym):
            return self.symbols.setdefault(atom.name, f"s{len(self.symbols)}")
        if isinstance(atom, Var):
            place = self.places.get(atom.name)
            if place is None:
                raise CodegenError(f"an index over {atom.name}, which is not known there")
            return place
        if isinstance(atom, FloorDiv | Mod):
            sign = "//" if isinstance(atom, FloorDiv) else "%"
            return f"(({self.index(atom.a)}) {sign} ({self.index(atom.b)}))"
        raise CodegenError("an index taken from data")


def _loads(value: Expr) -> list[Load]:
    """The loads of an epilogue, in the order in which they come."""
    found: list[Load] = []
    seen: set[int] = set()

    def visit(expr: Expr) -> None:
        if id(expr) in seen:
            return
        seen.add(id(expr))
        if isinstance(expr, Load):
            found.append(expr)
            if expr.mask is not None:
                visit(expr.mask)
        elif isinstance(expr, Op):
            for arg in expr.args:
                visit(arg)

    visit(value)
    return found


def _unit(offset: Index, buffer: Buffer, names: tuple[str, str]) -> int | None:
    """Which of the two dimensions of a tile runs along memory, the others in multiples of 16 bytes; None if none."""
    items = ALIGNED // ITEM_BYTES[buffer.dtype]
    odd = [monomial for monomial, scale in offset.terms if scale % items]
    if len(odd) != 1 or offset.coefficient(names[0]) is None or offset.coefficient(names[1]) is None:
        return None
    units = [place for place, name in enumerate(names) if offset.coefficient(name) == ONE]
    return units[0] if len(units) == 1 else None


def _hinted(place: str, unit: int) -> str:
    """Addresses whose rows (`unit` 1) or columns (0) begin at multiples of 16 bytes."""
    return f"tl.multiple_of({place}, {(ALIGNED, 1) if unit == 0 else (1, ALIGNED)})"


def _is_short(buffer: Buffer) -> bool:
    """Whether 32 bits hold every offset in a buffer, with a tile's width to spare."""
    count = elements_of(buffer).as_int()
    return count is not None and count < 1 << 30


def _literal(value: float | int | bool) -> str:
    return f'float("{value}")' if isinstance(value, float) else repr(value)
