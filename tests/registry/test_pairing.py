import pytest

from edgespec.errors import PairingError
from edgespec.gguf.header import read_header
from edgespec.registry.pairing import Pairing, check_pairing

NORMAL, CONTROL, UNUSED = 1, 3, 5
WORDS = ["<unk>", "<s>", "</s>", *(f"word{i}" for i in range(13))]


@pytest.fixture
def header(make_gguf):
    def make(tokens=WORDS, *, pre=None, **options):
        path = make_gguf(tokens=tokens, **options)
        if pre:
            path.write_bytes(path.read_bytes().replace(b"default", pre))
        return read_header(path)

    return make


def special(**ids):
    def change(writer):
        for name, value in ids.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)

    return change


def test_identical(header):
    assert check_pairing(header(), header()) == Pairing(16, "the vocabularies are identical")


def test_same_tokens_of_other_types_are_identical(header):
    assert check_pairing(header(types=[NORMAL] * 16), header()).shared_vocabulary == 16


@pytest.mark.parametrize(
    ("extra", "types"),
    [
        (["[PAD16]", "[PAD17]"], None),
        (["<unused0>", "<|reserved_special_token_3|>"], None),
        (["<|extra_0|>", "<|dummy|>"], None),
        (["<｜place▁holder▁no▁0｜>", "<｜place▁holder▁no▁1｜>"], None),
        (["anything", "<tool>"], [NORMAL] * 16 + [UNUSED, CONTROL]),
    ],
)
@pytest.mark.parametrize("longer", ["target", "draft"])
def test_padding_at_the_end(header, extra, types, longer):
    long, short = header([*WORDS, *extra], types=types), header()
    pair = (long, short) if longer == "target" else (short, long)
    assert check_pairing(*pair) == Pairing(
        16, f"the first 16 tokens are identical, and the {longer} has 2 more at the end"
    )


def test_padding_against_other_tokens_at_the_end(header):
    target, draft = header([*WORDS, "real", "more"]), header([*WORDS, "[PAD0]"])
    pairing = check_pairing(target, draft)
    assert pairing.shared_vocabulary == 16
    assert "target has 2 more" in pairing.reason
    assert "draft has 1 more" in pairing.reason


@pytest.mark.parametrize(
    ("target", "draft", "complaint"),
    [
        (WORDS, [*WORDS[:7], "other", *WORDS[8:]], "token 7 is 'word4' in .* and 'other' in the"),
        (WORDS, WORDS[:-1], "token 15 is 'word12' in the target and absent in the draft"),
        (WORDS, [*WORDS, "[PAD]", "new"], "token 17 is absent in the target and 'new' in the"),
        (WORDS, WORDS[1:] + WORDS[:1], "token 0 is '<unk>'"),
        (["[PAD0]", "[PAD1]"], ["[PAD2]", "[PAD3]"], "token 0"),
        ([*WORDS, "padded"], [*WORDS, "unusual"], "token 16"),
        (WORDS, [*WORDS[:7], "\x1b[2J" + "x" * 500, *WORDS[8:]], r"'\\x1b\[2Jx{20}\.\.\.'"),
        (WORDS, [*WORDS[:7], b"\xff", *WORDS[8:]], r"'\\udcff'"),
    ],
)
def test_other_vocabulary(header, target, draft, complaint):
    with pytest.raises(PairingError, match=complaint) as caught:
        check_pairing(header(target), header(draft))
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_other_tokenizer(header):
    with pytest.raises(
        PairingError, match=r"pre-tokenizer is 'qwen2..', the target's is 'default'"
    ):
        check_pairing(header(), header(pre=b"qwen2.."))


@pytest.mark.parametrize("which", ["bos", "eos", "eot"])
def test_other_special_tokens(header, which):
    ours, theirs = header(change=special(**{which: 2})), header(change=special(**{which: 1}))
    with pytest.raises(PairingError, match=r"is 1 '<s>', the target's is 2 '</s>'"):
        check_pairing(ours, theirs)
    assert check_pairing(ours, header()).shared_vocabulary == 16
