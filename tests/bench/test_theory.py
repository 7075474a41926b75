"""Predictions against hand-made answers, causes that are known, and one small real run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.theory.__main__ import main
from bench.theory.answers import Answer, Cycle, Turn
from bench.theory.costs import Costs, Drafting, Known
from bench.theory.factors import FACTORS, decompose
from bench.theory.predictions import acceptance, one_chance, predict
from bench.theory.report import compare
from bench.theory.rows import largest_factor, make_row, mark_outliers, rank_correlation, summarize

V = [1.0, 1.25, 1.5, 1.75]
TABLE = Costs([0, 1000], [1, 2, 3, 4], [V, V])
FREE = Known(TABLE, TABLE, Drafting())


def cycle(
    emitted: int, proposed: int, *, drafted: bool = False, depth: int = 10, **took: float
) -> Cycle:
    """By default it takes what the table says."""
    seconds = {"draft_s": 0.0, "verify_s": V[proposed], **took}
    return Cycle(depth, proposed + 1, proposed, emitted, drafted=drafted, **seconds)


def answer(cycles: Sequence[Cycle], overhead_s: float = 0.0, tokens: int | None = None) -> Answer:
    seconds = sum(c.draft_s + c.verify_s for c in cycles) + overhead_s
    count = sum(c.emitted for c in cycles) if tokens is None else tokens
    return Answer((Turn(0, count, seconds, tuple(cycles)),), "text")


def plainly(count: int, slower: float = 1.0, overhead_s: float = 0.0) -> Answer:
    return answer([cycle(1, 0, verify_s=slower)] * count, overhead_s)


# -- predictions ------------------------------------------------------------------------------


def test_one_chance_of_acceptance_is_the_theorem() -> None:
    # Every outcome of two proposals that are right half the time, once each.
    outcomes = itertools.product((False, True), repeat=2)
    emitted = [1 + first + (first and second) for first, second in outcomes]
    cycles = [cycle(count, 2, drafted=True) for count in emitted]
    assert one_chance(cycles) == 0.5
    assert acceptance(cycles) == [0.5, 0.5]
    found = predict(answer(cycles), Known(TABLE, TABLE, Drafting(step_s=0.125)))
    expected = (1 + 0.5 + 0.25) / (1.5 + 2 * 0.125)
    assert found.one_alpha == pytest.approx(expected)
    assert found.textbook == pytest.approx(expected)
    assert found.cycles == pytest.approx(expected)
    assert (found.runs, found.lengths, found.costs) == pytest.approx((1, 1, 1))


def test_acceptance_in_runs_is_found_by_position() -> None:
    cycles = [cycle(3, 2), cycle(1, 2)]  # all right, or the first one wrong
    found = predict(answer(cycles), FREE)
    assert found.one_alpha == pytest.approx((1 + 2 / 3 + 4 / 9) / 1.5)
    assert found.textbook == pytest.approx(2 / 1.5)
    assert found.runs == pytest.approx(18 / 19)
    assert found.lengths == pytest.approx(1)
    assert found.varying == pytest.approx(18 / 19)


def test_longer_blocks_where_more_is_accepted_bring_more_than_alphas_say() -> None:
    cycles = [cycle(1, 1), cycle(4, 3)]
    assert acceptance(cycles) == [0.5, 1, 1]
    found = predict(answer(cycles), FREE)
    cost = V[1] + V[3]
    assert found.textbook == pytest.approx((1.5 + 2.5) / cost)
    assert found.lengths == pytest.approx(5 / 4)
    assert found.cycles == pytest.approx(5 / cost)
    assert found.cycles == pytest.approx(found.textbook * found.lengths * found.costs)


def test_a_position_that_was_never_judged_goes_on_as_the_one_before() -> None:
    assert acceptance([cycle(2, 1), cycle(1, 3)]) == [0.5, 0.5, 0.5]


def test_without_proposals_only_looking_them_up_is_lost() -> None:
    known = Known(TABLE, TABLE, Drafting(lookup_s=0.25))
    found = predict(answer([cycle(1, 0)] * 8), known)
    for speedup in (found.one_alpha, found.textbook, found.cycles):
        assert speedup == pytest.approx(1 / 1.25)
    assert found.varying == pytest.approx(1)


def test_tokens_behind_the_end_are_not_counted() -> None:
    found = predict(answer([cycle(4, 3), cycle(4, 3)], tokens=6), FREE)
    assert found.cycles == pytest.approx(6 / 3.5)
    assert found.costs == pytest.approx(6 / 8)


def test_costs_are_those_of_every_depth() -> None:
    table = Costs([0, 100], [1, 2], [[1.0, 1.5], [2.0, 3.0]])
    cycles = [cycle(2, 1, depth=0), cycle(1, 1, depth=100), cycle(1, 0, depth=200)]
    plain = 1.0 + 1.01 + 2.0 + 3.0
    found = predict(answer(cycles), Known(table, table, Drafting()))
    assert found.cycles == pytest.approx(plain / (1.5 + 3.0 + 3.0))


def test_a_draft_reads_what_it_has_not_seen() -> None:
    drafting = Drafting(lookup_s=1.0, indexing_s=0.01, step_s=10.0, reading_s=2.0)
    first = [
        cycle(1, 2, drafted=True, depth=9),  # reads 9 tokens for its first proposal
        cycle(3, 2, drafted=True, depth=10),  # has read the prompt
        cycle(1, 1, depth=13),  # prompt lookup
        cycle(1, 0, depth=14),
        cycle(2, 1, drafted=True, depth=15),  # three tokens are missing, less than a step
    ]
    second = [cycle(1, 1, drafted=True, depth=40)]  # 12 of its tokens are known
    turns = [Turn(0, 8, 1.0, tuple(first)), Turn(12, 1, 1.0, tuple(second))]
    assert list(drafting.of_cycles(turns)) == pytest.approx(
        [1.1 + 18 + 10, 1 + 20, 1, 1, 1 + 10, 1 + 0.41 + 56]
    )


# -- factors ----------------------------------------------------------------------------------


def made_up(generator: np.random.Generator) -> tuple[Answer, Answer, Known]:
    """Two answers of different texts, tables and times that have nothing to do with each other."""

    def side(speculative: bool) -> Answer:
        turns = []
        for _ in range(3):
            cycles = []
            for _ in range(int(generator.integers(1, 12))):
                proposed = int(generator.integers(0, 4)) if speculative else 0
                emitted = int(generator.integers(1, proposed + 2))
                took = generator.uniform(0.1, 3.0, 2)
                depth = int(generator.integers(0, 2000))
                drafted = bool(proposed and generator.integers(2))
                cycles.append(Cycle(depth, proposed + 1, proposed, emitted, *took, drafted))
            seconds = sum(c.draft_s + c.verify_s for c in cycles) + generator.uniform(0, 2)
            turns.append(Turn(0, sum(c.emitted for c in cycles), seconds, tuple(cycles)))
        return Answer(tuple(turns))

    tables = [
        Costs([0, 500], [1, 2, 3, 4], generator.uniform(0.5, 3.0, (2, 4)).tolist())
        for _ in range(2)
    ]
    return side(False), side(True), Known(*tables, Drafting(*generator.uniform(0, 0.5, 4)))


def test_factors_multiply_to_measured_over_predicted() -> None:
    generator = np.random.default_rng(1)
    for _ in range(100):
        plain, fast, known = made_up(generator)
        measured = (plain.seconds / plain.tokens) / (fast.seconds / fast.tokens)
        found, prediction = decompose(plain, fast, known), predict(fast, known)
        assert math.isclose(found.product, measured / prediction.cycles, rel_tol=1e-12)
        steps = prediction.one_alpha * prediction.varying * prediction.costs
        assert math.isclose(steps, prediction.cycles, rel_tol=1e-12)


def test_what_goes_as_predicted_has_factors_of_1() -> None:
    cycles = [cycle(3, 2), cycle(2, 1), cycle(1, 0)]
    found = decompose(plainly(6), answer(cycles), FREE)
    assert found.both == 1
    assert list(found.factors.values()) == pytest.approx([1] * len(FACTORS))


def test_a_machine_that_is_slower_on_both_sides_is_nobodys_fault() -> None:
    cycles = [cycle(3, 2, verify_s=1.2 * V[2])] * 4
    found = decompose(plainly(12, slower=1.2), answer(cycles), FREE)
    assert found.both == pytest.approx(1.2)
    assert list(found.factors.values()) == pytest.approx([1] * len(FACTORS))


def test_a_part_alone_has_all_of_the_quotient() -> None:
    cycles = [cycle(3, 2)] * 4
    assert decompose(plainly(12, 1.5), answer(cycles), FREE).factors["plain"] == pytest.approx(1.5)
    dearer = [cycle(3, 2), *[cycle(3, 2, verify_s=2 * V[2])] * 4]
    found = decompose(plainly(15), answer(dearer), FREE)
    assert found.factors["same"] == pytest.approx(5 / 9)
    rest = [found.factors[name] for name in FACTORS if name != "same"]
    assert rest == pytest.approx([1] * len(rest))


# -- rows -------------------------------------------------------------------------------------


def ordinary() -> list[Cycle]:
    return [cycle(3, 2), cycle(3, 2), cycle(1, 0), cycle(1, 0), cycle(2, 2), cycle(1, 0)] * 4


def slower(cycles: list[Cycle], which: Sequence[int], times: float) -> list[Cycle]:
    return [
        c._replace(verify_s=c.verify_s * times) if i in which else c for i, c in enumerate(cycles)
    ]


CHANGED = [i for i in range(1, 24) if i % 6 in (0, 2, 4, 5)]
SAME = [i for i in range(24) if i % 6 in (1, 3)]
CAUSES = {
    "plain": (plainly(44, slower=0.8), ordinary(), 0.0, "took 0.80 times"),
    "same": (plainly(44), slower(ordinary(), SAME, 2.0), 0.0, "took 2.00 times the table's"),
    # The machine is slower on both sides as well: that is not what is named.
    "changed": (
        plainly(44, slower=1.3),
        slower(slower(ordinary(), range(24), 1.3), CHANGED, 1.5),
        0.0,
        "another number of tokens than the one before took 1.50 times",
    ),
    "first": (plainly(44), slower(ordinary(), [0], 8.0), 0.0, "behind a prompt took 8.00 times"),
    "drafting": (
        plainly(44),
        [c._replace(draft_s=0.4) for c in ordinary()],
        0.0,
        "drafting took 4.00 times",
    ),
    "overhead": (plainly(44), ordinary(), 10.0, "Python took 24% of speculative decoding, 0% of"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_an_outlier_is_explained_by_its_cause(cause: str) -> None:
    known = Known(TABLE, TABLE, Drafting(lookup_s=0.1))
    plain, cycles, overhead_s, words = CAUSES[cause]
    usual = [c._replace(draft_s=0.1) for c in ordinary()]
    if cause != "drafting":
        cycles = [c._replace(draft_s=0.1) for c in cycles]
    rows = [
        make_row(f"usual-{i}", "usual", "2", [(plainly(44), answer(usual, 0.1 * i))], known)
        for i in range(6)
    ]
    rows.append(make_row("odd-1", "odd", "2", [(plain, answer(cycles, overhead_s))], known))
    bound = mark_outliers(rows)
    assert [row["outlier"] is not None for row in rows] == [False] * 6 + [True]
    assert largest_factor(rows[-1]) == cause
    assert rows[-1]["outlier"].startswith("odd-1, k 2: ")
    assert words in rows[-1]["outlier"]
    assert summarize(rows, bound)["outliers"] == 1


def test_a_few_percent_are_no_outlier_however_alike_the_others_are() -> None:
    rows = [
        make_row(str(i), "", "2", [(plainly(44), answer(ordinary(), 1.0 * (i == 6)))], FREE)
        for i in range(7)
    ]
    assert math.expm1(mark_outliers(rows)) == pytest.approx(0.05)
    assert not any(row["outlier"] for row in rows)


def test_the_round_of_the_median_speedup_is_explained() -> None:
    rounds = [(plainly(44, slower=s), answer(ordinary())) for s in (1.4, 1.0, 3.0, 1.1)]
    row = make_row("a", "", "2", rounds, FREE)
    assert row["round"] == 3
    assert row["measured"] == row["speedups"][3] == pytest.approx(1.1 * row["by_cycle"])
    assert row["factors"]["plain"] == pytest.approx(1.1)


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 31]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # By hand: ranks 0 1 2 3 and 0.5 0.5 2 3.
    assert rank_correlation([1, 2, 3, 4], [5, 5, 6, 7]) == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


# -- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--k", "0"], "'0' is neither auto nor a number above 0"),
        (["--k", "many"], "'many' is neither auto nor"),
        (["--k", "99"], "k is 99"),
        (["--rounds", "0"], "'0' is not a number above 0"),
        (["--temperature", "-1"], "temperature"),
        (["--draft", "none"], "--draft none"),
        (["--tasks", "no-such-file"], "no-such-file"),
        (["--categories", "riddles"], "no category 'riddles'"),
        (["--png", "picture.svg"], "ends in .png"),
        (["--json", "no-such-folder/a.json"], "no folder no-such-folder"),
        (["no-such-model.gguf"], "no-such-model.gguf"),
    ],
)
def test_a_wrong_call_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: Any = main(words)
    except SystemExit as error:
        status = error.code
    output = capsys.readouterr()
    assert status == 2
    assert said in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.fixture
def nothing_learned(default_model: Path, tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
        yield


@pytest.mark.usefixtures("nothing_learned")
@pytest.mark.slow
def test_a_real_run(
    default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = {
        "copying": ["Repeat after me: one two three one two three one two three", "Once more."],
        "prose": ["Name a river."],
    }
    tasks, saved, picture = (tmp_path / name for name in ("t.jsonl", "t.json", "t.png"))
    lines = [{"question_id": 1, "category": c, "turns": t} for c, t in turns.items()]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = f"--tasks {tasks} --k 2 1 --tokens 12 --rounds 1 --ctx 128"
    files = f"--json {saved} --png {picture}"
    assert main([str(default_model), *options.split(), *files.split()]) == 0
    assert "TEXTS DIFFER" not in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")

    found = json.loads(saved.read_text())
    assert [(row["task"], row["k"]) for row in found["rows"]] == [
        (f"{category}-1", k) for k in ("1", "2") for category in turns
    ]
    for row in found["rows"]:
        assert row["same_text"]
        product = math.prod(row["factors"].values())
        assert math.isclose(product, row["measured"] / row["by_cycle"], rel_tol=1e-12)
        assert row["factors"]["text"] == 1
    answers = {
        task: {name: [Answer.from_json(one) for one in each] for name, each in e["answers"].items()}
        for task, e in found["answers"].items()
    }
    copied = answers["copying-1"]["2"][0]
    assert len(copied.turns) == 2
    assert any(c.proposed == 2 for c in copied.cycles)
    assert all(c.proposed <= 1 for c in answers["copying-1"]["1"][0].cycles)

    # All of it can be worked out anew from what was saved.
    known = {
        k: Known(Costs(**e["plain"]), Costs(**e["speculative"]), Drafting(**e["drafting"]))
        for k, e in found["known"].items()
    }
    again = {t: {**found["answers"][t], "answers": answers[t]} for t in answers}
    rows, summary = compare(again, known)
    assert json.loads(json.dumps([rows, summary])) == [found["rows"], found["summary"]]
