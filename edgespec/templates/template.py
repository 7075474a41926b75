"""Chat templates: from a list of messages to the text a model was trained on.

A template is a program that came with a downloaded file, so it is not trusted: it runs in Jinja2's
immutable sandbox, with only the filters, methods and globals that chat templates use, and with a
meter that bounds processor time, the size of every value, and the sum of all values.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gguf import TokenType
from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError

from edgespec.backend import PLAIN
from edgespec.errors import TemplateError, UsageError
from edgespec.templates.environment import Environment, RefusedError
from edgespec.templates.filters import LimitError, Meter
from edgespec.templates.messages import (
    Message,
    as_parts,
    fold_system,
    join_turns,
    plain,
    plain_message,
    with_arguments_as_text,
)

if TYPE_CHECKING:
    from edgespec.backend import Vocabulary
    from edgespec.gguf.header import GGUFHeader

__all__ = ["ChatTemplate", "check_names", "control_texts", "require_template"]

_SOURCE_BYTES = 256 * 1024
_SHOWN = 200
_CONTROL = frozenset((int(TokenType.CONTROL), int(TokenType.UNKNOWN)))
_OWN = frozenset(
    (
        *("messages", "tools", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token"),
    )
)
_PROBE = "probe_value"
_COMPARED = 32  # characters
_PROBE_LESS = 0.8  # seconds of a rendering's time that a probe does not have
_END = "<<the answer continues here>>"  # stands where a final message ends
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
        with_tools: the template for conversations with tools, if that is another one.

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
        with_tools: ChatTemplate | None = None,
    ) -> None:
        if len(source.encode("utf-8", "surrogatepass")) > _SOURCE_BYTES:
            raise _failure(f"is larger than {_SOURCE_BYTES // 1024} KiB")
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        ordered = sorted(filter(None, control_texts), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._source, self._with_tools = source, with_tools
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
        require_template(header)
        sources = [one for one in (header.chat_template, header.tool_template) if one]
        made: ChatTemplate | None = None
        for source in reversed(sources):
            made = cls(
                source,
                bos_token=_token_text(vocabulary, vocabulary.bos),
                eos_token=_token_text(vocabulary, vocabulary.eos),
                control_texts=control_texts(header, vocabulary).values(),
                with_tools=made,
            )
        assert made is not None
        return made

    def mentions(self, name: str) -> bool:
        """Return whether the template's program has this name in it, e.g. "enable_thinking"."""
        return name in self._source or (
            self._with_tools is not None and self._with_tools.mentions(name)
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **extra: Any,
    ) -> str:
        """Return the text of a conversation, with special tokens written out.

        Text parts of a message are joined by line breaks. If the template refuses a conversation,
        the text of a system message is put in front of the first user message, and what one side
        says in a row is joined.

        Args:
            messages: each with a "role" and usually a "content": text, a list of parts of type
                "text", or None. Arguments of a tool call may be an object or its JSON.
            add_generation_prompt: end with the opening of the assistant's answer.
            tools: JSON schemas of functions, for templates that know tools.
            continue_final_message: end inside of the last message, which is the assistant's; no
                opening is added.
            extra: more variables for the template, of JSON's types.

        Raises:
            UsageError: a message is not of that form, an argument is not of JSON's types or has a
                name that is taken, or there is no message to continue.
            TemplateError: the template refuses the conversation, fails, or exceeds a limit.
        """
        if tools and self._with_tools is not None:
            return self._with_tools.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                continue_final_message=continue_final_message,
                **extra,
            )
        check_names(extra)
        conversation = [self._plain(plain_message(message)) for message in messages]
        if continue_final_message:
            _mark_end(conversation)
        variables = {
            **plain(extra),
            **self._tokens,
            "tools": plain(tools),
            "add_generation_prompt": bool(add_generation_prompt) and not continue_final_message,
        }
        if any("tool_calls" in message for message in conversation) and self._text_arguments:
            conversation = with_arguments_as_text(conversation)
        text = self._render_any(conversation, variables)
        return _up_to_end(text) if continue_final_message else text

    def _render_any(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """Render the first form of a conversation that the template does not refuse."""
        began = time.thread_time()  # all forms together have the time of one
        refusal: object = ""
        for form in _forms(messages):
            try:
                return self._render(form, variables, began)
            except RefusedError as error:
                refusal = error
        raise _failure(f"refuses this conversation ({_shown(refusal)})")

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether it shows messages whose content is a list of parts, and no others."""
        return not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    def _shows(self, content: Any) -> bool:
        return _PROBE in self._probed([{"role": "user", "content": content}])

    @cached_property
    def _text_arguments(self) -> bool:
        """Whether it writes the arguments of calls as they are, and so needs their JSON."""

        def written(arguments: Any) -> str:
            function = {"name": "probe", "arguments": arguments}
            call = {"id": "probe1234", "type": "function", "function": function}
            answer = {"role": "assistant", "content": "", "tool_calls": [call]}
            return self._probed([{"role": "user", "content": "?"}, answer])

        found = written({"probe_key": _PROBE})
        text = f'{{"probe_key": "{_PROBE}"}}'
        as_python = f"{{'probe_key': '{_PROBE}'}}"
        return as_python in found or (_PROBE not in found and text in written(text))

    def _probed(self, messages: list[dict[str, Any]]) -> str:
        """Return what the template makes of a conversation; nothing if it fails."""
        variables = {**self._tokens, "tools": None, "add_generation_prompt": False}
        try:
            return self._run(messages, variables, time.thread_time() - _PROBE_LESS)
        except (RefusedError, TemplateError):
            return ""

    def _plain(self, message: dict[str, Any]) -> dict[str, Any]:
        # The assistant's text was made of tokens, and some templates look for theirs in it.
        if self._control and message["role"] != "assistant" and message.get("content"):
            message["content"] = self._control.sub(_set_apart, message["content"])
        return message

    def _render(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], began: float
    ) -> str:
        try:
            text = self._run(messages, variables, began)
        except TemplateError:
            if not self._takes_parts:
                raise
        else:
            if _shows_last(messages, text) or not self._takes_parts:
                return text
        return self._run(as_parts(messages), variables, began)

    def _run(self, messages: list[dict[str, Any]], variables: dict[str, Any], began: float) -> str:
        with self._lock, _one_line_errors("failed"):
            meter = self._environment.meter = Meter(messages, variables, began)
            try:
                chunks = []
                for chunk in self._template.generate({**variables, "messages": messages}):
                    meter.put_out(len(chunk))
                    chunks.append(chunk)
                return "".join(chunks)
            finally:
                self._environment.meter = Meter([], {})  # lets go of the conversation


def require_template(header: GGUFHeader) -> None:
    """Return if a file has a chat template.

    Raises:
        TemplateError: it has none.
    """
    if not (header.chat_template or header.tool_template):
        raise TemplateError(f"{header.path.name} has no chat template: {_INSTEAD}")


def check_names(variables: Mapping[str, Any]) -> None:
    """Refuse more variables for a template whose names are taken.

    Raises:
        UsageError: one is.
    """
    if taken := _OWN.intersection(variables):
        raise UsageError(f"a template's variable cannot be called {min(taken)}: that is taken")


def _forms(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the conversation as it is, then in forms that more templates accept."""
    yield messages
    folded = fold_system(messages)
    if folded is not None:
        yield folded
    for form in (messages, folded):
        joined = join_turns(form) if form is not None else None
        if joined is not None:
            yield joined


def _shows_last(messages: list[dict[str, Any]], text: str) -> bool:
    contents = [content for message in messages if (content := message["content"].strip())]
    return not contents or contents[-1][:_COMPARED] in text


def _mark_end(conversation: list[dict[str, Any]]) -> None:
    last = conversation[-1] if conversation else {}
    if last.get("role") != "assistant" or "tool_calls" in last:
        raise UsageError(
            "continue_final_message needs a last message of the assistant, and one that is text"
        )
    last["content"] += _END


def _up_to_end(text: str) -> str:
    end = text.rfind(_END)
    if end < 0:
        raise _failure("does not show the final message, so it cannot be continued")
    return text[:end]


def control_texts(header: GGUFHeader, vocabulary: Vocabulary) -> dict[int, str]:
    """Return the texts that a tokenizer reads as control tokens, if it is allowed to."""
    found = set(vocabulary.end_tokens)
    found.update(i for i, kind in enumerate(header.token_types()) if kind in _CONTROL)
    return {token: vocabulary.decode([token], special=True) for token in found}


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
