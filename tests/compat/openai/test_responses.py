"""The objects, judged by the types of OpenAI's own client and by the generation they tell of."""

from __future__ import annotations

import math
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from edgespec.compat.openai.responses import (
    ChatChunks,
    TextChunks,
    chat_completion,
    figures,
    text_completion,
)
from edgespec.compat.openai.tools import ToolUse

PROMPT = "<|im_start|>user\nWrite 🐱 and 🐟.<|im_end|>\n<|im_start|>assistant\n"
EMOJI = 'root ::= "🐱" "x" "🐟"'  # several tokens a character


def generated(engine: Any, greedy: Any, **options: Any) -> tuple[Any, list[Any]]:
    stream = engine.generate(PROMPT, **greedy(12), **options)
    pieces = list(stream)
    return stream.result, pieces


def streamed(chunks: Any, result: Any, pieces: list[Any]) -> list[dict[str, Any]]:
    told = (chunks.piece(piece) for piece in pieces)
    return [*chunks.opening(), *(one for one in told if one), *chunks.closing(result)]


def test_a_chat_answer(engine: Any, greedy: Any) -> None:
    result, pieces = generated(engine, greedy)
    whole = chat_completion(result, engine.vocabulary)
    parsed = ChatCompletion.model_validate(whole, strict=True)
    assert parsed.choices[0].message.content == result.text
    assert parsed.model == engine.model_name
    assert parsed.usage is not None and parsed.usage.completion_tokens == len(result.tokens)
    assert parsed.usage.total_tokens == result.prompt_tokens + len(result.tokens)
    chunks = streamed(ChatChunks(result.model, engine.vocabulary), result, pieces)
    typed = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert "".join(one.choices[0].delta.content or "" for one in typed) == result.text
    assert typed[0].choices[0].delta.role == "assistant"
    assert typed[-1].choices[0].finish_reason == whole["choices"][0]["finish_reason"]
    assert len({one.id for one in typed}) == 1


def test_a_completion(engine: Any, greedy: Any) -> None:
    result, pieces = generated(engine, greedy)
    whole = text_completion(result, engine.vocabulary, echo="Before. ")
    parsed = Completion.model_validate(whole, strict=True)
    assert parsed.choices[0].text == "Before. " + result.text
    chunks = TextChunks(result.model, engine.vocabulary, echo="Before. ")
    texts = [chunk["choices"][0]["text"] for chunk in streamed(chunks, result, pieces)]
    assert "".join(texts) == "Before. " + result.text
    last = chunks.usage(result)
    assert last["choices"] == [] and last["usage"] == whole["usage"]


def test_logprobs_of_chat(engine: Any, greedy: Any) -> None:
    result, pieces = generated(engine, greedy, grammar=EMOJI, logprobs=2)
    whole = chat_completion(result, engine.vocabulary, logprobs=True)
    parsed = ChatCompletion.model_validate(whole, strict=True)
    assert parsed.choices[0].logprobs is not None
    content = parsed.choices[0].logprobs.content
    assert content is not None
    assert b"".join(bytes(one.bytes or []) for one in content).decode() == "🐱x🐟"
    assert [one.logprob for one in content] == [one.logprob for one in result.logprobs[:-1]]
    assert all(len(one.top_logprobs) == 2 for one in content)
    chunks = ChatChunks(result.model, engine.vocabulary, logprobs=True)
    told: list[Any] = []
    for chunk in streamed(chunks, result, pieces):
        told += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    assert told == whole["choices"][0]["logprobs"]["content"]


def test_logprobs_of_completions(engine: Any, greedy: Any) -> None:
    result, pieces = generated(engine, greedy, grammar=EMOJI, logprobs=2)
    whole = text_completion(result, engine.vocabulary, logprobs=True, echo="ab")
    told = whole["choices"][0]["logprobs"]
    assert Completion.model_validate(whole, strict=True).choices[0].logprobs is not None
    assert len(told["tokens"]) == len(result.tokens) - 1  # the end token is not part of the text
    assert told["text_offset"] == sorted(told["text_offset"])
    assert {told["text_offset"][0], told["text_offset"][told["tokens"].index("x")]} == {2, 3}
    assert all(len(top) == 2 for top in told["top_logprobs"])
    chunks = TextChunks(result.model, engine.vocabulary, logprobs=True, echo="ab")
    joined: dict[str, list[Any]] = {name: [] for name in told}
    for chunk in streamed(chunks, result, pieces):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == told


@pytest.mark.parametrize(("stream", "count"), [(False, 1), (True, 3)])
def test_calls_in_an_answer(engine: Any, greedy: Any, stream: bool, count: int) -> None:
    use = ToolUse(None, frozenset({"clock"}), None)
    grammar = r'root ::= "Now: <tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>"'
    one = engine.generate(PROMPT, **greedy(90), grammar=grammar, logprobs=0)
    pieces, result = list(one), one.result
    if stream:
        chunks = streamed(
            ChatChunks(result.model, engine.vocabulary, use, logprobs=True), result, pieces
        )
        choices = [chunk["choices"][0] for chunk in chunks]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        likely = [c for choice in choices for c in (choice["logprobs"] or {}).get("content", [])]
        assert b"".join(bytes(entry["bytes"]) for entry in likely).decode() == result.text
    else:
        whole = chat_completion(result, engine.vocabulary, use)
        ChatCompletion.model_validate(whole, strict=True)
        choices = whole["choices"]
        text, calls = choices[0]["message"]["content"], choices[0]["message"]["tool_calls"]
    assert len(choices) >= count
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert text == "Now: "
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert (calls[0]["function"]["name"], arguments) == ("clock", "{}")


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_in_an_answer(engine: Any, greedy: Any, stream: bool) -> None:
    use = ToolUse(None, frozenset({"clock"}), None)
    call = r"<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>"
    one = engine.generate(PROMPT, **greedy(90), grammar=f'root ::= "so {call}\\n</think>\\n\\nNo."')
    pieces, result = list(one), one.result
    if stream:
        chunks = streamed(
            ChatChunks(result.model, engine.vocabulary, use, closing="</think>"), result, pieces
        )
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        told = [
            "".join(delta.get(key) or "" for delta in deltas)
            for key in ("reasoning_content", "content")
        ]
        assert sum("reasoning_content" in delta for delta in deltas) > 3
    else:
        whole = chat_completion(result, engine.vocabulary, use, closing="</think>")
        message = whole["choices"][0]["message"]
        told = [message["reasoning_content"], message["content"]]
        raw = chat_completion(result, engine.vocabulary, closing=None)["choices"][0]["message"]
        assert raw["content"] == result.text
    assert told == ['so <tool_call>{"name": "clock", "arguments": {}}</tool_call>', "No."]


def test_control_tokens_that_mark_parts_are_shown(engine: Any, greedy: Any) -> None:
    stream = engine.generate("x", **greedy(4))
    shown = engine.shown_tokens({"<|im_start|>", "nothing"})
    assert list(shown.values()) == [b"<|im_start|>"]
    stream.shown = dict.fromkeys(range(engine.vocabulary.size), b"<mark>")
    assert stream.result.text == "<mark>" * (len(stream.result.tokens))


def test_why_an_answer_ended(engine: Any, greedy: Any) -> None:
    def reason(result: Any) -> str:
        told: str = chat_completion(result, engine.vocabulary)["choices"][0]["finish_reason"]
        return told

    assert reason(engine.generate(PROMPT, **greedy(2)).result) == "length"
    assert reason(generated(engine, greedy, grammar='root ::= "x"')[0]) == "stop"
    cancelled = engine.generate(PROMPT, **greedy(2))
    cancelled.cancel()
    assert reason(cancelled.result) == "length"
    full = engine.generate("a b " * 250, **greedy(50)).result
    assert full.finish_reason == "context" and reason(full) == "length"


def test_what_is_added(engine: Any, greedy: Any) -> None:
    result, _ = generated(engine, greedy)
    added = figures(result)
    assert added["timings"]["decode_s"] > 0 and math.isfinite(added["timings"]["prefill_s"])
    assert added["speculation"]["cycles"] == result.statistics.cycles
    again, _ = generated(engine, greedy)
    assert chat_completion(again, engine.vocabulary)["usage"]["prompt_tokens_details"] == {
        "cached_tokens": again.statistics.reused_tokens
    }
    assert again.statistics.reused_tokens > 0
