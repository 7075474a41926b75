"""How cost grows: fits, counts and depths are what they say, and every part has its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cache import private_cache
from bench.scaling import block_length, context, parts, vocabulary
from bench.scaling.__main__ import main
from bench.scaling.chart import LINE, Chart, Series, Setup, fit_powers
from bench.scaling.length import answer, lengths_up_to
from bench.scaling.memory import components, measure_memory
from bench.scaling.sessions import converse
from bench.scaling.vocabulary import BLOCK, Judge, make_blocks, peaked_logits
from edgespec import Engine, EngineOptions
from edgespec.backend import Context
from edgespec.files import cache_root


@pytest.fixture
def small(default_model: Path) -> Any:

    return Setup(default_model, threads=2, flash_attention=False, rounds=2, deepest=48, tokens=16)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Tokens in the cache, as llama.cpp counts them, and tokens evaluated behind them."""
    seen: list[tuple[int, int]] = []
    evaluate = Context.evaluate

    def watched(context: Context, tokens: Any, outputs: int) -> Any:
        seen.append((context.native_length(), len(tokens)))
        return evaluate(context, tokens, outputs)

    monkeypatch.setattr(Context, "evaluate", watched)
    yield seen


# -- fits -----------------------------------------------------------------------------------


def test_a_fit_finds_the_coefficients_of_made_up_data() -> None:
    x = [256, 512, 1024, 2048, 8000]
    line = [7.5 + 0.002 * d for d in x]
    fit = fit_powers(x, [line, [2 * y for y in line], [y / 2 for y in line]], LINE, "d")
    assert fit.formula == "a + b d"
    assert fit.coefficients["a"]["value"] == pytest.approx(7.5)
    assert fit.coefficients["b"]["value"] == pytest.approx(0.002)
    assert fit.coefficients["b"]["low"] == pytest.approx(0.001)
    assert fit.coefficients["b"]["high"] == pytest.approx(0.004)
    assert fit.residual == pytest.approx(0.0, abs=1e-9)
    assert fit.at(4096) == pytest.approx(7.5 + 0.002 * 4096)

    curve = fit_powers(x, [[3e-3 * d + 2e-7 * d * d for d in x]], (1, 2), "d")
    assert curve.formula == "b d + c d²"
    assert [each["value"] for each in curve.coefficients.values()] == pytest.approx([3e-3, 2e-7])
    assert curve.at(1000) == pytest.approx(3.2)


def test_the_residual_is_what_the_fit_leaves() -> None:
    fit = fit_powers([1, 2, 3, 4], [[1 + 3, 2 - 3, 3 - 3, 4 + 3]], LINE, "x")
    assert fit.coefficients["b"]["value"] == pytest.approx(1.0)
    assert fit.residual == pytest.approx(3.0)


def test_what_has_too_few_sizes_or_no_powers_is_not_fitted() -> None:
    series = [Series("fitted", [[1.0, 2.0]], LINE), Series("not", [[1.0, 2.0]])]
    assert not Chart("t", "x", "x", [1, 2], series).fits
    longer = [Series(each.name, [[1.0, 2.0, 3.0]], each.powers) for each in series]
    assert list(Chart("t", "x", "x", [1, 2, 3], longer).fits) == ["fitted"]


# -- what is measured -----------------------------------------------------------------------


@pytest.mark.slow
def test_every_evaluation_is_behind_the_depth_it_is_reported_for(
    small: Any, evaluated: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "DEPTHS", (16, 32, 64))
    small = small._replace(rounds=1)
    times, ratios, reading = context.measure_context(small)
    assert list(times.x) == [16, 32, 48]
    each = [(depth, n) for depth in times.x for n in context.SIZES]
    assert sorted(evaluated) == sorted(each * 2)  # once to plan, once to be timed
    samples = np.array([series.samples for series in times.series])
    assert samples.shape == (len(context.SIZES), 1, 3)
    assert [series.name for series in ratios.series] == ["v(2, d)", "v(4, d)", "v(8, d)"]
    assert np.array(ratios.series[0].samples) == pytest.approx(samples[1] / samples[0])
    [seconds] = reading.series[0].samples
    assert seconds == sorted(seconds)


def test_a_position_is_a_row_that_was_looked_at() -> None:
    blocks = make_blocks(500, np.random.default_rng(0))
    count = len(blocks.logits)
    assert Judge(blocks).run("greedy")[1] == Judge(blocks).run("sampled")[1] == count
    rejection = f"rejection, block of {BLOCK}"
    assert count < Judge(blocks).run(rejection)[1] < count * (BLOCK + 1)  # some are rejected

    never = blocks.logits.copy()
    for row, token in zip(never[:, 0], blocks.proposals[:, 0], strict=True):
        row[token] = -np.inf
    assert Judge(blocks._replace(logits=never)).run(rejection)[1] == count
    always = np.full_like(blocks.logits, -np.inf)
    for block, tokens in zip(always, blocks.proposals, strict=True):
        block[range(BLOCK), tokens] = block[BLOCK, 0] = 0.0
    everything = count * (BLOCK + 1)
    assert Judge(blocks._replace(logits=always)).run(rejection)[1] == everything


def test_logits_are_peaked_but_not_certain() -> None:
    logits = peaked_logits(32768, np.random.default_rng(1), 8).astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    assert ((p.max(axis=1) > 0.05) & (p.max(axis=1) < 0.9)).all()


@pytest.mark.slow
def test_cycles_with_all_proposals_evaluate_one_token_more(
    small: Any, evaluated: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_length, "BLOCKS", (1, 3))
    short = "Copy this text: red green blue red green blue"
    monkeypatch.setitem(block_length.WORKLOADS, "copying", [[short]])
    found = []
    copy = block_length.copy

    def watched(*arguments: Any) -> Any:
        before = len(evaluated)
        found.append((copy(*arguments), evaluated[before:], arguments[0].k))
        return found[-1][0]

    monkeypatch.setattr(block_length, "copy", watched)
    cycles, tokens = block_length.measure_k(small._replace(rounds=1))
    assert list(cycles.x) == [2, 4]
    assert [series.name for series in cycles.series] == list(block_length.PARTS)
    assert len(found) == 1 + 2  # with a warm-up
    for copying, evaluations, k in found:
        assert len(evaluations) == copying.cycles
        whole = sum(count == k + 1 for _, count in evaluations)
        assert len(copying.seconds) == whole > 0
        assert (copying.seconds >= 0).all()
    assert np.array(tokens.series[0].samples).min() >= 1.0


def test_lengths_are_halves_of_the_longest() -> None:
    assert lengths_up_to(2048) == [64, 128, 256, 512, 1024, 2048]
    assert lengths_up_to(16) == [1, 2, 4, 8, 16]


@pytest.mark.slow
def test_answers_and_conversations_are_as_long_as_they_were_to_be(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    with Engine(default_model, EngineOptions(draft="none", threads=2, context=512)) as engine:
        found = answer(engine, 24)
        assert found.tokens == 24
        assert 0 < found.loop_s < found.decode_s
        assert found.loop_s < found.reader_s
        # Left alone, the answer is a word or two.
        crowd = converse(engine, ["Say yes.", "Say no.", "What is 1 + 1?"], 24)
    assert crowd.tokens == [24, 24, 24]
    assert all(0 < first < crowd.took_s for first in crowd.first_s)


def test_pages_of_the_file_are_weights_whenever_they_are_read() -> None:
    mib = 1 << 20
    steps = [
        ("llama.cpp", 100 * mib, 40 * mib),
        ("weights", 250 * mib, 120 * mib),
        ("KV cache", 300 * mib, 120 * mib),
        ("compute", 340 * mib, 130 * mib),
    ]
    assert components(steps) == {
        "llama.cpp": 100.0,
        "weights, mapped": 90.0,
        "weights, copied": 70.0,
        "KV cache": 50.0,
        "compute": 30.0,
    }


@pytest.mark.slow
def test_the_kv_cache_is_as_large_as_was_estimated(small: Any) -> None:
    program, model, _ = measure_memory(small._replace(rounds=1, deepest=256))
    assert all(value > 0 for value in program.series[0].samples[0])
    measured, estimated, difference = (series.samples[0] for series in model.series)
    assert difference == pytest.approx(np.subtract(measured, estimated))
    sizes = dict(zip(model.x, measured, strict=True))
    told = dict(zip(model.x, estimated, strict=True))
    assert sizes["KV cache"] == pytest.approx(told["KV cache"], abs=3.0)
    assert 0 < sizes["compute"] < 2 * told["compute"]
    assert sizes["all of these"] == pytest.approx(sum(measured[:-1]))


# -- the command ----------------------------------------------------------------------------


@pytest.mark.slow
def test_every_part_has_its_record_and_its_picture(
    default_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(setup: Any) -> list[Chart]:
        samples = [[2.0, 3.0, 4.0], [2.0, 3.0, 4.0]]
        named = Chart("by name", "component", "", ["x", "y", "z"], [Series("m", samples)])
        return [Chart("by size", "size, s", "s", [1, 2, 3], [Series("t", samples, LINE)]), named]

    monkeypatch.setattr(parts, "MEASURES", dict.fromkeys(parts.MEASURES, measure))
    file = tmp_path / "growth.json"
    arguments = [str(default_model), "--json", str(file), "--png", str(tmp_path), "--rounds", "2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "t: a + b s; a = 1 [1, 1], b = 1 [1, 1]; residual" in out
    report = json.loads(file.read_text())
    assert list(report["parts"]) == ["context", "vocabulary", "k", "length", "sessions", "memory"]
    assert report["machine"]["cores"] >= 1
    assert report["settings"]["rounds"] == 2
    for part, (sized, named) in report["parts"].items():
        assert sized["series"][0]["fit"]["coefficients"]["b"]["value"] == pytest.approx(1.0)
        assert sized["series"][0]["figures"][2]["median"] == 4.0
        assert named["series"][0]["fit"] is None
        assert (tmp_path / f"{part}.png").read_bytes().startswith(b"\x89PNG")


def test_the_parts_that_need_no_engine_run_as_a_command(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "VOCABULARIES", (64, 512, 1024))
    monkeypatch.setattr(vocabulary, "DRAFT_VOCABULARIES", (32, 64, 128))
    file = tmp_path / "growth.json"
    arguments = [str(default_model), "--only", "vocabulary", "--rounds", "1", "--json", str(file)]
    assert main(arguments) == 0
    kernels, steps = json.loads(file.read_text())["parts"]["vocabulary"]
    assert [series["name"] for series in kernels["series"]] == list(vocabulary.KERNELS)
    assert kernels["x"] == [64, 512, 1024]
    assert steps["x"] == [32, 64, 128]
    assert all(series["fit"] for series in kernels["series"] + steps["series"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], "--rounds is 0: it has to be 1 or more"),
        (["--deepest", "8"], "--deepest is 8"),
        (["--tokens", "few"], "argument --tokens: invalid int value: 'few'"),
        (["--only", "weather"], "invalid choice: 'weather'"),
        (["--json", "/no/such/folder/f.json"], "there is no folder"),
        (["--png", "/no/such/folder"], "there is no folder"),
        (["/no/such/model.gguf"], "/no/such/model.gguf"),
    ],
)
def test_a_bad_call_is_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(arguments)
    except SystemExit as error:
        status = int(str(error.code))
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("python -m bench.scaling: ")
    assert said in captured.err


def test_the_users_cache_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "profile-1.json").write_text("{}")
    with private_cache(measurements=True):
        assert cache_root() != tmp_path
        (cache_root() / "measurements" / "profile-1.json").write_text("learned")
    assert cache_root() == tmp_path
    assert (tmp_path / "measurements" / "profile-1.json").read_text() == "{}"
