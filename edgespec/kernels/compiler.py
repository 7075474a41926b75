"""Kernels compiled to native code, each format's kept on disk as an object file."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir

from edgespec.files import read_at_most, replace_file
from edgespec.kernels.activations import Record, emit_quantize
from edgespec.kernels.attention import CACHE_TYPES, emit_attention
from edgespec.kernels.formats import Format
from edgespec.kernels.gemm import emit_multiply, multiply_name
from edgespec.kernels.isa import InstructionSet
from edgespec.kernels.native import translate
from edgespec.kernels.rows import ROW_KERNELS, emit_rows
from edgespec.sampling.kernel import cache_folder

__all__ = ["ATTENTION", "CALLBACKS", "QUANTIZE", "ROWS", "Kernels", "compile_object", "emit_object"]

QUANTIZE, ATTENTION, ROWS, CALLBACKS = "quantize", "attention", "rows", "callbacks"
_DIGEST = 32
_MOST_BYTES = 64 << 20


class Kernels:
    """Native kernels of one instruction set, compiled or loaded when first asked for.

    Addresses stay valid as long as the process lives.
    """

    def __init__(self, isa: InstructionSet) -> None:
        self.isa = isa
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        empty, machine = llvm.parse_assembly(str(ir.Module("edgespec"))), _target_machine(isa, True)
        self._engine: Any = llvm.create_mcjit_compiler(empty, machine)  # owns the machine now
        self._loaded: set[str] = set()

    def quantize(self, record: Record) -> int:
        """Return the address of the kernel that rounds activations to such records."""
        self._load(QUANTIZE)
        return int(self._engine.get_function_address(record.name))

    def multiply(self, format: Format) -> list[int]:
        """Return the addresses of a format's kernels for 1, 2 ... `isa.columns` columns."""
        self._load(format)
        return [
            int(self._engine.get_function_address(multiply_name(format, columns)))
            for columns in range(1, self.isa.columns + 1)
        ]

    def attention(self) -> dict[str, int]:
        """Return the addresses of the functions of `emit_attention`, by name."""
        self._load(ATTENTION)
        names = [*(f"attend_{kind}" for kind in CACHE_TYPES.values()), "merge", "finish", "ask"]
        return {name: int(self._engine.get_function_address(name)) for name in names}

    def rows(self) -> list[int]:
        """Return the addresses of the functions of `ROW_KERNELS`."""
        self._load(ROWS)
        return [int(self._engine.get_function_address(name)) for name in ROW_KERNELS]

    def function(self, name: str) -> int:
        """Return the address of one of the functions for ggml (`callbacks`)."""
        self._load(CALLBACKS)
        return int(self._engine.get_function_address(name))

    def _load(self, what: Format | str) -> None:
        name = what if isinstance(what, str) else what.name
        if name not in self._loaded:
            data = _stored_object(self.isa, what, name)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            self._engine.finalize_object()
            self._loaded.add(name)


def _stored_object(isa: InstructionSet, what: Format | str, name: str) -> bytes:
    folder = cache_folder("kernels")
    if folder is None:
        return compile_object(isa, what, native=True)
    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    key = f"{isa.name} {processor} {llvm.llvm_version_info}".encode()
    path = folder / f"{hashlib.sha256(key).hexdigest()[:16]}-{name}.o"
    with contextlib.suppress(OSError, ValueError):
        stored = read_at_most(path, _MOST_BYTES)
        digest, data = stored[:_DIGEST], stored[_DIGEST:]
        if hashlib.sha256(data).digest() == digest:  # what is damaged would crash
            return data
    data = compile_object(isa, what, native=True)
    with contextlib.suppress(OSError):  # a full disk costs only compiling again
        replace_file(path, hashlib.sha256(data).digest() + data)
    return data


def compile_object(isa: InstructionSet, what: Format | str, *, native: bool = False) -> bytes:
    """Return an object file with a format's kernels, or what a name above stands for.

    Args:
        native: for this very processor; else for any with what the instruction set needs.
    """
    module = ir.Module("edgespec")
    if what == CALLBACKS:
        translate(module)
    elif what == QUANTIZE:
        emit_quantize(module)
    elif what == ATTENTION:
        emit_attention(module, isa)
    elif what == ROWS:
        emit_rows(module, isa)
    elif isinstance(what, Format):
        for columns in range(1, isa.columns + 1):
            emit_multiply(module, isa, what, columns)
    return emit_object(module, isa, native=native, optimized=what == CALLBACKS)


def emit_object(
    module: ir.Module, isa: InstructionSet, *, native: bool = False, optimized: bool = False
) -> bytes:
    """Compile a module to an object file.

    Args:
        optimized: run LLVM's passes. In kernels all is done by hand that these would take
            seconds for.
    """
    machine = _target_machine(isa, native)
    parsed = llvm.parse_assembly(str(module))
    parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    parsed.verify()
    if optimized:
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        passes.getModulePassManager().run(parsed, passes)
    return bytes(machine.emit_object(parsed))


def _target_machine(isa: InstructionSet, native: bool) -> llvm.TargetMachine:
    if native:
        target = llvm.Target.from_triple(llvm.get_process_triple())
        name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        features = ",".join([features, *(f"+{feature}" for feature in isa.needs)])
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = isa.triple or llvm.get_process_triple().partition("-")[0]
        target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu")
        name, features = "", ",".join(f"+{feature}" for feature in isa.needs)
    return target.create_target_machine(cpu=name, features=features, opt=3)
