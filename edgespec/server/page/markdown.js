// Light Markdown: where the blocks of a text are, and the inline parts of a block.
//
// Nothing here makes text: everything is a range of the source, so that what is shown can be
// traced back to the tokens it came in. All of it takes time linear in the text's length, or
// nearly so, as a model may write anything.

const FENCE = /^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(?=\S)/;
const ITEM = /^([ \t]*)([-*+]|(\d{1,9})[.)])[ \t]+(?=\S)/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const ROW = /^ {0,3}\|.*\|[ \t]*$/;

/**
 * The blocks between two places of a text, in order. Each has `kind`, `start` and `end`, and:
 *   code: `lines`, ranges; `language`; `closed`.   heading: `level`, `from`.
 *   list: `items`, each with `indent`, `number` (null for a bullet), `from`, `to`.
 */
export function parseBlocks(text, start = 0, end = text.length) {
  const blocks = [];
  let block = null; // that the next line may go on with
  for (const [from, to] of linesOf(text, start, end)) {
    const line = text.slice(from, to);
    if (block?.kind === "code" && !block.closed) {
      goOnWithCode(block, line, from, to);
      continue;
    }
    const next = opened(line, from, to, block);
    if (next === block && block) block.end = to;
    else if (next) blocks.push(next);
    block = next;
  }
  return blocks;
}

function* linesOf(text, start, end) {
  for (let from = start; from < end; ) {
    const cut = text.indexOf("\n", from);
    const to = cut < 0 || cut > end ? end : cut;
    yield [from, to];
    from = to + 1;
  }
}

function goOnWithCode(block, line, from, to) {
  block.end = to;
  const bare = line.trim();
  if (bare.length >= block.fence.length && bare === block.fence[0].repeat(bare.length)) {
    block.closed = true;
    return;
  }
  let skip = 0;
  while (skip < block.indent && (line[skip] === " " || line[skip] === "\t")) skip += 1;
  block.lines.push([from + skip, to]);
}

/** The block that this line belongs to: a new one, the one before, or null. */
function opened(line, from, to, before) {
  const at = { start: from, end: to };
  if (!line.trim()) return before?.kind === "list" ? pausedList(before) : null;
  const fence = FENCE.exec(line);
  if (fence && !line.includes("`", fence[0].length)) {
    const [, indent, mark, language] = fence;
    return { ...at, kind: "code", indent: indent.length, fence: mark, language, lines: [], closed: false };
  }
  const heading = HEADING.exec(line);
  if (heading) {
    return { ...at, kind: "heading", level: heading[1].length, from: from + heading[0].length };
  }
  if (RULE.test(line)) return { ...at, kind: "rule" };
  const item = ITEM.exec(line);
  if (item) return withItem(before, item, from, to);
  if (before?.kind === "list" && (!before.paused || /^[ \t]{2,}/.test(line))) {
    before.items.at(-1).to = to;
    before.paused = false;
    return before;
  }
  const kind = ROW.test(line) ? "table" : "paragraph";
  return before?.kind === kind ? before : { ...at, kind };
}

/** A blank line ends a list, unless an item or an indented line comes next. */
function pausedList(list) {
  list.paused = true;
  return list;
}

function withItem(before, [marker, indent, , number], from, to) {
  const item = {
    indent: indent.replaceAll("\t", "    ").length,
    number: number === undefined ? null : Number(number),
    from: from + marker.length,
    to,
  };
  const fits =
    before?.kind === "list" &&
    (item.indent > before.items[0].indent ||
      (item.number === null) === (before.items[0].number === null));
  if (!fits) return { kind: "list", start: from, end: to, items: [item], paused: false };
  before.items.push(item);
  before.paused = false;
  return before;
}

const DEEPEST = 4;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;

/**
 * The inline parts of a range: `{kind: "text" | "code" | "strong" | "emphasis", from, to}`, where
 * strong and emphasis have `parts` of their own. Marks that are not closed are text.
 */
export function parseInline(text, from, to, depth = 0) {
  const parts = [];
  const hopeless = new Set(); // marks that nothing behind here closes
  let plain = from;
  let at = from;
  const push = (part, next) => {
    if (plain < at) parts.push({ kind: "text", from: plain, to: at });
    if (part) parts.push(part);
    at = plain = next;
  };
  while (at < to) {
    const found = partAt(text, at, to, depth, hopeless);
    if (found) push(found.part, found.next);
    else at += skipped(text, at, to);
  }
  push(null, to);
  return parts;
}

/** Length of what is certainly text here: a run of the same mark is not looked at twice. */
function skipped(text, at, to) {
  const mark = text[at];
  if (mark !== "`" && mark !== "*" && mark !== "_") return 1;
  return runLength(text, at, to);
}

function runLength(text, at, to) {
  let end = at + 1;
  while (end < to && text[end] === text[at]) end += 1;
  return end - at;
}

function partAt(text, at, to, depth, hopeless) {
  const mark = text[at];
  if (mark === "\\" && at + 1 < to && ESCAPABLE.test(text[at + 1])) {
    return { part: { kind: "text", from: at + 1, to: at + 2 }, next: at + 2 };
  }
  if (mark === "`") return codeAt(text, at, to);
  if ((mark === "*" || mark === "_") && depth < DEEPEST) return stressAt(text, at, to, depth, hopeless);
  return null;
}

/** A run of backticks that nothing closes is the only one of its length, so that few are tried. */
function codeAt(text, at, to) {
  const length = runLength(text, at, to);
  for (let close = at + length; (close = text.indexOf("`", close)) >= 0 && close < to; ) {
    const run = runLength(text, close, to);
    if (run === length) {
      return { part: { kind: "code", from: at + length, to: close }, next: close + length };
    }
    close += run;
  }
  return null;
}

function stressAt(text, at, to, depth, hopeless) {
  const mark = text[at];
  const run = runLength(text, at, to);
  const length = Math.min(run, 2);
  const key = mark.repeat(run);
  const inside = at + length;
  const opens = run <= 3 && inside < to && !/\s/.test(text[inside]);
  if (!opens || hopeless.has(key) || (mark === "_" && at > 0 && WORD.test(text[at - 1]))) return null;
  for (let close = inside; (close = text.indexOf(mark, close)) >= 0 && close < to; ) {
    const closing = runLength(text, close, to);
    const after = text[close + closing] ?? " ";
    const fits = closing >= length && (closing === length || closing >= 3 || run > 2);
    if (fits && !/\s/.test(text[close - 1]) && !(mark === "_" && WORD.test(after))) {
      const end = close + closing - length;
      const parts = parseInline(text, inside, end, depth + 1);
      const kind = length === 2 ? "strong" : "emphasis";
      return { part: { kind, from: inside, to: end, parts }, next: end + length };
    }
    close += closing;
  }
  hopeless.add(key);
  return null;
}
