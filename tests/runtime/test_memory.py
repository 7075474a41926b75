"""Memory estimates: by hand, against llama.cpp's own figures, and the advice given."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.errors import InsufficientMemoryError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.runtime import memory
from edgespec.runtime.memory import (
    MemoryEstimate,
    estimate,
    expected_speed,
    memory_bandwidth,
    require,
)

MIB = 1 << 20


def header(**changes: Any) -> GGUFHeader:
    facts: dict[str, Any] = {
        "path": Path("m.gguf"),
        "size_bytes": 1000,
        "architecture": "llama",
        "name": "m",
        "quantization": "Q4_0",
        "parameter_count": 1,
        "tensor_bytes": 900,
        "context_length": 2048,
        "embedding_length": 8,
        "block_count": 2,
        "head_count": 4,
        "head_count_kv": (2, 2),
        "key_length": 2,
        "value_length": 2,
        "sliding_window": None,
        "vocabulary_size": 10,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "default",
        "bos_token_id": None,
        "eos_token_id": None,
        "eot_token_id": None,
        "chat_template": None,
        "tool_template": None,
        "reduced": None,
        "eagle": None,
        "medusa": None,
        "held_out": None,
        "_token_block": b"",
        "_token_types": None,
    }
    return GGUFHeader(**{**facts, **changes})


def measure(given: GGUFHeader, **changes: Any) -> MemoryEstimate:
    arguments: dict[str, Any] = {
        "context": 512,
        "batch": 16,
        "outputs": 3,
        "flash_attention": False,
        "repack": False,
    }
    return estimate(given, **{**arguments, **changes})


# -- by hand ----------------------------------------------------------------------------------


def test_kv_cache() -> None:
    # 2 layers x 2 heads x (2 + 2) numbers x 2 bytes x 512 tokens
    assert measure(header()).kv_cache == 2 * 2 * 4 * 2 * 512
    assert measure(header(), context=513).kv_cache == 2 * 2 * 4 * 2 * 768
    assert measure(header(), kv_bytes=1.0625).kv_cache == 2 * 2 * 4 * 512 * 17 // 16
    assert measure(header(head_count_kv=(0, 1))).kv_cache == 1 * 4 * 2 * 512
    assert measure(header(value_length=6)).kv_cache == 2 * 2 * 8 * 2 * 512


def test_compute() -> None:
    logits = 3 * 10 * 4
    mask, scores, activations = 16 * 512 * 4, 16 * 4 * 512 * 4, 16 * 16 * 8 * 4
    assert measure(header()).compute == logits + mask + scores + activations
    assert measure(header(), flash_attention=True).compute == logits + mask + activations
    wide = measure(header(vocabulary_size=100_000))
    assert wide.compute == 2 * (3 * 100_000 * 4) + 3 * 16 * 8 * 4


def test_weights() -> None:
    plain, repacked = measure(header()), measure(header(), repack=True)
    assert (plain.weights, plain.reclaimable) == (1000, 0)
    assert (repacked.weights, repacked.reclaimable) == (1900, 900)
    assert repacked.required == plain.required == plain.total
    assert measure(header(tensor_bytes=5000)).weights == 5000  # a split model


# -- against llama.cpp ------------------------------------------------------------------------

SETTINGS = [
    (1000, 256, 33, False),
    (4096, 256, 33, False),
    (4096, 512, 1, False),
    (4096, 16, 16, False),
    (4096, 256, 33, True),
    (8192, 64, 64, True),
]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, "edgespec.llama")

    def megabytes(kind: str) -> float:
        pattern = re.compile(rf"{kind} buffer size =\s*([\d.]+) MiB")
        found = [float(m[1]) for m in map(pattern.search, caplog.messages) if m]
        caplog.clear()
        return sum(found)

    return megabytes


def test_as_llama_cpp_allocates(default_model: Path, logged: Any) -> None:
    facts = read_header(default_model)
    with Model(default_model, ModelOptions(repack=False)) as model:
        assert 0.9 <= logged("model") / (measure(facts).weights / MIB) <= 1.0
        for length, batch, outputs, flash in SETTINGS:
            options = ContextOptions(
                length=length, batch=batch, outputs=outputs, flash_attention=flash
            )
            expected = measure(
                facts, context=length, batch=batch, outputs=outputs, flash_attention=flash
            )
            with Context(model, options):
                lines = logged("(?:KV|compute)")
            handed_out = outputs * facts.vocabulary_size * 4
            compute = (expected.compute - handed_out) / MIB
            kv_cache = expected.kv_cache / MIB
            assert lines - 0.1 <= compute + kv_cache <= lines + 13, (length, batch, outputs, flash)


def test_resident_memory(default_model: Path) -> None:
    facts = read_header(default_model)
    process = psutil.Process()
    options = ContextOptions(length=512, batch=256, outputs=8)
    with Model(default_model, ModelOptions(repack=False)) as model:
        before = process.memory_info().rss
        with Context(model, options) as context:
            context.evaluate(model.vocabulary.tokenize("word " * 500)[:500], 8)
            grown = process.memory_info().rss - before
    expected = measure(facts, context=512, batch=256, outputs=8)
    assert grown <= (expected.kv_cache + expected.compute) * 1.1 + 8 * MIB


# -- refusing ---------------------------------------------------------------------------------

BIG = header(
    size_bytes=4 << 30, tensor_bytes=4 << 30, embedding_length=2048, block_count=24,
    head_count=16, head_count_kv=(8,) * 24, key_length=128, value_length=128,
    vocabulary_size=100_000,
)  # fmt: skip


def demand(of: GGUFHeader) -> memory.Demand:
    return lambda context: measure(of, context=context, batch=256, outputs=9)


def test_enough() -> None:
    require({"big": demand(BIG)}, 4096, 8 << 30)
    require({"small": demand(header())}, 512)


def test_refusal_names_the_numbers_and_what_fits() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        require({"big.gguf": demand(BIG)}, 16384, 5 << 30)
    assert re.fullmatch(
        r"big\.gguf needs 5\.\d GiB \(weights 4\.0 GiB, KV cache 1\.5 GiB, compute \d+\.\d MiB\), "
        r"5\.0 GiB is free: try --ctx 8192, or a smaller quantization",
        str(caught.value),
    )


def test_without_the_draft() -> None:
    models = {"big.gguf": demand(BIG), "draft.gguf": demand(BIG)}
    with pytest.raises(InsufficientMemoryError, match=r"and draft\.gguf need .*--draft none, or"):
        require(models, 4096, 5 << 30)
    with pytest.raises(InsufficientMemoryError, match=r"--draft none --ctx 8192, or"):
        require(models, 16384, 5 << 30)


def test_nothing_fits() -> None:
    with pytest.raises(InsufficientMemoryError, match="choose a smaller model"):
        require({"big.gguf": demand(BIG)}, 4096, 1 << 30)


@given(
    context=st.integers(1, 200_000),
    available=st.integers(3 << 30, 12 << 30),
    drafts=st.integers(0, 1),
)
def test_the_advice_is_right(context: int, available: int, drafts: int) -> None:
    models = {"target": demand(BIG), "draft": demand(header())}
    if not drafts:
        del models["draft"]
    advice = refusal(models, context, available)
    if not advice:
        assert sum(item(context).required for item in models.values()) <= available
        return
    if "--draft none" in advice or "smaller model" in advice:
        assert refusal(models, 512, available) or context <= 512
        models = {"target": demand(BIG)}
    advised = re.search(r"--ctx (\d+)", advice)
    if advised is None:
        enough = "--draft none" in advice
        assert bool(refusal(models, context, available)) is not enough
        assert enough or context <= 512 or refusal(models, 512, available)
        return
    length = int(advised[1])
    power = length & (length - 1) == 0
    longer = length * 3 // 2 if power else length * 4 // 3
    assert 512 <= length < context
    assert power or length % 3 == 0
    assert not refusal(models, length, available)
    assert longer >= context or refusal(models, longer, available)


def refusal(models: dict[str, memory.Demand], context: int, available: int) -> str:
    try:
        require(models, context, available)
    except InsufficientMemoryError as error:
        return str(error)
    return ""


# -- control groups ---------------------------------------------------------------------------


def test_version_2_group_and_its_parents(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("10\n")
    (inner.parent / "memory.max").write_text("5000\n")
    (inner.parent / "memory.current").write_text("3000\n")
    (inner.parent / "memory.stat").write_text("anon 1\ninactive_file 500\n")
    membership = tmp_path / "cgroup"
    membership.write_text("0::/a/b\n")
    assert list(memory._cgroup_rooms(membership, tmp_path)) == [2500]


def test_version_1_group(tmp_path: Path) -> None:
    group = tmp_path / "memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("5000\n")
    (group / "memory.usage_in_bytes").write_text("3000\n")
    membership = tmp_path / "cgroup"
    membership.write_text("9:name=systemd:/\n4:cpu,memory:/docker/not-here\n0::/\n")
    assert list(memory._cgroup_rooms(membership, tmp_path)) == [2000]


def test_no_groups(tmp_path: Path) -> None:
    assert list(memory._cgroup_rooms(tmp_path / "missing", tmp_path)) == []
    (tmp_path / "odd").write_text("odd\n\n1:memory\n")
    assert list(memory._cgroup_rooms(tmp_path / "odd", tmp_path)) == []


def test_available_memory_is_no_more_than_the_system_has() -> None:
    assert 0 < memory.available_memory() <= psutil.virtual_memory().total


def test_bandwidth_is_that_of_a_memory() -> None:
    assert 1e8 < memory_bandwidth(1) < 1e12


def test_a_token_reads_all_weights() -> None:
    assert expected_speed(1_000_000_000, 20_000_000_000) == 18.0
