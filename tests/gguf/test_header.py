import struct
import sys
import time

import gguf
import numpy as np
import pytest

from edgespec.errors import ModelFileError
from edgespec.gguf.header import read_header
from edgespec.gguf.reader import BoundedReader, split_strings


def refuse(path, complaint):
    with pytest.raises(ModelFileError, match=complaint) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "unsaid"),
    [
        ({"types": None}, 2),
        ({"types": [1] * 16}, 1),
        ({"types": [1] * 16, "change": lambda writer: writer.add_eos_token_id(2)}, 0),
        ({"types": [1] * 16, "change": lambda writer: writer.add_eot_token_id(2)}, 0),
    ],
)
def test_what_a_tokenizer_needs_and_lacks(make_gguf, options, unsaid):
    assert len(read_header(make_gguf(**options)).unsaid) == unsaid


def test_facts(make_gguf):
    def change(writer):
        writer.add_chat_template("{{ messages }}")
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_rope_freq_base(10000.0)
        writer.add_name("Tiny")

    path = make_gguf(change=change, sliding_window=0)
    header = read_header(path)
    assert header.path == path
    assert header.size_bytes == path.stat().st_size
    assert (header.architecture, header.name, header.quantization) == ("llama", "Tiny", "F32")
    assert header.parameter_count == 16 * 8 + 8
    assert header.tensor_bytes == 4 * header.parameter_count
    assert (header.context_length, header.embedding_length, header.block_count) == (64, 8, 1)
    assert (header.head_count, header.head_count_kv) == (2, (1,))
    assert (header.key_length, header.value_length) == (4, 4)
    assert (header.tokenizer_model, header.tokenizer_pre) == ("gpt2", "default")
    assert (header.bos_token_id, header.eos_token_id, header.eot_token_id) == (1, 2, None)
    assert header.chat_template == "{{ messages }}"
    assert header.sliding_window is None
    assert header.vocabulary_size == len(header.tokens()) == 16
    assert header.tokens()[:3] == ["<unk>", "<s>", "</s>"]
    assert header.token_types() == [1] * 16


def test_reader_agrees_with_the_gguf_package(make_gguf):
    words = ["", "a", "é", "語", "😀" * 10]
    path = make_gguf(tokens=words, types=[3, 1, 1, 6, 5])
    ours, theirs = BoundedReader(path), gguf.GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        if field.types[-1] == gguf.GGUFValueType.STRING and len(field.types) == 2:
            texts = [
                str(text, "utf-8") for text in split_strings(ours.fields[name].parts[-1].tobytes())
            ]
            assert texts == field.contents()
        else:
            assert ours.fields[name].contents() == field.contents()
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.data_offset, mine.n_bytes) == (
            other.name,
            other.data_offset,
            other.n_bytes,
        )
        assert np.array_equal(mine.data, other.data)
    assert read_header(path).token_types() == [3, 1, 1, 6, 5]


def test_token_that_is_not_utf8(make_gguf):
    header = read_header(make_gguf(tokens=[b"a", b"\xff\xfe", b"c"]))
    assert header.tokens() == ["a", "\udcff\udcfe", "c"]


def test_large_vocabulary_is_read_quickly(make_gguf):
    words = [f"token {i}" for i in range(100_000)]
    path = make_gguf(tokens=words)
    start = time.perf_counter()
    header = read_header(path)
    assert time.perf_counter() - start < 1.0  # the gguf package's own reader takes two
    assert header.tokens() == words


def test_heads_of_each_layer(make_gguf):
    path = make_gguf(block_count=3, head_count=[2, 4, 2], head_count_kv=[1, 0, 2])
    header = read_header(path)
    assert (header.head_count, header.head_count_kv) == (4, (1, 0, 2))


def test_recurrent_model_needs_no_heads(make_gguf):
    path = make_gguf(
        arch="mamba",
        without=("head_count", "head_count_kv"),
        change=lambda writer: writer.add_ssm_state_size(16),
    )
    assert read_header(path).head_count == 0


def test_missing(tmp_path):
    refuse(tmp_path / "none.gguf", "no such file")
    refuse(tmp_path / ("x" * 300), "cannot be read|no such file")


def test_folder(tmp_path):
    refuse(tmp_path, "is a folder")


@pytest.mark.skipif(sys.platform == "win32", reason="has no device files")
def test_device():
    refuse("/dev/null", "not a regular file")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is empty"),
        (b"G", "not a GGUF"),
        (b"GGUF", "truncated"),
        (b"lmgg" + bytes(40), "old GGML"),
        (b"PK\x03\x04" + bytes(40), "PyTorch"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!DOCTYPE html>", "web page"),
        (b'{"model_type": "llama"}', "JSON"),
        (bytes(100), "not a GGUF"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 1, 1), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 99, 1, 1), "version 99"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 1, 1), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1), "no tensors"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 1), "cannot hold"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 63, 1), "claims"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 1 << 40), "claims"),
    ],
)
def test_foreign_or_nonsense(tmp_path, data, complaint):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    refuse(path, complaint)


def test_tensor_data_cut_off(make_gguf):
    path = make_gguf()
    path.write_bytes(path.read_bytes()[:-1])
    refuse(path, "truncated: it ends at byte")


def test_a_model_for_embeddings(make_gguf) -> None:
    """It has to be asked for; what its tokenizer needs is checked."""
    assert not read_header(make_gguf(), embedding=True).embeds
    pooled = read_header(make_gguf(arch="qwen3", pooling_type=3), embedding=True)
    assert (pooled.embeds, pooled.encoder, pooled.pooling) == (True, False, "last")
    encoder = read_header(make_gguf(arch="nomic-bert"), embedding=True)
    assert (encoder.embeds, encoder.encoder, encoder.embedding_pooling) == (True, True, "mean")
    with pytest.raises(ModelFileError, match="pooling_type is 9, which is not known"):
        read_header(make_gguf(pooling_type=9), embedding=True)
    with pytest.raises(ModelFileError, match="encoding only"):
        read_header(make_gguf(arch="t5encoder"), embedding=True)

    def words(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("bert")

    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.bos_token_id is missing"):
        read_header(make_gguf(arch="bert", change=words), embedding=True)
    with pytest.raises(ModelFileError, match="is one of encoders"):
        read_header(make_gguf(change=words), embedding=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tokens": None}, "no tokenizer"),
        ({"arch": "bert"}, "cannot generate text"),
        ({"arch": "nomic-bert"}, "cannot generate text"),
        ({"pooling_type": 3, "arch": "qwen3"}, "cannot generate text"),
        ({"change": lambda w: w.add_causal_attention(False)}, "cannot generate text"),
        ({"change": lambda w: w.add_string("general.type", "adapter")}, "no model by itself"),
        ({"without": ("token_embd",)}, "no tensor token_embd"),
        ({"embedding": (15, 8)}, "8 x 15"),
        ({"embedding": (16, 4)}, "4 x 16"),
        ({"without": ("block_count",)}, "no llama.block_count"),
        ({"block_count": 0}, "block_count"),
        ({"block_count": 513}, "block_count"),
        ({"without": ("context_length",)}, "no llama.context_length"),
        ({"context_length": 0}, "context_length"),
        ({"embedding_length": 0}, "embedding_length"),
        ({"without": ("head_count",)}, "head_count must"),
        ({"head_count": 0}, "head_count must"),
        ({"head_count_kv": 0}, "head_count_kv must"),
        ({"head_count": 3}, "3 heads"),
        ({"head_count": 4, "head_count_kv": 3}, "3 KV heads"),
        ({"block_count": 2, "head_count_kv": [1]}, "1 entries for 2 layers"),
        ({"types": [1] * 15}, "15 entries"),
        ({"change": lambda w: w.add_token_scores([0.0] * 17)}, "17 entries"),
        ({"change": lambda w: w.add_array("tokenizer.ggml.merges", [1, 2])}, "merges"),
        ({"change": lambda w: w.add_eos_token_id(16)}, "eos_token_id is 16"),
        ({"change": lambda w: w.add_bos_token_id(1 << 20)}, "bos_token_id"),
        ({"change": lambda w: w.add_rope_freq_base(float("nan"))}, "freq_base is nan"),
        ({"change": lambda w: w.add_rope_freq_base(float("inf"))}, "freq_base is inf"),
        ({"change": lambda w: w.add_layer_norm_rms_eps(0.0)}, "rms_epsilon is 0"),
        ({"change": lambda w: w.add_layer_norm_rms_eps(-1.0)}, "rms_epsilon is -1"),
        ({"change": lambda w: w.add_rope_dimension_count(6)}, "6 of 4"),
        ({"change": lambda w: w.add_rope_dimension_count(3)}, "3 of 4"),
        ({"change": lambda w: w.add_expert_used_count(2)}, "2 of 0 experts"),
        ({"change": lambda w: w.add_expert_count(2)}, "0 of 2 experts"),
        ({"change": lambda w: w.add_string("llama.expert_count", "2")}, "not a whole number"),
        ({"change": lambda w: w.add_uint32("tokenizer.chat_template", 1)}, "chat_template"),
        ({"change": lambda w: w.add_uint32("general.alignment", 0)}, "damaged"),
        ({"change": lambda w: w.add_uint32("general.alignment", 3)}, "damaged"),
        ({"arch": "../x\x1b[2J"}, "architecture is called"),
    ],
)
def test_unusable_model(make_gguf, options, complaint):
    refuse(make_gguf(**options), complaint)


def test_absent_token_is_none(make_gguf):
    path = make_gguf(change=lambda writer: writer.add_bos_token_id(0xFFFFFFFF))
    assert read_header(path).bos_token_id is None


def test_file_type_unknown_to_the_gguf_package(make_gguf):
    path = make_gguf()
    key = b"general.file_type" + struct.pack("<II", 4, 0)
    path.write_bytes(path.read_bytes().replace(key, key[:-4] + struct.pack("<I", 999)))
    assert read_header(path).quantization == "F32"


def test_key_that_is_there_twice(make_gguf):
    def change(writer):
        writer.add_uint32("some.key", 1)
        writer.add_uint32("same.key", 1)

    path = make_gguf(change=change)
    path.write_bytes(path.read_bytes().replace(b"some.key", b"same.key"))
    refuse(path, "'same.key' occurs twice")


def test_split_model(make_gguf):
    def part(number):
        def change(writer):
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", 2)

        return change

    first = make_gguf("m-00001-of-00002.gguf", change=part(0))
    refuse(first, "m-00002-of-00002.gguf is missing")
    second = make_gguf("m-00002-of-00002.gguf", change=part(1))
    assert str(first) in refuse(second, "part 2 of 2: give the first")
    assert read_header(first).tensor_bytes == 2 * 4 * (16 * 8 + 8)
    refuse(make_gguf("renamed.gguf", change=part(0)), "its name must end -00001-of-00002.gguf")
