"""A target, a drafter and the decoder between them, opened together and closed together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import EmbeddingContext
from edgespec.backend.lifetime import Closing, Lifetime, claim_process
from edgespec.drafters import EarlierTexts
from edgespec.errors import UsageError
from edgespec.grammars import PartGrammars
from edgespec.registry.fetch import Progress, silent
from edgespec.runtime.constraint import Constraint, Constraints
from edgespec.runtime.cycle import (
    Cycle,
    CycleReport,
    LogprobReader,
    TokenLogprobs,
    Trace,
    costs_and_learning,
    request_facts,
)
from edgespec.runtime.decoder import Decoder, Edit, PrefillProgress
from edgespec.runtime.drafting import index_texts, open_drafter, prompt_lookup_of, read_texts
from edgespec.runtime.embedding import Embedder, check_pooling, embedding_length
from edgespec.runtime.loading import LoadProgress, make_policy, open_target, remember, warm_up
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.plan import make_plan
from edgespec.runtime.prefix_cache import PrefixCache, read_cache, write_cache
from edgespec.runtime.scheduler import Scheduler
from edgespec.runtime.stream import GenerationLimits, Stream
from edgespec.sampling.kernel import release_compiler
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.penalties import breaker_table
from edgespec.speculation.acceptance import draw_settings, is_lossy
from edgespec.templates import ChatTemplate, check_names, control_texts
from edgespec.tuning.exactness import Exactness, remember_choice
from edgespec.tuning.profile import load_profile
from edgespec.tuning.setting import measurement_key, setting_of

__all__ = ["Engine"]

_log = logging.getLogger("edgespec.engine")

_ASKED = 32
"""Tokens before an answer that are kept with it, so that the same question finds it."""


class Engine(Closing):
    """Runs one target model, with one drafter, one generation at a time.

    Any number of threads and tasks may use one engine, and any number of generations may be
    under way: who comes first is first, and while others wait a generation goes on for a second
    before it is the next one's turn. What the cache held of it is kept in memory meanwhile. None
    waits for one whose reader is slow, or gone. Close it, or use it as a context manager.

    Args:
        model: a path, a registry name, an ``hf:OWNER/REPO[:Q4_K_M]`` reference, or None for the
            registry's default; downloaded on first use.
        options: how to open it.
        progress: called while weights load.
        download: called with bytes done and in all while a file is fetched.

    Attributes:
        options, header, vocabulary: how it was opened, and what the model is.
        lookup: what prompt lookup copies from beside the text itself, if anything.
        model_name, drafter_name, notice: to show.

    Raises:
        UnknownModelError, DownloadError, ModelFileError, ModelLoadError, InsufficientMemoryError:
            the target or the draft cannot be had.
        PairingError: the draft does not fit the target.
        UsageError: a context longer than the model can use, a trace that cannot be written, a
            text to look up that cannot be used; or this process was forked from one that had
            used a model.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        options: EngineOptions | None = None,
        *,
        progress: LoadProgress | None = None,
        download: Progress | None = None,
    ) -> None:
        claim_process()
        self.options = options or EngineOptions()
        with ExitStack() as stack:
            self._trace: Trace | None = None
            if self.options.trace is not None:
                self._trace = stack.enter_context(closing(Trace(self.options.trace)))
            texts = read_texts(self.options.lookup)
            plan = make_plan(model, self.options, download or silent)
            # The kernels are needed at the end of a load: they are compiled meanwhile.
            compiler = Thread(
                target=warm_up, kwargs={"drafting": plan.drafter in ("model", "mtp")}, daemon=True
            )
            compiler.start()
            self.header = plan.header
            self.model_name = plan.target.name
            self.notice: str | None = plan.notice
            self.profile = load_profile(plan.target.path)
            self.target, self.exactness = open_target(
                plan, self.options, self.profile, progress, stack
            )
            self.vocabulary = self.target.model.vocabulary
            self._constraints = Constraints(self.vocabulary, self.exactness.largest_k + 1)
            self._breaker_tables: dict[tuple[str, ...], Int32Array] = {}
            self._embedders: dict[str, Embedder] = {}
            if plan.drafter != "none" and self.options.most and not self.target.can_truncate():
                plan = replace(plan, drafter="none", draft=None, shared=None)
                self.notice = (
                    f"the cache of a {plan.header.architecture} model cannot be rolled back: "
                    "decoding without speculation"
                )
            self.drafter, plan = open_drafter(
                plan, self.target, self.options, self.profile, self.exactness, progress, stack
            )
            self.drafter_name = plan.drafter_name
            self._lookup = prompt_lookup_of(self.drafter)
            self.lookup = index_texts(texts, self.vocabulary) if texts else None
            unread = None
            if texts and self._lookup is None:
                unread = "files are looked up only where ngram drafts: --lookup has no effect"
            told = (self.notice, plan.beyond(self.target.capacity), plan.unsaid(), unread)
            self.notice = "; ".join(filter(None, told)) or None
            speculative = self.drafter.speculates
            k = self.exactness.largest_k if speculative else 0
            self.policy = make_policy(self.options, self.exactness, self.profile)
            self._plan, self._used = plan, False
            cache = PrefixCache(self.options.prompt_cache << 20)
            self.decoder = Decoder(self.target, self.drafter, k, self.policy, cache)
            self._scheduler = Scheduler(self.decoder)
            remember_choice(self.model_name, self.exactness)
            compiler.join()
            release_compiler()
            self._resources = stack.pop_all()
        self._lifetime = Lifetime(self, self._resources.close)

    # -- generating -------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int] | Int32Array,
        sampling: SamplingParameters | None = None,
        limits: GenerationLimits | None = None,
        *,
        accept: str = "auto",
        grammar: str | PartGrammars | None = None,
        logprobs: int | None = None,
        k: int | None = None,
        edit: Edit | None = None,
        recent: EarlierTexts | None = None,
        progress: PrefillProgress | None = None,
    ) -> Stream:
        """Continue a raw prompt: no chat template is applied to it.

        Args:
            prompt: text (control tokens in it are understood) or token ids.
            sampling: filters and seed.
            limits: what ends the generation.
            grammar: what the answer obeys: what `grammar_from_schema` or `grammar_from_regex`
                returns, a text in llguidance's language that begins with ``%llguidance``, or GBNF;
                or what parts of it obey.
            accept: one of `ACCEPTANCE_RULES`; "auto" is rejection, at temperature 0 greedy.
                "typical" is lossy above that.
            logprobs: tell how likely each token was, and so many of the most likely ones.
            k: the most proposals of a cycle, up to `largest_k`; 0 for plain decoding.
            edit: changes logits in place, given the tokens before; EndedError ends the generation.
                It has to depend on nothing else, unless k is 0. No other use of the engine in it.
            recent: earlier answers of the same user, which prompt lookup may copy from; this one
                is added when it ends.
            progress: called while the prompt is read, in the thread that reads the stream.

        Raises:
            UsageError: unknown rule, or "greedy" with a temperature above 0; a k out of range; or
                the engine was closed, or loaded before a fork.
            GrammarError: the grammar does not compile; a stream raises it where the grammar
                becomes too complex on the way.
        """
        self._check()
        sampling = sampling or SamplingParameters()
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        settings = draw_settings(sampling, accept, self._breakers(sampling))
        constraint = None if grammar is None else self.constrain(grammar, sampling)
        reader = None
        if logprobs is not None:
            reader = LogprobReader(logprobs, self.exactness.largest_k + 1, self.vocabulary.size)
        if k is not None and not 0 <= k <= self.largest_k:
            raise UsageError(f"k is {k}: it has to be between 0 and {self.largest_k} here")
        limits = limits or GenerationLimits()
        least = (constraint.shortest if constraint else None) or 0
        if least > (limits.max_tokens or least):
            few = limits.max_tokens
            _log.warning(
                "max tokens is %d: the shortest known text of the grammar has %d", few, least
            )
        stream = Stream(self, tokens, settings, limits, constraint, reader, progress, k, edit)
        stream.recent = recent
        return stream

    def score(self, tokens: Sequence[int] | Int32Array, logprobs: int = 0) -> list[TokenLogprobs]:
        """Return how likely each token of a text but the first is after those before it.

        Args:
            tokens: of the text.
            logprobs: how many of the most likely tokens to tell at each place.

        Raises:
            UsageError: no tokens, or one that does not exist.
            ContextFullError: they do not fit into the context.
        """
        self._check()
        reader = LogprobReader(logprobs, self.target.options.outputs, self.vocabulary.size)
        return self._scheduler.score(_token_ids(tokens), reader)

    def embed(
        self,
        texts: str | Iterable[str | Sequence[int]],
        *,
        pooling: str = "mean",
        normalize: bool = True,
    ) -> Float32Array:
        """Return vectors of texts, made of this model's hidden states; see `Embedder.embed`.

        A model that was trained for embeddings makes better ones: `edgespec.load_embedder`.

        Raises: as `Embedder.embed`, and UsageError for a pooling that does not exist.
        """
        return self.embedder(pooling).embed(texts, normalize=normalize)

    def embedder(self, pooling: str = "mean") -> Embedder:
        """Return what makes vectors of this model's hidden states; texts take turns with answers.

        Raises:
            UsageError: no such pooling, or the engine was closed.
            BackendError: llama.cpp cannot open a context for it.
        """
        self._check()
        check_pooling(pooling)
        with self._scheduler.borrowed(object()):
            if pooling not in self._embedders:
                length = min(embedding_length(self.header, self.options), self.context_length)
                threads = self.options.thread_count
                context = EmbeddingContext(
                    self.target.model, pooling, length=length, threads=threads
                )
                self._resources.enter_context(context)
                self._embedders[pooling] = Embedder(
                    self.model_name, context, self._scheduler.borrowed
                )
            return self._embedders[pooling]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParameters | None = None,
        limits: GenerationLimits | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Stream:
        """Answer a conversation, rendered by the model's chat template.

        Args:
            messages: each with a "role" and a "content", as for `ChatTemplate.render`.
            tools: JSON schemas of functions, for templates that know tools.
            continue_final_message: continue the last message, which is the assistant's.
            template_variables: more variables for the template, e.g. ``enable_thinking``.
            options: as for `generate`, and with its errors.

        Raises:
            TemplateError: the model has no template, or it refuses the conversation.
            UsageError: a message is not of the form it should have.
        """
        variables = template_variables or {}
        check_names(variables)
        prompt = self.template.render(
            messages, tools=tools, continue_final_message=continue_final_message, **variables
        )
        return self.generate(prompt, sampling, limits, **options)

    def tokenize(self, text: str) -> Int32Array:
        """Return the token ids of a rendered prompt, with one BOS at most: int32 (n,).

        Raises:
            UsageError: the engine was closed, or loaded before a fork.
        """
        self._check()
        tokens = self.vocabulary.tokenize(text, add_special=True, parse_special=True)
        bos = self.vocabulary.bos
        if self.vocabulary.adds_bos and len(tokens) > 1 and tokens[0] == tokens[1] == bos:
            return tokens[1:]  # the chat template had written it already
        return tokens

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            TemplateError: it has none, or it does not compile.
        """
        return ChatTemplate.from_model(self.header, self.vocabulary)

    def shown_tokens(self, texts: Collection[str]) -> dict[int, bytes]:
        """Return the control tokens with one of these texts, for `Stream.shown`."""
        return {t: text.encode() for t, text in self._control_texts.items() if text in texts}

    @cached_property
    def _control_texts(self) -> dict[int, str]:
        return control_texts(self.header, self.vocabulary)

    def use_template(self, source: str) -> None:
        """Render conversations with this chat template from now on.

        Raises:
            TemplateError: it does not compile.
        """
        header = replace(self.header, chat_template=source, tool_template=None)
        self.template = ChatTemplate.from_model(header, self.vocabulary)

    # -- what it is and does ----------------------------------------------------------------

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.decoder.capacity

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change an answer to a seed: model, build, machine, setting."""
        return f"{self._cache_key} {self.drafter_name} {self.exactness.mode}"

    @property
    def largest_k(self) -> int:
        """The most proposals of a cycle; 0 where nothing is proposed. It may be lowered."""
        return self.decoder.k

    @largest_k.setter
    def largest_k(self, k: int) -> None:
        self.decoder.limit_proposals(k)

    @property
    def waiting(self) -> int:
        """How many generations wait for their turn."""
        return self._scheduler.waiting

    @contextmanager
    def observing(self, observer: Callable[[CycleReport], object]) -> Iterator[None]:
        """Call `observer` with every cycle while the block runs, in the thread that decodes."""
        self.decoder.on_cycle = observer
        try:
            yield
        finally:
            self.decoder.on_cycle = None

    # -- what a stream calls ----------------------------------------------------------------

    def advance(self, stream: Stream, limit: int) -> Cycle | None:
        """Run one cycle for this stream; None when its context is full and may not shift."""
        self._lifetime.check()
        return self._scheduler.advance(stream, limit, self._begin_turn)

    def exactness_of(self, stream: Stream) -> Exactness:
        """Return what speculation keeps of plain decoding in this answer."""
        speculates = self.largest_k > 0 and stream.most != 0
        if speculates and is_lossy(stream.settings):
            return self.exactness.under_lossy_rule()
        return self.exactness

    def retract(self, stream: Stream) -> None:
        """Note that the stream has ended; tokens of its last cycle may have been dropped."""
        if self._lifetime.foreign:
            return
        self._scheduler.retract(stream)
        if stream.emitted:
            if stream.recent is not None:
                stream.recent.add(stream.sequence[-len(stream.emitted) - _ASKED :])
            self._used = True
            unread = stream.prompt_tokens - stream.statistics.reused_tokens
            self.profile.usage.add(max(0, unread), len(stream.emitted))

    def interrupt(self, stream: Stream) -> None:
        """Stop this stream's running evaluation, if it has one; from any thread."""
        if not self._lifetime.foreign:
            self._scheduler.interrupt(stream)

    def _check(self) -> None:
        self._lifetime.check()
        if self.closed:
            raise UsageError("the engine was closed: load the model again")

    def _breakers(self, sampling: SamplingParameters) -> Int32Array:
        """Return what ends a repetition, as tokens of this model; looked for once."""
        texts = tuple(sampling.dry_breakers) if sampling.uses_dry else ()
        if texts not in self._breaker_tables:
            self._breaker_tables[texts] = breaker_table(
                texts,
                self.vocabulary.size if texts else 0,
                lambda token: self.vocabulary.piece(token, special=True),
                lambda text: self.vocabulary.tokenize(text, add_special=False),
            )
        return self._breaker_tables[texts]

    def constrain(self, grammar: str | PartGrammars, sampling: SamplingParameters) -> Constraint:
        """Return a grammar at its start, for one generation with this sampling.

        Raises:
            GrammarError: it does not compile.
        """
        return self._constraints.begin(grammar, sampling)

    def _begin_turn(self, stream: Stream) -> None:
        """Look up what is this stream's only, before the decoder stands where it stands."""
        if self._lookup is not None:
            sources = (self.lookup, stream.recent)
            self._lookup.consult([each for each in sources if each is not None])
        self._begin_trace(stream)

    def _begin_trace(self, stream: Stream) -> None:
        if self._trace is None or stream.trace is not None:
            return
        setting = self.exactness.setting
        facts = {
            "model": self.model_name,
            "drafter": self.drafter_name,
            "setting": None if setting is None else setting.name,
            "k": self.options.k,
            "largest_k": self.largest_k,
            "context": self.context_length,
            **request_facts(stream.limits.max_tokens, stream.settings),
            "prompt": stream.sequence[: stream.prompt_tokens],
            **costs_and_learning(setting, self.policy, self.drafter, self.profile.ngram),
        }
        stream.trace = self._trace.begin(facts)

    # -- caches of earlier texts ------------------------------------------------------------

    def save_cache(self, path: Path, tokens: Sequence[int]) -> int:
        """Write what is known of a text, so that `load_cache` can go on with it later.

        Args:
            path: of a file; it takes about what the KV cache of these tokens takes.
            tokens: of the text, as in `Stream.sequence`.

        Returns:
            How many of the tokens it holds; 0 if none are known, and no file was written.

        Raises:
            EdgespecError: the file cannot be written.
        """
        self._check()
        wanted = np.asarray(tokens, np.int32)
        with self._scheduler.borrowed(wanted):
            cache, held = self.decoder.prefix_cache, self.decoder.held
            prefix = cache.best(self.target, held, wanted)
        if prefix is None:
            return 0
        write_cache(path, self._cache_key, prefix)
        return prefix.known(wanted)

    def load_cache(self, path: Path) -> int:
        """Make what `save_cache` wrote known again.

        Returns:
            How many tokens it holds; 0 if the file is damaged, missing, or of another model, build
            or setting, or longer than the context or the memory for such caches: the text is
            then read again.
        """
        self._check()
        prefix = read_cache(path, self._cache_key)
        if prefix is None or len(prefix.tokens) > self.decoder.capacity:
            return 0
        with self._scheduler.borrowed(prefix):
            kept = self.decoder.prefix_cache.add(prefix)
        return len(prefix.tokens) if kept else 0

    def forget(self) -> None:
        """Empty all caches of texts: the next prompt is read from its beginning."""
        self._check()
        self._scheduler.forget()

    @property
    def kept_bytes(self) -> int:
        """Memory that caches of earlier texts take now."""
        return self.decoder.prefix_cache.nbytes

    @property
    def _cache_key(self) -> str:
        setting = setting_of(self.target.model, self.target.options)
        return f"{measurement_key(self.target.model.path, {})} {setting.name}"

    # -- life -------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._scheduler.closed

    def close(self) -> None:
        """Stop what is running, which ends as if it had been cancelled, and free the models.

        Any thread may call it. Called by a callback of a generation, it returns at once; the
        models are freed when that generation's cycle has ended.
        """
        if not self._lifetime.foreign:
            self._scheduler.close(self._free)

    def _free(self) -> None:
        with self._resources:
            if self._used and self.options.k is None:
                remember(self._plan, self.exactness, self.policy, self.drafter, self.profile.usage)
        self._lifetime.end()


def _token_ids(prompt: Sequence[int] | Int32Array) -> Int32Array:
    try:
        tokens = np.asarray(prompt)
        if tokens.ndim == 1 and (tokens.dtype.kind in "iu" or not len(tokens)):
            inside: Int32Array = np.clip(tokens, -1, 2**31 - 1).astype(np.int32)
            return inside  # what was outside is refused later, and not wrapped round
    except ValueError:  # lists of different lengths
        pass
    raise UsageError("a prompt has to be text or a sequence of token ids")
