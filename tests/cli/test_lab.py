"""`edgespec lab`: the worked numbers, what it prints, draws and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.cli.main import main
from edgespec.errors import UsageError
from edgespec.lab.inputs import read_pair
from edgespec.lab.text import decimal

SIXTY_FOUR = ",".join(["1/128"] * 32 + ["3/128"] * 32)
EXAMPLE = (1, 1.11, 1.19, 1.26, 1.355, 1.45, 1.59, 1.73)
DEAR = (1, 1.58, 2.15, 2.56, 3.44, 3.51, 4.29, 5.30)  # llama.cpp's kernels with AVX2


@pytest.fixture
def lab(capsys):
    """Run it; returns status, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["lab", *words])
        output = capsys.readouterr()
        return ended.value.code or 0, output.out, output.err

    return run


@pytest.fixture
def found(lab):
    """The JSON of a run that has to go well."""

    def run(*words: str):
        status, text, error = lab("--json", *words)
        assert (status, error) == (0, "")
        return json.loads(text)

    return run


def elsewhere(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, timeout=120, env=environment
    )


def test_built_in_pair(found) -> None:
    step = found()["decomposition"]
    assert step["acceptance"]["fractions"] == ["1", "3/5", "1/3"]
    assert step["accepted"]["fractions"] == ["1/5", "3/10", "1/10"]
    assert step["residual"]["values"] == [1, 0, 0]
    assert step["alpha"] == {"fraction": "3/5", "value": 0.6}
    assert step["rejection_mass"]["fraction"] == "2/5"
    assert step["recovered"]["fractions"] == ["3/5", "3/10", "1/10"]
    assert step["recovered_equals_p"] is True
    assert step["naive"]["output"]["fractions"] == ["11/25", "21/50", "7/50"]
    assert step["naive"]["total_variation"]["fraction"] == "4/25"


@pytest.mark.parametrize(
    ("alpha", "tokens", "speedup"),
    [("3/4", 3.05, 2.18), ("0.9", 4.10, 2.93), (".5", 1.94, 1.38)],
)
def test_worked_numbers(lab, found, alpha, tokens, speedup) -> None:
    chain = found("--alpha", alpha, "--k", "4", "--c", "0.1")["chain"]
    assert round(chain["expected_tokens"]["value"], 2) == tokens
    assert round(chain["free"]["speedup"]["value"], 2) == speedup
    assert chain["alpha_given"] is True
    text = lab("--alpha", alpha)[1]
    assert f"{tokens:.2f} / 1.40 = {speedup:.2f}x" in text


def test_best_k_of_both_machines(found) -> None:
    chain = found("--alpha", "0.9", "--c", "0.02")["chain"]
    tokens = list(accumulate(0.9**k for k in range(17)))
    free = [tokens[k] / (1 + 0.02 * k) for k in range(17)]
    assert chain["free"]["best_k"] == free.index(max(free))
    measured = [tokens[k] / (EXAMPLE[k] + 0.02 * k) for k in range(8)]
    assert chain["measured"]["speedups"]["values"][:8] == pytest.approx(measured)
    best = chain["measured"]["speedups"]["values"].index(max(measured))
    assert (best, chain["measured"]["best_k"]) == (6, 6)
    assert "not this machine" in chain["measured"]["name"]


def test_do_not_speculate(lab, found) -> None:
    measured = found("--alpha", "0.1")["chain"]["measured"]
    assert (measured["best_k"], measured["best_speedup"]["value"]) == (0, 1)
    assert "do not speculate" in lab("--alpha", "0.1")[1]


def test_cost_curves(found, tmp_path) -> None:
    expected = [1, 1.46, 2.07]
    listed, named = tmp_path / "list.json", tmp_path / "Named.JSON"
    listed.write_text(json.dumps(expected))
    named.write_text(json.dumps({"3": 2.07, "1": 1, "2": 1.46}))
    for cost in ("1,1.46,2.07", "10,14.6,20.7", "3:2.07,1:1,2:73/50", str(listed), str(named)):
        measured = found("--cost", cost, "--k", "2", "--c", "0", "--alpha", "1")["chain"][
            "measured"
        ]
        speedups = measured["speedups"]["values"]
        assert speedups[:3] == pytest.approx([1, 2 / 1.46, 3 / 2.07])
        assert speedups[3:] == [None] * 14
        assert measured["best_k"] == 2
    between = found("--cost", "1:1,3:2", "--k", "1")["chain"]["measured"]
    assert between["verification_cost"]["fraction"] == "3/2"
    assert found("--cost", "1,1.1", "--k", "4")["chain"]["measured"]["speedup"] is None


def test_siblings(lab, found) -> None:
    trees = found("--siblings", "3")["siblings"]
    independent, distinct = trees["with_replacement"], trees["without_replacement"]
    assert independent["some_accepted"]["fractions"] == ["3/5", "17/25", "93/125"]
    assert independent["gain"]["fraction"] == "18/125"
    assert distinct["some_accepted"]["values"][2] == 1
    for tree in (independent, distinct):
        assert tree["output_equals_p"] is True
        assert tree["output"]["fractions"] == ["3/5", "3/10", "1/10"]
        # One sibling is a chain of one.
        assert tree["speedup"]["free"]["values"][0] == pytest.approx(1.6 / 1.1)
    assert found()["siblings"] is None
    text = lab("--siblings", "5")[1]
    assert "q allows only 3 tokens" in text
    assert text.count("p, exactly") == 3


def test_large_trees_say_where_they_end(found) -> None:
    report = found("--p", SIXTY_FOUR, "--q", ",".join(["1/64"] * 64), "--siblings", "16")
    assert report["siblings"]["with_replacement"]["count"] == 16
    assert 1 < report["siblings"]["without_replacement"]["count"] < 16
    assert report["siblings"]["without_replacement"]["output_equals_p"] is True
    assert "too many cases" in report["notes"][-1]


def test_json_has_everything(found) -> None:
    report = found("--siblings", "2", "--p", "0.5,0.5", "--q", "1/2,1/2")
    assert set(report) == {"p", "q", "decomposition", "chain", "siblings", "ranked", "notes"}
    assert set(report["decomposition"]) == {
        "acceptance", "accepted", "rejected", "residual", "alpha", "rejection_mass",
        "total_variation", "recovered", "recovered_equals_p", "naive",
    }  # fmt: skip
    assert set(report["chain"]) == {
        "alpha", "alpha_given", "k", "c", "expected_tokens", "free", "measured",
    }  # fmt: skip
    assert report["decomposition"]["residual"] is None
    for fraction, value in zip(report["p"]["fractions"], report["p"]["values"], strict=True):
        assert float(Fraction(fraction)) == value


def test_decimals_that_nearly_sum_to_one_are_normalized(lab, found) -> None:
    thirds = ",".join(["0.3333333333"] * 3)
    report = found("--p", thirds, "--q", "1/3,1/3,1/3")
    assert report["p"] == report["q"]
    assert report["notes"] == ["p sums to 1 - 1.0e-10: normalized"]
    assert "normalized" in lab("--p", thirds, "--q", thirds)[1]


WRONG = {
    "sum": ("--p", "0.6,0.3", "--q", "0.5,0.5"),
    "fractions that nearly sum to 1": ("--p", "1/2,499999999999/1000000000000", "--q", "1/2,1/2"),
    "lengths": ("--p", "0.5,0.5", "--q", "0.2,0.3,0.5"),
    "one entry": ("--p", "1", "--q", "1"),
    "65 entries": ("--p", ",".join(["1/65"] * 65), "--q", ",".join(["1/65"] * 65)),
    "negative": ("--p=-0.5,1.5", "--q", "0.5,0.5"),
    "no number": ("--p", "a,b", "--q", "0.5,0.5"),
    "nan": ("--p", "nan,1", "--q", "0.5,0.5"),
    "no entry": ("--p", "", "--q", ""),
    "empty entry": ("--p", "0.5,,0.5", "--q", "0.5,0.5,0"),
    "division by zero": ("--p", "1/0,1", "--q", "0.5,0.5"),
    "huge exponent": ("--p", "1e999,0", "--q", "0.5,0.5"),
    "enormous exponent": ("--p", "1e999999999,0", "--q", "0.5,0.5"),
    "many digits": ("--p", "0." + "3" * 5000 + ",0.5", "--q", "0.5,0.5"),
    "only p": ("--p", "0.5,0.5"),
    "alpha": ("--alpha", "1.1"),
    "c": ("--c=-1",),
    "k": ("--k", "33"),
    "siblings": ("--siblings", "17"),
    "cost is no number": ("--cost", "1,x"),
    "cost of 0": ("--cost", "1,0"),
    "cost without n = 1": ("--cost", "2:1.5"),
    "cost twice": ("--cost", "1:1,1:2"),
    "n of 0": ("--cost", "0:1"),
    "no file": ("--cost", "nowhere.json"),
    "picture of another kind": ("--png", "x.pdf"),
    "picture nowhere": ("--png", "no-such-folder/x.png"),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_wrong_calls_are_one_line(lab, words) -> None:
    status, text, error = lab(*words)
    assert (status, text) == (2, "")
    assert len(error.splitlines()) == 1
    assert len(error) < 200


WRONG_FILES = (
    "", "nonsense", "3", "null", "[]", '{"a": 1}', "[1, null]", "[1, NaN]", '{"1": 1, "1": 2}',
    "[" * 100_000, "\x80",
)  # fmt: skip


@pytest.mark.parametrize("content", WRONG_FILES, ids=range(len(WRONG_FILES)))
def test_wrong_cost_files_are_one_line(lab, tmp_path, content) -> None:
    path = tmp_path / "cost.json"
    path.write_bytes(content.encode("latin-1"))
    status, _, error = lab("--cost", str(path))
    assert status == 2
    assert len(error.splitlines()) == 1


@given(st.text("0123456789.,/-+e _", max_size=12), st.text("0123456789.,/", max_size=12))
def test_whatever_is_written_is_read_or_refused(p, q) -> None:
    for first, second in ((p, q), (p, p)):
        try:
            pair = read_pair(first, second)
        except UsageError:
            continue
        assert sum(pair.p) == sum(pair.q) == 1
        assert min(*pair.p, *pair.q) >= 0


@given(st.fractions(0, 1))
def test_probabilities_are_short(value) -> None:
    assert len(decimal(value)) <= 7
    assert float(decimal(value)) == pytest.approx(float(value), rel=0.06)


AWKWARD = {
    "built in": (),
    "equal": ("--p", "0.5,0.5", "--q", "0.5,0.5"),
    "disjoint": ("--p", "1,0", "--q", "0,1"),
    "tiny": ("--p", "1e-40,0." + "9" * 40, "--q", "0.5,0.5"),
    "64 tokens": ("--p", SIXTY_FOUR, "--q", ",".join(["1/64"] * 64)),
    "rounded": ("--p", "0.3333333333,0.6666666666", "--q", "0.1234567891,0.8765432109"),
    "costs near nothing": ("--cost", "1000000,0.000001", "--alpha", "1"),
    "no draft cost": ("--c", "0", "--k", "0", "--alpha", "0"),
    "huge draft cost": ("--c", "1e44", "--k", "32"),
    "long fractions": ("--p", "1/1000003,1000002/1000003", "--q", "1/999983,999982/999983"),
}


@pytest.mark.parametrize("words", AWKWARD.values(), ids=AWKWARD)
def test_text_fits_80_columns(lab, words) -> None:
    status, text, error = lab(*words, "--siblings", "16")
    assert (status, error) == (0, "")
    assert max(map(len, text.splitlines())) <= 80
    assert "NOT p" not in text
    assert "\x1b" not in text
    assert "\u2588" in text


def test_ascii_where_the_stream_has_no_blocks() -> None:
    done = elsewhere("-m", "edgespec", "lab", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "#####" in text
    assert "?" not in text


def test_it_starts_without_what_it_does_not_need() -> None:
    script = (
        "import sys\nfrom edgespec.cli.main import main\n"
        "try:\n    main(['lab', '--json'])\n"
        "except SystemExit:\n    heavy = {'numba', 'llama_cpp', 'matplotlib', 'numpy'}\n"
        "    sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = elsewhere("-c", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [(), ("--p", SIXTY_FOUR, "--q", ",".join(["1/64"] * 64)), ("--ranks", "0.4,0.15")],
)
def test_picture(lab, tmp_path, words) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    path = tmp_path / "lab.png"
    path.write_text("an older one")
    status, _, error = lab("--png", str(path), *words)
    assert (status, error.splitlines()) == (0, [f"saved {path}"])
    assert [file.name for file in tmp_path.iterdir()] == ["lab.png"]
    pixels = imread(path)
    assert pixels.shape[0] > 600
    assert pixels.shape[1] > 1000
    for colour in ("#0072B2", "#E69F00", "#009E73", "#CC79A7"):  # p, q, accepted, residual
        assert (abs(pixels[:, :, :3] - to_rgb(colour)).max(axis=2) < 0.01).sum() > 500


def test_a_picture_that_fails_leaves_the_older_one(lab, tmp_path, monkeypatch) -> None:
    path = tmp_path / "lab.png"
    path.write_text("an older one")

    def fail(draft: Path, data: bytes) -> None:
        draft.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    status, _, error = lab("--png", str(path))
    assert status == 1
    assert "No space left" in error
    assert path.read_text() == "an older one"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_the_cost_is_measured_on_this_machine(default_model: Path) -> None:
    command = [sys.executable, "-m", "edgespec", "lab", "--measure", str(default_model), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert b"on this machine" in done.stdout


def test_trees_by_rank(found, lab) -> None:
    cost = ",".join(map(str, DEAR))
    words = ("--ranks", "0.4,0.15,0.08,0.05", "--tree", "4,2,1", "--tree", "1,1", "--cost", cost)
    ranked = found(*words)["ranked"]
    tree, chain = ranked["shapes"]
    assert (tree["widths"], tree["nodes"]) == ([4, 2, 1], 20)
    assert chain["expected_tokens"]["fraction"] == "39/25"
    assert tree["speedup"]["measured"] is None  # v(21) is not known
    assert chain["speedup"]["free"]["value"] == pytest.approx(1.56 / 1.2)
    assert ranked["best"]["free"]["speedup"]["value"] > chain["speedup"]["free"]["value"]
    assert ranked["best"]["free"]["nodes"][0] == [1]
    assert ranked["best"]["measured"]["nodes"] == []  # 1.4 tokens do not pay for 1.58 + 0.1
    text = lab(*words)[1]
    assert "no tree, do not speculate" in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "words",
    [("--ranks", "0.7,0.4"), ("--ranks", "x"), ("--ranks", "0.5", "--tree", "0"), ("--tree", "2"),
     ("--ranks", "0.5", "--tree", "9,9"), ("--ranks", "-0.1")],
)  # fmt: skip
def test_wrong_trees_are_refused_in_one_line(lab, words) -> None:
    status, _, error = lab(*words)
    assert status and len(error.splitlines()) == 1
