"""Texts as vectors: an embedding model by itself, or the hidden states of an engine's model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import POOLINGS, EmbeddingContext, Model, ModelOptions, require_sound
from edgespec.backend.lifetime import Closing, Lifetime
from edgespec.errors import CancelledError, ContextFullError, UnsupportedError, UsageError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.registry.fetch import Progress, silent
from edgespec.registry.resolve import ResolvedModel, resolve
from edgespec.runtime.memory import estimate, require
from edgespec.runtime.options import EngineOptions
from edgespec.tuning.setting import measurement_key

__all__ = [
    "Embedder",
    "Embedding",
    "EmbeddingRun",
    "check_pooling",
    "embedding_length",
    "load_embedder",
]

_CAUSAL_LENGTH = 1024
"""Tokens of a text for a model that generates: llama.cpp computes logits of all of them too."""


class Embedding(NamedTuple):
    """A text's vector, float32 (width,), and how many tokens the text has."""

    vector: Float32Array
    tokens: int


class Embedder(Closing):
    """Makes vectors of texts, each by itself: what stands beside a text changes nothing.

    Any number of threads may use one; texts wait for their turn. Close one that `load_embedder`
    returned, or use it as a context manager; one of an engine's lives as long as the engine.

    Args:
        name: of the model, to show.
        context: evaluates.
        turn: entered for every text; it may raise CancelledError.
        owned: closed at the end.

    Attributes:
        model, model_name, vocabulary, pooling: what it is.
        dimensions: of a vector.
        context_length: most tokens of a text.
        waiting: always 0: nothing is generated.
    """

    def __init__(
        self,
        name: str,
        context: EmbeddingContext,
        turn: Callable[[object], AbstractContextManager[object]] | None = None,
        owned: ExitStack | None = None,
    ) -> None:
        self.model, self.model_name = context.model, name
        self.vocabulary = context.model.vocabulary
        self.pooling = context.pooling
        self.dimensions = context.width
        self.context_length = context.length
        self.waiting = 0
        self._context, self._owned = context, owned
        self._lock = threading.Lock()
        self._turn = turn or (lambda _run: self._lock)
        self._lifetime = Lifetime(self, owned.close) if owned else None

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change a vector."""
        return f"{measurement_key(self.model.path, {})} {self.pooling}"

    def tokenize(self, text: str) -> Int32Array:
        """Return the tokens of a text with the marks that the model wants around it: int32 (n,).

        What looks like a control token is text.
        """
        return self.vocabulary.tokenize(text, add_special=True, parse_special=False)

    def embed(
        self, texts: str | Iterable[str | Sequence[int]], *, normalize: bool = True
    ) -> Float32Array:
        """Return the vector of a text, float32 (width,), or of each of several, (n, width).

        Args:
            texts: texts or their tokens.
            normalize: give every vector the length 1, so that a product of two is their cosine.

        Raises:
            UsageError: tokens that do not exist, or a text that has none.
            ContextFullError: a text is longer than `context_length`.
            CancelledError: closed meanwhile.
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        vectors = [one.vector for one in self.start(several, normalize=normalize)]
        if isinstance(texts, str):
            return vectors[0]
        return np.stack(vectors) if vectors else np.zeros((0, self.dimensions), np.float32)

    def start(
        self, texts: Sequence[str | Sequence[int]], *, normalize: bool = True
    ) -> EmbeddingRun:
        """Tokenize texts, and return what embeds them, one by one, when it is iterated.

        Raises: as `embed`, for tokens and lengths.
        """
        if self._lifetime is not None:
            self._lifetime.check()
        tokens = [self._tokens(index, text) for index, text in enumerate(texts)]
        return EmbeddingRun(self._context, self._turn, tokens, normalize=normalize)

    def _tokens(self, index: int, text: str | Sequence[int]) -> Int32Array:
        which, size = f"text {index + 1}", self.vocabulary.size
        if not isinstance(text, str) and any(not 0 <= token < size for token in text):
            raise UsageError(f"{which} has a token that is not in the vocabulary of {size}")
        tokens = self.tokenize(text) if isinstance(text, str) else np.array(text, np.int32)
        if len(tokens) == 0:
            raise UsageError(f"{which} is empty: give it at least one token")
        if len(tokens) > self.context_length:
            raise ContextFullError(
                f"{which} has {len(tokens)} tokens, and {self.context_length} are the most here: "
                "shorten it, or open the model with a longer context (--ctx)"
            )
        return tokens

    def close(self) -> None:
        """Free what `load_embedder` opened."""
        owned, self._owned = self._owned, None
        if owned is not None and self._lifetime is not None:
            self._context.cancel()
            with self._lock:
                owned.close()
            self._lifetime.end()


class EmbeddingRun:
    """Texts to embed; iterate it once. `cancel` may be called by any thread."""

    def __init__(
        self,
        context: EmbeddingContext,
        turn: Callable[[object], AbstractContextManager[object]],
        tokens: list[Int32Array],
        *,
        normalize: bool,
    ) -> None:
        self._context, self._turn = context, turn
        self._tokens, self._normalize = tokens, normalize
        self._switch = threading.Lock()
        self._cancelled = self._running = False

    def __iter__(self) -> Iterator[Embedding]:
        """Yield the texts' embeddings in order.

        Raises:
            CancelledError: `cancel` was called, or the model was closed.
            BackendError: llama.cpp failed.
        """
        for tokens in self._tokens:
            vector = self._embed(tokens)
            if self._normalize:
                vector = _normalized(vector)
            yield Embedding(vector, len(tokens))

    def cancel(self) -> None:
        """End it: iterating raises CancelledError."""
        with self._switch:
            self._cancelled = True
            if self._running:
                self._context.cancel()

    def _embed(self, tokens: Int32Array) -> Float32Array:
        with self._turn(self):
            with self._switch:
                if self._cancelled:
                    raise CancelledError("cancelled")
                self._context.resume()
                self._running = True
            try:
                return self._context.embed(tokens)
            finally:
                with self._switch:
                    self._running = False


def _normalized(vector: Float32Array) -> Float32Array:
    length = np.linalg.norm(vector.astype(np.float64), axis=-1, keepdims=True)
    normal: Float32Array = (vector / np.where(length > 0, length, 1)).astype(np.float32)
    return normal


def load_embedder(
    model: str | Path,
    options: EngineOptions | None = None,
    *,
    pooling: str | None = None,
    download: Progress = silent,
) -> Embedder:
    """Open an embedding model, or a model that generates text for the means of its hidden states.

    Args:
        model: as for `Engine`.
        options: of which `context`, `threads`, `offline` and `probe` matter. A context of 0 is the
            model's own length, at most 4096, and 1024 for models that generate.
        pooling: "mean", "cls", "last", or "none" for a vector of each token; None for what the
            file says, or "mean".
        download: called with bytes done and in all while a file is fetched.

    Raises:
        UnknownModelError, DownloadError, ModelFileError, ModelLoadError, InsufficientMemoryError:
            the model cannot be had.
        UnsupportedError: it is a reranker.
        UsageError: no such pooling.
    """
    options = options or EngineOptions()
    found = resolve(model, progress=download, offline=options.offline)
    header = read_header(found.path, embedding=True)
    check_pooling(pooling)
    if header.pooling == "rank":
        raise UnsupportedError(f"{found.name} is a reranker: it makes no embeddings")
    if options.probe and (found.entry is None or found.entry.sha256 is None):
        require_sound(header)
    length = embedding_length(header, options)
    _require_memory(found, header, length)
    with ExitStack() as stack:
        opened = stack.enter_context(Model(found.path, ModelOptions(embedding=True)))
        context = stack.enter_context(
            EmbeddingContext(
                opened,
                pooling or header.embedding_pooling,
                length=length,
                threads=options.thread_count,
            )
        )
        return Embedder(found.name, context, owned=stack.pop_all())


def check_pooling(pooling: str | None) -> None:
    """Check that there is such a pooling.

    Raises:
        UsageError: there is not.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise UsageError(f"pooling is {pooling!r}: it is one of {', '.join(POOLINGS)}")


def embedding_length(header: GGUFHeader, options: EngineOptions) -> int:
    """Return the most tokens of a text."""
    usual = options.context_for(header.context_length)
    if options.context == 0 and not header.encoder:
        usual = min(usual, _CAUSAL_LENGTH)
    # Learned positions end where the training did.
    return min(usual, header.context_length) if header.encoder else usual


def _require_memory(found: ResolvedModel, header: GGUFHeader, length: int) -> None:
    require(
        {
            found.name: lambda context: estimate(
                header,
                context=context,
                batch=context,
                outputs=1 if header.encoder else context,
                flash_attention=True,
                repack=False,
            )
        },
        length,
    )
