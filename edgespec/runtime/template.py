"""Chat templates: from a list of messages to the text a model was trained on.

A template is a program that came with a downloaded file, so it is run as a hostile one: in
Jinja2's immutable sandbox, with only the filters, methods and globals that chat templates use, and
with a meter that bounds the processor time, the size of every value, and the sum of all values.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edgespec.errors import TemplateError, UsageError

if TYPE_CHECKING:
    from edgespec.backend import Vocabulary
    from edgespec.registry.header import GGUFHeader

__all__ = ["ChatTemplate"]

Message = Mapping[str, Any]

_SOURCE_BYTES = 256 * 1024
_SOURCE_TOKENS = 30_000
_VALUE = 1 << 20  # characters and items of one value, above what the input has
_MEMORY = 1 << 25  # the same, of all values made in one rendering
_SECONDS = 1.0
_SECONDS_A_MESSAGE = 0.002
_DEPTH = 64
_INPUT_DEPTH = 48  # leaves a template room to wrap what it is given
_INTEGER_BITS = 4096
_NEEDLE = 256
_INDENT = 64
_ITEM = 32  # bytes of a reference and of what every object has besides its content
_TICKS = 16  # hooks between two looks at the clock
_SHOWN = 200
_HOOK = "#"  # starts the names of filters that only rewritten templates can call

_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int"),
    *("items", "last", "length", "list", "lower", "map", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "sort", "string", "title", "unique", "upper"),
)
_STRING_METHODS = frozenset(
    (
        *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit"),
        *("islower", "isspace", "isupper", "join", "lower", "lstrip", "partition", "removeprefix"),
        *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
        *("splitlines", "startswith", "strip", "title", "upper"),
    )
)
# Their time is the product of both lengths in the worst case.
_SEARCHES = frozenset(
    (
        *("count", "find", "index", "lstrip", "partition", "rfind", "rindex", "rpartition"),
        *("rsplit", "rstrip", "split", "strip"),
    )
)
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _STRING_METHODS),
    (dict, frozenset(("get", "items", "keys", "values"))),
    (list, frozenset(("count", "index"))),
    (tuple, frozenset(("count", "index"))),
)
_OPEN = (LoopContext, Macro, Namespace, TemplateReference, Undefined)


class _LimitError(Exception):
    """The template took too much time or memory."""


class _RefusedError(Exception):
    """The template called raise_exception."""


class ChatTemplate:
    """A compiled chat template. Rendering is serialized: one template may be used by threads.

    Args:
        source: Jinja2 text, as in a GGUF's ``tokenizer.chat_template``.
        bos_token: text of the token a conversation starts with, "" if there is none.
        eos_token: text of the token that ends one, "" if there is none.
        now: what ``strftime_now`` formats; the local time by default.

    Raises:
        TemplateError: it is too large or does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        if len(source.encode("utf-8", "surrogatepass")) > _SOURCE_BYTES:
            raise _failure(f"is larger than {_SOURCE_BYTES // 1024} KiB")
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._lock = threading.Lock()
        self._environment = _Environment(now or datetime.now)
        with _one_line_errors("does not compile"):
            self._template = self._environment.from_string(source)

    @classmethod
    def from_model(cls, header: GGUFHeader, vocabulary: Vocabulary) -> ChatTemplate:
        """The template of a model's file.

        Raises:
            TemplateError: the file has none, or as for the constructor.
        """
        if not header.chat_template:
            raise TemplateError(
                f"{header.path.name} has no chat template: use --raw to give it plain text"
            )
        return cls(
            header.chat_template,
            bos_token=_token_text(vocabulary, vocabulary.bos),
            eos_token=_token_text(vocabulary, vocabulary.eos),
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The text of a conversation, with special tokens written out.

        Text parts of a message are joined by line breaks. If the template refuses a conversation
        that begins with a system message, and takes it with that text put in front of the first
        user message, the latter is returned.

        Args:
            messages: each with a "role" and usually a "content": text, a list of parts of type
                "text", or None.
            add_generation_prompt: end with the opening of the assistant's answer.
            tools: JSON schemas of functions, for templates that know tools.
            extra: more variables for the template, of JSON's types.

        Raises:
            UsageError: a message is not of that form, or an argument is not of JSON's types.
            TemplateError: the template refuses the conversation, fails, or exceeds a limit.
        """
        plain = [_plain_message(message) for message in messages]
        variables = {
            **_plain(extra),
            **self._tokens,
            "tools": _plain(tools),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        try:
            return self._render(plain, variables)
        except _RefusedError as error:
            folded = _fold_system(plain)
            if folded is not None:
                with contextlib.suppress(_RefusedError, TemplateError):
                    return self._render(folded, variables)
            raise _failure(f"refuses this conversation ({_shown(error)})") from None

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        with self._lock, _one_line_errors("failed"):
            meter = self._environment.meter = _Meter(messages, variables)
            try:
                chunks = []
                for chunk in self._template.generate(**variables, messages=messages):
                    meter.put_out(len(chunk))
                    chunks.append(chunk)
                return "".join(chunks)
            finally:
                self._environment.meter = _Meter([], {})  # lets go of the conversation


# -- limits ---------------------------------------------------------------------------------


class _Meter:
    """What one rendering may use, and has used.

    A template may nest one list in another, so that a value of a few bytes stands for terabytes
    when it is printed or compared. Sizes are therefore of the value as it would be written out.
    """

    def __init__(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> None:
        self._sizes: dict[int, tuple[Any, int, int]] = {}
        self._largest = 1 << 62
        given = self.size((messages, variables))
        self._largest = _VALUE + 4 * given
        self._left = _MEMORY + (16 + len(messages)) * given
        self._output = 0
        self._ticks = 0
        # Processor time, so that a busy machine does not make a template fail.
        self._deadline = time.thread_time() + _SECONDS + _SECONDS_A_MESSAGE * len(messages)

    def tick(self) -> None:
        """Stop when time is up, or soon after."""
        self._ticks += 1
        if self._ticks % _TICKS == 0:
            self.check_time()

    def check_time(self) -> None:
        """Stop when time is up; for what takes much longer than looking at the clock."""
        if time.thread_time() > self._deadline:
            raise _LimitError("takes too long")

    def made(self, value: Any) -> Any:
        """Account for a new value and return it."""
        if isinstance(value, str):
            self.made_text(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.size(value)
            self._spend(_ITEM * (4 + len(value)))
        elif isinstance(value, int):
            self.check_integer(value)
        return value

    def made_text(self, length: int) -> None:
        """Account for a new text, best before it is made."""
        self.check_length(length)
        self._spend(length)

    def put_out(self, length: int) -> None:
        """Account for one more piece of the output."""
        self._output += length
        self.check_length(self._output)

    def check_length(self, length: int) -> None:
        """Refuse a text that is too long."""
        if length > self._largest:
            raise _LimitError("makes too long a text")

    def check_integer(self, value: int) -> None:
        """Refuse a number whose arithmetic would take long."""
        if value.bit_length() > _INTEGER_BITS:
            raise _LimitError("makes too large a number")

    def check_arguments(self, values: Iterable[Any]) -> None:
        """Refuse arguments that are too large together."""
        if sum(map(self.size, values)) > self._largest:
            raise _LimitError("makes too large a list")

    def size(self, value: Any) -> int:
        """Characters and items of a value written out."""
        return self._measure(value)[0]

    def _measure(self, value: Any) -> tuple[int, int]:
        """Size and depth. Containers cannot change in the sandbox, so each is measured once."""
        if isinstance(value, str):
            return len(value) + 1, 0
        if not isinstance(value, (list, tuple, dict)):
            return _scalar_size(value), 0
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1:]
        size, depth = 1, 0
        for item in _flat(value):
            item_size, item_depth = self._measure(item)
            size += item_size
            depth = max(depth, item_depth + 1)
        if size > self._largest:
            raise _LimitError("makes too large a list")
        if depth > _DEPTH:
            raise _LimitError("nests lists too deeply")
        self._sizes[id(value)] = (value, size, depth)  # the reference keeps the id taken
        return size, depth

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise _LimitError("takes too much memory")


def _scalar_size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length() // 3 + 2
    return 24 if value is None or isinstance(value, float) else len(repr(value))


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (item for pair in value.items() for item in pair)
    items: Iterable[Any] = value
    return items


# -- the environment ------------------------------------------------------------------------


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%", "-", "/", "//"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self._printable,
            extensions=[LoopControlExtension, _Dialect],
            cache_size=0,
        )
        self.meter = _Meter([], {})
        self._now = now
        usual: dict[str, Any] = {name: self.filters[name] for name in _FILTERS}
        own = {
            "indent": self._indent,
            "join": self._join_filter,
            "replace": self._replace,
            "safe": str,
            "tojson": self._tojson,
            "trim": self._trim,
        }
        tests: dict[str, Any] = dict(self.tests)
        self.filters = {name: self._metered(f) for name, f in (usual | own).items()} | {
            _HOOK + "made": self._made,
            _HOOK + "compared": self._compared,
            _HOOK + "stepping": self._stepping,
            _HOOK + "concatenate": self._concatenate,
        }
        self.tests = {name: self._metered(test) for name, test in tests.items()}
        self.globals = {
            "dict": dict,
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "range": self.globals["range"],
            "strftime_now": self._strftime_now,
        }

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            self.meter.check_time()
            return self.meter.made(function(*args, **kwargs))

        return metered

    # -- what generated code calls --

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = Parser(self, source, name, filename).parse()
        _Rewriter().visit(template)  # in place, as the root stays
        template.set_environment(self)
        return template

    def _made(self, value: Any) -> Any:
        """Pass on a value that was written out or sliced."""
        self.meter.tick()
        return self.meter.made(value)

    def _compared(self, value: Any) -> Any:
        """Pass on the left side of a comparison."""
        self.meter.tick()
        self.meter.size(value)
        return value

    def _stepping(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop."""
        for item in iterable:
            self.meter.tick()
            yield item

    def _concatenate(self, *parts: Any) -> str:
        """The operator ``~``."""
        return self.concat(map(str, parts))

    def concat(self, parts: Iterable[str]) -> str:
        """Join what a block or an operator wrote."""
        return self._join("", parts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call anything from a template."""
        __self.meter.tick()
        # Macros see their arguments as a tuple, so that calls can nest values as well.
        __self.meter.check_arguments((*args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        stored = isinstance(getattr(__obj, "__self__", None), dict)  # dict.get makes nothing
        return result if stored else __self.meter.made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator between two values."""
        self.meter.tick()
        for value in (left, right):
            if isinstance(value, int):
                self.meter.check_integer(value)
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not supported")
        if operator == "*":
            self._check_product(left, right)
        if operator == "**":
            self._check_power(left, right)
        return self.meter.made(super().call_binop(context, operator, left, right))

    def _check_product(self, left: Any, right: Any) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                self.meter.check_length(self.meter.size(value) * max(times, 0))

    def _check_power(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0)
            if bits > _INTEGER_BITS:
                raise _LimitError("makes too large a number")

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``."""
        self.meter.tick()
        return self._bounded(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        self.meter.tick()
        return self._bounded(super().getitem(obj, argument))

    def _bounded(self, value: Any) -> Any:
        """A method of a text or an object, made safe for any argument and measurable."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, dict) and callable(value):
            return value if value.__name__ == "get" else lambda: list(value())
        if not isinstance(owner, str) or not callable(value):
            return value
        # Functions, as the text of anything else in a list would grow with what it holds.
        if value.__name__ == "join":
            return lambda items: self._join(owner, items)
        if value.__name__ == "replace":
            return lambda *args, **kwargs: self._replace(owner, *args, **kwargs)
        return _short_needles(value) if value.__name__ in _SEARCHES else value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may see it: by a list of what is known to be harmless."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, _OPEN):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _METHODS)

    def wrap_str_format(self, value: Any) -> None:
        """No exception for ``str.format``: `is_safe_attribute` decides."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Jinja2 would go on with an empty value."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not allowed")

    def _printable(self, value: Any) -> Any:
        self.meter.tick()
        if isinstance(value, (list, tuple, dict)):
            self.meter.size(value)
            return self.meter.made(str(value))
        return value

    # -- filters, methods and globals --

    def _join(self, separator: str, items: Iterable[Any]) -> str:
        parts: list[str] = []
        length = 0
        for item in items:
            self.meter.tick()
            if not isinstance(item, str):
                raise TypeError(f"cannot join a {type(item).__name__} to a text")
            parts.append(item)
            length += len(item) + len(separator)
            self.meter.check_length(length)
        self.meter.made_text(length)
        return str(separator).join(parts)

    def _join_filter(self, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            value = (self.getitem(item, attribute) for item in value)
        return self._join(str(d), (str(item) for item in value))

    def _replace(self, text: str, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(text), str(old), str(new)
        _check_needles((old,))
        found = text.count(old)
        if count is not None and count >= 0:
            found = min(found, count)
        self.meter.made_text(len(text) + found * (len(new) - len(old)))
        return text.replace(old, new, found)

    def _trim(self, value: Any, chars: str | None = None) -> str:
        if chars is not None:
            _check_needles((chars,))
        return str(value).strip(chars)

    def _indent(
        self, text: str, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        margin = width if isinstance(width, str) else " " * min(width, _INDENT + 1)
        if len(margin) > _INDENT:
            raise _LimitError(f"indents by more than {_INDENT}")
        lines = str(text).splitlines() or [""]
        self.meter.made_text(len(text) + len(lines) * len(margin))
        rest = [margin + line if line or blank else line for line in lines[1:]]
        return "\n".join([margin + lines[0] if first else lines[0], *rest])

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # As in Hugging Face transformers: Jinja2's own escapes < > & ' for HTML.
        if indent is not None and not 0 <= indent <= _INDENT:
            raise _LimitError(f"indents by more than {_INDENT}")
        _check_needles(separators or ())
        encoder = json.JSONEncoder(
            ensure_ascii=bool(ensure_ascii),
            indent=indent,
            separators=separators,
            sort_keys=bool(sort_keys),
        )
        return self._join("", encoder.iterencode(value))

    def _strftime_now(self, form: str) -> str:
        _check_needles((form,))
        return self._now().strftime(form)


class _Namespace(Namespace):
    """The only thing a template can change; it must not be a way to print endless values."""

    def __repr__(self) -> str:
        return "namespace"


class _Dialect(Extension):
    """``{% generation %}``, and a bound on the time that compiling takes.

    The block marks the assistant's words for training; here it only groups.
    """

    tags = {"generation"}  # noqa: RUF012

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """The tokens of the source, up to a number that no chat template comes near."""
        for count, token in enumerate(stream):
            if count >= _SOURCE_TOKENS:
                raise _LimitError("is too complex")
            yield token

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as an ordinary scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Rewriter(NodeTransformer):
    """Puts a hook wherever compiled templates do something that Jinja2 has no hook for."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("concatenate", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _hook("compared", node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._visit_display(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        if node.ctx != "load":
            return node
        return self._visit_display(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        parts = [part for pair in node.items for part in (pair.key, pair.value)]
        return self._visit_display(node, parts)

    def _visit_display(self, node: nodes.Literal, items: Sequence[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(item, nodes.Const) for item in items)
        self.generic_visit(node)
        return node if constant else _hook("made", node)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = _hook("stepping", node.iter)
        return node


def _hook(name: str, *args: nodes.Node) -> nodes.Filter:
    first, *rest = args
    return nodes.Filter(first, _HOOK + name, rest, [], None, None, lineno=first.lineno)


def _refuse(message: Any = "no reason given") -> None:
    raise _RefusedError(message)


def _short_needles(method: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_needles((*args, *kwargs.values()))
        return method(*args, **kwargs)

    return checked


def _check_needles(values: Iterable[Any]) -> None:
    if any(isinstance(value, str) and len(value) > _NEEDLE for value in values):
        raise _LimitError(f"passes more than {_NEEDLE} characters where a few are expected")


# -- messages -------------------------------------------------------------------------------


def _plain_message(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError("a message has to be an object with a role, e.g. 'user'")
    plain: dict[str, Any] = _plain(message)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_part_text(part) for part in content)
    elif not isinstance(content, (str, type(None))):
        raise UsageError("the content of a message has to be text or a list of text parts")
    return plain


def _part_text(part: Any) -> str:
    text = part if isinstance(part, str) else None
    if isinstance(part, dict) and part.get("type", "text") == "text":
        text = part.get("text")
    if not isinstance(text, str):
        raise UsageError("a message has a part that is not text: send parts of type 'text' only")
    return text


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy in JSON's types, so that no caller's object is within a template's reach."""
    if depth > _INPUT_DEPTH:
        raise UsageError("a message or a tool is nested too deeply")
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item, depth + 1) for item in value]
    raise UsageError(f"a message or a tool has a value of type {type(value).__name__}, not JSON's")


def _fold_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation with its system text in front of the first user message."""
    if not messages or messages[0]["role"] != "system":
        return None
    rest = messages[1:]
    for index, message in enumerate(rest):
        if message["role"] == "user":
            text = f"{messages[0].get('content') or ''}\n\n{message.get('content') or ''}"
            return [*rest[:index], {**message, "content": text}, *rest[index + 1 :]]
    return None


def _token_text(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.decode([token], special=True)


# -- errors ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _one_line_errors(what: str) -> Iterator[None]:
    """Turn anything a template can provoke into a TemplateError."""
    try:
        yield
    except (_RefusedError, TemplateError):
        raise
    except _LimitError as error:
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
    return TemplateError(
        f"the chat template of this model {what}: use --raw to give the model plain text"
    )


def _shown(text: Any) -> str:
    """Somebody else's words, fit for one line of a terminal."""
    line = " ".join(re.sub(r"[^\S\n]|\n", " ", str(text)[: 4 * _SHOWN]).split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
