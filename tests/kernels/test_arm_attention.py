"""ARM's attention, made here and run in an emulator as in `test_arm`: x86's bits."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import llvmlite.ir as ir
import numpy as np
import pytest

from edgespec.kernels.attention import RECORD_HEAD
from edgespec.kernels.compiler import ATTENTION, compile_object, emit_object
from edgespec.kernels.isa import I8, I64, POINTER, VOID, Builder, InstructionSet, Value, function
from tests.kernels.test_arm import ARM, EMULATOR, EXIT, LINKER, READ, WRITE, system
from tests.kernels.test_attention import Case, device  # noqa: F401

pytestmark = pytest.mark.skipif(
    not (EMULATOR and LINKER), reason="qemu-user and binutils for aarch64 are not installed"
)

PAIRS, WIDTH, KEYS = 4, 64, 96


@pytest.mark.parametrize("isa", ARM[:1], ids=lambda isa: isa.name)
def test_attention_has_the_bits_of_this_machine(
    isa: InstructionSet,
    device: object,  # noqa: F811
    tmp_path: Path,
) -> None:
    case = Case(heads=PAIRS, shared=1, queries=1, width=WIDTH, keys=KEYS, unused=9)
    expected = case.run(device, 1)[0]  # type: ignore[arg-type]
    data = b"".join(part.tobytes() for part in (case.q[:, 0], case.k[0], case.v[0], case.mask[0]))
    got = np.frombuffer(run(isa, data, case.scale, tmp_path), np.float32)
    assert np.array_equal(got.reshape(expected.shape), expected)


def run(isa: InstructionSet, data: bytes, scale: float, folder: Path) -> bytes:
    start = ir.Module("start")
    define_start(start, len(data), struct.unpack("<i", struct.pack("<f", scale))[0])
    objects = {"start": emit_object(start, isa), "kernels": compile_object(isa, ATTENTION)}
    for name, content in objects.items():
        (folder / f"{name}.o").write_bytes(content)
    program = folder / "program"
    files = [str(folder / f"{name}.o") for name in objects]
    assert EMULATOR and LINKER
    subprocess.run([LINKER, "-static", "-o", str(program), *files], check=True)
    command = [EMULATOR, "-cpu", "max", str(program)]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def define_start(module: ir.Module, size: int, scale: int) -> None:
    """Read queries, keys, values and a mask; attend; write what `finish` makes of the records."""
    record = RECORD_HEAD + 4 * WIDTH
    memory = {
        "input": size,
        "addresses": 16 * PAIRS,
        "records": PAIRS * record,
        "scratch": 4 * 32 * (WIDTH + PAIRS),
        "results": 4 * WIDTH * PAIRS,
    }
    pointers = {}
    for name, count in memory.items():
        made = ir.GlobalVariable(module, ir.ArrayType(I8, count), name)
        made.initializer, made.linkage = ir.Constant(made.value_type, None), "internal"
        made.align = 64
        pointers[name] = made.bitcast(POINTER)
    kinds = [*[POINTER, I64, I64] * 2, *[I64] * 3, *[POINTER] * 2, *[I64] * 2, *[POINTER] * 4]
    attend = ir.Function(module, ir.FunctionType(VOID, kinds), "attend_F16")
    finish = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I64]), "finish")
    b = function(module, "_start", VOID, [])

    def read(_: Value, carried: list[Value]) -> list[Value]:
        (got,) = carried
        where = b.ptrtoint(b.gep(pointers["input"], [got]), I64)
        return [b.add(got, system(b, READ, 0, where, b.sub(I64(size), got)))]

    b.loop(I64(0), I64(64), 1, [I64(0)], read)
    k = b.gep(pointers["input"], [I64(4 * WIDTH * PAIRS)])
    v = b.gep(k, [I64(2 * WIDTH * KEYS)])
    mask = b.gep(v, [I64(2 * WIDTH * KEYS)])
    for pair in range(PAIRS):
        query = b.gep(pointers["input"], [I64(4 * WIDTH * pair)])
        write_address(b, pointers["addresses"], pair, query)
        write_address(b, pointers["addresses"], PAIRS + pair, mask)
    rows = [k, I64(2 * WIDTH), I64(WIDTH), v, I64(2 * WIDTH), I64(WIDTH)]
    masks = b.gep(pointers["addresses"], [I64(8 * PAIRS)])
    memories = [pointers["addresses"], masks, pointers["records"], pointers["scratch"]]
    ahead = [k, v, I64(2 * WIDTH), I64(2 * WIDTH)]
    b.call(attend, [*rows, I64(KEYS), I64(scale), I64(PAIRS), *ahead, *memories])
    for pair in range(PAIRS):
        ours = b.gep(pointers["records"], [I64(record * pair)])
        b.call(finish, [ours, b.gep(pointers["results"], [I64(4 * WIDTH * pair)]), I64(WIDTH)])
    system(b, WRITE, 1, b.ptrtoint(pointers["results"], I64), I64(memory["results"]))
    system(b, EXIT, 0, I64(0), I64(0))
    b.unreachable()


def write_address(b: Builder, array: Value, index: int, pointer: Value) -> None:
    b.store_at(b.ptrtoint(pointer, I64), array, 8 * index)
