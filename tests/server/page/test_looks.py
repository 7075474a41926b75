"""What the page makes of texts, in both themes and on narrow screens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

RICH = (
    "<think>", "Hm, **so", "** it is.\n", "</think>\n\n",
    "## A title\n", "Some **bold", " text**, *stressed* and `code`, 2 * 3 * 4, snake_case_name.\n",
    "A second line\n\n", "3. three\n", "4. four\n", "   - in", "side\n\n   still four\n",
    "```py", "thon\ndef f():\n", "    return `1` < 2\n", "```\n", "5. five\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n", "---\n", "Unclosed ** and `mark, \\*escaped\\*",
)  # fmt: skip

CODE = "def f():\n    return `1` < 2"

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "[link](javascript:document.title='owned') ![](//example.org/a.png)",
    "<style>*{display:none}</style><iframe srcdoc='<script>1</script>'></iframe>",
    "</div></article><h1>owned</h1>&lt;b&gt;",
)


def test_markdown(page: Any, turn: Any) -> None:
    page.open([turn(*RICH)])
    shape = page.run(
        """
        const shape = (e) => [e.tagName.toLowerCase(), e.textContent];
        const of = (s) => Array.from(document.querySelectorAll(`.answer > .text ${s}`), shape);
        return {
          blocks: of('> *'), marks: of('> p :is(strong, em, code)'), items: of('> ol > li'),
          inner: of('li > ul > li'),
          starts: Array.from(document.querySelectorAll('ol'), (list) => list.start),
        };
        """
    )
    assert shape["blocks"] == [
        ["h4", "A title"],
        ["p", "Some bold text, stressed and code, 2 * 3 * 4, snake_case_name.\nA second line"],
        ["ol", "threefourinside\n\n   still four"],
        ["div", f"pythonCopy{CODE}"],
        ["ol", "five"],
        ["pre", "| a | b |\n|---|---|\n| 1 | 2 |"],
        ["hr", ""],
        ["p", "Unclosed ** and `mark, *escaped*"],
    ]
    assert shape["marks"] == [["strong", "bold text"], ["em", "stressed"], ["code", "code"]]
    assert [text for _, text in shape["items"]] == ["three", "fourinside\n\n   still four", "five"]
    assert shape["inner"] == [["li", "inside\n\n   still four"]]
    assert shape["starts"] == [3, 5]


def test_code_is_coloured(page: Any, turn: Any) -> None:
    page.open(
        [turn(*RICH), turn("```js\nlet", " x = 'a", "//b' + 12; // no 'end\n/* if\n", "*/\n```\n")]
    )
    shown = page.run(
        "return Array.from(document.querySelectorAll('.code code > :not(.token)'),"
        " (e) => [e.className, e.textContent])"
    )
    assert shown == [
        ["keyword", "def"], ["keyword", "return"], ["number", "1"], ["number", "2"],
        ["keyword", "let"], ["string", "'a//b'"], ["number", "12"],
        ["comment", "// no 'end"], ["comment", "/* if\n"],
        ["comment", "*/"],
    ]  # fmt: skip
    assert page.texts(".code code")[1] == "let x = 'a//b' + 12; // no 'end\n/* if\n*/"


@pytest.mark.parametrize("interface", ["there", "missing"])  # as it is without HTTPS
def test_code_is_copied_as_it_is(page: Any, turn: Any, interface: str) -> None:
    page.open([turn(*RICH)])
    if interface == "missing":
        page.run("navigator.clipboard.writeText = undefined")
    page.find("#prompt").send_keys("before")
    page.find(".code button").click()
    page.until(lambda: page.text(".code button") == "Copied")
    page.find("#prompt").send_keys(Keys.CONTROL, "a")
    page.find("#prompt").send_keys(Keys.CONTROL, "v")
    assert page.draft == CODE


def test_every_part_keeps_its_tokens_origin(page: Any, turn: Any) -> None:
    page.open([turn(*RICH)])
    told = page.run(
        "return Array.from(document.querySelectorAll('#turns .token'),"
        " e => [Number(e.dataset.piece), e.classList[1], e.textContent])"
    )
    pieces = turn(*RICH)["pieces"]
    for index, origin, text in told:
        assert origin == pieces[index][1] and text in pieces[index][0]
    markup_only = {0, 3, 12, 15, 18}
    assert {index for index, _, _ in told} == set(range(len(pieces))) - markup_only


def test_reasoning_is_folded(page: Any, turn: Any) -> None:
    page.open([turn(*RICH), turn("Given by the prompt", "</think>", "Then."), turn("No.")])
    folds = page.all(".thought")
    assert [fold.is_displayed() for fold in folds] == [True, True, False]
    assert page.texts(".thought .text") == ["Hm, so it is.", "Given by the prompt", ""]
    assert not page.find(".thought .text").is_displayed()
    page.find(".thought summary").click()
    assert page.find(".thought .text").is_displayed()
    assert page.texts(".answer > .text")[1:] == ["Then.", "No."]


def test_hostile_text_is_shown_as_text(page: Any, turn: Any) -> None:
    frames = "{}", "`{}`", "**{}**", "```\n{}\n```", "- {}", "# {}", "| {} |", "<think>{}</think>"
    texts = [(text, frame.format(text)) for text in HOSTILE for frame in frames]
    page.open([turn(framed, prompt=text) for text, framed in texts])
    assert page.texts(".question") == [text for text, _ in texts]
    for (text, _), shown in zip(texts, page.texts(".answer"), strict=True):
        assert text in shown
    assert not page.all("#turns :is(img, script, style, iframe, a, h1)")
    assert page.browser.title == "edgespec"


def test_marks_without_end_take_no_time(page: Any) -> None:
    """A parser that takes the square of the length would run into the script's time limit."""
    marks = "*", "*a", "**a ", "`", "``` ```` `", "_a", "- ", "> ", "\\*", "a*b _c ** d` "
    marks += ("'", '"', '"""', "/*", "//", "<!--", "</", '="', "1.", "@a-", "\\\n", "# ")
    texts = [mark * (300_000 // len(mark)) for mark in marks]
    texts += ["```" + "a" * 300_000 + "`", "|" + " " * 300_000 + "a", "- " * 150_000 + "a"]
    texts.append("".join("`" * n + " " for n in range(1, 800)))
    blocks = page.browser.execute_async_script(
        """
        const [texts, done] = arguments;
        const languages = ['python', 'js', 'sh', 'css', 'sql', 'html'];
        Promise.all([import('/markdown.js'), import('/highlighting.js')]).then(
          ([{ parseBlocks, parseInline }, { highlights }]) => {
            const parse = (text) => {
              parseInline(text, 0, text.length);
              for (const name of languages) highlights(text, name);
              return parseBlocks(text).length;
            };
            done(texts.map(parse));
          },
        );
        """,
        texts,
    )
    assert blocks == [1] * len(texts)


CONTRASTS = """
const CANVAS = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
  .getContext('2d', {willReadFrequently: true});
const rgba = (colour) => {
  CANVAS.clearRect(0, 0, 1, 1); CANVAS.fillStyle = colour; CANVAS.fillRect(0, 0, 1, 1);
  return [...CANVAS.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
};
const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
const behind = (e) => e ? over(rgba(getComputedStyle(e).backgroundColor), behind(e.parentElement))
  : [1, 1, 1];
const light = (c) => {
  const [r, g, b] = c.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (colour, under) => {
  const [low, high] = [light(over(rgba(colour), under)), light(under)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const found = [];
for (const e of document.querySelectorAll('body, body *')) {
  const style = getComputedStyle(e);
  const field = e.matches('input, textarea');
  const words = field || [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!words || !e.checkVisibility({visibilityProperty: true}) || e.closest('.unseen')) continue;
  const name = `${e.tagName} ${e.id} ${e.className} ${e.textContent.slice(0, 20)}`;
  found.push([name, 'text', contrast(style.color, behind(e))]);
  if (field) {
    const hint = getComputedStyle(e, '::placeholder').color;
    found.push([name, 'text', contrast(hint, behind(e))]);
    found.push([name, 'line', contrast(style.borderTopColor, behind(e.parentElement))]);
  }
  if (e.matches('.token:not(.plain)')) {
    found.push([name, 'line', contrast(style.textDecorationColor, behind(e))]);
    found.push([name, 'line', contrast(style.textDecorationColor, behind(e.parentElement))]);
  }
  if (e.matches('.bar > div')) {
    found.push([name, 'line', contrast(style.backgroundColor, behind(e.parentElement))]);
  }
}
return found;
"""


def test_contrasts(page: Any, turn: Any, theme: str) -> None:
    page.open([turn(*RICH, error="Something failed."), turn("A", " b", " c", " d", " e")])
    page.find(".thought summary").click()
    dark = page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    assert dark == (theme == "dark")
    page.find("#figures summary").click()
    found = page.run(CONTRASTS)
    page.find("#figures summary").click()
    page.find("#settings-open").click()
    found += page.run(CONTRASTS)
    low = [one for one in found if one[2] < (4.5 if one[1] == "text" else 3.0)]
    assert not low
    assert len(found) > 80
    assert any("summary" in one[0].lower() for one in found)


def test_origins_differ_without_colours_too(page: Any, turn: Any) -> None:
    page.open([turn(*"abcdef")])
    script = (
        "return Array.from(document.querySelectorAll('#turns .token, #legend .token'), e =>"
        " [e.classList[1], getComputedStyle(e).textDecorationLine,"
        "  getComputedStyle(e).textDecorationStyle])"
    )
    lines = {origin: (line, style) for origin, line, style in page.run(script)}
    assert len(set(lines.values())) == len(lines) == 4
    assert lines["plain"][0] == "none"
    assert all(lines[origin] == (line, style) for origin, line, style in page.run(script))
    page.find("#figures summary").click()
    page.find("#colours").click()
    shown = page.run(script.replace(", #legend .token", ""))
    assert {line for _, line, _ in shown} == {"none"}


def test_the_theme_can_be_chosen(page: Any, theme: str) -> None:
    def scheme() -> str:
        return page.run("return getComputedStyle(document.documentElement).colorScheme")

    seen = []
    page.find("#settings-open").click()
    for _ in range(3):
        page.find("#theme").click()
        seen.append((page.text("#theme"), scheme()))
    assert seen == [
        ("Theme: light", "light"), ("Theme: dark", "dark"), ("Theme: auto", "light dark"),
    ]  # fmt: skip
    page.find("#theme").click()
    page.browser.refresh()
    page.find("#settings-open").click()
    assert (page.text("#theme"), scheme()) == ("Theme: light", "light")


def test_a_narrow_screen_is_not_left_sideways(narrow: Any, turn: Any) -> None:
    page = narrow
    wide = "w" * 200
    texts = (wide, f"\n\n```\n{wide}\n```\n\n", f"|{wide}|\n\n", f"- {wide}\n\n# {wide}\n`{wide}`")
    page.open([turn(*texts, prompt=wide, error=wide)], settings=json.dumps({"system": wide}))
    measure = (
        "return ['html', 'body', '#conversation', '#turns', '.turn', '#figures', '#writing',"
        " 'header', '#settings'].filter((selector) => {"
        "  const e = document.querySelector(selector);"
        "  return e.scrollWidth > e.clientWidth || e.getBoundingClientRect().right > 360;"
        "})"
    )
    assert page.run("return innerWidth") == 360
    page.find("#figures summary").click()
    assert page.run(measure) == []
    page.find("#settings-open").click()
    assert page.run(measure) == []


def test_nothing_moves_for_who_does_not_want_it(page: Any, turn: Any) -> None:
    page.open([turn("a", "b")])
    moving = (
        "return Array.from(document.querySelectorAll('*')).filter((e) =>"
        " ['', '::after'].some((part) => {"
        "  const s = getComputedStyle(e, part || null);"
        "  return s.animationName !== 'none' || s.transitionDuration !== '0s';"
        " })).length"
    )
    usual = page.run(moving)
    feature = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.command("Emulation.setEmulatedMedia", features=[feature])
    reduced = page.run(moving)
    page.command("Emulation.setEmulatedMedia", features=[])
    assert usual > 0 == reduced
