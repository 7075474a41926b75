import hashlib
import os

import pytest

from edgespec.errors import ChecksumError, DownloadError
from edgespec.registry.fetch import fetch_url, silent

DATA = os.urandom(3_000_000)


@pytest.fixture
def partial(tmp_path):
    return tmp_path / "m.gguf.partial"


@pytest.fixture
def url(server):
    server.files["/m.gguf"] = DATA
    return server.url + "/m.gguf"


def test_progress_rises_to_the_size(url, partial):
    seen = []
    fetch_url(url, partial, size=len(DATA), progress=lambda done, total: seen.append((done, total)))
    assert partial.read_bytes() == DATA
    assert seen == sorted(seen)
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))


def test_announced_size_is_used_where_none_is_known(url, partial):
    seen = []
    fetch_url(url, partial, size=None, progress=lambda done, total: seen.append(total))
    assert set(seen) == {len(DATA)}


def test_lost_connection_is_taken_up(url, partial, server):
    server.cut_after, server.cuts = 1_000_000, 2
    fetch_url(url, partial, size=len(DATA), progress=silent)
    assert partial.read_bytes() == DATA
    ranges = [asked for _, _, asked in server.requests]
    assert ranges == [None, "bytes=1000000-", "bytes=2000000-"]


def test_interrupted_download_is_continued_later(url, partial, server):
    def interrupt(done, total):
        if done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_url(url, partial, size=len(DATA), progress=interrupt)
    kept = partial.stat().st_size
    assert 0 < kept < len(DATA)
    fetch_url(url, partial, size=len(DATA), progress=silent)
    assert partial.read_bytes() == DATA
    assert server.requests[-1][2] == f"bytes={kept}-"


def test_changed_file_starts_again(url, partial, server):
    server.cut_after = 1_000_000
    with pytest.raises(KeyboardInterrupt):
        fetch_url(url, partial, size=len(DATA), progress=_interrupt_at(1_000_000))
    server.cut_after = None
    other = DATA[::-1]
    server.files["/m.gguf"] = other
    fetch_url(url, partial, size=len(other), progress=silent)
    assert partial.read_bytes() == other


def test_without_etag_it_starts_again(url, partial, server):
    server.etags = False
    server.cut_after, server.cuts = 2_000_000, 1
    fetch_url(url, partial, size=len(DATA), progress=silent)
    assert partial.read_bytes() == DATA
    assert [asked for _, _, asked in server.requests] == [None, None]


def test_complete_partial_of_a_shorter_file_starts_again(url, partial, server):
    fetch_url(url, partial, size=len(DATA), progress=silent)
    fetch_url(url, partial, size=len(DATA), progress=silent)  # the server says 416 to this one
    assert partial.read_bytes() == DATA
    assert server.requests[-1][2] is None


def test_server_that_always_breaks_off(url, partial, server):
    server.cut_after = 1000
    with pytest.raises(DownloadError, match="connection failed"):
        fetch_url(url, partial, size=len(DATA), progress=silent)
    assert server.downloads == 4
    assert hashlib.sha256(partial.read_bytes()).digest() == hashlib.sha256(DATA[:4000]).digest()


def test_too_long_a_body_is_cut_short(url, partial):
    with pytest.raises(ChecksumError, match="more than"):
        fetch_url(url, partial, size=1000, progress=silent)
    assert not partial.exists()


def test_missing_file(server, partial):
    with pytest.raises(DownloadError, match="404"):
        fetch_url(server.url + "/none", partial, size=None, progress=silent)
    assert not partial.exists()


def test_nobody_there(nobody, partial):
    with pytest.raises(DownloadError, match="connection failed"):
        fetch_url(nobody, partial, size=None, progress=silent)


def _interrupt_at(limit):
    def report(done, total):
        if done >= limit:
            raise KeyboardInterrupt

    return report
