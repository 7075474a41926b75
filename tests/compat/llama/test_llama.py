"""What a `Llama` accepts, ignores and refuses; seeds, tools, gaps, and how it ends."""

from __future__ import annotations

import gc
import json
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgespec import Llama
from edgespec.errors import DownloadError, EdgespecError, UnsupportedError, UsageError

RIVER = [{"role": "user", "content": "Name a river."}]
TOOL = {"name": "river", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def tiny(built_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A model of random weights that has tokens around a gap, and no chat template."""
    path = built_models.write_mamba(tmp_path_factory.mktemp("models") / "gap.gguf", infill=True)
    with Llama(path, n_ctx=256, n_threads=1, draft="none") as model:
        yield model


# -- opening --------------------------------------------------------------------------------


def test_keywords_that_change_nothing(recurrent_model: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Llama(
            str(recurrent_model),
            n_ctx=64,
            n_batch=8,
            use_mmap=False,
            logits_all=True,
            f16_kv=True,
            n_parts=-1,
            lora_path=None,
            vocab_only=False,
            rope_freq_base=0.0,
            chat_format="chat_template.default",
            type_k=1,
            type_v=1,
            draft="none",
        ).close()


@pytest.mark.parametrize(
    "keyword",
    [
        {"n_gpu_layers": -1},
        {"n_gpu_layers": 35},
        {"draft_model": object()},
        {"use_mlock": True},
        {"numa": True},
        {"rope_freq_base": 10000.0},
    ],
)
def test_keywords_that_are_ignored_with_a_warning(
    recurrent_model: Path, keyword: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match=f"{next(iter(keyword))} is ignored: ") as told:
        Llama(str(recurrent_model), n_ctx=64, draft="none", **keyword).close()
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    "keyword",
    [
        {"vocab_only": True},
        {"lora_path": "adapter.gguf"},
        {"kv_overrides": {"a": 1}},
        {"chat_handler": print},
        {"tokenizer": object()},
        {"yarn_orig_ctx": 2048},
        {"chat_format": "llama-2"},
        {"type_k": 8},
        {"type_k": 2, "type_v": 2},
    ],
)
def test_keywords_that_are_refused(recurrent_model: Path, keyword: dict[str, Any]) -> None:
    with pytest.raises(
        UnsupportedError, match=f"{next(iter(keyword))}=.* is not supported: "
    ) as it:
        Llama(str(recurrent_model), **keyword)
    assert isinstance(it.value, NotImplementedError)
    assert isinstance(it.value, ValueError)
    assert "\n" not in str(it.value)


def test_keywords_that_nobody_knows(recurrent_model: Path) -> None:
    with pytest.raises(UsageError, match="Llama has no keyword 'n_contexts'"):
        Llama(str(recurrent_model), n_contexts=3)


def test_no_such_file() -> None:
    with pytest.raises(EdgespecError, match=r"no such file: nowhere\.gguf"):
        Llama("nowhere.gguf")


def test_the_length_of_the_context(recurrent_model: Path) -> None:
    with Llama(str(recurrent_model), draft="none") as model:
        assert model.n_ctx() == 512
    with Llama(str(recurrent_model), n_ctx=0, draft="none") as model:
        assert model.n_ctx() == 4096


# -- asking ---------------------------------------------------------------------------------


def test_what_a_call_cannot_have(ours: Any) -> None:
    for keyword in ({"suffix": " and so on"},):
        with pytest.raises(UnsupportedError, match=f"{next(iter(keyword))}.* is not supported"):
            ours("The sea is", **keyword)
    for name in ("eval", "sample", "generate", "save_state"):
        with pytest.raises(NotImplementedError, match="not supported"):
            getattr(ours, name)("The sea is")
    for name in ("logits_processor", "stopping_criteria"):
        with pytest.raises(UsageError, match=f"{name} has to be a list of functions"):
            ours("The sea is", **{name: [7]})
    with pytest.raises(UsageError, match="temperature is -1"):
        ours("The sea is", temperature=-1)
    with pytest.raises(UsageError, match="LlamaGrammar"):
        ours("The sea is", grammar=7)
    for bias in ({"x": 1}, {5: "much"}, [5]):
        with pytest.raises(UsageError, match="logit_bias has to be"):
            ours("The sea is", logit_bias=bias)
    for wanted in ({"type": "yaml"}, "json_object"):
        with pytest.raises(UsageError, match="response_format"):
            ours.create_chat_completion(RIVER, response_format=wanted)
    for tools in (["river"], [{"function": "river"}]):
        with pytest.raises(UsageError, match="'river' not found in tools"):
            choice = {"type": "function", "function": {"name": "river"}}
            ours.create_chat_completion(RIVER, tools=tools, tool_choice=choice)


def test_an_answer_begins_with_the_prompt_if_that_is_wanted(ours: Any) -> None:
    plain = ours("The sea is", temperature=0, max_tokens=4)["choices"][0]["text"]
    echoed = ours("The sea is", temperature=0, max_tokens=4, echo=True)["choices"][0]["text"]
    assert echoed == "The sea is" + plain
    told = ours("The sea is", temperature=0, max_tokens=4, echo=True, logprobs=2)["choices"][0]
    likely, answer = told["logprobs"], ours("The sea is", max_tokens=4, temperature=0, logprobs=2)
    assert "".join(likely["tokens"]) == told["text"] == echoed
    assert likely["token_logprobs"][0] is None
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert likely[name][3:] == answer["choices"][0]["logprobs"][name]


def test_calls_without_a_seed_are_a_sequence_that_can_be_begun_again(ours: Any) -> None:
    def write(**keywords: Any) -> str:
        answer = ours("The sea is", temperature=1.5, max_tokens=8, **keywords)
        return str(answer["choices"][0]["text"])

    ours.set_seed(3)
    first = [write(), write()]
    ours.set_seed(3)
    assert [write(), write()] == first
    assert first[0] != first[1]
    assert write(seed=5) == write(seed=5)
    assert len({write(seed=-1) for _ in range(4)}) > 1


def test_a_grammar_as_text_and_a_schema_as_openai_has_it(ours: Any) -> None:
    answer = ours("The sea", max_tokens=30, grammar='root ::= " is" | " was"')
    assert answer["choices"][0]["text"] in (" is", " was")
    wanted = {
        "type": "json_schema",
        "json_schema": {"schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}},
    }
    for room in (40, 4):
        answer = ours.create_chat_completion(RIVER, response_format=wanted, max_tokens=room)
        json.loads(answer["choices"][0]["message"]["content"])


def test_tools(ours: Any) -> None:
    """A template that shows no tools to the model is told; a named one is called all the same."""
    tools = [{"type": "function", "function": TOOL}]
    with pytest.raises(UsageError, match="knows no tools"):
        ours.create_chat_completion(RIVER, tools=tools)
    with pytest.raises(UsageError, match="'lake' not found"):
        ours.create_chat_completion(
            RIVER, tools=tools, tool_choice={"type": "function", "function": {"name": "lake"}}
        )


def test_calls_in_the_form_of_the_models_template(other_model: Any) -> None:
    with Llama(other_model("qwen-coder-0.5b.gguf"), n_ctx=512, draft="ngram", k=2) as model:
        tools = [{"type": "function", "function": TOOL}]
        asked = {"messages": RIVER, "tools": tools, "tool_choice": "required", "temperature": 0}
        answer = model.create_chat_completion(**asked, max_tokens=60)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"] == {
            "name": "river",
            "arguments": "{}",
        }
        prefix, suffix = "def add(a, b):\n    return a", "\n\nprint(add(1, 2))\n"
        filled = model(prefix, suffix=suffix, temperature=0, max_tokens=8)
        assert filled["choices"][0]["text"].startswith(" + b")


def test_a_gap_is_marked_for_models_that_know_gaps(tiny: Llama) -> None:
    bos, gap = tiny.token_bos(), tiny.tokenize(b"<PRE><SUF><MID>", False, True)
    assert gap == list(tiny.engine.vocabulary.infill or ())
    before, after = tiny.tokenize(b"left", False), tiny.tokenize(b"<MID>right", False)
    expected = [bos, gap[0], *before, gap[1], *after, gap[2]]
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
    filled = tiny("left", suffix="<MID>right", **asked)
    assert filled["choices"][0] == tiny(expected, **asked)["choices"][0]
    assert filled["usage"]["prompt_tokens"] == len(expected)
    turned = tiny.engine.vocabulary.gap("left", "r", after_first=True)
    assert turned == [bos, gap[1], ord("r"), gap[0], *before, gap[2]]


# -- functions that see logits --------------------------------------------------------------


def test_functions_change_logits_and_end_answers(ours: Any) -> None:
    from llama_cpp import LogitsProcessorList, StoppingCriteriaList

    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
    prompt = ours.tokenize(b"The sea is")
    first = ours(prompt, **asked, logprobs=0)["choices"][0]
    lengths, favourite = [], ours.tokenize(first["logprobs"]["tokens"][0].encode(), False)[0]

    def without_favourite(tokens: Any, logits: Any) -> Any:
        lengths.append(len(tokens))
        assert tokens[: len(prompt)].tolist() == prompt and logits.shape == (ours.n_vocab(),)
        logits[favourite] = float("-inf")
        return logits

    for given in (LogitsProcessorList([without_favourite]), [without_favourite]):
        lengths.clear()
        changed = ours(prompt, **asked, logits_processor=given)["choices"][0]["text"]
        assert changed == ours(prompt, **asked, logit_bias={favourite: -1e30})["choices"][0]["text"]
        assert lengths == list(range(len(prompt), len(prompt) + 6))

    def after_three(tokens: Any, logits: Any) -> bool:
        return len(tokens) == len(prompt) + 3

    for given in (StoppingCriteriaList([after_three]), [after_three]):
        ended = ours(prompt, **asked, stopping_criteria=given)
        assert ended["choices"][0]["finish_reason"] == "stop"
        assert ended["usage"]["completion_tokens"] == 3
        assert first["text"].startswith(ended["choices"][0]["text"])
    assert ours(prompt, **asked)["choices"][0]["text"] == first["text"]


def test_everything_public_is_there_or_says_why_not(ours: Any) -> None:
    import llama_cpp

    for name in dir(llama_cpp.Llama):
        if name.startswith("_"):
            continue
        try:
            getattr(ours, name)
        except UnsupportedError as error:
            assert f"Llama.{name} is not supported" in str(error)
    for name in ("scores", "input_ids", "eval_logits"):
        assert not hasattr(ours, name)
        with pytest.raises(UnsupportedError, match=name):
            getattr(ours, name)
    ours("The sea is", max_tokens=3, temperature=0)
    assert ours.n_tokens >= 5


def test_the_tokenizer_alone(ours: Any, theirs: Any) -> None:
    mine, theirs = ours.tokenizer(), theirs.tokenizer()
    for text in ("Zürich 🐱", "<|im_end|> a", ""):
        assert mine.encode(text) == theirs.encode(text)
        assert mine.decode(mine.encode(text)) == theirs.decode(theirs.encode(text))
        assert mine.encode(text, special=False) == theirs.encode(text, special=False)


# -- ending ---------------------------------------------------------------------------------


def test_a_stream_that_nobody_reads_on_is_cancelled(ours: Any) -> None:
    chunks = ours("The sea is", max_tokens=200, temperature=0, stream=True)
    next(chunks)
    chunks.close()
    assert list(chunks) == []
    assert ours("One", max_tokens=2, temperature=0)["usage"]["completion_tokens"] == 2


def test_many_threads_may_use_one(ours: Any) -> None:
    def write(number: int) -> Any:
        return ours(f"{number} is", temperature=0, max_tokens=6)["choices"]

    alone = [write(number) for number in range(4)]
    together: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: together.update({n: write(n)}))  # type: ignore[misc]
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [together[number] for number in range(4)] == alone


def test_it_may_be_forgotten_without_being_closed(recurrent_model: Path) -> None:
    model = Llama(str(recurrent_model), n_ctx=64, draft="none")
    engine = model.engine
    asked: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "stream": True}
    asked["logit_bias"] = {model.token_eos(): float("-inf")}
    expected = [chunk["choices"] for chunk in model("the", **asked)]
    chunks = model("the", **asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del model
        gc.collect()
        assert len(expected) > 3
        assert [chunk["choices"] for chunk in chunks] == expected
        del chunks
        gc.collect()
    with pytest.raises(UsageError, match="closed"):
        engine.generate("the")


def test_a_closed_one_says_so(recurrent_model: Path) -> None:
    model = Llama(str(recurrent_model), n_ctx=64, draft="none")
    model.close()
    model.close()
    with pytest.raises(UsageError, match="closed"):
        model("the")
    assert model.n_vocab() == 260
    assert model.n_ctx() == 64


def test_files_of_a_repository_that_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="additional_files"):
        Llama.from_pretrained("owner/name", "model.gguf", additional_files=["b.gguf"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="owner/name: "):
        Llama.from_pretrained("owner/name", "*.gguf")
