"""Chat templates: from a list of messages to the text a model was trained on.

A template is a program that came with a downloaded file, so it is not trusted: it runs in Jinja2's
immutable sandbox, with only the filters, methods and globals that chat templates use, and with a
meter that bounds processor time, the size of every value, and the sum of all values.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gguf import TokenType
from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError

from edgespec.backend import PLAIN
from edgespec.errors import TemplateError
from edgespec.templates.environment import Environment, RefusedError
from edgespec.templates.messages import Message, fold_system, plain, plain_message
from edgespec.templates.meter import LimitError, Meter

if TYPE_CHECKING:
    from edgespec.backend import Vocabulary
    from edgespec.gguf.header import GGUFHeader

__all__ = ["ChatTemplate"]

_SOURCE_BYTES = 256 * 1024
_SHOWN = 200
_CONTROL = frozenset((int(TokenType.CONTROL), int(TokenType.UNKNOWN)))
_INSTEAD = "give the model plain text (--raw, or /v1/completions)"


class ChatTemplate:
    """A compiled chat template. Rendering is serialized: one template may be used by threads.

    Args:
        source: Jinja2 text, as in a GGUF's ``tokenizer.chat_template``.
        bos_token: text of the token a conversation starts with, "" if there is none.
        eos_token: text of the token that ends one, "" if there is none.
        control_texts: texts of all control tokens. In messages that are not the assistant's they
            are put between two `PLAIN`, so that no tokenizer reads them as control tokens.
        now: returns what ``strftime_now`` formats; the local time by default.

    Raises:
        TemplateError: it is too large or does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        control_texts: Iterable[str] = (),
        now: Callable[[], datetime] | None = None,
    ) -> None:
        if len(source.encode("utf-8", "surrogatepass")) > _SOURCE_BYTES:
            raise _failure(f"is larger than {_SOURCE_BYTES // 1024} KiB")
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        ordered = sorted(filter(None, control_texts), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._lock = threading.Lock()
        self._environment = Environment(now or datetime.now)
        with _one_line_errors("does not compile"):
            self._template = self._environment.from_string(source)

    @classmethod
    def from_model(cls, header: GGUFHeader, vocabulary: Vocabulary) -> ChatTemplate:
        """Return the template of a model's file.

        Raises:
            TemplateError: the file has none, it is too large, or it does not compile.
        """
        if not header.chat_template:
            raise TemplateError(f"{header.path.name} has no chat template: {_INSTEAD}")
        return cls(
            header.chat_template,
            bos_token=_token_text(vocabulary, vocabulary.bos),
            eos_token=_token_text(vocabulary, vocabulary.eos),
            control_texts=_control_texts(header, vocabulary),
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """Return the text of a conversation, with special tokens written out.

        Text parts of a message are joined by line breaks. If the template refuses a conversation
        that begins with a system message, that text is put in front of the first user message.

        Args:
            messages: each with a "role" and usually a "content": text, a list of parts of type
                "text", or None. Arguments of a tool call may be an object or its JSON.
            add_generation_prompt: end with the opening of the assistant's answer.
            tools: JSON schemas of functions, for templates that know tools.
            extra: more variables for the template, of JSON's types.

        Raises:
            UsageError: a message is not of that form, or an argument is not of JSON's types.
            TemplateError: the template refuses the conversation, fails, or exceeds a limit.
        """
        conversation = [self._plain(plain_message(message)) for message in messages]
        variables = {
            **plain(extra),
            **self._tokens,
            "tools": plain(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        try:
            return self._render(conversation, variables)
        except RefusedError as error:
            folded = fold_system(conversation)
            if folded is not None:
                with contextlib.suppress(RefusedError, TemplateError):
                    return self._render(folded, variables)
            raise _failure(f"refuses this conversation ({_shown(error)})") from None

    def _plain(self, message: dict[str, Any]) -> dict[str, Any]:
        # The assistant's text was made of tokens, and some templates look for theirs in it.
        if self._control and message["role"] != "assistant" and message.get("content"):
            message["content"] = self._control.sub(_set_apart, message["content"])
        return message

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        with self._lock, _one_line_errors("failed"):
            meter = self._environment.meter = Meter(messages, variables)
            try:
                chunks = []
                for chunk in self._template.generate(**variables, messages=messages):
                    meter.put_out(len(chunk))
                    chunks.append(chunk)
                return "".join(chunks)
            finally:
                self._environment.meter = Meter([], {})  # lets go of the conversation


def _control_texts(header: GGUFHeader, vocabulary: Vocabulary) -> set[str]:
    """Return the texts that a tokenizer reads as control tokens, if it is allowed to."""
    found = set(vocabulary.end_tokens)
    found.update(i for i, kind in enumerate(header.token_types()) if kind in _CONTROL)
    return {vocabulary.decode([token], special=True) for token in found}


def _set_apart(found: re.Match[str]) -> str:
    return f"{PLAIN}{found[0]}{PLAIN}"


def _token_text(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.decode([token], special=True)


# -- errors ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _one_line_errors(what: str) -> Iterator[None]:
    """Turn anything a template can provoke into a TemplateError."""
    try:
        yield
    except (RefusedError, TemplateError):
        raise
    except LimitError as error:
        raise _failure(str(error)) from None
    except RecursionError:
        raise _failure("recurses too deeply") from None
    except MemoryError:
        raise _failure("takes too much memory") from None
    except SecurityError as error:
        raise _failure(f"does something forbidden ({_shown(error)})") from None
    except TemplateSyntaxError as error:
        raise _failure(f"{what} (line {error.lineno}: {_shown(error.message)})") from None
    except JinjaError as error:
        raise _failure(f"{what} ({_shown(error)})") from None
    except Exception as error:
        raise _failure(f"{what} ({type(error).__name__}: {_shown(error)})") from None


def _failure(what: str) -> TemplateError:
    return TemplateError(f"the chat template of this model {what}: {_INSTEAD}")


def _shown(text: Any) -> str:
    """Make foreign text fit for one line of a terminal."""
    line = " ".join(re.sub(r"[^\S\n]|\n", " ", str(text)[: 4 * _SHOWN]).split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
