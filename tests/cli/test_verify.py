"""`edgespec verify` from outside: table, JSON, exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from edgespec.backend import capabilities
from edgespec.cli.verify import verify
from edgespec.verification import suite
from edgespec.verification.checks import CheckResult

SMALL = suite.Effort(depths=(20,), answer=6, prefixes=1, draws=2_500, cycles=6)
NAMES = ["invariance", "greedy", "coupled", "rejection", "trees", "cache"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, default_model: object) -> CliRunner:
    """The command in this process, with little to do."""
    monkeypatch.setattr(suite, "QUICK", SMALL)
    return CliRunner()


@pytest.mark.skipif(capabilities().tinyblas, reason="LLAMAFILE kernels round batches differently")
@pytest.mark.slow
def test_json_has_all_figures(small: CliRunner) -> None:
    done = small.invoke(
        verify,
        ["--quick", "--json", "--ctx", "256", "--threads", "2", "--k", "2"],
        standalone_mode=False,
    )
    facts = json.loads(done.stdout)
    assert done.return_value == 0, facts
    assert facts["holds"] and facts["quick"]
    assert (facts["drafter"], facts["k"], facts["threads"]) == ("ngram", 2, 2)
    assert [check["name"] for check in facts["checks"]] == NAMES
    for check in facts["checks"]:
        assert check["holds"] and check["applies"] == (check["name"] != "trees")
        assert check["figures"] or not check["applies"]
        assert check["seconds"] >= 0


def test_without_a_drafter_there_is_less_to_compare(small: CliRunner) -> None:
    done = small.invoke(
        verify,
        ["--quick", "--ctx", "256", "--threads", "1", "--draft", "none"],
        standalone_mode=False,
    )
    assert "nothing to compare: no drafter is in use" in done.stdout
    assert "\x1b[" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    for name in NAMES:
        assert any(line.startswith(name) for line in done.stdout.splitlines())


def test_a_failing_check_is_exit_status_1_with_its_reason(
    small: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = CheckResult("greedy", False, "1 answers differ " * 8, details=("here it is " * 12,))
    monkeypatch.setattr(
        suite, "run_checks", lambda *_, **__: iter([suite.Timed(bad, 0.1), suite.Timed(bad, 0.1)])
    )
    done = small.invoke(verify, ["--ctx", "256", "--threads", "1"], standalone_mode=False)
    assert done.return_value == 1
    reason = done.stderr.splitlines()[-1]
    assert reason.startswith("edgespec: 2 of 2 checks failed (greedy, greedy)")
    assert "FAILS" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80


def test_a_wrong_call(edgespec: Any) -> None:
    done = edgespec("verify", "--k", "many")
    assert done.returncode == 2
    assert len(done.stderr.decode().splitlines()) == 1
