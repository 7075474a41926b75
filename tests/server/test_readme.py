"""The example of a client, as it stands in the server's page."""

from __future__ import annotations

from typing import Any

from tests.pages import program


def test_the_example(server: Any, capsys: Any) -> None:
    example = program("client")
    assert "from openai import" in example
    exec(example.replace("http://127.0.0.1:8080", server.url), {})
    shown, figures = capsys.readouterr().out.strip().rsplit("\n", 1)
    text = shown[: len(shown) // 2]
    assert text and shown == f"{text}\n{text}"  # whole and streamed
    assert "acceptance_rate" in figures
