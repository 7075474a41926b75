"""Text and hidden states on disk, in shards that are written whole or not at all.

A shard is a folder of NumPy arrays, one row for each token of its conversations:

- ``tokens``: int32 (n,)
- ``hidden``: float16 (n, width), the state after the token that the target's output matrix is
  applied to; 0 before the answer
- ``layers``: float16 (n, layers * width), inputs of chosen layers; 0 wide if none are kept
- ``top``, ``normalizer``: int32, float32 (n,), the target's most likely next token and the
  logarithm of the sum of exp(logit); only where a token of the answer follows
- ``index``: int64 (conversations, 5), see `Conversation`

For training, conversations are laid end to end, cut into rows of one length, in a seeded order.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgespec._types import AnyArray, BoolArray, Float32Array, Int64Array
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import replace_file

__all__ = [
    "Batch",
    "Batches",
    "Conversation",
    "Corpus",
    "CorpusFacts",
    "Written",
    "answer_tokens_in",
    "known_facts",
]

_ARRAYS = ("tokens", "hidden", "layers", "top", "normalizer", "index")
_FACTS = "corpus.json"
_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class CorpusFacts:
    """What has to be the same for text to be added or used.

    Attributes:
        target: sha256 of the target's file.
        width: of its hidden states.
        layers: whose inputs are kept.
        data: where the prompts come from, in words.
    """

    target: str
    width: int
    layers: tuple[int, ...]
    data: str


@dataclass(frozen=True)
class Written:
    """One finished conversation.

    Attributes:
        number: of the prompt; no two conversations have the same.
        held_out: kept from training.
        prompt: how many of the tokens are not the answer.
        tokens, hidden, layers, top, normalizer: rows as in a shard.
    """

    number: int
    held_out: bool
    prompt: int
    tokens: AnyArray
    hidden: AnyArray
    layers: AnyArray
    top: AnyArray
    normalizer: AnyArray


@dataclass(frozen=True)
class Conversation:
    """The place of one: rows ``start`` to ``stop`` of a shard; the answer follows `prompt` rows."""

    shard: int
    number: int
    start: int
    stop: int
    prompt: int
    held_out: bool

    @property
    def answer(self) -> int:
        """Number of tokens of the answer."""
        return self.stop - self.start - self.prompt


class Corpus:
    """All shards of a folder.

    Args:
        folder: created if it does not exist.
        facts: of the text that it is for.

    Raises:
        UsageError: the folder has other text.
        EdgespecError: a shard cannot be read.
    """

    def __init__(self, folder: Path, facts: CorpusFacts) -> None:
        self.folder = folder
        self.facts = _agree(folder, facts)
        self.conversations: list[Conversation] = []
        self._arrays: list[dict[str, AnyArray]] = []
        for leftover in folder.glob("*.partial"):
            shutil.rmtree(leftover)
        for path in sorted(folder.glob("shard-*")):
            self._open(path)

    @property
    def answer_tokens(self) -> int:
        """Number of tokens of answers, held-out ones included."""
        return sum(c.answer for c in self.conversations)

    @property
    def next_number(self) -> int:
        """The first number that is above all in use."""
        return max((c.number for c in self.conversations), default=-1) + 1

    def part(self, *, held_out: bool) -> list[Conversation]:
        """Return the conversations to train on, or those held out, by number."""
        chosen = [c for c in self.conversations if c.held_out == held_out]
        return sorted(chosen, key=lambda c: c.number)

    def rows(self, name: str, conversation: Conversation) -> AnyArray:
        """Return a conversation's rows of an array: a view of the file."""
        return self._arrays[conversation.shard][name][conversation.start : conversation.stop]

    def add(self, written: Sequence[Written]) -> None:
        """Write one more shard.

        Raises:
            OSError: it cannot be written; nothing was added.
        """
        if not written:
            return
        layered = self.facts.width * len(self.facts.layers)
        assert all(w.layers.shape[1] == layered for w in written)
        path = self.folder / f"shard-{len(self._arrays):06d}"
        partial = path.with_suffix(".partial")
        partial.mkdir()
        for name, array in _joined(written).items():
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        partial.rename(path)
        self._open(path)

    def _open(self, path: Path) -> None:
        try:
            arrays = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        except (OSError, ValueError) as error:
            raise EdgespecError(f"{path} is damaged ({error}): delete it and try again") from None
        for number, start, stop, prompt, held_out in arrays["index"].tolist():
            place = (len(self._arrays), number, start, stop, prompt, bool(held_out))
            self.conversations.append(Conversation(*place))
        self._arrays.append(arrays)


def answer_tokens_in(folder: Path) -> int:
    """Return the number of tokens of answers in a folder, whatever they are for; 0 for none."""
    total = 0
    for path in folder.glob("shard-*/index.npy"):
        try:
            _, start, stop, prompt, _ = np.load(path).T
        except (OSError, ValueError):
            continue  # writing more says what is wrong with it
        total += int((stop - start - prompt).sum())
    return total


def _joined(written: Sequence[Written]) -> dict[str, AnyArray]:
    ends = np.cumsum([len(w.tokens) for w in written]).tolist()
    index = [
        (w.number, end - len(w.tokens), end, w.prompt, w.held_out)
        for w, end in zip(written, ends, strict=True)
    ]
    return {
        "tokens": np.concatenate([w.tokens for w in written]).astype(np.int32),
        "hidden": _halved([w.hidden for w in written]),
        "layers": _halved([w.layers for w in written]),
        "top": np.concatenate([w.top for w in written]).astype(np.int32),
        "normalizer": np.concatenate([w.normalizer for w in written]).astype(np.float32),
        "index": np.array(index, np.int64),
    }


def _halved(parts: Sequence[AnyArray]) -> AnyArray:
    # A few states of some models exceed float16.
    joined = np.clip(np.concatenate(parts), -_LARGEST_FLOAT16, _LARGEST_FLOAT16)
    return joined.astype(np.float16)


def known_facts(folder: Path) -> CorpusFacts | None:
    """Return what a folder's text is of; None if it has none, or that is damaged."""
    try:
        data = json.loads((folder / _FACTS).read_text("utf-8"))
        return CorpusFacts(**{**data, "layers": tuple(data["layers"])})
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _agree(folder: Path, wanted: CorpusFacts) -> CorpusFacts:
    """Return the folder's facts; write them if it is new."""
    path = folder / _FACTS
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        replace_file(path, (json.dumps(asdict(wanted), indent=2) + "\n").encode())
    found = known_facts(folder)
    if found is None:
        raise EdgespecError(f"{path} is damaged: give another --work folder")
    if (found.target, found.width) != (wanted.target, wanted.width):
        raise UsageError(f"{folder} has the text of another target: give another --work folder")
    if found.data != wanted.data:
        raise UsageError(
            f"{folder} has text from {found.data}, not from {wanted.data}: give another --work"
        )
    # More features than needed are fine.
    if wanted.layers and found.layers != wanted.layers:
        raise UsageError(f"{folder} lacks the features an eagle3 head needs: give another --work")
    return found


class Batch(NamedTuple):
    """Some rows of text, (rows, length) each.

    Attributes:
        tokens: int64, the target's ids.
        segments: int64, the conversation of the row that a token belongs to; -1 after the last.
        positions: int64, in the conversation.
        judged: bool, whether a token of an answer follows in the same row.
        hidden: float32 (rows, length, width).
        layers: float32 (rows, length, layers * width).
        top: int64, the target's most likely next token.
        normalizer: float32, of its logits.
    """

    tokens: Int64Array
    segments: Int64Array
    positions: Int64Array
    judged: BoolArray
    hidden: Float32Array
    layers: Float32Array
    top: Int64Array
    normalizer: Float32Array


class Batches:
    """Endless batches: all conversations again and again, in a new order each time.

    The rows of a cursor depend on the corpus and the seed alone, so that an interrupted training
    can continue where it stopped.

    Args:
        corpus: has the text.
        conversations: those to use.
        rows, length: of a batch.
        seed: of the orders.
    """

    def __init__(
        self,
        corpus: Corpus,
        conversations: Sequence[Conversation],
        rows: int,
        length: int,
        seed: int = 0,
    ) -> None:
        self._corpus, self._conversations = corpus, list(conversations)
        self._rows, self._length, self._seed = rows, length, seed
        self._lengths = np.array([c.stop - c.start for c in self._conversations], np.int64)
        self._epoch = -1
        self._order = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        self.batches = -(-int(self._lengths.sum()) // (rows * length))

    def batch(self, cursor: int) -> Batch:
        """Return the batch at a cursor, which counts from 0 over all repetitions."""
        epoch, index = divmod(cursor, self.batches)
        self._arrange(epoch)
        first = index * self._rows
        rows = [self._row(first + i) for i in range(self._rows)]
        return Batch(*(np.stack(arrays) for arrays in zip(*rows, strict=True)))

    def _arrange(self, epoch: int) -> None:
        if epoch != self._epoch:
            random = np.random.default_rng((self._seed, epoch))
            self._order = random.permutation(len(self._conversations))
            self._ends = np.cumsum(self._lengths[self._order])
            self._epoch = epoch

    def _row(self, row: int) -> Batch:
        start, length = row * self._length, self._length
        facts = self._corpus.facts
        width, layered = facts.width, facts.width * len(facts.layers)
        out = Batch(
            np.zeros(length, np.int64),
            np.full(length, -1, np.int64),
            np.zeros(length, np.int64),
            np.zeros(length, np.bool_),
            np.zeros((length, width), np.float32),
            np.zeros((length, layered), np.float32),
            np.zeros(length, np.int64),
            np.zeros(length, np.float32),
        )
        place = int(np.searchsorted(self._ends, start, side="right"))
        filled = 0
        while filled < length and place < len(self._order):
            conversation = self._conversations[self._order[place]]
            begins = int(self._ends[place] - self._lengths[self._order[place]])
            skip = start + filled - begins
            filled += self._copy(out, conversation, filled, skip, place)
            place += 1
        return out

    def _copy(self, out: Batch, source: Conversation, filled: int, skip: int, number: int) -> int:
        """Append a conversation to a row; return how many tokens fitted."""
        whole = source.stop - source.start
        count = min(whole - skip, self._length - filled)
        here, there = slice(filled, filled + count), slice(skip, skip + count)
        for name in ("tokens", "hidden", "layers", "top", "normalizer"):
            getattr(out, name)[here] = self._corpus.rows(name, source)[there]
        out.segments[here] = number
        positions = np.arange(skip, skip + count)
        out.positions[here] = positions
        out.judged[here] = (positions >= source.prompt - 1) & (positions < whole - 1)
        out.judged[filled + count - 1] = False  # the next token is not in this row
        return count
