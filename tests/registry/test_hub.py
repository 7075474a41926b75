"""The files of a repository, and those of one quantization, against a server like the hub."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from huggingface_hub import constants

from edgespec.errors import DownloadError
from edgespec.registry.fetch import choose, list_files, parts, whole

COMMIT = "c" * 40
REPO = "owner/some-model-GGUF"
SCRIPT = """
import sys
from edgespec.errors import EdgespecError
from edgespec.registry.resolve import resolve
try:
    print(resolve(sys.argv[1], offline=sys.argv[2:] == ["offline"]).path)
except EdgespecError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def hub(server):
    """Two quantizations, one of them in two parts, and what is no model."""
    put(server, "some-model-Q4_K_M.gguf", os.urandom(70_000))
    put(server, "big/some-model-Q8_0-00001-of-00002.gguf", os.urandom(50_000))
    put(server, "big/some-model-Q8_0-00002-of-00002.gguf", os.urandom(60_000))
    put(server, "mmproj-some-model-f16.gguf", b"projector")
    put(server, "README.md", b"text", lfs=None)
    return server


def put(server, name, data, **changes):
    sha256 = hashlib.sha256(data).hexdigest()
    for revision in ("main", COMMIT):
        server.files[f"/{REPO}/resolve/{revision}/{name}"] = data
    server.headers["X-Repo-Commit"] = COMMIT
    entry = {"rfilename": name, "size": len(data), "lfs": {"sha256": sha256}} | changes
    listing = json.loads(server.files.get(LISTING, b'{"siblings": []}'))
    server.files[LISTING] = json.dumps(
        {"sha": COMMIT, "siblings": [*listing["siblings"], entry]}
    ).encode()


LISTING = f"/api/models/{REPO}?blobs=true"


def run(server, *arguments, **more):
    # huggingface_hub reads its settings when it is imported: each trial is a process of its own.
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_DISABLE_TELEMETRY": "1", **more}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout[:-1]


@pytest.mark.parametrize("reference", [f"hf:{REPO}", f"hf:{REPO}:Q4_K_M", f"hf:{REPO}:q4_k_m"])
def test_the_usual_quantization(hub, cache, reference):
    path = cache.path(f"hf/{REPO}/some-model-Q4_K_M.gguf")
    assert run(hub, reference) == str(path)
    assert path.read_bytes() == hub.files[f"/{REPO}/resolve/main/{path.name}"]
    asked = len(hub.requests)
    assert run(hub, reference) == run(hub, reference, "offline") == str(path)
    assert len(hub.requests) == asked, "what is here never touches the network"


def test_all_parts_are_fetched_and_found(hub, cache):
    first = cache.path(f"hf/{REPO}/big/some-model-Q8_0-00001-of-00002.gguf")
    second = first.with_name(first.name.replace("00001-of", "00002-of"))
    assert run(hub, f"hf:{REPO}:Q8_0") == str(first)
    for path in (first, second):
        assert path.read_bytes() == hub.files[f"/{REPO}/resolve/main/big/{path.name}"]
    second.unlink()
    assert "not downloaded" in run(hub, f"hf:{REPO}:Q8_0", "offline")
    # Also by the name of the first part, and only what is missing.
    downloads = hub.downloads
    assert run(hub, f"hf:{REPO}/big/{first.name}") == str(first)
    assert hub.downloads == downloads + 1
    assert "give the first part" in run(hub, f"hf:{REPO}/big/x-00002-of-00002.gguf")


def test_a_broken_connection_is_continued(hub, cache):
    hub.cut_after, hub.cuts = 30_000, 1
    run(hub, f"hf:{REPO}")
    assert hub.requests[-1] == (
        "GET",
        f"/{REPO}/resolve/{COMMIT}/some-model-Q4_K_M.gguf",
        "bytes=30000-",
    )


def test_token_and_proxy(hub, cache):
    run(hub, f"hf:{REPO}", HF_TOKEN="hf_secret")
    assert hub.tokens == {"Bearer hf_secret"}
    elsewhere = "http://hub.invalid"
    hub.files = {elsewhere + path: data for path, data in hub.files.items()}
    env = {"HF_ENDPOINT": elsewhere, "http_proxy": hub.url, "no_proxy": ""}
    assert run(hub, f"hf:{REPO}:Q8_0", **env).endswith("00001-of-00002.gguf")


def test_offline_environment(hub, cache):
    assert "offline mode is set" in run(hub, f"hf:{REPO}", HF_HUB_OFFLINE="1")
    assert not hub.requests


@pytest.mark.parametrize(
    "change", [{"lfs": {"sha256": "0" * 64}}, {"size": 70_001}, {"size": 69_999}, {"lfs": None}]
)
def test_other_bytes_than_published(server, cache, change):
    put(server, "m-Q4_K_M.gguf", os.urandom(70_000), **change)
    if change == {"lfs": None}:  # nothing says what the bytes should be
        server.etags = False
        server.headers["ETag"] = '"an opaque one"'
    said = run(server, f"hf:{REPO}")
    assert said.startswith("ChecksumError")
    assert "\n" not in said
    assert not list(cache.folder.rglob("*.gguf"))


@pytest.fixture
def listed(server, monkeypatch):
    """Ask the server for a list that has one file, described wrongly."""

    def ask(**change):
        put(server, "m-Q4_K_M.gguf", b"weights", **change)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        return list_files(REPO)

    return ask


@pytest.mark.parametrize(
    "change",
    [{"lfs": {"sha256": "x"}}, {"lfs": 1}, {"size": 1 << 50}, {"size": True}, {"size": None}],
)
def test_unsound_descriptions(listed, change):
    with pytest.raises(DownloadError, match="is not sound"):
        listed(**change)


@pytest.mark.parametrize(
    "name", ["../../Q4_K_M.gguf", "a\n-Q4_K_M.gguf", None, "/m.gguf", "a//m.gguf"]
)
def test_names_that_could_not_be_typed(listed, name):
    assert not listed(rfilename=name).files


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"", "is not sound"),
        (b"[]", "is not sound"),
        (b"[1]", "is not sound"),
        (b"[" * 100_000, "is not sound"),
        (b"\xff", "is not sound"),
        (b'{"sha": "main", "siblings": []}', "is not sound"),
        (b'{"sha": 1}', "is not sound"),
        (b" " * (17 << 20), "too long"),
    ],
)
def test_damaged_listings(server, monkeypatch, answer, complaint):
    server.files[LISTING] = answer
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    with pytest.raises(DownloadError, match=complaint):
        list_files(REPO)


def test_unknown_repository_and_quantization(hub, cache):
    assert "no such repository" in run(hub, "hf:owner/other")
    assert run(hub, f"hf:{REPO}:Q2_K").endswith("has no Q2_K: it has Q4_K_M, Q8_0")


@pytest.mark.parametrize(
    ("names", "quantization", "chosen"),
    [
        (["m-Q8_0.gguf", "m-Q5_K_M.gguf", "m-f16.gguf"], None, "m-Q5_K_M.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-IQ4_XS.gguf"], None, "m-UD-Q4_K_XL.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-Q2_K.gguf"], "q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        (["m.Q4_0.gguf", "m-imatrix.gguf"], None, "m.Q4_0.gguf"),
        (["BF16/m.gguf", "m.gguf"], "BF16", "BF16/m.gguf"),
        (["qwen3-0.6b.gguf"], None, "qwen3-0.6b.gguf"),
        (["q4-model-Q6_K.gguf"], None, "q4-model-Q6_K.gguf"),
    ],
)
def test_choice(names, quantization, chosen):
    assert choose(names, quantization) == (chosen,)


@pytest.mark.parametrize(
    ("names", "quantization", "complaint"),
    [
        ([], None, "no whole GGUF model"),
        (["m-Q8_0-00001-of-00002.gguf"], "Q8_0", "no whole GGUF model"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], None, "several of its files are Q4_0: a-Q4_0.gguf, b-Q"),
        (["a-Q4_0.gguf"], "Q4_K_M", "it has no Q4_K_M: it has Q4_0"),
    ],
)
def test_no_choice(names, quantization, complaint):
    with pytest.raises(DownloadError, match=complaint):
        choose(names, quantization)


def test_parts():
    assert parts("m.gguf") == ("m.gguf",)
    assert parts("m-00002-of-00003.gguf")[2] == "m-00003-of-00003.gguf"
    assert parts("m-00004-of-00003.gguf") == ("m-00004-of-00003.gguf",)
    assert parts("m-00001-of-99999.gguf") == ("m-00001-of-99999.gguf",)
    assert whole("m-00001-of-00002.gguf", parts("m-00001-of-00002.gguf"))
    assert not whole("m-00002-of-00002.gguf", parts("m-00001-of-00002.gguf"))
