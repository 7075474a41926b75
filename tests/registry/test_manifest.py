import pytest

from edgespec.errors import RegistryError
from edgespec.registry.cache import sha256_of
from edgespec.registry.manifest import (
    BundledSource,
    HttpsSource,
    HuggingFaceSource,
    WheelSource,
    load_manifest,
    models_folder,
    parse_manifest,
)

ENTRY = """
[[models]]
name = "a"
default = true
title = "A"
file = "a.gguf"
sha256 = "{sha}"
size = 10
licence = "MIT"
architecture = "llama"
quantization = "Q4_0"
context_length = 128
chat = ""
drafts = []
""".format(sha="0" * 64)
HTTPS = '[[models.sources]]\nkind = "https"\nurl = "https://example.org/a.gguf"\n'
WHEEL = '[[models.sources]]\nkind = "wheel"\npackage = "p"\nversion = "1.0"\nmember = "p/a.gguf"\n'
BUNDLED = '[[models.sources]]\nkind = "bundled"\n'
HUB = '[[models.sources]]\nkind = "huggingface"\nrepo = "o/r"\nfile = "a.gguf"\nrevision = "main"\n'


def test_own_manifest_is_sound():
    entry = load_manifest().default
    assert entry.name == "smollm2-135m"
    assert entry.licence == "Apache-2.0"
    assert [source.kind for source in entry.sources] == ["huggingface", "https", "wheel"]


def test_what_is_bundled_is_there():
    for entry in load_manifest().entries:
        if BundledSource() in entry.sources:
            file = models_folder() / entry.file
            assert (file.stat().st_size, sha256_of(file)) == (entry.size, entry.sha256)


def test_all_kinds_in_order():
    manifest = parse_manifest(ENTRY + HTTPS + WHEEL + HUB + BUNDLED)
    assert manifest.default.sources == (
        HttpsSource("https://example.org/a.gguf"),
        WheelSource("p", "1.0", "p/a.gguf"),
        HuggingFaceSource("o/r", "a.gguf", "main"),
        BundledSource(),
    )
    assert manifest.names == ("a",)
    assert manifest.find("b") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[models]", "not valid TOML"),
        ("", "models is missing"),
        ("models = 3", "must be a list"),
        ("models = [3]", "must be a table"),
        (ENTRY, "sources is missing"),
        (ENTRY.replace("size = 10", "size = 0") + HTTPS, "positive"),
        (ENTRY.replace("size = 10", "size = true") + HTTPS, "positive"),
        (ENTRY.replace("size = 10", 'size = "10"') + HTTPS, "whole number"),
        (ENTRY.replace('title = "A"\n', "") + HTTPS, "title is missing"),
        (ENTRY.replace("title", "titel") + HTTPS, "title is missing"),
        (ENTRY + "colour = 1\n" + HTTPS, "unknown key 'colour'"),
        (ENTRY.replace("0" * 64, "0" * 63) + HTTPS, "sha256"),
        (ENTRY.replace('"a.gguf"', '"../a.gguf"') + HTTPS, "file"),
        (ENTRY.replace('"a.gguf"', '"a.bin"') + HTTPS, "file"),
        (ENTRY.replace("drafts = []", "drafts = [1]") + HTTPS, "list of strings"),
        (ENTRY.replace("drafts = []", 'drafts = ["b"]') + HTTPS, "cannot be its draft"),
        (ENTRY.replace("drafts = []", 'drafts = ["a"]') + HTTPS, "cannot be its draft"),
        (ENTRY.replace("default = true\n", "") + HTTPS, "exactly one"),
        ((ENTRY + HTTPS) * 2, "exactly one"),
        (ENTRY + HTTPS + (ENTRY + HTTPS).replace("default = true\n", ""), "two models have the"),
        (ENTRY + HTTPS.replace("https:", "http:"), "url"),
        (ENTRY + HTTPS.replace("https:", "file:"), "url"),
        (ENTRY + HTTPS.replace('"https"', '"ftp"'), "unknown kind 'ftp'"),
        (ENTRY + WHEEL.replace("p/a.gguf", "../a.gguf"), "member"),
        (ENTRY + WHEEL.replace("p/a.gguf", "/a.gguf"), "member"),
        (ENTRY + WHEEL.replace('"1.0"', '"1.0 --pre"'), "version"),
        (ENTRY + WHEEL.replace('"p"', '"--index-url"'), "package"),
        (ENTRY + HUB.replace('"o/r"', '"o"'), "repo"),
    ],
)
def test_malformed(text, complaint):
    with pytest.raises(RegistryError, match=complaint) as caught:
        parse_manifest(text, "here")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("here")
