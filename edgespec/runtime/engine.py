"""A target, a drafter and the decoder between them, opened together and closed together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.backend import Grammar
from edgespec.backend.closing import Closing
from edgespec.drafters import NoDrafter
from edgespec.registry.progress import Progress, silent
from edgespec.runtime.constraint import Constraint
from edgespec.runtime.decoder import Cycle, Decoder
from edgespec.runtime.learning import remember
from edgespec.runtime.loading import (
    LoadProgress,
    make_plan,
    make_policy,
    open_drafter,
    open_target,
)
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.stream import GenerationLimits, Stream
from edgespec.runtime.trace import Trace
from edgespec.sampling.breakers import breaker_table
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.settings import draw_settings
from edgespec.templates import ChatTemplate
from edgespec.tuning.exactness import remember_choice
from edgespec.tuning.profile import load_profile

__all__ = ["Engine"]

_log = logging.getLogger("edgespec.engine")


class Engine(Closing):
    """Runs one target model, with one drafter, one generation at a time.

    Generations may be interleaved: each step continues the one it is asked for, evaluating again
    what another one has pushed out of the cache. Threads wait for each other. Close it, or use it
    as a context manager.

    Args:
        model: a path, a registry name, an ``hf:OWNER/REPO/FILE.gguf`` reference, or None for the
            registry's default; downloaded on first use.
        options: how to open it.
        progress: called while weights load.
        download: called with bytes done and in all while a file is fetched.

    Raises:
        UnknownModelError, DownloadError, ModelFileError, ModelLoadError, InsufficientMemoryError:
            the target or the draft cannot be had.
        PairingError: the draft does not fit the target.
        UsageError: a context longer than the model can use, or a trace that cannot be written.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        options: EngineOptions | None = None,
        *,
        progress: LoadProgress | None = None,
        download: Progress = silent,
    ) -> None:
        self.options = options or EngineOptions()
        self._lock = threading.Lock()  # held by whoever uses the decoder
        self._switch = threading.Lock()  # guards which stream a cancellation would hit
        self._current: Stream | None = None
        with ExitStack() as stack:
            self._trace = self._open_trace(stack)
            plan = make_plan(model, self.options, download)
            self.header = plan.header
            self.model_name = plan.target.name
            self.notice: str | None = plan.notice
            self.profile = load_profile(plan.target.path)
            self.target, self.exactness = open_target(
                plan, self.options, self.profile, progress, stack
            )
            self.vocabulary = self.target.model.vocabulary
            self._breaker_tables: dict[tuple[str, ...], npt.NDArray[np.int32]] = {}
            if plan.drafter != "none" and self.options.most and not self.target.can_truncate():
                plan = replace(plan, drafter="none", draft=None, shared=None)
                self.notice = (
                    f"the cache of a {plan.header.architecture} model cannot be rolled back: "
                    "decoding without speculation"
                )
            self.drafter = open_drafter(
                plan, self.target, self.options, self.profile, progress, stack
            )
            self.drafter_name = plan.drafter_name
            speculative = not isinstance(self.drafter, NoDrafter)
            k = self.exactness.largest_k if speculative else 0
            self.policy = make_policy(self.options, self.exactness, self.profile)
            self.decoder = Decoder(self.target, self.drafter, k, self.policy)
            self._plan, self._used = plan, False
            remember_choice(self.model_name, self.exactness)
            self._resources = stack.pop_all()

    # -- generating -------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int] | npt.NDArray[np.int32],
        sampling: SamplingParameters | None = None,
        limits: GenerationLimits | None = None,
        *,
        accept: str = "auto",
        grammar: str | None = None,
    ) -> Stream:
        """Continue a raw prompt: no chat template is applied to it.

        Args:
            prompt: text (control tokens in it are understood) or token ids.
            sampling: filters and seed.
            limits: what ends the generation.
            grammar: rules in GBNF that the answer obeys; `grammar_from_schema` makes them from a
                JSON Schema.
            accept: one of `ACCEPTANCE_RULES`; "auto" is rejection, at temperature 0 greedy.

        Raises:
            UsageError: unknown rule, or "greedy" with a temperature above 0.
            GrammarError: the grammar does not compile.
        """
        sampling = sampling or SamplingParameters()
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else np.asarray(prompt, np.int32)
        settings = draw_settings(sampling, accept, self._breakers(sampling))
        constraint = None
        if grammar is not None:
            rules = Grammar(self.vocabulary, grammar)
            constraint = Constraint(rules, sampling, self.vocabulary.end_tokens)
        return Stream(self, tokens, settings, limits or GenerationLimits(), constraint)

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids of a rendered prompt, with one BOS where the model wants one: int32 (n,)."""
        tokens = self.vocabulary.tokenize(text, add_special=True, parse_special=True)
        bos = self.vocabulary.bos
        if self.vocabulary.adds_bos and len(tokens) > 1 and tokens[0] == tokens[1] == bos:
            return tokens[1:]  # the chat template had written it already
        return tokens

    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            TemplateError: it has none, or it does not compile.
        """
        return ChatTemplate.from_model(self.header, self.vocabulary)

    # -- what a stream calls ----------------------------------------------------------------

    def advance(self, stream: Stream, limit: int) -> Cycle | None:
        """One cycle for this stream; None when its context is full and may not be shifted."""
        with self._lock:
            try:
                self._resume(stream)
                full = len(stream.sequence) >= self.decoder.capacity and bool(stream.emitted)
                if full and not self._shift(stream):
                    return None
                return self.decoder.cycle(limit)
            except BaseException:
                self._current = None
                raise

    def retract(self, stream: Stream) -> None:
        """The stream has ended: cut the caches back to what it kept of its last cycle."""
        with self._lock:
            self._used = True
            unread = stream.prompt_tokens - stream.statistics.reused_tokens
            self.profile.usage.add(max(0, unread), len(stream.emitted))
            if self._current is stream:
                self.decoder.keep(len(stream.sequence))

    def interrupt(self, stream: Stream) -> None:
        """Stop this stream's running evaluation, if it has one; from any thread."""
        with self._switch:
            if self._current is stream:
                self.target.cancel()
                self.drafter.cancel()

    def _breakers(self, sampling: SamplingParameters) -> npt.NDArray[np.int32]:
        """What ends a repetition, as tokens of this model; looked for once."""
        texts = tuple(sampling.dry_breakers) if sampling.uses_dry else ()
        if texts not in self._breaker_tables:
            self._breaker_tables[texts] = breaker_table(
                texts,
                self.vocabulary.size if texts else 0,
                lambda token: self.vocabulary.piece(token, special=True),
                lambda text: self.vocabulary.tokenize(text, add_special=False),
            )
        return self._breaker_tables[texts]

    def _resume(self, stream: Stream) -> None:
        """Make the decoder stand where this stream stands."""
        if self._current is stream:
            return
        with self._switch:
            self._current = stream
            self.target.resume()
            self.drafter.resume()
        if stream.cancelled:
            self.interrupt(stream)
        if self._trace is not None and stream.trace is None:
            stream.trace = self._trace.begin(self, stream)
        if len(stream.sequence) < self.decoder.capacity or not stream.emitted:
            self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        tokens = np.array(stream.sequence, np.int32)
        self.decoder.begin(
            tokens, stream.settings, stream.statistics, stream.constraint, stream.trace
        )

    def _shift(self, stream: Stream) -> bool:
        """Drop half of what lies behind the kept front, and evaluate the rest again.

        Not llama.cpp's shift of the cache, which leaves traces of the dropped tokens in the
        others' keys and values: the text goes on exactly as after a prompt of what is left.
        """
        if stream.limits.overflow != "shift":
            return False
        keep = min(stream.limits.keep, self.decoder.capacity // 2)
        dropped = (len(stream.sequence) - keep) // 2
        del stream.sequence[keep : keep + dropped]
        offset = stream.settings.stream_offset + dropped
        stream.settings = stream.settings._replace(stream_offset=offset)
        _log.info("context full: dropped %d tokens behind the first %d", dropped, keep)
        self._begin(stream)
        return True

    # -- life -------------------------------------------------------------------------------

    def _open_trace(self, stack: ExitStack) -> Trace | None:
        if self.options.trace is None:
            return None
        trace = Trace(self.options.trace)
        stack.callback(trace.close)
        return trace

    def close(self) -> None:
        """Free the models. Waits for a running cycle."""
        with self._lock:
            self._current = None
            if self._used and self.options.k is None:
                remember(self._plan, self.exactness, self.policy, self.drafter, self.profile.usage)
            self._used = False
            self._resources.close()
