"""ARM's kernels, made here and run in an emulator.

A program without a C library reads packed weights and activations, multiplies, and writes the
results: assembled by LLVM, linked by binutils, run by qemu-user.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import llvmlite.ir as ir
import numpy as np
import pytest

from edgespec._types import ByteArray, Float32Array
from edgespec.kernels.activations import RECORD_BYTES, record_of
from edgespec.kernels.compiler import QUANTIZE, compile_object, emit_object
from edgespec.kernels.formats import FORMATS, Format, pack
from edgespec.kernels.gemm import multiply_name
from edgespec.kernels.isa import (
    I8,
    I32,
    I64,
    INSTRUCTION_SETS,
    POINTER,
    VOID,
    Builder,
    InstructionSet,
    Value,
    arm_features,
    function,
)
from tests.kernels.twins import multiplied, random_weights

HEIGHT, WIDTH = 13, 512
READ, WRITE, EXIT = 63, 64, 93  # Linux's numbers on ARM
SYSTEM = (0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0)
"""mov x8, x0; mov x0, x1; mov x1, x2; mov x2, x3; svc 0; ret"""

EMULATOR, LINKER = shutil.which("qemu-aarch64"), shutil.which("aarch64-linux-gnu-ld")
pytestmark = pytest.mark.skipif(
    not (EMULATOR and LINKER), reason="qemu-user and binutils for aarch64 are not installed"
)

ARM = [isa for isa in INSTRUCTION_SETS.values() if isa.triple == "aarch64"]


@pytest.mark.parametrize("isa", ARM, ids=lambda isa: isa.name)
@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)
def test_a_product_is_the_twins_bit_for_bit(
    isa: InstructionSet, format: Format, tmp_path: Path
) -> None:
    raw = random_weights(format, HEIGHT, WIDTH, 3)
    x = np.random.default_rng(4).standard_normal((isa.columns, WIDTH)).astype(np.float32)
    expected = multiplied(format, raw, x)
    packed = pack(format, raw, WIDTH, isa.rows)
    for columns in (1, 5, isa.columns):
        got = run(isa, format, packed, x[:columns], tmp_path)
        assert np.array_equal(got[:, :HEIGHT], expected[:columns])


def run(
    isa: InstructionSet, format: Format, packed: ByteArray, x: Float32Array, folder: Path
) -> Float32Array:
    start = ir.Module("start")
    define_start(start, isa, format, packed, len(x))
    objects = {
        "start": emit_object(start, isa),
        "kernels": compile_object(isa, format),
        "quantize": compile_object(isa, QUANTIZE),
    }
    for name, data in objects.items():
        (folder / f"{name}.o").write_bytes(data)
    program = folder / "program"
    files = [str(folder / f"{name}.o") for name in objects]
    assert EMULATOR and LINKER
    subprocess.run([LINKER, "-static", "-o", str(program), *files], check=True)
    done = subprocess.run(
        [EMULATOR, "-cpu", "max", str(program)],
        input=packed.tobytes() + x.tobytes(),
        capture_output=True,
        check=True,
    )
    return np.frombuffer(done.stdout, np.float32).reshape(len(x), -1)


def define_start(
    module: ir.Module, isa: InstructionSet, format: Format, packed: ByteArray, columns: int
) -> None:
    """Read weights and activations, round these, multiply, write the results."""
    rows = 4 * len(packed) * isa.rows
    memory = {
        "input": packed.nbytes + columns * 4 * WIDTH,
        "records": columns * WIDTH * RECORD_BYTES,
        "results": columns * rows,
        "addresses": 16 * columns,
    }
    pointers = {}
    for name, size in memory.items():
        made = ir.GlobalVariable(module, ir.ArrayType(I8, size), name)
        made.initializer, made.linkage, made.align = (
            ir.Constant(made.value_type, None),
            "internal",
            64,
        )
        pointers[name] = made.bitcast(POINTER)
    layout = record_of(format)
    quantize = ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I64]), layout.name)
    kind = ir.FunctionType(VOID, [POINTER, POINTER, POINTER, I64, I64, I64])
    multiply = ir.Function(module, kind, multiply_name(format, columns))
    b = function(module, "_start", VOID, [])

    def read(_: Value, carried: list[Value]) -> list[Value]:
        (got,) = carried
        where = b.ptrtoint(b.gep(pointers["input"], [got]), I64)
        return [b.add(got, system(b, READ, 0, where, b.sub(I64(memory["input"]), got)))]

    # A pipe gives 64 KiB at a time: more than enough rounds.
    b.loop(I64(0), I64(64), 1, [I64(0)], read)
    x = b.gep(pointers["input"], [I64(packed.nbytes)])
    addresses = pointers["addresses"]
    for column in range(columns):
        activations = b.gep(x, [I64(column * 4 * WIDTH)])
        record = b.gep(pointers["records"], [I64(column * WIDTH * RECORD_BYTES)])
        b.call(quantize, [activations, record, I64(WIDTH // layout.block)])
        given = activations if format.weights == 1 else record
        b.store_at(b.ptrtoint(given, I64), addresses, 8 * column)
        result = b.gep(pointers["results"], [I64(column * rows)])
        b.store_at(b.ptrtoint(result, I64), addresses, 8 * (columns + column))
    blocks, groups = I64(WIDTH // format.weights), I64(len(packed))
    outputs = b.gep(addresses, [I64(8 * columns)])
    b.call(multiply, [pointers["input"], addresses, outputs, blocks, I64(0), groups])
    system(b, WRITE, 1, b.ptrtoint(pointers["results"], I64), I64(memory["results"]))
    system(b, EXIT, 0, I64(0), I64(0))
    b.unreachable()


def system(b: Builder, number: int, first: int, second: Value, third: Value) -> Value:
    """A system call of Linux, by machine code: this LLVM has no assembler for ARM."""
    kind = ir.FunctionType(I64, [I64] * 4)
    code = b.module.globals.get("system")
    if code is None:
        code = ir.GlobalVariable(b.module, ir.ArrayType(I32, len(SYSTEM)), "system")
        code.initializer = ir.Constant(code.value_type, [I32(word) for word in SYSTEM])
        code.linkage, code.global_constant, code.section = "internal", True, ".text"
    function = b.inttoptr(code.ptrtoint(I64), kind.as_pointer())
    return b.call(function, [I64(number), I64(first), second, third])


def test_features_are_read_from_linux() -> None:
    # A Raspberry Pi 5 has the bits of asimd (1) and asimddp (20); Neoverse V1 has i8mm (13).
    assert arm_features(1 << 1 | 1 << 20, 0) == {"neon", "dotprod"}
    assert arm_features(1 << 1 | 1 << 20, 1 << 13) == {"neon", "dotprod", "i8mm"}
    assert arm_features(1 << 1, 0) == {"neon"}
