"""What would end the process in llama.cpp is refused by the header's check, in one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec.errors import ModelFileError
from edgespec.gguf.checks import check_key_heads, check_texts
from edgespec.gguf.header import read_header
from edgespec.gguf.reader import MalformedError

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ALONE = [f"\\x{byte:02x}" for byte in range(256)]
MakeGGUF = Callable[..., Path]


def block(texts: list[str]) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<Q", len(text)) + text for text in encoded)


@pytest.mark.parametrize(
    ("model", "texts"),
    [
        ("llama", ["<unk>", *BYTES, "a"]),
        ("llama", ["<unk>", *BYTES[:97], "a", *BYTES[98:]]),
        ("plamo2", BYTES),
        ("gpt2", ["a", "", "", "b"]),  # llama.cpp gives names to empty ones
        ("rwkv", [*ALONE, "\\\\x", "\\n\\t", "a\\'b", "\\xe4\\xb8"]),
    ],
)
def test_a_sound_vocabulary_passes(model: str, texts: list[str]) -> None:
    check_texts(model, block(texts), np.zeros(len(texts), np.float32))


@pytest.mark.parametrize(
    ("model", "texts", "said"),
    [
        ("gpt2", ["a", "b", "a"], "1 of its tokens occur twice"),
        ("gpt2", ["a" * 4097], "token of 4,097 bytes"),
        ("t5", ["a" * (1 << 20)], "token of 1,048,576 bytes"),
        ("llama", ["a"], "no token for the byte 0"),
        ("llama", [*BYTES[:200], *BYTES[201:]], "no token for the byte 200"),
        ("plamo2", [*BYTES[:97], "a", *BYTES[98:]], "no token for the byte 97"),
        ("rwkv", [*ALONE, "a\\"], "inside an escape"),
        ("rwkv", [*ALONE, "a\\x"], "inside an escape"),
        ("rwkv", [*ALONE, "a\\x4"], "inside an escape"),
        ("rwkv", [*ALONE, "a\\x4g"], "inside an escape"),
        ("rwkv", [*ALONE[:97], *ALONE[98:], "ab"], "no token for the byte 97"),
        ("rwkv", [*ALONE[:10], *ALONE[11:], "\\nb"], "no token for the byte 10"),
    ],
)
def test_a_vocabulary_that_ends_the_tokenizer_is_refused(
    model: str, texts: list[str], said: str
) -> None:
    with pytest.raises(MalformedError, match=said):
        check_texts(model, block(texts), None)


def test_scores_that_are_not_numbers_are_refused(make_gguf: MakeGGUF) -> None:
    scores = [0.0] * 15 + [float("nan")]
    path = make_gguf(change=lambda writer: writer.add_token_scores(scores))
    with pytest.raises(ModelFileError, match="scores of its tokens are not numbers"):
        read_header(path)


def uint(key: str, value: int) -> Callable[[gguf.GGUFWriter], None]:
    return lambda writer: writer.add_uint32(key, value)


def pairs(**values: int) -> Callable[[gguf.GGUFWriter], None]:
    def add(writer: gguf.GGUFWriter) -> None:
        for key, value in values.items():
            writer.add_uint32(f"llama.{key}", value)

    return add


def pattern(value: int | list[bool]) -> Callable[[gguf.GGUFWriter], None]:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(16)
        writer.add_sliding_window_pattern(value)

    return add


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (pairs(**{"rope.dimension_count": 0}), "0 of 4 dimensions"),
        (pairs(**{"rope.dimension_count": 3}), "3 of 4 dimensions"),
        (pairs(**{"rope.dimension_count": 6}), "6 of 4 dimensions"),
        (pairs(**{"rope.dimension_count_swa": 0}), "0 of 4 dimensions"),
        (pairs(**{"rope.dimension_count_swa": 5}), "5 of 4 dimensions"),
        (pairs(**{"attention.key_length_swa": 2, "rope.dimension_count_swa": 4}), "4 of 2 dim"),
        (lambda writer: writer.add_string("llama.rope.scaling.type", "\x1b[1mx"), "scaling.type"),
        (pairs(nextn_predict_layers=1), "1 of its 1 layers predict"),
        (pairs(nextn_predict_layers=1 << 31), "nextn_predict_layers"),
        (pairs(expert_group_count=5), "0 of 5 groups of 0 experts"),
        (pairs(expert_group_count=1), "0 of 1 groups of 0 experts"),
        (pairs(expert_count=4, expert_used_count=2, expert_group_count=4), "groups of 4 experts"),
        (
            pairs(
                expert_count=6,
                expert_used_count=2,
                expert_group_count=4,
                expert_group_used_count=2,
            ),
            "2 of 4 groups of 6 experts",
        ),
        (
            pairs(
                expert_count=8,
                expert_used_count=2,
                expert_group_count=4,
                expert_group_used_count=4,
            ),
            "4 of 4 groups of 8 experts",
        ),
        (pairs(expert_count=4), "0 of 4 experts"),
        (pairs(expert_used_count=1), "1 of 0 experts"),
        (pattern(1), "no layer has the window"),
        (pattern([False]), "no layer has the window"),
    ],
)
def test_counts_that_do_not_fit_are_refused(
    make_gguf: MakeGGUF, change: Callable[[gguf.GGUFWriter], None], said: str
) -> None:
    with pytest.raises(ModelFileError, match=said) as raised:
        read_header(make_gguf(change=change))
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


@pytest.mark.parametrize("sections", [None, [0, 0, 0, 0]])
@pytest.mark.parametrize("arch", ["paddleocr", "qwen2vl"])
def test_positions_without_parts_are_refused(
    make_gguf: MakeGGUF, arch: str, sections: list[int] | None
) -> None:
    def parts(writer: gguf.GGUFWriter) -> None:
        if sections:
            writer.add_rope_dimension_sections(sections)

    with pytest.raises(ModelFileError, match="says that no dimension is rotated"):
        read_header(make_gguf(arch=arch, change=parts))
    whole = make_gguf(arch=arch, change=lambda w: w.add_rope_dimension_sections([1, 1, 0, 0]))
    assert read_header(whole).architecture == arch


def test_a_model_of_experts_without_any_is_refused(make_gguf: MakeGGUF) -> None:
    with pytest.raises(ModelFileError, match="it uses 0 of 0 experts"):
        read_header(make_gguf(arch="smallthinker"))


@pytest.mark.parametrize(
    "change",
    [
        pairs(**{"rope.dimension_count": 4}),
        pairs(**{"rope.dimension_count": 2, "rope.dimension_count_swa": 4}),
        lambda writer: writer.add_string("llama.rope.scaling.type", "yarn"),
        pairs(nextn_predict_layers=0),
        pairs(expert_count=4, expert_used_count=2, expert_group_count=1),
        pairs(expert_count=8, expert_used_count=2, expert_group_count=4, expert_group_used_count=2),
        pattern(2),
        pattern([True]),
        uint("llama.attention.sliding_window_pattern", 1),  # without a window
    ],
)
def test_counts_that_fit_pass(
    make_gguf: MakeGGUF, change: Callable[[gguf.GGUFWriter], None]
) -> None:
    assert read_header(make_gguf(change=change)).head_count == 2


def tensor(name: str, data: np.ndarray, kind: Any = None) -> Callable[[gguf.GGUFWriter], None]:
    return lambda writer: writer.add_tensor(name, data, raw_dtype=kind)


@pytest.mark.parametrize(
    "change",
    [
        tensor("blk.0.attn_norm.weight", np.ones(8, np.float16)),
        tensor("blk.0.attn_q.bias", np.ones(8, np.int32)),
        tensor("rope_freqs.weight", np.ones(8, np.int32)),
        tensor("blk.0.attn_q.weight", np.ones((8, 8), np.int16)),
        tensor("blk.0.attn_q.weight", np.ones((8, 8), np.float64)),
        tensor("blk.0.ssm_conv1d.weight", np.ones((8, 4), np.float16)),
        tensor("blk.0.ssm_a", np.ones((8, 4), np.float16)),
        tensor("blk.0.shortconv.conv.weight", np.ones((8, 4), np.float16)),
    ],
)
def test_types_that_nothing_computes_with_are_refused(
    make_gguf: MakeGGUF, change: Callable[[gguf.GGUFWriter], None]
) -> None:
    with pytest.raises(ModelFileError, match="has the type"):
        read_header(make_gguf(change=change))


def test_a_table_of_a_head_may_hold_integers(make_gguf: MakeGGUF) -> None:
    read_header(make_gguf(change=tensor("d2t", np.arange(8, dtype=np.int64))))


@pytest.mark.parametrize(("counts", "fits"), [([2, 1], True), ([1, 2], False), ([2, 0], True)])
def test_heads_that_differ_between_layers_fit_their_tensors(counts: list[int], fits: bool) -> None:
    shapes = {"blk.0.attn_k.weight": (64, 32), "blk.1.attn_k.weight": (64, 16)}
    tensors = [SimpleNamespace(name=name, shape=shape) for name, shape in shapes.items()]
    with nullcontext() if fits else pytest.raises(MalformedError, match=r"blk\.0"):
        check_key_heads(counts, (16,), tensors)


@pytest.mark.parametrize("alignment", [1, 2])
def test_an_alignment_below_four_bytes_is_refused(make_gguf: MakeGGUF, alignment: int) -> None:
    path = make_gguf(change=lambda writer: writer.add_uint32("general.alignment", alignment))
    with pytest.raises(ModelFileError, match="alignment"):
        read_header(path)
