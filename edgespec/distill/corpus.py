"""Text and hidden states on disk, in shards that are written whole or not at all.

A shard is a folder of NumPy arrays, one row for each token of its conversations:

- ``tokens``: int32 (n,)
- ``hidden``: float16 (n, width), the state after the token that the target's output matrix is
  applied to; 0 before the answer
- ``layers``: float16 (n, layers * width), inputs of chosen layers; 0 wide if none are kept
- ``top``, ``normalizer``: int32, float32 (n,), the target's most likely next token and the
  logarithm of the sum of exp(logit); only where a token of the answer follows
- ``index``: int64 (conversations, 5), see `Conversation`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from edgespec._types import AnyArray
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import replace_file

__all__ = ["Conversation", "Corpus", "CorpusFacts", "Written"]

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


def _agree(folder: Path, wanted: CorpusFacts) -> CorpusFacts:
    """Return the folder's facts; write them if it is new."""
    path = folder / _FACTS
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        replace_file(path, (json.dumps(asdict(wanted), indent=2) + "\n").encode())
    try:
        data = json.loads(path.read_text("utf-8"))
        found = CorpusFacts(**{**data, "layers": tuple(data["layers"])})
    except (KeyError, TypeError, ValueError):
        raise EdgespecError(f"{path} is damaged: give another --work folder") from None
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
