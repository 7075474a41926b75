"""Files made to hurt: each is refused or read, soon, in little memory, without any other error."""

import struct
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import ModelFileError
from edgespec.gguf.header import read_header

# Reads every file given, within limits on processor time and memory.
GUARDED = """
import resource, sys
from edgespec.errors import ModelFileError
from edgespec.gguf.header import read_header
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for path in sys.argv[1:]:
    try:
        read_header(path)
        print("read")
    except ModelFileError as error:
        assert "\\n" not in str(error) and len(str(error)) < 700, error
        print(error)
"""


def survives(path):
    """Whether a file is read; it may only be refused otherwise."""
    try:
        header = read_header(path)
    except ModelFileError as error:
        assert "\n" not in str(error)
        return False
    header.tokens(), header.token_types(), repr(header)
    return True


@pytest.fixture
def sound(make_gguf):
    def change(writer):
        writer.add_chat_template("{{ messages }}")
        writer.add_token_scores([0.0] * 16)
        writer.add_eos_token_id(2)
        writer.add_rope_freq_base(10000.0)

    return make_gguf(types=[1] * 16, change=change)


def test_every_truncation_is_refused(sound, tmp_path):
    data = sound.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        assert not survives(path), length


@settings(max_examples=400, deadline=2000, suppress_health_check=list(HealthCheck))
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1))
def test_flipped_bytes(sound, tmp_path, flips):
    data = bytearray(sound.read_bytes())
    for position, mask in flips:
        data[position % len(data)] ^= mask
    path = tmp_path / "flipped.gguf"
    path.write_bytes(data)
    survives(path)


@settings(max_examples=200, deadline=2000, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=2000), pairs=st.integers(0, 9), tensors=st.integers(0, 9))
def test_noise_after_a_sound_start(tmp_path, body, pairs, tensors):
    path = tmp_path / "noise.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, tensors, pairs) + body)
    survives(path)


def text(value):
    return struct.pack("<Q", len(value)) + value


def start(pairs=1, tensors=1):
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, pairs)


def tensor(name, dimensions, kind=0, offset=0, count=None):
    shape = b"".join(struct.pack("<Q", extent) for extent in dimensions)
    number = len(dimensions) if count is None else count
    return text(name) + struct.pack("<I", number) + shape + struct.pack("<IQ", kind, offset)


PAD = bytes(4096)
NESTED = struct.pack("<IQ", 9, 1) * 5000
CRAFTED = {
    "key of 2^63 bytes": start() + struct.pack("<Q", 1 << 63) + PAD,
    "key of 2^64-1 bytes": start() + struct.pack("<Q", (1 << 64) - 1) + PAD,
    "text of 2^62 bytes": start() + text(b"k") + struct.pack("<IQ", 8, 1 << 62) + PAD,
    "2^60 strings": start() + text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 60) + PAD,
    "2^64-1 numbers": start() + text(b"k") + struct.pack("<IIQ", 9, 10, (1 << 64) - 1) + PAD,
    "arrays in arrays": start() + text(b"k") + struct.pack("<I", 9) + NESTED + PAD,
    "unknown type": start() + text(b"k") + struct.pack("<I", 77) + PAD,
    "unknown item type": start() + text(b"k") + struct.pack("<IIQ", 9, 77, 1) + PAD,
    "key that is not UTF-8": start() + text(b"\xff") + struct.pack("<II", 4, 1) + PAD,
    "alignment of 0": start()
    + text(b"general.alignment")
    + struct.pack("<II", 4, 0)
    + tensor(b"t", [4])
    + PAD,
    "2^32-1 dimensions": start(0) + tensor(b"t", [4], count=0xFFFFFFFF) + PAD,
    "five million dimensions": start(0) + tensor(b"t", [1 << 62] * 5_000_000) + PAD,
    "no dimensions": start(0) + tensor(b"t", []) + PAD,
    "product that wraps to 0": start(0) + tensor(b"t", [1 << 32, 1 << 32]) + PAD,
    "product that wraps to 4": start(0) + tensor(b"t", [(1 << 63) + 1, 4]) + PAD,
    "extent of 0": start(0) + tensor(b"t", [0, 4]) + PAD,
    "offset past everything": start(0) + tensor(b"t", [4], offset=1 << 50) + PAD,
    "offset that wraps": start(0) + tensor(b"t", [4], offset=(1 << 64) - 32) + PAD,
    "unknown tensor type": start(0) + tensor(b"t", [4], kind=9999) + PAD,
    "row that is no multiple of its block": start(0) + tensor(b"t", [5], kind=2) + PAD,
    "same tensor twice": start(0, 2) + tensor(b"t", [4]) * 2 + PAD,
    "a million short strings": start()
    + text(b"k")
    + struct.pack("<IIQ", 9, 8, 1_000_000)
    + bytes(8_000_000),
    "more strings than any vocabulary": start()
    + text(b"k")
    + struct.pack("<IIQ", 9, 8, 6_000_000)
    + bytes(48_000_000),
    "8,000 keys": start(8_000, 1)
    + b"".join(text(b"%d" % i) + struct.pack("<IB", 0, 0) for i in range(8_000))
    + PAD,
    "30,000 tensors": start(0, 30_000)
    + b"".join(tensor(b"%d" % i, [1]) for i in range(30_000))
    + PAD,
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_crafted_files_are_refused_within_limits(tmp_path):
    paths = []
    for number, data in enumerate(CRAFTED.values()):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        paths.append(str(path))
    command = [sys.executable, "-W", "error", "-c", GUARDED, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(CRAFTED)
    wrong = [name for name, answer in zip(CRAFTED, answers, strict=True) if answer == "read"]
    assert not wrong
