"""The sandbox: the filters, methods and globals that templates have, all of them metered.

A template is rewritten before it is compiled: its dialect is translated, and its syntax tree gets
hooks where Jinja2 has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace, generate_lorem_ipsum
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from edgespec.templates import filters
from edgespec.templates.filters import LimitError, Meter, check_needles

__all__ = ["Environment", "RefusedError"]

_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "filesizeformat", "first", "float"),
    *("groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min", "random"),
    *("reject", "rejectattr", "reverse", "select", "selectattr", "sort", "string", "title"),
    *("truncate", "unique", "upper"),
)
# Their time is not linear in the length of what they are given, or nobody knows.
_SHORT_FILTERS = ("pprint", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr")
_STRING_METHODS = frozenset(
    (
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format"),
        *("format_map", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit"),
        *("isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"),
        *("join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix"),
        *("replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split"),
        *("splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    )
)
_WIDENING = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))
# In the worst case their time is the product of both lengths.
_SEARCHES = frozenset(
    (
        *("count", "find", "index", "lstrip", "partition", "rfind", "rindex", "rpartition"),
        *("rsplit", "rstrip", "split", "strip"),
    )
)
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _STRING_METHODS),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "grouper", "index", "list"))),  # a group has names for its items
    (int, frozenset(("bit_length", "is_integer"))),
    (float, frozenset(("is_integer",))),
)
_OPEN = (Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference, Undefined)
_HOOK = "#"  # starts the names of filters that only rewritten templates can call
_SOURCE_TOKENS = 30_000
_PARAGRAPHS, _WORDS = 20, 200


class RefusedError(Exception):
    """The template called raise_exception."""


class Environment(ImmutableSandboxedEnvironment):
    """Compiles templates, and runs one at a time. Set a new ``meter`` before each rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%", "-", "/", "//"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self._printable,
            extensions=[LoopControlExtension, _Dialect],
            cache_size=0,
        )
        self.meter = Meter([], {})
        self._now = now
        usual: dict[str, Any] = {name: self.filters[name] for name in _FILTERS}
        short = {name: self._short(self.filters[name]) for name in _SHORT_FILTERS}
        own = {
            "attr": self._attribute,
            "batch": self._with_meter(filters.batch),
            "center": self._with_meter(filters.center),
            "escape": filters.escape,
            "e": filters.escape,
            "forceescape": filters.escape,
            "format": self._format_filter,
            "indent": self._with_meter(filters.indent),
            "join": self._join,
            "replace": self._with_meter(filters.replace),
            "round": filters.round_number,
            "safe": str,
            "slice": self._with_meter(filters.slices),
            "sum": self._sum,
            "tojson": self._with_meter(filters.to_json),
            "trim": filters.trim,
            "wordcount": filters.word_count,
        }
        tests: dict[str, Any] = dict(self.tests)
        self.filters = {name: self._metered(f) for name, f in (usual | short | own).items()} | {
            _HOOK + "made": self._made,
            _HOOK + "compared": self._compared,
            _HOOK + "stepping": self._stepping,
            _HOOK + "concatenate": self._concatenate,
        }
        self.tests = {name: self._metered(test) for name, test in tests.items()}
        self.globals = {
            "cycler": Cycler,
            "dict": dict,
            "joiner": Joiner,
            "lipsum": _lorem_ipsum,
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "range": self.globals["range"],
            "strftime_now": self._strftime_now,
        }

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            self.meter.check_time()
            result = function(*args, **kwargs)
            return self._stepping(result) if isinstance(result, Iterator) else self._kept(result)

        return metered

    def _kept(self, value: Any) -> Any:
        # Markup would escape what is joined to it, and a prompt is not HTML.
        return self.meter.made(str(value) if isinstance(value, Markup) else value)

    def _short(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Refuse long arguments of a function that may take long for them."""

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            self.meter.check_short((*args, *kwargs.values()))
            return function(*args, **kwargs)

        return checked

    def _with_meter(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the current rendering's meter as its first argument."""
        return lambda *args, **kwargs: function(self.meter, *args, **kwargs)

    # -- what generated code calls --

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = Parser(self, source, name, filename).parse()
        _add_hooks(template)
        template.set_environment(self)
        return template

    def _made(self, value: Any) -> Any:
        """Account for a list, dict or slice that the template made, and return it."""
        self.meter.tick()
        return self.meter.made(value)

    @pass_context  # or the hook of a constant would be called only when it is compiled
    def _compared(self, context: Context, value: Any) -> Any:
        """Measure the left side of a comparison, and return it."""
        self.meter.check_time()  # as the right side may be long
        self.meter.size(value)
        return value

    def _stepping(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop, a tick each."""
        for item in iterable:
            self.meter.tick()
            yield item

    def _concatenate(self, *parts: Any) -> str:
        """Apply the operator ``~``."""
        return self.concat(map(str, parts))

    def concat(self, parts: Iterable[str]) -> str:
        """Join what a block or an operator wrote."""
        return filters.join(self.meter, "", parts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call anything from a template."""
        __self.meter.tick()
        # A macro gets its arguments as a tuple, so calls can nest values too.
        __self.meter.check_arguments((*args, *kwargs.values()))
        if isinstance(__obj, LoopContext) and args:  # one level deeper in a recursive loop
            args = (__self._stepping(args[0]), *args[1:])
        result = super().call(__context, __obj, *args, **kwargs)
        # dict.get makes nothing
        stored = isinstance(getattr(__obj, "__self__", None), dict) and __obj.__name__ == "get"
        return result if stored else __self.meter.made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator to two values."""
        self.meter.tick()
        for value in (left, right):
            if isinstance(value, int):
                self.meter.check_integer(value)
        if operator == "%" and isinstance(left, str):
            return filters.format_percent(self.meter, left, right)
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
            self.meter.check_bits(left.bit_length() * max(right, 0))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Get ``obj.attribute``."""
        self.meter.tick()
        return self._bounded(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Get ``obj[argument]``."""
        self.meter.tick()
        return self._bounded(super().getitem(obj, argument))

    def _bounded(self, value: Any) -> Any:
        """Make a method of a text or a dict safe for any argument, and measurable."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, dict) and callable(value):
            return value if value.__name__ in ("get", "copy") else lambda: list(value())
        if not isinstance(owner, str) or not callable(value):
            return value
        # Plain functions: in a list, the text of a bound method would grow with what it holds.
        if value.__name__ == "join":
            return lambda items: filters.join(self.meter, owner, items)
        if value.__name__ == "replace":
            return lambda *args, **kwargs: filters.replace(self.meter, owner, *args, **kwargs)
        if value.__name__ == "format":
            return lambda *args, **kwargs: self._formatted(owner, args, kwargs)
        if value.__name__ == "format_map":
            return lambda mapping: self._formatted(owner, (), mapping)
        if value.__name__ in _WIDENING:
            return self._widening(owner, value)
        return _short_needles(value) if value.__name__ in _SEARCHES else value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may see it: only what is listed as harmless."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, _OPEN):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _METHODS)

    def wrap_str_format(self, value: Any) -> None:
        """Make no exception for ``str.format``: `is_safe_attribute` decides."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse, where Jinja2 would continue with an empty value."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not allowed")

    def _printable(self, value: Any) -> Any:
        self.meter.tick()
        if isinstance(value, (list, tuple, dict)):
            self.meter.size(value)
            return self.meter.made(str(value))
        return value

    # -- methods, filters and a global that need the environment --

    def _formatted(self, text: str, args: Sequence[Any], named: Mapping[str, Any]) -> str:
        return _Formatter(self).vformat(text, args, named)

    def _widening(self, owner: str, method: Callable[..., str]) -> Callable[..., str]:
        def checked(*args: Any, **kwargs: Any) -> str:
            widths = [v for v in (*args, *kwargs.values()) if isinstance(v, int)]
            # A tab widens the text once for each that is in it.
            times = len(owner) if method.__name__ == "expandtabs" else 1
            self.meter.check_length(max(widths, default=8) * times + len(owner))
            return method(*args, **kwargs)

        return checked

    def _format_filter(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if args and kwargs:
            raise TypeError("format takes positions or names, not both")
        return filters.format_percent(self.meter, str(value), kwargs or args)

    def _attribute(self, obj: Any, name: Any) -> Any:
        """Get an attribute, never an item."""
        try:
            value = getattr(obj, str(name))
        except AttributeError:
            return self.undefined(obj=obj, name=str(name))
        if not self.is_safe_attribute(obj, str(name), value):
            return self.unsafe_undefined(obj, str(name))
        return self._bounded(value)

    def _sum(self, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        total = start
        for item in iterable:
            self.meter.tick()
            total += item if attribute is None else self.getitem(item, attribute)
            self.meter.made(total)
        return total

    def _join(self, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            value = (self.getitem(item, attribute) for item in value)
        return filters.join(self.meter, str(d), (str(item) for item in value))

    def _strftime_now(self, form: str) -> str:
        check_needles((form,))
        return self._now().strftime(form)


class _Formatter(SandboxedFormatter):
    """``str.format`` whose fields are looked up as a template's own names are, and counted."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._meter = environment.meter

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one field."""
        self._meter.tick()
        self._meter.size(value)
        filters.check_widths(format_spec)
        text: str = super().format_field(value, format_spec)
        self._meter.put_aside(len(text))
        return text


class _Namespace(Namespace):
    """The only object a template can change; printing it must not print what it holds."""

    def __repr__(self) -> str:
        return "namespace"


def _lorem_ipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    if n > _PARAGRAPHS or max > _WORDS:
        raise LimitError("makes too long a text")
    return str(generate_lorem_ipsum(n, html, min, max))


def _refuse(message: Any = "no reason given") -> None:
    raise RefusedError(message)


def _short_needles(method: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_needles((*args, *kwargs.values()))
        return method(*args, **kwargs)

    return checked


# -- before it is compiled ------------------------------------------------------------------


class _Dialect(Extension):
    """The block ``{% generation %}``, and a bound on the time of compiling.

    The block marks the assistant's words for training; here it only groups.
    """

    tags = {"generation"}  # noqa: RUF012

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the source's tokens, up to a number that no real chat template comes near."""
        for count, token in enumerate(stream):
            if count >= _SOURCE_TOKENS:
                raise LimitError("is too complex")
            yield token

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block as an ordinary scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _add_hooks(template: nodes.Template) -> None:
    """Put hooks where compiled templates do something that Jinja2 has no hook for."""
    _Rewriter().visit(template)  # in place, as the root stays


class _Rewriter(NodeTransformer):
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
        self.generic_visit(node)
        node.iter = _hook("stepping", node.iter)
        return node


def _hook(name: str, *args: nodes.Node) -> nodes.Filter:
    first, *rest = args
    return nodes.Filter(first, _HOOK + name, rest, [], None, None, lineno=first.lineno)
