"""The calls of a `Llama`: those that write text, and those that make vectors of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgespec._types import Int32Array
from edgespec.compat.llama.answers import CallAnswer, ChatAnswer, TextAnswer
from edgespec.compat.llama.asking import (
    Asked,
    Seeds,
    callbacks_of,
    named_tool,
    response_grammar,
    rules_of,
    tools_of,
)
from edgespec.compat.openai.calls import MARKS, opened_thought
from edgespec.compat.openai.responses import TextLogprobs, embedding_list
from edgespec.compat.openai.tools import call_or, plan_tools
from edgespec.errors import UnsupportedError, UsageError
from edgespec.grammars import PartGrammars
from edgespec.runtime.decoder import Edit
from edgespec.runtime.embedding import Embedder
from edgespec.runtime.engine import Engine
from edgespec.runtime.stream import Stream

__all__ = ["Completions", "Embeddings", "pooling_of"]


class Completions:
    """What `Llama` does with the engine that it has opened.

    Attributes:
        engine: the engine.
        model_path: what it was opened with.
    """

    engine: Engine
    model_path: str
    _seeds: Seeds
    _window: int
    _suffix_first: bool

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[Any, float] | None = None,
    ) -> Any:
        """Continue a text; arguments as in llama-cpp-python, which ignores `tfs_z` too.

        Returns:
            A ``text_completion`` dictionary; with `stream` an iterator of them.

        Raises:
            UnsupportedError: a suffix for a model that cannot fill gaps.
            UsageError: a value is out of range, or the prompt does not fit into the context.
            GrammarError: the grammar does not compile.
        """
        edit = callbacks_of(logits_processor, stopping_criteria)
        asked = Asked.among(locals())
        tokens: Sequence[int] | Int32Array = prompt if not isinstance(prompt, str) else ()
        if suffix is not None:
            tokens = self.engine.vocabulary.gap(prompt, suffix, after_first=self._suffix_first)
        elif isinstance(prompt, str):
            tokens = self.engine.tokenize(prompt)
        vocabulary = self.engine.vocabulary
        text = prompt if isinstance(prompt, str) else vocabulary.decode(prompt)
        started = self._start(tokens, asked, seed, rules_of(grammar), logprobs, edit)
        told = None
        if echo and logprobs is not None:
            likely = self.engine.score(tokens, logprobs)
            told = TextLogprobs(vocabulary).prompt(tokens, likely)
        answer = TextAnswer(
            self,
            started,
            vocabulary,
            model or self.model_path,
            logprobs is not None,
            prompt=text,
            echo=echo,
            echo_logprobs=told,
        )
        return answer.chunks() if stream else answer.whole()

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[Any, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Answer a conversation; arguments as in llama-cpp-python.

        A tool that `tool_choice` names is always called. Otherwise calls are looked for in the
        answer, in the form of the model's chat template.

        Returns:
            A ``chat.completion`` dictionary; with `stream` an iterator of chunks.

        Raises:
            TemplateError: the model has no chat template, or it refuses the conversation.
            Errors of `create_completion`; UsageError also for tools that are not of OpenAI's form,
            or that the template does not show to the model.
        """
        edit = callbacks_of(logits_processor)
        asked = Asked.among(locals())
        rules = response_grammar(response_format) or rules_of(grammar)
        likely = (top_logprobs or 0) if logprobs else None
        tools, choice = tools_of(tools, tool_choice, functions, function_call)
        about = (self.engine.vocabulary, model or self.model_path, bool(logprobs))
        answer: CallAnswer | ChatAnswer
        if isinstance(choice, Mapping):
            name, rules = named_tool(tools, choice)
            prompt = self.engine.tokenize(self._render(messages, tools))
            started = self._start(prompt, asked, seed, rules, likely, edit)
            answer = CallAnswer(self, started, *about, tool=name)
        else:
            plan = plan_tools(self.engine.template, tools, choice)
            if plan:
                rules = call_or(self.engine.template, plan, rules) if rules else plan.grammar
            text = self._render(messages, plan.tools if plan else None)
            prompt = self.engine.tokenize(text)
            obeyed: str | PartGrammars | None = rules
            if plan and plan.held and rules is None:
                obeyed = replace(plan.held, aside=opened_thought(text))
            started = self._start(prompt, asked, seed, obeyed, likely, edit)
            if plan:
                started.shown = self.engine.shown_tokens(MARKS.union(plan.marks))
            closing = opened_thought(text) if plan else None
            answer = ChatAnswer(self, started, *about, tools=plan, closing=closing)
        return answer.chunks() if stream else answer.whole()

    def create_chat_completion_openai_v1(self, *arguments: Any, **keywords: Any) -> Any:
        """Call `create_chat_completion`; return answers as classes of the package ``openai``.

        Raises:
            UnsupportedError: that package is not installed.
            Errors of `create_chat_completion`.
        """
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError:
            raise UnsupportedError(
                "the package openai is not installed: pip install openai"
            ) from None
        answer = self.create_chat_completion(*arguments, **keywords)
        if isinstance(answer, dict):
            return ChatCompletion.model_validate(answer)
        return map(ChatCompletionChunk.model_validate, answer)

    # -- prompts and streams ------------------------------------------------------------------

    def _start(
        self,
        tokens: Sequence[int] | Int32Array,
        asked: Asked,
        seed: int | None,
        rules: str | PartGrammars | None,
        likely: int | None,
        edit: Edit | None,
    ) -> Stream:
        capacity = self.engine.context_length
        if len(tokens) >= capacity:
            raise UsageError(
                f"Requested tokens ({len(tokens)}) exceed context window of {capacity}: shorten "
                "the prompt, or open the model with a larger n_ctx"
            )
        sampling = asked.sampling(self._seeds.next(seed), self._window)
        return self.engine.generate(
            tokens,
            sampling,
            asked.limits(),
            grammar=rules,
            logprobs=likely,
            k=0 if edit else None,  # such functions may count on one call for each token
            edit=edit,
        )

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        return self.engine.template.render(messages, tools=tools)


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
