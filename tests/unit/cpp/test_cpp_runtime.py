"""The runtime without Python: what programs do, what calls and files it refuses, and many threads."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpp_runtime import BUILDS, CppError, Model, Runtime, given
from lamp_files import object_code, value, write, write_lamp

pytestmark = BUILDS


@pytest.fixture(scope="module")
def code() -> bytes:
    return object_code()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, code: bytes) -> Path:
    return write_lamp(tmp_path_factory.mktemp("lamp") / "hand.lamp", code)


@pytest.fixture
def model(runtime: Runtime, path: Path) -> Model:
    return runtime.load(path)


ROW = torch.tensor([1.0, 2.0, 3.0, 4.0])


def affine(x: torch.Tensor, row: torch.Tensor = ROW) -> torch.Tensor:
    return (x + 2 * row) ** 2


# --- programs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_sizes_are_solved_and_programs_placed_for_them(runtime: Runtime, path: Path, threads: int) -> None:
    model = runtime.load(path, threads=threads)
    for n in (2, 64, 4, 2, *range(6, 40, 2), 2):
        x = torch.randn(n, 4)
        square, column, twice = model.run(x, entry="affine")
        assert torch.equal(square, affine(x)) and torch.equal(column, affine(x)[:, 0])
        assert column.stride() == (4,) and twice.dtype == torch.int64 and twice.item() == 2 * n


def test_specs_say_what_calls_take_and_give(model: Model) -> None:
    assert model.specs("affine", "input") == [("x", torch.float32, [-1, 4])]
    assert model.specs("affine", "output") == [
        ("square", torch.float32, [-1, 4]),
        ("column", torch.float32, [-1]),
        ("twice", torch.int64, []),
    ]


def test_inputs_lie_as_they_like(model: Model) -> None:
    for x in (
        torch.randn(4, 8).t(),
        torch.randn(8, 9)[:, 5:],
        torch.randn(1, 4).expand(6, 4),
        torch.randn(16, 4)[::2],
    ):
        assert torch.equal(model.run(x, entry="affine")[0], affine(x))
    crooked = np.frombuffer(bytearray(torch.randn(17).numpy().tobytes()), np.float32, 16, 1).reshape(4, 4)
    x = torch.from_numpy(crooked)
    assert x.data_ptr() % 4 == 1
    assert torch.equal(model.run(x, entry="affine")[0], affine(x.clone()))


def test_results_are_made_in_memory_of_the_caller(model: Model) -> None:
    x = torch.randn(6, 4)
    plain = [torch.zeros(6, 4), torch.zeros(6), torch.zeros((), dtype=torch.int64)]
    strided = [torch.zeros(4, 6).t(), torch.zeros(6, 3)[:, 1], torch.zeros((), dtype=torch.int64)]
    over = x.clone()
    shared = [over, torch.zeros(6), torch.zeros((), dtype=torch.int64)]
    for source, into in ((x, plain), (x, strided), (over, shared)):
        model.run_into(source, into=into, entry="affine")
        assert (
            torch.equal(into[0], affine(x)) and torch.equal(into[1], affine(x)[:, 0]) and into[2].item() == 12
        )


def test_results_outlive_the_model_and_are_no_others(runtime: Runtime, path: Path) -> None:
    model = runtime.load(path)
    x = torch.randn(4)
    same, row = model.run(x, entry="through")
    assert torch.equal(same, x) and torch.equal(row, ROW[2:])


def test_memory_of_the_heap_is_taken_and_released(model: Model) -> None:
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(model.run(x, entry="heap")[0], x + x + 1)


def test_numbers_come_with_the_call(model: Model) -> None:
    for n in (0, 7, 3):
        assert torch.equal(model.run(entry="numbers", numbers=[n])[0], torch.full((6,), float(n)))


def test_kernels_call_the_c_library(model: Model) -> None:
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    assert torch.allclose(model.run(x, entry="sine")[0], x.sin())


def test_weights_that_are_written_are_a_model_s_own(runtime: Runtime, path: Path) -> None:
    before = path.read_bytes()
    one, other = runtime.load(path), runtime.load(path)
    assert [one.run(entry="count")[0].item() for _ in range(3)] == [6, 7, 8]
    assert other.run(entry="count")[0].item() == 6
    assert path.read_bytes() == before


def test_an_index_out_of_range_undoes_what_was_written(model: Model) -> None:
    y = torch.zeros(4)
    assert model.run(y, torch.tensor([3, 0]), entry="gather")[0].tolist() == [4, 1]
    assert y.tolist() == [1, 1, 1, 1]
    with pytest.raises(CppError, match="LW_KERNEL: the kernel 'gather' failed: an index"):
        model.run(y, torch.tensor([0, 4]), entry="gather")
    assert y.tolist() == [1, 1, 1, 1]
    crooked = torch.zeros(8)[::2]
    model.run(crooked, torch.tensor([0, 0]), entry="gather")
    assert crooked.tolist() == [1, 1, 1, 1]


def test_what_torch_alone_knows_is_as_the_entry_says(runtime: Runtime, tmp_path: Path, code: bytes) -> None:
    """Programs do not describe complex numbers, nor inputs that they do not read."""

    def change(manifest: Any, programs: Any) -> None:
        about, s0 = manifest["entries"]["through"], [[1, ["s0"]]]
        about["symbols"] = [{"name": "s0", "min": 2, "max": None, "input": 0, "dim": 0, "kind": "size"}]
        for each in (about["inputs"][0], about["outputs"][0]):
            each |= {"dtype": "complex64", "shape": [s0]}
        programs["entries"]["through"]["values"][0] |= {"dtype": None, "shape": [], "strides": []}
        programs["entries"]["relu"]["values"][1] |= {"dtype": None, "shape": [], "strides": []}
        programs["entries"]["numbers"] |= {"n_inputs": 1}
        programs["entries"]["numbers"]["values"].append(
            {"kind": "input", "dtype": None, "position": 0, "shape": [], "strides": []}
        )
        unread = {"name": "unread", "dtype": "complex128", "shape": [3], "strides": [1]}
        manifest["entries"]["numbers"]["inputs"].append(unread)

    model = runtime.load(write_lamp(tmp_path / "complex.lamp", code, change=change))
    for n in (2, 5, 3):  # each is placed anew
        x = torch.randn(n, dtype=torch.complex64)
        assert torch.equal(model.run(x, entry="through")[0], x)
    unread = torch.zeros(3, dtype=torch.complex128)
    assert model.run(unread, entry="numbers", numbers=[7])[0].tolist() == [7.0] * 6
    with pytest.raises(CppError, match="LW_NEEDS_ATEN"):
        model.run(torch.randn(4), entry="relu")


def test_operators_of_torch_are_named(model: Model) -> None:
    assert model.needs_aten("relu") == ["aten::relu.default"] and model.needs_aten("affine") == []
    with pytest.raises(
        CppError, match=r"LW_NEEDS_ATEN: the entry 'relu' calls .*aten::relu.default.*liblampwork_torch"
    ):
        model.run(torch.randn(4), entry="relu")


def test_weights_of_another_file(model: Model, tmp_path: Path) -> None:
    x, row = torch.randn(4, 4), torch.randn(4)
    write(tmp_path / "good.safetensors", {"row": row, "count": torch.tensor([1.0])}, {})
    model.run(x, entry="affine")
    model.set_weights(tmp_path / "good.safetensors")
    assert torch.equal(model.run(x, entry="affine")[0], affine(x, row))
    count = torch.tensor([1.0])
    bad: dict[str, tuple[dict[str, torch.Tensor], str]] = {
        "missing": ({"row": row}, "'count' is not in the file"),
        "shape": (
            {"row": row[:3], "count": count},
            r"'row' has the shape \(3\) in the file, and the model needs \(4\)",
        ),
        "dtype": (
            {"row": row.double(), "count": count},
            "'row' is float64 in the file, and the model needs float32",
        ),
        "more": (
            {"row": row, "count": count, **{f"more.{i}": row for i in range(5)}},
            "the file has 'more.0', 'more.1', 'more.2' and 2 others, which the model does not have. Give the",
        ),
    }
    for name, (tensors, message) in bad.items():
        write(tmp_path / name, tensors, {})
        with pytest.raises(CppError, match=f"LW_WEIGHTS.*{message}"):
            model.set_weights(tmp_path / name)
    (tmp_path / "torn").write_bytes((tmp_path / "good.safetensors").read_bytes()[:-1])
    with pytest.raises(
        CppError, match=r"LW_WEIGHTS: '.*torn': the file of weights is damaged: .*\. Fetch or write it again$"
    ):
        model.set_weights(tmp_path / "torn")
    assert torch.equal(model.run(x, entry="affine")[0], affine(x, row))


def test_weights_of_another_artifact(runtime: Runtime, model: Model, code: bytes, tmp_path: Path) -> None:
    """Its code is none of them. Buffers that are in no state dict may be missing."""
    x = torch.randn(4, 4)
    model.set_weights(write_lamp(tmp_path / "other.lamp", code))
    assert torch.equal(model.run(x, entry="affine")[0], affine(x))

    def transient(manifest: Any, programs: Any) -> None:
        next(each for each in manifest["weights"] if each["name"] == "count")["persistent"] = False

    there = runtime.load(write_lamp(tmp_path / "transient.lamp", code, change=transient))
    write(tmp_path / "row.safetensors", {"row": (row := torch.randn(4))}, {})
    there.set_weights(tmp_path / "row.safetensors")
    assert torch.equal(there.run(x, entry="affine")[0], affine(x, row))


@pytest.mark.parametrize("name", ("lampwork.z", "lampwork-prepacked.9"))
def test_what_the_manifest_does_not_know(runtime: Runtime, path: Path, tmp_path: Path, name: str) -> None:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header[name] = {"dtype": "U8", "shape": [3], "data_offsets": [len(data), len(data) + 3]}
    text = json.dumps(header).encode()
    changed = tmp_path / "more.lamp"
    changed.write_bytes(len(text).to_bytes(8, "little") + text + data + b"abc")
    with pytest.raises(CppError, match=rf"LW_FORMAT: .*does not know the (section|tensor) '{name}'"):
        runtime.load(changed)


def test_many_threads_call_one_model(runtime: Runtime, path: Path, tmp_path: Path) -> None:
    """... with sizes of their own, and weights that are replaced meanwhile."""
    model = runtime.load(path, threads=3)
    rows = [torch.full((4,), float(k)) for k in range(2)]
    for k, row in enumerate(rows):
        write(tmp_path / f"{k}", {"row": row, "count": torch.tensor([0.0])}, {})
    model.set_weights(tmp_path / "0")
    wrong: list[Any] = []

    def call(number: int) -> None:
        for turn in range(60):
            x = torch.full((2 + 2 * ((number + turn) % 12), 4), float(number))
            got = model.run(x, entry="affine")[0]
            if not any(torch.equal(got, affine(x, row)) for row in rows):
                wrong.append((number, turn, got))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        model.set_weights(tmp_path / f"{turn % 2}")
    for thread in threads:
        thread.join()
    assert not wrong


# --- wrong calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "'affine' takes 1 tensors, and got 0"),
        (
            [torch.zeros(4, 4, dtype=torch.float64)],
            "the input 'x' of 'affine' is float64; float32 was expected",
        ),
        ([torch.zeros(4)], "has 1 dimensions; 2 were expected"),
        ([torch.zeros(4, 5)], "has 5 in dimension 1; 4 was expected"),
        (
            [torch.zeros(66, 4)],
            r"dimension 0 of the input 'x' of 'affine' is 66; between 2 and 64 was expected \(s0\)",
        ),
        ([torch.zeros(3, 4)], "inputs with s0 % 2 == 0, which does not hold for s0 = 3"),
    ],
)
def test_wrong_inputs_are_refused(model: Model, inputs: list[torch.Tensor], message: str) -> None:
    with pytest.raises(CppError, match=f"LW_INPUT: .*{message}"):
        model.run(*inputs, entry="affine")


def test_wrong_numbers_and_results_are_refused(model: Model) -> None:
    with pytest.raises(CppError, match=r"LW_INPUT: 'numbers' takes 1 numbers \(n\), and got 0"):
        model.run(entry="numbers")
    with pytest.raises(CppError, match="LW_INPUT: the number 'n' of 'numbers' is -1; at least 0"):
        model.run(entry="numbers", numbers=[-1])
    x = torch.zeros(4)
    with pytest.raises(CppError, match=r"the result 'more'|memory for the result '0'"):
        model.run_into(x, into=[torch.zeros(3)], entry="heap")
    with pytest.raises(CppError, match="gives 1 results, and got memory for 0"):
        model.run_into(x, into=[], entry="heap")
    with pytest.raises(
        CppError, match="LW_ARGUMENT: there is no entry 'forward'; those that there are: affine"
    ):
        model.run(x)


def test_memory_that_elements_share_is_refused(
    runtime: Runtime, model: Model, tmp_path: Path, code: bytes
) -> None:
    """... wherever something would be written to it: which element comes last is nobody's choice."""
    x, row = torch.randn(2, 4), torch.zeros(2)
    number = torch.zeros((), dtype=torch.int64)
    for memory, message in (
        (torch.zeros(4).expand(2, 4), r"the strides \(0, 1\) for the shape \(2, 4\), where elements"),
        (torch.zeros(5).as_strided((2, 4), (1, 1)), "in one another's place"),
        (given(torch.zeros(4), (2, 4), (2**62, 1)), "reach beyond all memory"),
        (given(torch.zeros(4), (2, 4), (-4, 1)), "negative stride"),
    ):
        with pytest.raises(CppError, match=f"LW_INPUT: the memory for the result 'square' .*{message}"):
            model.run_into(x, into=[memory, row, number], entry="affine")
    both = torch.zeros(2, 4)
    with pytest.raises(
        CppError, match="LW_INPUT: .* result 'column' .* is that for the result 'square', too"
    ):
        model.run_into(x, into=[both, both[:, 0], number], entry="affine")
    for strides in ((2**62, 2**62), (2**61 - 1, 1)):
        with pytest.raises(CppError, match="LW_INPUT: the input 'x' of 'affine' .*reach beyond all memory"):
            model.run(given(x, (2, 4), strides), entry="affine")
    at = torch.tensor([0, 1])
    with pytest.raises(CppError, match="LW_INPUT: the input 'y' .* elements in one another's place"):
        model.run(torch.zeros(1).expand(4), at, entry="gather")
    y = torch.zeros(4)
    with pytest.raises(CppError, match="LW_INPUT: the input 'y' .* lies in the memory of the input 'index'"):
        model.run(y, y.view(torch.int64), entry="gather")

    def share(manifest: Any, programs: Any) -> None:
        for each in (manifest["entries"]["heap"]["inputs"][0], programs["entries"]["heap"]["values"][0]):
            each["strides"] = [0]

    shared = runtime.load(write_lamp(tmp_path / "shared.lamp", code, change=share))
    with pytest.raises(
        CppError, match=r"LW_INPUT: the input 'x' .* \(1\); \(0\) were expected, .*contiguous"
    ):
        shared.run(torch.randn(4), entry="heap")


def test_null_pointers_are_named(runtime: Runtime, model: Model) -> None:
    place, one, none = ctypes.c_void_p(), ctypes.c_size_t(1), ctypes.c_size_t(0)
    call = (model.handle, ctypes.c_size_t(model.entry("heap")), None, one, None, none)
    with pytest.raises(CppError, match="LW_ARGUMENT: the inputs are a null pointer"):
        runtime.check(runtime.lib.lw_run(*call, ctypes.byref(place)))
    with pytest.raises(CppError, match="LW_ARGUMENT: the results are a null pointer"):
        runtime.check(runtime.lib.lw_run_into(*call, None, one))


# --- files --------------------------------------------------------------------------------------------------------


def test_without_trust_no_code_is_loaded(runtime: Runtime, path: Path) -> None:
    with pytest.raises(CppError, match="LW_TRUST: .*holds machine code.*no compiler here.*set `trust`"):
        runtime.load(path, trust=False)


def test_pipes_and_devices_are_not_waited_for(runtime: Runtime, model: Model, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(CppError, match="LW_FILE: .* is no file"):
            runtime.load(path)
        with pytest.raises(CppError, match="LW_FILE: .* is no file"):
            model.set_weights(path)


def test_long_names_do_not_drown_a_message(runtime: Runtime, tmp_path: Path, code: bytes) -> None:
    change = _set("manifest", "weights", 0, "dtype", "é" * 500_000)
    with pytest.raises(CppError, match="LW_VERSION: .* has the dtype 'é+ ... é+', which this") as found:
        runtime.load(write_lamp(tmp_path / "long.lamp", code, change=change))
    assert len(found.value.message) < 1500


def test_what_is_no_artifact(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(CppError, match="LW_FILE: .*cannot be opened: No such file"):
        runtime.load(tmp_path / "none.lamp")
    with pytest.raises(CppError, match="LW_FILE: .* is no file"):
        runtime.load(tmp_path)
    write(tmp_path / "weights", {"w": torch.zeros(3)}, {})
    with pytest.raises(CppError, match="LW_FORMAT: .*no artifact of Lampwork, but may be a safetensors file"):
        runtime.load(tmp_path / "weights")
    for content in (b"", b"\x00" * 8, b"\xff" * 64, b"PK\x03\x04" * 9):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(CppError, match="LW_FORMAT"):
            runtime.load(tmp_path / "bad")


def _set(*way: Any) -> Any:
    """Puts the last of `way` into the manifest ("manifest", key, ..., value) or the programs."""

    def change(manifest: Any, programs: Any) -> None:
        at = {"manifest": manifest, "programs": programs}[way[0]]
        for key in way[1:-2]:
            at = at[key]
        at[way[-2]] = way[-1]

    return change


S0, S0_LESS_4 = [[1, ["s0"]]], [[-4, []], [1, ["s0"]]]
STRIDE = {"name": "s0", "min": 2, "max": 64, "input": 0, "dim": 0, "kind": "stride", "index": [[1, ["s1"]]]}
AFFINE = ("programs", "entries", "affine")


def _copy_within(manifest: Any, programs: Any) -> None:
    """The first row of a result to a place that begins in it."""
    values, steps = (programs["entries"]["affine"][name] for name in ("values", "steps"))
    values += [value("view", [4], base=4, offset=offset) for offset in (0, 2)]
    copy = {
        "aten": "aten::copy_.default",
        "args": [{"ref": 7}, {"ref": 6}],
        "kwargs": [],
        "outs": [],
        "name": "",
    }
    steps.append(copy)


SPOILED: dict[str, tuple[Any, str]] = {
    "version": (
        _set("manifest", "version", 2),
        "LW_VERSION: .*version 2, and this library knows versions up to 1",
    ),
    "machine": (
        _set("manifest", "targets", 0, "machine", "riscv64"),
        "LW_TARGET: .*plain is for riscv64, and this is",
    ),
    "needs": (
        _set("manifest", "targets", 0, "needs", ["sse2", "antigravity"]),
        "LW_TARGET: .*plain needs antigravity",
    ),
    "no targets": (_set("manifest", "targets", []), "LW_TARGET: .*it has no targets"),
    "digest": (
        _set("manifest", "sections", {"lampwork.programs.plain": {"sha256": "0", "bytes": 1}}),
        "LW_FORMAT: .*has another size than the manifest says",
    ),
    "kind": (_set(*AFFINE, "values", 0, "kind", "magic"), "LW_VERSION: .*of the kind 'magic'"),
    "buffer": (_set(*AFFINE, "steps", 0, "buffers", [0, 2, 17]), "LW_FORMAT: .*17, and a number from 0 to 5"),
    "function": (
        _set(*AFFINE, "steps", 0, "kernel", [0, "nothing"]),
        "LW_FORMAT: .*has no function 'nothing'",
    ),
    "module": (_set(*AFFINE, "steps", 0, "kernel", [1, "add"]), "LW_FORMAT: .*the module of a kernel is 1"),
    "symbol": (_set(*AFFINE, "values", 3, "shape", [[[1, ["s9"]]], 4]), "LW_FORMAT: .*the symbol 's9'"),
    "key": (_set(*AFFINE, "keys", []), "LW_FORMAT: .*depends on a symbol that the program is not placed by"),
    "view": (_set(*AFFINE, "values", 5, "offset", 4), "LW_FORMAT: .*a view reaches beyond the memory"),
    "cycle": (_set(*AFFINE, "values", 5, "base", 5), "LW_FORMAT: .*a view is a view of itself"),
    "arena": (_set(*AFFINE, "memory", []), "LW_FORMAT: .*a value of the arena has no place"),
    "twice": (
        _set(*AFFINE, "memory", [[True, 3], [True, 3]]),
        "LW_FORMAT: .*memory of a value is taken twice",
    ),
    "constant": (_set(*AFFINE, "constants", None), "LW_FORMAT: .*constants that nothing computes"),
    "weight": (
        _set(*AFFINE, "values", 1, "shape", [5]),
        "LW_FORMAT: .*takes the weight 'row' for another tensor",
    ),
    "large": (_set(*AFFINE, "values", 3, "strides", [1 << 40, 1]), "LW_MEMORY: .*there is no memory for"),
    "negative": (_set(*AFFINE, "values", 3, "strides", [-4, 1]), "LW_FORMAT: .*negative"),
    "gone": (_set("programs", "entries", "heap", "steps", 2, {"release": [1]}), "LW_FORMAT: .*released"),
    "early": (
        _set("programs", "entries", "heap", "steps", 0, {"take": []}),
        "LW_FORMAT: .*before it is made",
    ),
    "output": (_set(*AFFINE, "outputs", [4]), "LW_FORMAT: .*other outputs than"),
    "divisor": (
        _set("manifest", "entries", "affine", "inputs", 0, "strides", [[[1, [["//", S0, S0_LESS_4]]]], 1]),
        "LW_INPUT: a size or stride .*divides by zero",
    ),
    "spread": (
        _set("manifest", "entries", "affine", "inputs", 0, "strides", [1 << 62, 1]),
        "LW_FORMAT: .*more bytes than int64 counts",
    ),
    "otherwise": (
        _set("manifest", "entries", "heap", "otherwise", ["sine"]),
        "LW_FORMAT: .*the entry 'sine' is called otherwise than 'heap'",
    ),
    "late stride": (
        _set("manifest", "entries", "affine", "symbols", [STRIDE]),
        "LW_FORMAT: .*names the symbol 's1', which there is not",
    ),
    "copy": (_copy_within, "LW_FORMAT: .*copied to another part of its own memory"),
    "device": (_set(*AFFINE, "device", "cuda:0"), "LW_VERSION: .*on the device 'cuda:0'"),
    "input": (
        _set("manifest", "entries", "affine", "inputs", 0, "shape", [[[1, ["s0"]]], 3]),
        "LW_FORMAT|LW_INPUT",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_with_a_file_is_said(runtime: Runtime, tmp_path: Path, code: bytes, name: str) -> None:
    change, message = SPOILED[name]
    path = write_lamp(tmp_path / "bad.lamp", code, change=change)
    with pytest.raises(CppError, match=message):
        runtime.load(path).run(torch.zeros(4, 4), entry="affine")


def test_code_is_checked(runtime: Runtime, tmp_path: Path, code: bytes) -> None:
    path = write_lamp(tmp_path / "good.lamp", code)
    content = path.read_bytes()
    at = content.index(b"\x7fELF")
    (tmp_path / "flipped").write_bytes(
        content[: at + 700] + bytes([content[at + 700] ^ 1]) + content[at + 701 :]
    )
    with pytest.raises(CppError, match="LW_FORMAT: .*'lampwork.code.plain.0' has another digest"):
        runtime.load(tmp_path / "flipped")
    with pytest.raises(
        CppError, match="LW_FORMAT: .*'lampwork.code.plain.0' cannot be loaded: it is no relocatable"
    ):
        runtime.load(write_lamp(tmp_path / "junk", b"\x7fELF" + b"junk" * 99))


def test_code_reaches_only_the_c_library(runtime: Runtime, tmp_path: Path) -> None:
    from lampwork.codegen.llvm.isa.x86 import describe
    from lampwork.codegen.llvm.jit import Jit

    ir = "declare i64 @system(ptr)\ndefine i64 @add_row(ptr %a) {\n%b = call i64 @system(ptr %a)\nret i64 %b\n}"
    path = write_lamp(tmp_path / "evil.lamp", Jit(describe("sse4")).object_code(ir))
    with pytest.raises(CppError, match="LW_FORMAT: .*this process has no 'system'"):
        runtime.load(path)


def test_code_of_aarch64_finds_what_it_calls(runtime: Runtime, tmp_path: Path) -> None:
    """There LLVM makes one call of sine and cosine of a number."""
    from lampwork.codegen.llvm.isa.x86 import describe
    from lampwork.codegen.llvm.jit import Jit

    body = "call void @sincos(double 1.0, ptr %a, ptr %a)\ncall void @sincosf(float 1.0, ptr %a, ptr %a)\nret i64 0"
    declared = "declare void @sincos(double, ptr, ptr)\ndeclare void @sincosf(float, ptr, ptr)\n"
    ir = f"{declared}define i64 @both(ptr %a) {{\n{body}\n}}"
    assert runtime.load(write_lamp(tmp_path / "both.lamp", Jit(describe("sse4")).object_code(ir))).target


def test_a_target_can_be_asked_for(runtime: Runtime, path: Path) -> None:
    assert runtime.load(path).reason == "picked plain: the first that this CPU runs"
    assert runtime.load(path, target="plain").reason == "picked plain, as was asked for"
    with pytest.raises(CppError, match="LW_TARGET: .*no target 'x86-64-v9'; those that it has are plain"):
        runtime.load(path, target="x86-64-v9")
