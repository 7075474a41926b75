"""Keys and completion of the line editor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from edgespec.chat.commands import Candidate

__all__ = ["SlashCompleter", "key_bindings"]


class SlashCompleter(Completer):
    """Completes slash commands and what stands behind them."""

    def __init__(self, complete: Callable[[str], Iterator[Candidate]]) -> None:
        self._complete = complete

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """What fits behind what stands before the cursor."""
        for one in self._complete(document.text_before_cursor):
            yield Completion(one.text, start_position=-one.typed, display=one.label)


def key_bindings() -> KeyBindings:
    """Enter sends; Alt-Enter, or Enter behind a backslash, begins another line."""
    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings
