"""Tasks: varied, complete, and none of those that judge a draft."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np

from edgespec.backend import Model
from edgespec.benchmark.measuring import own_tasks
from edgespec.distill.prompts import TaskPrompts
from edgespec.distill.tasks import Excerpt, Seen, excerpt_task, follow_up, free_task, system_prompt
from edgespec.gguf.header import read_header
from edgespec.templates import ChatTemplate

CODE = Excerpt("def scale(values, factor):\n    return [v * factor for v in values]", "python")
PROSE = Excerpt("The ferry left at noon, with eleven passengers and a goat on board.", "")


def test_tasks_are_varied_and_complete() -> None:
    seen = Seen()
    made = [free_task(Random(n)) for n in range(2000)]
    assert sum(map(seen.add, made)) > 1500
    said = [follow_up(Random(n)) for n in range(200)]
    systems = [system_prompt(Random(n)) for n in range(200)]
    assert 60 < systems.count(None) < 140
    assert len(set(said)) > 60 and len(set(systems)) > 60
    assert not any("{" in text for text in (*made, *said, *filter(None, systems)))


def test_tasks_about_excerpts_have_them() -> None:
    for number in range(200):
        for excerpt, other in ((CODE, PROSE), (PROSE, CODE)):
            task = excerpt_task(excerpt, other, Random(number))
            assert excerpt.text in task and len(task) > len(excerpt.text) + 10
            assert ("```python\n" in task) == (CODE.text in task)


def test_tasks_that_judge_are_not_trained_on() -> None:
    turns = [turn for task in own_tasks() for turn in task.turns]
    for number in range(150):
        made = free_task(Random(number))
        for turn in turns:
            seen = Seen()
            assert seen.add(made) and seen.add(turn), (made, turn)
    judged = {turn.lower() for turn in turns}
    assert not judged & {free_task(Random(n)).lower() for n in range(20_000)}


def test_prompts_by_number(toy_target: Path) -> None:
    with Model(toy_target) as model:
        template = ChatTemplate.from_model(read_header(toy_target), model.vocabulary)
        assert template is not None
        first, second = (
            TaskPrompts(template, model.vocabulary, [CODE, PROSE] * 40) for _ in range(2)
        )
        numbers = [n for n in range(200) if first.opening(n) is None]
        assert 150 < len(numbers) < 200
        prompts = {n: first.prompt(n, "") for n in numbers}
        for number, prompt in prompts.items():
            again = second.prompt(number, "")
            assert (prompt is None) == (again is None)
            assert prompt is None or np.array_equal(prompt, again)
        texts = [
            model.vocabulary.decode(p, special=True) for p in prompts.values() if p is not None
        ]
        assert sum(CODE.text in text for text in texts) > 10
        assert all(text.endswith("<s>assistant: ") for text in texts)

        # What was asked is not asked again, and what was said is not said again.
        number = next(n for n in numbers if prompts[n] is not None and not first.held_out(n))
        assert first.prompt(number, "") is None
        answer = "The goat had eaten nine of the eleven tickets before anybody noticed."
        assert first.answered(number, answer)
        other = next(n for n in numbers if prompts[n] is not None and n > number)
        assert not first.answered(other, f"{answer} Indeed.")

        # Some go on where that answer ended; none that are held out.
        later = [n for n in range(200, 500) if first.opening(n) is None]
        followed = {n: first.prompt(n, "") for n in later}
        said = {
            n for n, p in followed.items() if p is not None and answer in model.vocabulary.decode(p)
        }
        assert len(said) > 10
        assert not any(first.held_out(n) for n in said)
