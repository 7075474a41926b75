"""`edgespec run` from outside: output, JSON, exit status, and every bad input in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

GREEDY = (
    *("--temperature", "0", "--max-tokens", "16", "--threads", "2", "--ctx", "512"),
    # A fixed k, so that there are proposals even where costs would decide against them.
    *("--exact", "bitwise", "--k", "3"),
)
PROMPT = "Count: one two three one two three one two"


def only_line(done: Any, status: int) -> str:
    """The one line on standard error of a call that failed with this status."""
    error = done.stderr.decode()
    assert done.returncode == status, error
    assert done.stdout == b""
    lines = error.splitlines()
    assert len(lines) == 1, error
    assert lines[0].startswith("edgespec: ")
    return lines[0]


def test_json_has_every_documented_key(edgespec: Any) -> None:
    done = edgespec("run", "-p", PROMPT, "--json", *GREEDY, "--draft", "ngram")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {"text", "tokens", "prompt_tokens", "finish_reason", "model", "drafter"} <= set(result)
    assert {
        "prefill_s", "decode_s", "draft_s", "verify_s", "sample_s", "tokens_per_second",
    } == set(result["timings"])  # fmt: skip
    assert {
        "cycles", "proposed", "accepted", "bonus", "acceptance_rate", "tokens_per_cycle",
        "k_histogram", "fallback_cycles",
    } == set(result["speculation"])  # fmt: skip
    assert result["drafter"] == "ngram"
    assert result["exactness"]["mode"] == "bitwise"
    assert result["exactness"]["identical"] >= 4  # batches of k + 1; larger ones are measured too
    assert result["exactness"]["logit_difference"] == 0.0
    assert result["finish_reason"] in ("stop", "length")
    assert result["timings"]["decode_s"] >= result["timings"]["verify_s"]


def test_a_lossy_rule_is_said(edgespec: Any) -> None:
    given = ("run", "-p", PROMPT, "--draft", "ngram", "--max-tokens", "8", "--accept", "typical")
    lossy = json.loads(edgespec(*given, "--json").stdout)
    assert lossy["exactness"]["mode"] == "lossy"
    assert "not distributed" in lossy["exactness"]["reason"]
    assert b"lossy" in edgespec(*given).stderr
    greedy = json.loads(edgespec(*given, "--json", "--temperature", "0").stdout)
    assert greedy["exactness"]["mode"] == "bitwise"


def test_streamed_text_equals_json_text_for_every_drafter(edgespec: Any) -> None:
    plain = edgespec("run", "-p", PROMPT, *GREEDY, "--draft", "none").stdout.decode()
    for draft in ("ngram", "smollm2-135m"):
        done = edgespec("run", "-p", PROMPT, "--json", *GREEDY, "--draft", draft)
        assert json.loads(done.stdout)["text"].rstrip("\n") == plain.rstrip("\n")


@pytest.mark.slow
def test_prompt_from_file_and_standard_input(edgespec: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    expected = edgespec("run", "-p", PROMPT, *GREEDY).stdout
    assert edgespec("run", "-f", str(file), *GREEDY).stdout == expected
    assert edgespec("run", *GREEDY, input=PROMPT.encode()).stdout == expected
    assert edgespec("run", "-f", "-", *GREEDY, input=PROMPT.encode()).stdout == expected
    first, _, rest = PROMPT.partition(" ")
    both = edgespec("run", "-p", rest, "-f", "-", *GREEDY, input=f"{first}\n".encode())
    assert both.stdout == edgespec("run", "-p", f"{first}\n\n{rest}", *GREEDY).stdout


def test_show_marks_origins_without_colours(edgespec: Any) -> None:
    done = edgespec("run", "-p", PROMPT, "--show", *GREEDY, "--draft", "smollm2-135m", "--k", "2")
    assert b"\x1b[" not in done.stdout
    assert b"[" in done.stdout and b"<" in done.stdout
    assert b"accepted" in done.stderr


def test_show_strikes_out_what_was_refused(edgespec: Any) -> None:
    """A tree of three first tokens: at least two of each cycle do not stay, and the text does."""
    asked = ("run", "-p", PROMPT, "--temperature", "0", "--max-tokens", "24")
    asked = (*asked, "--draft", "smollm2-135m-eagle3", "--tree", "3,1")
    shown = edgespec(*asked, "--show")
    text, refused = re.subn("~[^~]*~", "", shown.stdout.decode())
    assert refused >= 3
    assert any("|" in branches for branches in re.findall("~([^~]*)~", shown.stdout.decode()))
    assert re.sub(r"[\[\]{}<>]", "", text) == edgespec(*asked).stdout.decode()
    assert "~refused~" in shown.stderr.decode()


def test_a_seed_repeats_the_text(edgespec: Any) -> None:
    sampled = ("--max-tokens", "12", "--temperature", "1", "--seed", "7", "--json")
    first, second = (json.loads(edgespec("run", "-p", PROMPT, *sampled).stdout) for _ in range(2))
    assert first["seed"] == second["seed"] == 7
    assert first["tokens"] == second["tokens"]


def test_offline_use_of_what_is_there(edgespec: Any) -> None:
    environment = {**os.environ, "https_proxy": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
    done = edgespec("run", "-p", PROMPT, "--offline", *GREEDY, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", ""], "empty"),
        (["-p", "  \n "], "empty"),
        (["-p", "x", "-f", "no/such/file"], "cannot read"),
        (["-f", "no/such/file"], "cannot read"),
        (["-p", "x", "--k", "-1"], "k is -1"),
        (["-p", "x", "--k", "99"], "between 0 and 32"),
        (["-p", "x", "--k", "many"], "number or auto"),
        (["-p", "x", "--temperature", "nan"], "temperature is nan"),
        (["-p", "x", "--temperature", "-1"], "temperature is -1"),
        (["-p", "x", "--temperature", "warm"], "temperature"),
        (["-p", "x", "--top-p", "1.5"], "top-p is 1.5"),
        (["-p", "x", "--repeat-penalty", "0"], "repeat-penalty"),
        (["-p", "x", "--logit-bias", "7"], "TOKEN=BIAS"),
        (["-p", "x", "--logit-bias", "999999=1"], "999999"),
        (["-p", "x", "--logit-bias", "5=1e39"], "logit bias"),
        (["-p", "x", "--grammar", ""], "cannot read"),
        (["-f", "/dev/zero"], "MiB"),
        (["-p", "x", "--grammar", "/dev/zero"], "MiB"),
        (["-p", "hi", "--ctx", "1"], "--ctx"),
        (["-p", "hi", "--ctx", "20"], "--ctx"),
        (["-p", "x", "--max-tokens", "0"], "max-tokens"),
        (["-p", "x", "--stop", ""], "stop string"),
        (["-p", "x", "--accept", "hopeful"], "one of"),
        (["-p", "x", "--accept", "greedy", "--temperature", "1"], "temperature 0"),
        (["-p", "x", "--exact", "roughly"], "exact is"),
        (["-p", "x", "--overflow", "wrap"], "overflow"),
        (["-p", "x", "--ctx", "-5"], "context is -5"),
        (["-p", "x", "--threads", "-1"], "threads is -1"),
        (["-p", "x", "--seed", "-1"], "seed is -1"),
        (["-p", "x", "--raw", "--system", "y"], "--raw"),
        (["-p", "x", "--show", "--json"], "exclude"),
        (["-p", "x", "--nonsense"], "--nonsense"),
        (
            ["smollm2-135m", "Why?", "x"],
            "unexpected extra argument (x). See `edgespec run --help`.",
        ),
        (["smollm2-135m", "Why?", "-p", "x"], "two prompts: leave out -p or 'Why?'"),
        (["smollm2-135m", "Why?", "-m", "x"], "the model is named twice: give MODEL or -m MODEL"),
        (["smollm-135", "Why?"], "did you mean smollm2-135m"),
        (["-m", "smollm-135", "Why?"], "did you mean smollm2-135m"),
        (["Why is that?"], "give a prompt with -p"),
        (["smollm-135", "-p", "x"], "smollm2-135m"),
        (["no/such/model.gguf", "-p", "x"], "no such file"),
        (["-p", "x", "--draft", "nobody"], "nobody"),
        (["-p", "word " * 600, "--ctx", "256"], "--ctx"),
    ],
)
def test_wrong_calls(called_here: Any, arguments: list[str], words: str) -> None:
    assert words in only_line(called_here("run", *arguments), 2)


def test_a_wrong_call_in_a_process_of_its_own(edgespec: Any) -> None:
    assert "--ctx" in only_line(edgespec("run", "-p", "hi", "--ctx", "1"), 2)


def test_bytes_that_are_not_utf8(edgespec: Any) -> None:
    line = only_line(edgespec("run", input=b"caf\xe9 au lait"), 2)
    assert "standard input is not UTF-8" in line
    assert "offset 3" in line


def hostile_files(folder: Path, model: Path) -> dict[str, Path]:
    data = model.read_bytes()
    contents = {
        "empty": b"",
        "short": data[:10],
        "truncated": data[: len(data) // 2],
        "header only": data[:5000],
        "foreign": b"PK\x03\x04" + b"\0" * 5000,
        "version": data[:4] + (99).to_bytes(4, "little") + data[8:10000],
    }
    files = {}
    for name, content in contents.items():
        files[name] = folder / f"{name.replace(' ', '-')}.gguf"
        files[name].write_bytes(content)
    files["embedding"] = folder / "embedding.gguf"
    writer = GGUFWriter(files["embedding"], "bert")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return files


def test_the_prompt_may_follow_the_model(edgespec: Any) -> None:
    calls = (
        ["smollm2-135m", "-p", PROMPT],
        ["smollm2-135m", PROMPT],
        ["-m", "smollm2-135m", PROMPT],
    )
    texts = {edgespec("run", *call, *GREEDY).stdout for call in calls}
    assert len(texts) == 1 and texts.pop().strip()


def test_metadata_does_not_steer_the_terminal(called_here: Any, tmp_path: Path) -> None:
    path = tmp_path / "bell\x1b[2J.gguf"
    line = only_line(called_here("run", str(path), "-p", "x"), 2)
    assert "bell[2J.gguf" in line and "\x1b" not in line


def test_json_that_is_cut_off_is_a_failure(edgespec: Any, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": {"length": "a story", "weather": "fine"}}')
    call = ("run", "-p", "A story as JSON.", *GREEDY, "--json-schema", str(schema))
    done = edgespec(*call, "--max-tokens", "3")
    words = (
        r"edgespec: the answer was cut off at 3 tokens \(--max-tokens\) before it obeyed the "
        r"grammar, whose shortest known text has (\d+)\n"
    )
    found = re.fullmatch(words, done.stderr.decode())
    assert done.returncode == 1 and found and done.stdout
    done = edgespec(*call, "--max-tokens", found[1])
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["weather"] == "fine"
    schema.write_text('{"enum": ["red"]}')
    done = edgespec(*call, "--max-tokens", "30")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == "red"


@pytest.mark.slow
def test_an_answer_that_only_repeats_itself_ends(
    edgespec: Any, toy_target: Path, tmp_path: Path
) -> None:
    call = ("run", str(toy_target), "-p", "hi", "--raw", "--json", "--temperature", "0")
    call += ("--logit-bias", "257=-inf", "--logit-bias", "258=-inf", "--ctx", "500")
    done = edgespec(*call)
    assert done.returncode == 0
    assert done.stderr.decode().endswith(
        "edgespec: the answer was ended because it only repeated itself (see --allow-loops)\n"
    )
    assert json.loads(done.stdout)["finish_reason"] == "loop"
    done = edgespec(*call, "--allow-loops", "--max-tokens", "-1")
    assert json.loads(done.stdout)["finish_reason"] == "context"


@pytest.mark.slow
def test_files_that_are_no_models(edgespec: Any, default_model: Path, tmp_path: Path) -> None:
    for name, path in hostile_files(tmp_path, default_model).items():
        line = only_line(edgespec("run", str(path), "-p", "x"), 2)
        assert path.name in line, name


def test_a_draft_with_another_vocabulary_says_so_and_changes_nothing(
    edgespec: Any, default_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    data = default_model.read_bytes()
    at = data.index(b"<|im_start|>")
    other.write_bytes(data[:at] + b"<|im_stArt|>" + data[at + 12 :])
    done = edgespec("run", "-p", PROMPT, *GREEDY, "--draft", str(other))
    assert done.returncode == 0, done.stderr
    assert b"another tokenizer" in done.stderr
    assert done.stdout == edgespec("run", "-p", PROMPT, *GREEDY, "--draft", "none").stdout


def test_a_model_that_does_not_fit_into_memory(edgespec: Any) -> None:
    line = only_line(edgespec("run", "-p", "x", "--ctx", "2000000000"), 1)
    assert "GiB" in line
    assert "try --ctx" in line


def test_debug_shows_a_traceback(edgespec: Any) -> None:
    done = edgespec("run", "-p", "", "--debug")
    assert done.returncode == 2
    assert b"Traceback" in done.stderr


@pytest.mark.slow
def test_a_read_only_cache_folder_costs_only_time(edgespec: Any, default_model: Path) -> None:
    environment = {**os.environ, "EDGESPEC_CACHE": "/proc/nowhere"}
    done = edgespec("run", str(default_model), "-p", PROMPT, *GREEDY, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"kernels are kept in" in done.stderr
    assert only_line(edgespec("run", "-p", "x", env=environment), 1)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams(default_model: Path, closed: str) -> None:
    command = f"{sys.executable} -m edgespec run -p hi --max-tokens 3 {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_a_context_shorter_than_a_batch(edgespec: Any) -> None:
    done = edgespec("run", "-p", "hi", "--raw", "--ctx", "8", "--temperature", "0", "--json")
    result = json.loads(done.stdout)
    assert result["finish_reason"] in ("context", "stop")
    assert result["prompt_tokens"] + len(result["tokens"]) <= 8


def test_a_reader_that_goes_away(default_model: Path) -> None:
    command = f"{sys.executable} -m edgespec run -p 'Tell a story' --max-tokens 40 | head -c 5"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=300)
    assert len(done.stdout) == 5
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("moment", "sign"),
    [("load", "loaded meta data"), ("prefill", "begins a prompt"), ("decode", None)],
)
def test_ctrl_c(default_model: Path, tmp_path: Path, moment: str, sign: str | None) -> None:
    prompt, log = tmp_path / "prompt.txt", tmp_path / "log.txt"
    prompt.write_text("one two three " * (1200 if moment == "prefill" else 1))
    command = [sys.executable, "-m", "edgespec", "-v", "run", str(default_model)]
    command += ["-f", str(prompt), "--logit-bias", "2=-inf", "--ctx", "8192"]
    with log.open("wb") as error:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=error, stdin=subprocess.DEVNULL
        )
    assert process.stdout is not None
    if sign is None:
        assert process.stdout.read(1)
    while sign is not None and sign not in log.read_text("utf-8", "replace"):
        assert process.poll() is None, "ended before it was interrupted"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    text = log.read_text("utf-8", "replace")
    assert process.returncode == 130, text[-2000:]
    assert "Traceback" not in text
    assert "Exception ignored" not in text
