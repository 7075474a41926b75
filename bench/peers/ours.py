"""edgespec as its own peer, through its public interface."""

from __future__ import annotations

from time import perf_counter

from bench.peers.peer import Answer, Messages, Peer, Setup
from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters, __version__

__all__ = ["EdgespecPeer"]


class EdgespecPeer(Peer):
    """Plain or adaptive; with flash attention batches are not bit-identical to single tokens."""

    def __init__(self, setup: Setup, name: str, draft: str, flash_attention: bool = False) -> None:
        flags = ["--draft", draft, *(["--flash-attention", "on"] if flash_attention else [])]
        super().__init__(setup, f"edgespec {name}", flags, __version__)
        self._draft, self._flash_attention = draft, flash_attention or None

    def __enter__(self) -> EdgespecPeer:
        options = EngineOptions(
            draft=self._draft,
            threads=self.setup.threads,
            context=self.setup.context,
            flash_attention=self._flash_attention,
        )
        self._engine = Engine(self.setup.model, options)
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()

    def answer(self, messages: Messages, temperature: float, seed: int, tokens: int) -> Answer:
        if len(messages) == 1:
            self._engine.forget()
        started = perf_counter()
        sampling = SamplingParameters(temperature=temperature, seed=seed)
        stream = self._engine.chat(messages, sampling, GenerationLimits(max_tokens=tokens))
        next(iter(stream), None)
        first_s = perf_counter() - started
        result = stream.result
        return Answer(result.text, len(result.tokens), result.statistics.decode_s, first_s)
