"""OpenAI's own client against the server: what it gets is what the engine says."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from edgespec import GenerationLimits, SamplingParameters

GREEDY = SamplingParameters(temperature=0.0)
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Repeat: red green blue red green blue"},
]
CITY = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


def test_chat_is_the_engines_answer(client: Any, engine: Any) -> None:
    expected = engine.chat(MESSAGES, GREEDY, GenerationLimits(max_tokens=24)).result
    answer = client.chat.completions.create(
        model="whatever", messages=MESSAGES, temperature=0, max_completion_tokens=24
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.model == engine.model_name
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.usage.completion_tokens == len(expected.tokens)
    again = client.chat.completions.create(model="", messages=MESSAGES, max_tokens=24)
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_a_stream_has_the_same_text(client: Any, engine: Any) -> None:
    expected = engine.chat(MESSAGES, GREEDY, GenerationLimits(max_tokens=24)).result
    stream = client.chat.completions.create(
        model="x",
        messages=MESSAGES,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.completion_tokens == len(expected.tokens)


def test_parts_roles_and_fields_of_others(client: Any, engine: Any) -> None:
    expected = engine.chat(MESSAGES, GREEDY, GenerationLimits(max_tokens=6)).result
    parts = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": MESSAGES[1]["content"], "name": "Ada"},
    ]
    answer = client.chat.completions.create(
        model="x",
        messages=parts,
        max_tokens=6,
        user="somebody",
        extra_body={"cache_prompt": True, "nonsense": {"a": [1]}},
    )
    assert answer.choices[0].message.content == expected.text


def test_completions_continue_text_and_tokens(client: Any, engine: Any) -> None:
    expected = engine.generate("The sea is", GREEDY, GenerationLimits(max_tokens=12)).result
    tokens = engine.tokenize("The sea is").tolist()
    for prompt in ("The sea is", ["The sea is"], tokens, [tokens]):
        answer = client.completions.create(model="x", prompt=prompt, max_tokens=12)
        assert answer.choices[0].text == expected.text
    stream = client.completions.create(
        model="x", prompt="The sea is", max_tokens=12, stream=True, echo=True
    )
    assert "".join(c.choices[0].text for c in stream) == "The sea is" + expected.text


def test_stop_strings(client: Any, engine: Any) -> None:
    text = engine.generate("The sea is", GREEDY, GenerationLimits(max_tokens=12)).result.text
    stop = text[5:9]
    for given in (stop, ["never there", stop]):
        answer = client.completions.create(
            model="x", prompt="The sea is", max_tokens=12, stop=given
        )
        assert answer.choices[0].text == text[: text.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


def test_filters_and_seeds(client: Any, engine: Any) -> None:
    given = {"top_k": 30, "min_p": 0.02, "repeat_penalty": 1.1}
    sampling = SamplingParameters(
        temperature=0.9, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.2, seed=11, **given
    )
    expected = engine.generate("One day", sampling, GenerationLimits(max_tokens=16)).result
    answer = client.completions.create(
        model="x",
        prompt="One day",
        max_tokens=16,
        temperature=0.9,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=11,
        extra_body=given,
    )
    assert answer.choices[0].text == expected.text
    assert answer.edgespec["seed"] == 11


def test_without_a_seed_answers_differ_and_can_be_repeated(client: Any) -> None:
    def ask(**more: Any) -> Any:
        return client.completions.create(
            model="x", prompt="One day", max_tokens=12, temperature=1.5, **more
        )

    answers = [ask() for _ in range(3)]
    assert len({one.choices[0].text for one in answers}) > 1
    again = ask(seed=answers[0].edgespec["seed"])
    assert again.choices[0].text == answers[0].choices[0].text


def test_logit_bias(client: Any, engine: Any) -> None:
    first = engine.generate("The sea is", GREEDY, GenerationLimits(max_tokens=1)).result.tokens[0]
    forbidden = client.completions.create(
        model="x", prompt="The sea is", max_tokens=1, logit_bias={str(first): -100}, logprobs=1
    )
    text = engine.vocabulary.decode([first])
    assert forbidden.choices[0].text != text
    assert list(forbidden.choices[0].logprobs.top_logprobs[0]) == [text]  # it is the model's own
    forced = client.completions.create(
        model="x", prompt="The sea is", max_tokens=4, logit_bias={str(first): 1000}
    )
    assert forced.choices[0].text == text * 4


def test_logprobs(client: Any, engine: Any) -> None:
    limits = GenerationLimits(max_tokens=6)
    expected = engine.chat(MESSAGES, GREEDY, limits, logprobs=3).result
    given: Any = {"model": "x", "messages": MESSAGES, "max_tokens": 6, "logprobs": True}
    answer = client.chat.completions.create(**given, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    kept = [one for one in expected.logprobs if one.token not in engine.vocabulary.end_tokens]
    assert [one.logprob for one in content] == pytest.approx([one.logprob for one in kept])
    assert all(len(one.top_logprobs) == 3 for one in content)
    stream = client.chat.completions.create(**given, top_logprobs=3, stream=True)
    told = [one for c in stream if (likely := c.choices[0].logprobs) for one in likely.content]
    assert [one.token for one in told] == [one.token for one in content]


def test_answers_in_json(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"river": {"type": "string", "maxLength": 12}, "km": {"type": "integer"}},
        "required": ["river", "km"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "river", "schema": schema}}
    ask: Any = client.chat.completions.create
    answer = ask(model="x", messages=MESSAGES, response_format=wanted, max_tokens=80)
    assert answer.choices[0].finish_reason == "stop"
    assert set(json.loads(answer.choices[0].message.content)) == {"river", "km"}
    answer = ask(
        model="x", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=4
    )
    assert answer.choices[0].message.content.startswith("{")
    answer = ask(model="x", messages=MESSAGES, response_format={"type": "text"}, max_tokens=4)
    assert not answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_has_to_be_called(tools_server: Any, stream: bool) -> None:
    answer: Any = tools_server.client().chat.completions.create(
        model="x",
        messages=[{"role": "user", "content": "Weather in Rome?"}],
        tools=[CITY],
        tool_choice="required",
        max_tokens=80,
        stream=stream,
    )
    if stream:
        choices = [chunk.choices[0] for chunk in answer]
        reason = choices[-1].finish_reason
        (call,) = [call for choice in choices for call in choice.delta.tool_calls or []]
        text = "".join(choice.delta.content or "" for choice in choices)
    else:
        reason, message = answer.choices[0].finish_reason, answer.choices[0].message
        (call,), text = message.tool_calls, message.content or ""
    assert (reason, text, call.function.name) == ("tool_calls", "", "weather")
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


def test_a_conversation_with_a_call(tools_server: Any) -> None:
    call = {"name": "weather", "arguments": '{"city": "Rome"}'}
    messages: list[Any] = [
        {"role": "user", "content": "Weather in Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "a1", "content": "Sunny."},
    ]
    ask: Any = tools_server.client().chat.completions.create
    with_tools = ask(model="x", messages=messages, tools=[CITY], max_tokens=4)
    hidden = ask(model="x", messages=messages, tools=[CITY], tool_choice="none", max_tokens=4)
    without = ask(model="x", messages=messages, max_tokens=4)
    assert hidden.usage.prompt_tokens == without.usage.prompt_tokens
    assert with_tools.usage.prompt_tokens > without.usage.prompt_tokens


def test_what_the_server_adds(client: Any) -> None:
    given: Any = {
        "model": "x",
        "prompt": "Count: one two three one two three one two three one two",
        "max_tokens": 24,
    }
    figures = client.completions.create(**given).edgespec
    assert figures["timings"]["tokens_per_second"] > 0
    assert figures["speculation"]["accepted"] > 0
    more = {"edgespec": {"origins": True}}
    *chunks, last = client.completions.create(**given, stream=True, extra_body=more)
    told = [chunk.edgespec for chunk in chunks]
    assert {"accepted"} < {one["origin"] for one in told}
    assert {one["origin"] for one in told} <= {"accepted", "corrected", "bonus", "plain"}
    assert all(isinstance(one["token"], int) for one in told)
    assert last.edgespec["speculation"] == figures["speculation"]


def test_models(client: Any, engine: Any) -> None:
    assert [model.id for model in client.models.list()] == [engine.model_name]
    assert client.models.retrieve(engine.model_name).owned_by == "edgespec"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"n": 2}, "n", "1"),
        ({"temperature": -1}, None, "temperature"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"max_tokens": 0}, None, "max-tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 4}, None, "max-tokens"),
        ({"seed": -1}, None, "seed"),
        ({"stop": ""}, "stop", "character"),
        ({"stop": ["x"] * 17}, "stop", "16"),
        ({"top_logprobs": 3}, None, "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "pattern"),
        ({"logit_bias": {"999999": 1}}, None, "999999"),
        ({"messages": []}, "messages", "1 item"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "user"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "required"),
        ({"tools": [CITY]}, None, "knows no tools"),
        ({"tool_choice": "required"}, None, "no tools"),
    ],
)
def test_wrong_requests(client: Any, given: Any, param: str | None, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post(
            "/chat/completions",
            cast_to=object,
            body={"messages": MESSAGES, "max_tokens": 4, **given},
        )
    error: Any = caught.value.body
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param or "")


def test_images_and_unfit_combinations(client: Any, tools_server: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    ask: Any = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="'text'"):
        ask(model="x", messages=[{"role": "user", "content": [image]}])
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        tools_server.client().chat.completions.create(
            model="x", messages=MESSAGES, tools=[CITY], response_format={"type": "json_object"}
        )
    for wrong in ({"prompt": ["a", "b"]}, {"prompt": [99999999]}, {"prompt": ""}, {"prompt": []}):
        with pytest.raises(openai.BadRequestError, match="prompt"):
            client.completions.create(model="x", **wrong)
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="x", prompt="a", suffix="b")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(client: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="context holds") as caught:
        client.completions.create(model="x", prompt="word " * 2000, stream=stream)
    assert caught.value.code == "context_length_exceeded"
