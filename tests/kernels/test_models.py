"""Models whose weights lie on our device: batches, threads, cuts and batch sizes change no bit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model, ModelOptions, formats_of, quantize
from edgespec.backend.kernels import _pattern
from edgespec.errors import CancelledError
from edgespec.gguf.header import read_header
from tests.built_models import write_experts, write_llama, write_mamba

MOST = 33


def opened(path: Path, *, ours: bool = True, threads: int = 1) -> Model:
    formats = formats_of(read_header(path)) if ours else frozenset()
    model = Model(path, ModelOptions(formats, threads))
    assert model.kernels == ("edgespec" if ours else "llama.cpp")
    return model


def context(
    model: Model,
    *,
    threads: int = 1,
    batch: int = 256,
    length: int = 400,
    attention: str | None = None,
) -> Context:
    """Open a context, with our attention for a cache of type `attention` if that is given."""
    options = ContextOptions(
        length,
        threads,
        flash_attention=attention is not None,
        outputs=MOST,
        batch=batch,
        kv_type=attention or "f16",
    )
    return Context(model, options)


def text(model: Model, count: int) -> Int32Array:
    return np.random.default_rng(1).integers(3, model.vocabulary.size, count).astype(np.int32)


def singles(
    model: Model, tokens: Int32Array, depth: int, attention: str | None = None, length: int = 400
) -> Float32Array:
    """Rows of logits behind each token from `depth` on, evaluated one by one."""
    with context(model, attention=attention, length=length) as one:
        one.prefill(tokens[:depth])
        rows = [one.evaluate(tokens[i : i + 1], 1)[0].copy() for i in range(depth, depth + MOST)]
    return np.stack(rows)


@pytest.fixture(scope="module", params=["llama Q8_0", "llama Q4_0", "experts Q5_1", "experts F16"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, file_type = request.param.split()
    folder = tmp_path_factory.mktemp("models")
    write = {"llama": write_llama, "experts": write_experts}[kind]
    path = folder / "quantized.gguf"
    quantize(write(folder / "plain.gguf"), path, file_type)
    return path


def check_invariance(path: Path, depths: tuple[int, ...], attention: str | None = None) -> None:
    length = max(depths) + 100
    with opened(path, threads=2) as model:
        assert model.exact_attention
        tokens = text(model, max(depths) + MOST)
        for depth in depths:
            expected = singles(model, tokens, depth, attention, length)
            assert np.isfinite(expected).all()
            for threads, batch in ((1, 256), (2, 256), (3, 7)):
                with context(
                    model, threads=threads, batch=batch, length=length, attention=attention
                ) as other:
                    other.prefill(tokens[:depth])
                    for n in (2, 3, 5, 8, 16, MOST):
                        got = other.evaluate(tokens[depth : depth + n], n)
                        assert np.array_equal(got, expected[:n]), (depth, threads, batch, n)
                        other.truncate(depth)


def test_a_batch_has_the_rows_of_single_tokens(tiny: Path) -> None:
    check_invariance(tiny, (1, 40, 300))


def test_the_default_model(default_model: Path) -> None:
    check_invariance(default_model, (5, 300))


def test_attention_of_a_batch_is_that_of_single_tokens(default_model: Path) -> None:
    """llama.cpp's is not from 512 tokens on, where it splits keys over threads."""
    check_invariance(default_model, (600,), "f16")


@pytest.mark.parametrize("attention", ["f16", "f32", "q8_0"])
def test_attention_of_tiny_models(tiny: Path, attention: str) -> None:
    check_invariance(tiny, (1, 300), attention)


def test_attention_behind_a_rollback_and_a_restored_cache(default_model: Path) -> None:
    with opened(default_model) as model:
        tokens = text(model, 700)
        rows = []
        for detour in (False, True):
            with context(model, threads=2, length=1024, attention="f16") as one:
                one.prefill(tokens[:600])
                if detour:
                    one.evaluate(tokens[100:120], 20)
                    one.truncate(600)
                    one.evaluate(tokens[600:630], 30)
                    one.truncate(600)
                    state = one.save_state()
                    one.clear()
                    one.restore_state(state)
                rows.append(one.evaluate(tokens[600:604], 4).copy())
    assert np.array_equal(rows[0], rows[1])


def test_attention_is_llama_cpps_for_weights_that_are(default_model: Path) -> None:
    """Also in a process where our device is open."""
    with opened(default_model, ours=False) as model, opened(default_model) as ours:
        assert ours.exact_attention and not model.exact_attention
        tokens = text(model, 903)
        found = []
        for one in (model, ours):
            with context(one, threads=2, length=1024, attention="f16") as other:
                other.prefill(tokens[:900])
                rows = other.evaluate(tokens[900:], 3).copy()
                other.truncate(900)
                found.append(np.array_equal(other.evaluate(tokens[900:901], 1), rows[:1]))
    assert found == [False, True]


def test_a_recurrent_model(tmp_path: Path) -> None:
    path = tmp_path / "quantized.gguf"
    quantize(write_mamba(tmp_path / "plain.gguf"), path, "Q8_0")
    check_invariance_of_a_prompt(path)


def check_invariance_of_a_prompt(path: Path) -> None:
    with opened(path) as model:
        tokens = text(model, 60)
        rows = []
        for batch in (1, 7, 64):
            with context(model, batch=batch) as one:
                one.prefill(tokens[:-1])
                rows.append(one.evaluate(tokens[-1:], 1)[0].copy())
    assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[0], rows[2])


@pytest.mark.parametrize("attention", [None, "f16"])
def test_logits_are_near_llama_cpps(tiny: Path, attention: str | None) -> None:
    """Both round activations to 8 bits: means differ by far less than logits do."""
    found = []
    for ours in (True, False):
        with opened(tiny, ours=ours) as model:
            found.append(singles(model, text(model, 40 + MOST), 40, attention))
    spread = found[1].std()
    assert np.abs(found[0] - found[1]).mean() < 0.05 * spread


def test_two_models_at_once(tiny: Path, default_model: Path) -> None:
    """Each context has a state of its own on the device."""
    with opened(tiny) as one, opened(default_model) as other:
        alone = [singles(model, text(model, 60), 20) for model in (one, other)]
        together: list[Float32Array | None] = [None, None]

        def run(index: int, model: Model) -> None:
            together[index] = singles(model, text(model, 60), 20)

        workers = [threading.Thread(target=run, args=pair) for pair in enumerate((one, other))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_cancelled_prompt_leaves_a_clean_context(default_model: Path) -> None:
    with opened(default_model) as model, context(model) as one:
        tokens = text(model, 300)
        one.prefill(tokens[:290])
        expected = one.evaluate(tokens[290:291], 1)[0].copy()
        one.clear()
        one.cancel()
        with pytest.raises(CancelledError):
            one.prefill(tokens[:290])
        one.resume()
        one.prefill(tokens[one.length : 290])
        assert np.array_equal(one.evaluate(tokens[290:291], 1)[0], expected)


def test_models_are_opened_and_closed_often(tiny: Path) -> None:
    import psutil

    def once() -> None:
        with opened(tiny) as model, context(model) as one:
            one.evaluate(text(model, 20), 3)

    for _ in range(20):
        once()
    before = psutil.Process().memory_info().rss
    for _ in range(180):
        once()
    grown = psutil.Process().memory_info().rss - before
    assert grown < 180 * tiny.stat().st_size / 4  # no weights, no states are left behind


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"], r"^(blk\.[0-9]+\.ffn_up\.weight)$"),
        (["blk.1.ffn_up.weight"], r"^(blk\.1\.ffn_up\.weight)$"),
        (["output.weight"], r"^(output\.weight)$"),
    ],
)
def test_names_are_found_by_one_expression(chosen: list[str], expected: str) -> None:
    everything = ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "output.weight"]
    assert _pattern(chosen, everything) == expected


def test_an_unknown_instruction_set_is_one_line(default_model: Path) -> None:
    command = [sys.executable, "-m", "edgespec", "run", str(default_model), "-p", "Hi"]
    environment = {**os.environ, "EDGESPEC_KERNELS_ISA": "mmx"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("edgespec: EDGESPEC_KERNELS_ISA is 'mmx'")


def test_a_library_that_does_not_fit_leaves_llama_cpps_kernels(default_model: Path) -> None:
    """Another version of the device interface: one warning, and the model answers all the same."""
    program = (
        "import logging, sys; logging.basicConfig(); from edgespec.kernels import ggml\n"
        "ggml.API_VERSION = 99\n"
        "from edgespec.backend import kernel_status\n"
        "import edgespec\n"
        "print(kernel_status())\n"
        "with edgespec.load(sys.argv[1], edgespec.EngineOptions(draft='none')) as engine:\n"
        "    print(engine.target.model.kernels, len(list(engine.generate('The'))) > 0)\n"
    )
    command = [sys.executable, "-c", program, str(default_model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "version 2 of the device interface, not 99" in done.stdout
    assert done.stdout.splitlines()[-1] == "llama.cpp True"
    assert "llama.cpp's kernels are used" in done.stderr
