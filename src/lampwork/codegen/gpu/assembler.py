"""PTX that NVIDIA's assembler gets right."""

from __future__ import annotations

import re

_HIGH = re.compile(r"\tmul\.hi\.u32 +\t(%r\d+), .*;\n")
_NEIGHBOURS = re.compile(r"\tred\.\S+\.v[24]\.")
_TARGET = re.compile(r"^(\.target sm_90)\b", re.MULTILINE)
_BODY = re.compile(r"^\{\n", re.MULTILINE)


def for_assembler(text: str) -> str:
    """The same kernels for ptxas, which takes a difference of 64 bits whose minuend is the high half of a product of 32
    bits, and whose subtrahend is a register of 32 bits that is 0, for 2**32 too little: (a / 5) - (b / 5) where b < 5.
    The ones of CUDA 12.8 and 13.0 do, those of drivers too, from -O1 on. They do not see a product through an `xor`
    with a number that they do not know to be 0.

    before:  mul.hi.u32 %r9, %r8, 858993460;  cvt.u64.u32 %rd20, %r9;  sub.s64 %rd22, %rd20, %rd21;
    after:   mov.u32 %lw_zero, %tid.z;  ...  mul.hi.u32 %r9, %r8, 858993460;  xor.b32 %r9, %r9, %lw_zero;  ...

    Sums of several neighbours are of PTX 8.1, whatever else is in the kernel. What has instructions of 9.0 that no
    later card has is for 9.0 alone: `sm_90a`.
    """
    if ".version 8.0" in text and _NEIGHBOURS.search(text):
        text = text.replace(".version 8.0", ".version 8.1", 1)
    if "wgmma." in text:
        text = _TARGET.sub(r"\1a", text)
    if "sub.s64" not in text:
        return text
    widened = {
        found[1]
        for found in _HIGH.finditer(text)
        if re.search(rf"\tcvt\.u64\.u32 +\t%rd\d+, {found[1]};", text)
    }
    if not widened:
        return text

    def opaque(found: re.Match[str]) -> str:
        register = found[1]
        return found[0] + (f"\txor.b32 \t{register}, {register}, %lw_zero;\n" if register in widened else "")

    zero = "{\n\t.reg .b32 \t%lw_zero;\n\tmov.u32 \t%lw_zero, %tid.z;\n"
    return _BODY.sub(lambda _: zero, _HIGH.sub(opaque, text))
