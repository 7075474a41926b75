"""A first opening: nothing is measured at length, and blocks are as long as is certain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.backend import Context, ContextOptions, Model
from edgespec.runtime.loading import keep_costs
from edgespec.tuning import measure
from edgespec.tuning.exactness import fast_options, published_figures
from edgespec.tuning.measure import Effort, measure_context, prove_batches
from edgespec.tuning.profile import load_profile
from edgespec.tuning.setting import Setting, find_setting, store_setting

OURS = Setting(2, True, True, kernels="edgespec")
WHOLE = 60.0  # seconds: more than all of it takes


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("an opening measures nothing at length")

    monkeypatch.setattr(measure._Run, "measure", never)


def kept(cache: Path) -> list[str]:
    return [path.name for path in (cache / "measurements").glob("setting-*")]


def test_with_our_kernels_blocks_are_whole_and_nothing_is_stored(
    default_model: Path, fresh_cache: Path, unmeasured: None
) -> None:
    with Engine(default_model, EngineOptions(kernels="edgespec", context=256)) as engine:
        if not engine.target.model.exact_batches:
            pytest.skip("edgespec's kernels cannot be used here")
        figures = engine.exactness.setting
        assert (engine.exactness.mode, engine.exactness.largest_k) == ("bitwise", 15)
        assert figures is not None and not figures.measured
        assert figures.seconds[0] == sorted(figures.seconds[0])
    assert kept(fresh_cache) == []


def test_with_llama_cpps_kernels_blocks_are_as_long_as_was_proved(
    default_model: Path, fresh_cache: Path, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = EngineOptions(kernels="llama.cpp", context=256, exact="bitwise")
    monkeypatch.setattr("edgespec.runtime.loading._PROVING_S", 0.0)
    with Engine(default_model, options) as engine:
        hurried = engine.exactness
        assert hurried.setting is not None and hurried.largest_k < hurried.setting.identical <= 2
    # What was not compared for want of time is compared at the next opening.
    monkeypatch.setattr("edgespec.runtime.loading._PROVING_S", WHOLE)
    with Engine(default_model, options) as engine:
        setting = engine.exactness.setting
        assert setting is not None and not setting.measured
        assert engine.exactness.largest_k == min(15, setting.identical - 1)
        assert find_setting(default_model, setting.name) == setting
        assert not setting.uncompared
    monkeypatch.setattr("edgespec.runtime.loading.prove_batches", None)  # not once more
    Engine(default_model, options).close()


def test_a_proof_finds_what_a_measurement_finds(default_model: Path) -> None:
    effort = Effort((40,), largest=8, repetitions=1, seconds=WHOLE)
    for flash_attention in (False, True):
        options = ContextOptions(length=128, threads=2, flash_attention=flash_attention, outputs=8)
        with Model(default_model) as model, Context(model, options) as context:
            proof = prove_batches(context, 8, WHOLE)
            assert proof.identical == measure_context(context, effort).identical
            assert (proof.different is None) == (proof.identical == 8)
            assert proof.token_s > 0 and context.length == 0


def test_batches_exact_by_construction_are_measured_to_be(default_model: Path) -> None:
    with Model(default_model, fast_options(default_model, 2)) as model:
        if not model.exact_batches:
            pytest.skip("edgespec's kernels are not faster here")
        options = ContextOptions(length=512, threads=2, flash_attention=True, outputs=33)
        with Context(model, options) as context:
            effort = Effort((272, 40), largest=33, repetitions=1, seconds=WHOLE, twice=0)
            assert measure_context(context, effort).identical == 33
    with Model(default_model) as model:
        assert not model.exact_batches


# -- what use teaches ---------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, fresh_cache: Path) -> Iterator[Path]:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 1000)
    yield path


def test_published_costs_are_replaced_by_what_use_made_of_them(model: Path) -> None:
    figures = published_figures(model, OURS, "avx2", 16, 33, token_s=0.01)
    costs = figures.cost_table(16)
    costs.drift[0], costs.shape[2] = 0.7, -0.2
    profile = load_profile(model)
    keep_costs(model, profile, figures, costs, telling=False)
    assert find_setting(model, figures.name) is None
    keep_costs(model, profile, figures, costs, telling=True)
    found = find_setting(model, figures.name)
    assert found is not None and not found.measured
    ratio = 2.718281828**0.7
    assert found.seconds[0][0] == pytest.approx(0.01 * ratio)
    assert found.seconds[0][1] == pytest.approx(0.0127 * ratio * 2.718281828**-0.2)
    assert found.seconds[0] == sorted(found.seconds[0])
    assert found.identical == 16


@pytest.mark.parametrize("tuned", [True, False])
def test_measured_costs_that_use_contradicts_are_dropped(model: Path, tuned: bool) -> None:
    from dataclasses import replace

    figures = replace(published_figures(model, OURS, "avx2", 16, 33, 0.01), measured=True)
    store_setting(model, figures, tuned=tuned)
    costs = figures.cost_table(16)
    profile = load_profile(model)
    costs.drift[0] = 0.4
    keep_costs(model, profile, figures, costs, telling=True)
    assert find_setting(model, figures.name) == figures
    costs.drift[0] = -0.6
    keep_costs(model, profile, figures, costs, telling=False)  # beside other programs
    assert find_setting(model, figures.name) == figures
    keep_costs(model, profile, figures, costs, telling=True)
    assert find_setting(model, figures.name) is None


def test_figures_that_cannot_be_are_not_read(model: Path) -> None:
    from dataclasses import replace

    figures = published_figures(model, OURS, "avx2", 4, 33, 0.01)
    wrong = replace(figures, seconds=[[0.01, 0.42, *figures.seconds[0][2:]]])
    store_setting(model, wrong, tuned=True)
    assert find_setting(model, figures.name) is None


def test_no_curve_promises_more_than_a_slower_one(model: Path) -> None:
    """Instructions that nobody measured are taken to gain no more than llama.cpp's kernels."""
    costs = {
        isa: published_figures(model, OURS, isa, 33, 33, 1.0).seconds[0]
        for isa in ("avx2", "avx-vnni", "avx512-vnni", "neon-dotprod", "plain", None)
    }
    assert costs["avx2"] == costs["avx-vnni"]
    assert all(a <= b for a, b in zip(costs["avx512-vnni"], costs["avx2"], strict=True))
    assert all(a <= b for a, b in zip(costs["avx2"], costs["neon-dotprod"], strict=True))
    assert costs["plain"][:16] == [float(n) for n in range(1, 17)]
    assert all(len(row) == 33 and row == sorted(row) for row in costs.values())


def test_the_first_answers_are_learned_from(default_model: Path, fresh_cache: Path) -> None:
    with Engine(default_model, EngineOptions(context=512)) as engine:
        before = engine.policy.costs.known.copy()
        stream = engine.generate(
            "one two three one two three one two",
            SamplingParameters(temperature=0.0),
            GenerationLimits(max_tokens=24),
        )
        assert stream.result.tokens
        assert (engine.policy.costs.known[:2] > before[:2]).all()


# -- what is refused before anything is loaded --------------------------------------------------


def test_a_model_without_a_chat_template_is_refused_by_its_header(
    recurrent_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.cli.opening import open_chat_engine
    from edgespec.errors import TemplateError

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing is loaded")

    monkeypatch.setattr("edgespec.runtime.engine.Engine.__init__", never)
    with pytest.raises(TemplateError, match="has no chat template"):
        open_chat_engine(str(recurrent_model), EngineOptions())
