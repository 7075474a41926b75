from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.commands import copy_text
from edgespec.chat.conversation import Chat
from edgespec.chat.loop import COMMANDS, completions
from edgespec.chat.recorder import SavedConversation
from edgespec.chat.settings import SETTING_NAMES
from edgespec.chat.stored import load_saved
from edgespec.errors import ContextFullError, UsageError
from edgespec.runtime.session import Message, Turn
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters

Say = Callable[..., list[str]]
SEE = "/list, or `edgespec chats list`, shows them"
TURN = [Message("user", "hi"), Message("assistant", "hello")]


def test_help_names_every_command_in_80_columns(say: Say) -> None:
    lines = say("/help")
    assert all(any(line.startswith(f"/{name}") for line in lines) for name in COMMANDS)
    assert max(map(len, lines)) < 80


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "  /EXIT  "])
def test_exit(chat: Chat, say: Say, line: str) -> None:
    assert say(line, "/help") == []
    assert not chat.running


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/rest", "there is no command /rest: did you mean /reset or /retry?"),
        ("/xyzzy", "there is no command /xyzzy: /help lists them"),
        ("/", "there is no command /: /help lists them"),
        ("/reset now", "/reset takes no argument"),
        ("/reset!", "/reset takes no exclamation mark"),
        ("/save", "give a file: /save FILE"),
        ("/load", "give a file: /load FILE"),
        ("/stats", "there is no answer yet"),
        ("/retry", "there is no message to answer again"),
        ("/edit", "there is no message to edit"),
        ("/copy", "there is no answer yet"),
        ("/write x.py", "there is no answer yet"),
        ("/think", "there is no answer yet"),
        ("/show", "nothing was said yet"),
        ("/list", "none is stored yet"),
        ("/search", "give words to look for: /search WORDS"),
        ("/resume", "none is stored yet"),
        ("/resume 1", f"there is no conversation '1': {SEE}"),
        ("/resume 0000000", f"there is no conversation '0000000': {SEE}"),
        ("/resume ../../x", f"there is no conversation '../../x': {SEE}"),
        ("/delete 1", "give the id, as /list shows it: /delete ID"),
        ("/branch", "nothing was said yet: there is nothing to branch from"),
        ("/export", "give a file: /export FILE"),
        ("/export x.txt", "x.txt: the ending has to be .json or .md"),
        ("/export x.md", "nothing was said yet"),
        ("/set heat", "there is no setting 'heat': /set lists them"),
        ("/set heat 1", "there is no setting 'heat': /set lists them"),
        ("/set topk 1", "there is no setting 'topk': did you mean top-k or stop?"),
        ("/set temp 1", "there is no setting 'temp': did you mean temperature?"),
        ("/set temperature hot", "temperature is 'hot': it has to be a number"),
        ("/set temperature nan", "temperature is nan: it has to be 0 or more"),
        ("/set top-k 1.5", "top-k is '1.5': it has to be a whole number"),
        ("/set top-p 2", "top-p is 2.0: it has to be between 0 and 1 (off)"),
        ("/set max-tokens 0", "max-tokens is 0: it has to be 1 or more"),
        ("/set max-tokens -2", "max-tokens is -2: it has to be 1 or more"),
        ("/set allow-loops yes", "allow-loops is 'yes': it has to be on or off"),
        ("/set overflow over", "overflow is 'over': it is stop or shift"),
        ("/set accept greedy", "accept greedy keeps the distribution at temperature 0 only"),
        (
            "/set accept all",
            "accept is 'all': it is one of auto, greedy, rejection, coupled, typical",
        ),
    ],
)
def test_a_mistake_costs_one_line_and_changes_nothing(
    chat: Chat, say: Say, line: str, error: str
) -> None:
    session = chat.session
    before = (session.sampling, session.limits, session.accept, list(session.messages))
    assert say(line) == [f"error: {error}"]
    assert before == (session.sampling, session.limits, session.accept, session.messages)
    assert chat.running


def test_set_lists_and_changes(chat: Chat, say: Say) -> None:
    names = [line.split()[0] for line in say("/set")]
    assert names == list(SETTING_NAMES)
    assert say("/set temperature 0") == ["temperature is 0.0 now"]
    assert say("/set TOP_K 5") == ["top-k is 5 now"]
    assert say("/set Top_K", "/set stop") == ["top-k is 5", "stop is none"]
    assert say("/set max-tokens 9", "/set stop the end") == [
        "max-tokens is 9 now",
        "stop is 'the end' now",
    ]
    assert (chat.session.sampling.temperature, chat.session.sampling.top_k) == (0.0, 5)
    assert (chat.session.limits.max_tokens, chat.session.limits.stop) == (9, ("the end",))
    assert say("/set max-tokens -1", "/set allow-loops on", "/set allow-loops") == [
        "max-tokens is none now",
        "allow-loops is on now",
        "allow-loops is on",
    ]
    assert (chat.session.limits.max_tokens, chat.session.limits.allow_loops) == (None, True)
    assert say(r"/set dry-breaker \n ;") == [r"dry-breaker is '\n' ';' now"]
    assert chat.session.sampling.dry_breakers == ("\n", ";")
    say("/set dry-breaker none", "/set mirostat 2", "/set xtc-probability 0.5")
    assert chat.session.sampling.dry_breakers == ()
    assert (chat.session.sampling.mirostat, chat.session.sampling.xtc_probability) == (2, 0.5)
    say("/set mirostat 0")
    say("/set stop none", "/set max-tokens none", "/set accept greedy")
    assert (chat.session.limits.max_tokens, chat.session.limits.stop) == (None, ())
    assert say("/set temperature 1")[0].startswith("error: accept greedy")


def test_another_seed_is_no_use_at_temperature_0(chat: Chat, say: Say) -> None:
    note = "at temperature 0 another seed changes nothing: see /set temperature"
    say("hello")
    assert note not in say("/retry")
    say("/set temperature 0")
    assert say("/retry", "/reset", "/retry").count(note) == 1


def test_system_and_reset(chat: Chat, say: Say) -> None:
    assert say("/system") == ["there is no system prompt"]
    assert say("/system\nBe wise.\nBe brief.") == ["system prompt: Be wise.\nBe brief."]
    assert say("/system  Be brief. ") == ["system prompt: Be brief."]
    chat.session.messages += TURN
    assert say("/new") == ["forgotten, except for the system prompt"]
    assert chat.session.messages == [Message("system", "Be brief.")]
    say("/system none")
    assert say("/reset") == ["forgotten"]
    assert chat.session.messages == []


def test_save_and_load(chat: Chat, say: Say, tmp_path: Path) -> None:
    path = tmp_path / "a chat.json"
    chat.session.messages = [Message("system", "Be brief."), *TURN]
    chat.session.unanswered = "and?"
    say(r"/set dry-breaker \n é")
    assert say("/set seed 7", f"/save {path}")[1] == f"saved to {path}"
    saved = list(chat.session.messages)
    say("/system none", "/reset", "/set seed 8", "/set dry-breaker none", f"/load {path}")
    assert chat.session.sampling.dry_breakers == ("\n", "é")
    assert chat.session.messages == saved
    assert chat.session.unanswered == "and?"
    assert chat.session.sampling.seed == 7


def test_a_bad_file_leaves_the_conversation_alone(chat: Chat, say: Say, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text("{}")
    chat.session.messages = [*TURN]
    assert say(f"/load {path}")[0].startswith("error: ")
    assert chat.session.messages == TURN


def test_what_is_said_and_what_is_not(
    chat: Chat, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def send(text: str) -> Turn:
        said.append(text)
        raise ContextFullError("too long")

    monkeypatch.setattr(chat.session, "send", send)
    assert say("", "  ", "//etc is a folder", " indented ") == ["error: too long"] * 2
    assert said == ["/etc is a folder", " indented "]


def test_completion(chat: Chat, say: Say, tmp_path: Path) -> None:
    def texts(typed: str) -> list[str]:
        return [typed[: len(typed) - one.typed] + one.text for one in completions(chat, typed)]

    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "notes.txt").touch()
    assert texts("/st") == ["/stats"]
    assert texts("/s") == ["/system ", "/set ", "/stats", "/search ", "/show", "/save "]
    assert texts("/set top-") == ["/set top-k", "/set top-p", "/set top-n-sigma"]
    assert texts("/set accept c") == ["/set accept coupled"]
    assert texts(f"/file {tmp_path}/a f") == [f"/file {tmp_path}/a folder/"]
    assert texts(f"/write! {tmp_path}/a folder/n") == [f"/write! {tmp_path}/a folder/notes.txt"]
    assert "/model smollm2-135m" in texts("/model smol")
    assert texts("/draft ng") == ["/draft ngram"]
    assert [*texts("hello"), *texts("/set top-k "), *texts("a /s"), *texts("/reset x")] == []
    say("Hello")
    id = chat.recorder.id
    assert texts("/resume ") == texts("/resume " + str(id)[:3]) == [f"/resume {id}"]


ANSWER = "<think>\nso\n</think>\n\nText\n\n```py\none = 1\n```\n\n```\ntwo\nüñ\n```\n"


@pytest.fixture(autouse=True)
def no_desktop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


@pytest.fixture
def answered(chat: Chat) -> Chat:
    """The answer above, in a conversation that was loaded."""
    messages = (Message("user", "hi"), Message("assistant", ANSWER))
    load_saved(chat, SavedConversation(messages, "test", SamplingParameters()))
    return chat


def _copied(chat: Chat) -> str:
    sequence = chat.screen.sent[-1]  # type: ignore[attr-defined]
    assert sequence.startswith("\x1b]52;c;")
    assert sequence.endswith("\a")
    return base64.b64decode(sequence[7:-1]).decode()


def test_copy_through_the_terminal(answered: Chat, say: Say) -> None:
    assert say("/copy") == ["copied block 2, 2 lines, by the terminal"]
    assert _copied(answered) == "two\nüñ\n"
    say("/copy 1")
    assert _copied(answered) == "one = 1\n"
    say("/copy all")
    assert _copied(answered) == ANSWER.partition("</think>\n\n")[2]
    assert say("/copy 3") == [
        "error: there is no code block '3': there is 1 (py, 1 line), 2 (text, 2 lines)"
    ]


def test_write(answered: Chat, say: Say, tmp_path: Path) -> None:
    path = tmp_path / "a file.py"
    assert say(f"/write {path} 1") == [f"block 1, 1 line, is in {path}"]
    assert path.read_text() == "one = 1\n"
    assert say(f"/write {path}") == [f"error: {path} is there already: /write! writes over it"]
    assert path.read_text() == "one = 1\n"
    say(f'/write! "{path}"')
    assert path.read_text("utf-8") == "two\nüñ\n"
    assert say("/write") == ["error: give a file: /write FILE"]
    assert "cannot write" in say(f"/write {tmp_path}/missing/x.py")[0]
    assert "no code block '9'" in say(f"/write {tmp_path}/y.py 9")[0]


def test_think(answered: Chat, say: Say) -> None:
    assert say("/think") == ["so"]
    answered.session.messages[-1] = Message("assistant", "plain")
    answered.record()
    assert say("/think") == ["error: there is no reasoning in the last answer"]
    assert say("/copy") == ["error: the last answer has no code block"]


def test_the_reasoning_of_a_real_answer(chat: Chat, say: Say) -> None:
    chat.session.limits = GenerationLimits(max_tokens=40)
    chat.session.grammar = 'root ::= "<think>\\nso it is\\n</think>\\n\\nYes."'
    say("Is it?")
    assert say("/think") == ["so it is"]
    say("/copy all")
    assert _copied(chat) == "Yes."


def test_copy_through_the_desktop(monkeypatch: Any, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "xclip"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called; cat > {tmp_path}/copied\n')
    program.chmod(0o755)
    with pytest.raises(UsageError, match="no clipboard is known here: /write"):
        copy_text("text", None)
    monkeypatch.setenv("DISPLAY", ":9")
    sent: list[str] = []
    assert copy_text("täxt\n", sent.append) == "xclip and the terminal"
    assert (tmp_path / "copied").read_text("utf-8") == "täxt\n"
    assert (tmp_path / "called").read_text() == "-selection clipboard\n"
    assert copy_text("x" * 100_000, sent.append) == "xclip"
    assert len(sent) == 1
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UsageError, match="too long for the terminal"):
        copy_text("x" * 100_000, sent.append)
