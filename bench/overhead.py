"""Measure what edgespec costs without speculation, beside the plainest loop over the binding.

    python -m bench.overhead [MODEL.gguf] [--rounds 15] [--tokens 128] [--json FILE]

Both sides open the same file with the same settings and decode the same prompt greedily, one
after the other in random order, in one process. Peak memory is that of a separate process for each
side. A ratio is edgespec / raw of one round; shown are medians with 95% bootstrap intervals.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import random
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bench.command import Parser
from edgespec.benchmark.results import median_interval

PROMPT = (
    "<|im_start|>user\nExplain to a curious child, step by step and with an example from the "
    "kitchen, why ice floats on water while most solids sink in their own melt.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
CONTEXT = 1024


class RawLoop:
    """The loop that the binding's low-level example suggests: decode, sample, decode."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp as lib

        self.lib = lib
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        model_parameters = lib.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(path.encode(), model_parameters)
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = CONTEXT
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.n_batch = parameters.n_ubatch = 256
        parameters.flash_attn_type = 0
        parameters.no_perf = True
        self.context = lib.llama_init_from_model(self.model, parameters)
        self.vocabulary = lib.llama_model_get_vocab(self.model)
        self.sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self.sampler, lib.llama_sampler_init_greedy())

    def tokenize(self, text: str) -> Any:
        data = text.encode()
        tokens = (self.lib.llama_token * (len(data) + 8))()
        count = self.lib.llama_tokenize(
            self.vocabulary, data, len(data), tokens, len(tokens), True, True
        )
        return (self.lib.llama_token * count)(*tokens[:count])

    def generate(self, count: int) -> tuple[list[int], float, float]:
        """Return tokens, seconds to the first, and seconds for the others."""
        lib = self.lib
        lib.llama_memory_clear(lib.llama_get_memory(self.context), False)
        started = perf_counter()
        prompt = self.tokenize(PROMPT)
        lib.llama_decode(self.context, lib.llama_batch_get_one(prompt, len(prompt)))
        tokens = [lib.llama_sampler_sample(self.sampler, self.context, -1)]
        piece = ctypes.create_string_buffer(64)
        lib.llama_token_to_piece(self.vocabulary, tokens[0], piece, 64, 0, False)
        first = perf_counter()
        one = (lib.llama_token * 1)()
        while len(tokens) < count:
            one[0] = tokens[-1]
            lib.llama_decode(self.context, lib.llama_batch_get_one(one, 1))
            tokens.append(lib.llama_sampler_sample(self.sampler, self.context, -1))
            lib.llama_token_to_piece(self.vocabulary, tokens[-1], piece, 64, 0, False)
        return tokens, first - started, perf_counter() - first


class Edgespec:
    """`edgespec run --draft none`, from the prompt's text on."""

    def __init__(self, path: str, threads: int) -> None:
        from edgespec import Engine, EngineOptions
        from edgespec.runtime.loading import warm_up

        warm_up()
        options = EngineOptions(draft="none", context=CONTEXT, threads=threads)
        self.engine = Engine(Path(path), options)

    def generate(self, count: int) -> tuple[list[int], float, float]:
        from edgespec import GenerationLimits, SamplingParameters

        self.engine.forget()
        started = perf_counter()
        stream = self.engine.generate(
            PROMPT, SamplingParameters(temperature=0), GenerationLimits(max_tokens=count)
        )
        pieces = iter(stream)
        next(pieces)
        first = perf_counter()
        for _ in pieces:
            pass
        return list(stream.emitted), first - started, perf_counter() - first


SIDES = {"raw": RawLoop, "edgespec": Edgespec}


def compare(path: str, threads: int, rounds: int, count: int) -> dict[str, Any]:
    """Measure interleaved rounds of both sides in this process."""
    sides = {name: make(path, threads) for name, make in SIDES.items()}
    texts = {name: side.generate(count)[0] for name, side in sides.items()}  # warm-up
    samples: dict[str, dict[str, list[float]]] = {
        name: {"tokens_per_second": [], "first_token_s": []} for name in sides
    }
    for _ in range(rounds):
        for name in random.sample(sorted(sides), len(sides)):
            tokens, first, rest = sides[name].generate(count)
            samples[name]["tokens_per_second"].append((len(tokens) - 1) / rest)
            samples[name]["first_token_s"].append(first)
    return {"same_tokens": texts["raw"] == texts["edgespec"], "samples": samples}


def peak_memory(path: str, threads: int, count: int) -> dict[str, int]:
    """Return the largest resident size of a process of each side, in bytes."""
    peaks = {}
    for name in SIDES:
        command = [sys.executable, "-m", "bench.overhead", path, "--only", name]
        command += ["--threads", str(threads), "--tokens", str(count)]
        peaks[name] = int(subprocess.run(command, check=True, capture_output=True).stdout)
    return peaks


def run_alone(name: str, path: str, threads: int, count: int) -> None:
    SIDES[name](path, threads).generate(count)
    print(peak_resident())


def peak_resident() -> int:
    """Return the largest resident size of this process, in bytes."""
    try:
        # On Linux getrusage starts from the parent's peak; this starts from nothing.
        status = Path("/proc/self/status").read_text("ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def ratio(samples: dict[str, dict[str, list[float]]], figure: str) -> dict[str, float]:
    """Return the median of edgespec / raw over the rounds, with a bootstrap interval."""
    return median_interval(np.divide(samples["edgespec"][figure], samples["raw"][figure]))


def main() -> None:
    parser = Parser("overhead", __doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    if arguments.only:  # before anything of edgespec is imported: the raw loop needs none of it
        run_alone(arguments.only, arguments.model, arguments.threads, arguments.tokens)
        return

    from edgespec.registry.resolve import resolve
    from edgespec.runtime.processors import default_threads

    path = str(resolve(arguments.model).path)
    threads = arguments.threads or default_threads()
    report = compare(path, threads, arguments.rounds, arguments.tokens)
    report["ratios"] = {
        figure: ratio(report["samples"], figure)
        for figure in ("tokens_per_second", "first_token_s")
    }
    report["peak_bytes"] = peak_memory(path, threads, arguments.tokens)
    report["settings"] = {
        "model": Path(path).name,
        "threads": threads,
        "context": CONTEXT,
        "rounds": arguments.rounds,
        "tokens": arguments.tokens,
        "machine": platform.machine(),
        "processor": platform.processor(),
    }
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def show(report: dict[str, Any]) -> None:
    for figure, aim in (("tokens_per_second", "at least 0.97"), ("first_token_s", "at most 1.05")):
        sides = {name: np.median(report["samples"][name][figure]) for name in SIDES}
        r = report["ratios"][figure]
        print(
            f"{figure:18} raw {sides['raw']:8.3f}  edgespec {sides['edgespec']:8.3f}  "
            f"ratio {r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}]  ({aim})"
        )
    peaks = report["peak_bytes"]
    more = (peaks["edgespec"] - peaks["raw"]) / 2**20
    print(f"peak memory        {more:.0f} MiB above the raw loop  (at most 150)")
    print(f"same tokens        {report['same_tokens']}")


if __name__ == "__main__":
    main()
