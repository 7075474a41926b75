"""`Llama` for embeddings: the file's own pooling, or a vector of each token, as the original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgespec.compat.openai.embeddings import embedding_list
from edgespec.errors import UnsupportedError, UsageError
from edgespec.runtime.embedding import Embedder

__all__ = ["Embeddings", "pooling_of"]

_UNSPECIFIED = -1
_POOLINGS = ("none", "mean", "cls", "last")  # by llama.cpp's numbers


def pooling_of(number: int | None, own: str) -> str:
    """Return the name of a pooling; `own` is the file's.

    Raises:
        UnsupportedError: there is no such pooling here.
    """
    if number in (None, _UNSPECIFIED):
        return own
    assert number is not None
    if not 0 <= number < len(_POOLINGS):
        raise UnsupportedError(f"pooling_type={number} is not supported: there are NONE to LAST")
    return _POOLINGS[number]


class Embeddings:
    """What `Llama` does with embeddings.

    Attributes:
        model_path: as it was given.
    """

    model_path: str
    _embedder: Embedder | None

    def create_embedding(
        self, input: str | Sequence[str], model: str | None = None
    ) -> dict[str, Any]:
        """Return the vectors of texts as OpenAI's interface does; not normalized.

        Args:
            input: a text or several.
            model: a name to tell.

        Raises:
            UsageError: the model was not opened with ``embedding=True``.
        """
        found = list(self._run(input, normalize=False, truncate=True))
        return embedding_list(found, model or self.model_path)

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Return the vector of a text as a list of numbers, or the vectors of several.

        Args:
            input: a text or several.
            normalize: give vectors the length 1.
            truncate: cut texts to the context instead of refusing them.
            return_count: return the number of tokens too.

        Raises:
            UsageError: the model was not opened with ``embedding=True``.
            ContextFullError: a text is too long, and is not to be cut.
        """
        found = list(self._run(input, normalize=normalize, truncate=truncate))
        vectors: Any = [one.vector.tolist() for one in found]
        if isinstance(input, str):
            vectors = vectors[0]
        return (vectors, sum(one.tokens for one in found)) if return_count else vectors

    def _run(self, texts: str | Sequence[str], *, normalize: bool, truncate: bool) -> Any:
        embedder = self._embedder
        if embedder is None:
            raise UsageError("embeddings need Llama(..., embedding=True)")
        several = [texts] if isinstance(texts, str) else list(texts)
        tokens: list[list[int]] = [embedder.tokenize(text).tolist() for text in several]
        if truncate:
            tokens = [one[: embedder.context_length] for one in tokens]
        return embedder.start(tokens, normalize=normalize)
