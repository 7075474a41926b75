"""The classes that programs written for llama-cpp-python import instead of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from edgespec.backend.lifetime import Closing
from edgespec.compat.llama.asking import (
    Seeds,
    check_chat_format,
    check_gpu_layers,
    check_others,
    engine_options,
)
from edgespec.compat.llama.completions import Completions, Embeddings, pooling_of
from edgespec.errors import UnsupportedError, UsageError
from edgespec.gguf.header import read_header
from edgespec.grammars import grammar_from_schema
from edgespec.registry.fetch import matching_file
from edgespec.registry.resolve import resolve
from edgespec.runtime.embedding import Embedder, load_embedder
from edgespec.runtime.engine import Engine
from edgespec.runtime.options import EngineOptions

__all__ = ["Llama", "LlamaGrammar"]

_DEFAULT_SEED = 0xFFFFFFFF


class Llama(Completions, Embeddings, Closing):
    """A drop-in for ``llama_cpp.Llama``: the same calls, and answers of the same shape.

    In contrast to the original, several threads may use it at once. What it cannot do raises
    UnsupportedError, which is a NotImplementedError and a ValueError.

    Args:
        model_path: a GGUF file, a name of the registry, or an ``hf:`` reference.
        n_ctx: tokens of the context; 0 is as many as the model was trained for.
        n_threads: None lets edgespec choose.
        n_gpu_layers: ignored, with a warning: edgespec uses the CPU.
        seed: start of the sequence that gives calls without a seed theirs.
        flash_attn: False lets edgespec choose.
        type_k, type_v: of the cache, ggml's number of F16, F32 or Q8_0; both the same.
        last_n_tokens_size: how many recent tokens the penalties see, the prompt's included.
        chat_format: only the model's own.
        embedding: open it for `embed` and `create_embedding`; an embedding model needs that, and
            then does nothing else.
        pooling_type: how they make one vector of a text's, ggml's number; -1 is the file's own,
            which for a model that generates text is none: a vector of each token.
        spm_infill: whether the suffix comes before the prefix when a gap is filled.
        verbose: ignored; llama.cpp's messages go to the logger "edgespec.llama".
        draft, k, kernels: as in `EngineOptions`.
        others: keywords of ``llama_cpp.Llama``; those that change nothing are ignored.

    Raises:
        UnsupportedError: a keyword asks for what edgespec does not have.
        Errors of `Engine`: the model cannot be opened.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        seed: int = _DEFAULT_SEED,
        flash_attn: bool = False,
        type_k: int | None = None,
        type_v: int | None = None,
        last_n_tokens_size: int = 64,
        chat_format: str | None = None,
        embedding: bool = False,
        pooling_type: int = -1,
        spm_infill: bool = False,
        verbose: bool = True,
        draft: str = "auto",
        kernels: str = "auto",
        k: int | None = None,
        **others: Any,
    ) -> None:
        check_chat_format(chat_format)
        check_gpu_layers(n_gpu_layers)
        check_others(others)
        self.model_path = os.fspath(model_path)
        self.verbose = verbose
        self.chat_format = chat_format
        options = engine_options(
            self.model_path,
            n_ctx=n_ctx,
            n_threads=n_threads,
            flash_attn=flash_attn,
            kv_types=(type_k, type_v),
            draft=draft,
            kernels=kernels,
            k=k,
        )
        self._seeds = Seeds(seed)
        self._window = last_n_tokens_size
        self._suffix_first = spm_infill
        self._embedder: Embedder | None = None
        self._open(options, pooling_type, embedding=embedding)
        self.metadata = self._model.metadata
        self.context_params = SimpleNamespace(n_ctx=self.n_ctx())  # as some programs look for it

    def _open(self, options: EngineOptions, pooling: int, *, embedding: bool) -> None:
        if embedding:
            found = resolve(self.model_path, offline=options.offline)
            header = read_header(found.path, embedding=True)
            wanted = pooling_of(pooling, header.pooling)
            if header.embeds:
                self._embedder = load_embedder(self.model_path, options, pooling=wanted)
                self._model, self._length = self._embedder.model, self._embedder.context_length
                return
        self.engine = Engine(self.model_path, options)
        self._model, self._length = self.engine.target.model, self.engine.context_length
        if embedding:
            self._embedder = self.engine.embedder(wanted)

    @classmethod
    def from_pretrained(
        cls, repo_id: str, filename: str, *, additional_files: None = None, **keywords: Any
    ) -> Llama:
        """Open a file of a Hugging Face repository, downloaded on first use.

        Args:
            repo_id: "OWNER/REPO".
            filename: its name there, or a pattern that one file's name matches.
            additional_files: not supported.
            keywords: as for the constructor; edgespec chooses where files are kept.

        Raises:
            DownloadError: the repository cannot be asked, or no file or several match.
            Errors of the constructor.
        """
        if additional_files:
            raise UnsupportedError("additional_files is not supported: give the only file there is")
        for name in ("local_dir", "local_dir_use_symlinks", "cache_dir"):
            keywords.pop(name, None)
        return cls(f"hf:{repo_id}/{matching_file(repo_id, filename)}", **keywords)

    def __del__(self) -> None:
        if "_length" in self.__dict__:  # it was opened
            self.close()

    def close(self) -> None:
        """Free the model; answers that are being written end."""
        if "engine" in self.__dict__:
            self.engine.close()
        elif self._embedder is not None:
            self._embedder.close()

    # -- tokens -----------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Split a text in UTF-8 into token ids.

        Args:
            text: the text.
            add_bos: start with BOS, if this model's texts do.
            special: read ``<|im_start|>`` and the like as control tokens.
        """
        vocabulary = self._model.vocabulary
        tokens: list[int] = vocabulary.tokenize(
            text, add_special=add_bos, parse_special=special
        ).tolist()
        return tokens

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Return the bytes that tokens stand for.

        Args:
            tokens: their ids.
            prev_tokens: ignored.
            special: write control tokens as text.

        Raises:
            BackendError: a token does not exist.
        """
        vocabulary = self._model.vocabulary
        text = b"".join(vocabulary.piece(int(token), special=special) for token in tokens)
        begins = len(tokens) > 0 and int(tokens[0]) == vocabulary.bos
        return text[1:] if begins and text[:1] == b" " else text

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, for programs that want one by itself."""
        return Tokenizer(self)

    def token_bos(self) -> int:
        """Return the token that texts begin with; -1 if there is none."""
        return _or_none(self._model.vocabulary.bos)

    def token_eos(self) -> int:
        """Return the token that texts end with; -1 if there is none."""
        return _or_none(self._model.vocabulary.eos)

    def token_nl(self) -> int:
        """Return the token of a line break; -1 if there is none."""
        return _or_none(self._model.vocabulary.newline)

    # -- facts and state --------------------------------------------------------------------

    def n_ctx(self) -> int:
        """Return the number of tokens of the context."""
        return self._length

    @property
    def n_tokens(self) -> int:
        """How many tokens the cache holds."""
        return len(self.engine.decoder.held)

    def n_vocab(self) -> int:
        """Return the number of tokens of the vocabulary."""
        return self._model.vocabulary.size

    def n_embd(self) -> int:
        """Return the width of the hidden state."""
        return self._model.embedding_length

    def set_seed(self, seed: int) -> None:
        """Set the start of the sequence that gives calls without a seed theirs."""
        self._seeds.set(seed)

    def reset(self) -> None:
        """Do nothing: what the cache holds never changes an answer."""

    def set_cache(self, cache: object) -> None:
        """Do nothing: edgespec keeps caches of earlier prompts by itself (`prompt_cache`)."""

    # -- what it does not do ----------------------------------------------------------------

    def eval(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: not supported."""
        raise UnsupportedError("single evaluations are not supported: use create_completion")

    sample = generate = eval

    def save_state(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: not supported."""
        raise UnsupportedError("states are not supported: use llm.engine.save_cache and load_cache")

    load_state = save_state

    def __getattr__(self, name: str) -> NoReturn:
        """Say that there is no such thing.

        Raises:
            UnsupportedError: always; to `hasattr` and the like it is an AttributeError.
        """
        if name == "engine" and "_length" in self.__dict__:
            raise _MissingError(f"{self.model_path} is an embedding model: it generates no text")
        if name.startswith("_") or name == "engine":
            raise AttributeError(name)
        raise _MissingError(
            f"Llama.{name} is not supported: use create_completion, create_chat_completion, or "
            "llm.engine"
        )


class _MissingError(UnsupportedError, AttributeError):
    """The original has it, or nobody has."""


class Tokenizer:
    """Texts to tokens and back, as llama-cpp-python's ``LlamaTokenizer``.

    Args:
        llama: whose tokenizer it is.
    """

    def __init__(self, llama: Llama) -> None:
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Split a text in UTF-8 into token ids; see `Llama.tokenize`."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Return the bytes that tokens stand for; see `Llama.detokenize`."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Split a text into token ids."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens stand for; bytes of unfinished characters are left out."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


def _or_none(token: int | None) -> int:
    return -1 if token is None else token


class LlamaGrammar:
    """A grammar for a call of a `Llama`; a text does as well.

    Args:
        _grammar: GBNF, or a text in llguidance's language.
    """

    def __init__(self, *args: Any, _grammar: str, **kwargs: Any) -> None:
        self._grammar = _grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Take a text; whether it compiles is seen when it is used."""
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """Read a file.

        Raises:
            UsageError: it cannot be read.
        """
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the grammar {file}: {error}") from None
        return cls.from_string(text, verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Take JSON that obeys a schema.

        Raises:
            GrammarError: as of `edgespec.grammar_from_schema`.
        """
        return cls(_grammar=grammar_from_schema(json_schema))
