"""llama-cpp-python's high-level class, plain and with its prompt lookup."""

from __future__ import annotations

from time import perf_counter

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from bench.peers.peer import Answer, Messages, Peer, Setup

__all__ = ["BindingPeer"]


class BindingPeer(Peer):
    """`Llama.create_chat_completion`, streamed: decoding is the time from the first token on."""

    def __init__(
        self, setup: Setup, name: str, flash_attention: bool, lookup: int | None = None
    ) -> None:
        flags = [f"flash_attn={flash_attention}"]
        flags += [] if lookup is None else [f"num_pred_tokens={lookup}"]
        super().__init__(setup, f"llama-cpp-python {name}", flags, llama_cpp.__version__)
        self._flash_attention, self._lookup = flash_attention, lookup

    def __enter__(self) -> BindingPeer:
        draft = None
        if self._lookup is not None:
            draft = LlamaPromptLookupDecoding(num_pred_tokens=self._lookup)
        self._llama = llama_cpp.Llama(
            str(self.setup.model),
            n_ctx=self.setup.context,
            n_threads=self.setup.threads,
            n_threads_batch=self.setup.threads,
            flash_attn=self._flash_attention,
            draft_model=draft,
            # Without it prompts of over 512 tokens fail when there is a draft (version 0.3.36).
            logits_all=draft is not None,
            verbose=False,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._llama.close()

    def answer(self, messages: Messages, temperature: float, seed: int, tokens: int) -> Answer:
        if len(messages) == 1:
            self._llama.reset()
        started = perf_counter()
        chunks = self._llama.create_chat_completion(
            messages=list(messages),
            temperature=temperature,
            seed=seed,
            max_tokens=tokens,
            repeat_penalty=1.0,
            stream=True,
        )
        pieces, first, last = [], None, started
        for chunk in chunks:
            text = chunk["choices"][0]["delta"].get("content")
            if text:
                last = perf_counter()
                first = first or last
                pieces.append(text)
        first = first or last
        # Every piece is one token, except where several tokens make one character.
        count = max(2, len(pieces))
        decode_s = (last - first) * count / (count - 1)  # the prompt gave the first one
        return Answer("".join(pieces), count, decode_s, first - started)
