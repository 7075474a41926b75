"""Asking on the page, with the real model behind it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from edgespec import Engine

REPEATING = "Repeat three times: the cat sat on the mat, the dog sat on the log."
LENGTH = 40
SHORT = json.dumps({"maxTokens": LENGTH})


def asked(client: Any, text: str, **more: Any) -> list[Any]:
    """The interface's stream for a message, or for the `messages` that are given."""
    messages = [{"role": "user", "content": text}]
    return list(
        client.chat.completions.create(
            model="x",
            stream=True,
            extra_body={"edgespec": {"origins": True}},
            **{"messages": messages, "max_tokens": LENGTH, **more},
        )
    )


def test_an_answer_is_what_the_interface_gives(page: Any, client: Any) -> None:
    page.open(settings=SHORT)
    page.ask(REPEATING)
    *chunks, last = asked(client, REPEATING)
    told = [chunk for chunk in chunks if chunk.choices[0].delta.content]
    text = "".join(chunk.choices[0].delta.content for chunk in told)
    assert page.answer == text
    assert page.shown.split() == text.split()
    spans = page.run(
        "return Array.from(document.querySelectorAll('#turns .token'),"
        " e => [e.textContent, e.className, Number(e.dataset.piece)])"
    )
    assert [kind for _, kind, _ in spans] == [f"token {one.edgespec['origin']}" for one in told]
    assert [number for _, _, number in spans] == list(range(len(told)))
    counted = Counter(kind.split()[1] for _, kind, _ in spans)
    assert counted["accepted"] > 5 and counted.total() == len(told)
    for origin in ("accepted", "corrected", "bonus", "plain"):
        assert page.counted(origin) == str(counted[origin])
    figures = last.edgespec["speculation"]
    assert figures["accepted"] >= counted["accepted"]  # the last block may have been cut
    share = float(page.figure("acceptance").removesuffix("%"))
    assert share == pytest.approx(100 * figures["acceptance_rate"], abs=0.5)
    cycle = float(page.figure("cycle"))
    assert cycle == pytest.approx(figures["tokens_per_cycle"], abs=0.0051)
    assert page.figure("context").endswith("/ 1024")


def test_acceptance_by_position_is_counted_from_origins(page: Any, turn: Any) -> None:
    blocks = "plain", "accepted accepted bonus", "accepted corrected", "corrected"
    unfinished = "accepted accepted accepted"
    pieces = [["a", origin, 1] for origin in " ".join([*blocks, unfinished]).split()]
    page.open([{**turn(), "pieces": pieces}, turn("a", "b")])  # the second: plain, accepted
    cells = page.texts("#positions tbody td:last-child")
    assert cells == ["80% of 5", "67% of 3", "100% of 1"]
    assert page.counted("accepted") == "7"


def test_settings_are_obeyed(page: Any, client: Any) -> None:
    page.find("#settings-open").click()
    for field, value in {"temperature": "1.1", "max-tokens": "16", "seed": "11"}.items():
        page.find(f"#{field}").send_keys(value)
    page.find("#system").send_keys("You are a pirate.")
    page.find("#settings-close").click()
    page.ask("Who are you?")
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Who are you?"},
    ]
    chunks = asked(client, "", messages=messages, temperature=1.1, max_tokens=16, seed=11)
    assert page.answer == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "cut off at max tokens" in page.text(".caption")


def test_a_conversation_goes_on_and_survives_a_reload(page: Any, client: Any) -> None:
    page.open(settings=SHORT)
    page.ask("Name a river.")
    first = page.answer
    page.ask("And another one.")
    messages = [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And another one."},
    ]
    chunks = asked(client, "", messages=messages)
    assert page.answer == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    page.find("#prompt").send_keys("A thought")
    looks = page.texts(".question, .answer, #legend dd, [data-figure]")
    page.browser.refresh()
    page.until(lambda: "1024" in page.figure("context"))
    assert page.texts(".question, .answer, #legend dd, [data-figure]") == looks
    assert page.draft == "A thought"
    assert page.find("#max-tokens").get_property("value") == str(LENGTH)


@pytest.mark.parametrize("way", ["escape", "button", "reload"])
def test_stop_frees_the_engine(page: Any, server: Any, way: str) -> None:
    before = server.gauge("edgespec_generated_tokens_total")
    page.send("Write all numbers from 1 to 1000, one per line.")
    page.until(lambda: len(page.all("#turns .token")) > 5)
    if way == "escape":
        page.find("#prompt").send_keys(Keys.ESCAPE)
    elif way == "button":
        page.find("#send").click()
    else:
        page.browser.refresh()
    page.until(lambda: page.idle)
    page.until(lambda: server.gauge("edgespec_running") == 0)
    (kept,) = page.kept("turns")
    assert kept["state"] == "stopped" and len(kept["pieces"]) > 5
    assert "stopped" in page.text(".caption") and not page.error
    written = server.gauge("edgespec_generated_tokens_total") - before
    assert len(kept["pieces"]) <= written < 800  # of the thousand that there is room for
    page.limit(4)
    page.ask("Thank you.")
    assert page.kept("turns")[-1]["state"] == "done"


def test_retry_and_edit(page: Any) -> None:
    page.open(settings=json.dumps({"maxTokens": 4}))
    page.ask("Name a colour.")
    first = page.answer
    page.limit(8)
    page.find(".foot .last").click()
    page.until(lambda: page.idle)
    assert len(page.all(".turn")) == 1
    assert page.answer.startswith(first) and len(page.answer) > len(first)
    page.find("#prompt").send_keys("not yet sent")
    page.all(".foot .last")[1].click()
    assert page.draft == "Name a colour.\nnot yet sent"
    assert not page.all(".turn") and page.find("#welcome").is_displayed()


def test_a_conversation_before_a_new_one_is_kept(page: Any, turn: Any) -> None:
    page.open([turn("The", " first")])
    page.find("#new").click()
    assert not page.all(".turn") and page.counted("plain") == "0"
    page.find("#history-open").click()
    page.find("#history .choice").click()
    assert page.texts(".answer .text") == ["", "The first"]
    assert not page.find("#history").is_displayed()


def test_conversations_are_listed_and_deleted(page: Any, turn: Any) -> None:
    page.open([turn("Of one", prompt="<b>One</b>\nmore")])
    page.keep("two", [turn("Of two", prompt="Two")], time=2)
    page.keep("bad", "no turns")
    page.find("#history-open").click()
    assert page.texts("#history .title") == ["Two", "<b>One</b>"]
    assert page.texts("#history [aria-current] .title") == ["<b>One</b>"]
    page.find("#history .choice").click()
    assert page.texts(".answer > .text") == ["Of two"]
    page.browser.refresh()
    page.until(lambda: page.texts(".answer > .text") == ["Of two"])
    page.find("#history-open").click()
    page.find("#history .small").click()  # the one on the page
    assert not page.all(".turn") and page.texts("#history .title") == ["<b>One</b>"]
    page.find("#history .small").click()
    assert page.find("#history-empty").is_displayed()
    page.browser.refresh()
    kept = page.run("return Object.keys(localStorage).filter((n) => n.includes('.conv'))")
    assert kept == ["edgespec.conversation.bad"]


def test_the_oldest_conversations_make_room(page: Any, turn: Any) -> None:
    page.open([turn("a", "b")])
    page.keep("old", [turn("x" * 4_800_000)], time=0)
    page.run(
        "const app = JSON.parse(localStorage['edgespec.conversation.one']);"
        "const { keepConversation } = await import('/storing.js');"
        "app.turns[0].pieces = Array(400000).fill(['ab', 'plain', 1]);"
        "keepConversation({id: 'new', time: 5, turns: app.turns});"
    )
    assert page.run("return Object.keys(localStorage).sort()")[:2] == [
        "edgespec.conversation.new", "edgespec.conversation.one",
    ]  # fmt: skip
    stored = page.run("return JSON.parse(localStorage['edgespec.conversation.new'])")
    assert stored["turns"][0]["pieces"] == [["ab" * 400_000, "plain", -1]]
    page.run(
        "const { keepConversation } = await import('/storing.js');"
        "const turn = {prompt: 'x'.repeat(6000000), files: [], pieces: []};"
        "keepConversation({id: 'huge', time: 6, turns: [turn]});"
    )
    left = page.run("return Object.keys(localStorage).filter((n) => n.includes('.conv')).sort()")
    assert left == ["edgespec.conversation.new", "edgespec.conversation.one"]


def test_text_files_are_attached(page: Any, client: Any, tmp_path: Path) -> None:
    texts = {"a.py": "print('```')\n", "<b>.txt": "two\n", "gone.txt": "three"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\x00")
    page.open(settings=SHORT)
    field = page.find("#files")
    field.send_keys("\n".join(str(tmp_path / name) for name in [*texts, "picture.png"]))
    page.until(lambda: page.text("#attach-problem"))
    assert page.text("#attach-problem") == "picture.png is not a text file in UTF-8."
    page.all("#attachments button")[2].click()
    assert [name.split("×")[0] for name in page.texts("#attachments li")] == ["a.py", "<b>.txt"]
    page.ask("What is this?")
    sent = "a.py:\n````\nprint('```')\n````\n\n<b>.txt:\n```\ntwo\n```\n\nWhat is this?"
    answer = "".join(chunk.choices[0].delta.content or "" for chunk in asked(client, sent))
    assert page.answer == answer
    assert page.texts(".asked summary") == ["a.py", "<b>.txt"] and not page.all("#attachments li")
    assert page.texts(".asked pre") == list(texts.values())[:2]
    page.browser.refresh()
    page.until(lambda: page.texts(".asked summary") == ["a.py", "<b>.txt"])
    page.all(".foot .last")[1].click()
    assert page.draft == "What is this?" and len(page.all("#attachments li")) == 2


def test_with_the_keyboard_alone(page: Any) -> None:
    page.open(settings=SHORT)

    def press(*keys: str) -> str:
        """Where the focus is afterwards."""
        page.browser.switch_to.active_element.send_keys(*keys)
        return page.run("return document.activeElement.id || document.activeElement.textContent")

    assert press("Say", Keys.SHIFT, Keys.ENTER) == "prompt"  # it has the focus from the start
    press("hello.")
    press(Keys.ENTER)
    page.until(lambda: page.idle)
    assert page.text(".question") == "Say\nhello."
    assert press(Keys.TAB) == "send"
    press(Keys.SHIFT, Keys.TAB)
    back = [press(Keys.SHIFT, Keys.TAB) for _ in range(2)]
    assert back[0] == "attach" and "tokens/s" in back[1]
    press(Keys.SPACE)
    press(Keys.TAB)
    while press(Keys.TAB) != "colours":  # what scrolls may have the focus
        pass
    press(Keys.SPACE)
    assert page.find("#colours").get_attribute("aria-pressed") == "false"
    page.find("#figures summary").click()
    back = [press(Keys.SHIFT, Keys.TAB) for _ in range(7)]
    assert [name.strip() for name in back] == [
        "Edit", "Retry", "Copy", "conversation", "settings-open", "new", "history-open",
    ]  # fmt: skip
    press(Keys.ENTER)
    assert page.find("#history").is_displayed()
    press(Keys.ESCAPE)
    press(Keys.TAB), press(Keys.TAB), press(Keys.ENTER)
    assert page.find("#settings").is_displayed()
    press("A system prompt", Keys.ESCAPE)
    assert not page.find("#settings").is_displayed()
    assert page.kept("settings")["system"] == "A system prompt"
    assert press("x") == "prompt"


def test_who_listens_hears_the_whole_answer_once(page: Any) -> None:
    page.open(settings=SHORT)
    page.run(
        "window.said = [];"
        "new MutationObserver(() => said.push(document.getElementById('announcer').textContent))"
        ".observe(document.getElementById('announcer'), {childList: true})"
    )
    page.ask("Name a river.")
    assert page.run("return said") == ["The model is writing.", page.shown]
    assert page.run("return document.querySelectorAll('[aria-live]').length") == 1


def test_a_conversation_can_be_saved(page: Any, turn: Any, downloads: Path) -> None:
    page.open([turn("A ", "**bold** answer")])
    page.find("#settings-open").click()
    for kind in ("json", "markdown"):
        page.find(f"#save-{kind}").click()
    page.until(lambda: {".json", ".md"} == {path.suffix for path in downloads.iterdir()})
    texts = {path.suffix: path.read_text() for path in downloads.iterdir()}
    saved = json.loads(texts[".json"])
    assert saved["turns"][0]["answer"] == "A **bold** answer"
    assert [token["origin"] for token in saved["turns"][0]["tokens"]] == ["plain", "accepted"]
    assert "## You\n\nGo on.\n\n" in texts[".md"]
    assert texts[".md"].endswith("\n\nA **bold** answer\n")


def test_plain_decoding_is_shown_where_its_cost_is_known(
    default_model: Path, serve: Any, opened: Any, engine: Engine
) -> None:
    options = replace(engine.options, k=None)
    with (
        Engine(default_model, options) as adaptive,
        serve(engine=adaptive) as running,
        opened(running) as page,
    ):
        page.open(settings=json.dumps({"maxTokens": 80, "temperature": 0}))
        page.ask("List the numbers from one to twenty in words, then list them again.")
        speed, plain = (float(page.figure(name)) for name in ("speed", "plain"))
        figures = page.kept("turns")[0]["figures"]
        exact = figures["timings"]["tokens_per_second"] / figures["plain_tokens_per_second"]
        assert page.figure("speedup") == f"{exact:.2f}×"
        assert speed / plain == pytest.approx(exact, rel=0.02)
        assert exact <= figures["speculation"]["tokens_per_cycle"] + 1e-9
        page.limit(4)
        page.ask("Hello.")
        assert page.figure("plain") == "–"  # four tokens tell nothing
