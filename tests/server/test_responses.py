"""The Responses interface, through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from edgespec import GenerationLimits, SamplingParameters

GREEDY = SamplingParameters(temperature=0.0)
QUESTION = "Repeat: red green blue red green blue"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
CITY: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
    },
}


def test_a_response_is_the_engines_answer(client: Any, engine: Any) -> None:
    expected = engine.chat(MESSAGES, GREEDY, GenerationLimits(max_tokens=24)).result
    asked: Any = {"model": "x", "temperature": 0, "max_output_tokens": 24}
    response = client.responses.create(**asked, instructions="Be brief.", input=QUESTION)
    assert response.output_text == expected.text
    assert response.object == "response" and response.model == engine.model_name
    assert response.usage.input_tokens == expected.prompt_tokens
    assert response.usage.output_tokens == len(expected.tokens)
    finished = expected.finish_reason == "stop"
    assert response.status == ("completed" if finished else "incomplete")
    assert (response.incomplete_details is None) == finished
    assert response.edgespec["timings"]["tokens_per_second"] > 0
    parts = [{"type": "input_text", "text": QUESTION}]
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert client.responses.create(**asked, input=items).output_text == expected.text
    (item,) = response.output
    more = [*items, item.model_dump(exclude_none=True), {"role": "user", "content": "And now?"}]
    again = client.responses.create(**asked, input=more)
    assert again.usage.input_tokens > response.usage.input_tokens


def test_a_stream_of_events(client: Any) -> None:
    asked: Any = {"model": "x", "input": QUESTION, "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text and len(deltas) > 2
    last = events[-1].response
    assert last.output_text == whole.output_text
    assert last.usage.output_tokens == whole.usage.output_tokens
    short = {"extra_body": {"grammar": 'root ::= "all is well"'}}
    with client.responses.stream(**asked, **short) as stream:  # put together by the client
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == "".join(texts) == "all is well"


def test_structured_text(client: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    form = {"type": "json_schema", "name": "n", "schema": schema}
    response = client.responses.create(
        model="x", input=QUESTION, text={"format": form}, max_output_tokens=40
    )
    assert json.loads(response.output_text)["n"] == 7


@pytest.mark.parametrize("stream", [False, True])
def test_functions(tools_server: Any, stream: bool) -> None:
    client = tools_server.client()
    asked: Any = {"model": "x", "tools": [CITY], "max_output_tokens": 80, "stream": stream}
    question = {"role": "user", "content": "Weather in Rome?"}
    response = client.responses.create(**asked, input=[question], tool_choice="required")
    if stream:
        *events, last = list(response)
        parts = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
        response = last.response
        assert "".join(parts) == done.arguments == response.output[0].arguments
    (call,) = response.output
    assert (call.type, call.name, response.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
    told = call.model_dump(exclude_none=True)
    asked["tools"], asked["stream"] = [], False
    answer = client.responses.create(**asked, input=[question, told, output])
    assert answer.output_text


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"input": []}, "input", "1 item"),
        ({"input": [{"type": "image_generation_call"}]}, "input", "image_generation_call"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "text"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input.0.role", "user"),
        ({"input": "word " * 2000}, "input", "exceeds the available context size"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"tools": [{"type": "web_search"}]}, "tools", "only functions"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format", "json_schema"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "None"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "template"),
    ],
)
def test_wrong_requests(client: Any, given: Any, param: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "x", "input": "hi", **given})
    error: Any = caught.value.body
    assert words in error["message"] and error["param"] == param
