"""Hostile chat templates end soon, in one line, and need little memory.

They run in a process of their own, which is this file run as a program, so that what is measured
is not what other tests needed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgespec.errors import TemplateError
from edgespec.templates import ChatTemplate

Compile = Callable[[str], ChatTemplate]
Render = Callable[..., str]

MIB = 1 << 20
USER = {"role": "user", "content": "Hi"}

BIG = "{% set x = 'aaaaaaaa' * 100000 %}"
LOOP = "{% for i in range(99999) %}"


def repeated(expression: str, start: str = "'abcdefgh'") -> str:
    assign = f"{{% set ns = namespace(x={start}) %}}"
    return f"{assign}{{% for i in range(64) %}}{{% set ns.x = {expression} %}}{{% endfor %}}"


def looped(body: str, times: int = 1) -> str:
    return LOOP * times + body + "{% endfor %}" * times


NEST = repeated("[ns.x, ns.x]")

HOSTILE = {
    "class": "{{ ''.__class__ }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "item escape": "{{ ''['__class__'] }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "map attribute": "{{ ['']|map(attribute='__class__')|list }}",
    "join attribute": "{{ ['']|join(attribute='__class__') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "macro internals": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "loop internals": "{% for i in [1] %}{{ loop._iterable }}{% endfor %}",
    "method internals": "{{ ''.join.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "lipsum in long words": "{{ lipsum(n=1, max=10 ** 9) }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "format attack": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map attack": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format width": "{{ '{:999999999}'.format(1) }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "format filter": "{{ '%999999999d'|format(1) }}",
    "format attribute": "{{ '{0.append}'.format([]) }}",
    "format width in a field": "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
    "format precision": "{{ '{:.999999999f}'.format(1.5) }}",
    "format often": BIG + "{{ ('{0}' * 1000).format(x) }}",
    "percent width by value": "{{ '%*d' % (10 ** 9, 1) }}",
    "percent precision": "{{ '%.999999999f' % 1.5 }}",
    "percent nested": "{{ '%(a())999999999d' % {'a()': 1} }}",
    "percent often": BIG + "{% set d = {'a': x} %}{{ ('%(a)s' * 9000) % d }}",
    "percent many": "{{ ('%s' * 100000) % ('a',) }}",
    "mapped format": "{{ ['%999999999d']|map('format', 1)|list }}",
    "sum of lists": "{{ ([[1]] * 100000)|sum(start=[]) }}",
    "slice": "{{ [1]|slice(10 ** 9)|list }}",
    "attr filter of a list": "{{ messages|attr('append') }}",
    "pprint": "{{ range(99999)|list|pprint }}",
    "double copy": repeated("{1: ns.x, 2: ns.x}.copy()"),
    "select of select": "{{ range(99999)|select('in', range(99999)|list)|list }}",
    "long select": looped("{% set y = range(99999)|select|first %}" * 50)
    + "{{ range(99999)|map('abs')|select|reject('eq', 0)|sum * 'a' }}",
    "recursive loop over much": "{% for x in [[1]] recursive %}{% if x is iterable %}"
    "{{ loop(range(99999)) }}{% else %}{% for y in range(99999) %}{% endfor %}{% endif %}"
    "{% endfor %}",
    "fromkeys": "{{ dict.fromkeys(range(99999)) }}",
    "mutation": "{{ messages.append(1) }}",
    "mutation of a message": "{{ messages[0].update({'role': 'system'}) }}",
    "mutation by item": "{% set messages[0].role = 'x' %}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends 'x' %}",
    "nested loops": looped("", 3),
    "nested loops with output": looped("aaaaaaaaaa", 2),
    "nested loops in a block": "{% set y %}" + looped("aaaa", 2) + "{% endset %}",
    "filtered loop": BIG + LOOP + "{% for c in x if x in x %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "huge range": "{{ range(10 ** 9)|list }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "power tower": repeated("ns.x ** 9", "9"),
    "squares": repeated("ns.x * ns.x", "9"),
    "huge int": BIG + "{% set n = x|int(base=16) %}{{ n % (n // 3) }}",
    "round": "{{ 1.5|round(10 ** 9, 'ceil') }}",
    "round down": "{{ (10 ** 900)|round(-(10 ** 9)) }}",
    "round a text": "{{ 'a'|round(9, 'ceil') }}",
    "double +": repeated("ns.x + ns.x"),
    "double ~": repeated("ns.x ~ ns.x"),
    "double join": repeated("ns.x|join(ns.x)"),
    "double join method": repeated("ns.x.join([ns.x, ns.x])"),
    "double replace": repeated("ns.x|replace('a', 'aaaa')"),
    "double replace method": repeated("ns.x.replace('', 'aaaa')"),
    "double *": repeated("ns.x * 2"),
    "double list": repeated("[ns.x, ns.x]"),
    "double list +": repeated("(ns.x|list) + (ns.x|list)"),
    "double tuple": repeated("(ns.x, ns.x)"),
    "double dict": repeated("{1: ns.x, 2: ns.x}"),
    "double dict call": repeated("dict(a=ns.x, b=ns.x)"),
    "double escape": repeated("(ns.x ~ '&')|e ~ ns.x"),
    "double tojson": repeated("[ns.x, ns.x]|tojson"),
    "double string": repeated("[ns.x, ns.x]|string"),
    "double set block": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 64,
    "double macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    + repeated("m(ns.x)"),
    "double filter block": "{% macro m(x) %}{% filter upper %}{{ x }}{{ x }}{% endfilter %}"
    "{% endmacro %}" + repeated("m(ns.x)"),
    "nested list": NEST + "{{ ns.x }}",
    "nested compare": NEST + "{% set y = ns.x %}" + NEST + "{{ y == ns.x }}",
    "nested hash": NEST.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    "nested varargs": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}"
    "{{ varargs }}{% endif %}{% endmacro %}{{ m(50, 'a') }}",
    "namespace cycle": "{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns, ns] %}"
    "{{ (ns.y|string) * 1000000 }}",
    "many names": BIG + "".join(f"{{% set a{i} = x ~ {i} %}}" for i in range(2000)),
    "many slices": BIG + "".join(f"{{% set a{i} = x[{i}:] %}}" for i in range(2000)),
    "many lists": "{% set ns = namespace(x=[]) %}" + looped("{% set ns.x = ns.x + [[i]] %}"),
    "repeat": "{{ 'a' * 10 ** 10 }}",
    "repeat list": "{{ [1] * 10 ** 10 }}",
    "repeat reversed": "{{ 10 ** 10 * 'a' }}",
    "ljust": "{{ ''.ljust(10 ** 10) }}",
    "center": "{{ ''|center(10 ** 10) }}",
    "zfill": "{{ ''.zfill(10 ** 10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 10) }}",
    "indent": "{{ 'a\nb'|indent(10 ** 10) }}",
    "indent by text": BIG + "{{ ('\n' * 100000)|indent(x) }}",
    "tojson indent": "{{ [1]|tojson(indent=10 ** 10) }}",
    "tojson separators": BIG + "{{ ([1] * 1000)|tojson(separators=(x, x)) }}",
    "join of many": BIG + "{{ range(99999)|map('default', x)|join(x) }}",
    "batch": "{{ [1]|batch(10 ** 9, 'x')|list }}",
    "wordwrap": BIG + "{{ x|wordwrap(1) }}",
    "urlize": BIG + "{{ x|urlize }}",
    "slow rfind": BIG + "{{ x.rfind('b' + x[1:400000]) }}",
    "slow strip": BIG + "{{ x.strip('b' * 400000) }}",
    "slow trim": BIG + "{{ x|trim('b' * 400000) }}",
    "slow tests": BIG + "{{ x|select('in', 'b' + x)|list }}" * 50,
    "slow comparisons": BIG + looped("{% if 'ab' in x %}{% endif %}" * 50),
    "slow equality": BIG + "{% set y = x[1:] ~ 'a' %}" + looped("{% if x == y %}{% endif %}" * 50),
    "slow titles": BIG + looped("{% set y = (x|title)[:1] %}" * 50),
    "slow splits": BIG + looped("{% set y = x.split('b')[0][:1] %}" * 50),
    "slow regular use": BIG + looped("{{ x|upper|lower|capitalize|trim|replace('b', 'c')|first }}"),
    "list of methods": BIG + "{{ [x.join, x.replace, x.find] * 30000 }}" * 9,
    "list of macros": "{% macro N() %}{% endmacro %}{{ [N] * 90000 }}".replace("N", "m" * 9999),
    "list of numbers": "{{ [2 ** 2000] * 90000 }}",
    "double items": repeated("{1: ns.x, 2: ns.x}.items()"),
    "double values": repeated("{1: ns.x, 2: ns.x}.values()"),
    "double items filter": repeated("{1: ns.x, 2: ns.x}|items|list"),
    "hook by name": "{{ x|#made }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "tree recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(40) }}",
    "block recursion": "{% block a %}{{ self.a() }}{% endblock %}",
    "caller recursion": "{% macro m() %}{% set c = caller %}{% call m() %}{{ c() }}{% endcall %}"
    "{% endmacro %}{% call m() %}x{% endcall %}",
    "enormous output": BIG + LOOP + "{{ x }}{% endfor %}",
    "enormous block": BIG + "{% set y %}" + LOOP + "{{ x }}{% endfor %}{% endset %}",
    "enormous constant": "{% set y %}" + LOOP + "a" * 9999 + "{% endfor %}{% endset %}",
    "autoescape": BIG + "{% autoescape true %}" + looped("{{ x ~ '<' }}") + "{% endautoescape %}",
    "large source": "a" * 300_000,
    "complex source": "{{x~x}}" * 30_000,
    "long sum": "{{" + "x+" * 10_000 + "x}}",
    "deep parentheses": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
    "deep lists": "{{" + "[" * 500 + "]" * 500 + "}}",
    "deep loops": "{% for i in [1] %}" * 40 + "{% endfor %}" * 40,
    "open block": "{% if x %}",
    "unknown tag": "{% foo %}",
    "unknown filter": "{{ 1|foo }}",
    "unknown test": "{{ 1 is foo }}",
    "unknown function": "{{ foo() }}",
    "bad characters": "{{ \udc80 }}",
    "surrogate names": "{% set \ud800x = 1 %}",
    "undefined attribute": "{{ a.b.c }}",
    "wrong types": "{{ 'a' + 1 }}",
    "division by zero": "{{ 1 / 0 }}",
    "undefined as JSON": "{{ x|tojson }}",
    "long date": "{{ strftime_now('%Y' * 1000) }}",
    "terminal escapes": "{{ raise_exception('\x1b[2J\x07\n\nred' * 1000) }}",
    "not a text": "{{ raise_exception([1, 2]) }}",
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Runs a template by its name: what became of it."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="ascii",
        bufsize=1,
    )
    requests, answers = process.stdin, process.stdout
    assert requests
    assert answers

    def run_one(name: str) -> dict[str, Any]:
        patience = threading.Timer(60, process.kill)
        patience.start()
        try:
            requests.write(name + "\n")
            outcome: dict[str, Any] = json.loads(answers.readline() or '{"error": "it died"}')
        finally:
            patience.cancel()
        return outcome

    with process:
        yield run_one
        requests.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template(name: str, run: Callable[[str], dict[str, Any]]) -> None:
    outcome = run(name)
    assert outcome["error"] == "TemplateError"
    assert outcome["seconds"] < 2.5
    assert outcome["grown"] < 200  # MiB, of this template and those before it
    text = outcome["text"]
    assert text.isprintable()
    assert len(text) < 400
    assert text.startswith("the chat template of this model ")
    assert "--raw" in text


def test_a_template_can_be_used_again_after_a_failure(compiled: Compile) -> None:
    template = compiled(
        "{% if messages[0].content == 'x' %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}ok"
    )
    with pytest.raises(TemplateError, match="takes too long"):
        template.render([{"role": "user", "content": "x"}])
    assert template.render([USER]) == "ok"


def test_the_words_of_a_refusal_are_passed_on(render: Render) -> None:
    with pytest.raises(TemplateError, match=r"refuses this conversation \(no tools, please\)"):
        render("{{ raise_exception('no\ntools, please') }}")


# -- the process ------------------------------------------------------------------------------


def peak() -> float:
    """The most memory this process has had, in MiB."""
    if sys.platform == "linux":  # where the other figure includes the process that started it
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) / 1024
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / MIB
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def outcome_of(source: str) -> dict[str, Any]:
    started = time.thread_time()
    try:
        ChatTemplate(source, bos_token="<s>", eos_token="</s>").render([USER])
        outcome = {"error": ""}
    except Exception as error:
        outcome = {"error": type(error).__name__, "text": str(error)}
    return {**outcome, "seconds": time.thread_time() - started}


def main() -> None:
    outcome_of("x")
    before = peak()
    for line in sys.stdin:
        outcome = outcome_of(HOSTILE[line.strip()])
        print(json.dumps({**outcome, "grown": peak() - before}), flush=True)


if __name__ == "__main__":
    main()
