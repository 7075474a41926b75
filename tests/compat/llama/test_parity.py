"""Calls written for llama_cpp.Llama: answers of the same form, and the same greedy text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llama_cpp import LlamaGrammar

Call = Callable[[Any], Any]

RIVER = [{"role": "user", "content": "Name a river."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "km": {"type": "integer"}},
    "required": ["name", "km"],
}
TOOLS = [{"type": "function", "function": {"name": "river", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "river"}}
GRAMMAR = 'root ::= [a-z ]+ "."'

TEXTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "tokens": {"prompt": [504, 4518, 314]},
    "stop": {"stop": [" of", "zebra"], "max_tokens": 30},
    "one stop": {"stop": " endless", "max_tokens": 30},
    "an end token": {
        "prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nBye",
        "max_tokens": 60,
    },
    "no limit but the context": {"prompt": "a b c " * 76, "max_tokens": -1},
    "longer than the context": {"prompt": "a b c " * 80, "max_tokens": 100},
    "characters of several tokens": {"prompt": "🐱🐟🐱🐟🐱", "max_tokens": 12},
    "likely tokens": {"logprobs": 3, "max_tokens": 6},
    "bias": {"logit_bias": {"260": -100.0, 28: 4.0}},
    "grammar": {"grammar": LlamaGrammar.from_string(GRAMMAR, verbose=False), "max_tokens": 30},
    "name": {"model": "river-1", "max_tokens": 2},
}
CHATS: dict[str, dict[str, Any]] = {
    "until its end": {},
    "limited": {"max_tokens": 6},
    "several turns": {
        "messages": [
            {"role": "system", "content": "You are brief."},
            *RIVER,
            {"role": "assistant", "content": "The Po."},
            {"role": "user", "content": "Another one."},
        ],
        "max_tokens": 12,
        "stop": ["."],
    },
    "likely tokens": {"logprobs": True, "top_logprobs": 2, "max_tokens": 4},
    "schema": {"response_format": {"type": "json_object", "schema": SCHEMA}, "max_tokens": 80},
    "JSON": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "named tool": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 80},
    "function": {
        "functions": [TOOLS[0]["function"]],
        "function_call": {"name": "river"},
        "max_tokens": 80,
    },
    "no tool": {"tools": TOOLS, "tool_choice": "none", "max_tokens": 4},
}


def shape(value: Any) -> Any:
    """The keys and kinds of what an answer is made of; words stay, numbers and names do not."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items() if k not in ("bytes", "created")}
    if isinstance(value, list):
        return [shape(one) for one in value]
    if isinstance(value, (float, np.floating)):
        return pytest.approx(float(value), abs=2e-3)
    if isinstance(value, str) and value.startswith(("cmpl-", "chatcmpl-", "call_")):
        return value.split("-")[0]
    return value


def keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: keys(v) for k, v in value.items()}
    return [keys(one) for one in value] if isinstance(value, list) else type(value).__name__


def text_of(chunks: list[Any]) -> str:
    """What the chunks of a stream say together, whichever way they say it."""
    said = ""
    for chunk in chunks:
        choice = chunk["choices"][0]
        delta = choice.get("delta", {})
        call = (delta.get("function_call") or {}).get("arguments")
        said += choice.get("text") or delta.get("content") or call or ""
    return said


@pytest.mark.parametrize("asked", TEXTS.values(), ids=TEXTS)
def test_completions(theirs: Any, ours: Any, asked: dict[str, Any]) -> None:
    asked = {"prompt": "The sea is", "temperature": 0, **asked}
    expected, got = theirs(**asked), ours.create_completion(**asked)
    assert shape(got) == shape(expected)


@pytest.mark.parametrize("asked", CHATS.values(), ids=CHATS)
def test_chats(theirs: Any, ours: Any, asked: dict[str, Any]) -> None:
    asked = {"messages": RIVER, "temperature": 0, **asked}
    expected, got = theirs.create_chat_completion(**asked), ours.create_chat_completion(**asked)
    named = "function_call" in expected["choices"][0]["message"]
    if named:  # names of calls have the answer's name in them
        for answer in (expected, got):
            del answer["choices"][0]["message"]["tool_calls"][0]["id"]
    assert shape(got) == shape(expected)


@pytest.mark.parametrize("asked", TEXTS.values(), ids=TEXTS)
def test_streamed_completions(theirs: Any, ours: Any, asked: dict[str, Any]) -> None:
    asked = {"prompt": "The sea is", "temperature": 0, "stream": True, **asked}
    check_chunks(list(theirs(**asked)), list(ours(**asked)))


@pytest.mark.parametrize("asked", CHATS.values(), ids=CHATS)
def test_streamed_chats(theirs: Any, ours: Any, asked: dict[str, Any]) -> None:
    asked = {"messages": RIVER, "temperature": 0, "stream": True, **asked}
    check_chunks(
        list(theirs.create_chat_completion(**asked)), list(ours.create_chat_completion(**asked))
    )


def check_chunks(expected: list[Any], got: list[Any]) -> None:
    """Pieces may be cut elsewhere; the text, the first and last chunk and every form are equal."""
    assert text_of(got) == text_of(expected)
    assert len({chunk["id"] for chunk in got}) == 1
    assert shape(got[-1]) == shape(expected[-1])
    if expected[0]["object"] == "chat.completion.chunk":
        assert shape(got[0]) == shape(expected[0])
    forms = [forms_of(chunks) for chunks in (expected, got)]
    assert forms[1] <= forms[0]


def forms_of(chunks: list[Any]) -> set[str]:
    for chunk in chunks:
        for one in (chunk["choices"][0]["logprobs"] or {}).get("top_logprobs") or ():
            one.clear()  # its keys are words
        for one in (chunk["choices"][0]["logprobs"] or {}).get("content") or ():
            del one["bytes"]
            for other in one["top_logprobs"]:
                del other["bytes"]
    return {repr(sorted_keys(keys(chunk))).replace("float32", "float") for chunk in chunks}


def sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: sorted_keys(value[k]) for k in sorted(value)}
    return [sorted_keys(one) for one in value] if isinstance(value, list) else value


def test_tokens_and_facts(theirs: Any, ours: Any) -> None:
    for text in (b"", b"hi", b"<|im_start|>user\n", "Größe 🐱".encode(), b"broken \xff\xc3"):
        for add_bos in (False, True):
            for special in (False, True):
                tokens = theirs.tokenize(text, add_bos, special)
                assert ours.tokenize(text, add_bos, special) == tokens
                for shown in (False, True):
                    expected = theirs.detokenize(tokens, special=shown)
                    assert ours.detokenize(tokens, special=shown) == expected
    for fact in ("n_ctx", "n_vocab", "n_embd", "token_bos", "token_eos", "token_nl"):
        assert getattr(ours, fact)() == getattr(theirs, fact)()
    assert ours.metadata == theirs.metadata
    assert ours.model_path == theirs.model_path
    assert ours.context_params.n_ctx == theirs.context_params.n_ctx


def test_the_classes_of_the_openai_package(theirs: Any, ours: Any) -> None:
    pytest.importorskip("openai")
    asked: dict[str, Any] = {"messages": RIVER, "temperature": 0, "max_tokens": 5}
    expected, got = (llm.create_chat_completion_openai_v1(**asked) for llm in (theirs, ours))
    assert type(got) is type(expected)
    assert got.choices == expected.choices
    expected, got = (
        list(llm.create_chat_completion_openai_v1(**asked, stream=True)) for llm in (theirs, ours)
    )
    assert {type(one) for one in got} == {type(one) for one in expected}
    assert [one.choices for one in got] == [one.choices for one in expected]


def test_a_prompt_that_does_not_fit_is_a_value_error(theirs: Any, ours: Any) -> None:
    for model in (theirs, ours):
        with pytest.raises(
            ValueError, match=r"Requested tokens \(\d+\) exceed context window of 256"
        ):
            model("word " * 600)
