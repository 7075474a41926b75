"""`edgespec doctor`: what this machine and this build can do, and what to change."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import click

__all__ = ["doctor"]

_VECTOR_SETS = ("AVX2", "AVX512", "NEON", "SVE")
_REBUILD = (
    'CMAKE_ARGS="-DGGML_LLAMAFILE=OFF -DCMAKE_C_FLAGS=-U__AMX_INT8__ '
    '-DCMAKE_CXX_FLAGS=-U__AMX_INT8__" pip install --force-reinstall --no-deps --no-cache-dir '
    "--no-binary llama-cpp-python llama-cpp-python"
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Show what was built, what memory there is, and what to change."""
    from edgespec.tuning.profile import tuned_models
    from edgespec.tuning.setting import stored_choices

    facts = _facts()
    choices, tuned = stored_choices(), tuned_models()
    advice = _advice(facts)
    if as_json:
        more = {"exactness": choices, "tuned": tuned, "advice": advice}
        click.echo(json.dumps({**facts, **more}, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):{width}}  {_shown(name, value)}")
    click.echo()
    for choice in choices:
        click.echo(f"{choice['model']}: {choice['mode']}, {choice['reason']}")
    for found in tuned:
        click.echo(_tuned_line(found, facts["memory_bytes_per_second"]))
    for line in advice or ["Nothing to change."]:
        click.echo(f"- {line}" if advice else line)


def _facts() -> dict[str, Any]:
    import numba
    import numpy as np
    import psutil

    from edgespec import __version__
    from edgespec.backend import capabilities, kernel_status
    from edgespec.registry.cache import default_cache
    from edgespec.runtime.memory import available_memory, memory_bandwidth
    from edgespec.runtime.processors import default_threads
    from edgespec.sampling.kernel import cache_folder

    build, kernels = capabilities(), kernel_status()
    return {
        "edgespec": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llama_cpp_python": build.binding,
        "machine": f"{platform.machine()}, {platform.system()}",
        "cores": psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        "threads_used": default_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": available_memory(),
        "memory_bytes_per_second": memory_bandwidth(default_threads()),
        "kernels": kernels.instruction_set or f"off: {kernels.reason}",
        "instruction_sets": sorted(build.features - {"REPACK", "LLAMAFILE", "OPENMP"}),
        "openmp": "OPENMP" in build.features,
        "weight_repacking": "REPACK" in build.features and not build.amx,
        "tinyblas_kernels": build.tinyblas,
        "amx_kernels": build.amx,
        "batches_bit_identical": not build.tinyblas,
        "hidden_states_of_layers": build.layer_taps,
        "hidden_state_before_output": build.final_tap,
        "tokens_with_embeddings": build.extended_batch,
        "mtp_layers": build.mtp,
        "gpu_backend": build.gpu_offload,
        "models_folder": str(default_cache().folder),
        "kernel_cache": str(cache_folder() or "none: compiled again at every start"),
    }


def _advice(facts: dict[str, Any]) -> list[str]:
    advice = []
    if facts["tinyblas_kernels"]:
        advice.append(
            "llama.cpp was built with its LLAMAFILE kernels: batches are not bit-identical to "
            "single tokens, so that greedy text may differ from plain decoding at near-ties, and "
            f"long contexts are slower. Rebuild: {_REBUILD}"
        )
    if facts["kernels"].startswith("off"):
        advice.append(
            f"edgespec's own kernels are {facts['kernels']}. llama.cpp's are used, with which a "
            "block costs more to verify"
        )
    if facts["amx_kernels"]:
        advice.append(
            "llama.cpp was built with its AMX kernels, which crash with some compilers: weights "
            f"are not repacked, and prompts take longer. Rebuild: {_REBUILD}"
        )
    if not set(_VECTOR_SETS) & set(facts["instruction_sets"]):
        advice.append(
            "no wide vector instructions were compiled in: rebuild llama-cpp-python on this "
            "machine, without a wheel made for another one"
        )
    if facts["threads_used"] < facts["cores"]:
        advice.append(
            f"this process may use {facts['threads_used']} of {facts['cores']} cores: lift its "
            "CPU affinity for more speed"
        )
    if facts["memory_available_bytes"] < 2**30:
        advice.append("less than 1 GiB of memory is free: close programs before loading a model")
    if facts["gpu_backend"]:
        advice.append("this build has a GPU backend; edgespec uses the CPU only")
    if sys.maxsize < 2**32:
        advice.append("this is a 32-bit Python: models over 2 GiB cannot be loaded")
    return advice


def _tuned_line(found: dict[str, Any], bandwidth: int) -> str:
    read = Path(found["path"]).stat().st_size / found["token_s"] / bandwidth
    return (
        f"{found['model']}: tuned {found['date']}, {found['setting']}: "
        f"{found['token_s'] * 1e3:.1f} ms per token, {1 / found['prefill_s']:.0f} prompt tokens/s; "
        f"a token reads the file at {read:.0%} of the memory's speed"
    )


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "memory_bytes_per_second":
        return f"{value / 1e9:.1f} GB"
    if isinstance(value, int) and value > 2**20:
        return f"{value / 2**30:.1f} GiB"
    return " ".join(value) if isinstance(value, list) else str(value)
