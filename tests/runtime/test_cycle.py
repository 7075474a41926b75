"""What an answer's figures say."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.errors import ContextFullError, EdgespecError, UsageError
from edgespec.runtime.cycle import Statistics, Tried


def _answer(plain_steps_s: list[float], proposed: int, decode_s: float = 1.0) -> Statistics:
    """Ten tokens in eight cycles."""
    figures = Statistics(decode_s=decode_s, emitted=10, plain_steps_s=plain_steps_s)
    figures.count_cycle(proposed, min(proposed, 2), drafting=True)
    for _ in range(7):
        figures.count_cycle(0, 0, drafting=True)
    return figures


def test_plain_speed_comes_from_this_answers_own_steps() -> None:
    figures = _answer([0.1, 0.11, 0.12, 3.0], 4)
    assert figures.plain_tokens_per_second == pytest.approx(1 / 0.12)
    assert figures.speedup == pytest.approx(10 * 0.12)


def test_a_speedup_is_at_most_tokens_a_cycle() -> None:
    figures = _answer([0.5] * 8, 4)
    assert figures.tokens_per_cycle == 1.25
    assert figures.speedup == pytest.approx(1.25)
    assert figures.plain_tokens_per_second == pytest.approx(8.0)


@pytest.mark.parametrize("figures", [Statistics(), _answer([0.1] * 8, 0), _answer([0.1] * 3, 4)])
def test_nothing_is_said_where_nothing_was_proposed_or_too_little_is_known(
    figures: Statistics,
) -> None:
    assert figures.plain_tokens_per_second is None and figures.speedup is None


GREEDY = SamplingParameters(temperature=0.0)
COPY = 2  # among `prompts`, the one whose answer repeats it
Open = Callable[..., Engine]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def traced(default_model: Path, file: Path) -> Iterator[Open]:
    """Engines that write to `file`, closed at the end of the test."""
    engines = []

    def open_one(**options: Any) -> Engine:
        options = {"threads": 2, "context": 512, "exact": "bitwise", "trace": file, **options}
        engines.append(Engine(default_model, EngineOptions(**options)))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def of_type(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["type"] == kind]


@pytest.mark.parametrize("draft", ["none", "ngram", "itself", "damaged"])
@pytest.mark.parametrize("k", [3, None])
def test_adds_up_to_the_result(
    traced: Open, file: Path, drafts: dict[str, str], prompts: tuple[str, ...], draft: str, k: Any
) -> None:
    engine = traced(draft=drafts[draft], k=k)
    stream = engine.generate(prompts[COPY], GREEDY, GenerationLimits(max_tokens=40))
    origins = [piece.origin.value for piece in stream]
    result = stream.result
    start, *cycles, end = read(file)
    statistics = result.statistics
    assert start["type"] == "generation"
    assert end["type"] == "end"
    assert {line["id"] for line in (start, *cycles, end)} == {start["id"]}

    emitted = [token for cycle in cycles for token in cycle["tokens"]]
    assert tuple(emitted[: end["emitted"]]) == result.tokens
    assert start["prompt"] == engine.tokenize(prompts[COPY]).tolist()
    assert (start["rule"], start["temperature"], start["k"]) == ("greedy", 0.0, k)
    assert (start["costs"] is None) == (draft == "none")

    assert sum(cycle["proposed"] for cycle in cycles) == statistics.proposed
    assert sum(cycle["accepted"] for cycle in cycles) == statistics.accepted
    assert Counter(cycle["proposed"] for cycle in cycles) == statistics.k_histogram
    for name in ("draft_s", "verify_s"):
        total = sum(cycle[name] for cycle in cycles)
        assert total == pytest.approx(getattr(statistics, name), abs=1e-5)
    total = sum(cycle["seconds"] for cycle in cycles)
    assert total == pytest.approx(statistics.decode_s, abs=1e-5)
    assert end["timings"] == statistics.timings()
    assert end["speculation"] == json.loads(json.dumps(statistics.speculation()))
    assert end["finish_reason"] == result.finish_reason

    shown = [origin for cycle in cycles for origin in cycle["origins"]]
    assert set(origins) <= set(shown)
    length = result.prompt_tokens
    for cycle in cycles:
        assert cycle["depth"] == length - 1
        assert cycle["n"] == cycle["proposed"] + 1
        assert len(cycle["tokens"]) == len(cycle["origins"]) == cycle["accepted"] + 1
        assert len(cycle["acceptance"]) == cycle["proposed"]
        assert all(0.0 <= estimate <= 1.0 for estimate in cycle["acceptance"])
        assert (cycle["drafter"] == "none") == (cycle["proposed"] == 0)
        adaptive = k is None and draft != "none"
        assert (cycle["predicted_s"] is not None) == adaptive
        length += len(cycle["tokens"])


def test_what_a_block_had_behind_the_end_is_not_told(
    traced: Open, file: Path, default_model: Path
) -> None:
    engine = traced(draft=str(default_model), k=4)
    prompt = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi there!"
    inside = False
    for extra in ("", " Hi", " Hi there!"):
        result = engine.generate(prompt + extra, GREEDY, GenerationLimits(max_tokens=90)).result
        end = of_type(read(file), "end")[-1]
        cycles = [line for line in of_type(read(file), "cycle") if line["id"] == end["id"]]
        emitted = [token for cycle in cycles for token in cycle["tokens"]]
        assert end["emitted"] == len(result.tokens)
        assert tuple(emitted) == result.tokens
        last = cycles[-1]
        inside |= last["proposed"] > last["accepted"] and last["origins"][-1] != "corrected"
    assert inside  # an end really fell inside a block


def test_interleaved_generations_are_told_apart(
    traced: Open, file: Path, prompts: tuple[str, ...]
) -> None:
    engine = traced(draft="ngram", k=3)
    streams = [engine.generate(prompts[i], GREEDY, GenerationLimits(max_tokens=9)) for i in (0, 2)]
    iterators = [iter(stream) for stream in streams]
    for _ in range(3):
        for iterator in iterators:
            next(iterator)
    results = [stream.result for stream in streams]
    lines = read(file)
    starts = of_type(lines, "generation")
    assert len(starts) == len(of_type(lines, "end")) == 2
    for start, result in zip(starts, results, strict=True):
        cycles = [line for line in of_type(lines, "cycle") if line["id"] == start["id"]]
        assert tuple(token for cycle in cycles for token in cycle["tokens"]) == result.tokens


def test_every_line_is_there_at_once_and_every_end_is_told(
    traced: Open, file: Path, prompts: tuple[str, ...]
) -> None:
    engine = traced(draft="none")
    engine.generate(prompts[0], GREEDY)  # never asked for anything
    stream = engine.generate(prompts[0], GREEDY)
    pieces = iter(stream)
    next(pieces)
    seen = read(file)
    assert [line["type"] for line in seen] == ["generation"] + ["cycle"] * len(stream.emitted)
    pieces.close()  # type: ignore[attr-defined]
    assert read(file)[-1]["finish_reason"] is None

    stream = engine.generate(prompts[0], GREEDY)
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    thread.join()
    assert stream.result.finish_reason == "cancelled"
    with pytest.raises(ContextFullError):
        engine.generate(np.ones(600, np.int32), GREEDY).result  # noqa: B018
    # What was cancelled before its first cycle never began.
    assert [line["finish_reason"] for line in of_type(read(file), "end")] == [None, None]


def test_files_are_appended_to_and_private(
    traced: Open, file: Path, prompts: tuple[str, ...]
) -> None:
    for expected in (1, 2):
        engine = traced(draft="none")
        engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=2)).result  # noqa: B018
        engine.close()
        assert len(of_type(read(file), "generation")) == expected
    assert file.stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_looked_for(
    tmp_path: Path,
) -> None:
    for path in (tmp_path, tmp_path / "missing" / "trace", Path("nul\0byte")):
        with pytest.raises(UsageError, match="cannot write the trace"):
            Engine("no-such-model", EngineOptions(trace=path, offline=True))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_an_error_once(traced: Open, prompts: tuple[str, ...]) -> None:
    engine = traced(draft="none", trace=Path("/dev/full"))
    stream = engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=3))
    with pytest.raises(EdgespecError, match="cannot write the trace /dev/full: No space"):
        list(stream)
    result = engine.generate(prompts[0], GREEDY, GenerationLimits(max_tokens=3)).result
    assert len(result.tokens) == 3


def test_refused_branches_begin_where_they_leave_the_path() -> None:
    """Of 10 -> (11 -> 12, 13), 20 -> 21 -> 22, with 10 and 13 kept."""
    tokens = np.array([10, 20, 11, 13, 21, 12, 22], np.int32)
    parents = np.array([-1, -1, 0, 0, 1, 2, 4], np.int32)
    tried = Tried(tokens, parents, np.array([0, 3], np.int32))
    assert tried.refused() == [[11, 12], [20, 21, 22]]
    chain = np.arange(-1, 3, dtype=np.int32)
    assert Tried(tokens[:4], chain, np.array([0, 1], np.int32)).refused() == [[11, 13]]
    assert Tried(tokens[:0], chain[:0], chain[:0]).refused() == []
