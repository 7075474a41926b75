import hashlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest

DATA = os.urandom(200_000)
SHA = hashlib.sha256(DATA).hexdigest()
# huggingface_hub reads its endpoint when it is imported, so each trial is a process of its own.
SCRIPT = """
import sys
from edgespec.errors import EdgespecError
from edgespec.registry.resolve import resolve
try:
    print(resolve(sys.argv[1]).path)
except EdgespecError as error:
    print(f"{type(error).__name__}: {error}")
"""


def run(reference, endpoint, **more):
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_TELEMETRY": "1", **more}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, reference],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def hub(server):
    commit = "c" * 40
    server.files["/o/r/resolve/main/m.gguf"] = DATA
    server.files[f"/o/r/resolve/{commit}/m.gguf"] = DATA
    server.headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(DATA))}
    server.headers["X-Linked-Etag"] = f'"{SHA}"'
    return server


def test_reference_is_fetched_once(hub, cache):
    path = run("hf:o/r/m.gguf", hub.url)
    assert path == str(cache.path("hf/o/r/m.gguf"))
    assert cache.path("hf/o/r/m.gguf").read_bytes() == DATA
    asked = [(method, where.split("/")[4]) for method, where, _ in hub.requests]
    assert asked == [("HEAD", "main"), ("GET", "c" * 40)]
    assert run("hf:o/r/m.gguf", hub.url) == path
    assert len(hub.requests) == 2, "what is cached never touches the network"
    assert json.loads(next(cache.folder.rglob("*.json")).read_text())["sha256"] == SHA


def test_other_bytes_than_published(hub, cache):
    hub.headers["X-Linked-Etag"] = '"' + "0" * 64 + '"'
    assert "ChecksumError: hf:o/r/m.gguf could not" in run("hf:o/r/m.gguf", hub.url)
    assert not cache.path("hf/o/r/m.gguf").exists()


def test_missing_file(hub, cache):
    assert run("hf:o/r/none.gguf", hub.url).startswith("DownloadError: hf:o/r/none.gguf could not")


def test_unreachable_host_fails_within_seconds(cache, nobody):
    start = time.monotonic()
    text = run("hf:o/r/m.gguf", nobody)
    assert "cannot be reached" in text
    assert "\n" not in text
    assert time.monotonic() - start < 10


def test_silent_host_fails_within_seconds(cache):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        start = time.monotonic()
        text = run("hf:o/r/m.gguf", f"http://127.0.0.1:{mute.getsockname()[1]}")
    assert "cannot be reached" in text
    assert time.monotonic() - start < 12


def test_offline_mode_of_the_environment(hub, cache):
    assert "offline mode is set" in run("hf:o/r/m.gguf", hub.url, HF_HUB_OFFLINE="1")
