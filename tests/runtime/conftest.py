"""A reference that shares no code with edgespec: llama.cpp's own loop and its greedy sampler."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import llama_cpp as lib
import numpy as np
import pytest

from edgespec import Engine, EngineOptions
from edgespec.backend.kernels import formats_of, place_weights
from edgespec.gguf.header import read_header

PROMPTS = (
    "Write a short poem about the sea at night.",
    "def fibonacci(n):",
    "Repeat after me: one two three one two three one two three",
    "What is the boiling point of water at sea level?",
    "Translate to French: the cat sleeps on the red carpet.",
    "List five fruits and their colours.",
    "Summarize: the committee met on Monday, argued until Thursday, and agreed on nothing.",
    "Fix this code: for i in range(10) print(i)",
    "Why do leaves turn brown in autumn?",
    "Give me a JSON object with a name and an age.",
    "Continue: 1, 2, 4, 8, 16,",
    "Explain recursion to a child.",
    "Write an e-mail asking for a day off.",
    "Name the planets in order.",
    "Was ist die Hauptstadt von Italien?",
    "SELECT name FROM users WHERE",
    "A haiku about snow, please.",
    "Compare tea and coffee.",
    "用中文介绍一下长城。",
    "Write an emoji story: 🐱🐟",
    "Once upon a time, in a village by the river,",
)


def chat(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


class PlainLoop:
    """Decodes one token at a time, the way the settings of the exactness promise say.

    Speculation must change nothing whatever multiplies the weights, so that the same kernels do.
    """

    def __init__(self, path: Path, length: int, kernels: str) -> None:
        lib.llama_backend_init()
        parameters = lib.llama_model_default_params()
        parameters.n_gpu_layers = 0
        if kernels == "edgespec":
            header = read_header(path)
            self.placement = place_weights(header, formats_of(header), 1)
            assert self.placement is not None
            parameters.use_mmap = False
            parameters.tensor_buft_overrides = ctypes.addressof(self.placement.overrides)
        self.model = lib.llama_model_load_from_file(bytes(path), parameters)
        options = lib.llama_context_default_params()
        options.n_ctx = length
        options.n_batch = options.n_ubatch = 256
        options.n_threads = options.n_threads_batch = 1
        options.flash_attn_type = int(kernels == "edgespec")  # ours is exact, and the default
        self.context = lib.llama_init_from_model(self.model, options)
        self.vocabulary = lib.llama_model_get_vocab(self.model)
        self.size = lib.llama_vocab_n_tokens(self.vocabulary)
        self.sampler = lib.llama_sampler_init_greedy()

    def logits(self, tokens: list[int], *, fresh: bool = True) -> np.ndarray:
        """Logits after these tokens; all but the last are a prefill. A copy."""
        if fresh:
            lib.llama_memory_clear(lib.llama_get_memory(self.context), False)
            for start in range(0, len(tokens) - 1, 256):
                self._decode(tokens[:-1][start : start + 256])
        self._decode(tokens[-1:])
        row = lib.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, (self.size,)).copy()

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """Up to `count` tokens, the end token included."""
        answer: list[int] = []
        self.logits(tokens)
        while True:
            answer.append(lib.llama_sampler_sample(self.sampler, self.context, -1))
            if len(answer) == count or lib.llama_vocab_is_eog(self.vocabulary, answer[-1]):
                return answer
            self._decode(answer[-1:])

    def _decode(self, tokens: list[int]) -> None:
        if tokens:
            array = (lib.llama_token * len(tokens))(*tokens)
            assert lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(tokens))) == 0

    def close(self) -> None:
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)


@pytest.fixture(scope="session")
def plain(default_model: Path) -> Iterator[PlainLoop]:
    loop = PlainLoop(default_model, 4096, "edgespec")
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def plain_with_llama_cpps_kernels(default_model: Path) -> Iterator[PlainLoop]:
    loop = PlainLoop(default_model, 1024, "llama.cpp")
    yield loop
    loop.close()


class Engines:
    """Engines on the default model, opened once for each combination of options.

    With a fixed k, so that they propose wherever they can; costs might decide against it. With one
    thread, as tests run in two processes on two cores.
    """

    def __init__(self, model: Path) -> None:
        self._model = model
        self._open: dict[tuple[object, ...], Engine] = {}

    def __call__(self, **options: object) -> Engine:
        usual = {"threads": 1, "context": 2048, "exact": "bitwise", "k": 3, "kernels": "edgespec"}
        options = {**usual, **options}
        key = tuple(sorted((name, str(value)) for name, value in options.items()))
        engine = self._open.pop(key, None)
        if engine is None:
            options["draft"] = str(options.get("draft", "none"))
            engine = Engine(self._model, EngineOptions(**options))  # type: ignore[arg-type]
        self._open[key] = engine  # the last one used stands last
        return engine

    def close(self, kept: int = 0) -> None:
        """Close all but those used last: each holds a quarter of a gigabyte or more."""
        while len(self._open) > kept:
            self._open.pop(next(iter(self._open))).close()


_SHARED: list[Engines] = []


@pytest.fixture(scope="session")
def open_engine(default_model: Path) -> Iterator[Engines]:
    with closing(Engines(default_model)) as engines:
        _SHARED.append(engines)
        yield engines
        _SHARED.clear()


@pytest.fixture(scope="module", autouse=True)
def few_engines() -> Iterator[None]:
    """Let no more than three stay open from one file of tests to the next."""
    yield
    for engines in _SHARED:
        engines.close(kept=3)


@pytest.fixture(scope="session")
def prompts() -> tuple[str, ...]:
    """Twenty-one prompts as a chat turn each."""
    return tuple(chat(text) for text in PROMPTS)


@pytest.fixture(scope="session")
def drafts(default_model: Path, damaged_model: Path) -> dict[str, str]:
    """Names used by the tests -> what --draft takes."""
    return {
        "none": "none",
        "ngram": "ngram",
        "itself": str(default_model),
        "damaged": str(damaged_model),
    }
