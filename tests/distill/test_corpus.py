"""Text: what is kept of it is what the target thought, and nothing is lost or mixed up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, ParallelContext
from edgespec.distill.corpus import Batches, Corpus, CorpusFacts
from edgespec.distill.prompts import FilePrompts, SelfPrompts, held_out
from edgespec.distill.target import choose_vocabulary
from edgespec.distill.writing import TEMPERATURES, write_corpus
from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf.header import read_header
from edgespec.templates import ChatTemplate
from tests.built_models import WIDTH


def test_what_is_kept_is_what_the_target_computes(corpus: Corpus, toy_target: Path) -> None:
    chosen = [c for c in corpus.conversations if c.answer > 20][:6]
    with Model(toy_target) as model, Context(model, ContextOptions(length=512)) as context:
        for conversation in chosen:
            tokens = np.array(corpus.rows("tokens", conversation))
            context.clear()
            context.prefill(tokens[: conversation.prompt - 1])
            top = corpus.rows("top", conversation)
            normalizer = corpus.rows("normalizer", conversation)
            greedy = TEMPERATURES[conversation.number % len(TEMPERATURES)] == 0.0
            for place in range(conversation.prompt - 1, len(tokens) - 1):
                logits = context.evaluate(tokens[place : place + 1], 1)[0]
                near = np.sort(logits)[-1] - np.sort(logits)[-2] > 1e-2
                assert not near or top[place] == logits.argmax()
                total = np.log(np.exp(logits.astype(np.float64)).sum())
                assert normalizer[place] == pytest.approx(total, abs=1e-2)
                assert not (greedy and near) or tokens[place + 1] == logits.argmax()


def test_a_corpus_is_resumed(toy_target: Path, tmp_path: Path) -> None:
    facts = CorpusFacts("toy", WIDTH, (), "itself")
    with Model(toy_target) as model, ParallelContext(model, 4, 300, threads=1) as context:
        template = ChatTemplate.from_model(read_header(toy_target), model.vocabulary)
        for goal in (1000, 2000):
            corpus = Corpus(tmp_path, facts)
            before = corpus.answer_tokens
            prompts = SelfPrompts(template, model.vocabulary)
            prompts.remember(corpus)
            write_corpus(corpus, context, prompts, goal, 100)
            assert corpus.answer_tokens >= goal > before
    numbers = [c.number for c in corpus.conversations]
    assert len(set(numbers)) == len(numbers)
    asked = {corpus.rows("tokens", c)[: c.prompt].tobytes() for c in corpus.conversations}
    assert len(asked) == len(numbers)
    (tmp_path / "shard-000009.partial").mkdir()  # as an interrupted one leaves behind
    again = Corpus(tmp_path, facts)
    assert again.conversations == corpus.conversations
    assert not list(tmp_path.glob("*.partial"))


def test_another_targets_text_is_refused(corpus: Corpus) -> None:
    for name, value in (("target", "other"), ("data", "elsewhere"), ("layers", (0, 1, 2))):
        with pytest.raises(UsageError, match="give another --work"):
            Corpus(corpus.folder, replace(corpus.facts, **{name: value}))
    # A kind that needs no features can use text that has them.
    assert Corpus(corpus.folder, replace(corpus.facts, layers=())).facts == corpus.facts


def test_a_damaged_shard(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "shard-000000").mkdir()
    with pytest.raises(EdgespecError, match="damaged"):
        Corpus(tmp_path, corpus.facts)


def test_batches_hold_every_answer_once(corpus: Corpus) -> None:
    conversations = corpus.part(held_out=False)
    batches = Batches(corpus, conversations, 4, 64)
    tokens = 0
    for cursor in range(batches.batches):
        batch = batches.batch(cursor)
        tokens += int((batch.segments >= 0).sum())
        assert not batch.judged[:, -1].any()
    assert tokens == sum(c.stop - c.start for c in conversations)
    assert not np.array_equal(batches.batch(0).tokens, batches.batch(batches.batches).tokens)
    assert np.array_equal(
        batches.batch(3).tokens, Batches(corpus, conversations, 4, 64).batch(3).tokens
    )


def test_rows_belong_together(corpus: Corpus) -> None:
    batch = Batches(corpus, corpus.part(held_out=False), 4, 64).batch(1)
    for row in range(4):
        for place in range(1, 64):
            same = batch.segments[row, place] == batch.segments[row, place - 1] >= 0
            if same:
                assert batch.positions[row, place] == batch.positions[row, place - 1] + 1
    every = {
        (int(t), h.tobytes())
        for c in corpus.part(held_out=False)
        for t, h in zip(corpus.rows("tokens", c), corpus.rows("hidden", c), strict=True)
    }
    rows = zip(batch.tokens[0], batch.hidden[0].astype(np.float16), strict=True)
    assert all((int(t), h.tobytes()) in every for t, h in rows)


def test_the_vocabulary_has_the_frequent_and_the_needed(corpus: Corpus) -> None:
    counts = np.zeros(260, np.int64)
    for conversation in corpus.part(held_out=False):
        np.add.at(counts, corpus.rows("tokens", conversation)[conversation.prompt :], 1)
    rare = int(counts.argmin())
    chosen = choose_vocabulary(corpus, 40, 260, [rare])
    assert rare in chosen.target_ids and len(chosen.target_ids) == 40
    others = np.setdiff1d(np.arange(260), chosen.target_ids)
    kept = np.setdiff1d(chosen.target_ids, [rare])
    assert counts[kept].min() >= counts[others].max()
    held = np.concatenate(
        [corpus.rows("tokens", c)[c.prompt :] for c in corpus.part(held_out=True)]
    )
    assert chosen.coverage == pytest.approx(np.isin(held, chosen.target_ids).mean())
    assert np.array_equal(chosen.to_draft[chosen.target_ids], np.arange(40))
    assert choose_vocabulary(corpus, 1000, 260, []).coverage == 1.0


def test_prompts_from_files(toy_target: Path, tmp_path: Path) -> None:
    text, lines, chat = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.json"
    text.write_text("First\nprompt.\n\n\nSecond.\r\n\r\nThird.\n")
    turns = [
        {"role": r, "content": c} for r, c in (("user", "q1"), ("assistant", "a1"), ("user", "q2"))
    ]
    lines.write_text('{"prompt": "Fourth."}\n\n' + json.dumps({"messages": turns}) + "\n")
    chat.write_text(json.dumps({"format": "edgespec-chat", "messages": turns[:2]}))
    with Model(toy_target) as model:
        template = ChatTemplate.from_model(read_header(toy_target), model.vocabulary)
        prompts = FilePrompts([text, lines, chat], template, model.vocabulary)
        rendered = [model.vocabulary.decode(prompts.prompt(i, ""), special=True) for i in range(8)]
        assert "7 prompts" in prompts.description and rendered[7] == rendered[0]
        assert rendered[0] == "<s>user: First\nprompt.</s><s>assistant: "
        assert rendered[5] == "<s>user: q1</s><s>assistant: a1</s><s>user: q2</s><s>assistant: "
        for bad, message in (("{", "not JSON"), ('{"a": 1}', "neither"), ("", "no prompt")):
            lines.write_text(bad)
            with pytest.raises(UsageError, match=message):
                FilePrompts([lines], template, model.vocabulary)
        with pytest.raises(UsageError, match="cannot read"):
            FilePrompts([tmp_path / "missing.txt"], template, model.vocabulary)


def test_held_out_prompts() -> None:
    assert sum(held_out(n) for n in range(300)) == 10
    assert [held_out(n, 3) for n in range(3)] == [False, False, True]
