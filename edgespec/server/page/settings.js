// What is asked for with every message, in a panel; kept while the tab is open.

import { keep, kept } from "./storing.js";

const FIELDS = { system: "system", temperature: "temperature", maxTokens: "max-tokens", seed: "seed" };

export class Settings {
  /** `closed` is called when the panel was closed, with whether the key is another one. */
  constructor(closed) {
    this.dialog = document.getElementById("settings");
    this.keyForm = document.getElementById("key-form");
    this.keyInput = document.getElementById("key");
    this.inputs = Object.fromEntries(
      Object.entries(FIELDS).map(([name, id]) => [name, document.getElementById(id)]),
    );
    this.#restore();
    for (const input of Object.values(this.inputs)) {
      input.addEventListener("change", () => this.#changed(input));
    }
    this.keyInput.addEventListener("input", () => keep("key", this.key));
    this.keyForm.addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
    });
    document.getElementById("settings-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => closed(this.key !== this.keyBefore));
  }

  get key() {
    return this.keyInput.value.trim();
  }

  /** The values; a number is null where the server's own holds. */
  get values() {
    const { system, ...numbers } = this.inputs;
    const value = (input) => (input.value && input.validity.valid ? input.valueAsNumber : null);
    const entries = Object.entries(numbers).map(([name, input]) => [name, value(input)]);
    return { system: system.value, ...Object.fromEntries(entries) };
  }

  /** The fields of a request. */
  get parameters() {
    const { temperature, maxTokens, seed } = this.values;
    const all = { temperature, max_tokens: maxTokens, seed };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null));
  }

  open() {
    if (this.dialog.open) return;
    this.keyBefore = this.key;
    this.dialog.showModal();
  }

  /** The server wants a key. */
  askForKey() {
    this.keyForm.hidden = false;
    this.open();
    this.keyInput.focus();
  }

  #changed(input) {
    if (input.reportValidity?.() ?? true) keep("settings", JSON.stringify(this.values));
  }

  #restore() {
    let values = {};
    try {
      values = JSON.parse(kept("settings") || "{}") ?? {};
    } catch {
      // Something else has written there: the server's own values hold.
    }
    for (const [name, input] of Object.entries(this.inputs)) input.value = values[name] ?? "";
    this.keyInput.value = kept("key");
    this.keyForm.hidden = !this.key;
  }
}
