// The list of the conversations that this browser keeps.

import { button, make } from "./elements.js";
import { titleOf } from "./conversation.js";
import { dropConversation, keptConversations } from "./storing.js";

export class History {
  /** `open` is called with a conversation that was chosen, `dropped` with the name of one deleted. */
  constructor({ open, dropped }) {
    this.dialog = document.getElementById("history");
    this.list = document.getElementById("history-list");
    this.actions = { open, dropped };
    document.getElementById("history-close").addEventListener("click", () => this.dialog.close());
  }

  /** Show the list; the conversation of this name is the one on the page. */
  open(current) {
    const shown = keptConversations();
    this.list.replaceChildren(...shown.map((one) => this.#row(one, one.id === current)));
    document.getElementById("history-empty").hidden = shown.length > 0;
    if (!this.dialog.open) this.dialog.showModal();
  }

  #row(conversation, current) {
    const choose = () => {
      this.dialog.close();
      this.actions.open(conversation);
    };
    const drop = () => {
      dropConversation(conversation.id);
      row.remove();
      document.getElementById("history-empty").hidden = this.list.children.length > 0;
      this.actions.dropped(conversation.id);
    };
    const title = titleOf(conversation.turns);
    const time = make("time", {}, new Date(conversation.time).toLocaleString());
    const chosen = button("", choose, { className: "choice" });
    chosen.append(make("span", { className: "title" }, title), time);
    if (current) chosen.setAttribute("aria-current", "true");
    const gone = button("Delete", drop, { className: "small" });
    gone.setAttribute("aria-label", `Delete ${title}`);
    const row = make("li", {}, chosen, gone);
    return row;
  }
}
