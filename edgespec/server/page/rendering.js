// Blocks of Markdown as elements, kept up to date while the text grows.

import { copyButton, make } from "./elements.js";
import { highlights } from "./highlighting.js";
import { parseBlocks, parseInline } from "./markdown.js";

/** Shows a range of a growing source in an element; what cannot change any more is left alone. */
export class Rendering {
  constructor(element, source) {
    this.element = element;
    this.source = source;
    this.shown = [];
  }

  update(start, end) {
    const blocks = parseBlocks(this.source.text, start, end);
    const keys = blocks.map((block) => `${block.kind} ${block.start} ${block.end}`);
    let same = 0;
    while (same < keys.length && keys[same] === this.shown[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const block of blocks.slice(same)) this.element.append(shownBlock(this.source, block));
    this.shown = keys;
  }
}

function shownBlock(source, block) {
  switch (block.kind) {
    case "code":
      return shownCode(source, block);
    case "heading":
      return inline(source, make(`h${Math.min(6, block.level + 2)}`), block.from, block.end);
    case "list":
      return shownList(source, block.items);
    case "rule":
      return make("hr");
    case "table": {
      const table = make("pre", { className: "table", tabIndex: 0 });
      source.show(table, block.start, block.end);
      return table;
    }
    default:
      return inline(source, make("p"), block.start, block.end);
  }
}

function shownCode(source, block) {
  const code = make("code");
  const coloured = colouredParts(source.text, block);
  block.lines.forEach(([from, to], index) => {
    // The line's end belongs to it, but for the last one.
    coloured(from, index + 1 < block.lines.length ? to + 1 : to, (kind, first, last) => {
      const part = kind ? make("span", { className: kind }) : code;
      source.show(part, first, last);
      if (kind) code.append(part);
    });
  });
  const text = () => code.textContent;
  const head = make("div", { className: "head" }, make("span", {}, block.language || "code"));
  head.append(copyButton("Copy", text));
  return make("div", { className: "code" }, head, make("pre", { tabIndex: 0 }, code));
}

/** A function that cuts ranges of a block of code, in order, where another colour begins. */
function colouredParts(text, { lines, language }) {
  const start = lines[0]?.[0] ?? 0;
  const marks = highlights(text.slice(start, lines.at(-1)?.[1] ?? 0), language);
  let next = 0;
  return (from, to, take) => {
    while (from < to) {
      while (next < marks.length && start + marks[next].to <= from) next += 1;
      const mark = next < marks.length ? marks[next] : { from: Infinity, to: Infinity };
      const inside = start + mark.from <= from;
      const end = Math.min(to, start + (inside ? mark.to : mark.from));
      take(inside ? mark.kind : null, from, end);
      from = end;
    }
  };
}

/** Lists inside of lists by their indentation. */
function shownList(source, items) {
  const root = openList(items[0]);
  const open = [{ list: root, indent: items[0].indent }];
  for (const item of items) {
    while (open.length > 1 && item.indent < open.at(-1).indent) open.pop();
    const deeper = item.indent > open.at(-1).indent + 1;
    if (deeper && open.at(-1).list.lastChild && open.length < 8) {
      const list = openList(item);
      open.at(-1).list.lastChild.append(list);
      open.push({ list, indent: item.indent });
    }
    open.at(-1).list.append(inline(source, make("li"), item.from, item.to));
  }
  return root;
}

function openList(item) {
  return item.number === null ? make("ul") : make("ol", { start: item.number });
}

function inline(source, parent, from, to) {
  return shownParts(source, parent, parseInline(source.text, from, to));
}

const NAMES = { strong: "strong", emphasis: "em" };

function shownParts(source, parent, parts) {
  for (const part of parts) {
    if (part.kind === "text") {
      source.show(parent, part.from, part.to);
    } else if (part.kind === "code") {
      const code = make("code");
      source.show(code, part.from, part.to);
      parent.append(code);
    } else {
      parent.append(shownParts(source, make(NAMES[part.kind]), part.parts));
    }
  }
  return parent;
}
