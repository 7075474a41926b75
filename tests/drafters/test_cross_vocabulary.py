"""Between two vocabularies: shared tokens, and a text that grows and shrinks in the other's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.backend import Model, ModelOptions, Vocabulary
from edgespec.drafters.cross_vocabulary import RetokenizedText, share_tokens
from edgespec.errors import PairingError

TEXTS = (
    "The lock keeper writes the level of the river into his book every evening at six.",
    "def average(values):\n    if not values:\n        return None\n\n    return sum(values)\n",
    "汉字かな混じり文、한국어도. 用中文介绍一下长城。长城是中国古代的伟大建筑。",
    "👩‍👩‍👧‍👦🇨🇭 emoji 🐱🐟 and 👍🏽 more\U00010348",
    "12345678901234567890 3.14159 1,000,000 != !!! ??? ...))) don't we'll I'm",
    "\n\n\n   \t\t  spaces    and\r\n\r\nlines   ",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen unbelievableinternationalization",
    "literal ▁ and \ufffd and e\u0301a\u0308 and <|im_end|> and <s>",
    "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\nThat.<|im_end|>\n",
)


@pytest.fixture(scope="module")
def vocabularies(
    default_model: Path, renumbered_model: Path, reworded_model: Path, recurrent_model: Path
) -> Iterator[dict[str, Vocabulary]]:
    files = {
        "default": default_model,
        "renumbered": renumbered_model,
        "reworded": reworded_model,
        "bytes": recurrent_model,
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Model(path, ModelOptions(vocabulary_only=True))).vocabulary
            for name, path in files.items()
        }


def whole(vocabulary: Vocabulary, text: str) -> list[int]:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=True).tolist()
    return [vocabulary.bos, *tokens] if vocabulary.adds_bos else tokens


def check_growth(target: Vocabulary, draft: Vocabulary, text: str) -> None:
    """After each token of the target's, the draft's are those of all whole characters so far."""
    tokens = target.tokenize(text, add_special=False, parse_special=True)
    if target.decode(tokens, special=True) != text:
        pytest.skip("the target's vocabulary lacks bytes of this text")
    retokenized = RetokenizedText(target, draft)
    previous = list(retokenized.tokens)
    data = b""
    for length in range(1, len(tokens) + 1):
        data += target.piece(int(tokens[length - 1]), special=True)
        retokenized.follow(tokens, length)
        shown = data.decode("utf-8", "ignore")
        assert retokenized.whole == (shown.encode() == data)
        assert retokenized.tokens == whole(draft, shown)
        kept = retokenized.unchanged
        assert retokenized.tokens[:kept] == previous[:kept]
        previous = list(retokenized.tokens)
        assert retokenized.length == length


PAIRS = [
    ("default", "renumbered"),
    ("default", "reworded"),
    ("reworded", "default"),
    ("bytes", "default"),
    ("default", "bytes"),
]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("text", [*TEXTS, " ".join(TEXTS) * 3])
def test_the_tokens_are_those_of_the_whole_text(
    vocabularies: dict[str, Vocabulary], target: str, draft: str, text: str
) -> None:
    check_growth(vocabularies[target], vocabularies[draft], text)


@pytest.mark.parametrize("name", ["gemma3-270m.gguf", "qwen-coder-0.5b.gguf"])
def test_real_tokenizers(vocabularies: dict[str, Vocabulary], other_model: Any, name: str) -> None:
    with Model(other_model(name), ModelOptions(vocabulary_only=True)) as model:
        for text in TEXTS:
            if "▁" in text and name.startswith("gemma"):
                continue  # to this tokenizer it is a space
            check_growth(vocabularies["default"], model.vocabulary, text)
            check_growth(vocabularies["bytes"], model.vocabulary, text)


words = st.text(
    st.one_of(st.sampled_from(" \n\tabcdeTHE019.,!'()"), st.characters(exclude_categories=["Cs"])),
    max_size=24,
)


@settings(max_examples=3 * settings.default.max_examples // 2)
@given(data=st.data())
def test_growing_and_shrinking_is_the_same_as_starting_over(
    vocabularies: dict[str, Vocabulary], data: st.DataObject
) -> None:
    target, draft = (vocabularies[name] for name in data.draw(st.sampled_from(PAIRS)))
    text = RetokenizedText(target, draft)
    history = np.zeros(400, np.int32)
    length = 0
    for _ in range(data.draw(st.integers(1, 6))):
        length = data.draw(st.integers(0, length))
        text.rewind(length)
        tokens = target.tokenize(data.draw(words), add_special=False)
        history[length : length + len(tokens)] = tokens
        length += len(tokens)
        before = list(text.tokens)
        text.follow(history, length)
        assert text.tokens[: text.unchanged] == before[: text.unchanged]
    fresh = RetokenizedText(target, draft)
    fresh.follow(history, length)
    assert (text.length, text.whole) == (fresh.length, fresh.whole)
    pieces = [draft.piece(token, special=True) for token in text.tokens]
    assert b"".join(pieces) == b"".join(draft.piece(t, special=True) for t in fresh.tokens)


def test_broken_utf8_in_the_middle_does_not_stop_it(vocabularies: dict[str, Vocabulary]) -> None:
    target, draft = vocabularies["bytes"], vocabularies["default"]
    tokens = target.tokenize("so far so good ", add_special=False).tolist()
    half = target.tokenize("汉", add_special=False).tolist()[:2]
    rest = target.tokenize(" and it goes on and on as if nothing", add_special=False).tolist()
    history = np.array([*tokens, *half, *rest], np.int32)
    text = RetokenizedText(target, draft)
    for length in range(1, len(history) + 1):
        text.follow(history, length)
        assert text.whole == (length not in (len(tokens) + 1, len(tokens) + 2))
    assert draft.decode(text.tokens).startswith("so far so good ")
    assert draft.decode(text.tokens).endswith(" and it goes on and on as if nothing")
    text.rewind(5)
    text.follow(history, 5)
    assert text.tokens == whole(draft, "so fa")


def test_only_the_end_is_split_again(
    vocabularies: dict[str, Vocabulary], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = vocabularies["reworded"], vocabularies["renumbered"]
    sizes: list[int] = []
    tokenize = draft.tokenize

    def counted(text: str, **options: Any) -> Any:
        sizes.append(len(text))
        return tokenize(text, **options)

    history = target.tokenize(" ".join(TEXTS[:2]) * 20, add_special=False)
    text = RetokenizedText(target, draft)
    monkeypatch.setattr(draft, "tokenize", counted)
    for length in range(1, len(history) + 1):
        text.follow(history, length)
    assert max(sizes[len(sizes) // 2 :]) < 150


ONLY_VOCABULARY = ModelOptions(vocabulary_only=True)


@pytest.fixture(scope="module")
def default(default_model: Path) -> Iterator[Vocabulary]:
    with Model(default_model, ONLY_VOCABULARY) as model:
        yield model.vocabulary


def test_the_same_texts_under_other_ids(default: Vocabulary, renumbered_model: Path) -> None:
    with Model(renumbered_model, ONLY_VOCABULARY) as model:
        shared = share_tokens(default, model.vocabulary)
        assert shared.coverage == 1.0
        ordinary = [t for t in range(default.size) if default.piece(t)]
        assert shared.target.tolist() == ordinary
        assert not np.array_equal(shared.target, shared.draft)
        for ours, theirs in zip(shared.target[::97], shared.draft[::97], strict=True):
            assert default.piece(int(ours)) == model.vocabulary.piece(int(theirs))


def test_two_thirds_of_the_texts(default: Vocabulary, reworded_model: Path) -> None:
    with Model(reworded_model, ONLY_VOCABULARY) as model:
        shared = share_tokens(default, model.vocabulary)
        assert 0.6 < len(shared.target) / default.size < 0.7
        assert 0.5 < shared.coverage < 0.95
        assert len(set(shared.target.tolist())) == len(set(shared.draft.tolist()))
        assert f"{len(shared.target):,} tokens" in str(shared)


def test_no_control_token_is_shared(default: Vocabulary, renumbered_model: Path) -> None:
    with Model(renumbered_model, ONLY_VOCABULARY) as model:
        shared = share_tokens(default, model.vocabulary)
        assert not default.end_tokens & set(shared.target.tolist())
        assert default.bos not in shared.target


def test_too_little_is_refused_with_the_figure(default: Vocabulary, recurrent_model: Path) -> None:
    with (
        Model(recurrent_model, ONLY_VOCABULARY) as model,
        pytest.raises(
            PairingError, match=r"only 237 tokens .*, \d+% of .*50% are needed"
        ) as caught,
    ):
        share_tokens(default, model.vocabulary)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
