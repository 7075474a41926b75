"""What is done to a template before it is compiled: its dialect, and hooks in its syntax tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from edgespec.templates.meter import LimitError

__all__ = ["HOOK", "Dialect", "add_hooks"]

HOOK = "#"  # starts the names of filters that only rewritten templates can call

_SOURCE_TOKENS = 30_000


class Dialect(Extension):
    """``{% generation %}``, and a bound on the time that compiling takes.

    The block marks the assistant's words for training; here it only groups.
    """

    tags = {"generation"}  # noqa: RUF012

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """The tokens of the source, up to a number that no chat template comes near."""
        for count, token in enumerate(stream):
            if count >= _SOURCE_TOKENS:
                raise LimitError("is too complex")
            yield token

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as an ordinary scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def add_hooks(template: nodes.Template) -> None:
    """Put a hook wherever compiled templates do something that Jinja2 has no hook for."""
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
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = _hook("stepping", node.iter)
        return node


def _hook(name: str, *args: nodes.Node) -> nodes.Filter:
    first, *rest = args
    return nodes.Filter(first, HOOK + name, rest, [], None, None, lineno=first.lineno)
