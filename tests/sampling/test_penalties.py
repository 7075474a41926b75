"""DRY: breakers as tokens, repetitions, penalties; against the twin and llama.cpp's own sampler."""

from __future__ import annotations

import ctypes
import os

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.sampling.parameters import DEFAULT_BREAKERS, SamplingParameters, read_breakers
from edgespec.sampling.penalties import allowed_set, breaker_table, forbid

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def _table(sequences):
    """A breaker table from tuples of tokens, made as `breaker_table` makes it."""
    width = 1 + max(map(len, sequences), default=1)
    table = np.zeros((len(sequences), width), np.int32)
    for row, (head, *tail) in zip(table, sorted(set(sequences)), strict=True):
        row[: 2 + len(tail)] = head, len(tail), *tail
    return table


def _sequences(table):
    return [(row[0], *row[2 : 2 + row[1]]) for row in table.tolist()]


texts = st.lists(st.integers(0, 3), max_size=60) | st.builds(
    lambda part, times, tail: (part * times + tail)[:80],
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.integers(1, 9),
    st.lists(st.integers(0, 5), max_size=3),
)
breakers = st.sets(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=4)


@settings(max_examples=10 * settings.default.max_examples)
@given(
    texts,
    breakers,
    st.integers(0, 5),
    st.sampled_from([-1, 1, 2, 10, 50]),
    st.sampled_from([1.0, 1.2, 2.0]),
    st.booleans(),
)
def test_penalties_are_the_twin_s(
    twins, run_kernel, history, sequences, allowed, window, base, remembers
):
    """With and without room to remember earlier comparisons."""
    parameters = SamplingParameters(
        **OFF, dry_multiplier=0.7, dry_base=base, dry_allowed_length=allowed, dry_window=window
    )
    logits = np.linspace(2, -2, 6).astype(np.float32)
    room = len(history) if remembers else 3
    number, _, p = run_kernel(
        logits, history, parameters, breakers=_table(list(sequences)), remembered=room
    )
    values = twins.edited(logits, history, len(history), parameters, sequences)
    assert number == 6
    assert np.abs(p - twins.softmax(values.astype(np.float64))).max() < 1e-6


def test_a_worked_example(twins):
    """a b c c b c y a b c: c would be the 4th of a repetition, y the 3rd, b the 2nd."""
    recent = [0, 1, 2, 2, 1, 2, 3, 0, 1, 2]
    parameters = SamplingParameters(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1)
    assert twins.dry_penalties(recent, parameters, ()) == {2: 4.0, 3: 2.0, 1: 1.0}
    assert twins.dry_penalties(recent, parameters, [(3,)]) == {2: 4.0, 1: 1.0}
    assert twins.dry_penalties(recent, parameters, [(0, 1)]) == {2: 1.0, 3: 1.0, 1: 1.0}


# ---- breakers ----

PIECES = [b"a", b"b", b"ab", b"xa", b"bx", b"xaby", b"xab", b"", b"ba", b"aa", "é".encode()]


def _by_letter(text):
    return [PIECES.index(letter.encode()) for letter in text if letter.encode() in PIECES]


def _made(*texts):
    return set(_sequences(breaker_table(texts, len(PIECES), PIECES.__getitem__, _by_letter)))


def test_a_breaker_is_found_across_the_edges_of_tokens():
    inside = {(2,), (5,), (6,)}
    assert _made("ab") == inside | {(0, 1), (3, 1), (8, 1), (9, 1)}
    assert _made("a") == {(0,), (2,), (3,), (5,), (6,), (8,), (9,)}
    assert _made("aab") == {(0, 0, 1), (3, 0, 1), (8, 0, 1), (9, 0, 1), (9, 1)}
    assert _made() == set()
    assert _made("a", "ab") == _made("a") | _made("ab")


def test_long_breakers_are_cut_and_characters_may_be():
    assert _made("b" + 60 * "a") == _made("b" + 39 * "a")
    assert max(map(len, _made("b" + 39 * "a"))) == 21
    assert (10,) in _made("é")
    broken = breaker_table(["é"], 2, [b"x", b"\xc3"].__getitem__, lambda text: [ord(text)])
    assert _sequences(broken) == [(1, 0xFFFD)]


def test_typed_breakers():
    assert read_breakers(["none"]) == ()
    assert read_breakers([r"\n", "a", r"\\n", r"\s", r"\q"]) == ("\n", "a", r"\n", " ", "q")


# ---- llama.cpp ----


@pytest.fixture(scope="module")
def vocabulary(default_model):
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(default_model), parameters)
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


@pytest.fixture(scope="module")
def words(vocabulary):
    """(size, piece, tokenize) of the real vocabulary."""

    def piece(token):
        buffer = ctypes.create_string_buffer(256)
        size = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, 256, 0, True)
        return buffer.raw[:size]

    def tokenize(text):
        data = text.encode()
        tokens = (llama_cpp.llama_token * (len(data) + 8))()
        size = llama_cpp.llama_tokenize(
            vocabulary, data, len(data), tokens, len(tokens), False, False
        )
        return tokens[:size]

    return llama_cpp.llama_vocab_n_tokens(vocabulary), piece, tokenize


def _llama(vocabulary, logits, history, parameters):
    """The logits after llama.cpp's DRY."""
    texts = [text.encode() for text in parameters.dry_breakers]
    window = parameters.dry_window
    sampler = llama_cpp.llama_sampler_init_dry(
        vocabulary,
        parameters.dry_multiplier,
        parameters.dry_base,
        parameters.dry_allowed_length,
        max(1, len(history)) if window < 0 else window,
        (ctypes.c_char_p * len(texts))(*texts),
        len(texts),
    )
    entries = np.zeros(len(logits), TOKEN)
    entries["id"], entries["logit"] = np.arange(len(logits)), logits
    array = llama_cpp.llama_token_data_array()
    array.data = entries.ctypes.data_as(llama_cpp.llama_token_data_p)
    array.size, array.selected, array.sorted = len(logits), -1, False
    for token in history:
        llama_cpp.llama_sampler_accept(sampler, int(token))
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    llama_cpp.llama_sampler_free(sampler)
    return entries["logit"].copy()


TEXT = """The cat sat on the mat. The cat sat on the mat, and "the dog" sat on the cat:
* the cat sat on the mat.
* the dog sat on the mat. Then: "the cat sat on the dog",
and the cat sat on the mat. The cat sat on"""


@pytest.mark.parametrize(
    "given_breakers",
    [DEFAULT_BREAKERS, (), ("the dog",), (" the", "t on"), ("\n*", "The cat", ". T"), ("é",)],
    ids=str,
)
def test_p_is_llama_cpp_s_on_real_text(twins, run_kernel, vocabulary, words, given_breakers):
    n_vocab, piece, tokenize = words
    table = breaker_table(given_breakers, n_vocab, piece, tokenize)
    whole = list(tokenize(TEXT))
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, n_vocab).astype(np.float32)
    logits[whole] += 8
    penalized = 0
    for window in (-1, 20, 64):
        for length in range(len(whole) - 40, len(whole) + 1, 3):
            parameters = SamplingParameters(
                **OFF,
                dry_multiplier=0.8,
                dry_allowed_length=2 + length % 2,
                dry_window=window,
                dry_breakers=given_breakers,
            )
            history = whole[:length]
            expected = _llama(vocabulary, logits, history, parameters)
            penalized += int((expected != logits).sum())
            p = run_kernel(logits, history, parameters, breakers=table)[2]
            assert np.abs(p - twins.softmax(expected.astype(np.float64))).max() < 1e-5
    assert penalized > 0


def test_p_is_llama_cpp_s_on_random_text(twins, run_kernel, vocabulary, words):
    """Few different tokens, so that there are long repetitions; parts of breakers among them."""
    n_vocab, piece, tokenize = words
    given_breakers = ("ab", "\n\n", "b a")
    table = breaker_table(given_breakers, n_vocab, piece, tokenize)
    alphabet = [tokenize(text)[0] for text in ("a", "b", "ab", "xa", " a", "\n", "c", "d")]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        letters = alphabet if seed % 3 else alphabet[-3:]
        history = rng.choice(letters, int(rng.integers(0, 200))).tolist()
        logits = rng.normal(0, 3, n_vocab).astype(np.float32)
        logits[alphabet] += 10
        parameters = SamplingParameters(
            **OFF,
            dry_multiplier=float(rng.uniform(0.1, 3)),
            dry_base=float(rng.choice([1.0, 1.3, 1.75, 9.0])),
            dry_allowed_length=int(rng.integers(0, 5)),
            dry_window=int(rng.choice([-1, 1, 30, 500])),
            dry_breakers=given_breakers,
        )
        expected = _llama(vocabulary, logits, history, parameters)
        p = run_kernel(logits, history, parameters, breakers=table)[2]
        assert np.abs(p - twins.softmax(expected.astype(np.float64))).max() < 1e-5


@pytest.mark.parametrize("size", [1, 31, 32, 33, 259, 1024])
def test_bits_forbid_tokens(size: int) -> None:
    random = np.random.default_rng(size)
    logits = random.normal(size=(3, size)).astype(np.float32)
    bits = random.integers(-(2**31), 2**31, (5, (size + 31) // 32 + 1)).astype(np.int32)
    bits[1] = -1
    bits[2] = 0
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:3, :size] == 1
    expected = np.where(allowed, logits, -np.inf)
    forbid(logits, bits)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("size", [0, 1, 2, 40, 41, 500])
def test_a_small_set_is_told_from_others(size: int) -> None:
    random = np.random.default_rng(size)
    keys = set()
    for _ in range(50):
        members = np.sort(random.choice(2048, size, replace=False))
        flags = np.zeros(2048, np.uint8)
        flags[members] = 1
        bits = np.packbits(flags, bitorder="little").view(np.int32)
        count, key, first = allowed_set(bits, 40)
        assert count == (size if size <= 40 else 0)
        if count:
            assert first == members[0]
            assert allowed_set(bits.copy(), 40) == (count, key, first)
            keys.add((key, tuple(members.tolist())))
    assert len({key for key, _ in keys}) == len(keys)
