"""Files that are a draft for one target: what is read of them, and what is refused unopened."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from edgespec.errors import ModelFileError, PairingError
from edgespec.gguf.header import read_header
from edgespec.registry.pairing import check_pairing
from edgespec.runtime.memory import estimate
from tests.gguf.conftest import WIDTH, WORDS, write_gguf

INT32, ARRAY = gguf.GGUFValueType.INT32, gguf.GGUFValueType.ARRAY
TABLE = [3, 5, -1, 9, 15, -1]


def reduced(
    path, *, table=TABLE, unknown=2, size=6, model="none", item=INT32, rows=None, change=None
):
    def keys(writer):
        if model:
            writer.add_tokenizer_model(model)
        if size is not None:
            writer.add_vocab_size(size)
        writer.add_key_value("edgespec.draft_to_target", table, ARRAY, item)
        if unknown is not None:
            writer.add_uint32("edgespec.unknown_token", unknown)
        if change:
            change(writer)

    return write_gguf(path, tokens=None, embedding=(rows or len(table), WIDTH), change=keys)


def eagle(path, *, d2t=(3, 5, 9), without=(), change=None, layers=(0, 1, 2), **values):
    """A head for targets of 16 tokens; tensors as a dictionary of names and shapes, or arrays."""
    tensors = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "d2t": None if d2t is None else np.asarray(d2t, np.int64),
        "output.weight": (len(d2t if d2t is not None else WORDS), WIDTH),
        **values.pop("tensors", {}),
    }

    def keys(writer):
        if layers is not None:
            writer.add_array("eagle3.target_layers", layers)
        for name, value in tensors.items():
            if value is not None and name not in without:
                array = np.zeros(value, np.float32) if isinstance(value, tuple) else value
                writer.add_tensor(name, array)
        if change:
            change(writer)

    values = {"target_hidden_size": WIDTH, **values}
    return write_gguf(path, arch="eagle3", change=keys, without=without, **values)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "draft.gguf"


@pytest.fixture
def target(make_gguf):
    def make(**options):
        return read_header(make_gguf(block_count=4, **options))

    return make


# -- a reduced vocabulary -----------------------------------------------------------------------


def test_a_reduced_vocabulary_is_read(path, target):
    header = read_header(reduced(path))
    assert header.reduced.target_ids.tolist() == TABLE
    assert (header.reduced.unknown, header.reduced.known) == (2, 4)
    assert header.vocabulary_size == 6
    assert header.tokens() == []
    assert header.eagle is None
    pairing = check_pairing(target(), header)
    assert pairing.shared_vocabulary == 4
    assert pairing.reason == "it has 4 of the target's 16 tokens"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"size": 7}, "has 6 entries for 7 tokens"),
        ({"size": None}, "no llama.vocab_size"),
        ({"table": [3, 5, -2, 9, 15, -1]}, "has the entry -2"),
        ({"table": [3, 5, -1, 3, 15, -1]}, "names a token twice"),
        ({"table": [-1] * 6}, "names no token"),
        ({"table": [3, 5, -1, 1 << 30, 15, -1]}, "does not exist"),
        ({"item": gguf.GGUFValueType.FLOAT32}, "not a list of 32-bit integers"),
        ({"item": gguf.GGUFValueType.INT64}, "not a list of 32-bit integers"),
        ({"unknown": 6}, "from 0 to 5"),
        ({"unknown": 0}, "stands for a token of the target"),
        ({"unknown": None}, "no edgespec.unknown_token"),
        ({"model": "gpt2"}, "a tokenizer of its own"),
        ({"model": None}, "a tokenizer of its own"),
    ],
)
def test_a_reduced_vocabulary_that_makes_no_sense(path, changed, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        read_header(reduced(path, **changed))


def shares(*values, key="edgespec.alpha_greedy", other="edgespec.alpha_sampled"):
    def keys(writer):
        writer.add_array(key, list(values))
        writer.add_array(other, [0.25])

    return keys


def test_what_a_draft_says_of_its_acceptance(path):
    held_out = read_header(reduced(path, change=shares(0.5, 0.75))).held_out
    assert (held_out.greedy, held_out.sampled) == ((0.5, 0.75), (0.25,))
    assert read_header(reduced(path)).held_out is None
    half = shares(0.5, key="edgespec.alpha_sampled", other="edgespec.more")
    assert read_header(reduced(path, change=half)).held_out is None


def test_prompts_by_another_hand_go_before(path):
    def keys(writer):
        shares(0.5)(writer)
        for name in ("greedy", "sampled"):
            writer.add_array(f"edgespec.alpha_tasks_{name}", [0.125])

    assert read_header(reduced(path, change=keys)).held_out.greedy == (0.125,)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_acceptance_that_makes_no_sense(path, value):
    with pytest.raises(
        ModelFileError, match=r"alpha_greedy has entries that are not between 0 and 1"
    ):
        read_header(reduced(path, change=shares(0.5, value)))


def test_a_matrix_of_another_size(path):
    with pytest.raises(ModelFileError, match=r"token_embd.weight is 8 x 5, .* say 8 x 6"):
        read_header(reduced(path, rows=5))


def test_a_reduced_vocabulary_of_another_target(path, target):
    def made_for(writer):
        writer.add_uint32("edgespec.target_vocabulary_size", 16)
        writer.add_string("edgespec.target_tokens_sha256", target().tokens_sha256.upper())

    header = read_header(reduced(path, change=made_for))
    assert check_pairing(target(), header).shared_vocabulary == 4
    with pytest.raises(PairingError, match="a target of 16 tokens, this one has 17"):
        check_pairing(target(tokens=[*WORDS, "more"]), header)
    with pytest.raises(PairingError, match="other tokens"):
        check_pairing(target(tokens=[*WORDS[:-1], "other"]), header)
    bare = read_header(reduced(path))
    with pytest.raises(PairingError, match="proposes token 15, the target has 9"):
        check_pairing(target(tokens=WORDS[:9]), bare)
    with pytest.raises(PairingError, match="is a draft itself"):
        check_pairing(bare, target())


# -- EAGLE-3 heads ------------------------------------------------------------------------------


def test_a_head_is_read(path, target):
    header = read_header(eagle(path))
    assert header.eagle.layers == (0, 1, 2)
    assert header.eagle.target_width == WIDTH
    assert header.eagle.target_ids.tolist() == [3, 5, 9]
    assert not header.eagle.borrows_embedding
    assert not header.eagle.borrows_output
    assert "layers 0, 1, 2 and proposes 3 of its 16 tokens" in (
        check_pairing(target(), header).reason
    )
    assert check_pairing(target(), header).shared_vocabulary == 16


def test_memory_of_a_head_includes_its_targets_features(path):
    def compute(header, context):
        return estimate(
            header, context=context, batch=4, outputs=4, flash_attention=True, repack=False
        ).compute

    header = read_header(eagle(path))
    features = compute(header, 1000) - compute(replace(header, eagle=None), 1000)
    assert features == 4 * (3 * WIDTH * 1256 + 4 * 16)


def test_a_head_may_use_the_targets_matrices(path, target):
    header = read_header(eagle(path, d2t=None, without=("token_embd", "output.weight")))
    assert header.eagle.borrows_embedding
    assert header.eagle.borrows_output
    assert "proposes 16" in check_pairing(target(), header).reason


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"d2t": (3, 5, 16)}, "d2t names a token that does not exist"),
        ({"d2t": (3, 5, -1)}, "d2t names a token that does not exist"),
        ({"d2t": (3, 5, 3)}, "d2t names a token twice"),
        ({"tensors": {"d2t": np.array([3, 5, 9], np.int32)}}, "not a list of 64-bit"),
        ({"tensors": {"d2t": np.array([[3, 5, 9]] * 2, np.int64)}}, "not a list of 64-bit"),
        ({"tensors": {"d2t": np.array([3.0, np.nan, 9], np.float32)}}, "not a list of 64-bit"),
        ({"tensors": {"output.weight": (4, WIDTH)}}, "output.weight is 8 x 4, .* be 8 x 3"),
        ({"without": ("output.weight",)}, "d2t and no tensor output.weight"),
        ({"without": ("fc.weight",)}, "no tensor fc.weight"),
        ({"tensors": {"fc.weight": (WIDTH, 2 * WIDTH)}}, "fc.weight is 16 x 8"),
        ({"target_hidden_size": 2 * WIDTH}, "fc.weight is 24 x 8, and should be 48 x 8"),
        ({"layers": (0, 1)}, "does not name 3 layers"),
        ({"layers": None}, "does not name 3 layers"),
        ({"layers": ("0", "1", "2")}, "not a list of numbers"),
        ({"layers": (0.0, 1.0, 2.0)}, "does not name 3 layers"),
        ({"layers": (0, 1, -2)}, "out of range"),
        ({"layers": (0, 1, 100_000)}, "out of range"),
        ({"block_count": 2}, "block_count is 2"),
        ({"embedding_length_out": 4}, "embedding_length_out"),
        ({"embedding": (15, WIDTH)}, "token_embd.weight is 8 x 15"),
        ({"without": ("target_hidden_size",)}, "no eagle3.target_hidden_size"),
    ],
)
def test_a_head_that_makes_no_sense(path, changed, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        read_header(eagle(path, **changed))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda w: w.add_key_length(4), "different lengths"),
        (lambda w: (w.add_key_length(4), w.add_value_length(8)), "different lengths"),
        (lambda w: w.add_layer_norm_rms_eps(float("nan")), "epsilon is nan"),
        (lambda w: w.add_rope_freq_base(float("inf")), "freq_base is inf"),
        (lambda w: w.add_rope_dimension_count(3), "cannot be rotated"),
        (lambda w: (w.add_key_length(3), w.add_value_length(3)), "3 of 3 .* cannot be rotated"),
    ],
)
def test_numbers_that_llama_cpp_does_not_look_at(path, change, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        read_header(eagle(path, change=change))


def test_a_head_of_another_target(path, target):
    header = read_header(eagle(path, layers=(0, 1, 4)))
    with pytest.raises(PairingError, match="input of layer 4, the target's layers are 0 to 3"):
        check_pairing(target(), header)
    header = read_header(eagle(path))
    with pytest.raises(PairingError, match="token 7 is 'other' in the target"):
        check_pairing(target(tokens=[*WORDS[:7], "other", *WORDS[8:]]), header)
    wide = read_header(eagle(path, target_hidden_size=16, tensors={"fc.weight": (WIDTH, 3 * 16)}))
    with pytest.raises(PairingError, match="of width 16, the target's have 8"):
        check_pairing(target(), wide)
    borrowing = read_header(eagle(path, d2t=None, without=("token_embd", "output.weight")))
    with pytest.raises(PairingError, match="it has 16 tokens and the target 17"):
        check_pairing(target(tokens=[*WORDS, "[PAD16]"]), borrowing)


# -- Medusa heads -------------------------------------------------------------------------------


def medusa(path, *, count=2, width=WIDTH, table=(3, 5, 9), item=INT32, change=None, **tensors):
    """Heads for targets of 16 tokens; a tensor is given by its shape, or as an array, or None."""
    tensors = {name.replace("__", "."): value for name, value in tensors.items()}
    shapes = {
        "medusa.residual.weight": (2, WIDTH, WIDTH),
        "medusa.residual.bias": np.zeros(2 * WIDTH, np.float32),
        "output.weight": (3, WIDTH),
        **tensors,
    }
    writer = gguf.GGUFWriter(path, "medusa")
    if count is not None:
        writer.add_uint32("medusa.head_count", count)
    writer.add_embedding_length(width)
    if table is not None:
        writer.add_key_value("edgespec.draft_to_target", list(table), ARRAY, item)
    if change:
        change(writer)
    for name, value in shapes.items():
        if value is not None:
            array = np.zeros(value, np.float16) if isinstance(value, tuple) else value
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_medusa_heads_are_read(path, target):
    header = read_header(medusa(path, change=shares(0.5)))
    heads = header.medusa
    assert (heads.count, heads.target_width, heads.target_ids.tolist()) == (2, WIDTH, [3, 5, 9])
    assert heads.shared_output and not heads.projected
    assert header.drafts_only and header.held_out.greedy == (0.5,)
    assert (header.vocabulary_size, header.tokens()) == (3, [])
    pairing = check_pairing(target(), header)
    assert pairing.shared_vocabulary == 3
    assert pairing.reason == "2 Medusa heads that propose 3 of the target's 16 tokens"
    full = {"medusa__project__weight": (2, WIDTH, WIDTH), "output__weight": (2, 3, WIDTH)}
    heads = read_header(medusa(path, **full)).medusa
    assert heads.projected and not heads.shared_output


def test_memory_of_medusa_heads_is_their_file_and_their_logits(path):
    header = read_header(medusa(path))
    found = estimate(header, context=4096, batch=4, outputs=4, flash_attention=True, repack=True)
    assert found.total == header.size_bytes + 4 * 2 * 3


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"count": None}, "no medusa.head_count"),
        ({"count": 0}, "from 1 to 16"),
        ({"count": 17}, "from 1 to 16"),
        ({"count": 3}, "should be 8 x 8 x 3"),
        ({"width": 12}, "not a multiple of 8"),
        ({"width": 16}, "should be 16 x 16 x 2"),
        ({"table": None}, "not a list of 32-bit integers"),
        ({"table": (3, 5, -1)}, "does not exist"),
        ({"table": (3, 5, 5)}, "names a token twice"),
        ({"table": (3, 5)}, "should be 8 x 2"),
        ({"item": gguf.GGUFValueType.INT64}, "not a list of 32-bit integers"),
        ({"medusa__residual__weight": None}, "no tensor medusa.residual.weight"),
        ({"medusa__residual__weight": (2, WIDTH, 16)}, "should be 8 x 8 x 2"),
        ({"medusa__residual__weight": np.zeros((2, 8, 8), np.float32)}, "is of type F32"),
        ({"medusa__residual__bias": None}, "no tensor medusa.residual.bias"),
        ({"medusa__residual__bias": np.zeros(8, np.float32)}, "should be 16"),
        ({"medusa__residual__bias": np.zeros(16, np.float16)}, "bias is not of type F32"),
        ({"medusa__project__weight": (WIDTH, WIDTH)}, "should be 8 x 8 x 2"),
        ({"output__weight": None}, "no tensor output.weight"),
        ({"output__weight": (3, 16)}, "should be 8 x 3"),
        ({"output__weight": (1, 3, WIDTH)}, "should be 8 x 3 x 2"),
        ({"output__weight": np.zeros((3, WIDTH), np.float64)}, "is of type F64"),
    ],
)
def test_medusa_heads_that_make_no_sense(path, changed, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        read_header(medusa(path, **changed))


def test_medusa_heads_fit_only_their_target(path, target):
    def made_for(writer):
        writer.add_uint32("edgespec.target_vocabulary_size", 16)
        writer.add_string("edgespec.target_tokens_sha256", target().tokens_sha256)

    header = read_header(medusa(path, change=made_for))
    assert check_pairing(target(), header)
    with pytest.raises(PairingError, match="a target of 16 tokens, this one has 17"):
        check_pairing(target(tokens=[*WORDS, "more"]), header)
    with pytest.raises(PairingError, match="other tokens"):
        check_pairing(target(tokens=[*WORDS[:-1], "other"]), header)
    with pytest.raises(PairingError, match="of width 8, the target's have 16"):
        check_pairing(replace(target(), embedding_length=16), header)
    with pytest.raises(PairingError, match="is a draft itself"):
        check_pairing(header, header)


# -- layers for multi-token prediction, and drafts of other kinds ---------------------------------


def further(path, *, arch="qwen35", layers=3, count=1, shapes=None, trunk=True, **values):
    """A file of `layers` layers, the last of which predict further tokens."""
    first = layers - count
    usual = {"eh_proj": (WIDTH, 2 * WIDTH), "enorm": (WIDTH,), "hnorm": (WIDTH,)}

    def keys(writer):
        writer.add_uint32(f"{arch}.nextn_predict_layers", count)
        if trunk:
            writer.add_tensor("blk.0.attn_norm.weight", np.ones(WIDTH, np.float32))
        for name, shape in {**usual, **(shapes or {})}.items():
            if shape is not None:
                tensor = np.zeros(shape, np.float32)
                writer.add_tensor(f"blk.{first}.nextn.{name}.weight", tensor)

    return write_gguf(path, arch=arch, block_count=layers, change=keys, **values)


def test_mtp_layers_are_read(path, make_gguf):
    header = read_header(further(path))
    assert (header.mtp.count, header.mtp.unusable) == (1, None)
    assert header.mtp.size_bytes == 4 * (2 * WIDTH * WIDTH + 2 * WIDTH)
    assert read_header(make_gguf()).mtp is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"count": 2}, "llama.cpp can run one of qwen35 models, and not 2"),
        ({"arch": "llama"}, "llama.cpp cannot run those of llama models"),
        ({"shapes": {"hnorm": None}}, "their weights are not in the file"),
    ],
)
def test_what_llama_cpp_cannot_run_is_no_reason_to_refuse_the_model(path, options, reason):
    header = read_header(further(path, **options))
    assert header.mtp.unusable == reason
    assert read_header(further(path, arch="step35", count=2)).mtp.unusable is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shapes": {"eh_proj": (WIDTH, WIDTH)}}, "eh_proj.weight is 8 x 8, and should be 16 x 8"),
        ({"shapes": {"enorm": (4,)}}, "enorm.weight is 4, and should be 8"),
        ({"trunk": False}, "nothing but the MTP layers of another file"),
        ({"layers": 1}, "1 of its 1 layers predict further tokens"),
    ],
)
def test_mtp_layers_that_cannot_be(path, options, reason):
    with pytest.raises(ModelFileError, match=reason) as error:
        read_header(further(path, **options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arch", "tensor", "what"),
    [
        ("dflash", "fc.weight", "a DFlash draft"),
        ("dflash", "markov_w1.weight", "a DSpark draft"),
        ("gemma4-assistant", "blk.0.attn_norm.weight", "a Gemma 4 assistant"),
        ("llama", "medusa.0.0.linear.weight", "Medusa heads"),
        ("qwen3", "hydra.0.weight", "Hydra heads"),
    ],
)
def test_drafts_of_other_kinds_are_named(path, arch, tensor, what):
    def keys(writer):
        writer.add_tensor(tensor, np.zeros((WIDTH, WIDTH), np.float32))

    write_gguf(path, arch=arch, change=keys)
    with pytest.raises(ModelFileError, match=f"holds {what}, which edgespec cannot use") as error:
        read_header(path)
    assert "\n" not in str(error.value)
