"""Trees of proposals end to end: the text stays the target's, whatever their shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits
from edgespec.backend import capabilities
from edgespec.drafters import EagleDrafter, ModelDrafter
from edgespec.drafters.trees import GROWN
from edgespec.errors import UsageError
from tests.runtime.exact import GREEDY, drawn, emitted, joint, p_value, run, unfiltered

HEAD = Path(__file__).parents[2] / "models" / "smollm2-135m-eagle3.gguf"
SHAPES = ("1", "3", "2,2", "4,2,1", "1,1,3")
FALSE_ALARMS, CASES = 1e-3, 4

pytestmark = pytest.mark.skipif(
    not capabilities().eagle, reason="this build of llama.cpp cannot run EAGLE-3 heads"
)


@pytest.fixture(scope="module")
def expected(plain: Any, prompts: tuple[str, ...], open_engine: Any) -> dict[str, list[int]]:
    """Greedy text, from llama.cpp's loop and its own greedy sampler."""
    tokenize = open_engine().tokenize
    return {p: plain.greedy(tokenize(p).tolist(), 64) for p in (prompts[0], prompts[4])}


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("draft", ["head", "damaged"])
def test_greedy_text_is_that_of_plain_decoding(
    draft: str, tree: str, drafts: dict[str, str], open_engine: Any, expected: Any
) -> None:
    path = str(HEAD) if draft == "head" else drafts[draft]
    engine = open_engine(draft=path, tree=tree, k=None)
    assert isinstance(engine.drafter, EagleDrafter if draft == "head" else ModelDrafter)
    accepted = 0
    for prompt, tokens in expected.items():
        stream = run(engine, prompt, GREEDY, 64)
        assert list(stream.result.tokens) == tokens
        accepted += stream.statistics.accepted
        assert stream.statistics.proposed > stream.statistics.accepted
    assert accepted > 0


def test_trees_that_grow_keep_the_text(open_engine: Any, expected: Any) -> None:
    engine = open_engine(draft=str(HEAD), k=None)
    model = engine.drafter.model
    assert model.shape == GROWN
    for step_s in (0.0, model.stopping.step_s):  # however little they cost
        model.stopping.step_s = model.stopping.more_s = step_s
        for prompt, tokens in expected.items():
            assert emitted(engine, prompt, GREEDY, 64) == tokens


def test_every_tree_of_siblings_is_as_a_chain_where_they_agree(
    drafts: dict[str, str], open_engine: Any, expected: Any
) -> None:
    """The target itself as the draft: its first children are always right."""
    engine = open_engine(draft=drafts["itself"], tree="2,1,1", k=None)
    for prompt, tokens in expected.items():
        stream = run(engine, prompt, GREEDY, 64)
        assert list(stream.result.tokens) == tokens
        assert stream.statistics.cycles <= 64 // 4 + 1  # the last is cut by the limit


def test_coupled_text_does_not_depend_on_the_tree(
    open_engine: Any, prompts: tuple[str, ...]
) -> None:
    sampling = unfiltered(5, top_k=40)
    reference = emitted(open_engine(), prompts[0], sampling, 48, accept="coupled")
    for tree in ("3", "2,2,1"):
        engine = open_engine(draft=str(HEAD), tree=tree, k=None)
        assert emitted(engine, prompts[0], sampling, 48, accept="coupled") == reference


@pytest.mark.parametrize("draft", ["head", "damaged"])
@pytest.mark.parametrize("tree", ["3", "2,2"])
def test_sampled_trees_have_the_targets_joint_distribution(
    draft: str, tree: str, drafts: dict[str, str], open_engine: Any, plain: Any
) -> None:
    """Three tokens drawn end to end against the product of p: chi-square, fixed seeds."""
    runs, length, top_k = 500, 3, 3
    prompt = "A B C A B C A B"
    exact = joint(plain, open_engine().tokenize(prompt).tolist(), length, top_k)
    engine = open_engine(draft=str(HEAD) if draft == "head" else drafts[draft], tree=tree, k=None)
    counts = drawn(engine, prompt, runs, length, top_k).counts
    assert set(counts) <= set(exact)
    assert p_value(counts, exact, runs) > FALSE_ALARMS / CASES


def test_typical_text_at_temperature_0_is_greedy(open_engine: Any, expected: Any) -> None:
    for options in ({"draft": "ngram"}, {"draft": str(HEAD), "tree": "3,2", "k": None}):
        engine = open_engine(**options)
        for prompt, tokens in expected.items():
            assert emitted(engine, prompt, GREEDY, 64, accept="typical") == tokens


def test_typical_accepts_more_than_the_exact_rule(open_engine: Any, expected: Any) -> None:
    engine = open_engine(draft=str(HEAD), tree="3,2", k=None)
    accepted = dict.fromkeys(("rejection", "typical"), 0)
    for rule in accepted:
        for seed, prompt in enumerate(expected):
            stream = run(engine, prompt, unfiltered(seed), 48, accept=rule)
            accepted[rule] += stream.statistics.accepted
            lossy = engine.exactness_of(stream).mode == "lossy"
            assert lossy == (rule == "typical")
    assert accepted["typical"] > accepted["rejection"]


def test_penalties_see_each_nodes_own_path(open_engine: Any, prompts: tuple[str, ...]) -> None:
    sampling = unfiltered(3, top_k=8, repeat_penalty=1.6, presence_penalty=0.5)
    reference = emitted(open_engine(), prompts[1], sampling, 40, accept="coupled")
    engine = open_engine(draft=str(HEAD), tree="3,2,1", k=None)
    assert emitted(engine, prompts[1], sampling, 40, accept="coupled") == reference


def test_logprobs_are_those_of_plain_decoding(open_engine: Any, prompts: tuple[str, ...]) -> None:
    told = []
    for options in ({}, {"draft": str(HEAD), "tree": "3,2", "k": None}):
        stream = run(open_engine(**options), prompts[0], GREEDY, 24, logprobs=3)
        told.append(list(stream.result.logprobs))
    assert told[0] == told[1]


def test_an_answer_that_ends_inside_a_tree_leaves_caches_in_step(
    open_engine: Any, prompts: tuple[str, ...], expected: Any
) -> None:
    engine = open_engine(draft=str(HEAD), tree="2,2,2", k=None)
    prompt, tokens = next(iter(expected.items()))
    for count in range(1, 12):
        stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=count))
        assert list(stream.result.tokens) == tokens[:count]
        assert engine.target.native_length() == engine.target.length
    assert emitted(engine, prompt, GREEDY, 64) == tokens


def test_a_schema_and_an_edit_keep_to_chains(open_engine: Any, prompts: tuple[str, ...]) -> None:
    def edit(tokens: np.ndarray, logits: np.ndarray) -> None:
        logits[tokens[-1]] = -np.inf

    reference = emitted(open_engine(), prompts[0], GREEDY, 24, edit=edit)
    engine = open_engine(draft=str(HEAD), tree="3,2", k=None)
    assert emitted(engine, prompts[0], GREEDY, 24, edit=edit) == reference


def test_wrong_shapes_are_refused_in_one_line(default_model: Path) -> None:
    for tree in ("4,x", "0", "", "8,8", "-1"):
        with pytest.raises(UsageError, match="tree"):
            EngineOptions(tree=tree)
    with pytest.raises(UsageError, match="leave k out"):
        EngineOptions(tree="2,1", k=3)
    for options in (
        EngineOptions(draft="ngram", tree="2,1", offline=True),
        EngineOptions(draft=str(HEAD), tree="2,1", kv_type="q8_0", offline=True),
    ):
        with pytest.raises(UsageError, match="tree"):
            Engine(default_model, options)
