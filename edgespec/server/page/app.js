// The page: sends messages, shows answers as they come, keeps what was said.

import { Failure, fetchModel, streamChat } from "./api.js";
import { Attachments } from "./attachments.js";
import * as conversation from "./conversation.js";
import { download } from "./elements.js";
import { Figures } from "./figures.js";
import { History } from "./history.js";
import { Settings } from "./settings.js";
import * as storing from "./storing.js";
import { TurnView } from "./turn.js";

const PAINT_MS = 50; // the model needs the processor more than the page does
const PAINT_SHARE = 10;

const $ = (id) => document.getElementById(id);

class App {
  constructor() {
    this.conversation = storing.keptConversation(storing.kept("current"));
    this.views = [];
    this.writing = null; // what aborts the answer under way
    this.painting = false;
    this.paintMs = 0;
    this.model = "the model";
    this.figures = new Figures();
    this.settings = new Settings((rekeyed) => this.settingsClosed(rekeyed));
    this.attachments = new Attachments();
    this.history = new History({
      open: (chosen) => chosen.id !== this.conversation.id && this.leaveFor(chosen),
      dropped: (id) => id === this.conversation.id && this.show(storing.newConversation()),
    });
    this.bind();
    this.showAll();
    this.learnModel();
  }

  bind() {
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.writing) this.stop();
      else this.send();
    });
    $("prompt").value = storing.kept("draft");
    $("prompt").addEventListener("input", () => storing.keep("draft", $("prompt").value));
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.writing) this.send();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    window.addEventListener("beforeunload", () => this.stop()); // or it would look like a failure
    window.addEventListener("pagehide", () => this.keep());
    $("new").addEventListener("click", () => this.leaveFor(storing.newConversation()));
    $("history-open").addEventListener("click", () => {
      this.keep();
      this.history.open(this.conversation.id);
    });
    $("settings-open").addEventListener("click", () => this.settings.open());
    $("save-json").addEventListener("click", () => this.save("json"));
    $("save-markdown").addEventListener("click", () => this.save("md"));
    for (const example of $("examples").children) {
      example.addEventListener("click", () => this.ask(example.textContent));
    }
    bindLooks();
  }

  get turns() {
    return this.conversation.turns;
  }

  async learnModel() {
    try {
      const model = await fetchModel(this.settings.key);
      this.model = $("model").textContent = model.id;
      this.figures.capacity = model.context_length ?? null;
      this.figures.show();
    } catch (error) {
      $("model").textContent = "not connected";
      if (error.status === 401) this.settings.askForKey();
    }
  }

  // -- asking ----------------------------------------------------------------------------------

  send() {
    const prompt = $("prompt").value;
    if (!prompt.trim() && !this.attachments.files.length) return;
    this.setDraft("");
    this.ask(prompt);
  }

  ask(prompt) {
    if (this.writing) return;
    this.turns.push(conversation.newTurn(prompt, this.attachments.take()));
    this.conversation.time = Date.now();
    this.append(this.turns.at(-1));
    this.answerLast();
  }

  retry() {
    if (!this.writing && this.turns.length) this.answerLast();
  }

  /** Take the last question back into the field. */
  edit() {
    this.stop();
    const turn = this.turns.pop();
    this.views.pop().element.remove();
    const draft = $("prompt").value;
    this.setDraft(draft.trim() ? `${turn.prompt}\n${draft}` : turn.prompt);
    this.attachments.add(turn.files);
    this.changed();
    $("prompt").focus();
  }

  stop() {
    this.writing?.abort();
  }

  async answerLast() {
    const turn = this.turns.at(-1);
    const view = this.views.at(-1);
    const before = { ...turn };
    const abort = new AbortController();
    this.setWriting(abort);
    $("prompt").focus(); // what was pressed may be gone
    Object.assign(turn, { pieces: [], state: "writing", error: null, figures: null });
    this.figures.reset(this.turns);
    this.figures.begin();
    view.restart();
    this.scrollDown();
    try {
      await this.take(turn, view, abort.signal);
      turn.state = "done";
    } catch (error) {
      failed(turn, error, abort.signal);
      // An answer that is there already is better than none.
      if (!turn.pieces.length && before.pieces.length) {
        Object.assign(turn, before, { error: turn.error });
        this.figures.reset(this.turns);
        this.figures.begin();
        view.restart();
      }
      if (error.status === 401) this.settings.askForKey();
    }
    this.answered(turn, view, abort);
  }

  async take(turn, view, signal) {
    const body = {
      messages: conversation.messagesOf(this.turns, this.settings.values.system),
      ...this.settings.parameters,
    };
    for await (const chunk of streamChat(body, this.settings.key, signal)) {
      const [choice] = chunk.choices;
      const told = chunk.edgespec;
      if (choice?.delta?.content) {
        view.add([choice.delta.content, told.origin, told.token]);
        this.figures.add(told.origin, told.acceptance_rate);
        this.paintSoon(view);
      } else if (choice?.finish_reason) {
        turn.figures = { ...told };
      } else if (chunk.usage) {
        turn.figures.usage = chunk.usage;
      }
    }
  }

  answered(turn, view, abort) {
    if (this.writing === abort) this.setWriting(null);
    if (this.turns.at(-1) !== turn) return; // taken back meanwhile
    this.figures.end(turn.figures);
    this.paint(view);
    this.keep();
    if (turn.state === "done") $("announcer").textContent = view.spoken;
  }

  setWriting(abort) {
    this.writing = abort;
    $("send").textContent = abort ? "Stop" : "Send";
    $("send").title = abort ? "Escape stops, too" : "";
    if (abort) $("announcer").textContent = "The model is writing.";
  }

  // -- showing ---------------------------------------------------------------------------------

  showAll() {
    this.views = [];
    $("turns").replaceChildren();
    for (const turn of this.turns) this.append(turn);
    this.changed();
    this.scrollDown();
  }

  append(turn) {
    const view = new TurnView(turn, { retry: () => this.retry(), edit: () => this.edit() });
    this.views.push(view);
    $("turns").append(view.element);
    this.showWelcome();
  }

  /** The conversation is another one. */
  changed() {
    this.showWelcome();
    this.figures.reset(this.turns);
    this.keep();
  }

  showWelcome() {
    $("welcome").hidden = this.turns.length > 0;
  }

  paintSoon(view) {
    if (this.painting) return;
    this.painting = true;
    const later = Math.max(PAINT_MS, PAINT_SHARE * this.paintMs);
    setTimeout(() => requestAnimationFrame(() => this.paint(view)), later);
  }

  paint(view) {
    const began = performance.now();
    const box = $("conversation");
    const following = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    this.painting = false;
    view.update();
    this.figures.show();
    if (following) this.scrollDown();
    this.paintMs = performance.now() - began;
  }

  scrollDown() {
    $("conversation").scrollTop = $("conversation").scrollHeight;
  }

  // -- keeping ---------------------------------------------------------------------------------

  keep() {
    storing.keep("current", this.conversation.id);
    storing.keepConversation(this.conversation);
  }

  setDraft(text) {
    $("prompt").value = text;
    storing.keep("draft", text);
  }

  leaveFor(chosen) {
    this.keep();
    this.show(chosen);
  }

  show(chosen) {
    this.stop();
    this.conversation = chosen;
    this.showAll();
    $("prompt").focus();
  }

  save(kind) {
    const write = kind === "json" ? conversation.asJson : conversation.asMarkdown;
    const type = kind === "json" ? "application/json" : "text/markdown";
    const time = new Date().toISOString().slice(0, 19).replaceAll(":", "");
    download(`edgespec-${time}.${kind}`, type, write(this.turns, this.model, this.settings.values));
  }

  settingsClosed(rekeyed) {
    $("prompt").focus();
    if (!rekeyed) return;
    this.learnModel();
    if (this.turns.at(-1)?.status === 401) this.retry();
  }
}

/** Write down how an answer ended early. */
function failed(turn, error, signal) {
  turn.state = signal.aborted ? "stopped" : "failed";
  turn.status = error.status ?? 0;
  if (signal.aborted) return;
  turn.error = error instanceof Failure ? error.message : `The page failed: ${error.message}`;
}

/** Colours and theme: how it looks, not what it says. */
function bindLooks() {
  const colour = (on) => {
    document.body.classList.toggle("colours", on);
    $("colours").setAttribute("aria-pressed", String(on));
    storing.keep("colours", on ? "" : "off");
  };
  colour(storing.kept("colours") !== "off");
  $("colours").addEventListener("click", () => colour(!document.body.classList.contains("colours")));

  const label = () => ($("theme").textContent = `Theme: ${currentTheme()}`);
  label();
  $("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);
    label();
  });

  $("turns").addEventListener("mouseover", ({ target }) => {
    const origin = target.classList.contains("token") && target.classList[1];
    if (origin && document.body.classList.contains("colours")) target.title = origin;
  });
}

new App();
