"""Recycled logits leave texts and distributions as they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.exact import GREEDY, drawn_p_value, emitted, run, unfiltered

PROMPT = "<|im_start|>user\nCount from one to ten, twice.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("k", [1, 4, None])
def test_greedy_and_coupled_texts_are_those_of_plain_decoding(open_engine: Any, k: Any) -> None:
    recycling, plain = open_engine(draft="recycle", k=k), open_engine(draft="none")
    for sampling, rule in ((GREEDY, "greedy"), (unfiltered(3), "coupled")):
        stream = run(recycling, PROMPT, sampling, 64, accept=rule)
        assert list(stream.result.tokens) == emitted(plain, PROMPT, sampling, 64, accept=rule)
        if k is not None and rule == "greedy":
            assert stream.statistics.accepted > 0


@pytest.mark.slow
def test_the_joint_distribution_is_the_targets(
    open_engine: Any, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square over three tokens at a false-alarm rate of 1e-3, fixed seeds.

    What was remembered of the run before is kept, so that there is something to propose.
    """
    engine = open_engine(draft="recycle", k=2)
    monkeypatch.setattr(engine.drafter, "rewind", lambda length: None)
    p, proposed = drawn_p_value(engine, plain, PROMPT, 400)
    assert proposed > 0
    assert p > 1e-3
