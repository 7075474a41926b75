import hashlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from edgespec.cli.main import cli
from edgespec.cli.models import models
from edgespec.errors import EdgespecError
from edgespec.registry import manifest, resolve

# Before click 8.2 standard error had to be asked for.
SEPARATE = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
MANIFEST = """
[[models]]
name = "tiny"
default = true
title = "A tiny model"
file = "tiny-model.gguf"
sha256 = "{sha}"
size = {size}
licence = "MIT"
architecture = "llama"
quantization = "F32"
context_length = 64
chat = "Says nothing."
drafts = ["other"]

[[models.sources]]
kind = "https"
url = "{url}/tiny.gguf"

[[models]]
name = "other"
title = "Another one"
file = "other-model.gguf"
sha256 = "{sha}"
size = {size}
licence = "MIT"
architecture = "llama"
quantization = "F32"
context_length = 64
chat = ""
drafts = []

[[models.sources]]
kind = "https"
url = "{url}/tiny.gguf"
"""


@pytest.fixture
def data(make_gguf):
    return make_gguf(
        "source.gguf", change=lambda writer: writer.add_chat_template("a\x1b[2J\nb\nc\nd\ne\nf")
    ).read_bytes()


@pytest.fixture
def run(data, server, cache, monkeypatch):
    """Call `edgespec models` with a manifest of two tiny models that the local server has."""
    server.files["/tiny.gguf"] = data
    sha256 = hashlib.sha256(data).hexdigest()
    text = MANIFEST.format(sha=sha256, size=len(data), url=server.url)
    for module in (manifest, resolve):
        monkeypatch.setattr(module, "load_manifest", lambda: manifest.parse_manifest(text))

    def call(*arguments, **more):
        result = CliRunner(**SEPARATE).invoke(models, arguments, **more)
        if isinstance(result.exception, EdgespecError):
            raise result.exception
        return result

    return call


def test_list_before_and_after(run, cache):
    before = run("list").stdout.splitlines()
    assert before[0].split() == ["NAME", "SIZE", "MEMORY", "TOKENS/S", "LICENCE", "DRAFT", "HERE"]
    assert before[1].split()[:2] == ["tiny", "(default)"]
    assert [line.split()[-1] for line in before[1:]] == ["no", "no"]
    run("pull", "tiny")
    rows = json.loads(run("list", "--json").stdout)
    assert [(row["name"], row["downloaded"]) for row in rows] == [("tiny", True), ("other", False)]
    assert rows[0]["path"] == str(cache.path("tiny-model.gguf"))


def test_pull_says_what_it_does_once(run, cache, server):
    first = run("pull", "tiny")
    assert first.stdout == f"{cache.path('tiny-model.gguf')}\n"
    assert first.stderr.splitlines()[0].startswith("downloading tiny (0.0 MB)")
    assert first.stderr.splitlines()[1].startswith("downloaded tiny")
    second = run("pull", "tiny")
    assert (second.stdout, second.stderr) == (first.stdout, "")
    assert server.downloads == 1


def test_info_of_a_model_that_is_not_here(run, server):
    result = run("info", "tiny")
    assert "tiny is not downloaded" in result.stdout
    assert "A tiny model" in result.stdout
    facts = json.loads(run("info", "tiny", "--json").stdout)
    assert facts["path"] is None
    assert facts["context_length"] == 64
    assert facts["drafts"] == [{"draft": "other", "fits": None, "reason": "tiny is not downloaded"}]
    assert not server.requests


def test_info_of_a_model_that_is_here(run, cache, data):
    run("pull", "tiny")
    facts = json.loads(run("info", "tiny", "--json").stdout)
    assert facts["path"] == str(cache.path("tiny-model.gguf"))
    assert facts["architecture"] == "llama"
    assert facts["context_length"] == 64
    assert facts["vocabulary_size"] == 16
    assert facts["memory"]["context"] == 64
    assert facts["size_bytes"] < facts["memory"]["bytes"] < facts["size_bytes"] + 2**21
    assert "64 tokens of context" in run("info", "tiny").stdout
    assert facts["sha256"] == hashlib.sha256(data).hexdigest()
    assert facts["drafts"][0]["fits"] is None  # the known draft is not downloaded
    run("pull", "other")
    assert json.loads(run("info", "tiny", "--json").stdout)["drafts"][0]["fits"] is True


def test_info_shows_the_template(run):
    run("pull", "tiny")
    shown = run("info", "tiny").stdout
    assert "\x1b" not in shown
    assert "a\\x1b[2J" in shown
    assert "--template shows all of it" in shown
    assert run("info", "tiny", "--template").stdout == "a\x1b[2J\nb\nc\nd\ne\nf\n"


def test_info_of_a_file_with_a_draft(run, make_gguf):
    target, same = make_gguf(), make_gguf()
    foreign = make_gguf(tokens=["x", *(f"y{i}" for i in range(15))])
    assert (
        "fits: the vocabularies are identical"
        in run("info", str(target), "--draft", str(same)).stdout
    )
    facts = json.loads(run("info", str(target), "--draft", str(foreign), "--json").stdout)
    assert facts["drafts"][0]["fits"] is False
    assert "token 0 is '<unk>' in the target and 'x' in the draft" in facts["drafts"][0]["reason"]
    assert facts["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
    assert "none" in run("info", str(target)).stdout


def test_remove(run, cache):
    run("pull", "tiny")
    assert run("remove", "tiny", input="n\n").exit_code == 0
    assert cache.path("tiny-model.gguf").exists()
    assert "freed" in run("remove", "tiny", "--yes").stderr
    assert not cache.path("tiny-model.gguf").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("pull", "tinny"), 2, "did you mean tiny"),
        (("info", "tinny"), 2, "did you mean tiny"),
        (("info", "no.gguf"), 2, "no such file"),
        (("info", "hf:o/r/m.gguf"), 1, "not downloaded"),
        (("info", "tiny", "--template"), 1, "not downloaded"),
        (("info", "tiny", "--template", "--json"), 2, "exclude"),
        (("remove", "tiny", "--yes"), 1, "not downloaded"),
        (("remove", "tinny", "--yes"), 2, "unknown model"),
        (("remove", "./m.gguf", "--yes"), 2, "unknown model"),
    ],
)
def test_errors(run, arguments, status, complaint):
    with pytest.raises(EdgespecError, match=complaint) as caught:
        run(*arguments)
    assert caught.value.exit_status == status
    assert "\n" not in str(caught.value)


def test_short_forms_are_the_same_commands():
    context = click.Context(cli)
    for short, name in {"list": "list", "ls": "list", "pull": "pull", "rm": "remove"}.items():
        assert cli.get_command(context, short) is models.commands[name]


def test_ps_shows_what_holds_a_model_without_its_options(tmp_path):
    program = tmp_path / "edgespec"
    program.write_text("input()")
    words = ["serve", "my-model", "--api-key", "secret"]
    with subprocess.Popen([sys.executable, program, *words], stdin=subprocess.PIPE) as process:
        rows = json.loads(CliRunner(**SEPARATE).invoke(models, ["ps", "--json"]).stdout)
        (mine,) = [row for row in rows if row["pid"] == process.pid]
        assert mine["command"] == "serve my-model"
        assert mine["memory_bytes"] > 1 << 20
        shown = CliRunner(**SEPARATE).invoke(models, ["ps"]).stdout
        assert "secret" not in shown
        assert str(process.pid) in shown
        process.communicate(b"\n")


def test_a_list_needs_no_numba(tmp_path: Path) -> None:
    code = (
        "import sys; from edgespec.cli.main import main\n"
        "try: main(['models', 'list'])\n"
        "finally: assert 'numba' not in sys.modules and 'llama_cpp' not in sys.modules"
    )
    environment = {**os.environ, "EDGESPEC_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
