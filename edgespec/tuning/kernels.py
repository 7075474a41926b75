"""Whose kernels multiply which weights: ours where they were measured to be faster.

Each type of tensor is timed once on a machine, with one column (a token), a few (a block to
verify) and many (a prompt), on one thread: several would wait for each other on a busy machine.
`edgespec tune` compares whole models besides.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from edgespec.backend import ModelOptions, formats_of, kernel_status, time_formats
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.tuning.setting import build_facts, load_measurement, store_measurement

__all__ = ["fast_options", "faster_formats", "usual_kernels"]

_TOKEN, _BLOCK, _PROMPT = 1, 4, 32
_SECONDS = 0.2
"""For a format, in any case one look at each of the rivals."""

_WORTH = 1.05
"""Where both are about as fast, ours: their batches are bit-identical to single tokens."""

_PROMPT_SHARE = 1 / 8
"""Of an answer's evaluations a prompt's are few, but long."""


def faster_formats(header: GGUFHeader) -> frozenset[str]:
    """Types of the file's tensors that our kernels multiply faster here; measured if unknown."""
    if kernel_status().instruction_set is None:
        return frozenset()
    return frozenset(name for name in formats_of(header) if _faster(name))


def fast_options(file: Path, threads: int) -> ModelOptions:
    """How to open a file so that the kernels that are faster here multiply its weights."""
    return ModelOptions(faster_formats(read_header(file)), threads)


def usual_kernels(header: GGUFHeader) -> str:
    """Whose kernels multiply most of a file's weights where the user left it open."""
    return "edgespec" if faster_formats(header) else "llama.cpp"


def _faster(name: str) -> bool:
    key = _key(name)
    known = _verdict(key)
    if known is None:
        columns = (_TOKEN, _BLOCK, _PROMPT)
        times = time_formats([name], threads=1, columns=columns, seconds=_SECONDS).get(name)
        if times is None:
            return False
        ours, theirs = _score(times.ours), _score(times.theirs)
        known = _verdict(key)  # another process may have measured meanwhile: one verdict for all
        if known is None:
            store_measurement(key, {"format": name, "ours_s": ours, "theirs_s": theirs})
            known = ours <= _WORTH * theirs
    return known


def _verdict(key: str) -> bool | None:
    stored = load_measurement(key) or {}
    ours, theirs = stored.get("ours_s"), stored.get("theirs_s")
    if not isinstance(ours, float) or not isinstance(theirs, float):
        return None
    return ours <= _WORTH * theirs


def _score(seconds: dict[int, float]) -> float:
    return seconds[_TOKEN] + seconds[_BLOCK] + _PROMPT_SHARE * seconds[_PROMPT]


def _key(name: str) -> str:
    facts = [*build_facts(), kernel_status().instruction_set, name]
    return "kernels-" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
