"""How much memory models will need, whether there is that much, and how fast it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil

from edgespec.errors import InsufficientMemoryError
from edgespec.gguf.header import GGUFHeader
from edgespec.runtime.processors import control_groups, read_lines, read_number

__all__ = [
    "Demand",
    "MemoryEstimate",
    "available_memory",
    "estimate",
    "expected_speed",
    "memory_bandwidth",
    "require",
]

_FLOAT = 4
_CELLS = 256  # llama.cpp rounds a context up to a multiple of this
_ACTIVATIONS = 16
_TARGET_BATCH = 256
_SMALLEST_CONTEXT = 512
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a model and its context will take.

    Attributes:
        weights: the file, mapped, and the copy that repacking makes.
        kv_cache: keys and values.
        compute: buffers for intermediate results and logits.
        reclaimable: the part of `weights` that the system may drop when memory is short: what was
            mapped of tensors whose repacked copy is used instead.
    """

    weights: int
    kv_cache: int
    compute: int
    reclaimable: int = 0

    @property
    def total(self) -> int:
        """Resident bytes after loading and a full evaluation, if nothing presses."""
        return self.weights + self.kv_cache + self.compute

    @property
    def required(self) -> int:
        """Bytes that have to be free for the model to run at full speed."""
        return self.total - self.reclaimable

    def __str__(self) -> str:
        """Say what is required, and for what."""
        return _account([self])


Demand = Callable[[int], MemoryEstimate]
"""What a model needs with a context of so many tokens."""


def estimate(
    header: GGUFHeader,
    *,
    context: int,
    batch: int,
    outputs: int,
    flash_attention: bool,
    kv_bytes: float = 2.0,
    repack: bool,
    mtp: bool = False,
    snapshots: int = 0,
) -> MemoryEstimate:
    """Return the memory of one model and one context, in bytes.

    - Weights are mapped, so they take the file's size. Repacking copies what the processor has
      kernels for, at most all tensors, and leaves the originals unused. Our own kernels pack
      weights while they are read from the file, which is not mapped then: they are held once.
    - The KV cache has, for each layer, ``head_count_kv * (key_length + value_length)`` numbers a
      token, for the context rounded up to a multiple of 256.
    - Compute is the larger of two phases that share one buffer, plus the rows of logits that are
      handed out. Attention takes, for each token of a batch, the context's mask, scores of all
      heads (not with flash attention), and activations, taken as 16 times the embedding width.
      The output phase takes the rows of logits and three rows of embedding width.
    - With an EAGLE-3 head its target's features are recorded: the inputs of three layers for each
      token of the context and of the target's batch. Its rows of logits are spread over the
      target's vocabulary in one more copy.
    - Medusa heads have no context: their weights are held once, and a row of logits for each.
    - MTP layers are part of the file, and are read only where they draft. They then have keys and
      values of their own, the target's states for each token of the context, rows of logits and
      activations once more.
    - State-space layers have one state, and one more for each snapshot and for the copy that is
      kept with these.

    Against llama.cpp's own figures, on a 135M llama with 4-bit weights, contexts of 1,024 to 8,192
    tokens and batches of 16 to 512: weights and KV cache are exact; compute is 1.0 to 1.3 times
    the true figure without flash attention and 1.0 to 1.45 times with it, always less than 13 MiB
    above. The copy that repacking made was 66% (Q4_0) and 8% (Q4_K_M) of the bound used. The
    program and its vocabulary, 20 MiB there, are not included; nor is what short convolutions keep.

    Args:
        header: of the model's file.
        context: tokens the KV cache holds.
        batch: tokens of one evaluation.
        outputs: rows of logits of one evaluation.
        flash_attention: whether the context is opened with it.
        kv_bytes: bytes of a number in the KV cache: 2 for f16, 4 for f32, 1.0625 for q8_0.
        repack: whether weights are rearranged for this processor.
        mtp: whether the model's MTP layers draft.
        snapshots: of recurrent states.
    """
    if header.medusa is not None:
        rows = header.medusa.count * header.vocabulary_size * _FLOAT
        return MemoryEstimate(weights=header.size_bytes, kv_cache=0, compute=rows)
    cells = -(-context // _CELLS) * _CELLS
    rows = max(batch, outputs)
    logits = outputs * header.vocabulary_size * _FLOAT
    unread = header.mtp.size_bytes if header.mtp and not mtp else 0
    copy = header.tensor_bytes - unread if repack else 0
    layers = header.block_count - (header.mtp.count if header.mtp and not mtp else 0)
    compute = logits + max(
        _attention(header, rows, cells, flash_attention),
        logits + 3 * rows * header.embedding_length * _FLOAT,
    )
    states = header.embedding_length * (context + 2 * _TARGET_BATCH) * _FLOAT
    return MemoryEstimate(
        weights=max(header.size_bytes, header.tensor_bytes) - unread + copy,
        kv_cache=_kv_cache(header, layers, cells, kv_bytes)
        + header.state_bytes * (1 + (snapshots + 1 if snapshots else 0)),
        compute=compute + _features(header, context, logits) + (compute + states if mtp else 0),
        reclaimable=copy,
    )


def _kv_cache(header: GGUFHeader, layers: int, cells: int, kv_bytes: float) -> int:
    width = header.key_length + header.value_length
    return int(sum(header.head_count_kv[:layers]) * width * kv_bytes * cells)


def _features(header: GGUFHeader, context: int, logits: int) -> int:
    head = header.eagle
    if head is None:
        return 0
    return len(head.layers) * head.target_width * (context + _TARGET_BATCH) * _FLOAT + logits


def _attention(header: GGUFHeader, rows: int, cells: int, flash_attention: bool) -> int:
    activations = _ACTIVATIONS * header.embedding_length * _FLOAT
    mask = cells * _FLOAT
    scores = 0 if flash_attention else header.head_count * cells * _FLOAT
    return rows * (mask + scores + activations)


def require(demands: Mapping[str, Demand], context: int, available: int | None = None) -> None:
    """Refuse to go on when models would not fit into free memory together.

    Args:
        demands: what each model needs as a function of the context length, by the name to show;
            the target first.
        context: the length wanted, in tokens.
        available: free bytes; what `available_memory` says if None.

    Raises:
        InsufficientMemoryError: with the numbers, and what would fit.
    """
    available = available_memory() if available is None else available
    estimates = [demand(context) for demand in demands.values()]
    if sum(item.required for item in estimates) <= available:
        return
    verb = "needs" if len(demands) == 1 else "need"
    raise InsufficientMemoryError(
        f"{' and '.join(demands)} {verb} {_account(estimates)}, {_readable(available)} is free: "
        f"{_advice(demands, context, available)}"
    )


def available_memory() -> int:
    """Return the free bytes: the system's, or what a control group leaves if that is less."""
    limits = _cgroup_rooms(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(0, min([int(psutil.virtual_memory().available), *limits]))


# -- what to say ----------------------------------------------------------------------------


def _account(estimates: list[MemoryEstimate]) -> str:
    weights = sum(item.weights - item.reclaimable for item in estimates)
    kv_cache = sum(item.kv_cache for item in estimates)
    compute = sum(item.compute for item in estimates)
    return (
        f"{_readable(weights + kv_cache + compute)} (weights {_readable(weights)}, "
        f"KV cache {_readable(kv_cache)}, compute {_readable(compute)})"
    )


def _advice(demands: Mapping[str, Demand], context: int, available: int) -> str:
    shorter = _longest_context(demands, context, available)
    if shorter is not None:
        return f"try --ctx {shorter}, or a smaller quantization"
    if len(demands) > 1:
        target = dict(list(demands.items())[:1])
        if _fits(target, context, available):
            return "try --draft none, or a smaller quantization"
        shorter = _longest_context(target, context, available)
        if shorter is not None:
            return f"try --draft none --ctx {shorter}, or a smaller quantization"
    return "choose a smaller model or quantization, or close other programs"


def _longest_context(demands: Mapping[str, Demand], below: int, available: int) -> int | None:
    """Return the largest of 512, 768, 1024, 1536, 2048 ... below a length that fits, or None."""
    candidates = [length for length in _contexts(below) if _fits(demands, length, available)]
    return max(candidates, default=None)


def _contexts(below: int) -> Iterator[int]:
    length = _SMALLEST_CONTEXT
    while length < below:
        yield length
        if length * 3 // 2 < below:
            yield length * 3 // 2
        length *= 2


def _fits(demands: Mapping[str, Demand], context: int, available: int) -> bool:
    return sum(demand(context).required for demand in demands.values()) <= available


def _readable(size: int) -> str:
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


# -- control groups -------------------------------------------------------------------------


_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _cgroup_rooms(membership: Path, root: Path) -> Iterator[int]:
    """Return the bytes left in each memory control group this process is in, version 1 and 2."""
    for folder in control_groups("memory", membership, root):
        for limit, usage, cache in _FILES:
            most, used = read_number(folder / limit), read_number(folder / usage)
            if most is not None and used is not None:
                yield most - used + _statistic(folder / "memory.stat", cache)


def _statistic(path: Path, name: str) -> int:
    """Return the page cache of a group, which the system drops before memory runs out."""
    for line in read_lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


# -- how fast memory is read, which bounds how fast a model answers -----------------------------

_READ = 256 << 20
"""Bytes: more than any cache."""

_READING_SHARE = 0.9
"""Of that speed, with which a token reads the weights."""


def memory_bandwidth(threads: int) -> int:
    """Return the bytes per second that so many threads read, by NumPy; the best of a few tries."""
    parts = [np.ones(_READ // threads // 8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(5):
            started = perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(perf_counter() - started)
    return int(sum(part.nbytes for part in parts) / min(seconds))


def expected_speed(size: int, bandwidth: int) -> float:
    """Return tokens per second of plain decoding with a model of *size* bytes, at most about."""
    return _READING_SHARE * bandwidth / size
