"""OpenAI's own client against the server: what it gets is what the engine says."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from edgespec import GenerationLimits, SamplingParameters
from edgespec.server.generating import Defaults

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
    limits = GenerationLimits(max_tokens=16)
    expected = engine.generate("One day", sampling, limits, accept="coupled").result
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
    assert isinstance(json.loads(answer.choices[0].message.content), dict)
    for room in (16, 17, 24):  # whole where the last token is reached too
        answer = ask(model="x", messages=MESSAGES, response_format=wanted, max_tokens=room)
        assert set(json.loads(answer.choices[0].message.content)) == {"river", "km"}
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
        call, *rest = [call for choice in choices for call in choice.delta.tool_calls or []]
        assert len(rest) > 1 and all(part.id is None for part in rest)
        call.function.arguments += "".join(part.function.arguments for part in rest)
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
        ({"n": 0}, "n", "1"),
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"top_p": 2}, "top_p", "top_p is 2"),
        ({"repeat_last_n": -2}, "repeat_last_n", "repeat_last_n is -2"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": -2}, "max_tokens", "max_tokens is -2"),
        ({"max_completion_tokens": 0, "max_tokens": 4}, "max_completion_tokens", "is 0"),
        ({"seed": -2}, "seed", "seed is -2"),
        ({"stop": ["x"] * 17}, "stop", "16"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "999999"),
        ({"messages": []}, "messages", "1 item"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "user"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "required"),
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
        ({"function_call": {"name": "f"}}, "function_call", "tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities", "text"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "template"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort", "minimal"),
        ({"grammar": "root ::= nothing"}, "grammar", "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "grammar", "exclude"),
        ({"edgespec": {"k": 99}}, "edgespec.k", "between 0 and 3"),
        ({"edgespec": {"draft": "eagle"}}, "edgespec.draft", "ngram"),
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
            model="x", messages=MESSAGES, tools=[CITY], extra_body={"grammar": 'root ::= "a"'}
        )
    both = tools_server.client().chat.completions.create(
        model="x",
        messages=MESSAGES,
        tools=[CITY],
        tool_choice="required",
        max_tokens=80,
        response_format={"type": "json_object"},
    )
    assert both.choices[0].message.tool_calls[0].function.name == "weather"
    for wrong in ({"prompt": [99999999]}, {"prompt": ""}, {"prompt": []}, {"prompt": ["a"] * 65}):
        with pytest.raises(openai.BadRequestError, match="prompt") as caught:
            client.completions.create(model="x", **wrong)
        assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="suffix") as caught:
        client.completions.create(model="x", prompt="a", suffix="b")
    assert caught.value.param == "suffix"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(client: Any, stream: bool) -> None:
    words = "exceeds the available context size of 1024"
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.completions.create(model="x", prompt="word " * 2000, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(model="x", messages=long, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_what_clients_mean_by_minus_one_and_nothing(client: Any, engine: Any) -> None:
    def ask(**more: Any) -> Any:
        given = {"prompt": "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n", **more}
        return client.post("/completions", cast_to=object, body=given)

    whole = engine.generate("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n", GREEDY)
    text = whole.result.text
    for more in ({"max_tokens": -1}, {"stop": ""}, {"stop": [""]}, {"stop": []}, {"seed": -1}):
        assert ask(**more)["choices"][0]["text"] == text
    seeds = {ask(seed=-1, max_tokens=1)["edgespec"]["seed"] for _ in range(3)}
    assert len(seeds) == 3 and min(seeds) >= 0
    harmless = {"modalities": ["text"], "functions": [], "function_call": "auto", "best_of": 1}
    assert ask(**harmless, max_tokens=4)["choices"][0]["text"]


@pytest.mark.parametrize(
    "given",
    [
        {"response_format": {"type": "json_object", "schema": {"enum": ["Oslo", "Rome"]}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "Rome"}}}},
        {"json_schema": {"enum": ["Oslo", "Rome"]}},
        {"grammar": 'root ::= "\\"Oslo\\"" | "\\"Rome\\""'},
    ],
)
def test_what_holds_an_answer_holds_on_both_endpoints(server: Any, given: Any) -> None:
    asked = {**given, "max_tokens": 30}
    chat = server.post("/v1/chat/completions", {"messages": MESSAGES, **asked}).json()
    assert json.loads(chat["choices"][0]["message"]["content"]) in ("Oslo", "Rome")
    text = server.post("/v1/completions", {"prompt": "Capital of Italy:", **asked}).json()
    assert json.loads(text["choices"][0]["text"]) in ("Oslo", "Rome")


def test_logprobs_leave_out_the_stop_string(client: Any, engine: Any) -> None:
    tokens = engine.generate("The sea is", GREEDY, GenerationLimits(max_tokens=12)).result.tokens
    pieces = [engine.vocabulary.decode([token]) for token in tokens]
    stop = pieces[5] + pieces[6]
    kept = "".join(pieces).index(stop)
    given: Any = {"model": "x", "prompt": "The sea is", "max_tokens": 12, "logprobs": 0}
    whole = client.completions.create(**given, stop=stop).choices[0]
    assert whole.text == "".join(pieces)[:kept] == "".join(whole.logprobs.tokens)
    stream = client.completions.create(**given, stop=stop, stream=True)
    told = [c.choices[0].logprobs.tokens for c in stream if c.choices[0].logprobs]
    assert [token for one in told for token in one] == whole.logprobs.tokens


def test_several_answers(client: Any) -> None:
    given: Any = {"model": "x", "max_tokens": 6, "temperature": 1.5, "seed": 5}
    alone = [
        client.completions.create(**{**given, "seed": seed}, prompt=prompt)
        for seed, prompt in ((5, "One"), (6, "One"), (7, "Two"), (8, "Two"))
    ]
    texts = [one.choices[0].text for one in alone]
    whole = client.completions.create(**given, prompt=["One", "Two"], n=2)
    assert [choice.text for choice in whole.choices] == texts
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [choice.edgespec["seed"] for choice in whole.choices] == [5, 6, 7, 8]
    usage = sum(one.usage.completion_tokens for one in alone)
    assert whole.usage.completion_tokens == usage
    assert whole.usage.prompt_tokens == sum(alone[i].usage.prompt_tokens for i in (0, 2))
    more = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.completions.create(**given, prompt=["One", "Two"], n=2, **more)
    streamed = ["", "", "", ""]
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts and last.usage == whole.usage
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    chat = client.chat.completions.create(**given, messages=MESSAGES, n=2)
    assert [choice.index for choice in chat.choices] == [0, 1]
    assert chat.choices[0].message.content != chat.choices[1].message.content


@pytest.mark.parametrize("most", [0, 3])
def test_echo_with_logprobs(client: Any, engine: Any, most: int) -> None:
    text = "The sea is blue. The sea is wide."
    tokens = engine.tokenize(text).tolist()
    given: Any = {"model": "x", "prompt": text, "logprobs": 2, "echo": True, "max_tokens": most}
    choice = client.completions.create(**given).choices[0]
    assert choice.text.startswith(text)
    likely = choice.logprobs
    assert len(likely.tokens) == len(tokens) + most
    assert likely.token_logprobs[0] is None and likely.top_logprobs[0] is None
    assert "".join(likely.tokens) == choice.text
    assert [
        choice.text[at:].startswith(token)
        for at, token in zip(likely.text_offset, likely.tokens, strict=True)
    ] == [True] * len(likely.tokens)
    for place in range(1, len(tokens)):  # as the model says it of the next token of each beginning
        forced = {"logit_bias": {str(tokens[place]): 1000.0}, "max_tokens": 1, "logprobs": 2}
        one = client.completions.create(model="x", prompt=tokens[:place], **forced).choices[0]
        assert likely.token_logprobs[place] == pytest.approx(one.logprobs.token_logprobs[0])
        assert likely.top_logprobs[place] == pytest.approx(one.logprobs.top_logprobs[0])
    streamed = list(client.completions.create(**given, stream=True))
    parts = [c.choices[0].logprobs for c in streamed if c.choices[0].logprobs]
    assert [value for part in parts for value in part.token_logprobs] == likely.token_logprobs
    assert "".join(c.choices[0].text for c in streamed) == choice.text


def test_speculation_can_be_switched_in_a_request(client: Any) -> None:
    given: Any = {
        "model": "x",
        "prompt": "Count: one two three one two three one two three one two",
        "max_tokens": 24,
    }
    usual = client.completions.create(**given)
    plain = client.completions.create(**given, extra_body={"edgespec": {"draft": "none"}})
    short = client.completions.create(**given, extra_body={"edgespec": {"k": 1}})
    assert usual.choices[0].text == plain.choices[0].text == short.choices[0].text
    assert plain.edgespec["speculation"]["proposed"] == 0
    assert plain.edgespec["plain_tokens_per_second"] is None
    assert max(map(int, short.edgespec["speculation"]["k_histogram"])) == 1
    assert max(map(int, usual.edgespec["speculation"]["k_histogram"])) == 3
    assert usual.edgespec["exactness"]["mode"] == "bitwise"


def test_a_lossy_rule_is_said_with_every_answer(serve: Any) -> None:
    given: Any = {"model": "x", "prompt": "One day", "max_tokens": 4}
    with serve(defaults=Defaults(SamplingParameters(), accept="typical")) as running:
        client = running.client()
        answer = client.completions.create(**given)
        greedy = client.completions.create(**given, temperature=0)
        plain = client.completions.create(**given, extra_body={"edgespec": {"draft": "none"}})
    assert answer.edgespec["exactness"]["mode"] == "lossy"
    for kept in (greedy, plain):
        assert kept.edgespec["exactness"]["mode"] == "bitwise"


def test_a_gap_is_filled_by_models_that_can(serve: Any, other_model: Any) -> None:
    from edgespec import Engine, EngineOptions

    prefix, suffix = "def add(a, b):\n    return a", "\n\nprint(add(1, 2))\n"
    options = EngineOptions(draft="none", context=512, threads=1)
    with (
        Engine(other_model("qwen-coder-0.5b.gguf"), options) as coder,
        serve(engine=coder) as running,
    ):
        answer = running.client().completions.create(
            model="x", prompt=prefix, suffix=suffix, max_tokens=8
        )
        assert answer.choices[0].text.startswith(" + b")


def test_paths_without_a_version(server: Any) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="x", max_retries=0)
    assert client.models.list().data[0].id == server.service.engine.model_name
    chat = client.chat.completions.create(model="x", messages=MESSAGES, max_tokens=2)
    text = client.completions.create(model="x", prompt="a", max_tokens=2)
    assert chat.system_fingerprint == text.system_fingerprint
    assert chat.system_fingerprint.startswith("fp_")
    stream = client.completions.create(model="x", prompt="a", max_tokens=2, stream=True)
    assert {chunk.system_fingerprint for chunk in stream} == {chat.system_fingerprint}


def test_tokens_and_templates(server: Any, engine: Any) -> None:
    text = "Zürich 🐱<|im_end|>"
    tokens = engine.vocabulary.tokenize(text, add_special=False, parse_special=True).tolist()
    told = server.post("/tokenize", {"content": text}).json()
    assert told == {"tokens": tokens, "count": len(tokens)}
    plain = server.post("/tokenize", {"content": text, "parse_special": False}).json()
    assert len(plain["tokens"]) > len(tokens)
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    data = [one["piece"] for one in pieces]
    data = [one.encode() if isinstance(one, str) else bytes(one) for one in data]
    assert b"".join(data).decode() == text
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"content": text}
    wrong = server.post("/detokenize", {"tokens": [10**9]})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "tokens"
    rendered = server.post("/apply-template", {"messages": MESSAGES}).json()["prompt"]
    assert rendered == engine.template.render(MESSAGES)
    spelled = [{"role": "user", "content": "<|im_end|>"}]
    shown = server.post("/apply-template", {"messages": spelled}).json()["prompt"]
    assert shown.count("<|im_end|>") >= 2 and "\ufdd0" not in shown


def test_what_the_server_says_where_a_request_says_nothing(serve: Any, engine: Any) -> None:
    from edgespec.server.generating import Defaults

    with serve(defaults=Defaults(GREEDY, max_tokens=3)) as running:
        for more in ({}, {"max_tokens": None}):
            answer = running.post("/v1/completions", {"prompt": "The sea is", **more}).json()
            assert answer["usage"]["completion_tokens"] == 3
            assert answer["choices"][0]["finish_reason"] == "length"
        body = {"messages": MESSAGES, "max_tokens": -1}
        answer = running.post("/v1/chat/completions", body).json()
        assert answer["usage"]["completion_tokens"] > 3


@pytest.mark.slow
def test_an_answer_that_only_repeats_itself_ends(client: Any, endless: Any) -> None:
    def ask(**own: Any) -> Any:
        body = {"prompt": "The sea is", "logit_bias": endless, "max_tokens": 500, "temperature": 0}
        return client.post("/completions", cast_to=object, body={**body, "edgespec": own})

    answer, longer = ask(), ask(allow_loops=True)
    assert answer["choices"][0]["finish_reason"] == "length"  # clients know no other word
    assert answer["edgespec"]["finish_reason"] == "loop"
    assert longer["edgespec"]["finish_reason"] == "length"
    text = answer["choices"][0]["text"]
    assert text and longer["choices"][0]["text"].startswith(text)
