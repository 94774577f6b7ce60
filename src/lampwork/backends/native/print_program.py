"""Programs as text."""

from __future__ import annotations

from typing import cast

from lampwork.runtime.program import CallAten, CallKernel, Instruction, Program, Ref, Scalar, Take


def format_program(program: Program, indent: str = "") -> str:
    """The program as text: values, then instructions."""
    lines = [f"{indent}arena {program.arena_bytes} bytes"]
    if program.device is not None:
        lines.append(f"{indent}arena {program.device_arena_bytes} bytes on {program.device}")
    for number, value in enumerate(program.values):
        dtype = str(value.dtype).removeprefix("torch.") if value.dtype else "unread"
        place = {
            "input": f"input {value.position}",
            "bound": f"bound {value.position}",
            "constant": f"constant {value.position}",
            "arena": f"arena +{value.offset}",
            "view": f"view of %{value.base} +{value.offset}",
        }.get(value.kind, value.kind)
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        lines.append(f"{indent}%{number}: {dtype}{list(value.shape)} {list(value.strides)} {place}{where}")
    for instruction in program.instructions:
        lines.append(indent + _format_instruction(instruction))
    lines += [f"{indent}undo {at}: {_format_instruction(kernel)}" for at, kernel in program.undo]
    lines.append(f"{indent}return {', '.join(f'%{n}' for n in program.outputs)}")
    if program.constants is not None:
        lines.append(f"{indent}constants:")
        lines.append(format_program(program.constants, indent + "  "))
    return "\n".join(lines)


def _format_argument(argument: object) -> str:
    if isinstance(argument, Ref):
        return f"%{argument.value}"
    if isinstance(argument, Scalar):
        return f"scalar {argument.place}"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(_format_argument(a) for a in cast('list[object]', argument))}]"
    return repr(argument)


def _format_instruction(instruction: Instruction) -> str:
    if isinstance(instruction, CallKernel):
        buffers = ", ".join(f"%{n}" for n in instruction.buffers)
        sizes = f"; {', '.join(map(_format_argument, instruction.sizes))}" if instruction.sizes else ""
        how = f"by {instruction.grain}"
        if (launch := instruction.launch) is not None:
            x, y = launch.block
            how = f"by {launch.per_block} in blocks of {x} x {y} threads, {launch.shared} bytes shared"
            how += f", clusters of {launch.cluster} blocks" if launch.cluster > 1 else ""
            how += f", {launch.counters} counters" if launch.counters else ""
        return f"kernel {instruction.name}({buffers}{sizes}) over {instruction.extent} {how}"
    if isinstance(instruction, CallAten):
        outs = ", ".join(f"%{n}" for n in instruction.outs)
        args = [_format_argument(a) for a in instruction.args]
        args += [f"{k}={_format_argument(v)}" for k, v in instruction.kwargs]
        return f"{outs + ' = ' if outs else ''}{instruction.op}({', '.join(args)})"
    verb = "take" if isinstance(instruction, Take) else "release"
    return f"{verb} {', '.join(f'%{n}' for n in instruction.values)}"
