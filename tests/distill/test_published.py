"""Published Medusa heads, from a safetensors file to a draft; and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.backend import open_heads
from edgespec.cli.main import main
from edgespec.errors import UsageError
from edgespec.gguf.header import read_header
from tests.built_models import WIDTH

TOKENS = 260
DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8"}


def packed(values: np.ndarray, kind: str) -> bytes:
    if kind == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype(DTYPES[kind]).tobytes()


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (kind, values) in tensors.items():
        data = packed(values, kind)
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def heads(
    prefix: str = "medusa_head.", kind: str = "F32", count: int = 3, tokens: int = TOKENS
) -> dict[str, tuple[str, np.ndarray]]:
    random = np.random.default_rng(0)
    found: dict[str, tuple[str, np.ndarray]] = {"step": ("I64", np.zeros(()))}
    for head in range(count):
        for name, shape in (
            ("0.linear.weight", (WIDTH, WIDTH)),
            ("0.linear.bias", (WIDTH,)),
            ("1.weight", (tokens, WIDTH)),
        ):
            values = random.normal(0, WIDTH**-0.5, shape).astype(np.float32)
            found[f"{prefix}{head}.{name}"] = (kind, values)
    return found


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["distill", *map(str, words), "--kind", "medusa"])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.parametrize(
    ("prefix", "kind", "vocabulary"),
    [("medusa_head.", "F32", 100), ("", "F16", 512), ("medusa_head.", "BF16", 64)],
)
def test_converted_heads_compute_what_the_published_ones_do(
    prefix: str,
    kind: str,
    vocabulary: int,
    toy_target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tensors = heads(prefix, kind)
    source = write(tmp_path / "heads.safetensors", tensors)
    output = tmp_path / "made" / "draft.gguf"
    status, said = run(
        capsys, toy_target, "-o", output, "--from", source, "--vocabulary", vocabulary
    )
    assert status == 0, said
    assert "3 heads of heads.safetensors" in said
    header = read_header(output)
    ids = header.medusa.target_ids
    assert len(ids) == min(vocabulary, TOKENS) and (np.diff(ids) > 0).all()
    target = read_header(toy_target)
    assert {target.bos_token_id, target.eos_token_id} <= set(ids.tolist())
    assert header.medusa.target_checksum == target.tokens_sha256

    x = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32)
    opened = open_heads(header, 1, ours=True)
    opened.state[:] = x
    opened.compute()
    for head in range(3):
        w, b, o = (
            tensors[f"{prefix}{head}.{part}"][1].astype(np.float64)
            for part in ("0.linear.weight", "0.linear.bias", "1.weight")
        )
        inner = w @ x + b
        expected = (o @ (x + inner / (1 + np.exp(-inner))))[ids]
        assert np.abs(opened.logits[head] - expected).max() < 0.02 * np.abs(expected).max()
    opened.close()

    answers = []
    for draft in ("none", str(output)):
        choices = EngineOptions(draft=draft, k=3 if draft != "none" else None, threads=1)
        with Engine(toy_target, choices) as engine:
            sampling = SamplingParameters(temperature=0.0)
            stream = engine.generate("Some text", sampling, GenerationLimits(max_tokens=24))
            answers.append(stream.result.tokens)
            assert draft == "none" or stream.statistics.proposed > 0
    assert answers[0] == answers[1]


def test_the_most_frequent_tokens_of_a_work_folder_are_kept(
    toy_target: Path, corpus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgespec.registry.cache import sha256_of

    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "text").symlink_to(corpus.folder)
    facts = json.loads((corpus.folder / "corpus.json").read_text())
    counts = np.zeros(TOKENS, np.int64)
    for each in corpus.part(held_out=False):
        counts += np.bincount(corpus.rows("tokens", each)[each.prompt :], minlength=TOKENS)
    source = write(tmp_path / "heads.safetensors", heads())
    words = ["--from", source, "--vocabulary", 64, "--work", tmp_path / "work"]
    output = tmp_path / "draft.gguf"
    try:
        known = {**facts, "target": sha256_of(toy_target)}
        (corpus.folder / "corpus.json").write_text(json.dumps(known))
        assert run(capsys, toy_target, "-o", output, *words)[0] == 0
    finally:
        (corpus.folder / "corpus.json").write_text(json.dumps(facts))
    kept = read_header(output).medusa.target_ids
    left = np.setdiff1d(np.arange(TOKENS), kept)
    header = read_header(toy_target)
    ordinary = np.setdiff1d(kept, [header.bos_token_id, header.eos_token_id])
    assert counts[ordinary].min() >= counts[left].max()


def without(name: str) -> dict[str, tuple[str, np.ndarray]]:
    return {key: value for key, value in heads().items() if not key.endswith(name)}


SEVERAL = {**heads(), "medusa_head.0.1.linear.weight": ("F32", np.zeros((WIDTH, WIDTH)))}
FLAT = {**heads(), "medusa_head.1.1.weight": ("F32", np.zeros(TOKENS * WIDTH))}
ASKEW = {**heads(), "medusa_head.1.0.linear.bias": ("F32", np.zeros(WIDTH + 1))}
NARROW = {
    "medusa_head.0.0.linear.weight": ("F32", np.zeros((8, 8))),
    "medusa_head.0.0.linear.bias": ("F32", np.zeros(8)),
    "medusa_head.0.1.weight": ("F32", np.zeros((TOKENS, 8))),
}


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"other": ("F32", np.zeros(3))}, "has no Medusa heads"),
        (without("1.0.linear.bias"), "no tensor medusa_head.1.0.linear.bias"),
        (without("2.1.weight"), "no tensor medusa_head.2.1.weight"),
        (SEVERAL, "several residual blocks"),
        (FLAT, "medusa_head.1.1.weight of heads.safetensors has the wrong shape"),
        (ASKEW, "do not fit each other"),
        (NARROW, "of width 8, the target's have 64"),
        (heads(tokens=TOKENS - 1), "they have 259 tokens, the target 260"),
        (heads(count=17), "more than 16 heads"),
    ],
)
def test_files_without_such_heads_are_refused_in_one_line(
    tensors: Any,
    complaint: str,
    toy_target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = write(tmp_path / "heads.safetensors", tensors)
    status, said = run(capsys, toy_target, "-o", tmp_path / "draft.gguf", "--from", source)
    assert status != 0 and complaint in said and "Traceback" not in said
    assert not (tmp_path / "draft.gguf").exists()


def described(**facts: Any) -> bytes:
    usual = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"x": {**usual, **facts}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        (1 << 63).to_bytes(8, "little") + b"{}",
        (3).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{\xff",
        (1 << 20).to_bytes(8, "little") + b"[" * (1 << 20),
        (8).to_bytes(8, "little") + b'{"x": 1}',
        described(shape=[3]),
        described(shape=[-2]),
        described(shape=[True, 2]),
        described(shape=[2.0]),
        described(shape=[1 << 40, 1 << 40]),
        described(shape=None),
        described(data_offsets=[0, 9]),
        described(data_offsets=[8, 16]),
        described(data_offsets=[-8, 0]),
        described(data_offsets=[8, 0]),
        described(data_offsets=[0]),
        described(data_offsets=["0", "8"]),
    ],
)
def test_damaged_files_are_refused(data: bytes, tmp_path: Path) -> None:
    from edgespec.distill.published import read_safetensors

    path = tmp_path / "heads.safetensors"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"heads\.safetensors"):
        read_safetensors(path)


def test_another_kind_is_refused(
    toy_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            ["distill", str(toy_target), "-o", str(tmp_path / "d.gguf"), "--from", "h.safetensors"]
        )
    assert ended.value.code == 2
    assert "add --kind medusa" in capsys.readouterr().err
