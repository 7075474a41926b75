// Which parts of a program are comments, strings, numbers and keywords: enough to read by.
//
// Every pattern goes on to an end that is always there (its own, the line's or the text's), so
// that no place is looked at twice, whatever a model writes.

const END = "(?![^])";
const NUMBER = String.raw`(?<![\w$])\d[\w.]*`;
const WORD = String.raw`[A-Za-z_$][\w$]*`;
const QUOTED = String.raw`"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const LONG_QUOTED = String.raw`"""[^]*?(?:"""|${END})|'''[^]*?(?:'''|${END})|${QUOTED}`;
const TICKED = String.raw`\x60(?:\\[^]|[^\x60\\])*\x60?|${QUOTED}`;
const HASH = String.raw`(?<![\w$\{\\])#.*`;
const SLASHES = String.raw`//.*|/\*[^]*?(?:\*/|${END})`;

const PYTHON =
  "and as assert async await break case class continue def del elif else except False finally for " +
  "from global if import in is lambda match None nonlocal not or pass raise return self True try " +
  "while with yield";
const SHELL =
  "case do done echo elif else esac exit export fi for function if in local return set then " +
  "until while begin class def end module nil puts require unless true false null";
const BRACES =
  "abstract as async await bool boolean break byte case catch char class const continue def default " +
  "defer delete do double else enum export extends extern false final finally float fn for func " +
  "function go goto if impl implements import in instanceof int interface let long loop match mod mut " +
  "namespace new nil null nullptr of override package private protected pub public return self short " +
  "signed sizeof static string struct super switch template this throw throws trait true try type " +
  "typedef typename typeof undefined union unsafe unsigned use using val var virtual void where while yield";
const QUERY =
  "add all alter and as asc begin between by case commit create delete desc distinct drop else end " +
  "exists for from function group having if in index inner insert into is join key left like limit " +
  "local not null on or order outer primary return right select set table then union unique update " +
  "values view when where while with nil true false";

const LANGUAGES = [
  ["python py python3 pycon", language(HASH, LONG_QUOTED, PYTHON)],
  [
    "bash sh shell zsh fish console yaml yml toml ini ruby rb perl r make makefile dockerfile",
    language(HASH, QUOTED, SHELL),
  ],
  [
    "c h cpp c++ cc csharp cs java javascript js jsx typescript ts tsx go golang rust rs swift " +
      "kotlin kt php scala dart zig json jsonc",
    language(SLASHES, TICKED, BRACES, String.raw`^[ \t]*#[a-z]+`),
  ],
  ["css scss", language(String.raw`/\*[^]*?(?:\*/|${END})`, QUOTED, "important", "@[a-z-]+")],
  ["sql postgresql mysql sqlite lua haskell hs", language(String.raw`--.*`, QUOTED, QUERY)],
  [
    "html xml svg vue",
    language(String.raw`<!--[^]*?(?:-->|${END})`, String.raw`(?<==)(?:${QUOTED})`, "", String.raw`</?[A-Za-z][\w-]*|/?>`),
  ],
];
const BY_NAME = new Map(
  LANGUAGES.flatMap(([names, rules]) => names.split(" ").map((name) => [name, rules])),
);

function language(comment, string, words, keyword = "(?!)") {
  const kinds = { comment, string, keyword, number: NUMBER, word: WORD };
  const pattern = Object.entries(kinds).map(([kind, source]) => `(?<${kind}>${source})`).join("|");
  return { pattern: new RegExp(pattern, "gm"), words: new Set(words.toLowerCase().split(" ")) };
}

/** The parts of a program worth a colour: `{kind, from, to}`, in order; none in other languages. */
export function highlights(code, name) {
  const rules = BY_NAME.get(name.toLowerCase());
  if (!rules) return [];
  const found = [];
  for (const { 0: text, index, groups } of code.matchAll(rules.pattern)) {
    let kind = Object.keys(groups).find((one) => groups[one] !== undefined);
    if (kind === "word") kind = rules.words.has(text.toLowerCase()) ? "keyword" : null;
    if (kind) found.push({ kind, from: index, to: index + text.length });
  }
  return found;
}
