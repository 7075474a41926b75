"""What goes wrong is one line in the conversation, and nothing that was written is lost."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from selenium.webdriver.common.keys import Keys

from edgespec.server.guard import Access

SHORT = json.dumps({"maxTokens": 8})
LONG = "Write all numbers from 1 to 1000, one per line."


def test_a_full_queue(serve: Any, opened: Any, endless: Any) -> None:
    with serve(parallel=1, queue=0) as busy, opened(busy) as page:
        page.refused = {"status of 429"}
        page.open(settings=SHORT)
        with busy.client().completions.create(
            model="x",
            prompt="The sea",
            logit_bias=endless,
            stream=True,
            extra_body={"edgespec": {"allow_loops": True}},
        ) as stream:
            next(iter(stream))
            page.ask("Hello there")
            assert page.error.startswith("The server is busy: ")
            assert "try again later (in " in page.error and " s)" in page.error
        page.until(lambda: busy.gauge("edgespec_running") == 0)
        assert page.text(".question") == "Hello there"
        page.find(".foot .last").click()
        page.until(lambda: page.idle)
        assert not page.error and page.answer


def test_a_conversation_that_is_too_long(page: Any) -> None:
    page.refused = {"status of 400"}
    page.open(settings=SHORT)
    page.ask("Hello.")
    page.run("document.getElementById('prompt').value = 'word '.repeat(2000)")
    page.ask("end")
    assert page.error.startswith("Too long for the model: messages has 20")
    assert "1024" in page.error
    page.ask("And now?")  # the question without an answer is not sent again
    assert page.kept("turns")[-1]["state"] == "done"


def test_a_failed_retry_keeps_the_answer(page: Any, turn: Any) -> None:
    page.refused = {"status of 400"}
    page.open([turn("An ", "answer."), turn("Its ", "end.", prompt="word " * 2000)])
    page.all(".turn:last-child .foot .last")[0].click()
    page.until(lambda: page.error)
    assert page.text(".turn:last-child .answer") == "Its end."
    assert page.kept("turns")[-1]["state"] == "done"


def test_a_server_that_is_gone(serve: Any, opened: Any) -> None:
    with ExitStack() as stack, opened(stack.enter_context(serve())) as page:
        page.open(settings=SHORT)
        page.ask("Hello.")
        assert page.answer
        stack.close()
        page.ask("Are you there?")
        assert page.error.startswith("The server cannot be reached.")
        assert page.texts(".question") == ["Hello.", "Are you there?"]
        page.all(".turn:last-child .foot .last")[1].click()
        assert page.draft == "Are you there?"
        page.refused = {"net::ERR_CONNECTION_REFUSED"}


def test_a_server_that_stops(serve: Any, opened: Any) -> None:
    with ExitStack() as stack, opened(stack.enter_context(serve())) as page:
        page.send(LONG)
        page.until(lambda: len(page.all("#turns .token")) > 5)
        stack.close()
        page.until(lambda: page.idle)
        assert "ended by the server" in page.text(".caption")
        assert len(page.kept("turns")[0]["pieces"]) > 5 and not page.error


def test_an_answer_that_is_cut_off(serve: Any, opened: Any) -> None:
    with serve() as running, opened(running) as page:
        page.refused = {"net::ERR_"}
        page.send(LONG)
        page.until(lambda: len(page.all("#turns .token")) > 5)
        before = page.shown
        for connection in tuple(running.server.server_state.connections):
            running.server._loop.call_soon_threadsafe(connection.transport.abort)
        page.until(lambda: page.idle)
        assert page.error == "The connection ended before the answer did: it is not whole."
        assert page.shown.startswith(before)
        page.until(lambda: running.gauge("edgespec_running") == 0)


def test_a_key_is_asked_for(serve: Any, opened: Any) -> None:
    with serve(access=Access(api_key="secret")) as running, opened(running) as page:
        page.refused = {"status of 401"}
        page.open(settings=SHORT)
        page.until(lambda: page.find("#key").is_displayed())
        page.find("#key").send_keys("wrong", Keys.ESCAPE)
        page.until(lambda: page.find("#key").is_displayed())  # it was not that
        page.find("#key").send_keys(Keys.ESCAPE)
        page.ask("Hello.")
        assert page.error.startswith("This server wants an API key")
        page.find("#key").clear()
        page.find("#key").send_keys("secret", Keys.ENTER)
        page.until(lambda: page.idle and page.kept("turns")[0]["state"] == "done")
        assert page.answer and not page.find("#settings").is_displayed()
        page.browser.refresh()
        page.until(lambda: page.text("#model") == running.service.engine.model_name)
