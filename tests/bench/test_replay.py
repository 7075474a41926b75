"""What is replayed from a trace is what was recorded, where it is the same policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.replay.agreement import known_drafts
from bench.replay.policies import make_lookup, outcomes, summarize
from bench.replay.recorded import Costs, read_traces
from bench.replay.simulation import ReplayedDraft, replay
from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.control.controller import FixedPolicy

PROMPTS = (
    "Repeat after me: one two three one two three one two three",
    "Copy this text word for word: The harbour of Saltmere was dredged in 1911 and in 1954. "
    "The harbour of Saltmere was dredged in 1911 and in 1954.",
    "Name three rivers.",
)
SAMPLINGS = {
    "greedy": (SamplingParameters(temperature=0.0), "auto"),
    "coupled": (SamplingParameters(temperature=0.7, seed=3), "coupled"),
    "rejection": (SamplingParameters(temperature=0.7, seed=4), "rejection"),
}
Record = Callable[..., list[Any]]


@pytest.fixture(scope="module", autouse=True)
def nothing_learned(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """What earlier generations taught prompt lookup would change what it proposes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def record(default_model: Path, tmp_path: Path) -> Iterator[Record]:
    """Generations read back from the trace of a real run."""

    def run(draft: str, k: int | None, rule: str, count: int = 60) -> list[Any]:
        path = tmp_path / "trace.jsonl"
        options = EngineOptions(
            draft=draft, k=k, threads=2, context=512, exact="bitwise", trace=path
        )
        sampling, accept = SAMPLINGS[rule]
        with Engine(default_model, options) as engine:
            for prompt in PROMPTS:
                text = engine.template.render([{"role": "user", "content": prompt}])
                limits = GenerationLimits(max_tokens=count)
                engine.generate(text, sampling, limits, accept=accept).result  # noqa: B018
        return read_traces([path])

    yield run


@pytest.mark.parametrize("rule", SAMPLINGS)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.slow
def test_prompt_lookup_at_the_recorded_k_is_what_was_recorded(
    record: Record, rule: str, k: int
) -> None:
    generations = record("ngram", k, rule)
    assert len(generations) == len(PROMPTS)
    costs = Costs(generations)
    accepted = rejected = 0
    for generation in generations:
        outcome = replay(generation, costs, FixedPolicy(k), make_lookup(generation), k)
        assert outcome.proposed == [cycle["proposed"] for cycle in generation.cycles]
        assert outcome.accepted == [cycle["accepted"] for cycle in generation.cycles]
        assert outcome.tokens == generation.end["emitted"]
        accepted += sum(outcome.accepted)
        rejected += sum(outcome.proposed) - sum(outcome.accepted)
    assert accepted > 0
    assert rejected > 0 or k == 1  # one token is proposed where it is most credible


@pytest.mark.slow
def test_a_draft_read_along_the_text_agrees_where_the_trace_has_seen_it(
    record: Record, default_model: Path, damaged_model: Path
) -> None:
    generations = record(str(damaged_model), 2, "greedy", 30)
    costs = Costs(generations)
    drafts = known_drafts(str(default_model), str(damaged_model), generations)
    for generation, draft in zip(generations, drafts, strict=True):
        right, _ = generation.agreement()
        seen = ~np.isnan(right)
        assert set(right[seen]) == {0.0, 1.0}
        assert (right[seen] == draft.right[seen]).all()
        assert ((draft.sure[seen] >= 0) & (draft.sure[seen] <= 1)).all()
        replayed = ReplayedDraft(draft, generation.text, 2)
        outcome = replay(generation, costs, FixedPolicy(2), replayed, 2)
        assert outcome.accepted == [cycle["accepted"] for cycle in generation.cycles]


def line(kind: str, **content: Any) -> dict[str, Any]:
    return {"type": kind, "id": "a", **content}


def cycle(depth: int, tokens: list[int], verify_s: float, proposed: int = 0) -> dict[str, Any]:
    return line(
        "cycle", drafter="ngram" if proposed else "none", depth=depth, n=proposed + 1,
        verify_s=verify_s, draft_s=0.0, seconds=verify_s + 0.5 * len(tokens), proposed=proposed,
        accepted=len(tokens) - 1, tokens=tokens, acceptance=[0.5] * proposed,
    )  # fmt: skip


START = line(
    "generation", model="m", setting="s", k=3, largest_k=3, context=100, max_tokens=None,
    temperature=0.0, rule="greedy", prompt=[1, 2, 3], corrections=None,
    learned={"ngram": {}, "draft": None},
    costs={"depths": [0, 100], "sizes": [1, 2], "seconds": [[1.0, 1.5], [2.0, 3.0]],
           "switch_s": [0.25, 0.25]},
)  # fmt: skip


def write(path: Path, *lines: dict[str, Any], torn: str = "") -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + torn)
    return path


def test_costs_are_the_table_scaled_by_what_was_recorded(tmp_path: Path) -> None:
    # At a depth of 50 one token is recorded at three times its entry of 1.5 s, and two at twice
    # theirs, 2.25 s and 0.25 s more after one token.
    pair = [cycle(50, [5], 4.5), cycle(50, [5, 5], 5.0, 1)]
    back = cycle(50, [5], 3 * 1.75)
    lines = [pair[0], pair[1], *[back, pair[1]] * 5]
    [generation] = read_traces([write(tmp_path / "t", START, *lines)])
    costs = Costs([generation])
    assert costs.evaluation_s(0, 1, 1) == pytest.approx(3.0)
    assert costs.evaluation_s(100, 1, 2) == pytest.approx(6.75)
    assert costs.evaluation_s(0, 2, 2) == pytest.approx(3.0)
    assert costs.token_s == pytest.approx(0.5)


def test_regret_is_against_the_fixed_policy_that_was_best(tmp_path: Path) -> None:
    text = [7, 8, 9, 10] * 12  # prompt lookup is right from the fifth token on
    lines = [cycle(2 + i, [token], 1.0 + 0.01 * (2 + i)) for i, token in enumerate(text)]
    generations = read_traces([write(tmp_path / "t", START, *lines)])
    costs = [Costs(generations)]
    parts = [outcomes(generations[0], costs[0], None)]
    summary = summarize(generations, parts, costs)
    policies = summary["policies"]
    assert summary["best_fixed"] == "ngram k=1"
    assert policies["recorded"]["ratio_to_plain"] == pytest.approx(1.0)
    assert policies["plain"]["regret"] == pytest.approx(policies["recorded"]["regret"])
    assert policies["ngram k=1"]["regret"] == 0.0
    # Two tokens for 1.5 evaluations and their share of the rest, on most of the way.
    most = 2 * 1.5 / (1.5 + 2 * 0.5)
    assert 1.15 < policies["ngram k=1"]["ratio_to_plain"] < most
    # It may do better than any fixed number: plainly at first, and copying from then on.
    assert 0.95 * policies["ngram k=1"]["ratio_to_plain"] < policies["adaptive"]["ratio_to_plain"]
    assert policies["adaptive"]["ratio_to_plain"] < most


def test_a_torn_line_and_what_follows_a_shift_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [cycle(2, [5], 1.0), cycle(3, [6, 7], 1.5, 1), cycle(1, [8], 1.0), cycle(2, [9], 1.0)]
    torn = '{"type": "cycle", "id": "a", "to'
    [generation] = read_traces([write(tmp_path / "t", START, *lines, torn=torn)])
    assert generation.text.tolist() == [1, 2, 3, 5, 6, 7]
    assert generation.kept == 3
    assert "line 6" in capsys.readouterr().out
