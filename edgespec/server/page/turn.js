// A question and its answer on the page.

import { answerOf } from "./conversation.js";
import { button, copyButton, make } from "./elements.js";
import { perSecond } from "./figures.js";
import { Rendering } from "./rendering.js";
import { Source } from "./source.js";

const OPENING = "<think>";
const CLOSING = "</think>";

const ENDINGS = {
  length: "cut off at max tokens",
  loop: "cut off: it only repeated itself",
  context: "cut off: the context is full",
  cancelled: "ended by the server",
};

/** Shows a turn; `actions` has what its buttons do: `retry` and `edit`. */
export class TurnView {
  constructor(turn, actions) {
    this.turn = turn;
    this.thoughtBody = make("div", { className: "text" });
    this.thoughtTitle = make("summary");
    this.thought = make("details", { className: "thought", hidden: true });
    this.thought.append(this.thoughtTitle, this.thoughtBody);
    this.body = make("div", { className: "text" });
    this.error = make("p", { className: "error", hidden: true });
    this.error.setAttribute("role", "alert");
    this.waiting = make("p", { className: "waiting" }, "Reading the prompt");
    this.caption = make("span", { className: "caption" });
    this.element = make(
      "article",
      { className: "turn" },
      this.#question(),
      make("div", { className: "answer" }, this.waiting, this.thought, this.body),
      this.error,
      this.#foot(actions),
    );
    this.restart();
  }

  #question() {
    const { prompt, files } = this.turn;
    const names = files.map(({ name, text }) => {
      return make("details", { className: "file" }, make("summary", {}, name), make("pre", {}, text));
    });
    const question = make("div", { className: "question", hidden: !prompt.trim() }, prompt);
    return make("div", { className: "asked" }, ...names, question);
  }

  #foot({ retry, edit }) {
    this.copy = copyButton("Copy", () => answerOf(this.turn));
    const again = button("Retry", retry, { className: "small last" });
    const change = button("Edit", edit, { className: "small last", title: "Write the question anew" });
    return make("div", { className: "foot" }, this.caption, this.copy, again, change);
  }

  /** Show the turn's pieces from the first on. */
  restart() {
    this.source = new Source();
    for (const piece of this.turn.pieces) this.source.push(piece);
    this.thoughtBody.replaceChildren();
    this.body.replaceChildren();
    this.parts = [
      new Rendering(this.thoughtBody, this.source),
      new Rendering(this.body, this.source),
    ];
    this.update();
  }

  add(piece) {
    this.turn.pieces.push(piece);
    this.source.push(piece);
  }

  /** Bring the page up to date with the turn. */
  update() {
    const { turn, source } = this;
    const writing = turn.state === "writing";
    const { from, to, answer } = placesOf(source.text);
    this.element.classList.toggle("writing", writing);
    this.element.setAttribute("aria-busy", String(writing));
    this.waiting.hidden = !writing || source.text.length > 0;
    this.thought.hidden = !source.text.slice(from, to).trim();
    this.thoughtTitle.textContent = answer === source.text.length && writing ? "Thinking" : "Thought";
    if (!this.thought.hidden) this.parts[0].update(from, to);
    this.parts[1].update(answer, source.text.length);
    this.error.hidden = !turn.error;
    if (this.error.textContent !== (turn.error ?? "")) this.error.textContent = turn.error;
    this.copy.hidden = !source.text;
    this.caption.textContent = writing ? "" : captionOf(turn);
  }

  /** What was answered, without reasoning and without marks. */
  get spoken() {
    return this.body.innerText;
  }
}

/** Reasoning is a range at the beginning, and the answer what comes behind it. */
function placesOf(text) {
  const start = text.search(/\S/);
  const opened = start >= 0 && text.startsWith(OPENING, start);
  const close = text.indexOf(CLOSING);
  const nested = close >= 0 && text.lastIndexOf(OPENING, close) >= 0;
  if (!opened && (close < 0 || nested)) return { from: 0, to: 0, answer: 0 };
  const from = opened ? start + OPENING.length : 0; // the prompt may have opened it
  if (close < 0) return { from, to: text.length, answer: text.length };
  return { from, to: close, answer: close + CLOSING.length };
}

function captionOf({ pieces, state, figures }) {
  if (state === "failed" && !pieces.length) return "";
  const tokens = figures?.usage?.completion_tokens ?? pieces.length;
  const parts = [`${tokens} token${tokens === 1 ? "" : "s"}`];
  const speed = figures?.timings?.tokens_per_second;
  if (speed > 0) parts.push(`${perSecond(speed)} tokens/s`);
  if (state === "done" && !pieces.length) parts.push("the model said nothing");
  if (state === "stopped") parts.push("stopped");
  const ending = ENDINGS[figures?.finish_reason];
  if (ending) parts.push(ending);
  return parts.join(" · ");
}
